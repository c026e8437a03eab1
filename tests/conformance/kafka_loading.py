"""Partition directories for a broker to load, and what is in them before and after."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from tests.support.golden_segments import PARTITION
from tests.support.segments import batch, marker

from .reference_log import DAY_MS, ReferenceLog, load

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from .kafka_reference import KafkaReference

    Logs = Mapping[int, Sequence[bytes]]

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
    """A partition directory, which the reference program loads as a broker does."""

    def __init__(self, reference: KafkaReference, directory: Path) -> None:
        self._reference = reference
        self.directory = directory

    def load(
        self,
        *,
        clean: bool = True,
        recovery_point: int = 0,
        log_start_offset: int = 0,
        now_ms: int = DAY_MS,
        settings: Mapping[str, object] | None = None,
    ) -> ReferenceLog:
        """Load it by `reference_log.load`."""
        return load(
            self._reference,
            self.directory,
            clean=clean,
            recovery_point=recovery_point,
            log_start_offset=log_start_offset,
            now_ms=now_ms,
            settings=settings,
        )

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


def partition_files(reference: KafkaReference, scratch: Path, logs: Logs) -> PartitionFiles:
    """A fresh partition directory with these logs, by base offset, and nothing else."""
    directory = scratch / "loading" / PARTITION
    shutil.rmtree(directory.parent, ignore_errors=True)
    directory.mkdir(parents=True)
    files = PartitionFiles(reference, directory)
    for base_offset, entries in logs.items():
        files.write(base_offset, ".log", b"".join(entries))
    return files


def indexed_files(
    reference: KafkaReference, scratch: Path, logs: Logs, then: Logs | None = None
) -> PartitionFiles:
    """A partition with all index files, as Kafka leaves it after a clean shutdown.

    `then`: other logs that it has since.
    """
    files = partition_files(reference, scratch, logs)
    files.load(settings=EVERY_BATCH).close()
    for base_offset, entries in (then or {}).items():
        files.write(base_offset, ".log", b"".join(entries))
    return files


def _short(name: str) -> str:
    offset, _, rest = name.partition(".")
    return f"{int(offset)}.{rest}" if offset.isdigit() else name
