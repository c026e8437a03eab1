"""Segments in tiered storage, from the records of ``__remote_log_metadata``.

`kafka_index.tiered` parses the records; here is the result: every segment that is not deleted, with
its last state, as Kafka's ``RemoteLogMetadataCache`` and
``RemoteLogSegmentMetadata.createWithUpdates`` have it.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from kafka_index.errors import CorruptRecordError
from kafka_index.metadata.decoding import REMOTE_LOG_CODEC
from kafka_index.metadata.topic_log import LogRecord, TopicState
from kafka_index.tiered.metadata_records import (
    PartitionDeleteEvent,
    RemoteSegmentId,
    SegmentEvent,
    SegmentState,
    StateEvent,
    parse_metadata_record,
)

_NAMES = {
    SegmentEvent: "RemoteLogSegmentMetadataRecord",
    StateEvent: "RemoteLogSegmentMetadataUpdateRecord",
    PartitionDeleteEvent: "RemotePartitionDeleteMetadataRecord",
}


class RemoteLogState(TopicState):
    """Collects the records of ``__remote_log_metadata``."""

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


def _name_of_unreadable(value: bytes | None, error: CorruptRecordError) -> str:
    """Raise UnknownRecordError where a record comes from a later release, else its error."""
    REMOTE_LOG_CODEC.decode(value)
    raise error
