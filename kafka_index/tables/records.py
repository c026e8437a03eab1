"""The reads of records: the partitions that are read, their plan, and the rows in order."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike

import pyarrow as pa

from kafka_index.config import LogConfig, topics_pattern
from kafka_index.dump.listing import list_logs
from kafka_index.errors import CorruptLogError, InputError
from kafka_index.layout.names import TopicPartition
from kafka_index.layout.times import empty_range_text
from kafka_index.layout.uri_passwords import refuse_passwords
from kafka_index.reading import PartitionFiles, PartitionLog, UpperBound
from kafka_index.reading.partition_files import CheckpointReader
from kafka_index.storage import Skipped
from kafka_index.storage.paths import index_root_of
from kafka_index.tables.bounds import BoundOptions, time_span
from kafka_index.tables.read_plan import ReadPlan, RecordSplit, plan_partition
from kafka_index.tables.record_reader import RecordReader, warn_of_damage
from kafka_index.tables.settings import ReadSettings
from kafka_index.tiered.options import TieredOptions

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ListedPartitions:
    """The partitions of a dump that are read, sorted, and the paths among them that are not."""

    files: list[PartitionFiles]
    skipped: tuple[Skipped, ...] = ()


def read_plan(
    plan: ReadPlan, *, on_left_out: Callable[[CorruptLogError], None] | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield the record batches of all splits of a plan, in order.

    `on_left_out` is a callback for damage that is left out, beside the warning that is logged.
    """

    def left_out(error: CorruptLogError) -> None:
        warn_of_damage(error)
        if on_left_out is not None:
            on_left_out(error)

    for split in plan.splits:
        yield from RecordReader(split, plan.settings, on_left_out=left_out)


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
    """Plan a read: list the dump, resolve the bounds, and find the bytes that are needed.

    `max_split_bytes` is about the size of a split; by default each partition is one. The other
    parameters and the errors are those of `read_records`.
    """
    listed = list_partitions(
        paths,
        topics=topics,
        partitions=partitions,
        tiered=tiered,
        indexes=indexes,
        upper_bound=upper_bound,
    )
    return plan_partitions(
        listed.files, bounds, settings, config=config, max_split_bytes=max_split_bytes
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
) -> ReadPlan:
    """Plan a read of partitions from `list_partitions`.

    `max_split_records` and `within` are as in `kafka_index.tables.read_plan.plan_partition`, the
    other parameters as in `plan_read`, and the errors those of `read_records`.
    """
    settings = settings or ReadSettings()
    bounds = bounds or BoundOptions()
    config = config or LogConfig()
    partitions = list(partitions)
    splits: list[RecordSplit] = []
    for files in partitions:
        own = bounds.of(TopicPartition(files.topic, files.partition))
        with PartitionLog(
            files,
            config=config.for_topic(files.topic),
            max_decompressed_bytes=settings.max_decompressed_bytes,
        ) as log:
            splits += plan_partition(
                log,
                own,
                settings,
                max_split_bytes=max_split_bytes,
                max_split_records=max_split_records,
                within=within,
            )
    if not splits and within is None and bounds.times != (None, None):
        _log.warning(
            "nothing is read: %s", empty_range_text(*bounds.times, time_span(partitions, settings))
        )
    return ReadPlan(tuple(splits), settings)


def list_partitions(
    paths: str | PathLike[str] | Sequence[str | PathLike[str]],
    *,
    topics: str | re.Pattern[str] | None = None,
    partitions: Mapping[str, Sequence[int]] | None = None,
    tiered: TieredOptions | None = None,
    indexes: str | PathLike[str] | None = None,
    upper_bound: UpperBound = UpperBound.LOG_END,
) -> ListedPartitions:
    """Return the partitions that `read_records` reads; parameters and errors are its own."""
    inputs = [paths] if isinstance(paths, str | PathLike) else paths
    refuse_passwords([*inputs, indexes])
    root = None if indexes is None else index_root_of(os.fspath(indexes))
    pattern = topics_pattern(topics)
    listing = list_logs([os.fspath(path) for path in inputs], tiered, topics=pattern)
    segments = listing.segments
    if partitions is not None:
        segments = [one for one in segments if one.partition in partitions.get(one.topic, ())]
        if not segments:
            raise InputError(
                "none of the partitions is in the input",
                path=", ".join(os.fspath(path) for path in inputs),
                expected=", ".join(
                    TopicPartition(topic, number).directory_name
                    for topic, numbers in partitions.items()
                    for number in numbers
                ),
            )
    reader = CheckpointReader(upper_bound)
    files = reader.read_all(segments, root, listing.tiered)
    return ListedPartitions(files, (*listing.skipped, *reader.skipped))
