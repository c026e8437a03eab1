"""Find offset gaps and marks of the log cleaner; split segments whose offsets do not fit.

The header of a compressed v0 or v1 message contains only its last offset. The first offset is in
the first inner message. The message is decompressed only if its last offset is not the next offset
after the previous batch.
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

_MAX_GAPS = 100


class Gap(NamedTuple):
    """Missing offsets between two batches of a segment.

    Attributes
    ----------
    first_offset, end_offset
        The missing offsets; the end is exclusive.
    position_bytes
        Position of the batch after the gap.
    error
        Why the batch after the gap cannot be read, None if it was read. An unreadable batch may
        contain some of the missing offsets.
    """

    first_offset: int
    end_offset: int
    position_bytes: int
    error: str | None


class Overlap(NamedTuple):
    """A batch that starts below `expected_offset`, the offset after the previous batch."""

    base_offset: int
    expected_offset: int
    position_bytes: int


class LogOffsets:
    """Tracks the offsets of a segment in file order, as a `BatchObserver`.

    Attributes
    ----------
    first_offset
        First offset of the first batch, None if there is no batch.
    end_offset, end_bytes
        The offset and the position after the last batch.
    gaps
        The first gaps that are not before a mark of the log cleaner.
    gap_count
        Number of all gaps that are not before such a mark; can be larger than the size of `gaps`.
    cleaned_count
        Number of gaps before a mark, which the log cleaner made.
    marked_to
        Base offset of the last batch with a mark of the log cleaner, 0 if there is none. A batch
        has a mark if it has a delete horizon, or fewer records than offsets. The log cleaner has
        then processed all offsets below the batch.
    overlap
        The first batch that starts before the end of the previous batch, None if there is none.
    """

    def __init__(self, base_offset: int, cleaned_to: int = 0) -> None:
        self.base_offset = base_offset
        self.first_offset: int | None = None
        self.end_offset = base_offset
        self.end_bytes = 0
        self.gaps: list[Gap] = []
        self.gap_count = 0
        self.cleaned_count = 0
        self.marked_to = 0
        self.overlap: Overlap | None = None
        self._cleaned_to = cleaned_to
        #: Position of the first compressed message whose first offset is needed, and the offset
        #: after the previous batch. None if no first offset is needed.
        self._unresolved: tuple[int, int] | None = None

    @classmethod
    def of_unread(cls, segment: SegmentFile) -> Self:
        """Create for a segment that only `find_cleaner_marks` will read."""
        offsets = cls(segment.base_offset)
        offsets.end_bytes = segment.log_size_bytes
        return offsets

    def observe(self, batches: BatchColumns) -> None:
        """Process the headers of a chunk of batches."""
        if not batches.rows:
            return
        base, last = batches.base_offset, batches.last_offset
        self._observe_marks(batches, has_delete_horizon(batches))
        if self._unresolved is None:
            is_contiguous = int(base[0]) == self.end_offset and bool(
                (base[1:] - last[:-1] == 1).all()
            )
            if not is_contiguous:
                self._observe_breaks(batches)
            if self.first_offset is None and self._unresolved is None:
                self.first_offset = int(base[0])
        self._advance(batches)

    def observe_contiguous(self, batches: BatchColumns) -> None:
        """Process a chunk of batches without gaps before or between them, and without marks."""
        if self.first_offset is None and self._unresolved is None:
            self.first_offset = int(batches.base_offset[0])
        self._advance(batches)

    def resolve_messages(self, segment: SegmentFile, decompressor: Decompressor) -> None:
        """Find the gaps that depend on first offsets of compressed v0 or v1 messages.

        Reads the segment again, from the first such message on. Raises `KafkaIndexError` if the log
        cannot be read.
        """
        if self._unresolved is not None:
            self._read_again(segment, *self._unresolved, decompressor)

    def find_cleaner_marks(self, segment: SegmentFile, decompressor: Decompressor) -> None:
        """Read the segment again with its records, to find batches with fewer records than offsets.

        Raises `KafkaIndexError` if the log cannot be read.
        """
        self.gaps, self.gap_count, self.cleaned_count = [], 0, 0
        self._read_again(segment, 0, self.base_offset, decompressor)

    def observe_records(
        self, window: Bytes, start: int, batches: BatchColumns, decompressor: Decompressor
    ) -> None:
        """Process a chunk of batches; `window` has their bytes, and starts at position `start`."""
        if not batches.rows:
            return
        first_offsets, record_counts = batches.base_offset.copy(), batches.record_count.copy()
        expected = self._expected_offsets(batches)
        is_late_message = are_compressed_messages(batches) & (first_offsets > expected)
        errors: dict[int, str] = {}
        for row in np.flatnonzero(is_late_message).tolist():
            at = int(batches.position_bytes[row]) - start
            message = window[at : at + int(batches.size_bytes[row])]
            try:
                with open_records(message, decompressor) as records:
                    first_offsets[row] = min(records.first_offset, int(first_offsets[row]))
                    record_counts[row] = records.section.record_count
            except (CorruptLogError, TooLargeError) as error:
                errors[row] = str(error)
        offset_counts = batches.last_offset - first_offsets + 1
        lacks_records = (record_counts >= 0) & (record_counts < offset_counts)
        self._observe_marks(batches, lacks_records | has_delete_horizon(batches))
        self._add_gaps(batches, first_offsets, expected, errors)
        if self.first_offset is None:
            self.first_offset = int(first_offsets[0])
        self._advance(batches)

    def _advance(self, batches: BatchColumns) -> None:
        self.end_offset = int(batches.last_offset[-1]) + 1
        self.end_bytes = batches.end_bytes

    def _read_again(
        self,
        segment: SegmentFile,
        start_bytes: int,
        expected_offset: int,
        decompressor: Decompressor,
    ) -> None:
        end_bytes = self.end_bytes
        self.end_offset, self._unresolved = expected_offset, None
        source = LogFileSource(
            segment.log_path,
            verify_crc=False,
            listed_segment=segment,
            start_bytes=start_bytes,
            recovers=False,
        )
        for window, start, batches in source.windows():
            rows = int(np.searchsorted(batches.position_bytes, end_bytes))
            self.observe_records(window, start, batches.slice(0, rows), decompressor)
            if rows < batches.rows:
                break

    def _expected_offsets(self, batches: BatchColumns) -> Longs:
        return np.concatenate(([self.end_offset], batches.last_offset[:-1] + 1))

    def _observe_breaks(self, batches: BatchColumns) -> None:
        """Add gaps and the first overlap, up to the first message with an unknown first offset."""
        expected = self._expected_offsets(batches)
        is_late = batches.base_offset > expected
        unresolved_rows = np.flatnonzero(are_compressed_messages(batches) & is_late)
        end = batches.rows
        if len(unresolved_rows):
            end = int(unresolved_rows[0])
            self._unresolved = int(batches.position_bytes[end]), int(expected[end])
            if end and self.first_offset is None:
                self.first_offset = int(batches.base_offset[0])
        self._add_gaps(batches.slice(0, end), batches.base_offset[:end], expected[:end], {})

    def _observe_marks(self, batches: BatchColumns, is_marked: NDArray[np.bool_]) -> None:
        """Count gaps before a batch with a mark of the log cleaner as cleaned, and drop them."""
        rows = np.flatnonzero(is_marked)
        if not len(rows):
            return
        self.marked_to = max(self.marked_to, int(batches.base_offset[rows[-1]]))
        self._cleaned_to = max(self._cleaned_to, self.marked_to)
        self.cleaned_count += self.gap_count
        self.gaps, self.gap_count = [], 0

    def _add_gaps(
        self, batches: BatchColumns, first_offsets: Longs, expected: Longs, errors: dict[int, str]
    ) -> None:
        """Add the gaps before the batches of a chunk, and the first overlap."""
        is_late = first_offsets > expected
        is_cleaned = is_late & (first_offsets <= self._cleaned_to)
        rows = np.flatnonzero(is_late & ~is_cleaned)
        self.cleaned_count += int(is_cleaned.sum())
        self.gap_count += len(rows)
        for row in rows[: _MAX_GAPS - len(self.gaps)].tolist():
            self.gaps.append(
                Gap(
                    int(expected[row]),
                    int(first_offsets[row]),
                    int(batches.position_bytes[row]),
                    errors.get(row),
                )
            )
        early_rows = np.flatnonzero(first_offsets < expected)
        if len(early_rows) and self.overlap is None:
            row = int(early_rows[0])
            self.overlap = Overlap(
                int(first_offsets[row]), int(expected[row]), int(batches.position_bytes[row])
            )


def are_compressed_messages(batches: BatchColumns) -> NDArray[np.bool_]:
    """Return which batches are compressed v0 or v1 messages."""
    is_message: NDArray[np.bool_] = batches.control_type == CONTROL_MESSAGE
    is_compressed: NDArray[np.bool_] = batches.attributes & COMPRESSION_MASK != 0
    return is_message & is_compressed


def has_delete_horizon(batches: BatchColumns) -> NDArray[np.bool_]:
    """Return which batches have a delete horizon. Only the log cleaner sets it."""
    is_batch: NDArray[np.bool_] = batches.control_type != CONTROL_MESSAGE
    has_horizon: NDArray[np.bool_] = batches.attributes & DELETE_HORIZON_MASK != 0
    return is_batch & has_horizon


class SegmentSpan(NamedTuple):
    """A segment after a split: its base offset, and its byte range in the original segment."""

    base_offset: int
    start_bytes: int
    end_bytes: int


def split_segment(segment: SegmentFile, decompressor: Decompressor) -> list[SegmentSpan]:
    """Return the segments into which recovery splits a segment; empty if all offsets fit.

    An index entry stores an offset relative to the base offset in 31 bits. Brokers before 1.0
    ignored this limit when they merged cleaned segments (KAFKA-6264). If a broker recovers such a
    segment, it splits the segment. The base offset of each new segment is its first offset. Source:
    ``LogLoader`` and ``LocalLog.splitOverflowedSegment``.

    The last segment includes corrupt batches and all bytes after them. Raises `KafkaIndexError` if
    the log cannot be read.
    """
    source = LogFileSource.of_segment(segment, verify_crc=False, recovers=False)
    spans: list[SegmentSpan] = []
    base, start = -1, 0
    for window, window_start, batches in source.windows():
        row = 0
        while row < batches.rows:
            position = int(batches.position_bytes[row])
            if base < 0 or int(batches.last_offset[row]) > base + INT32_MAX:
                if base >= 0:
                    spans.append(SegmentSpan(base, start, position))
                in_window = position - window_start
                batch = window[in_window : in_window + int(batches.size_bytes[row])]
                base, start = _first_offset(batch, decompressor), position
            row += 1
            overflowing = np.flatnonzero(batches.last_offset[row:] > base + INT32_MAX)
            row = row + int(overflowing[0]) if len(overflowing) else batches.rows
    if not spans and base <= segment.base_offset + INT32_MAX:
        return []
    return [*spans, SegmentSpan(base, start, source.log_size_bytes)]


def _first_offset(batch: Bytes, decompressor: Decompressor) -> int:
    try:
        return first_offset(batch, decompressor)
    except (CorruptLogError, TooLargeError):
        # If a compressed message is corrupt, use the offset in its header, which is its last
        # offset.
        return int.from_bytes(batch[:8].tobytes(), "big")
