"""The states of remote segments, from the log directory's own copy of ``__remote_log_metadata``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import pyarrow as pa

from kafka_index.config import DEFAULT_MAX_DECOMPRESSED_BYTES
from kafka_index.errors import CorruptLogError, CorruptRecordError
from kafka_index.records.batch_walk import BatchDamage, RecordDecoder
from kafka_index.records.decompression import shared_budget
from kafka_index.records.record_table import RecordTable, WindowBatches
from kafka_index.scan import LogFileSource
from kafka_index.storage import SegmentFile
from kafka_index.tiered.metadata_records import (
    MetadataEvent,
    PartitionDeleteEvent,
    RemoteSegmentId,
    SegmentEvent,
    SegmentState,
    parse_metadata_record,
)


@dataclass(frozen=True, slots=True)
class MetadataRecord:
    """A record of the topic, with its partition and offset there."""

    partition: int
    offset: int
    event: MetadataEvent


@dataclass(slots=True)
class RemoteLogMetadata:
    """The state of remote segments after all events.

    `segments` has the announcement of each, `states` its last state. Topic names are by id.
    `partitions` has the topic id and partition of all events: every segment of these is known.
    `uploaded_to` is the largest end offset of a segment whose upload finished.
    """

    segments: dict[RemoteSegmentId, SegmentEvent] = field(default_factory=dict)
    states: dict[RemoteSegmentId, SegmentState] = field(default_factory=dict)
    topics: dict[str, str] = field(default_factory=dict)
    partitions: set[tuple[str, int]] = field(default_factory=set)
    uploaded_to: dict[tuple[str, int], int] = field(default_factory=dict)

    @classmethod
    def of_events(cls, events: Iterable[MetadataEvent]) -> RemoteLogMetadata:
        """Apply events, those of one partition in the order of their offsets."""
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
        self.states[event.id] = event.state
        if isinstance(event, SegmentEvent):
            self.segments[event.id] = event
        announced = self.segments.get(event.id)
        if announced is not None and event.state is SegmentState.COPY_SEGMENT_FINISHED:
            before = self.uploaded_to.get(partition, -1)
            self.uploaded_to[partition] = max(before, announced.end_offset)


def read_remote_log_metadata(segments: Sequence[SegmentFile]) -> Iterator[MetadataRecord]:
    """Yield the records of the topic from its logs, by partition and offset.

    Raises `CorruptLogError` if a log is damaged, or a record is not one of this topic, because the
    events after it are unknown, and `InputError` if a log cannot be read.
    """
    decoder = RecordDecoder(shared_budget(DEFAULT_MAX_DECOMPRESSED_BYTES))
    for segment in segments:
        table = RecordTable(segment.topic, segment.partition, ("offset", "value", "is_control"))
        source = LogFileSource.of_segment(segment, verify_crc=True)
        for window, start, batches in source.windows():
            convert = partial(table.convert, source=WindowBatches(window, start, batches))
            positions = batches.position_bytes
            for found in decoder.decode(window, positions - start, batches.size_bytes, convert):
                if isinstance(found, BatchDamage):
                    position = int(positions[found.batch])
                    raise _unreadable(segment, position, found.error) from found.error
                yield from _records(segment, found)
        stop = source.stop
        if stop is not None and not (segment.is_last and stop.is_tail):
            raise CorruptLogError(
                f"the states of remote segments after it are unknown: {stop.text}",
                path=segment.log_path,
                position_bytes=stop.position_bytes,
                hint="give a sound copy of the log directory, or leave it out",
            )


def _records(segment: SegmentFile, rows: pa.RecordBatch) -> Iterator[MetadataRecord]:
    columns = (rows.column(name).to_pylist() for name in ("offset", "value", "is_control"))
    for offset, value, is_control in zip(*columns, strict=True):
        if is_control:
            continue
        try:
            event = parse_metadata_record(value or b"")
        except CorruptRecordError as error:
            raise CorruptLogError(
                f"the record at offset {offset} is not one of remote log metadata: {error}",
                path=segment.log_path,
            ) from error
        yield MetadataRecord(segment.partition, offset, event)


def _unreadable(segment: SegmentFile, position: int, error: CorruptLogError) -> CorruptLogError:
    return CorruptLogError(
        f"records of remote log metadata cannot be read: {error.message}",
        path=segment.log_path,
        position_bytes=position,
    )
