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

from kafka_index.errors import KafkaIndexError, is_retriable
from kafka_index.layout.records import MAGIC_POSITION, MAGIC_RECORD_BATCH
from kafka_index.restore.dump_files import Replica
from kafka_index.restore.sound_ranges import BatchMark, mark_at
from kafka_index.scan import LogFileSource
from kafka_index.storage import Bytes, MappedFile, SegmentFile
from kafka_index.stores import is_remote


class Piece(NamedTuple):
    """Bytes of a log, from batch to batch."""

    path: str
    start_bytes: int
    end_bytes: int


class FillGap(NamedTuple):
    """Offsets that what fills a range has not, either."""

    first_offset: int
    last_offset: int
    replica: str


@dataclass(frozen=True, slots=True)
class Fill:
    """What fills a range.

    Parameters
    ----------
    pieces : tuple of Piece
        In order; each of another log.
    replica : str
        The directory of the copy.
    gaps : tuple of FillGap
        The offsets that are missing in the range, whatever the reason.
    """

    pieces: tuple[Piece, ...]
    replica: str
    gaps: tuple[FillGap, ...] = ()

    def unexplained(self, cleaned_to: float | None) -> int:
        """Return how many offsets are missing that compaction up to an offset does not explain."""
        return sum(
            each.last_offset - each.first_offset + 1
            for each in self.gaps
            if cleaned_to is None or each.first_offset >= cleaned_to
        )


class Filler:
    """Finds ranges in the other copies of a partition.

    Parameters
    ----------
    others : sequence of Replica
        The other copies; those that are not on a local disk are not read.
    cleaned_to : float, optional
        Up to where compaction may have removed offsets; None for nowhere.
    """

    def __init__(self, others: Sequence[Replica], cleaned_to: float | None = None) -> None:
        self._cleaned_to = cleaned_to
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
        best: tuple[int, Fill] | None = None
        for other in self._others:
            try:
                walk = _between(other.segments.files(), before, after)
            except KafkaIndexError as error:
                if is_retriable(error):
                    raise
                continue
            if walk is None or not walk.pieces:
                continue
            gaps = tuple(FillGap(*each, other.directory) for each in walk.gaps)
            fill = Fill(tuple(walk.pieces), other.directory, gaps)
            missing = fill.unexplained(self._cleaned_to)
            if missing == 0:
                return fill
            if best is None or missing < best[0]:
                best = missing, fill
        return None if best is None else best[1]


def last_mark(segment: SegmentFile) -> BatchMark | None:
    """Return the mark of the last sound batch of a local log; None for none."""
    marks = _edge_marks(segment)
    return None if marks is None else marks[1]


def first_mark(segment: SegmentFile) -> BatchMark | None:
    """Return the mark of the first batch of a local log, if that is sound; None otherwise."""
    marks = _edge_marks(segment)
    return None if marks is None else marks[0]


def may_be_cleaned(segments: Sequence[SegmentFile]) -> bool:
    """Return whether offsets are missing within logs, as after compaction, up to their damage.

    Raises
    ------
    ReadError
        A log cannot be read now.
    """
    for segment in segments:
        next_offset = None
        try:
            for batches in LogFileSource.of_segment(segment, verify_crc=False).chunks():
                if not batches.rows:
                    continue
                if next_offset is not None and batches.base_offset[0] > next_offset:
                    return True
                if (batches.base_offset[1:] > batches.last_offset[:-1] + 1).any():
                    return True
                next_offset = int(batches.last_offset[-1]) + 1
        except KafkaIndexError as error:
            if is_retriable(error):
                raise
    return False


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


def _between(
    segments: Sequence[SegmentFile], before: BatchMark | int, after: BatchMark
) -> _Walk | None:
    """Return what a copy has between two batches, or from an offset to a batch.

    None where it does not have both batches.
    """
    start_offset = before if isinstance(before, int) else before.base_offset
    first = max(
        (at for at, one in enumerate(segments) if one.base_offset <= start_offset), default=0
    )
    walk = _Walk(before, after)
    for segment in segments[first:]:
        if segment.base_offset > after.base_offset or not walk.goes_on_in(segment):
            return None
        if walk.is_done:
            return walk
    return None


class _Walk:
    """The way through the logs of a copy, from one batch to the other."""

    def __init__(self, before: BatchMark | int, after: BatchMark) -> None:
        self._before = before
        self._after = after
        self._next_offset = before if isinstance(before, int) else before.last_offset + 1
        self._is_inside = False
        self.is_done = False
        self.pieces: list[Piece] = []
        #: The offsets that are missing on the way: the first ones, and the last ones.
        self.gaps: list[tuple[int, int]] = []

    def goes_on_in(self, segment: SegmentFile) -> bool:
        """Take what the next log has of the range; return False where the copy is of no use.

        A copy whose log ends in damage before the second batch does not have the range.
        """
        start = 0 if self._is_inside else None
        source = LogFileSource.of_segment(segment, verify_crc=True)
        with MappedFile(segment.log_path) as file:
            for batches in source.chunks():
                for at, base_offset, last_offset, size in zip(
                    batches.position_bytes.tolist(),
                    batches.base_offset.tolist(),
                    batches.last_offset.tolist(),
                    batches.size_bytes.tolist(),
                    strict=True,
                ):
                    if start is None:
                        before = self._before
                        if isinstance(before, int):
                            if last_offset < before:
                                continue
                            start = at
                        elif base_offset < before.base_offset:
                            continue
                        elif mark_at(file.array, at) != before:
                            return False
                        else:
                            start = at + size
                            continue
                    if base_offset > self._next_offset and not _may_span(file.array, at):
                        self.gaps.append((self._next_offset, base_offset - 1))
                    if base_offset >= self._after.base_offset:
                        self.is_done = mark_at(file.array, at) == self._after
                        self._take(segment, start, at)
                        return self.is_done
                    self._next_offset = last_offset + 1
            if source.stop is not None or start is None:
                return False
            self._take(segment, start, file.size_bytes)
        self._is_inside = True
        return True

    def _take(self, segment: SegmentFile, start: int, end: int) -> None:
        if end > start:
            self.pieces.append(Piece(segment.log_path, start, end))


def _may_span(log: Bytes, position_bytes: int) -> bool:
    """Return whether a batch may hold offsets before its own: compressed, of magic 0 or 1."""
    magic_at = position_bytes + MAGIC_POSITION
    return int(log[magic_at]) < MAGIC_RECORD_BATCH and bool(int(log[magic_at + 1]) & 7)
