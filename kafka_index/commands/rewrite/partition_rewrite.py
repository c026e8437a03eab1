"""The plan of a rewrite, and the two passes over each partition."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby
from operator import attrgetter

from kafka_index.core.cluster.listing import list_logs
from kafka_index.core.cluster.metadata.cluster_image import ClusterImage
from kafka_index.core.cluster.remote.options import TieredOptions
from kafka_index.core.errors import CorruptLogError, KafkaIndexError, PublishError, without_frames
from kafka_index.core.format.checkpoints import format_offset_checkpoint
from kafka_index.core.format.config import DEFAULT_MAX_DECOMPRESSED_BYTES, LogConfig
from kafka_index.core.format.leader_epochs import LeaderEpochCache
from kafka_index.core.format.names import (
    LEADER_EPOCH_CHECKPOINT,
    LOG_START_CHECKPOINT,
    LOG_SUFFIX,
    PARTITION_METADATA,
    REMOTE_LOG_METADATA_TOPIC,
    TopicPartition,
    parse_segment_file,
    segment_file_name,
)
from kafka_index.core.fs.durable_files import publish_error
from kafka_index.core.fs.inputs import refuse_linked_out
from kafka_index.core.fs.registry import store_of
from kafka_index.core.fs.tiered.segment_paths import is_segment_path
from kafka_index.core.job.engine import Workers
from kafka_index.core.job.result import MissingOffsets
from kafka_index.core.log.filter.condition import Selection, SelectionError
from kafka_index.core.log.filter.partition_match import (
    OnRead,
    PartitionMatch,
    ignore,
    is_internal,
    match_partition,
)
from kafka_index.core.log.filter.partition_rewrite import SegmentRewriter
from kafka_index.core.log.read.partition_files import PartitionFiles
from kafka_index.core.log.recovery.build_manifest import PARTITION_RECORD
from kafka_index.core.log.recovery.initial_state import PartitionStart
from kafka_index.core.log.recovery.publish import publish_partitions
from kafka_index.core.log.recovery.report import FAILED
from kafka_index.core.log.recovery.scan import stage_segments
from kafka_index.core.log.recovery.settings import BuildSettings
from kafka_index.core.log.state.snapshots import list_snapshots, snapshot_path
from kafka_index.core.logdir.data_directory import DataDirectory
from kafka_index.core.logdir.listing import Listing
from kafka_index.core.logdir.metadata_files import read_epochs
from kafka_index.core.logdir.partition_files import SegmentFile, TieredPartition
from kafka_index.core.output.staging import StagedPartition, publish_directory, remove_directory
from kafka_index.core.query.missing_records import GapFinder, ReadPartition

CLEANUP_POLICY = "cleanup.policy"


@dataclass(frozen=True, slots=True)
class RewriteSettings:
    """The settings of a rewrite; small, and picklable.

    `config` is for the index files; `allows_revival`: a newest record may be dropped while an older
    one of its key stays.
    """

    selection: Selection
    config: LogConfig = field(default_factory=LogConfig)
    max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES
    allows_revival: bool = False


@dataclass(frozen=True, slots=True)
class MatchedPartition:
    """The result of the first pass over a partition.

    There is no match for an internal topic, and for an error, which leaves the partition out.
    `missing` are the missing offsets of its logs.
    """

    plan: PartitionPlan
    match: PartitionMatch | None = None
    error: KafkaIndexError | None = None
    missing: MissingOffsets = field(default_factory=MissingOffsets)

    def with_missing(self, finder: GapFinder) -> MatchedPartition:
        """Return it with the missing offsets of the logs that were read."""
        if self.match is None:
            return self
        plan = self.plan
        files = PartitionFiles(
            plan.partition.topic,
            plan.partition.partition,
            plan.segments,
            tiered_end_offset=None if plan.tiered is None else plan.tiered.tiered_end_offset,
        )
        missing = finder.find(ReadPartition(files), self.match.seen)
        return replace(self, match=replace(self.match, seen=()), missing=missing)


def digest_of(plans: Sequence[PartitionPlan], settings: RewriteSettings) -> str:
    """Return the digest of a rewrite: of its input as it is, and of the selection."""
    digest = hashlib.sha256()
    selection = settings.selection
    digest.update(repr((selection.keys, selection.condition, settings.config)).encode())
    for plan in plans:
        digest.update(repr((plan.tiered, *plan.segments)).encode())
    return digest.hexdigest()


def match_partitions(
    workers: Workers,
    plans: Sequence[PartitionPlan],
    settings: RewriteSettings,
    on_read: OnRead = ignore,
) -> Iterator[MatchedPartition]:
    """Make the first pass over partitions; yield the results in their order.

    `on_read` is called in this process alone: a session shows the shares of its jobs.
    """
    return workers.run(
        plans,
        partial(match, settings=settings, on_read=on_read if workers.in_process else ignore),
        sizes=[plan.size_bytes for plan in plans],
        what="match {:,} partitions",
        ordered=True,
    )


def rewrite_partitions(
    workers: Workers,
    matched: Sequence[MatchedPartition],
    output: str,
    staging: str,
    settings: RewriteSettings,
    on_read: OnRead = ignore,
) -> Iterator[tuple[MatchedPartition, KafkaIndexError | None]]:
    """Make the second pass; yield each partition with the reason why it is left out, if it is."""
    errors = workers.run(
        matched,
        partial(
            _rewrite,
            output=output,
            staging=staging,
            settings=settings,
            on_read=on_read if workers.in_process else ignore,
        ),
        sizes=[each.plan.size_bytes for each in matched],
        what="rewrite {:,} partitions",
        ordered=True,
    )
    return zip(matched, errors, strict=True)


def match(
    plan: PartitionPlan,
    _attempt_id: str,
    *,
    settings: RewriteSettings,
    on_read: OnRead = ignore,
) -> MatchedPartition:
    """Make the first pass over a partition; an error is in the result."""
    if plan.is_internal:
        _all_read(plan, on_read)
        return MatchedPartition(plan)
    try:
        first = plan.segments[0]
        start = PartitionStart.read(first, None, with_epochs=False, tiered=plan.tiered)
        found = match_partition(
            plan.segments,
            settings.selection,
            start.state,
            max_decompressed_bytes=settings.max_decompressed_bytes,
            checks_revival=plan.may_be_compacted and not settings.allows_revival,
            on_read=on_read,
        )
    except SelectionError:
        raise
    except KafkaIndexError as error:
        return MatchedPartition(plan, error=without_frames(error))
    return MatchedPartition(plan, found)


def _rewrite(
    matched: MatchedPartition,
    attempt_id: str,
    *,
    output: str,
    staging: str,
    settings: RewriteSettings,
    on_read: OnRead,
) -> KafkaIndexError | None:
    """Make the second pass over a partition, build its files, publish it, or return its error."""
    plan = matched.plan
    name = plan.partition.directory_name
    # A folder for each attempt: a lost one may still be writing, and the checkpoint beside a
    # partition is its own.
    directory = os.path.join(staging, f"{name}.{attempt_id}", name)
    if os.path.exists(os.path.join(output, name)):
        # Published by the run that this one continues.
        _all_read(plan, on_read)
        return None
    try:
        try:
            os.makedirs(directory)
        except OSError as error:
            raise publish_error(error, directory, "make a folder") from error
        if matched.match is None:
            _copy_files(plan.directory, directory)
            _all_read(plan, on_read)
        else:
            _write_partition(plan, matched.match, directory, settings, on_read)
        publish_directory(output, StagedPartition(plan.partition, directory))
    except KafkaIndexError as error:
        remove_directory(directory)
        return without_frames(error)
    return None


def _all_read(plan: PartitionPlan, on_read: OnRead) -> None:
    """Call back for all segments of a partition that is not read one by one."""
    for segment in plan.segments:
        on_read(segment)


def _write_partition(
    plan: PartitionPlan,
    found: PartitionMatch,
    directory: str,
    settings: RewriteSettings,
    on_read: OnRead,
) -> None:
    rewriter = SegmentRewriter(found, settings.selection, settings.max_decompressed_bytes)
    _write_side_files(plan, directory)
    log_start = plan.log_start_offset
    if log_start is not None:
        # The build looks for it where a broker does.
        text = format_offset_checkpoint({plan.partition: min(log_start, found.end_offset)})
        _write(os.path.join(os.path.dirname(directory), LOG_START_CHECKPOINT), text.encode())
    segments = []
    for segment in plan.segments:
        name = segment_file_name(segment.base_offset, LOG_SUFFIX)
        segments.append(rewriter.rewrite(segment, os.path.join(directory, name)))
        on_read(segment)
    build = BuildSettings(settings.config)
    staged = list(stage_segments(segments, build, attempt_id="rewrite"))
    for row in publish_partitions([staged], build, attempt_id="rewrite"):
        if row.status == FAILED:
            kind = PublishError if row.retriable else CorruptLogError
            raise kind(
                f"the rewritten segment {row.segment_base_offset} cannot be built: {row.reason}",
                path=plan.directory,
            )
    for each in staged:
        each.remove_scratch(build)
    record = os.path.join(directory, PARTITION_RECORD)
    if os.path.exists(record):
        os.unlink(record)


def _write_side_files(plan: PartitionPlan, directory: str) -> None:
    """Write the files of a partition besides its segments, for a broker that loads it."""
    names: set[str] = set()
    if plan.local_directory is not None:
        # The build reads the copy: its errors would name that, and quote what a link leads to.
        read_epochs(plan.local_directory)
        names = {PARTITION_METADATA, LEADER_EPOCH_CHECKPOINT}
        if not plan.begins_remotely:
            # Of snapshots only those at the first segment and before count.
            names |= {
                os.path.basename(snapshot_path(plan.local_directory, offset))
                for offset in list_snapshots(plan.local_directory)
                if offset <= plan.segments[0].base_offset
            }
        _copy_files(plan.local_directory, directory, names)
    if plan.tiered is not None:
        metadata = os.path.join(directory, PARTITION_METADATA)
        if not os.path.exists(metadata) and plan.tiered.topic_id:
            _write(metadata, f"version: 0\ntopic_id: {plan.tiered.topic_id}\n".encode())
        if plan.begins_remotely and plan.tiered.epochs:
            # Those beside the local segments begin where these do.
            text = LeaderEpochCache(plan.tiered.epochs).text()
            _write(os.path.join(directory, LEADER_EPOCH_CHECKPOINT), text.encode())


def _copy_files(source: str, target: str, names: Collection[str] | None = None) -> None:
    """Copy files of some names; by default all that a broker would look at."""
    for entry in store_of(source).list_directory(source):
        name = os.path.basename(entry.path)
        is_ours = name.startswith(".") and parse_segment_file(name) is None
        if not entry.is_directory and (name in names if names is not None else not is_ours):
            _copy(entry.path, os.path.join(target, name))


def _copy(source: str, target: str) -> None:
    refuse_linked_out(source, any_name=True)
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


@dataclass(frozen=True, slots=True)
class PartitionPlan:
    """A partition to rewrite, with its segments by base offset.

    `may_be_compacted` is false if the metadata log says that it is not; `tiered` has the facts
    about a partition whose segments may be remote.
    """

    partition: TopicPartition
    segments: tuple[SegmentFile, ...]
    may_be_compacted: bool = True
    tiered: TieredPartition | None = None

    @property
    def directory(self) -> str:
        """The local directory; for a tiered partition without one, the first segment."""
        return self.local_directory or self.segments[0].partition_directory

    @property
    def local_directory(self) -> str | None:
        """Its directory in a log directory, which a tiered partition need not have."""
        if self.tiered is not None:
            return self.tiered.local_directory
        return self.segments[0].partition_directory

    @property
    def begins_remotely(self) -> bool:
        """Whether its first segment is in tiered storage, where there are no files beside it."""
        return is_segment_path(self.segments[0].log_path)

    @property
    def log_start_offset(self) -> int | None:
        """The log start offset, if it is known."""
        if self.tiered is not None:
            return self.tiered.log_start_offset
        return DataDirectory(os.path.dirname(self.directory)).log_start_offset(self.partition)

    @property
    def is_internal(self) -> bool:
        """Whether it is one of Kafka's own topics, which is copied as it is."""
        return is_internal(self.partition)

    @property
    def size_bytes(self) -> int:
        """Size of its logs."""
        return sum(segment.log_size_bytes for segment in self.segments)


def plan_rewrite(
    inputs: Sequence[str],
    topics: re.Pattern[str] | None,
    cluster: ClusterImage | None = None,
    tiered: TieredOptions | None = None,
) -> tuple[list[PartitionPlan], Listing]:
    """Return the partitions of a dump, and its listing.

    The cluster knows the settings of topics. With tiered storage all segments become local ones, so
    that the topic in which brokers keep the states of remote segments is left out. Raises the
    errors of `kafka_index.core.cluster.listing.list_logs`.
    """
    listing = list_logs(inputs, tiered, topics=topics)
    plans = [
        PartitionPlan(
            partition,
            tuple(members),
            _may_be_compacted(partition.topic, cluster),
            listing.tiered.get(partition),
        )
        for partition, members in groupby(listing.segments, key=attrgetter("topic_partition"))
        if tiered is None or partition.topic != REMOTE_LOG_METADATA_TOPIC
    ]
    return plans, listing


def _may_be_compacted(topic: str, cluster: ClusterImage | None) -> bool:
    if cluster is None or cluster.topic_named(topic) is None:
        return True
    return "compact" in cluster.topic_configs(topic).get(CLEANUP_POLICY, "delete")


def tiered_starts(plans: Sequence[PartitionPlan]) -> dict[TopicPartition, int]:
    """Return where tiered partitions start, if that is after the base offset of a segment."""
    return {
        plan.partition: plan.tiered.log_start_offset
        for plan in plans
        if plan.tiered is not None and plan.tiered.log_start_offset > plan.segments[0].base_offset
    }
