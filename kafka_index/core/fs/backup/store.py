"""A backup presented as one data directory, under the paths of `core.fs.uris`.

Each partition is read from the copy of its leader, or otherwise from the copy with the greatest end
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
from itertools import accumulate, starmap
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
_LOCAL_BLOCK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class BackupFile:
    """A file of a backup: the concatenated objects of a folder, or bytes from the manifest."""

    folder: str = ""
    objects: tuple[LogChunk | KeptFile, ...] = ()
    data: bytes = b""

    @property
    def size_bytes(self) -> int:
        return len(self.data) + sum(stored_object.size_bytes for stored_object in self.objects)


class Backup:
    """A backup: its manifests in order of broker ID, the selected copies, and its files.

    Raises `InputError` if the repository has no such backup.
    """

    def __init__(self, repository: Repository, name: str) -> None:
        # Backups first, because expiration copies a manifest before it deletes it.
        folders = BACKUPS_FOLDER, EXPIRED_FOLDER
        brokers = {node for folder in folders for node in repository.list_brokers(name, folder)}
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
                self._select_copy(manifest, partition)
        self._directories: dict[str, dict[str, BackupFile]] = {}

    def _select_copy(self, manifest: Manifest, partition: PartitionBackup) -> None:
        key = partition.topic_partition
        selected_copy = self.copies.get(key)
        if selected_copy is None or _copy_rank(manifest, partition) > _copy_rank(*selected_copy):
            self.copies[key] = manifest, partition

    @property
    def mtime_ns(self) -> int:
        """The cutoff time, which is the modification time of all files."""
        return cutoff_time(self.manifests) * _MS_NS

    @cached_property
    def partitions(self) -> dict[str, PartitionBackup]:
        """The selected copies, in order of directory name."""
        partitions = {key.directory_name: partition for key, (_, partition) in self.copies.items()}
        return dict(sorted(partitions.items()))

    @cached_property
    def root_files(self) -> dict[str, BackupFile]:
        """The files at the root of the data directory, keyed by name."""
        partitions = {
            partition.topic_partition: partition
            for partition in self.partitions.values()
            if partition.topic != CLUSTER_METADATA_TOPIC
        }
        end_offsets = {key: partition.end_offset for key, partition in partitions.items()}
        # A broker writes a log start offset only if it is above the base offset of the first
        # segment.
        start_offsets = {
            key: partition.start_offset
            for key, partition in partitions.items()
            if partition.chunks and partition.start_offset > partition.chunks[0].base_offset
        }
        cleaner_offsets = {
            key: partition.cleaner_offset
            for key, partition in partitions.items()
            if partition.cleaner_offset is not None
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
        contents = {
            META_PROPERTIES: properties,
            LOG_START_CHECKPOINT: format_offset_checkpoint(start_offsets),
            RECOVERY_POINT_CHECKPOINT: format_offset_checkpoint(end_offsets),
            REPLICATION_CHECKPOINT: format_offset_checkpoint(end_offsets),
            CLEANER_CHECKPOINT: format_offset_checkpoint(cleaner_offsets),
        }
        return {
            name: BackupFile(data=content.encode()) for name, content in contents.items() if content
        }

    def directory(self, name: str) -> dict[str, BackupFile]:
        """Return the files in the directory of a partition; empty for unknown directories."""
        files = self._directories.get(name)
        if files is None:
            partition = self.partitions.get(name)
            files = {} if partition is None else self._list_files(partition)
            self._directories[name] = files
        return files

    def file(self, relative_path: str) -> BackupFile | None:
        """Return a file by its path relative to the backup; None for unknown paths."""
        directory, _, name = relative_path.rpartition("/")
        return (self.directory(directory) if directory else self.root_files).get(name)

    def _list_files(self, partition: PartitionBackup) -> dict[str, BackupFile]:
        folder = f"{self.repository.root}/{partition.folder}"
        files = {
            stored_file.name: BackupFile(folder, (stored_file,)) for stored_file in partition.files
        }
        base_offset = partition.chunks[0].base_offset if partition.chunks else partition.end_offset
        if not partition.chunks:
            files[segment_file_name(base_offset, LOG_SUFFIX)] = BackupFile()
        for chunks in joined_chunks(partition):
            name = segment_file_name(chunks[0].base_offset, LOG_SUFFIX)
            files[name] = BackupFile(folder, chunks)
        if partition.topic_id:
            topic_id_content = f"version: 0\ntopic_id: {partition.topic_id}\n"
            files[PARTITION_METADATA] = BackupFile(data=topic_id_content.encode())
        epochs = format_leader_epoch_checkpoint(starmap(EpochEntry, partition.epochs))
        files[LEADER_EPOCH_CHECKPOINT] = BackupFile(data=epochs.encode())
        if partition.snapshot is not None:
            name = segment_file_name(base_offset, SNAPSHOT_SUFFIX)
            files[name] = BackupFile(data=partition.snapshot)
        return dict(sorted(files.items()))


def _copy_rank(manifest: Manifest, partition: PartitionBackup) -> tuple[bool, int, int, int]:
    """Return the sort key of the copies of a partition; the greatest is selected.

    A stopped or isolated broker may still consider itself the leader. The new leader has a higher
    epoch, even if its log is shorter after an unclean election.
    """
    last_epoch = partition.epochs[-1][0] if partition.epochs else -1
    return partition.is_leader is True, last_epoch, partition.end_offset, -manifest.node_id


class SurvivingObject(NamedTuple):
    """The remaining bytes of an object, and the error if they differ from the manifest."""

    entry: LogChunk | KeptFile
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
        self._store = backup.repository.store
        self._folder = file.folder
        self._data = np.frombuffer(file.data, np.uint8)
        self._stored_objects = tuple(
            stored_object for stored_object in file.objects if stored_object.size_bytes
        )
        self._starts = [
            0,
            *accumulate(stored_object.size_bytes for stored_object in self._stored_objects),
        ]
        self._is_remote = self._store.needs_requests
        # Number of the object in which a stream is currently positioned.
        self._unverified: int | None = None

    def read_at(self, position_bytes: int, size_bytes: int) -> Bytes:
        if position_bytes < 0 or size_bytes < 0:
            raise ValueError(f"negative position or size: {position_bytes}, {size_bytes}")
        end = min(position_bytes + size_bytes, self.size_bytes)
        return self.read_ranges([position_bytes], [max(position_bytes, end)])[0]

    def read_ranges(self, starts: Sequence[int], ends: Sequence[int]) -> list[Bytes]:
        if not self._stored_objects:
            return [self._data[start:end] for start, end in zip(starts, ends, strict=True)]
        requests: dict[int, list[tuple[int, int, int]]] = {}
        for number, (start, end) in enumerate(zip(starts, ends, strict=True)):
            for object_number, position_in_object, size in self._split_range(
                start, end, self.size_bytes
            ):
                requests.setdefault(object_number, []).append(
                    (number, position_in_object, position_in_object + size)
                )
        blocks_by_range: list[list[Bytes]] = [[] for _ in starts]
        for ranges, object_blocks in zip(
            requests.values(), self._read_objects(requests), strict=True
        ):
            for (number, _, _), data in zip(ranges, object_blocks, strict=True):
                blocks_by_range[number].append(data)
        return [
            blocks[0] if len(blocks) == 1 else np.concatenate([np.empty(0, np.uint8), *blocks])
            for blocks in blocks_by_range
        ]

    def stream(self, start_bytes: int = 0) -> Iterator[Bytes]:
        if self._stored_objects:
            yield from self._stream(start_bytes, self.size_bytes)
        elif start_bytes < self.size_bytes:
            yield self._data[start_bytes:]

    def _stream(self, start: int, end: int) -> Iterator[Bytes]:
        """Yield the bytes of objects; verify each object that is read completely."""
        max_bytes = BLOCK_BYTES if self._is_remote else _LOCAL_BLOCK_BYTES
        reads = (
            (partial(self._read_block, number, position_in_object, size), size)
            for number, position_in_object, size in self._split_range(start, end, max_bytes)
        )
        blocks = read_ahead(reads) if self._is_remote else (read() for read, _ in reads)
        crc32 = None
        for number, position_in_object, size in self._split_range(start, end, max_bytes):
            data = next(blocks)
            stored_object = self._stored_objects[number]
            if position_in_object == 0:
                crc32, self._unverified = 0, number
            if crc32 is not None:
                crc32 = zlib_ng.crc32(data, crc32)
                if position_in_object + size == stored_object.size_bytes:
                    self._verify_crc32(stored_object, crc32)
                    crc32, self._unverified = None, None
            yield data

    def _read_block(self, number: int, start: int, size: int) -> Bytes:
        return self._read_object(self._stored_objects[number], [start], [start + size])[0]

    def read_remaining_objects(self) -> Iterator[SurvivingObject]:
        """Yield the remaining bytes of each object, at most as many as its manifest lists."""
        for stored_object in self._stored_objects:
            data, error = b"", None
            try:
                data = self._store.read(self._object_path(stored_object))
                if len(data) != stored_object.size_bytes:
                    self._refuse_altered(stored_object)
                self._verify_crc32(stored_object, zlib_ng.crc32(data))
            except FileNotFoundError:
                error = self._missing_error(stored_object)
            except CorruptObjectError as corruption:
                error = corruption
            yield SurvivingObject(stored_object, data[: stored_object.size_bytes], error)

    def changed(self) -> None:
        """Return None, since objects never change.

        If a stream stopped within an object, for example at corrupt batches, the object is verified
        first.
        """
        number, self._unverified = self._unverified, None
        if number is not None:
            for _ in self._stream(self._starts[number], self._starts[number + 1]):
                pass

    def close(self) -> None: ...

    def _split_range(self, start: int, end: int, max_bytes: int) -> Iterator[tuple[int, int, int]]:
        """Yield the parts of a range: object number, position in the object, and size."""
        number = bisect_right(self._starts, start) - 1
        while start < end:
            position_in_object = start - self._starts[number]
            size = min(max_bytes, end - start, self._starts[number + 1] - start)
            yield number, position_in_object, size
            start += size
            number += start == self._starts[number + 1]

    def _read_objects(
        self, requests: dict[int, list[tuple[int, int, int]]]
    ) -> Iterator[list[Bytes]]:
        """Yield the ranges of each object; small ranges are read concurrently."""
        reads = []
        for number, ranges in requests.items():
            _, starts, ends = zip(*ranges, strict=True)
            reads.append(partial(self._read_and_verify, self._stored_objects[number], starts, ends))
        sizes = [ranges[0][2] - ranges[0][1] for ranges in requests.values() if len(ranges) == 1]
        are_small = len(sizes) == len(reads) > 1 and max(sizes) <= BLOCK_BYTES
        if self._is_remote and are_small:
            single_reads = (
                (partial(_read_single, read), size) for read, size in zip(reads, sizes, strict=True)
            )
            yield from ([data] for data in read_ahead(single_reads))
        else:
            yield from (read() for read in reads)

    def _read_and_verify(
        self, stored_object: LogChunk | KeptFile, starts: Sequence[int], ends: Sequence[int]
    ) -> list[Bytes]:
        blocks = self._read_object(stored_object, starts, ends)
        for start, end, data in zip(starts, ends, blocks, strict=True):
            if start == 0 and end == stored_object.size_bytes:
                self._verify_crc32(stored_object, zlib_ng.crc32(data))
        return blocks

    def _read_object(
        self, stored_object: LogChunk | KeptFile, starts: Sequence[int], ends: Sequence[int]
    ) -> list[Bytes]:
        """Return ranges of an object, without verification."""
        path = self._object_path(stored_object)
        try:
            # An object store needs no request before the first read.
            info = None if self._store.has_rename else FileInfo(path, stored_object.size_bytes, 0)
            with closing(self._store.open(path, info)) as source:
                if source.size_bytes != stored_object.size_bytes:
                    raise self._altered_error(
                        stored_object, stored_object.size_bytes, source.size_bytes, "bytes"
                    )
                if not isinstance(source, MappedFile):
                    return source.read_ranges(starts, ends)
                # Copied, because the source is closed before the bytes are used.
                blocks = [
                    np.empty(end - start, np.uint8) for start, end in zip(starts, ends, strict=True)
                ]
                for start, data in zip(starts, blocks, strict=True):
                    if source.read_into(start, data) < len(data):
                        raise ReadError("the object was truncated while it was read", path=path)
                return blocks
        except CorruptObjectError:
            raise
        except KafkaIndexError as error:
            self._refuse_altered(stored_object)
            raise error from None

    def _refuse_altered(self, stored_object: LogChunk | KeptFile) -> None:
        """Raise `CorruptObjectError` if an unreadable object is missing or altered."""
        path = self._object_path(stored_object)
        try:
            size_bytes = self._store.info(path).size_bytes
        except FileNotFoundError:
            raise self._missing_error(stored_object) from None
        if size_bytes != stored_object.size_bytes:
            raise self._altered_error(stored_object, stored_object.size_bytes, size_bytes, "bytes")

    def _missing_error(self, stored_object: LogChunk | KeptFile) -> CorruptObjectError:
        return CorruptObjectError(
            f"an object of backup {self._backup_id} is missing",
            path=self._object_path(stored_object),
            expected=f"{stored_object.size_bytes} bytes",
            found="no object",
        )

    def _verify_crc32(self, stored_object: LogChunk | KeptFile, crc32: int) -> None:
        if crc32 != stored_object.crc32:
            raise self._altered_error(
                stored_object, f"{stored_object.crc32:08x}", f"{crc32:08x}", "as CRC-32"
            )

    def _object_path(self, stored_object: LogChunk | KeptFile) -> str:
        return f"{self._folder}/{stored_object.object_name}"

    def _altered_error(
        self, stored_object: LogChunk | KeptFile, expected: object, actual: object, unit: str
    ) -> CorruptObjectError:
        return CorruptObjectError(
            f"an object of backup {self._backup_id} is altered",
            path=self._object_path(stored_object),
            expected=f"{expected} {unit}",
            found=f"{actual} {unit}",
        )


def _read_single(read: Callable[[], list[Bytes]]) -> Bytes:
    return read()[0]


class BackupStore(ReadOnlyStore):
    """The backups in a store as read-only data directories.

    `objects` is the store that holds the repositories.
    """

    _DESCRIPTION = "backups are"

    def __init__(self, objects: Store) -> None:
        self._store = objects
        self._backups: OrderedDict[tuple[str, str], Backup] = OrderedDict()
        self._lock = threading.Lock()

    def backup(self, path: str) -> tuple[Backup, str]:
        """Return the backup that contains a path, and the path relative to the backup.

        Raises the errors of `Backup`, and `InputError` if the path is in no backup.
        """
        backup_path = parse_backup_path(path)
        if backup_path is None:
            raise InputError(
                "the path does not point into a backup",
                path=path,
                expected="backup:REPOSITORY, or backup:REPOSITORY@TIME",
            )
        key = backup_path.root, backup_path.backup_id
        with self._lock:
            backup = self._backups.get(key)
            if backup is None:
                backup = self._backups[key] = Backup(
                    Repository(backup_path.root, self._store), backup_path.backup_id
                )
            self._backups.move_to_end(key)
            while len(self._backups) > _MAX_BACKUPS:
                self._backups.popitem(last=False)
        return backup, backup_path.below

    def info(self, path: str) -> FileInfo:
        backup, file = self._find_file(path)
        return FileInfo(path, file.size_bytes, backup.mtime_ns)

    def open(self, path: str, info: FileInfo | None = None) -> ByteSource:  # noqa: ARG002, a file of a backup never changes
        try:
            backup, file = self._find_file(path)
        except FileNotFoundError:
            raise InputError(
                "cannot open the file: the backup does not contain it", path=path
            ) from None
        return JoinedFile(path, backup, file)

    def read(self, path: str, max_bytes: int | None = None) -> bytes:
        backup, file = self._find_file(path)
        size = file.size_bytes if max_bytes is None else max_bytes
        return JoinedFile(path, backup, file).read_at(0, size).tobytes()

    def list_directory(self, path: str) -> list[DirectoryEntry]:
        backup, relative_path = self.backup(path)
        files = backup.directory(relative_path) if relative_path else backup.root_files
        top = path.rstrip("/")
        entries = [
            DirectoryEntry(f"{top}/{name}", size_bytes=file.size_bytes, mtime_ns=backup.mtime_ns)
            for name, file in files.items()
        ]
        if not relative_path:
            entries += [
                DirectoryEntry(f"{top}/{name}", is_directory=True) for name in backup.partitions
            ]
        return sorted(entries, key=lambda entry: entry.path)

    def list_tree(self, path: str) -> Iterator[pa.RecordBatch]:
        return list_by_directory(self, path)

    def _find_file(self, path: str) -> tuple[Backup, BackupFile]:
        backup, relative_path = self.backup(path)
        file = backup.file(relative_path)
        if file is None:
            raise FileNotFoundError(path)
        return backup, file
