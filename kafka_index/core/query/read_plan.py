"""The plan of a read: splits, which consist of byte ranges of segments.

A plan is made from file listings and indexes. Plans are picklable: the driver makes the plan, and
tasks read its splits. A time is resolved to the offset of the first record at or after the time, as
in Spark's Kafka source. Byte ranges are found with index files. Each index entry is compared with
the log when it is used.
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
from kafka_index.core.log.choices import Isolation, OnDamage
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
from kafka_index.core.query.missing_records import GapFinder, ReadPartition
from kafka_index.core.query.range_scan import LogRange, find_damaged_end
from kafka_index.core.query.settings import ReadSettings

if TYPE_CHECKING:
    from kafka_index.core.log.read.transactions import AbortedTransactions, TransactionBounds


@dataclass(frozen=True, slots=True)
class RecordSplit:
    """Records of one partition that one task reads; first and last offset are inclusive.

    Attributes
    ----------
    ranges : tuple of LogRange
        Byte ranges of the segments that contain the records, in order.
    aborted : AbortedTransactions, optional
        Aborted transactions that overlap with the records, if the settings require them.
    start_offset : int
        The offset at which the previous split of the partition ends.
    first_base_offset : int, optional
        If batches are returned as rows, batches with lower base offsets belong to the previous
        split.
    reported_damage : (str, int), optional
        If the read is resumed: path and byte position of the last reported corruption.
    damage : CorruptLogError, optional
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
    reported_damage: tuple[str, int] | None = None
    damage: CorruptLogError | None = None

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    @property
    def size_bytes(self) -> int:
        return sum(log_range.size_bytes for log_range in self.ranges)

    @property
    def directories(self) -> set[str]:
        return {log_range.segment.partition_directory for log_range in self.ranges}


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """The splits of a read, sorted by topic, partition and offset, and the settings.

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
    """The offsets of a partition to read.

    The end is exclusive, None for the end of the log. `aborted` and `first_base_offset` are as in
    `RecordSplit`. `damage` is the corruption that ends the range, if any.
    """

    first_offset: int
    end_offset: int | None
    aborted: AbortedTransactions | None = None
    first_base_offset: int | None = None
    damage: CorruptLogError | None = None

    def restrict(self, first_offset: int, last_offset: int) -> OffsetRange:
        """Restrict the range to offsets from `first_offset` to `last_offset`, both inclusive."""
        end_offset, damage = self.end_offset, self.damage
        if last_offset < INT64_MAX and (end_offset is None or last_offset + 1 < end_offset):
            end_offset, damage = last_offset + 1, None
        return replace(
            self,
            first_offset=max(self.first_offset, first_offset),
            end_offset=end_offset,
            damage=damage,
        )


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
    `max_split_records` limits the number of offsets in a split. `within` is a first and a last
    offset, both inclusive, and further restricts the bounds.
    """
    offsets = resolve_range(log, bounds, settings)
    if within is not None:
        offsets = offsets.restrict(*within)
    ranges = [offsets]
    if max_split_records is not None:
        ranges = _divide_range(log, offsets, max_split_records)
    for offset_range in ranges:
        yield from split_range(log, offset_range, settings, max_split_bytes=max_split_bytes)


def read_partition(
    files: PartitionFiles, bounds: ReadBounds, splits: Sequence[RecordSplit]
) -> ReadPartition | None:
    """Return the range of offsets that the splits of a partition should read, None if empty."""
    has_default_start, has_default_end = (
        bounds.start == Bound(EARLIEST),
        bounds.end == Bound(LATEST),
    )
    if not splits:
        return ReadPartition(files) if has_default_start and has_default_end else None
    first_offset, last_offset = splits[0].first_offset, splits[-1].last_offset
    ranges = splits[-1].ranges
    last_range = ranges[-1] if ranges else None
    reaches_log_end = last_range is None or (
        last_range.segment == files.segments[-1]
        and last_range.end_bytes >= last_range.segment.log_size_bytes
    )
    ends_open = last_offset == INT64_MAX or (has_default_end and reaches_log_end)
    return ReadPartition(
        files,
        None if has_default_start and first_offset <= files.log_start_offset else first_offset,
        None if ends_open else last_offset + 1,
        has_later_batches=not reaches_log_end,
    )


def read_partition_of_split(files: PartitionFiles, split: RecordSplit) -> ReadPartition:
    """Return the range of offsets that a non-empty split should read, with its segments."""
    first_range, last_range = split.ranges[0], split.ranges[-1]
    starts_at_log_start = first_range.segment == files.segments[0] and first_range.start_bytes == 0
    starts_at_log_start &= split.first_offset <= files.log_start_offset
    end_offset = last_range.end_offset
    if end_offset is None and last_range.end_bytes < last_range.segment.log_size_bytes:
        end_offset = INT64_MAX
    if end_offset is not None and split.last_offset < end_offset:
        end_offset = split.last_offset + 1
    first_offset = None if starts_at_log_start else max(split.first_offset, split.start_offset)
    split_files = replace(files, segments=tuple(log_range.segment for log_range in split.ranges))
    return ReadPartition(
        split_files, first_offset, end_offset, has_later_batches=end_offset is not None
    )


def _divide_range(log: PartitionLog, offsets: OffsetRange, max_records: int) -> list[OffsetRange]:
    """Divide a range of offsets into equal ranges, like Spark's ``KafkaOffsetRangeCalculator``."""
    first_offset = offsets.first_offset
    end_offset = log.end_offset if offsets.end_offset is None else offsets.end_offset
    count = -(-(end_offset - first_offset) // max_records)
    if count < 2:
        return [offsets]
    bounds = [
        first_offset + (end_offset - first_offset) * number // count for number in range(count + 1)
    ]
    return [
        replace(
            offsets,
            first_offset=range_start,
            end_offset=offsets.end_offset if range_end == end_offset else range_end,
            first_base_offset=range_start if range_start > first_offset else None,
            damage=offsets.damage if range_end == end_offset else None,
        )
        for range_start, range_end in pairwise(bounds)
    ]


def resolve_range(log: PartitionLog, bounds: ReadBounds, settings: ReadSettings) -> OffsetRange:
    """Resolve bounds and isolation level to a range of offsets.

    If the end offset is at or before the first offset, the range is empty.
    """
    first_offset, end_offset = resolve_bounds(log, bounds)
    aborted = damage = None
    if settings.isolation is Isolation.READ_COMMITTED or "is_aborted" in settings.columns:
        last_offset = None if end_offset is None else end_offset - 1
        transactions = _read_transactions(log, first_offset, last_offset)
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
        # Use the resolved start: a requested start below the log start is never after the end.
        log_end = log.end_offset if end_offset is None else end_offset
        refuse_start_after_end(log, bounds, first_offset, log_end)
    return OffsetRange(first_offset, end_offset, aborted, damage=damage)


def _read_transactions(
    log: PartitionLog, first_offset: int, last_offset: int | None
) -> TransactionBounds:
    """Return transactions and last stable offset, for a corrupt log up to the corruption."""
    from kafka_index.core.log.read.transactions import read_transactions  # noqa: PLC0415, slow to import

    damaged = find_damaged_end(log)
    if damaged is None:
        return read_transactions(log.files, first_offset, log.end_offset, last_offset)
    high_watermark = log.files.high_watermark
    end_offset = (
        damaged.valid_end_offset
        if high_watermark is None
        else min(damaged.valid_end_offset, high_watermark)
    )
    transactions = read_transactions(log.files, first_offset, end_offset, last_offset)
    is_hidden = high_watermark is None or high_watermark > damaged.valid_end_offset
    return (
        replace(transactions, damage=damaged.error)
        if is_hidden and not transactions.damage
        else transactions
    )


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
        ranges = list(find_ranges(log, first_offset, end_offset, strict=strict))
    template = RecordSplit(
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
    for number, group in enumerate(groups, 1):
        damage = offsets.damage if number == len(groups) else None
        yield replace(template, ranges=group, start_offset=group[0].start_offset, damage=damage)
    if offsets.damage is not None and not groups:
        yield replace(template, damage=offsets.damage)


def find_ranges(
    log: PartitionLog, first_offset: int, end_offset: int | None, *, strict: bool
) -> Iterator[LogRange]:
    """Yield the byte ranges of segments that contain a range of offsets.

    If a corruption prevents finding the start or end position, `strict` raises the error.
    Otherwise, the range extends to the start or end of the segment.
    """
    bases = np.array([segment.base_offset for segment in log.segments], np.int64)
    first_segment = max(int(np.searchsorted(bases, first_offset, "right")) - 1, 0)
    for number, segment in enumerate(log.segments[first_segment:], first_segment):
        next_base = int(bases[number + 1]) if number + 1 < len(bases) else None
        if end_offset is not None and number > first_segment and segment.base_offset >= end_offset:
            return
        start_bytes, end_bytes = 0, segment.file.log_size_bytes
        if first_offset > segment.base_offset:
            start_bytes = _find_start(segment, first_offset, strict=strict)
        if end_offset is not None and (next_base is None or end_offset < next_base):
            end_bytes = _find_end(segment, end_offset, strict=strict)
        if start_bytes < end_bytes:
            base_offset = segment.base_offset
            yield LogRange(
                segment.file,
                start_bytes,
                end_bytes,
                max(first_offset, base_offset),
                base_offset,
                end_offset=next_base,
            )


def _find_start(segment: LogSegment, offset: int, *, strict: bool) -> int:
    """Return the position of the batch that contains an offset, or of the next batch."""
    try:
        batch = segment.offset_to_position(offset)
    except CorruptLogError:
        if strict:
            raise
        # Read from the start of the segment: the reader skips the corruption and drops records
        # before the offset.
        return 0
    return segment.file.log_size_bytes if batch is None else batch.position


def _find_end(segment: LogSegment, offset: int, *, strict: bool) -> int:
    """Return the position after the last batch that may contain records below an offset.

    If the next batch is out of order, later batches may also contain records below the offset.
    """
    try:
        batch = segment.offset_to_position(offset)
    except CorruptLogError:
        if strict:
            raise
        return segment.file.log_size_bytes
    if batch is None or segment.is_followed_by_overlap(batch):
        return segment.file.log_size_bytes
    # A batch that contains the offset may also contain lower offsets.
    return batch.position + batch.size if batch.offset < offset else batch.position


def split_ranges(
    log: PartitionLog, ranges: Sequence[LogRange], max_bytes: int | None, *, strict: bool
) -> Iterator[tuple[LogRange, ...]]:
    """Yield groups of log ranges with about `max_bytes` or less, divided between batches."""
    if max_bytes is None:
        if ranges:
            yield tuple(ranges)
        return
    group: list[LogRange] = []
    free_bytes = max_bytes
    for log_range in _split_large(log, ranges, max_bytes, strict=strict):
        if group and log_range.size_bytes > free_bytes:
            yield tuple(group)
            group, free_bytes = [], max_bytes
        group.append(log_range)
        free_bytes -= log_range.size_bytes
    if group:
        yield tuple(group)


def _split_large(
    log: PartitionLog, ranges: Sequence[LogRange], max_bytes: int, *, strict: bool
) -> Iterator[LogRange]:
    """Divide log ranges into ranges of about equal size, none much larger than `max_bytes`."""
    segments = {segment.base_offset: segment for segment in log.segments}
    for log_range in ranges:
        count = -(-log_range.size_bytes // max_bytes)
        starts = [(log_range.start_bytes, log_range.start_offset)]
        if count > 1:
            targets = log_range.start_bytes + log_range.size_bytes * np.arange(1, count) // count
            segment = segments[log_range.segment.base_offset]
            starts += [
                batch_start
                for batch_start in _batch_starts(segment, targets, strict=strict)
                if log_range.start_bytes < batch_start[0] < log_range.end_bytes
            ]
        ends = [*starts[1:], (log_range.end_bytes, log_range.end_offset)]
        for (start_bytes, offset), (end_bytes, end_offset) in zip(starts, ends, strict=True):
            min_offset = log_range.min_offset if start_bytes == log_range.start_bytes else offset
            yield LogRange(
                log_range.segment, start_bytes, end_bytes, offset, min_offset, end_offset
            )


def _batch_starts(
    segment: LogSegment, target_positions: Longs, *, strict: bool
) -> list[tuple[int, int]]:
    """Return the ascending positions and start offsets of batches near target positions.

    Each of these batches follows the batch of an index entry, because the offset of an index entry
    is the last offset of its batch.
    """
    offsets, positions = segment.indexes.offset_index.read_entries()
    if not len(positions):
        return []
    entries = np.unique(np.searchsorted(positions, target_positions).clip(0, len(positions) - 1))
    starts: list[tuple[int, int]] = []
    for offset in offsets[entries].tolist():
        # Find the batch with the entry's offset, and the next batch. Finding them compares the
        # entry with the log.
        try:
            indexed, batch = map(segment.offset_to_position, (offset, offset + 1))
        except CorruptLogError:
            if strict:
                raise
            # Do not divide here: the previous range extends beyond the corruption, and its read
            # skips the corruption.
            continue
        if batch is None or indexed is None:
            break
        if indexed.position < batch.position and (not starts or starts[-1][0] < batch.position):
            starts.append((batch.position, offset + 1))
    return starts
