"""Topics, partitions and brokers as the records of a metadata log register them.

Source: Kafka's ``PartitionRegistration`` and ``BrokerRegistration``.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from kafka_index.layout.message_fields import ZERO_UUID, Struct

_NO_LEADER_CHANGE = -2
_NO_RECOVERY_CHANGE = -1


@dataclass(frozen=True, slots=True)
class PartitionImage:
    """A partition (Kafka: ``PartitionRegistration``); replicas are broker ids."""

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
    def of(cls, record: Struct) -> PartitionImage:
        """Return the partition of a ``PartitionRecord``."""
        replicas = record.integers("replicas")
        return cls(
            replicas,
            _directories(record.texts("directories"), len(replicas)),
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

    def changed(self, record: Struct) -> PartitionImage:
        """Return the partition after a ``PartitionChangeRecord``."""

        def ids(name: str, before: tuple[int, ...]) -> tuple[int, ...]:
            return before if record[name] is None else record.integers(name)

        replicas = ids("replicas", self.replicas)
        directories = self.directories
        if record["directories"] is not None:
            directories = record.texts("directories")
        leader, recovery = record.integer("leader"), record.integer("leaderRecoveryState")
        has_new_leader = leader != _NO_LEADER_CHANGE
        return PartitionImage(
            replicas,
            _directories(directories, len(replicas)),
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
    def of(cls, record: Struct) -> BrokerImage:
        """Return the broker of a ``RegisterBrokerRecord``."""
        return cls(
            record.integer("brokerId"),
            record.integer("brokerEpoch"),
            record.text("incarnationId"),
            tuple(
                f"{end.text('name')}://{end.text('host')}:{end.integer('port')}"
                for end in record.structs("endPoints")
            ),
            record.optional_text("rack"),
            record.flag("fenced"),
            record.flag("inControlledShutdown"),
            record.texts("logDirs"),
        )


@dataclass(frozen=True, slots=True)
class ProducerIdBlock:
    """Producer ids that a broker was given, up to `next_producer_id`, exclusive."""

    broker_id: int
    broker_epoch: int
    next_producer_id: int


def _directories(directories: tuple[str, ...], replicas: int) -> tuple[str, ...]:
    """Return one directory id for each replica, also where none is known."""
    if all(directory == ZERO_UUID for directory in directories):
        return (ZERO_UUID,) * replicas
    return directories
