"""Locks, against other processes that really hold them."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest

from kafka_index.core.errors import PublishError
from kafka_index.core.output.locks import OUTPUT_LOCK, PROBE_FILE, DirectoryLock
from tests.support.child_processes import NOBODY, allow_other_users, run_in_child, run_unprivileged

HoldLock = Callable[[Path], subprocess.Popen[bytes]]


def try_lock(path: Path) -> None:
    """Lock a directory as a broker does at its start."""
    with path.open("a+b") as file:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_running_broker_excludes_a_run_in_place(tmp_path: Path, hold_lock: HoldLock) -> None:
    hold_lock(tmp_path / ".lock")
    lock = DirectoryLock.for_data_directories([str(tmp_path)])
    with pytest.raises(PublishError, match=r"/\.lock: a broker or another run has locked"):
        lock.__enter__()
    assert os.listdir(tmp_path) == [".lock"]


def test_run_in_place_excludes_a_starting_broker(tmp_path: Path) -> None:
    with DirectoryLock.for_data_directories([str(tmp_path)]):
        assert run_in_child(lambda: try_lock(tmp_path / ".lock")) != 0
    assert run_in_child(lambda: try_lock(tmp_path / ".lock")) == 0


def test_own_lock_file_is_removed_at_the_end(tmp_path: Path) -> None:
    with DirectoryLock.for_data_directories([str(tmp_path)]):
        assert os.listdir(tmp_path) == [".lock"]
    assert os.listdir(tmp_path) == []


def test_lock_file_of_a_broker_stays(tmp_path: Path) -> None:
    (tmp_path / ".lock").touch()
    with DirectoryLock.for_data_directories([str(tmp_path)]):
        pass
    assert os.listdir(tmp_path) == [".lock"]


@pytest.mark.parametrize("name", [".lock", OUTPUT_LOCK])
def test_lock_file_of_a_killed_run_is_removed_by_the_next_run(tmp_path: Path, name: str) -> None:
    def take_and_die() -> None:
        DirectoryLock([str(tmp_path)], file_name=name).__enter__()
        os.kill(os.getpid(), signal.SIGKILL)

    assert run_in_child(take_and_die) == signal.SIGKILL
    assert os.listdir(tmp_path) == [name]
    with DirectoryLock([str(tmp_path)], file_name=name):
        assert os.listdir(tmp_path) == [name]
    assert os.listdir(tmp_path) == []


def test_run_killed_while_locking_leaves_no_lock_file_that_may_be_a_brokers(tmp_path: Path) -> None:
    for step in range(100):

        def lock_and_die(step: int = step) -> None:
            calls = count()

            def kill(_name: str, given: tuple[object, ...]) -> None:
                if str(tmp_path) in str(given) and next(calls) == step:
                    os.kill(os.getpid(), signal.SIGKILL)

            sys.addaudithook(kill)
            DirectoryLock.for_data_directories([str(tmp_path)]).__enter__()

        if run_in_child(lock_and_die) == 0:
            assert step > 3
            return
        if (tmp_path / ".lock").exists():
            assert (tmp_path / ".lock").read_bytes() == b"kafka-index\n"
        with DirectoryLock.for_data_directories([str(tmp_path)]):
            pass
        assert os.listdir(tmp_path) == [], step
    pytest.fail("each run was killed")


@pytest.mark.parametrize("name", [".lock", OUTPUT_LOCK])
def test_probe_file_of_a_killed_spark_run_is_removed_with_the_lock(
    tmp_path: Path, name: str
) -> None:
    (tmp_path / PROBE_FILE.format(run_id="0" * 16)).touch()
    (tmp_path / ".kafka-index.shared").touch()
    with DirectoryLock([str(tmp_path)], file_name=name):
        assert {*os.listdir(tmp_path)} == {name, ".kafka-index.shared"}


def refuse_link(_source: str, target: str) -> None:
    """Fail as on a file system without hard links."""
    raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), target)


def test_directory_of_a_file_system_without_links_is_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "link", refuse_link)
    with DirectoryLock.for_data_directories([str(tmp_path)]):
        assert os.listdir(tmp_path) == [".lock"]
        assert run_in_child(lambda: try_lock(tmp_path / ".lock")) != 0
    assert os.listdir(tmp_path) == []


def test_lock_of_a_killed_broker_can_be_acquired(tmp_path: Path, hold_lock: HoldLock) -> None:
    broker = hold_lock(tmp_path / ".lock")
    broker.kill()
    broker.wait()
    with DirectoryLock.for_data_directories([str(tmp_path)]):
        pass


def test_all_directories_are_locked_or_none(tmp_path: Path, hold_lock: HoldLock) -> None:
    for name in "abc":
        (tmp_path / name).mkdir()
    hold_lock(tmp_path / "c" / ".lock")
    with pytest.raises(PublishError):
        DirectoryLock.for_data_directories([str(tmp_path / name) for name in "abc"]).__enter__()
    assert os.listdir(tmp_path / "a") == []
    with DirectoryLock.for_data_directories([str(tmp_path / "a"), str(tmp_path / "b")]):
        pass


def test_directory_given_twice_is_locked_once(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "link").symlink_to("d")
    lock = DirectoryLock.for_data_directories([str(tmp_path / "d"), str(tmp_path / "link")])
    with lock:
        assert len(lock.paths) == 1
        assert run_in_child(lambda: try_lock(tmp_path / "d" / ".lock")) != 0


def test_second_lock_in_a_process_is_rejected_and_the_first_stays_locked(tmp_path: Path) -> None:
    with DirectoryLock.for_output(str(tmp_path)):
        with pytest.raises(PublishError, match="this process has already locked"):
            DirectoryLock.for_output(str(tmp_path)).__enter__()
        assert run_in_child(lambda: try_lock(tmp_path / ".kafka-index.lock")) != 0


def test_second_concurrent_run_into_an_output_is_rejected(
    tmp_path: Path, hold_lock: HoldLock
) -> None:
    hold_lock(tmp_path / ".kafka-index.lock")
    with pytest.raises(PublishError, match="another run has locked"):
        DirectoryLock.for_output(str(tmp_path)).__enter__()


def test_released_lock_can_be_acquired_again(tmp_path: Path) -> None:
    lock = DirectoryLock.for_output(str(tmp_path))
    for _ in range(2):
        with lock:
            assert run_in_child(lambda: try_lock(tmp_path / ".kafka-index.lock")) != 0


def test_missing_directory_cannot_be_locked(tmp_path: Path) -> None:
    with pytest.raises(PublishError, match="cannot lock the directory"):
        DirectoryLock.for_output(str(tmp_path / "gone")).__enter__()


def test_directory_of_another_user_cannot_be_locked(tmp_path: Path) -> None:
    allow_other_users(tmp_path)
    if os.geteuid() != 0:
        tmp_path.chmod(0o555)

    def lock() -> None:
        with pytest.raises(PublishError, match="no permission"):
            DirectoryLock.for_data_directories([str(tmp_path)]).__enter__()

    assert run_unprivileged(lock) == 0


def test_directory_that_cannot_be_listed_is_locked(tmp_path: Path) -> None:
    allow_other_users(tmp_path)
    tmp_path.chmod(0o333)

    def lock() -> None:
        with DirectoryLock.for_output(str(tmp_path)):
            assert run_in_child(lambda: try_lock(tmp_path / OUTPUT_LOCK)) != 0

    assert run_unprivileged(lock) == 0
    tmp_path.chmod(0o700)
    assert os.listdir(tmp_path) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a folder of another user")
@pytest.mark.parametrize("link", [os.link, refuse_link])
def test_lock_file_belongs_to_the_user_of_the_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, link: Callable[..., None]
) -> None:
    monkeypatch.setattr(os, "link", link)
    os.chown(tmp_path, NOBODY, NOBODY)
    with DirectoryLock.for_data_directories([str(tmp_path)]):
        assert (tmp_path / ".lock").stat().st_uid == NOBODY


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a folder append-only")
def test_lock_file_that_cannot_be_removed_is_a_warning_and_unlocked(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    if subprocess.run(["chattr", "+a", tmp_path], check=False, capture_output=True).returncode:
        pytest.skip("this file system knows no append-only folders")
    try:
        with DirectoryLock.for_output(str(tmp_path)):
            pass
        assert "cannot remove the lock file" in caplog.text
        with DirectoryLock.for_output(str(tmp_path)):
            assert run_in_child(lambda: try_lock(tmp_path / ".kafka-index.lock")) != 0
    finally:
        subprocess.run(["chattr", "-a", tmp_path], check=True)
