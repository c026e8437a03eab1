"""Repositories of backups, in a local folder and in an object store."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kafka_index.core.errors import CorruptObjectError, InputError, PublishError
from kafka_index.core.fs import object_store
from kafka_index.core.fs.backup import repository
from kafka_index.core.fs.backup.manifest import Manifest, backup_id_at, manifest_path
from kafka_index.core.fs.backup.repository import (
    LONGEST_BACKUP_S,
    MissingManifestError,
    NotARepositoryError,
    Repository,
)
from kafka_index.core.fs.local_store import LocalStore
from kafka_index.core.fs.paths import open_repository
from kafka_index.core.fs.registry import store_of
from tests.commands.backup.test_manifest import manifest
from tests.support.command_line import DUMP, run_here

FOLDER = "data/orders-0-AAAAAAAAAAAAAAAAAAAAAQ"


@pytest.fixture(params=["local", "s3"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A place for a repository."""
    if request.param == "local":
        return str(tmp_path / "repo")
    return f"{request.getfixturevalue('bucket')}/backups/kafka"


def of_run(time_ms: int, node_id: int = 1, brokers: tuple[int, ...] = (1,)) -> Manifest:
    """Return a manifest of a run."""
    changes = {"backup_id": backup_id_at(time_ms), "node_id": node_id, "brokers": brokers}
    return msgspec.structs.replace(manifest(), **changes)


def test_second_creation_of_a_repository_keeps_the_first(root: str) -> None:
    open_repository(root).create("cluster", (1, 2))
    assert open_repository(root).create("cluster").file().brokers == (1, 2)
    with pytest.raises(InputError, match=r"to another cluster.*expected other, found cluster"):
        open_repository(root).create("other")
    below = [path for page in store_of(root).list_tree(root) for path in page["path"].to_pylist()]
    assert below == ["kafka-index-backup.json"]


def test_folder_that_is_not_a_repository_is_rejected(root: str) -> None:
    with pytest.raises(NotARepositoryError, match=r"kafka-index-backup\.json does not exist"):
        open_repository(root).file()


def test_file_in_place_of_a_repository_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    result = run_here("backup", "--input", DUMP, "--output", tmp_path / "file")
    assert result.returncode == 2
    assert "the repository is a file" in result.stderr


def test_store_without_conditional_puts_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def overwrite(_: LocalStore, path: str, data: bytes, **__: bool) -> bool:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        Path(path).write_bytes(data)
        return True

    monkeypatch.setattr(LocalStore, "put", overwrite)
    with pytest.raises(InputError, match="does not support conditional writes") as raised:
        open_repository(str(tmp_path / "repo")).create("cluster")
    assert raised.value.path == str(tmp_path / "repo")
    assert os.listdir(tmp_path / "repo") == []


def test_repository_lists_backups_with_their_manifests(root: str) -> None:
    result = open_repository(root).create("cluster")
    assert list(result.brokers_by_backup()) == []
    assert result.newest(1) is None
    assert result.newest_complete() is None
    for time_ms, node_id in ((2_000, 1), (1_000, 1), (1_000, 2), (2_500, 2)):
        result.put_manifest(of_run(time_ms, node_id, (1, 2)))
    # As when a run is opened, and no broker is done.
    result.put(f"runs/{backup_id_at(3_000)}/1.cut", b"")
    assert list(result.brokers_by_backup()) == [
        backup_id_at(opened_ms) for opened_ms in (1_000, 2_000, 2_500, 3_000)
    ]
    assert result.list_brokers(backup_id_at(1_000)) == (1, 2)
    assert result.list_brokers(backup_id_at(3_000)) == ()
    assert result.manifest(backup_id_at(1_000), 2) == of_run(1_000, 2, (1, 2))
    assert result.newest(1) == of_run(2_000, 1, (1, 2))
    assert result.newest_complete() == backup_id_at(1_000)
    result.put_manifest(of_run(2_000, 2, (1, 2)))
    assert result.newest_complete() == backup_id_at(2_000)
    assert result.newest_complete(1_999) == backup_id_at(1_000)
    assert result.newest_complete(999) is None
    with pytest.raises(MissingManifestError, match="no manifest of broker 7"):
        result.manifest(backup_id_at(1_000), 7)


def test_backup_selected_by_time_uses_the_capture_time(root: str) -> None:
    result = open_repository(root).create("cluster")
    result.put_manifest(of_run(1_000))
    # Opened before the time, and cut by the last of its brokers after it.
    for node_id, begun_ms in ((1, 5_000), (2, 62_000)):
        cut = msgspec.structs.replace(manifest().capture, begun_ms=begun_ms)
        broker_manifest = msgspec.structs.replace(of_run(2_000, node_id, (1, 2)), capture=cut)
        result.put_manifest(broker_manifest)
    assert result.newest_complete(61_999) == backup_id_at(1_000)
    assert result.newest_complete(62_000) == backup_id_at(2_000)
    assert result.find_backup("ms:61999") == backup_id_at(1_000)
    assert result.find_backup("ms:62000") == backup_id_at(2_000)


def test_manifest_is_never_overwritten(root: str) -> None:
    result = open_repository(root).create("cluster")
    result.put_manifest(of_run(1_000))
    result.put_manifest(of_run(1_000))
    with pytest.raises(PublishError, match="already has a manifest of this broker"):
        result.put_manifest(of_run(1_000, brokers=(1, 2)))


def test_manifest_under_another_name_is_damage(root: str) -> None:
    result = open_repository(root).create("cluster")
    result.put_manifest(of_run(1_000))
    path = manifest_path(result.root, backup_id_at(1_000), 1)
    other_path = manifest_path(result.root, backup_id_at(1_000), 2)
    store_of(root).put(other_path, store_of(root).read(path))
    with pytest.raises(CorruptObjectError, match="belongs to another"):
        result.manifest(backup_id_at(1_000), 2)


def test_put_writes_an_object_only_if_it_is_missing(root: str) -> None:
    result = open_repository(root).create("cluster")
    assert result.list_reusable_names(FOLDER) == set()
    assert result.put(f"{FOLDER}/a.log", b"batches")
    assert result.put(f"{FOLDER}/a.log", memoryview(b"batches"))
    assert not result.put(f"{FOLDER}/a.log", b"others!")
    assert not result.put(f"{FOLDER}/a.log", b"longer than it")
    assert store_of(root).read(f"{result.root}/{FOLDER}/a.log") == b"batches"
    assert result.list_reusable_names(FOLDER) == {"a.log"}


def test_link_in_a_repository_is_not_followed(tmp_path: Path) -> None:
    root, elsewhere = tmp_path / "repository", tmp_path / "elsewhere"
    result = open_repository(str(root)).create("cluster")
    result.put(f"{FOLDER}/a.log", b"batches")
    elsewhere.mkdir()
    for name, target in (("b.log", tmp_path / "gone"), ("folder", elsewhere)):
        (root / FOLDER / name).symlink_to(target)
        path = f"{FOLDER}/{name}" if name == "b.log" else f"{FOLDER}/{name}/c.log"
        with pytest.raises(CorruptObjectError, match="a link in a repository is not followed"):
            result.put(path, b"batches")
    assert result.list_reusable_names(FOLDER) == {"a.log"}
    assert not [*elsewhere.iterdir()]


def test_concurrent_writers_of_one_object_succeed(root: str) -> None:
    result = open_repository(root).create("cluster")
    data = os.urandom(1 << 20)
    put: list[bool] = []
    threads = [
        threading.Thread(target=lambda: put.append(result.put(f"{FOLDER}/a.log", data)))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert put == [True] * 8
    assert result.list_reusable_names(FOLDER) == {"a.log"}


def test_old_unreferenced_object_is_written_again(tmp_path: Path) -> None:
    result = open_repository(str(tmp_path)).create("cluster")
    referenced_name = manifest().partitions[0].chunks[0].object_name
    for name in (referenced_name, "old.log", "new.log"):
        result.put(f"{FOLDER}/{name}", b"batches")
    old = time.time() - LONGEST_BACKUP_S - 60
    for name in (referenced_name, "old.log"):
        os.utime(tmp_path / FOLDER / name, (old, old))
    result.put_manifest(of_run(1_000))

    result = open_repository(str(tmp_path))
    assert result.list_reusable_names(FOLDER) == {"new.log"}
    result.newest(1)
    assert result.list_reusable_names(FOLDER) == {"new.log", referenced_name}
    for name in ("old.log", referenced_name):
        assert result.put(f"{FOLDER}/{name}", b"batches")
    assert result.list_reusable_names(FOLDER) == {"new.log", referenced_name, "old.log"}
    assert (tmp_path / FOLDER / "old.log").stat().st_mtime > time.time() - 60
    assert (tmp_path / FOLDER / referenced_name).stat().st_mtime == old


def test_old_object_is_written_again_before_any_expiration(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_repository(root).create("cluster").put(f"{FOLDER}/old.log", b"batches")
    now = time.time()
    monkeypatch.setattr(repository, "now_ms", lambda: int((now + LONGEST_BACKUP_S) * 1000))
    # What was written an hour ago is not that of a request without an answer.
    monkeypatch.setattr(object_store, "JUST_WRITTEN_S", -1)
    put: list[bool] = []
    store = type(store_of(root))
    original_put = store.put

    def counted(self: Any, path: str, data: bytes, *, if_absent: bool = False) -> bool:
        put.append(if_absent)
        return original_put(self, path, data, if_absent=if_absent)

    monkeypatch.setattr(store, "put", counted)
    result = open_repository(root)
    assert result.put(f"{FOLDER}/old.log", b"batches")
    assert put == [True, False]
    assert not result.put(f"{FOLDER}/old.log", b"others!")
    assert store_of(root).read(f"{root}/{FOLDER}/old.log") == b"batches"


def named_object(repository: Repository) -> str:
    """Put the objects of the manifest of these tests; return the path of one."""
    for chunk in manifest().partitions[0].chunks:
        repository.put(f"{FOLDER}/{chunk.object_name}", b"batches")
    return f"{FOLDER}/{manifest().partitions[0].chunks[0].object_name}"


def test_announced_objects_are_checked_before_the_manifest_is_written(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repository, "SETTLED_S", 0.5)
    result = open_repository(root).create("cluster")
    path = named_object(result)
    folder, _, name = path.rpartition("/")
    open_repository(root).announce({folder: ["another.log"], "data/other-0-x": [name]})
    begun = time.monotonic()
    result.put_manifest(of_run(1_000))
    assert time.monotonic() - begun < 0.5

    open_repository(root).announce({folder: [name]})
    result.put(path, b"batches")
    begun = time.monotonic()
    result.put_manifest(of_run(2_000))
    assert time.monotonic() - begun > 0.4

    store_of(root).delete([f"{root}/{path}"])
    with pytest.raises(PublishError, match="an object of this backup"):
        result.put_manifest(of_run(3_000))
    # What a manifest names that is counted on is not deleted.
    result.newest(1)
    result.put_manifest(of_run(4_000))
    assert list(result.brokers_by_backup()) == [
        backup_id_at(1_000),
        backup_id_at(2_000),
        backup_id_at(4_000),
    ]


def test_damaged_announcement_is_reported(root: str) -> None:
    result = open_repository(root).create("cluster")
    result.put("announced/a.json.zst", b"no such thing")
    with pytest.raises(CorruptObjectError, match="the announcement is malformed"):
        result.put_manifest(of_run(1_000))


def test_long_backup_checks_all_reused_objects(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def passed(hours: float) -> None:
        monkeypatch.setattr(repository, "now_ms", lambda: int((now + hours * 3600) * 1000))

    now = time.time()
    result = open_repository(root).create("cluster")
    path = named_object(result)
    passed(46)
    result.put_manifest(of_run(1_000))
    passed(47.1)
    with pytest.raises(PublishError, match="is about to"):
        result.put_manifest(of_run(2_000))
    passed(0)
    slow = open_repository(root)
    assert slow.newest(1) == of_run(1_000)
    store_of(root).delete([f"{root}/{path}"])  # of no interest: the manifest of before names it
    passed(46)
    slow.put_manifest(of_run(3_000))
    open_repository(root).expire(backup_id_at(1_000), 1)
    store_of(root).delete([manifest_path(root, backup_id_at(1_000), 1)])
    with pytest.raises(PublishError, match="expired while the new backup was reusing"):
        slow.put_manifest(of_run(4_000))
    passed(0)
    slow.put_manifest(of_run(5_000))


def test_newest_backup_is_found_during_concurrent_expiration(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = open_repository(root).create("cluster")
    result.put_manifest(of_run(1_000))
    original_manifest = Repository.manifest

    def later(self: Repository, run: str, node_id: int) -> Manifest:
        monkeypatch.undo()
        result.put_manifest(of_run(2_000))
        store_of(root).delete([manifest_path(root, backup_id_at(1_000), 1)])
        return original_manifest(self, run, node_id)

    monkeypatch.setattr(Repository, "manifest", later)
    assert result.find_backup() == backup_id_at(2_000)
