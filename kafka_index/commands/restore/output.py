"""The directories of a restore: refused before the first write, checked again when locked."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kafka_index.commands.restore.cluster import (
    CLUSTER_ID,
    DIRECTORY_ID,
    NODE_ID,
    Identity,
    directory_to_write,
    dump_identity,
    fresh_identity,
    is_separate,
    refuse_identity,
    refuse_used_metadata,
    same_identity,
)
from kafka_index.commands.restore.output_files import HIDDEN_PROPERTIES
from kafka_index.commands.restore.plan import RestorePlan, RestoreRequest
from kafka_index.commands.restore.restored_partition import JOURNAL_FILE, BegunPlan, Journal
from kafka_index.commands.restore.seed import SeedDirectory, one_cluster
from kafka_index.commands.restore.source_cluster import OldCluster, check_topic_configs
from kafka_index.core.cluster.replicas import Dump
from kafka_index.core.errors import InputError
from kafka_index.core.format.integers import INT32_MAX
from kafka_index.core.format.names import (
    BOOTSTRAP_CHECKPOINT,
    BROKER_LOCK,
    CLEAN_SHUTDOWN,
    CLEANER_CHECKPOINT,
    CLUSTER_METADATA_TOPIC,
    CONSUMER_OFFSETS_TOPIC,
    FIRST_SNAPSHOT,
    LOG_START_CHECKPOINT,
    META_PROPERTIES,
    METADATA_LOG,
    RECOVERY_POINT_CHECKPOINT,
    REPLICATION_CHECKPOINT,
)
from kafka_index.core.fs.paths import check_target
from kafka_index.core.fs.store import is_remote
from kafka_index.core.log.append.log_segment_writer import system_clock
from kafka_index.core.log.append.settings import log_settings_of
from kafka_index.core.logdir.metadata_files import read_properties
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
class Output:
    """A directory that a restore may write."""

    path: str
    begun: BegunPlan | None
    properties: Mapping[str, str]


def check_output(plan: RestorePlan) -> Output:
    """Check the output directory, and make it if it is missing."""
    read = inputs_of(plan.request, plan.dump)
    hint = "choose another --output"
    path = directory_to_write(plan.request.output, "the output", read, hint=hint)
    if os.path.isdir(path):
        found = _as_found(path, plan)
        if found.begun is not None:
            return found
    check_target(path, [])
    return Output(path, None, _properties(path))


def check_again(output: Output, plan: RestorePlan) -> Output:
    """Return an output directory as it is now that its lock is held.

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


def _as_found(path: str, plan: RestorePlan) -> Output:
    names = set(os.listdir(path))
    if JOURNAL_FILE in names:
        return _resumed(path, names, plan)
    _refuse_foreign(path, names)
    return Output(path, None, _properties(path))


def _resumed(path: str, names: set[str], plan: RestorePlan) -> Output:
    begun = Journal(path).begun()
    if begun is None or begun.digest != plan.digest:
        raise InputError(
            "the output holds a restore of another plan",
            path=path,
            hint="give the same input and options to complete it, or choose an empty --output",
        )
    partitions = {each.partition.directory_name for each in plan.partitions}
    foreign = {
        name
        for name in names.difference(_FORMATTED, _SEEDED, _ROOT_FILES, partitions, {BROKER_LOCK})
        if not _OURS.fullmatch(name)
    }
    if foreign:
        raise InputError(
            "the output contains a restore and a file that the restore did not write",
            path=path,
            found=min(foreign),
            hint="was a broker started on it? choose another --output",
        )
    return Output(path, begun, _properties(path))


def _refuse_foreign(path: str, names: set[str]) -> None:
    """Refuse a directory that holds more than what formatting or a killed run leave."""
    for name in sorted(names):
        if name == BROKER_LOCK or _OURS.fullmatch(name):
            continue
        if name not in _FORMATTED or not _is_formatted(path, name):
            raise InputError(
                "the output is not empty",
                path=path,
                found=name,
                hint="nothing was written; choose another --output, or empty it",
            )


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
    return read_properties(os.path.join(path, HIDDEN_PROPERTIES)) or {}


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
    """Return all that is read: what was given, and what it leads to."""
    remote = () if request.tiered is None else request.tiered.uris
    directories = (*(each.directory for each in dump.all_replicas), *dump.metadata_logs)
    # A directory may be a link that leads elsewhere; remote ones are nowhere near the output.
    return [*request.inputs, *remote, *(each for each in directories if not is_remote(each))]


def fresh_cluster_identity(
    request: RestoreRequest, dump: Dump, output: Output, seeds: Sequence[SeedDirectory]
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
        if not 0 <= request.node_id <= INT32_MAX:
            raise InputError(
                "no broker has this node id", expected=f"0..{INT32_MAX}", found=node_id
            )
    if not node_id:
        raise InputError(
            "it is not known which broker gets the output",
            path=request.output,
            hint="format the output as a log directory of that broker, or give --node-id",
        )
    return Identity(fresh_identity(cluster_id, node_id))


def same_cluster_identity(request: RestoreRequest, dump: Dump, old: OldCluster) -> Identity:
    """Return the identity of the output in its own cluster, which takes all topics."""
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
        if is_remote(path):
            refusal = why_not_snapshots(path) or why_not_quorum_state(path)
        else:
            settings = log_settings_of(request.config, CLUSTER_METADATA_TOPIC)
            refusal = why_not_metadata_log(os.path.dirname(path), settings, system_clock)
        if refusal is not None:
            raise InputError(
                f"no node starts on this metadata log: {refusal.reason}",
                path=refusal.file,
                hint="take that of another controller, or restore to a fresh cluster",
            )


def check_same_output(
    request: RestoreRequest, dump: Dump, output: Output, identity: Identity
) -> None:
    """Check the directories that the same cluster gets back."""
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
