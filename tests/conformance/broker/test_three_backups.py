"""Three brokers under load are backed up together, by commands that are killed at drawn moments.

Each run that all brokers are in has every record that was acknowledged before it, once, at its
offset, in the leaders' copies, which nobody else stores; transactions are whole in it, as all
brokers met. ``make campaign`` kills far more of them.
"""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pyarrow as pa
import pytest

import kafka_index
from kafka_index.stores.backup.repository import Repository
from tests.support.campaign import drawn

from .backed_up import (
    Round,
    back_up,
    check,
    complete_runs,
    drawn_kills,
    leaders_copies,
    own_settings,
)
from .broker import Broker
from .client import Client
from .three_brokers import NODES, Three, await_load, create_topics, loading
from .topics import Topic

_LOOSE = Topic(
    "loose", (), {"unclean.leader.election.enable": "true", "min.insync.replicas": "1"}, 1
)
_ROUNDS = drawn(36, one_in=36)
_RECORDS = 300
#: A process imports, looks, meets, cuts, waits up to ten seconds, and stores.
_LONGEST_S = 14.0


def test_runs_of_three_brokers_hold_what_was_acknowledged(room: Path) -> None:
    rng = random.Random(20261123)
    root, ledger, repository = room / "backed-up", room / "backed-up.ledger", room / "repository"
    cluster = Three(root, own_settings(root))
    homes = dict(zip(NODES, cluster.homes, strict=True))
    rounds: list[Round] = []
    with cluster:
        create_topics(cluster, room)
        with loading(cluster.bootstrap, ledger, "a-") as end:
            await_load(ledger, _RECORDS)
            for number in range(_ROUNDS):
                kills = drawn_kills(rng, _LONGEST_S) if number % 6 != 2 else {}
                rounds.append(back_up(homes, repository, ledger, "--wait", "5s", kills=kills))
            rounds.append(back_up(homes, repository, ledger))
            end()
    for each in rounds:
        expected = {node: -9 if node in each.killed else 0 for node in NODES}
        assert each.codes == expected, each.outputs
    counts = check(repository, rounds, ledger, room / "dumps")
    undisturbed = sum(not each.killed for each in rounds)
    assert counts.pop("runs") >= undisturbed
    assert set(counts) > {"load.plain", "load.payments", "load.copies"}
    *_, last = complete_runs(Repository(str(repository)))
    copies = sum(len(each.partitions) for each in last)
    metadata = len(NODES) - 1
    # A broker that does not see in time what another one has stored, stores it, too.
    assert len(leaders_copies(last)) + metadata <= copies <= len(NODES) * len(leaders_copies(last))
    assert {node: each.node_id for node, each in zip(NODES, last, strict=True)} == dict(
        zip(NODES, NODES, strict=True)
    )
    assert all(len(each.directories) == 2 + (each.node_id == 2) for each in last)
    print(f"{sum(len(each.killed) for each in rounds)} kills, {counts}")


@pytest.mark.skipif(drawn(10) != 10, reason="make campaign runs it")
def test_an_unclean_election_begins_another_history(room: Path) -> None:
    """A run has the history of the leader of its time, also beside the agent of the old one."""
    root, repository, nothing = room / "elected", room / "elected-backups", room / "elected.ledger"
    nothing.touch()
    cluster = Three(root, {node: {"broker.session.timeout.ms": "3000"} for node in NODES})
    homes = dict(zip(NODES, cluster.homes, strict=True))
    old, new, _ = cluster.brokers
    logs: list[Path] = []

    def back_up_log(broker: Broker) -> None:
        found = back_up(homes, repository, nothing)
        assert set(found.codes.values()) == {0}, found.outputs
        folder = room / f"log-{len(logs)}" / f"{_LOOSE.name}-0"
        shutil.copytree(broker.home.data / folder.name, folder)
        logs.append(folder)

    with cluster, Client(cluster.bootstrap, room) as client:
        client.create(_LOOSE, (1, 2))
        client.open_producer("first", transactional=False)
        client.send("first", _LOOSE.name, 20)
        back_up_log(old)
        new.kill()
        # Acknowledged by one broker, once the other is no longer in sync.
        client.send("first", _LOOSE.name, 30)
        back_up_log(old)
        old.kill()
        new.start()
        client.open_producer("second", transactional=False)
        client.send("second", _LOOSE.name, 10)
        back_up_log(new)
        old.start()
        client.await_in_sync(2, [_LOOSE.name])
        client.send("second", _LOOSE.name, 5)
        back_up_log(new)
    counts = []
    for run, log in zip(Repository(str(repository)).brokers_of_runs(), logs, strict=True):
        found, expected = (
            pa.table(kafka_index.read_records(path, topics=_LOOSE.name)).select(
                ["offset", "timestamp", "value"]
            )
            for path in (f"backup:{repository}@{run}", str(log.parent))
        )
        assert found == expected, run
        counts.append(len(found))
    assert counts == [20, 50, 30, 35]
