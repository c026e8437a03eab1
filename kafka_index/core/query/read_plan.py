"""The plan of a read: byte ranges of segments, in splits that can be read anywhere.

A plan is made from listings and indexes, and is picklable: a driver makes it and tasks read its
splits. Its bounds are offsets: a time is resolved to the first record at or after it, as in Spark's
Kafka source. Byte ranges come from indexes, whose entries are compared with the log on use.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from kafka_index.core.errors import CorruptLogError
from kafka_index.core.format.integers import INT64_MAX
from kafka_index.core.format.longs import Longs
from kafka_index.core.format.names import TopicPartition
from kafka_index.core.log.read.log_segment import LogSegment
from kafka_index.core.log.read.partition_files import PartitionFiles
from kafka_index.core.log.read.partition_log import PartitionLog
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

if TYPE_CHECKING:
    from kafka_index.core.log.read.transactions import AbortedTransactions, TransactionBounds


@dataclass(frozen=True, slots=True)
class RecordSplit:
    """Records of one partition that are read together; first and last offset are inclusive.

    Attributes
    ----------
    ranges
        Byte ranges of segments with the records, in order.
    aborted
        Transactions that overlap with them, if isolation requires it.
    start_offset
        Where the offsets of a partition are divided between splits.
    first_base_offset
        Batches with a lower base offset belong, as rows of batches, to the previous split.
    passed_damage
        Path and byte position of the last reported corruption, if the read is resumed.
    damage
        A corruption after the ranges that ends the read.
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
        return TopicPartition(self.topic, self.partition)

    @property
    def size_bytes(self) -> int:
        return sum(part.size_bytes for part in self.ranges)

    @property
    def directories(self) -> set[str]:
        return {part.segment.partition_directory for part in self.ranges}


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """The splits of a read by topic, partition and offset, and its settings.

    `partitions` includes partitions without splits. `finder` finds missing offsets after the read.
    """

    splits: tuple[RecordSplit, ...]
    settings: ReadSettings
    partitions: tuple[ReadPartition, ...] = ()
    finder: GapFinder | None = None

    @property
    def size_bytes(self) -> int:
        return sum(split.size_bytes for split in self.splits)


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """The offsets of a partition to read, the end exclusive, None for the end of the log.

    `aborted` and `first_base_offset` are as in `RecordSplit`. `damage` is the corruption that ends
    the range, if any.
    """

    first_offset: int
    end_offset: int | None
    aborted: AbortedTransactions | None = None
    first_base_offset: int | None = None
    damage: CorruptLogError | None = None

    def within(self, least: int, most: int) -> OffsetRange:
        """Restrict the range to other offsets, both ends inclusive."""
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

    A split larger than `max_split_bytes` is divided at batches to which index entries point.
    `max_split_records` limits its offsets, and thereby its records. `within` are the first and last
    requested offset, both inclusive, in addition to the bounds.
    """
    offsets = resolve_range(log, bounds, settings)
    if within is not None:
        offsets = offsets.within(*within)
    parts = [offsets]
    if max_split_records is not None:
        parts = _divide(log, offsets, max_split_records)
    for part in parts:
        yield from split_range(log, part, settings, max_split_bytes=max_split_bytes)


def read_partition(
    files: PartitionFiles, bounds: ReadBounds, splits: Sequence[RecordSplit]
) -> ReadPartition | None:
    """Return the offsets that the splits of a partition should read, None if there are none."""
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
    """Return the offsets that a non-empty split should read, with its own segments only."""
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
    """Divide a range into equal ranges, like Spark's ``KafkaOffsetRangeCalculator``."""
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
    """Resolve bounds and isolation to offsets; raises the errors of `plan_partition`.

    If the end is at or before the first offset, nothing is read.
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
        # A start below the log start is never after the end.
        end = log.end_offset if end_offset is None else end_offset
        refuse_start_after_end(log, bounds, first_offset, end)
    return OffsetRange(first_offset, end_offset, aborted, damage=damage)


def _transactions(
    log: PartitionLog, first_offset: int, last_offset: int | None
) -> TransactionBounds:
    """Return the transactions that isolation requires; in a corrupt log, before the corruption."""
    from kafka_index.core.log.read.transactions import read_transactions  # noqa: PLC0415, slow to import

    damaged = damaged_end(log)
    if damaged is None:
        return read_transactions(log.files, first_offset, log.end_offset, last_offset)
    bound = log.files.high_watermark
    end = damaged.valid_end_offset if bound is None else min(damaged.valid_end_offset, bound)
    found = read_transactions(log.files, first_offset, end, last_offset)
    is_hidden = bound is None or bound > damaged.valid_end_offset
    return replace(found, damage=damaged.error) if is_hidden and not found.damage else found


def split_range(
    log: PartitionLog,
    offsets: OffsetRange,
    settings: ReadSettings,
    *,
    max_split_bytes: int | None = None,
) -> Iterator[RecordSplit]:
    """Yield the splits of a range of offsets; for the parameters, see `plan_partition`."""
    first_offset, end_offset = offsets.first_offset, offsets.end_offset
    last_offset = INT64_MAX if end_offset is None else end_offset - 1
    if last_offset < first_offset and offsets.damage is None:
        return
    aborted = offsets.aborted
    if aborted is not None:
        aborted = aborted.overlapping(first_offset, last_offset)
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
    """Yield the byte ranges of segments that contain a range of offsets.

    If a corruption precedes their start or end, `strict` raises an error; otherwise more is read.
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
    """Return the position of the batch that contains an offset, or of the next batch."""
    try:
        batch = segment.offset_to_position(offset)
    except CorruptLogError:
        if strict:
            raise
        # After a corruption: read more, skip the corruption, and filter the records.
        return 0
    return segment.file.log_size_bytes if batch is None else batch.position


def _end_of(segment: LogSegment, offset: int, *, strict: bool) -> int:
    """Return the position after all batches with records below an offset.

    If the first batch above it is out of order, batches below it may follow.
    """
    try:
        batch = segment.offset_to_position(offset)
    except CorruptLogError:
        if strict:
            raise
        return segment.file.log_size_bytes
    if batch is None or segment.is_followed_by_overlap(batch):
        return segment.file.log_size_bytes
    # The split may also contain records before that offset.
    return batch.position + batch.size if batch.offset < offset else batch.position


def split_ranges(
    log: PartitionLog, ranges: Sequence[LogRange], max_bytes: int | None, *, strict: bool
) -> Iterator[tuple[LogRange, ...]]:
    """Yield groups of ranges with at most `max_bytes`, if batches allow."""
    if max_bytes is None:
        if ranges:
            yield tuple(ranges)
        return
    group: list[LogRange] = []
    room = max_bytes
    for part in _split_large(log, ranges, max_bytes, strict=strict):
        if group and part.size_bytes > room:
            yield tuple(group)
            group, room = [], max_bytes
        group.append(part)
        room -= part.size_bytes
    if group:
        yield tuple(group)


def _split_large(
    log: PartitionLog, ranges: Sequence[LogRange], max_bytes: int, *, strict: bool
) -> Iterator[LogRange]:
    """Yield ranges of about equal size, none much larger than `max_bytes`."""
    segments = {segment.base_offset: segment for segment in log.segments}
    for part in ranges:
        count = -(-part.size_bytes // max_bytes)
        starts = [(part.start_bytes, part.start_offset)]
        if count > 1:
            wanted = part.start_bytes + part.size_bytes * np.arange(1, count) // count
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

    They follow the batches of index entries, because an entry has the last offset of its batch.
    """
    offsets, positions = segment.indexes.offset_index.read_entries()
    if not len(positions):
        return []
    entries = np.unique(np.searchsorted(positions, wanted).clip(0, len(positions) - 1))
    starts: list[tuple[int, int]] = []
    for offset in offsets[entries].tolist():
        # Compare the entry with the log, and find the batch that ends with its offset.
        try:
            indexed, batch = map(segment.offset_to_position, (offset, offset + 1))
        except CorruptLogError:
            if strict:
                raise
            # After a corruption, the previous split is extended, and skips it.
            continue
        if batch is None or indexed is None:
            break
        if indexed.position < batch.position and (not starts or starts[-1][0] < batch.position):
            starts.append((batch.position, offset + 1))
    return starts
