"""Two copies of a partition, compared by the headers and checksums of their batches.

Nothing is decoded, and no checksum is computed: those in the headers are compared. The copies may
be split into segments at different offsets.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from enum import Enum

import numpy as np

from kafka_index.errors import KafkaIndexError
from kafka_index.kernels.headers import HEADER_COLUMNS, HEADER_CRC, read_headers
from kafka_index.layout.integers import Longs
from kafka_index.scan import LogFileSource
from kafka_index.storage import SegmentFile
from kafka_index.verification.findings import (
    FileClass,
    FileKind,
    Finding,
    Judgement,
)

_BASE, _LAST, _EPOCH, _CRC, _SIZE = range(5)
_COLUMNS = 5


class Side(Enum):
    """One of the two copies."""

    FIRST = "the first copy"
    SECOND = "the second copy"


@dataclass(frozen=True, slots=True)
class Comparison:
    """What two copies of a partition have in common.

    Parameters
    ----------
    first_offset, end_offset : int or None
        The offsets that both hold, the end exclusive; None where there are none.
    diverged_at : int or None
        The first offset with different batches.
    epochs : tuple of int
        The leader epochs of those two batches.
    ends : tuple of int
        Where each copy ends; that of one which diverged is not read to its end.
    missing_from : Side or None
        The copy that lacks batches inside the common range.
    missing : tuple of int
        The first of those, and how many.
    in_neither : tuple of int, optional
        Where one copy ends, and where the other begins after it: they share no offset.
    """

    first_offset: int | None = None
    end_offset: int | None = None
    diverged_at: int | None = None
    epochs: tuple[int, int] = (-1, -1)
    ends: tuple[int, int] = (0, 0)
    missing_from: Side | None = None
    missing: tuple[int, int] = (0, 0)
    in_neither: tuple[int, int] | None = None


def compare_copies(first: Sequence[SegmentFile], second: Sequence[SegmentFile]) -> Comparison:
    """Compare two copies of a partition.

    Parameters
    ----------
    first, second : sequence of SegmentFile
        All segments of each, by base offset.

    Raises
    ------
    KafkaIndexError
        A log cannot be read.
    """
    copies = _Copy(first), _Copy(second)
    return _compare(*copies)


class _Copy:
    """The batches of a copy, as columns that are dropped from the front."""

    def __init__(self, segments: Sequence[SegmentFile]) -> None:
        self._chunks = _batches(segments)
        self.rows = np.empty((_COLUMNS, 0), np.int64)
        self.end_offset = segments[0].base_offset if segments else 0
        self.fill()

    def is_empty(self) -> bool:
        """Return whether all batches were dropped."""
        return self.rows.shape[1] == 0

    def fill(self) -> None:
        """Read on where nothing is left."""
        while self.is_empty():
            chunk = next(self._chunks, None)
            if chunk is None:
                return
            self.rows = chunk

    def drop(self, count: int) -> None:
        if count:
            self.end_offset = int(self.rows[_LAST, count - 1]) + 1
            self.rows = self.rows[:, count:]
            self.fill()

    def skip_to(self, offset: int) -> None:
        """Drop the batches that end before an offset."""
        while not self.is_empty():
            count = int(np.searchsorted(self.rows[_LAST], offset))
            self.drop(count)
            if not self.is_empty() and int(self.rows[_LAST, 0]) >= offset:
                return


def _batches(segments: Sequence[SegmentFile]) -> Iterator[Longs]:
    for segment in segments:
        source = LogFileSource.of_segment(segment, verify_crc=False)
        for window, start, batches in source.windows():
            headers = np.empty((HEADER_COLUMNS, batches.rows), np.int64)
            read_headers(window, start, batches.position_bytes, headers)
            yield np.stack(
                (
                    batches.base_offset,
                    batches.last_offset,
                    batches.leader_epoch,
                    headers[HEADER_CRC],
                    batches.size_bytes,
                )
            )


def _compare(one: _Copy, other: _Copy) -> Comparison:
    if one.is_empty() or other.is_empty():
        return Comparison(ends=(_end(one), _end(other)))
    # Retention may have removed more of one of them.
    start = max(int(one.rows[_BASE, 0]), int(other.rows[_BASE, 0]))
    for copy in (one, other):
        copy.skip_to(start)
    for copy in (one, other):
        if copy.is_empty() and copy.end_offset < start:
            between = copy.end_offset, start
            return Comparison(ends=(_end(one), _end(other)), in_neither=between)
    found = Comparison(start, start)
    missing: dict[Side, tuple[int, int]] = {}
    while not (one.is_empty() or other.is_empty()):
        count = min(one.rows.shape[1], other.rows.shape[1])
        unequal = np.flatnonzero((one.rows[:, :count] != other.rows[:, :count]).any(axis=0))
        same = int(unequal[0]) if len(unequal) else count
        one.drop(same)
        other.drop(same)
        if same == count:
            continue
        bases = int(one.rows[_BASE, 0]), int(other.rows[_BASE, 0])
        if bases[0] != bases[1]:
            # The copy whose next batch begins later has none there.
            side = Side.SECOND if bases[0] < bases[1] else Side.FIRST
            ahead, behind = (other, one) if side is Side.SECOND else (one, other)
            count = max(int(np.searchsorted(behind.rows[_BASE], int(ahead.rows[_BASE, 0]))), 1)
            first, before = missing.get(side, (min(bases), 0))
            missing[side] = first, before + count
            behind.drop(count)
            continue
        epochs = int(one.rows[_EPOCH, 0]), int(other.rows[_EPOCH, 0])
        return replace(found, end_offset=bases[0], diverged_at=bases[0], epochs=epochs)
    end = min(one.end_offset, other.end_offset)
    found = replace(found, end_offset=max(end, start), ends=(_end(one), _end(other)))
    for side, lacking in missing.items():
        found = replace(found, missing_from=side, missing=lacking)
    return found


def _end(copy: _Copy) -> int:
    """Return where a copy ends, reading it to its end."""
    while not copy.is_empty():
        copy.drop(copy.rows.shape[1])
    return copy.end_offset


def comparison_finding(first: Sequence[SegmentFile], second: Sequence[SegmentFile]) -> Finding:
    """Return the row of a partition that has two copies; one that cannot be read is a row too."""
    segment = (first or second)[-1]
    row = Finding(
        segment.topic,
        segment.partition,
        None,
        segment.partition_directory,
        FileKind.COPY,
        FileClass.MISSING,
    )
    if not first or not second:
        side = Side.FIRST if not first else Side.SECOND
        effect = f"{side.value.capitalize()} does not have the partition."
        return row.judged(Judgement(FileClass.MISSING, harmful=True, effect=effect))
    try:
        return row.judged(_judged(compare_copies(first, second)))
    except KafkaIndexError as error:
        return row.unreadable(error)


def _judged(found: Comparison) -> Judgement:
    if found.diverged_at is not None:
        ours, theirs = found.epochs
        return Judgement(
            FileClass.DIVERGED,
            harmful=True,
            expected=f"one batch at offset {found.diverged_at}",
            found=f"diverged at offset {found.diverged_at} under epochs {ours} and {theirs}",
            effect="Only one of the copies has what the cluster committed: do not join them.",
        )
    if found.missing_from is not None:
        offset, count = found.missing
        return Judgement(
            FileClass.GAP,
            harmful=True,
            expected="the same batches in both copies",
            found=f"{found.missing_from.value} lacks {count} batches from offset {offset} on",
            effect="Records are missing in it, unless compaction has removed them.",
        )
    if found.in_neither is not None:
        end, start = found.in_neither
        return Judgement(
            FileClass.GAP,
            harmful=True,
            expected="copies with offsets in common",
            found=f"the copies share no offset: {end} to {start - 1} are in neither",
            effect="Records are missing in both, unless compaction has removed them.",
        )
    ours, theirs = found.ends
    if ours == theirs:
        return Judgement(FileClass.IDENTICAL, found=f"equal up to offset {ours}")
    shorter = Side.FIRST if ours < theirs else Side.SECOND
    return Judgement(
        FileClass.PREFIX,
        expected=f"offset {max(found.ends)}",
        found=f"{shorter.value} ends at offset {min(found.ends)}",
        effect="It lacks the last batches of the other, and has no different ones.",
    )


def compare_partitions(
    pairs: Sequence[tuple[Sequence[SegmentFile], Sequence[SegmentFile]]], *, threads: int
) -> Iterator[Finding]:
    """Yield the row of each pair of copies, compared on threads."""
    with ThreadPoolExecutor(threads, thread_name_prefix="compare") as pool:
        yield from pool.map(lambda pair: comparison_finding(*pair), pairs)
