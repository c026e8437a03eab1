"""Read records: list partitions, plan the read, and yield the rows in order."""

from __future__ import annotations

import logging
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from os import PathLike

import pyarrow as pa

from kafka_index.core.cluster.listing import list_dumps, list_logs
from kafka_index.core.errors import CorruptLogError, InputError
from kafka_index.core.format.config import LogConfig, compile_topics
from kafka_index.core.format.names import TopicPartition
from kafka_index.core.format.times import describe_empty_range
from kafka_index.core.format.uri_passwords import refuse_passwords
from kafka_index.core.fs.inputs import Skipped
from kafka_index.core.fs.paths import index_root_of
from kafka_index.core.fs.uris import TieredOptions
from kafka_index.core.job.result import MissingOffsets
from kafka_index.core.log.choices import UpperBound
from kafka_index.core.log.missing_offsets import ScannedLog
from kafka_index.core.log.read.partition_files import CheckpointReader, PartitionFiles
from kafka_index.core.log.read.partition_log import PartitionLog
from kafka_index.core.logdir.listing import Listing
from kafka_index.core.logdir.partition_files import SegmentFile
from kafka_index.core.query.bounds import BoundOptions, time_span
from kafka_index.core.query.missing_records import GapFinder, ReadPartition
from kafka_index.core.query.read_plan import ReadPlan, RecordSplit, plan_partition, read_partition
from kafka_index.core.query.record_reader import DamageHandler, RecordReader, log_skipped_corruption
from kafka_index.core.query.settings import ReadSettings

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ListedPartitions:
    """The sorted partitions of a dump to read, and the skipped paths.

    `data_directories` are the parent directories of the partition directories.
    """

    files: list[PartitionFiles]
    skipped: tuple[Skipped, ...] = ()
    data_directories: tuple[str, ...] = ()

    def gap_finder(self, max_decompressed_bytes: int) -> GapFinder:
        return GapFinder(self.data_directories, max_decompressed_bytes)


def read_plan(
    plan: ReadPlan,
    *,
    on_skipped: Callable[[CorruptLogError], None] | None = None,
    on_missing: Callable[[MissingOffsets], None] | None = None,
    decode_errors: Counter[str] | None = None,
) -> Iterator[pa.RecordBatch]:
    """Read all splits of a plan, and yield Arrow record batches in order.

    `on_skipped` is called with each skipped corruption and each range of lost offsets, which are
    also logged as warnings. `on_missing` is called with the missing offsets of each partition.
    `decode_errors` counts keys and values that do not decode, by error code.
    """

    def report_skipped(error: CorruptLogError) -> None:
        log_skipped_corruption(error)
        if on_skipped is not None:
            on_skipped(error)

    pending = {read_range.partition: read_range for read_range in plan.partitions}
    for partition, splits in groupby(plan.splits, attrgetter("topic_partition")):
        read_logs: list[ScannedLog] = []
        for split in splits:
            reader = RecordReader(split, plan.settings, on_skipped=report_skipped)
            yield from reader
            read_logs += reader.read_logs
            if decode_errors is not None:
                decode_errors.update(reader.decode_errors)
        if partition in pending:
            yield from _read_gaps(
                plan, pending.pop(partition), read_logs, report_skipped, on_missing
            )
    for read_range in pending.values():
        yield from _read_gaps(plan, read_range, (), report_skipped, on_missing)


def _read_gaps(
    plan: ReadPlan,
    read_range: ReadPartition,
    read_logs: Sequence[ScannedLog],
    on_skipped: Callable[[CorruptLogError], None],
    on_missing: Callable[[MissingOffsets], None] | None,
) -> Iterator[pa.RecordBatch]:
    if plan.finder is None:
        return
    missing_offsets = plan.finder.find(read_range, read_logs)
    if on_missing is not None:
        on_missing(missing_offsets)
    yield from gap_rows(missing_offsets, plan.settings, on_skipped)


def gap_rows(
    missing_offsets: MissingOffsets,
    settings: ReadSettings,
    on_skipped: Callable[[CorruptLogError], None] | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield a row for each range of lost offsets, or raise or skip it, depending on `on_damage`.

    Other missing offsets are logged as warnings.
    """
    for gap in missing_offsets.ranges:
        if not gap.is_lost:
            _log.warning("%s", gap)
            continue
        split = RecordSplit(gap.topic, gap.partition, gap.first_offset, gap.end_offset - 1, ())
        handler = DamageHandler(split, settings, on_skipped)
        yield from handler.rows(gap.error(), settings.schema)


def plan_read(
    paths: str | PathLike[str] | Sequence[str | PathLike[str]],
    *,
    topics: str | re.Pattern[str] | None = None,
    partitions: Mapping[str, Sequence[int]] | None = None,
    bounds: BoundOptions | None = None,
    settings: ReadSettings | None = None,
    config: LogConfig | None = None,
    tiered: TieredOptions | None = None,
    indexes: str | PathLike[str] | None = None,
    upper_bound: UpperBound = UpperBound.LOG_END,
    max_split_bytes: int | None = None,
) -> ReadPlan:
    """Plan a read: list the dump, resolve the bounds, and find the byte ranges.

    `max_split_bytes` is the approximate size of a split; by default, each partition is one split.
    For the other parameters and errors, see `read_records`.
    """
    listing = list_partitions(
        paths,
        topics=topics,
        partitions=partitions,
        tiered=tiered,
        indexes=indexes,
        upper_bound=upper_bound,
    )
    return plan_partitions(
        listing.files,
        bounds,
        settings,
        config=config,
        max_split_bytes=max_split_bytes,
        finder=listing.gap_finder((settings or ReadSettings()).max_decompressed_bytes),
    )


def plan_partitions(
    partitions: Iterable[PartitionFiles],
    bounds: BoundOptions | None = None,
    settings: ReadSettings | None = None,
    *,
    config: LogConfig | None = None,
    max_split_bytes: int | None = None,
    max_split_records: int | None = None,
    within: tuple[int, int] | None = None,
    finder: GapFinder | None = None,
) -> ReadPlan:
    """Plan a read of partitions from `list_partitions`.

    `max_split_records` and `within` are as in `core.query.read_plan.plan_partition`, other
    parameters as in `plan_read`. Raises the errors of `read_records`.
    """
    settings = settings or ReadSettings()
    bounds = bounds or BoundOptions()
    config = config or LogConfig()
    partitions = list(partitions)
    splits: list[RecordSplit] = []
    read_ranges: list[ReadPartition] = []
    for files in partitions:
        partition_bounds = bounds.for_partition(TopicPartition(files.topic, files.partition))
        with PartitionLog(
            files,
            config=config.for_topic(files.topic),
            max_decompressed_bytes=settings.max_decompressed_bytes,
        ) as log:
            partition_splits = list(
                plan_partition(
                    log,
                    partition_bounds,
                    settings,
                    max_split_bytes=max_split_bytes,
                    max_split_records=max_split_records,
                    within=within,
                )
            )
        splits += partition_splits
        partition_read = read_partition(files, partition_bounds, partition_splits)
        read_ranges += [] if partition_read is None else [partition_read]
    if not splits and within is None and bounds.times != (None, None):
        _log.warning(
            "no record is read: %s",
            describe_empty_range(*bounds.times, time_span(partitions, settings)),
        )
    return ReadPlan(tuple(splits), settings, tuple(read_ranges), finder)


def list_partitions(
    paths: str | PathLike[str] | Sequence[str | PathLike[str]],
    *,
    topics: str | re.Pattern[str] | None = None,
    partitions: Mapping[str, Sequence[int]] | None = None,
    tiered: TieredOptions | None = None,
    indexes: str | PathLike[str] | None = None,
    upper_bound: UpperBound = UpperBound.LOG_END,
) -> ListedPartitions:
    """Return the partitions that `read_records` reads, with its parameters and errors."""
    inputs = [paths] if isinstance(paths, str | PathLike) else paths
    refuse_passwords([*inputs, indexes])
    root = None if indexes is None else index_root_of(os.fspath(indexes))
    pattern = compile_topics(topics)
    listing = list_logs([os.fspath(path) for path in inputs], tiered, topics=pattern)
    segments = listing.segments
    if partitions is not None:
        segments = [
            segment
            for segment in segments
            if segment.partition in partitions.get(segment.topic, ())
        ]
        if not segments:
            raise InputError(
                "the input contains none of the partitions",
                path=", ".join(os.fspath(path) for path in inputs),
                expected=", ".join(
                    TopicPartition(topic, number).directory_name
                    for topic, numbers in partitions.items()
                    for number in numbers
                ),
            )
    return _read_checkpoints(listing, segments, root, upper_bound)


def list_replicas(
    inputs: Sequence[str], *, topics: re.Pattern[str] | None, tiered: TieredOptions | None
) -> list[ListedPartitions]:
    """Return the partitions of each data directory; a partition may be in several directories.

    Raises the errors of `list_dump`, but a partition in several directories is not an error.
    """
    listings = [
        listing for listing in list_dumps(inputs, tiered, topics=topics) if listing.segments
    ]
    if not listings:
        # List all inputs together, to raise an error with all topics and paths.
        list_logs(inputs, tiered, topics=topics)
    return [
        _read_checkpoints(listing, listing.segments, None, UpperBound.LOG_END)
        for listing in listings
    ]


def _read_checkpoints(
    listing: Listing, segments: Sequence[SegmentFile], root: str | None, upper_bound: UpperBound
) -> ListedPartitions:
    reader = CheckpointReader(upper_bound)
    files = reader.read_all(segments, root, listing.tiered)
    skipped = (*listing.skipped, *reader.skipped)
    return ListedPartitions(files, skipped, tuple(listing.data_directories))
