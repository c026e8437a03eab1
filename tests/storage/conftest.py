"""Builders for published files, and processes that really die."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from kafka_index.storage import (
    BuildRecord,
    PublishedFile,
    ScanSettings,
    SegmentCounts,
    SegmentPublication,
    StagedFile,
    record_path,
    scratch_path,
    write_scratch,
)

NOBODY = 65534
BASE = "00000000000000000005"


def record_of(files: dict[str, bytes], directory: Path) -> BuildRecord:
    """A build record of files that are written in a folder of their own to be digested."""
    published = []
    for name, data in files.items():
        path = directory / f"digest-{name}"
        path.write_bytes(data)
        published.append(PublishedFile.of(str(path), name))
        path.unlink()
    return BuildRecord(
        log_name=f"{BASE}.log",
        log_size_bytes=100,
        log_mtime_ns=7,
        settings=ScanSettings(4096, 10485760, verify_crc=True),
        status="built",
        reason=None,
        reason_code=None,
        position_bytes=None,
        counts=SegmentCounts(100, 3, 1, 2, 8, 99),
        files=tuple(published),
    )


def stage(
    directory: Path,
    content: bytes,
    *,
    base: str = BASE,
    attributes_of: Path | None = None,
    run_id: str = "run1",
) -> SegmentPublication:
    """Stage a time index, an index and a record that all say `content`."""
    directory.mkdir(parents=True, exist_ok=True)
    like = None if attributes_of is None else str(attributes_of)
    files = {f"{base}.timeindex": b"time " + content, f"{base}.index": b"offset " + content}

    def staged(final_path: str, data: bytes) -> StagedFile:
        scratch = scratch_path(final_path, run_id, "0")
        write_scratch(scratch, data, attributes_of=like)
        return StagedFile(scratch, final_path)

    record = record_of(files, directory)
    return SegmentPublication(
        tuple(staged(str(directory / name), data) for name, data in files.items()),
        staged(record_path(str(directory), int(base)), record.to_bytes()),
        like,
    )


def in_child(action: Callable[[], object]) -> int:
    """Run something in a forked child; its wait status (0: it returned)."""
    with warnings.catch_warnings():
        # Python 3.12 warns of threads, which other tests may have left; the child starts none.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        _run_and_exit(action)
    return os.waitpid(pid, 0)[1]


def _run_and_exit(action: Callable[[], object]) -> NoReturn:
    try:
        action()
    except BaseException as error:  # noqa: BLE001 - the exit code carries it
        os.write(2, f"{type(error).__name__}: {error}\n".encode())
        os._exit(1)
    os._exit(0)


def as_nobody(action: Callable[[], object]) -> int:
    """Run something in a child that has no privileges, whoever we are."""

    def unprivileged() -> None:
        if os.geteuid() == 0:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
        action()

    return in_child(unprivileged)


def open_to_all(directory: Path) -> None:
    """Let another user reach a test's folder: pytest keeps its own parents private."""
    while directory.stat().st_uid == os.geteuid() and directory != Path("/tmp"):  # noqa: S108
        directory.chmod(0o755)
        directory = directory.parent


LOCK_HOLDER = """
import fcntl, sys, time
file = open(sys.argv[1], "a+b")
fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
print("locked", flush=True)
time.sleep(600)
"""


@pytest.fixture
def hold_lock() -> Iterator[Callable[[Path], subprocess.Popen[bytes]]]:
    """Start another process that holds a lock file the way a broker does."""
    processes: list[subprocess.Popen[bytes]] = []

    def start(path: Path) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-c", LOCK_HOLDER, str(path)], stdout=subprocess.PIPE
        )
        processes.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == b"locked\n"
        return process

    yield start
    for process in processes:
        process.send_signal(signal.SIGKILL)
        process.communicate()
