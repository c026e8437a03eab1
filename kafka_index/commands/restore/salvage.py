"""Damaged logs: repaired from other copies, truncated, or without their bad batches.

Offsets that the base lacks are repaired by all intact batches of other copies, if these have the
same history there. The nearest batches that both have, before the range and after it, must be the
same: equal last offset, leader epoch and checksum. If there is no common batch after the range, the
leader epoch of each batch must be the epoch of the base copy at that offset. So divergent histories
are never joined.
"""

from __future__ import annotations

import os
from bisect import bisect
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import compress, islice, pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kafka_index.commands.restore.output import truncate_log, write_log
from kafka_index.commands.restore.plan import PartitionPlan
from kafka_index.commands.restore.request import Limit, Salvage
from kafka_index.commands.restore.result import LostRange
from kafka_index.core.cluster.replicas import Replica
from kafka_index.core.errors import InputError, InvalidEpochError, KafkaIndexError, is_retriable
from kafka_index.core.format.config import DEFAULT_MAX_DECOMPRESSED_BYTES, LogConfig
from kafka_index.core.format.integers import INT64_MAX
from kafka_index.core.format.leader_epochs import LeaderEpochCache
from kafka_index.core.format.records import (
    LOG_OVERHEAD_BYTES,
    MAGIC_POSITION,
    MAGIC_RECORD_BATCH,
    NO_LEADER_EPOCH,
    RECORD_BATCH_HEADER,
    RECORD_BATCH_OVERHEAD_BYTES,
)
from kafka_index.core.fs.durable_files import publishing
from kafka_index.core.fs.local_store import MappedFile
from kafka_index.core.fs.registry import store_of
from kafka_index.core.fs.store import Bytes
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
    IntactBatches,
    IntactRows,
    find_intact_batches,
    read_intact_batches,
)
from kafka_index.core.logdir.metadata_files import read_epochs
from kafka_index.core.logdir.partition_files import SegmentFile
from kafka_index.core.records.batch_table import OVERLAP, ScanStop
from kafka_index.core.records.decompression import shared_budget
from kafka_index.core.records.record_sections import Decompressor

_OFFSET_BYTES = 8
# The checksum covers the last offset delta. So if last offset and checksum are equal, the first
# offset is equal, too.
_IDENTITY = ("last_offset", "leader_epoch", "checksum")
# The number of logs of the base, on each side of a range, that are searched for a common batch.
_MAX_COMPARED = 8
_KEPT_LOGS = 4


class IntactRange(NamedTuple):
    """Consecutive intact batches of a log, in offset order."""

    start_bytes: int
    end_bytes: int
    first_offset: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class DamagedContent:
    """The records, offsets and timestamps in the headers of a damaged range.

    `is_torn`: the last batch ends after the end of the log.
    """

    records: int | None = None
    last_offset: int | None = None
    first_timestamp_ms: int | None = None
    last_timestamp_ms: int | None = None
    is_torn: bool = False


def intact_ranges(rows: IntactRows) -> list[IntactRange]:
    """Return intact batches, given by offset, as ranges of bytes."""
    if not len(rows):
        return []
    breaks = np.flatnonzero(rows["position_bytes"][1:] != rows["end_bytes"][:-1]) + 1
    starts, stops = [0, *breaks.tolist()], [*breaks.tolist(), len(rows)]
    return [
        IntactRange(
            int(rows["position_bytes"][start]),
            int(rows["end_bytes"][stop - 1]),
            int(rows["first_offset"][start]),
            int(rows["last_offset"][stop - 1]) + 1,
        )
        for start, stop in zip(starts, stops, strict=True)
    ]


def damaged_content(
    log: Bytes, start_bytes: int, end_bytes: int, next_offset: int, edges: Iterable[int] = ()
) -> DamagedContent:
    """Return the content of the plausible headers between two positions.

    After an implausible header, reading continues at the next edge.
    """
    ends = sorted(each for each in {*edges, end_bytes} if start_bytes < each <= end_bytes)
    records: int | None = 0
    largest: int | None = None
    first_ms: int | None = None
    last_ms: int | None = None
    position = start_bytes
    for end in ends:
        while position < end:
            header = _plausible_header(log, position, next_offset)
            size_bytes = 0 if header is None else LOG_OVERHEAD_BYTES + int(header["length"])
            # The header of a torn last batch is used, too.
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
    return DamagedContent(records, largest, first_ms, last_ms, is_torn=position > end_bytes)


class EarlierBatches(NamedTuple):
    """Complete batches whose base offset is below the next offset at their position.

    `is_all`: the range has no other bytes. `records` is None if there are messages of magic 0 or 1.
    `repeats`: the position of the first repeated batch, if each batch repeats an earlier one.
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
    ranges: Sequence[IntactRange],
    *,
    is_searched: bool,
) -> EarlierBatches | None:
    """Return the valid batches between two positions whose offsets go back, if there are any.

    If `is_searched`, they may follow other bytes. `ranges` are the intact ranges of the log.
    """
    held = InMemoryLog(log[:end_bytes])
    bounds = OffsetBounds(0, INT64_MAX)
    found: list[tuple[int, int, int | None]] = []
    places: list[tuple[int, int]] = []
    at, is_all = start_bytes, True
    while at < end_bytes:
        base_offset = int.from_bytes(log[at : at + _OFFSET_BYTES].tobytes(), "big")
        if base_offset < next_offset and is_batch(held, at, bounds):
            has_count = int(log[at + MAGIC_POSITION]) >= MAGIC_RECORD_BATCH
            count = int(_header(log, at)["record_count"]) if has_count else None
            found.append((base_offset, read_last_offset(log[at:]), count))
            end = at + LOG_OVERHEAD_BYTES + entry_length(log[at:])
            places.append((at, end))
            at = end
            continue
        is_all = False
        if not is_searched:
            break
        at = next_batch(held, at, bounds)
    if not is_all:
        is_new = [_first_repeated(log, [each], ranges) is None for each in places]
        found = list(compress(found, is_new))
    if not found:
        return None
    counts = [count for *_, count in found if count is not None]
    return EarlierBatches(
        min(first for first, *_ in found),
        min(max(last for _, last, _ in found), next_offset - 1),
        sum(counts) if len(counts) == len(found) else None,
        is_all,
        _first_repeated(log, places, ranges) if is_all else None,
    )


def _first_repeated(
    log: Bytes, places: Sequence[tuple[int, int]], ranges: Sequence[IntactRange]
) -> int | None:
    """Return the position of the first repeated batch; None if a batch repeats none."""
    repeats = [_without_epoch(log[start:end].tobytes()) for start, end in places]
    wanted = {one[:_OFFSET_BYTES] for one in repeats}
    found: dict[bytes, int] = {}
    for each in ranges:
        at = each.start_bytes
        while at < each.end_bytes:
            size = LOG_OVERHEAD_BYTES + entry_length(log[at:])
            if log[at : at + _OFFSET_BYTES].tobytes() in wanted:
                found.setdefault(_without_epoch(log[at : at + size].tobytes()), at)
            at += size
    return min(found[one] for one in repeats) if found.keys() >= set(repeats) else None


def _without_epoch(batch: bytes) -> bytes:
    """Return a batch without its leader epoch, which no checksum covers."""
    return batch[:LOG_OVERHEAD_BYTES] + batch[MAGIC_POSITION:]


def _plausible_header(log: Bytes, position: int, next_offset: int) -> np.void | None:
    """Return the header at a position if it is plausible, without its checksum, else None."""
    if len(log) - position < RECORD_BATCH_OVERHEAD_BYTES:
        return None
    header = _header(log, position)
    return header if are_plausible_headers(header, OffsetBounds(next_offset, INT64_MAX)) else None


def _header(log: Bytes, position: int) -> np.void:
    found: np.void = np.frombuffer(log, RECORD_BATCH_HEADER, 1, position)[0]
    return found


class BatchRange(NamedTuple):
    """Consecutive batches of a log: bytes, offsets, and the base offset of the segment."""

    path: str
    start_bytes: int
    end_bytes: int
    first_offset: int
    end_offset: int
    segment_base_offset: int


def write_batches(path: str, batches: Sequence[BatchRange]) -> None:
    """Write a log of the output from batches of logs."""
    with ExitStack() as stack:
        names = {each.path for each in batches}
        logs = {name: stack.enter_context(MappedFile(name)).array for name in names}
        write_log(path, (logs[each.path][each.start_bytes : each.end_bytes] for each in batches))


OffsetRange = tuple[int, int]


@dataclass(frozen=True, slots=True)
class RangeRepair:
    """The batches of other copies that repair a range of offsets, the end exclusive.

    Attributes
    ----------
    first_offset, end_offset : int
        The range.
    batches : tuple of BatchRange
        The batches, in offset order.
    replicas : tuple of str
        The copies with the same history there.
    missing : tuple of (int, int)
        The offsets that no copy has, and that compaction does not explain.
    damaged : tuple of (int, int)
        The offsets at which each copy is damaged or ends.
    rejected : tuple of BatchRange
        Batches in the range that are not used: a cleaner may have removed them from the base.
    """

    first_offset: int
    end_offset: int
    batches: tuple[BatchRange, ...] = ()
    replicas: tuple[str, ...] = ()
    missing: tuple[OffsetRange, ...] = ()
    damaged: tuple[OffsetRange, ...] = ()
    rejected: tuple[BatchRange, ...] = ()

    def covers(self, first_offset: int, end_offset: int) -> bool:
        """Return whether copies were searched for a range of offsets, the end exclusive."""
        return (
            bool(self.replicas)
            and self.first_offset <= first_offset
            and end_offset <= self.end_offset
        )

    def explains(self, first_offset: int, end_offset: int) -> bool:
        """Return whether the copies have no such offsets, because a cleaner removed them."""
        span = (first_offset, end_offset)
        return self.covers(*span) and subtract_ranges([span], self.missing) == [span]

    def rejected_in(self, first_offset: int, end_offset: int) -> list[str]:
        """Return the copies with rejected batches in a range, the end exclusive."""
        found = (
            os.path.dirname(each.path)
            for each in self.rejected
            if each.first_offset < end_offset and first_offset < each.end_offset
        )
        return list(dict.fromkeys(found))


NO_REPAIR = RangeRepair(0, 0)


class ReplicaRepair:
    """Finds missing offsets of the base copy of a partition in other copies."""

    def __init__(
        self,
        base: Replica | None = None,
        others: Sequence[Replica] = (),
        decompressor: Decompressor | None = None,
    ) -> None:
        self.decompressor = decompressor or shared_budget(DEFAULT_MAX_DECOMPRESSED_BYTES)
        self._base = base
        self._others = [each for each in others if not store_of(each.directory).needs_requests]
        self._read_logs: dict[str, IntactBatches] = {}

    def __bool__(self) -> bool:
        """Return whether there is another copy."""
        return bool(self._others)

    def start_offset(self, default: int) -> int:
        """Return the lowest offset at which the log of another copy starts, or the default."""
        starts = (
            max(int(each.segments.base_offsets[0]), each.root.log_start_offset(each.partition) or 0)
            for each in self._others
        )
        return min(starts, default=default)

    def find(
        self,
        first_offset: int,
        end_offset: int,
        cleaned_to: int | None = None,
        *,
        accepts: bool = True,
    ) -> RangeRepair:
        """Return the batches of other copies in a range of offsets.

        If a cleaner may have removed them from the base, it has cleaned up to `cleaned_to`. Then
        only batches of copies that were cleaned as far are accepted.
        """
        left: list[OffsetRange] = [(first_offset, end_offset)]
        batches: list[BatchRange] = []
        rejected: list[BatchRange] = []
        gaps: list[OffsetRange] = []
        explained: list[OffsetRange] = []
        replicas = []
        for other in self._others:
            reach = other.root.cleaned_to(other.partition) or 0
            is_accepted = accepts and (cleaned_to is None or reach >= cleaned_to)
            try:
                for found in self._read(other, first_offset, end_offset):
                    gaps += found.gaps
                    explained += found.explained(reach)
                    if is_accepted:
                        left = _select_batches(found, left, batches)
                    else:
                        _select_batches(found, [(first_offset, end_offset)], rejected)
                    if other.directory not in replicas:
                        replicas.append(other.directory)
            except KafkaIndexError as error:
                if is_retriable(error):
                    raise
        missing = subtract_ranges(left, explained)
        return RangeRepair(
            first_offset,
            end_offset,
            tuple(_joined(batches)),
            tuple(replicas),
            tuple(missing),
            tuple(subtract_ranges(missing, gaps)),
            tuple(rejected),
        )

    def find_head(
        self, start_offset: int, end_offset: int, cleaned_to: int | None = None
    ) -> RangeRepair:
        """Return the batches of other copies, from the batch with the log start offset on."""
        first = start_offset
        for other in self._others:
            for number in _overlapping(other, start_offset, start_offset + 1):
                rows = self._rows(other, number).by_offset
                rows = rows[rows["last_offset"] >= start_offset]
                first = min(first, *rows["first_offset"][:1].tolist(), start_offset)
        return self.find(first, end_offset, cleaned_to)

    def _read(
        self, other: Replica, first_offset: int, end_offset: int
    ) -> Iterator[_ReplicaBatches]:
        """Yield the batches of a copy in a range, if it has the same history there."""
        before = self._compare_nearest(other, first_offset, is_after=False)
        after = self._compare_nearest(other, end_offset, is_after=True)
        if _Comparison.DIFFERS in (before, after):
            return
        # Copies with a common batch are equal before it.
        base_epochs = None if after is _Comparison.EQUAL else self._base_epochs(end_offset)
        position = _Position(first_offset)
        files = other.segments.files()
        numbers = _overlapping(other, first_offset - 1, end_offset + 1)
        for number in numbers:
            if number == 0:
                position.is_adjacent = True
            rows = self._rows(other, number)
            yield _ReplicaBatches.of(
                files[number], rows, position, first_offset, end_offset, base_epochs
            )

    def _compare_nearest(self, other: Replica, offset: int, *, is_after: bool) -> _Comparison:
        """Compare the nearest batches that the base and a copy have before or from an offset."""
        base = self._base
        if base is None:
            return _Comparison.NONE
        step = 1 if is_after else -1
        numbers = _overlapping(base, *((offset, INT64_MAX) if is_after else (0, offset)))
        for number in numbers[::step][:_MAX_COMPARED]:
            mine = _batches_around(self._rows(base, number).by_offset, offset, is_after=is_after)
            if not len(mine):
                continue
            low, high = int(mine["first_offset"][0]), int(mine["last_offset"][-1]) + 1
            for theirs_at in _overlapping(other, low, high)[::step]:
                theirs = _batches_around(
                    self._rows(other, theirs_at).by_offset, offset, is_after=is_after
                )
                at = np.searchsorted(theirs["last_offset"], mine["first_offset"])
                places = np.append(theirs["first_offset"], INT64_MAX)[at]
                common = np.flatnonzero(places <= mine["last_offset"])
                if len(common):
                    row = int(common[0 if is_after else -1])
                    one, two = mine[row], theirs[int(at[row])]
                    is_equal = all(one[name] == two[name] for name in _IDENTITY)
                    return _Comparison.EQUAL if is_equal else _Comparison.DIFFERS
        return _Comparison.NONE

    def _base_epochs(self, end_offset: int) -> _BaseEpochs:
        """Return the leader epochs of the history of the base from an offset on."""
        base = self._base
        later: set[int] = set()
        cache = LeaderEpochCache()
        if base is not None:
            for number in _overlapping(base, end_offset, INT64_MAX)[:_MAX_COMPARED]:
                rows = _batches_around(self._rows(base, number).in_order, end_offset, is_after=True)
                later |= set(np.unique(rows["leader_epoch"]).tolist())
            with suppress(InvalidEpochError, InputError):
                cache = read_epochs(base.directory)
        return _BaseEpochs(later - {NO_LEADER_EPOCH}, cache)

    def _rows(self, replica: Replica, number: int) -> IntactBatches:
        """Return the intact batches of a log; a cache keeps the batches of the latest logs."""
        files = replica.segments.files()
        segment = files[number]
        found = self._read_logs.pop(segment.log_path, None)
        if found is None:
            end = files[number + 1].base_offset if number + 1 < len(files) else INT64_MAX
            found = read_intact_batches(segment, end, self.decompressor)
        self._read_logs[segment.log_path] = found
        while len(self._read_logs) > _KEPT_LOGS:
            self._read_logs.pop(next(iter(self._read_logs)))
        return found


class _Comparison(Enum):
    """The comparison of the nearest batches that two copies have in common."""

    NONE = "none"
    EQUAL = "equal"
    DIFFERS = "differs"


class _BaseEpochs(NamedTuple):
    """The leader epochs of later batches of the base, and its leader epoch checkpoint.

    A leader epoch has one leader: a copy that has the epoch at a later offset is equal before it.
    """

    later: set[int]
    recorded: LeaderEpochCache

    def holds(self, rows: IntactRows) -> NDArray[np.bool_]:
        """Return which batches have a leader epoch of the history of the base."""
        held: NDArray[np.bool_] = rows["leader_epoch"] == NO_LEADER_EPOCH
        held |= np.isin(rows["leader_epoch"], sorted(self.later))
        for row in np.flatnonzero(~held).tolist():
            epoch = int(rows["leader_epoch"][row])
            recorded = self.recorded.epoch_for_offset(int(rows["first_offset"][row]))
            held[row] = recorded == epoch
        return held


@dataclass(slots=True)
class _Position:
    """A position in the logs of a copy, and whether all batches before it are intact."""

    next_offset: int
    is_adjacent: bool = False


@dataclass(frozen=True, slots=True)
class _ReplicaBatches:
    """The batches of a copy's log in a range of offsets, and the missing offsets of the log."""

    segment: SegmentFile
    rows: IntactRows
    gaps: list[OffsetRange]
    marked_end: int

    @classmethod
    def of(
        cls,
        segment: SegmentFile,
        batches: IntactBatches,
        position: _Position,
        first_offset: int,
        end_offset: int,
        base_epochs: _BaseEpochs | None,
    ) -> _ReplicaBatches:
        """Select the batches of a log, and move the position to its end."""
        rows = batches.in_order
        inside = batches.by_offset
        inside = inside[
            (inside["first_offset"] >= first_offset) & (inside["last_offset"] < end_offset)
        ]
        if base_epochs is not None:
            inside = inside[base_epochs.holds(inside)]
        marked = rows["first_offset"][rows["is_cleaned"]]
        gaps = []
        if len(rows):
            firsts = rows["first_offset"]
            before = np.concatenate(([position.next_offset], rows["last_offset"][:-1] + 1))
            is_spanned = rows["is_next"] & (firsts > before)
            is_spanned[0] &= position.is_adjacent
            gaps = list(zip(before[is_spanned].tolist(), firsts[is_spanned].tolist(), strict=True))
            position.next_offset = int(rows["last_offset"][-1]) + 1
            position.is_adjacent = batches.reaches_end
        position.is_adjacent &= batches.reaches_end
        return cls(segment, inside, gaps, int(marked.max(initial=0)))

    def explained(self, cleaned_to: int) -> list[OffsetRange]:
        """Return the missing offsets that a cleaner has removed."""
        limit = max(cleaned_to, self.marked_end)
        return [each for each in self.gaps if each[1] <= limit]


def _overlapping(replica: Replica, first_offset: int, end_offset: int) -> list[int]:
    """Return the numbers of the logs that may have offsets of a range, the end exclusive."""
    bases = replica.segments.base_offsets
    first = max(int(np.searchsorted(bases, first_offset, "right")) - 1, 0)
    return list(range(first, int(np.searchsorted(bases, end_offset, "left"))))


def _batches_around(rows: IntactRows, offset: int, *, is_after: bool) -> IntactRows:
    """Return the batches that begin at an offset or after it, or the batches that end before it."""
    if is_after:
        return rows[rows["first_offset"] >= offset]
    return rows[rows["last_offset"] < offset]


def _select_batches(
    found: _ReplicaBatches, left: Sequence[OffsetRange], batches: list[BatchRange]
) -> list[OffsetRange]:
    """Add the batches in ranges of offsets to the batches; return the remaining ranges."""
    covered = []
    for start, end in left:
        first = int(np.searchsorted(found.rows["first_offset"], start))
        stop = int(np.searchsorted(found.rows["last_offset"], end))
        rows = found.rows[first:stop]
        if not len(rows):
            continue
        is_next = (rows["position_bytes"][1:] == rows["end_bytes"][:-1]) & (
            rows["first_offset"][1:] == rows["last_offset"][:-1] + 1
        )
        edges = [0, *(np.flatnonzero(~is_next) + 1).tolist(), len(rows)]
        for low, high in pairwise(edges):
            span = int(rows["first_offset"][low]), int(rows["last_offset"][high - 1]) + 1
            covered.append(span)
            batches.append(
                BatchRange(
                    found.segment.log_path,
                    int(rows["position_bytes"][low]),
                    int(rows["end_bytes"][high - 1]),
                    *span,
                    found.segment.base_offset,
                )
            )
    return subtract_ranges(left, covered)


def _joined(batches: Iterable[BatchRange]) -> list[BatchRange]:
    """Return batches by offset; neighbors in a log are joined."""
    joined: list[BatchRange] = []
    for each in sorted(batches, key=lambda one: one.first_offset):
        last = joined[-1] if joined else None
        if last is not None and (last.path, last.end_bytes) == (each.path, each.start_bytes):
            joined[-1] = last._replace(end_bytes=each.end_bytes, end_offset=each.end_offset)
        else:
            joined.append(each)
    return joined


def subtract_ranges(
    spans: Iterable[OffsetRange], removed: Iterable[OffsetRange]
) -> list[OffsetRange]:
    """Return the parts of ascending ranges that are not in other ranges, the ends exclusive."""
    excluded = sorted(removed)
    left = []
    at = 0
    for first, end in spans:
        start = first
        while at < len(excluded) and excluded[at][1] <= start:
            at += 1
        for low, high in islice(excluded, at, None):
            if low >= end:
                break
            if start < low:
                left.append((start, low))
            start = max(start, high)
        if start < end:
            left.append((start, end))
    return left


@dataclass(frozen=True, slots=True)
class _DamagedRange:
    """A damaged range of a log, the offsets that are missing in it, and their repair.

    The end of the offsets is exclusive, and None if it is unknown.
    """

    start_bytes: int
    end_bytes: int
    first_offset: int
    end_offset: int | None
    repair: RangeRepair

    @property
    def damaged(self) -> list[OffsetRange]:
        """The ranges of offsets that no copy has intact."""
        end = INT64_MAX if self.end_offset is None else self.end_offset
        if self.repair.replicas:
            return list(self.repair.damaged)
        return [(self.first_offset, end)] if self.first_offset < end else []


@dataclass(frozen=True, slots=True)
class LogContext:
    """The context of a segment: its neighbours, other copies, and the limits of its log."""

    before: SegmentFile | None = None
    after: SegmentFile | None = None
    replica_repair: ReplicaRepair = field(default_factory=ReplicaRepair)
    limit: Limit | None = None
    start_offset: int = 0
    is_compacted: bool = False
    cleaned_to: int = 0

    @property
    def next_base_offset(self) -> int | None:
        """The base offset of the segment after it."""
        return None if self.after is None else self.after.base_offset


def partition_context(plan: PartitionPlan, config: LogConfig) -> LogContext:
    """Return the context that all segments of a partition share."""
    return LogContext(
        replica_repair=ReplicaRepair(
            plan.base, plan.others, shared_budget(config.max_decompressed_bytes)
        ),
        limit=plan.limit,
        start_offset=plan.log_start_offset,
        is_compacted=bool(plan.known.cleaning.is_compacted),
        cleaned_to=plan.known.cleaning.cleaned_to or 0,
    )


def logs_in_context(plan: PartitionPlan, config: LogConfig) -> list[tuple[SegmentFile, LogContext]]:
    """Return the segments of a partition by base offset, each with its context."""
    segments = plan.segments()
    shared = partition_context(plan, config)
    around = zip([None, *segments[:-1]], [*segments[1:], None], strict=True)
    contexts = [replace(shared, before=before, after=after) for before, after in around]
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
        """Repair damaged ranges from other copies; return the lost ranges, and the repairs.

        Batches at a wrong position are moved back into offset order.
        """
        with MappedFile(self._target) as file:
            log = file.array
            ranges = self._ranges(log)
            damaged_ranges = self._damaged_ranges(log, ranges)
            batches = [
                BatchRange(self._target, each.start_bytes, each.end_bytes, *each[2:], base_offset)
                for base_offset in [self._source.base_offset]
                for each in ranges
            ]
            batches += [
                batch_range
                for damaged_range in damaged_ranges
                for batch_range in damaged_range.repair.batches
            ]
            batches.sort(key=lambda each: each.first_offset)
            lost: list[LostRange] = []
            for damaged_range in damaged_ranges:
                found = self._lost_in(log, damaged_range, ranges, code, reason)
                if salvage is Salvage.PREFIX and damaged_range.damaged:
                    truncated_at = damaged_range.damaged[0][0]
                    lost.append(self._lost_from(log, damaged_range, batches, ranges, code, reason))
                    batches = [each for each in batches if each.first_offset < truncated_at]
                    break
                lost += found
            if salvage is Salvage.NONE and lost:
                return lost, []
            self._rewrite(batches)
        return lost, [
            damaged_range.repair for damaged_range in damaged_ranges if damaged_range.repair.batches
        ]

    def insert(self, batches: Iterable[tuple[int, Sequence[BatchRange]]]) -> None:
        """Insert batches of other copies at ascending positions of the log."""
        end = 0
        parts: list[BatchRange] = []
        with MappedFile(self._target) as file:
            for position, inserted in batches:
                parts += [self._own(end, position), *inserted]
                end = position
            self._rewrite([*parts, self._own(end, file.size_bytes)])

    def truncate(self, position_bytes: int, code: str, reason: str | None) -> LostRange:
        """Truncate the copy at a position; return the lost range."""
        with MappedFile(self._target) as file:
            ranges = self._ranges(file.array)
            lost = self._lost(file.array, position_bytes, file.size_bytes, ranges, code, reason)
        intact = (each for each in ranges if each.start_bytes >= position_bytes)
        kept = sum(each.end_offset - each.first_offset for each in intact)
        truncate_log(self._target, position_bytes)
        return replace(lost, kept_by_batches=kept)

    def drop_batch(self, position_bytes: int, code: str, reason: str) -> LostRange:
        """Remove one batch from the copy; return the lost range."""
        with MappedFile(self._target) as file:
            log = file.array
            end = min(
                position_bytes + LOG_OVERHEAD_BYTES + entry_length(log[position_bytes:]), len(log)
            )
            lost = self._lost(log, position_bytes, end, self._ranges(log), code, reason)
            self._rewrite([self._own(0, position_bytes), self._own(end, len(log))])
        return lost

    def _ranges(self, log: Bytes) -> list[IntactRange]:
        """Return the intact ranges of a log, in offset order."""
        end = self._next_base_offset
        found = find_intact_batches(
            log,
            self._source.base_offset,
            INT64_MAX if end is None else end,
            self._context.replica_repair.decompressor,
        )
        return intact_ranges(found.by_offset)

    def _own(self, start_bytes: int, end_bytes: int) -> BatchRange:
        base_offset = self._source.base_offset
        return BatchRange(
            self._target, start_bytes, end_bytes, base_offset, base_offset, base_offset
        )

    def _damaged_ranges(self, log: Bytes, ranges: Sequence[IntactRange]) -> list[_DamagedRange]:
        """Return the damaged ranges of a log, ordered by their missing offsets."""
        start = max(self._source.base_offset, self._context.start_offset)
        ends = [start, *(each.end_offset for each in ranges)]
        firsts = [*(each.first_offset for each in ranges), self._next_base_offset]
        in_log = sorted(range(len(ranges)), key=lambda number: ranges[number].start_bytes)
        damaged_ranges = []
        seen: set[int] = set()

        def is_missing(gap: int) -> bool:
            end = firsts[gap]
            return gap not in seen and (end is None or ends[gap] < end)

        at, before = 0, -1
        for number in [*in_log, len(ranges)]:
            end = len(log) if number == len(ranges) else ranges[number].start_bytes
            if at < end:
                header_offset = int.from_bytes(log[at : at + 8].tobytes(), "big")
                by_header = bisect([each.first_offset for each in ranges], header_offset)
                again = earlier_batches(log, at, end, INT64_MAX, ranges, is_searched=False)
                is_repeat = again is not None and again.repeats is not None
                # The offsets of the header are missing after the previous or before the next batch.
                candidates = [before + 1, number]
                if ends[by_header] <= header_offset < (firsts[by_header] or 0):
                    candidates.insert(0, by_header)
                gap = None if is_repeat else next(filter(is_missing, candidates), None)
                first = ends[before + 1] if gap is None else ends[gap]
                damaged_range = _DamagedRange(
                    at, end, first, first if gap is None else firsts[gap], NO_REPAIR
                )
                if gap is not None:
                    seen.add(gap)
                is_head = gap == 0 and self._context.before is None
                repair = self._repair(damaged_range, is_head=is_head)
                content = damaged_content(log, at, end, damaged_range.first_offset)
                if content.records is not None and content.last_offset is not None:
                    # The rest of the gap is not damaged here.
                    named = _intersect_ranges(
                        repair.damaged, header_offset, content.last_offset + 1
                    )
                    repair = replace(repair, damaged=tuple(named))
                damaged_ranges.append(replace(damaged_range, repair=repair))
            if number < len(ranges):
                at, before = ranges[number].end_bytes, number
        return sorted(damaged_ranges, key=lambda damaged_range: damaged_range.first_offset)

    def _repair(self, damaged_range: _DamagedRange, *, is_head: bool) -> RangeRepair:
        context = self._context
        if not context.replica_repair or damaged_range.end_offset is None:
            return NO_REPAIR
        # No batch before the head shows whether a cleaner has left both copies equal.
        if is_head:
            cleaned_to = context.cleaned_to if context.is_compacted else None
            return context.replica_repair.find_head(
                damaged_range.first_offset, damaged_range.end_offset, cleaned_to
            )
        return context.replica_repair.find(damaged_range.first_offset, damaged_range.end_offset)

    def _lost_in(
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
        lost = self._lost(
            log, damaged_range.start_bytes, damaged_range.end_bytes, ranges, code, reason
        )
        if lost.is_empty and damaged_range.damaged:
            first, end = damaged_range.damaged[0]
            last = None if damaged_range.end_offset is None else end - 1
            return [replace(lost, first_offset=first, last_offset=last, records=None)]
        if repair.damaged and (repair.batches or repair.missing != repair.damaged):
            return [
                replace(
                    lost,
                    first_offset=first,
                    last_offset=end - 1,
                    records=None,
                    size_bytes=0 if number else lost.size_bytes,
                )
                for number, (first, end) in enumerate(repair.damaged)
            ]
        # Bytes between batches of consecutive offsets are not a loss.
        return [] if lost.is_empty else [lost]

    def _lost_from(
        self,
        log: Bytes,
        damaged_range: _DamagedRange,
        batches: Sequence[BatchRange],
        ranges: Sequence[IntactRange],
        code: str,
        reason: str,
    ) -> LostRange:
        """Return the loss from truncating a log at the first offset that no copy has."""
        lost = self._lost(log, damaged_range.start_bytes, len(log), ranges, code, reason)
        first = damaged_range.damaged[0][0]
        if damaged_range.repair.batches:
            lost = replace(lost, first_offset=first, records=None)
        kept = (
            each.end_offset - each.first_offset for each in batches if each.first_offset > first
        )
        return replace(lost, kept_by_batches=sum(kept))

    def _lost(
        self,
        log: Bytes,
        start: int,
        end: int,
        ranges: Sequence[IntactRange],
        code: str,
        reason: str | None,
    ) -> LostRange:
        ends = [each.end_offset for each in ranges if each.end_bytes <= start]
        first = max(ends, default=self._source.base_offset)
        inside = [each for each in ranges if start < each.end_bytes and each.start_bytes < start]
        if inside:
            last_before = damaged_content(log, inside[0].start_bytes, start, first).last_offset
            first = first if last_before is None else last_before + 1
        edges = (at for each in ranges for at in (each.start_bytes, each.end_bytes))
        content = damaged_content(log, start, end, first, edges)
        records = content.records
        firsts = [each.first_offset for each in ranges if each.start_bytes >= end]
        if firsts:
            last: int | None = min(firsts) - 1
        else:
            last, following = content.last_offset, self._next_base_offset
            # Offsets after a complete last batch are missing between segments.
            complete_to = None if records is None or content.is_torn else last
            if following is not None and (complete_to is None or complete_to >= following):
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
        # If no other offset is missing, the records of batches that go back are lost.
        back = earlier_batches(log, start, end, first, ranges, is_searched=lost.is_empty)
        if back is None or not (back.is_all or lost.is_empty):
            return lost
        stop = ScanStop(OVERLAP, start, f"offset {first} or more", f"offset {back.first_offset}")
        records, text = back.records, stop.text
        if back.repeats is not None:
            records, text = (
                0,
                f"{text}; nothing is lost: it repeats the batch at byte {back.repeats}",
            )
        return replace(
            lost,
            first_offset=back.first_offset,
            last_offset=back.last_offset,
            records=records,
            code=stop.code,
            reason=text,
        )

    def _rewrite(self, batches: Sequence[BatchRange]) -> None:
        """Write the copy again, from its own batches and batches of other logs."""
        rewritten = f"{self._target}.salvaged"
        with publishing(self._target, "write a salvaged log"):
            mtime_ns = os.stat(self._target).st_mtime_ns
            write_batches(rewritten, batches)
            os.utime(rewritten, ns=(mtime_ns, mtime_ns))
            os.replace(rewritten, self._target)


def _intersect_ranges(
    spans: Sequence[OffsetRange], first_offset: int, end_offset: int
) -> list[OffsetRange]:
    """Return the parts of ranges that are in another range."""
    parts = ((max(first, first_offset), min(end, end_offset)) for first, end in spans)
    return [(first, end) for first, end in parts if first < end]
