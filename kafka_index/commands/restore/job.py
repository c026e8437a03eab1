"""A restore as a whole: all checks first, then the partitions, then the root and the cluster.

The output is checked before the first write, and again when it is locked.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace

from kafka_index.commands.restore.cluster import (
    CLUSTER_ID,
    DIRECTORY_ID,
    NODE_ID,
    Identity,
    SourceCluster,
    check_topic_configs,
    copy_metadata,
    copy_metadata_identity,
    directory_to_write,
    dump_identity,
    fresh_identity,
    is_separate,
    partitions_only_here,
    partitions_placed_here,
    read_transactions,
    refuse_identity,
    refuse_used_metadata,
    same_identity,
)
from kafka_index.commands.restore.group_offsets import (
    clamp_offsets,
    ends_of,
    offsets_beyond,
    offsets_of_renamed,
    read_offsets,
)
from kafka_index.commands.restore.log_ends import (
    BackupSource,
    check_offsets,
    check_reached,
    check_times,
    cleaned_after,
    following_backup,
    open_transactions,
)
from kafka_index.commands.restore.lost_markers import TransactionSearch
from kafka_index.commands.restore.output_files import (
    choose_link,
    disable_startup,
    last_files,
    make_directory,
    write_checkpoints,
)
from kafka_index.commands.restore.plan import (
    PartitionPlan,
    RestorePlan,
    as_begun,
    plan_restore,
    read_source_cluster,
    refuse_shared_ids,
    without_strays,
)
from kafka_index.commands.restore.request import ClusterMode, Link, RestoreRequest
from kafka_index.commands.restore.restore_partition import PartitionSettings, Runner, restore_on
from kafka_index.commands.restore.restored_partition import (
    NO_LOGS,
    STATE_FILE,
    GroupOffset,
    Journal,
    RestoredPartition,
    RestoreState,
    restore_state,
)
from kafka_index.commands.restore.result import RestoreResult, RunbookFacts, dropped_text, runbook
from kafka_index.commands.restore.seed import (
    NOT_IN_DUMP,
    SeedDirectory,
    check_seed,
    one_cluster,
    partitions_not_in_dump,
    plan_seeding,
    refuse_used,
    write_seed,
)
from kafka_index.core.cluster.replicas import Dump, read_dumps
from kafka_index.core.errors import CorruptObjectError, InputError, plural
from kafka_index.core.format.names import (
    BOOTSTRAP_CHECKPOINT,
    BROKER_LOCK,
    CLEAN_SHUTDOWN,
    CLEANER_CHECKPOINT,
    CLUSTER_METADATA_TOPIC,
    CONSUMER_OFFSETS_TOPIC,
    FIRST_SNAPSHOT,
    LOG_START_CHECKPOINT,
    LOG_SUFFIX,
    META_PROPERTIES,
    METADATA_LOG,
    RECOVERY_POINT_CHECKPOINT,
    REPLICATION_CHECKPOINT,
    TopicPartition,
    segment_file_name,
)
from kafka_index.core.fs.durable_files import publishing
from kafka_index.core.fs.inputs import Skipped, reading_inputs, skipped_texts, unread_texts
from kafka_index.core.fs.paths import local_path, with_links
from kafka_index.core.fs.registry import store_of
from kafka_index.core.job.engine import SILENT, Engine, Listener
from kafka_index.core.job.result import ReportSink
from kafka_index.core.log.append.log_segment_writer import system_clock
from kafka_index.core.log.append.settings import log_settings_of
from kafka_index.core.log.filter.selection import Selection, records_by_line
from kafka_index.core.log.scan.file_records import open_log
from kafka_index.core.log.scan.log_offsets import SegmentSpan, split_segment
from kafka_index.core.logdir.metadata_files import read_properties
from kafka_index.core.logdir.partition_files import SegmentFile
from kafka_index.core.logdir.segment_table import PartitionSegments
from kafka_index.core.output.output import STAGING, Output, remove_directory
from kafka_index.core.parameters import KafkaSettings, topics_text
from kafka_index.core.records.batch_table import OFFSET_OVERFLOW
from kafka_index.core.records.decompression import DecompressionBudget, shared_budget
from kafka_index.core.records.record_sections import Decompressor
from kafka_index.core.startup.metadata_log import (
    why_not_metadata_log,
    why_not_quorum_state,
    why_not_snapshots,
)

#: What `kafka-storage.sh format` writes.
_FORMATTED = frozenset({META_PROPERTIES, BOOTSTRAP_CHECKPOINT, METADATA_LOG})
#: What seeding adds, where the directory is that of the metadata log, too.
_SEEDED = frozenset({BOOTSTRAP_CHECKPOINT + ".orig"})
# Files of runs that ended before they had a plan.
_OURS = re.compile(r"\.(kafka-index[A-Za-z0-9_.-]+|[A-Za-z._-]+\.tmp)")
_ROOT_FILES = frozenset(
    {
        META_PROPERTIES,
        CLEAN_SHUTDOWN,
        RECOVERY_POINT_CHECKPOINT,
        REPLICATION_CHECKPOINT,
        LOG_START_CHECKPOINT,
        CLEANER_CHECKPOINT,
    }
)


@dataclass(frozen=True, slots=True)
class RestoreTarget:
    """A directory that a restore may write."""

    path: str
    begun: RestoreState | None
    properties: Mapping[str, str]


def check_output(plan: RestorePlan) -> RestoreTarget:
    """Check the output directory, and make it if it is missing."""
    read = inputs_of(plan.request, plan.dump)
    hint = "choose another --output"
    path = directory_to_write(plan.request.output, "the output", read, hint=hint)
    if os.path.isdir(path):
        found = _as_found(path, plan)
        if found.begun is not None:
            return found
    store_of(path).make_writable_directory(path)
    return RestoreTarget(path, None, _properties(path))


def check_again(output: RestoreTarget, plan: RestorePlan) -> RestoreTarget:
    """Check an output directory again after its lock is taken.

    Another run, or a broker, may have used it between the check and the lock.
    """
    # No look at the broker's lock: closing that file would let go of it.
    found = _as_found(output.path, plan)
    has_begun_since = found.begun is not None and output.begun is None
    if found.properties != output.properties and not has_begun_since:
        raise InputError(
            "the output has changed since it was checked",
            path=output.path,
            hint="is another restore running? run this one again",
        )
    return found


def _as_found(path: str, plan: RestorePlan) -> RestoreTarget:
    names = set(os.listdir(path))
    if STATE_FILE in names:
        return _resumed(path, names, plan)
    _refuse_foreign(path, names)
    return RestoreTarget(path, None, _properties(path))


def _resumed(path: str, names: set[str], plan: RestorePlan) -> RestoreTarget:
    begun = restore_state(path).read()
    if begun is None or begun.inputs != plan.digest:
        raise InputError(
            "the output holds a restore of another plan",
            path=path,
            hint="give the same input and options to complete it, or choose an empty --output",
        )
    partitions = {each.partition.directory_name for each in plan.partitions}
    foreign = {
        name
        for name in names.difference(_FORMATTED, _SEEDED, _ROOT_FILES, partitions, {BROKER_LOCK})
        if not _is_ours(name)
    }
    if foreign:
        raise InputError(
            "the output contains a restore and a file that the restore did not write",
            path=path,
            found=min(foreign),
            hint="was a broker started on it? choose another --output",
        )
    return RestoreTarget(path, begun, _properties(path))


def _refuse_foreign(path: str, names: set[str]) -> None:
    """Refuse a directory with files that neither formatting nor a killed run writes."""
    for name in sorted(names):
        if name == BROKER_LOCK or _is_ours(name):
            continue
        if name not in _FORMATTED or not _is_formatted(path, name):
            raise InputError(
                "the output is not empty",
                path=path,
                found=name,
                hint="nothing was written; choose another --output, or empty it",
            )


def _is_ours(name: str) -> bool:
    """Return whether a killed run may have left an entry of this name."""
    return (_OURS.fullmatch(name) or STAGING.fullmatch(name)) is not None


def _is_formatted(path: str, name: str) -> bool:
    place = os.path.join(path, name)
    if name != METADATA_LOG:
        return os.path.isfile(place)
    return os.path.isdir(place) and set(os.listdir(place)) <= {FIRST_SNAPSHOT}


def _properties(path: str) -> dict[str, str]:
    place = os.path.join(path, META_PROPERTIES)
    if os.path.exists(place):
        # After an unfinished restore was formatted again, the new identity counts.
        refuse_identity(path, "format the output again")
        return read_properties(place) or {}
    return read_properties(last_files(path).hidden(META_PROPERTIES)) or {}


def refuse_unknown_topics(request: RestoreRequest, plan: RestorePlan) -> None:
    """Refuse settings of topics that are not restored, or that no broker would load."""
    topics = {each.partition.topic for each in plan.partitions}
    for topic, configs in request.topic_configs.items():
        if topic not in topics:
            raise InputError(
                "--topic-config names a topic that is not restored",
                found=topic,
                hint="after --rename, give the new name",
            )
        check_topic_configs(configs)


def inputs_of(request: RestoreRequest, dump: Dump) -> list[str]:
    """Return the inputs as given, and the directories that they contain."""
    remote = () if request.tiered is None else request.tiered.uris
    directories = (*(each.directory for each in dump.all_replicas), *dump.metadata_logs)
    # A directory may be a link that leads elsewhere; remote ones are nowhere near the output.
    return [*request.inputs, *remote, *with_links(directories)]


def fresh_cluster_identity(
    request: RestoreRequest, dump: Dump, output: RestoreTarget, seeds: Sequence[SeedDirectory]
) -> Identity:
    """Return the identity of the output in a fresh cluster."""
    if not seeds:
        return Identity(output.properties or dump_identity(dump))
    cluster_id = one_cluster(seeds, output.properties.get(CLUSTER_ID))
    if output.properties:
        if DIRECTORY_ID not in output.properties:
            raise InputError(
                "the output has no directory.id, by which the cluster knows where partitions are",
                path=output.path,
                hint="format it again, with the kafka-storage.sh of the cluster",
            )
        return Identity(output.properties)
    nodes = {each.properties.get(NODE_ID, "") for each in seeds}
    node_id = nodes.pop() if len(nodes) == 1 else ""
    if request.node_id is not None:
        node_id = str(request.node_id)
    if not node_id:
        raise InputError(
            "it is not known which broker gets the output",
            path=request.output,
            hint="format the output as a log directory of that broker, or give --node-id",
        )
    return Identity(fresh_identity(cluster_id, node_id))


def same_cluster_identity(request: RestoreRequest, dump: Dump, old: SourceCluster) -> Identity:
    """Return the identity of the output in the cluster of the dump; refuse a choice of topics."""
    if request.topics is not None:
        raise InputError(
            "--topics is for --cluster fresh",
            hint="the metadata of the same cluster has all topics: those that are left out would "
            "begin empty",
        )
    _refuse_metadata_log(dump, request)
    offsets = None if old.image is None else old.image.topic_named(CONSUMER_OFFSETS_TOPIC)
    replicas = () if offsets is None else tuple(offsets.partitions.values())
    # Each replica would get its records at its own end: they diverge within a leader epoch.
    if request.clamp_groups and any(len(each.replicas) > 1 for each in replicas):
        raise InputError(
            "--clamp-groups writes to one replica, and __consumer_offsets has several",
            hint="restore without it, and set the offsets that are named beyond_end with "
            "kafka-consumer-groups.sh once the brokers run",
        )
    return same_identity(dump, old.image, all_brokers_restored=request.all_brokers_restored)


def _refuse_metadata_log(dump: Dump, request: RestoreRequest) -> None:
    """Refuse a metadata log that no node starts on."""
    for path in dump.metadata_logs:
        if not store_of(path).hosts_brokers:
            refusal = why_not_snapshots(path) or why_not_quorum_state(path)
        else:
            settings = log_settings_of(request.log_config, CLUSTER_METADATA_TOPIC)
            refusal = why_not_metadata_log(os.path.dirname(path), settings, system_clock)
        if refusal is not None:
            raise InputError(
                f"no node starts on this metadata log: {refusal.reason}",
                path=refusal.file,
                hint="take that of another controller, or restore to a fresh cluster",
            )


def check_same_output(
    request: RestoreRequest, dump: Dump, output: RestoreTarget, identity: Identity
) -> None:
    """Check the output directories for the cluster of the dump."""
    is_begun = output.begun is not None
    if output.properties and (not is_begun or output.properties != identity.properties):
        raise InputError(
            "the output is formatted, and the same cluster has an identity already",
            path=output.path,
            hint="give an empty --output",
        )
    if is_separate(dump) and request.metadata_output is None:
        raise InputError(
            "the metadata log has a directory of its own in the dump",
            path=dump.metadata_logs[0],
            hint="give --metadata-output DIR, an empty directory that becomes metadata.log.dir",
        )
    if request.metadata_output is not None:
        given, read = request.metadata_output, [*inputs_of(request, dump), output.path]
        hint = "give another --metadata-output"
        path = directory_to_write(given, "the metadata output", read, hint=hint)
        refuse_used_metadata(dump, path, is_begun=is_begun)


_COPIED_BYTES = 16 << 20


def has_overflowed(restored: RestoredPartition) -> bool:
    """Return whether a restored partition lacks batches whose offsets are too far apart."""
    codes = {restored.code, *(each.code for each in restored.lost)}
    return OFFSET_OVERFLOW in codes or (restored.reason or "").startswith(OFFSET_OVERFLOW)


@dataclass(frozen=True, slots=True)
class SegmentSplitter:
    """Splits the segments of partitions into logs in a folder.

    `originals` has the paths of the logs that the new ones were split from.
    """

    folder: str
    decompressor: Decompressor
    originals: dict[str, str] = field(default_factory=dict)

    def split(self, plan: PartitionPlan) -> PartitionPlan:
        """Return a plan whose base copy has the segments that a broker makes."""
        try:
            segments = [
                each for segment in plan.base.segments.files() for each in self._segments(segment)
            ]
        except CorruptObjectError:
            # The offsets are too far apart because an object of a backup is damaged there.
            return plan
        if not any(each.log_path in self.originals for each in segments):
            return plan
        return replace(plan, base=replace(plan.base, segments=PartitionSegments.of(segments)))

    def _segments(self, segment: SegmentFile) -> Iterator[SegmentFile]:
        spans = split_segment(segment, self.decompressor)
        if not spans:
            yield segment
            return
        directory = os.path.join(self.folder, segment.topic_partition.directory_name)
        make_directory(self.folder)
        make_directory(directory)
        for span in spans:
            path = os.path.join(directory, segment_file_name(span.base_offset, LOG_SUFFIX))
            with publishing(path, "split a segment"):
                _copy(segment, span, path)
                os.utime(path, ns=(segment.log_mtime_ns, segment.log_mtime_ns))
                copied = segment.copied_to(path, os.stat(path))
            self.originals[path] = segment.log_path
            is_last = segment.is_last and span is spans[-1]
            yield replace(copied, base_offset=span.base_offset, is_last=is_last)

    def name_originals(self, restored: RestoredPartition) -> None:
        """Replace split logs by the original logs in the losses of a partition."""
        restored.lost = [
            replace(each, path=self.originals[each.path], position_bytes=None)
            if each.path in self.originals
            else each
            for each in restored.lost
        ]


def _copy(segment: SegmentFile, span: SegmentSpan, path: str) -> None:
    with closing(open_log(segment.log_path, segment)) as log, open(path, "wb") as file:
        for at in range(span.start_bytes, span.end_bytes, _COPIED_BYTES):
            size = min(_COPIED_BYTES, span.end_bytes - at)
            file.write(log.read_at(at, size).data)


OnRestored = Callable[[RestoredPartition], None]


def restore(
    request: RestoreRequest,
    engine: Engine,
    listener: Listener | None = None,
    report: ReportSink | None = None,
) -> RestoreResult:
    """Restore the dumps of a request; a partition that fails is a row of the result.

    The report is in its place before a broker can start on the output. Raises `KafkaIndexError` if
    the restore is refused, or the output cannot be written.
    """
    follower = listener or SILENT
    with reading_inputs(follow_links=request.follow_links) as unread:
        job = RestoreJob.prepare(request)
        return job.run(restore_on(engine, follower), follower, report, unread)


def restore_logs(
    plan: RestorePlan,
    output: RestoreTarget,
    held: Output,
    identity: Identity,
    link: Link,
    *,
    runner: Runner,
    on_restored: OnRestored,
) -> list[RestoredPartition]:
    """Restore the partitions of a plan; keep those that an earlier run has finished.

    No file at the root of the output is written but those of the run, and those that wait.
    """
    journal = Journal(output.path)
    finished = {} if output.begun is None else journal.finished()
    if output.begun is None:
        until_ms = plan.request.until.time_ms
        state = RestoreState(inputs=plan.digest, topic_ids=dict(plan.made_ids), until_ms=until_ms)
        state.begin(output.path)
    # The run before may have been killed after its last step.
    disable_startup(output.path, identity.properties, identity.broker_epoch)
    unfinished = [each for each in plan.partitions if each.partition not in finished]
    for each in unfinished:
        remove_directory(os.path.join(output.path, each.partition.directory_name))
    settled: list[RestoredPartition] = []

    def settle(group: Iterable[RestoredPartition]) -> None:
        for restored in group:
            settled.append(restored)
            on_restored(restored)

    def finish(group: Sequence[RestoredPartition]) -> None:
        journal.add(group)
        settle(group)

    settle(finished.values())
    if unfinished:
        runner(unfinished, _partition_settings(plan, held, link), finish)
    settle(
        RestoredPartition(
            partition,
            directory,
            "",
            code=NO_LOGS,
            reason=f"{directory}: the directory holds no log",
        )
        for partition, directory in plan.without_logs.items()
    )
    held.remove_staging()
    return sorted(settled, key=lambda each: each.partition)


@dataclass(frozen=True, slots=True)
class RestoredAgain:
    """Partitions that are restored a second time, with segments to split or transactions to edit.

    The split segments are in a folder of the output.
    """

    plan: RestorePlan
    held: Output
    link: Link
    runner: Runner

    def restore(
        self, plans: Sequence[PartitionPlan], partitions: Sequence[RestoredPartition]
    ) -> list[RestoredPartition]:
        """Restore some partitions again; return all partitions."""
        if not plans:
            return list(partitions)
        path = self.held.root
        journal = Journal(path)
        found = {each.partition: each for each in partitions}
        for each in plans:
            journal.reopen(found[each.partition])
            remove_directory(os.path.join(path, each.partition.directory_name))
        budget = shared_budget(self.plan.request.max_decompressed_bytes)
        splitter = SegmentSplitter(os.path.join(self.held.make_staging(), "split"), budget)

        def finish(group: Sequence[RestoredPartition]) -> None:
            for each in group:
                splitter.name_originals(each)
            journal.add(group)
            found.update((each.partition, each) for each in group)

        settings = _partition_settings(self.plan, self.held, self.link)
        self.runner(list(map(splitter.split, plans)), settings, finish)
        self.held.remove_staging()
        return list(found.values())


def _partition_settings(plan: RestorePlan, held: Output, link: Link) -> PartitionSettings:
    request = plan.request
    return PartitionSettings(
        held.root,
        held.staging,
        request.log_config,
        request.salvage,
        link,
        Selection(request.drop_keys) if request.drop_keys else None,
        request.max_decompressed_bytes,
    )


def write_root(plan: RestorePlan, output: str, partitions: Iterable[RestoredPartition]) -> None:
    """Write the checkpoints at the root of an output whose partitions are restored."""
    kept = [each for each in partitions if not each.is_left_out]
    cleaned_to = {each.partition: each.cleaned_to for each in plan.partitions}
    cleaned = {}
    for each in kept:
        offset = cleaned_to[each.partition]
        if offset is not None and each.log_start_offset <= offset <= each.log_end_offset:
            cleaned[each.partition] = offset
    write_checkpoints(
        output,
        {each.partition: each.log_end_offset for each in kept},
        {
            each.partition: each.log_start_offset
            for each in kept
            if each.log_start_offset > each.base_offset
        },
        cleaned,
    )


@dataclass(frozen=True, slots=True)
class RestoreJob:
    """A restore whose checks have passed."""

    request: RestoreRequest
    plan: RestorePlan
    old: SourceCluster
    output: RestoreTarget
    seeds: Sequence[SeedDirectory]
    identity: Identity
    strays: Sequence[RestoredPartition] = ()
    missed: Sequence[RestoredPartition] = ()

    @classmethod
    def prepare(cls, request: RestoreRequest) -> RestoreJob:
        """Check everything; only the output directory is made."""
        request = following_backup(request)
        run = BackupSource.of(request)
        dump = read_dumps(request.inputs, request.tiered, topics=request.topics)
        if request.until.time_ms is not None and not request.create_time:
            check_times(dump)
        check_offsets(dump, request.until)
        old = read_source_cluster(request, dump)
        settings = old.settings(request.log_config, dump, request.renames)
        request = replace(request, config=KafkaSettings(settings, request.config.properties))
        if run is not None:
            request = run.prepare(request, dump, old)
        plan = plan_restore(request, dump, old)
        check_reached(request.until, [each.base for each in plan.partitions])
        refuse_unknown_topics(request, plan)
        strays: list[RestoredPartition] = []
        is_same = request.cluster is ClusterMode.SAME
        if is_same:
            identity = same_cluster_identity(request, dump, old)
            if old.image is not None:
                plan, strays = without_strays(plan, old.image, identity.properties)
        else:
            refuse_shared_ids(plan)
        output = check_output(plan)
        if output.begun is not None:
            plan = as_begun(plan, output.begun.topic_ids, output.begun.until_ms)
        inputs = inputs_of(request, dump)
        seeds = [
            check_seed(
                path, inputs, output.properties if os.path.realpath(path) == output.path else None
            )
            for path in request.seeds
        ]
        if is_same:
            check_same_output(request, dump, output, identity)
        else:
            identity = fresh_cluster_identity(request, dump, output, seeds)
        missed = [] if run is None else run.missing(request, old.image)
        return cls(request, plan, old, output, seeds, identity, strays, missed)

    def run(
        self,
        runner: Runner,
        listener: Listener = SILENT,
        report: ReportSink | None = None,
        unread: Mapping[str, Skipped] | None = None,
    ) -> RestoreResult:
        """Restore. `unread` gets the files of the input that are not read meanwhile."""
        sizes = {each.partition: each.size_bytes for each in self.plan.partitions}
        listener.on_plan(len(sizes), sum(sizes.values()), ("partition", "partitions"))

        def on_restored(restored: RestoredPartition) -> None:
            listener.on_done(1, sizes.get(restored.partition, 0))

        others = [each.path for each in self.seeds]
        separate = self._metadata_output
        if separate is not None:
            make_directory(separate)
            others.append(separate)
        with Output.of_data_directory(self.output.path, others=others) as held:
            job = self._as_it_is_now()
            result = job.restore(held, runner, on_restored, unread or {})
            if report is not None:
                job.write_report(result, report)
            if result.runbook is not None:
                job.enable_startup()
            return result

    def write_report(self, result: RestoreResult, report: ReportSink) -> None:
        """Put the report in its place, with the runbook next to it."""
        plans = self.plan.partitions
        report.add_segments(PartitionSegments.of(each.segments()).rows() for each in plans)
        report.write_table(result.to_arrow())
        runbook = {} if result.runbook is None else {".runbook.txt": result.runbook}
        report.publish(result.conclusion, runbook)

    @property
    def _metadata_output(self) -> str | None:
        """The directory of the metadata log; None if it has no directory of its own."""
        given = self.request.metadata_output
        return None if given is None else os.path.realpath(local_path(given))

    @property
    def _metadata_directory(self) -> str | None:
        """The directory with the metadata log of the cluster; None if it is unknown."""
        if self.request.cluster is ClusterMode.SAME:
            return self._metadata_output or self.output.path
        return self.seeds[0].path if self.seeds else None

    def _as_it_is_now(self) -> RestoreJob:
        """Return the job after a second check of the output, whose lock is held."""
        output = check_again(self.output, self.plan)
        if self._metadata_output is not None:
            is_begun = output.begun is not None
            refuse_used_metadata(self.plan.dump, self._metadata_output, is_begun=is_begun)
        for seed in self.seeds:
            refuse_used(seed)
        if output.begun is None:
            return replace(self, output=output)
        return replace(
            self,
            output=output,
            plan=as_begun(self.plan, output.begun.topic_ids, output.begun.until_ms),
            identity=replace(
                self.identity, properties=output.properties or self.identity.properties
            ),
        )

    def restore(
        self,
        held: Output,
        runner: Runner,
        on_restored: OnRestored,
        unread: Mapping[str, Skipped],
    ) -> RestoreResult:
        """Restore all but the files that let a broker start."""
        request, plan, output = self.request, self.plan, self.output
        # A link that is refused has to leave no plan, which would keep other options out.
        link = choose_link(request.link, plan.partitions[0].segments()[0], held.make_staging())
        partitions = restore_logs(
            plan, output, held, self.identity, link, runner=runner, on_restored=on_restored
        )
        open_producers: Mapping[TopicPartition, Sequence[int]] = {}
        if not any(each.retriable for each in partitions):
            again = RestoredAgain(plan, held, link, runner)
            overflowed = {each.partition for each in partitions if has_overflowed(each)}
            plans = [each for each in plan.partitions if each.partition in overflowed]
            partitions = again.restore(plans, partitions)
            found = TransactionSearch(plan, partitions, output.path, self._only_here()).run()
            partitions = again.restore(found.edited, partitions)
            open_producers = found.open_producers
        if any(each.retriable for each in partitions):
            return self._result(partitions, link, unread)
        known = {each.partition for each in (*partitions, *self.strays, *self.missed)}
        missing = [
            RestoredPartition(
                each, "", "", code=NOT_IN_DUMP, reason="no dump has this partition; it begins empty"
            )
            for each in self._not_in_dump()
            if each not in known
        ]
        for each in (*self.strays, *self.missed, *missing):
            partitions.append(each)
            on_restored(each)
        partitions.sort(key=lambda each: each.partition)
        beyond_end, not_renamed = self._group_offsets(partitions, held)
        notes = [
            *self._not_asked_for(partitions),
            *plan.dump.notes,
            *self.old.notes,
            *self._cut_apart(partitions),
            *self._open_at_end(partitions, open_producers),
        ]
        if self.seeds:
            seeding = plan_seeding(
                plan, partitions, self.old, request.topic_configs, self.identity.properties
            )
            notes += seeding.notes
            for seed in self.seeds:
                write_seed(seed, seeding)
        if request.cluster is ClusterMode.SAME:
            copy_metadata(plan.dump, self._metadata_output or output.path)
        write_root(plan, output.path, partitions)
        result = replace(
            self._result(partitions, link, unread),
            beyond_end=beyond_end,
            not_renamed=not_renamed,
            lacks_metadata=request.cluster is ClusterMode.SAME and self.old.is_damaged,
            next_command=self._prediction(),
        )
        facts = RunbookFacts(
            link,
            self.identity,
            notes,
            request.cluster,
            [each.path for each in self.seeds],
            self.old.groups_of(set(plan.made_ids).difference(request.renames.values())),
            request.renames,
            self.old.run,
            self._metadata_directory,
        )
        return replace(result, runbook=runbook(result, facts))

    def _result(
        self,
        partitions: Sequence[RestoredPartition],
        link: Link,
        unread: Mapping[str, Skipped],
    ) -> RestoreResult:
        """Return the result of partitions, without a runbook."""
        request = self.request
        kept = [each.dropped_by_key for each in partitions if not each.is_left_out]
        return RestoreResult(
            partitions,
            None,
            self.output.path,
            clamps=request.clamp_groups,
            until=self.plan.request.until.end_text,
            of_topics=topics_text(request.topics),
            records_by_line=records_by_line(request.drop_keys, kept),
            has_hard_links=link is Link.HARD,
            skipped=skipped_texts(self.plan.dump.skipped),
            unread=(*unread_texts(unread), *(one for each in partitions for one in each.unread)),
        )

    def _prediction(self) -> str:
        """Return the command that predicts the start of a broker on the output."""
        metadata = self._metadata_directory
        more = "" if metadata is None else f" --metadata {metadata}"
        return f"kafka-index predict --input {self.output.path}{more}"

    def enable_startup(self) -> None:
        """Write what lets a broker start: its identity, and last the clean shutdown file."""
        if self.request.cluster is ClusterMode.SAME and is_separate(self.plan.dump):
            copy_metadata_identity(self.plan.dump, self._metadata_output or self.output.path)
        last_files(self.output.path).publish()

    def _not_asked_for(self, partitions: Iterable[RestoredPartition]) -> Iterator[str]:
        """Yield notes of what the request excludes. Other losses have rows."""
        until = self.request.until
        limited = [each.partition for each in partitions if each.is_limited]
        clamped = [each for each in limited if each in until.clamps]
        if limited and until.is_given:
            yield f"logs that end early, as --until asks for: {len(limited)}"
        elif clamped:
            yield (
                "logs that end before transactions that began or ended around the cutoff: "
                f"{len(clamped)}"
            )
        if self.request.drop_keys:
            yield dropped_text(partitions)
        if self.request.topics is not None:
            yield f"topics that do not match {self.request.topics.pattern!r} were not looked at"
        if skipped := self.plan.dump.skipped:
            yield (
                f"entries that a broker would not load were not restored: {len(skipped)}, the "
                f"first {skipped[0].shown}: {skipped[0].reason}"
            )

    def _cut_apart(self, partitions: Iterable[RestoredPartition]) -> list[str]:
        """Return notes of compacted logs that end before an offset that was cleaned."""
        if not self.request.until.is_given:
            return []
        cleaned_to = {each.partition: each.cleaned_to or 0 for each in self.plan.partitions}
        return cleaned_after(
            {
                each.partition: (cleaned_to[each.partition], each.log_end_offset)
                for each in partitions
                if each.is_limited
            }
        )

    def _open_at_end(
        self,
        partitions: Iterable[RestoredPartition],
        unended: Mapping[TopicPartition, Sequence[int]],
    ) -> list[str]:
        """Return the transactions that are open at truncated ends, or have no coordinator."""
        edited = sum(each.is_edited for each in partitions)
        notes = []
        if edited:
            notes.append(
                "transactions without a marker were ended or dropped in "
                f"{plural(edited, 'partition')}; the report lists the offset of each new marker"
            )
        until, cut = self.request.until, {}
        # With --consistent, coordinators end all of them.
        if until.is_given and not until.is_consistent:
            cut = {each.partition: each.open_producers for each in partitions if each.is_limited}
        if not any((*cut.values(), *unended.values())):
            return notes
        transactions = read_transactions(self.output.path, self._budget())
        return [*notes, *open_transactions(cut, unended, transactions)]

    def _only_here(self) -> Container[TopicPartition] | None:
        """Return the partitions without replicas elsewhere; None if no partition has any."""
        if self.request.cluster is not ClusterMode.SAME:
            return None
        image = self.old.image
        return () if image is None else partitions_only_here(image, self.identity.properties)

    def _group_offsets(
        self, partitions: Sequence[RestoredPartition], held: Output
    ) -> tuple[list[GroupOffset], list[GroupOffset]]:
        """Return the offsets that groups committed after the ends of logs, clamped if asked.

        The others are those of renamed topics, under the old names.
        """
        request, output = self.request, self.output.path
        left: list[GroupOffset] = []
        not_renamed: list[GroupOffset] = []
        empty = self._begin_empty(partitions)
        is_cut = bool(empty) or any(each.is_limited or each.lost for each in partitions)
        if is_cut or request.clamp_groups or request.renames:
            ends = ends_of(partitions, empty)
            groups = read_offsets(output, partitions, self._budget())
            not_renamed = offsets_of_renamed(groups, request.renames, ends)
            groups = offsets_beyond(groups, ends)
            if request.clamp_groups:
                left = clamp_offsets(held, ends, groups, request.log_config)
            elif is_cut:
                left = [one for each in groups for one in each.beyond_end(ends, "")]
        return [*(one for each in partitions for one in each.clamped), *left], not_renamed

    def _budget(self) -> DecompressionBudget:
        return shared_budget(self.request.max_decompressed_bytes)

    def _not_in_dump(self) -> Sequence[TopicPartition]:
        """Return the partitions that the cluster places in the output; the dump may lack them."""
        image = self.old.image
        if self.seeds:
            return partitions_not_in_dump(self.plan, self.old)
        if self.request.cluster is ClusterMode.SAME and image is not None:
            return partitions_placed_here(image, self.identity.properties)
        return []

    def _begin_empty(self, partitions: Sequence[RestoredPartition]) -> list[TopicPartition]:
        """Return the skipped partitions that start empty in the new cluster."""
        left_out = [each.partition for each in partitions if each.is_left_out]
        image = self.old.image
        if self.seeds:
            seeded = {each.partition.topic for each in self.plan.partitions}
            return [each for each in left_out if each.topic in seeded]
        if self.request.cluster is ClusterMode.SAME and image is not None:
            only_here = partitions_only_here(image, self.identity.properties)
            return [each for each in left_out if each in only_here]
        # Who makes the topics decides.
        return []
