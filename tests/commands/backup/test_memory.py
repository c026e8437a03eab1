"""Memory that does not grow with the length of a log, or the number of runs in a repository."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from kafka_index.commands.backup import chunks
from kafka_index.core.format.times import now_ms
from kafka_index.core.fs.backup.manifest import (
    MAX_CHUNK_BYTES,
    LogChunk,
    SeenSegment,
    backup_id_at,
    content_of,
    encode,
    manifest_path,
)
from kafka_index.core.fs.paths import open_repository
from kafka_index.core.records.record_batch import BatchFields, Record, write_record_batch
from tests.commands.backup.test_manifest import manifest
from tests.support.command_line import environment
from tests.support.timeouts import TIMEOUT_SECONDS

_MIB = 1 << 20
_PARTITIONS, _PIECES = 500, 20
_FEW_RUNS, _MANY_RUNS = 3, 40
_MAX_GROWTH_BYTES = 48 * _MIB
_BATCH_BYTES = _MIB
#: Runs a statement for one name and then for another; prints how much the peak grew.
_TWICE = """
import sys

def peak_kib():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmHWM"))

found = []
for name in sys.argv[1:3]:
    STATEMENTS
    found.append(peak_kib())
print("KiB", found[1] - found[0])
"""
_READERS = {
    "list": "import kafka_index; kafka_index.open_backup(name)",
    "verify": """from tests.commands.backup.repositories import verify
    verify(name, sample=0)""",
    "expire": """from tests.commands.backup.repositories import expire
    expire(name, dry_run=True)""",
}
#: Puts are slow, so that reads would be ahead of them without a bound.
_SLOW_STORE = """import time
    from kafka_index.commands.backup import chunks
    from kafka_index.commands.backup.agent import back_up
    from kafka_index.commands.backup.request import BackupRequest
    chunks.MAX_CHUNK_BYTES = 1 << 20
    chunks._MAX_IN_FLIGHT_BYTES = 3 << 20
    chunks.put_object = lambda repository, path, data: time.sleep(0.02)
    result = back_up(BackupRequest(inputs=(name,), output=name + "-repository"))
    assert result.sizes_bytes["new"] > 5_000_000"""


def growth_bytes(statements: str, few: str, many: str) -> int:
    """Return how much more memory a process needs at its peak for much than for little."""
    result = subprocess.run(
        [sys.executable, "-c", _TWICE.replace("STATEMENTS", statements), few, many],
        capture_output=True,
        check=True,
        text=True,
        env=environment(),
        timeout=TIMEOUT_SECONDS,
    )
    return int(result.stdout.split()[-1]) * 1024


@pytest.fixture(scope="module")
def repositories(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Two repositories of the same partitions, with a few and many runs."""
    chunks = tuple(
        LogChunk(number * 10, number * 10 + 9, *content_of(b"%d" % number))
        for number in range(_PIECES)
    )
    segments = tuple(
        SeenSegment(chunk.base_offset, 1, 2, 3, 10, 10, is_done=True) for chunk in chunks
    )
    complete_manifest = manifest(
        end_offset=1000, high_watermark=1000, chunks=chunks, segments=segments
    )
    partitions = tuple(
        msgspec.structs.replace(complete_manifest.partitions[0], partition=number)
        for number in range(_PARTITIONS)
    )
    first_ms = now_ms() - 10_000_000
    result = []
    for runs in (_FEW_RUNS, _MANY_RUNS):
        root = str(tmp_path_factory.mktemp("repository"))
        open_repository(root).create(complete_manifest.cluster_id)
        for number in range(runs):
            run = backup_id_at(first_ms + number * 60_000)
            path = Path(manifest_path(root, run, 1))
            path.parent.mkdir(parents=True)
            path.write_bytes(
                encode(
                    msgspec.structs.replace(complete_manifest, backup_id=run, partitions=partitions)
                )
            )
        result.append(root)
    return result[0], result[1]


@pytest.mark.parametrize("reader", _READERS)
def test_memory_of_many_backups_is_bounded(repositories: tuple[str, str], reader: str) -> None:
    assert growth_bytes(_READERS[reader], *repositories) < _MAX_GROWTH_BYTES


def test_memory_of_a_large_log_is_bounded(tmp_path: Path) -> None:
    assert chunks._MAX_IN_FLIGHT_BYTES == 3 * MAX_CHUNK_BYTES
    for name, batches in (("small", 10), ("large", 120)):
        write_broker(tmp_path / name, batches)
    growth = growth_bytes(_SLOW_STORE, str(tmp_path / "small"), str(tmp_path / "large"))
    assert growth < 20 * _BATCH_BYTES


def write_broker(data: Path, batches: int) -> None:
    """Write the directory of a stopped broker with a log of large batches."""
    folder = data / "topic-0"
    folder.mkdir(parents=True)
    (data / "meta.properties").write_text("version=1\ncluster.id=cluster\nnode.id=1\n")
    (data / ".kafka_cleanshutdown").write_text('{"version":0,"brokerEpoch":1}')
    (folder / "partition.metadata").write_text("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAABw")
    record = [Record(1_700_000_000_000, b"key", os.urandom(_BATCH_BYTES - 200))]
    with (folder / f"{0:020d}.log").open("wb") as log:
        for offset in range(batches):
            log.write(write_record_batch(record, offset, BatchFields(leader_epoch=0)))
