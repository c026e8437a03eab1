"""The run of ``stats``: list the replicas, count them in parts, and add their counts to rows."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial

import numpy as np

from kafka_index.commands.stats.replica_counts import (
    ReplicaCounts,
    StatsSettings,
    count_part,
    merge_faults,
    split_replica,
)
from kafka_index.commands.stats.request import StatsBy, StatsRequest
from kafka_index.commands.stats.result import (
    LogStats,
    Remainder,
    StatsRow,
    fault_columns,
    make_row,
)
from kafka_index.core.errors import Faults, KafkaIndexError, without_frames
from kafka_index.core.format.integers import INT64_MAX
from kafka_index.core.format.names import TopicPartition
from kafka_index.core.format.records import RECORD_BATCH_OVERHEAD_BYTES
from kafka_index.core.format.times import now_ms
from kafka_index.core.fs.inputs import reading_inputs, skipped_texts, unread_texts
from kafka_index.core.job.engine import SILENT, Engine, JobSizes, Listener
from kafka_index.core.job.result import MissingOffsets, ReportSink
from kafka_index.core.kernels.batch_counts import SUM_BYTES, SUM_RECORDS
from kafka_index.core.log.read.partition_files import PartitionFiles
from kafka_index.core.log.retention import (
    count_before_start,
    count_beyond_size,
    count_beyond_time,
    count_expired_uploads,
)
from kafka_index.core.logdir.metadata_files import MetaProperties
from kafka_index.core.logdir.segment_table import PartitionSegments
from kafka_index.core.parameters import time_range_ms
from kafka_index.core.query.missing_records import GapFinder, ReadPartition
from kafka_index.core.query.records import ListedPartitions, list_replicas

#: The maximum bytes of a part's `.log` files: if records are read, and if only batch headers are
#: read.
_READ_PART_BYTES, _HEADERS_PART_BYTES = 256 << 20, 4 << 30
#: Approximate maximum size of the counts of a part.
_RESULT_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class Replica:
    """A copy of a partition.

    `broker` is the node ID of its broker, or its data directory if the node ID is unknown. It is
    None if all segments are in tiered storage.
    """

    number: int
    files: PartitionFiles
    finder: GapFinder
    broker: str | None

    @property
    def partition(self) -> TopicPartition:
        """The partition."""
        return TopicPartition(self.files.topic, self.files.partition)

    @property
    def directory(self) -> str:
        """The directory of the last segment, as remote segments precede local ones."""
        return self.files.segments[-1].partition_directory


def count(
    request: StatsRequest,
    engine: Engine,
    listener: Listener | None = None,
    report: ReportSink | None = None,
) -> LogStats:
    """Count the batches of a dump, and the records if the request needs records.

    Raises `InputError` if nothing is found.
    """
    from_ms, to_ms = time_range_ms(request.from_time, request.to_time)
    settings = StatsSettings(
        from_ms,
        to_ms,
        request.by.milliseconds,
        request.sizes,
        request.keys,
        request.compact,
        request.max_decompressed_bytes,
    )
    with reading_inputs(follow_links=request.follow_links) as unread:
        listings = list_replicas(request.inputs, topics=request.topics, tiered=request.tiered)
        replicas = _list_replicas(listings, request.max_decompressed_bytes)
        totals = _Totals(request, replicas)
        for replica, counts in _count_replicas(replicas, settings, engine, listener or SILENT):
            totals.add(replica, counts)
        if report is not None:
            report.add_segments(
                PartitionSegments.from_files(replica.files.segments).rows() for replica in replicas
            )
    return LogStats(
        totals.rows,
        request,
        totals.faults,
        totals.missing,
        sum(segment.log_size_bytes for replica in replicas for segment in replica.files.segments),
        tuple(dict.fromkeys(path for listing in listings for path in listing.data_directories)),
        unread_texts(unread),
        skipped_texts(tuple(entry for listing in listings for entry in listing.skipped)),
    )


def _list_replicas(listings: Sequence[ListedPartitions], max_bytes: int) -> list[Replica]:
    """Return all replicas, sorted by partition and directory."""
    finders: dict[tuple[str, ...], GapFinder] = {}
    by_directory: dict[str, tuple[PartitionFiles, GapFinder]] = {}
    for listing in listings:
        roots = listing.data_directories
        finder = finders.setdefault(roots, listing.gap_finder(max_bytes))
        for files in listing.files:
            by_directory.setdefault(files.segments[-1].partition_directory, (files, finder))
    brokers = {root: _broker_name(root) for roots in finders for root in roots}
    ordered = sorted(
        (files.topic, files.partition, directory) for directory, (files, _) in by_directory.items()
    )
    return [
        Replica(number, *by_directory[directory], brokers.get(os.path.dirname(directory)))
        for number, (_, _, directory) in enumerate(ordered)
    ]


def _broker_name(directory: str) -> str:
    """Return the node ID of a data directory; its path if the node ID is unknown."""
    with suppress(KafkaIndexError):
        properties = MetaProperties.read(directory)
        if properties is not None and properties.node_id is not None:
            return str(properties.node_id)
    return directory


def _count_replicas(
    replicas: Sequence[Replica], settings: StatsSettings, engine: Engine, listener: Listener
) -> Iterator[tuple[Replica, ReplicaCounts]]:
    """Yield the counts of each replica, once all its parts are counted."""
    max_bytes = _READ_PART_BYTES if settings.parts else _HEADERS_PART_BYTES
    if settings.compacts:
        # One task reads a complete replica: compaction depends on transactions anywhere in it.
        max_bytes = INT64_MAX
    parts = [
        part
        for replica in replicas
        for part in split_replica(replica.number, replica.files, max_bytes)
    ]
    # Sizes of the parts of each replica that are not counted yet.
    uncounted = defaultdict[int, list[int]](list)
    for part in parts:
        uncounted[part.number].append(part.size_bytes)
    listener.on_plan(len(parts), sum(part.size_bytes for part in parts), ("part", "parts"))
    counted_parts: dict[int, ReplicaCounts] = {}
    with engine.start(
        "stats",
        after_failure="run again",
        listener=listener,
        tasks=len(parts),
        inputs=sorted({part.directory for part in parts}),
    ) as workers:
        for counts in workers.run(
            parts,
            partial(count_part, settings=settings),
            # Reading headers takes about a sixteenth of the time of reading records.
            sizes=[part.size_bytes >> (0 if settings.parts else 4) for part in parts],
            description="count {:,} splits",
            jobs=JobSizes.EQUAL,
            result_bytes=_RESULT_BYTES,
        ):
            number = counts.number
            if number in counted_parts:
                counted_parts[number].merge(counts)
            else:
                counted_parts[number] = counts
            listener.on_done(1, uncounted[number].pop())
            if not uncounted[number]:
                yield replicas[number], counted_parts.pop(number)


class _Totals:
    """Adds the counts of replicas to the rows of the report.

    A row is finished as soon as all its replicas are counted, so few counts are in memory.
    """

    def __init__(self, request: StatsRequest, replicas: Sequence[Replica]) -> None:
        self.faults = Faults()
        self._request = request
        self._now_ms = now_ms()
        self._uncounted_replicas = Counter(replica.partition for replica in replicas)
        self._uncounted_partitions = Counter(
            partition.topic for partition in self._uncounted_replicas
        )
        self._has_brokers = len({replica.broker for replica in replicas} - {None}) > 1
        self._copies: dict[TopicPartition, list[_CountedReplicas]] = defaultdict(list)
        self._missing: list[MissingOffsets] = []
        #: Counts by topic and broker. The broker None stands for the base replicas of the
        #: partitions.
        self._topics: dict[str, dict[str | None, _CountedReplicas]] = defaultdict(dict)
        self._rows: list[StatsRow] = []

    @property
    def missing(self) -> MissingOffsets:
        """The missing offsets of all replicas."""
        return MissingOffsets.joined(self._missing)

    @property
    def rows(self) -> list[StatsRow]:
        """The rows, sorted by topic, partition, directory or broker, and time."""
        return sorted(self._rows, key=_row_order)

    def add(self, replica: Replica, counts: ReplicaCounts) -> None:
        """Add the counts of a replica."""
        counts.segments.sort()
        try:
            self._missing.append(replica.finder.find(ReadPartition(replica.files), counts.seen))
        except KafkaIndexError as error:
            counts.faults.add(without_frames(error))
        counts.seen = []
        self.faults = merge_faults(self.faults, counts.faults)
        partition = replica.partition
        counted = _CountedReplicas(counts, self._predict(replica, counts), [replica])
        counts.segments = []
        self._copies[partition].append(counted)
        self._uncounted_replicas[partition] -= 1
        if not self._uncounted_replicas[partition]:
            self._add_partition(partition.topic, self._copies.pop(partition))

    def _add_partition(self, topic: str, copies: list[_CountedReplicas]) -> None:
        base = max(copies, key=_CountedReplicas.progress)
        if self._request.by is StatsBy.PARTITION:
            self._rows += [self._replica_row(copy, is_base=copy is base) for copy in copies]
            return
        if self._has_brokers and self._request.by is StatsBy.TOPIC:
            for copy in copies:
                self._add_to_topic(topic, copy.replicas[0].broker, copy)
        self._add_to_topic(topic, None, base)
        self._uncounted_partitions[topic] -= 1
        if self._uncounted_partitions[topic]:
            return
        for broker, total in self._topics.pop(topic).items():
            if self._request.by is StatsBy.TOPIC:
                self._rows.append(replace(self._make_row(topic, total), broker=broker))
            else:
                self._rows += self._time_rows(topic, total)

    def _add_to_topic(self, topic: str, broker: str | None, counted: _CountedReplicas) -> None:
        totals = self._topics[topic]
        if broker not in totals:
            empty = ReplicaCounts.empty(0, StatsSettings(hot_keys=self._request.keys))
            totals[broker] = _CountedReplicas(empty, Remainder(0, 0, 0, 0), [])
        total = totals[broker]
        total.counts.merge(counted.counts)
        total.replicas += counted.replicas
        if total.remainder is None or counted.remainder is None:
            total.remainder = None
        else:
            total.remainder = total.remainder.plus(counted.remainder)

    def _make_row(self, topic: str, counted: _CountedReplicas) -> StatsRow:
        counts = counted.counts
        row = make_row(topic, counts.totals.sums, counts, self._request)
        prediction = {} if counted.remainder is None else asdict(counted.remainder)
        return replace(row, replicas=len(counted.replicas), **prediction)

    def _replica_row(self, counted: _CountedReplicas, *, is_base: bool) -> StatsRow:
        (replica,) = counted.replicas
        start = replica.files.log_start_offset
        return replace(
            self._make_row(replica.files.topic, counted),
            partition=replica.files.partition,
            path=replica.directory,
            broker=replica.broker,
            is_base=is_base,
            log_start_offset=start,
            end_offset=max(counted.counts.end_offset, start),
        )

    def _time_rows(self, topic: str, total: _CountedReplicas) -> Iterator[StatsRow]:
        sums, times = total.counts.totals.sums, total.counts.totals.times
        columns, cumulative_bytes = fault_columns(total.counts.faults), 0
        length_ms = self._request.by.milliseconds
        for group in np.argsort(times).tolist():
            row = make_row(topic, sums[group : group + 1], None, self._request, length_ms)
            cumulative_bytes += row.size_bytes
            start_timestamp_ms = int(times[group])
            yield replace(
                row,
                start_timestamp_ms=None if start_timestamp_ms < 0 else start_timestamp_ms,
                cumulative_bytes=cumulative_bytes,
                replicas=len(total.replicas),
                **columns,
            )

    def _predict(self, replica: Replica, counts: ReplicaCounts) -> Remainder | None:
        """Return the prediction for a replica; None if not requested, or if ranges were skipped."""
        request, segments = self._request, counts.segments
        if counts.faults.total:
            # The largest timestamps and the keys of skipped ranges are unknown.
            return None
        if request.compact:
            return _predict_compaction(counts)
        if request.retention_ms is None and request.retention_bytes is None:
            return None
        bases = [segment.base_offset for segment in segments]
        sizes_bytes = [segment.size_bytes for segment in segments]
        start = replica.files.log_start_offset
        deleted = count_before_start(bases, start)
        max_bytes = -1 if request.retention_bytes is None else request.retention_bytes
        max_ms = -1 if request.retention_ms is None else request.retention_ms
        limits = self._now_ms, lambda number: segments[number].retention_time_ms
        tiered_end_offset = replica.files.tiered_end_offset
        if tiered_end_offset is None:
            deleted = count_beyond_size(sizes_bytes, deleted, max_bytes)
            deleted = count_beyond_time(sizes_bytes, deleted, max_ms, *limits)
        else:
            # The broker deletes only segments that are in remote storage.
            ends = [*bases[1:], counts.end_offset]
            uploaded = sum(end_offset - 1 <= tiered_end_offset for end_offset in ends)
            deleted = count_expired_uploads(
                sizes_bytes, deleted, uploaded, max_bytes, max_ms, *limits
            )
        end_offset = bases[deleted] if deleted < len(bases) else max(counts.end_offset, start)
        return Remainder(
            stays_bytes=sum(sizes_bytes[deleted:]),
            goes_bytes=sum(sizes_bytes[:deleted]),
            stays_records=sum(segment.records for segment in segments[deleted:]),
            goes_records=sum(segment.records for segment in segments[:deleted]),
            log_start_after=max(start, end_offset) if deleted else start,
        )


def _row_order(row: StatsRow) -> tuple[str, int, str, int]:
    start_ms = -1 if row.start_timestamp_ms is None else row.start_timestamp_ms
    return row.topic, row.partition or 0, row.path or row.broker or "", start_ms


@dataclass(slots=True)
class _CountedReplicas:
    """The counts of replicas, and the prediction for retention or compaction."""

    counts: ReplicaCounts
    remainder: Remainder | None
    replicas: list[Replica]

    def progress(self) -> tuple[int, int, int]:
        """Return a sort key, which is largest for the base replica of a partition."""
        size_bytes = int(self.counts.totals.sums[:, SUM_BYTES].sum())
        return self.counts.epoch, self.counts.end_offset, size_bytes


def _predict_compaction(counts: ReplicaCounts) -> Remainder:
    """Predict the result of a log cleaner that cleans all segments except the active segment."""
    sums = counts.totals.sums
    size_bytes, records = int(sums[:, SUM_BYTES].sum()), int(sums[:, SUM_RECORDS].sum())
    cleanable, keys = counts.compaction, counts.keys
    remaining = keys.rows[keys.rows[:, 0] >= 0]
    remaining_records = round(len(remaining) / keys.share)
    compressed_bytes = cleanable.size_bytes - RECORD_BATCH_OVERHEAD_BYTES * cleanable.batches
    remaining_bytes = round(
        int(remaining[:, 1].sum())
        / keys.share
        * (compressed_bytes / cleanable.plain_bytes if cleanable.plain_bytes else 0)
    )
    batches = len(np.unique(remaining[:, 2]))
    if not keys.is_exact:
        # A batch remains if any record of the batch remains.
        share = min(remaining_records / max(cleanable.records, 1), 1)
        records_per_batch = cleanable.records / max(cleanable.batches, 1)
        batches = round(cleanable.batches * (1 - (1 - share) ** records_per_batch))
    remaining_bytes += RECORD_BATCH_OVERHEAD_BYTES * batches
    goes_bytes = max(cleanable.size_bytes - remaining_bytes, 0)
    goes_records = max(cleanable.records - remaining_records, 0)
    return Remainder(size_bytes - goes_bytes, goes_bytes, records - goes_records, goes_records)
