"""The objects of a backup repository, their names, and the manifests that make a backup complete.

::

    {root}/kafka-index-backup.json                            a `RepositoryFile`
    {root}/data/{topic}-{partition}-{topic id}/{base offset}-{hash}.log      a `LogChunk`
    {root}/data/{topic}-{partition}-{topic id}/{stem}-{hash}{suffix}         a `KeptFile`
    {root}/runs/{backup ID}/{node id}.json.zst                a `Manifest`
    {root}/heads/{backup ID}/{node id}.json.zst               a `Head`, put after its `Manifest`
    {root}/expired/{backup ID}/{node id}.json.zst             an expired `Manifest`
    {root}/announced/{time}-{token}.json.zst                  an `Announcement`
    {root}/damaged/{topic}-{partition}-{topic id}/{object}    an empty mark of a damaged object
    {root}/barriers/{number}/...                              see `commands.backup.barrier`

An object is put only if its name is free; writing the name again writes the same bytes. A log chunk
consists of complete record batches, so that it is a segment by itself. Its name contains the first
22 characters of the URL-safe base64 of its SHA-256. A backup ID is the time at which the backup was
opened, in UTC. The manifest of a broker is put last, and lists only objects that exist: until then
the broker is not in the backup. If the manifest is lost later, its head shows that it existed.

The field names in manifests and the folder name ``runs`` are those of format 2. They differ from
the Python names: a backup was called a run, a chunk a piece, a capture a cut, and a skipped
partition missed.
"""

from __future__ import annotations

import base64
import hashlib
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Annotated, Final, TypeVar

import msgspec
import zstandard
from zlib_ng import zlib_ng

from kafka_index.core.errors import CorruptObjectError, InputError
from kafka_index.core.format.integers import INT32_MAX
from kafka_index.core.format.names import LOG_SUFFIX, OFFSET_DIGITS, TopicPartition
from kafka_index.core.format.records import LOG_OVERHEAD_BYTES, RECORD_BATCH_OVERHEAD_BYTES
from kafka_index.core.format.state_files import (
    MALFORMED,
    Crc32,
    FileName,
    Int32,
    Offset,
    Sha256,
    Size,
    TimeMs,
    Topic,
    TopicId,
    decoder_of,
)
from kafka_index.core.fs.uris import BACKUP_ID_PATTERN

FORMAT: Final = 2
DATA_FOLDER: Final = "data"
BACKUPS_FOLDER: Final = "runs"
HEADS_FOLDER: Final = "heads"
#: Folder of expired manifests, with the same object names as in `BACKUPS_FOLDER`.
EXPIRED_FOLDER: Final = "expired"
ANNOUNCED_FOLDER: Final = "announced"
DAMAGED_FOLDER: Final = "damaged"
BARRIERS_FOLDER: Final = "barriers"
MANIFEST_SUFFIX: Final = ".json.zst"
#: Maximum size of a chunk, unless a single batch is larger.
MAX_CHUNK_BYTES: Final = 64 << 20
#: Maximum size of a segment that readers join from chunks: Kafka's default for segment.bytes.
MAX_SEGMENT_BYTES = 1 << 30

_HASH_CHARACTERS = 22
_BACKUP_ID = re.compile(BACKUP_ID_PATTERN)
_MANIFEST = re.compile(rf"(0|[1-9][0-9]{{0,9}}){re.escape(MANIFEST_SUFFIX)}")
_MAX_MANIFEST_BYTES = 1 << 30
# A manifest consists mostly of hashes, inodes and times, which hardly compress: a file with a
# higher ratio is forged.
_MAX_COMPRESSION_RATIO, _ALWAYS_ALLOWED_BYTES = 200, 16 << 20

BackupId = Annotated[str, msgspec.Meta(pattern=rf"^{BACKUP_ID_PATTERN}\Z")]
Header = Annotated[
    bytes, msgspec.Meta(min_length=LOG_OVERHEAD_BYTES, max_length=RECORD_BATCH_OVERHEAD_BYTES)
]


class _VersionedFile(msgspec.Struct, frozen=True, kw_only=True):
    """A JSON file in the repository, with the version number of its format."""

    format: int = FORMAT


_File = TypeVar("_File", bound=_VersionedFile)


class RepositoryFile(_VersionedFile, frozen=True, kw_only=True):
    """The file that marks a folder as a repository: the cluster ID and the expected brokers.

    If `brokers` is empty, a backup expects the same brokers as the previous backup.
    """

    cluster_id: str
    brokers: tuple[Int32, ...] = ()


class Head(_VersionedFile, frozen=True, kw_only=True):
    """The SHA-256 of a manifest, and the brokers that the backup expects."""

    brokers: tuple[Int32, ...]
    sha256: Sha256


class Announcement(_VersionedFile, frozen=True, kw_only=True):
    """The names of objects that an expiration will delete, keyed by folder."""

    names: dict[str, tuple[str, ...]]


class LogChunk(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A range of complete record batches that is stored as one object.

    Readers of a backup verify only the CRC-32, which is cheaper than the SHA-256. ``backups
    verify`` verifies the SHA-256, whose prefix is part of the object name. Record batches contain a
    CRC-32C, which has another polynomial.
    """

    base_offset: Offset
    last_offset: Offset
    size_bytes: Size
    sha256: Sha256
    crc32: Crc32

    @property
    def object_name(self) -> str:
        return f"{self.base_offset:0{OFFSET_DIGITS}d}-{short_hash(self.sha256)}{LOG_SUFFIX}"


class KeptFile(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A small file of a partition directory, stored unchanged, such as a metadata snapshot."""

    name: FileName
    size_bytes: Size
    sha256: Sha256
    crc32: Crc32

    @property
    def object_name(self) -> str:
        stem, dot, suffix = self.name.rpartition(".")
        if not dot:
            stem, suffix = self.name, ""
        return f"{stem}-{short_hash(self.sha256)}{dot}{suffix}"


class SeenSegment(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A segment of the broker: the next backup compares its `.log` file with these values.

    Device, inode, ctime and size identify the content of the file. The modification time does not,
    because the log cleaner preserves it.

    Attributes
    ----------
    covered_bytes : int
        Size of the prefix of the `.log` file that the chunks contain.
    is_done : bool
        Whether no batch follows this prefix.
    """

    base_offset: Offset
    device: int
    inode: int
    ctime_ns: int
    size_bytes: Size
    covered_bytes: Size
    is_done: bool = False


class PartitionBackup(msgspec.Struct, frozen=True, kw_only=True, rename={"chunks": "pieces"}):
    """A partition in a manifest; end offsets are exclusive.

    Attributes
    ----------
    end_offset : int
        End of the stored batches, at most the high watermark.
    settled_offset : int
        Batches below this offset were appended before the backup captured any log. The backup's
        ``__transaction_state`` therefore contains their transactions.
    epochs : tuple of (int, int)
        Leader epochs with their start offsets.
    snapshot : bytes, optional
        Producer snapshot at the base offset of the first chunk.
    chunks : tuple of LogChunk
        In order of offset, without overlaps, and without gaps unless the log is compacted.
    last_header : bytes, optional
        The header of the last stored batch. The next backup searches the log for this header.
    seen_directory : tuple of int, optional
        Device, inode and ctime of the partition directory, if the manifest covers all of its files.
        While the directory has these values, only the active segment can have changed.
    """

    topic: Topic
    partition: Int32
    topic_id: TopicId
    directory: int
    is_leader: bool | None
    is_compacted: bool
    start_offset: Offset
    end_offset: Offset
    high_watermark: Offset
    settled_offset: Offset
    epochs: tuple[tuple[Int32, Offset], ...] = ()
    cleaner_offset: Offset | None = None
    snapshot: bytes | None = None
    chunks: tuple[LogChunk, ...] = ()
    files: tuple[KeptFile, ...] = ()
    segments: tuple[SeenSegment, ...] = ()
    last_header: Header | None = None
    seen_directory: tuple[int, int, int] | None = None

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    @property
    def objects(self) -> tuple[LogChunk | KeptFile, ...]:
        return (*self.chunks, *self.files)

    @property
    def folder(self) -> str:
        return partition_folder(self.topic_partition, self.topic_id)


class SkippedPartition(msgspec.Struct, frozen=True, kw_only=True, rename={"backups": "runs"}):
    """A partition that is not in the backup.

    `backups` is the number of consecutive backups that skipped the partition.
    """

    topic: Topic
    partition: Int32
    topic_id: TopicId | None
    reason: str
    backups: Int32


class DataDirectory(msgspec.Struct, frozen=True, kw_only=True):
    path: str
    meta_properties: str


_CAPTURE_NAMES = {"coordinators_captured_ms": "coordinators_cut_ms", "barrier_members": "met"}


class CaptureTimes(msgspec.Struct, frozen=True, kw_only=True, rename=_CAPTURE_NAMES):
    """The times of a capture, in milliseconds since the epoch.

    ``__transaction_state`` and ``__consumer_offsets`` were captured before
    `coordinators_captured_ms`, and all other topics after `others_begun_ms`. `is_consistent`
    compares these two times between brokers, whose clocks may differ. The brokers in
    `barrier_members` captured these two topics before this broker captured any other topic.
    """

    begun_ms: TimeMs
    coordinators_captured_ms: TimeMs
    others_begun_ms: TimeMs
    ended_ms: TimeMs
    high_watermarks_ms: TimeMs
    high_watermarks_from: str
    barrier_members: tuple[Int32, ...] = ()


_MANIFEST_NAMES = {"backup_id": "run", "capture": "cut", "skipped": "missed"}


class Manifest(_VersionedFile, frozen=True, kw_only=True, rename=_MANIFEST_NAMES):
    """One broker's part of a backup.

    It lists all objects of the broker's partitions, not only those that this backup added.
    """

    backup_id: BackupId
    cluster_id: str
    node_id: Int32
    brokers: tuple[Int32, ...]
    capture: CaptureTimes
    directories: tuple[DataDirectory, ...]
    partitions: tuple[PartitionBackup, ...]
    skipped: tuple[SkippedPartition, ...] = ()
    new_bytes: Size = 0
    tool_version: str = ""


def joined_chunks(partition: PartitionBackup) -> Iterator[tuple[LogChunk, ...]]:
    """Group the chunks of a partition into segments, and yield the chunks of each segment.

    A new segment starts at the base offset of each segment of the broker, and before a chunk that
    would exceed `MAX_SEGMENT_BYTES` or the range of relative offsets.
    """
    base_offsets = sorted(segment.base_offset for segment in partition.segments)
    segment_chunks: list[LogChunk] = []
    size = joined_segment_number = 0
    for chunk in partition.chunks:
        segment_number = bisect_right(base_offsets, chunk.base_offset)
        is_full = segment_chunks and (
            size + chunk.size_bytes > MAX_SEGMENT_BYTES
            or chunk.last_offset - segment_chunks[0].base_offset > INT32_MAX
        )
        if segment_chunks and (segment_number != joined_segment_number or is_full):
            yield tuple(segment_chunks)
            segment_chunks, size = [], 0
        segment_chunks.append(chunk)
        size += chunk.size_bytes
        joined_segment_number = segment_number
    if segment_chunks:
        yield tuple(segment_chunks)


def is_consistent(manifests: Sequence[Manifest]) -> bool:
    """Return whether transactions and committed offsets agree across all manifests of a backup.

    Either all brokers waited for each other at the barrier, or every broker captured the
    coordinators' topics before any broker captured other topics.
    """
    if len(manifests) <= 1:
        return True
    node_ids = {manifest.node_id for manifest in manifests}
    if all(node_ids <= {*manifest.capture.barrier_members} for manifest in manifests):
        return True
    coordinators_ms = max(manifest.capture.coordinators_captured_ms for manifest in manifests)
    return coordinators_ms < min(manifest.capture.others_begun_ms for manifest in manifests)


def partition_folder(partition: TopicPartition, topic_id: str) -> str:
    """Return the folder of a partition's objects below the root of a repository."""
    return f"{DATA_FOLDER}/{partition.directory_name}-{topic_id}"


def missing_brokers(manifests: Sequence[Manifest]) -> list[int]:
    """Return the expected brokers of a backup that have no manifest in the backup."""
    expected_brokers = {node_id for manifest in manifests for node_id in manifest.brokers}
    return sorted(expected_brokers - {manifest.node_id for manifest in manifests})


def cutoff_time(manifests: Iterable[Manifest]) -> int:
    """Return the cutoff time of a backup, in milliseconds since the epoch.

    At the cutoff time, the last broker started to capture its logs. The backup contains all records
    that were acknowledged before this time. The backup ID is the earlier time at which the backup
    was opened.
    """
    return max(manifest.capture.begun_ms for manifest in manifests)


def backup_id_at(time_ms: int) -> str:
    """Return the ID of a backup that is opened at a time, such as ``20261120T120000.123Z``."""
    return f"{datetime.fromtimestamp(time_ms // 1000, UTC):%Y%m%dT%H%M%S}.{time_ms % 1000:03d}Z"


def backup_id_ms(name: str) -> int:
    """Return the opening time in a backup ID, in milliseconds since the epoch."""
    seconds = datetime.strptime(name[:15], "%Y%m%dT%H%M%S").replace(tzinfo=UTC)
    return int(seconds.timestamp()) * 1000 + int(name[16:19])


def is_backup_id(name: str) -> bool:
    with suppress(ValueError):
        return _BACKUP_ID.fullmatch(name) is not None and backup_id_ms(name) >= 0
    return False


def short_hash(sha256: str) -> str:
    """Return the prefix of a SHA-256 that object names contain, in base64."""
    encoded = base64.urlsafe_b64encode(bytes.fromhex(sha256)).decode()
    return encoded[:_HASH_CHARACTERS]


def hash_of(data: bytes | memoryview) -> str:
    """Return the SHA-256 of bytes, in hex."""
    return hashlib.sha256(data).hexdigest()


def content_of(data: bytes | memoryview) -> tuple[int, str, int]:
    """Return the manifest fields that describe an object: size, SHA-256 in hex, and CRC-32."""
    return len(data), hash_of(data), zlib_ng.crc32(data)


def manifest_path(root: str, backup_id: str, node_id: int, folder: str = BACKUPS_FOLDER) -> str:
    return f"{root}/{folder}/{backup_id}/{node_id}{MANIFEST_SUFFIX}"


def manifest_node(name: str) -> int | None:
    """Parse the node ID from the object name of a manifest; None for other object names."""
    match = _MANIFEST.fullmatch(name)
    return int(match[1]) if match is not None and int(match[1]) <= INT32_MAX else None


def encode(value: _VersionedFile) -> bytes:
    """Encode a file of the repository as JSON, compressed unless it is a `RepositoryFile`."""
    data = msgspec.json.encode(value)
    if isinstance(value, RepositoryFile):
        return msgspec.json.format(data) + b"\n"
    return zstandard.ZstdCompressor().compress(data)


def parse_repository_file(data: bytes, path: str) -> RepositoryFile:
    """Parse the content of `REPOSITORY_FILE`; raises the errors of `parse_manifest`."""
    return _decode(data, path, RepositoryFile, "repository file")


def parse_manifest(data: bytes, path: str) -> Manifest:
    """Parse a manifest.

    Raises `CorruptObjectError` if the manifest is truncated, altered or inconsistent, and
    `InputError` if the format is not supported.
    """
    manifest = _decode(data, path, Manifest, "manifest")
    for partition in manifest.partitions:
        _check_partition(partition, len(manifest.directories), path)
    return manifest


def parse_head(data: bytes, path: str) -> Head:
    """Parse a head; raises the errors of `parse_manifest`."""
    return _decode(data, path, Head, "head file")


def parse_announcement(data: bytes, path: str) -> Announcement:
    """Parse an announcement; raises the errors of `parse_manifest`."""
    return _decode(data, path, Announcement, "announcement")


def _decode(data: bytes, path: str, file_type: type[_File], noun: str) -> _File:
    try:
        content = data if file_type is RepositoryFile else _decompress(data, path, noun)
        decoded = decoder_of(file_type).decode(content)
    except (zstandard.ZstdError, *MALFORMED) as error:
        raise CorruptObjectError(f"the {noun} is malformed: {error}", path=path) from error
    if decoded.format != FORMAT:
        raise InputError(
            "the repository has an unsupported format",
            path=path,
            expected=FORMAT,
            found=decoded.format,
        )
    return decoded


def _decompress(data: bytes, path: str, noun: str) -> bytes:
    size_bytes = zstandard.frame_content_size(data)
    max_size_bytes = min(
        max(_ALWAYS_ALLOWED_BYTES, _MAX_COMPRESSION_RATIO * len(data)), _MAX_MANIFEST_BYTES
    )
    if not 0 <= size_bytes <= max_size_bytes:
        raise CorruptObjectError(
            f"the {noun} has an impossible size",
            path=path,
            expected=f"at most {max_size_bytes} bytes from {len(data)} compressed bytes",
            found=size_bytes,
        )
    return zstandard.ZstdDecompressor().decompress(data, max_output_size=size_bytes)


def _check_partition(partition: PartitionBackup, directories: int, path: str) -> None:
    """Raise `CorruptObjectError` if the fields of a partition contradict each other."""
    name = partition.topic_partition.directory_name
    if not 0 <= partition.directory < directories:
        raise CorruptObjectError(
            f"{name}: the manifest has no data directory with this number",
            path=path,
            expected=f"0 to {directories - 1}",
            found=partition.directory,
        )
    next_offset = 0
    for chunk in partition.chunks:
        if chunk.base_offset < next_offset or chunk.last_offset < chunk.base_offset:
            raise CorruptObjectError(
                f"{name}: chunks overlap or are not in offset order",
                path=path,
                expected=f"a chunk at or after offset {next_offset}",
                found=f"{chunk.base_offset} to {chunk.last_offset}",
            )
        next_offset = chunk.last_offset + 1
    if next_offset > partition.end_offset or partition.start_offset > partition.end_offset:
        raise CorruptObjectError(
            f"{name}: the end offset is below the start offset or the end of the chunks",
            path=path,
            expected=f"at least {max(next_offset, partition.start_offset)}",
            found=partition.end_offset,
        )
