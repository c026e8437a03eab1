"""Sound ranges of damaged logs, and what other copies of a partition have of the rest.

A sound range is a run of whole batches with right checksums, in offset order. A range is filled
only where both copies hold the same batch before it and the same batch after it: equal base offset,
last offset, leader epoch and checksum. Everything between must be sound. So histories that diverge
are never joined. A copy without gaps in the range is taken before one with gaps that compaction
does not explain.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from kafka_index.config import DEFAULT_MAX_DECOMPRESSED_BYTES
from kafka_index.dump.replicas import Replica
from kafka_index.errors import KafkaIndexError, is_retriable
from kafka_index.kernels.scan import SCAN_END, SCAN_ROWS_FULL
from kafka_index.layout.integers import INT64_MAX
from kafka_index.layout.records import (
    LOG_OVERHEAD,
    LOG_OVERHEAD_BYTES,
    MAGIC_POSITION,
    MAGIC_RECORD_BATCH,
    NO_LEADER_EPOCH,
    RECORD_BATCH_HEADER,
    RECORD_BATCH_OVERHEAD_BYTES,
)
from kafka_index.records.decompression import shared_budget
from kafka_index.records.record_sections import Decompressor
from kafka_index.scan import LogFileSource
from kafka_index.scan.batch_search import (
    HeldBytes,
    OffsetBounds,
    entry_length,
    is_batch,
    next_batch,
    plausible_headers,
)
from kafka_index.scan.log_offsets import LogOffsets
from kafka_index.scan.scanner import Scanner, in_order
from kafka_index.storage import Bytes, MappedFile, SegmentFile
from kafka_index.stores import is_remote

_OFFSET_BYTES = LOG_OVERHEAD["base_offset"].itemsize


class BatchMark(NamedTuple):
    """The fields that identify a batch: two logs that agree on them hold the same batch."""

    base_offset: int
    last_offset: int
    leader_epoch: int
    checksum: int


@dataclass(frozen=True, slots=True)
class SoundRange:
    """A run of sound batches."""

    start_bytes: int
    end_bytes: int
    first: BatchMark
    last: BatchMark


@dataclass(frozen=True, slots=True)
class HoleContent:
    """The records, offsets and times that the headers in a damaged range name.

    `is_torn`: the last batch goes on after the end of the log.
    """

    records: int | None = None
    last_offset: int | None = None
    first_timestamp_ms: int | None = None
    last_timestamp_ms: int | None = None
    is_torn: bool = False


def sound_ranges(log: Bytes, segment_base_offset: int, end_offset: int) -> list[SoundRange]:
    """Return the sound ranges of a log."""
    ranges: list[SoundRange] = []
    position, next_offset = 0, segment_base_offset
    while position < len(log):
        run = _run(log, position, segment_base_offset, next_offset, end_offset)
        if run is not None:
            ranges.append(run)
            position, next_offset = run.end_bytes, run.last.last_offset + 1
        if position >= len(log):
            break
        position = next_batch(HeldBytes(log), position, OffsetBounds(next_offset, end_offset))
    return ranges


def mark_at(log: Bytes, position_bytes: int) -> BatchMark:
    """Return the mark of the batch at a position."""
    base_offset = int(np.frombuffer(log, LOG_OVERHEAD, 1, position_bytes)[0]["base_offset"])
    if int(log[position_bytes + MAGIC_POSITION]) < MAGIC_RECORD_BATCH:
        # Offset and checksum of its wrapper, for a compressed one.
        at = position_bytes + LOG_OVERHEAD_BYTES
        checksum = int.from_bytes(log[at : at + 4].tobytes(), "big")
        return BatchMark(base_offset, base_offset, NO_LEADER_EPOCH, checksum)
    header = _header(log, position_bytes)
    return BatchMark(
        base_offset,
        base_offset + int(header["last_offset_delta"]),
        int(header["leader_epoch"]),
        int(header["crc"]),
    )


def hole_content(
    log: Bytes, start_bytes: int, end_bytes: int, next_offset: int, edges: Iterable[int] = ()
) -> HoleContent:
    """Return the content that the headers between two positions name, as far as they are plausible.

    After an implausible header the walk is resumed at the next edge.
    """
    ends = sorted(each for each in {*edges, end_bytes} if start_bytes < each <= end_bytes)
    records: int | None = 0
    largest: int | None = None
    first_ms: int | None = None
    last_ms: int | None = None
    position = start_bytes
    for end in ends:
        while position < end:
            header = _plausible(log, position, next_offset)
            size_bytes = 0 if header is None else LOG_OVERHEAD_BYTES + int(header["length"])
            # The last batch of a log may be torn: its header counts all the same.
            if header is None or (position + size_bytes > end < len(log)):
                records, position = None, end
                break
            records = None if records is None else records + int(header["record_count"])
            largest = int(header["base_offset"]) + int(header["last_offset_delta"])
            next_offset = largest + 1
            least_ms, most_ms = int(header["base_timestamp_ms"]), int(header["max_timestamp_ms"])
            if least_ms >= 0:
                first_ms = least_ms if first_ms is None else min(least_ms, first_ms)
                last_ms = most_ms if last_ms is None else max(most_ms, last_ms)
            position += size_bytes
    return HoleContent(records, largest, first_ms, last_ms, is_torn=position > end_bytes)


class EarlierBatches(NamedTuple):
    """Whole batches that begin below the offset that is next where they lie.

    `is_all`: nothing else is there. `records` is None where messages of magic 0 or 1 are there.
    `repeats`: where the first of batches with the same bytes lies, if each has one before it.
    """

    first_offset: int
    last_offset: int
    records: int | None
    is_all: bool
    repeats: int | None = None


def earlier_batches(
    log: Bytes,
    start_bytes: int,
    end_bytes: int,
    next_offset: int,
    ranges: Sequence[SoundRange],
    *,
    is_searched: bool,
) -> EarlierBatches | None:
    """Return the batches with right checksums between two positions that go back; None for none.

    They are looked for after other bytes only where that is searched. The sound ranges are those of
    the log.
    """
    held = HeldBytes(log[:end_bytes])
    bounds = OffsetBounds(0, INT64_MAX)
    found: list[tuple[BatchMark, int | None]] = []
    places: list[tuple[int, int]] = []
    at, is_all = start_bytes, True
    while at < end_bytes:
        mark = mark_at(log, at) if is_batch(held, at, bounds) else None
        if mark is not None and mark.base_offset < next_offset:
            has_count = int(log[at + MAGIC_POSITION]) >= MAGIC_RECORD_BATCH
            found.append((mark, int(_header(log, at)["record_count"]) if has_count else None))
            end = at + LOG_OVERHEAD_BYTES + entry_length(log[at:])
            places.append((at, end))
            at = end
            continue
        is_all = False
        if not is_searched:
            break
        at = next_batch(held, at, bounds)
    if not found:
        return None
    counts = [count for _, count in found if count is not None]
    return EarlierBatches(
        min(mark.base_offset for mark, _ in found),
        min(max(mark.last_offset for mark, _ in found), next_offset - 1),
        sum(counts) if len(counts) == len(found) else None,
        is_all,
        _first_repeated(log, start_bytes, places, ranges) if is_all else None,
    )


def _first_repeated(
    log: Bytes, end_bytes: int, places: Sequence[tuple[int, int]], ranges: Sequence[SoundRange]
) -> int | None:
    """Return where the first batch lies that one of these repeats; None if one repeats none.

    What is repeated lies in a sound range up to a position.
    """
    repeats = [log[start:end].tobytes() for start, end in places]
    wanted = {one[:_OFFSET_BYTES] for one in repeats}
    found: dict[bytes, int] = {}
    for each in ranges:
        at = each.start_bytes
        while at < each.end_bytes <= end_bytes:
            size = LOG_OVERHEAD_BYTES + entry_length(log[at:])
            if log[at : at + _OFFSET_BYTES].tobytes() in wanted:
                found.setdefault(log[at : at + size].tobytes(), at)
            at += size
    return min(found[one] for one in repeats) if found.keys() >= set(repeats) else None


def _plausible(log: Bytes, position: int, next_offset: int) -> np.void | None:
    """Return the header of a batch that may be at a position, whatever its checksum."""
    if len(log) - position < RECORD_BATCH_OVERHEAD_BYTES:
        return None
    header = _header(log, position)
    return header if plausible_headers(header, OffsetBounds(next_offset, INT64_MAX)) else None


def _header(log: Bytes, position: int) -> np.void:
    found: np.void = np.frombuffer(log, RECORD_BATCH_HEADER, 1, position)[0]
    return found


def _run(
    log: Bytes, position: int, segment_base_offset: int, next_offset: int, end_offset: int
) -> SoundRange | None:
    """Return the run of sound batches that begins at a position; None where there is none."""
    scanner = Scanner(segment_base_offset, verify_crc=True, position_bytes=position)
    end = position
    last_at = None
    code = SCAN_ROWS_FULL
    while code == SCAN_ROWS_FULL:
        code = scanner.scan(log, 0, len(log))
        for batches in scanner.drain():
            kept = in_order(batches, next_offset, end_offset)
            good = batches.rows if kept is None else int(np.argmin(kept))
            if good:
                last_at = int(batches.position_bytes[good - 1])
                end = last_at + int(batches.size_bytes[good - 1])
                next_offset = int(batches.last_offset[good - 1]) + 1
            if good < batches.rows:
                code = SCAN_END
    if last_at is None:
        return None
    return SoundRange(position, end, mark_at(log, position), mark_at(log, last_at))


class Piece(NamedTuple):
    """Bytes of a log, from batch to batch."""

    path: str
    start_bytes: int
    end_bytes: int


@dataclass(frozen=True, slots=True)
class Fill:
    """The bytes of another copy that fill a range."""

    first_offset: int
    end_offset: int
    pieces: tuple[Piece, ...]
    replica: str
    gaps: tuple[tuple[int, int], ...] = ()
    unnamed_gaps: int = 0

    @property
    def missing(self) -> int:
        """The number of offsets that are missing in it; at least one a place."""
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
    """Finds ranges in the other copies of a partition."""

    def __init__(self, others: Sequence[Replica], decompressor: Decompressor | None = None) -> None:
        self.decompressor = decompressor or shared_budget(DEFAULT_MAX_DECOMPRESSED_BYTES)
        self._others = [each for each in others if not is_remote(each.directory)]

    def __bool__(self) -> bool:
        """Return whether there is another copy."""
        return bool(self._others)

    def find(self, before: BatchMark | None, after: BatchMark | None) -> Fill | None:
        """Return the range between two batches from a copy that has both; None for none."""
        if before is None or after is None:
            return None
        return self._find(before.base_offset, before, after)

    def find_head(self, start_offset: int, after: BatchMark | None) -> Fill | None:
        """Return the range from the start of a log to a batch, from a copy that has that batch.

        Before the start of a log there is no batch to agree on. Two logs that hold the same batch
        hold the same ones before it, unless the cleaner has been there. Without a leader epoch
        (magic 0 and 1) that is not certain, and nothing is found.
        """
        if after is None or after.leader_epoch < 0:
            return None
        return self._find(start_offset, None, after)

    def _find(self, offset: int, before: BatchMark | None, after: BatchMark) -> Fill | None:
        best: Fill | None = None
        for other in self._others:
            cleaned_to = other.root.cleaned_to(other.partition) or 0
            walk = _Walk(offset, before, after, cleaned_to, self.decompressor)
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


def last_mark(segment: SegmentFile | None) -> BatchMark | None:
    """Return the mark of the last sound batch of a local log; None for none."""
    return _edge_marks(segment)[1]


def first_mark(segment: SegmentFile | None) -> BatchMark | None:
    """Return the mark of the first batch of a local log, if that is sound; None otherwise."""
    return _edge_marks(segment)[0]


def _edge_marks(segment: SegmentFile | None) -> tuple[BatchMark | None, BatchMark | None]:
    if segment is None or is_remote(segment.log_path):
        return None, None
    last_at = None
    for batches in LogFileSource.of_segment(segment, verify_crc=True).chunks():
        if batches.rows:
            last_at = int(batches.position_bytes[-1])
    if last_at is None:
        return None, None
    with MappedFile(segment.log_path) as file:
        return mark_at(file.array, 0), mark_at(file.array, last_at)


class _Walk:
    """The way through the logs of a copy, from an offset, or the batch there, to a later batch."""

    def __init__(
        self,
        offset: int,
        before: BatchMark | None,
        after: BatchMark,
        cleaned_to: int,
        decompressor: Decompressor,
    ) -> None:
        self._offset = offset
        self._before = before
        self._after = after
        self._decompressor = decompressor
        start = offset if before is None else before.last_offset + 1
        self._offsets = LogOffsets(start, cleaned_to)
        self._is_inside = False
        self._is_done = False
        self._pieces: list[Piece] = []

    def goes_through(self, segments: Sequence[SegmentFile]) -> bool:
        """Return whether a copy has both batches, or the offset and the batch."""
        first = max(
            (at for at, one in enumerate(segments) if one.base_offset <= self._offset), default=0
        )
        for segment in segments[first:]:
            if segment.base_offset > self._after.base_offset or not self._goes_on_in(segment):
                return False
            if self._is_done:
                return True
        return False

    def fill(self, replica: str) -> Fill:
        """Return the range that was walked through."""
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
                    offsets = batches.last_offset if self._before is None else batches.base_offset
                    found = np.flatnonzero(offsets >= self._offset)
                    if not len(found):
                        continue
                    row = int(found[0])
                    start = int(batches.position_bytes[row])
                    if self._before is not None:
                        if mark_at(file.array, start) != self._before:
                            return False
                        start += int(batches.size_bytes[row])
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

    def _take(self, segment: SegmentFile, start: int, end: int) -> None:
        if end > start:
            self._pieces.append(Piece(segment.log_path, start, end))
