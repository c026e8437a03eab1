"""Salvaging the copy of a damaged log: filled, cut, or without its bad batches."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace

import numpy as np

from kafka_index.config import LogConfig
from kafka_index.dump.missing_offsets import see_log
from kafka_index.layout.integers import INT64_MAX
from kafka_index.layout.records import LOG_OVERHEAD_BYTES
from kafka_index.records.batch_table import OVERLAP, ScanStop
from kafka_index.records.decompression import shared_budget
from kafka_index.restore.filling import (
    Fill,
    Filler,
    Piece,
    SoundRange,
    earlier_batches,
    first_mark,
    hole_content,
    last_mark,
    mark_at,
    sound_ranges,
)
from kafka_index.restore.output_files import cut
from kafka_index.restore.plan import PartitionPlan
from kafka_index.restore.restored_partition import LostRange, Salvage
from kafka_index.restore.until import Limit
from kafka_index.scan import LogFileSource
from kafka_index.scan.batch_search import entry_length
from kafka_index.scan.log_offsets import Hole, LogOffsets
from kafka_index.storage import Bytes, MappedFile, SegmentFile, publishing

_Hole = tuple[int, int]


@dataclass(frozen=True, slots=True)
class LogContext:
    """The surroundings of a segment: its neighbours, other copies, and the limits of its log."""

    before: SegmentFile | None = None
    after: SegmentFile | None = None
    filler: Filler = field(default_factory=lambda: Filler(()))
    limit: Limit | None = None
    head_offset: int | None = None
    is_policy_known: bool = False
    cleaned_to: int = 0
    later: Sequence[SegmentFile] = ()

    @property
    def next_base_offset(self) -> int | None:
        """The base offset of the segment after it."""
        return None if self.after is None else self.after.base_offset


def partition_context(plan: PartitionPlan, config: LogConfig) -> LogContext:
    """Return the surroundings that all segments of a partition share."""
    return LogContext(
        filler=Filler(plan.others, shared_budget(config.max_decompressed_bytes)),
        limit=plan.limit,
        is_policy_known=plan.known.cleaning.is_compacted is False,
        cleaned_to=plan.known.cleaning.cleaned_to or 0,
    )


def logs_in_context(plan: PartitionPlan, config: LogConfig) -> list[tuple[SegmentFile, LogContext]]:
    """Return the segments of a partition by base offset, each with what lies around it."""
    segments = plan.segments()
    shared = partition_context(plan, config)
    around = zip([None, *segments[:-1]], [*segments[1:], None], strict=True)
    contexts = [replace(shared, before=before, after=after) for before, after in around]
    contexts[0] = replace(contexts[0], head_offset=plan.head_offset, later=segments[1:])
    return list(zip(segments, contexts, strict=True))


class Salvaging:
    """The copy of a damaged log, and what is lost of it."""

    def __init__(self, source: SegmentFile, target: str, context: LogContext) -> None:
        self._source = source
        self._target = target
        self._context = context
        self._next_base_offset = context.next_base_offset

    def mend(
        self, position_bytes: int, code: str, reason: str, salvage: Salvage
    ) -> tuple[list[LostRange], list[Fill]]:
        """Fill damaged ranges from other copies, and leave the others out; return both."""
        with MappedFile(self._target) as file:
            log = file.array
            ranges = self._ranges(log)
            holes = _holes(ranges, len(log))
            fills = {hole: self._fill(hole, ranges, len(log)) for hole in holes}
            missing = [hole for hole in holes if fills[hole] is None]
            if salvage is Salvage.NONE and missing:
                return self._all_lost(log, missing, ranges, code, reason), []
            is_filled = len(missing) < len(holes)
            if salvage is not Salvage.BATCHES and not is_filled:
                return [self.cut_off(position_bytes, code, reason)], []
            end = len(log)
            if salvage is Salvage.PREFIX and missing:
                end = missing[0][0]
                missing = [(end, len(log))]
            lost = self._all_lost(log, missing, ranges, code, reason)
            if end < len(log):
                lost = [_with_kept(each, end, ranges) for each in lost]
            filled = [fill for hole, fill in fills.items() if fill is not None and hole[0] < end]
            self._rewrite(self._pieces(ranges, fills, end))
        return lost, filled

    def fill_holes(self, holes: Sequence[Hole], *, takes_records: bool) -> list[Fill]:
        """Fill missing offsets between batches, as far as another copy has them."""
        pieces: list[Piece] = []
        fills = []
        at = 0
        with MappedFile(self._target) as file:
            for hole in holes:
                if hole.before_bytes is None:
                    continue
                marks = (
                    mark_at(file.array, each) for each in (hole.before_bytes, hole.position_bytes)
                )
                fill = self._context.filler.find(*marks)
                if fill is None or (fill.pieces and not takes_records):
                    continue
                fills.append(fill)
                if fill.pieces:
                    pieces += [Piece(self._target, at, hole.position_bytes), *fill.pieces]
                    at = hole.position_bytes
            if pieces:
                self._rewrite([*pieces, Piece(self._target, at, file.size_bytes)])
        return fills

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
            kept = ((0, position_bytes), (end, len(log)))
            self._rewrite([Piece(self._target, *each) for each in kept])
        return lost

    def _ranges(self, log: Bytes) -> list[SoundRange]:
        base_offset, following = self._source.base_offset, self._next_base_offset
        return sound_ranges(log, base_offset, INT64_MAX if following is None else following)

    def _lost(
        self,
        log: Bytes,
        start: int,
        end: int,
        ranges: Sequence[SoundRange],
        code: str,
        reason: str | None,
    ) -> LostRange:
        before = [each for each in ranges if each.end_bytes <= start]
        first = before[-1].last.last_offset + 1 if before else self._source.base_offset
        inside = [each for each in ranges if start < each.end_bytes and each.start_bytes < start]
        if inside:
            last_before = hole_content(log, inside[0].start_bytes, start, first).last_offset
            first = first if last_before is None else last_before + 1
        edges = (at for each in ranges for at in (each.start_bytes, each.end_bytes))
        content = hole_content(log, start, end, first, edges)
        records = content.records
        after = next((each for each in ranges if each.start_bytes >= end), None)
        if after is not None:
            last: int | None = after.first.base_offset - 1
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

    def _fill(self, hole: _Hole, ranges: Sequence[SoundRange], size_bytes: int) -> Fill | None:
        """Return the range of another copy that fills a hole."""
        filler = self._context.filler
        if not filler:
            return None
        before = next((each.last for each in ranges if each.end_bytes == hole[0]), None)
        after = next((each.first for each in ranges if each.start_bytes == hole[1]), None)
        if before is None and hole[0] == 0:
            before = last_mark(self._context.before)
        if after is None and hole[1] == size_bytes:
            after = first_mark(self._context.after)
        if before is None and hole[0] == 0 and self._context.head_offset is not None:
            # Without a policy, a cleaner may have removed the missing offsets.
            if not self._context.is_policy_known and self._has_holes(ranges):
                return None
            return filler.find_head(self._context.head_offset, after)
        return filler.find(before, after)

    def _pieces(
        self, ranges: Sequence[SoundRange], fills: Mapping[_Hole, Fill | None], end: int
    ) -> list[Piece]:
        """Return the pieces of the log up to a position: sound ranges, and fills of holes."""
        parts: list[tuple[int, Sequence[Piece]]] = [
            (each.start_bytes, [Piece(self._target, each.start_bytes, each.end_bytes)])
            for each in ranges
        ]
        parts += [(hole[0], fill.pieces) for hole, fill in fills.items() if fill is not None]
        return [piece for at, pieces in sorted(parts) if at < end for piece in pieces]

    def _all_lost(
        self,
        log: Bytes,
        holes: Sequence[_Hole],
        ranges: Sequence[SoundRange],
        code: str,
        reason: str,
    ) -> list[LostRange]:
        lost = [self._lost(log, start, end, ranges, code, reason) for start, end in holes]
        # Bytes between two batches that follow each other are not a loss.
        return [each for each in lost if not each.is_empty]

    def _has_holes(self, ranges: Sequence[SoundRange]) -> bool:
        """Return whether offsets are missing within a sound range, or within a later log."""
        for each in ranges:
            offsets = LogOffsets(each.first.base_offset)
            source = LogFileSource(self._target, verify_crc=True, start_bytes=each.start_bytes)
            for batches in source.chunks():
                rows = int(np.searchsorted(batches.position_bytes, each.end_bytes))
                offsets.observe(batches.slice(0, rows))
                if rows < batches.rows:
                    break
            if offsets.hole_count:
                return True
        for segment in self._context.later:
            log = see_log(segment, 0)
            log.offsets.settle(segment, self._context.filler.decompressor)
            if log.offsets.hole_count + log.offsets.cleaned_count:
                return True
        return False

    def _rewrite(self, pieces: Sequence[Piece]) -> None:
        """Write the copy anew, from pieces of it and of other logs."""
        aside = f"{self._target}.salvaged"
        mtime_ns = os.stat(self._target).st_mtime_ns
        with ExitStack() as stack:
            files = {
                path: stack.enter_context(MappedFile(path)) for path in {p.path for p in pieces}
            }
            with publishing(self._target, "write a salvaged log"):
                with open(aside, "wb") as file:
                    for piece in pieces:
                        found = files[piece.path].array
                        file.write(found[piece.start_bytes : piece.end_bytes].data)
                os.utime(aside, ns=(mtime_ns, mtime_ns))
                os.replace(aside, self._target)


def _with_kept(lost: LostRange, cut_at: int, ranges: Sequence[SoundRange]) -> LostRange:
    """Return a lost range with the number of its offsets that sound batches after a cut have."""
    sound = (each for each in ranges if each.start_bytes >= cut_at)
    spans = (each.last.last_offset - each.first.base_offset + 1 for each in sound)
    return replace(lost, kept_by_batches=sum(spans))


def _holes(ranges: Sequence[SoundRange], size_bytes: int) -> list[_Hole]:
    starts = [0, *(each.end_bytes for each in ranges)]
    ends = [*(each.start_bytes for each in ranges), size_bytes]
    return [(start, end) for start, end in zip(starts, ends, strict=True) if start < end]
