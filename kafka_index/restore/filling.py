"""Filling what one copy of a partition lacks from another one.

The range is taken only where both copies hold the same batch before it and the same batch after it:
equal base offset, last offset, leader epoch and checksum. Everything between must be sound. So
histories that diverge are never joined. A copy without gaps in the range is taken before one with
gaps that compaction does not explain.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from kafka_index.config import DEFAULT_MAX_DECOMPRESSED_BYTES
from kafka_index.errors import KafkaIndexError, is_retriable
from kafka_index.records.batch_table import BatchColumns
from kafka_index.records.decompression import shared_budget
from kafka_index.records.record_sections import Decompressor
from kafka_index.restore.dump_files import Replica
from kafka_index.restore.sound_ranges import BatchMark, mark_at
from kafka_index.scan import LogFileSource
from kafka_index.scan.log_offsets import LogOffsets
from kafka_index.storage import MappedFile, SegmentFile
from kafka_index.stores import is_remote


class Piece(NamedTuple):
    """Bytes of a log, from batch to batch."""

    path: str
    start_bytes: int
    end_bytes: int


@dataclass(frozen=True, slots=True)
class Fill:
    """What fills a range.

    Parameters
    ----------
    first_offset, end_offset : int
        The range.
    pieces : tuple of Piece
        In order; each of another log. Empty where the copy has nothing there, and its cleaner
        explains that.
    replica : str
        The directory of the copy.
    gaps : tuple of tuple of int
        The first and the last offset of what is missing in it, and its cleaner does not explain.
    unnamed_gaps : int
        How many more there are.
    """

    first_offset: int
    end_offset: int
    pieces: tuple[Piece, ...]
    replica: str
    gaps: tuple[tuple[int, int], ...] = ()
    unnamed_gaps: int = 0

    @property
    def missing(self) -> int:
        """How many offsets are missing in it; at least one a place."""
        return sum(last - first + 1 for first, last in self.gaps) + self.unnamed_gaps

    def covers(self, first_offset: int, end_offset: int) -> bool:
        """Return whether offsets, the end exclusive, are in the range."""
        return self.first_offset <= first_offset and end_offset <= self.end_offset

    def explains(self, first_offset: int, end_offset: int) -> bool:
        """Return whether the copy has no such offsets either, because a cleaner removed them."""
        return (
            not self.unnamed_gaps
            and self.covers(first_offset, end_offset)
            and not any(first < end_offset and first_offset <= last for first, last in self.gaps)
        )


class Filler:
    """Finds ranges in the other copies of a partition.

    Parameters
    ----------
    others : sequence of Replica
        The other copies; those that are not on a local disk are not read.
    decompressor : Decompressor, optional
        For compressed messages of magic 0 and 1, by default within Kafka Index's default limit.
    """

    def __init__(self, others: Sequence[Replica], decompressor: Decompressor | None = None) -> None:
        self.decompressor = decompressor or shared_budget(DEFAULT_MAX_DECOMPRESSED_BYTES)
        self._others = [each for each in others if not is_remote(each.directory)]

    def __bool__(self) -> bool:
        """Return whether there is another copy."""
        return bool(self._others)

    def find(self, before: BatchMark | None, after: BatchMark | None) -> Fill | None:
        """Return what lies between two batches in a copy that has both; None for none.

        Raises
        ------
        ReadError
            A copy cannot be read now.
        """
        return None if before is None or after is None else self._find(before, after)

    def find_head(self, start_offset: int, after: BatchMark | None) -> Fill | None:
        """Return what lies from the start of a log to a batch, in a copy that has that batch.

        Before the start of a log there is no batch to agree on. Two logs that hold the same batch
        hold the same ones before it, unless the cleaner has been there. Without a leader epoch
        (magic 0 and 1) that is not certain, and nothing is found.

        Raises
        ------
        ReadError
            A copy cannot be read now.
        """
        if after is None or after.leader_epoch < 0:
            return None
        return self._find(start_offset, after)

    def _find(self, before: BatchMark | int, after: BatchMark) -> Fill | None:
        best: Fill | None = None
        for other in self._others:
            cleaned_to = other.root.cleaned_to(other.partition) or 0
            walk = _Walk(before, after, cleaned_to, self.decompressor)
            try:
                if not walk.goes_through(other.segments.files()):
                    continue
            except KafkaIndexError as error:
                if is_retriable(error):
                    raise
                continue
            fill = walk.fill(other.directory)
            if not fill.missing:
                return fill
            if fill.pieces and (best is None or fill.missing < best.missing):
                best = fill
        return best


def last_mark(segment: SegmentFile) -> BatchMark | None:
    """Return the mark of the last sound batch of a local log; None for none."""
    marks = _edge_marks(segment)
    return None if marks is None else marks[1]


def first_mark(segment: SegmentFile) -> BatchMark | None:
    """Return the mark of the first batch of a local log, if that is sound; None otherwise."""
    marks = _edge_marks(segment)
    return None if marks is None else marks[0]


def _edge_marks(segment: SegmentFile) -> tuple[BatchMark, BatchMark] | None:
    if is_remote(segment.log_path):
        return None
    last_at = None
    for batches in LogFileSource.of_segment(segment, verify_crc=True).chunks():
        if batches.rows:
            last_at = int(batches.position_bytes[-1])
    if last_at is None:
        return None
    with MappedFile(segment.log_path) as file:
        return mark_at(file.array, 0), mark_at(file.array, last_at)


class _Walk:
    """The way through the logs of a copy, from one batch to the other."""

    def __init__(
        self,
        before: BatchMark | int,
        after: BatchMark,
        cleaned_to: int,
        decompressor: Decompressor,
    ) -> None:
        self._before = before
        self._after = after
        self._decompressor = decompressor
        start = before if isinstance(before, int) else before.last_offset + 1
        self._offsets = LogOffsets(start, cleaned_to)
        self._is_inside = False
        self._is_done = False
        self._pieces: list[Piece] = []

    def goes_through(self, segments: Sequence[SegmentFile]) -> bool:
        """Return whether a copy has both batches, or the offset and the batch."""
        before = self._before
        start_offset = before if isinstance(before, int) else before.base_offset
        first = max(
            (at for at, one in enumerate(segments) if one.base_offset <= start_offset), default=0
        )
        for segment in segments[first:]:
            if segment.base_offset > self._after.base_offset or not self._goes_on_in(segment):
                return False
            if self._is_done:
                return True
        return False

    def fill(self, replica: str) -> Fill:
        """Return what lies on the way."""
        offsets = self._offsets
        return Fill(
            offsets.base_offset,
            self._after.base_offset,
            tuple(self._pieces),
            replica,
            tuple((each.first_offset, each.end_offset - 1) for each in offsets.holes),
            offsets.hole_count - len(offsets.holes),
        )

    def _goes_on_in(self, segment: SegmentFile) -> bool:
        """Take what the next log has of the range; return False where the copy is of no use.

        A copy whose log ends in damage before the second batch does not have the range.
        """
        start = 0 if self._is_inside else None
        source = LogFileSource.of_segment(segment, verify_crc=True)
        with MappedFile(segment.log_path) as file:
            for batches in source.chunks():
                row = 0
                if start is None:
                    found = self._first_row(batches)
                    if found is None:
                        continue
                    row, start = found, int(batches.position_bytes[found])
                    if not isinstance(self._before, int):
                        if mark_at(file.array, start) != self._before:
                            return False
                        start += int(batches.size_bytes[found])
                        row += 1
                ends = np.flatnonzero(batches.base_offset[row:] >= self._after.base_offset)
                end = row + int(ends[0]) if len(ends) else batches.rows
                inside = batches.slice(row, end + 1)
                self._offsets.observe_exactly(file.array, 0, inside, self._decompressor)
                if len(ends):
                    at = int(batches.position_bytes[end])
                    self._is_done = mark_at(file.array, at) == self._after
                    self._take(segment, start, at)
                    return self._is_done
            if source.stop is not None or start is None:
                return False
            self._take(segment, start, file.size_bytes)
        self._is_inside = True
        return True

    def _first_row(self, batches: BatchColumns) -> int | None:
        """Return the batch that the way begins with, or the one that it begins after."""
        if isinstance(self._before, int):
            rows = np.flatnonzero(batches.last_offset >= self._before)
        else:
            rows = np.flatnonzero(batches.base_offset >= self._before.base_offset)
        return int(rows[0]) if len(rows) else None

    def _take(self, segment: SegmentFile, start: int, end: int) -> None:
        if end > start:
            self._pieces.append(Piece(segment.log_path, start, end))
