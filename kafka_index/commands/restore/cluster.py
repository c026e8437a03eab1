"""The metadata of the source cluster, and the identity with which a broker starts on the output.

In a fresh cluster, the identity is read from a formatted directory or from the dump. For the source
cluster, the metadata log is copied, and the broker keeps the identity in the dump.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from uuid import uuid4

from kafka_index.commands.restore.request import RestoreRequest
from kafka_index.core.cluster.listing import DumpMetadata, read_node_id
from kafka_index.core.cluster.metadata.cluster_image import ClusterImage
from kafka_index.core.cluster.metadata.decoding import HIDDEN
from kafka_index.core.cluster.metadata.directory import read_metadata
from kafka_index.core.cluster.metadata.topic_states import CommittedOffset, Transaction
from kafka_index.core.cluster.replicas import Dump, missing_file_note
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

_INTEGER_RANGES = {
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
_VALUE_PATTERNS = {
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
#: For topics with unknown settings: disable retention by time and by size.
_KEEP_ALL = {"retention.ms": "-1", "retention.bytes": "-1"}
_COMPACTED = {"cleanup.policy": "compact"}
# GroupCoordinatorService, TransactionStateManager and ShareCoordinatorService create internal
# topics with these settings.
_INTERNAL_TOPIC_CONFIGS = {
    CONSUMER_OFFSETS_TOPIC: _COMPACTED
    | {"compression.type": "producer", "segment.bytes": "104857600"},
    TRANSACTION_STATE_TOPIC: _COMPACTED
    | {"compression.type": "uncompressed", "segment.bytes": "104857600"},
    SHARE_GROUP_STATE_TOPIC: {
        "cleanup.policy": "delete",
        "compression.type": "producer",
        "retention.ms": "-1",
        "segment.bytes": "104857600",
    },
}


def check_topic_configs(configs: Mapping[str, str]) -> None:
    """Check the settings of a topic; raise `ConfigError` if no broker starts with a setting."""
    for name, value in configs.items():
        stripped_value = value.strip()
        if name in _INTEGER_RANGES:
            minimum, maximum = _INTEGER_RANGES[name]
            number = parse_integer(stripped_value)
            is_valid, expected = (
                number is not None and minimum <= number <= maximum,
                f"{minimum}..{maximum}",
            )
        elif name in _VALUE_PATTERNS:
            is_valid, expected = (
                _VALUE_PATTERNS[name].fullmatch(stripped_value) is not None,
                _VALUE_PATTERNS[name].pattern,
            )
        else:
            similar_names = difflib.get_close_matches(
                name, [*_INTEGER_RANGES, *_VALUE_PATTERNS], n=1
            )
            raise ConfigError(
                f"{name} is not a topic setting",
                hint=f"did you mean {similar_names[0]}?" if similar_names else None,
            )
        if not is_valid:
            raise ConfigError(
                f"no broker starts with this value of {name}",
                expected=expected,
                found=repr(value),
            )


@dataclass(slots=True)
class SourceCluster:
    """The metadata and committed offsets of the source cluster, and notes about them."""

    image: ClusterImage | None = None
    offsets: Sequence[CommittedOffset] = ()
    notes: list[str] = field(default_factory=list)
    is_damaged: bool = False
    #: The restored backup and its cutoff, as shown in messages; empty for dumps.
    backup: str = ""

    @classmethod
    def read(cls, dump: Dump, budget: DecompressionBudget, *, with_groups: bool) -> SourceCluster:
        """Read the metadata log of dumps and, on request, the committed offsets."""
        cluster = cls()
        latest_end_offset = -1
        for directory in dump.metadata_logs:
            try:
                metadata = read_metadata(
                    [directory], budget=budget, topics=(CLUSTER_METADATA_TOPIC,)
                )
                raise_retriable(metadata.faults.first)
            except KafkaIndexError as error:
                cluster.notes.append(missing_file_note(error))
                continue
            cluster.notes += [f"metadata log: {fault}" for fault in metadata.faults.first]
            cluster.is_damaged |= bool(metadata.faults.first)
            if metadata.cluster is not None and metadata.sources[0].end_offset > latest_end_offset:
                cluster.image, latest_end_offset = metadata.cluster, metadata.sources[0].end_offset
        directories = [
            replicas[0].directory
            for partition, replicas in dump.replicas.items()
            if partition.topic == CONSUMER_OFFSETS_TOPIC
        ]
        if directories and with_groups:
            try:
                metadata = read_metadata(
                    directories, budget=budget, topics=(CONSUMER_OFFSETS_TOPIC,)
                )
                raise_retriable(metadata.faults.first)
                cluster.offsets = metadata.offsets or ()
            except KafkaIndexError as error:
                cluster.notes.append(missing_file_note(error))
        return cluster

    def settings(self, config: LogConfig, dump: Dump, renames: Mapping[str, str]) -> LogConfig:
        """Return the settings of logs; `config` overrides the settings in the metadata log."""
        topics = {partition.topic for partition in dump.replicas}
        cluster = DumpMetadata(self.image, node_id=read_node_id(dump.directories.values()))
        assumption = cluster.assumption_warning(config, topics)
        if assumption is not None:
            self.notes.append(assumption)
        if self.image is None:
            return config
        log_config = cluster.settings(config)
        # A renamed topic keeps its settings.
        renamed_topics = {
            new_name: log_config.for_topic(old_name)
            for old_name, new_name in renames.items()
            if new_name not in config.topics
        }
        return replace(log_config, topics={**log_config.topics, **renamed_topics})

    def topic_ids(self) -> dict[str, str]:
        """Return the ID of each topic, from the metadata log or from committed offsets."""
        ids = {
            offset.topic: offset.topic_id for offset in self.offsets if offset.topic_id is not None
        }
        if self.image is not None:
            for topic in self.image.topics.values():
                current_topic = self.image.find_topic(topic.name)
                ids[topic.name] = (
                    topic.topic_id if current_topic is None else current_topic.topic_id
                )
        return ids

    def committed_epoch(self, partition: TopicPartition) -> int:
        """Return the largest leader epoch in the committed offsets of a partition, or -1."""
        epochs = (
            offset.leader_epoch
            for offset in self.offsets
            if (offset.topic, offset.partition) == (partition.topic, partition.partition)
        )
        return max((epoch for epoch in epochs if epoch is not None), default=-1)

    def groups_by_topic(self, topics: Iterable[str]) -> dict[str, list[str]]:
        """Return the consumer groups with committed offsets, by topic."""
        requested_topics = set(topics)
        groups_by_topic: dict[str, set[str]] = {}
        for offset in self.offsets:
            if offset.topic in requested_topics:
                groups_by_topic.setdefault(offset.topic, set()).add(offset.group)
        return {topic: sorted(groups) for topic, groups in sorted(groups_by_topic.items())}

    def cleanup_policies(
        self, properties: Mapping[str, str] | None, dump: Dump
    ) -> dict[str, str | None]:
        """Return the cleanup policy of each topic in the metadata log; None if unknown.

        `properties` are all settings of the broker.
        """
        image, node_id = self.image or ClusterImage(), read_node_id(dump.directories.values())
        return {
            topic.name: image.cleanup_policy(topic.name, properties, node_id)
            for topic in image.topics.values()
        }

    def leader_epoch(self, partition: TopicPartition) -> int:
        """Return the leader epoch of a partition in the metadata log; -1 if unknown."""
        topic = None if self.image is None else self.image.find_topic(partition.topic)
        image = None if topic is None else topic.partitions.get(partition.partition)
        return -1 if image is None else image.leader_epoch

    def partition_count(self, topic: str) -> int:
        """Return the number of partitions of a topic; 0 if unknown."""
        topic_image = None if self.image is None else self.image.find_topic(topic)
        return 0 if topic_image is None else max(topic_image.partitions, default=-1) + 1

    def configs(
        self, topic: str, overrides: Mapping[str, str], *, is_compacted: bool
    ) -> TopicConfigs:
        """Return the settings of a topic in the new cluster; `overrides` take precedence."""
        if self.image is None:
            default_configs = _INTERNAL_TOPIC_CONFIGS.get(
                topic, _KEEP_ALL | (_COMPACTED if is_compacted else {})
            )
            return TopicConfigs({**default_configs, **overrides}, is_assumed=True)
        topic_configs = self.image.topic_configs(topic)
        readable_configs = {name: value for name, value in topic_configs.items() if value != HIDDEN}
        withheld = tuple(sorted(set(topic_configs).difference(readable_configs, overrides)))
        return TopicConfigs({**readable_configs, **overrides}, withheld=withheld)

    def next_producer_id(self, largest_producer_id: int) -> int:
        """Return the first producer ID that is free in the logs and in the metadata log."""
        block = None if self.image is None else self.image.producer_ids
        return max(largest_producer_id + 1, 0 if block is None else block.next_producer_id)


@dataclass(frozen=True, slots=True)
class TopicConfigs:
    """The settings of a topic; `withheld` are the names of sensitive settings without a value."""

    values: Mapping[str, str]
    is_assumed: bool = False
    withheld: tuple[str, ...] = ()


def read_transactions(data: str, budget: DecompressionBudget) -> Sequence[Transaction]:
    """Read the transactions of a data directory; none without ``__transaction_state``."""
    names = (directory_name.rpartition("-")[0] for directory_name in os.listdir(data))
    if TRANSACTION_STATE_TOPIC not in names:
        return ()
    metadata = read_metadata([data], budget=budget, topics=(TRANSACTION_STATE_TOPIC,))
    raise_retriable(metadata.faults.first)
    return metadata.transactions or ()


#: The broker epoch if a clean shutdown file contains none.
NO_BROKER_EPOCH = -2
CLUSTER_ID, NODE_ID, DIRECTORY_ID = "cluster.id", "node.id", "directory.id"
VERSION, OLD_NODE_ID = "version", "broker.id"
#: If the broker epoch is unknown, the controller treats the registration as one after an unclean
#: shutdown.
_UNKNOWN_EPOCH = -1


@dataclass(frozen=True, slots=True)
class Identity:
    """The ``meta.properties`` of the output, empty if the output must be formatted."""

    properties: Mapping[str, str]
    broker_epoch: int = NO_BROKER_EPOCH


def dump_identity(dump: Dump) -> dict[str, str]:
    """Return the ``meta.properties`` of the only broker of a dump; empty if unknown."""
    roots = [root for root in dump.roots if root.properties]
    root_properties = [root.properties for root in roots]
    if not root_properties or not _have_equal_values(
        root_properties, (CLUSTER_ID, NODE_ID, OLD_NODE_ID)
    ):
        return {}
    hint = "correct the file in a copy of the dump, or format --output as a log directory"
    identity = refuse_identity(roots[0].path, hint, may_be_old=True)
    properties = root_properties[0]
    if not identity.version:
        # The broker used ZooKeeper. Kafka 4 starts only with version 1 of meta.properties.
        properties = fresh_identity(properties[CLUSTER_ID], str(identity.node_id))
    # The directories of a broker have different IDs, but the output is a single directory.
    return (
        dict(properties)
        if _have_equal_values(root_properties, (DIRECTORY_ID,))
        else properties | new_directory_id()
    )


def refuse_identity(
    directory: str, hint: str, metadata_directory: str | None = None, *, may_be_old: bool = False
) -> MetaProperties:
    """Return the ``meta.properties`` of a directory; raise if no broker starts with them.

    If given, the directory of the metadata log is checked, too. With `may_be_old`, version 0 of
    brokers with ZooKeeper is accepted.
    """
    identities = check_identity([directory], metadata_directory, None)
    refusals = [*identities.offline.values(), *identities.refused]
    for meta_properties in identities.by_directory.values():
        if not (meta_properties.version or may_be_old):
            refusals.append(
                Refusal(
                    meta_properties.path,
                    meta_properties.line(VERSION),
                    f"{VERSION} is 0, expected 1",
                )
            )
        if not meta_properties.cluster_id:
            refusals.append(
                Refusal(
                    meta_properties.path, meta_properties.line(CLUSTER_ID), f"{CLUSTER_ID} is empty"
                )
            )
    for refusal in refusals:
        raise InputError(
            f"no broker starts with this identity: {refusal.reason}",
            path=refusal.file,
            line=refusal.line,
            hint=hint,
        )
    return identities.by_directory[directory]


def fresh_identity(cluster_id: str, node_id: str) -> dict[str, str]:
    """Return the ``meta.properties`` of a new data directory of a broker."""
    return {VERSION: "1", CLUSTER_ID: cluster_id, NODE_ID: node_id} | new_directory_id()


def new_directory_id() -> dict[str, str]:
    return {DIRECTORY_ID: new_uuid()}


def new_uuid() -> str:
    """Return a random ID that does not begin with a dash, as Kafka creates them (``Uuid``)."""
    while (uuid := uuid_text(uuid4().bytes)).startswith("-"):
        continue
    return uuid


def _have_equal_values(properties: Iterable[Mapping[str, str]], names: tuple[str, ...]) -> bool:
    return (
        len({tuple(root_properties.get(name) for name in names) for root_properties in properties})
        == 1
    )


def same_cluster_identity(request: RestoreRequest, dump: Dump, source: SourceCluster) -> Identity:
    """Return the identity of the output; reject options that the source cluster forbids."""
    if request.topics is not None:
        raise InputError(
            "--topics requires --cluster fresh",
            hint="in the source cluster, the excluded topics would start empty",
        )
    _refuse_metadata_log(dump, request)
    offsets = None if source.image is None else source.image.find_topic(CONSUMER_OFFSETS_TOPIC)
    consumer_offsets_partitions = () if offsets is None else tuple(offsets.partitions.values())
    # Each broker would append the commits to its own replica, so the replicas would diverge within
    # a leader epoch.
    if request.clamp_groups and any(
        len(partition.replicas) > 1 for partition in consumer_offsets_partitions
    ):
        raise InputError(
            "--clamp-groups changes one replica, but __consumer_offsets has several replicas",
            hint="restore without --clamp-groups, start the brokers, and reset the offsets with "
            "status beyond_end by kafka-consumer-groups.sh",
        )
    return _source_identity(dump, source.image, all_brokers_restored=request.all_brokers_restored)


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


def _source_identity(
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
        paths = sorted(data_directory.path for data_directory in dump.roots)
        raise InputError(
            "the input has several data directories, but --cluster same restores only one",
            path=paths[1],
            hint="restore each data directory separately, to its own output",
        )
    (root,) = dump.roots
    if not root.properties:
        raise InputError("the dump has no meta.properties", path=root.path)
    hint = "correct the file in a copy of the dump, or restore to a fresh cluster"
    refuse_identity(root.path, hint, os.path.dirname(dump.metadata_logs[0]))
    brokers = sorted(image.brokers)
    if len(brokers) > 1 and not all_brokers_restored:
        raise InputError(
            "the cluster has several brokers: replicas of different points in time would truncate "
            "each other",
            path=dump.metadata_logs[0],
            found=f"brokers {', '.join(map(str, brokers))}",
            hint="restore all brokers to one point in time and give --all-brokers-restored, or "
            "restore to a fresh cluster",
        )
    epoch = _clean_shutdown_epoch(root)
    if epoch is None:
        broker = image.brokers.get(int(root.properties[NODE_ID]))
        is_sole = broker is not None and len(brokers) == 1
        epoch = broker.broker_epoch if broker is not None and is_sole else _UNKNOWN_EPOCH
    return Identity(dict(root.properties), epoch)


def _clean_shutdown_epoch(root: DataDirectory) -> int | None:
    """Return the broker epoch in the clean shutdown file of the dump; None if unknown."""
    try:
        epoch = root.clean_shutdown_epoch()
    except KafkaIndexError as error:
        if is_retriable(error):
            raise
        return None
    return epoch if epoch is not None and epoch >= _UNKNOWN_EPOCH else None


def assigned_partitions(image: ClusterImage, properties: Mapping[str, str]) -> list[TopicPartition]:
    """Return the partitions that the metadata assigns to a data directory, sorted.

    A replica whose directory is not assigned yet may be in any directory of its node.
    """
    node_id, directory_id = int(properties[NODE_ID]), properties.get(DIRECTORY_ID)
    partitions = []
    for topic in image.topics.values():
        for number, partition in topic.partitions.items():
            replica_directory = partition.directory_at(node_id)
            if replica_directory is not None and (
                replica_directory == directory_id or is_reserved_directory_id(replica_directory)
            ):
                partitions.append(TopicPartition(topic.name, number))
    return sorted(partitions)


def single_replica_partitions(
    image: ClusterImage, properties: Mapping[str, str]
) -> frozenset[TopicPartition]:
    """Return the partitions whose only replica is in the directory with these properties."""
    sole_replica = (int(properties[NODE_ID]),), (properties.get(DIRECTORY_ID),)
    return frozenset(
        TopicPartition(topic.name, number)
        for topic in image.topics.values()
        for number, partition in topic.partitions.items()
        if (partition.replicas, partition.directories) == sole_replica
    )


def has_separate_metadata_log(dump: Dump) -> bool:
    """Return whether the metadata log is outside the data directories of the dump."""
    metadata_parent = os.path.dirname(dump.metadata_logs[0])
    return all(root.path != metadata_parent for root in dump.roots)
