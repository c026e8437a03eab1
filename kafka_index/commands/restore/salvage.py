"""Repair of damaged logs: insert batches of other copies, truncate, or remove corrupt batches."""

from __future__ import annotations

import os
from bisect import bisect
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import compress
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from kafka_index.commands.restore.output import (
    truncate_log,
    write_log,
)
from kafka_index.commands.restore.plan import PartitionPlan
from kafka_index.commands.restore.replica_repair import (
    NO_REPAIR,
    BatchRange,
    OffsetRange,
    RangeRepair,
    ReplicaRepair,
    write_batches,
)
from kafka_index.commands.restore.request import Limit, Salvage
from kafka_index.commands.restore.result import (
    LostRange,
)
from kafka_index.core.errors import (
    CorruptObjectError,
)
from kafka_index.core.format.config import LogConfig
from kafka_index.core.format.integers import INT64_MAX
from kafka_index.core.format.records import (
    LOG_OVERHEAD_BYTES,
    MAGIC_POSITION,
    MAGIC_RECORD_BATCH,
    RECORD_BATCH_HEADER,
    RECORD_BATCH_OVERHEAD_BYTES,
)
from kafka_index.core.fs.durable_files import publishing
from kafka_index.core.fs.local_store import MappedFile
from kafka_index.core.fs.store import Bytes
from kafka_index.core.log.scan.file_records import LogBatches, open_log
from kafka_index.core.log.scan.scanner import (
    InMemoryLog,
    OffsetBounds,
    are_plausible_headers,
    entry_length,
    is_batch,
    next_batch,
    read_last_offset,
)
from kafka_index.core.log.scan.valid_batches import (
    IntactRows,
    find_intact_batches,
)
from kafka_index.core.logdir.partition_files import SegmentFile
from kafka_index.core.records.batch_table import OVERLAP, ScanStop
from kafka_index.core.records.decompression import shared_budget

MISSING_OBJECT = "missing_object"
ALTERED_OBJECT = "altered_object"

_OFFSET_BYTES = 8


class IntactRange(NamedTuple):
    """Adjacent intact batches of a log with ascending offsets: bytes and offsets."""

    start_bytes: int
    end_bytes: int
    first_offset: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class DamagedContent:
    """The records, offsets and timestamps in the batch headers of a damaged range.

    If `is_torn`, the last batch ends after the end of the log.
    """

    records: int | None = None
    last_offset: int | None = None
    first_timestamp_ms: int | None = None
    last_timestamp_ms: int | None = None
    is_torn: bool = False


def intact_ranges(rows: IntactRows) -> list[IntactRange]:
    """Join adjacent intact batches to ranges; `rows` are sorted by offset."""
    if not len(rows):
        return []
    breaks = np.flatnonzero(rows["position_bytes"][1:] != rows["end_bytes"][:-1]) + 1
    starts, stops = [0, *breaks.tolist()], [*breaks.tolist(), len(rows)]
    return [
        IntactRange(
            int(rows["position_bytes"][first_row]),
            int(rows["end_bytes"][end_row - 1]),
            int(rows["first_offset"][first_row]),
            int(rows["last_offset"][end_row - 1]) + 1,
        )
        for first_row, end_row in zip(starts, stops, strict=True)
    ]


def damaged_content(
    log: Bytes, start_bytes: int, end_bytes: int, next_offset: int, edges: Iterable[int] = ()
) -> DamagedContent:
    """Summarize the plausible batch headers between two byte positions.

    After an implausible header, reading continues at the next position in `edges`.
    """
    ends = sorted(edge for edge in {*edges, end_bytes} if start_bytes < edge <= end_bytes)
    records: int | None = 0
    last_offset: int | None = None
    first_ms: int | None = None
    last_ms: int | None = None
    position = start_bytes
    for range_end_bytes in ends:
        while position < range_end_bytes:
            header = _plausible_header(log, position, next_offset)
            size_bytes = 0 if header is None else LOG_OVERHEAD_BYTES + int(header["length"])
            # A batch that crosses an edge is implausible. At the log end, the batch is torn, but
            # its header is usable.
            if header is None or (position + size_bytes > range_end_bytes < len(log)):
                records, position = None, range_end_bytes
                break
            records = None if records is None else records + int(header["record_count"])
            last_offset = int(header["base_offset"]) + int(header["last_offset_delta"])
            next_offset = last_offset + 1
            min_ms, max_ms = int(header["base_timestamp_ms"]), int(header["max_timestamp_ms"])
            if min_ms >= 0:
                first_ms = min_ms if first_ms is None else min(min_ms, first_ms)
                last_ms = max_ms if last_ms is None else max(max_ms, last_ms)
            position += size_bytes
    return DamagedContent(records, last_offset, first_ms, last_ms, is_torn=position > end_bytes)


class EarlierBatches(NamedTuple):
    """Complete batches whose base offset is below the offset expected at their position.

    Attributes
    ----------
    records : int, optional
        Number of records; None for message format v0 and v1.
    has_only_batches : bool
        The range has no other bytes.
    repeated_position : int, optional
        If each of the batches is a copy of an intact batch: the lowest position of these intact
        batches.
    """

    first_offset: int
    last_offset: int
    records: int | None
    has_only_batches: bool
    repeated_position: int | None = None


def earlier_batches(
    log: Bytes,
    start_bytes: int,
    end_bytes: int,
    next_offset: int,
    ranges: Sequence[IntactRange],
    *,
    is_searched: bool,
) -> EarlierBatches | None:
    """Return valid batches below `next_offset` between two positions; None if none exist.

    If `is_searched`, bytes between the batches are skipped; otherwise such bytes end the search.
    `ranges` are intact ranges of the log.
    """
    log_bytes = InMemoryLog(log[:end_bytes])
    bounds = OffsetBounds(0, INT64_MAX)
    batches: list[tuple[int, int, int | None]] = []
    spans: list[tuple[int, int]] = []
    position, has_only_batches = start_bytes, True
    while position < end_bytes:
        base_offset = int.from_bytes(log[position : position + _OFFSET_BYTES].tobytes(), "big")
        if base_offset < next_offset and is_batch(log_bytes, position, bounds):
            has_count = int(log[position + MAGIC_POSITION]) >= MAGIC_RECORD_BATCH
            count = int(_header(log, position)["record_count"]) if has_count else None
            batches.append((base_offset, read_last_offset(log[position:]), count))
            batch_end_bytes = position + LOG_OVERHEAD_BYTES + entry_length(log[position:])
            spans.append((position, batch_end_bytes))
            position = batch_end_bytes
            continue
        has_only_batches = False
        if not is_searched:
            break
        position = next_batch(log_bytes, position, bounds)
    if not has_only_batches:
        is_unrepeated = [_first_repeated_position(log, [span], ranges) is None for span in spans]
        batches = list(compress(batches, is_unrepeated))
    if not batches:
        return None
    counts = [count for *_, count in batches if count is not None]
    return EarlierBatches(
        min(first_offset for first_offset, *_ in batches),
        min(max(last_offset for _, last_offset, _ in batches), next_offset - 1),
        sum(counts) if len(counts) == len(batches) else None,
        has_only_batches,
        _first_repeated_position(log, spans, ranges) if has_only_batches else None,
    )


def _first_repeated_position(
    log: Bytes, spans: Sequence[tuple[int, int]], ranges: Sequence[IntactRange]
) -> int | None:
    """Return the lowest position of the copied intact batches; None if a batch is no copy."""
    contents = [
        _remove_epoch(log[start_bytes:end_bytes].tobytes()) for start_bytes, end_bytes in spans
    ]
    base_offsets = {content[:_OFFSET_BYTES] for content in contents}
    positions: dict[bytes, int] = {}
    for intact_range in ranges:
        position = intact_range.start_bytes
        while position < intact_range.end_bytes:
            size = LOG_OVERHEAD_BYTES + entry_length(log[position:])
            if log[position : position + _OFFSET_BYTES].tobytes() in base_offsets:
                positions.setdefault(
                    _remove_epoch(log[position : position + size].tobytes()), position
                )
            position += size
    return (
        min(positions[content] for content in contents)
        if positions.keys() >= set(contents)
        else None
    )


def _remove_epoch(batch: bytes) -> bytes:
    """Return a batch without its leader epoch, which no checksum covers."""
    return batch[:LOG_OVERHEAD_BYTES] + batch[MAGIC_POSITION:]


def _plausible_header(log: Bytes, position: int, next_offset: int) -> np.void | None:
    """Return the header at a position; None if implausible. The checksum is not verified."""
    if len(log) - position < RECORD_BATCH_OVERHEAD_BYTES:
        return None
    header = _header(log, position)
    return header if are_plausible_headers(header, OffsetBounds(next_offset, INT64_MAX)) else None


def _header(log: Bytes, position: int) -> np.void:
    header: np.void = np.frombuffer(log, RECORD_BATCH_HEADER, 1, position)[0]
    return header


@dataclass(frozen=True, slots=True)
class DamagedObject:
    """An object of a backup that is missing or altered.

    Attributes
    ----------
    first_offset, end_offset : int
        The offsets of the object; the end is exclusive.
    intact_end : int
        The end offset of the intact batches at the start of the object.
    is_short : bool
        The object is smaller than its size in the manifest.
    unwritten_offsets : int
        The number of offsets in later intact objects, which are not written to the log.
    """

    first_offset: int
    end_offset: int
    intact_end: int
    is_short: bool
    is_missing: bool
    error: CorruptObjectError
    unwritten_offsets: int = 0

    def loss(self, source: SegmentFile, known_losses: Iterable[LostRange]) -> LostRange | None:
        """Return the lost offsets that no known loss contains; None if no offset remains.

        If the object has the size in the manifest, any offset of the object may be lost.
        """
        first_lost_offset = self.intact_end if self.is_short else self.first_offset
        for known_loss in known_losses:
            if self.overlaps(known_loss):
                known_end_offset = (
                    self.end_offset
                    if known_loss.last_offset is None
                    else known_loss.last_offset + 1
                )
                first_lost_offset = (
                    max(first_lost_offset, known_end_offset) if self.is_short else self.end_offset
                )
        if first_lost_offset >= self.end_offset:
            return None
        return LostRange(
            source.base_offset,
            source.log_path,
            first_lost_offset,
            self.end_offset - 1,
            MISSING_OBJECT if self.is_missing else ALTERED_OBJECT,
            str(self.error),
            is_known=self.is_short,
            kept_by_batches=self.unwritten_offsets,
        )

    def overlaps(self, lost: LostRange) -> bool:
        """Return whether a lost range overlaps the offsets of the object."""
        lost_first_offset, lost_last_offset = lost.first_offset, lost.last_offset
        return (lost_first_offset is None or lost_first_offset < self.end_offset) and (
            lost_last_offset is None or lost_last_offset >= self.first_offset
        )


def write_intact_objects(source: SegmentFile, target: str, salvage: Salvage) -> list[DamagedObject]:
    """Write a log from the remaining bytes of its backup objects; return damaged objects.

    With `Salvage.PREFIX`, the log ends after the first object that is too short but ends after an
    intact batch.
    """
    # Imported late: executors that restore dumps lack the libraries of backup repositories.
    from kafka_index.core.fs.backup.manifest import LogChunk  # noqa: PLC0415, as above
    from kafka_index.core.fs.backup.store import JoinedFile  # noqa: PLC0415, as above

    damaged_objects: list[DamagedObject] = []

    def batches(log: JoinedFile) -> Iterator[Bytes]:
        unwritten_offsets, is_ended = 0, False
        for chunk, data, error in log.read_remaining_objects():
            if not isinstance(chunk, LogChunk):
                raise TypeError(f"{source.log_path} is not a log of a backup")
            end_offset = chunk.last_offset + 1
            if is_ended:
                unwritten_offsets += 0 if error else end_offset - chunk.base_offset
                last_damaged = damaged_objects[-1]
                damaged_objects[-1] = replace(
                    last_damaged, end_offset=end_offset, unwritten_offsets=unwritten_offsets
                )
                continue
            array = np.frombuffer(data, np.uint8)
            if error is not None:
                intact_end, ends_after_batch = _intact_end(array, chunk.base_offset)
                is_short = len(data) < chunk.size_bytes
                offsets = chunk.base_offset, end_offset, intact_end
                damaged_objects.append(DamagedObject(*offsets, is_short, not data, error))
                is_ended = is_short and ends_after_batch and salvage is Salvage.PREFIX
            yield array

    with closing(open_log(source.log_path, source)) as log:
        if not isinstance(log, JoinedFile):
            raise TypeError(f"{source.log_path} is not a file of a backup")
        write_log(target, batches(log))
    return damaged_objects


def add_object_errors(
    lost: Iterable[LostRange], damaged_objects: Sequence[DamagedObject], source: SegmentFile
) -> list[LostRange]:
    """Add object errors to the reasons of lost ranges, and add further losses of objects."""
    ranges = []
    for lost_range in lost:
        reasons = [
            str(damaged_object.error)
            for damaged_object in damaged_objects
            if damaged_object.overlaps(lost_range)
        ]
        ranges.append(replace(lost_range, reason="; ".join([lost_range.reason, *reasons])))
    losses = [damaged_object.loss(source, ranges) for damaged_object in damaged_objects]
    return [*ranges, *filter(None, losses)]


def _intact_end(data: Bytes, base_offset: int) -> tuple[int, bool]:
    """Return the end offset of the leading intact batches, and whether the data ends there."""
    batches = LogBatches(data, 0, base_offset, verify_crc=True)
    end_offset = base_offset
    for columns in batches:
        end_offset = int(columns.last_offset[-1]) + 1
    return end_offset, batches.stop is None


@dataclass(frozen=True, slots=True)
class _DamagedRange:
    """A damaged range of a log: its bytes, the missing offsets, and their repair.

    The end offset is exclusive, and None if unknown.
    """

    start_bytes: int
    end_bytes: int
    first_offset: int
    end_offset: int | None
    repair: RangeRepair

    @property
    def damaged(self) -> list[OffsetRange]:
        """The ranges of offsets that no copy has intact."""
        end_offset = INT64_MAX if self.end_offset is None else self.end_offset
        if self.repair.replicas:
            return list(self.repair.damaged)
        return [(self.first_offset, end_offset)] if self.first_offset < end_offset else []


@dataclass(frozen=True, slots=True)
class LogContext:
    """The context of a segment: its neighbours, other copies, and the limits of its log."""

    previous_segment: SegmentFile | None = None
    next_segment: SegmentFile | None = None
    replica_repair: ReplicaRepair = field(default_factory=ReplicaRepair)
    limit: Limit | None = None
    start_offset: int = 0
    is_compacted: bool = False
    cleaned_to: int = 0

    @property
    def next_base_offset(self) -> int | None:
        """The base offset of the next segment."""
        return None if self.next_segment is None else self.next_segment.base_offset


def partition_context(plan: PartitionPlan, config: LogConfig) -> LogContext:
    """Return the context that all segments of a partition share."""
    return LogContext(
        replica_repair=ReplicaRepair(
            plan.base, plan.other_replicas, shared_budget(config.max_decompressed_bytes)
        ),
        limit=plan.limit,
        start_offset=plan.log_start_offset,
        is_compacted=bool(plan.known_offsets.cleaning.is_compacted),
        cleaned_to=plan.known_offsets.cleaning.cleaned_to or 0,
    )


def logs_in_context(plan: PartitionPlan, config: LogConfig) -> list[tuple[SegmentFile, LogContext]]:
    """Return the segments of a partition by base offset, each with its context."""
    segments = plan.segments()
    shared_context = partition_context(plan, config)
    around = zip([None, *segments[:-1]], [*segments[1:], None], strict=True)
    contexts = [
        replace(shared_context, previous_segment=previous_segment, next_segment=next_segment)
        for previous_segment, next_segment in around
    ]
    return list(zip(segments, contexts, strict=True))


class LogSalvage:
    """Repairs the copy of a damaged log, and returns its lost ranges."""

    def __init__(self, source: SegmentFile, target: str, context: LogContext) -> None:
        self._source = source
        self._target = target
        self._context = context
        self._next_base_offset = context.next_base_offset

    def repair(
        self, code: str, reason: str, salvage: Salvage
    ) -> tuple[list[LostRange], list[RangeRepair]]:
        """Repair damaged ranges from other copies; return the lost ranges and the repairs.

        The repaired log has its batches in offset order.
        """
        with MappedFile(self._target) as file:
            log = file.array
            ranges = self._intact_ranges(log)
            damaged_ranges = self._damaged_ranges(log, ranges)
            batches = [
                BatchRange(
                    self._target,
                    intact_range.start_bytes,
                    intact_range.end_bytes,
                    *intact_range[2:],
                    base_offset,
                )
                for base_offset in [self._source.base_offset]
                for intact_range in ranges
            ]
            batches += [
                batch_range
                for damaged_range in damaged_ranges
                for batch_range in damaged_range.repair.batches
            ]
            batches.sort(key=attrgetter("first_offset"))
            lost: list[LostRange] = []
            for damaged_range in damaged_ranges:
                lost_ranges = self._lost_ranges(log, damaged_range, ranges, code, reason)
                if salvage is Salvage.PREFIX and damaged_range.damaged:
                    truncation_offset = damaged_range.damaged[0][0]
                    lost.append(
                        self._truncation_loss(log, damaged_range, batches, ranges, code, reason)
                    )
                    batches = [
                        batch_range
                        for batch_range in batches
                        if batch_range.first_offset < truncation_offset
                    ]
                    break
                lost += lost_ranges
            if salvage is Salvage.NONE and lost:
                return lost, []
            self._rewrite_target(batches)
        return lost, [
            damaged_range.repair for damaged_range in damaged_ranges if damaged_range.repair.batches
        ]

    def insert(self, batches: Iterable[tuple[int, Sequence[BatchRange]]]) -> None:
        """Insert batches of other copies at ascending positions of the log."""
        previous_position = 0
        batch_ranges: list[BatchRange] = []
        with MappedFile(self._target) as file:
            for position, inserted_batches in batches:
                batch_ranges += [self._target_range(previous_position, position), *inserted_batches]
                previous_position = position
            self._rewrite_target(
                [*batch_ranges, self._target_range(previous_position, file.size_bytes)]
            )

    def truncate(self, position_bytes: int, code: str, reason: str | None) -> LostRange:
        """Truncate the copy at a position; return the lost range."""
        with MappedFile(self._target) as file:
            ranges = self._intact_ranges(file.array)
            lost = self._lost_range(
                file.array, position_bytes, file.size_bytes, ranges, code, reason
            )
        intact = (
            intact_range for intact_range in ranges if intact_range.start_bytes >= position_bytes
        )
        kept_offsets = sum(
            intact_range.end_offset - intact_range.first_offset for intact_range in intact
        )
        truncate_log(self._target, position_bytes)
        return replace(lost, kept_by_batches=kept_offsets)

    def drop_batch(self, position_bytes: int, code: str, reason: str) -> LostRange:
        """Remove one batch from the copy; return the lost range."""
        with MappedFile(self._target) as file:
            log = file.array
            batch_end_bytes = min(
                position_bytes + LOG_OVERHEAD_BYTES + entry_length(log[position_bytes:]), len(log)
            )
            lost = self._lost_range(
                log, position_bytes, batch_end_bytes, self._intact_ranges(log), code, reason
            )
            self._rewrite_target(
                [
                    self._target_range(0, position_bytes),
                    self._target_range(batch_end_bytes, len(log)),
                ]
            )
        return lost

    def _intact_ranges(self, log: Bytes) -> list[IntactRange]:
        """Return the intact ranges of a log, in offset order."""
        next_base_offset = self._next_base_offset
        intact_batches = find_intact_batches(
            log,
            self._source.base_offset,
            INT64_MAX if next_base_offset is None else next_base_offset,
            self._context.replica_repair.decompressor,
        )
        return intact_ranges(intact_batches.by_offset)

    def _target_range(self, start_bytes: int, end_bytes: int) -> BatchRange:
        base_offset = self._source.base_offset
        return BatchRange(
            self._target, start_bytes, end_bytes, base_offset, base_offset, base_offset
        )

    def _damaged_ranges(self, log: Bytes, ranges: Sequence[IntactRange]) -> list[_DamagedRange]:
        """Return the damaged ranges of a log, ordered by their missing offsets."""
        start_offset = max(self._source.base_offset, self._context.start_offset)
        ends = [start_offset, *(intact_range.end_offset for intact_range in ranges)]
        firsts = [*(intact_range.first_offset for intact_range in ranges), self._next_base_offset]
        numbers_by_position = sorted(
            range(len(ranges)), key=lambda number: ranges[number].start_bytes
        )
        damaged_ranges = []
        used_gaps: set[int] = set()

        def is_missing(gap: int) -> bool:
            next_first_offset = firsts[gap]
            return gap not in used_gaps and (
                next_first_offset is None or ends[gap] < next_first_offset
            )

        position, previous_number = 0, -1
        for number in [*numbers_by_position, len(ranges)]:
            end_bytes = len(log) if number == len(ranges) else ranges[number].start_bytes
            if position < end_bytes:
                header_offset = int.from_bytes(log[position : position + 8].tobytes(), "big")
                gap_of_header = bisect(
                    [intact_range.first_offset for intact_range in ranges], header_offset
                )
                repeated_batches = earlier_batches(
                    log, position, end_bytes, INT64_MAX, ranges, is_searched=False
                )
                is_repeat = (
                    repeated_batches is not None and repeated_batches.repeated_position is not None
                )
                # The missing offsets are before the next or after the previous intact range.
                candidates = [previous_number + 1, number]
                if ends[gap_of_header] <= header_offset < (firsts[gap_of_header] or 0):
                    candidates.insert(0, gap_of_header)
                gap = None if is_repeat else next(filter(is_missing, candidates), None)
                first_offset = ends[previous_number + 1] if gap is None else ends[gap]
                damaged_range = _DamagedRange(
                    position,
                    end_bytes,
                    first_offset,
                    first_offset if gap is None else firsts[gap],
                    NO_REPAIR,
                )
                if gap is not None:
                    used_gaps.add(gap)
                is_head = gap == 0 and self._context.previous_segment is None
                repair = self._find_repair(damaged_range, is_head=is_head)
                content = damaged_content(log, position, end_bytes, damaged_range.first_offset)
                if content.records is not None and content.last_offset is not None:
                    # The headers show which offsets of the gap are in this damaged range.
                    header_ranges = _intersect_ranges(
                        repair.damaged, header_offset, content.last_offset + 1
                    )
                    repair = replace(repair, damaged=tuple(header_ranges))
                damaged_ranges.append(replace(damaged_range, repair=repair))
            if number < len(ranges):
                position, previous_number = ranges[number].end_bytes, number
        return sorted(damaged_ranges, key=attrgetter("first_offset"))

    def _find_repair(self, damaged_range: _DamagedRange, *, is_head: bool) -> RangeRepair:
        context = self._context
        if not context.replica_repair or damaged_range.end_offset is None:
            return NO_REPAIR
        # Before the first batch, no common batch shows that both copies are equally compacted.
        if is_head:
            cleaned_to = context.cleaned_to if context.is_compacted else None
            return context.replica_repair.find_head(
                damaged_range.first_offset, damaged_range.end_offset, cleaned_to
            )
        return context.replica_repair.find(damaged_range.first_offset, damaged_range.end_offset)

    def _lost_ranges(
        self,
        log: Bytes,
        damaged_range: _DamagedRange,
        ranges: Sequence[IntactRange],
        code: str,
        reason: str,
    ) -> list[LostRange]:
        """Return the lost offsets of a damaged range."""
        repair = damaged_range.repair
        if repair.replicas and not repair.damaged:
            return []
        lost = self._lost_range(
            log, damaged_range.start_bytes, damaged_range.end_bytes, ranges, code, reason
        )
        if lost.is_empty and damaged_range.damaged:
            first_offset, end_offset = damaged_range.damaged[0]
            last_offset = None if damaged_range.end_offset is None else end_offset - 1
            return [replace(lost, first_offset=first_offset, last_offset=last_offset, records=None)]
        if repair.damaged and (repair.batches or repair.missing != repair.damaged):
            return [
                replace(
                    lost,
                    first_offset=first_offset,
                    last_offset=end_offset - 1,
                    records=None,
                    size_bytes=0 if number else lost.size_bytes,
                )
                for number, (first_offset, end_offset) in enumerate(repair.damaged)
            ]
        # Extra bytes between batches with consecutive offsets are not a loss.
        return [] if lost.is_empty else [lost]

    def _truncation_loss(
        self,
        log: Bytes,
        damaged_range: _DamagedRange,
        batches: Sequence[BatchRange],
        ranges: Sequence[IntactRange],
        code: str,
        reason: str,
    ) -> LostRange:
        """Return the range that is lost if the log is truncated at the first damaged offset."""
        lost = self._lost_range(log, damaged_range.start_bytes, len(log), ranges, code, reason)
        first_damaged_offset = damaged_range.damaged[0][0]
        if damaged_range.repair.batches:
            lost = replace(lost, first_offset=first_damaged_offset, records=None)
        kept_offsets = (
            batch_range.end_offset - batch_range.first_offset
            for batch_range in batches
            if batch_range.first_offset > first_damaged_offset
        )
        return replace(lost, kept_by_batches=sum(kept_offsets))

    def _lost_range(
        self,
        log: Bytes,
        start_bytes: int,
        end_bytes: int,
        ranges: Sequence[IntactRange],
        code: str,
        reason: str | None,
    ) -> LostRange:
        ends = [
            intact_range.end_offset
            for intact_range in ranges
            if intact_range.end_bytes <= start_bytes
        ]
        first_offset = max(ends, default=self._source.base_offset)
        partial_ranges = [
            intact_range
            for intact_range in ranges
            if start_bytes < intact_range.end_bytes and intact_range.start_bytes < start_bytes
        ]
        if partial_ranges:
            last_offset_before = damaged_content(
                log, partial_ranges[0].start_bytes, start_bytes, first_offset
            ).last_offset
            first_offset = first_offset if last_offset_before is None else last_offset_before + 1
        edges = (
            edge_bytes
            for intact_range in ranges
            for edge_bytes in (intact_range.start_bytes, intact_range.end_bytes)
        )
        content = damaged_content(log, start_bytes, end_bytes, first_offset, edges)
        records = content.records
        firsts = [
            intact_range.first_offset
            for intact_range in ranges
            if intact_range.start_bytes >= end_bytes
        ]
        if firsts:
            last_offset: int | None = min(firsts) - 1
        else:
            last_offset, next_base_offset = content.last_offset, self._next_base_offset
            # If the last batch is complete, later offsets are a gap between segments, which is
            # reported separately.
            complete_to = None if records is None or content.is_torn else last_offset
            if next_base_offset is not None and (
                complete_to is None or complete_to >= next_base_offset
            ):
                records = records if last_offset == next_base_offset - 1 else None
                last_offset = next_base_offset - 1
        lost = LostRange(
            self._source.base_offset,
            self._source.log_path,
            first_offset,
            last_offset,
            code,
            reason or code,
            content.first_timestamp_ms,
            content.last_timestamp_ms,
            records,
            end_bytes - start_bytes,
            start_bytes,
        )
        # If no other offset is missing, the records of batches with decreasing offsets are lost.
        decreasing_batches = earlier_batches(
            log, start_bytes, end_bytes, first_offset, ranges, is_searched=lost.is_empty
        )
        if decreasing_batches is None or not (decreasing_batches.has_only_batches or lost.is_empty):
            return lost
        stop = ScanStop(
            OVERLAP,
            start_bytes,
            f"offset {first_offset} or more",
            f"offset {decreasing_batches.first_offset}",
        )
        records, reason_text = decreasing_batches.records, stop.text
        if decreasing_batches.repeated_position is not None:
            position = decreasing_batches.repeated_position
            records = 0
            reason_text += f"; nothing is lost: the batch at byte {position} is the same"
        return replace(
            lost,
            first_offset=decreasing_batches.first_offset,
            last_offset=decreasing_batches.last_offset,
            records=records,
            code=stop.code,
            reason=reason_text,
        )

    def _rewrite_target(self, batches: Sequence[BatchRange]) -> None:
        """Replace the target log by the given batches of this and other logs."""
        rewritten_path = f"{self._target}.salvaged"
        with publishing(self._target, "write the repaired log"):
            mtime_ns = os.stat(self._target).st_mtime_ns
            write_batches(rewritten_path, batches)
            os.utime(rewritten_path, ns=(mtime_ns, mtime_ns))
            os.replace(rewritten_path, self._target)


def _intersect_ranges(
    spans: Sequence[OffsetRange], first_offset: int, end_offset: int
) -> list[OffsetRange]:
    """Return the nonempty intersections of `spans` with a range."""
    intersections = (
        (max(range_start, first_offset), min(range_end, end_offset))
        for range_start, range_end in spans
    )
    return [
        (range_start, range_end)
        for range_start, range_end in intersections
        if range_start < range_end
    ]
