"""The source cluster, and the identity with which a broker starts on the output.

In a fresh cluster, the identity is taken from a formatted directory, or from the dump. In the same
cluster the metadata log is copied along, and the broker keeps its identity.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from uuid import uuid4

from kafka_index.commands.restore.request import RestoreRequest
from kafka_index.core.cluster.listing import FoundCluster, node_id_of
from kafka_index.core.cluster.metadata.cluster_image import ClusterImage
from kafka_index.core.cluster.metadata.decoding import HIDDEN
from kafka_index.core.cluster.metadata.directory import read_metadata
from kafka_index.core.cluster.metadata.topic_states import CommittedOffset, Transaction
from kafka_index.core.cluster.replicas import Dump, note_of
from kafka_index.core.errors import (
    ConfigError,
    InputError,
    KafkaIndexError,
    is_retriable,
    raise_retriable,
)
from kafka_index.core.format.config import LogConfig, parse_integer
from kafka_index.core.format.integers import INT32_MAX, INT64_MAX, INT64_MIN
from kafka_index.core.format.message_bytes import uuid_text
from kafka_index.core.format.names import (
    CLUSTER_METADATA_TOPIC,
    CONSUMER_OFFSETS_TOPIC,
    METADATA_LOG,
    SHARE_GROUP_STATE_TOPIC,
    TRANSACTION_STATE_TOPIC,
    TopicPartition,
)
from kafka_index.core.format.strings import is_reserved_directory_id
from kafka_index.core.fs.registry import store_of
from kafka_index.core.log.append.log_segment_writer import system_clock
from kafka_index.core.log.append.settings import log_settings_of
from kafka_index.core.logdir.data_directory import DataDirectory
from kafka_index.core.logdir.metadata_files import MetaProperties
from kafka_index.core.records.decompression import DecompressionBudget
from kafka_index.core.startup.identity import check_identity
from kafka_index.core.startup.metadata_log import (
    metadata_log_error,
    quorum_state_error,
    snapshots_error,
)
from kafka_index.core.startup.prediction import Refusal

_INT = {
    "compression.zstd.level": (-(1 << 17), 22),
    "compression.lz4.level": (1, 17),
    "index.interval.bytes": (0, INT32_MAX),
    "max.message.bytes": (0, INT32_MAX),
    "min.insync.replicas": (1, INT32_MAX),
    "segment.bytes": (1 << 20, INT32_MAX),
    "segment.index.bytes": (4, INT32_MAX),
    "delete.retention.ms": (0, INT64_MAX),
    "file.delete.delay.ms": (0, INT64_MAX),
    "flush.messages": (1, INT64_MAX),
    "flush.ms": (0, INT64_MAX),
    "local.retention.bytes": (-2, INT64_MAX),
    "local.retention.ms": (-2, INT64_MAX),
    "max.compaction.lag.ms": (1, INT64_MAX),
    "message.timestamp.after.max.ms": (0, INT64_MAX),
    "message.timestamp.before.max.ms": (0, INT64_MAX),
    "min.compaction.lag.ms": (0, INT64_MAX),
    "retention.bytes": (INT64_MIN, INT64_MAX),
    "retention.ms": (-1, INT64_MAX),
    "segment.jitter.ms": (0, INT64_MAX),
    "segment.ms": (1, INT64_MAX),
}
_BOOLEAN = re.compile("true|false", re.IGNORECASE)
_THROTTLED = re.compile(r"(\*|(\d+:\d+\s*(,\s*\d+:\d+\s*)*)?)")
_TEXT = {
    "cleanup.policy": re.compile(r"(compact|delete)(\s*,\s*(compact|delete))*"),
    "compression.gzip.level": re.compile(r"-1|[1-9]"),
    "compression.type": re.compile("uncompressed|zstd|lz4|snappy|gzip|producer"),
    "follower.replication.throttled.replicas": _THROTTLED,
    "leader.replication.throttled.replicas": _THROTTLED,
    "message.timestamp.type": re.compile("CreateTime|LogAppendTime"),
    "min.cleanable.dirty.ratio": re.compile(r"0(\.\d*)?|1(\.0*)?|\.\d+"),
    "preallocate": _BOOLEAN,
    "remote.log.copy.disable": _BOOLEAN,
    "remote.log.delete.on.disable": _BOOLEAN,
    "remote.storage.enable": _BOOLEAN,
    "unclean.leader.election.enable": _BOOLEAN,
}
#: Of topics whose settings are not known: nothing of them is deleted for its age or size.
_KEEP_ALL = {"retention.ms": "-1", "retention.bytes": "-1"}
_COMPACT = {"cleanup.policy": "compact"}
# As GroupCoordinatorService, TransactionStateManager and ShareCoordinatorService create them.
_INTERNAL = {
    CONSUMER_OFFSETS_TOPIC: _COMPACT
    | {"compression.type": "producer", "segment.bytes": "104857600"},
    TRANSACTION_STATE_TOPIC: _COMPACT
    | {"compression.type": "uncompressed", "segment.bytes": "104857600"},
    SHARE_GROUP_STATE_TOPIC: {
        "cleanup.policy": "delete",
        "compression.type": "producer",
        "retention.ms": "-1",
        "segment.bytes": "104857600",
    },
}


def check_topic_configs(configs: Mapping[str, str]) -> None:
    """Check the settings of a topic; raise `ConfigError` if no broker starts with them."""
    for name, value in configs.items():
        text = value.strip()
        if name in _INT:
            least, most = _INT[name]
            number = parse_integer(text)
            is_valid, expected = number is not None and least <= number <= most, f"{least}..{most}"
        elif name in _TEXT:
            is_valid, expected = _TEXT[name].fullmatch(text) is not None, _TEXT[name].pattern
        else:
            close = difflib.get_close_matches(name, [*_INT, *_TEXT], n=1)
            raise ConfigError(
                f"{name} is not a setting of a topic", hint=f"is it {close[0]}?" if close else None
            )
        if not is_valid:
            raise ConfigError(
                f"{name} has a value with which no broker starts",
                expected=expected,
                found=repr(value),
            )


@dataclass(slots=True)
class SourceCluster:
    """The metadata, committed offsets and notes of the cluster of the dumps."""

    image: ClusterImage | None = None
    offsets: Sequence[CommittedOffset] = ()
    notes: list[str] = field(default_factory=list)
    is_damaged: bool = False
    #: The restored backup and its cutoff, for people; empty for dumps.
    backup: str = ""

    @classmethod
    def read(cls, dump: Dump, budget: DecompressionBudget, *, with_groups: bool) -> SourceCluster:
        """Read the metadata log of dumps and, on request, the committed offsets."""
        cluster = cls()
        latest = -1
        for directory in dump.metadata_logs:
            try:
                found = read_metadata([directory], budget=budget, topics=(CLUSTER_METADATA_TOPIC,))
                raise_retriable(found.faults.first)
            except KafkaIndexError as error:
                cluster.notes.append(note_of(error))
                continue
            cluster.notes += [f"the metadata log: {each}" for each in found.faults.first]
            cluster.is_damaged |= bool(found.faults.first)
            if found.cluster is not None and found.sources[0].end_offset > latest:
                cluster.image, latest = found.cluster, found.sources[0].end_offset
        directories = [
            replicas[0].directory
            for partition, replicas in dump.replicas.items()
            if partition.topic == CONSUMER_OFFSETS_TOPIC
        ]
        if directories and with_groups:
            try:
                found = read_metadata(directories, budget=budget, topics=(CONSUMER_OFFSETS_TOPIC,))
                raise_retriable(found.faults.first)
                cluster.offsets = found.offsets or ()
            except KafkaIndexError as error:
                cluster.notes.append(note_of(error))
        return cluster

    def settings(self, config: LogConfig, dump: Dump, renames: Mapping[str, str]) -> LogConfig:
        """Return the settings of logs; the metadata log fills in settings that are not given."""
        topics = {each.topic for each in dump.replicas}
        cluster = FoundCluster(self.image, node_id=node_id_of(dump.directories.values()))
        assumed = cluster.settings_text(config, topics)
        if assumed is not None:
            self.notes.append(assumed)
        if self.image is None:
            return config
        found = cluster.settings(config)
        # A renamed topic keeps its settings.
        own = {
            new: found.for_topic(old) for old, new in renames.items() if new not in config.topics
        }
        return replace(found, topics={**found.topics, **own})

    def topic_ids(self) -> dict[str, str]:
        """Return the topic IDs in the metadata log, otherwise in committed offsets."""
        ids = {one.topic: one.topic_id for one in self.offsets if one.topic_id is not None}
        if self.image is not None:
            for topic in self.image.topics.values():
                named = self.image.topic_named(topic.name)
                ids[topic.name] = topic.topic_id if named is None else named.topic_id
        return ids

    def committed_epoch(self, partition: TopicPartition) -> int:
        """Return the largest leader epoch that a group committed; -1 for none."""
        epochs = (
            one.leader_epoch
            for one in self.offsets
            if (one.topic, one.partition) == (partition.topic, partition.partition)
        )
        return max((epoch for epoch in epochs if epoch is not None), default=-1)

    def groups_of(self, topics: Iterable[str]) -> dict[str, list[str]]:
        """Return the groups that committed offsets of topics, keyed by topic."""
        wanted = set(topics)
        found: dict[str, set[str]] = {}
        for one in self.offsets:
            if one.topic in wanted:
                found.setdefault(one.topic, set()).add(one.group)
        return {topic: sorted(groups) for topic, groups in sorted(found.items())}

    def cleanup_policies(
        self, properties: Mapping[str, str] | None, dump: Dump
    ) -> dict[str, str | None]:
        """Return the cleanup policies of the topics in the metadata log, None if unknown.

        `properties` are all settings of the broker.
        """
        image, node_id = self.image or ClusterImage(), node_id_of(dump.directories.values())
        return {
            each.name: image.cleanup_policy(each.name, properties, node_id)
            for each in image.topics.values()
        }

    def leader_epoch(self, partition: TopicPartition) -> int:
        """Return the leader epoch in the metadata log; -1 if it is unknown."""
        topic = None if self.image is None else self.image.topic_named(partition.topic)
        image = None if topic is None else topic.partitions.get(partition.partition)
        return -1 if image is None else image.leader_epoch

    def partition_count(self, topic: str) -> int:
        """Return the number of partitions of a topic; 0 if it is unknown."""
        found = None if self.image is None else self.image.topic_named(topic)
        return 0 if found is None else max(found.partitions, default=-1) + 1

    def configs(self, topic: str, given: Mapping[str, str], *, is_compacted: bool) -> TopicConfigs:
        """Return the settings of a topic."""
        if self.image is None:
            assumed = _INTERNAL.get(topic, _KEEP_ALL | (_COMPACT if is_compacted else {}))
            return TopicConfigs({**assumed, **given}, is_assumed=True)
        found = self.image.topic_configs(topic)
        known = {name: value for name, value in found.items() if value != HIDDEN}
        withheld = tuple(sorted(set(found).difference(known, given)))
        return TopicConfigs({**known, **given}, withheld=withheld)

    def next_producer_id(self, largest: int) -> int:
        """Return the first free producer ID; `largest` is the largest ID in the logs."""
        block = None if self.image is None else self.image.producer_ids
        return max(largest + 1, 0 if block is None else block.next_producer_id)


@dataclass(frozen=True, slots=True)
class TopicConfigs:
    """The settings of a topic; `withheld` are the names of sensitive settings without a value."""

    values: Mapping[str, str]
    is_assumed: bool = False
    withheld: tuple[str, ...] = ()


def read_transactions(data: str, budget: DecompressionBudget) -> Sequence[Transaction]:
    """Read the transactions of a data directory; none without ``__transaction_state``."""
    names = (each.rpartition("-")[0] for each in os.listdir(data))
    if TRANSACTION_STATE_TOPIC not in names:
        return ()
    found = read_metadata([data], budget=budget, topics=(TRANSACTION_STATE_TOPIC,))
    raise_retriable(found.faults.first)
    return found.transactions or ()


#: The broker epoch of a clean shutdown file without one; the shutdown was clean all the same.
NO_BROKER_EPOCH = -2
CLUSTER_ID, NODE_ID, DIRECTORY_ID = "cluster.id", "node.id", "directory.id"
VERSION, OLD_NODE_ID = "version", "broker.id"
#: No epoch is known: the broker registers as after an unclean shutdown.
_UNKNOWN_EPOCH = -1


@dataclass(frozen=True, slots=True)
class Identity:
    """The identity of the output: its ``meta.properties``, empty if it must be formatted."""

    properties: Mapping[str, str]
    broker_epoch: int = NO_BROKER_EPOCH


def dump_identity(dump: Dump) -> dict[str, str]:
    """Return the properties of the only broker of a dump; empty if it is unknown."""
    roots = [each for each in dump.roots if each.properties]
    found = [each.properties for each in roots]
    if not found or not _agree(found, (CLUSTER_ID, NODE_ID, OLD_NODE_ID)):
        return {}
    hint = "correct the file in a copy, or format --output as a log directory of the broker"
    identity = refuse_identity(roots[0].path, hint, may_be_old=True)
    properties = found[0]
    if not identity.version:
        # The broker used ZooKeeper. Kafka 4 starts only with version 1 of meta.properties.
        properties = fresh_identity(properties[CLUSTER_ID], str(identity.node_id))
    # Directories of one broker have different IDs, but the output is one directory.
    return dict(properties) if _agree(found, (DIRECTORY_ID,)) else properties | new_directory_id()


def refuse_identity(
    directory: str, hint: str, metadata_directory: str | None = None, *, may_be_old: bool = False
) -> MetaProperties:
    """Reject the identity of a directory if no broker starts with it, otherwise return it.

    The directory of the metadata log is checked, too. `may_be_old` accepts brokers with ZooKeeper.
    """
    found = check_identity([directory], metadata_directory, None)
    refusals = [*found.offline.values(), *found.refused]
    for one in found.by_directory.values():
        if not (one.version or may_be_old):
            refusals.append(Refusal(one.path, one.line(VERSION), f"{VERSION} is 0, expected 1"))
        if not one.cluster_id:
            refusals.append(Refusal(one.path, one.line(CLUSTER_ID), f"{CLUSTER_ID} is empty"))
    for each in refusals:
        raise InputError(
            f"no broker starts with this identity: {each.reason}",
            path=each.file,
            line=each.line,
            hint=hint,
        )
    return found.by_directory[directory]


def fresh_identity(cluster_id: str, node_id: str) -> dict[str, str]:
    """Return the properties of a new directory of a broker."""
    return {VERSION: "1", CLUSTER_ID: cluster_id, NODE_ID: node_id} | new_directory_id()


def new_directory_id() -> dict[str, str]:
    return {DIRECTORY_ID: new_uuid()}


def new_uuid() -> str:
    """Return a random ID that does not begin with a dash, as Kafka creates them (``Uuid``)."""
    while (text := uuid_text(uuid4().bytes)).startswith("-"):
        continue
    return text


def _agree(properties: Iterable[Mapping[str, str]], names: tuple[str, ...]) -> bool:
    return len({tuple(each.get(name) for name in names) for each in properties}) == 1


def same_cluster_identity(request: RestoreRequest, dump: Dump, source: SourceCluster) -> Identity:
    """Return the identity of the output in the source cluster, or reject options for it."""
    if request.topics is not None:
        raise InputError(
            "--topics is for --cluster fresh",
            hint="the metadata of the same cluster has all topics, and excluded topics would start "
            "empty",
        )
    _refuse_metadata_log(dump, request)
    offsets = None if source.image is None else source.image.topic_named(CONSUMER_OFFSETS_TOPIC)
    replicas = () if offsets is None else tuple(offsets.partitions.values())
    # Each replica would append the records at its own end: replicas would diverge in one epoch.
    if request.clamp_groups and any(len(each.replicas) > 1 for each in replicas):
        raise InputError(
            "--clamp-groups writes to one replica, and __consumer_offsets has several",
            hint="restore without it, and set the offsets with status beyond_end by "
            "kafka-consumer-groups.sh when the brokers run",
        )
    return _same_identity(dump, source.image, all_brokers_restored=request.all_brokers_restored)


def _refuse_metadata_log(dump: Dump, request: RestoreRequest) -> None:
    """Reject a metadata log on which no node starts."""
    for path in dump.metadata_logs:
        if not store_of(path).hosts_brokers:
            refusal = snapshots_error(path) or quorum_state_error(path)
        else:
            settings = log_settings_of(request.log_config, CLUSTER_METADATA_TOPIC)
            refusal = metadata_log_error(os.path.dirname(path), settings, system_clock)
        if refusal is not None:
            raise InputError(
                f"no node starts on this metadata log: {refusal.reason}",
                path=refusal.file,
                hint="add the metadata log of another controller, or restore to a fresh cluster",
            )


def _same_identity(
    dump: Dump, image: ClusterImage | None, *, all_brokers_restored: bool
) -> Identity:
    if not dump.metadata_logs or image is None:
        raise InputError(
            "the metadata log of the cluster is not in the input",
            expected=METADATA_LOG,
            hint="add the metadata log directory to --input, or restore to a fresh cluster",
        )
    if len(dump.metadata_logs) > 1:
        raise InputError(
            "the input has several metadata logs",
            path=dump.metadata_logs[1],
            hint="restore each node from its own dump",
        )
    if len(dump.roots) != 1:
        paths = sorted(each.path for each in dump.roots)
        raise InputError(
            "the input has several data directories, but the metadata assigns each partition to "
            "one of them",
            path=paths[1],
            hint="restore each data directory separately, to its own output",
        )
    (root,) = dump.roots
    if not root.properties:
        raise InputError("the dump has no meta.properties", path=root.path)
    hint = "correct it in a copy of the dump, or restore to a fresh cluster"
    refuse_identity(root.path, hint, os.path.dirname(dump.metadata_logs[0]))
    brokers = sorted(image.brokers)
    if len(brokers) > 1 and not all_brokers_restored:
        raise InputError(
            "the cluster has other brokers: their logs and the restored logs would truncate each "
            "other",
            path=dump.metadata_logs[0],
            found=f"brokers {', '.join(map(str, brokers))}",
            hint="restore all of them to one point in time and give --all-brokers-restored, or "
            "restore to a fresh cluster",
        )
    epoch = _clean_shutdown_epoch(root)
    if epoch is None:
        broker = image.brokers.get(int(root.properties[NODE_ID]))
        is_sole = broker is not None and len(brokers) == 1
        epoch = broker.broker_epoch if broker is not None and is_sole else _UNKNOWN_EPOCH
    return Identity(dict(root.properties), epoch)


def _clean_shutdown_epoch(root: DataDirectory) -> int | None:
    """Return the broker epoch in the clean shutdown file of the dump; None if there is none."""
    try:
        epoch = root.clean_shutdown_epoch()
    except KafkaIndexError as error:
        if is_retriable(error):
            raise
        return None
    return epoch if epoch is not None and epoch >= _UNKNOWN_EPOCH else None


def partitions_placed_here(
    image: ClusterImage, properties: Mapping[str, str]
) -> list[TopicPartition]:
    """Return the partitions that the metadata assigns to a data directory, sorted.

    A replica whose directory the metadata does not know yet may be in any directory of its node.
    """
    node_id, directory_id = int(properties[NODE_ID]), properties.get(DIRECTORY_ID)
    found = []
    for topic in image.topics.values():
        for number, partition in topic.partitions.items():
            place = partition.directory_at(node_id)
            if place is not None and (place == directory_id or is_reserved_directory_id(place)):
                found.append(TopicPartition(topic.name, number))
    return sorted(found)


def partitions_only_here(
    image: ClusterImage, properties: Mapping[str, str]
) -> frozenset[TopicPartition]:
    """Return the partitions that have their only replica in a data directory.

    No other directory can have records of them.
    """
    only = (int(properties[NODE_ID]),), (properties.get(DIRECTORY_ID),)
    return frozenset(
        TopicPartition(topic.name, number)
        for topic in image.topics.values()
        for number, partition in topic.partitions.items()
        if (partition.replicas, partition.directories) == only
    )


def is_separate(dump: Dump) -> bool:
    """Return whether the metadata log is in a directory of its own."""
    home = os.path.dirname(dump.metadata_logs[0])
    return all(each.path != home for each in dump.roots)
