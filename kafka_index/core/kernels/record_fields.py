"""Fields of a record in format v2: offset, timestamp, and positions of key, value and headers.

A record is valid only if its fields fill its declared size exactly. An invalid field sets the
position far beyond any end, so one comparison at the end replaces all of Kafka's checks.

Sources: Kafka's ``DefaultRecord.readFrom``, ``ByteUtils.readVarint`` and ``readVarlong``; for v0
and v1 messages, ``LegacyRecord``.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from kafka_index.core.format.records import (
    MAGIC_POSITION,
    MESSAGE_V0_HEADER,
    MESSAGE_V1_HEADER,
    field_position,
)
from kafka_index.core.kernels.compile_cache import compiled, inlined
from kafka_index.core.kernels.memory import Integer, read_int8, read_int16, read_int32, read_int64

#: Maximum bytes of a 32-bit and of a 64-bit varint.
VARINT_BYTES = 5
VARLONG_BYTES = 10

#: Returned as the position after a truncated or an overlong varint. Both exceed every possible end
#: position, even after further additions. One comparison at the end of a record therefore detects
#: all errors.
VARINT_CUT = np.int64(1 << 60)
VARINT_TOO_LONG = np.int64(1 << 61)

_MORE_BITS = 7
_UINT32 = np.uint64(0xFFFFFFFF)


@compiled
def _read_long_varint(position: Integer, end: Integer, max_bytes: int) -> tuple[Integer, Integer]:
    value = np.uint64(0)
    shift = np.uint64(0)
    for used in range(max_bytes):
        if position + used >= end:
            return np.int64(0), VARINT_CUT
        byte = read_int8(np.uint64(position + used))
        value |= np.uint64(byte & 0x7F) << shift
        if byte >= 0:
            if max_bytes == VARINT_BYTES:
                # Java shifts in 32 bits: the highest bits of a fifth byte are lost.
                value &= _UINT32
            signed = np.int64(value >> np.uint64(1)) ^ -np.int64(value & np.uint64(1))
            return signed, position + used + 1
        shift += np.uint64(_MORE_BITS)
    return np.int64(0), VARINT_TOO_LONG


@compiled
def read_varint(position: Integer, end: Integer, max_bytes: int) -> tuple[Integer, Integer]:
    """Read a zigzag varint.

    `position`, `end`: address of the first byte, and the end of readable bytes. `max_bytes`:
    `VARINT_BYTES` or `VARLONG_BYTES`. Returns the value and the address after it, or `VARINT_CUT`
    or `VARINT_TOO_LONG` instead of the address.
    """
    if position >= end:
        return np.int64(0), VARINT_CUT
    value = read_int8(np.uint64(position))
    if value >= 0:
        return value >> 1 ^ -(value & 1), position + 1
    if position + 1 < end:
        byte = read_int8(np.uint64(position + 1))
        if byte >= 0:
            value = value & 0x7F | byte << _MORE_BITS
            return value >> 1 ^ -(value & 1), position + 2
    return _read_long_varint(position, end, max_bytes)


#: Errors of a record, or of the data after the last record.
(
    RECORD_VALID,
    RECORD_SIZE_CUT,
    RECORD_SIZE_TOO_LONG,
    RECORD_CUT,
    RECORD_BROKEN,
    RECORDS_REMAINING,
) = range(6)

#: The absolute value of a one- or two-byte offset delta is below 2 to this power.
SHORT_OFFSET_BITS = 13

#: The size of a null key or value.
FIELD_NULL = -1

_WORD_BYTES = 8
_MORE = 0x80


class RecordFields(NamedTuple):
    """A v2 record with the addresses of its fields; a negative size means null."""

    code: Integer
    end: Integer
    timestamp_delta: Integer
    offset_delta: Integer
    key: Integer
    key_size: Integer
    value: Integer
    value_size: Integer
    headers: Integer
    header_count: Integer


@compiled
def read_sized_field(position: Integer, end: Integer) -> tuple[Integer, Integer, Integer]:
    """Return start and size of a length-prefixed field, and the address after it."""
    size, start = read_varint(position, end, VARINT_BYTES)
    return start, size, (start + size if size > 0 else start)


@compiled
def _skip_headers(position: Integer, end: Integer, count: Integer) -> Integer:
    if count < 0:
        return VARINT_CUT
    for _ in range(count):
        _, key_size, position = read_sized_field(position, end)
        if key_size < 0:
            return VARINT_CUT
        _, _, position = read_sized_field(position, end)
        if position > end:
            return VARINT_CUT
    return position


@compiled
def _read_short_field(position: Integer, end: Integer) -> tuple[Integer, Integer, Integer]:
    """Read a field that has a size of one or two bytes and is not at the very end."""
    if position + 2 > end:
        return position, np.int64(0), VARINT_CUT
    word = read_int16(np.uint64(position))
    value = word >> 8
    position += 1
    if value < 0:
        if word & _MORE:
            return position, np.int64(0), VARINT_CUT
        value = value & 0x7F | (word & 0x7F) << 7
        position += 1
    size = value >> 1 ^ -(value & 1)
    return position, size, (position + size if size > 0 else position)


@compiled
def _fault(code: int) -> RecordFields:
    nothing = np.int64(0)
    return RecordFields(
        np.int64(code),
        nothing,
        nothing,
        nothing,
        nothing,
        nothing,
        nothing,
        nothing,
        nothing,
        nothing,
    )


@compiled
def read_fields(address: np.uint64, end: np.uint64) -> RecordFields:
    """Read a record of any shape, with the positions of its fields or an error code.

    `address`, `end`: start of the record, and end of the records of its batch.
    """
    limit = np.int64(end)
    size, start = read_varint(np.int64(address), limit, VARINT_BYTES)
    if start > limit:
        return _fault(RECORD_SIZE_TOO_LONG if start == VARINT_TOO_LONG else RECORD_SIZE_CUT)
    # Beyond this point the size is only used as the end: fields beyond it are invalid anyway.
    body_end = start + size
    if body_end > limit:
        return _fault(RECORD_CUT)
    timestamp_delta, position = read_varint(start + 1, body_end, VARLONG_BYTES)
    offset_delta, position = read_varint(position, body_end, VARINT_BYTES)
    key, key_size, position = read_sized_field(position, body_end)
    value, value_size, position = read_sized_field(position, body_end)
    header_count, headers = read_varint(position, body_end, VARINT_BYTES)
    position = headers
    if header_count != 0:
        position = _skip_headers(position, body_end, header_count)
    if position != body_end:
        return _fault(RECORD_BROKEN)
    return RecordFields(
        np.int64(RECORD_VALID),
        body_end,
        timestamp_delta,
        offset_delta,
        key,
        key_size,
        value,
        value_size,
        headers,
        header_count,
    )


@inlined
def read_short_fields(address: np.uint64, end: np.uint64) -> RecordFields:
    """Read a record of the most common shape; return `RECORD_BROKEN` for any other.

    The common shape has no headers, numbers of one or two bytes, and a timestamp delta of at most
    three. For the parameters, see `read_fields`.
    """
    # The first byte is the highest of the word, so the sign bit is the continuation bit.
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
        key, key_size, value_at = _read_short_field(position, body_end)
        value_start, value_size, headers_at = _read_short_field(value_at, body_end)
        if headers_at + 1 != body_end or read_int8(np.uint64(headers_at)) != 0:
            break
        return RecordFields(
            np.int64(RECORD_VALID),
            body_end,
            timestamp_delta,
            offset_delta,
            key,
            key_size,
            value_start,
            value_size,
            body_end,
            np.int64(0),
        )
    return _fault(RECORD_BROKEN)


@compiled
def _read_any_record(
    address: np.uint64, end: np.uint64
) -> tuple[np.uint64, Integer, Integer, Integer]:
    fields = read_fields(address, end)
    following = address if fields.code != RECORD_VALID else np.uint64(fields.end)
    return following, fields.timestamp_delta, fields.offset_delta, fields.code


@compiled
def read_record(address: np.uint64, end: np.uint64) -> tuple[np.uint64, Integer, Integer, Integer]:
    """Read a v2 record.

    The caller must check that the last record ends exactly at the end of the batch: otherwise Kafka
    throws before it returns that record (`RECORDS_REMAINING`). `address`, `end`: start of the
    record, and end of the records of its batch. Returns the address after the record (uint64),
    timestamp delta, offset delta, and `RECORD_VALID` or an error code, with which the other values
    are undefined.
    """
    fields = read_short_fields(address, end)
    if fields.code != RECORD_VALID:
        return _read_any_record(address, end)
    return np.uint64(fields.end), fields.timestamp_delta, fields.offset_delta, fields.code


_INT32_BYTES = 4
_V0_KEY = field_position(MESSAGE_V0_HEADER, "key_length")
_V1_KEY = field_position(MESSAGE_V1_HEADER, "key_length")


@compiled
def read_message(message: np.uint64, following: np.uint64) -> RecordFields:
    """Read the positions of a message's key and value; check that they lie within it.

    `message`, `following`: start and end address. The result has no deltas or headers, which
    messages lack; ``code`` is `RECORD_VALID` or `RECORD_CUT`.
    """
    is_v0 = read_int8(message + np.uint64(MAGIC_POSITION)) == 0
    end = np.int64(following)
    none = np.int64(0)
    key, key_size, position = _read_field(np.int64(message) + (_V0_KEY if is_v0 else _V1_KEY), end)
    value, value_size, position = _read_field(position, end)
    code = np.int64(RECORD_VALID if position <= end else RECORD_CUT)
    return RecordFields(code, end, none, none, key, key_size, value, value_size, end, none)


@compiled
def _read_field(position: Integer, end: Integer) -> tuple[Integer, Integer, Integer]:
    """Return start and size of a message's field, and the address after it."""
    start = position + _INT32_BYTES
    if start > end:
        return end, np.int64(FIELD_NULL), VARINT_CUT
    size = read_int32(np.uint64(position))
    if size > end - start:
        return end, np.int64(FIELD_NULL), VARINT_CUT
    return start, max(size, FIELD_NULL), start + max(size, 0)
