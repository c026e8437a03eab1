"""Build the index entries of a segment from its batch columns.

Source: Kafka's ``LogSegment.recover``; ``LogSegment.append`` uses the same rule.
"""

from __future__ import annotations

import numpy as np

from kafka_index.core.errors import (
    IndexFullError,
    IndexOffsetOverflowError,
    InvalidOffsetError,
    InvalidTimestampError,
    KafkaIndexError,
)
from kafka_index.core.format.longs import Longs
from kafka_index.core.format.records import NO_TIMESTAMP
from kafka_index.core.index.sparse_indexes import OffsetIndex, TimeIndex
from kafka_index.core.kernels.index_entries import (
    STATE_MAX_TIMESTAMP,
    STATE_OFFSET_OF_MAX_TIMESTAMP,
    choose_entries,
)
from kafka_index.core.log.scan.file_records import NO_OFFSET, LogBatches, next_offset
from kafka_index.core.log.state.partition_state import ProducerTable
from kafka_index.core.records.batch_table import BatchColumns, ScanStop

_REFUSALS: dict[type[KafkaIndexError], str] = {
    IndexFullError: "index_full",
    InvalidOffsetError: "offset_backward",
    InvalidTimestampError: "timestamp_backward",
    IndexOffsetOverflowError: "offset_overflow",
}


class IndexBuilder:
    """Fills the empty offset index and time index of a segment from its batches.

    An entry is added after more than ``index.interval.bytes``. Entries do not depend on producers.
    However, with `producers`, the build ends at a batch whose producer state makes recovery fail.
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
        # Last offset of the last batch, and the largest base offset of the batches from the last
        # index entry on.
        self._last_offset = self._largest_base_offset = NO_OFFSET
        self._interval = index_interval_bytes
        self._producers = producers
        self._state = np.array([0, NO_TIMESTAMP, -1], np.int64)
        self._entries = np.empty((3, 0), np.int64)

    @property
    def max_timestamp_ms(self) -> int:
        """The largest timestamp so far, -1 without one."""
        return int(self._state[STATE_MAX_TIMESTAMP])

    @property
    def next_offset(self) -> int:
        """The offset after the last batch, as a broker would determine it."""
        return next_offset(
            self.offset_index.base_offset,
            self.offset_index.last_offset,
            self._largest_base_offset,
            self._last_offset,
        )

    def append(self, batches: BatchColumns) -> ScanStop | None:
        """Append the index entries of a chunk of batches. If recovery would end, return why."""
        accepted, stop = batches.rows, None
        if self._producers is not None:
            accepted, stop = self._producers.follow(batches)
        if accepted < batches.rows:
            batches = batches.slice(0, accepted)
        refusal = self._append_entries(batches)
        self.batch_count += accepted
        self.valid_bytes = batches.end_bytes
        self._last_offset = int(batches.last_offset[-1])
        return refusal or stop

    def recover(self, batches: LogBatches) -> ScanStop | None:
        """Append the index entries of all batches, and finish. If recovery would fail, return why.

        Source: ``LogSegment.recover``.
        """
        for chunk in batches:
            stop = self.append(chunk)
            if stop is not None:
                return stop
        return batches.refusal or self.finish()

    def finish(self) -> ScanStop | None:
        """Append the last time index entry and trim both files; return why recovery would fail."""
        self.offset_index.trim_to_valid_size()
        _, error = self.time_index.try_maybe_append_many(
            self._state[STATE_MAX_TIMESTAMP : STATE_MAX_TIMESTAMP + 1],
            self._state[STATE_OFFSET_OF_MAX_TIMESTAMP : STATE_OFFSET_OF_MAX_TIMESTAMP + 1],
            skip_full_check=True,
        )
        self.time_index.trim_to_valid_size()
        return None if error is None else _to_stop(error, self.valid_bytes)

    def _append_entries(self, batches: BatchColumns) -> ScanStop | None:
        if self._entries.shape[1] < batches.rows:
            self._entries = np.empty((3, batches.rows), np.int64)
        rows, timestamps, timestamp_offsets = self._entries
        count = choose_entries(
            batches.position_bytes,
            batches.last_offset,
            batches.max_timestamp_ms,
            0,
            batches.rows,
            self._interval,
            self._state,
            rows,
            timestamps,
            timestamp_offsets,
            0,
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
            self._largest_base_offset = NO_OFFSET
        self._follow_base_offsets(
            batches.base_offset[entry_rows[accepted - 1] if accepted else 0 :]
        )
        # Kafka appends the offset entry and then the time entry of each batch. So a rejected time
        # entry prevents the offset entries of later batches, but not of its own batch.
        time_accepted, time_error = self.time_index.try_maybe_append_many(
            timestamps[:accepted], timestamp_offsets[:accepted]
        )
        if time_error is not None:
            return _to_stop(time_error, int(positions[time_accepted]))
        return None if error is None else _to_stop(error, int(positions[accepted]))

    def _follow_base_offsets(self, base_offsets: Longs) -> None:
        self._largest_base_offset = max(self._largest_base_offset, int(base_offsets.max()))


def _to_stop(error: KafkaIndexError, position_bytes: int) -> ScanStop:
    return ScanStop(
        _REFUSALS[type(error)],
        position_bytes,
        error.expected,
        error.found,
        refused=True,
        message=error.message,
    )
