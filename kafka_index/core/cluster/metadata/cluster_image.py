"""The state of a cluster, read from its metadata log: topics, partitions, configurations.

Source: Kafka's ``MetadataDelta`` and its parts, ``PartitionRegistration``, ``BrokerRegistration``,
and ``MetadataBatchLoader`` for transactions of the metadata log.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from kafka_index.core.cluster.metadata.decoding import (
    ALL_BROKERS,
    BROKER_RESOURCE,
    TOPIC_RESOURCE,
    DecodedRecord,
)
from kafka_index.core.errors import CorruptRecordError
from kafka_index.core.format.message_schemas import Struct
from kafka_index.core.format.strings import ZERO_UUID

_NO_LEADER_CHANGE = -2
_NO_RECOVERY_CHANGE = -1


@dataclass(frozen=True, slots=True)
class PartitionImage:
    """A partition (Kafka: ``PartitionRegistration``); replicas are broker IDs."""

    replicas: tuple[int, ...]
    directories: tuple[str, ...]
    isr: tuple[int, ...]
    removing_replicas: tuple[int, ...]
    adding_replicas: tuple[int, ...]
    leader: int
    leader_recovery_state: int
    leader_epoch: int
    partition_epoch: int
    eligible_leader_replicas: tuple[int, ...]
    last_known_elr: tuple[int, ...]

    @classmethod
    def from_record(cls, record: Struct) -> PartitionImage:
        """Convert a ``PartitionRecord``."""
        replicas = record.integers("replicas")
        return cls(
            replicas,
            _fill_directories(record.texts("directories"), len(replicas)),
            record.integers("isr"),
            record.integers("removingReplicas"),
            record.integers("addingReplicas"),
            record.integer("leader"),
            record.integer("leaderRecoveryState"),
            record.integer("leaderEpoch"),
            record.integer("partitionEpoch"),
            record.integers("eligibleLeaderReplicas"),
            record.integers("lastKnownElr"),
        )

    def directory_at(self, node_id: int | None) -> str | None:
        """Return the directory ID of the replica on a broker, None if the broker has no replica."""
        pairs = zip(self.replicas, self.directories, strict=False)
        return next((directory for replica, directory in pairs if replica == node_id), None)

    def apply_change(self, record: Struct) -> PartitionImage:
        """Apply a ``PartitionChangeRecord``."""

        def ids(name: str, current: tuple[int, ...]) -> tuple[int, ...]:
            return current if record[name] is None else record.integers(name)

        replicas = ids("replicas", self.replicas)
        directories = self.directories
        if record["directories"] is not None:
            directories = record.texts("directories")
        leader, recovery = record.integer("leader"), record.integer("leaderRecoveryState")
        has_new_leader = leader != _NO_LEADER_CHANGE
        return PartitionImage(
            replicas,
            _fill_directories(directories, len(replicas)),
            ids("isr", self.isr),
            ids("removingReplicas", self.removing_replicas),
            ids("addingReplicas", self.adding_replicas),
            leader if has_new_leader else self.leader,
            self.leader_recovery_state if recovery == _NO_RECOVERY_CHANGE else recovery,
            self.leader_epoch + has_new_leader,
            self.partition_epoch + 1,
            ids("eligibleLeaderReplicas", self.eligible_leader_replicas),
            ids("lastKnownElr", self.last_known_elr),
        )


@dataclass(slots=True)
class TopicImage:
    """A topic and its partitions by number."""

    name: str
    topic_id: str
    partitions: dict[int, PartitionImage] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BrokerImage:
    """A registered broker (Kafka: ``BrokerRegistration``)."""

    broker_id: int
    broker_epoch: int
    incarnation_id: str
    endpoints: tuple[str, ...]
    rack: str | None
    is_fenced: bool
    in_controlled_shutdown: bool
    directories: tuple[str, ...]

    @classmethod
    def from_record(cls, record: Struct) -> BrokerImage:
        """Convert a ``RegisterBrokerRecord``."""
        return cls(
            record.integer("brokerId"),
            record.integer("brokerEpoch"),
            record.text("incarnationId"),
            tuple(
                f"{endpoint.text('name')}://{endpoint.text('host')}:{endpoint.integer('port')}"
                for endpoint in record.structs("endPoints")
            ),
            record.optional_text("rack"),
            record.flag("fenced"),
            record.flag("inControlledShutdown"),
            record.texts("logDirs"),
        )


@dataclass(frozen=True, slots=True)
class ProducerIdBlock:
    """A block of producer IDs allocated to a broker; it ends before `next_producer_id`."""

    broker_id: int
    broker_epoch: int
    next_producer_id: int


def _fill_directories(directories: tuple[str, ...], replica_count: int) -> tuple[str, ...]:
    """Return a directory ID for each replica, `ZERO_UUID` if unknown."""
    if all(directory == ZERO_UUID for directory in directories):
        return (ZERO_UUID,) * replica_count
    return directories


#: Number of producer IDs per allocation (``ProducerIdsBlock.PRODUCER_ID_BLOCK_SIZE``).
PRODUCER_ID_BLOCK = 1000


@dataclass
class ClusterImage:
    """The state of a cluster after the records of a metadata log (Kafka: ``MetadataImage``).

    Attributes
    ----------
    topics : dict
        Topics by topic ID.
    configs : dict
        Configurations, keyed by resource type and resource name; values that may be secret are
        `HIDDEN`.
    features : dict
        Finalized feature levels.
    brokers : dict
        Registered brokers by ID.
    producer_ids : ProducerIdBlock, optional
        The last allocated block of producer IDs.
    """

    topics: dict[str, TopicImage] = field(default_factory=dict)
    configs: dict[tuple[int, str], dict[str, str]] = field(default_factory=dict)
    features: dict[str, int] = field(default_factory=dict)
    brokers: dict[int, BrokerImage] = field(default_factory=dict)
    producer_ids: ProducerIdBlock | None = None
    _topic_ids: dict[str, str] = field(default_factory=dict)
    _transaction: list[DecodedRecord] | None = None

    def find_topic(self, name: str) -> TopicImage | None:
        return self.topics.get(self._topic_ids.get(name, ""))

    def topic_configs(self, name: str) -> dict[str, str]:
        """Return the configuration overrides of a topic."""
        return self.configs.get((TOPIC_RESOURCE, name), {})

    def stray_reason(self, number: int, topic_id: str, node_id: int | None) -> str | None:
        """Return why a starting broker treats a partition as stray, otherwise None.

        `topic_id` is the topic ID on disk. `node_id` is the ID of the broker, None if unknown.
        Source: ``LogManager.isStrayKraftReplica``.
        """
        topic = self.topics.get(topic_id)
        image = None if topic is None else topic.partitions.get(number)
        if image is None:
            return f"stray: the metadata has no partition {number} of topic ID {topic_id}"
        if node_id is not None and node_id not in image.replicas:
            return f"stray: broker {node_id} has no replica of the partition"
        return None

    def conflicting_name(self, topic_id: str, name: str) -> str | None:
        """Return the name that the metadata has for a topic ID, if it differs from `name`."""
        topic = self.topics.get(topic_id)
        return None if topic is None or topic.name == name else topic.name

    def broker_configs(self, node_id: int | None = None) -> dict[str, str]:
        """Return dynamic configurations; a broker's values override the defaults of all brokers."""
        default_configs = self.configs.get((BROKER_RESOURCE, ALL_BROKERS), {})
        return {**default_configs, **self.configs.get((BROKER_RESOURCE, str(node_id)), {})}

    def broker_settings(
        self, properties: Mapping[str, str] | None, node_id: int | None
    ) -> Mapping[str, str]:
        """Return the settings of a broker; dynamic configurations override its properties."""
        return {**(properties or {}), **self.broker_configs(node_id)}

    def cleanup_policy(
        self,
        topic: str,
        properties: Mapping[str, str] | None = None,
        node_id: int | None = None,
    ) -> str | None:
        """Return ``cleanup.policy`` of a topic, by default of the broker; None if it is not set.

        `properties` are all settings from the broker's ``server.properties``.
        """
        default = self.broker_settings(properties, node_id).get("log.cleanup.policy")
        return self.topic_configs(topic).get("cleanup.policy", default)

    def is_tiered(self, topic: str) -> bool:
        """Return whether a topic has, or may have, remote segments."""
        return self.topic_configs(topic).get("remote.storage.enable") == "true"

    def replay(self, record: DecodedRecord) -> None:
        """Apply a record, or collect it until the end of its metadata transaction.

        Raises `CorruptRecordError` if a record refers to a missing topic, partition or broker.
        """
        match record.name:
            case "BeginTransactionRecord":
                self._transaction = []
            case "AbortTransactionRecord":
                self._transaction = None
            case "EndTransactionRecord":
                records, self._transaction = self._transaction or [], None
                for pending in records:
                    self._apply(pending)
            case _ if self._transaction is not None:
                self._transaction.append(record)
            case _:
                self._apply(record)

    def _apply(self, record: DecodedRecord) -> None:
        handlers: dict[str, Callable[[Struct], None]] = {
            "TopicRecord": self._add_topic,
            "RemoveTopicRecord": self._remove_topic,
            "PartitionRecord": self._add_partition,
            "PartitionChangeRecord": self._change_partition,
            "ClearElrRecord": self._clear_elr,
            "ConfigRecord": self._configure,
            "FeatureLevelRecord": self._set_feature,
            "ProducerIdsRecord": self._set_producer_ids,
            "RegisterBrokerRecord": self._register_broker,
            "UnregisterBrokerRecord": self._unregister_broker,
            "FenceBrokerRecord": self._fence_broker,
            "UnfenceBrokerRecord": self._unfence_broker,
            "BrokerRegistrationChangeRecord": self._change_registration,
        }
        handler = handlers.get(record.name)
        if handler is not None and record.value is not None:
            handler(record.value)

    def _add_topic(self, record: Struct) -> None:
        topic = TopicImage(record.text("name"), record.text("topicId"))
        self.topics[topic.topic_id] = topic
        self._topic_ids[topic.name] = topic.topic_id

    def _remove_topic(self, record: Struct) -> None:
        topic = self._require_topic(record)
        del self.topics[topic.topic_id]
        if self._topic_ids.get(topic.name) == topic.topic_id:
            del self._topic_ids[topic.name]
        self.configs.pop((TOPIC_RESOURCE, topic.name), None)

    def _add_partition(self, record: Struct) -> None:
        partitions = self._require_topic(record).partitions
        partitions[record.integer("partitionId")] = PartitionImage.from_record(record)

    def _change_partition(self, record: Struct) -> None:
        topic, number = self._require_topic(record), record.integer("partitionId")
        partition = topic.partitions.get(number)
        if partition is None:
            raise CorruptRecordError(
                "the record changes a partition that does not exist", found=f"{topic.name}-{number}"
            )
        topic.partitions[number] = partition.apply_change(record)

    def _clear_elr(self, record: Struct) -> None:
        name = record.text("topicName")
        topics = filter(None, [self.find_topic(name)]) if name else self.topics.values()
        for topic in topics:
            for number, partition in topic.partitions.items():
                topic.partitions[number] = replace(
                    partition, eligible_leader_replicas=(), last_known_elr=()
                )

    def _configure(self, record: Struct) -> None:
        resource = record.integer("resourceType"), record.text("resourceName")
        configs = self.configs.setdefault(resource, {})
        if record["value"] is None:
            configs.pop(record.text("name"), None)
        else:
            configs[record.text("name")] = record.text("value")
        if not configs:
            del self.configs[resource]

    def _set_feature(self, record: Struct) -> None:
        name, level = record.text("name"), record.integer("featureLevel")
        if level:
            self.features[name] = level
        else:
            self.features.pop(name, None)

    def _set_producer_ids(self, record: Struct) -> None:
        self.producer_ids = ProducerIdBlock(
            record.integer("brokerId"),
            record.integer("brokerEpoch"),
            record.integer("nextProducerId"),
        )

    def _register_broker(self, record: Struct) -> None:
        broker = BrokerImage.from_record(record)
        self.brokers[broker.broker_id] = broker

    def _unregister_broker(self, record: Struct) -> None:
        self.brokers.pop(record.integer("brokerId"), None)

    def _fence_broker(self, record: Struct) -> None:
        self._change_broker(record.integer("id"), is_fenced=True)

    def _unfence_broker(self, record: Struct) -> None:
        self._change_broker(record.integer("id"), is_fenced=False)

    def _change_registration(self, record: Struct) -> None:
        broker_id = record.integer("brokerId")
        fencing = record.integer("fenced")
        if fencing:
            self._change_broker(broker_id, is_fenced=fencing > 0)
        if record.integer("inControlledShutdown") > 0:
            self.brokers[broker_id] = replace(
                self._require_broker(broker_id), in_controlled_shutdown=True
            )
        if record["logDirs"]:
            directories = record.texts("logDirs")
            self.brokers[broker_id] = replace(
                self._require_broker(broker_id), directories=directories
            )

    def _change_broker(self, broker_id: int, *, is_fenced: bool) -> None:
        self.brokers[broker_id] = replace(self._require_broker(broker_id), is_fenced=is_fenced)

    def _require_broker(self, broker_id: int) -> BrokerImage:
        broker = self.brokers.get(broker_id)
        if broker is None:
            raise CorruptRecordError(
                "the record changes a broker that is not registered", found=broker_id
            )
        return broker

    def _require_topic(self, record: Struct) -> TopicImage:
        topic = self.topics.get(record.text("topicId"))
        if topic is None:
            raise CorruptRecordError(
                "the record belongs to a topic that does not exist", found=record.text("topicId")
            )
        return topic
