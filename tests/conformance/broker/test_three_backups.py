"""Three brokers under load are backed up together, by commands that are killed at random moments.

Each run that all brokers are in has every record that was acknowledged before it, once, at its
offset, in the leaders' copies, which nobody else stores; transactions are whole in it, as all
brokers met. The checks read manifests and pieces, without anything that restores. ``make campaign``
kills far more of them.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import time
import zlib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pytest

import kafka_index
from kafka_index.core.fs.backup.manifest import Manifest, PartitionBackup, content_of, is_consistent
from kafka_index.core.fs.backup.repository import Repository
from kafka_index.core.fs.paths import open_repository
from tests.support.campaign import sample_size
from tests.support.command_line import COMMAND, environment
from tests.support.timeouts import TIMEOUT_SECONDS

from .broker import Broker, BrokerFolders
from .client import Client
from .three_brokers import (
    NODES,
    Ledger,
    ThreeBrokerCluster,
    await_load,
    crc_of,
    create_topics,
    loading,
)
from .topics import Topic

_LOOSE = Topic(
    "loose", (), {"unclean.leader.election.enable": "true", "min.insync.replicas": "1"}, 1
)
_ROUNDS = sample_size(36, one_in=36)
_RECORDS = 300
#: A process imports, looks, meets, cuts, waits up to ten seconds, and stores.
_LONGEST_S = 14.0
#: The broker that has two data directories, and the setting for it.
TWO_DIRECTORIES = 2


def own_settings(root: Path) -> dict[int, dict[str, str]]:
    """Settings of the nodes of a cluster below a folder."""
    home = BrokerFolders(root / str(TWO_DIRECTORIES))
    return {TWO_DIRECTORIES: {"log.dirs": f"{home.data},{home.second}"}}


def inputs(home: BrokerFolders) -> list[str]:
    """Return all directories of a node."""
    result = [home.data, home.second, home.metadata]
    return [str(path) for path in result if path.exists()]


@dataclass
class BackupRound:
    """Runs of all brokers that were begun together; what had been acknowledged by then."""

    began_ms: int
    ledger_bytes: int
    killed: set[int] = field(default_factory=set)
    codes: dict[int, int] = field(default_factory=dict)
    outputs: dict[int, str] = field(default_factory=dict)


def back_up(
    homes: Mapping[int, BrokerFolders],
    repository: Path | str,
    ledger: Path,
    *options: str,
    kills: Mapping[int, float] | None = None,
) -> BackupRound:
    """Back up brokers at once; `kills`: seconds after which their processes are killed."""
    result = BackupRound(time.time_ns() // 1_000_000, ledger.stat().st_size)
    processes = {
        node: subprocess.Popen(
            [
                *(*COMMAND, "backup", "--input", *inputs(home), "--output", str(repository)),
                *("--brokers", ",".join(map(str, NODES)), *options),
            ],
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for node, home in homes.items()
    }
    began = time.monotonic()
    for node, after in sorted((kills or {}).items(), key=lambda each: each[1]):
        time.sleep(max(began + after - time.monotonic(), 0))
        if processes[node].poll() is None:
            processes[node].send_signal(signal.SIGKILL)
            result.killed.add(node)
    for node, process in processes.items():
        result.outputs[node], _ = process.communicate(timeout=TIMEOUT_SECONDS)
        result.codes[node] = process.returncode
    return result


def random_kills(rng: random.Random, longest_s: float) -> dict[int, float]:
    """Draw which processes are killed, and when."""
    nodes = rng.sample(NODES, rng.choice((1, 1, 2)))
    return {node: rng.random() * longest_s for node in nodes}


def complete_backups(repository: Repository) -> Iterator[list[Manifest]]:
    """Yield the manifests of each run that has those of all brokers."""
    for run, brokers in repository.brokers_by_backup().items():
        if set(brokers) >= set(NODES):
            yield [repository.manifest(run, node) for node in brokers]


def leaders_copies(manifests: Sequence[Manifest]) -> dict[tuple[str, int], PartitionBackup]:
    """Return for each partition the copy of its leader, else the copy that ends furthest."""
    result: dict[tuple[str, int], PartitionBackup] = {}
    for each in (partition for manifest in manifests for partition in manifest.partitions):
        key = each.topic, each.partition
        rank = bool(each.is_leader), each.end_offset
        if key not in result or rank > (bool(result[key].is_leader), result[key].end_offset):
            result[key] = each
    return result


def check_objects(root: Path, manifests: Sequence[Manifest]) -> None:
    """All objects that manifests name are there, with the bytes that they name."""
    for each in (partition for manifest in manifests for partition in manifest.partitions):
        assert each.end_offset <= each.high_watermark, each
        for named in each.objects:
            data = (root / each.folder / named.object_name).read_bytes()
            content = named.size_bytes, named.sha256, named.crc32
            assert content_of(data) == content, (each.folder, named)


def check_records(
    root: Path, manifests: Sequence[Manifest], ledger: Ledger, scratch: Path
) -> dict[str, int]:
    """Every acknowledged record is there, once, at its offset; return how many, by topic.

    The load has no records that are deleted; of a compacted topic, the last record of each key has
    to be there.
    """
    copies = leaders_copies(manifests)
    dump = scratch / manifests[0].backup_id
    for each in copies.values():
        folder = dump / f"{each.topic}-{each.partition}"
        folder.mkdir(parents=True)
        for chunk in each.chunks:
            os.link(
                root / each.folder / chunk.object_name, folder / f"{chunk.base_offset:020d}.log"
            )
    there: dict[tuple[str, int], dict[int, tuple[bytes | None, int]]] = defaultdict(dict)
    columns = ["topic", "partition", "offset", "key", "value"]
    topics = sorted({topic for topic, _ in ledger.acknowledged()})
    for row in pa.table(
        kafka_index.read_records(str(dump), topics=topics, columns=columns)
    ).to_pylist():
        found = there[row["topic"], row["partition"]]
        assert row["offset"] not in found, row
        found[row["offset"]] = row["key"], zlib.crc32(row["value"] or b"")
    counts: dict[str, int] = defaultdict(int)
    for (topic, partition), records in ledger.acknowledged().items():
        copy, found = copies[topic, partition], there[topic, partition]
        last = {key: offset for offset, (key, _) in sorted(found.items())}
        for record in records:
            key = record.id.partition("-key-")[2]
            if copy.is_compacted and last[f"key-{key}".encode()] > record.offset:
                continue  # it may have been cleaned away
            assert record.offset >= copy.start_offset
            crc = found[record.offset][1]
            assert crc == record.crc == crc_of(record.id), (copy, record)
            counts[topic] += 1
    return counts


def check(root: Path, rounds: Sequence[BackupRound], ledger: Path, scratch: Path) -> dict[str, int]:
    """Check all runs; return counts of complete ones and of what was in them."""
    repository = open_repository(str(root))
    counts: dict[str, int] = defaultdict(int)
    for manifests in complete_backups(repository):
        assert is_consistent(manifests), [manifest.capture for manifest in manifests]
        assert max(manifest.capture.coordinators_captured_ms for manifest in manifests) <= min(
            manifest.capture.others_begun_ms for manifest in manifests
        )
        check_objects(root, manifests)
        begun = min(manifest.capture.begun_ms for manifest in manifests)
        before = [round_ for round_ in rounds if round_.began_ms <= begun]
        known = Ledger.read(ledger, before[-1].ledger_bytes)
        for topic, count in check_records(root, manifests, known, scratch).items():
            counts[topic] += count
        counts["runs"] += 1
    for run, brokers in repository.brokers_by_backup().items():
        check_objects(root, [repository.manifest(run, node) for node in brokers])
        counts["all runs"] += 1
    return dict(counts)


def test_backups_of_three_brokers_have_all_acknowledged_records(broker_root: Path) -> None:
    rng = random.Random(20261123)
    root, ledger, repository = (
        broker_root / "backed-up",
        broker_root / "backed-up.ledger",
        broker_root / "repository",
    )
    cluster = ThreeBrokerCluster(root, own_settings(root))
    homes = dict(zip(NODES, cluster.homes, strict=True))
    rounds: list[BackupRound] = []
    with cluster:
        create_topics(cluster, broker_root)
        with loading(cluster.bootstrap, ledger, "a-") as end:
            await_load(ledger, _RECORDS)
            for number in range(_ROUNDS):
                kills = random_kills(rng, _LONGEST_S) if number % 6 != 2 else {}
                rounds.append(back_up(homes, repository, ledger, "--wait", "5s", kills=kills))
            rounds.append(back_up(homes, repository, ledger))
            end()
    for each in rounds:
        expected = {node: -9 if node in each.killed else 0 for node in NODES}
        assert each.codes == expected, each.outputs
    counts = check(repository, rounds, ledger, broker_root / "dumps")
    undisturbed = sum(not round_.killed for round_ in rounds)
    assert counts.pop("runs") >= undisturbed
    assert set(counts) > {"load.plain", "load.payments", "load.copies"}
    *_, last = complete_backups(open_repository(str(repository)))
    copies = sum(len(each.partitions) for each in last)
    metadata = len(NODES) - 1
    # A broker that does not see in time what another one has stored, stores it, too.
    assert len(leaders_copies(last)) + metadata <= copies <= len(NODES) * len(leaders_copies(last))
    assert {node: each.node_id for node, each in zip(NODES, last, strict=True)} == dict(
        zip(NODES, NODES, strict=True)
    )
    assert all(len(each.directories) == 2 + (each.node_id == 2) for each in last)
    print(f"{sum(len(round_.killed) for round_ in rounds)} kills, {counts}")


@pytest.mark.skipif(sample_size(10) != 10, reason="make campaign runs it")
def test_unclean_election_begins_another_history(broker_root: Path) -> None:
    """A run has the history of the leader of its time, also beside the agent of the old one."""
    root, repository, nothing = (
        broker_root / "elected",
        broker_root / "elected-backups",
        broker_root / "elected.ledger",
    )
    nothing.touch()
    cluster = ThreeBrokerCluster(
        root, {node: {"broker.session.timeout.ms": "3000"} for node in NODES}
    )
    homes = dict(zip(NODES, cluster.homes, strict=True))
    old, new, _ = cluster.brokers
    logs: list[Path] = []

    def back_up_log(broker: Broker) -> None:
        result = back_up(homes, repository, nothing)
        assert set(result.codes.values()) == {0}, result.outputs
        folder = broker_root / f"log-{len(logs)}" / f"{_LOOSE.name}-0"
        shutil.copytree(broker.home.data / folder.name, folder)
        logs.append(folder)

    with cluster, Client(cluster.bootstrap, broker_root) as client:
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
    for run, log in zip(open_repository(str(repository)).brokers_by_backup(), logs, strict=True):
        found, expected = (
            pa.table(kafka_index.read_records(path, topics=_LOOSE.name)).select(
                ["offset", "timestamp", "value"]
            )
            for path in (f"backup:{repository}@{run}", str(log.parent))
        )
        assert found == expected, run
        counts.append(len(found))
    assert counts == [20, 50, 30, 35]
