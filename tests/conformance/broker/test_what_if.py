"""A broker retains and compacts a copy of a dump as the statistics of the dump say."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

import kafka_index
from tests.support.timeouts import wait_for

from .broker import Broker, BrokerFolders
from .client import Client
from .topics import Topic, Traffic, Transactions

_SMALL = {"internal.segment.bytes": "24576"}
#: Topics whose retention and compaction are those of the broker.
PLAIN = Topic("kept.plain", (Traffic(batches=300, keys=150, null_values_percent=5),), _SMALL, 2)
PACKED = Topic(
    "kept.packed",
    (Traffic(codec="zstd", batches=300, records="20-40", value_bytes="100-200", keys=400),),
    _SMALL,
    2,
)
#: A third of the transactions are aborted.
PAID = Topic(
    "kept.paid", (Transactions(batches=200, keys=150), Traffic(batches=60, keys=150)), _SMALL
)
TOPICS = (PLAIN, PACKED, PAID)
NAMES = [(topic.name, number) for topic in TOPICS for number in range(topic.partitions)]
_IDLE = {"log.initial.task.delay.ms": "86400000", "log.retention.ms": "-1"}
_CHECKS = {"log.initial.task.delay.ms": "0", "log.retention.check.interval.ms": "200"}
_CLEANS = {
    "log.initial.task.delay.ms": "86400000",
    "log.cleanup.policy": "compact",
    "log.cleaner.backoff.ms": "200",
    "log.cleaner.min.cleanable.ratio": "0",
}


@pytest.fixture(scope="module")
def stopped(broker_root: Path) -> BrokerFolders:
    """A broker that stopped before it deleted or compacted anything."""
    broker = Broker(BrokerFolders(broker_root / "to-be-retained"), more_settings=_IDLE)
    with broker, Client(broker.bootstrap, broker_root) as client:
        for topic in TOPICS:
            client.create(topic)
            client.fill(topic)
    return broker.home


def stats(home: BrokerFolders, **given: Any) -> dict[tuple[str, int], dict[str, Any]]:
    """The rows of the partitions."""
    result = kafka_index.read_stats(home.data, topics="kept.*", by="partition", **given)
    assert result.ok
    return {(row["topic"], row["partition"]): row for row in result.to_arrow().to_pylist()}


def log_bytes(home: BrokerFolders) -> dict[tuple[str, int], int]:
    """The sizes of the live logs."""
    return {
        (topic, number): sum(
            log.stat().st_size for log in (home.data / f"{topic}-{number}").glob("*.log")
        )
        for topic, number in NAMES
    }


@pytest.mark.parametrize("limit", ["bytes", "ms", "both"])
def test_retention_keeps_the_predicted_segments(
    broker_root: Path, stopped: BrokerFolders, limit: str
) -> None:
    before = stats(stopped)
    now_ms = time.time_ns() // 10**6
    row = before[NAMES[0]]
    middle_ms = (row["first_timestamp_ms"] + row["last_timestamp_ms"]) // 2
    limits: dict[str, int] = {}
    if limit != "ms":
        limits["retention_bytes"] = row["size_bytes"] // 3
    if limit != "bytes":
        limits["retention_ms"] = max(now_ms - middle_ms, 1)
    expected = stats(stopped, **limits)
    home = stopped.copy_to(broker_root / f"retained-{limit}")
    settings = {f"log.{name.replace('_', '.')}": str(most) for name, most in limits.items()}
    broker = Broker(home, more_settings={**_CHECKS, "log.retention.ms": "-1", **settings})
    with broker, Client(broker.bootstrap, broker_root) as client:

        def log_starts() -> list[int]:
            lines = client.times([(*name, -2) for name in NAMES])
            return [int(line.split()[0]) for line in lines]

        starts = [expected[name]["log_start_after"] for name in NAMES]
        wait_for(lambda: log_starts() == starts, 60, "retention")
    assert any(one["goes_records"] for one in expected.values())
    assert log_bytes(home) == {name: expected[name]["stays_bytes"] for name in NAMES}
    after = stats(home)
    assert {name: after[name]["records"] for name in NAMES} == {
        name: expected[name]["stays_records"] for name in NAMES
    }


def test_compaction_keeps_the_predicted_records(broker_root: Path, stopped: BrokerFolders) -> None:
    expected = stats(stopped, compact=True)
    home = stopped.copy_to(broker_root / "compacted")
    active = {
        f"{topic} {number} {max(int(log.stem) for log in logs)}"
        for topic, number in NAMES
        for logs in [list((home.data / f"{topic}-{number}").glob("*.log"))]
    }
    checkpoint = home.data / "cleaner-offset-checkpoint"

    def is_cleaned() -> bool:
        return checkpoint.exists() and active <= set(checkpoint.read_text().splitlines())

    with Broker(home, more_settings=_CLEANS):
        wait_for(is_cleaned, 60, "compaction")
    after, sizes = stats(home), log_bytes(home)
    for name in NAMES:
        row = expected[name]
        assert after[name]["records"] == row["stays_records"] < row["records"], name
        # Batches that lose records are compressed again, by another version of the codec.
        assert sizes[name] == pytest.approx(row["stays_bytes"], rel=0.03), name
