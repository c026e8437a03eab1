"""Brokers that are backed up together: copies of a stopped one, under other node ids."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from msgspec import structs

from kafka_index.commands.backup import agent
from kafka_index.commands.backup.agent import CompletedBackup, Manners, take
from kafka_index.commands.backup.barrier import Barrier, BarrierMissedError
from kafka_index.commands.backup.broker_backup import BrokerBackup
from kafka_index.commands.backup.high_watermarks import INTERVAL_SETTING
from kafka_index.commands.backup.low_impact_io import Bandwidth
from kafka_index.commands.backup.partition_inspector import CapturedPartition, Looked
from kafka_index.commands.backup.request import BackupRequest
from kafka_index.commands.backup.result import BackupResult
from kafka_index.core.format.names import CLUSTER_METADATA_TOPIC, TopicPartition
from kafka_index.core.format.times import now_ms
from kafka_index.core.fs.backup.manifest import is_consistent, run_name
from kafka_index.core.fs.backup.store import Run
from kafka_index.core.fs.paths import repository_of
from kafka_index.core.records.record_batch import BatchFields, Record, write_record_batch
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
    found = {}
    for node_id in THREE:
        found[node_id] = shutil.copytree(DUMP, root / str(node_id))
        properties = found[node_id] / "meta.properties"
        text = re.sub(r"node\.id=\d+", f"node.id={node_id}", properties.read_text())
        properties.write_text(text)
    return found


@pytest.fixture(autouse=True)
def one_leader(monkeypatch: pytest.MonkeyPatch) -> None:
    """One broker leads all partitions; in the dump they have none, as theirs was stopped."""

    def leader(_: BrokerBackup, found: CapturedPartition) -> int | None:
        return None if found.partition.topic == CLUSTER_METADATA_TOPIC else LEADER

    monkeypatch.setattr(BrokerBackup, "_leader", leader)


def back_up(
    brokers: dict[int, Path],
    repository: Path,
    nodes: Sequence[int] = THREE,
    *,
    patience_s: float = 60.0,
    cut_at_ms: int | None = None,
    properties: Mapping[str, str] | None = None,
    looked: Mapping[int, Looked] | None = None,
) -> list[CompletedBackup]:
    manners = Manners(patience_s=patience_s, cut_at_ms=cut_at_ms)
    requests = [
        BackupRequest(
            inputs=[str(brokers[node])],
            output=str(repository),
            brokers=THREE,
            properties=properties or {},
        )
        for node in nodes
    ]
    with ThreadPoolExecutor(len(requests)) as threads:
        kept = [looked[node] if looked else None for node in nodes]
        return list(threads.map(lambda *each: take(each[0], manners, each[1]), requests, kept))


def topics(taken: CompletedBackup) -> set[str]:
    return {each.topic for each in taken.manifest.partitions}


def test_brokers_share_a_run_which_the_leader_stores(
    brokers: dict[int, Path], tmp_path: Path
) -> None:
    first = back_up(brokers, tmp_path / "r")
    assert {each.manifest.run for each in first} == {first[0].manifest.run}
    assert all(each.manifest.cut.met == THREE for each in first)
    assert all(each.manifest.brokers == THREE for each in first)
    assert is_consistent([each.manifest for each in first])
    assert len(topics(first[0])) == 17
    assert topics(first[1]) == topics(first[2]) == {"__cluster_metadata"}
    repository = repository_of(str(tmp_path / "r"))
    assert repository.newest_complete() == first[0].manifest.run
    again = back_up(brokers, tmp_path / "r")
    assert [each.manifest.new_bytes for each in again] == [0, 0, 0]
    assert again[0].manifest.run > first[0].manifest.run
    assert topics(again[0]) == topics(first[0])


def test_others_store_what_a_killed_leader_had(brokers: dict[int, Path], tmp_path: Path) -> None:
    killed = shutil.copytree(brokers[LEADER], tmp_path / "killed")
    (killed / ".kafka_cleanshutdown").unlink()
    checkpoint = killed / "replication-offset-checkpoint"
    lines = checkpoint.read_text().splitlines()
    ends = {tuple(line.split()[:2]): int(line.split()[2]) for line in lines[2:]}
    # Its last high watermarks are from before the cut.
    text = [f"{topic} {number} {end // 2}" for (topic, number), end in ends.items()]
    checkpoint.write_text("\n".join([*lines[:2], *text, ""]))

    given = {**brokers, LEADER: killed}
    taken = back_up(given, tmp_path / "r", properties={INTERVAL_SETTING: "100"})

    assert [each.result.high_watermarks_from for each in taken] == [
        "old checkpoint",
        "log end",
        "log end",
    ]
    copies = Run(repository_of(str(tmp_path / "r")), taken[0].manifest.run).copies.values()
    found = {
        (each.topic, str(each.partition)): each.end_offset
        for _, each in copies
        if each.topic != CLUSTER_METADATA_TOPIC
    }
    assert found == ends


def test_the_copy_of_the_later_leader_is_read(brokers: dict[int, Path], tmp_path: Path) -> None:
    """The old one, which was cut off, says that it leads, and has the longer log."""
    (taken,) = back_up(brokers, tmp_path / "r", (LEADER,), patience_s=0.1)
    repository, manifest = repository_of(str(tmp_path / "r")), taken.manifest
    old = next(each for each in manifest.partitions if each.topic == "payments")
    shorter = old.pieces[:-1]
    later = structs.replace(
        old,
        pieces=shorter,
        end_offset=shorter[-1].last_offset + 1 if shorter else 0,
        epochs=(*old.epochs, (9, 0)),
    )
    elected = structs.replace(manifest, node_id=2, partitions=(later,))
    repository.put_manifest(elected)

    copies = Run(repository, manifest.run).copies

    node_ids = {key: found.node_id for key, (found, _) in copies.items()}
    assert node_ids.pop(later.topic_partition) == 2
    assert set(node_ids.values()) == {LEADER}


def test_others_store_what_an_absent_leader_does_not(
    brokers: dict[int, Path], tmp_path: Path
) -> None:
    without = back_up(brokers, tmp_path / "r", (2, 3), patience_s=1.0)
    assert [len(topics(each)) for each in without] == [17, 17]
    assert all(each.manifest.cut.met == (2, 3) for each in without)
    assert repository_of(str(tmp_path / "r")).newest_complete() is None
    pieces = {
        (each.folder, piece.object_name)
        for taken in without
        for each in taken.manifest.partitions
        for piece in each.pieces
    }
    stored = {(f"data/{path.parent.name}", path.name) for path in tmp_path.glob("r/data/*/*.log")}
    assert pieces == stored
    # The leader is back, and goes on after what the others have stored.
    together = back_up(brokers, tmp_path / "r")
    assert len(topics(together[0])) == 17
    new = {row.topic for row in together[0].result.partitions if row.new_bytes}
    assert new <= {CLUSTER_METADATA_TOPIC}
    assert repository_of(str(tmp_path / "r")).newest_complete() == together[0].manifest.run


def test_a_leader_that_ends_before_its_manifest_leaves_a_run_without_what_it_led(
    brokers: dict[int, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = BrokerBackup.commit

    def commit(self: BrokerBackup, run: str, *more: tuple[int, ...]) -> BackupResult:
        if self.broker.node_id == LEADER:
            # The others read that it has stored all, and do not wait for its manifest.
            raise KilledError
        return real(self, run, *more)

    def leader(_: BrokerBackup, found: CapturedPartition) -> int | None:
        own = {CLUSTER_METADATA_TOPIC: None, "payments": LEADER}
        return own.get(found.partition.topic, 2)

    root = tmp_path / "r"
    monkeypatch.setattr(BrokerBackup, "_leader", leader)
    with monkeypatch.context() as patched:
        patched.setattr(BrokerBackup, "commit", commit)
        with pytest.raises(KilledError):
            back_up(brokers, root, patience_s=5.0)
    repository = repository_of(str(root))
    ((run, there),) = repository.brokers_of_runs().items()
    assert there == (2, 3)
    assert repository.newest_complete() is None
    done = restore(f"backup:{root}@{run}", tmp_path / "out")
    assert done.code == 1, done.done.stderr
    assert {row["topic"] for row in done.rows if row["status"] == "left_out"} == {"payments"}
    (reason,) = {row["reason"] for row in done.rows if row["status"] == "left_out"}
    assert reason == "the backup has no part of broker 1, and no copy of it"
    assert f"backup {run} is incomplete: it has no part of broker 1" in done.done.stdout
    # The next run has it, and stores nothing twice.
    together = back_up(brokers, root)
    assert repository.newest_complete() == together[0].manifest.run
    new = {row.topic for row in together[0].result.partitions if row.new_bytes}
    assert new <= {CLUSTER_METADATA_TOPIC}
    assert restore(f"backup:{root}", tmp_path / "whole").code == 0


def test_what_others_have_stored_is_stored_when_they_are_gone(
    brokers: dict[int, Path], tmp_path: Path
) -> None:
    given = {node: shutil.copytree(path, tmp_path / str(node)) for node, path in brokers.items()}
    time.sleep(SETTLED_S)
    looked: dict[int, Looked] = {node: {} for node in THREE}
    together = back_up(given, tmp_path / "r", looked=looked)
    ends = {each.topic_partition: each.end_offset for each in together[0].manifest.partitions}
    assert [len(looked[node]) for node in THREE] == [0, len(ends) - 1, len(ends) - 1]
    grown = TopicPartition("audit.trail", 0)
    batch = write_record_batch(
        [Record(1, b"key", b"value")], ends[grown], BatchFields(leader_epoch=0)
    )
    with max((given[2] / grown.directory_name).glob("*.log")).open("ab") as log:
        log.write(batch)
    (alone,) = back_up(given, tmp_path / "r", (2,), patience_s=0.3, looked=looked)
    assert alone.result.sizes_bytes["new"] == len(batch)
    found = {each.topic_partition: each.end_offset for each in alone.manifest.partitions}
    assert found == {**ends, grown: ends[grown] + 1}
    assert not looked[2]


class KilledError(Exception):
    """Stands for the end of a process."""


def test_a_broker_that_cuts_late_takes_a_run_of_its_own(
    brokers: dict[int, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Barrier.await_others
    left = [BarrierMissedError("too late")]

    def await_others(self: Barrier) -> tuple[int, ...]:
        if left:
            raise left.pop()
        return real(self)

    monkeypatch.setattr(Barrier, "await_others", await_others)
    (taken,) = back_up(brokers, tmp_path / "r", (LEADER,), patience_s=0.3)
    assert taken.manifest.cut.met == (LEADER,)
    assert repository_of(str(tmp_path / "r")).runs() == [taken.manifest.run]
    left += [BarrierMissedError("too late")] * agent.MAX_RUNS_LATE
    with pytest.raises(BarrierMissedError):
        back_up(brokers, tmp_path / "r", (LEADER,), patience_s=0.3)
    assert repository_of(str(tmp_path / "r")).runs() == [taken.manifest.run]


def test_brokers_cut_at_an_agreed_time(brokers: dict[int, Path], tmp_path: Path) -> None:
    at_ms = now_ms() + 2000
    taken = back_up(brokers, tmp_path / "r", cut_at_ms=at_ms)
    assert {each.manifest.run for each in taken} == {run_name(at_ms)}
    assert all(each.manifest.cut.begun_ms >= at_ms for each in taken)
    assert is_consistent([each.manifest for each in taken])
    assert all(each.manifest.brokers == THREE for each in taken)
    assert topics(taken[1]) == {"__cluster_metadata"}
    late = back_up(brokers, tmp_path / "r", (2,), cut_at_ms=at_ms, patience_s=0.3)
    assert late[0].manifest.run > run_name(at_ms)


def test_a_run_reads_no_faster_than_its_bandwidth(brokers: dict[int, Path], tmp_path: Path) -> None:
    request = BackupRequest(inputs=[str(brokers[1])], output=str(tmp_path / "r"), brokers=(LEADER,))
    began = time.monotonic()
    taken = take(request, Manners(bandwidth=Bandwidth(2_000_000)))
    read = taken.result.sizes_bytes["log_read"]
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


def test_processes_that_keep_running_meet_and_end_when_they_are_told_to(
    agents: list[subprocess.Popen[str]], tmp_path: Path
) -> None:
    repository = repository_of(str(tmp_path / "r"))
    wait_for(
        lambda: list(repository.brokers_of_runs().values()).count((1, 2)) >= 3, 60, "three runs"
    )
    for process in agents:
        process.send_signal(signal.SIGTERM)
    for process in agents:
        stdout, stderr = process.communicate(timeout=TIMEOUT_SECONDS)
        assert process.returncode == 143, stderr
        assert stderr == "kafka-index: error: terminated\n"
        assert re.match(r"run \S+, broker [12]: \d+ partitions?; ", stdout)
    for run, nodes in repository.brokers_of_runs().items():
        for node in nodes:
            assert repository.manifest(run, node).cut.met == (1, 2)
    for node in (1, 2):
        assert '"healthy":true' in (tmp_path / f"{node}.json").read_text()
        metrics = (tmp_path / f"{node}.prom").read_text()
        assert f'kafka_index_backup_missing_brokers{{node="{node}"}} 0' in metrics


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--every", "5"], "'5' is not a duration, such as 30s, 5m, 1h or 1d"),
        (["--every", "0s"], "'0s' is not a duration"),
        (["--every", "1m", "--cut-at", "2999-01-01"], "--cut-at is for one run"),
        (["--cut-at", "2020-01-01"], "--cut-at is not in the future"),
        (["--max-bandwidth", "0"], "0.0 is not in the range x>0"),
    ],
)
def test_wrong_options(options: list[str], text: str, tmp_path: Path) -> None:
    done = run_here("backup", "--input", DUMP, "--output", tmp_path / "r", *options)
    assert done.returncode == 2
    assert text in done.stderr
    assert not (tmp_path / "r").exists()
