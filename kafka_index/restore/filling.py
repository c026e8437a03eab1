"""Filling what one copy of a partition lacks from another one.

The range is taken only where both copies hold the same batch before it and the same batch after it:
equal base offset, last offset, leader epoch and checksum. Everything between must be sound. So
histories that diverge are never joined.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from kafka_index.errors import KafkaIndexError, is_retriable
from kafka_index.restore.dump_files import Replica
from kafka_index.restore.sound_ranges import BatchMark, mark_at
from kafka_index.scan import LogFileSource
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
    pieces : tuple of Piece
        In order; each of another log.
    replica : str
        The directory of the copy.
    """

    pieces: tuple[Piece, ...]
    replica: str


class Filler:
    """Finds ranges in the other copies of a partition.

    Parameters
    ----------
    others : sequence of Replica
        The other copies; those that are not on a local disk are not read.
    """

    def __init__(self, others: Sequence[Replica]) -> None:
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
        hold the same ones before it, unless the cleaner has been there.

        Raises
        ------
        ReadError
            A copy cannot be read now.
        """
        return None if after is None else self._find(start_offset, after)

    def _find(self, before: BatchMark | int, after: BatchMark) -> Fill | None:
        for other in self._others:
            try:
                pieces = _between(other.segments.files(), before, after)
            except KafkaIndexError as error:
                if is_retriable(error):
                    raise
                continue
            if pieces:
                return Fill(tuple(pieces), other.directory)
        return None


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


def _between(
    segments: Sequence[SegmentFile], before: BatchMark | int, after: BatchMark
) -> list[Piece] | None:
    """Return the pieces of a copy between two batches, or from an offset to a batch.

    None where it does not have both batches.
    """
    start_offset = before if isinstance(before, int) else before.base_offset
    first = max(
        (at for at, one in enumerate(segments) if one.base_offset <= start_offset), default=0
    )
    pieces: list[Piece] = []
    is_inside = False
    for segment in segments[first:]:
        if segment.base_offset > after.base_offset:
            return None
        found = _of_segment(segment, before, after, is_inside=is_inside)
        if found is None:
            return None
        piece, is_inside, is_done = found
        if piece is not None:
            pieces.append(piece)
        if is_done:
            return pieces
        if not is_inside:
            return None
    return None


def _of_segment(
    segment: SegmentFile, before: BatchMark | int, after: BatchMark, *, is_inside: bool
) -> tuple[Piece | None, bool, bool] | None:
    """Return the piece of one log, whether it goes on, and whether it is the last; None: neither.

    A copy whose log ends in damage before the second batch does not have the range.
    """
    start = 0 if is_inside else None
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
                if isinstance(before, int) and start is None and last_offset >= before:
                    start = at
                if start is None:
                    if isinstance(before, int):
                        continue
                    if base_offset == before.base_offset:
                        if mark_at(file.array, at) != before:
                            return None
                        start = at + size
                    elif base_offset > before.base_offset:
                        return None
                elif base_offset >= after.base_offset:
                    if mark_at(file.array, at) != after:
                        return None
                    piece = Piece(segment.log_path, start, at) if at > start else None
                    return piece, True, True
        if source.stop is not None or start is None:
            return None
        end = file.size_bytes
        piece = Piece(segment.log_path, start, end) if end > start else None
        return piece, True, False
