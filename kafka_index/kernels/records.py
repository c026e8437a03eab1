"""Decoding the records of a magic 2 batch, one after the other.

A record is sound only when its fields fill the size that it begins with, to the byte. A fault sends
the position far behind every end, where all later steps fail too, so that one comparison at the end
stands for all of Kafka's. Sources: Kafka's ``DefaultRecord.readFrom``, ``ByteUtils`` and
``DefaultRecordBatch.RecordIterator``.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kafka_index.kernels.big_endian import Integer, read_int8, read_int16, read_int64
from kafka_index.kernels.compile_cache import compiled

#: What is wrong with a record, or with what follows the last one.
(
    RECORD_SOUND,
    RECORD_BAD_SIZE,
    RECORD_CUT,
    RECORD_BROKEN,
    RECORDS_REMAINING,
) = range(5)

#: Size, attributes, both deltas, key, value and headers: a byte each, at the least.
MIN_RECORD_BYTES = 7

_BROKEN = np.int64(1 << 61)
_VARINT_BYTES = 5
_VARLONG_BYTES = 10
_VARINT_BITS = 7
_WORD_BYTES = 8
_MORE = 0x80
_UINT32 = np.uint64(0xFFFFFFFF)


@compiled
def _read_long_varint(position: Integer, end: Integer, most_bytes: int) -> tuple[Integer, Integer]:
    value = np.uint64(0)
    shift = np.uint64(0)
    for used in range(most_bytes):
        if position + used >= end:
            break
        byte = read_int8(np.uint64(position + used))
        value |= np.uint64(byte & 0x7F) << shift
        if byte >= 0:
            if most_bytes == _VARINT_BYTES:
                # Java shifts in 32 bits: the highest of a fifth byte are lost.
                value &= _UINT32
            signed = np.int64(value >> np.uint64(1)) ^ -np.int64(value & np.uint64(1))
            return signed, position + used + 1
        shift += np.uint64(_VARINT_BITS)
    return np.int64(0), _BROKEN


@compiled
def _read_varint(position: Integer, end: Integer, most_bytes: int) -> tuple[Integer, Integer]:
    """Read a zigzag varint; return (value, position behind it or `_BROKEN`)."""
    if position >= end:
        return np.int64(0), _BROKEN
    value = read_int8(np.uint64(position))
    if value >= 0:
        return value >> 1 ^ -(value & 1), position + 1
    if position + 1 < end:
        byte = read_int8(np.uint64(position + 1))
        if byte >= 0:
            value = value & 0x7F | byte << _VARINT_BITS
            return value >> 1 ^ -(value & 1), position + 2
    return _read_long_varint(position, end, most_bytes)


@compiled
def _skip_field(position: Integer, end: Integer) -> Integer:
    """Pass over a size and as many bytes; a negative size means null."""
    size, position = _read_varint(position, end, _VARINT_BYTES)
    return position + size if size > 0 else position


@compiled
def _skip_headers(position: Integer, end: Integer, count: Integer) -> Integer:
    if count < 0:
        return _BROKEN
    for _ in range(count):
        key_bytes, position = _read_varint(position, end, _VARINT_BYTES)
        if key_bytes < 0:
            return _BROKEN
        position = _skip_field(position + key_bytes, end)
        if position > end:
            return _BROKEN
    return position


@compiled
def _skip_short_field(position: Integer, end: Integer) -> Integer:
    """Pass over a size of one or two bytes and what it says, with something behind it."""
    if position + 2 > end:
        return _BROKEN
    word = read_int16(np.uint64(position))
    value = word >> 8
    position += 1
    if value < 0:
        if word & _MORE:
            return _BROKEN
        value = value & 0x7F | (word & 0x7F) << 7
        position += 1
    return position + (value >> 1) if value & 1 == 0 else position


@compiled
def _read_any_record(
    address: np.uint64, end: np.uint64
) -> tuple[np.uint64, Integer, Integer, Integer]:
    """Read a record of any shape, or find what is wrong with it."""
    limit = np.int64(end)
    size, start = _read_varint(np.int64(address), limit, _VARINT_BYTES)
    if start > limit:
        return address, np.int64(0), np.int64(0), np.int64(RECORD_BAD_SIZE)
    # From here on the size stands for the end: what goes beyond cannot fill it either.
    body_end = start + size
    if body_end > limit:
        return address, np.int64(0), np.int64(0), np.int64(RECORD_CUT)
    timestamp_delta, position = _read_varint(start + 1, body_end, _VARLONG_BYTES)
    offset_delta, position = _read_varint(position, body_end, _VARINT_BYTES)
    position = _skip_field(position, body_end)
    position = _skip_field(position, body_end)
    headers, position = _read_varint(position, body_end, _VARINT_BYTES)
    if headers != 0:
        position = _skip_headers(position, body_end, headers)
    if position != body_end:
        return address, np.int64(0), np.int64(0), np.int64(RECORD_BROKEN)
    return np.uint64(body_end), timestamp_delta, offset_delta, np.int64(RECORD_SOUND)


@compiled
def read_record(address: np.uint64, end: np.uint64) -> tuple[np.uint64, Integer, Integer, Integer]:
    """Read one record of magic 2.

    Whoever reads the last one that a batch counts must see that it ends where the records do:
    otherwise Kafka throws before it hands that record out (`RECORDS_REMAINING`).

    Parameters
    ----------
    address, end : uint64
        Where the record starts, and where the records of its batch end.

    Returns
    -------
    tuple of int
        The address behind the record (uint64), the timestamp delta, the offset delta, and
        `RECORD_SOUND` or what is wrong; then the others mean nothing.
    """
    # Nearly all records are of one shape: no headers, all numbers of one or two bytes, a timestamp
    # of at most three. Those are read here, without a call; whatever is otherwise, faults too, goes
    # to the function above. The first byte of a word being its highest, the sign tells of more.
    start = np.int64(address)
    limit = np.int64(end)
    while limit - start >= _WORD_BYTES:
        word = read_int64(np.uint64(start))
        value = word >> 56
        word <<= 8
        start += 1
        if value < 0:
            if word < 0:
                break
            value = value & 0x7F | word >> 56 << 7
            word <<= 8
            start += 1
        body_end = start + (value >> 1)
        if value & 1 or body_end > limit:
            break
        word <<= 8
        position = start + 2
        value = word >> 56
        word <<= 8
        if value < 0:
            value = value & 0x7F | (word >> 56 & 0x7F) << 7
            position += 1
            if word < 0:
                word <<= 8
                if word < 0:
                    break
                value |= word >> 56 << 14
                position += 1
            word <<= 8
        timestamp_delta = value >> 1 ^ -(value & 1)
        value = word >> 56
        word <<= 8
        position += 1
        if value < 0:
            if word < 0:
                break
            value = value & 0x7F | word >> 56 << 7
            position += 1
        offset_delta = value >> 1 ^ -(value & 1)
        value_at = _skip_short_field(position, body_end)
        headers_at = _skip_short_field(value_at, body_end)
        if headers_at + 1 != body_end or read_int8(np.uint64(headers_at)) != 0:
            break
        return np.uint64(body_end), timestamp_delta, offset_delta, np.int64(RECORD_SOUND)
    return _read_any_record(address, end)


@compiled
def decode_records(
    address: np.uint64,
    end: np.uint64,
    count: int,
    base_offset: int,
    base_timestamp: int,
    append_timestamp: int,
    uses_append_time: int,
    offsets: NDArray[np.int64],
    timestamps: NDArray[np.int64],
) -> tuple[Integer, Integer]:
    """Decode the records of a batch, up to the first that is not sound.

    Parameters
    ----------
    address, end : uint64
        Where the records start and end.
    count : int
        How many there are, as the batch says.
    base_offset, base_timestamp : int
        Of the batch. Sums wrap around, as Java's do.
    append_timestamp, uses_append_time : int
        The timestamp of all records, if the latter is not 0.
    offsets, timestamps : ndarray of int64, shape (at least count,)
        Filled.

    Returns
    -------
    tuple of int
        How many records Kafka would hand out, and `RECORD_SOUND` or what is wrong with the next.
        When bytes remain behind the last record, that record is not handed out.
    """
    for row in range(count):
        address, timestamp_delta, offset_delta, code = read_record(address, end)
        if code != RECORD_SOUND:
            return row, code
        offsets[row] = base_offset + offset_delta
        timestamps[row] = append_timestamp if uses_append_time else base_timestamp + timestamp_delta
    if count > 0 and address != end:
        return count - 1, RECORDS_REMAINING
    return count, RECORD_SOUND
