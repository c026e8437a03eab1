"""The objects of a repository of backups: their names, and the manifests by which a run is whole.

::

    {root}/kafka-index-backup.json                            a `RepositoryFile`
    {root}/data/{topic}-{partition}-{topic id}/{base offset}-{hash}.log      a `Piece`
    {root}/data/{topic}-{partition}-{topic id}/{stem}-{hash}{suffix}         a `KeptFile`
    {root}/runs/{run}/{node id}.json.zst                      a `Manifest`
    {root}/heads/{run}/{node id}.json.zst                     a `Head`, put after its `Manifest`
    {root}/expired/{run}/{node id}.json.zst                   a `Manifest` of a run that has expired
    {root}/announced/{time}-{token}.json.zst                  an `Announcement`
    {root}/damaged/{topic}-{partition}-{topic id}/{object}    an empty mark of a damaged object
    {root}/barriers/{number}/...                              how brokers met (`backup.barrier`)

Every object is put where there is none, and written again with the same bytes only. A piece is
whole record batches, so that it is a segment by itself; its name has the first 22 characters of the
URL-safe base64 of its SHA-256. A run is named for the time at which it was opened, in UTC. The
manifest of a broker is put last, and names only objects that are there: until then the broker is
not in the run. By its head it is known afterwards that it was there.
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
from kafka_index.core.fs.backup.backup_paths import RUN_PATTERN

FORMAT: Final = 2
DATA_FOLDER: Final = "data"
RUNS_FOLDER: Final = "runs"
HEADS_FOLDER: Final = "heads"
#: Folder of the manifests that have expired, laid out as that of the runs is.
EXPIRED_FOLDER: Final = "expired"
ANNOUNCED_FOLDER: Final = "announced"
DAMAGED_FOLDER: Final = "damaged"
BARRIERS_FOLDER: Final = "barriers"
MANIFEST_SUFFIX: Final = ".json.zst"
#: The largest piece.
MAX_PIECE_BYTES: Final = 64 << 20
#: The largest segment that pieces are joined to: Kafka's default of segment.bytes.
MAX_SEGMENT_BYTES = 1 << 30

_HASH_CHARACTERS = 22
_RUN = re.compile(RUN_PATTERN)
_MANIFEST = re.compile(rf"(0|[1-9][0-9]{{0,9}}){re.escape(MANIFEST_SUFFIX)}")
_MAX_MANIFEST_BYTES = 1 << 30
# A manifest has hashes, inodes and times, which hardly compress: what unpacks to more was forged.
_MAX_RATIO, _UNBOUNDED_BYTES = 200, 16 << 20

RunName = Annotated[str, msgspec.Meta(pattern=rf"^{RUN_PATTERN}\Z")]
Header = Annotated[
    bytes, msgspec.Meta(min_length=LOG_OVERHEAD_BYTES, max_length=RECORD_BATCH_OVERHEAD_BYTES)
]


class _Formatted(msgspec.Struct, frozen=True, kw_only=True):
    """An object that says which format it has."""

    format: int = FORMAT


_Object = TypeVar("_Object", bound=_Formatted)


class RepositoryFile(_Formatted, frozen=True, kw_only=True):
    """The file that makes a folder a repository: of which cluster, and which brokers are expected.

    Without `brokers`, a run expects the brokers of the run before it.
    """

    cluster_id: str
    brokers: tuple[Int32, ...] = ()


class Head(_Formatted, frozen=True, kw_only=True):
    """The hash of a manifest that was put, and the brokers that it expects in its run."""

    brokers: tuple[Int32, ...]
    sha256: Sha256


class Announcement(_Formatted, frozen=True, kw_only=True):
    """The names of objects that an expiring is about to delete, by their folders."""

    names: dict[str, tuple[str, ...]]


class Piece(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A run of whole batches, by the first and the last of their offsets.

    Reads compare the CRC-32, which costs nothing beside them; the hash is for the name, and for
    `commands.backup.repository_check`. Batches have checksums of another polynomial besides.
    """

    base_offset: Offset
    last_offset: Offset
    size_bytes: Size
    sha256: Sha256
    crc32: Crc32

    @property
    def object_name(self) -> str:
        """Name of the object in the folder of its partition."""
        return f"{self.base_offset:0{OFFSET_DIGITS}d}-{short_hash(self.sha256)}{LOG_SUFFIX}"


class KeptFile(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A small file of a partition that is kept as it is, such as a snapshot of the metadata log."""

    name: FileName
    size_bytes: Size
    sha256: Sha256
    crc32: Crc32

    @property
    def object_name(self) -> str:
        """Name of the object in the folder of its partition."""
        stem, dot, suffix = self.name.rpartition(".")
        if not dot:
            stem, suffix = self.name, ""
        return f"{stem}-{short_hash(self.sha256)}{dot}{suffix}"


class SeenSegment(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A segment as the broker had it, by which the next run sees that it is unchanged.

    `covered_bytes` were in pieces; inode, ctime and size together say whether a file is the same,
    as the cleaner keeps the time of modification. `is_done`: no batch comes after them.
    """

    base_offset: Offset
    device: int
    inode: int
    ctime_ns: int
    size_bytes: Size
    covered_bytes: Size
    is_done: bool = False


class PartitionBackup(msgspec.Struct, frozen=True, kw_only=True):
    """A partition in a manifest; ends of offsets are exclusive.

    The pieces ascend and do not overlap; those of a log that is not compacted are without gaps.
    `end_offset` is at most the high watermark. All batches below `settled_offset` were appended
    before the run had cut anything, so `__transaction_state` of the run knows of them. The epochs
    are pairs of an epoch and its start offset. The snapshot has the producers before the first
    piece. `last_header` is the header of the last batch, by which the next run sees that the log
    goes on where it ended. `seen_directory` is device, inode and ctime of the directory where all
    that is in it is here: while it has them, only the last log can have changed.
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
    pieces: tuple[Piece, ...] = ()
    files: tuple[KeptFile, ...] = ()
    segments: tuple[SeenSegment, ...] = ()
    last_header: Header | None = None
    seen_directory: tuple[int, int, int] | None = None

    @property
    def topic_partition(self) -> TopicPartition:
        """Topic and partition."""
        return TopicPartition(self.topic, self.partition)

    @property
    def objects(self) -> tuple[Piece | KeptFile, ...]:
        """All that is stored of it: its pieces, and files that are kept as they are."""
        return (*self.pieces, *self.files)

    @property
    def folder(self) -> str:
        """Folder of its objects below the root of the repository."""
        return partition_folder(self.topic_partition, self.topic_id)


class Missed(msgspec.Struct, frozen=True, kw_only=True):
    """A partition that the run could not take, and why; `runs` in a row have missed it."""

    topic: Topic
    partition: Int32
    topic_id: TopicId | None
    reason: str
    runs: Int32


class DataDirectory(msgspec.Struct, frozen=True, kw_only=True):
    """A data directory of the broker, and its ``meta.properties``."""

    path: str
    meta_properties: str


class Cut(msgspec.Struct, frozen=True, kw_only=True):
    """The times of a cut, in milliseconds since the epoch.

    `__transaction_state` and `__consumer_offsets` were cut by `coordinators_cut_ms`, and nothing
    else before `others_begun_ms`: over all brokers of a run the greatest of the first has to be
    before the least of the second (`is_consistent`), by clocks that may differ. The brokers in
    `met` are known to have cut both topics before this broker cut anything else.
    """

    begun_ms: TimeMs
    coordinators_cut_ms: TimeMs
    others_begun_ms: TimeMs
    ended_ms: TimeMs
    high_watermarks_ms: TimeMs
    high_watermarks_from: str
    met: tuple[Int32, ...] = ()


class Manifest(_Formatted, frozen=True, kw_only=True):
    """The part of a run that one broker has; it is whole, not a difference to an earlier run."""

    run: RunName
    cluster_id: str
    node_id: Int32
    brokers: tuple[Int32, ...]
    cut: Cut
    directories: tuple[DataDirectory, ...]
    partitions: tuple[PartitionBackup, ...]
    missed: tuple[Missed, ...] = ()
    new_bytes: Size = 0
    tool_version: str = ""


def joined_pieces(partition: PartitionBackup) -> Iterator[tuple[Piece, ...]]:
    """Yield the pieces of each segment of a log.

    A segment begins where the broker had one begin since the piece before, and where pieces would
    be too large together, or too far from its base.
    """
    bases = sorted(each.base_offset for each in partition.segments)
    joined: list[Piece] = []
    size = home = 0
    for piece in partition.pieces:
        own = bisect_right(bases, piece.base_offset)
        is_full = joined and (
            size + piece.size_bytes > MAX_SEGMENT_BYTES
            or piece.last_offset - joined[0].base_offset > INT32_MAX
        )
        if joined and (own != home or is_full):
            yield tuple(joined)
            joined, size = [], 0
        joined.append(piece)
        size += piece.size_bytes
        home = own
    if joined:
        yield tuple(joined)


def is_consistent(manifests: Sequence[Manifest]) -> bool:
    """Return whether transactions and groups are the same in all manifests of a run.

    Each broker has met all others, or else the clocks have to show it.
    """
    if len(manifests) <= 1:
        return True
    nodes = {each.node_id for each in manifests}
    if all(nodes <= {*each.cut.met} for each in manifests):
        return True
    first_ms = max(each.cut.coordinators_cut_ms for each in manifests)
    return first_ms < min(each.cut.others_begun_ms for each in manifests)


def partition_folder(partition: TopicPartition, topic_id: str) -> str:
    """Return the folder of a partition's objects below the root of a repository."""
    return f"{DATA_FOLDER}/{partition.directory_name}-{topic_id}"


def missing_brokers(manifests: Sequence[Manifest]) -> list[int]:
    """Return the brokers that manifests of a run name, and that have none among them."""
    expected = {node_id for each in manifests for node_id in each.brokers}
    return sorted(expected - {each.node_id for each in manifests})


def cut_time(manifests: Iterable[Manifest]) -> int:
    """Return when a run was cut, in milliseconds since the epoch: when its last broker began to.

    All that was acknowledged at a broker before it began is in the run. The name of a run has the
    time of its opening, which is before that by as long as brokers waited for each other.
    """
    return max(each.cut.begun_ms for each in manifests)


def run_name(time_ms: int) -> str:
    """Return the name of a run that is opened at a time: ``20261120T120000.123Z``."""
    return f"{datetime.fromtimestamp(time_ms // 1000, UTC):%Y%m%dT%H%M%S}.{time_ms % 1000:03d}Z"


def run_time(name: str) -> int:
    """Return the time of a run's name, in milliseconds since the epoch."""
    whole = datetime.strptime(name[:15], "%Y%m%dT%H%M%S").replace(tzinfo=UTC)
    return int(whole.timestamp()) * 1000 + int(name[16:19])


def is_run_name(name: str) -> bool:
    """Return whether a run can have this name, which is a time."""
    with suppress(ValueError):
        return _RUN.fullmatch(name) is not None and run_time(name) >= 0
    return False


def short_hash(sha256: str) -> str:
    """Return the characters of a hash, in hex, that names of objects have."""
    encoded = base64.urlsafe_b64encode(bytes.fromhex(sha256)).decode()
    return encoded[:_HASH_CHARACTERS]


def hash_of(data: bytes | memoryview) -> str:
    """Return the SHA-256 of bytes, in hex."""
    return hashlib.sha256(data).hexdigest()


def content_of(data: bytes | memoryview) -> tuple[int, str, int]:
    """Return what manifests say of the bytes of an object: size, SHA-256 in hex, and CRC-32."""
    return len(data), hash_of(data), zlib_ng.crc32(data)


def manifest_path(root: str, run: str, node_id: int, folder: str = RUNS_FOLDER) -> str:
    """Return the path of a manifest in the repository with this root."""
    return f"{root}/{folder}/{run}/{node_id}{MANIFEST_SUFFIX}"


def manifest_node(name: str) -> int | None:
    """Return the broker whose manifest has this name in a run; None for other objects."""
    match = _MANIFEST.fullmatch(name)
    return int(match[1]) if match is not None and int(match[1]) <= INT32_MAX else None


def encode(value: _Formatted) -> bytes:
    """Return the bytes of a repository's file, or of what is compressed."""
    data = msgspec.json.encode(value)
    if isinstance(value, RepositoryFile):
        return msgspec.json.format(data) + b"\n"
    return zstandard.ZstdCompressor().compress(data)


def parse_repository_file(data: bytes, path: str) -> RepositoryFile:
    """Return what a repository's file says; raises the errors of `parse_manifest`."""
    return _decoded(data, path, RepositoryFile, "the file of a repository")


def parse_manifest(data: bytes, path: str) -> Manifest:
    """Return what a manifest says.

    Raises `CorruptObjectError` if it is cut or altered, or contradicts itself, and `InputError` if
    it has a later format.
    """
    found = _decoded(data, path, Manifest, "a manifest")
    for each in found.partitions:
        _check_partition(each, len(found.directories), path)
    return found


def parse_head(data: bytes, path: str) -> Head:
    """Return the fields of a head; raises the errors of `parse_manifest`."""
    return _decoded(data, path, Head, "a head")


def parse_announcement(data: bytes, path: str) -> Announcement:
    """Return what an announcement says; raises the errors of `parse_manifest`."""
    return _decoded(data, path, Announcement, "an announcement")


def _decoded(data: bytes, path: str, kind: type[_Object], what: str) -> _Object:
    try:
        text = data if kind is RepositoryFile else _decompressed(data, path, what)
        found = decoder_of(kind).decode(text)
    except (zstandard.ZstdError, *MALFORMED) as error:
        raise CorruptObjectError(f"not {what} of backups: {error}", path=path) from error
    if found.format != FORMAT:
        raise InputError(
            "a repository of another format", path=path, expected=FORMAT, found=found.format
        )
    return found


def _decompressed(data: bytes, path: str, what: str) -> bytes:
    size = zstandard.frame_content_size(data)
    most = min(max(_UNBOUNDED_BYTES, _MAX_RATIO * len(data)), _MAX_MANIFEST_BYTES)
    if not 0 <= size <= most:
        raise CorruptObjectError(
            f"{what} of an impossible size",
            path=path,
            expected=f"at most {most} bytes out of {len(data)}",
            found=size,
        )
    return zstandard.ZstdDecompressor().decompress(data, max_output_size=size)


def _check_partition(partition: PartitionBackup, directories: int, path: str) -> None:
    """Raise `CorruptObjectError` if what a manifest says of a partition cannot be."""
    name = partition.topic_partition.directory_name
    if not 0 <= partition.directory < directories:
        raise CorruptObjectError(
            f"{name}: its directory is not in the manifest",
            path=path,
            expected=f"0 to {directories - 1}",
            found=partition.directory,
        )
    next_offset = 0
    for piece in partition.pieces:
        if piece.base_offset < next_offset or piece.last_offset < piece.base_offset:
            raise CorruptObjectError(
                f"{name}: its pieces do not ascend",
                path=path,
                expected=f"a piece from {next_offset} on",
                found=f"{piece.base_offset} to {piece.last_offset}",
            )
        next_offset = piece.last_offset + 1
    if next_offset > partition.end_offset or partition.start_offset > partition.end_offset:
        raise CorruptObjectError(
            f"{name}: its offsets end before its pieces, or before they begin",
            path=path,
            expected=f"{partition.start_offset} to {max(next_offset, partition.start_offset)}",
            found=partition.end_offset,
        )
