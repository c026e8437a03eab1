"""Groups, transactions and remote segments, from the records of internal topics.

Records of ``__consumer_offsets`` are validated when they are read, and stored as bytes by key. They
are decoded at the end, because most of them are superseded by later records. Transactional offset
commits take effect at their transaction marker.

Sources: Kafka's ``OffsetMetadataManager.replay``, ``replayEndTransactionMarker``,
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
_EVENT_NAMES = {
    SegmentEvent: "RemoteLogSegmentMetadataRecord",
    StateEvent: "RemoteLogSegmentMetadataUpdateRecord",
    PartitionDeleteEvent: "RemotePartitionDeleteMetadataRecord",
}


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """An offset that a group committed for a partition.

    Since 4.1, records of groups that use topic IDs contain the topic ID. `leader_epoch` is the
    leader epoch of the last consumed record. Only old record versions have an expiration timestamp.
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
    """A member of a group; its partitions are pairs of a topic (name or ID) and a number."""

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

    `epoch` is the generation of a classic group, or the group epoch. `epoch` is None if the group
    only commits offsets.
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
    """A record that is decoded after all records have been read."""

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
        """Apply a record, or a transaction marker.

        Raises `CorruptRecordError` if the record cannot be read.
        """
        key = record.key
        if key is None:
            raise CorruptRecordError("the record has no key")
        if record.is_control:
            self._end_transaction(record.producer_id, MessageReader(key, 2).int16())
            return
        record_type = GROUP_CODEC.record_type(key)
        if not self._count_record(
            partial(_read_type_name, GROUP_CODEC, key, record.value, self._latest)
        ):
            return
        if record_type == _LEGACY_OFFSET_COMMIT:
            key = _OFFSET_COMMIT.to_bytes(2, "big") + key[2:]
        if record.value is None:
            self._keep_superseded(key, self._latest.pop(key, None))
            for pending in self._pending.values():
                pending.pop(key, None)
            return
        is_pending = record.producer_id != NO_PRODUCER_ID and key[1] == _OFFSET_COMMIT
        target = self._pending[record.producer_id] if is_pending else self._latest
        if not is_pending:
            self._keep_superseded(key, target.get(key))
        target[key] = _StoredRecord(record.offset, record_type, record.value)

    def _end_transaction(self, producer_id: int, control_type: int) -> None:
        for key, record in self._pending.pop(producer_id, {}).items():
            committed = self._latest.get(key)
            if control_type == CONTROL_COMMIT and (
                committed is None or record.offset > committed.offset
            ):
                self._keep_superseded(key, committed)
                self._latest[key] = record

    def _keep_superseded(self, key: bytes, record: _StoredRecord | None) -> None:
        if self._earlier is not None and record is not None and key[1] == _OFFSET_COMMIT:
            self._earlier.append((key, record))

    def decode(self) -> tuple[list[Group], list[CommittedOffset]]:
        """Return groups sorted by name, and committed offsets by group, topic and partition.

        The result includes groups that only commit offsets.
        """
        groups: dict[str, Group] = {}
        offsets: list[CommittedOffset] = []
        for key, value, record in _decode_records(self._latest.items()):
            name = key.text("group" if "group" in key else "groupId")
            group = groups.setdefault(name, Group(name))
            if "topic" in key:
                offsets.append(_decode_offset(key, value, record.offset))
            else:
                _add_group_record(group, GROUP_CODEC.record_name(record.record_type), key, value)
        offsets.sort(key=lambda offset: (offset.group, offset.topic, offset.partition))
        return sorted(groups.values(), key=lambda group: group.name), offsets

    def earlier_offsets(self) -> list[CommittedOffset]:
        """Return the offset commits in the log that later commits have superseded."""
        return [
            _decode_offset(key, value, record.offset)
            for key, value, record in _decode_records(self._earlier or ())
        ]

    def open_offsets(self) -> list[CommittedOffset]:
        """Return the offset commits of open transactions, which are not effective yet."""
        return [
            _decode_offset(key, value, record.offset)
            for pending in self._pending.values()
            for key, value, record in _decode_records(pending.items())
        ]


def _decode_records(
    records: Iterable[tuple[bytes, _StoredRecord]],
) -> Iterator[tuple[Struct, Struct, _StoredRecord]]:
    for key, record in records:
        value, _ = GROUP_CODEC.decode_value(record.record_type, record.value)
        yield GROUP_CODEC.decode_key(key), value, record


def _decode_offset(key: Struct, value: Struct, record_offset: int) -> CommittedOffset:
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


def _add_group_record(group: Group, name: str, key: Struct, value: Struct) -> None:
    """Add the content of a record about a group."""
    member_id = key.text("memberId") if "memberId" in key else ""
    group_type, is_new, _ = name.partition("Group")
    if is_new and group_type:
        group.kind = group_type.lower()
    match name:
        case "GroupMetadata":
            _add_classic_group(group, value)
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
                member.assignment = _list_assignments(
                    value.structs("assignedPartitions"), "topicId"
                )


def _add_classic_group(group: Group, value: Struct) -> None:
    group.epoch = value.integer("generation")
    group.protocol_type = value.text("protocolType")
    group.protocol = value.optional_text("protocol")
    group.leader = value.optional_text("leader")
    timestamp = value.integer("currentStateTimestamp")
    group.state_timestamp_ms = None if timestamp < 0 else timestamp
    for member_message in value.structs("members"):
        member = GroupMember(
            member_message.text("memberId"),
            member_message.optional_text("groupInstanceId"),
            member_message.text("clientId"),
            member_message.text("clientHost"),
        )
        if group.protocol_type == _CONSUMER:
            subscription = _protocol_message("Subscription", member_message.binary("subscription"))
            assignment = _protocol_message("Assignment", member_message.binary("assignment"))
            if subscription is not None:
                member.topics = subscription.texts("topics")
            if assignment is not None:
                member.assignment = _list_assignments(
                    assignment.structs("assignedPartitions"), "topic"
                )
        group.members[member.member_id] = member


def _list_assignments(topics: list[Struct], name: str) -> list[tuple[str, int]]:
    return [
        (topic.text(name), partition)
        for topic in topics
        for partition in topic.integers("partitions")
    ]


def _protocol_message(name: str, data: bytes | None) -> Struct | None:
    """Parse a message of the consumer protocol; return None for bytes of another protocol."""
    (schema,) = [schema for schema in CONSUMER_PROTOCOL if schema.name.endswith(name)]
    reader = MessageReader(data or b"")
    try:
        # Later versions only add fields at the end, which are ignored.
        version = min(reader.int16(), schema.versions.highest)
        return schema.read(reader, version)
    except CorruptRecordError:
        return None


@dataclass(frozen=True, slots=True)
class Transaction:
    """The latest state of a transactional ID; absent IDs, epochs and times are None.

    `client_version` is the ``transaction.version`` with which the producer ended the last
    transaction. `appended_ms` is the time when the coordinator appended the record. For a completed
    transaction, the last update timestamp is earlier: the time of the decision, before the markers
    were written.
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
    def from_record(cls, key: Struct, value: Struct, appended_ms: int) -> Transaction:
        """Convert a record that the coordinator appended at `appended_ms`."""
        status = value.integer("transactionStatus")
        is_known = 0 <= status < len(TRANSACTION_STATES)
        return cls(
            key.text("transactionalId"),
            TRANSACTION_STATES[status] if is_known else str(status),
            value.integer("producerId"),
            value.integer("producerEpoch"),
            _none_if_negative(value.integer("previousProducerId")),
            _none_if_negative(value.integer("nextProducerId")),
            value.integer("transactionTimeoutMs"),
            _none_if_negative(value.integer("transactionStartTimestampMs")),
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
        """Apply a record; raise `CorruptRecordError` if the record cannot be read."""
        if record.is_control:
            return
        if record.key is None:
            raise CorruptRecordError("the record has no key")
        key = record.key
        read_name = partial(_read_type_name, TRANSACTION_CODEC, key, record.value, self._latest)
        if not self._count_record(read_name):
            return
        if record.value is None:
            self._latest.pop(key, None)
        else:
            self._latest[key] = record.value, record.timestamp_ms

    def transactions(self) -> list[Transaction]:
        transactions = []
        for key, (value, appended_ms) in self._latest.items():
            decoded = TRANSACTION_CODEC.decode(key, value)
            if decoded.key is not None and decoded.value is not None:
                transactions.append(
                    Transaction.from_record(decoded.key, decoded.value, appended_ms)
                )
        return sorted(transactions, key=lambda transaction: transaction.transactional_id)


def transaction_change(record: LogRecord) -> tuple[str, Transaction | None] | None:
    """Return the transactional ID and state in a record; the state is None if it is deleted.

    Returns None for other record types. Raises `CorruptRecordError` if the record cannot be read.
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
    return name, Transaction.from_record(decoded.key, decoded.value, record.timestamp_ms)


def _none_if_negative(value: int) -> int | None:
    return None if value < 0 else value


class RemoteLogState(TopicState):
    def __init__(self) -> None:
        super().__init__()
        self._segments: dict[RemoteSegmentId, SegmentEvent] = {}

    def add(self, record: LogRecord) -> None:
        """Apply a record; raise `CorruptRecordError` if the record cannot be read."""
        if record.is_control:
            return
        try:
            event = parse_metadata_record(record.value or b"")
        except CorruptRecordError as error:
            self._count_record(partial(_unreadable_record_name, record.value, error))
            return
        self._count_record(lambda: _EVENT_NAMES[type(event)])
        if isinstance(event, SegmentEvent):
            self._segments[event.id] = event
        elif isinstance(event, StateEvent):
            self._update(event)

    def segments(self) -> list[SegmentEvent]:
        """Return the segments that are not deleted, sorted by topic, partition and offset."""
        return sorted(
            self._segments.values(),
            key=lambda segment: (
                segment.topic,
                segment.id.topic_id,
                segment.id.partition,
                segment.start_offset,
            ),
        )

    def _update(self, event: StateEvent) -> None:
        segment = self._segments.get(event.id)
        if event.state is SegmentState.DELETE_SEGMENT_FINISHED:
            self._segments.pop(event.id, None)
        elif segment is not None:
            self._segments[event.id] = replace(
                segment,
                state=event.state,
                broker_id=event.broker_id,
                event_timestamp_ms=event.event_timestamp_ms,
                custom_metadata=event.custom_metadata,
            )


def _read_type_name(
    codec: CoordinatorCodec, key: bytes, value: bytes | None, validated_keys: Container[bytes]
) -> str:
    """Return the name of a record; raise `CorruptRecordError` if a broker cannot read the record.

    Keys in `validated_keys` are not validated again.
    """
    record_type = codec.record_type(key)
    name = codec.record_name(record_type)
    if key not in validated_keys:
        codec.decode_key(key)
    if value is not None:
        codec.decode_value(record_type, value)
    return name


def _unreadable_record_name(value: bytes | None, error: CorruptRecordError) -> str:
    """Raise `UnknownRecordError` if a record is from a later Kafka release, otherwise `error`."""
    REMOTE_LOG_CODEC.decode(value)
    raise error
