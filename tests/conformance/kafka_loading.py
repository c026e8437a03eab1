"""Partition directories for a broker to load, and what is in them before and after."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from tests.support.golden_segments import PARTITION
from tests.support.segments import batch, marker

from .judged_log import load

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from .judge import Judge


#: Settings with which there is an entry for every batch but the first.
EVERY_BATCH = {"index.interval.bytes": 0}

#: A producer's transaction, aborted, and one record of another.
ABORTED: dict[int, list[bytes]] = {
    0: [
        batch(0, producer_id=7, producer_epoch=0, base_sequence=0, transactional=True),
        marker(3, 7, 0, commit=False),
        batch(4, 1, producer_id=8, producer_epoch=0, base_sequence=0),
    ],
    5: [batch(5)],
}


class PartitionFiles:
    """One partition directory and the files in it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def path(self, base_offset: int, suffix: str) -> Path:
        """Path of a file of a segment."""
        return self.directory / f"{base_offset:020d}{suffix}"

    def read(self, base_offset: int, suffix: str) -> bytes:
        """Bytes of a file of a segment."""
        return self.path(base_offset, suffix).read_bytes()

    def write(self, base_offset: int, suffix: str, data: bytes = b"") -> None:
        """Make or replace a file of a segment."""
        self.path(base_offset, suffix).write_bytes(data)

    def remove(self, suffix: str) -> None:
        """Remove all files with a suffix."""
        for path in self.directory.glob(f"*{suffix}"):
            path.unlink()

    def names(self) -> set[str]:
        """Short names: base offset and suffix for files of segments."""
        return {_short(path.name) for path in self.directory.iterdir()}

    def contents(self) -> dict[str, bytes]:
        """All files."""
        return {path.name: path.read_bytes() for path in self.directory.iterdir()}


def partition_files(scratch: Path, logs: Mapping[int, Sequence[bytes]]) -> PartitionFiles:
    """A fresh partition directory with these logs, by base offset, and nothing else."""
    directory = scratch / "loading" / PARTITION
    shutil.rmtree(directory.parent, ignore_errors=True)
    directory.mkdir(parents=True)
    files = PartitionFiles(directory)
    for base_offset, entries in logs.items():
        files.write(base_offset, ".log", b"".join(entries))
    return files


def indexed(judge: Judge, scratch: Path, logs: Mapping[int, Sequence[bytes]]) -> PartitionFiles:
    """A partition with all index files, as Kafka leaves it after a clean shutdown."""
    files = partition_files(scratch, logs)
    load(judge, files.directory, settings=EVERY_BATCH).close()
    return files


def indexed_then(
    judge: Judge,
    scratch: Path,
    logs: Mapping[int, Sequence[bytes]],
    later: Mapping[int, Sequence[bytes]],
) -> PartitionFiles:
    """A partition whose index files were made for other logs than it has now."""
    files = indexed(judge, scratch, logs)
    for base_offset, entries in later.items():
        files.write(base_offset, ".log", b"".join(entries))
    return files


def _short(name: str) -> str:
    offset, _, rest = name.partition(".")
    return f"{int(offset)}.{rest}" if offset.isdigit() else name
