"""`read_records`: the records of a dump as a table of Arrow."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike

import pyarrow as pa

from kafka_index.config import (
    DEFAULT_MAX_DECOMPRESSED_BYTES,
    IndexConfig,
    choice_of,
    topics_pattern,
)
from kafka_index.dump.listing import list_logs
from kafka_index.errors import InputError
from kafka_index.layout.names import TopicPartition
from kafka_index.layout.times import empty_range_text, now_ms
from kafka_index.layout.uri_passwords import refuse_passwords
from kafka_index.reading import PartitionFiles, PartitionLog, UpperBound
from kafka_index.reading.partition_files import CheckpointReader
from kafka_index.records.record_table import DEFAULT_COLUMNS
from kafka_index.storage import Skipped
from kafka_index.storage.paths import index_root_of
from kafka_index.stores.inputs import LINKED_OUT, reading_inputs
from kafka_index.tables.bounds import (
    BoundOptions,
    Offsets,
    Times,
    check_order,
    parse_times,
    time_span,
)
from kafka_index.tables.read_plan import ReadPlan, RecordSplit, plan_partition
from kafka_index.tables.record_reader import RecordReader
from kafka_index.tables.settings import Isolation, OnDamage, ReadSettings
from kafka_index.tiered.options import TieredOptions

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ListedPartitions:
    """The partitions of a dump that are read, sorted, and the paths among them that are not."""

    files: list[PartitionFiles]
    skipped: tuple[Skipped, ...] = ()


def read_records(
    paths: str | PathLike[str] | Sequence[str | PathLike[str]],
    *,
    topics: str | re.Pattern[str] | None = None,
    partitions: Mapping[str, Sequence[int]] | None = None,
    starting_offsets: Offsets | None = None,
    ending_offsets: Offsets | None = None,
    starting_timestamp: Times | None = None,
    ending_timestamp: Times | None = None,
    columns: Sequence[str] = DEFAULT_COLUMNS,
    isolation: Isolation | str = Isolation.READ_UNCOMMITTED,
    include_control: bool = False,
    verify_crc: bool = True,
    on_damage: OnDamage | str = OnDamage.FAILFAST,
    tiered: TieredOptions | str | PathLike[str] | Sequence[str | PathLike[str]] | None = None,
    indexes: str | PathLike[str] | None = None,
    upper_bound: UpperBound | str = UpperBound.LOG_END,
    max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES,
    follow_links: bool = False,
) -> pa.RecordBatchReader:
    """Read the records of log directories at rest.

    The rows are those that Kafka's consumer returns, with the names and types of Spark's Kafka
    source: ``key``, ``value``, ``topic``, ``partition``, ``offset``, ``timestamp``,
    ``timestampType``, ``headers``. They are sorted by topic, partition and offset.

    Parameters
    ----------
    paths : path or sequence of paths
        Data directories, topic-partition directories, globs of either, or their URIs.
    topics : str or re.Pattern, optional
        Keep only topics that this regular expression matches in full.
    partitions : mapping of str to sequence of int, optional
        Keep only these partitions of these topics.
    starting_offsets, ending_offsets : int or mapping of str to mapping of int to int, optional
        Where to begin, and where to end, exclusive: for all partitions or by topic and partition.
        -2 is the earliest offset and -1 the latest.
    starting_timestamp, ending_timestamp : time, or mapping likewise, optional
        A time instead: the offset of the first record as late. With no such record it is the end of
        the log. A time is milliseconds since 1970, a datetime with a zone, a date (its midnight in
        UTC), or a text: ISO 8601 (UTC where it names no zone), ``ms:N``, ``now``, ``today``,
        ``yesterday`` (UTC), or relative to now, such as ``-90m``, ``-36h`` or ``-7d``. A number
        that looks like seconds is refused; ``ms:N`` is not.
    tiered : path, sequence of paths, or TieredOptions, optional
        Where segments are that brokers have uploaded; with it, there may be no paths.
    columns : sequence of str
        The columns, in this order. Besides the eight above: ``leader_epoch``, ``producer_id``,
        ``producer_epoch``, ``sequence``, ``batch_base_offset``, ``position_bytes``, ``is_control``,
        ``is_aborted``. Other fields are not decoded.
    isolation : Isolation or str
        ``read_committed`` leaves out aborted transactions, and ends at the last stable offset.
    include_control : bool
        Whether control records, such as the markers of transactions, are rows too.
    verify_crc : bool
        Whether the checksum of each batch is verified before it is decoded.
    on_damage : OnDamage or str
        ``failfast`` raises an error at the first batch that cannot be read, ``permissive`` makes it
        a row with its place and reason in the column ``_corrupt_record``, ``drop`` leaves it out.
        An entry that is named like a log and is no file is an error with ``failfast``, and left out
        otherwise.
    indexes : path, optional
        Folder with a folder of index files for each partition, as ``build --output`` writes it; by
        default they are beside the logs. What is missing is built in memory where it is needed.
    upper_bound : UpperBound or str
        ``high-watermark`` ends each partition at its checkpointed high watermark.
    max_decompressed_bytes : int
        The most bytes of decompressed records that this process holds at a time.
    follow_links : bool
        Whether index files, checkpoints and snapshots are read also where they are links that lead
        out of the input. Otherwise they are not opened, and what needs them is reported as
        unreadable.

    Returns
    -------
    pa.RecordBatchReader
        Record batches of a few MiB, read as they are asked for.

    Raises
    ------
    InputError
        A path, a name or a bound is wrong, or nothing is found.
    CorruptLogError
        A bound, or the transactions for isolation, cannot be read; or, while it is read, a batch.
    """
    now = now_ms()
    start, end = parse_times(starting_timestamp, now), parse_times(ending_timestamp, now)
    check_order(start, end)
    damage = choice_of(OnDamage, on_damage, "on_damage")
    with reading_inputs(follow_links=follow_links) as unread:
        plan = plan_read(
            paths,
            topics=topics,
            partitions=partitions,
            bounds=BoundOptions(starting_offsets, ending_offsets, start, end),
            settings=ReadSettings(
                columns=tuple(columns),
                isolation=choice_of(Isolation, isolation, "isolation"),
                include_control=include_control,
                verify_crc=verify_crc,
                on_damage=damage,
                max_decompressed_bytes=max_decompressed_bytes,
            ),
            tiered=TieredOptions.of(tiered),
            indexes=indexes,
            upper_bound=choice_of(UpperBound, upper_bound, "upper_bound"),
        )
    for file in unread.values():
        if damage is OnDamage.FAILFAST and file.reason != LINKED_OUT:
            raise InputError(file.reason, path=file.shown)
    return pa.RecordBatchReader.from_batches(plan.settings.schema, read_plan(plan))


def read_plan(plan: ReadPlan) -> Iterator[pa.RecordBatch]:
    """Yield the record batches of all splits of a plan, in order."""
    for split in plan.splits:
        yield from RecordReader(split, plan.settings)


def plan_read(
    paths: str | PathLike[str] | Sequence[str | PathLike[str]],
    *,
    topics: str | re.Pattern[str] | None = None,
    partitions: Mapping[str, Sequence[int]] | None = None,
    bounds: BoundOptions | None = None,
    settings: ReadSettings | None = None,
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
    return plan_partitions(listed.files, bounds, settings, max_split_bytes=max_split_bytes)


def plan_partitions(
    partitions: Iterable[PartitionFiles],
    bounds: BoundOptions | None = None,
    settings: ReadSettings | None = None,
    *,
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
    partitions = list(partitions)
    splits: list[RecordSplit] = []
    for files in partitions:
        own = bounds.of(TopicPartition(files.topic, files.partition))
        with PartitionLog(
            files,
            config=IndexConfig(),
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
