"""The records of ``__remote_log_metadata``: the events of a remote segment.

A value is a frame version, the API key of the message and its version, all unsigned varints, and
the message. Source: Kafka's ``RemoteLogMetadataSerde`` and ``BytesApiMessageSerde``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum

from kafka_index.errors import CorruptRecordError
from kafka_index.layout.checkpoints import EpochEntry
from kafka_index.layout.message_bytes import MessageReader
from kafka_index.layout.message_fields import Struct
from kafka_index.layout.messages import REMOTE_LOG_METADATA

_FRAME_VERSION = 1


class SegmentState(IntEnum):
    """The stage in the life of a remote segment (Kafka: ``RemoteLogSegmentState``)."""

    COPY_SEGMENT_STARTED = 0
    COPY_SEGMENT_FINISHED = 1
    DELETE_SEGMENT_STARTED = 2
    DELETE_SEGMENT_FINISHED = 3


@dataclass(frozen=True, slots=True, order=True)
class RemoteSegmentId:
    """A remote segment: the partition of a topic, by its id, and the segment's own id."""

    topic_id: str
    partition: int
    segment_id: str


@dataclass(frozen=True, slots=True)
class SegmentEvent:
    """The upload of a segment begins (``RemoteLogSegmentMetadataRecord``).

    First and last offset are inclusive; `broker_id` is the uploader, `event_timestamp_ms` the time
    of the record, and `size_bytes` the size of the log. The state is `COPY_SEGMENT_STARTED`, and
    the custom metadata belongs to the storage plugin.
    """

    id: RemoteSegmentId
    topic: str
    start_offset: int
    end_offset: int
    broker_id: int
    max_timestamp_ms: int
    event_timestamp_ms: int
    epochs: tuple[EpochEntry, ...]
    size_bytes: int
    state: SegmentState
    custom_metadata: bytes | None
    is_txn_index_empty: bool


@dataclass(frozen=True, slots=True)
class StateEvent:
    """A segment has another state (``RemoteLogSegmentMetadataUpdateRecord``)."""

    id: RemoteSegmentId
    topic: str
    broker_id: int
    event_timestamp_ms: int
    custom_metadata: bytes | None
    state: SegmentState


@dataclass(frozen=True, slots=True)
class PartitionDeleteEvent:
    """A partition is being deleted (``RemotePartitionDeleteMetadataRecord``).

    The broker wrote the record; the state is 0 marked, 1 started, 2 finished.
    """

    topic_id: str
    partition: int
    topic: str
    broker_id: int
    event_timestamp_ms: int
    state: int


MetadataEvent = SegmentEvent | StateEvent | PartitionDeleteEvent


def parse_metadata_record(value: bytes) -> MetadataEvent:
    """Parse the value of a record.

    Raises `CorruptRecordError` if it is not one of these records, in a version that is known.
    """
    reader = MessageReader(value)
    frame, kind, version = (reader.unsigned_varint() for _ in range(3))
    if frame != _FRAME_VERSION:
        raise CorruptRecordError("unknown frame version", expected=_FRAME_VERSION, found=frame)
    parse = _PARSERS.get(kind)
    if parse is None:
        raise CorruptRecordError("a record of an unknown kind", expected="0 to 2", found=kind)
    schema = next(each for each in REMOTE_LOG_METADATA if each.api_key == kind)
    return parse(schema.read(reader, version))


def _segment_event(message: Struct) -> SegmentEvent:
    segment_id, topic = _segment_id(message)
    epochs = [
        EpochEntry(epoch.integer("leaderEpoch"), epoch.integer("offset"))
        for epoch in message.structs("segmentLeaderEpochs")
    ]
    return SegmentEvent(
        segment_id,
        topic,
        message.integer("startOffset"),
        message.integer("endOffset"),
        message.integer("brokerId"),
        message.integer("maxTimestampMs"),
        message.integer("eventTimestampMs"),
        tuple(sorted(epochs, key=lambda entry: entry.epoch)),
        message.integer("segmentSizeInBytes"),
        _state(message),
        message.binary("customMetadata"),
        message.flag("txnIndexEmpty"),
    )


def _state_event(message: Struct) -> StateEvent:
    return StateEvent(
        *_segment_id(message),
        message.integer("brokerId"),
        message.integer("eventTimestampMs"),
        message.binary("customMetadata"),
        _state(message),
    )


def _partition_delete_event(message: Struct) -> PartitionDeleteEvent:
    partition = message.struct("topicIdPartition")
    return PartitionDeleteEvent(
        partition.text("id"),
        partition.integer("partition"),
        partition.text("name"),
        message.integer("brokerId"),
        message.integer("eventTimestampMs"),
        message.integer("remotePartitionDeleteState"),
    )


def _segment_id(message: Struct) -> tuple[RemoteSegmentId, str]:
    segment = message.struct("remoteLogSegmentId")
    partition = segment.struct("topicIdPartition")
    segment_id = RemoteSegmentId(
        partition.text("id"), partition.integer("partition"), segment.text("id")
    )
    return segment_id, partition.text("name")


def _state(message: Struct) -> SegmentState:
    state = message.integer("remoteLogSegmentState")
    try:
        return SegmentState(state)
    except ValueError:
        raise CorruptRecordError(
            "an unknown state of a segment", expected="0 to 3", found=state
        ) from None


_PARSERS: Mapping[int, Callable[[Struct], MetadataEvent]] = {
    0: _segment_event,
    1: _state_event,
    2: _partition_delete_event,
}
