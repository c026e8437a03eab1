"""A broker appends to a log that we have appended to, and we append after it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from kafka_index.core.log.append.incoming_batches import AppendOrigin
from kafka_index.core.log.append.partition_log_writer import PartitionLogWriter
from kafka_index.core.log.append.settings import LogSettings
from kafka_index.core.records.record_batch import (
    BatchFields,
    Record,
    write_end_transaction_marker,
    write_record_batch,
)

from .broker import Broker, BrokerFolders
from .client import Client
from .topics import Topic, Traffic

if TYPE_CHECKING:
    from pathlib import Path

_CONFIG = {
    "internal.segment.bytes": "100000",
    "segment.index.bytes": "4096",
    "index.interval.bytes": "500",
}
_TOPIC = Topic("grown", (Traffic(batches=20),), _CONFIG)
_SETTINGS = LogSettings.of_properties(
    {name.removeprefix("internal."): value for name, value in _CONFIG.items()}
)
_BATCHES = 3000
_PRODUCER, _ABORTED = 900_000, 900_001
_CODECS = ("none", "gzip", "lz4", "zstd", "snappy")


def write_on(directory: Path) -> tuple[int, int]:
    """Append batches of a producer and an aborted transaction; offset of the end, and segments."""
    now_ms = int(time.time() * 1000)
    with PartitionLogWriter(directory, _SETTINGS) as log:
        epoch = log.leader_epochs[-1].epoch
        for number in range(_BATCHES):
            fields = BatchFields(
                compression=_CODECS[number % len(_CODECS)],
                producer_id=_PRODUCER,
                producer_epoch=0,
                base_sequence=number,
            )
            records = [Record(now_ms + number, b"key", b"value" * 10)]
            log.append_as_leader(write_record_batch(records, 0, fields), epoch)
        transaction = BatchFields(
            producer_id=_ABORTED, producer_epoch=0, base_sequence=0, is_transactional=True
        )
        records = [Record(now_ms, b"key", b"aborted")]
        log.append_as_leader(write_record_batch(records, 0, transaction), epoch)
        marker = write_end_transaction_marker(
            0, now_ms, _ABORTED, 0, is_commit=False, coordinator_epoch=0
        )
        log.append_as_leader(marker, epoch, origin=AppendOrigin.COORDINATOR)
        return log.log_end_offset, len(log.segments)


def reports_corruption(line: str) -> bool:
    """Whether a line of a broker's log reports that a log was not as it should be."""
    return any(word in line for word in ("WARN", "ERROR", "Recovering", "orrupt"))


def test_broker_appends_to_a_log_grown_by_the_append_module(broker_root: Path) -> None:
    home = BrokerFolders(broker_root / "grown")
    with Broker(home) as broker, Client(broker.bootstrap, broker_root) as client:
        client.create(_TOPIC)
        client.fill(_TOPIC)
        before = client.digests("read_uncommitted", ["grown"])["grown-0"]
    directory = home.data / "grown-0"
    files = {path.name: path.read_bytes() for path in directory.iterdir()}
    with PartitionLogWriter(directory, _SETTINGS):
        pass
    assert {path.name: path.read_bytes() for path in directory.iterdir()} == files
    end_offset, segments = write_on(directory)
    assert segments > 1

    with Broker(home) as broker, Client(broker.bootstrap, broker_root) as client:
        every = client.digests("read_uncommitted", ["grown"])["grown-0"]
        committed = client.digests("read_committed", ["grown"])["grown-0"]
        known = {one.producer_id for one in client.producers(["grown"])["grown-0"]}
        client.fill(_TOPIC)
        text = broker.log_text()
    assert every.records == before.records + _BATCHES + 1
    assert committed.records == every.records - 1
    assert {_PRODUCER, _ABORTED} <= known
    assert not [
        line for line in text.splitlines() if "grown-0" in line and reports_corruption(line)
    ]
    with PartitionLogWriter(directory, _SETTINGS) as log:
        assert log.log_end_offset > end_offset
