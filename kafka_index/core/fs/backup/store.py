"""A backup presented as one data directory, with the paths of `backup_paths`.

Each partition is read from the copy of its leader, or else from the copy with the greatest end
offset. Chunks are joined to segments with the original base offsets. All other files are generated
from the manifests.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from zlib_ng import zlib_ng

from kafka_index.core.errors import CorruptObjectError, InputError, KafkaIndexError, ReadError
from kafka_index.core.format.checkpoints import (
    EpochEntry,
    format_leader_epoch_checkpoint,
    format_offset_checkpoint,
)
from kafka_index.core.format.names import (
    CLEANER_CHECKPOINT,
    CLUSTER_METADATA_TOPIC,
    LEADER_EPOCH_CHECKPOINT,
    LOG_START_CHECKPOINT,
    LOG_SUFFIX,
    META_PROPERTIES,
    PARTITION_METADATA,
    RECOVERY_POINT_CHECKPOINT,
    REPLICATION_CHECKPOINT,
    SNAPSHOT_SUFFIX,
    TopicPartition,
    segment_file_name,
)
from kafka_index.core.fs.backup.manifest import (
    BACKUPS_FOLDER,
    EXPIRED_FOLDER,
    cutoff_time,
    joined_chunks,
)
from kafka_index.core.fs.backup.repository import Repository
from kafka_index.core.fs.local_store import MappedFile
from kafka_index.core.fs.remote_file import BLOCK_BYTES, read_ahead
from kafka_index.core.fs.store import (
    DirectoryEntry,
    FileInfo,
    ReadOnlyStore,
    list_by_directory,
)
from kafka_index.core.fs.uris import parse_backup_path

if TYPE_CHECKING:
    import pyarrow as pa

    from kafka_index.core.fs.backup.manifest import KeptFile, LogChunk, Manifest, PartitionBackup
    from kafka_index.core.fs.store import Bytes, ByteSource, Store

_MAX_BACKUPS = 4
_MS_NS = 1_000_000
# Local chunks are read in this size, so that the checksum is computed over cached bytes.
_LOCAL_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class BackupFile:
    """A file of a backup: the concatenated objects of a folder, or bytes from the manifest."""

    folder: str = ""
    objects: tuple[LogChunk | KeptFile, ...] = ()
    data: bytes = b""

    @property
    def size_bytes(self) -> int:
        return len(self.data) + sum(each.size_bytes for each in self.objects)


class Backup:
    """A backup: its manifests in order of broker ID, the selected copies, and its files.

    Raises `InputError` if the repository has no such backup.
    """

    def __init__(self, repository: Repository, name: str) -> None:
        # Backups first, because expiration copies a manifest before it deletes it.
        folders = BACKUPS_FOLDER, EXPIRED_FOLDER
        brokers = {node for folder in folders for node in repository.brokers_of(name, folder)}
        self.repository, self.name = repository, name
        self.manifests: tuple[Manifest, ...] = tuple(
            repository.manifest(name, node_id, folders) for node_id in sorted(brokers)
        )
        if not self.manifests:
            raise InputError(
                f"the repository has no backup {name}",
                path=repository.root,
                hint="run kafka-index backups list to list the backups",
            )
        self.copies: dict[TopicPartition, tuple[Manifest, PartitionBackup]] = {}
        for manifest in self.manifests:
            for partition in manifest.partitions:
                self._add(manifest, partition)
        self._directories: dict[str, dict[str, BackupFile]] = {}

    def _add(self, manifest: Manifest, partition: PartitionBackup) -> None:
        key = partition.topic_partition
        before = self.copies.get(key)
        if before is None or _order(manifest, partition) > _order(*before):
            self.copies[key] = manifest, partition

    @property
    def mtime_ns(self) -> int:
        """The cutoff time, which is the modification time of all files."""
        return cutoff_time(self.manifests) * _MS_NS

    @cached_property
    def partitions(self) -> dict[str, PartitionBackup]:
        """The selected copies, in order of directory name."""
        found = {key.directory_name: partition for key, (_, partition) in self.copies.items()}
        return dict(sorted(found.items()))

    @cached_property
    def root_files(self) -> dict[str, BackupFile]:
        """The files at the root of the data directory, keyed by name."""
        of_logs = {
            each.topic_partition: each
            for each in self.partitions.values()
            if each.topic != CLUSTER_METADATA_TOPIC
        }
        ends = {key: each.end_offset for key, each in of_logs.items()}
        # A broker writes a log start offset only if it is above the base offset of the first
        # segment.
        starts = {
            key: each.start_offset
            for key, each in of_logs.items()
            if each.chunks and each.start_offset > each.chunks[0].base_offset
        }
        cleaned = {
            key: each.cleaner_offset
            for key, each in of_logs.items()
            if each.cleaner_offset is not None
        }
        properties = next(
            (
                directory.meta_properties
                for manifest in self.manifests
                for directory in manifest.directories
                if directory.meta_properties
            ),
            "",
        )
        texts = {
            META_PROPERTIES: properties,
            LOG_START_CHECKPOINT: format_offset_checkpoint(starts),
            RECOVERY_POINT_CHECKPOINT: format_offset_checkpoint(ends),
            REPLICATION_CHECKPOINT: format_offset_checkpoint(ends),
            CLEANER_CHECKPOINT: format_offset_checkpoint(cleaned),
        }
        return {name: BackupFile(data=text.encode()) for name, text in texts.items() if text}

    def directory(self, name: str) -> dict[str, BackupFile]:
        """Return the files in the directory of a partition; empty if it does not exist."""
        found = self._directories.get(name)
        if found is None:
            partition = self.partitions.get(name)
            found = {} if partition is None else self._files(partition)
            self._directories[name] = found
        return found

    def file(self, below: str) -> BackupFile | None:
        """Return a file by its path below the backup; None if it does not exist."""
        directory, _, name = below.rpartition("/")
        return (self.directory(directory) if directory else self.root_files).get(name)

    def _files(self, partition: PartitionBackup) -> dict[str, BackupFile]:
        folder = f"{self.repository.root}/{partition.folder}"
        files = {each.name: BackupFile(folder, (each,)) for each in partition.files}
        first = partition.chunks[0].base_offset if partition.chunks else partition.end_offset
        if not partition.chunks:
            files[segment_file_name(first, LOG_SUFFIX)] = BackupFile()
        for chunks in joined_chunks(partition):
            name = segment_file_name(chunks[0].base_offset, LOG_SUFFIX)
            files[name] = BackupFile(folder, chunks)
        if partition.topic_id:
            text = f"version: 0\ntopic_id: {partition.topic_id}\n"
            files[PARTITION_METADATA] = BackupFile(data=text.encode())
        epochs = format_leader_epoch_checkpoint(EpochEntry(*each) for each in partition.epochs)
        files[LEADER_EPOCH_CHECKPOINT] = BackupFile(data=epochs.encode())
        if partition.snapshot is not None:
            name = segment_file_name(first, SNAPSHOT_SUFFIX)
            files[name] = BackupFile(data=partition.snapshot)
        return dict(sorted(files.items()))


def _order(manifest: Manifest, partition: PartitionBackup) -> tuple[bool, int, int, int]:
    """Return the sort key of the copies of a partition; the greatest is selected.

    A stopped or isolated broker may still consider itself the leader. The new leader has a higher
    epoch, even if its log is shorter after an unclean election.
    """
    last_epoch = partition.epochs[-1][0] if partition.epochs else -1
    return partition.is_leader is True, last_epoch, partition.end_offset, -manifest.node_id


class SurvivingObject(NamedTuple):
    """The remaining bytes of an object, and the error if they differ from the manifest."""

    named: LogChunk | KeptFile
    data: bytes
    error: CorruptObjectError | None


class JoinedFile:
    """A file of a backup, open for reading (`ByteSource`).

    The CRC-32 of every completely read object is verified. Raises `CorruptObjectError` if an object
    is missing or altered.
    """

    def __init__(self, path: str, backup: Backup, file: BackupFile) -> None:
        self.path = path
        self.size_bytes = file.size_bytes
        self.mtime_ns = backup.mtime_ns
        self._backup_id = backup.name
        self._objects = backup.repository.store
        self._folder = file.folder
        self._data = np.frombuffer(file.data, np.uint8)
        self._parts = tuple(part for part in file.objects if part.size_bytes)
        self._starts = [0, *accumulate(part.size_bytes for part in self._parts)]
        self._is_far = self._objects.needs_requests
        # Number of the object in which a stream is currently positioned.
        self._begun: int | None = None

    def read_at(self, position_bytes: int, size_bytes: int) -> Bytes:
        if position_bytes < 0 or size_bytes < 0:
            raise ValueError(f"negative position or size: {position_bytes}, {size_bytes}")
        end = min(position_bytes + size_bytes, self.size_bytes)
        return self.read_ranges([position_bytes], [max(position_bytes, end)])[0]

    def read_ranges(self, starts: Sequence[int], ends: Sequence[int]) -> list[Bytes]:
        if not self._parts:
            return [self._data[start:end] for start, end in zip(starts, ends, strict=True)]
        wanted: dict[int, list[tuple[int, int, int]]] = {}
        for number, (start, end) in enumerate(zip(starts, ends, strict=True)):
            for part, first, size in self._within(start, end, self.size_bytes):
                wanted.setdefault(part, []).append((number, first, first + size))
        found: list[list[Bytes]] = [[] for _ in starts]
        for ranges, read in zip(wanted.values(), self._read_each(wanted), strict=True):
            for (number, _, _), data in zip(ranges, read, strict=True):
                found[number].append(data)
        return [
            each[0] if len(each) == 1 else np.concatenate([np.empty(0, np.uint8), *each])
            for each in found
        ]

    def stream(self, start_bytes: int = 0) -> Iterator[Bytes]:
        if self._parts:
            yield from self._stream(start_bytes, self.size_bytes)
        elif start_bytes < self.size_bytes:
            yield self._data[start_bytes:]

    def _stream(self, start: int, end: int) -> Iterator[Bytes]:
        """Yield the bytes of objects; verify each object that is read completely."""
        most = BLOCK_BYTES if self._is_far else _LOCAL_BYTES
        reads = (
            (partial(self._read_part, number, first, size), size)
            for number, first, size in self._within(start, end, most)
        )
        arriving = read_ahead(reads) if self._is_far else (read() for read, _ in reads)
        crc32 = None
        for number, first, size in self._within(start, end, most):
            data = next(arriving)
            part = self._parts[number]
            if first == 0:
                crc32, self._begun = 0, number
            if crc32 is not None:
                crc32 = zlib_ng.crc32(data, crc32)
                if first + size == part.size_bytes:
                    self._check(part, crc32)
                    crc32, self._begun = None, None
            yield data

    def _read_part(self, number: int, first: int, size: int) -> Bytes:
        return self._read(self._parts[number], [first], [first + size])[0]

    def surviving(self) -> Iterator[SurvivingObject]:
        """Yield the remaining bytes of each object, at most as many as its manifest lists."""
        for part in self._parts:
            data, error = b"", None
            try:
                data = self._objects.read(self._path_of(part))
                if len(data) != part.size_bytes:
                    self._explain(part)
                self._check(part, zlib_ng.crc32(data))
            except FileNotFoundError:
                error = self._missing(part)
            except CorruptObjectError as found:
                error = found
            yield SurvivingObject(part, data[: part.size_bytes], error)

    def changed(self) -> None:
        """Return None, since objects never change.

        If a stream stopped within an object, for example at corrupt batches, the object is verified
        first.
        """
        number, self._begun = self._begun, None
        if number is not None:
            for _ in self._stream(self._starts[number], self._starts[number + 1]):
                pass

    def close(self) -> None: ...

    def _within(self, start: int, end: int, most: int) -> Iterator[tuple[int, int, int]]:
        """Split a range into parts: object number, position in the object, at most `most` bytes."""
        number = bisect_right(self._starts, start) - 1
        while start < end:
            first = start - self._starts[number]
            size = min(most, end - start, self._starts[number + 1] - start)
            yield number, first, size
            start += size
            number += start == self._starts[number + 1]

    def _read_each(self, wanted: dict[int, list[tuple[int, int, int]]]) -> Iterator[list[Bytes]]:
        """Yield the ranges of each object; small ranges are read concurrently."""
        reads = []
        for number, ranges in wanted.items():
            _, starts, ends = zip(*ranges, strict=True)
            reads.append(partial(self._read_checked, self._parts[number], starts, ends))
        sizes = [ranges[0][2] - ranges[0][1] for ranges in wanted.values() if len(ranges) == 1]
        are_small = len(sizes) == len(reads) > 1 and max(sizes) <= BLOCK_BYTES
        if self._is_far and are_small:
            one_each = (
                (partial(_read_single, read), size) for read, size in zip(reads, sizes, strict=True)
            )
            yield from ([data] for data in read_ahead(one_each))
        else:
            yield from (read() for read in reads)

    def _read_checked(
        self, part: LogChunk | KeptFile, starts: Sequence[int], ends: Sequence[int]
    ) -> list[Bytes]:
        found = self._read(part, starts, ends)
        for start, end, data in zip(starts, ends, found, strict=True):
            if start == 0 and end == part.size_bytes:
                self._check(part, zlib_ng.crc32(data))
        return found

    def _read(
        self, part: LogChunk | KeptFile, starts: Sequence[int], ends: Sequence[int]
    ) -> list[Bytes]:
        """Return ranges of an object without verifying it."""
        path = self._path_of(part)
        try:
            # An object store needs no request before the first read.
            info = None if self._objects.has_rename else FileInfo(path, part.size_bytes, 0)
            with closing(self._objects.open(path, info)) as source:
                if source.size_bytes != part.size_bytes:
                    raise self._altered(part, part.size_bytes, source.size_bytes, "bytes")
                if not isinstance(source, MappedFile):
                    return source.read_ranges(starts, ends)
                # Copied, because the source is closed before the bytes are used.
                found = [
                    np.empty(end - start, np.uint8) for start, end in zip(starts, ends, strict=True)
                ]
                for start, data in zip(starts, found, strict=True):
                    if source.read_into(start, data) < len(data):
                        raise ReadError("the object was truncated while it was read", path=path)
                return found
        except CorruptObjectError:
            raise
        except KafkaIndexError as error:
            self._explain(part)
            raise error from None

    def _explain(self, part: LogChunk | KeptFile) -> None:
        """Raise `CorruptObjectError` if an unreadable object is missing or altered."""
        path = self._path_of(part)
        try:
            found = self._objects.info(path).size_bytes
        except FileNotFoundError:
            raise self._missing(part) from None
        if found != part.size_bytes:
            raise self._altered(part, part.size_bytes, found, "bytes")

    def _missing(self, part: LogChunk | KeptFile) -> CorruptObjectError:
        return CorruptObjectError(
            f"an object of backup {self._backup_id} is missing",
            path=self._path_of(part),
            expected=f"{part.size_bytes} bytes",
            found="no object",
        )

    def _check(self, part: LogChunk | KeptFile, crc32: int) -> None:
        if crc32 != part.crc32:
            raise self._altered(part, f"{part.crc32:08x}", f"{crc32:08x}", "as CRC-32")

    def _path_of(self, part: LogChunk | KeptFile) -> str:
        return f"{self._folder}/{part.object_name}"

    def _altered(
        self, part: LogChunk | KeptFile, expected: object, found: object, unit: str
    ) -> CorruptObjectError:
        return CorruptObjectError(
            f"an object of backup {self._backup_id} is altered",
            path=self._path_of(part),
            expected=f"{expected} {unit}",
            found=f"{found} {unit}",
        )


def _read_single(read: Callable[[], list[Bytes]]) -> Bytes:
    return read()[0]


class BackupStore(ReadOnlyStore):
    """The backups in a store as read-only data directories.

    `objects` is the store that holds the repositories.
    """

    _NAME = "backups are"

    def __init__(self, objects: Store) -> None:
        self._objects = objects
        self._backups: OrderedDict[tuple[str, str], Backup] = OrderedDict()
        self._lock = threading.Lock()

    def backup(self, path: str) -> tuple[Backup, str]:
        """Return the backup that contains a path, and the path below it.

        Raises the errors of `Backup`, and `InputError` if the path is in no backup.
        """
        parsed = parse_backup_path(path)
        if parsed is None:
            raise InputError(
                "not a path in a backup",
                path=path,
                expected="backup:REPOSITORY, or backup:REPOSITORY@TIME",
            )
        key = parsed.root, parsed.backup_id
        with self._lock:
            found = self._backups.get(key)
            if found is None:
                found = self._backups[key] = Backup(
                    Repository(parsed.root, self._objects), parsed.backup_id
                )
            self._backups.move_to_end(key)
            while len(self._backups) > _MAX_BACKUPS:
                self._backups.popitem(last=False)
        return found, parsed.below

    def info(self, path: str) -> FileInfo:
        backup, file = self._file(path)
        return FileInfo(path, file.size_bytes, backup.mtime_ns)

    def open(self, path: str, info: FileInfo | None = None) -> ByteSource:  # noqa: ARG002, a file of a backup never changes
        try:
            backup, file = self._file(path)
        except FileNotFoundError:
            raise InputError(
                "cannot open the file: the backup does not contain it", path=path
            ) from None
        return JoinedFile(path, backup, file)

    def read(self, path: str, max_bytes: int | None = None) -> bytes:
        backup, file = self._file(path)
        size = file.size_bytes if max_bytes is None else max_bytes
        return JoinedFile(path, backup, file).read_at(0, size).tobytes()

    def list_directory(self, path: str) -> list[DirectoryEntry]:
        backup, below = self.backup(path)
        files = backup.directory(below) if below else backup.root_files
        top = path.rstrip("/")
        entries = [
            DirectoryEntry(f"{top}/{name}", size_bytes=file.size_bytes, mtime_ns=backup.mtime_ns)
            for name, file in files.items()
        ]
        if not below:
            entries += [
                DirectoryEntry(f"{top}/{name}", is_directory=True) for name in backup.partitions
            ]
        return sorted(entries, key=lambda entry: entry.path)

    def list_tree(self, path: str) -> Iterator[pa.RecordBatch]:
        return list_by_directory(self, path)

    def _file(self, path: str) -> tuple[Backup, BackupFile]:
        backup, below = self.backup(path)
        found = backup.file(below)
        if found is None:
            raise FileNotFoundError(path)
        return backup, found
