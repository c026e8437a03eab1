"""The cluster that the dumps are from: its metadata log, groups, and settings of topics."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from kafka_index.core.cluster.metadata.cluster_image import ClusterImage
from kafka_index.core.cluster.metadata.decoding import HIDDEN
from kafka_index.core.cluster.metadata.directory import FoundCluster, node_id_of, read_metadata
from kafka_index.core.cluster.metadata.topic_states import CommittedOffset, Transaction
from kafka_index.core.cluster.replicas import Dump, note_of
from kafka_index.core.errors import ConfigError, KafkaIndexError, raise_retriable
from kafka_index.core.format.config import LogConfig, parse_integer
from kafka_index.core.format.integers import INT32_MAX, INT64_MAX, INT64_MIN
from kafka_index.core.format.names import (
    CLUSTER_METADATA_TOPIC,
    CONSUMER_OFFSETS_TOPIC,
    SHARE_GROUP_STATE_TOPIC,
    TRANSACTION_STATE_TOPIC,
    TopicPartition,
)
from kafka_index.core.records.decompression import DecompressionBudget

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
    """Check settings that a topic is to get."""
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
class OldCluster:
    """The metadata, committed offsets and notes of the cluster of the dumps."""

    image: ClusterImage | None = None
    offsets: Sequence[CommittedOffset] = ()
    notes: list[str] = field(default_factory=list)
    is_damaged: bool = False
    #: The run of a backup that is restored, and its time; empty for dumps.
    run: str = ""

    @classmethod
    def read(cls, dump: Dump, budget: DecompressionBudget, *, with_groups: bool) -> OldCluster:
        """Read the metadata log of dumps, and where they are wanted the committed offsets."""
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
        """Return the settings of logs: the given ones first, then those of the metadata log."""
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
        """Return the ids of topics: from the metadata log, else from commits of groups."""
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
        """Return the groups that committed offsets of topics, by topic."""
        wanted = set(topics)
        found: dict[str, set[str]] = {}
        for one in self.offsets:
            if one.topic in wanted:
                found.setdefault(one.topic, set()).add(one.group)
        return {topic: sorted(groups) for topic, groups in sorted(found.items())}

    def cleanup_policies(
        self, properties: Mapping[str, str] | None, dump: Dump
    ) -> dict[str, str | None]:
        """Return the policies of the topics of the metadata log, None where none is known.

        `properties` are all settings of the broker.
        """
        image, node_id = self.image or ClusterImage(), node_id_of(dump.directories.values())
        return {
            each.name: image.cleanup_policy(each.name, properties, node_id)
            for each in image.topics.values()
        }

    def leader_epoch(self, partition: TopicPartition) -> int:
        """Return the leader epoch of the metadata log; -1 where it is not known."""
        topic = None if self.image is None else self.image.topic_named(partition.topic)
        image = None if topic is None else topic.partitions.get(partition.partition)
        return -1 if image is None else image.leader_epoch

    def partition_count(self, topic: str) -> int:
        """Return how many partitions a topic had; 0 where that is not known."""
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
        """Return the first producer id that no producer had; `largest` is of the logs."""
        block = None if self.image is None else self.image.producer_ids
        return max(largest + 1, 0 if block is None else block.next_producer_id)


@dataclass(frozen=True, slots=True)
class TopicConfigs:
    """The settings of a topic."""

    values: Mapping[str, str]
    is_assumed: bool = False
    withheld: tuple[str, ...] = ()


def read_transactions(data: str, budget: DecompressionBudget) -> Sequence[Transaction]:
    """Read the transactions of a data directory; none where it has no log of them."""
    names = (each.rpartition("-")[0] for each in os.listdir(data))
    if TRANSACTION_STATE_TOPIC not in names:
        return ()
    found = read_metadata([data], budget=budget, topics=(TRANSACTION_STATE_TOPIC,))
    raise_retriable(found.faults.first)
    return found.transactions or ()
