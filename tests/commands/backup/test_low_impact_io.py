"""Reads of a backup leave the cache, the disk and the processors to the broker."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kafka_index.commands.backup.low_impact_io import Bandwidth, LowImpactReader
from kafka_index.core.errors import InputError
from tests.support.page_cache import are_still_resident, evict, resident_pages

MIB = 1 << 20
SIZE = 8 * MIB


@pytest.fixture
def cold(disk_path: Path) -> Path:
    """A file that is not in memory."""
    path = disk_path / "0.log"
    path.write_bytes(os.urandom(SIZE))
    evict(path)
    return path


def read(path: Path, start: int, end: int, step: int = 300_000) -> bytes:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        data, buffer = b"", memoryview(bytearray(step))
        with LowImpactReader(descriptor, str(path), end, Bandwidth()) as file:
            while count := file.read_into(start + len(data), buffer):
                data += buffer[:count]
        return data
    finally:
        os.close(descriptor)


def test_pages_read_by_a_backup_leave_the_page_cache(cold: Path) -> None:
    with cold.open("rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        for position in (0, 3 * MIB, 5 * MIB):
            os.pread(file.fileno(), MIB // 4, position)
    before = resident_pages(cold)
    assert 0 < len(before) < SIZE // mmap.PAGESIZE // 2
    assert read(cold, 100_000, SIZE) == cold.read_bytes()[100_000:]
    with cold.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    with cold.open("rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        os.pread(file.fileno(), MIB, 2 * MIB)
    before = resident_pages(cold)
    read(cold, 0, SIZE)
    assert set(before).issuperset(resident_pages(cold))
    assert are_still_resident(before, cold)


def test_pages_cached_before_a_backup_stay_cached(cold: Path) -> None:
    content = cold.read_bytes()
    assert are_still_resident(range(SIZE // mmap.PAGESIZE), cold)
    assert read(cold, 5, SIZE - 5) == content[5:-5]
    assert are_still_resident(range(SIZE // mmap.PAGESIZE), cold)


def test_read_of_a_shrinking_file_ends_at_its_new_end(tmp_path: Path) -> None:
    path = tmp_path / "0.log"
    path.write_bytes(b"a" * 100_000)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        buffer = memoryview(bytearray(70_000))
        with LowImpactReader(descriptor, str(path), 100_000, Bandwidth()) as file:
            assert file.read_into(0, buffer) == 70_000
            os.truncate(path, 80_000)
            assert file.read_into(70_000, buffer) == 10_000
            assert file.read_into(80_000, buffer) == 0
    finally:
        os.close(descriptor)
    assert read(path, 80_000, 80_000) == b""


def test_failed_read_reports_file_and_position(tmp_path: Path) -> None:
    descriptor = os.open(tmp_path, os.O_RDONLY)
    try:
        with (
            LowImpactReader(descriptor, "a.log", 100, Bandwidth()) as file,
            pytest.raises(InputError, match=r"a.log: at byte 7: cannot read the file"),
        ):
            file.read_into(7, memoryview(bytearray(10)))
    finally:
        os.close(descriptor)


@pytest.mark.parametrize("read_bytes", [1, 1000, 64_000, 5_000_000])
def test_reads_are_limited_to_the_bandwidth(read_bytes: int) -> None:
    now, slept = 0.0, 0.0

    def sleep(seconds: float) -> None:
        nonlocal now, slept
        now += seconds
        slept += seconds

    bandwidth = Bandwidth(1_000_000, clock=lambda: now, sleep=sleep)
    for _ in range(10_000_000 // read_bytes if read_bytes > 1 else 1000):
        bandwidth.spend(read_bytes)
    total = 10.0 if read_bytes > 1 else 0.001
    assert now == pytest.approx(total, rel=0.02)
    now += 100.0
    slept = 0.0
    bandwidth.spend(200_000)
    assert slept == 0
    bandwidth.spend(1_000_000)
    assert slept == pytest.approx(0.95)


def test_reads_without_a_bandwidth_do_not_wait() -> None:
    bandwidth = Bandwidth(sleep=lambda _: pytest.fail("it waited"))
    bandwidth.spend(1 << 40)


@pytest.mark.skipif(sys.platform != "linux", reason="of Linux")
def test_idle_priority_applies_to_all_threads() -> None:
    program = """
import ctypes, os, platform, threading
from kafka_index.commands.backup.low_impact_io import idle_io_priority
get = {"x86_64": 252, "aarch64": 31}[platform.machine()]
def check():
    assert ctypes.CDLL(None).syscall(get, 1, 0) >> 13 == 3
    assert os.getpriority(os.PRIO_PROCESS, 0) == 19
    print("idle")
with idle_io_priority():
    check()
    thread = threading.Thread(target=check)
    thread.start()
    thread.join()
assert ctypes.CDLL(None).syscall(get, 1, 0) >> 13 != 3
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)  # noqa: PLW1510
    assert result.stdout == "idle\nidle\n", result.stderr
