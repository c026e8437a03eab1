"""The offsets of a log: gaps, marks of the log cleaner, and the split of a segment with too many.

The header of a compressed v0 or v1 message contains only its last offset. Its first offset is in
the first inner message, which is decompressed only if the offset does not follow the previous
message.
"""

from __future__ import annotations

from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from kafka_index.core.errors import CorruptLogError, TooLargeError
from kafka_index.core.format.integers import INT32_MAX
from kafka_index.core.format.longs import Longs
from kafka_index.core.format.records import COMPRESSION_MASK, DELETE_HORIZON_MASK
from kafka_index.core.fs.store import Bytes
from kafka_index.core.kernels.headers import (
    CONTROL_MESSAGE,
)
from kafka_index.core.log.scan.segment_scan import LogFileSource
from kafka_index.core.logdir.partition_files import SegmentFile
from kafka_index.core.records.batch_table import BatchColumns
from kafka_index.core.records.record_sections import Decompressor, first_offset, open_records

_MAX_HOLES = 100


class Hole(NamedTuple):
    """Offsets that no batch contains, between two batches of a log; `end_offset` is exclusive.

    `before_bytes` is the position of the batch before the gap, None at the start of the log. If
    there is a fault, the batch after the gap may contain some of the offsets: its messages cannot
    be read.
    """

    first_offset: int
    end_offset: int
    position_bytes: int
    before_bytes: int | None = None
    fault: str | None = None


class LogOffsets:
    """The offsets of a log, in file order; a `BatchObserver`.

    Attributes
    ----------
    cleaned_to
        The log cleaner removed missing offsets below it.
    first_offset, end_offset, end_bytes
        First offset (None if there is no batch); offset and position after the last batch.
    holes, hole_count
        First gaps that marks in this log do not explain, and their number.
    cleaned_count
        Number of gaps made by the log cleaner.
    marked_to
        The log cleaner has processed all offsets below it, 0 for none: a batch there has fewer
        records than offsets, or a delete horizon.
    overlap
        The first batch that starts before the previous one ends: its offset, and the expected one.
    """

    def __init__(self, base_offset: int, cleaned_to: int = 0) -> None:
        self.base_offset = base_offset
        self.first_offset: int | None = None
        self.end_offset = base_offset
        self.end_bytes = 0
        self.holes: list[Hole] = []
        self.hole_count = 0
        self.cleaned_count = 0
        self.marked_to = 0
        self.overlap: Hole | None = None
        self._cleaned_to = cleaned_to
        #: The first batch that may contain offsets before its own, the offset expected there, and
        #: the position of the previous batch.
        self._suspect: tuple[int, int, int | None] | None = None
        self._last_bytes: int | None = None

    @classmethod
    def unseen(cls, segment: SegmentFile) -> Self:
        """Return the offsets of a log before `look_for_marks` reads it."""
        found = cls(segment.base_offset)
        found.end_bytes = segment.log_size_bytes
        return found

    def observe(self, batches: BatchColumns) -> None:
        """Process the headers of a chunk of batches."""
        if not batches.rows:
            return
        base, last = batches.base_offset, batches.last_offset
        self._observe_marks(batches, has_delete_horizon(batches))
        if self._suspect is None:
            is_contiguous = int(base[0]) == self.end_offset and bool(
                (base[1:] - last[:-1] == 1).all()
            )
            if not is_contiguous:
                self._observe_breaks(batches)
            if self.first_offset is None and self._suspect is None:
                self.first_offset = int(base[0])
        self._end_with(batches)

    def observe_contiguous(self, batches: BatchColumns) -> None:
        """Look at batches that continue the log without a gap, and without a mark of a cleaner."""
        if self.first_offset is None and self._suspect is None:
            self.first_offset = int(batches.base_offset[0])
        self._end_with(batches)

    def settle(self, segment: SegmentFile, decompressor: Decompressor) -> None:
        """Resolve cases that the headers of compressed messages leave open.

        Reads the log again; raises `KafkaIndexError` if that fails.
        """
        if self._suspect is not None:
            self._walk(segment, *self._suspect, decompressor)

    def look_for_marks(self, segment: SegmentFile, decompressor: Decompressor) -> None:
        """Count the records of each batch: fewer than offsets is a mark of the log cleaner.

        Raises `KafkaIndexError` if the log cannot be read.
        """
        self.holes, self.hole_count, self.cleaned_count = [], 0, 0
        self._walk(segment, 0, self.base_offset, None, decompressor)

    def observe_exactly(
        self, window: Bytes, start: int, batches: BatchColumns, decompressor: Decompressor
    ) -> None:
        """Process a chunk of batches with their bytes in a window that starts at `start`."""
        if not batches.rows:
            return
        firsts, counts = batches.base_offset.copy(), batches.record_count.copy()
        expected = self._expected(batches)
        faults: dict[int, str] = {}
        for row in np.flatnonzero(holds_messages(batches) & (firsts > expected)).tolist():
            at = int(batches.position_bytes[row]) - start
            message = window[at : at + int(batches.size_bytes[row])]
            try:
                with open_records(message, decompressor) as records:
                    firsts[row] = min(records.first_offset, int(firsts[row]))
                    counts[row] = records.section.record_count
            except (CorruptLogError, TooLargeError) as error:
                faults[row] = str(error)
        is_thinned = (counts >= 0) & (counts < batches.last_offset - firsts + 1)
        self._observe_marks(batches, is_thinned | has_delete_horizon(batches))
        self._add(batches, firsts, expected, faults)
        if self.first_offset is None:
            self.first_offset = int(firsts[0])
        self._end_with(batches)

    def _end_with(self, batches: BatchColumns) -> None:
        self.end_offset = int(batches.last_offset[-1]) + 1
        self.end_bytes = batches.end_bytes
        self._last_bytes = int(batches.position_bytes[-1])

    def _walk(
        self,
        segment: SegmentFile,
        position: int,
        expected: int,
        before_bytes: int | None,
        decompressor: Decompressor,
    ) -> None:
        """Process the batches from a position on again, with their bytes."""
        end_bytes = self.end_bytes
        self.end_offset, self._suspect = expected, None
        self._last_bytes = before_bytes
        source = LogFileSource(
            segment.log_path, verify_crc=False, listed=segment, start_bytes=position, recovers=False
        )
        for window, start, batches in source.windows():
            rows = int(np.searchsorted(batches.position_bytes, end_bytes))
            self.observe_exactly(window, start, batches.slice(0, rows), decompressor)
            if rows < batches.rows:
                break

    def _expected(self, batches: BatchColumns) -> Longs:
        return np.concatenate(([self.end_offset], batches.last_offset[:-1] + 1))

    def _before(self, batches: BatchColumns, row: int) -> int | None:
        return int(batches.position_bytes[row - 1]) if row else self._last_bytes

    def _observe_breaks(self, batches: BatchColumns) -> None:
        expected = self._expected(batches)
        suspects = np.flatnonzero(holds_messages(batches) & (batches.base_offset > expected))
        rows = batches.rows
        if len(suspects):
            rows = int(suspects[0])
            self._suspect = (
                int(batches.position_bytes[rows]),
                int(expected[rows]),
                self._before(batches, rows),
            )
            if rows and self.first_offset is None:
                self.first_offset = int(batches.base_offset[0])
        self._add(batches.slice(0, rows), batches.base_offset[:rows], expected[:rows], {})

    def _observe_marks(self, batches: BatchColumns, is_marked: NDArray[np.bool_]) -> None:
        """Explain missing offsets before a batch that only the log cleaner can have written."""
        rows = np.flatnonzero(is_marked)
        if not len(rows):
            return
        self.marked_to = max(self.marked_to, int(batches.base_offset[rows[-1]]))
        self._cleaned_to = max(self._cleaned_to, self.marked_to)
        self.cleaned_count += self.hole_count
        self.holes, self.hole_count = [], 0

    def _add(
        self, batches: BatchColumns, firsts: Longs, expected: Longs, faults: dict[int, str]
    ) -> None:
        """Record the batches that do not start where the previous one ends."""
        is_late = firsts > expected
        is_cleaned = is_late & (firsts <= self._cleaned_to)
        rows = np.flatnonzero(is_late & ~is_cleaned)
        self.cleaned_count += int(is_cleaned.sum())
        self.hole_count += len(rows)
        for row in rows[: _MAX_HOLES - len(self.holes)].tolist():
            self.holes.append(
                Hole(
                    int(expected[row]),
                    int(firsts[row]),
                    int(batches.position_bytes[row]),
                    self._before(batches, row),
                    faults.get(row),
                )
            )
        early = np.flatnonzero(firsts < expected)
        if len(early) and self.overlap is None:
            row = int(early[0])
            self.overlap = Hole(
                int(firsts[row]), int(expected[row]), int(batches.position_bytes[row])
            )


def holds_messages(batches: BatchColumns) -> NDArray[np.bool_]:
    """Return which batches are compressed v0 or v1 messages."""
    is_message: NDArray[np.bool_] = batches.control_type == CONTROL_MESSAGE
    is_packed: NDArray[np.bool_] = batches.attributes & COMPRESSION_MASK != 0
    return is_message & is_packed


def has_delete_horizon(batches: BatchColumns) -> NDArray[np.bool_]:
    """Return which batches have a delete horizon, which only the log cleaner sets."""
    is_batch: NDArray[np.bool_] = batches.control_type != CONTROL_MESSAGE
    has_horizon: NDArray[np.bool_] = batches.attributes & DELETE_HORIZON_MASK != 0
    return is_batch & has_horizon


class SegmentSpan(NamedTuple):
    """A new segment: its base offset, and its byte range in the old one."""

    base_offset: int
    start_bytes: int
    end_bytes: int


def split_segment(segment: SegmentFile, decompressor: Decompressor) -> list[SegmentSpan]:
    """Return the segments into which a broker splits a segment; empty if all offsets fit.

    An index entry stores an offset relative to the base offset in 31 bits. Brokers before 1.0
    ignored this when they merged cleaned segments (KAFKA-6264). A broker that recovers such a
    segment splits it; each new segment is named after its first batch. Source: ``LogLoader`` and
    ``LocalLog.splitOverflowedSegment``.

    The last segment includes corrupt batches and all bytes after them. Raises `KafkaIndexError` if
    the log cannot be read.
    """
    source = LogFileSource.of_segment(segment, verify_crc=False, recovers=False)
    spans: list[SegmentSpan] = []
    base, start = -1, 0
    for window, window_start, batches in source.windows():
        row = 0
        while row < batches.rows:
            at = int(batches.position_bytes[row])
            if base < 0 or int(batches.last_offset[row]) > base + INT32_MAX:
                if base >= 0:
                    spans.append(SegmentSpan(base, start, at))
                end = at - window_start + int(batches.size_bytes[row])
                base, start = _first_offset(window[at - window_start : end], decompressor), at
            row += 1
            beyond = np.flatnonzero(batches.last_offset[row:] > base + INT32_MAX)
            row = row + int(beyond[0]) if len(beyond) else batches.rows
    is_far = base > segment.base_offset + INT32_MAX
    return [*spans, SegmentSpan(base, start, source.log_size_bytes)] if spans or is_far else []


def _first_offset(batch: Bytes, decompressor: Decompressor) -> int:
    try:
        return first_offset(batch, decompressor)
    except (CorruptLogError, TooLargeError):
        # The header of a compressed message has the last inner offset.
        return int.from_bytes(batch[:8].tobytes(), "big")
