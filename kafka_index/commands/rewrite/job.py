"""A rewrite: the plan, the two passes over each partition, the checks, and the output."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import Self

from kafka_index.commands.rewrite.request import RewriteRequest
from kafka_index.commands.rewrite.result import RewriteResult, RewriteStatus, RewrittenPartition
from kafka_index.core.cluster.listing import DumpMetadata, find_cluster, list_logs
from kafka_index.core.cluster.metadata.cluster_image import ClusterImage
from kafka_index.core.cluster.metadata.directory import read_cluster
from kafka_index.core.errors import (
    CorruptLogError,
    InputError,
    KafkaIndexError,
    PublishError,
    ReadError,
    is_retriable,
    plural,
    without_frames,
)
from kafka_index.core.format.checkpoints import format_offset_checkpoint
from kafka_index.core.format.config import DEFAULT_MAX_DECOMPRESSED_BYTES, LogConfig
from kafka_index.core.format.leader_epochs import LeaderEpochCache
from kafka_index.core.format.names import (
    BROKER_LOCK,
    CLEANER_CHECKPOINT,
    LEADER_EPOCH_CHECKPOINT,
    LOG_START_CHECKPOINT,
    LOG_SUFFIX,
    META_PROPERTIES,
    PARTITION_METADATA,
    REMOTE_LOG_METADATA_TOPIC,
    REPLICATION_CHECKPOINT,
    TopicPartition,
    parse_segment_file,
    segment_file_name,
)
from kafka_index.core.fs.durable_files import AtomicFile, publish_error, sync
from kafka_index.core.fs.inputs import (
    reading_inputs,
    refuse_linked_out,
    skipped_texts,
    unread_texts,
)
from kafka_index.core.fs.paths import local_path
from kafka_index.core.fs.registry import store_of
from kafka_index.core.fs.uris import TieredOptions, is_backup_input, is_segment_path
from kafka_index.core.job.engine import SILENT, Engine, Listener, Workers
from kafka_index.core.job.result import MissingOffsets, ReportSink, RunOutcome
from kafka_index.core.log.filter.partition_rewrite import (
    OnRead,
    PartitionMatch,
    SegmentRewriter,
    ignore,
    is_internal,
    match_partition,
)
from kafka_index.core.log.filter.selection import (
    Condition,
    Selection,
    SelectionError,
    records_by_line,
)
from kafka_index.core.log.read.partition_files import PartitionFiles
from kafka_index.core.log.recovery.build_manifest import BUILD_MANIFEST
from kafka_index.core.log.recovery.publish import publish_partitions
from kafka_index.core.log.recovery.scan import stage_segments
from kafka_index.core.log.recovery.settings import FAILED, BuildSettings
from kafka_index.core.log.recovery.state_merge import PartitionStart
from kafka_index.core.log.state.snapshots import list_snapshots, snapshot_path
from kafka_index.core.logdir.data_directory import DataDirectory
from kafka_index.core.logdir.listing import Listing
from kafka_index.core.logdir.metadata_files import read_epochs, read_text
from kafka_index.core.logdir.partition_files import SegmentFile, TieredPartition
from kafka_index.core.output.output import (
    Output,
    RunState,
    StagedPartition,
    StateFile,
    make_staged_directory,
    publish_directory,
    remove_directory,
)
from kafka_index.core.query.missing_records import GapFinder, ReadPartition
from kafka_index.core.records.decompression import shared_budget

CLEANUP_POLICY = "cleanup.policy"


@dataclass(frozen=True, slots=True)
class RewriteSettings:
    """The settings of a rewrite; small and picklable.

    Attributes
    ----------
    config : LogConfig
        The settings of the index files.
    allows_revival : bool
        The newest record of a key may be dropped even if an older one then reappears.
    """

    selection: Selection
    config: LogConfig = field(default_factory=LogConfig)
    max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES
    allows_revival: bool = False


@dataclass(frozen=True, slots=True)
class MatchedPartition:
    """The result of the first pass over a partition.

    Attributes
    ----------
    match : PartitionMatch, optional
        None for an internal topic, and after an error.
    error : KafkaIndexError, optional
        Why the partition is skipped.
    missing : MissingOffsets
        The missing offsets of the logs.
    """

    plan: PartitionPlan
    match: PartitionMatch | None = None
    error: KafkaIndexError | None = None
    missing: MissingOffsets = field(default_factory=MissingOffsets)

    def find_missing(self, finder: GapFinder) -> MatchedPartition:
        """Return a copy with the missing offsets of the logs that were read."""
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


def rewrite_digest(plans: Sequence[PartitionPlan], settings: RewriteSettings) -> str:
    """Return the digest of the selection and of the versions of the input."""
    digest = hashlib.sha256()
    selection = settings.selection
    digest.update(repr((selection.keys, selection.condition, settings.config)).encode())
    if selection.decoded is not None:
        digest.update(selection.decoded.identity.encode())
    for plan in plans:
        digest.update(repr((plan.tiered, *plan.segments)).encode())
    return digest.hexdigest()


def match_partitions(
    workers: Workers,
    plans: Sequence[PartitionPlan],
    settings: RewriteSettings,
    on_read: OnRead = ignore,
) -> Iterator[MatchedPartition]:
    """Match the records of partitions; yield the results in the order of partitions.

    `on_read` is called only if tasks run in this process. Spark reports the progress of its jobs.
    """
    return workers.run(
        plans,
        partial(match, settings=settings, on_read=on_read if workers.in_process else ignore),
        sizes=[plan.size_bytes for plan in plans],
        description="match {:,} partitions",
        ordered=True,
    )


def rewrite_partitions(
    workers: Workers,
    matched_partitions: Sequence[MatchedPartition],
    output: str,
    staging: str,
    settings: RewriteSettings,
    on_read: OnRead = ignore,
) -> Iterator[tuple[MatchedPartition, KafkaIndexError | None]]:
    """Write partitions; yield each with the reason why it was skipped, otherwise None."""
    errors = workers.run(
        matched_partitions,
        partial(
            _rewrite,
            output=output,
            staging=staging,
            settings=settings,
            on_read=on_read if workers.in_process else ignore,
        ),
        sizes=[matched_partition.plan.size_bytes for matched_partition in matched_partitions],
        description="rewrite {:,} partitions",
        ordered=True,
    )
    return zip(matched_partitions, errors, strict=True)


def match(
    plan: PartitionPlan,
    _attempt_id: str,
    *,
    settings: RewriteSettings,
    on_read: OnRead = ignore,
) -> MatchedPartition:
    """Match the records of a partition; if they cannot be read, the result has the error."""
    if plan.is_internal:
        _report_all_read(plan, on_read)
        return MatchedPartition(plan)
    try:
        first_segment = plan.segments[0]
        start = PartitionStart.read(first_segment, None, with_epochs=False, tiered=plan.tiered)
        partition_match = match_partition(
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
    return MatchedPartition(plan, partition_match)


def _rewrite(
    matched: MatchedPartition,
    attempt_id: str,
    *,
    output: str,
    staging: str,
    settings: RewriteSettings,
    on_read: OnRead,
) -> KafkaIndexError | None:
    """Write a partition with its index files, and publish it; return its error, if any."""
    plan = matched.plan
    name = plan.partition.directory_name
    # Each attempt has its own folder, because a lost attempt may still be writing. The folder also
    # contains a checkpoint with only this partition.
    directory = os.path.join(staging, f"{name}.{attempt_id}", name)
    if os.path.exists(os.path.join(output, name)):
        # The interrupted run has already published the partition.
        _report_all_read(plan, on_read)
        return None
    try:
        make_staged_directory(os.path.dirname(directory))
        make_staged_directory(directory)
        if matched.match is None:
            _copy_files(plan.directory, directory)
            _report_all_read(plan, on_read)
        else:
            _write_partition(plan, matched.match, directory, settings, on_read)
        publish_directory(output, StagedPartition(plan.partition, directory, is_shared=True))
    except KafkaIndexError as error:
        remove_directory(directory)
        return without_frames(error)
    return None


def _report_all_read(plan: PartitionPlan, on_read: OnRead) -> None:
    """Call `on_read` for all segments of a partition that is copied or skipped."""
    for segment in plan.segments:
        on_read(segment)


def _write_partition(
    plan: PartitionPlan,
    partition_match: PartitionMatch,
    directory: str,
    settings: RewriteSettings,
    on_read: OnRead,
) -> None:
    rewriter = SegmentRewriter(partition_match, settings.selection, settings.max_decompressed_bytes)
    _write_side_files(plan, directory)
    log_start = plan.log_start_offset
    if log_start is not None:
        # The build reads the log start offset from the checkpoint, as a broker does.
        checkpoint_text = format_offset_checkpoint(
            {plan.partition: min(log_start, partition_match.end_offset)}
        )
        _write_staged(
            os.path.join(os.path.dirname(directory), LOG_START_CHECKPOINT), checkpoint_text.encode()
        )
    segments = []
    for segment in plan.segments:
        name = segment_file_name(segment.base_offset, LOG_SUFFIX)
        segments.append(rewriter.rewrite(segment, os.path.join(directory, name)))
        on_read(segment)
    build = BuildSettings(settings.config)
    staged_segments = list(stage_segments(segments, build, attempt_id="rewrite"))
    for row in publish_partitions([staged_segments], build, attempt_id="rewrite"):
        if row.status == FAILED:
            error_class = PublishError if row.retriable else CorruptLogError
            raise error_class(
                f"cannot build indexes of the rewritten segment {row.segment_base_offset}: "
                f"{row.reason}",
                path=plan.directory,
            )
    for staged_segment in staged_segments:
        staged_segment.remove_scratch(build)
    manifest = os.path.join(directory, BUILD_MANIFEST)
    if os.path.exists(manifest):
        os.unlink(manifest)


def _write_side_files(plan: PartitionPlan, directory: str) -> None:
    """Write the files of a partition that do not belong to a segment."""
    names: set[str] = set()
    if plan.local_directory is not None:
        # The build reads only the copied checkpoint. Reading the original first gives errors the
        # path of the input, without the content of a linked file.
        read_epochs(plan.local_directory)
        names = {PARTITION_METADATA, LEADER_EPOCH_CHECKPOINT}
        if not plan.begins_remotely:
            # The build writes all later snapshots.
            names |= {
                os.path.basename(snapshot_path(plan.local_directory, offset))
                for offset in list_snapshots(plan.local_directory)
                if offset <= plan.segments[0].base_offset
            }
        _copy_files(plan.local_directory, directory, names)
    if plan.tiered is not None:
        metadata = os.path.join(directory, PARTITION_METADATA)
        if not os.path.exists(metadata) and plan.tiered.topic_id:
            _write_staged(metadata, f"version: 0\ntopic_id: {plan.tiered.topic_id}\n".encode())
        if plan.begins_remotely and plan.tiered.epochs:
            # The local checkpoint starts at the first local segment.
            checkpoint_text = LeaderEpochCache(plan.tiered.epochs).text()
            _write_staged(
                os.path.join(directory, LEADER_EPOCH_CHECKPOINT), checkpoint_text.encode()
            )


def _copy_files(source: str, target: str, names: Collection[str] | None = None) -> None:
    """Copy the files with the given names; by default all files that a broker may read."""
    for entry in store_of(source).list_directory(source):
        name = os.path.basename(entry.path)
        is_hidden = name.startswith(".") and parse_segment_file(name) is None
        if not entry.is_directory and (name in names if names is not None else not is_hidden):
            _copy(entry.path, os.path.join(target, name))


def _copy(source: str, target: str) -> None:
    refuse_linked_out(source, any_name=True)
    try:
        with closing(store_of(source).open(source)) as file, open(target, "xb") as copy:
            copy.writelines(chunk.data for chunk in file.stream())
    except OSError as error:
        raise publish_error(error, target, "copy a file") from error


def _write_staged(path: str, data: bytes) -> None:
    try:
        with open(path, "wb") as file:
            file.write(data)
    except OSError as error:
        raise publish_error(error, path, "write a file") from error


@dataclass(frozen=True, slots=True)
class PartitionPlan:
    """A partition to rewrite, with its segments by base offset.

    `may_be_compacted` is False if the topic is not compacted according to the metadata log.
    `tiered` describes a partition whose segments may be remote.
    """

    partition: TopicPartition
    segments: tuple[SegmentFile, ...]
    may_be_compacted: bool = True
    tiered: TieredPartition | None = None

    @property
    def directory(self) -> str:
        """The local directory, or the directory of the first segment if all are remote."""
        return self.local_directory or self.segments[0].partition_directory

    @property
    def local_directory(self) -> str | None:
        """The partition directory in a log directory; a tiered partition may have none."""
        if self.tiered is not None:
            return self.tiered.local_directory
        return self.segments[0].partition_directory

    @property
    def begins_remotely(self) -> bool:
        """Whether the first segment is in tiered storage, without snapshots next to it."""
        return is_segment_path(self.segments[0].log_path)

    @property
    def log_start_offset(self) -> int | None:
        """The log start offset, None if unknown."""
        if self.tiered is not None:
            return self.tiered.log_start_offset
        return DataDirectory(os.path.dirname(self.directory)).log_start_offset(self.partition)

    @property
    def is_internal(self) -> bool:
        """Whether the topic is internal. Its partitions are copied unchanged."""
        return is_internal(self.partition)

    @property
    def size_bytes(self) -> int:
        """The size of the logs."""
        return sum(segment.log_size_bytes for segment in self.segments)


def plan_rewrite(
    inputs: Sequence[str],
    topics: re.Pattern[str] | None,
    cluster: ClusterImage | None = None,
    tiered: TieredOptions | None = None,
) -> tuple[list[PartitionPlan], Listing]:
    """Return the partitions of a dump, and the listing of the dump.

    `cluster` has the settings of topics. With tiered storage, all segments become local, so
    ``__remote_log_metadata`` is skipped. Raises the errors of `list_logs`.
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
    if cluster is None or cluster.find_topic(topic) is None:
        return True
    return "compact" in cluster.topic_configs(topic).get(CLEANUP_POLICY, "delete")


def tiered_log_starts(plans: Sequence[PartitionPlan]) -> dict[TopicPartition, int]:
    """Return the start offsets of tiered logs that start after their first base offset."""
    return {
        plan.partition: plan.tiered.log_start_offset
        for plan in plans
        if plan.tiered is not None and plan.tiered.log_start_offset > plan.segments[0].base_offset
    }


#: Checkpoints that are copied, because offsets do not change.
_CHECKPOINTS = (LOG_START_CHECKPOINT, REPLICATION_CHECKPOINT, CLEANER_CHECKPOINT)
#: State file of the rewrite that wrote the output.
_STATE_FILE = ".rewrite.kafka-index"


class RewriteOutput:
    """The locked output directory of a rewrite.

    The directory must be empty, or contain output of the same rewrite; otherwise `InputError` is
    raised. If `is_finished`, the output is complete, and no file is written.
    """

    def __init__(self, output: Output, inputs_digest: str) -> None:
        self.root = output.root
        self._output = output
        self._state = RunState(inputs=inputs_digest)
        path = os.path.join(self.root, _STATE_FILE)
        self._file = StateFile(path, RunState, what="state of a rewrite")
        earlier_state = self._file.read()
        self.is_finished = earlier_state is not None and earlier_state.is_finished
        # A run that was killed before it wrote the state file may have left these files.
        names = set(os.listdir(self.root)) - {BROKER_LOCK, f".{_STATE_FILE}.tmp"}
        if earlier_state is None and not all(name.startswith(".kafka-index.") for name in names):
            raise InputError("the output is not empty", path=self.root, hint="give an empty folder")
        if earlier_state is None or earlier_state.inputs == inputs_digest:
            return
        if earlier_state.is_finished:
            raise InputError(
                "the output belongs to another rewrite", path=self.root, hint="give an empty folder"
            )
        raise InputError(
            "the output belongs to an unfinished rewrite of another input",
            path=self.root,
            hint="remove the output, or give another folder",
        )

    def skipped_error(self, partition: TopicPartition) -> InputError | None:
        """Return an error if a finished output lacks a partition."""
        if os.path.isdir(os.path.join(self.root, partition.directory_name)):
            return None
        return InputError("the finished run skipped the partition", path=self.root)

    def begin(self) -> str:
        """Write the state file; return the staging directory."""
        self._file.write(self._state)
        return self._output.make_staging()

    def finish(
        self,
        directories: Sequence[str],
        ends: Mapping[TopicPartition, int | None],
        log_starts: Mapping[TopicPartition, int],
    ) -> None:
        """Write the files at the root, and mark the output as finished.

        `ends` has the log end offset of each partition in the output, or None if the partition is
        copied unchanged. Larger offsets in checkpoints are reduced to it. `log_starts` has the log
        start offsets that are not in the data directories of the input.
        """
        roots = [DataDirectory(partition) for partition in directories]
        for name in _CHECKPOINTS:
            offsets: dict[TopicPartition, int] = {}
            for root in roots:
                offsets |= root.checkpoint(name).offsets
            if name == LOG_START_CHECKPOINT:
                offsets |= log_starts
            checkpoint = {
                partition: _clamp(offset, ends[partition])
                for partition, offset in offsets.items()
                if partition in ends
            }
            if checkpoint:
                _write(os.path.join(self.root, name), format_offset_checkpoint(checkpoint))
        if len(directories) == 1:
            meta_properties = read_text(os.path.join(directories[0], META_PROPERTIES))
            if meta_properties is not None:
                _write(os.path.join(self.root, META_PROPERTIES), meta_properties)
        self._output.remove_staging()
        sync([self.root], "make the output durable")
        self._file.write(replace(self._state, is_finished=True))


def _clamp(offset: int, end_offset: int | None) -> int:
    return offset if end_offset is None else min(offset, end_offset)


def _write(path: str, text: str) -> None:
    with AtomicFile(path) as file:
        file.write(text.encode())
        file.commit()


def rewrite(
    request: RewriteRequest,
    engine: Engine,
    listener: Listener | None = None,
    _report: ReportSink | None = None,
) -> RewriteResult:
    """Rewrite the dump of a request; a partition that fails is a row of the result.

    Raises `InputError` if the rewrite is rejected, for example because no record matches.
    """
    with reading_inputs(follow_links=request.follow_links) as unread:
        job = RewriteJob.prepare(request, engine.threads)
        result = job.run(engine, listener or SILENT)
    complete_result = replace(
        result,
        unread=unread_texts(unread),
        skipped=skipped_texts(job.listing.skipped),
        of_topics=request.of_topics,
    )
    if complete_result.outcome is not RunOutcome.DAMAGE:
        return complete_result
    return replace(
        complete_result, next_command=f"kafka-index verify --input {' '.join(request.folders)}"
    )


def _decoded_selection(
    request: RewriteRequest, condition_text: str, threads: int | None
) -> Selection:
    """Return the selection of a condition over decoded keys or values."""
    # Schemas and their decoders are slow to import.
    from kafka_index.core.query import typed_records  # noqa: PLC0415
    from kafka_index.core.query.records import plan_read  # noqa: PLC0415, as above
    from kafka_index.core.query.settings import ReadSettings  # noqa: PLC0415, as above

    settings = ReadSettings(max_decompressed_bytes=request.max_decompressed_bytes)
    plan = plan_read(
        request.inputs, topics=request.topics, settings=settings, tiered=request.tiered
    )
    conditions = typed_records.topic_conditions(
        condition_text, plan.splits, settings, request, threads=threads
    )
    return Selection(condition=conditions.condition, decoded=conditions)


@dataclass(frozen=True, slots=True)
class RewriteJob:
    """A rewrite after its input has been listed."""

    request: RewriteRequest
    plans: Sequence[PartitionPlan]
    listing: Listing
    settings: RewriteSettings
    cluster: DumpMetadata

    @classmethod
    def prepare(cls, request: RewriteRequest, threads: int | None = None) -> Self:
        """List the input and read its metadata log; `threads` prepare a decoded condition."""
        if request.decode is not None and request.drop_where is not None:
            selection = _decoded_selection(request, request.drop_where, threads)
        elif request.drop_where is not None:
            selection = Selection(condition=Condition.parse(request.drop_where))
        else:
            selection = Selection(request.drop_keys)
        if request.output is not None:
            local_path(request.output)
            _refuse_backups(request.inputs)
        max_bytes = request.max_decompressed_bytes
        cluster = None
        if request.metadata is not None:
            cluster = read_cluster([request.metadata], budget=shared_budget(max_bytes))
        plans, listing = plan_rewrite(request.inputs, request.topics, cluster, request.tiered)
        directories = listing.data_directories
        found_cluster = (
            DumpMetadata(cluster) if cluster else find_cluster(None, directories, max_bytes)
        )
        settings = RewriteSettings(
            selection,
            found_cluster.settings(request.config.config),
            request.max_decompressed_bytes,
            request.allow_revive,
        )
        return cls(request, plans, listing, settings, found_cluster)

    def run(self, engine: Engine, listener: Listener) -> RewriteResult:
        """Match the records of all partitions, check the matches, and write the output."""
        segments = [segment for plan in self.plans for segment in plan.segments]
        # Both passes read all segments; a dry run has only the first pass.
        passes = 1 if self.request.output is None else 2
        size_bytes = passes * sum(segment.log_size_bytes for segment in segments)
        listener.on_plan(len(segments), size_bytes, ("segment", "segments"))
        with ExitStack() as stack:
            output = None
            if self.request.output is not None:
                digest = rewrite_digest(self.plans, self.settings)
                output_lock = Output.for_data_directory(
                    self.request.output, self._list_input_paths()
                )
                output = RewriteOutput(stack.enter_context(output_lock), digest)
            is_last = output is None or output.is_finished
            workers = stack.enter_context(
                engine.start(
                    "rewrite",
                    after_failure="run again to continue after the finished partitions",
                    listener=listener,
                    tasks=len(self.plans) * (1 if is_last else 2),
                    inputs=[plan.directory for plan in self.plans],
                    outputs=[] if output is None else [output.root],
                )
            )

            def on_first(segment: SegmentFile) -> None:
                listener.on_done(0, segment.log_size_bytes)

            def on_last(segment: SegmentFile) -> None:
                listener.on_done(1, segment.log_size_bytes)

            finder = GapFinder(
                self.listing.data_directories, self.request.max_decompressed_bytes, self.cluster
            )
            on_matched = on_last if is_last else on_first
            matched_partitions = [
                partition.find_missing(finder)
                for partition in match_partitions(workers, self.plans, self.settings, on_matched)
            ]
            refusal = None
            if output is None:
                try:
                    self._check_matches(matched_partitions)
                except (InputError, CorruptLogError) as error:
                    refusal = str(error)
                outcomes = [(partition, partition.error) for partition in matched_partitions]
            elif output.is_finished:
                outcomes = [
                    (partition, partition.error or output.skipped_error(partition.plan.partition))
                    for partition in matched_partitions
                ]
            else:
                self._check_matches(matched_partitions)
                outcomes = self._write(workers, output, matched_partitions, on_last)
        return RewriteResult(
            [_report_row(partition, error, is_dry=output is None) for partition, error in outcomes],
            None if output is None else output.root,
            refusal,
            is_new=output is None or not output.is_finished,
            records_by_line=self._count_by_line(matched_partitions),
        )

    def _write(
        self,
        workers: Workers,
        output: RewriteOutput,
        matched_partitions: Sequence[MatchedPartition],
        on_read: OnRead,
    ) -> list[tuple[MatchedPartition, KafkaIndexError | None]]:
        """Write the readable partitions; return all, with the errors of skipped partitions."""
        staging = output.begin()
        intact = [partition for partition in matched_partitions if partition.error is None]
        written_outcomes = list(
            rewrite_partitions(workers, intact, output.root, staging, self.settings, on_read)
        )
        unread = [
            (partition, partition.error)
            for partition in matched_partitions
            if partition.error is not None
        ]
        outcomes = sorted(
            [*unread, *written_outcomes], key=lambda outcome: outcome[0].plan.partition
        )
        ends = {
            partition.plan.partition: None
            if partition.match is None
            else partition.match.end_offset
            for partition, error in written_outcomes
            if error is None
        }
        if not any(error is not None and is_retriable(error) for _, error in outcomes):
            output.finish(self.listing.data_directories, ends, tiered_log_starts(self.plans))
        return outcomes

    def _count_by_line(self, matched_partitions: Sequence[MatchedPartition]) -> Mapping[int, int]:
        counts = [
            partition.match.by_key
            for partition in matched_partitions
            if partition.match is not None
        ]
        return records_by_line(self.settings.selection.keys or (), counts)

    def _list_input_paths(self) -> list[str]:
        """Return the paths that the output must not overlap."""
        tiered = self.request.tiered
        local = (plan.local_directory for plan in self.plans)
        remote = () if tiered is None else tiered.uris
        return [*self.request.inputs, *remote, *filter(None, local)]

    def _check_matches(self, matched_partitions: Sequence[MatchedPartition]) -> None:
        """Raise `InputError` if no or all records match, or if an older record would reappear."""
        matches = [
            partition.match for partition in matched_partitions if partition.match is not None
        ]
        for partition in matched_partitions:
            if partition.match is not None and partition.match.revived is not None:
                dropped, older = partition.match.revived
                raise InputError(
                    f"the record at offset {older} would reappear, because the newer record of its "
                    f"key at offset {dropped} would be dropped",
                    path=partition.plan.directory,
                    hint="drop all records of the key, give --allow-revive, or give --metadata if "
                    "the topic is not compacted",
                )
        if self.request.overwrite or not matches:
            return
        records = sum(partition_match.records for partition_match in matches)
        dropped = sum(partition_match.dropped for partition_match in matches)
        read_errors = [
            partition.error for partition in matched_partitions if partition.error is not None
        ]
        lost_offsets = [gap for partition in matched_partitions for gap in partition.missing.lost]
        if not dropped and lost_offsets:
            raise CorruptLogError(
                f"no record matches in the remaining log, but records are lost: {lost_offsets[0]}"
            )
        if not dropped and read_errors:
            error_class = ReadError if any(map(is_retriable, read_errors)) else CorruptLogError
            raise error_class(
                f"no record matches in the readable partitions, and "
                f"{plural(len(read_errors), 'partition')} cannot be read: {read_errors[0]}"
            )
        if not dropped:
            searched_records = plural(records, "record") + self.request.of_topics
            skipped_entries = self.listing.skipped
            if skipped_entries:
                entries = plural(len(skipped_entries), "entry", "entries")
                first_entry = skipped_entries[0]
                searched_records += (
                    f"; skipped {entries}, such as {first_entry.path}: {first_entry.reason}"
                )
            raise InputError(
                "no record matches, so the output would be a copy",
                found=searched_records,
                hint="correct the keys or the condition, or give --overwrite",
            )
        if dropped == records:
            raise InputError(
                "every record matches, so the output would have no records",
                found=plural(records, "record") + self.request.of_topics,
                hint="correct the keys or the condition, or give --overwrite",
            )


def _refuse_backups(inputs: Sequence[str]) -> None:
    """Raise `InputError` for backups; their transactions are complete only after a restore."""
    backup = next(filter(is_backup_input, inputs), None)
    if backup is not None:
        raise InputError(
            "the backup may contain transactions that were open at its cutoff",
            path=backup,
            hint="give --drop-keys to kafka-index restore, or restore the backup and rewrite the "
            "restored directory",
        )


def _report_row(
    matched: MatchedPartition, error: KafkaIndexError | None, *, is_dry: bool
) -> RewrittenPartition:
    """Return the row of a partition, which was skipped if `error` is given."""
    partition_match, partition = matched.match, matched.plan.partition
    written_status = RewriteStatus.COPIED if partition_match is None else RewriteStatus.REWRITTEN
    status = RewriteStatus.MATCHED if is_dry else written_status
    reason = None if partition_match is None else partition_match.note
    lost = matched.missing.lost
    if lost:
        reason = str(lost[0])
    if error is not None:
        status, reason = RewriteStatus.SKIPPED, str(error)
    return RewrittenPartition(
        partition.topic,
        partition.partition,
        None if partition_match is None else partition_match.records,
        None if partition_match is None else partition_match.dropped,
        status,
        reason,
        error is not None and is_retriable(error),
        matched.missing,
    )
