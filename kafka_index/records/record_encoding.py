"""Encoding a record of a batch of magic 2.

Zigzag varints precede whatever has a length::

    length varint | attributes int8 = 0 | timestamp delta varlong | offset delta varint
    | key length varint (-1 null), key | value length varint (-1 null), value
    | header count varint | per header: key length varint, key, value length varint (-1 null), value

Source: Kafka's ``DefaultRecord.writeTo``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kafka_index.layout.integers import INT64_MAX, INT64_MIN

_NULL = b"\x01"
_UINT64 = 2**64 - 1
_SMALL = 64
_SMALL_VARINTS = tuple(bytes((zigzag,)) for zigzag in range(2 * _SMALL))


class Record(NamedTuple):
    """A record of a batch.

    Parameters
    ----------
    timestamp_ms : int
        0 or more, or -1 for none.
    key, value : bytes, optional
        None is Kafka's null.
    headers : sequence of (str, bytes or None)
        In order; a key may come more than once.
    offset_delta : int, optional
        Offset minus the batch's base offset; one more than that of the record before when it is
        not given.
    """

    timestamp_ms: int
    key: bytes | None = None
    value: bytes | None = None
    headers: Sequence[tuple[str, bytes | None]] = ()
    offset_delta: int | None = None


def encode_record(record: Record, timestamp_delta: int, offset_delta: int) -> bytes:
    """Return the bytes of a record, its timestamp and offset relative to those of the batch."""
    key, value, headers = record.key, record.value, record.headers
    body = b"".join(
        (
            b"\0",
            _varint(timestamp_delta),
            _varint(offset_delta),
            _NULL if key is None else _varint(len(key)) + key,
            _NULL if value is None else _varint(len(value)) + value,
            _varint(len(headers)),
            *(_header(name, content) for name, content in headers),
        )
    )
    return _varint(len(body)) + body


def _header(name: str, content: bytes | None) -> bytes:
    key = name.encode()
    return _varint(len(key)) + key + (_NULL if content is None else _varint(len(content)) + content)


def _varint(value: int) -> bytes:
    """Return a number as a zigzag varint; a difference of two int64 wraps around as in Java."""
    if -_SMALL <= value < _SMALL:
        return _SMALL_VARINTS[(value << 1) ^ (value >> 63)]
    if not INT64_MIN <= value <= INT64_MAX:
        value = (value - INT64_MIN & _UINT64) + INT64_MIN
    return unsigned_varint((value << 1) ^ (value >> 63))


def unsigned_varint(value: int) -> bytes:
    """Return a number of 0 or more as a varint (``ByteUtils.writeUnsignedVarint``)."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
