"""Remote segments as files: the log and indexes of each, under the paths of `core.fs.uris`.

Encrypted segments have a data key, which is encrypted by RSA-OAEP with SHA3-512, and chunks and
indexes that are encrypted by AES-256-GCM. Each process reads the key files that it needs. Options,
reports and messages never contain key material.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Generic, NoReturn, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa

from kafka_index.core.errors import CorruptObjectError, InputError, KafkaIndexError
from kafka_index.core.format.names import LOG_SUFFIX
from kafka_index.core.fs.store import (
    Bytes,
    ByteSource,
    DirectoryEntry,
    FileInfo,
    ReadOnlyStore,
    Store,
)
from kafka_index.core.fs.tiered.manifest import EncryptedDataKey, SegmentManifest, parse_manifest
from kafka_index.core.fs.uris import Layout, parse_segment_path

if TYPE_CHECKING:
    from Crypto.Cipher.PKCS1_OAEP import PKCS1OAEP_Cipher

_DATA_KEY_BYTES = 32
_IV_BYTES = 12
_TAG_BYTES = 16
#: Size that encryption adds to a chunk.
OVERHEAD_BYTES = _IV_BYTES + _TAG_BYTES
_OPTION = "--tiered-key"


class KeyRing:
    """The private keys (PEM files) of a process by ID, read on first use."""

    def __init__(self, paths: Mapping[str, str]) -> None:
        self._paths = dict(paths)
        self._keys: dict[str, PKCS1OAEP_Cipher] = {}
        self._lock = threading.Lock()

    def open(self, encrypted: EncryptedDataKey, manifest_path: str) -> Decryption:
        """Decrypt the data key of a segment.

        Raises `InputError` if there is no key pair with this ID or its file cannot be read, and
        `CorruptObjectError` if the data key is altered or encrypted with another key pair.
        """
        path = self._paths.get(encrypted.key_id)
        if path is None:
            raise InputError(
                f"the segment is encrypted with the key pair {encrypted.key_id}: "
                f"give its private key, {_OPTION} {encrypted.key_id}=FILE",
                path=manifest_path,
            )
        with self._lock:
            key = self._keys.get(encrypted.key_id)
            if key is None:
                key = self._keys[encrypted.key_id] = read_private_key(path)
        try:
            return Decryption(key.decrypt(encrypted.data_key), encrypted.aad)
        except ValueError:
            raise CorruptObjectError(
                "the data key of the manifest cannot be decrypted: the key pair "
                f"{encrypted.key_id} is not the key pair of {path}, or the manifest was altered",
                path=manifest_path,
                hint=f"check the file of {_OPTION} {encrypted.key_id}=",
            ) from None


class Decryption:
    """Decrypts the chunks and indexes of one segment, with an AES key of 32 bytes.

    `aad` is the additional authenticated data. Raises `ValueError` for a key of another size.
    """

    def __init__(self, data_key: bytes, aad: bytes) -> None:
        if len(data_key) != _DATA_KEY_BYTES:
            raise ValueError(f"an AES key of {len(data_key)} bytes")
        self._data_key = data_key
        self._aad = aad

    def decrypt(self, chunk: bytes | memoryview) -> bytes:
        """Decrypt an IV, a ciphertext and a tag.

        Raises `ValueError` if the tag does not match: the bytes were altered or the key is wrong.
        """
        from Crypto.Cipher import AES  # noqa: PLC0415, an extra

        if len(chunk) < OVERHEAD_BYTES:
            raise ValueError(f"{len(chunk)} bytes are too few for an encrypted chunk")
        cipher = AES.new(self._data_key, AES.MODE_GCM, nonce=chunk[:_IV_BYTES])
        cipher.update(self._aad)
        try:
            return cipher.decrypt_and_verify(chunk[_IV_BYTES:-_TAG_BYTES], chunk[-_TAG_BYTES:])
        except ValueError:
            raise ValueError(
                "its GCM tag does not fit: it was altered, or encrypted with another key"
            ) from None


def read_private_key(path: str) -> PKCS1OAEP_Cipher:
    """Read an RSA private key (PEM, PKCS #8 or PKCS #1, without a passphrase).

    Raises `InputError` if the file cannot be read or has no such key, or if the extra is not
    installed.
    """
    try:
        from Crypto.Cipher import PKCS1_OAEP  # noqa: PLC0415
        from Crypto.Hash import SHA3_512  # noqa: PLC0415
        from Crypto.PublicKey import RSA  # noqa: PLC0415
    except ImportError as error:
        raise InputError(
            f"the library for encrypted segments is not installed ({error.name})",
            path=path,
            hint="pip install 'kafka-index[tiered]'",
        ) from error
    try:
        with open(path, "rb") as file:
            key = RSA.import_key(file.read())
    except OSError as error:
        raise InputError(f"cannot read the private key: {error.strerror}", path=path) from error
    except (ValueError, IndexError, TypeError):
        key = None
    if key is None or not key.has_private():
        # The library's message is not shown, because it may quote the key.
        raise InputError(
            "not an RSA private key that can be read",
            path=path,
            expected="PEM, PKCS #8, without a passphrase",
        )
    return PKCS1_OAEP.new(key, hashAlgo=SHA3_512)


_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


class RecentCache(Generic[_Key, _Value]):
    """A thread-safe LRU cache with a limit for the sum of sizes; the default size is 1."""

    def __init__(self, limit: int, size_of: Callable[[_Value], int] = lambda _: 1) -> None:
        self._limit = limit
        self._size_of = size_of
        self._used = 0
        self._values: OrderedDict[_Key, _Value] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: _Key) -> _Value | None:
        with self._lock:
            if key not in self._values:
                return None
            self._values.move_to_end(key)
            return self._values[key]

    def put(self, key: _Key, value: _Value) -> None:
        """Keep a value; evict the least recently used values if needed."""
        size = self._size_of(value)
        if size > self._limit:
            return
        with self._lock:
            if key in self._values:
                self._used -= self._size_of(self._values.pop(key))
            self._values[key] = value
            self._used += size
            while self._used > self._limit:
                self._used -= self._size_of(self._values.popitem(last=False)[1])


#: Chunks of all logs of a store, keyed by path and number.
ChunkCache: TypeAlias = RecentCache[tuple[str, int], Bytes]


class ChunkedLog:
    """A log stored in transformed chunks, open for reading (`ByteSource`).

    `path` is the path that it was opened with, and `stored` the ``.log`` object. All logs of the
    store share `cache`. `decryption` is given if the chunks are encrypted. Raises
    `CorruptObjectError` if the size of the object differs from its manifest.
    """

    def __init__(
        self,
        path: str,
        stored: ByteSource,
        manifest: SegmentManifest,
        decryption: Decryption | None,
        cache: ChunkCache,
    ) -> None:
        self.path = path
        self.size_bytes = manifest.log_size_bytes
        self.mtime_ns = stored.mtime_ns
        self._stored = stored
        self._chunks = manifest.chunks
        self._is_compressed = manifest.is_compressed
        self._decryption = decryption
        self._cache = cache
        self._check_sizes(manifest)

    def read_at(self, position_bytes: int, size_bytes: int) -> Bytes:
        if position_bytes < 0 or size_bytes < 0:
            raise ValueError(f"negative position or size: {position_bytes}, {size_bytes}")
        end = min(position_bytes + size_bytes, self.size_bytes)
        return self.read_ranges([position_bytes], [max(position_bytes, end)])[0]

    def read_ranges(self, starts: Sequence[int], ends: Sequence[int]) -> list[Bytes]:
        ranges = list(zip(starts, [min(end, self.size_bytes) for end in ends], strict=True))
        needed = sorted({chunk for each in ranges for chunk in self._chunks.within(*each)})
        found = self._read_chunks(needed)
        return [self._join(found, start, end) for start, end in ranges]

    def stream(self, start_bytes: int = 0) -> Iterator[Bytes]:
        first = start_bytes // self._chunks.chunk_size_bytes
        if start_bytes >= self.size_bytes:
            return
        offset = start_bytes - first * self._chunks.chunk_size_bytes
        starts = self._chunks.starts
        blocks = self._stored.stream(int(starts[first]))
        sizes = np.diff(starts[first:]).tolist()
        for chunk, data in enumerate(_regroup(blocks, sizes), start=first):
            yield self._decode(chunk, data)[offset:]
            offset = 0

    def changed(self) -> str | None:
        return self._stored.changed()

    def close(self) -> None:
        self._stored.close()

    def _check_sizes(self, manifest: SegmentManifest) -> None:
        found, expected = self._stored.size_bytes, self._chunks.stored_size_bytes
        if found != expected:
            raise CorruptObjectError(
                f"the log object {'is truncated' if found < expected else 'is too long'}",
                path=self._stored.path,
                expected=f"{expected} bytes, by its manifest",
                found=found,
            )
        if self._is_compressed:
            return
        overhead = OVERHEAD_BYTES if self._decryption is not None else 0
        sizes = self._chunks.starts[1:] - self._chunks.starts[:-1] - overhead
        for chunk, size in enumerate(sizes.tolist()):
            if size != self._chunks.original_size(chunk):
                raise CorruptObjectError(
                    f"the manifest gives chunk {chunk} a size that contradicts its transformation",
                    path=manifest.path,
                    expected=self._chunks.original_size(chunk) + overhead,
                    found=size + overhead,
                )

    def _read_chunks(self, numbers: list[int]) -> dict[int, Bytes]:
        found: dict[int, Bytes] = {}
        missing = []
        for chunk in numbers:
            cached = self._cache.get((self.path, chunk))
            if cached is None:
                missing.append(chunk)
            else:
                found[chunk] = cached
        starts = self._chunks.starts
        stored = self._stored.read_ranges(
            [int(starts[chunk]) for chunk in missing],
            [int(starts[chunk + 1]) for chunk in missing],
        )
        for chunk, data in zip(missing, stored, strict=True):
            found[chunk] = self._decode(chunk, data)
            self._cache.put((self.path, chunk), found[chunk])
        return found

    def _join(self, chunks: dict[int, Bytes], start: int, end: int) -> Bytes:
        size = self._chunks.chunk_size_bytes
        blocks = [
            chunks[chunk][max(start - chunk * size, 0) : end - chunk * size]
            for chunk in self._chunks.within(start, end)
        ]
        if len(blocks) == 1:
            return blocks[0]
        return np.concatenate(blocks) if blocks else np.empty(0, np.uint8)

    def _decode(self, chunk: int, stored: Bytes) -> Bytes:
        data: bytes | memoryview = stored.data
        expected = self._chunks.original_size(chunk)
        try:
            if self._decryption is not None:
                data = self._decryption.decrypt(data)
            if self._is_compressed:
                data = pa.decompress(data, expected, codec="zstd", asbytes=True)
        except (OSError, ValueError) as error:
            reason = "its zstd frame is damaged" if isinstance(error, OSError) else str(error)
            raise self._damaged(chunk, reason) from error
        if len(data) != expected:
            raise self._damaged(chunk, f"it has {len(data)} bytes instead of {expected}")
        return np.frombuffer(data, np.uint8)

    def _damaged(self, chunk: int, reason: str) -> CorruptObjectError:
        return CorruptObjectError(
            f"chunk {chunk} of {self._chunks.count} cannot be read: {reason}",
            path=self._stored.path,
            position_bytes=int(self._chunks.starts[chunk]),
        )


class LimitedLog:
    """The first `size_bytes` of a log (`ByteSource`)."""

    def __init__(self, path: str, log: ByteSource, size_bytes: int) -> None:
        self.path = path
        self.size_bytes = min(size_bytes, log.size_bytes)
        self.mtime_ns = log.mtime_ns
        self._log = log

    def read_at(self, position_bytes: int, size_bytes: int) -> Bytes:
        left = max(self.size_bytes - position_bytes, 0)
        return self._log.read_at(position_bytes, min(size_bytes, left))

    def read_ranges(self, starts: Sequence[int], ends: Sequence[int]) -> list[Bytes]:
        return self._log.read_ranges(starts, [min(end, self.size_bytes) for end in ends])

    def stream(self, start_bytes: int = 0) -> Iterator[Bytes]:
        left = self.size_bytes - start_bytes
        if left <= 0:
            return
        for block in self._log.stream(start_bytes):
            yield block[:left]
            left -= len(block)
            if left <= 0:
                return

    def changed(self) -> str | None:
        return self._log.changed()

    def close(self) -> None:
        self._log.close()


def _regroup(blocks: Iterable[Bytes], sizes: Sequence[int]) -> Iterator[Bytes]:
    waiting: list[Bytes] = []
    have = 0
    source = iter(blocks)
    for size in sizes:
        while have < size:
            block = next(source)
            waiting.append(block)
            have += len(block)
        joined = waiting[0] if len(waiting) == 1 else np.concatenate(waiting)
        yield joined[:size]
        waiting, have = [joined[size:]], have - size


MANIFEST_SUFFIX = ".rsm-manifest"
INDEXES_SUFFIX = ".indexes"

_MAX_MANIFESTS = 1024
# The indexes of a segment are read in succession; readers that need them longer keep them.
_MAX_INDEXES = 16
_CHUNKS_BYTES = 64 << 20


class TieredStore(ReadOnlyStore):
    """The segments in a store of Aiven's plugin or of LocalTieredStorage, read-only.

    `layout` is the object layout; `keys` decrypts encrypted segments.
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
        """Return the size of a segment's file and the modification time of its object."""
        source = self.open(path)
        try:
            return FileInfo(path, source.size_bytes, source.mtime_ns)
        finally:
            source.close()

    def open(self, path: str, info: FileInfo | None = None) -> ByteSource:
        """Open a log.

        Raises `CorruptObjectError` if its objects contradict each other or the listing.
        """
        file = parse_segment_path(path)
        if file.file_suffix != LOG_SUFFIX:
            raise InputError("an index of a remote segment cannot be read in ranges", path=path)
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
        """Return an index, or its first bytes.

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
        """Not supported: segments are listed from the underlying store."""
        self._unsupported(path)

    def list_tree(self, path: str) -> Iterator[pa.RecordBatch]:
        """Not supported: segments are listed from the underlying store."""
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
                "the size of the indexes object differs from its manifest",
                path=path,
                expected=manifest.indexes_size_bytes,
                found=len(data),
            )
        block = data[index.position_bytes : index.position_bytes + index.size_bytes]
        if decryption is None:
            return block
        try:
            return decryption.decrypt(block)
        except ValueError as error:
            raise CorruptObjectError(
                f"the {suffix[1:]} of the segment cannot be read: {error}",
                path=path,
                position_bytes=index.position_bytes,
            ) from error

    def _indexes_object(self, path: str) -> bytes:
        """Return all indexes of a segment; one request for all costs as much as for one."""
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
    """Read the manifest of a segment; `name` is the path of its objects without a suffix.

    Raises `CorruptObjectError` if it is missing, damaged or belongs to another segment, and
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
            "the manifest belongs to another segment", path=path, expected=name, found=named
        )
    return manifest
