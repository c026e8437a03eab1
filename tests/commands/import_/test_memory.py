"""The memory of a rewrite that leaves out partitions whose records are too large."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.command_line import environment
from tests.support.record_tables import write_partition
from tests.support.segments import GZIP, ZSTD, batch, packed, record
from tests.support.timeouts import TIMEOUT_SECONDS

_MIB = 1 << 20
_LIMIT_BYTES = 64 * _MIB
_PARTITIONS = 5
#: Runs the command over one partition, and then over many; prints how much the peak grew.
_TWICE = """
import sys
from kafka_index.cli import main

def peak_kib():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmHWM"))

def run(name):
    assert main([word.replace("INPUT", name) for word in sys.argv[3:]]) == 1
    return peak_kib()

first = run(sys.argv[1])
print("KiB", run(sys.argv[2]) - first)
"""


@pytest.mark.parametrize("codec", [GZIP, ZSTD])
def test_many_skipped_oversized_partitions_need_the_memory_of_one(
    tmp_path: Path, codec: int
) -> None:
    payload = packed(record(0, 0, b"k", bytes(_LIMIT_BYTES + _MIB)), codec)
    log = batch(0, payload=payload, record_count=1, last_offset_delta=0, attributes=codec)
    for number in range(_PARTITIONS):
        write_partition(tmp_path / "many", {0: log}, f"topic-{number}")
    write_partition(tmp_path / "one", {0: log})
    arguments = [
        *("rewrite", "--dry-run", "--drop-where", "offset = 5", "--input", "INPUT"),
        *("--threads", "1", "--max-decompressed-bytes", str(_LIMIT_BYTES)),
    ]

    result = subprocess.run(
        [sys.executable, "-c", _TWICE, tmp_path / "one", tmp_path / "many", *arguments],
        capture_output=True,
        check=True,
        text=True,
        env=environment(),
        timeout=TIMEOUT_SECONDS,
    )

    assert int(result.stdout.split()[-1]) * 1024 < _LIMIT_BYTES
