"""Groups, transactions and remote segments, from the records of internal topics.

Records of ``__consumer_offsets`` are validated when they are read, stored as bytes by key, and
decoded at the end, because most are overwritten. Transactional commits take effect when their
marker is read. Source: Kafka's ``OffsetMetadataManager.replay``, ``replayEndTransactionMarker``,
``GroupMetadataManager.replay``; ``TransactionStateManager.loadTransactionMetadata`` and
``TransactionLog``; and ``RemoteLogMetadataCache`` with
``RemoteLogSegmentMetadata.createWithUpdates``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, NamedTuple

from kafka_index.core.cluster.metadata.decoding import (
    GROUP_CODEC,
    NO_PRODUCER_ID,
    REMOTE_LOG_CODEC,
    TRANSACTION_CODEC,
    CoordinatorCodec,
    LaterVersionError,
    LogRecord,
    TopicState,
    UnknownRecordError,
)
from kafka_index.core.cluster.remote.remote_log_metadata import (
    PartitionDeleteEvent,
    RemoteSegmentId,
    SegmentEvent,
    SegmentState,
    StateEvent,
    parse_metadata_record,
)
from kafka_index.core.errors import CorruptRecordError
from kafka_index.core.format.message_bytes import MessageReader
from kafka_index.core.format.message_schemas import Struct
from kafka_index.core.format.messages import CONSUMER_PROTOCOL
from kafka_index.core.format.records import CONTROL_COMMIT
from kafka_index.core.format.strings import ZERO_UUID

_LEGACY_OFFSET_COMMIT, _OFFSET_COMMIT = 0, 1
_CONSUMER = "consumer"

#: Transaction states by number (``TransactionState``).
TRANSACTION_STATES: Final = (
    "Empty",
    "Ongoing",
    "PrepareCommit",
    "PrepareAbort",
    "CompleteCommit",
    "CompleteAbort",
    "Dead",
    "PrepareEpochFence",
)
_NAMES = {
    SegmentEvent: "RemoteLogSegmentMetadataRecord",
    StateEvent: "RemoteLogSegmentMetadataUpdateRecord",
    PartitionDeleteEvent: "RemotePartitionDeleteMetadataRecord",
}


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """An offset that a group committed for a partition.

    Since 4.1, records of groups that use topic IDs contain the topic ID. `leader_epoch` is the
    leader epoch of the last consumed record. Only old records have an expiration timestamp.
    `record_offset` is the offset of the record in ``__consumer_offsets``.
    """

    group: str
    topic: str
    partition: int
    offset: int
    topic_id: str | None
    leader_epoch: int | None
    metadata: str
    commit_timestamp_ms: int
    expire_timestamp_ms: int | None
    record_offset: int


@dataclass(slots=True)
class GroupMember:
    """A member of a group; partitions are pairs of topic name or ID, and partition number."""

    member_id: str
    instance_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    epoch: int | None = None
    topics: tuple[str, ...] = ()
    assignment: list[tuple[str, int]] = field(default_factory=list)


@dataclass(slots=True)
class Group:
    """A group: ``classic``, ``consumer``, ``share`` or ``streams``.

    `epoch` is the generation of a classic group, or the group epoch; None if the group only commits
    offsets.
    """

    name: str
    kind: str = "classic"
    epoch: int | None = None
    assignment_epoch: int | None = None
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str | None = None
    state_timestamp_ms: int | None = None
    members: dict[str, GroupMember] = field(default_factory=dict)


class _StoredRecord(NamedTuple):
    """A record that is decoded at the end."""

    offset: int
    record_type: int
    value: bytes


class GroupState(TopicState):
    """Collects the records of ``__consumer_offsets``; `has_history` keeps superseded commits."""

    def __init__(self, *, has_history: bool = False) -> None:
        super().__init__()
        self._earlier: list[tuple[bytes, _StoredRecord]] | None = [] if has_history else None
        self._latest: dict[bytes, _StoredRecord] = {}
        self._pending: dict[int, dict[bytes, _StoredRecord]] = defaultdict(dict)

    def add(self, record: LogRecord) -> None:
        """Apply a record, or the marker that ends a transaction.

        Raises `CorruptRecordError` if it cannot be read.
        """
        key = record.key
        if key is None:
            raise CorruptRecordError("the record has no key")
        if record.is_control:
            self._end_transaction(record.producer_id, MessageReader(key, 2).int16())
            return
        record_type = GROUP_CODEC.record_type(key)
        if not self._is_known(partial(_checked_name, GROUP_CODEC, key, record.value, self._latest)):
            return
        if record_type == _LEGACY_OFFSET_COMMIT:
            key = _OFFSET_COMMIT.to_bytes(2, "big") + key[2:]
        if record.value is None:
            self._replace(key, self._latest.pop(key, None))
            for pending in self._pending.values():
                pending.pop(key, None)
            return
        is_pending = record.producer_id != NO_PRODUCER_ID and key[1] == _OFFSET_COMMIT
        target = self._pending[record.producer_id] if is_pending else self._latest
        if not is_pending:
            self._replace(key, target.get(key))
        target[key] = _StoredRecord(record.offset, record_type, record.value)

    def _end_transaction(self, producer_id: int, control_type: int) -> None:
        for key, pending in self._pending.pop(producer_id, {}).items():
            before = self._latest.get(key)
            if control_type == CONTROL_COMMIT and (
                before is None or pending.offset > before.offset
            ):
                self._replace(key, before)
                self._latest[key] = pending

    def _replace(self, key: bytes, before: _StoredRecord | None) -> None:
        if self._earlier is not None and before is not None and key[1] == _OFFSET_COMMIT:
            self._earlier.append((key, before))

    def decode(self) -> tuple[list[Group], list[CommittedOffset]]:
        """Return groups by name, and committed offsets by group, topic and partition.

        Includes groups that only commit offsets.
        """
        groups: dict[str, Group] = {}
        offsets: list[CommittedOffset] = []
        for key, value, stored in _decoded(self._latest.items()):
            name = key.text("group" if "group" in key else "groupId")
            group = groups.setdefault(name, Group(name))
            if "topic" in key:
                offsets.append(_offset(key, value, stored.offset))
            else:
                _fill(group, GROUP_CODEC.name_of(stored.record_type), key, value)
        offsets.sort(key=lambda one: (one.group, one.topic, one.partition))
        return sorted(groups.values(), key=lambda group: group.name), offsets

    def earlier_offsets(self) -> list[CommittedOffset]:
        """Return the superseded commits that the log still has."""
        return [
            _offset(key, value, stored.offset)
            for key, value, stored in _decoded(self._earlier or ())
        ]

    def open_offsets(self) -> list[CommittedOffset]:
        """Return the commits of transactions that are still open, which have no effect yet."""
        return [
            _offset(key, value, stored.offset)
            for pending in self._pending.values()
            for key, value, stored in _decoded(pending.items())
        ]


def _decoded(
    records: Iterable[tuple[bytes, _StoredRecord]],
) -> Iterator[tuple[Struct, Struct, _StoredRecord]]:
    for key, stored in records:
        value, _ = GROUP_CODEC.value(stored.record_type, stored.value)
        yield GROUP_CODEC.key(key), value, stored


def _offset(key: Struct, value: Struct, record_offset: int) -> CommittedOffset:
    topic_id = value.text("topicId") if "topicId" in value else ZERO_UUID
    epoch = value.integer("leaderEpoch") if "leaderEpoch" in value else -1
    expires = value.integer("expireTimestamp") if "expireTimestamp" in value else -1
    return CommittedOffset(
        key.text("group"),
        key.text("topic"),
        key.integer("partition"),
        value.integer("offset"),
        None if topic_id == ZERO_UUID else topic_id,
        None if epoch < 0 else epoch,
        value.text("metadata"),
        value.integer("commitTimestamp"),
        None if expires < 0 else expires,
        record_offset,
    )


def _fill(group: Group, name: str, key: Struct, value: Struct) -> None:
    """Add the content of a record to a group."""
    member_id = key.text("memberId") if "memberId" in key else ""
    kind, is_new, _ = name.partition("Group")
    if is_new and kind:
        group.kind = kind.lower()
    match name:
        case "GroupMetadata":
            _fill_classic(group, value)
        case "ConsumerGroupMetadata" | "ShareGroupMetadata" | "StreamsGroupMetadata":
            group.epoch = value.integer("epoch")
        case _ if name.endswith("GroupTargetAssignmentMetadata"):
            group.assignment_epoch = value.integer("assignmentEpoch")
        case _ if name.endswith("GroupMemberMetadata"):
            member = group.members.setdefault(member_id, GroupMember(member_id))
            member.instance_id = (
                value.optional_text("instanceId") if "instanceId" in value else None
            )
            member.client_id = value.text("clientId")
            member.client_host = value.text("clientHost")
            if "subscribedTopicNames" in value:
                member.topics = value.texts("subscribedTopicNames")
        case _ if name.endswith("GroupCurrentMemberAssignment"):
            member = group.members.setdefault(member_id, GroupMember(member_id))
            member.epoch = value.integer("memberEpoch")
            if "assignedPartitions" in value:
                member.assignment = _partitions(value.structs("assignedPartitions"), "topicId")


def _fill_classic(group: Group, value: Struct) -> None:
    group.epoch = value.integer("generation")
    group.protocol_type = value.text("protocolType")
    group.protocol = value.optional_text("protocol")
    group.leader = value.optional_text("leader")
    timestamp = value.integer("currentStateTimestamp")
    group.state_timestamp_ms = None if timestamp < 0 else timestamp
    for found in value.structs("members"):
        member = GroupMember(
            found.text("memberId"),
            found.optional_text("groupInstanceId"),
            found.text("clientId"),
            found.text("clientHost"),
        )
        if group.protocol_type == _CONSUMER:
            subscription = _protocol_message("Subscription", found.binary("subscription"))
            assignment = _protocol_message("Assignment", found.binary("assignment"))
            if subscription is not None:
                member.topics = subscription.texts("topics")
            if assignment is not None:
                member.assignment = _partitions(assignment.structs("assignedPartitions"), "topic")
        group.members[member.member_id] = member


def _partitions(topics: list[Struct], name: str) -> list[tuple[str, int]]:
    return [
        (topic.text(name), partition)
        for topic in topics
        for partition in topic.integers("partitions")
    ]


def _protocol_message(name: str, data: bytes | None) -> Struct | None:
    """Parse a message of the consumer protocol; return None if the client wrote other bytes."""
    (schema,) = [schema for schema in CONSUMER_PROTOCOL if schema.name.endswith(name)]
    reader = MessageReader(data or b"")
    try:
        # Later versions have additional fields at the end.
        version = min(reader.int16(), schema.versions.highest)
        return schema.read(reader, version)
    except CorruptRecordError:
        return None


@dataclass(frozen=True, slots=True)
class Transaction:
    """The latest state of a transactional ID; absent IDs, epochs and times are None.

    `client_version` is the ``transaction.version`` with which its producer ended the last
    transaction. `appended_ms` is when the coordinator wrote the record. The last update of a
    completed transaction is earlier: it is the time of the decision, before the markers were
    written.
    """

    transactional_id: str
    state: str
    producer_id: int
    producer_epoch: int
    previous_producer_id: int | None
    next_producer_id: int | None
    timeout_ms: int
    start_timestamp_ms: int | None
    last_update_timestamp_ms: int
    partitions: tuple[tuple[str, int], ...]
    client_version: int = 0
    appended_ms: int = -1

    @classmethod
    def of(cls, key: Struct, value: Struct, appended_ms: int) -> Transaction:
        """Convert a record with its append time."""
        state = value.integer("transactionStatus")
        known = 0 <= state < len(TRANSACTION_STATES)
        return cls(
            key.text("transactionalId"),
            TRANSACTION_STATES[state] if known else str(state),
            value.integer("producerId"),
            value.integer("producerEpoch"),
            _known(value.integer("previousProducerId")),
            _known(value.integer("nextProducerId")),
            value.integer("transactionTimeoutMs"),
            _known(value.integer("transactionStartTimestampMs")),
            value.integer("transactionLastUpdateTimestampMs"),
            tuple(
                (topic.text("topic"), partition)
                for topic in value.structs("transactionPartitions")
                for partition in topic.integers("partitionIds")
            ),
            value.integer("clientTransactionVersion") if "clientTransactionVersion" in value else 0,
            appended_ms,
        )


class TransactionLogState(TopicState):
    def __init__(self) -> None:
        super().__init__()
        self._latest: dict[bytes, tuple[bytes, int]] = {}

    def add(self, record: LogRecord) -> None:
        """Apply a record; raises `CorruptRecordError` if it cannot be read."""
        if record.is_control:
            return
        if record.key is None:
            raise CorruptRecordError("the record has no key")
        key = record.key
        name_of = partial(_checked_name, TRANSACTION_CODEC, key, record.value, self._latest)
        if not self._is_known(name_of):
            return
        if record.value is None:
            self._latest.pop(key, None)
        else:
            self._latest[key] = record.value, record.timestamp_ms

    def transactions(self) -> list[Transaction]:
        found = []
        for key, (value, appended_ms) in self._latest.items():
            decoded = TRANSACTION_CODEC.decode(key, value)
            if decoded.key is not None and decoded.value is not None:
                found.append(Transaction.of(decoded.key, decoded.value, appended_ms))
        return sorted(found, key=lambda one: one.transactional_id)


def transaction_change(record: LogRecord) -> tuple[str, Transaction | None] | None:
    """Return the transactional ID and state of a record; the state is None if deleted.

    Returns None for other record types. Raises `CorruptRecordError` if it cannot be read.
    """
    if record.is_control:
        return None
    try:
        decoded = TRANSACTION_CODEC.decode(record.key, record.value)
    except LaterVersionError:
        raise
    except UnknownRecordError:
        return None
    if decoded.key is None:
        return None
    name = decoded.key.text("transactionalId")
    if decoded.value is None:
        return name, None
    return name, Transaction.of(decoded.key, decoded.value, record.timestamp_ms)


def _known(value: int) -> int | None:
    return None if value < 0 else value


class RemoteLogState(TopicState):
    def __init__(self) -> None:
        super().__init__()
        self._segments: dict[RemoteSegmentId, SegmentEvent] = {}

    def add(self, record: LogRecord) -> None:
        """Apply a record; raises `CorruptRecordError` if it cannot be read."""
        if record.is_control:
            return
        try:
            event = parse_metadata_record(record.value or b"")
        except CorruptRecordError as error:
            self._is_known(partial(_name_of_unreadable, record.value, error))
            return
        self._is_known(lambda: _NAMES[type(event)])
        if isinstance(event, SegmentEvent):
            self._segments[event.id] = event
        elif isinstance(event, StateEvent):
            self._update(event)

    def segments(self) -> list[SegmentEvent]:
        """Return the segments that are not deleted, by topic, partition and offset."""
        return sorted(
            self._segments.values(),
            key=lambda one: (one.topic, one.id.topic_id, one.id.partition, one.start_offset),
        )

    def _update(self, event: StateEvent) -> None:
        before = self._segments.get(event.id)
        if event.state is SegmentState.DELETE_SEGMENT_FINISHED:
            self._segments.pop(event.id, None)
        elif before is not None:
            self._segments[event.id] = replace(
                before,
                state=event.state,
                broker_id=event.broker_id,
                event_timestamp_ms=event.event_timestamp_ms,
                custom_metadata=event.custom_metadata,
            )


def _checked_name(
    codec: CoordinatorCodec, key: bytes, value: bytes | None, known: Container[bytes]
) -> str:
    """Return the name of a record; raise `CorruptRecordError` if a broker cannot read it.

    `known` keys have been validated before.
    """
    record_type = codec.record_type(key)
    name = codec.name_of(record_type)
    if key not in known:
        codec.key(key)
    if value is not None:
        codec.value(record_type, value)
    return name


def _name_of_unreadable(value: bytes | None, error: CorruptRecordError) -> str:
    """Raise `UnknownRecordError` if a record is from a later release, otherwise `error`."""
    REMOTE_LOG_CODEC.decode(value)
    raise error
