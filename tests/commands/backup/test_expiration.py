"""List, verify and expire the backups of a repository."""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

import kafka_index
from kafka_index.commands.backup import backups
from kafka_index.commands.backup.backups import keep_reasons
from kafka_index.commands.backup.request import ExpireBackupsRequest
from kafka_index.core.errors import CorruptObjectError, InputError, PublishError
from kafka_index.core.format.times import now_ms
from kafka_index.core.fs.backup import repository as rules
from kafka_index.core.fs.backup.manifest import (
    BACKUPS_FOLDER,
    HEADS_FOLDER,
    LogChunk,
    Manifest,
    SkippedPartition,
    backup_id_at,
    backup_id_ms,
    content_of,
    encode,
    manifest_path,
    parse_manifest,
)
from kafka_index.core.fs.backup.repository import Repository
from kafka_index.core.fs.paths import open_repository
from kafka_index.core.fs.registry import store_of
from tests.commands.backup.repositories import (
    NEWEST_ONLY,
    cluster_id_of,
    expire,
    make_backup,
)
from tests.commands.backup.test_manifest import manifest
from tests.support.command_line import DUMP, run_here
from tests.support.restoring import copy_dump

DAY_MS = 86_400_000
NOON = int(datetime(2026, 11, 20, 12, tzinfo=UTC).timestamp() * 1000)


@pytest.fixture(params=["local", "s3"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A place for a repository."""
    if request.param == "local":
        return str(tmp_path / "repo")
    return f"{request.getfixturevalue('bucket')}/backups/kafka"


@pytest.fixture
def repository(root: str) -> Repository:
    """A repository of the cluster of the example, without runs."""
    return open_repository(root).create(cluster_id_of(DUMP))


def data_of(time_ms: int) -> tuple[bytes, bytes]:
    """Return the bytes of the objects of a run."""
    return b"of all runs", f"of {time_ms}".encode()


def put_run(
    repository: Repository,
    time_ms: int,
    node_id: int = 1,
    brokers: tuple[int, ...] = (1,),
    opened_ms: int | None = None,
) -> Manifest:
    """Put a manifest with an object of its own, and another that all runs share.

    The time is that of its cut, at which the run was opened, too, if nothing else is said. No
    backup makes it: of brokers that have no directories, at any time, and of bytes that are no
    batches.
    """
    result = open_repository(repository.root)
    result.newest(node_id)
    partition = manifest().partitions[0]
    chunks = []
    for offset, data in zip((0, 10), data_of(time_ms), strict=True):
        chunk = LogChunk(offset, offset + 9, *content_of(data))
        path = f"{partition.folder}/{chunk.object_name}"
        if chunk.object_name not in result.list_reusable_names(partition.folder):
            assert result.put(path, data)
        chunks.append(chunk)
    cut = msgspec.structs.replace(
        manifest().capture,
        begun_ms=time_ms,
        coordinators_captured_ms=time_ms,
        others_begun_ms=time_ms + 1,
    )
    put_manifest = msgspec.structs.replace(
        manifest(chunks=tuple(chunks)),
        backup_id=backup_id_at(time_ms if opened_ms is None else opened_ms),
        node_id=node_id,
        brokers=brokers,
        capture=cut,
        new_bytes=len(f"of {time_ms}"),
    )
    result.put_manifest(put_manifest)
    return put_manifest


def delete_manifest(root: str, manifest: Manifest) -> None:
    """Delete a manifest with its head, as if it had never been put."""
    folders = BACKUPS_FOLDER, HEADS_FOLDER
    store_of(root).delete(
        [manifest_path(root, manifest.backup_id, manifest.node_id, folder) for folder in folders]
    )


def below(root: str, folder: str) -> list[str]:
    """Return the objects below a folder of a repository."""
    pages = store_of(root).list_tree(f"{root}/{folder}")
    return [path for page in pages for path in page["path"].to_pylist()]


def listed(root: str, *arguments: str) -> list[dict[str, object]]:
    """Return what ``backups list --json`` prints."""
    result = run_here("backups", "list", root, "--json", *arguments)
    return [json.loads(line) for line in result.stdout.splitlines()]


# ---------------------------------------------------------------------------------------- list


def test_backups_are_listed(repository: Repository) -> None:
    root = repository.root
    now = int(time.time() * 1000)
    put_run(repository, now - 7_200_000)
    put_run(repository, now - 3_600_000)
    put_run(repository, now - 60_000, brokers=(1, 2))
    rows = listed(root)
    assert [row["status"] for row in rows] == ["complete", "complete", "incomplete"]
    assert [row["missing_brokers"] for row in rows] == [[], [], [2]]
    assert [row["gap_ms"] for row in rows] == [None, 3_600_000, None]
    assert [row["new_bytes"] for row in rows] == [16, 16, 16]
    assert [row["bytes"] for row in rows] == [27, 27, 27]
    assert rows[2]["reason"] == "brokers without a manifest: 2"
    printed = run_here("backups", "list", root)
    assert "3 backups; a restore now would lose the last 1 h 0 min" in printed.stderr
    assert "1 h 00 min" in printed.stdout
    last = run_here("backups", "list", root, "--last", 1)
    assert "3 backups, but no complete backup" in last.stderr
    backup = kafka_index.open_backup(root)
    assert backup.counts == {"backups": 3, "incomplete": 1, "inconsistent": 0, "damaged": 0}
    assert backup.at().endswith(f"/@{backup_id_at(now - 3_600_000)}")
    assert backup.at(now - 5_000_000).endswith(f"/@{backup_id_at(now - 7_200_000)}")
    assert backup.newest is not None
    assert backup.newest["cutoff"] == now - 3_600_000


def test_listed_times_are_capture_times(repository: Repository) -> None:
    now = int(time.time() * 1000)
    put_run(repository, now - 3_600_000, opened_ms=now - 3_650_000)
    put_run(repository, now - 60_000, opened_ms=now - 130_000)
    rows = listed(repository.root)
    assert [row["gap_ms"] for row in rows] == [None, 3_540_000]
    for row, age_ms in zip(rows, (3_600_000, 60_000), strict=True):
        age = row["age_ms"]
        assert isinstance(age, int)
        assert age_ms <= age < age_ms + 60_000
    backup = kafka_index.open_backup(repository.root)
    assert backup.at(now - 60_001).endswith(f"/@{backup_id_at(now - 3_650_000)}")
    assert backup.at(now - 60_000).endswith(f"/@{backup_id_at(now - 130_000)}")


def test_list_reports_unsynchronized_brokers_and_skipped_partitions(
    repository: Repository,
) -> None:
    root = repository.root
    for node_id, later in ((1, 0), (2, 90_000)):
        own_backup = put_run(open_repository(root), NOON + later, node_id, (1, 2))
        delete_manifest(root, own_backup)
        missed = SkippedPartition(
            topic="new", partition=0, topic_id=None, reason="it has no id yet", backups=1
        )
        repository.put_manifest(
            msgspec.structs.replace(own_backup, backup_id=backup_id_at(NOON), skipped=(missed,))
        )
    (row,) = listed(root)
    assert row["status"] == "inconsistent"
    assert row["skipped_partitions"] == 1
    assert (
        "and 1 partition that the newest backup skipped" in run_here("backups", "list", root).stderr
    )


def test_damaged_manifest_is_reported_and_others_are_listed(repository: Repository) -> None:
    root = repository.root
    put_run(repository, NOON - 1)
    put_run(repository, NOON)
    path = manifest_path(root, backup_id_at(NOON), 1)
    store_of(root).put(path, store_of(root).read(path)[:-5])
    result = run_here("backups", "list", root, "--json")
    assert result.returncode == 1
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert [row["status"] for row in rows] == ["complete", "damaged"]
    assert str(rows[1]["reason"]).startswith(path)
    with pytest.raises(CorruptObjectError, match="no backup was expired"):
        expire(root)
    assert run_here("backups", "verify", root, "--sample", 0).returncode == 1


def test_deleted_manifest_is_reported_by_its_head(
    repository: Repository, caplog: pytest.LogCaptureFixture
) -> None:
    root = repository.root
    put_run(repository, NOON - 1)
    put_run(repository, NOON)
    newest = manifest_path(root, backup_id_at(NOON), 1)
    store_of(root).delete([newest])

    assert [row["status"] for row in listed(root)] == ["complete", "damaged"]
    result = run_here("backups", "verify", root, "--sample", 0)
    assert result.returncode == 1
    assert f"{newest}" in result.stdout
    with pytest.raises(CorruptObjectError, match="no backup was expired") as raised:
        expire(root)
    assert f"{HEADS_FOLDER}/{backup_id_at(NOON)}" in str(raised.value)
    assert repository.find_backup() == backup_id_at(NOON - 1)
    assert f"backup {backup_id_at(NOON)} was deleted" in caplog.text
    caplog.clear()
    assert repository.find_backup(f"ms:{NOON - 1}") == backup_id_at(NOON - 1)
    assert not caplog.text

    store_of(root).delete([manifest_path(root, backup_id_at(NOON), 1, HEADS_FOLDER)])
    assert run_here("backups", "verify", root, "--sample", 0).returncode == 0


def test_manifest_different_from_its_head_is_reported_as_altered(repository: Repository) -> None:
    root = repository.root
    put_run(repository, NOON)
    path = manifest_path(root, backup_id_at(NOON), 1)
    altered_manifest = msgspec.structs.replace(
        parse_manifest(store_of(root).read(path), path), new_bytes=1
    )
    store_of(root).put(path, encode(altered_manifest))
    result = run_here("backups", "verify", root, "--sample", 0, "--json")
    assert result.returncode == 1
    (row,) = [json.loads(line) for line in result.stdout.splitlines()]
    assert (row["status"], row["path"]) == ("altered", path)


def test_repository_without_head_files_is_valid(repository: Repository) -> None:
    root = repository.root
    put_run(repository, NOON)
    store_of(root).delete([manifest_path(root, backup_id_at(NOON), 1, HEADS_FOLDER)])
    assert [row["status"] for row in listed(root)] == ["complete"]
    assert run_here("backups", "verify", root, "--sample", 0).returncode == 0


def test_expiration_killed_before_deleting_a_manifest_reports_no_loss(
    local: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = local
    for time_ms in (NOON - 1, NOON):
        put_run(open_repository(root), time_ms)

    def delete(_store: object, paths: Iterable[str]) -> None:
        for path in paths:
            if "/runs/" in path:
                raise PublishError("killed", path=path)
            os.unlink(path)

    with monkeypatch.context() as patch:
        patch.setattr("kafka_index.core.fs.local_store.LocalStore.delete", delete)
        with pytest.raises(PublishError, match="killed"):
            expire(root, **NEWEST_ONLY)
    assert sorted(below(root, "heads")) == [f"{backup_id_at(NOON)}/1.json.zst"]
    assert run_here("backups", "verify", root, "--sample", 0).returncode == 0
    expire(root, **NEWEST_ONLY)
    assert list(open_repository(root).brokers_by_backup()) == [backup_id_at(NOON)]


@pytest.mark.parametrize("command", ["list", "verify", "expire"])
def test_folder_that_is_not_a_repository_is_rejected(command: str, tmp_path: Path) -> None:
    result = run_here("backups", command, tmp_path)
    assert result.returncode == 2
    assert "not a repository of backups" in result.stderr
    with pytest.raises(InputError, match="not a repository of backups"):
        kafka_index.open_backup(tmp_path)


# -------------------------------------------------------------------------------------- verify


@pytest.fixture
def stored_manifest(repository: Repository) -> Manifest:
    """A run of a part of the example in the repository."""
    return make_backup(repository.root, DUMP, time_ms=NOON, topics="payments")


def verified(root: str, tmp_path: Path, *arguments: object) -> tuple[int, list[dict[str, object]]]:
    """Return the exit code and the report of ``backups verify``."""
    report = tmp_path / "report.json"
    result = run_here("backups", "verify", root, "--report", report, *map(str, arguments))
    return result.returncode, [json.loads(line) for line in report.read_text().splitlines()]


def test_stored_backup_is_verified_as_intact(
    stored_manifest: Manifest, repository: Repository, tmp_path: Path
) -> None:
    code, rows = verified(repository.root, tmp_path)
    assert code == 0
    assert {row["status"] for row in rows} == {"intact"}
    sizes = [
        chunk.size_bytes for partition in stored_manifest.partitions for chunk in partition.chunks
    ]
    sizes += [
        file.size_bytes for partition in stored_manifest.partitions for file in partition.files
    ]
    assert len(rows) == len(sizes)
    summary = run_here("backups", "verify", repository.root, "--summary", "-").stdout
    assert json.loads(summary)["bytes"]["read"] == sum(sizes)


@pytest.mark.parametrize(
    ("change", "status"), [("alter", "altered"), ("cut", "altered"), ("delete", "missing")]
)
def test_missing_and_altered_objects_are_reported(
    change: str, status: str, stored_manifest: Manifest, repository: Repository, tmp_path: Path
) -> None:
    root = repository.root
    partition_backup = next(
        partition for partition in stored_manifest.partitions if partition.topic == "payments"
    )
    path = f"{root}/{partition_backup.folder}/{partition_backup.chunks[1].object_name}"
    data = store_of(path).read(path)
    if change == "delete":
        store_of(path).delete([path])
    else:
        store_of(path).put(path, data[:-1] + (b"" if change == "cut" else b"?"))
    code, rows = verified(root, tmp_path)
    assert code == 1
    (fault,) = (row for row in rows if row["status"] != "intact")
    assert (fault["path"], fault["status"]) == (path, status)
    assert fault["expected"]
    assert path in run_here("backups", "verify", root).stdout
    # What a listing shows is found without reading an object.
    code, rows = verified(root, tmp_path, "--sample", 0)
    assert not any(row["is_read"] for row in rows)
    assert code == (0 if change == "alter" else 1)


def test_verify_reads_only_the_requested_fraction(
    stored_manifest: Manifest, repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = repository.root
    read: list[str] = []
    store = store_of(root)
    original_read = type(store).read

    def counted(self: object, path: str, *arguments: int) -> bytes:
        read.append(path)
        return original_read(self, path, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(type(store), "read", counted)
    assert run_here("backups", "verify", root, "--sample", 0).returncode == 0
    assert not [path for path in read if "/data/" in path]
    read.clear()
    assert run_here("backups", "verify", root, "--sample", 40).returncode == 0
    data_paths = [path for path in read if "/data/" in path]
    object_count = sum(
        len(partition.chunks) + len(partition.files) for partition in stored_manifest.partitions
    )
    assert 0 < len(data_paths) == len(set(data_paths)) < object_count


def test_chunk_with_a_corrupt_batch_and_a_valid_hash_is_damage(
    repository: Repository, tmp_path: Path
) -> None:
    # As if whoever cut it had not looked.
    put_run(repository, NOON)
    code, rows = verified(repository.root, tmp_path)
    assert code == 1
    assert {row["status"] for row in rows} == {"damaged"}
    assert "at byte 0" in str(rows[0]["reason"])


def test_batch_with_wrong_checksum_is_reported(repository: Repository, tmp_path: Path) -> None:
    written_backup = put_run(repository, NOON)
    partition = written_backup.partitions[0]
    first = msgspec.structs.replace(partition.chunks[0], crc32=1)
    altered = msgspec.structs.replace(partition, chunks=(first, *partition.chunks[1:]))
    repository.put_manifest(
        msgspec.structs.replace(
            written_backup, backup_id=backup_id_at(NOON + 1), partitions=(altered,)
        )
    )
    code, rows = verified(repository.root, tmp_path, "--backup", backup_id_at(NOON + 1))
    assert code == 1
    assert (rows[0]["status"], rows[0]["expected"]) == ("altered", "00000001")


def test_single_backup_is_verified(repository: Repository, tmp_path: Path) -> None:
    put_run(repository, NOON)
    put_run(repository, NOON + 1)
    _, rows = verified(repository.root, tmp_path, "--backup", backup_id_at(NOON))
    assert len(rows) == 2
    _, rows = verified(repository.root, tmp_path)
    assert sorted(str(row["backups"]) for row in rows) == ["1", "1", "2"]
    result = run_here("backups", "verify", repository.root, "--backup", "20200101T000000.000Z")
    assert result.returncode == 2


# -------------------------------------------------------------------------------------- expire


def random_runs(seed: int) -> list[str]:
    """Return runs at random times of some months."""
    draw = random.Random(seed)
    return sorted({backup_id_at(NOON - draw.randrange(150 * DAY_MS)) for _ in range(200)})


@pytest.mark.parametrize("seed", range(5))
def test_expiration_keeps_daily_weekly_and_monthly_backups(seed: int) -> None:
    runs = random_runs(seed)
    request = ExpireBackupsRequest(uri="unused", keep_last=3)
    kept_reasons = keep_reasons({run: backup_id_ms(run) for run in runs}, request)
    days = sorted({run[:8] for run in runs})
    expected = {*runs[-3:]}
    for day in days[-7:]:
        expected.add(max(run for run in runs if run[:8] == day))
    weeks: dict[tuple[int, int], str] = {}
    for run in runs:
        weeks[datetime.fromtimestamp(backup_id_ms(run) / 1000, UTC).isocalendar()[:2]] = run
    expected.update(weeks[week] for week in sorted(weeks)[-4:])
    months: dict[str, str] = {}
    for run in runs:
        months[run[:6]] = run
    expected.update(months[month] for month in sorted(months)[-12:])
    assert set(kept_reasons) == expected


def test_expiration_uses_the_day_of_the_capture(local: str) -> None:
    repository = open_repository(local)
    midnight = NOON + DAY_MS // 2
    evening, night, noon = midnight - 60_000, midnight + 20_000, midnight + DAY_MS // 2
    put_run(repository, evening - 60_000)
    put_run(repository, evening)
    put_run(repository, night, opened_ms=midnight - 10_000)
    put_run(repository, noon)
    none = ("--keep-last", 0, "--keep-weekly", 0, "--keep-monthly", 0)
    result = run_here("backups", "expire", local, *none, "--keep-daily", 2)
    assert result.returncode == 0, result.stderr
    assert list(repository.brokers_by_backup()) == [backup_id_at(evening), backup_id_at(noon)]


def test_expiration_keeps_the_newest_backup() -> None:
    runs = {run: backup_id_ms(run) for run in random_runs(1)}
    request = ExpireBackupsRequest(uri="unused", keep_last=0, **NEWEST_ONLY)
    kept_reasons = keep_reasons(runs, request)
    assert kept_reasons == {max(random_runs(1)): "the newest complete backup"}


def aged(root: str, seconds: float) -> None:
    """Make every object of a local repository older."""
    for folder, _, names in os.walk(root):
        for name in names:
            path = os.path.join(folder, name)
            moment = os.stat(path).st_mtime - seconds
            os.utime(path, (moment, moment))


@pytest.fixture
def local(tmp_path: Path) -> str:
    """A repository in a folder, whose objects can be made older."""
    return open_repository(str(tmp_path)).create(cluster_id_of(DUMP)).root


@pytest.fixture
def orphans(local: str) -> Manifest:
    """A run that was killed long ago, before its manifest was there, in that repository."""
    own_backup = put_run(open_repository(local), NOON - 2)
    delete_manifest(local, own_backup)
    aged(local, 3 * rules.SPARED_S)
    return own_backup


def restore_objects(repository: Repository, manifest: Manifest) -> None:
    """Put the objects of a run again."""
    partition = manifest.partitions[0]
    for chunk, data in zip(partition.chunks, data_of(NOON - 2), strict=True):
        assert repository.put(f"{partition.folder}/{chunk.object_name}", data)


def test_expired_backup_is_unlisted_at_once_and_its_objects_deleted_a_day_later(local: str) -> None:
    root, repository = local, open_repository(local)
    for hours in (3, 2, 1):
        put_run(repository, NOON - hours * 3_600_000)
    repository.put("data/t-0-AAAAAAAAAAAAAAAAAAAAAQ/orphan.log", b"of a killed run")
    aged(root, rules.SPARED_S + 60)
    repository.put("data/t-0-AAAAAAAAAAAAAAAAAAAAAQ/young.log", b"of a run under way")
    before = sorted(below(root, ""))

    dry = run_here("backups", "expire", root, "--keep-daily", 1, "--dry-run")
    assert "2 backups would be expired, 1 kept" in dry.stderr
    assert sorted(below(root, "")) == before

    result = run_here("backups", "expire", root, "--keep-daily", 1)
    assert result.returncode == 0
    assert "2 backups expired, 1 kept; 1 object of 15 B deleted" in result.stderr
    assert list(repository.brokers_by_backup()) == [backup_id_at(NOON - 3_600_000)]
    assert len(below(root, "expired")) == 2
    # Whoever reads an expired run reads on.
    old = f"backup:{root}@{backup_id_at(NOON - 3 * 3_600_000)}"
    assert store_of(kafka_index.open_backup(root).at()).list_directory(
        f"backup://{root}/@{backup_id_at(NOON - 3 * 3_600_000)}"
    )
    assert run_here("cat", "orders", "--input", old).returncode == 1  # they are no batches
    assert len(below(root, "data")) == 5

    aged(root, rules.LONGEST_BACKUP_S + 60)
    result = run_here("backups", "expire", root, "--keep-daily", 1)
    assert "0 backups expired, 1 kept; 2 objects of 32 B deleted" in result.stderr
    assert not below(root, "expired")
    assert len(below(root, "data")) == 3
    assert kafka_index.open_backup(root).counts["backups"] == 1
    aged(root, rules.SPARED_S)
    expire(root)
    assert len(below(root, "data")) == 2
    assert expire(root).deleted_objects == 0


def test_incomplete_backup_without_a_newer_complete_one_is_kept(repository: Repository) -> None:
    root = repository.root
    put_run(repository, NOON - 3 * DAY_MS, 1, (1, 2))
    put_run(repository, NOON - 2 * DAY_MS, 1, (1, 2))
    put_run(repository, NOON - 2 * DAY_MS, 2, (1, 2))
    put_run(repository, NOON - 1 * DAY_MS, 3, (1, 2, 3))
    put_run(repository, NOON, 1, (1, 2))
    result = expire(root, **NEWEST_ONLY)
    status = {str(row["backup_id"]): row["status"] for row in result.to_arrow().to_pylist()}
    assert status == {
        backup_id_at(NOON - 3 * DAY_MS): "expired",
        backup_id_at(NOON - 2 * DAY_MS): "kept",
        backup_id_at(NOON - DAY_MS): "kept",
        backup_id_at(NOON): "kept",
    }
    assert [run for run in repository.brokers_by_backup() if status[run] == "expired"] == []


def test_objects_of_a_running_backup_survive_concurrent_expiration(local: str) -> None:
    root = local
    own_backup = put_run(open_repository(root), NOON - 2)
    aged(root, 3 * rules.SPARED_S)
    slow = open_repository(root)
    assert slow.newest(1) == own_backup
    put_run(open_repository(root), NOON - 1)
    for _ in range(2):
        expire(root, **NEWEST_ONLY)
    assert list(open_repository(root).brokers_by_backup()) == [backup_id_at(NOON - 1)]
    slow.put_manifest(msgspec.structs.replace(own_backup, backup_id=backup_id_at(NOON)))
    expire(root, **NEWEST_ONLY)
    assert run_here("backups", "verify", root, "--sample", 0).returncode == 0
    assert len(below(root, "data")) == 3


def test_reused_old_object_is_kept(local: str, orphans: Manifest) -> None:
    reopened = open_repository(local)
    assert reopened.newest(1) is None
    folder = orphans.partitions[0].folder
    assert reopened.list_reusable_names(folder) == set()
    restore_objects(reopened, orphans)
    assert expire(local).deleted_objects == 0
    assert len(reopened.list_reusable_names(folder)) == 2


def test_backup_fails_if_a_reused_object_is_deleted_concurrently(
    local: str, orphans: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, manifest = local, orphans
    monkeypatch.setattr(rules, "SETTLED_S", 0.1)
    killed, reopened = open_repository(root), open_repository(root)
    folder = manifest.partitions[0].folder
    path = f"{folder}/{manifest.partitions[0].chunks[0].object_name}"
    store = type(store_of(root))
    original_delete = store.delete

    def put_again_first(self: object, paths: list[str]) -> None:
        # An expiring has looked, and has not deleted yet. The run that puts it again is killed, and
        # the next one finds a young object.
        if f"{root}/{path}" in paths:
            killed.put(path, b"of all runs")
            assert path.rpartition("/")[2] in reopened.list_reusable_names(folder)
        original_delete(self, paths)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(store, "delete", put_again_first)
        assert expire(root).deleted_objects == 2
    for opened_repository in (killed, reopened):
        with pytest.raises(PublishError, match="an object of this backup"):
            opened_repository.put_manifest(manifest)
    assert list(reopened.brokers_by_backup()) == []


def test_slow_expiration_keeps_objects_young_at_its_start(
    local: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = local
    own_backup = put_run(open_repository(root), NOON - 2)
    path = manifest_path(root, own_backup.backup_id, 1)
    data = store_of(root).read(path)
    delete_manifest(root, own_backup)
    aged(root, rules.SPARED_S - 60)
    listings = iter(range(9))
    brokers_by_backup = Repository.brokers_by_backup

    def then_wait(self: Repository, folder: str = BACKUPS_FOLDER) -> dict[str, tuple[int, ...]]:
        result = brokers_by_backup(self, folder)
        if folder == BACKUPS_FOLDER and next(listings) == 1:
            store_of(root).put(path, data)
            now = now_ms() + 120_000
            monkeypatch.setattr(backups, "now_ms", lambda: now)
        return result

    monkeypatch.setattr(Repository, "brokers_by_backup", then_wait)
    assert expire(root).deleted_objects == 0


def test_object_reused_before_its_deletion_is_kept(
    local: str, orphans: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    reopened = open_repository(local)
    announce = Repository.announce

    def commit_first(self: Repository, names: Mapping[str, Iterable[str]]) -> None:
        # An expiring has found old objects, and has not announced them yet.
        monkeypatch.undo()
        restore_objects(reopened, orphans)
        reopened.put_manifest(orphans)
        announce(self, names)

    monkeypatch.setattr(Repository, "announce", commit_first)
    assert expire(local).deleted_objects == 0
    assert run_here("backups", "verify", local, "--sample", 0).returncode == 0


def test_killed_expiration_does_not_shorten_the_grace_period(local: str) -> None:
    root = local
    put_run(open_repository(root), NOON - 2)
    put_run(open_repository(root), NOON - 1)
    # It has put the manifest there, and not deleted it here.
    open_repository(root).expire(backup_id_at(NOON - 2), 1)
    aged(root, 3 * rules.SPARED_S)
    reading = f"backup:{root}@{backup_id_at(NOON - 2)}"
    for _ in range(2):
        actual = expire(root, **NEWEST_ONLY)
        assert (actual.deleted_objects, actual.waiting_manifests) == (0, 1)
        assert run_here("cat", "orders", "--input", reading).returncode == 1  # no batches
    aged(root, rules.LONGEST_BACKUP_S + 60)
    assert expire(root).deleted_objects == 1
    result = run_here("cat", "orders", "--input", reading)
    assert f"the repository has no backup {backup_id_at(NOON - 2)}" in result.stderr


@pytest.mark.parametrize("was_killed_before", [False, True])
def test_object_moved_by_a_concurrent_expiration_is_kept(
    local: str, monkeypatch: pytest.MonkeyPatch, *, was_killed_before: bool
) -> None:
    root = local
    put_run(open_repository(root), NOON - 2)
    put_run(open_repository(root), NOON - 1)
    if was_killed_before:
        open_repository(root).expire(backup_id_at(NOON - 2), 1)
    aged(root, 3 * rules.SPARED_S)
    listings = iter(range(9))
    brokers_by_backup = Repository.brokers_by_backup

    def after_another(self: Repository, folder: str = BACKUPS_FOLDER) -> dict[str, tuple[int, ...]]:
        # It has listed what has expired, and lists the runs now.
        if folder == BACKUPS_FOLDER and next(listings) == 1:
            monkeypatch.undo()
            result = expire(root, **NEWEST_ONLY)
            assert result.counts["expired"] == 1
        return brokers_by_backup(self, folder)

    monkeypatch.setattr(Repository, "brokers_by_backup", after_another)
    result = expire(root, keep_last=9)
    assert (result.deleted_objects, result.waiting_manifests) == (0, 1)
    assert len(below(root, "data")) == 3


# --------------------------------------------------------------------------------------- repair


@pytest.mark.parametrize("is_flipped", [True, False])
def test_next_backup_stores_marked_objects_again(
    root: str,
    tmp_path: Path,
    is_flipped: bool,  # noqa: FBT001
) -> None:
    data = copy_dump(tmp_path / "data", "payments-0", "__consumer_offsets-0")
    first = make_backup(root, data, time_ms=NOON)
    chunks = {
        f"{root}/{partition.folder}/{chunk.object_name}"
        for partition in first.partitions
        for chunk in (*partition.chunks[:1], *partition.chunks[-1:])
    }
    chunk_data = {path: store_of(root).read(path) for path in sorted(chunks)}
    for path, content in chunk_data.items():
        if is_flipped:
            store_of(root).put(path, bytes([content[0] ^ 1]) + content[1:])
        else:
            store_of(root).delete([path])
    make_backup(root, data, time_ms=NOON + 1)
    assert run_here("backups", "verify", root).returncode == 1
    assert not below(root, "damaged")
    assert run_here("backups", "verify", root, "--repair").returncode == 1
    assert len(below(root, "damaged")) == len(chunk_data)

    make_backup(root, data, time_ms=NOON + 2)
    assert {path: store_of(root).read(path) for path in chunk_data} == chunk_data
    assert not below(root, "damaged")
    result = run_here("backups", "verify", root)
    assert result.returncode == 0, result.stdout
    # Nothing is read again then.
    last = make_backup(root, data, time_ms=NOON + 3)
    assert last.new_bytes == 0


def test_damaged_object_without_a_log_stays_marked(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root = str(tmp_path / "repository")
    data = copy_dump(tmp_path / "data", "payments-0")
    (partition,) = make_backup(root, data, time_ms=NOON).partitions
    name = partition.chunks[0].object_name
    os.unlink(f"{root}/{partition.folder}/{name}")
    run_here("backups", "verify", root, "--repair")
    log = min((data / "payments-0").glob("*.log"))
    log.write_bytes(bytes(100) + log.read_bytes()[100:])
    make_backup(root, data, time_ms=NOON + 1)
    assert below(root, "damaged") == [f"{partition.folder.removeprefix('data/')}/{name}"]
    assert f"{name} cannot be stored again: its batches are not in the log" in caplog.text
    expire(root)
    assert below(root, "damaged")
