"""Builds from bucket to bucket that are killed, interrupted, or whose input is replaced.

A proxy stands between them and the server, and acts at a request: at the same step of a build
however fast the machine is.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kafka_index.storage.partition_record import PARTITION_RECORD
from tests.servers.faults import FaultProxy, fault_proxy
from tests.servers.s3 import S3Server
from tests.support.builds import finish, start, with_rows
from tests.support.command_line import SETTINGS, TIMEOUT_SECONDS, Argument, copy_partitions
from tests.support.remote import download, new_bucket, upload
from tests.support.timeouts import wait_for

PARTITIONS = ("audit.trail-0", "orders.eu-west-0", "orders.eu-west-1", "payments-0", "payments-1")
DRAWS = 5
RECORDS = (".kafka-index", ".kafka-index-state")
RUNS = ".kafka-index/"
_Files = dict[str, bytes]


class _Stand:
    """A dump in a bucket, and a proxy on the way to it."""

    def __init__(self, proxy: FaultProxy, bucket: str, folder: Path) -> None:
        self.proxy = proxy
        self.bucket = bucket
        self.dump = f"{bucket}/dump"
        self._folder = folder
        self._passed = 0

    def options(self, output: str) -> list[Argument]:
        return ["--input", self.dump, "--output", f"{self.bucket}/{output}", "--config", SETTINGS]

    def start(self, output: str, *more: Argument) -> subprocess.Popen[str]:
        """Start a build by two threads, with a folder of its own for temporary files."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TMPDIR", str(self.temporary(output)))
            return start(*self.options(output), "--threads", 2, "--quiet", *more)

    def build(self, output: str, *more: Argument) -> subprocess.CompletedProcess[str]:
        return finish(self.start(output, *more))

    def temporary(self, output: str) -> Path:
        folder = self._folder / f"tmp-{output}"
        folder.mkdir(exist_ok=True)
        return folder

    def at(self, is_it: Callable[[str, str], bool], count: int, act: Callable[[], None]) -> None:
        """Act before a request is passed on: the n-th of its kind."""
        lock, left = threading.Lock(), count
        self._passed = len(self.proxy.requests)

        def before(method: str, path: str) -> None:
            nonlocal left
            with lock:
                self._passed += 1
                if is_it(method, path):
                    left -= 1
                    if left == 0:
                        act()

        self.proxy.before = before

    def settle(self) -> None:
        """Wait until the server has answered what a killed process has sent."""
        wait_for(lambda: len(self.proxy.requests) == self._passed, 10, "requests are answered")
        self.proxy.before = lambda _method, _path: None
        self.proxy.clear()


@pytest.fixture(scope="module")
def stand(s3: S3Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[_Stand]:
    folder = tmp_path_factory.mktemp("remote-kill")
    with (
        fault_proxy(s3.endpoint) as proxy,
        new_bucket(s3.through(proxy.endpoint)) as bucket,
    ):
        upload(copy_partitions(folder / "data", *PARTITIONS), f"{bucket}/dump")
        yield _Stand(proxy, bucket, folder)


@pytest.fixture(scope="module")
def undisturbed(stand: _Stand) -> tuple[_Files, int]:
    """What an undisturbed build publishes, and how many requests change something for that."""
    stand.proxy.clear()
    done = stand.build("undisturbed")
    assert done.returncode == 0, done.stderr
    changes = sum(_changes(each.method, each.path) for each in stand.proxy.requests)
    return published(download(f"{stand.bucket}/undisturbed")), changes


def _changes(method: str, _path: str) -> bool:
    return method in {"PUT", "POST", "DELETE"}


def published(files: _Files) -> _Files:
    return {
        name: data
        for name, data in files.items()
        if not name.endswith(RECORDS) and not name.startswith(RUNS)
    }


def _kill(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()


@pytest.mark.parametrize("draw", range(DRAWS))
def test_a_killed_build_is_mended_by_the_next(
    stand: _Stand, undisturbed: tuple[_Files, int], tmp_path: Path, draw: int
) -> None:
    expected, changes = undisturbed
    # One of each fifth: from the marker, which is put first, to its removal, which is last.
    count = random.Random(20261122 + draw).randrange(changes * draw // 5, changes * (draw + 1) // 5)
    output = f"killed-{draw}"
    started = threading.Event()
    processes: list[subprocess.Popen[str]] = []

    def kill() -> None:
        assert started.wait(TIMEOUT_SECONDS)
        _kill(processes[0])

    stand.at(_changes, 1 + count, kill)
    processes.append(stand.start(output))
    started.set()
    assert finish(processes[0]).returncode == -signal.SIGKILL
    stand.settle()

    left = download(f"{stand.bucket}/{output}")
    assert published(left).items() <= expected.items()
    finished = {os.path.dirname(name) for name in left if name.endswith(PARTITION_RECORD)}

    done, rows = with_rows(lambda *more: stand.build(output, *more), tmp_path)

    assert done.returncode == 0, done.stderr
    found = download(f"{stand.bucket}/{output}")
    assert published(found) == expected
    assert not [name for name in found if name.startswith(RUNS)]
    assert os.listdir(stand.temporary(output)) == []
    statuses = {(_partition_of(row["log_path"]), row["status"]) for row in rows}
    assert statuses == {
        (partition, "unchanged" if partition in finished else "built") for partition in PARTITIONS
    }
    read = {_partition_of(each.path) for each in stand.proxy.gets(".log")}
    assert read == set(PARTITIONS) - finished


def _partition_of(path: str) -> str:
    return os.path.basename(os.path.dirname(path))
