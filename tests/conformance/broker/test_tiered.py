"""A broker with tiered storage: what its clients got, read from what it left.

The remote storage is Kafka's own LocalTieredStorage.
"""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import kafka_index
from kafka_index.core.cluster.listing import list_logs
from kafka_index.core.format.config import LogConfig
from kafka_index.core.fs.uris import TieredOptions, is_segment_path
from kafka_index.core.log.choices import By, Resolve
from kafka_index.core.query.inventory import collect_inventory
from kafka_index.core.query.lookups import Keys, Lookups, LookupSettings, QueryBatch
from tests.conformance.kafka_jars import tiered_storage_jar
from tests.support.command_line import build_here, run_here
from tests.support.timeouts import TIMEOUT_SECONDS, wait_for

from .broker import Broker, BrokerFolders
from .client import ISOLATIONS, Client, Digest
from .digests import COLUMNS, digest, digest_of
from .topics import Topic, Traffic, Transactions

if TYPE_CHECKING:
    from pathlib import Path

_SETTINGS = {
    "remote.log.storage.system.enable": "true",
    "remote.log.storage.manager.class.name": (
        "org.apache.kafka.server.log.remote.storage.LocalTieredStorage"
    ),
    "remote.log.metadata.manager.listener.name": "PLAINTEXT",
    "rlmm.config.remote.log.metadata.topic.replication.factor": "1",
    "rlmm.config.remote.log.metadata.topic.num.partitions": "2",
    "rlmm.config.remote.log.metadata.initialization.retry.interval.ms": "500",
    "remote.log.manager.task.interval.ms": "500",
}
_TIERED = {
    "remote.storage.enable": "true",
    "local.retention.bytes": "1",
    "internal.segment.bytes": "16384",
}
_TOPICS = (
    Topic("tiered.orders", (Traffic(batches=120),), _TIERED, 2),
    Topic("tiered.unordered", (Traffic(batches=120, codec="lz4", times="unordered"),), _TIERED),
    Topic("tiered.payments", (Transactions(batches=160), Traffic(batches=20)), _TIERED),
    Topic("not-tiered", (Traffic(batches=60),), {"internal.segment.bytes": "16384"}),
)
_REMOTE_NAMES = [topic.name for topic in _TOPICS if "remote.storage.enable" in topic.settings]
_CONDITION = "key LIKE '%3'"
_QUERIES = 120


@dataclass(frozen=True)
class Tiered:
    """The files that a broker left, and the records that its clients got."""

    home: BrokerFolders
    options: TieredOptions
    digests: dict[str, dict[str, Digest]]
    queries: list[tuple[str, int, int]]
    answers: list[str]

    @property
    def data(self) -> Path:
        return self.home.data


def _settings(remote: Path) -> dict[str, str]:
    return {
        **_SETTINGS,
        "remote.log.storage.manager.class.path": str(tiered_storage_jar()),
        "rsm.config.dir": str(remote),
    }


@pytest.fixture(scope="module")
def tiered(broker_root: Path) -> Tiered:
    folder = broker_root / "tiered"
    remote = folder / "remote"
    broker = Broker(BrokerFolders(folder / "broker"), more_settings=_settings(remote))
    with broker, Client(broker.bootstrap, folder) as client:
        for topic in _TOPICS:
            client.create(topic)
            client.fill(topic)
        _wait_until_only_the_active_segments_are_local(broker.home.data)
        names = [topic.name for topic in _TOPICS]
        digests = {isolation: client.digests(isolation, names) for isolation in ISOLATIONS}
        queries = _queries(broker.home.data, TieredOptions((str(remote),)))
        answers = client.times(queries)
    return Tiered(broker.home, TieredOptions((str(remote),)), digests, queries, answers)


def _partitions() -> list[tuple[str, int]]:
    return [(topic.name, number) for topic in _TOPICS for number in range(topic.partitions)]


def _wait_until_only_the_active_segments_are_local(data: Path) -> None:
    tiered = [data / f"{name}-{number}" for name, number in _partitions() if name in _REMOTE_NAMES]
    end = time.monotonic() + TIMEOUT_SECONDS
    while any(len(list(folder.glob("*.log"))) != 1 for folder in tiered):
        assert time.monotonic() < end, "the segments were not uploaded"
        time.sleep(0.2)


def _queries(data: Path, options: TieredOptions) -> list[tuple[str, int, int]]:
    """Return the special times of each partition, and times near those of its records."""
    random = np.random.default_rng(20240229)
    found = []
    for topic, number in _partitions():
        inventory = collect_inventory([str(data)], tiered=options)
        with Lookups(inventory, LookupSettings(By.TIMESTAMP, Resolve.RECORD)) as lookups:
            answer = lookups.answer(
                QueryBatch(
                    pa.array([topic] * 2), pa.array([number] * 2), Keys(np.array([0, -3], np.int64))
                )
            ).to_arrow()
        first, last = answer.column("found_timestamp_ms").to_pylist()
        times = random.integers(first - 1000, max(last, first) + 1000, _QUERIES)
        found += [(topic, number, each) for each in (-1, -2, -3, 0, *times.tolist())]
    return found


def test_tiered_test_topics_have_mostly_remote_segments(tiered: Tiered) -> None:
    listing = list_logs([str(tiered.data)], tiered.options, topics=None)
    remote = [segment for segment in listing.segments if is_segment_path(segment.log_path)]

    assert len(remote) > 20
    assert len(listing.tiered) == 4


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_read_records_equals_the_records_of_consumers(tiered: Tiered, isolation: str) -> None:
    for topic, number in _partitions():
        result = digest(tiered.data, topic, number, isolation, tiered.options)

        assert result == tiered.digests[isolation][f"{topic}-{number}"], (topic, number)


def test_lookups_of_times_equal_the_offsets_of_the_broker(tiered: Tiered) -> None:
    inventory = collect_inventory([str(tiered.data)], tiered=tiered.options)
    topics, numbers, times = zip(*tiered.queries, strict=True)
    with Lookups(inventory, LookupSettings(By.TIMESTAMP, Resolve.RECORD)) as lookups:
        answers = lookups.answer(
            QueryBatch(pa.array(topics), pa.array(numbers), Keys(np.array(times, np.int64)))
        ).to_arrow()
        assert lookups.drain_findings() == []
    result = [
        " ".join("-" if each is None else str(each) for each in row)
        for row in zip(
            *(
                answers.column(name).to_pylist()
                for name in ("found_offset", "found_timestamp_ms", "found_leader_epoch")
            ),
            strict=True,
        )
    ]

    assert list(zip(tiered.queries, result, strict=True)) == list(
        zip(tiered.queries, tiered.answers, strict=True)
    )


@pytest.mark.parametrize("limit", ["bytes", "ms", "both"])
def test_retention_of_tiered_logs_keeps_the_predicted_records(
    tiered: Tiered, broker_root: Path, limit: str
) -> None:
    def stats(data: Path, remote: str, **limits: Any) -> dict[tuple[str, int], dict[str, Any]]:
        options = TieredOptions((remote,))
        stats = kafka_index.read_stats(
            data, topics="tiered.*", by="partition", tiered=options, **limits
        )
        assert stats.ok
        return {(row["topic"], row["partition"]): row for row in stats.to_arrow().to_pylist()}

    names = [name for name in _partitions() if name[0] in _REMOTE_NAMES]
    before = stats(tiered.data, tiered.options.uris[0])
    row = before[names[0]]
    limits: dict[str, int] = {}
    if limit != "ms":
        limits["retention_bytes"] = row["size_bytes"] // 3
    if limit != "bytes":
        middle_ms = (row["first_timestamp_ms"] + row["last_timestamp_ms"]) // 2
        limits["retention_ms"] = max(time.time_ns() // 10**6 - middle_ms, 1)
    expected = stats(tiered.data, tiered.options.uris[0], **limits)
    home = tiered.home.copy_to(broker_root / f"tiered-retained-{limit}")
    remote = home.data.parent / "remote"
    shutil.copytree(tiered.options.uris[0], remote)
    settings = {f"log.{name.replace('_', '.')}": str(most) for name, most in limits.items()}
    broker = Broker(home, more_settings={**_settings(remote), "log.retention.ms": "-1", **settings})
    with broker, Client(broker.bootstrap, broker_root) as client:

        def log_starts() -> list[int]:
            return [int(line.split()[0]) for line in client.times([(*name, -2) for name in names])]

        starts = [expected[name]["log_start_after"] for name in names]
        wait_for(lambda: log_starts() == starts, 60, "retention")
    after = stats(home.data, str(remote))
    assert any(one["goes_records"] for one in expected.values())
    assert {name: after[name]["records"] for name in names} == {
        name: expected[name]["stays_records"] for name in names
    }


def test_build_writes_the_index_files_that_were_uploaded(tiered: Tiered, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    result = build_here(
        "--input", tiered.data, "--tiered", tiered.options.uris[0], "--output", tmp_path / "out",
        "--report", report,
    )  # fmt: skip

    assert result.returncode == 0, result.stderr
    assert LogConfig().for_topic("tiered.orders").index_interval_bytes == 4096
    # This broker never restarted, and appended batch by batch, as recovery goes through them.
    assert "stored" not in report.read_text()


@pytest.fixture(scope="module")
def consumed_rewrite(tiered: Tiered, broker_root: Path) -> dict[str, dict[str, Digest]]:
    """The records of a rewrite, from a broker of a fresh cluster without tiered storage."""
    output = broker_root / "tiered-rewritten"
    source = ["--input", tiered.data, "--tiered", tiered.options.uris[0], "--topics", "tiered.*"]
    _run("rewrite", *source, "--output", output, "--drop-where", _CONDITION, "--allow-revive")
    home = BrokerFolders(broker_root / "tiered-mounted")
    broker = Broker(home)  # formats its directories
    _run("restore", "--input", output, "--output", home.data, "--seed", home.metadata)
    with broker, Client(broker.bootstrap, broker_root) as client:
        client.await_in_sync(1, _REMOTE_NAMES)
        return {isolation: client.digests(isolation, _REMOTE_NAMES) for isolation in ISOLATIONS}


def _run(*arguments: object) -> None:
    result = run_here(*map(str, arguments))
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("isolation", ISOLATIONS)
@pytest.mark.parametrize("name", _REMOTE_NAMES)
def test_consumers_read_exactly_the_records_that_a_rewrite_left(
    tiered: Tiered, consumed_rewrite: dict[str, dict[str, Digest]], name: str, isolation: str
) -> None:
    table = kafka_index.read_records(
        tiered.data,
        partitions={name: [0]},
        columns=COLUMNS,
        isolation=isolation,
        tiered=tiered.options,
    ).read_all()
    ends = pc.equal(pc.binary_slice(table["key"], -1), b"3")
    kept = table.filter(pc.invert(ends.fill_null(False)))  # noqa: FBT003, because it is a value

    assert 0 < len(kept) < len(table)
    assert consumed_rewrite[isolation][f"{name}-0"] == digest_of(kept.to_batches())
