"""Whether records of a batch have keys, which a compacted topic asks for."""

from __future__ import annotations

from kafka_index.layout.records import (
    COMPRESSION_MASK,
    RECORD_BATCH_HEADER,
    RECORD_BATCH_OVERHEAD_BYTES,
)
from kafka_index.records.compression import decompress
from kafka_index.storage import Bytes


def has_null_key(batch: Bytes) -> bool:
    """Return whether a record of a sound batch of magic 2 has no key."""
    header = batch[:RECORD_BATCH_OVERHEAD_BYTES].view(RECORD_BATCH_HEADER)[0]
    codec = int(header["attributes"]) & COMPRESSION_MASK
    data = decompress(codec, batch[RECORD_BATCH_OVERHEAD_BYTES:])
    position = 0
    for _ in range(int(header["record_count"])):
        size, position = _varint(data, position)
        # The attributes, then both deltas.
        _, key = _varint(data, position + 1)
        _, key = _varint(data, key)
        key_bytes, _ = _varint(data, key)
        if key_bytes < 0:
            return True
        position += size
    return False


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while data[position] & 0x80:
        value |= (data[position] & 0x7F) << shift
        shift += 7
        position += 1
    value |= data[position] << shift
    return (value >> 1) ^ -(value & 1), position + 1
