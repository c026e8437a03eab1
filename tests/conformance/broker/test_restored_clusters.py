"""Brokers start on restored directories: in a fresh cluster that was seeded, and in their own.

Records, offsets, timestamps and epochs, groups, transactions and producers are those of before, and
no segment is read again.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

import kafka_index
from tests.support.restoring import contents

from .broker import QUICK_START, Broker, BrokerFolders
from .client import ISOLATIONS, Client, Digest, Producer, run_program
from .topics import Topic, Traffic, Transactions, write_index_settings

if TYPE_CHECKING:
    from pathlib import Path

_COMPACT = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}
_SMALL = {"segment.bytes": "1048576"}
TOPICS = (
    Topic("restored.orders", (Traffic(batches=700, value_bytes="200-900"),), _SMALL, 2),
    Topic("restored.payments", (Transactions(batches=160, left_open="true"),), _SMALL, 2),
    Topic("restored.profiles", (Traffic(keys=300),), _SMALL | _COMPACT),
    Topic("restored.trimmed", (Traffic(),), _SMALL),
)
NAMES = [topic.name for topic in TOPICS]
#: More for one of them.
APPENDED = Topic("restored.orders", (Traffic(batches=20),), _SMALL, 2)
TRIMMED_TO = 500
# As LogLoader and LogManager log where they read a segment again, or do not know a partition.
_SURPRISES = (
    "Could not find offset index file",
    "Found a corrupted index file",
    "Recovering unflushed segment",
    "since no clean shutdown file was found",
    "stray",
    "Deleting segments due to",
)
_CLUSTER_METADATA = "__cluster_metadata"
_SETTINGS = """
share.coordinator.state.topic.num.partitions=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
"""


@dataclass(frozen=True)
class Answers:
    """The answers of a cluster."""

    digests: dict[str, dict[str, Digest]]
    producers: dict[str, set[Producer]]
    starts: list[str]
    state: dict[str, Any]


@dataclass(frozen=True)
class Restored:
    """The answers of the broker on a restored directory, its log, and its reads at its start."""

    answers: Answers
    log_text: str
    bytes_read: int
    report: list[dict[str, Any]]
    followed: dict[str, Digest]


@dataclass(frozen=True)
class Original:
    """The cluster of the dump; `bytes_read` is that of a clean restart."""

    home: BrokerFolders
    answers: Answers
    bytes_read: int


def cluster_state(broker: Broker, *mode: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(run_program("ClusterState", broker.bootstrap, *mode))
    return document


def ask(broker: Broker, broker_root: Path, state: dict[str, Any]) -> Answers:
    with Client(broker.bootstrap, broker_root) as client:
        client.await_in_sync(1, NAMES)
        every = [(topic.name, n, -2) for topic in TOPICS for n in range(topic.partitions)]
        return Answers(
            {isolation: client.digests(isolation, NAMES) for isolation in ISOLATIONS},
            client.producers(NAMES),
            [line.split()[0] for line in client.times(every)],
            state,
        )


@pytest.fixture(scope="module")
def original(broker_root: Path) -> Original:
    home = BrokerFolders(broker_root / "restored-original")
    # What it reads is compared, the classes from jars among it.
    broker = Broker(home, java_options=QUICK_START)
    add_settings(home)
    with broker, Client(broker.bootstrap, broker_root) as client:
        for topic in TOPICS:
            client.create(topic)
            client.fill(topic)
        client.delete_records("restored.trimmed", 0, TRIMMED_TO)
        state = cluster_state(broker)
        answers = ask(broker, broker_root, state)
    kept = home.copy_to(broker_root / "restored-kept")
    with broker:
        bytes_read = broker.bytes_read()
    return Original(kept, answers, bytes_read)


def add_settings(home: BrokerFolders) -> None:
    settings = home.root / "server.properties"
    settings.write_text(settings.read_text() + _SETTINGS)


def restore(dump: BrokerFolders, output: Path, config: Path, *more: str) -> list[dict[str, Any]]:
    report = config.parent / f"{output.parent.name}.json"
    command = [sys.executable, "-m", "kafka_index", "restore", "--config", str(config)]
    paths = ["--input", str(dump.data), str(dump.metadata), "--output", str(output)]
    result = subprocess.run(
        [*command, *paths, "--report", str(report), *more],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return [json.loads(line) for line in report.read_text().splitlines()]


def start(
    home: BrokerFolders, broker_root: Path, report: list[dict[str, Any]], *, with_followers: bool
) -> Restored:
    broker = Broker(home, java_options=QUICK_START)
    add_settings(home)
    followed = {}
    with broker:
        bytes_read = broker.bytes_read()
        answers = ask(broker, broker_root, cluster_state(broker, "answer"))
        if with_followers:
            followed = follow(broker, broker_root)
    return Restored(answers, broker.log_text(), bytes_read, report, followed)


def follow(leader: Broker, broker_root: Path) -> dict[str, Digest]:
    """Let two empty brokers follow, and append; what consumers get then of what was appended to."""
    second, third = (
        Broker(
            BrokerFolders(broker_root / f"restored-follower-{node}"), node, leader.controller_port
        )
        for node in (2, 3)
    )
    with second, third, Client(leader.bootstrap, broker_root) as client:
        client.reassign((1, 2, 3), NAMES)
        client.await_in_sync(3, NAMES)
        before = client.digests(ISOLATIONS[0], NAMES)
        client.fill(APPENDED)
        client.await_in_sync(3, NAMES)
        after = client.digests(ISOLATIONS[0], [APPENDED.name])
        assert all(after[name].records > before[name].records for name in after)
    return before


@pytest.fixture(scope="module", params=["fresh", "same"])
def restored(request: pytest.FixtureRequest, broker_root: Path, original: Original) -> Restored:
    config = broker_root / "restored.properties"
    write_index_settings(TOPICS, config)
    home = BrokerFolders(broker_root / f"restored-{request.param}")
    if request.param == "fresh":
        Broker(home)  # formats its directories
        report = restore(original.home, home.data, config, "--seed", str(home.metadata))
        predicted = kafka_index.predict(home.data, metadata=home.metadata)
        assert predicted.verdict is kafka_index.Verdict.SAFE, predicted
    else:
        home.root.mkdir()
        more = ("--cluster", "same", "--metadata-output", str(home.metadata))
        report = restore(original.home, home.data, config, *more)
    before = contents(original.home.root)
    result = start(home, broker_root, report, with_followers=request.param == "fresh")
    assert contents(original.home.root) == before
    return result


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_consumers_of_the_restored_cluster_read_the_same_records_as_before(
    original: Original, restored: Restored, isolation: str
) -> None:
    assert restored.answers.digests[isolation] == original.answers.digests[isolation]


def test_restored_log_start_offsets_equal_those_before(
    original: Original, restored: Restored
) -> None:
    assert restored.answers.starts == original.answers.starts
    assert str(TRIMMED_TO) in restored.answers.starts


def test_restored_leaders_have_the_same_producers_as_before(
    original: Original, restored: Restored
) -> None:
    before, now = original.answers.producers, restored.answers.producers
    names = [name for name in before if not name.startswith("restored.profiles")]
    assert {name: now[name] for name in names} == {name: before[name] for name in names}
    assert any(one.current_txn_first_offset is not None for name in names for one in now[name])


@pytest.mark.parametrize("what", ["topics", "configs", "offsets"])
def test_restored_topics_configs_and_groups_equal_those_before(
    original: Original, restored: Restored, what: str
) -> None:
    assert restored.answers.state[what] == original.answers.state[what]


def test_restored_transactional_ids_equal_those_before(
    original: Original, restored: Restored
) -> None:
    before, now = original.answers.state["transactions"], restored.answers.state["transactions"]
    # A transaction that was open may have expired meanwhile, and begins another epoch then.
    ids = {name: (one["producer_id"], one["timeout_ms"]) for name, one in now.items()}
    assert ids == {name: (one["producer_id"], one["timeout_ms"]) for name, one in before.items()}


def test_restored_start_recovers_no_segment_and_finds_no_stray_partition(
    restored: Restored,
) -> None:
    lines = [line for line in restored.log_text.splitlines() if _CLUSTER_METADATA not in line]
    surprising = [line for line in lines if any(text in line for text in _SURPRISES)]
    assert surprising == []
    assert any("since clean shutdown file was found" in line for line in lines)


def test_coordinators_load_groups_once(restored: Restored) -> None:
    # A first load that ends while a second one is under way ends both, with old offsets.
    text = "Scheduling loading of metadata from __consumer_offsets-"
    loads = [
        line.partition(text)[2].partition(" ")[0]
        for line in restored.log_text.splitlines()
        if text in line
    ]
    assert sorted(loads) == sorted(set(loads))
    assert loads


def test_restored_start_reads_as_much_as_a_clean_restart(
    original: Original, restored: Restored
) -> None:
    assert restored.bytes_read <= 1.1 * original.bytes_read


def test_empty_brokers_replicate_from_the_restored_broker(
    original: Original, restored: Restored
) -> None:
    if restored.followed:
        assert restored.followed == original.answers.digests[ISOLATIONS[0]]


def test_restored_cluster_loses_no_record(restored: Restored) -> None:
    assert {row["status"] for row in restored.report} == {"restored"}


def test_committed_offsets_of_a_truncated_log_are_its_end(
    broker_root: Path, original: Original
) -> None:
    home, limits = BrokerFolders(broker_root / "restored-clamped"), broker_root / "limits.json"
    Broker(home)  # formats its directories
    limits.write_text('{"orders": {"0": 5}}')
    more = ("--seed", str(home.metadata), "--until", str(limits), "--clamp-groups")
    config = broker_root / "restored.properties"
    write_index_settings(TOPICS, config)

    report = restore(original.home, home.data, config, *more)

    with Broker(home) as broker:
        result = cluster_state(broker, "answer")["offsets"]
    before = original.answers.state["offsets"]
    clamped = {f"{row['group']} orders-0" for row in report if row["status"] == "clamped"}
    assert clamped == {name for name, one in before.items() if is_beyond(name, one)}
    assert len(clamped) > 1
    assert result == {
        name: one | ({"offset": 5, "leader_epoch": 0} if name in clamped else {})
        for name, one in before.items()
    }


def is_beyond(name: str, committed: dict[str, Any]) -> bool:
    """Whether an offset was committed after the end of the partition that is cut."""
    return name.endswith(" orders-0") and committed["offset"] > 5
