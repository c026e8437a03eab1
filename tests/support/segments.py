"""Builders of segment bytes in plain Python, sound or wrong, independent of the product.

Layouts are those of Kafka's ``DefaultRecordBatch`` (magic 2) and ``LegacyRecord`` (magic 0 and 1).
Any header field can be given a value that a broker would not write; the checksum is right unless
`crc` is given.
"""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import google_crc32c
import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Sequence

GZIP, SNAPPY, LZ4, ZSTD = 1, 2, 3, 4
LZ4_BLOCK = 64 * 1024
XERIAL_MAGIC = b"\x82SNAPPY\0"
XERIAL_HEADER = XERIAL_MAGIC + struct.pack(">ii", 1, 1)


def snappy_block(data: bytes) -> bytes:
    """One block without framing."""
    packed: bytes = pa.compress(data, "snappy", asbytes=True)
    return packed


def xerial(data: bytes, chunk_bytes: int = 16) -> bytes:
    """Snappy in the framing of Kafka's Java clients."""
    parts = [XERIAL_HEADER]
    for start in range(0, len(data), chunk_bytes):
        block = snappy_block(data[start : start + chunk_bytes])
        parts.append(struct.pack(">i", len(block)) + block)
    return b"".join(parts)


def lz4(data: bytes) -> bytes:
    """An lz4 frame of blocks that do not depend on one another, as Kafka wants them."""
    frames = [
        pa.compress(data[start : start + LZ4_BLOCK], "lz4", asbytes=True)
        for start in range(0, max(len(data), 1), LZ4_BLOCK)
    ]
    header_bytes, end_mark_bytes = 7, 4
    blocks = b"".join(frame[header_bytes:-end_mark_bytes] for frame in frames)
    packed: bytes = frames[0][:header_bytes] + blocks + bytes(end_mark_bytes)
    return packed


def zstd(data: bytes) -> bytes:
    """A zstd frame."""
    packed: bytes = pa.compress(data, "zstd", asbytes=True)
    return packed


def gzipped(data: bytes) -> bytes:
    """A gzip stream."""
    return gzip.compress(data, mtime=0)


PACKERS: dict[int, Callable[[bytes], bytes]] = {GZIP: gzipped, SNAPPY: xerial, LZ4: lz4, ZSTD: zstd}


INT32_MAX = 2**31 - 1
BATCH_HEADER_SIZE = 61
LOG_OVERHEAD = 12

CODEC_GZIP = 0x01
CODEC_MASK = 0x07
LOG_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20
DELETE_HORIZON = 0x40

ABORT, COMMIT, LEADER_CHANGE = 0, 1, 2

# base offset, length, leader epoch, magic, crc; then what the crc covers: attributes, last offset
# delta, base timestamp, max timestamp, producer id, producer epoch, base sequence, record count
_HEAD = struct.Struct(">qiibI")
_COVERED = struct.Struct(">hiqqqhii")


def varint(value: int) -> bytes:
    """Zigzag varint, also of 64-bit values."""
    raw = (value << 1) ^ (value >> 63)
    out = bytearray()
    while raw > 0x7F:
        out.append(raw & 0x7F | 0x80)
        raw >>= 7
    out.append(raw)
    return bytes(out)


def record(
    offset_delta: int,
    timestamp_delta: int,
    key: bytes | None,
    value: bytes | None,
    headers: Sequence[tuple[bytes, bytes | None]] = (),
) -> bytes:
    """One record of a magic 2 batch."""
    # Timestamps further apart than int64 wrap around, there and back.
    wrapped = (timestamp_delta + 2**63) % 2**64 - 2**63
    body = b"\0" + varint(wrapped) + varint(offset_delta) + _sized(key) + _sized(value)
    body += varint(len(headers)) + b"".join(_sized(k) + _sized(v) for k, v in headers)
    return varint(len(body)) + body


def packed(payload: bytes, codec: int) -> bytes:
    """The records, compressed by one of the codecs; as they are by a codec there is not."""
    return PACKERS[codec](payload) if codec in PACKERS else payload


def batch(
    base_offset: int,
    records: int = 3,
    value_size: int = 20,
    timestamps: Sequence[int] | None = None,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    *,
    transactional: bool = False,
    control: bool = False,
    leader_epoch: int = 0,
    attributes: int | None = None,
    last_offset_delta: int | None = None,
    base_timestamp: int | None = None,
    max_timestamp: int | None = None,
    record_count: int | None = None,
    magic: int = 2,
    payload: bytes | None = None,
    crc: int | None = None,
    length: int | None = None,
) -> bytes:
    """A magic 2 record batch.

    `base_offset`, `producer_id`, `producer_epoch`, `base_sequence`, `leader_epoch`, `magic`: header
    fields as they are. `records`, `value_size`: how many records, without key, and the bytes of
    each value. `timestamps`: one per record, in ms; by default rising with the base offset. The
    first is the base. `transactional`, `control`: set the flags, on top of `attributes`.
    `attributes`: the other attribute bits. The records are really compressed by the codec in them.
    `last_offset_delta`, `base_timestamp`, `max_timestamp`, `record_count`, `length`, `crc`:
    override what follows from the records. `payload`: replaces the records' bytes (after
    compression).
    """
    if timestamps is None:
        timestamps = [1000 + base_offset % 2**40 + i for i in range(records)]
    first = base_timestamp if base_timestamp is not None else (timestamps[0] if timestamps else -1)
    highest = max_timestamp if max_timestamp is not None else max(timestamps, default=-1)
    bits = (attributes or 0) | (TRANSACTIONAL if transactional else 0) | (CONTROL if control else 0)
    if payload is None:
        value = bytes(value_size)
        payload = b"".join(
            record(i, time - first, None, value) for i, time in enumerate(timestamps)
        )
        payload = packed(payload, bits & CODEC_MASK)
    delta = last_offset_delta if last_offset_delta is not None else max(records - 1, 0)
    count = record_count if record_count is not None else len(timestamps)
    covered = (
        _COVERED.pack(
            bits, delta, first, highest, producer_id, producer_epoch, base_sequence, count
        )
        + payload
    )
    checksum = google_crc32c.value(covered) if crc is None else crc
    size = _HEAD.size - LOG_OVERHEAD + len(covered) if length is None else length
    return _HEAD.pack(base_offset, size, leader_epoch, magic, checksum) + covered


def control_key(control_type: int, version: int = 0) -> bytes:
    """Key of a control record."""
    return struct.pack(">hh", version, control_type)


def marker_value(coordinator_epoch: int = 0, version: int = 0) -> bytes:
    """Value of an end-of-transaction control record."""
    return struct.pack(">hi", version, coordinator_epoch)


def control_batch(
    base_offset: int,
    producer_id: int,
    epoch: int,
    key: bytes | None,
    value: bytes | None,
    timestamp: int = 1000,
    *,
    attributes: int = 0,
    record_count: int = 1,
    payload: bytes | None = None,
    transactional: bool = True,
    last_offset_delta: int | None = None,
) -> bytes:
    """A control batch with any key and value, or any payload."""
    if payload is None:
        payload = record(0, 0, key, value)
        payload = packed(payload, attributes & CODEC_MASK)
    return batch(
        base_offset,
        1,
        timestamps=[timestamp],
        producer_id=producer_id,
        producer_epoch=epoch,
        control=True,
        transactional=transactional,
        attributes=attributes,
        record_count=record_count,
        payload=payload,
        last_offset_delta=last_offset_delta,
    )


def marker(
    base_offset: int,
    producer_id: int,
    epoch: int,
    *,
    commit: bool,
    coordinator_epoch: int = 0,
    timestamp: int = 1000,
) -> bytes:
    """The control batch that commits or aborts a producer's transaction."""
    key = control_key(COMMIT if commit else ABORT)
    return control_batch(
        base_offset, producer_id, epoch, key, marker_value(coordinator_epoch), timestamp
    )


def message(
    offset: int,
    magic: int,
    timestamp: int = -1,
    value: bytes | None = b"",
    key: bytes | None = None,
    attributes: int = 0,
    *,
    body: bytes | None = None,
    crc: int | None = None,
    length: int | None = None,
) -> bytes:
    """An entry of a magic 0 or 1 message set, or of another magic below 2 in the form of magic 1.

    `body` replaces everything after the attributes byte; `length` and `crc` override theirs.
    """
    if body is None:
        body = b"" if magic == 0 else struct.pack(">q", timestamp)
        for part in (key, value):
            body += struct.pack(">i", -1) if part is None else struct.pack(">i", len(part)) + part
    covered = struct.pack(">bb", magic, attributes) + body
    checksum = zlib.crc32(covered) if crc is None else crc
    size = 4 + len(covered) if length is None else length
    return struct.pack(">qiI", offset, size, checksum) + covered


@dataclass(frozen=True)
class Segment:
    """Bytes of a ``.log`` file, the base offset in its name, the settings to recover it with."""

    log: bytes
    base_offset: int = 0
    index_interval_bytes: int = 4096
    segment_index_bytes: int = 10 * 1024 * 1024
    note: str = field(default="", compare=False)


def segment(
    *entries: bytes, base_offset: int = 0, interval: int = 4096, index_bytes: int = 10 * 1024 * 1024
) -> Segment:
    """A segment of these entries."""
    return Segment(b"".join(entries), base_offset, interval, index_bytes)


def _sized(data: bytes | None) -> bytes:
    return varint(-1) if data is None else varint(len(data)) + data


CODECS = tuple(PACKERS)
#: zstd came after magic 1.
WRAPPER_CODECS = CODECS[:3]

_LZ4_CHECKSUM_AT = 6


def packed_batch(
    base_offset: int,
    records: Sequence[tuple[int, int]],
    codec: int = 0,
    *,
    value_size: int = 20,
    last_offset_delta: int | None = None,
    log_append_ms: int | None = None,
    max_timestamp: int | None = None,
    unframed: bool = False,
    leader_epoch: int = 0,
) -> bytes:
    """A magic 2 batch of records with any offsets, as compaction leaves them.

    `base_offset`, `last_offset_delta`, `max_timestamp`, `leader_epoch`: header fields; the middle
    ones follow from the records unless given. `records`: offset delta and timestamp of each.
    `codec`, `unframed`: what the records are really compressed with; with snappy, without xerial's
    framing. `log_append_ms`: the broker's time, which stands for the records' own.
    """
    first = records[0][1] if records else -1
    payload = b"".join(
        record(delta, time - first, None, bytes(value_size)) for delta, time in records
    )
    if codec:
        payload = snappy_block(payload) if unframed else PACKERS[codec](payload)
    delta = max((delta for delta, _ in records), default=0)
    if log_append_ms is not None:
        max_timestamp = log_append_ms
    return batch(
        base_offset,
        timestamps=[time for _, time in records],
        attributes=codec | (0 if log_append_ms is None else LOG_APPEND_TIME),
        last_offset_delta=delta if last_offset_delta is None else last_offset_delta,
        max_timestamp=max_timestamp,
        payload=payload,
        leader_epoch=leader_epoch,
    )


def wrapper(
    last_offset: int,
    magic: int,
    messages: Sequence[tuple[int, int]],
    codec: int,
    *,
    timestamp: int | None = None,
    log_append_ms: int | None = None,
    value_size: int = 10,
) -> bytes:
    """A message of magic 0 or 1 that holds others, compressed.

    `last_offset`: offset of the wrapper: that of the last message, or what a producer left there.
    `messages`: offset (relative in magic 1, absolute in magic 0) and timestamp of each. `codec`:
    one of `WRAPPER_CODECS`. Magic 0 gets the frame checksum that Kafka's first lz4 wrote.
    `timestamp`, `log_append_ms`: the wrapper's own; by default the latest of the messages. With the
    broker's time, that stands for theirs.
    """
    packed = PACKERS[codec](
        b"".join(message(offset, magic, time, bytes(value_size)) for offset, time in messages)
    )
    if magic == 0 and codec == LZ4:
        wrong = packed[_LZ4_CHECKSUM_AT] ^ 0x5A
        packed = packed[:_LZ4_CHECKSUM_AT] + bytes([wrong]) + packed[_LZ4_CHECKSUM_AT + 1 :]
    if log_append_ms is not None:
        timestamp = log_append_ms
    elif timestamp is None:
        timestamp = max((time for _, time in messages), default=-1)
    bits = codec | (0 if log_append_ms is None else LOG_APPEND_TIME)
    return message(last_offset, magic, timestamp, packed, attributes=bits)
