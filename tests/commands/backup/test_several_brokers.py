"""Brokers that are backed up together: copies of a stopped one, under other node ids."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest
from msgspec import structs

from kafka_index.commands.backup import agent
from kafka_index.commands.backup.agent import back_up as run_backup
from kafka_index.commands.backup.barrier import Barrier, BarrierMissedError
from kafka_index.commands.backup.broker_backup import INTERVAL_SETTING, BrokerBackup
from kafka_index.commands.backup.capture import CapturedPartition, InspectedPartitions
from kafka_index.commands.backup.request import BackupRequest
from kafka_index.commands.backup.result import BackupResult
from kafka_index.core.format.config import LogConfig
from kafka_index.core.format.names import CLUSTER_METADATA_TOPIC, TopicPartition
from kafka_index.core.format.times import now_ms
from kafka_index.core.fs.backup.manifest import backup_id_at, is_consistent
from kafka_index.core.fs.backup.store import Backup
from kafka_index.core.fs.paths import open_repository
from kafka_index.core.parameters import KafkaSettings
from kafka_index.core.records.record_batch import BatchFields, Record, write_record_batch
from tests.commands.backup.fake_broker import manifest_of
from tests.commands.backup.test_unchanged_directories import SETTLED_S
from tests.support.command_line import COMMAND, DUMP, environment, run_here
from tests.support.restoring import restore
from tests.support.timeouts import TIMEOUT_SECONDS, wait_for

LEADER = 1
THREE = (1, 2, 3)


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """Data directories of brokers that have the same partitions."""
    root = tmp_path_factory.mktemp("brokers")
    result = {}
    for node_id in THREE:
        result[node_id] = shutil.copytree(DUMP, root / str(node_id))
        properties = result[node_id] / "meta.properties"
        text = re.sub(r"node\.id=\d+", f"node.id={node_id}", properties.read_text())
        properties.write_text(text)
    return result


@pytest.fixture(autouse=True)
def one_leader(monkeypatch: pytest.MonkeyPatch) -> None:
    """One broker leads all partitions; in the dump they have none, as theirs was stopped."""

    def leader(_: BrokerBackup, captured: CapturedPartition) -> int | None:
        return None if captured.partition.topic == CLUSTER_METADATA_TOPIC else LEADER

    monkeypatch.setattr(BrokerBackup, "_leader", leader)


def back_up(
    brokers: dict[int, Path],
    repository: Path,
    nodes: Sequence[int] = THREE,
    *,
    timeout_s: float = 60.0,
    properties: Mapping[str, str] | None = None,
    inspected: Mapping[int, InspectedPartitions] | None = None,
) -> list[BackupResult]:
    requests = [
        BackupRequest(
            inputs=(str(brokers[node]),),
            output=str(repository),
            brokers=THREE,
            wait=timedelta(seconds=timeout_s),
            config=KafkaSettings(LogConfig(), properties or {}),
        )
        for node in nodes
    ]
    inspected_by_node = [inspected[node] if inspected else None for node in nodes]
    return run_backups(requests, inspected_by_node)


def run_backups(
    requests: Sequence[BackupRequest], inspected: Sequence[InspectedPartitions | None]
) -> list[BackupResult]:
    with ThreadPoolExecutor(len(requests)) as threads:
        return list(threads.map(run_backup, requests, inspected))


def topics(result: BackupResult) -> set[str]:
    return {partition.topic for partition in manifest_of(result).partitions}


def test_partition_shared_by_brokers_is_stored_by_its_leader(
    brokers: dict[int, Path], tmp_path: Path
) -> None:
    first = back_up(brokers, tmp_path / "r")
    assert {manifest_of(result).backup_id for result in first} == {manifest_of(first[0]).backup_id}
    assert all(manifest_of(result).capture.barrier_members == THREE for result in first)
    assert all(manifest_of(result).brokers == THREE for result in first)
    assert is_consistent([manifest_of(result) for result in first])
    assert len(topics(first[0])) == 17
    assert topics(first[1]) == topics(first[2]) == {"__cluster_metadata"}
    repository = open_repository(str(tmp_path / "r"))
    assert repository.newest_complete() == manifest_of(first[0]).backup_id
    second_results = back_up(brokers, tmp_path / "r")
    assert [manifest_of(result).new_bytes for result in second_results] == [0, 0, 0]
    assert manifest_of(second_results[0]).backup_id > manifest_of(first[0]).backup_id
    assert topics(second_results[0]) == topics(first[0])


def test_followers_store_partitions_of_a_killed_leader(
    brokers: dict[int, Path], tmp_path: Path
) -> None:
    killed = shutil.copytree(brokers[LEADER], tmp_path / "killed")
    (killed / ".kafka_cleanshutdown").unlink()
    checkpoint = killed / "replication-offset-checkpoint"
    lines = checkpoint.read_text().splitlines()
    ends = {tuple(line.split()[:2]): int(line.split()[2]) for line in lines[2:]}
    # Its last high watermarks are from before the cut.
    text = [f"{topic} {number} {end // 2}" for (topic, number), end in ends.items()]
    checkpoint.write_text("\n".join([*lines[:2], *text, ""]))

    directories = {**brokers, LEADER: killed}
    results = back_up(directories, tmp_path / "r", properties={INTERVAL_SETTING: "100"})

    assert [broker_result.high_watermarks_from for broker_result in results] == [
        "old checkpoint",
        "log end",
        "log end",
    ]
    copies = Backup(
        open_repository(str(tmp_path / "r")), manifest_of(results[0]).backup_id
    ).copies.values()
    result = {
        (broker_result.topic, str(broker_result.partition)): broker_result.end_offset
        for _, broker_result in copies
        if broker_result.topic != CLUSTER_METADATA_TOPIC
    }
    assert result == ends


def test_copy_with_the_later_leader_epoch_is_read(brokers: dict[int, Path], tmp_path: Path) -> None:
    """The old one, which was cut off, says that it leads, and has the longer log."""
    (result,) = back_up(brokers, tmp_path / "r", (LEADER,), timeout_s=0.1)
    repository, manifest = open_repository(str(tmp_path / "r")), manifest_of(result)
    old = next(partition for partition in manifest.partitions if partition.topic == "payments")
    shorter = old.chunks[:-1]
    later = structs.replace(
        old,
        chunks=shorter,
        end_offset=shorter[-1].last_offset + 1 if shorter else 0,
        epochs=(*old.epochs, (9, 0)),
    )
    elected = structs.replace(manifest, node_id=2, partitions=(later,))
    repository.put_manifest(elected)

    copies = Backup(repository, manifest.backup_id).copies

    node_ids = {key: selected.node_id for key, (selected, _) in copies.items()}
    assert node_ids.pop(later.topic_partition) == 2
    assert set(node_ids.values()) == {LEADER}


def test_followers_store_partitions_of_an_absent_leader(
    brokers: dict[int, Path], tmp_path: Path
) -> None:
    without = back_up(brokers, tmp_path / "r", (2, 3), timeout_s=1.0)
    assert [len(topics(result)) for result in without] == [17, 17]
    assert all(manifest_of(result).capture.barrier_members == (2, 3) for result in without)
    assert open_repository(str(tmp_path / "r")).newest_complete() is None
    chunks = {
        (partition.folder, chunk.object_name)
        for follower_result in without
        for partition in manifest_of(follower_result).partitions
        for chunk in partition.chunks
    }
    object_names = {
        (f"data/{path.parent.name}", path.name) for path in tmp_path.glob("r/data/*/*.log")
    }
    assert chunks == object_names
    # The leader is back, and goes on after what the others have stored.
    together = back_up(brokers, tmp_path / "r")
    assert len(topics(together[0])) == 17
    new = {row.topic for row in together[0].partitions if row.new_bytes}
    assert new <= {CLUSTER_METADATA_TOPIC}
    assert (
        open_repository(str(tmp_path / "r")).newest_complete() == manifest_of(together[0]).backup_id
    )


def test_leader_that_ends_before_its_manifest_leaves_an_incomplete_backup(
    brokers: dict[int, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = BrokerBackup.commit

    def commit(self: BrokerBackup, run: str, *more: tuple[int, ...]) -> BackupResult:
        if self.broker.node_id == LEADER:
            # The others read that it has stored all, and do not wait for its manifest.
            raise KilledError
        return real(self, run, *more)

    def leader(_: BrokerBackup, captured: CapturedPartition) -> int | None:
        leaders_by_topic = {CLUSTER_METADATA_TOPIC: None, "payments": LEADER}
        return leaders_by_topic.get(captured.partition.topic, 2)

    root = tmp_path / "r"
    monkeypatch.setattr(BrokerBackup, "_leader", leader)
    with monkeypatch.context() as patched:
        patched.setattr(BrokerBackup, "commit", commit)
        with pytest.raises(KilledError):
            back_up(brokers, root, timeout_s=5.0)
    repository = open_repository(str(root))
    ((run, node_ids),) = repository.brokers_by_backup().items()
    assert node_ids == (2, 3)
    assert repository.newest_complete() is None
    result = restore(f"backup:{root}@{run}", tmp_path / "out")
    assert result.code == 1, result.done.stderr
    assert {row["topic"] for row in result.rows if row["status"] == "skipped"} == {"payments"}
    (reason,) = {row["reason"] for row in result.rows if row["status"] == "skipped"}
    message = "the backup has no data of broker 1, and no copy of the partition on other brokers"
    assert reason == message
    assert f"backup {run} is incomplete: it has no data of broker 1" in result.done.stdout
    # The next run has it, and stores nothing twice.
    together = back_up(brokers, root)
    assert repository.newest_complete() == manifest_of(together[0]).backup_id
    new = {row.topic for row in together[0].partitions if row.new_bytes}
    assert new <= {CLUSTER_METADATA_TOPIC}
    assert restore(f"backup:{root}", tmp_path / "whole").code == 0


def test_partitions_of_departed_brokers_are_stored_by_remaining_brokers(
    brokers: dict[int, Path], tmp_path: Path
) -> None:
    directories = {
        node: shutil.copytree(path, tmp_path / str(node)) for node, path in brokers.items()
    }
    time.sleep(SETTLED_S)
    inspected: dict[int, InspectedPartitions] = {node: {} for node in THREE}
    together = back_up(directories, tmp_path / "r", inspected=inspected)
    ends = {
        partition.topic_partition: partition.end_offset
        for partition in manifest_of(together[0]).partitions
    }
    assert [len(inspected[node]) for node in THREE] == [0, len(ends) - 1, len(ends) - 1]
    grown = TopicPartition("audit.trail", 0)
    batch = write_record_batch(
        [Record(1, b"key", b"value")], ends[grown], BatchFields(leader_epoch=0)
    )
    with max((directories[2] / grown.directory_name).glob("*.log")).open("ab") as log:
        log.write(batch)
    (alone,) = back_up(directories, tmp_path / "r", (2,), timeout_s=0.3, inspected=inspected)
    assert alone.sizes_bytes["new"] == len(batch)
    result = {
        partition.topic_partition: partition.end_offset
        for partition in manifest_of(alone).partitions
    }
    assert result == {**ends, grown: ends[grown] + 1}
    assert not inspected[2]


class KilledError(Exception):
    """Stands for the end of a process."""


def test_broker_that_captures_late_gets_its_own_backup(
    brokers: dict[int, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Barrier.await_others
    errors = [BarrierMissedError("too late")]

    def await_others(self: Barrier) -> tuple[int, ...]:
        if errors:
            raise errors.pop()
        return real(self)

    monkeypatch.setattr(Barrier, "await_others", await_others)
    (result,) = back_up(brokers, tmp_path / "r", (LEADER,), timeout_s=0.3)
    assert manifest_of(result).capture.barrier_members == (LEADER,)
    assert list(open_repository(str(tmp_path / "r")).brokers_by_backup()) == [
        manifest_of(result).backup_id
    ]
    errors += [BarrierMissedError("too late")] * agent.MAX_MISSED_BARRIERS
    with pytest.raises(BarrierMissedError):
        back_up(brokers, tmp_path / "r", (LEADER,), timeout_s=0.3)
    assert list(open_repository(str(tmp_path / "r")).brokers_by_backup()) == [
        manifest_of(result).backup_id
    ]


def test_brokers_capture_at_an_agreed_time(brokers: dict[int, Path], tmp_path: Path) -> None:
    at_ms = now_ms() + 2000
    requests = [
        BackupRequest.build(
            {
                "inputs": brokers[node],
                "output": tmp_path / "r",
                "brokers": THREE,
                "cut_at": at_ms,
                "wait": timedelta(seconds=60 if node != 2 else 0.3),
            }
        )
        for node in THREE
    ]
    results = run_backups(requests, [None] * len(THREE))
    assert {manifest_of(result).backup_id for result in results} == {backup_id_at(at_ms)}
    assert all(manifest_of(result).capture.begun_ms >= at_ms for result in results)
    assert is_consistent([manifest_of(result) for result in results])
    assert all(manifest_of(result).brokers == THREE for result in results)
    assert topics(results[1]) == {"__cluster_metadata"}
    # The time passes while the broker inspects its partitions.
    late = run_backups(requests[1:2], [None])
    assert manifest_of(late[0]).backup_id > backup_id_at(at_ms)


def test_backup_reads_are_limited_to_the_bandwidth(
    brokers: dict[int, Path], tmp_path: Path
) -> None:
    request = BackupRequest(
        inputs=(str(brokers[1]),),
        output=str(tmp_path / "r"),
        brokers=(LEADER,),
        max_bandwidth=2.0,
    )
    began = time.monotonic()
    read = run_backup(request).sizes_bytes["log_read"]
    assert read > 3_000_000
    assert time.monotonic() - began >= read / 2_000_000 - 0.5


@pytest.fixture
def agents(brokers: dict[int, Path], tmp_path: Path) -> Iterator[list[subprocess.Popen[str]]]:
    """Two processes that keep backing up two brokers, with files for monitors."""
    processes = [
        subprocess.Popen(
            [
                *(*COMMAND, "backup", "--input", str(brokers[node]), "--brokers", "1,2"),
                *("--output", str(tmp_path / "r"), "--every", "1s", "--wait", "20s"),
                *("--metrics", str(tmp_path / f"{node}.prom")),
                *("--health", str(tmp_path / f"{node}.json")),
            ],
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for node in (1, 2)
    ]
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def test_agents_share_backups_and_end_on_a_signal(
    agents: list[subprocess.Popen[str]], tmp_path: Path
) -> None:
    repository = open_repository(str(tmp_path / "r"))
    wait_for(
        lambda: list(repository.brokers_by_backup().values()).count((1, 2)) >= 3, 60, "three runs"
    )
    for process in agents:
        process.send_signal(signal.SIGTERM)
    for process in agents:
        stdout, stderr = process.communicate(timeout=TIMEOUT_SECONDS)
        assert process.returncode == 143, stderr
        assert stderr == "kafka-index: error: terminated\n"
        assert re.search(r"backup \S+ of broker [12]: \d+ partitions?; ", stdout)
    for run, nodes in repository.brokers_by_backup().items():
        for node in nodes:
            assert repository.manifest(run, node).capture.barrier_members == (1, 2)
    for node in (1, 2):
        assert '"healthy":true' in (tmp_path / f"{node}.json").read_text()
        metrics = (tmp_path / f"{node}.prom").read_text()
        assert f'kafka_index_backup_missing_brokers{{node="{node}"}} 0' in metrics


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            ["--every", "5"],
            "--every is not a duration (expected a duration such as 30s, 5m, 1h or 1d, found '5')",
        ),
        (["--every", "0s"], "--every is not a duration"),
        (["--every", "1m", "--cut-at", "2999-01-01"], "--cut-at are mutually exclusive"),
        (["--cut-at", "2020-01-01"], "--cut-at is not in the future"),
        (["--max-bandwidth", "0"], "expected a number above 0"),
    ],
)
def test_contradictory_backup_options_are_rejected(
    options: list[str], text: str, tmp_path: Path
) -> None:
    result = run_here("backup", "--input", DUMP, "--output", tmp_path / "r", *options)
    assert result.returncode == 2
    assert text in result.stderr
    assert not (tmp_path / "r").exists()
