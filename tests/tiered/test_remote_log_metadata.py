"""The events of `__remote_log_metadata`, against what Kafka's own tool prints of them."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import pytest

from kafka_index.errors import CorruptLogError, CorruptRecordError
from kafka_index.layout.names import REMOTE_LOG_METADATA_TOPIC
from kafka_index.storage import list_dump
from kafka_index.tiered.remote_log_metadata import (
    MetadataEvent,
    MetadataRecord,
    PartitionDeleteEvent,
    RemoteLogMetadata,
    SegmentEvent,
    SegmentState,
    parse_metadata_record,
    read_remote_log_metadata,
)
from tests.support.tiered import SETTINGS, Setting, setting


def _records(at: Setting) -> list[MetadataRecord]:
    listing = list_dump([at.data], topics=re.compile(REMOTE_LOG_METADATA_TOPIC))
    return list(read_remote_log_metadata(listing.segments))


def _as_kafka_prints(event: MetadataEvent) -> str:
    assert not isinstance(event, PartitionDeleteEvent)
    segment = (
        f"RemoteLogSegmentId{{topicIdPartition={event.id.topic_id}:{event.topic}-"
        f"{event.id.partition}, id={event.id.segment_id}}}"
    )
    custom = "Optional.empty"
    if event.custom_metadata is not None:
        custom = f"Optional[CustomMetadata{{{len(event.custom_metadata)} bytes}}]"
    if isinstance(event, SegmentEvent):
        epochs = ", ".join(f"{each.epoch}={each.start_offset}" for each in event.epochs)
        return (
            f"RemoteLogSegmentMetadata{{remoteLogSegmentId={segment}, "
            f"startOffset={event.start_offset}, endOffset={event.end_offset}, "
            f"brokerId={event.broker_id}, maxTimestampMs={event.max_timestamp_ms}, "
            f"eventTimestampMs={event.event_timestamp_ms}, segmentLeaderEpochs={{{epochs}}}, "
            f"segmentSizeInBytes={event.size_bytes}, customMetadata={custom}, "
            f"state={event.state.name}, "
            f"txnIdxEmpty={str(event.is_txn_index_empty).lower()}}}"
        )
    return (
        f"RemoteLogSegmentMetadataUpdate{{remoteLogSegmentId={segment}, customMetadata={custom}, "
        f"state={event.state.name}, eventTimestampMs={event.event_timestamp_ms}, "
        f"brokerId={event.broker_id}}}"
    )


@pytest.mark.parametrize("name", SETTINGS)
def test_every_event_is_the_one_that_kafka_prints(name: str) -> None:
    at = setting(name)
    text = gzip.decompress((at.path / "truth" / "remote_log_metadata.txt.gz").read_bytes()).decode()
    expected = [tuple(line.split("\t")) for line in text.splitlines()[1:]]

    found = [
        (str(each.partition), str(each.offset), _as_kafka_prints(each.event))
        for each in _records(at)
    ]

    assert sorted(found) == sorted(expected)


def test_the_last_state_of_a_segment_counts() -> None:
    metadata = RemoteLogMetadata.of_events(each.event for each in _records(setting("aiven-plain")))
    states = list(metadata.states.values())

    assert states.count(SegmentState.COPY_SEGMENT_FINISHED) == 85
    assert states.count(SegmentState.DELETE_SEGMENT_FINISHED) == 5
    assert states.count(SegmentState.COPY_SEGMENT_STARTED) == 1


@pytest.mark.parametrize(
    "value", [b"", b"\x02\x00\x00", b"\x01\x09\x00", b"\x01\x00\x01", b"\x01\x00\x00\x05ab"]
)
def test_what_is_no_event_is_refused(value: bytes) -> None:
    with pytest.raises(CorruptRecordError):
        parse_metadata_record(value)


def test_a_damaged_metadata_log_is_an_error_because_later_states_are_unknown(
    tmp_path: Path,
) -> None:
    at = setting("local")
    listing = list_dump([at.data], topics=re.compile(REMOTE_LOG_METADATA_TOPIC))
    segment = max(listing.segments, key=lambda each: each.log_size_bytes)
    data = bytearray(Path(segment.log_path).read_bytes())
    data[len(data) // 2] ^= 1
    folder = tmp_path / f"{segment.topic}-{segment.partition}"
    folder.mkdir()
    (folder / Path(segment.log_path).name).write_bytes(data)

    damaged = list_dump([str(folder)], topics=None).segments
    with pytest.raises(CorruptLogError, match="the states of remote segments after it are unknown"):
        list(read_remote_log_metadata(damaged))
