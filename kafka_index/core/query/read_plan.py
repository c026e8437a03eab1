"""The plan of a read: which bytes of which segments, in splits that can be read anywhere.

A plan is made from listings and indexes alone and pickles, so that a driver makes it and tasks read
its splits. Bounds are offsets once it is made: a bound in time is resolved to the offset of the
first record as late, as Spark's Kafka source does. The ranges of bytes come from the indexes, whose
entries are compared with the log as they are used.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from kafka_index.core.errors import CorruptLogError
from kafka_index.core.format.integers import INT64_MAX
from kafka_index.core.format.longs import Longs
from kafka_index.core.format.names import TopicPartition
from kafka_index.core.log.read.log_segment import LogSegment
from kafka_index.core.log.read.partition_files import PartitionFiles
from kafka_index.core.log.read.partition_log import PartitionLog
from kafka_index.core.log.read.transactions import (
    AbortedTransactions,
    TransactionBounds,
    read_transactions,
)
from kafka_index.core.query.bounds import (
    EARLIEST,
    LATEST,
    Bound,
    ReadBounds,
    check_offsets,
    check_start,
    refuse_start_after_end,
    resolve_bounds,
)
from kafka_index.core.query.choices import Isolation, OnDamage
from kafka_index.core.query.missing_records import GapFinder, ReadPartition
from kafka_index.core.query.range_scan import LogRange, damaged_end
from kafka_index.core.query.settings import ReadSettings


@dataclass(frozen=True, slots=True)
class RecordSplit:
    """Records of one partition that are read together; first and last offset are inclusive.

    `ranges` are the parts of segments that hold them, in order. `aborted` has the transactions that
    overlap with them, if isolation needs it. Splits of one partition divide its offsets at
    `start_offset`. A batch can have offsets on both sides of a division: as a row of batches it
    belongs to the earlier split, and its base offset is below `first_base_offset` then. Where a
    read is resumed, `passed_damage` has path and byte position of the last damage that was
    reported. `damage` ends the read, beyond the ranges.
    """

    topic: str
    partition: int
    first_offset: int
    last_offset: int
    ranges: tuple[LogRange, ...]
    aborted: AbortedTransactions | None = None
    start_offset: int = 0
    first_base_offset: int | None = None
    passed_damage: tuple[str, int] | None = None
    damage: CorruptLogError | None = None

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition."""
        return TopicPartition(self.topic, self.partition)

    @property
    def size_bytes(self) -> int:
        """The number of bytes of logs that are read."""
        return sum(part.size_bytes for part in self.ranges)

    @property
    def directories(self) -> set[str]:
        """Directories of the logs."""
        return {part.segment.partition_directory for part in self.ranges}


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """The splits of a read by topic, partition and offset, and its settings.

    `partitions` are those of the splits, and those without any; `finder` finds what is missing in
    them once they were read.
    """

    splits: tuple[RecordSplit, ...]
    settings: ReadSettings
    partitions: tuple[ReadPartition, ...] = ()
    finder: GapFinder | None = None

    @property
    def size_bytes(self) -> int:
        """The number of bytes of logs that are read."""
        return sum(split.size_bytes for split in self.splits)


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """The offsets of a partition that are read, the end exclusive and None for the end of the log.

    `aborted` and `first_base_offset` are as in `RecordSplit`; `damage` is the reason for the end,
    if damage hides the rest.
    """

    first_offset: int
    end_offset: int | None
    aborted: AbortedTransactions | None = None
    first_base_offset: int | None = None
    damage: CorruptLogError | None = None

    def within(self, least: int, most: int) -> OffsetRange:
        """Return its part of other offsets, both ends inclusive."""
        first, end, damage = max(self.first_offset, least), self.end_offset, self.damage
        if most < INT64_MAX:
            is_before = end is None or most + 1 < end
            end, damage = (most + 1, None) if is_before else (end, damage)
        return replace(self, first_offset=first, end_offset=end, damage=damage)


def plan_partition(
    log: PartitionLog,
    bounds: ReadBounds,
    settings: ReadSettings,
    *,
    max_split_bytes: int | None = None,
    max_split_records: int | None = None,
    within: tuple[int, int] | None = None,
) -> Iterator[RecordSplit]:
    """Yield the splits of a partition.

    A split larger than `max_split_bytes` is cut at batches that index entries lead to;
    `max_split_records` bounds its offsets, and so its records. `within` are the first and last
    offset that are wanted, both inclusive, whatever the bounds are.
    """
    offsets = resolve_range(log, bounds, settings)
    if within is not None:
        offsets = offsets.within(*within)
    pieces = [offsets]
    if max_split_records is not None:
        pieces = _divide(log, offsets, max_split_records)
    for piece in pieces:
        yield from split_range(log, piece, settings, max_split_bytes=max_split_bytes)


def read_partition(
    files: PartitionFiles, bounds: ReadBounds, splits: Sequence[RecordSplit]
) -> ReadPartition | None:
    """Return the offsets that a plan of a partition is asked to read; None for none."""
    starts_anywhere, ends_anywhere = bounds.start == Bound(EARLIEST), bounds.end == Bound(LATEST)
    if not splits:
        return ReadPartition(files) if starts_anywhere and ends_anywhere else None
    first, last = splits[0].first_offset, splits[-1].last_offset
    ranges = splits[-1].ranges
    end = ranges[-1] if ranges else None
    is_whole = end is None or (
        end.segment == files.segments[-1] and end.end_bytes >= end.segment.log_size_bytes
    )
    ends_open = last == INT64_MAX or (ends_anywhere and is_whole)
    return ReadPartition(
        files,
        None if starts_anywhere and first <= files.log_start_offset else first,
        None if ends_open else last + 1,
        goes_on=not is_whole,
    )


def part_of_partition(files: PartitionFiles, split: RecordSplit) -> ReadPartition:
    """Return the offsets that a split, which has ranges, is to read; with its own segments only."""
    first, last = split.ranges[0], split.ranges[-1]
    is_head = first.segment == files.segments[0] and first.start_bytes == 0
    is_head &= split.first_offset <= files.log_start_offset
    end = last.end_offset
    if end is None and last.end_bytes < last.segment.log_size_bytes:
        end = INT64_MAX
    if end is not None and split.last_offset < end:
        end = split.last_offset + 1
    start = None if is_head else max(split.first_offset, split.start_offset)
    own = replace(files, segments=tuple(part.segment for part in split.ranges))
    return ReadPartition(own, start, end, goes_on=end is not None)


def _divide(log: PartitionLog, offsets: OffsetRange, max_records: int) -> list[OffsetRange]:
    """Divide a range into equal ones, as Spark's ``KafkaOffsetRangeCalculator`` does."""
    first = offsets.first_offset
    end = log.end_offset if offsets.end_offset is None else offsets.end_offset
    count = -(-(end - first) // max_records)
    if count < 2:
        return [offsets]
    bounds = [first + (end - first) * number // count for number in range(count + 1)]
    return [
        replace(
            offsets,
            first_offset=start,
            end_offset=offsets.end_offset if stop == end else stop,
            first_base_offset=start if start > first else None,
            damage=offsets.damage if stop == end else None,
        )
        for start, stop in pairwise(bounds)
    ]


def resolve_range(log: PartitionLog, bounds: ReadBounds, settings: ReadSettings) -> OffsetRange:
    """Return the offsets that bounds and isolation ask for; errors are those of `plan_partition`.

    An end at or before the first offset means that nothing is read.
    """
    first_offset, end_offset = resolve_bounds(log, bounds)
    aborted = damage = None
    if settings.isolation is Isolation.READ_COMMITTED or "is_aborted" in settings.columns:
        last_offset = None if end_offset is None else end_offset - 1
        transactions = _transactions(log, first_offset, last_offset)
        aborted = transactions.aborted
        stable = transactions.last_stable_offset
        if end_offset is None or end_offset > stable:
            damage = transactions.damage
        if damage is not None and settings.on_damage is OnDamage.FAILFAST:
            raise damage
        if settings.isolation is Isolation.READ_COMMITTED:
            if first_offset >= stable:
                check_start(log, bounds)
            end_offset = stable if end_offset is None else min(end_offset, stable)
            check_offsets(log, bounds, stable)
    if settings.isolation is Isolation.READ_UNCOMMITTED and bounds.needs_offsets:
        check_offsets(log, bounds, log.end_offset)
    if bounds.needs_order and bounds.end.value == LATEST and log.segments[-1].end_damage is None:
        # A start below the log start is not after the end, whatever that is.
        end = log.end_offset if end_offset is None else end_offset
        refuse_start_after_end(log, bounds, first_offset, end)
    return OffsetRange(first_offset, end_offset, aborted, damage=damage)


def _transactions(
    log: PartitionLog, first_offset: int, last_offset: int | None
) -> TransactionBounds:
    """Return the transactions that isolation needs, of a damaged log before the damage."""
    damaged = damaged_end(log)
    if damaged is None:
        return read_transactions(log.files, first_offset, log.end_offset, last_offset)
    bound = log.files.high_watermark
    end = damaged.sound_offset if bound is None else min(damaged.sound_offset, bound)
    found = read_transactions(log.files, first_offset, end, last_offset)
    is_hidden = bound is None or bound > damaged.sound_offset
    return replace(found, damage=damaged.error) if is_hidden and not found.damage else found


def split_range(
    log: PartitionLog,
    offsets: OffsetRange,
    settings: ReadSettings,
    *,
    max_split_bytes: int | None = None,
) -> Iterator[RecordSplit]:
    """Yield the splits of a range of offsets; parameters are those of `plan_partition`."""
    first_offset, end_offset = offsets.first_offset, offsets.end_offset
    last_offset = INT64_MAX if end_offset is None else end_offset - 1
    if last_offset < first_offset and offsets.damage is None:
        return
    aborted = offsets.aborted
    if aborted is not None:
        aborted = aborted.within(first_offset, last_offset)
    strict = settings.on_damage is OnDamage.FAILFAST
    ranges = []
    if first_offset <= last_offset:
        ranges = list(ranges_of(log, first_offset, end_offset, strict=strict))
    whole = RecordSplit(
        log.topic,
        log.partition,
        first_offset,
        last_offset,
        (),
        aborted,
        start_offset=first_offset,
        first_base_offset=offsets.first_base_offset,
    )
    groups = list(split_ranges(log, ranges, max_split_bytes, strict=strict))
    for number, parts in enumerate(groups, 1):
        damage = offsets.damage if number == len(groups) else None
        yield replace(whole, ranges=parts, start_offset=parts[0].start_offset, damage=damage)
    if offsets.damage is not None and not groups:
        yield replace(whole, damage=offsets.damage)


def ranges_of(
    log: PartitionLog, first_offset: int, end_offset: int | None, *, strict: bool
) -> Iterator[LogRange]:
    """Yield the parts of segments that hold a range of offsets.

    With `strict`, damage that hides where they begin or end is an error; else more is read.
    """
    bases = np.array([segment.base_offset for segment in log.segments], np.int64)
    first = max(int(np.searchsorted(bases, first_offset, "right")) - 1, 0)
    for number, segment in enumerate(log.segments[first:], first):
        following = int(bases[number + 1]) if number + 1 < len(bases) else None
        if end_offset is not None and number > first and segment.base_offset >= end_offset:
            return
        start, end = 0, segment.file.log_size_bytes
        if first_offset > segment.base_offset:
            start = _start_of(segment, first_offset, strict=strict)
        if end_offset is not None and (following is None or end_offset < following):
            end = _end_of(segment, end_offset, strict=strict)
        if start < end:
            base = segment.base_offset
            yield LogRange(
                segment.file, start, end, max(first_offset, base), base, end_offset=following
            )


def _start_of(segment: LogSegment, offset: int, *, strict: bool) -> int:
    """Return where the batch begins that holds an offset, or comes next."""
    try:
        batch = segment.offset_to_position(offset)
    except CorruptLogError:
        if strict:
            raise
        # Damage hides it: the read passes over what is damaged, and filters the rest.
        return 0
    return segment.file.log_size_bytes if batch is None else batch.position


def _end_of(segment: LogSegment, offset: int, *, strict: bool) -> int:
    """Return where the batches end that hold records below an offset.

    Where the first batch above it is out of order, others below it may follow.
    """
    try:
        batch = segment.offset_to_position(offset)
    except CorruptLogError:
        if strict:
            raise
        return segment.file.log_size_bytes
    if batch is None or segment.goes_back_after(batch):
        return segment.file.log_size_bytes
    # It may also hold records before that offset.
    return batch.position + batch.size if batch.offset < offset else batch.position


def split_ranges(
    log: PartitionLog, ranges: Sequence[LogRange], max_bytes: int | None, *, strict: bool
) -> Iterator[tuple[LogRange, ...]]:
    """Yield ranges in groups of no more bytes than that, as far as batches allow."""
    group: list[LogRange] = []
    room = max_bytes or 0
    for part in ranges if max_bytes is None else _cut(log, ranges, max_bytes, strict=strict):
        if max_bytes is not None and group and part.size_bytes > room:
            yield tuple(group)
            group, room = [], max_bytes
        group.append(part)
        room -= part.size_bytes
    if group:
        yield tuple(group)


def _cut(
    log: PartitionLog, ranges: Sequence[LogRange], max_bytes: int, *, strict: bool
) -> Iterator[LogRange]:
    """Yield ranges of about equal sizes, none much larger than that."""
    segments = {segment.base_offset: segment for segment in log.segments}
    for part in ranges:
        pieces = -(-part.size_bytes // max_bytes)
        starts = [(part.start_bytes, part.start_offset)]
        if pieces > 1:
            wanted = part.start_bytes + part.size_bytes * np.arange(1, pieces) // pieces
            segment = segments[part.segment.base_offset]
            starts += [
                found
                for found in _batch_starts(segment, wanted, strict=strict)
                if part.start_bytes < found[0] < part.end_bytes
            ]
        ends = [*starts[1:], (part.end_bytes, part.end_offset)]
        for (start, offset), (end, end_offset) in zip(starts, ends, strict=True):
            least = part.least_offset if start == part.start_bytes else offset
            yield LogRange(part.segment, start, end, offset, least, end_offset)


def _batch_starts(segment: LogSegment, wanted: Longs, *, strict: bool) -> list[tuple[int, int]]:
    """Return position and offset of batches near some positions, ascending.

    They follow the batches that index entries lead to: the offset of an entry is a batch's last.
    """
    offsets, positions = segment.indexes.offset_index.read_entries()
    if not len(positions):
        return []
    entries = np.unique(np.searchsorted(positions, wanted).clip(0, len(positions) - 1))
    starts: list[tuple[int, int]] = []
    for offset in offsets[entries].tolist():
        # The entry is compared with the log, and the batch that it ends with is found.
        try:
            indexed, batch = map(segment.offset_to_position, (offset, offset + 1))
        except CorruptLogError:
            if strict:
                raise
            # Damage hides it: the split before is larger, and the read passes over the damage.
            continue
        if batch is None or indexed is None:
            break
        if indexed.position < batch.position and (not starts or starts[-1][0] < batch.position):
            starts.append((batch.position, offset + 1))
    return starts
