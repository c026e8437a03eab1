"""The manifest of a segment that Aiven's plugin uploaded (``.rsm-manifest``, version 1).

Source: ``SegmentManifestV1`` and ``KafkaTypeSerdeModule`` of the plugin.
"""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any, Self

import numpy as np
import pyarrow as pa
from msgspec import Meta, Struct, json
from msgspec.structs import astuple

from kafka_index.core.errors import CorruptObjectError, InputError
from kafka_index.core.format.checkpoints import EpochEntry
from kafka_index.core.format.integers import INT32_MAX, INT64_MAX
from kafka_index.core.format.longs import Longs
from kafka_index.core.format.state_files import MALFORMED, Int32, Offset, decoder_of

_MAX_WIDTH = 4
# Size of the fields besides the packed sizes: count, base, width, and the last size.
_PACKED_OVERHEAD_BYTES = 13

MANIFEST_VERSION = "1"
#: File suffixes of indexes in the order of the ``.indexes`` object.
INDEX_NAMES = {
    ".index": "offset",
    ".timeindex": "timestamp",
    ".snapshot": "producerSnapshot",
    ".leader_epoch_checkpoint": "leaderEpoch",
    ".txnindex": "transaction",
}
_MAX_SHOWN_CHARACTERS = 80


@dataclass(frozen=True)
class ChunkIndex:
    """The chunks of a log, each with `chunk_size_bytes` of the log except the last chunk.

    `starts`, of shape (n + 1,), contains the position of each chunk in the ``.log`` object, and the
    end of the last chunk. Raises `ValueError` if the number of chunks contradicts the sizes, or a
    chunk is empty.
    """

    original_size_bytes: int
    chunk_size_bytes: int
    starts: Longs

    def __post_init__(self) -> None:
        expected = _chunk_count(self.original_size_bytes, self.chunk_size_bytes)
        if len(self.starts) - 1 != expected:
            raise ValueError(
                f"the chunk index has {len(self.starts) - 1} chunks, expected {expected}"
            )
        if (np.diff(self.starts) <= 0).any():
            raise ValueError("a chunk is empty")

    @classmethod
    def fixed(
        cls, original_size: int, chunk_size: int, stored_size: int, last_stored_size: int
    ) -> Self:
        """Return the index of chunks that are stored with one size, except the last chunk."""
        sizes = np.full(_chunk_count(original_size, chunk_size), stored_size, np.int64)
        sizes[-1:] = last_stored_size
        return cls._from_sizes(original_size, chunk_size, sizes)

    @classmethod
    def _from_sizes(cls, original_size: int, chunk_size: int, sizes: Longs) -> Self:
        return cls(original_size, chunk_size, np.append(0, np.cumsum(sizes)))

    @property
    def count(self) -> int:
        return len(self.starts) - 1

    @property
    def stored_size_bytes(self) -> int:
        return int(self.starts[-1])

    def original_size(self, chunk: int) -> int:
        start = chunk * self.chunk_size_bytes
        return min(self.chunk_size_bytes, self.original_size_bytes - start)

    def chunks_in_range(self, start_bytes: int, end_bytes: int) -> range:
        """Return the chunks that contain a range of the log, end exclusive."""
        if start_bytes >= end_bytes:
            return range(0)
        return range(
            start_bytes // self.chunk_size_bytes, (end_bytes - 1) // self.chunk_size_bytes + 1
        )


def parse_chunk_index(original_size: int, chunk_size: int, packed_sizes: bytes) -> ChunkIndex:
    """Parse ``transformedChunks``, a zstd frame with the sizes of chunks.

    Raises `ValueError` if the frame or its content is damaged or contradicts the log.
    """
    count = _chunk_count(original_size, chunk_size)
    max_bytes = _PACKED_OVERHEAD_BYTES + _MAX_WIDTH * count
    try:
        with pa.CompressedInputStream(pa.py_buffer(packed_sizes), "zstd") as stream:
            data = stream.read(max_bytes + 1)
    except (OSError, pa.ArrowInvalid) as error:
        raise ValueError(f"the zstd frame of chunk sizes cannot be read: {error}") from error
    if len(data) < 4:
        raise ValueError("the list of chunk sizes is truncated")
    declared_count = int.from_bytes(data[:4], "big", signed=True)
    if declared_count != count:
        raise ValueError(f"the chunk index has {declared_count} chunks, expected {count}")
    sizes = _unpack_sizes(count, data)
    if sizes.size and (int(sizes.min()) < 0 or int(sizes.sum()) > INT32_MAX):
        raise ValueError("a chunk size is negative, or the chunks exceed 2^31 - 1 bytes")
    return ChunkIndex._from_sizes(original_size, chunk_size, sizes)  # noqa: SLF001, of its own kind


def _unpack_sizes(count: int, data: bytes) -> Longs:
    if count == 0:
        expected_bytes, sizes = 4, np.empty(0, np.int64)
    elif count == 1:
        expected_bytes, sizes = 8, np.frombuffer(data[4:8].ljust(4), ">i4").astype(np.int64)
    else:
        width = data[8] if len(data) > 8 else 0
        if not 1 <= width <= _MAX_WIDTH:
            raise ValueError(f"each chunk size has {width} bytes, expected 1 to {_MAX_WIDTH}")
        expected_bytes = _PACKED_OVERHEAD_BYTES + (count - 1) * width
        if len(data) == expected_bytes:
            base = int.from_bytes(data[4:8], "big", signed=True)
            size_deltas = np.frombuffer(data[9:-4], np.uint8).reshape(-1, width).astype(np.int64)
            byte_weights = 1 << (8 * np.arange(width - 1, -1, -1, dtype=np.int64))
            last_size = int.from_bytes(data[-4:], "big", signed=True)
            sizes = np.append(base + size_deltas @ byte_weights, last_size)
    if len(data) != expected_bytes:
        raise ValueError(
            f"the list of {count} chunk sizes has {len(data)} bytes, expected {expected_bytes}"
        )
    return sizes


def _chunk_count(original_size: int, chunk_size: int) -> int:
    return -(-original_size // chunk_size)


@dataclass(frozen=True, slots=True)
class EncryptedDataKey:
    """The AES key of one segment's chunks and indexes, encrypted with a key pair.

    `aad` is additional authenticated data for each chunk.
    """

    key_id: str
    data_key: bytes
    aad: bytes


class StoredIndex(Struct, frozen=True, rename={"position_bytes": "position", "size_bytes": "size"}):
    """Position and size of an index in the ``.indexes`` object."""

    position_bytes: Int32
    size_bytes: Int32


@dataclass(frozen=True, slots=True)
class SegmentManifest:
    """The manifest object at `path`.

    IDs are formatted as in Kafka; the end offset is inclusive. The maximum timestamp includes
    control batches, and the event timestamp is the start of the upload. Leader epochs ascend.
    `indexes` maps suffixes to index positions, in the order of the ``.indexes`` object. A segment
    without aborted transactions has no transaction index. If `is_compressed`, each chunk is a zstd
    frame. `encryption` is None if chunks and indexes are not encrypted.
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
        return self.chunks.original_size_bytes

    @property
    def indexes_size_bytes(self) -> int:
        return sum(index.size_bytes for index in self.indexes.values())


class _TopicPartition(Struct):
    topic: str
    partition: Int32


class _TopicIdPartition(Struct, rename="camel"):
    topic_id: str
    topic_partition: _TopicPartition


class _SegmentId(Struct, rename="camel"):
    id: str
    topic_id_partition: _TopicIdPartition


class _Metadata(Struct, rename="camel"):
    remote_log_segment_id: _SegmentId
    start_offset: Offset
    end_offset: Offset
    max_timestamp_ms: Annotated[int, Meta(ge=-1, le=INT64_MAX)]
    event_timestamp_ms: Offset
    segment_leader_epochs: dict[Int32, Offset]

    def __post_init__(self) -> None:
        if self.end_offset < self.start_offset:
            raise ValueError(f"end offset {self.end_offset} is below {self.start_offset}")


class _Chunks(Struct, rename="camel", tag_field="type"):
    original_file_size: Int32
    original_chunk_size: Annotated[int, Meta(ge=1, le=INT32_MAX)]


class _FixedChunks(_Chunks, tag="fixed"):
    transformed_chunk_size: Int32
    final_transformed_chunk_size: Int32


class _VariableChunks(_Chunks, tag="variable"):
    transformed_chunks: bytes


class _Indexes(Struct, rename="camel"):
    """The indexes in the order of `INDEX_NAMES`."""

    offset: StoredIndex
    timestamp: StoredIndex
    producer_snapshot: StoredIndex
    leader_epoch: StoredIndex
    transaction: StoredIndex | None = None

    def __post_init__(self) -> None:
        end = 0
        for index in filter(None, astuple(self)):
            if index.position_bytes != end:
                raise ValueError(f"an index at position {index.position_bytes}, expected {end}")
            end += index.size_bytes


class _Encryption(Struct, rename="camel"):
    data_key: str
    aad: bytes

    def parse(self) -> EncryptedDataKey:
        key_id, separator, data_key = self.data_key.rpartition(":")
        if not separator:
            # The key is not shown, although it is encrypted.
            raise ValueError("the data key lacks the ID of its key pair")
        return EncryptedDataKey(key_id, b64decode(data_key, validate=True), self.aad)


class _VersionField(Struct):
    version: Any = None


class _Manifest(Struct, rename="camel"):
    chunk_index: _FixedChunks | _VariableChunks
    segment_indexes: _Indexes
    compression: bool
    remote_log_segment_metadata: _Metadata
    encryption: _Encryption | None = None


def parse_manifest(data: bytes, path: str) -> SegmentManifest:
    """Parse a manifest; `data` is the complete object at `path`.

    Raises `CorruptObjectError` if the manifest is not JSON or a field is missing or invalid, and
    `InputError` if the version is not supported.
    """
    try:
        # Decode the version first: the other fields of an unknown version are not decoded.
        document = data.decode()
        version = decoder_of(_VersionField).decode(document).version
        if version != MANIFEST_VERSION:
            raise InputError(
                "the manifest has an unsupported version",
                path=path,
                expected=MANIFEST_VERSION,
                found=version,
            )
        return _build_manifest(decoder_of(_Manifest).decode(document), path)
    except (ValueError, *MALFORMED) as error:
        raise CorruptObjectError(
            f"the manifest is malformed: {error}", path=path, found=_describe_value(data, error)
        ) from error


def _build_manifest(fields: _Manifest, path: str) -> SegmentManifest:
    chunks, metadata = fields.chunk_index, fields.remote_log_segment_metadata
    sizes = chunks.original_file_size, chunks.original_chunk_size
    segment = metadata.remote_log_segment_id
    partition = segment.topic_id_partition.topic_partition
    return SegmentManifest(
        path=path,
        topic=partition.topic,
        topic_id=segment.topic_id_partition.topic_id,
        partition=partition.partition,
        segment_id=segment.id,
        start_offset=metadata.start_offset,
        end_offset=metadata.end_offset,
        max_timestamp_ms=metadata.max_timestamp_ms,
        event_timestamp_ms=metadata.event_timestamp_ms,
        epochs=tuple(
            EpochEntry(*entry) for entry in sorted(metadata.segment_leader_epochs.items())
        ),
        chunks=parse_chunk_index(*sizes, chunks.transformed_chunks)
        if isinstance(chunks, _VariableChunks)
        else ChunkIndex.fixed(
            *sizes, chunks.transformed_chunk_size, chunks.final_transformed_chunk_size
        ),
        indexes={
            suffix: index
            for suffix, index in zip(INDEX_NAMES, astuple(fields.segment_indexes), strict=True)
            if index is not None
        },
        is_compressed=fields.compression,
        encryption=None if fields.encryption is None else fields.encryption.parse(),
    )


def _describe_value(data: bytes, error: Exception) -> str | None:
    """Return the JSON value that an error refers to; None if the error has no JSON path."""
    value = None
    with suppress(*MALFORMED, AttributeError):
        value = json.decode(data)
        for name in re.findall(r"\.(\w+)", str(error).rpartition(" - at ")[2]):
            value = value.get(name)
    # JSON objects are not shown, because they may contain a data key.
    return (
        None
        if value is None or isinstance(value, dict | list)
        else repr(value)[:_MAX_SHOWN_CHARACTERS]
    )
