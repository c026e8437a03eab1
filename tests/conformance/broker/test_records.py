"""The rows of `read_records` against what consumers got from the broker that wrote the logs."""

from __future__ import annotations

import hashlib
import struct
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import kafka_index

from .client import ISOLATIONS, Digest
from .files import keep_only_logs
from .topics import FOLLOWED, TOPICS, Topic

if TYPE_CHECKING:
    from .conftest import Written

_TOPICS = (*TOPICS, *FOLLOWED)
_COLUMNS = ("offset", "timestamp", "timestampType", "leader_epoch", "key", "value", "headers")


@pytest.fixture(scope="module")
def logs_alone(written: Written, room: Path) -> Path:
    """The data directory of the broker without indexes and snapshots."""
    home = written.leader.copy_to(room / "records-of-logs")
    keep_only_logs(home.data)
    return home.data


def digest(data: Path, topic: str, partition: int, isolation: str) -> Digest:
    """What `Client.digests` makes of the same records."""
    count, sha256 = 0, hashlib.sha256()
    for batch in kafka_index.read_records(
        data / f"{topic}-{partition}", columns=_COLUMNS, isolation=isolation
    ):
        count += len(batch)
        columns = [
            column.cast("int64") if name == "timestamp" else column
            for name, column in zip(_COLUMNS, batch.columns, strict=True)
        ]
        for offset, time, time_type, epoch, key, value, headers in zip(
            *(column.to_pylist() for column in columns), strict=True
        ):
            sha256.update(struct.pack(">qqii", offset, time, time_type, epoch))
            sha256.update(sized(key) + sized(value))
            for header in headers or ():
                name = header["key"].encode()
                sha256.update(struct.pack(">H", len(name)) + name + sized(header["value"]))
    return Digest(count, sha256.hexdigest())


def sized(data: bytes | None) -> bytes:
    return struct.pack(">i", -1) if data is None else struct.pack(">i", len(data)) + data


@pytest.mark.parametrize("isolation", ISOLATIONS)
@pytest.mark.parametrize("topic", _TOPICS, ids=lambda topic: topic.name[:24])
def test_records_are_those_that_consumers_got(
    written: Written, topic: Topic, isolation: str
) -> None:
    expected = written.digests[isolation]
    for partition in range(topic.partitions):
        found = digest(written.leader.data, topic.name, partition, isolation)
        assert found == expected[f"{topic.name}-{partition}"]


@pytest.mark.parametrize("isolation", ISOLATIONS)
@pytest.mark.parametrize("topic", _TOPICS, ids=lambda topic: topic.name[:24])
def test_records_of_logs_alone_are_those_that_consumers_got(
    written: Written, logs_alone: Path, topic: Topic, isolation: str
) -> None:
    expected = written.digests[isolation]
    for partition in range(topic.partitions):
        found = digest(logs_alone, topic.name, partition, isolation)
        assert found == expected[f"{topic.name}-{partition}"]
