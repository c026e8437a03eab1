"""Mergeable counts of a part of one replica, from its batch headers or its records."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from kafka_index.commands.stats.sketches import HotKeys, KeySample, hash_bytes, hash_longs
from kafka_index.core.errors import CorruptLogError, Faults, KafkaIndexError, without_frames
from kafka_index.core.format.integers import INT64_MAX
from kafka_index.core.format.longs import Longs
from kafka_index.core.format.records import (
    RECORD_BATCH_OVERHEAD_BYTES,
    TRANSACTIONAL_MASK,
)
from kafka_index.core.kernels.batch_counts import (
    NOT_COUNTED,
    SUM_FIRST_TIME,
    SUM_LAST_TIME,
    SUM_PLAIN_BYTES,
    SUM_RECORDS,
    SUM_TRANSACTIONAL_RECORDS,
    count_batches,
    count_records,
    index_groups,
    new_sums,
)
from kafka_index.core.kernels.headers import CONTROL_MESSAGE, HEADER_BASE_TIMESTAMP
from kafka_index.core.kernels.record_columns import PLACE_ADDRESS, PLACE_COUNT, PLACE_END, PLACE_ROW
from kafka_index.core.log.choices import Isolation, OnDamage
from kafka_index.core.log.missing_offsets import ScannedLog
from kafka_index.core.log.read.partition_files import PartitionFiles
from kafka_index.core.log.read.partition_log import PartitionLog
from kafka_index.core.log.read.transactions import AbortedTransactions
from kafka_index.core.log.scan.log_offsets import are_compressed_messages
from kafka_index.core.logdir.partition_files import SegmentFile
from kafka_index.core.query.bounds import ReadBounds
from kafka_index.core.query.range_scan import LogRange, RangeScan
from kafka_index.core.query.read_plan import resolve_range
from kafka_index.core.query.settings import ReadSettings
from kafka_index.core.records.batch_table import BatchColumns, WindowBatches
from kafka_index.core.records.decompression import shared_budget
from kafka_index.core.records.record_decoder import (
    BatchDamage,
    RecordChunk,
    RecordDecoder,
    RecordParts,
)
from kafka_index.core.schema.wire import KeyCounts, find_frames

_INT64_MIN = -INT64_MAX - 1
#: Sizes from 2^(n - 1) to 2^n - 1 are in bin n, size 0 in bin 0.
SIZE_BINS = 65
#: The maximum number of hours or days with separate counts. Above it, the earliest ones are added
#: to the counts of batches without a timestamp.
MAX_GROUPS = 50_000
_FIRST_GROUPS = 64


@dataclass(frozen=True, slots=True)
class StatsSettings:
    """The settings of a count; small, and picklable.

    `from_ms` and `to_ms` bound the largest timestamps of batches, None for no bound. `group_ms` is
    the length of an hour or a day, 0 for one group of all batches. `hot_keys` is the number of hot
    keys, None if they are not counted.
    """

    from_ms: int | None = None
    to_ms: int | None = None
    group_ms: int = 0
    sizes: bool = False
    hot_keys: int | None = None
    compacts: bool = False
    max_decompressed_bytes: int = 0

    @property
    def parts(self) -> RecordParts:
        """The parts of records that are decoded; none if only headers are read."""
        parts = RecordParts.NONE
        if self.sizes or self.compacts:
            parts |= RecordParts.ALL
        if self.reads_keys:
            parts |= RecordParts.KEYS
        return parts

    @property
    def reads_keys(self) -> bool:
        """Whether distinct keys are counted."""
        return self.hot_keys is not None or self.compacts


class SegmentCounts(NamedTuple):
    """Counts of a segment for the prediction of retention; a largest timestamp of -1 means none."""

    base_offset: int
    size_bytes: int
    records: int
    largest_timestamp_ms: int
    modified_ms: int

    @property
    def retention_time_ms(self) -> int:
        """The time of the segment (``LogSegment.largestTimestamp``)."""
        return self.largest_timestamp_ms if self.largest_timestamp_ms >= 0 else self.modified_ms


class TimeSums:
    """Sums of batches by hour or day; the time of batches without a timestamp is -1."""

    def __init__(self, group_ms: int) -> None:
        self._group_ms = group_ms
        self._times = np.zeros(_FIRST_GROUPS, np.int64)
        self._sums = new_sums(_FIRST_GROUPS)
        self._slots = np.full(2 * _FIRST_GROUPS, -1, np.int64)
        # Buffers for groups and producer IDs, reused because allocation takes as long as filling.
        self._columns = np.empty((2, 0), np.int64)
        self.used = 0

    @property
    def times(self) -> Longs:
        """The start of the hour or day of each group."""
        return self._times[: self.used]

    @property
    def sums(self) -> NDArray[np.int64]:
        """The sums, a row for each group."""
        return self._sums[: self.used]

    def add(
        self, source: WindowBatches, bounds: tuple[int, int, int], *, by_headers: bool
    ) -> tuple[Longs, Longs, int]:
        """Count batches.

        `bounds` are the log start offset, and the first and last timestamp of the batches to count.
        Returns the group number of each batch (valid until the next call), the producer IDs, and
        the number of batches whose records cannot be counted from their headers.
        """
        rows = source.batches.rows
        if rows > self._columns.shape[1]:
            self._columns = np.empty((2, rows), np.int64)
        groups, producers = self._columns[0, :rows], self._columns[1]
        row = uncountable = 0
        producer_ids: list[Longs] = []
        while row < rows:
            row, self.used, count, uncountable_batches = count_batches(
                source.batches,
                *bounds,
                self._group_ms,
                self._times,
                self._slots,
                self._sums,
                self.used,
                row,
                groups,
                producers,
                by_headers,
            )
            uncountable += uncountable_batches
            producer_ids.append(producers[:count].copy())
            if row < rows and (new_numbers := self._grow()) is not None:
                counted = groups[:row] != NOT_COUNTED
                groups[:row][counted] = new_numbers[groups[:row][counted]]
        return groups, np.concatenate(producer_ids) if producer_ids else producers[:0], uncountable

    def _grow(self) -> Longs | None:
        """Reserve space for another hour or day; return the new group numbers if they change."""
        if len(self._times) >= MAX_GROUPS:
            return self._merge_earlier_times()
        self._times = np.concatenate((self._times, np.zeros_like(self._times)))
        self._sums = np.concatenate((self._sums, new_sums(len(self._sums))))
        self._index_times()
        return None

    def _index_times(self) -> None:
        self._slots = np.full(2 * len(self._times), -1, np.int64)
        index_groups(self._times, self.used, self._slots, self._group_ms)

    def _merge_earlier_times(self) -> Longs:
        """Add the earlier half of the times to the batches without a timestamp.

        Returns the new numbers of the groups.
        """
        times, sums = self.times.copy(), self.sums.copy()
        times[times < np.sort(times)[len(times) // 2]] = -1
        self.used = 0
        return self._add_groups(times, sums)

    def merge(self, part_sums: TimeSums) -> None:
        """Add the sums of another part or replica."""
        self._add_groups(part_sums.times, part_sums.sums)
        while self.used > MAX_GROUPS:
            self._merge_earlier_times()

    def _add_groups(self, times: Longs, sums: NDArray[np.int64]) -> Longs:
        """Add groups to the existing groups; return the numbers of the added groups."""
        all_times = np.concatenate((self.times, times))
        all_sums = np.concatenate((self.sums, sums))
        distinct_times, inverse = np.unique(all_times, return_inverse=True)
        size = max(len(self._times), 1 << max(len(distinct_times) - 1, 0).bit_length())
        merged_sums = new_sums(size)
        np.add.at(merged_sums, inverse, np.where(_IS_SUM, all_sums, 0))
        merged_sums[:, _TIMES] = new_sums(size)[:, _TIMES]
        np.minimum.at(merged_sums[:, SUM_FIRST_TIME], inverse, all_sums[:, SUM_FIRST_TIME])
        np.maximum.at(merged_sums[:, SUM_LAST_TIME], inverse, all_sums[:, SUM_LAST_TIME])
        self._times = np.zeros(size, np.int64)
        self._times[: len(distinct_times)] = distinct_times
        self._sums, used_before, self.used = merged_sums, self.used, len(distinct_times)
        self._index_times()
        return np.asarray(inverse[used_before:], np.int64)

    def __getstate__(self) -> tuple[int, Longs, NDArray[np.int64]]:
        # Unused rows are not pickled.
        return self._group_ms, self.times.copy(), self.sums.copy()

    def __setstate__(self, state: tuple[int, Longs, NDArray[np.int64]]) -> None:
        self.__init__(state[0])  # type: ignore[misc]
        self._add_groups(*state[1:])


_TIMES = [SUM_FIRST_TIME, SUM_LAST_TIME]
_IS_SUM = ~np.isin(np.arange(new_sums(0).shape[1]), _TIMES)


@dataclass(slots=True)
class Compaction:
    """The batches and records that a log cleaner reads; `plain_bytes` are uncompressed bytes."""

    batches: int = 0
    size_bytes: int = 0
    records: int = 0
    plain_bytes: int = 0


@dataclass(slots=True)
class ReplicaCounts:
    """The counts of a replica, or of a part of it.

    Picklable, and of bounded size except for the segments. `number` is the number of the replica
    in the run. `deleted_bytes` is the size of the batches before the log start offset. `epoch` is
    the leader epoch of the last batch. `faults` has the skipped ranges.
    """

    number: int
    totals: TimeSums
    producers: KeySample = field(default_factory=KeySample)
    end_offset: int = -1
    epoch: int = -1
    deleted_bytes: int = 0
    key_sizes: Longs = field(default_factory=lambda: np.zeros(SIZE_BINS, np.int64))
    value_sizes: Longs = field(default_factory=lambda: np.zeros(SIZE_BINS, np.int64))
    schema_ids: KeyCounts = field(default_factory=KeyCounts)
    keys: KeySample = field(default_factory=KeySample)
    hot: HotKeys | None = None
    compaction: Compaction = field(default_factory=Compaction)
    segments: list[SegmentCounts] = field(default_factory=list)
    faults: Faults = field(default_factory=Faults)
    seen: list[ScannedLog] = field(default_factory=list)

    @classmethod
    def empty(cls, number: int, settings: StatsSettings) -> ReplicaCounts:
        """Return counts of 0."""
        hot = None if settings.hot_keys is None else HotKeys(settings.hot_keys)
        return cls(number, TimeSums(settings.group_ms), hot=hot)

    def merge(self, part_counts: ReplicaCounts) -> None:
        """Add the counts of another part, or of another replica."""
        self.totals.merge(part_counts.totals)
        self.producers.merge(part_counts.producers)
        if part_counts.end_offset > self.end_offset:
            self.end_offset, self.epoch = part_counts.end_offset, part_counts.epoch
        self.deleted_bytes += part_counts.deleted_bytes
        self.key_sizes = self.key_sizes + part_counts.key_sizes
        self.value_sizes = self.value_sizes + part_counts.value_sizes
        self.schema_ids.add(part_counts.schema_ids)
        self.keys.merge(part_counts.keys)
        if self.hot is not None and part_counts.hot is not None:
            self.hot.merge(part_counts.hot)
        self.segments += part_counts.segments
        self.seen += part_counts.seen
        self.faults = merge_faults(self.faults, part_counts.faults)
        for name in Compaction.__dataclass_fields__:
            total = getattr(self.compaction, name) + getattr(part_counts.compaction, name)
            setattr(self.compaction, name, total)


def merge_faults(earlier: Faults, later: Faults) -> Faults:
    merged = Faults()
    merged.add(*earlier.first, *later.first)
    merged.total = earlier.total + later.total
    merged.retriable = earlier.retriable | later.retriable
    return merged


@dataclass(frozen=True, slots=True)
class ReplicaPart:
    """Successive segments of a replica, counted by one task; small, and picklable.

    `end_offset` is the base offset of the segment after the part, None for a log's last part.
    """

    number: int
    files: PartitionFiles
    end_offset: int | None

    @property
    def size_bytes(self) -> int:
        """Bytes of the logs."""
        return sum(segment.log_size_bytes for segment in self.files.segments)

    @property
    def directory(self) -> str:
        """The directory of the partition."""
        return self.files.segments[0].partition_directory


def count_part(part: ReplicaPart, _attempt_id: str, *, settings: StatsSettings) -> ReplicaCounts:
    """Count the batches of a part, and its records if requested; errors are in the result."""
    counts = ReplicaCounts.empty(part.number, settings)
    cleanable = None
    if settings.compacts:
        try:
            cleanable = _Cleanable.of(part.files, settings.max_decompressed_bytes)
        except KafkaIndexError as error:
            counts.faults.add(without_frames(error))
    segments = part.files.segments
    end_offsets = [*(segment.base_offset for segment in segments[1:]), part.end_offset]
    for segment, end_offset in zip(segments, end_offsets, strict=True):
        counter = _SegmentCounter(counts, part.files, segment, end_offset, settings, cleanable)
        try:
            counter.run()
        except KafkaIndexError as error:
            counts.faults.add(without_frames(error))
            counter.scan.read_log.is_read = False
        counts.seen.append(counter.scan.read_log)
    return counts


@dataclass(frozen=True, slots=True)
class _Cleanable:
    """Selects the batches that a log cleaner reads, and those of aborted transactions among them.

    Source: ``LogCleanerManager.cleanableOffsets`` and ``CleanedTransactionMetadata``.
    """

    end_offset: int
    aborted: AbortedTransactions | None

    @classmethod
    def of(cls, files: PartitionFiles, max_decompressed_bytes: int) -> _Cleanable:
        """Read the transactions of a complete replica."""
        settings = ReadSettings(
            isolation=Isolation.READ_COMMITTED,
            on_damage=OnDamage.DROP,
            max_decompressed_bytes=max_decompressed_bytes,
        )
        with PartitionLog(files, max_decompressed_bytes=max_decompressed_bytes) as log:
            offsets = resolve_range(log, ReadBounds(), settings)
        active = files.segments[-1].base_offset
        stable = active if offsets.end_offset is None else offsets.end_offset
        return cls(min(active, stable), offsets.aborted)

    def rows(self, batches: BatchColumns) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Return masks of the batches that a cleaner reads, and that it drops as aborted."""
        is_read = batches.base_offset < self.end_offset
        if self.aborted is None:
            return is_read, np.zeros(batches.rows, np.bool_)
        return is_read, self.aborted.mask(batches) & is_read


class _SegmentCounter:
    """Counts the batches of a segment, and its records if requested."""

    def __init__(
        self,
        counts: ReplicaCounts,
        files: PartitionFiles,
        segment: SegmentFile,
        end_offset: int | None,
        settings: StatsSettings,
        cleanable: _Cleanable | None,
    ) -> None:
        self._counts, self._segment, self._settings = counts, segment, settings
        self._cleanable = cleanable
        self._start = files.log_start_offset
        budget = shared_budget(settings.max_decompressed_bytes)
        self._reads_records = bool(settings.parts)
        self._decoder = RecordDecoder(budget, settings.parts, verify_crc=True)
        base, size = segment.base_offset, segment.log_size_bytes
        self.scan = RangeScan(
            LogRange(segment, 0, size, base, base, end_offset),
            verify_crc=self._reads_records,
            decompressor=budget if self._reads_records else None,
            headers_only=not self._reads_records,
        )

    def run(self) -> None:
        """Count all batches; corrupt ranges are skipped, and added to the faults of the counts."""
        totals = self._counts.totals
        records_before = int(totals.sums[:, SUM_RECORDS].sum())
        largest = -1
        bounds = (
            self._start,
            _INT64_MIN if self._settings.from_ms is None else self._settings.from_ms,
            INT64_MAX if self._settings.to_ms is None else self._settings.to_ms - 1,
        )
        for window in self.scan.windows():
            if isinstance(window, CorruptLogError):
                self._counts.faults.add(window)
                continue
            if not window.batches.rows:
                continue
            largest = max(largest, int(window.batches.max_timestamp_ms.max()))
            groups, producers, uncountable = totals.add(
                window, bounds, by_headers=not self._reads_records
            )
            if len(producers):
                self._counts.producers.add(hash_longs(np.unique(producers)))
            self._add_offsets(window.batches)
            if self._reads_records:
                self._count_window_records(window, groups)
            elif uncountable:
                self._read_uncountable(window, groups)
        self._counts.segments.append(
            SegmentCounts(
                self._segment.base_offset,
                self._segment.log_size_bytes,
                int(totals.sums[:, SUM_RECORDS].sum()) - records_before,
                largest,
                self._segment.log_mtime_ns // 10**6,
            )
        )

    def _add_offsets(self, batches: BatchColumns) -> None:
        counts = self._counts
        end_offset = int(batches.last_offset[-1]) + 1
        if end_offset > counts.end_offset:
            counts.end_offset, counts.epoch = end_offset, int(batches.leader_epoch[-1])
        if int(batches.last_offset[0]) < self._start:
            is_before_start = batches.last_offset < self._start
            counts.deleted_bytes += int(batches.size_bytes[is_before_start].sum())

    def _read_uncountable(self, source: WindowBatches, groups: Longs) -> None:
        """Count the records of batches whose headers do not contain the number of records."""
        batches = source.batches
        is_message = batches.control_type == CONTROL_MESSAGE
        spans_start = ~is_message & (batches.base_offset < self._start) & ~batches.is_control
        is_uncountable = are_compressed_messages(batches) | spans_start
        rows = np.flatnonzero(is_uncountable & (groups != NOT_COUNTED))
        self._count_records(source.select(rows), groups[rows])

    def _count_window_records(self, source: WindowBatches, groups: Longs) -> None:
        """Count the records of the counted batches, except for control batches."""
        is_counted = groups != NOT_COUNTED
        if self._settings.parts & RecordParts.VALUES:
            self._add_overhead(source, groups, is_counted)
        rows = np.flatnonzero(is_counted & ~source.batches.is_control)
        self._count_records(source.select(rows), groups[rows])

    def _add_overhead(
        self, source: WindowBatches, groups: Longs, is_counted: NDArray[np.bool_]
    ) -> None:
        """Add bytes outside of records to the uncompressed size; count cleanable batches."""
        batches = source.batches
        overhead = np.full(batches.rows, RECORD_BATCH_OVERHEAD_BYTES, np.int64)
        overhead[batches.is_control] = batches.size_bytes[batches.is_control]
        overhead[batches.control_type == CONTROL_MESSAGE] = 0
        sums = self._counts.totals.sums
        np.add.at(sums[:, SUM_PLAIN_BYTES], groups[is_counted], overhead[is_counted])
        if self._cleanable is not None:
            is_data = is_counted & ~batches.is_control & self._cleanable.rows(batches)[0]
            self._counts.compaction.batches += int(is_data.sum())
            self._counts.compaction.size_bytes += int(batches.size_bytes[is_data].sum())

    def _count_records(self, source: WindowBatches, groups: Longs) -> None:
        batches = source.batches
        if not batches.rows:
            return
        base_timestamps = source.read_headers()[HEADER_BASE_TIMESTAMP]

        def convert(chunk: RecordChunk) -> None:
            self._add_records(chunk, source, groups, base_timestamps)

        for damage in self._decoder.decode(
            source.window,
            batches.position_bytes - source.position_bytes,
            batches.size_bytes,
            convert,
            first_offset=self._start,
        ):
            if isinstance(damage, BatchDamage):
                position = int(batches.position_bytes[damage.batch])
                self._counts.faults.add(damage.error.at(self._segment.log_path, position))

    def _add_records(
        self, chunk: RecordChunk, source: WindowBatches, groups: Longs, base_timestamps: Longs
    ) -> None:
        group = chunk.of_batches(groups)
        sums = self._counts.totals.sums
        sums[:, SUM_RECORDS] += np.bincount(group, minlength=len(sums))
        is_transactional = source.batches.attributes & TRANSACTIONAL_MASK != 0
        is_transactional &= source.batches.control_type != CONTROL_MESSAGE
        if is_transactional.any():
            transactional_groups = group[chunk.of_batches(is_transactional)]
            counts = np.bincount(transactional_groups, minlength=len(sums))
            sums[:, SUM_TRANSACTIONAL_RECORDS] += counts
        plain_bytes = None
        if chunk.keys is not None and chunk.values is not None:
            plain_bytes = np.empty(len(chunk), np.int64)
            count_records(
                chunk.first_batch,
                chunk.batch_ends,
                source.batches,
                base_timestamps,
                groups,
                chunk.offsets,
                chunk.timestamps_ms,
                _value_sizes(chunk.keys),
                _value_sizes(chunk.values),
                _header_sizes(chunk),
                sums,
                self._counts.key_sizes,
                self._counts.value_sizes,
                plain_bytes,
            )
            if self._settings.sizes:
                self._counts.schema_ids.add_frames(find_frames(chunk.values))
        if chunk.keys is not None and self._settings.reads_keys:
            self._add_keys(chunk.keys, chunk, source, plain_bytes)

    def _add_keys(
        self, keys: pa.Array, chunk: RecordChunk, source: WindowBatches, plain_bytes: Longs | None
    ) -> None:
        encoded = keys.dictionary_encode()
        key_numbers = pc.fill_null(encoded.indices, -1).to_numpy()
        has_key = key_numbers >= 0
        hashes = hash_bytes(encoded.dictionary)
        counts = self._counts
        if counts.hot is not None:
            occurrences = np.bincount(key_numbers[has_key], minlength=len(hashes))
            counts.hot.add(hashes, occurrences, encoded.dictionary)
        rows = np.full((len(hashes), 3), -1, np.int64)
        if self._cleanable is not None and plain_bytes is not None:
            is_read, is_aborted = map(chunk.of_batches, self._cleanable.rows(source.batches))
            counts.compaction.records += int(is_read.sum())
            counts.compaction.plain_bytes += int(plain_bytes[is_read].sum())
            # A cleaner keeps the last record of each key, and no record without a key.
            is_cleaned = has_key & is_read & ~is_aborted
            cleaned_keys = key_numbers[is_cleaned]
            rows[cleaned_keys, 0] = chunk.offsets[is_cleaned]
            rows[cleaned_keys, 1] = plain_bytes[is_cleaned]
            rows[cleaned_keys, 2] = chunk.of_batches(source.batches.base_offset)[is_cleaned]
        counts.keys.add(hashes, rows)


def _value_sizes(column: pa.Array) -> Longs:
    """Return the lengths of values in bytes, -1 for null."""
    lengths: Longs = pc.fill_null(pc.binary_length(column), -1).to_numpy().astype(np.int64)
    return lengths


def _header_sizes(chunk: RecordChunk) -> Longs:
    """Return the bytes of each record's headers, including the varint of the header count."""
    sizes = np.ones(len(chunk), np.int64)
    header_columns = chunk.header_places
    counts = header_columns[PLACE_COUNT]
    # The varint of the header count has up to three bytes.
    sizes[header_columns[PLACE_ROW]] += header_columns[PLACE_END] - header_columns[PLACE_ADDRESS]
    sizes[header_columns[PLACE_ROW]] += (counts >= 1 << 6).astype(np.int64) + (counts >= 1 << 13)
    return sizes


def split_replica(number: int, files: PartitionFiles, max_bytes: int) -> list[ReplicaPart]:
    """Divide a replica into parts of at most `max_bytes`, or of a single larger segment."""
    starts, size_bytes = [0], 0
    for row, segment in enumerate(files.segments):
        if row > starts[-1] and size_bytes + segment.log_size_bytes > max_bytes:
            starts.append(row)
            size_bytes = 0
        size_bytes += segment.log_size_bytes
    parts = []
    for start, end in pairwise([*starts, len(files.segments)]):
        next_segments = files.segments[end : end + 1]
        part_files = replace(files, segments=files.segments[start:end])
        end_offset = next_segments[0].base_offset if next_segments else None
        parts.append(ReplicaPart(number, part_files, end_offset))
    return parts
