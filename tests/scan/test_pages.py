"""Which pages of a log are read when checksums are not verified."""

from __future__ import annotations

import ctypes
import mmap
import os
from pathlib import Path

import numpy as np
import pytest

from tests.support.batch_sources import file_source, rows, write_log
from tests.support.segments import batch

PAGE = mmap.PAGESIZE
BATCH_BYTES = 1 << 20
BATCHES = 24


def resident_pages(path: Path) -> list[int]:
    """Numbers of the pages of a file that are in memory."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        mapped = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
    view = np.frombuffer(mapped, np.uint8)
    states = ctypes.create_string_buffer(-(-size // PAGE))
    assert libc.mincore(view.ctypes.data, size, states) == 0, os.strerror(ctypes.get_errno())
    del view
    mapped.close()
    return [page for page, state in enumerate(states.raw) if state & 1]


@pytest.fixture
def cold_log(tmp_path: Path) -> Path:
    """A log of large batches, on a disk and not in memory."""
    value = np.random.default_rng(1).bytes(BATCH_BYTES)
    path = write_log(tmp_path, b"".join(batch(at, 1, payload=value) for at in range(BATCHES)))
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return path


def test_without_checksums_only_the_pages_of_headers_are_read(cold_log: Path) -> None:
    assert resident_pages(cold_log) == []
    one = file_source(cold_log, verify_crc=False)
    positions = [row[0] for row in rows(one)]
    assert len(positions) == BATCHES
    headers = {at // PAGE for start in positions for at in (start, start + 60)}
    assert set(resident_pages(cold_log)) == headers


def test_with_checksums_all_pages_are_read(cold_log: Path) -> None:
    rows(file_source(cold_log))
    assert len(resident_pages(cold_log)) == -(-cold_log.stat().st_size // PAGE)
