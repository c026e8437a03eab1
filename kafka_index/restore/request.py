"""The request of a restore, and the choices that follow from it and from the dumps."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kafka_index.config import DEFAULT_MAX_DECOMPRESSED_BYTES, LogConfig, choice_of
from kafka_index.dump.replicas import Dump
from kafka_index.errors import ConfigError, InputError
from kafka_index.layout.names import CONSUMER_OFFSETS_TOPIC, TopicPartition
from kafka_index.records.decompression import shared_budget
from kafka_index.restore.cluster import ClusterMode, new_uuid
from kafka_index.restore.log_files import Link
from kafka_index.restore.old_cluster import OldCluster
from kafka_index.restore.plan import RestoreChoices, found_topic_ids, topics_without_id
from kafka_index.restore.restored_partition import Salvage
from kafka_index.restore.until import Until
from kafka_index.tiered.options import TieredOptions


@dataclass(frozen=True, slots=True)
class RestoreRequest:
    """A restore as it was asked for, checked except against the disk.

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
    clamp_groups : bool
        Whether offsets that groups committed after the end of a log become that end.
    metadata_output : str, optional
        For the same cluster: where the metadata log goes if it has a directory of its own.
    all_brokers_restored : bool
        For the same cluster: all of its brokers are restored to one point in time.
    config : LogConfig
        The settings of indexes.
    max_decompressed_bytes : int
        The most that is held of decompressed metadata.

    Raises
    ------
    ConfigError
        A choice does not exist, or excludes another one.
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
    clamp_groups: bool = False
    metadata_output: str | None = None
    all_brokers_restored: bool = False
    config: LogConfig = field(default_factory=LogConfig)
    max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES

    def __post_init__(self) -> None:
        for name, kind in _CHOICES.items():
            object.__setattr__(self, name, choice_of(kind, getattr(self, name), name))
        for mode, options in _OPTIONS_OF.items():
            for name, option in options.items():
                if getattr(self, name) and self.cluster is not mode:
                    raise ConfigError(f"{option} is for --cluster {mode}")
        if self.topic_configs and not self.seeds:
            raise ConfigError("--topic-config requires --seed")


_CHOICES = {"salvage": Salvage, "link": Link, "cluster": ClusterMode}
_OPTIONS_OF = {
    ClusterMode.FRESH: {
        "seeds": "--seed",
        "new_topic_ids": "--new-topic-ids",
        "renames": "--rename",
    },
    ClusterMode.SAME: {
        "metadata_output": "--metadata-output",
        "all_brokers_restored": "--all-brokers-restored",
    },
}


def read_old_cluster(request: RestoreRequest, dump: Dump) -> OldCluster:
    """Read the cluster of the dumps, as far as the request needs it."""
    lacks_ids = bool(topics_without_id(dump, found_topic_ids(dump)))
    with_groups = lacks_ids or bool(request.seeds or request.renames)
    return OldCluster.read(
        dump, shared_budget(request.max_decompressed_bytes), with_groups=with_groups
    )


def choices_of(request: RestoreRequest, dump: Dump, old: OldCluster) -> RestoreChoices:
    """Return the choices of a plan; new topic ids are made here."""
    unknown = set(request.log_starts).difference(dump.replicas)
    if unknown:
        name = min(unknown).directory_name
        raise InputError("--log-start names a partition that is not in the input", found=name)
    if request.clamp_groups and all(each.topic != CONSUMER_OFFSETS_TOPIC for each in dump.replicas):
        raise InputError(
            "--clamp-groups needs the offsets that groups committed",
            expected=CONSUMER_OFFSETS_TOPIC,
            hint="add its partitions to the input, or let --topics match it",
        )
    known = {**old.topic_ids(), **found_topic_ids(dump)}
    missing = topics_without_id(dump, known)
    made = {topic: new_uuid() for topic in missing} if request.new_topic_ids else {}
    made |= {new: new_uuid() for new in request.renames.values()}
    options = (
        request.config,
        request.cluster,
        request.clamp_groups,
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
        policies=old.cleanup_policies(),
        settings=repr(options),
    )
