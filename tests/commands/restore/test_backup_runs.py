"""Runs of repositories of backups, restored: the ends of logs, and what is said of a run."""

from __future__ import annotations

import random
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING

import pytest
from msgspec import structs

from kafka_index.core.format.names import CLEAN_SHUTDOWN
from kafka_index.core.fs.backup.manifest import Manifest, SkippedPartition, backup_id_at
from kafka_index.core.fs.paths import open_repository
from tests.commands.backup.repositories import make_backup
from tests.support.command_line import DUMP, run_here
from tests.support.restoring import RestoreRun, copy_dump, restore
from tests.support.transaction_histories import PARTITIONS, History

if TYPE_CHECKING:
    from pathlib import Path

    from kafka_index.core.format.names import TopicPartition

_TIME_MS = 1_700_000_000_000
_USERS = [partition for partition in PARTITIONS if partition.topic == "t"]
_IDENTITY = "version=1\ncluster.id=AAAAAAAAAAAAAAAAAAAAAA\nnode.id=1\n"
_TOPIC_IDS = {"t": "AAAAAAAAAAAAAAAAAAAAAg", "__transaction_state": "AAAAAAAAAAAAAAAAAAAAAw"}


class _BackedUpHistory:
    """A history of transactions with two runs, and the cluster as it was at the second."""

    def __init__(self, root: Path, seed: int) -> None:
        rng = random.Random(seed)
        self.history = History(rng)
        self.root = root
        self.repository = open_repository(str(root / "repository"))
        self.data = root / "data"
        self.data.mkdir()
        (self.data / "meta.properties").write_text(_IDENTITY)
        (self.data / CLEAN_SHUTDOWN).touch()
        self._rng = rng
        self._counts: Counter[TopicPartition] = Counter()
        self.history.run(150)
        self.take(0)
        self.until_ms = 0
        self.history.run(80)
        self.history.now_ms += 1
        self.until_ms, self.until = self.history.now_ms, self.history.moment
        self.history.now_ms += 1
        self.history.run(80)
        self.take(20)

    def take(self, more: int) -> None:
        """Take a run, with so many appends between the cuts."""
        history = self.history
        begun_ms, settled = history.now_ms + 1, history.moment
        history.now_ms += 2
        states = dict.fromkeys(history.states, history.moment)
        history.run(more)
        users = dict.fromkeys(_USERS, history.moment)
        self.cuts, self.begun_ms = states | users, begun_ms
        self._grow(dict.fromkeys(self.cuts, settled))
        growing = {
            "capture_coordinators": partial(self._grow, states),
            "capture_others": partial(self._grow, users),
        }
        make_backup(
            self.repository.root, self.data, time_ms=begun_ms, chunk_bytes=500, before=growing
        )

    def _grow(self, moments: dict[TopicPartition, int]) -> None:
        """Append to logs what they have at moments, with a new segment now and then."""
        for partition, moment in moments.items():
            directory = self.data / partition.directory_name
            for each in self.history.cut(partition, moment)[self._counts[partition] :]:
                if not directory.exists():
                    directory.mkdir()
                    (directory / "leader-epoch-checkpoint").write_text("0\n0\n")
                    (directory / "partition.metadata").write_text(
                        f"version: 0\ntopic_id: {_TOPIC_IDS[partition.topic]}\n"
                    )
                logs = sorted(directory.glob("*.log"))
                log = logs[-1] if logs else None
                if log is None or not self._rng.randrange(20):
                    log = directory / f"{each.offset:020d}.log"
                with log.open("ab") as file:
                    file.write(each.data)
                self._counts[partition] += 1

    def expected(self, partition: TopicPartition, states: dict[TopicPartition, int]) -> int:
        """The end of a log: before the first batch that coordinators do not know, by their cuts."""
        end = 0
        for each in self.history.cut(partition, self.cuts[partition]):
            transaction = each.transaction
            if transaction is not None:
                at = transaction.listed_at[partition]
                if each.is_marker:
                    at = -1 if transaction.prepared_at is None else transaction.prepared_at
                if at >= states[transaction.home]:
                    return each.offset
            end = each.end_offset
        return end

    @property
    def input(self) -> str:
        """The newest run."""
        return f"backup:{self.root / 'repository'}"


def len_below(history: History, partition: TopicPartition, moment: int) -> int:
    """The end offset of a log at a moment."""
    result = history.cut(partition, moment)
    return result[-1].end_offset if result else 0


def _ends(run: RestoreRun) -> dict[str, int]:
    return {
        f"{row['topic']}-{row['partition']}": row["log_end_offset"]
        for row in run.rows
        if row["status"] == "restored"
    }


def _runbook(output: Path) -> str:
    return (output.parent / f"{output.name}.json.runbook.txt").read_text()


@pytest.mark.parametrize("seed", range(6))
def test_logs_of_a_backup_end_at_its_transaction_boundary(tmp_path: Path, seed: int) -> None:
    backed = _BackedUpHistory(tmp_path, seed)
    result = restore(backed.input, tmp_path / "out")
    assert result.code == 0, result.done.stderr
    ends = _ends(result)
    expected = {
        user.directory_name: backed.expected(user, backed.cuts)
        for user in _USERS
        if user.directory_name in ends
    }
    assert {name: end for name, end in ends.items() if name in expected} == expected


@pytest.mark.parametrize("seed", range(6))
def test_transactions_across_a_time_are_kept_or_removed_completely(
    tmp_path: Path, seed: int
) -> None:
    backed = _BackedUpHistory(tmp_path, seed)
    result = restore(
        *(backed.input, tmp_path / "out", "--until", f"ms:{backed.until_ms}", "--create-time"),
        "--consistent",
    )
    assert result.code == 0, result.done.stderr
    ends = _ends(result)
    for user in _USERS:
        if user.directory_name not in ends:
            continue
        # One clock: what is before the time in one log is so in all.
        at_time = len_below(backed.history, user, backed.until)
        assert ends[user.directory_name] == at_time


def test_time_selects_the_following_backup(tmp_path: Path) -> None:
    backed = _BackedUpHistory(tmp_path, 1)
    second = backup_id_at(backed.begun_ms)
    backed.history.run(40)
    backed.take(5)
    time = ("--until", f"ms:{backed.until_ms}", "--create-time")
    result = restore(backed.input, tmp_path / "out", *time)
    assert {row["path"].split("/@")[1].split("/")[0] for row in result.rows} == {second}
    third = backup_id_at(backed.begun_ms)
    result = restore(backed.input, tmp_path / "newest")
    assert {row["path"].split("/@")[1].split("/")[0] for row in result.rows} == {third}


@pytest.mark.parametrize(("begun_ms", "taken"), [(-1, 1), (0, 0), (1, 0)])
def test_backup_after_a_time_is_selected_by_its_cutoff(
    tmp_path: Path, begun_ms: int, taken: int
) -> None:
    backed = _BackedUpHistory(tmp_path, 1)
    until_ms = backed.until_ms
    runs = [backup_id_at(until_ms - 50), backup_id_at(backed.begun_ms)]
    repository = backed.repository
    newest = repository.manifest(runs[1], 1)
    # Opened before the time like the runs before it, and cut around it.
    cut = structs.replace(newest.capture, begun_ms=until_ms + begun_ms)
    repository.put_manifest(structs.replace(newest, backup_id=runs[0], capture=cut))
    time = ("--until", f"ms:{until_ms}", "--create-time")
    result = restore(backed.input, tmp_path / "out", *time)
    assert {row["path"].split("/@")[1].split("/")[0] for row in result.rows} == {runs[taken]}


def _changed(tmp_path: Path, dump: Path = DUMP, **changes: object) -> str:
    """A repository with one run of a dump, its manifest changed."""
    manifest = make_backup(tmp_path / "scratch", dump, time_ms=_TIME_MS)
    changed: Manifest = structs.replace(manifest, **changes)
    (tmp_path / "scratch").rename(tmp_path / "repository")
    for path in (tmp_path / "repository" / "runs").rglob("*.zst"):
        path.unlink()
        (path.parents[2] / "heads" / path.parent.name / path.name).unlink()
    open_repository(str(tmp_path / "repository")).put_manifest(changed)
    return f"backup:{tmp_path / 'repository'}@{changed.backup_id}"


def test_backup_without_a_broker_is_restored_with_a_note(tmp_path: Path) -> None:
    source = _changed(tmp_path, brokers=(1, 2))
    result = restore(source, tmp_path / "out")
    assert result.code == 0, result.done.stderr
    assert "is incomplete: it has no data of broker 2" in _runbook(tmp_path / "out")


def test_restore_reports_the_cutoff_of_its_backup_and_a_deleted_later_backup(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = copy_dump(tmp_path / "data", "payments-0")
    root = tmp_path / "repository"
    for time_ms in (_TIME_MS, _TIME_MS + 1000):
        make_backup(root, data, time_ms=time_ms)
    deleted = root / "runs" / backup_id_at(_TIME_MS + 1000) / "1.json.zst"
    deleted.unlink()
    run = restore(f"backup:{root}", tmp_path / "out")
    assert run.code == 0, run.done.stderr
    assert (
        f"from backup {backup_id_at(_TIME_MS)}, whose cutoff is 2023-11-14T22:13:20"
        in run.done.stdout
    )
    assert f"{deleted}: the manifest of broker 1 in backup" in caplog.text


def test_restore_reports_a_manifest_if_all_were_deleted(tmp_path: Path) -> None:
    data = copy_dump(tmp_path / "data", "payments-0")
    root = tmp_path / "repository"
    make_backup(root, data, time_ms=_TIME_MS)
    deleted = root / "runs" / backup_id_at(_TIME_MS) / "1.json.zst"
    deleted.unlink()

    result = run_here("restore", "--input", f"backup:{root}", "--output", tmp_path / "out")

    assert result.returncode == 1
    assert f"{deleted}: the manifest of broker 1 in backup" in result.stderr


def test_partition_skipped_by_the_backup_is_reported(tmp_path: Path) -> None:
    missed = SkippedPartition(
        topic="payments", partition=7, topic_id=None, reason="no id yet", backups=1
    )
    dump = copy_dump(tmp_path / "dump", "payments-0")
    result = restore(_changed(tmp_path, dump, skipped=(missed,)), tmp_path / "out")
    assert result.code == 1, result.done.stderr
    (row,) = [row for row in result.rows if row["partition"] == 7]
    assert (row["status"], row["reason"]) == (
        "skipped",
        "the backup skipped the partition: no id yet",
    )


def test_backup_without_partitions_reports_the_skipped_partitions(tmp_path: Path) -> None:
    missed = SkippedPartition(
        topic="payments", partition=7, topic_id=None, reason="no id yet", backups=1
    )
    dump = copy_dump(tmp_path / "dump", "payments-0")
    source = _changed(tmp_path, dump, partitions=(), skipped=(missed,))
    result = restore(source, tmp_path / "out")
    assert result.code == 2, result.done.stderr
    assert (
        "the backup contains no partition (found skipped payments-7: no id yet)"
        in result.done.stderr
    )


def test_partition_deleted_during_the_backup_is_not_reported(tmp_path: Path) -> None:
    missed = SkippedPartition(
        topic="payments", partition=7, topic_id=None, reason="no id yet", backups=1
    )
    result = restore(_changed(tmp_path, skipped=(missed,)), tmp_path / "out")
    assert all(row["partition"] != 7 for row in result.rows)


def test_backup_with_another_input_is_rejected(tmp_path: Path) -> None:
    source = _changed(tmp_path)
    result = restore(source, tmp_path / "out", "--input", DUMP)
    assert result.code == 2
    assert "a backup cannot be restored together with another input" in result.done.stderr


def test_consistent_without_a_backup_is_rejected(tmp_path: Path) -> None:
    result = restore(DUMP, tmp_path / "out", "--consistent")
    assert result.code == 2
    assert "--consistent requires a backup: give --input backup:URI" in result.done.stderr
