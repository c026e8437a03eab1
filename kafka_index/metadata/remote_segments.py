"""Segments in tiered storage, from the records of ``__remote_log_metadata``.

`kafka_index.tiered` parses the records; here is what remains of them: every segment that is not
deleted, with its last state, as Kafka's ``RemoteLogMetadataCache`` and
``RemoteLogSegmentMetadata.createWithUpdates`` have it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from kafka_index.errors import CorruptRecordError
from kafka_index.metadata.decoding import REMOTE_LOG_CODEC, RecordName, UnknownRecordError
from kafka_index.metadata.topic_log import LogRecord
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


class RemoteLogState:
    """Collects the records of ``__remote_log_metadata``.

    Attributes
    ----------
    counts : Counter of RecordName
        How many records of each type there were.
    """

    def __init__(self) -> None:
        self.counts: Counter[RecordName] = Counter()
        self._segments: dict[RemoteSegmentId, SegmentEvent] = {}

    def add(self, record: LogRecord) -> None:
        """Apply a record.

        Raises
        ------
        CorruptRecordError
            It cannot be read.
        """
        if record.is_control:
            return
        try:
            event = parse_metadata_record(record.value or b"")
        except CorruptRecordError as error:
            self.counts[_unknown(record.value, error)] += 1
            return
        self.counts[RecordName(_NAMES[type(event)], is_known=True)] += 1
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


def _unknown(value: bytes | None, error: CorruptRecordError) -> RecordName:
    """Return what an unreadable record is, where it comes from a later release."""
    try:
        REMOTE_LOG_CODEC.decode(value)
    except UnknownRecordError as unknown:
        return RecordName(unknown.name, is_known=False)
    raise error
