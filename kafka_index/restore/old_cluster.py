"""What the dumps know of the cluster that they are from: its metadata log and its groups."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from kafka_index.config import LogConfig, parse_integer
from kafka_index.errors import KafkaIndexError, is_retriable, raise_retriable
from kafka_index.layout.internal_topics import (
    CLUSTER_METADATA_TOPIC,
    CONSUMER_OFFSETS_TOPIC,
    SHARE_GROUP_STATE_TOPIC,
    TRANSACTION_STATE_TOPIC,
)
from kafka_index.layout.names import TopicPartition
from kafka_index.metadata import (
    ClusterImage,
    CommittedOffset,
    Transaction,
    read_metadata,
)
from kafka_index.metadata.found_cluster import settings_of
from kafka_index.metadata.sensitive import HIDDEN
from kafka_index.records.decompression import DecompressionBudget
from kafka_index.restore.dump_files import Dump

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


@dataclass(slots=True)
class OldCluster:
    """What is known of the cluster.

    Parameters
    ----------
    image : ClusterImage or None
        Of its metadata log.
    offsets : sequence of CommittedOffset
        Of its groups.
    notes : list of str
        What could not be read.
    """

    image: ClusterImage | None = None
    offsets: Sequence[CommittedOffset] = ()
    notes: list[str] = field(default_factory=list)

    @classmethod
    def read(cls, dump: Dump, budget: DecompressionBudget, *, with_groups: bool) -> OldCluster:
        """Read the metadata log of dumps, and where they are wanted the committed offsets.

        Raises
        ------
        KafkaIndexError
            Permission, disk, memory or network: another try may read them.
        """
        cluster = cls()
        latest = -1
        for directory in dump.metadata_logs:
            try:
                found = read_metadata([directory], budget=budget, topics=(CLUSTER_METADATA_TOPIC,))
                raise_retriable(found.faults.first)
            except KafkaIndexError as error:
                cluster._note(error)
                continue
            cluster.notes += [f"the metadata log: {each}" for each in found.faults.first]
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
                cluster._note(error)
        return cluster

    def settings(self, config: LogConfig, dump: Dump, renames: Mapping[str, str]) -> LogConfig:
        """Return the settings of logs: those that were given, then those of the metadata log."""
        topics = sorted({each.topic for each in dump.replicas})
        if self.image is None:
            if not all(map(config.is_given, topics)):
                self.notes.append(
                    f"assumed index.interval.bytes={config.default.index_interval_bytes}, as the "
                    "input has no metadata log: give --config, or its directory"
                )
            return config
        nodes = {each.properties.get("node.id") for each in dump.directories.values()} - {None}
        node_id = parse_integer(nodes.pop() or "") if len(nodes) == 1 else None
        found = settings_of(self.image, config, node_id)
        # A renamed topic keeps its settings.
        own = {
            new: found.for_topic(old) for old, new in renames.items() if new not in config.topics
        }
        return replace(found, topics={**found.topics, **own})

    def topic_ids(self) -> dict[str, str]:
        """Return the ids of topics: those of the metadata log, else those that groups committed."""
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

    def cleanup_policies(self) -> dict[str, str | None]:
        """Return the policies of the topics of the metadata log, None where one has none."""
        image = self.image
        if image is None:
            return {}
        return {each.name: image.cleanup_policy(each.name) for each in image.topics.values()}

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
        """Return the settings of a topic.

        Parameters
        ----------
        topic : str
            Its name.
        given : mapping of str to str
            Settings that count before those of the metadata log.
        is_compacted : bool
            Whether its log was cleaned; counts where its settings are not known.
        """
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

    def _note(self, error: KafkaIndexError) -> None:
        if is_retriable(error):
            raise error
        self.notes.append(f"ignored: {error}")


@dataclass(frozen=True, slots=True)
class TopicConfigs:
    """The settings of a topic.

    Parameters
    ----------
    values : mapping of str to str
        By name.
    is_assumed : bool
        They are not those of the old cluster, which are not known.
    withheld : tuple of str
        Names of settings that may be secret, and were not taken over.
    """

    values: Mapping[str, str]
    is_assumed: bool = False
    withheld: tuple[str, ...] = ()


def read_transactions(data: str, budget: DecompressionBudget) -> Sequence[Transaction]:
    """Read the transactions of a data directory; none where it has no log of them.

    Raises
    ------
    KafkaIndexError
        They cannot be read.
    """
    names = (each.rpartition("-")[0] for each in os.listdir(data))
    if TRANSACTION_STATE_TOPIC not in names:
        return ()
    found = read_metadata([data], budget=budget, topics=(TRANSACTION_STATE_TOPIC,))
    raise_retriable(found.faults.first)
    return found.transactions or ()
