"""The lock object that excludes other runs from an output in an object store (real S3 server)."""

from __future__ import annotations

import json
import math
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kafka_index.core.errors import PublishError, is_retriable
from kafka_index.core.fs.registry import store_of
from kafka_index.core.fs.store import FileInfo, Store
from kafka_index.core.output import locks
from kafka_index.core.output.locks import StoreLock
from tests.servers.s3 import S3Server
from tests.support.remote import new_bucket
from tests.support.timeouts import wait_for

ELSEWHERE = "another-host.example"


@pytest.fixture
def root(s3: S3Server) -> Iterator[str]:
    with new_bucket(s3) as bucket:
        yield f"{bucket}/out"


@pytest.fixture(autouse=True)
def _no_silence_suffices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Markers are polled often, and taken for abandoned only where a test says when."""
    monkeypatch.setattr(locks, "_POLL_SECONDS", 0.01)
    monkeypatch.setattr(locks, "_ABANDONED_SECONDS", math.inf)


@pytest.fixture
def _refreshed_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "_REFRESH_SECONDS", 0.02)


def lock_object(root: str) -> dict[str, Any] | None:
    path = f"{root}/.kafka-index/lock"
    try:
        fields: dict[str, Any] = json.loads(store_of(path).read(path))
    except FileNotFoundError:
        return None
    return fields


def run_of(root: str) -> object:
    """The run ID in the lock object."""
    return (lock_object(root) or {}).get("run")


def put_lock_object(root: str, **fields: object) -> None:
    path = f"{root}/.kafka-index/lock"
    store_of(path).put(path, json.dumps(fields).encode())


def put_local_lock_object(root: str, **fields: object) -> None:
    """Put a lock object as a run of this machine does, but for some fields."""
    ours: dict[str, object] = json.loads(StoreLock(root, "theirs")._lock_object_content())
    put_lock_object(root, **(ours | fields))


def ended_process() -> int:
    result = subprocess.Popen([sys.executable, "-c", ""])
    result.wait()
    return result.pid


def test_lock_object_identifies_its_run_until_the_run_ends(root: str) -> None:
    with StoreLock(root, "ours"):
        result = lock_object(root)
        assert result is not None
        assert result["run"] == "ours"
        assert (result["host"], result["process"]) == (socket.gethostname(), os.getpid())
    assert lock_object(root) is None


def test_failed_run_removes_its_lock_object(root: str) -> None:
    with pytest.raises(RuntimeError), StoreLock(root, "ours"):
        raise RuntimeError
    assert lock_object(root) is None


@pytest.mark.usefixtures("_refreshed_often")
def test_lock_object_of_a_running_run_excludes_other_runs(root: str) -> None:
    with StoreLock(root, "first"):
        with (
            pytest.raises(PublishError, match="another run is writing to this output") as raised,
            StoreLock(root, "second"),
        ):
            pytest.fail("two runs are in")
        assert raised.value.path == f"{root}/.kafka-index/lock"
        assert is_retriable(raised.value)
        assert run_of(root) == "first"


@pytest.mark.usefixtures("_refreshed_often")
def test_lock_object_is_refreshed_during_its_run(root: str) -> None:
    def count() -> int:
        result = lock_object(root)
        assert result is not None
        return int(result["count"])

    with StoreLock(root, "ours"):
        wait_for(lambda: count() >= 3, 10, "the lock object is written again twice")
    assert lock_object(root) is None


def test_each_output_has_its_own_lock_object(root: str) -> None:
    with StoreLock(root, "first"), StoreLock(f"{root}2", "second"):
        assert lock_object(root) != lock_object(f"{root}2")


def test_unchanged_lock_object_of_another_host_is_replaced_after_a_while(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "_ABANDONED_SECONDS", 0.3)
    # A process number says nothing about a process of another machine.
    put_lock_object(root, run="theirs", host=ELSEWHERE, process=ended_process(), count=7)
    began = time.monotonic()
    with StoreLock(root, "ours"):
        assert time.monotonic() - began >= 0.3
        assert run_of(root) == "ours"
    assert lock_object(root) is None


def test_lock_object_of_an_ended_process_of_this_host_is_replaced_at_once(root: str) -> None:
    put_local_lock_object(root, process=ended_process())
    with StoreLock(root, "ours"):
        assert run_of(root) == "ours"


@pytest.mark.parametrize("process", [os.getpid, os.getppid])
def test_lock_object_with_a_reused_process_number_is_replaced_at_once(
    root: str, process: Callable[[], int]
) -> None:
    put_local_lock_object(root, process=process(), started=1)
    with StoreLock(root, "ours"):
        assert run_of(root) == "ours"


@pytest.mark.parametrize("field", ["boot", "pid_namespace"])
@pytest.mark.parametrize("other", ["another", None])
def test_lock_object_of_another_process_table_is_replaced_after_a_while(
    root: str, field: str, other: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "_ABANDONED_SECONDS", 0.3)
    put_local_lock_object(root, process=ended_process(), **{field: other})
    began = time.monotonic()
    with StoreLock(root, "ours"):
        assert time.monotonic() - began >= 0.3


_HOLD = """
import sys
from kafka_index.core.output.locks import StoreLock
with StoreLock(sys.argv[1], "theirs"):
    print("in", flush=True)
    sys.stdin.read()
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="a PID namespace is made by root")
def test_run_in_another_pid_namespace_of_this_host_is_detected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This namespace does not have its process number, or has it for another process."""
    monkeypatch.setattr(locks, "_ABANDONED_SECONDS", 0.5)
    with subprocess.Popen(
        ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", _HOLD, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as theirs:
        assert theirs.stdin is not None
        assert theirs.stdout is not None
        assert theirs.stdout.readline() == "in\n"
        result = lock_object(str(tmp_path))
        assert result is not None
        assert result["process"] == 1
        # No process of this namespace has its number and start: only its silence lets others in.
        put_lock_object(str(tmp_path), **(result | {"process": ended_process()}))
        began = time.monotonic()
        with StoreLock(str(tmp_path), "ours"):
            assert time.monotonic() - began >= 0.5
        theirs.stdin.close()


@pytest.mark.parametrize("runs", [2, 8])
def test_one_of_concurrent_runs_replaces_an_abandoned_lock_object(root: str, runs: int) -> None:
    put_local_lock_object(root, process=ended_process())
    seen = threading.Barrier(runs)
    result = threading.Barrier(runs)
    entered: list[str] = []
    kept_out: list[str] = []

    class Eager(StoreLock):
        """Has watched the lock object for long enough when all others have."""

        def _wait_until_abandoned(self, store: Store) -> FileInfo | None:
            if self._is_first:
                self._is_first = False
                info = store.info(self.path)
                seen.wait()
                return info
            raise self._locked_error("another run is writing to this output")

        _is_first = True

    def enter(number: int) -> None:
        try:
            with Eager(root, f"run{number}"):
                entered.append(f"run{number}")
                result.wait()
        except PublishError as error:
            kept_out.append(error.message)
            result.wait()

    threads = [threading.Thread(target=enter, args=[number]) for number in range(runs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert (len(entered), len(kept_out)) == (1, runs - 1)
    assert lock_object(root) is None


def test_claim_of_a_killed_run_is_reported_with_a_hint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stores without conditional writes, such as HDFS and the local disk, have claims."""
    monkeypatch.setattr(locks, "_MAX_REPLACEMENTS", 2)
    local = str(tmp_path)
    put_local_lock_object(local, process=ended_process())
    claim = tmp_path / ".kafka-index" / "lock.claim"
    claim.touch()
    with pytest.raises(PublishError, match="delete the file") as raised, StoreLock(local, "ours"):
        pytest.fail("two runs are in")
    assert raised.value.path == str(claim)
    claim.unlink()
    with StoreLock(local, "ours"):
        pass


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"{}"])
def test_malformed_lock_object_is_replaced_after_a_while(
    root: str, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "_ABANDONED_SECONDS", 0.1)
    path = f"{root}/.kafka-index/lock"
    store_of(path).put(path, content)
    with StoreLock(root, "ours"):
        assert run_of(root) == "ours"


def test_lock_object_deleted_while_it_is_watched_admits_the_run(root: str) -> None:
    put_lock_object(root, run="theirs", host=ELSEWHERE, process=1, count=7)
    path = f"{root}/.kafka-index/lock"
    end = threading.Timer(0.1, store_of(path).delete, [[path]])
    end.start()
    with StoreLock(root, "ours"):
        assert run_of(root) == "ours"
    end.join()


@pytest.mark.usefixtures("_refreshed_often")
def test_run_does_not_remove_the_lock_object_that_replaced_its_own(
    root: str, caplog: pytest.LogCaptureFixture
) -> None:
    theirs = {"run": "theirs", "host": ELSEWHERE, "process": 1, "count": 1}
    with StoreLock(root, "ours"):
        # A refresh that is under way may come after it; the next one finds the other's.
        def is_noticed() -> bool:
            if not caplog.messages:
                put_lock_object(root, **theirs)
            return bool(caplog.messages)

        wait_for(is_noticed, 10, "the run notices that it was taken over")
        put_lock_object(root, **theirs)
    assert "another run took over the output" in caplog.messages[0]
    assert lock_object(root) == theirs
