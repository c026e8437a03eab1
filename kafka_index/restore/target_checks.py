"""Where a restore may write, and as what the output is mounted: refused before the first write."""

from __future__ import annotations

import os
from collections.abc import Sequence

from kafka_index.errors import InputError
from kafka_index.layout.integers import INT32_MAX
from kafka_index.restore.cluster import (
    CLUSTER_ID,
    DIRECTORY_ID,
    NODE_ID,
    Identity,
    dump_identity,
    fresh_identity,
)
from kafka_index.restore.dump_files import Dump
from kafka_index.restore.old_cluster import OldCluster
from kafka_index.restore.output import Output, check_output
from kafka_index.restore.plan import RestorePlan
from kafka_index.restore.request import RestoreRequest
from kafka_index.restore.same_cluster import check_metadata_output, is_separate, same_identity
from kafka_index.restore.seed_directory import SeedDirectory, check_seed, one_cluster
from kafka_index.restore.topic_configs import check_topic_configs
from kafka_index.storage import refuse_overlap
from kafka_index.stores import is_remote


def checked_output(request: RestoreRequest, plan: RestorePlan) -> Output:
    """Return the output directory, as `check_output` checks it."""
    inputs = inputs_of(request, plan.dump)
    return check_output(request.output, inputs, plan.digest, directory_names(plan))


def refuse_unknown_topics(request: RestoreRequest, plan: RestorePlan) -> None:
    """Refuse settings of topics that are not restored, or that no broker would load.

    Raises
    ------
    InputError
        A topic is not in the plan.
    ConfigError
        A setting does not exist, or its value is not valid.
    """
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
    replicas = (each for copies in dump.replicas.values() for each in copies)
    directories = (*(each.directory for each in replicas), *dump.metadata_logs)
    # A directory may be a link that leads elsewhere; remote ones are nowhere near the output.
    return [*request.inputs, *remote, *(each for each in directories if not is_remote(each))]


def directory_names(plan: RestorePlan) -> list[str]:
    """Return the names of the partition directories of a plan."""
    return [each.partition.directory_name for each in plan.partitions]


def checked_seed(path: str, output: Output, inputs: Sequence[str]) -> SeedDirectory:
    """Return the directory of a controller to seed, as `check_seed` checks it.

    Raises
    ------
    InputError
        It is remote, overlaps with the input, or cannot be seeded.
    """
    if is_remote(path):
        raise InputError("a controller has a local directory", path=path)
    hint = "seed the metadata log directory of a fresh cluster"
    refuse_overlap(os.path.realpath(path), path, inputs, hint=hint)
    is_output = os.path.realpath(path) == output.path
    return check_seed(path, output.properties if is_output else None)


def fresh_cluster_identity(
    request: RestoreRequest, dump: Dump, output: Output, seeds: Sequence[SeedDirectory]
) -> Identity:
    """Return as what the output is mounted in a fresh cluster.

    Raises
    ------
    InputError
        The seeds are of several clusters, or it is not known which broker gets the output.
    """
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
    """Return as what the output comes back in its own cluster.

    Raises
    ------
    InputError
        What was asked for is not possible there, or the metadata forbids it.
    """
    if request.topics is not None:
        raise InputError(
            "--topics is for --cluster fresh",
            hint="the metadata of the same cluster has all topics: those that are left out would "
            "begin empty",
        )
    return same_identity(dump, old.image, all_brokers_restored=request.all_brokers_restored)


def check_same_output(
    request: RestoreRequest, dump: Dump, output: Output, identity: Identity
) -> None:
    """Check the directories that the same cluster gets back.

    Raises
    ------
    InputError
        One is formatted for another broker, or holds more than what an unfinished restore wrote.
    """
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
        read = [*inputs_of(request, dump), output.path]
        check_metadata_output(dump, request.metadata_output, read, is_begun=is_begun)
