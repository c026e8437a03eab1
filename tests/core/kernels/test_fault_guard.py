"""Maps that lose pages: zeros and a note instead of the end of the process."""

from __future__ import annotations

import mmap
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from kafka_index.core.fs.local_store import MappedFile
from kafka_index.core.kernels.sigbus_guard import SigbusGuard

_REINSTALL = """
import faulthandler, os, sys
from kafka_index.core.fs.local_store import MappedFile
path = sys.argv[1]
MappedFile(path).close()
faulthandler.enable()
faulthandler.disable()
with MappedFile(path) as file:
    os.truncate(path, 0)
    print(int(file.array[5000]), file.faulted)
"""

_STRANGE = """
import mmap, os, sys
from kafka_index.core.fs.local_store import MappedFile
path = sys.argv[1]
with MappedFile(path), open(path, "r+b") as file:
    other = mmap.mmap(file.fileno(), 0)
    os.truncate(path, 0)
    print(other[5000])
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "mapped"
    path.write_bytes(b"\x01" * 100_000)
    return path


def run(program: str, path: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=False
    )


def test_pages_after_a_new_end_read_as_zeros_and_are_recorded(path: Path) -> None:
    with MappedFile(path) as file:
        assert not file.faulted
        with path.open("r+b") as other:
            other.truncate(8192)
        assert int(np.sum(file.array, dtype=np.int64)) == 8192
        assert file.faulted


def test_file_with_intact_pages_records_no_fault(path: Path) -> None:
    with MappedFile(path) as file:
        assert int(np.sum(file.array, dtype=np.int64)) == 100_000
        assert not file.faulted


def test_unreleased_map_records_no_faults_of_a_later_one(path: Path) -> None:
    with MappedFile(path) as file:
        # As an earlier map that was collected at this address leaves it.
        address = file.array.ctypes.data
        left = SigbusGuard(address - mmap.PAGESIZE, 2 * mmap.PAGESIZE)
        later = SigbusGuard(address, file.size_bytes)
        with path.open("r+b") as other:
            other.truncate(0)
        assert int(file.array[0]) == 0
        assert later.faulted
        assert not left.faulted
        later.release()


def test_release_of_a_guard_without_slot_keeps_the_slot_of_its_owner(path: Path) -> None:
    with MappedFile(path) as file:
        address = file.array.ctypes.data
        left = SigbusGuard(address, mmap.PAGESIZE)
        later = SigbusGuard(address, file.size_bytes)
        left.release()
        with path.open("r+b") as other:
            other.truncate(0)
        assert int(file.array[0]) == 0
        assert later.faulted
        assert later.drain_faults()[0].tolist() == [address]
        later.release()


def test_guard_is_reinstalled_after_a_replaced_signal_handler(path: Path) -> None:
    result = run(_REINSTALL, path)
    assert (result.returncode, result.stdout) == (0, "0 True\n"), result.stderr


def test_fault_in_a_foreign_map_ends_the_process(path: Path) -> None:
    assert run(_STRANGE, path).returncode < 0
