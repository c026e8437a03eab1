"""Salvaging the copy of a damaged log: filled, cut, or without its bad batches."""

from __future__ import annotations

import os
from bisect import bisect
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from kafka_index.commands.restore.output_files import cut
from kafka_index.commands.restore.plan import PartitionPlan
from kafka_index.commands.restore.point_in_time import Limit
from kafka_index.commands.restore.replica_repair import (
    NO_FILL,
    Fill,
    Filler,
    Piece,
    SoundRange,
    Span,
    earlier_batches,
    hole_content,
    sound_ranges,
    write_pieces,
)
from kafka_index.commands.restore.restored_partition import LostRange, Salvage
from kafka_index.core.format.config import LogConfig
from kafka_index.core.format.integers import INT64_MAX
from kafka_index.core.format.records import LOG_OVERHEAD_BYTES
from kafka_index.core.fs.durable_files import publishing
from kafka_index.core.fs.local_store import MappedFile
from kafka_index.core.fs.store import Bytes
from kafka_index.core.log.scan.batch_search import entry_length
from kafka_index.core.log.scan.log_offsets import Hole
from kafka_index.core.log.scan.valid_batches import find_intact_batches
from kafka_index.core.logdir.partition_files import SegmentFile
from kafka_index.core.records.batch_table import OVERLAP, ScanStop
from kafka_index.core.records.decompression import shared_budget


@dataclass(frozen=True, slots=True)
class _Hole:
    """A damaged range of a log, the offsets that are missing there, and what fills them.

    The end of the offsets is exclusive, and None where nobody knows it.
    """

    start_bytes: int
    end_bytes: int
    first_offset: int
    end_offset: int | None
    fill: Fill

    @property
    def damaged(self) -> list[Span]:
        """The ranges of offsets that no copy has intact."""
        end = INT64_MAX if self.end_offset is None else self.end_offset
        if self.fill.replicas:
            return list(self.fill.damaged)
        return [(self.first_offset, end)] if self.first_offset < end else []


@dataclass(frozen=True, slots=True)
class LogContext:
    """The surroundings of a segment: its neighbours, other copies, and the limits of its log."""

    before: SegmentFile | None = None
    after: SegmentFile | None = None
    filler: Filler = field(default_factory=Filler)
    limit: Limit | None = None
    start_offset: int = 0
    is_compacted: bool = False
    cleaned_to: int = 0

    @property
    def next_base_offset(self) -> int | None:
        """The base offset of the segment after it."""
        return None if self.after is None else self.after.base_offset


def partition_context(plan: PartitionPlan, config: LogConfig) -> LogContext:
    """Return the surroundings that all segments of a partition share."""
    return LogContext(
        filler=Filler(plan.base, plan.others, shared_budget(config.max_decompressed_bytes)),
        limit=plan.limit,
        start_offset=plan.log_start_offset,
        is_compacted=bool(plan.known.cleaning.is_compacted),
        cleaned_to=plan.known.cleaning.cleaned_to or 0,
    )


def logs_in_context(plan: PartitionPlan, config: LogConfig) -> list[tuple[SegmentFile, LogContext]]:
    """Return the segments of a partition by base offset, each with what lies around it."""
    segments = plan.segments()
    shared = partition_context(plan, config)
    around = zip([None, *segments[:-1]], [*segments[1:], None], strict=True)
    contexts = [replace(shared, before=before, after=after) for before, after in around]
    return list(zip(segments, contexts, strict=True))


class Salvaging:
    """The copy of a damaged log, and what is lost of it."""

    def __init__(self, source: SegmentFile, target: str, context: LogContext) -> None:
        self._source = source
        self._target = target
        self._context = context
        self._next_base_offset = context.next_base_offset

    def mend(self, code: str, reason: str, salvage: Salvage) -> tuple[list[LostRange], list[Fill]]:
        """Fill damaged ranges from other copies, and leave the others out; return both.

        Batches that were moved return to their place.
        """
        with MappedFile(self._target) as file:
            log = file.array
            ranges = self._ranges(log)
            holes = self._holes(log, ranges)
            pieces = [
                Piece(self._target, each.start_bytes, each.end_bytes, *each[2:], base_offset)
                for base_offset in [self._source.base_offset]
                for each in ranges
            ]
            pieces += [piece for hole in holes for piece in hole.fill.pieces]
            pieces.sort(key=lambda each: each.first_offset)
            lost: list[LostRange] = []
            for hole in holes:
                found = self._lost_in(log, hole, ranges, code, reason)
                if salvage is Salvage.PREFIX and hole.damaged:
                    cut_at = hole.damaged[0][0]
                    lost.append(self._lost_from(log, hole, pieces, ranges, code, reason))
                    pieces = [each for each in pieces if each.first_offset < cut_at]
                    break
                lost += found
            if salvage is Salvage.NONE and lost:
                return lost, []
            self._rewrite(pieces)
        return lost, [hole.fill for hole in holes if hole.fill.pieces]

    def fill_gaps(self, gaps: Sequence[tuple[Hole, Fill]]) -> None:
        """Put batches of other copies between those of the log."""
        at = 0
        pieces: list[Piece] = []
        with MappedFile(self._target) as file:
            for hole, fill in gaps:
                pieces += [self._own(at, hole.position_bytes), *fill.pieces]
                at = hole.position_bytes
            self._rewrite([*pieces, self._own(at, file.size_bytes)])

    def append(self, pieces: Sequence[Piece]) -> None:
        """Put batches of other copies at the end of the log."""
        size_bytes = os.path.getsize(self._target)
        self._rewrite([self._own(0, size_bytes), *pieces])

    def cut_off(self, position_bytes: int, code: str, reason: str | None) -> LostRange:
        """Cut the copy at a position; return what that loses."""
        with MappedFile(self._target) as file:
            ranges = self._ranges(file.array)
            lost = self._lost(file.array, position_bytes, file.size_bytes, ranges, code, reason)
            lost = _with_kept(lost, position_bytes, ranges)
        cut(self._target, position_bytes)
        return lost

    def drop_one(self, position_bytes: int, code: str, reason: str) -> LostRange:
        """Leave one batch out of the copy; return what that loses."""
        with MappedFile(self._target) as file:
            log = file.array
            end = min(
                position_bytes + LOG_OVERHEAD_BYTES + entry_length(log[position_bytes:]), len(log)
            )
            lost = self._lost(log, position_bytes, end, self._ranges(log), code, reason)
            self._rewrite([self._own(0, position_bytes), self._own(end, len(log))])
        return lost

    def _ranges(self, log: Bytes) -> list[SoundRange]:
        """Return the sound ranges of a log, by offset."""
        end = self._next_base_offset
        found = find_intact_batches(
            log,
            self._source.base_offset,
            INT64_MAX if end is None else end,
            self._context.filler.decompressor,
        )
        return sound_ranges(found.by_offset)

    def _own(self, start_bytes: int, end_bytes: int) -> Piece:
        base_offset = self._source.base_offset
        return Piece(self._target, start_bytes, end_bytes, base_offset, base_offset, base_offset)

    def _holes(self, log: Bytes, ranges: Sequence[SoundRange]) -> list[_Hole]:
        """Return the damaged ranges of a log, ordered by their missing offsets."""
        start = max(self._source.base_offset, self._context.start_offset)
        ends = [start, *(each.end_offset for each in ranges)]
        firsts = [*(each.first_offset for each in ranges), self._next_base_offset]
        in_log = sorted(range(len(ranges)), key=lambda number: ranges[number].start_bytes)
        holes = []
        seen: set[int] = set()

        def is_missing(gap: int) -> bool:
            end = firsts[gap]
            return gap not in seen and (end is None or ends[gap] < end)

        at, before = 0, -1
        for number in [*in_log, len(ranges)]:
            end = len(log) if number == len(ranges) else ranges[number].start_bytes
            if at < end:
                stated = int.from_bytes(log[at : at + 8].tobytes(), "big")
                by_header = bisect([each.first_offset for each in ranges], stated)
                again = earlier_batches(log, at, end, INT64_MAX, ranges, is_searched=False)
                is_repeat = again is not None and again.repeats is not None
                # The offsets in its header are missing after the previous or before the next batch.
                near = [before + 1, number]
                if ends[by_header] <= stated < (firsts[by_header] or 0):
                    near.insert(0, by_header)
                gap = None if is_repeat else next(filter(is_missing, near), None)
                first = ends[before + 1] if gap is None else ends[gap]
                hole = _Hole(at, end, first, first if gap is None else firsts[gap], NO_FILL)
                if gap is not None:
                    seen.add(gap)
                is_head = gap == 0 and self._context.before is None
                fill = self._fill(hole, is_head=is_head)
                content = hole_content(log, at, end, hole.first_offset)
                if content.records is not None and content.last_offset is not None:
                    # The rest of the gap is not damaged here.
                    named = _within(fill.damaged, stated, content.last_offset + 1)
                    fill = replace(fill, damaged=tuple(named))
                holes.append(replace(hole, fill=fill))
            if number < len(ranges):
                at, before = ranges[number].end_bytes, number
        return sorted(holes, key=lambda hole: hole.first_offset)

    def _fill(self, hole: _Hole, *, is_head: bool) -> Fill:
        context = self._context
        if not context.filler or hole.end_offset is None:
            return NO_FILL
        # No batch before the head shows that a cleaner has left both copies the same.
        if is_head:
            cleaned_to = context.cleaned_to if context.is_compacted else None
            return context.filler.find_head(hole.first_offset, hole.end_offset, cleaned_to)
        return context.filler.find(hole.first_offset, hole.end_offset)

    def _lost_in(
        self, log: Bytes, hole: _Hole, ranges: Sequence[SoundRange], code: str, reason: str
    ) -> list[LostRange]:
        """Return the lost offsets of a damaged range."""
        fill = hole.fill
        if fill.replicas and not fill.damaged:
            return []
        lost = self._lost(log, hole.start_bytes, hole.end_bytes, ranges, code, reason)
        if lost.is_empty and hole.damaged:
            first, end = hole.damaged[0]
            last = None if hole.end_offset is None else end - 1
            return [replace(lost, first_offset=first, last_offset=last, records=None)]
        if fill.damaged and (fill.pieces or fill.missing != fill.damaged):
            return [
                replace(
                    lost,
                    first_offset=first,
                    last_offset=end - 1,
                    records=None,
                    size_bytes=0 if number else lost.size_bytes,
                )
                for number, (first, end) in enumerate(fill.damaged)
            ]
        # Bytes between two batches that follow each other are not a loss.
        return [] if lost.is_empty else [lost]

    def _lost_from(
        self,
        log: Bytes,
        hole: _Hole,
        pieces: Sequence[Piece],
        ranges: Sequence[SoundRange],
        code: str,
        reason: str,
    ) -> LostRange:
        """Return what is lost where a log is cut at the first offset that no copy has."""
        lost = self._lost(log, hole.start_bytes, len(log), ranges, code, reason)
        first = hole.damaged[0][0]
        if hole.fill.pieces:
            lost = replace(lost, first_offset=first, records=None)
        kept = (each.end_offset - each.first_offset for each in pieces if each.first_offset > first)
        return replace(lost, kept_by_batches=sum(kept))

    def _lost(
        self,
        log: Bytes,
        start: int,
        end: int,
        ranges: Sequence[SoundRange],
        code: str,
        reason: str | None,
    ) -> LostRange:
        ends = [each.end_offset for each in ranges if each.end_bytes <= start]
        first = max(ends, default=self._source.base_offset)
        inside = [each for each in ranges if start < each.end_bytes and each.start_bytes < start]
        if inside:
            last_before = hole_content(log, inside[0].start_bytes, start, first).last_offset
            first = first if last_before is None else last_before + 1
        edges = (at for each in ranges for at in (each.start_bytes, each.end_bytes))
        content = hole_content(log, start, end, first, edges)
        records = content.records
        firsts = [each.first_offset for each in ranges if each.start_bytes >= end]
        if firsts:
            last: int | None = min(firsts) - 1
        else:
            last, following = content.last_offset, self._next_base_offset
            # Offsets after a whole last batch are judged as those between segments.
            whole_to = None if records is None or content.is_torn else last
            if following is not None and (whole_to is None or whole_to >= following):
                records = records if last == following - 1 else None
                last = following - 1
        lost = LostRange(
            self._source.base_offset,
            self._source.log_path,
            first,
            last,
            code,
            reason or code,
            content.first_timestamp_ms,
            content.last_timestamp_ms,
            records,
            end - start,
            start,
        )
        # Where no other offset is missing, what batches that go back held is lost all the same.
        back = earlier_batches(log, start, end, first, ranges, is_searched=lost.is_empty)
        if back is None or not (back.is_all or lost.is_empty):
            return lost
        stop = ScanStop(OVERLAP, start, f"offset {first} or more", f"offset {back.first_offset}")
        records, text = back.records, stop.text
        if back.repeats is not None:
            records, text = 0, f"{text}; nothing is lost: it repeats what is at byte {back.repeats}"
        return replace(
            lost,
            first_offset=back.first_offset,
            last_offset=back.last_offset,
            records=records,
            code=stop.code,
            reason=text,
        )

    def _rewrite(self, pieces: Sequence[Piece]) -> None:
        """Write the copy anew, from pieces of it and of other logs."""
        aside = f"{self._target}.salvaged"
        with publishing(self._target, "write a salvaged log"):
            mtime_ns = os.stat(self._target).st_mtime_ns
            write_pieces(aside, pieces)
            os.utime(aside, ns=(mtime_ns, mtime_ns))
            os.replace(aside, self._target)


def _with_kept(lost: LostRange, cut_at: int, ranges: Sequence[SoundRange]) -> LostRange:
    """Return a lost range with the number of its offsets that sound batches after a cut have."""
    sound = (each for each in ranges if each.start_bytes >= cut_at)
    spans = (each.end_offset - each.first_offset for each in sound)
    return replace(lost, kept_by_batches=sum(spans))


def _within(spans: Sequence[Span], first_offset: int, end_offset: int) -> list[Span]:
    """Return the parts of ranges of offsets that are in another one."""
    parts = ((max(first, first_offset), min(end, end_offset)) for first, end in spans)
    return [(first, end) for first, end in parts if first < end]
