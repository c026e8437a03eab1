"""Read the states of remote segments from ``__remote_log_metadata`` in a log directory.

A record's value consists of a frame version, an API key and a message version, all unsigned
varints, and the message. Source: Kafka's ``RemoteLogMetadataSerde`` and ``BytesApiMessageSerde``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import partial

import pyarrow as pa

from kafka_index.core.errors import CorruptLogError, CorruptRecordError
from kafka_index.core.format.checkpoints import EpochEntry
from kafka_index.core.format.config import DEFAULT_MAX_DECOMPRESSED_BYTES
from kafka_index.core.format.message_bytes import MessageReader
from kafka_index.core.format.message_schemas import Struct
from kafka_index.core.format.messages import REMOTE_LOG_METADATA
from kafka_index.core.log.scan.segment_scan import LogFileSource
from kafka_index.core.logdir.partition_files import SegmentFile
from kafka_index.core.records.batch_table import WindowBatches
from kafka_index.core.records.decompression import shared_budget
from kafka_index.core.records.record_decoder import BatchDamage, RecordDecoder
from kafka_index.core.records.record_table import RecordTable

_FRAME_VERSION = 1


class SegmentState(IntEnum):
    """The state of a remote segment (Kafka: ``RemoteLogSegmentState``)."""

    COPY_SEGMENT_STARTED = 0
    COPY_SEGMENT_FINISHED = 1
    DELETE_SEGMENT_STARTED = 2
    DELETE_SEGMENT_FINISHED = 3


@dataclass(frozen=True, slots=True, order=True)
class RemoteSegmentId:
    """The ID of a remote segment: topic ID, partition, and segment ID."""

    topic_id: str
    partition: int
    segment_id: str


@dataclass(frozen=True, slots=True)
class SegmentEvent:
    """The event that the upload of a segment starts (``RemoteLogSegmentMetadataRecord``).

    Start and end offset are inclusive. `broker_id` is the broker that uploads the segment,
    `event_timestamp_ms` the time of the event, and `size_bytes` the size of the `.log` file. The
    format of custom metadata depends on the plugin.
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
    """The event that the state of a segment changes (``RemoteLogSegmentMetadataUpdateRecord``)."""

    id: RemoteSegmentId
    topic: str
    broker_id: int
    event_timestamp_ms: int
    custom_metadata: bytes | None
    state: SegmentState


@dataclass(frozen=True, slots=True)
class PartitionDeleteEvent:
    """The event that a partition is deleted (``RemotePartitionDeleteMetadataRecord``).

    `broker_id` is the broker that wrote the event. States: 0 marked, 1 started, 2 finished.
    """

    topic_id: str
    partition: int
    topic: str
    broker_id: int
    event_timestamp_ms: int
    state: int


MetadataEvent = SegmentEvent | StateEvent | PartitionDeleteEvent


def parse_metadata_record(value: bytes) -> MetadataEvent:
    """Parse the value of a record of ``__remote_log_metadata``.

    Raises `CorruptRecordError` if the type or version of the record is unknown.
    """
    reader = MessageReader(value)
    frame, api_key, version = (reader.unsigned_varint() for _ in range(3))
    if frame != _FRAME_VERSION:
        raise CorruptRecordError(
            "the record has an unknown frame version", expected=_FRAME_VERSION, found=frame
        )
    parse = _PARSERS.get(api_key)
    if parse is None:
        raise CorruptRecordError("the record has an unknown type", expected="0 to 2", found=api_key)
    schema = next(schema for schema in REMOTE_LOG_METADATA if schema.api_key == api_key)
    return parse(schema.read(reader, version))


def _parse_segment_event(message: Struct) -> SegmentEvent:
    segment_id, topic = _parse_segment_id(message)
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
        _parse_state(message),
        message.binary("customMetadata"),
        message.flag("txnIndexEmpty"),
    )


def _parse_state_event(message: Struct) -> StateEvent:
    return StateEvent(
        *_parse_segment_id(message),
        message.integer("brokerId"),
        message.integer("eventTimestampMs"),
        message.binary("customMetadata"),
        _parse_state(message),
    )


def _parse_partition_delete_event(message: Struct) -> PartitionDeleteEvent:
    partition = message.struct("topicIdPartition")
    return PartitionDeleteEvent(
        partition.text("id"),
        partition.integer("partition"),
        partition.text("name"),
        message.integer("brokerId"),
        message.integer("eventTimestampMs"),
        message.integer("remotePartitionDeleteState"),
    )


def _parse_segment_id(message: Struct) -> tuple[RemoteSegmentId, str]:
    segment = message.struct("remoteLogSegmentId")
    partition = segment.struct("topicIdPartition")
    segment_id = RemoteSegmentId(
        partition.text("id"), partition.integer("partition"), segment.text("id")
    )
    return segment_id, partition.text("name")


def _parse_state(message: Struct) -> SegmentState:
    state = message.integer("remoteLogSegmentState")
    try:
        return SegmentState(state)
    except ValueError:
        raise CorruptRecordError(
            "the record has an unknown segment state", expected="0 to 3", found=state
        ) from None


_PARSERS: Mapping[int, Callable[[Struct], MetadataEvent]] = {
    0: _parse_segment_event,
    1: _parse_state_event,
    2: _parse_partition_delete_event,
}


@dataclass(frozen=True, slots=True)
class MetadataRecord:
    """A record of ``__remote_log_metadata``, with its partition and offset."""

    partition: int
    offset: int
    event: MetadataEvent


@dataclass(slots=True)
class RemoteLogMetadata:
    """The state of remote segments after all remote log metadata events.

    `segments` has the upload event of each segment, with the latest state of the segment. `topics`
    has topic names by topic ID. `partitions` has topic ID and number of each partition with events;
    all segments of these partitions are known. `uploaded_to` has the largest end offset of a
    completed upload in each partition.
    """

    segments: dict[RemoteSegmentId, SegmentEvent] = field(default_factory=dict)
    topics: dict[str, str] = field(default_factory=dict)
    partitions: set[tuple[str, int]] = field(default_factory=set)
    uploaded_to: dict[tuple[str, int], int] = field(default_factory=dict)

    @classmethod
    def from_events(cls, events: Iterable[MetadataEvent]) -> RemoteLogMetadata:
        """Apply events; the events about a partition must be in offset order."""
        metadata = cls()
        for event in events:
            metadata._apply(event)
        return metadata

    def _apply(self, event: MetadataEvent) -> None:
        if isinstance(event, PartitionDeleteEvent):
            self.topics[event.topic_id] = event.topic
            self.partitions.add((event.topic_id, event.partition))
            return
        partition = (event.id.topic_id, event.id.partition)
        self.topics[event.id.topic_id] = event.topic
        self.partitions.add(partition)
        segment = event if isinstance(event, SegmentEvent) else self.segments.get(event.id)
        if segment is None:
            return
        self.segments[event.id] = replace(segment, state=event.state)
        if event.state is SegmentState.COPY_SEGMENT_FINISHED:
            previous_end = self.uploaded_to.get(partition, -1)
            self.uploaded_to[partition] = max(previous_end, segment.end_offset)


def read_remote_log_metadata(segments: Sequence[SegmentFile]) -> Iterator[MetadataRecord]:
    """Yield the records of ``__remote_log_metadata``, sorted by partition and offset.

    Raises `CorruptLogError` if a log is corrupt or a record cannot be parsed, because events would
    be missing. Raises `InputError` if a log cannot be read.
    """
    decoder = RecordDecoder(shared_budget(DEFAULT_MAX_DECOMPRESSED_BYTES))
    for segment in segments:
        table = RecordTable(segment.topic, segment.partition, ("offset", "value", "is_control"))
        source = LogFileSource.of_segment(segment, verify_crc=True)
        for window, start, batches in source.windows():
            convert = partial(table.convert, source=WindowBatches(window, start, batches))
            positions = batches.position_bytes
            for decoded in decoder.decode(window, positions - start, batches.size_bytes, convert):
                if isinstance(decoded, BatchDamage):
                    position = int(positions[decoded.batch])
                    raise _unreadable_error(segment, position, decoded.error) from decoded.error
                yield from _parse_records(segment, decoded)
        scan_stop = source.stop
        if scan_stop is not None and not (segment.is_last and scan_stop.is_tail):
            raise CorruptLogError(
                f"later events of remote segments cannot be read: {scan_stop.text}",
                path=segment.log_path,
                position_bytes=scan_stop.position_bytes,
                hint="give an intact copy of the log directory, or omit the directory",
            )


def _parse_records(segment: SegmentFile, rows: pa.RecordBatch) -> Iterator[MetadataRecord]:
    columns = (rows.column(name).to_pylist() for name in ("offset", "value", "is_control"))
    for offset, value, is_control in zip(*columns, strict=True):
        if is_control:
            continue
        try:
            event = parse_metadata_record(value or b"")
        except CorruptRecordError as error:
            raise CorruptLogError(
                f"the record at offset {offset} is not remote log metadata: {error}",
                path=segment.log_path,
            ) from error
        yield MetadataRecord(segment.partition, offset, event)


def _unreadable_error(
    segment: SegmentFile, position: int, error: CorruptLogError
) -> CorruptLogError:
    return CorruptLogError(
        f"remote log metadata cannot be read: {error.message}",
        path=segment.log_path,
        position_bytes=position,
    )
