"""Damaged quorum states and metadata logs: what a node starts on, and what the commands say of it.

The reference program starts Kafka's own Raft manager, until it leads and has read its metadata
(``StartingRaft.java``); in ``make campaign`` brokers start on some of the directories, too.
"""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

import kafka_index
from kafka_index.core.startup.metadata_log import quorum_state_error
from kafka_index.core.startup.prediction import Verdict
from tests.conformance.kafka_reference import KafkaReference
from tests.support.campaign import sample_size
from tests.support.command_line import run_here

from .broker import Broker, BrokerError, BrokerFolders
from .client import Client
from .metadata_damage import METADATA_LOG, METADATA_LOGS, QUORUM_STATES, Damage
from .topics import Topic, Traffic

TOPIC = Topic("kept", (Traffic(batches=20),), {}, 2)
#: So that there are snapshots of the metadata log.
SETTINGS = {"metadata.log.max.record.bytes.between.snapshots": "3000"}
_IN_FULL = sample_size(10) == 10
#: One of so many cases.
_EVERY = 1 if _IN_FULL else 7
#: The Raft manager is content with these, and the loader of the metadata is not.
_LOADER_EXITS = ("the last snapshot empty", "the last snapshot cut by 300")
_STARTED = [*METADATA_LOGS, *(name for name in list(QUORUM_STATES)[::5])] if _IN_FULL else ["empty"]


@pytest.fixture(scope="module")
def stopped(broker_root: Path) -> BrokerFolders:
    """A controller and broker with a snapshot of its metadata log that stopped cleanly."""
    broker = Broker(BrokerFolders(broker_root / "metadata-damage"), more_settings=SETTINGS)
    with broker, Client(broker.bootstrap, broker_root) as client:
        client.create(TOPIC)
        client.fill(TOPIC)
        for number in range(9):
            client.create(Topic(f"more-{number}", ()))
    assert any((broker.home.metadata / METADATA_LOG).glob("*.checkpoint"))
    return broker.home


@pytest.fixture(scope="module")
def raft() -> Iterator[KafkaReference]:
    """A reference program of its own: it keeps what it has started."""
    with KafkaReference() as reference:
        yield reference


def damaged(stopped: BrokerFolders, root: Path, damage: Damage) -> BrokerFolders:
    home = stopped.copy_to(root)
    damage(home.metadata / METADATA_LOG)
    return home


def starts(raft: KafkaReference, home: BrokerFolders) -> bool:
    copy = home.copy_to(home.root.with_name(f"{home.root.name}-copy"))
    reply = raft.demand("start-raft", 1, copy.metadata, copy.data)
    # What a start deletes later may still be under way.
    shutil.rmtree(copy.root, ignore_errors=True)
    return reply[1] == "starts"


def check_commands(home: BrokerFolders, output: Path, *, is_started: bool) -> None:
    """Compare what predict, verify and restore say with what a node does."""
    config = stopped_settings(home)
    directories = (home.data, home.metadata)
    predicted = run_here(
        "predict", "--input", home.data, "--metadata", home.metadata, "--config", config, "--json"
    )
    assert predicted.returncode in (0, 1), predicted.stderr
    verdict = json.loads(predicted.stdout)["verdict"]
    verified = run_here("verify", "--input", *directories)
    target = ("--output", output / "data", "--metadata-output", output / "metadata")
    restored = run_here("restore", "--input", *directories, "--cluster", "same", *target)
    assert (verdict != "does_not_start") == is_started, predicted.stdout + predicted.stderr
    if not is_started:
        assert verified.returncode == 1, verified.stdout
        assert restored.returncode == 2, restored.stdout
        assert not output.exists()


def stopped_settings(home: BrokerFolders) -> Path:
    path = home.root / "server.properties"
    path.write_text(f"node.id=1\nlog.dirs={home.data}\nmetadata.log.dir={home.metadata}\n")
    return path


@pytest.mark.parametrize("name", list(QUORUM_STATES)[::_EVERY])
def test_quorum_state_is_read_as_kafka_reads_it(
    tmp_path: Path, stopped: BrokerFolders, raft: KafkaReference, name: str
) -> None:
    home = damaged(stopped, tmp_path / "case", QUORUM_STATES[name])
    is_started = starts(raft, home)

    refusal = quorum_state_error(str(home.metadata / METADATA_LOG))

    assert (refusal is None) == is_started, refusal


@pytest.mark.parametrize("name", list(QUORUM_STATES)[2 :: 5 * _EVERY])
def test_commands_predict_node_starts_on_quorum_states(
    tmp_path: Path, stopped: BrokerFolders, raft: KafkaReference, name: str
) -> None:
    home = damaged(stopped, tmp_path / "case", QUORUM_STATES[name])
    check_commands(home, tmp_path / "out", is_started=starts(raft, home))


@pytest.mark.parametrize("name", list(METADATA_LOGS)[2::_EVERY])
def test_commands_predict_node_starts_on_metadata_logs(
    tmp_path: Path, stopped: BrokerFolders, raft: KafkaReference, name: str
) -> None:
    home = damaged(stopped, tmp_path / "case", METADATA_LOGS[name])
    is_started = name not in _LOADER_EXITS and starts(raft, home)
    check_commands(home, tmp_path / "out", is_started=is_started)


@pytest.mark.parametrize("name", _STARTED)
def test_broker_starts_on_quorum_states_as_the_reference_does(
    tmp_path: Path, stopped: BrokerFolders, raft: KafkaReference, name: str
) -> None:
    home = damaged(stopped, tmp_path / "case", METADATA_LOGS.get(name) or QUORUM_STATES[name])
    is_started = name not in _LOADER_EXITS and starts(raft, home)
    broker = Broker(home, more_settings=SETTINGS)
    try:
        broker.start()
    except BrokerError:
        assert not is_started
    else:
        assert is_started
        broker.kill()


@pytest.mark.parametrize("is_after_snapshot", [True, False])
def test_broker_truncates_its_metadata_log_at_the_predicted_offset(
    tmp_path: Path, stopped: BrokerFolders, *, is_after_snapshot: bool
) -> None:
    home = stopped.copy_to(tmp_path / "case")
    folder = home.metadata / METADATA_LOG
    (log,) = folder.glob("*.log")
    newest = max(int(path.name[:20]) for path in folder.glob("*.checkpoint"))
    before = bytearray(log.read_bytes())
    batches = dict(batches_of(before))
    damaged_at = next(
        at for at, base in batches.items() if base >= (newest if is_after_snapshot else 5)
    )
    before[damaged_at + 60] ^= 1
    log.write_bytes(before)
    predicted = kafka_index.predict(home.data, config=stopped_settings(home))
    (found,) = (
        partition for partition in predicted.partitions if partition.topic == "__cluster_metadata"
    )

    with Broker(home, more_settings=SETTINGS):
        pass

    assert predicted.verdict is Verdict.LOSES
    assert found.loaded is not None
    assert found.loaded.log_end_offset == (batches[damaged_at] if is_after_snapshot else newest)
    assert found.lost.first_offset == (found.loaded.log_end_offset)
    (made,) = folder.glob("*.log")
    after = made.read_bytes()
    cut_at = damaged_at if is_after_snapshot else 0
    assert after[:cut_at] == before[:cut_at]
    assert dict(batches_of(after))[cut_at] == found.loaded.log_end_offset


def batches_of(log: bytes | bytearray) -> Iterator[tuple[int, int]]:
    """Yield the position and the base offset of each batch."""
    at = 0
    while at < len(log):
        base, size = struct.unpack_from(">qi", log, at)
        yield at, base
        at += 12 + size
