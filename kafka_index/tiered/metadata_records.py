"""The records of ``__remote_log_metadata``: what happened to a remote segment.

A value is a frame version, the kind of the record and its version, all unsigned varints, and the
message. Source: Kafka's ``RemoteLogMetadataSerde`` and the schemas ``RemoteLogSegmentMetadataRecord``,
``RemoteLogSegmentMetadataUpdateRecord`` and ``RemotePartitionDeleteMetadataRecord``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from kafka_index.layout.checkpoints import EpochEntry
from kafka_index.layout.flexible_versions import FlexibleReader

REMOTE_LOG_METADATA_TOPIC = "__remote_log_metadata"

_FRAME_VERSION = 1
_SEGMENT, _UPDATE, _PARTITION_DELETE, _SNAPSHOT = range(4)
_TXN_INDEX_EMPTY_TAG = 0


class SegmentState(IntEnum):
    """Where a remote segment is in its life (Kafka: ``RemoteLogSegmentState``)."""

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

    Parameters
    ----------
    id : RemoteSegmentId
        The segment.
    topic : str
        Name of its topic.
    start_offset, end_offset : int
        Its first and its last offset, inclusive.
    broker_id : int
        Who uploads it.
    max_timestamp_ms, event_timestamp_ms : int
        The largest timestamp of its batches; when the record was written.
    epochs : tuple of EpochEntry
        Its leader epochs.
    size_bytes : int
        Size of the log.
    state : SegmentState
        `COPY_SEGMENT_STARTED`.
    custom_metadata : bytes, optional
        What the storage plugin keeps with it.
    is_txn_index_empty : bool
        Whether it has no aborted transactions.
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

    Parameters
    ----------
    topic_id, partition, topic
        The partition.
    broker_id, event_timestamp_ms : int
        Who wrote it, and when.
    state : int
        0 marked, 1 started, 2 finished.
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

    Raises
    ------
    ValueError
        It is not one of these records, in a version that is known.
    """
    reader = FlexibleReader(value)
    frame, kind, version = (reader.unsigned_varint() for _ in range(3))
    if frame != _FRAME_VERSION or version != 0:
        raise ValueError(f"frame version {frame} and version {version} of record {kind}")
    match kind:
        case 0:
            event: MetadataEvent = _segment_event(reader)
        case 1:
            event = _state_event(reader)
        case 2:
            event = _partition_delete_event(reader)
        case _:
            raise ValueError(f"a record of the unknown kind {kind}")
    if reader.remaining:
        raise ValueError(f"{reader.remaining} bytes after the end of the record")
    return event


def _segment_event(reader: FlexibleReader) -> SegmentEvent:
    segment_id, topic = _segment_id(reader)
    start_offset, end_offset = reader.int64(), reader.int64()
    broker_id = reader.int32()
    max_timestamp_ms, event_timestamp_ms = reader.int64(), reader.int64()
    epochs = []
    for _ in range(reader.compact_array_length()):
        epochs.append(EpochEntry(reader.int32(), reader.int64()))
        reader.tagged_fields()
    size_bytes = reader.int32()
    custom_metadata = reader.compact_nullable_bytes()
    state = SegmentState(reader.int8())
    tagged = reader.tagged_fields()
    return SegmentEvent(
        segment_id,
        topic,
        start_offset,
        end_offset,
        broker_id,
        max_timestamp_ms,
        event_timestamp_ms,
        tuple(sorted(epochs, key=lambda entry: entry.epoch)),
        size_bytes,
        state,
        custom_metadata,
        is_txn_index_empty=tagged.get(_TXN_INDEX_EMPTY_TAG, b"\0") != b"\0",
    )


def _state_event(reader: FlexibleReader) -> StateEvent:
    segment_id, topic = _segment_id(reader)
    event = StateEvent(
        segment_id,
        topic,
        reader.int32(),
        reader.int64(),
        reader.compact_nullable_bytes(),
        SegmentState(reader.int8()),
    )
    reader.tagged_fields()
    return event


def _partition_delete_event(reader: FlexibleReader) -> PartitionDeleteEvent:
    topic, topic_id, partition = _partition(reader)
    event = PartitionDeleteEvent(
        topic_id, partition, topic, reader.int32(), reader.int64(), reader.int8()
    )
    reader.tagged_fields()
    return event


def _segment_id(reader: FlexibleReader) -> tuple[RemoteSegmentId, str]:
    topic, topic_id, partition = _partition(reader)
    segment_id = reader.uuid()
    reader.tagged_fields()
    return RemoteSegmentId(topic_id, partition, segment_id), topic


def _partition(reader: FlexibleReader) -> tuple[str, str, int]:
    topic, topic_id, partition = reader.compact_string(), reader.uuid(), reader.int32()
    reader.tagged_fields()
    return topic, topic_id, partition
