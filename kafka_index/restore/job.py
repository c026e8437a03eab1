"""A restore as a whole: all checks first, then the partitions, then the root and the cluster."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from kafka_index.config import DEFAULT_MAX_DECOMPRESSED_BYTES, LogConfig
from kafka_index.errors import InputError
from kafka_index.layout.internal_topics import COMPACTED_INTERNAL_TOPICS
from kafka_index.layout.names import TopicPartition
from kafka_index.records.decompression import shared_budget
from kafka_index.restore.cluster import (
    CLUSTER_ID,
    NODE_ID,
    ClusterMode,
    Identity,
    dump_identity,
    fresh_identity,
    new_uuid,
)
from kafka_index.restore.dump_files import Dump, read_dumps
from kafka_index.restore.log_files import Link
from kafka_index.restore.lost_ranges import Salvage
from kafka_index.restore.old_cluster import OldCluster, read_coordinators
from kafka_index.restore.output import Output, check_again, check_output, make_directory
from kafka_index.restore.partition_restoring import RestoredPartition
from kafka_index.restore.plan import (
    RestoreChoices,
    RestorePlan,
    found_topic_ids,
    plan_restore,
    topics_without_id,
    with_topic_ids,
)
from kafka_index.restore.run import (
    OnRestored,
    Restored,
    Runner,
    complete,
    output_lock,
    restore_logs,
)
from kafka_index.restore.runbook import RunbookFacts, runbook
from kafka_index.restore.same_cluster import (
    check_metadata_output,
    copy_metadata,
    is_separate,
    partitions_placed_here,
    refuse_used_metadata,
    same_identity,
)
from kafka_index.restore.seed_directory import (
    SeedDirectory,
    check_seed,
    one_cluster,
    refuse_used,
)
from kafka_index.restore.seeding import NOT_IN_DUMP, partitions_not_in_dump, plan_seeding
from kafka_index.restore.until import Until, check_offsets, check_times, cut_apart
from kafka_index.storage import refuse_overlap
from kafka_index.stores import is_remote
from kafka_index.tiered.options import TieredOptions


@dataclass(frozen=True, slots=True)
class RestoreRequest:
    """What is to be restored, and how; checked except against the disk.

    Parameters
    ----------
    inputs : sequence of str
        Dumps: data directories, partition directories, metadata log directories, globs.
    output : str
        The data directory to make.
    tiered : TieredOptions, optional
        Where remote segments are.
    topics : re.Pattern, optional
        Only topics that match it in full.
    salvage : Salvage
        What is kept of damaged partitions.
    link : Link
        How logs are taken over.
    log_starts : mapping of TopicPartition to int
        Log starts that count instead of the dump's.
    cluster : ClusterMode
        Whether the output is for a fresh cluster, or for the one of the dump.
    seeds : sequence of str
        Metadata log directories of the controllers of a fresh cluster.
    node_id : int, optional
        The broker of a fresh cluster that gets the output, where nothing else says.
    topic_configs : mapping of str to mapping
        Settings of topics, before those of the old metadata log.
    renames : mapping of str to str
        New names of topics, by the old ones; such a topic gets a new id.
    new_topic_ids : bool
        Whether topics whose id is not known get a new one.
    until : Until
        Up to where partitions are restored.
    goes_by_create_time : bool
        Whether a point in time counts for topics with the timestamps of clients, too.
    metadata_output : str, optional
        For the same cluster: where the metadata log goes if it has a directory of its own.
    all_brokers_restored : bool
        For the same cluster: all of its brokers are restored to one point in time.
    config : LogConfig
        The settings of indexes.
    max_decompressed_bytes : int
        The most that is held of decompressed metadata.
    """

    inputs: Sequence[str]
    output: str
    tiered: TieredOptions | None = None
    topics: re.Pattern[str] | None = None
    salvage: Salvage = Salvage.PREFIX
    link: Link = Link.AUTO
    log_starts: Mapping[TopicPartition, int] = field(default_factory=dict)
    cluster: ClusterMode = ClusterMode.FRESH
    seeds: Sequence[str] = ()
    node_id: int | None = None
    topic_configs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    renames: Mapping[str, str] = field(default_factory=dict)
    new_topic_ids: bool = False
    until: Until = field(default_factory=Until)
    goes_by_create_time: bool = False
    metadata_output: str | None = None
    all_brokers_restored: bool = False
    config: LogConfig = field(default_factory=LogConfig)
    max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES


@dataclass(frozen=True, slots=True)
class RestoreResult:
    """What became of a restore.

    Parameters
    ----------
    partitions : sequence of RestoredPartition
        All of them, sorted.
    runbook : str or None
        What remains to be done; None where the restore has to be run again to be complete.
    output : str
        The output directory.
    """

    partitions: Sequence[RestoredPartition]
    runbook: str | None
    output: str


@dataclass(frozen=True, slots=True)
class RestoreJob:
    """A restore whose checks have passed.

    Parameters
    ----------
    request : RestoreRequest
        What was asked for.
    plan : RestorePlan
        The partitions.
    old : OldCluster
        What is known of the cluster of the dump.
    output : Output
        The output directory.
    seeds : sequence of SeedDirectory
        The controllers to seed.
    identity : Identity
        As what the output is mounted.
    """

    request: RestoreRequest
    plan: RestorePlan
    old: OldCluster
    output: Output
    seeds: Sequence[SeedDirectory]
    identity: Identity

    @classmethod
    def prepare(cls, request: RestoreRequest) -> RestoreJob:
        """Check everything; only the output directory is made.

        Raises
        ------
        KafkaIndexError
            Something is refused, or cannot be read.
        """
        dump = read_dumps(request.inputs, request.tiered, topics=request.topics)
        if request.until.time_ms is not None and not request.goes_by_create_time:
            check_times(dump)
        check_offsets(dump, request.until)
        old = _old_cluster(request, dump)
        plan = plan_restore(dump, _choices(request, dump, old))
        output = _checked_output(request, plan)
        if output.begun is not None:
            plan = with_topic_ids(plan, output.begun.topic_ids)
        seeds = [_checked_seed(path, output, _inputs(request, dump)) for path in request.seeds]
        if request.cluster is ClusterMode.SAME:
            identity = _same_identity(request, dump, old, output)
        else:
            identity = _fresh_identity(request, dump, output, seeds)
        return cls(request, plan, old, output, seeds, identity)

    def run(self, runner: Runner, on_restored: OnRestored) -> RestoreResult:
        """Restore.

        Parameters
        ----------
        runner : callable
            The engine: `on_threads`, or one of `kafka_index.engines`.
        on_restored : callable
            Called with each partition, from one thread at a time.

        Raises
        ------
        KafkaIndexError
            The output cannot be written.
        """
        separate = self._metadata_outputs()
        for path in separate:
            make_directory(path)
        with output_lock(self.output, self.seeds, separate):
            return self._as_it_is_now().run_locked(runner, on_restored)

    def _metadata_outputs(self) -> list[str]:
        """Return the directory of the metadata log, where it has one of its own."""
        given = self.request.metadata_output
        return [] if given is None else [os.path.realpath(given)]

    def _as_it_is_now(self) -> RestoreJob:
        """Return the job for the output as it is since the lock is held."""
        output = check_again(self.output, self.plan.digest, _directory_names(self.plan))
        for path in self._metadata_outputs():
            refuse_used_metadata(self.plan.dump, path, is_begun=output.begun is not None)
        for seed in self.seeds:
            refuse_used(seed)
        if output.begun is None:
            return replace(self, output=output)
        return replace(self, output=output, plan=with_topic_ids(self.plan, output.begun.topic_ids))

    def run_locked(self, runner: Runner, on_restored: OnRestored) -> RestoreResult:
        """Restore as `run` does, with the lock held and the output checked since."""
        request, plan, output = self.request, self.plan, self.output
        restored = restore_logs(
            plan, output, request.config, runner=runner, on_restored=on_restored
        )
        if any(each.retriable for each in restored.partitions):
            return RestoreResult(restored.partitions, None, output.path)
        notes = [*plan.dump.notes, *self.old.notes, *self._cut_apart(restored)]
        seeding = None
        if self.seeds:
            properties = output.properties or self.identity.properties
            seeding = plan_seeding(
                plan, restored.partitions, self.old, request.topic_configs, properties
            )
            notes += seeding.notes
            missing = partitions_not_in_dump(plan, self.old)
            _add_missing(missing, restored, on_restored)
        if request.cluster is ClusterMode.SAME:
            _add_missing(self._placed_here(), restored, on_restored)
            self._copy_metadata()
        contents = [] if seeding is None else [(each, seeding.content) for each in self.seeds]
        complete(plan, output, restored, self.identity, contents)
        facts = RunbookFacts(
            output.path,
            restored.partitions,
            restored.link,
            self.identity,
            bool(output.properties),
            notes,
            request.cluster,
            [each.path for each in self.seeds],
            self.old.groups_of([*plan.choices.topic_ids, *request.renames]),
        )
        return RestoreResult(restored.partitions, runbook(facts), output.path)

    def _cut_apart(self, restored: Restored) -> list[str]:
        """Return what the ends of logs that were asked for cut apart, for people."""
        limited = [each for each in restored.partitions if each.is_limited]
        if not limited:
            return []
        found = read_coordinators(
            self.output.path, shared_budget(self.request.max_decompressed_bytes)
        )
        apart = cut_apart(
            {each.partition: each.log_end_offset for each in limited},
            {each.partition: each.open_producers for each in limited},
            found.offsets or (),
            found.transactions or (),
        )
        return [*apart.offsets, *apart.transactions]

    def _placed_here(self) -> Sequence[TopicPartition]:
        """Return the partitions that the metadata places in the output."""
        image = self.old.image
        return [] if image is None else partitions_placed_here(image, self.identity.properties)

    def _copy_metadata(self) -> None:
        target = next(iter(self._metadata_outputs()), self.output.path)
        separate = is_separate(self.plan.dump)
        copy_metadata(self.plan.dump, target, with_identity=separate)


def _add_missing(
    partitions: Sequence[TopicPartition], restored: Restored, on_restored: OnRestored
) -> None:
    """Add those of the partitions that the cluster has, and no dump."""
    known = {each.partition for each in restored.partitions}
    for partition in partitions:
        if partition not in known:
            missing = RestoredPartition(partition, "", "")
            missing.leave_out(NOT_IN_DUMP, "no dump has this partition; it begins empty")
            restored.partitions.append(missing)
            on_restored(missing)
    restored.partitions.sort(key=lambda each: each.partition)


def _old_cluster(request: RestoreRequest, dump: Dump) -> OldCluster:
    lacks_ids = bool(topics_without_id(dump, found_topic_ids(dump)))
    with_groups = lacks_ids or bool(request.seeds or request.renames)
    return OldCluster.read(
        dump, shared_budget(request.max_decompressed_bytes), with_groups=with_groups
    )


def _choices(request: RestoreRequest, dump: Dump, old: OldCluster) -> RestoreChoices:
    unknown = set(request.log_starts).difference(dump.replicas)
    if unknown:
        name = min(unknown).directory_name
        raise InputError("--log-start names a partition that is not in the input", found=name)
    known = {**old.topic_ids(), **found_topic_ids(dump)}
    missing = topics_without_id(dump, known)
    made = {topic: new_uuid() for topic in missing} if request.new_topic_ids else {}
    made |= {new: new_uuid() for new in request.renames.values()}
    options = (
        request.config,
        request.cluster,
        request.metadata_output and os.path.realpath(request.metadata_output),
        sorted((name, sorted(values.items())) for name, values in request.topic_configs.items()),
    )
    return RestoreChoices(
        salvage=request.salvage,
        link=request.link,
        topic_ids=made,
        known_topic_ids=known,
        log_starts=request.log_starts,
        renames=request.renames,
        until=request.until,
        compacted=COMPACTED_INTERNAL_TOPICS | old.compacted_topics(),
        settings=repr(options),
    )


def _checked_output(request: RestoreRequest, plan: RestorePlan) -> Output:
    inputs = _inputs(request, plan.dump)
    return check_output(request.output, inputs, plan.digest, _directory_names(plan))


def _inputs(request: RestoreRequest, dump: Dump) -> list[str]:
    """Return all that is read: what was given, and what it leads to."""
    remote = () if request.tiered is None else request.tiered.uris
    replicas = (each for copies in dump.replicas.values() for each in copies)
    directories = (*(each.directory for each in replicas), *dump.metadata_logs)
    # A directory may be a link that leads elsewhere; remote ones are nowhere near the output.
    return [*request.inputs, *remote, *(each for each in directories if not is_remote(each))]


def _directory_names(plan: RestorePlan) -> list[str]:
    return [each.partition.directory_name for each in plan.partitions]


def _checked_seed(path: str, output: Output, inputs: Sequence[str]) -> SeedDirectory:
    if is_remote(path):
        raise InputError("a controller has a local directory", path=path)
    hint = "seed the metadata log directory of a fresh cluster"
    refuse_overlap(os.path.realpath(path), path, inputs, hint=hint)
    is_output = os.path.realpath(path) == output.path
    return check_seed(path, output.properties if is_output else None)


def _fresh_identity(
    request: RestoreRequest, dump: Dump, output: Output, seeds: Sequence[SeedDirectory]
) -> Identity:
    if not seeds:
        return Identity({} if output.properties else dump_identity(dump))
    cluster_id = one_cluster(seeds, output.properties.get(CLUSTER_ID))
    if output.properties:
        return Identity({})
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


def _same_identity(
    request: RestoreRequest, dump: Dump, old: OldCluster, output: Output
) -> Identity:
    if request.topics is not None:
        raise InputError(
            "--topics is for --cluster fresh",
            hint="the metadata of the same cluster has all topics: those that are left out would "
            "begin empty",
        )
    identity = same_identity(dump, old.image, all_brokers_restored=request.all_brokers_restored)
    if output.properties and output.begun is None:
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
        read = [*_inputs(request, dump), output.path]
        is_begun = output.begun is not None
        check_metadata_output(dump, request.metadata_output, read, is_begun=is_begun)
    return identity
