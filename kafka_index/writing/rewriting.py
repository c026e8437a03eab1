"""A rewrite: what is planned, the two passes over each partition, and the output directory."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import groupby

from kafka_index.build.plan import partition_of
from kafka_index.build.publish import publish_partitions
from kafka_index.build.report import FAILED
from kafka_index.build.scan import stage_segments
from kafka_index.build.settings import BuildSettings
from kafka_index.config import DEFAULT_MAX_DECOMPRESSED_BYTES, LogConfig
from kafka_index.errors import CorruptLogError, KafkaIndexError
from kafka_index.layout.checkpoints import format_offset_checkpoint
from kafka_index.layout.internal_topics import INTERNAL_TOPICS
from kafka_index.layout.names import (
    LEADER_EPOCH_CHECKPOINT,
    LOG_START_CHECKPOINT,
    PARTITION_METADATA,
    TopicPartition,
    parse_segment_file,
)
from kafka_index.metadata import ClusterImage
from kafka_index.state.snapshots import list_snapshots, snapshot_path
from kafka_index.storage import SegmentFile, list_dump, publish_error
from kafka_index.storage.log_directory import LogDirectory
from kafka_index.storage.partition_record import PARTITION_RECORD
from kafka_index.stores import store_of
from kafka_index.writing.condition import SelectionError
from kafka_index.writing.partition_match import PartitionMatch, match_partition
from kafka_index.writing.partition_rewrite import SegmentRewriter
from kafka_index.writing.selection import Selection
from kafka_index.writing.staging import StagedPartition, publish_directory, remove_directory

CLEANUP_POLICY = "cleanup.policy"


@dataclass(frozen=True, slots=True)
class RewriteSettings:
    """What a rewrite drops, and how it writes; small, and picklable.

    Parameters
    ----------
    selection : Selection
        The records to drop.
    config : LogConfig
        Kafka's settings, for the index files.
    max_decompressed_bytes : int
        The most bytes of decompressed records that a process holds at a time.
    allows_revival : bool
        Whether a newest record may be dropped while an older one of its key stays.
    """

    selection: Selection
    config: LogConfig = field(default_factory=LogConfig)
    max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES
    allows_revival: bool = False


@dataclass(frozen=True, slots=True)
class PartitionPlan:
    """A partition to rewrite.

    Parameters
    ----------
    partition : TopicPartition
        Which.
    segments : tuple of SegmentFile
        Its segments, by base offset.
    may_be_compacted : bool
        False where the metadata log says that it is not.
    """

    partition: TopicPartition
    segments: tuple[SegmentFile, ...]
    may_be_compacted: bool = True

    @property
    def directory(self) -> str:
        """Where it lies."""
        return self.segments[0].partition_directory

    @property
    def is_internal(self) -> bool:
        """Whether it is one of Kafka's own topics, which is copied as it is."""
        return self.partition.topic in INTERNAL_TOPICS

    @property
    def size_bytes(self) -> int:
        """Size of its logs."""
        return sum(segment.log_size_bytes for segment in self.segments)


@dataclass(frozen=True, slots=True)
class MatchedPartition:
    """The result of the first pass over a partition.

    Parameters
    ----------
    plan : PartitionPlan
        The partition.
    match : PartitionMatch, optional
        What is dropped; None for an internal topic, and where there is an error.
    error : KafkaIndexError, optional
        Why the partition is left out.
    """

    plan: PartitionPlan
    match: PartitionMatch | None = None
    error: KafkaIndexError | None = None


def plan_rewrite(
    inputs: Sequence[str],
    topics: re.Pattern[str] | None,
    cluster: ClusterImage | None = None,
) -> tuple[list[PartitionPlan], list[str]]:
    """Return the partitions of a dump, and its data directories.

    Parameters
    ----------
    inputs, topics
        As for `kafka_index.storage.list_dump`.
    cluster : ClusterImage, optional
        The cluster, which knows the settings of topics.

    Raises
    ------
    InputError
        As `kafka_index.storage.list_dump`.
    """
    listing = list_dump(inputs, topics=topics)
    plans = [
        PartitionPlan(partition, tuple(members), _may_be_compacted(partition.topic, cluster))
        for partition, members in groupby(listing.segments, key=partition_of)
    ]
    return plans, listing.data_directories


def _may_be_compacted(topic: str, cluster: ClusterImage | None) -> bool:
    if cluster is None or cluster.topic_named(topic) is None:
        return True
    return "compact" in cluster.topic_configs(topic).get(CLEANUP_POLICY, "delete")


def digest_of(plans: Sequence[PartitionPlan], settings: RewriteSettings) -> str:
    """Return what tells a rewrite from every other: its input as it is, and what it drops."""
    digest = hashlib.sha256()
    selection = settings.selection
    digest.update(repr((selection.keys, selection.condition, settings.config)).encode())
    for plan in plans:
        for segment in plan.segments:
            digest.update(repr(segment).encode())
    return digest.hexdigest()


def match(plan: PartitionPlan, settings: RewriteSettings) -> MatchedPartition:
    """Make the first pass over a partition; what is wrong with it is in the result."""
    if plan.is_internal:
        return MatchedPartition(plan)
    try:
        found = match_partition(
            plan.segments,
            settings.selection,
            max_decompressed_bytes=settings.max_decompressed_bytes,
            checks_revival=plan.may_be_compacted and not settings.allows_revival,
        )
    except SelectionError:
        raise
    except KafkaIndexError as error:
        return MatchedPartition(plan, error=error)
    return MatchedPartition(plan, found)


def rewrite(
    matched: MatchedPartition, output: str, staging: str, settings: RewriteSettings
) -> KafkaIndexError | None:
    """Make the second pass over a partition, build its files, and publish it.

    Parameters
    ----------
    output : str
        The output directory.
    staging : str
        A folder in it that no other thread or process writes to.

    Returns
    -------
    KafkaIndexError or None
        Why the partition is left out.
    """
    plan = matched.plan
    directory = os.path.join(staging, plan.partition.directory_name)
    if os.path.exists(os.path.join(output, plan.partition.directory_name)):
        # Published by the run that this one continues.
        return None
    try:
        try:
            os.makedirs(directory)
        except OSError as error:
            raise publish_error(error, directory, "make a folder") from error
        if matched.match is None:
            _copy_files(plan.directory, directory, None)
        else:
            _write_partition(plan, matched.match, directory, settings)
        publish_directory(output, StagedPartition(plan.partition, directory))
    except KafkaIndexError as error:
        remove_directory(directory)
        return error
    return None


def _write_partition(
    plan: PartitionPlan, found: PartitionMatch, directory: str, settings: RewriteSettings
) -> None:
    rewriter = SegmentRewriter(found, settings.selection, settings.max_decompressed_bytes)
    _copy_files(plan.directory, directory, plan.segments[0].base_offset)
    log_start = LogDirectory(os.path.dirname(plan.directory)).log_start_offset(plan.partition)
    if log_start is not None:
        # The build looks for it where a broker does.
        text = format_offset_checkpoint({plan.partition: min(log_start, found.end_offset)})
        _write(os.path.join(os.path.dirname(directory), LOG_START_CHECKPOINT), text.encode())
    segments = [rewriter.rewrite(segment, directory) for segment in plan.segments]
    build = BuildSettings(settings.config)
    staged = list(stage_segments(segments, build, attempt_id="rewrite"))
    for row in publish_partitions([staged], build, attempt_id="rewrite"):
        if row.status == FAILED:
            raise CorruptLogError(
                f"the rewritten segment {row.segment_base_offset} cannot be built: {row.reason}",
                path=plan.directory,
            )
    for each in staged:
        each.remove_scratch(build)
    record = os.path.join(directory, PARTITION_RECORD)
    if os.path.exists(record):
        os.unlink(record)


def _copy_files(source: str, target: str, base_offset: int | None) -> None:
    """Copy what a partition has besides its segments, or without a base offset everything.

    Of snapshots only those at the first segment and before count: of what a broker loads first.
    """
    store = store_of(source)
    snapshots = {
        os.path.basename(snapshot_path(source, offset))
        for offset in list_snapshots(source)
        if base_offset is not None and offset <= base_offset
    }
    for entry in store.list_directory(source):
        name = os.path.basename(entry.path)
        is_side_file = name in snapshots or name in (PARTITION_METADATA, LEADER_EPOCH_CHECKPOINT)
        if entry.is_directory or (base_offset is not None and not is_side_file):
            continue
        if base_offset is None and parse_segment_file(name) is None and name.startswith("."):
            continue
        _copy(entry.path, os.path.join(target, name))


def _copy(source: str, target: str) -> None:
    try:
        with closing(store_of(source).open(source)) as file, open(target, "xb") as copy:
            copy.writelines(piece.data for piece in file.stream())
    except OSError as error:
        raise publish_error(error, target, "copy a file") from error


def _write(path: str, data: bytes) -> None:
    try:
        with open(path, "wb") as file:
            file.write(data)
    except OSError as error:
        raise publish_error(error, path, "write a file") from error


def summary_by_topic(matched: Sequence[MatchedPartition]) -> Mapping[str, tuple[int, int, int]]:
    """Return, by topic, partitions, records, and how many records are dropped."""
    topics: dict[str, tuple[int, int, int]] = {}
    for each in matched:
        partitions, records, dropped = topics.get(each.plan.partition.topic, (0, 0, 0))
        if each.match is not None:
            records, dropped = records + each.match.records, dropped + each.match.dropped
        topics[each.plan.partition.topic] = partitions + 1, records, dropped
    return topics
