"""Keys, values and headers of the records of one entry of a log, for every magic and codec.

For people who look into a log: a loop in Python. Which records there are, their offsets and their
timestamps, is for `kafka_index.records.record_decoding` to say. Sources: Kafka's
``DefaultRecord`` and ``LegacyRecord``.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from kafka_index.errors import CorruptLogError
from kafka_index.layout.records import (
    COMPRESSION_MASK,
    LOG_OVERHEAD_BYTES,
    MAGIC_POSITION,
    MAGIC_RECORD_BATCH,
    MESSAGE_V0_HEADER,
    MESSAGE_V1_HEADER,
    RECORD_BATCH_HEADER,
    RECORD_BATCH_OVERHEAD_BYTES,
    field_position,
)
from kafka_index.records.compression import MOST_BYTES, decompress
from kafka_index.storage import Bytes

_ATTRIBUTES = field_position(RECORD_BATCH_HEADER, "attributes")
_MESSAGE_ATTRIBUTES = field_position(MESSAGE_V0_HEADER, "attributes")
_LENGTH = field_position(MESSAGE_V0_HEADER, "length")
_V0_KEY = field_position(MESSAGE_V0_HEADER, "key_length")
_V1_KEY = field_position(MESSAGE_V1_HEADER, "key_length")
_INT32_BYTES = 4
_MORE = 0x80
_UINT32 = 0xFFFFFFFF

Header = tuple[bytes, bytes | None]


class RecordContent(NamedTuple):
    """What a record holds, without its place.

    Parameters
    ----------
    key, value : bytes or None
        None for null.
    headers : tuple of (bytes, bytes or None)
        Names, which are UTF-8 text, and values, in order. Messages of magic 0 and 1 have none.
    """

    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...] = ()


def read_contents(
    batch: Bytes, count: int, *, most_bytes: int = MOST_BYTES
) -> Iterator[RecordContent]:
    """Read the first records of an entry of a log.

    Parameters
    ----------
    batch : ndarray of uint8
        The whole entry, header included.
    count : int
        As many as `kafka_index.records.record_decoding.read_records` has found to be sound.
    most_bytes : int
        A limit to what is unpacked.

    Raises
    ------
    CorruptLogError
        The records cannot be unpacked, or the key or the value of a message goes beyond its end.
        The error names no place.
    """
    data = batch.tobytes()
    if int.from_bytes(data[MAGIC_POSITION : MAGIC_POSITION + 1], signed=True) < MAGIC_RECORD_BATCH:
        return islice(_read_message(data, most_bytes), count)
    # Not even unpacked when there are none: what an emptied batch holds does not matter.
    return _read_batch(data, count, most_bytes) if count else iter(())


def _read_batch(data: bytes, count: int, most_bytes: int) -> Iterator[RecordContent]:
    codec = data[_ATTRIBUTES + 1] & COMPRESSION_MASK
    records = data[RECORD_BATCH_OVERHEAD_BYTES:]
    if codec:
        records = decompress(codec, records, most_bytes=most_bytes)
    position = 0
    for _ in range(count):
        size, position = _read_varint(records, position)
        content = _read_record(records, position)
        position += size
        yield content


def _read_record(data: bytes, position: int) -> RecordContent:
    """Read a record, which is sound, from its attributes on."""
    _, position = _read_varint(data, position + 1)
    _, position = _read_varint(data, position)
    key, position = _read_field(data, position)
    value, position = _read_field(data, position)
    count, position = _read_varint(data, position)
    headers: list[Header] = []
    for _ in range(count):
        name, position = _read_field(data, position)
        content, position = _read_field(data, position)
        headers.append((name or b"", content))
    return RecordContent(key, value, tuple(headers))


def _read_field(data: bytes, position: int) -> tuple[bytes | None, int]:
    size, position = _read_varint(data, position)
    if size < 0:
        return None, position
    return data[position : position + size], position + size


def _read_varint(data: bytes, position: int) -> tuple[int, int]:
    value = data[position]
    position += 1
    if value >= _MORE:
        value &= _MORE - 1
        shift = 7
        while (byte := data[position]) >= _MORE:
            value |= (byte & (_MORE - 1)) << shift
            shift += 7
            position += 1
        # Java's int loses what is above 32 bits; a timestamp, which is a long, is not used here.
        value = (value | byte << shift) & _UINT32
        position += 1
    return value >> 1 ^ -(value & 1), position


def _read_message(data: bytes, most_bytes: int) -> Iterator[RecordContent]:
    content = _message_content(data, 0, len(data))
    codec = data[_MESSAGE_ATTRIBUTES] & COMPRESSION_MASK
    if codec == 0:
        yield content
        return
    magic = data[MAGIC_POSITION]
    inner = decompress(codec, content.value or b"", magic=magic, most_bytes=most_bytes)
    position = 0
    while position < len(inner):
        length = int.from_bytes(inner[position + _LENGTH : position + LOG_OVERHEAD_BYTES], "big")
        end = position + LOG_OVERHEAD_BYTES + length
        yield _message_content(inner, position, end)
        position = end


def _message_content(data: bytes, start: int, end: int) -> RecordContent:
    key_position = start + (_V1_KEY if data[start + MAGIC_POSITION] else _V0_KEY)
    key, position = _message_field(data, key_position, end)
    value, _ = _message_field(data, position, end)
    return RecordContent(key, value)


def _message_field(data: bytes, position: int, end: int) -> tuple[bytes | None, int]:
    start = position + _INT32_BYTES
    size = int.from_bytes(data[position:start], "big", signed=True)
    if start > end or size > end - start:
        raise CorruptLogError("a message ends before its key or its value does")
    return (None, start) if size < 0 else (data[start : start + size], start + size)
