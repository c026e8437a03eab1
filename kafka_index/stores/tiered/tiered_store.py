"""Remote segments as files: the log and the indexes of each, by the paths of `segment_paths`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NoReturn

import pyarrow as pa

from kafka_index.errors import CorruptObjectError, InputError, KafkaIndexError
from kafka_index.layout.names import LOG_SUFFIX
from kafka_index.stores.store import ByteSource, DirectoryEntry, FileInfo, ReadOnlyStore, Store
from kafka_index.stores.tiered.chunked_log import ChunkCache, ChunkedLog, LimitedLog, RecentCache
from kafka_index.stores.tiered.encryption import Decryption, KeyRing
from kafka_index.stores.tiered.manifest import SegmentManifest, parse_manifest
from kafka_index.stores.tiered.segment_paths import Layout, parse_segment_path

MANIFEST_SUFFIX = ".rsm-manifest"
INDEXES_SUFFIX = ".indexes"

_MAX_MANIFESTS = 1024
# The indexes of a segment are asked for one after the other; whoever needs them longer keeps them.
_MAX_INDEXES = 16
_CHUNKS_BYTES = 64 << 20


class TieredStore(ReadOnlyStore):
    """The segments of a store of Aiven's plugin, or of LocalTieredStorage; read-only.

    The layout is that of the objects, and the keys are for encrypted segments.
    """

    _NAME = "tiered storage is"

    def __init__(self, layout: Layout, objects: Store, keys: KeyRing) -> None:
        self._layout = layout
        self._objects = objects
        self._keys = keys
        self._segments: RecentCache[str, tuple[SegmentManifest, Decryption | None]]
        self._segments = RecentCache(_MAX_MANIFESTS)
        self._indexes: RecentCache[str, bytes] = RecentCache(_MAX_INDEXES)
        self._chunks: ChunkCache = RecentCache(_CHUNKS_BYTES, len)

    def info(self, path: str) -> FileInfo:
        """Return the size of a file of a segment, and its object's modification time."""
        source = self.open(path)
        try:
            return FileInfo(path, source.size_bytes, source.mtime_ns)
        finally:
            source.close()

    def open(self, path: str, info: FileInfo | None = None) -> ByteSource:
        """Open a log; the indexes are read whole, by `read`.

        Raises `CorruptObjectError` if its objects contradict each other, or the listing.
        """
        file = parse_segment_path(path)
        if file.file_suffix != LOG_SUFFIX:
            raise InputError("an index of a remote segment is read whole", path=path)
        stored = self._objects.open(file.name + LOG_SUFFIX)
        try:
            log = stored
            if self._layout is Layout.AIVEN:
                log = ChunkedLog(path, stored, *self._segment(file.name), self._chunks)
            if file.limit_bytes is not None:
                return LimitedLog(path, log, file.limit_bytes)
            if info is not None and info.size_bytes != log.size_bytes:
                raise CorruptObjectError(
                    "the log of the segment has another size than was recorded of its upload",
                    path=stored.path,
                    expected=info.size_bytes,
                    found=log.size_bytes,
                )
        except KafkaIndexError:
            stored.close()
            raise
        return log

    def read(self, path: str, max_bytes: int | None = None) -> bytes:
        """Return an index, or the first bytes of it.

        Raises `FileNotFoundError` if the segment has no such index, and `CorruptObjectError` if its
        objects contradict each other.
        """
        file = parse_segment_path(path)
        if file.file_suffix == LOG_SUFFIX:
            source = self.open(path)
            try:
                size = source.size_bytes if max_bytes is None else max_bytes
                return source.read_at(0, size).tobytes()
            finally:
                source.close()
        if file.limit_bytes is not None:
            raise FileNotFoundError(path)
        if self._layout is Layout.LOCAL:
            return self._objects.read(file.name + file.file_suffix, max_bytes)
        return self._read_index(file.name, file.file_suffix)[:max_bytes]

    def list_directory(self, path: str) -> list[DirectoryEntry]:
        """Refuse: segments are listed from the store itself."""
        self._unsupported(path)

    def list_tree(self, path: str) -> Iterator[pa.RecordBatch]:
        """Refuse: segments are listed from the store itself."""
        self._unsupported(path)

    def manifest(self, name: str) -> SegmentManifest:
        """Return the manifest of a segment, by the path of its objects without suffix."""
        return self._segment(name)[0]

    def _segment(self, name: str) -> tuple[SegmentManifest, Decryption | None]:
        found = self._segments.get(name)
        if found is not None:
            return found
        manifest = read_manifest(self._objects, name)
        decryption = None
        if manifest.encryption is not None:
            decryption = self._keys.open(manifest.encryption, manifest.path)
        self._segments.put(name, (manifest, decryption))
        return manifest, decryption

    def _read_index(self, name: str, suffix: str) -> bytes:
        manifest, decryption = self._segment(name)
        index = manifest.indexes.get(suffix)
        if index is None:
            raise FileNotFoundError(name + suffix)
        if not index.size_bytes:
            return b""
        path = name + INDEXES_SUFFIX
        data = self._indexes_object(path)
        if len(data) != manifest.indexes_size_bytes:
            raise CorruptObjectError(
                "the indexes object has another size than its manifest says",
                path=path,
                expected=manifest.indexes_size_bytes,
                found=len(data),
            )
        piece = data[index.position_bytes : index.position_bytes + index.size_bytes]
        if decryption is None:
            return piece
        try:
            return decryption.decrypt(piece)
        except ValueError as error:
            raise CorruptObjectError(
                f"the {suffix[1:]} of the segment cannot be read: {error}",
                path=path,
                position_bytes=index.position_bytes,
            ) from error

    def _indexes_object(self, path: str) -> bytes:
        """Return all indexes of a segment: one request for all costs what one for each would."""
        kept = self._indexes.get(path)
        if kept is not None:
            return kept
        try:
            data = self._objects.read(path)
        except FileNotFoundError:
            raise CorruptObjectError("the indexes of the segment are missing", path=path) from None
        self._indexes.put(path, data)
        return data

    @staticmethod
    def _unsupported(path: str) -> NoReturn:
        raise InputError("the files of a remote segment cannot be listed", path=path)


def read_manifest(objects: Store, name: str) -> SegmentManifest:
    """Read the manifest of a segment, by the path of its objects without suffix.

    Raises `CorruptObjectError` if it is missing, damaged, or that of another segment, and
    `InputError` for another version.
    """
    path = name + MANIFEST_SUFFIX
    try:
        manifest = parse_manifest(objects.read(path), path)
    except FileNotFoundError:
        raise CorruptObjectError("the segment has no manifest", path=path) from None
    named = (
        f"{manifest.topic}-{manifest.topic_id}/{manifest.partition}/"
        f"{manifest.start_offset:020d}-{manifest.segment_id}"
    )
    if not name.endswith(named):
        raise CorruptObjectError(
            "the manifest is that of another segment", path=path, expected=name, found=named
        )
    return manifest
