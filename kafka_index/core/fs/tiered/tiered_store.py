"""Remote segments as files: logs and indexes, under the paths that `core.fs.uris` defines.

The chunks and indexes of an encrypted segment are encrypted by AES-256-GCM with a data key. The
manifest contains the data key, encrypted by RSA-OAEP with SHA3-512. Each process reads the key
files that it needs. Options, reports and messages never contain key material.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, NoReturn

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

    def decrypt(self, encrypted_key: EncryptedDataKey, manifest_path: str) -> Decryption:
        """Decrypt the data key of a segment.

        Raises `InputError` if no key pair has this ID or its file cannot be read, and
        `CorruptObjectError` if the data key is altered or encrypted with another key pair.
        """
        path = self._paths.get(encrypted_key.key_id)
        if path is None:
            raise InputError(
                f"the segment is encrypted with key pair {encrypted_key.key_id}, whose private key "
                f"is missing: give {_OPTION} {encrypted_key.key_id}=FILE",
                path=manifest_path,
            )
        with self._lock:
            key = self._keys.get(encrypted_key.key_id)
            if key is None:
                key = self._keys[encrypted_key.key_id] = read_private_key(path)
        try:
            return Decryption(key.decrypt(encrypted_key.data_key), encrypted_key.aad)
        except ValueError:
            raise CorruptObjectError(
                f"the data key of the manifest cannot be decrypted: {path} is not the private key "
                f"of key pair {encrypted_key.key_id}, or the manifest was altered",
                path=manifest_path,
                hint=f"check {_OPTION} {encrypted_key.key_id}=FILE",
            ) from None


class Decryption:
    """Decrypts the chunks and indexes of one segment, with an AES key of 32 bytes.

    `aad` is the additional authenticated data. Raises `ValueError` for a key of another size.
    """

    def __init__(self, data_key: bytes, aad: bytes) -> None:
        if len(data_key) != _DATA_KEY_BYTES:
            raise ValueError(f"the AES key has {len(data_key)} bytes")
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
                "the GCM tag does not match: the bytes were altered, or encrypted with another key"
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
            "the file is not a readable RSA private key",
            path=path,
            expected="PEM, PKCS #8, without a passphrase",
        )
    return PKCS1_OAEP.new(key, hashAlgo=SHA3_512)


class ChunkCache:
    """A thread-safe LRU cache for the decoded chunks of all logs of a store, limited by size.

    The keys are the path of a log and the number of a chunk.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._size_bytes = 0
        self._chunks: OrderedDict[tuple[str, int], Bytes] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: tuple[str, int]) -> Bytes | None:
        with self._lock:
            chunk = self._chunks.get(key)
            if chunk is not None:
                self._chunks.move_to_end(key)
            return chunk

    def put(self, key: tuple[str, int], chunk: Bytes) -> None:
        """Add a chunk; evict the least recently used chunks while the cache is too large."""
        if len(chunk) > self._max_bytes:
            return
        with self._lock:
            self._size_bytes -= len(self._chunks.pop(key, b""))
            self._chunks[key] = chunk
            self._size_bytes += len(chunk)
            while self._size_bytes > self._max_bytes:
                self._size_bytes -= len(self._chunks.popitem(last=False)[1])


class ChunkedLog:
    """A log stored in transformed chunks, open for reading (`ByteSource`).

    `path` is the path of the log, and `log_object` the ``.log`` object. All logs of the
    store share `cache`. `decryption` is given if the chunks are encrypted. Raises
    `CorruptObjectError` if the size of the object differs from its manifest.
    """

    def __init__(
        self,
        path: str,
        log_object: ByteSource,
        manifest: SegmentManifest,
        decryption: Decryption | None,
        cache: ChunkCache,
    ) -> None:
        self.path = path
        self.size_bytes = manifest.log_size_bytes
        self.mtime_ns = log_object.mtime_ns
        self._log_object = log_object
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
        chunk_numbers = sorted(
            {chunk for log_range in ranges for chunk in self._chunks.chunks_in_range(*log_range)}
        )
        chunks = self._read_chunks(chunk_numbers)
        return [self._join(chunks, start, end) for start, end in ranges]

    def stream(self, start_bytes: int = 0) -> Iterator[Bytes]:
        first_chunk = start_bytes // self._chunks.chunk_size_bytes
        if start_bytes >= self.size_bytes:
            return
        offset = start_bytes - first_chunk * self._chunks.chunk_size_bytes
        starts = self._chunks.starts
        blocks = self._log_object.stream(int(starts[first_chunk]))
        sizes = np.diff(starts[first_chunk:]).tolist()
        for chunk, data in enumerate(_split_blocks(blocks, sizes), start=first_chunk):
            yield self._decode(chunk, data)[offset:]
            offset = 0

    def changed(self) -> str | None:
        return self._log_object.changed()

    def close(self) -> None:
        self._log_object.close()

    def _check_sizes(self, manifest: SegmentManifest) -> None:
        actual_bytes, expected_bytes = self._log_object.size_bytes, self._chunks.stored_size_bytes
        if actual_bytes != expected_bytes:
            raise CorruptObjectError(
                "the size of the log object differs from the manifest",
                path=self._log_object.path,
                expected=expected_bytes,
                found=actual_bytes,
            )
        if self._is_compressed:
            return
        overhead = OVERHEAD_BYTES if self._decryption is not None else 0
        sizes = self._chunks.starts[1:] - self._chunks.starts[:-1] - overhead
        for chunk, size in enumerate(sizes.tolist()):
            if size != self._chunks.original_size(chunk):
                raise CorruptObjectError(
                    f"the manifest contains a wrong size of chunk {chunk}",
                    path=manifest.path,
                    expected=self._chunks.original_size(chunk) + overhead,
                    found=size + overhead,
                )

    def _read_chunks(self, numbers: list[int]) -> dict[int, Bytes]:
        chunks: dict[int, Bytes] = {}
        missing_chunks = []
        for chunk in numbers:
            cached_chunk = self._cache.get((self.path, chunk))
            if cached_chunk is None:
                missing_chunks.append(chunk)
            else:
                chunks[chunk] = cached_chunk
        starts = self._chunks.starts
        stored_chunks = self._log_object.read_ranges(
            [int(starts[chunk]) for chunk in missing_chunks],
            [int(starts[chunk + 1]) for chunk in missing_chunks],
        )
        for chunk, data in zip(missing_chunks, stored_chunks, strict=True):
            chunks[chunk] = self._decode(chunk, data)
            self._cache.put((self.path, chunk), chunks[chunk])
        return chunks

    def _join(self, chunks: dict[int, Bytes], start: int, end: int) -> Bytes:
        size = self._chunks.chunk_size_bytes
        blocks = [
            chunks[chunk][max(start - chunk * size, 0) : end - chunk * size]
            for chunk in self._chunks.chunks_in_range(start, end)
        ]
        if len(blocks) == 1:
            return blocks[0]
        return np.concatenate(blocks) if blocks else np.empty(0, np.uint8)

    def _decode(self, chunk: int, stored_chunk: Bytes) -> Bytes:
        data: bytes | memoryview = stored_chunk.data
        expected_bytes = self._chunks.original_size(chunk)
        try:
            if self._decryption is not None:
                data = self._decryption.decrypt(data)
            if self._is_compressed:
                data = pa.decompress(data, expected_bytes, codec="zstd", asbytes=True)
        except (OSError, ValueError) as error:
            reason = "the zstd frame is damaged" if isinstance(error, OSError) else str(error)
            raise self._damaged_chunk_error(chunk, reason) from error
        if len(data) != expected_bytes:
            raise self._damaged_chunk_error(
                chunk, f"{len(data)} decoded bytes instead of {expected_bytes}"
            )
        return np.frombuffer(data, np.uint8)

    def _damaged_chunk_error(self, chunk: int, reason: str) -> CorruptObjectError:
        return CorruptObjectError(
            f"chunk {chunk} of {self._chunks.count} cannot be read: {reason}",
            path=self._log_object.path,
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
        remaining_bytes = max(self.size_bytes - position_bytes, 0)
        return self._log.read_at(position_bytes, min(size_bytes, remaining_bytes))

    def read_ranges(self, starts: Sequence[int], ends: Sequence[int]) -> list[Bytes]:
        return self._log.read_ranges(starts, [min(end, self.size_bytes) for end in ends])

    def stream(self, start_bytes: int = 0) -> Iterator[Bytes]:
        remaining_bytes = self.size_bytes - start_bytes
        if remaining_bytes <= 0:
            return
        for block in self._log.stream(start_bytes):
            yield block[:remaining_bytes]
            remaining_bytes -= len(block)
            if remaining_bytes <= 0:
                return

    def changed(self) -> str | None:
        return self._log.changed()

    def close(self) -> None:
        self._log.close()


def _split_blocks(blocks: Iterable[Bytes], sizes: Sequence[int]) -> Iterator[Bytes]:
    pending_blocks: list[Bytes] = []
    pending_bytes = 0
    source = iter(blocks)
    for size in sizes:
        while pending_bytes < size:
            block = next(source)
            pending_blocks.append(block)
            pending_bytes += len(block)
        joined_block = (
            pending_blocks[0] if len(pending_blocks) == 1 else np.concatenate(pending_blocks)
        )
        yield joined_block[:size]
        pending_blocks, pending_bytes = [joined_block[size:]], pending_bytes - size


MANIFEST_SUFFIX = ".rsm-manifest"
INDEXES_SUFFIX = ".indexes"

_MAX_MANIFESTS = 1024
# Maximum number of segments with cached indexes. A few suffice, because the indexes of one segment
# are read one after another.
_MAX_INDEXES = 16
_CHUNKS_BYTES = 64 << 20


class TieredStore(ReadOnlyStore):
    """The segments in a store of Aiven's plugin or of LocalTieredStorage, read-only.

    `layout` is the object layout; `keys` decrypts encrypted segments.
    """

    _DESCRIPTION = "tiered storage is"

    def __init__(self, layout: Layout, objects: Store, keys: KeyRing) -> None:
        self._layout = layout
        self._objects = objects
        self._keys = keys
        self._read_segment = lru_cache(_MAX_MANIFESTS)(self._load_segment)
        self._read_indexes = lru_cache(_MAX_INDEXES)(self._load_indexes)
        self._chunks = ChunkCache(_CHUNKS_BYTES)

    def info(self, path: str) -> FileInfo:
        """Return the size of a segment's file and the modification time of its object."""
        source = self.open(path)
        try:
            return FileInfo(path, source.size_bytes, source.mtime_ns)
        finally:
            source.close()

    def open(self, path: str, info: FileInfo | None = None) -> ByteSource:
        """Open a log.

        Raises `CorruptObjectError` if the ``.log`` object contradicts the manifest or `info`.
        """
        file = parse_segment_path(path)
        if file.file_suffix != LOG_SUFFIX:
            raise InputError("an index of a remote segment cannot be read in ranges", path=path)
        log_object = self._objects.open(file.name + LOG_SUFFIX)
        try:
            log = log_object
            if self._layout is Layout.AIVEN:
                log = ChunkedLog(path, log_object, *self._read_segment(file.name), self._chunks)
            if file.limit_bytes is not None:
                return LimitedLog(path, log, file.limit_bytes)
            if info is not None and info.size_bytes != log.size_bytes:
                raise CorruptObjectError(
                    "the size of the log differs from the size recorded at its upload",
                    path=log_object.path,
                    expected=info.size_bytes,
                    found=log.size_bytes,
                )
        except KafkaIndexError:
            log_object.close()
            raise
        return log

    def read(self, path: str, max_bytes: int | None = None) -> bytes:
        """Return the bytes of an index or log, at most the first `max_bytes`.

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
        self._refuse_listing(path)

    def list_tree(self, path: str) -> Iterator[pa.RecordBatch]:
        """Not supported: segments are listed from the underlying store."""
        self._refuse_listing(path)

    def manifest(self, name: str) -> SegmentManifest:
        """Return the manifest of a segment; `name` is the path of its objects without a suffix."""
        return self._read_segment(name)[0]

    def _load_segment(self, name: str) -> tuple[SegmentManifest, Decryption | None]:
        manifest = read_manifest(self._objects, name)
        decryption = None
        if manifest.encryption is not None:
            decryption = self._keys.decrypt(manifest.encryption, manifest.path)
        return manifest, decryption

    def _read_index(self, name: str, suffix: str) -> bytes:
        manifest, decryption = self._read_segment(name)
        index = manifest.indexes.get(suffix)
        if index is None:
            raise FileNotFoundError(name + suffix)
        if not index.size_bytes:
            return b""
        path = name + INDEXES_SUFFIX
        data = self._read_indexes(path)
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

    def _load_indexes(self, path: str) -> bytes:
        """Read all indexes of a segment, because a request for one index costs as much."""
        try:
            return self._objects.read(path)
        except FileNotFoundError:
            raise CorruptObjectError("the indexes of the segment are missing", path=path) from None

    @staticmethod
    def _refuse_listing(path: str) -> NoReturn:
        raise InputError("the files of a remote segment cannot be listed", path=path)


def read_manifest(objects: Store, name: str) -> SegmentManifest:
    """Read the manifest of a segment; `name` is the path of its objects without a suffix.

    Raises `CorruptObjectError` if the manifest is missing, damaged or belongs to another segment,
    and `InputError` if its version is not supported.
    """
    path = name + MANIFEST_SUFFIX
    try:
        manifest = parse_manifest(objects.read(path), path)
    except FileNotFoundError:
        raise CorruptObjectError("the segment has no manifest", path=path) from None
    manifest_name = (
        f"{manifest.topic}-{manifest.topic_id}/{manifest.partition}/"
        f"{manifest.start_offset:020d}-{manifest.segment_id}"
    )
    if not name.endswith(manifest_name):
        raise CorruptObjectError(
            "the manifest belongs to another segment", path=path, expected=name, found=manifest_name
        )
    return manifest
