"""The manifest of a segment that Aiven's plugin uploaded (``.rsm-manifest``, version 1).

Source: ``SegmentManifestV1`` and ``KafkaTypeSerdeModule`` of the plugin.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np
import orjson
import pyarrow as pa

from kafka_index.core.errors import CorruptObjectError, InputError
from kafka_index.core.format.checkpoints import EpochEntry
from kafka_index.core.format.integers import INT32_MAX, INT64_MAX, Longs

_MAX_WIDTH = 4
# Count, base, width, and the last size.
_PACKED_OVERHEAD_BYTES = 13

MANIFEST_VERSION = "1"
#: The indexes in the order of the ``.indexes`` object, by the suffixes of their files.
INDEX_NAMES = {
    ".index": "offset",
    ".timeindex": "timestamp",
    ".snapshot": "producerSnapshot",
    ".leader_epoch_checkpoint": "leaderEpoch",
    ".txnindex": "transaction",
}
_Fields = Mapping[str, object]


@dataclass(frozen=True)
class ChunkIndex:
    """The chunks of a log, each with `chunk_size_bytes` of it; the last has the rest.

    `starts`, of shape (n + 1,), has the start of each chunk in the object, and the end of the last
    one. Raises `ValueError` if the number of chunks is not that of the sizes, or the object would
    exceed 2^31 - 1 bytes.
    """

    original_size_bytes: int
    chunk_size_bytes: int
    starts: Longs

    def __post_init__(self) -> None:
        expected = _count(self.original_size_bytes, self.chunk_size_bytes)
        if len(self.starts) - 1 != expected:
            raise ValueError(f"{len(self.starts) - 1} chunks, where the log has {expected}")
        if (np.diff(self.starts) <= 0).any():
            raise ValueError("a chunk has no bytes")

    @classmethod
    def fixed(
        cls, original_size: int, chunk_size: int, stored_size: int, last_stored_size: int
    ) -> Self:
        """Return the index of chunks that are stored in one size, except the last one."""
        sizes = np.full(_count(original_size, chunk_size), stored_size, np.int64)
        sizes[-1:] = last_stored_size
        return cls._of_sizes(original_size, chunk_size, sizes)

    @classmethod
    def _of_sizes(cls, original_size: int, chunk_size: int, sizes: Longs) -> Self:
        return cls(original_size, chunk_size, np.append(0, np.cumsum(sizes)))

    @property
    def count(self) -> int:
        """Number of chunks."""
        return len(self.starts) - 1

    @property
    def stored_size_bytes(self) -> int:
        """Size of the object."""
        return int(self.starts[-1])

    def original_size(self, chunk: int) -> int:
        """Return how many bytes of the log a chunk holds."""
        start = chunk * self.chunk_size_bytes
        return min(self.chunk_size_bytes, self.original_size_bytes - start)

    def within(self, start_bytes: int, end_bytes: int) -> range:
        """Return the chunks that hold a range of the log, end exclusive."""
        if start_bytes >= end_bytes:
            return range(0)
        return range(
            start_bytes // self.chunk_size_bytes, (end_bytes - 1) // self.chunk_size_bytes + 1
        )

    def pieces(self) -> Iterator[tuple[int, int, int]]:
        """Yield number, start and end in the object of each chunk."""
        starts = self.starts.tolist()
        yield from zip(range(self.count), starts, starts[1:], strict=False)


def parse_chunk_index(original_size: int, chunk_size: int, packed: bytes) -> ChunkIndex:
    """Return the index of chunks of various sizes from ``transformedChunks``, one zstd frame.

    Raises `ValueError` if the frame or its content is damaged, or does not fit the log.
    """
    count = _count(original_size, chunk_size)
    largest = _PACKED_OVERHEAD_BYTES + _MAX_WIDTH * count
    try:
        with pa.CompressedInputStream(pa.py_buffer(packed), "zstd") as stream:
            data = stream.read(largest + 1)
    except (OSError, pa.ArrowInvalid) as error:
        raise ValueError(f"its zstd frame cannot be read: {error}") from error
    if len(data) < 4:
        raise ValueError("its list of sizes is cut")
    found = int.from_bytes(data[:4], "big", signed=True)
    if found != count:
        raise ValueError(f"{found} chunks, where the log has {count}")
    sizes = _unpack(count, data)
    if sizes.size and (int(sizes.min()) < 0 or int(sizes.sum()) > INT32_MAX):
        raise ValueError("a size of a chunk is impossible")
    return ChunkIndex._of_sizes(original_size, chunk_size, sizes)  # noqa: SLF001, of its own kind


def _unpack(count: int, data: bytes) -> Longs:
    if count == 0:
        expected, sizes = 4, np.empty(0, np.int64)
    elif count == 1:
        expected, sizes = 8, np.frombuffer(data[4:8].ljust(4), ">i4").astype(np.int64)
    else:
        width = data[8] if len(data) > 8 else 0
        if not 1 <= width <= _MAX_WIDTH:
            raise ValueError(f"{width} bytes a size")
        expected = _PACKED_OVERHEAD_BYTES + (count - 1) * width
        if len(data) == expected:
            base = int.from_bytes(data[4:8], "big", signed=True)
            deltas = np.frombuffer(data[9:-4], np.uint8).reshape(-1, width).astype(np.int64)
            places = 1 << (8 * np.arange(width - 1, -1, -1, dtype=np.int64))
            last = int.from_bytes(data[-4:], "big", signed=True)
            sizes = np.append(base + deltas @ places, last)
    if len(data) != expected:
        raise ValueError(f"a list of {len(data)} bytes, where {count} sizes take {expected}")
    return sizes


def _count(original_size: int, chunk_size: int) -> int:
    return -(-original_size // chunk_size)


@dataclass(frozen=True, slots=True)
class EncryptedDataKey:
    """The AES key of one segment's chunks and indexes, encrypted with a key pair.

    `aad` authenticates each chunk, besides its own bytes.
    """

    key_id: str
    data_key: bytes
    aad: bytes


@dataclass(frozen=True, slots=True)
class StoredIndex:
    """The place of an index in ``.indexes``, as it is stored."""

    position_bytes: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class SegmentManifest:
    """A manifest, read from the object at `path`.

    Ids are as Kafka prints them, first and last offset inclusive; the largest timestamp includes
    control batches, and the event timestamp is that of the start of the upload. The leader epochs
    ascend. Indexes are by suffix, in the order of the object; without a transaction index if the
    segment has none. `is_compressed`: each chunk is a zstd frame. `encryption` is None if chunks
    and indexes are not encrypted.
    """

    path: str
    topic: str
    topic_id: str
    partition: int
    segment_id: str
    start_offset: int
    end_offset: int
    max_timestamp_ms: int
    event_timestamp_ms: int
    epochs: tuple[EpochEntry, ...]
    chunks: ChunkIndex
    indexes: Mapping[str, StoredIndex]
    is_compressed: bool
    encryption: EncryptedDataKey | None

    @property
    def log_size_bytes(self) -> int:
        """Size of the log before its transformation."""
        return self.chunks.original_size_bytes

    @property
    def indexes_size_bytes(self) -> int:
        """Size of the ``.indexes`` object."""
        return sum(index.size_bytes for index in self.indexes.values())


def parse_manifest(text: bytes, path: str) -> SegmentManifest:
    """Parse a manifest, the whole object at a path.

    Raises `CorruptObjectError` if it is not JSON, or a field is missing or impossible, and
    `InputError` for another version.
    """
    try:
        document = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise CorruptObjectError(f"the manifest is not JSON: {error.msg}", path=path) from error
    reader = _Reader(path)
    fields = reader.mapping(document, "the manifest")
    version = fields.get("version")
    if version != MANIFEST_VERSION:
        raise InputError(
            "a manifest of another version", path=path, expected=MANIFEST_VERSION, found=version
        )
    metadata = reader.child(fields, "remoteLogSegmentMetadata")
    segment = reader.child(metadata, "remoteLogSegmentId")
    topic_id_partition = reader.child(segment, "topicIdPartition")
    topic_partition = reader.child(topic_id_partition, "topicPartition")
    is_compressed = fields.get("compression")
    if not isinstance(is_compressed, bool):
        raise reader.error("compression", is_compressed)
    encryption = fields.get("encryption")
    manifest = SegmentManifest(
        path=path,
        topic=reader.text(topic_partition, "topic"),
        topic_id=reader.text(topic_id_partition, "topicId"),
        partition=reader.integer(topic_partition, "partition", INT32_MAX),
        segment_id=reader.text(segment, "id"),
        start_offset=reader.integer(metadata, "startOffset"),
        end_offset=reader.integer(metadata, "endOffset"),
        max_timestamp_ms=reader.integer(metadata, "maxTimestampMs", lowest=-1),
        event_timestamp_ms=reader.integer(metadata, "eventTimestampMs"),
        epochs=reader.epochs(metadata),
        chunks=_chunks(reader, fields),
        indexes=_indexes(reader, fields),
        is_compressed=is_compressed,
        encryption=None if encryption is None else _encryption(reader, encryption),
    )
    if manifest.end_offset < manifest.start_offset:
        raise reader.error("endOffset", manifest.end_offset)
    return manifest


class _Reader:
    """Takes typed fields out of a JSON object; all else is an error that names the field."""

    def __init__(self, path: str) -> None:
        self.path = path

    def error(self, name: str, found: object) -> CorruptObjectError:
        text = repr(found)
        return CorruptObjectError(
            f"{name} of the manifest is missing or impossible",
            path=self.path,
            found=text if len(text) < 80 else f"{text[:80]}...",
        )

    def mapping(self, value: object, name: str) -> _Fields:
        if not isinstance(value, dict):
            raise self.error(name, value)
        return value

    def child(self, fields: _Fields, name: str) -> _Fields:
        return self.mapping(fields.get(name), name)

    def text(self, fields: _Fields, name: str) -> str:
        value = fields.get(name)
        if not isinstance(value, str):
            raise self.error(name, value)
        return value

    def integer(
        self, fields: _Fields, name: str, largest: int = INT64_MAX, *, lowest: int = 0
    ) -> int:
        value = fields.get(name)
        if type(value) is not int or not lowest <= value <= largest:
            raise self.error(name, value)
        return value

    def base64(self, text: str, name: str) -> bytes:
        try:
            return base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError) as error:
            raise self.error(name, text) from error

    def epochs(self, metadata: _Fields) -> tuple[EpochEntry, ...]:
        entries = []
        epochs = self.child(metadata, "segmentLeaderEpochs")
        for epoch in epochs:
            if not epoch.isdecimal() or int(epoch) > INT32_MAX:
                raise self.error("segmentLeaderEpochs", epoch)
            entries.append(EpochEntry(int(epoch), self.integer(epochs, epoch)))
        return tuple(sorted(entries, key=lambda entry: entry.epoch))


def _chunks(reader: _Reader, fields: _Fields) -> ChunkIndex:
    index = reader.child(fields, "chunkIndex")
    kind = reader.text(index, "type")
    original_size = reader.integer(index, "originalFileSize", INT32_MAX)
    chunk_size = reader.integer(index, "originalChunkSize", INT32_MAX, lowest=1)
    try:
        if kind == "fixed":
            return ChunkIndex.fixed(
                original_size,
                chunk_size,
                reader.integer(index, "transformedChunkSize", INT32_MAX),
                reader.integer(index, "finalTransformedChunkSize", INT32_MAX),
            )
        if kind == "variable":
            packed = reader.base64(reader.text(index, "transformedChunks"), "transformedChunks")
            return parse_chunk_index(original_size, chunk_size, packed)
    except ValueError as error:
        raise CorruptObjectError(
            f"the chunk index of the manifest is damaged: {error}", path=reader.path
        ) from error
    raise reader.error("type of chunkIndex", kind)


def _indexes(reader: _Reader, fields: _Fields) -> dict[str, StoredIndex]:
    stored = reader.child(fields, "segmentIndexes")
    indexes = {}
    end = 0
    for suffix, name in INDEX_NAMES.items():
        if name == "transaction" and stored.get(name) is None:
            continue
        index = reader.child(stored, name)
        position = reader.integer(index, "position", INT32_MAX)
        if position != end:
            raise reader.error(f"position of the {name} index", position)
        size = reader.integer(index, "size", INT32_MAX)
        indexes[suffix] = StoredIndex(position, size)
        end += size
    return indexes


def _encryption(reader: _Reader, value: object) -> EncryptedDataKey:
    fields = reader.mapping(value, "encryption")
    key_id, separator, data_key = reader.text(fields, "dataKey").rpartition(":")
    if not separator:
        # Not shown, though the key is encrypted.
        raise reader.error("dataKey", "no key id")
    return EncryptedDataKey(
        key_id,
        reader.base64(data_key, "dataKey"),
        reader.base64(reader.text(fields, "aad"), "aad"),
    )
