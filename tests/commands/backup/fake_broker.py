"""Data directories as a running broker has them, changed by scripts, and runs of backups of them.

Only the high watermarks are written behind a test's back, as a broker does it.
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from kafka_index.commands.backup.broker_backup import INTERVAL_SETTING, BrokerBackup
from kafka_index.commands.backup.request import BackupRequest
from kafka_index.commands.backup.result import BackupResult
from kafka_index.core.format.checkpoints import format_offset_checkpoint
from kafka_index.core.format.config import LogConfig
from kafka_index.core.format.names import CLEAN_SHUTDOWN, TopicPartition, parse_partition_directory
from kafka_index.core.format.times import now_ms
from kafka_index.core.fs.backup.manifest import (
    Manifest,
    PartitionBackup,
    backup_id_at,
    backup_id_ms,
)
from kafka_index.core.fs.paths import open_repository
from kafka_index.core.parameters import KafkaSettings
from tests.support.command_line import Argument
from tests.support.segments import batch

IDS = {1: "AAAAAAAAAAAAAAAAAAAAQQ", 2: "BBBBBBBBBBBBBBBBBBBBBA"}
RECORDS = 3
#: Partitions of a `StoppedBroker`.
PARTITIONS = ("orders-0", "payments-0")
# Batches after which its logs end, and after which a segment does.
_LENGTHS, _ROLLED = (0, 4, 8, 12, 16, 24, 40), (8, 24)
# The stand-in writes far more often than it says.
_INTERVAL_MS, _WRITES_S = "3000", 0.02


class FakeBroker:
    """The data directories of a broker; its logs end where their files do.

    `high_watermarks` are instead of the ends of logs, None for a partition without one. A context
    manager: the checkpoint of high watermarks is replaced meanwhile.
    """

    def __init__(self, root: Path, directories: int = 1, *, node_id: int = 1) -> None:
        self.paths = [root / f"disk{number}" for number in range(directories)]
        self.high_watermarks: dict[str, int | None] = {}
        self.ends: dict[str, int] = {}
        self.logs: dict[str, bytes] = {}
        self._is_paused = False
        self._writing = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._write_high_watermarks)
        for number, path in enumerate(self.paths):
            path.mkdir(parents=True)
            directory_id = "ABCDEFGHIJKLMNOPQRSTU" + "AQgw"[number]
            (path / "meta.properties").write_text(
                f"version=1\ncluster.id=stand-in\nnode.id={node_id}\ndirectory.id={directory_id}\n"
            )

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    @property
    def is_paused(self) -> bool:
        """Whether no high watermarks are written; once it is set, none is being written."""
        return self._is_paused

    @is_paused.setter
    def is_paused(self, value: bool) -> None:
        with self._writing:
            self._is_paused = value

    def create(self, name: str, topic_id: int = 1, directory: int = 0) -> Path:
        """Create a partition with an empty log."""
        path = self.paths[directory] / name
        path.mkdir()
        (path / "partition.metadata").write_text(f"version: 0\ntopic_id: {IDS[topic_id]}")
        (path / "leader-epoch-checkpoint").write_text("0\n1\n0 0\n")
        self.ends[name], self.logs[name] = 0, b""
        return self.roll(name)

    def path_of(self, name: str) -> Path:
        """The directory of a partition, wherever it is."""
        return next(path / name for path in self.paths if (path / name).is_dir())

    def roll(self, name: str) -> Path:
        """Begin another log; return its path."""
        log = self.path_of(name) / f"{self.ends[name]:020d}.log"
        log.touch()
        return log

    def append(self, name: str, batches: int = 1, *, value_size: int = 20, epoch: int = 0) -> bytes:
        """Append batches to the last log; return their bytes."""
        data = b""
        for _ in range(batches):
            data += batch(self.ends[name], RECORDS, value_size, leader_epoch=epoch)
            self.ends[name] += RECORDS
        with self.last_log(name).open("ab") as file:
            file.write(data)
        self.logs[name] += data
        return data

    def truncate_log(self, name: str, end_offset: int) -> None:
        """Cut a log where a batch ends, as a follower does, and delete later ones."""
        self.logs[name] = self.logs[name][: len(batch(0, RECORDS)) * end_offset // RECORDS]
        self.ends[name] = end_offset
        for log in sorted(self.path_of(name).glob("*.log"))[::-1]:
            base = int(log.stem)
            if base > end_offset:
                log.unlink()
            else:
                os.truncate(log, len(batch(0, RECORDS)) * (end_offset - base) // RECORDS)
                break

    def stop(self) -> None:
        """Say that the broker was stopped in an orderly way: logs are committed to their ends."""
        for path in self.paths:
            (path / CLEAN_SHUTDOWN).touch()

    def last_log(self, name: str) -> Path:
        """The log that is appended to."""
        return max(self.path_of(name).glob("*.log"))

    def checkpoint(self, kind: str, offsets: Mapping[str, int], directory: int = 0) -> None:
        """Replace a checkpoint of offsets."""
        entries = {_partition(name): offset for name, offset in offsets.items()}
        path = self.paths[directory] / kind
        scratch = path.with_name(f"{kind}.tmp")
        scratch.write_text(format_offset_checkpoint(entries))
        scratch.rename(path)

    def _write_high_watermarks(self) -> None:
        while not self._stop.wait(_WRITES_S):
            with self._writing:
                if not self._is_paused:
                    self._write_once()

    def _write_once(self) -> None:
        for number, path in enumerate(self.paths):
            offsets = {}
            for name, end in [*self.ends.items()]:
                offset = self.high_watermarks.get(name, end)
                if offset is not None and (path / name).is_dir():
                    offsets[name] = offset
            self.checkpoint("replication-offset-checkpoint", offsets, number)


class StoppedBroker:
    """A stopped broker whose logs change between its backups, with one history of batches."""

    def __init__(self, folder: Path, node_id: int, draw: random.Random) -> None:
        self.node_id, self._draw = node_id, draw
        self.fake_broker = FakeBroker(folder, node_id=node_id)
        for number, name in enumerate(PARTITIONS):
            self.fake_broker.create(name, topic_id=number + 1)
        self.fake_broker.stop()
        self.path = self.fake_broker.paths[0]
        self.change()

    def command(self, repository: str | Path, nodes: str) -> list[Argument]:
        arguments: list[Argument] = ["--input", self.path, "--output", repository]
        return ["backup", "--quiet", *arguments, "--brokers", nodes, "--wait", "1s"]

    def change(self) -> None:
        for name in PARTITIONS:
            size_bytes = self._draw.choice(_LENGTHS) * RECORDS
            self.fake_broker.truncate_log(name, min(size_bytes, self.fake_broker.ends[name]))
            for length in _LENGTHS:
                missing = min(size_bytes, length * RECORDS) - self.fake_broker.ends[name]
                if missing > 0:
                    self.fake_broker.append(name, missing // RECORDS)
                    if length in _ROLLED:
                        self.fake_broker.roll(name)


def _partition(name: str) -> TopicPartition:
    result = parse_partition_directory(name)
    assert result is not None
    return result


def request_of(broker: FakeBroker, repository: Path | str) -> BackupRequest:
    return BackupRequest(
        inputs=tuple(str(path) for path in broker.paths),
        output=str(repository),
        config=KafkaSettings(LogConfig(), {INTERVAL_SETTING: _INTERVAL_MS}),
    )


def back_up(
    broker: FakeBroker,
    repository: Path | str,
    *,
    before: Mapping[str, Callable[[], object]] | None = None,
    **request_fields: Any,
) -> tuple[BackupResult, Manifest]:
    """Make a backup; functions are called before its steps, by their names."""
    return make_in_steps(replace(request_of(broker, repository), **request_fields), before=before)


def make_in_steps(
    request: BackupRequest,
    *,
    before: Mapping[str, Callable[[], object]] | None = None,
    backup_id: str | None = None,
) -> tuple[BackupResult, Manifest]:
    """Make a backup with an ID if one is given; functions are called before its steps."""
    scripts = before or {}

    def script(step: str) -> None:
        scripts.get(step, lambda: None)()

    with BrokerBackup(request) as backup:
        for step in (
            backup.inspect,
            backup.capture_coordinators,
            backup.capture_others,
            backup.await_high_watermarks,
            backup.store,
        ):
            script(step.__name__)
            step()
        script("commit")
        earliest_ms = 0 if backup.previous is None else backup_id_ms(backup.previous.backup_id) + 1
        own_id = backup_id or backup_id_at(max(now_ms(), earliest_ms))
        result = backup.commit(own_id, (1,), (1,))
        return result, manifest_of(result)


def manifest_of(result: BackupResult) -> Manifest:
    """Read the manifest of a backup from its repository."""
    repository = open_repository(result.repository)
    return repository.manifest(result.backup_id, result.node_id)


def partition_in(manifest: Manifest, name: str) -> PartitionBackup:
    """A partition of a run."""
    return next(
        partition
        for partition in manifest.partitions
        if partition.topic_partition.directory_name == name
    )


def bytes_of(repository: Path, manifest: Manifest, name: str) -> bytes:
    """The bytes that a run has of a partition."""
    partition = partition_in(manifest, name)
    return b"".join(
        (repository / partition.folder / chunk.object_name).read_bytes()
        for chunk in partition.chunks
    )


def states_of(folder: Path) -> dict[str, tuple[int, ...]]:
    """All that a file system tells of the files below a folder, times of access too."""
    result: dict[str, tuple[int, ...]] = {}
    for root, folders, files in os.walk(folder):
        for name in [*folders, *files]:
            stat = os.lstat(os.path.join(root, name))
            result[os.path.join(root, name)] = (
                stat.st_ino,
                stat.st_nlink,
                stat.st_size,
                stat.st_mtime_ns,
                stat.st_ctime_ns,
                stat.st_atime_ns,
            )
    return result
