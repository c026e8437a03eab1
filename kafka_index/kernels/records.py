"""The walk over the records of an entry of a log: the batches of magic 2, messages of 0 and 1.

`RecordSection` says where the records of an entry lie uncompressed. `next_record` reads the offset
and timestamp of one, `read_fields` also finds key, value and headers. A record of magic 2 is sound
only when its fields fill the size that it begins with, to the byte. A fault sends the position far
beyond every end, where all later steps fail too, so that one comparison at the end stands for all
of Kafka's.

Sources: Kafka's ``DefaultRecord.readFrom``, ``DefaultRecordBatch.RecordIterator``,
``LegacyRecord`` and ``AbstractLegacyRecordBatch.DeepRecordsIterator``.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from kafka_index.kernels.batch_header import (
    read_attributes,
    read_base_offset,
    read_base_timestamp,
    read_length,
    read_max_timestamp,
    read_message_attributes,
    read_message_timestamp,
    read_record_count,
)
from kafka_index.kernels.big_endian import (
    Integer,
    read_int8,
    read_int16,
    read_int64,
)
from kafka_index.kernels.compile_cache import compiled, inlined
from kafka_index.kernels.varints import (
    VARINT_BYTES,
    VARINT_CUT,
    VARINT_TOO_LONG,
    VARLONG_BYTES,
    read_varint,
)
from kafka_index.layout.records import (
    COMPRESSION_MASK,
    LOG_OVERHEAD_BYTES,
    MAGIC_POSITION,
    MIN_LENGTH,
    NO_TIMESTAMP,
    TIMESTAMP_TYPE_MASK,
)

#: What is wrong with a record, or with what follows the last one.
(
    RECORD_SOUND,
    RECORD_SIZE_CUT,
    RECORD_SIZE_TOO_LONG,
    RECORD_CUT,
    RECORD_BROKEN,
    RECORDS_REMAINING,
) = range(6)

#: The size of a null key or value.
FIELD_NULL = -1

#: Why `measure_messages` ended: after the last message, or at a length below any message's.
MESSAGES_SOUND, MESSAGES_BAD_LENGTH = range(2)

_WORD_BYTES = 8
_MORE = 0x80


class RecordSection(NamedTuple):
    """The records of one entry, uncompressed, and what their fields are relative to.

    Parameters
    ----------
    start, end : uint64
        Addresses of the first record and after the last.
    record_count : int64
        How many records there are.
    base_offset : int64
        Added to the offset of each.
    base_timestamp, append_timestamp : int64
        Added to the timestamp delta of each; the timestamp of all where ``uses_append_time``.
    uses_append_time : int64
        0, or anything else for yes.
    is_message_set : int64
        0 for the records of a batch of magic 2, 1 for messages of magic 0 and 1.
    """

    start: np.uint64
    end: np.uint64
    record_count: Integer
    base_offset: Integer
    base_timestamp: Integer
    append_timestamp: Integer
    uses_append_time: Integer
    is_message_set: Integer


class RecordFields(NamedTuple):
    """A record of magic 2 with the addresses of its fields; the size of null is negative."""

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
    """Return start and size of a sized field, and the address after it; null is negative."""
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
    """Read a field with a size of one or two bytes and something after it."""
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
    """Read a record of any shape with the places of its fields, or find what is wrong with it.

    Parameters
    ----------
    address, end : uint64
        Where the record starts, and where the records of its batch end.
    """
    limit = np.int64(end)
    size, start = read_varint(np.int64(address), limit, VARINT_BYTES)
    if start > limit:
        return _fault(RECORD_SIZE_TOO_LONG if start == VARINT_TOO_LONG else RECORD_SIZE_CUT)
    # From here on the size stands for the end: what goes beyond cannot fill it either.
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
        np.int64(RECORD_SOUND),
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


@compiled
def read_short_fields(address: np.uint64, end: np.uint64) -> RecordFields:
    """Read a record of the most common shape; any other, and any fault, is `RECORD_BROKEN`.

    Nearly all records are of that shape: no headers, all numbers of one or two bytes, a timestamp
    of at most three. Parameters are those of `read_fields`.
    """
    # The first byte of a word is its highest, so the sign is the varint's continuation bit.
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
            np.int64(RECORD_SOUND),
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
    following = address if fields.code != RECORD_SOUND else np.uint64(fields.end)
    return following, fields.timestamp_delta, fields.offset_delta, fields.code


@compiled
def read_record(address: np.uint64, end: np.uint64) -> tuple[np.uint64, Integer, Integer, Integer]:
    """Read one record of magic 2.

    The last record of a batch must end where the records do: otherwise Kafka throws before it
    returns that record (`RECORDS_REMAINING`), which is for the caller to check.

    Parameters
    ----------
    address, end : uint64
        Where the record starts, and where the records of its batch end.

    Returns
    -------
    tuple of int
        The address after the record (uint64), the timestamp delta, the offset delta, and
        `RECORD_SOUND` or what is wrong; then the others are undefined.
    """
    fields = read_short_fields(address, end)
    if fields.code != RECORD_SOUND:
        return _read_any_record(address, end)
    return np.uint64(fields.end), fields.timestamp_delta, fields.offset_delta, fields.code


@inlined
def next_record(
    section: RecordSection, address: np.uint64, left: Integer
) -> tuple[np.uint64, Integer, Integer, Integer]:
    """Read offset and timestamp of one record of a section.

    Parameters
    ----------
    section : RecordSection
        The records.
    address : uint64
        Where the record starts.
    left : int
        How many records of the section are left, this one included.

    Returns
    -------
    tuple of int
        The address after the record (uint64), its offset, its timestamp, and `RECORD_SOUND` or
        why Kafka would not return it. Sums wrap around, as Java's do.
    """
    if section.is_message_set:
        offset = read_int64(address) + section.base_offset
        length = read_length(address)
        following = address + np.uint64(LOG_OVERHEAD_BYTES + length)
        return following, offset, _message_timestamp(section, address), np.int64(RECORD_SOUND)
    following, timestamp_delta, offset_delta, code = read_record(address, section.end)
    if left == 1 and code == RECORD_SOUND and following != section.end:
        code = np.int64(RECORDS_REMAINING)
    timestamp = section.base_timestamp + timestamp_delta
    if section.uses_append_time:
        timestamp = section.append_timestamp
    return following, section.base_offset + offset_delta, timestamp, code


@compiled
def _message_timestamp(section: RecordSection, address: np.uint64) -> Integer:
    magic = read_int8(address + np.uint64(MAGIC_POSITION))
    if magic == 0:
        return np.int64(NO_TIMESTAMP)
    # A wrapper's append time is that of the messages of its own magic in it.
    timestamp: Integer = read_message_timestamp(address)
    return section.append_timestamp if magic == 1 and section.uses_append_time else timestamp


@compiled
def named_section(fields: tuple[Any, ...]) -> RecordSection:
    """Return the section of its fields.

    Kernels that are called for each batch get a plain tuple from Python: to find out the type of a
    named one takes numba longer than to decompress a small batch.
    """
    return RecordSection(
        fields[0], fields[1], fields[2], fields[3], fields[4], fields[5], fields[6], fields[7]
    )


@compiled
def check_records(fields: tuple[Any, ...]) -> tuple[Integer, Integer]:
    """Return how many records Kafka would return, and what is wrong with the next one, if any.

    Parameters
    ----------
    fields : tuple
        Those of a `RecordSection`.
    """
    section = named_section(fields)
    address = section.start
    for row in range(section.record_count):
        address, _, _, code = next_record(section, address, section.record_count - row)
        if code != RECORD_SOUND:
            return row, code
    return section.record_count, np.int64(RECORD_SOUND)


@compiled
def measure_messages(
    start: np.uint64, end: np.uint64
) -> tuple[Integer, Integer, Integer, Integer, np.uint64]:
    """Count the messages in a compressed one (``DeepRecordsIterator``).

    Parameters
    ----------
    start, end : uint64
        Where the inner message set starts and ends.

    Returns
    -------
    tuple of int
        How many whole messages there are, how many of them come before the first that is
        compressed itself, the last one's offset as it stands, `MESSAGES_SOUND` or what is wrong
        with a length, and the address (uint64) where the set ended. A message that is cut short
        is ignored.
    """
    count = np.int64(0)
    plain = np.int64(-1)
    last_offset = np.int64(0)
    address = start
    while np.int64(end) - np.int64(address) >= LOG_OVERHEAD_BYTES:
        length = read_length(address)
        if length < MIN_LENGTH:
            return count, plain, last_offset, np.int64(MESSAGES_BAD_LENGTH), address
        if length > np.int64(end) - np.int64(address) - LOG_OVERHEAD_BYTES:
            break
        if plain < 0 and read_message_attributes(address) & COMPRESSION_MASK:
            plain = count
        last_offset = read_int64(address)
        count += 1
        address += np.uint64(LOG_OVERHEAD_BYTES + length)
    return count, (count if plain < 0 else plain), last_offset, np.int64(MESSAGES_SOUND), address


@compiled
def batch_section(header: np.uint64, start: np.uint64, end: np.uint64) -> RecordSection:
    """Return the section of a batch of magic 2.

    Parameters
    ----------
    header : uint64
        Address of its header.
    start, end : uint64
        Addresses of its first record and after the last: in the batch itself, or in what its
        records decompress to.
    """
    uses_append_time = read_attributes(header) & TIMESTAMP_TYPE_MASK
    return RecordSection(
        start,
        end,
        read_record_count(header),
        read_base_offset(header),
        read_base_timestamp(header),
        read_max_timestamp(header),
        uses_append_time,
        np.int64(0),
    )


@compiled
def message_section(start: np.uint64, end: np.uint64) -> RecordSection:
    """Return the section of one message that is not compressed: the message itself."""
    none = np.int64(0)
    return RecordSection(start, end, np.int64(1), none, none, none, none, np.int64(1))


#: No records.
EMPTY_SECTION = RecordSection(np.uint64(0), np.uint64(0), 0, 0, 0, 0, 0, 0)


def warm_up() -> None:
    """Load or compile the walk, over no records."""
    check_records(tuple(EMPTY_SECTION))
    measure_messages(EMPTY_SECTION.start, EMPTY_SECTION.end)
