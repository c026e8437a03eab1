"""Batch columns in, index entries out.

Source: Kafka's ``LogSegment.recover``; the live ``LogSegment.append`` follows the same rule.
"""

from __future__ import annotations

import numpy as np

from kafka_index.errors import (
    IndexFullError,
    IndexOffsetOverflowError,
    InvalidOffsetError,
    InvalidTimestampError,
    KafkaIndexError,
)
from kafka_index.index import OffsetIndex, TimeIndex
from kafka_index.kernels import choose_entries
from kafka_index.kernels.index_entries import STATE_MAX_TIMESTAMP, STATE_OFFSET_OF_MAX_TIMESTAMP
from kafka_index.layout.records import NO_TIMESTAMP
from kafka_index.records.batch_source import ScanStop
from kafka_index.records.batch_table import BatchColumns, Longs
from kafka_index.state.producer_table import ProducerTable

_NO_OFFSET = -1
_INT64_MAX = 2**63 - 1
_REFUSALS: dict[type[KafkaIndexError], str] = {
    IndexFullError: "index_full",
    InvalidOffsetError: "offset_backward",
    InvalidTimestampError: "timestamp_backward",
    IndexOffsetOverflowError: "offset_overflow",
}


class IndexBuilder:
    """Fills the indexes of one segment from its batches.

    Parameters
    ----------
    offset_index : OffsetIndex
        Empty and writable.
    time_index : TimeIndex
        Empty and writable.
    index_interval_bytes : int
        ``index.interval.bytes``: an entry is due when more than this lies since the last.
    producers : ProducerTable, optional
        Taken along, and what recovery refuses because of it is refused; entries do not depend
        on it.
    """

    def __init__(
        self,
        offset_index: OffsetIndex,
        time_index: TimeIndex,
        index_interval_bytes: int,
        *,
        producers: ProducerTable | None = None,
    ) -> None:
        self.offset_index = offset_index
        self.time_index = time_index
        self.valid_bytes = 0
        self.batch_count = 0
        # Of the last batch; and the largest base offset from that of the last index entry on.
        self._last_offset = self._largest_base_offset = _NO_OFFSET
        self._interval = index_interval_bytes
        self._producers = producers
        self._state = np.array([0, NO_TIMESTAMP, -1], np.int64)
        self._chosen = np.empty((3, 0), np.int64)

    @property
    def max_timestamp_ms(self) -> int:
        """The largest timestamp so far; -1 for none."""
        return int(self._state[STATE_MAX_TIMESTAMP])

    @property
    def next_offset(self) -> int:
        """The offset after the last batch, as a broker reads it.

        It looks for the last batch from the one that holds the offset of the last index entry,
        or is the first above it. Where offsets go back after that entry there may be none, and
        the segment counts as empty: the answer is its base offset.

        Notes
        -----
        LogSegment.readNextOffset, FileRecords.searchForOffsetFromPosition.
        """
        indexed = self.offset_index.last_offset
        if max(self._largest_base_offset, self._last_offset) < indexed:
            return self.offset_index.base_offset
        # The offset after the largest one is the smallest one, as in Java.
        return -_INT64_MAX - 1 if self._last_offset == _INT64_MAX else self._last_offset + 1

    def append(self, batches: BatchColumns) -> ScanStop | None:
        """Take up a chunk of batches.

        Returns
        -------
        ScanStop or None
            Why recovery goes no further; None to go on.
        """
        taken, stop = len(batches), None
        if self._producers is not None:
            taken, stop = self._producers.follow(batches)
        if taken < len(batches):
            batches = batches.head(taken)
        refusal = self._append_entries(batches)
        self.batch_count += taken
        self.valid_bytes = batches.end_bytes
        self._last_offset = int(batches.last_offset[-1])
        return refusal or stop

    def finish(self) -> ScanStop | None:
        """Make the last time entry and trim both files; return why recovery fails here, if so."""
        self.offset_index.trim_to_valid_size()
        _, error = self.time_index.try_maybe_append_many(
            self._state[STATE_MAX_TIMESTAMP : STATE_MAX_TIMESTAMP + 1],
            self._state[STATE_OFFSET_OF_MAX_TIMESTAMP : STATE_OFFSET_OF_MAX_TIMESTAMP + 1],
            skip_full_check=True,
        )
        self.time_index.trim_to_valid_size()
        return None if error is None else _refusal(error, self.valid_bytes)

    def _append_entries(self, batches: BatchColumns) -> ScanStop | None:
        if self._chosen.shape[1] < len(batches):
            self._chosen = np.empty((3, len(batches)), np.int64)
        rows, timestamps, timestamp_offsets = self._chosen
        count = choose_entries(
            batches.position_bytes,
            batches.last_offset,
            batches.max_timestamp_ms,
            self._interval,
            self._state,
            rows,
            timestamps,
            timestamp_offsets,
        )
        if not count:
            self._follow_base_offsets(batches.base_offset)
            return None
        entry_rows = rows[:count]
        positions = batches.position_bytes[entry_rows]
        accepted, error = self.offset_index.try_append_many(
            batches.last_offset[entry_rows], positions
        )
        if accepted:
            self._largest_base_offset = _NO_OFFSET
        self._follow_base_offsets(
            batches.base_offset[entry_rows[accepted - 1] if accepted else 0 :]
        )
        # Kafka makes both entries batch by batch: a time entry is refused before a later offset
        # entry, and after that of its own batch.
        timed, time_error = self.time_index.try_maybe_append_many(
            timestamps[:accepted], timestamp_offsets[:accepted]
        )
        if time_error is not None:
            return _refusal(time_error, int(positions[timed]))
        return None if error is None else _refusal(error, int(positions[accepted]))

    def _follow_base_offsets(self, base_offsets: Longs) -> None:
        self._largest_base_offset = max(self._largest_base_offset, int(base_offsets.max()))


def _refusal(error: KafkaIndexError, position_bytes: int) -> ScanStop:
    return ScanStop(
        _REFUSALS[type(error)],
        position_bytes,
        error.expected,
        error.found,
        refused=True,
        message=error.message,
    )
