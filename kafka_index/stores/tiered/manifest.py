"""The manifest of a segment that Aiven's plugin uploaded (``.rsm-manifest``, version 1).

Source: ``SegmentManifestV1`` and ``KafkaTypeSerdeModule`` of the plugin.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass

import orjson

from kafka_index.errors import CorruptObjectError, InputError
from kafka_index.layout.checkpoints import EpochEntry
from kafka_index.layout.integers import INT32_MAX, INT64_MAX
from kafka_index.stores.tiered.chunk_index import ChunkIndex, parse_chunk_index

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
