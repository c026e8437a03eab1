"""Iteration over the records of a log entry: a v2 batch, or a v0 or v1 message.

`RecordSection` describes the uncompressed records of an entry. `next_record` reads the offset and
timestamp of a record.

Sources: Kafka's ``DefaultRecordBatch.RecordIterator``, ``LegacyRecord`` and
``AbstractLegacyRecordBatch.DeepRecordsIterator``.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from kafka_index.core.format.records import (
    COMPRESSION_MASK,
    LOG_OVERHEAD_BYTES,
    MAGIC_POSITION,
    MIN_LENGTH,
    NO_TIMESTAMP,
    TIMESTAMP_TYPE_MASK,
)
from kafka_index.core.kernels.batch_header import (
    read_attributes,
    read_base_offset,
    read_base_timestamp,
    read_length,
    read_max_timestamp,
    read_message_attributes,
    read_message_crc,
    read_message_timestamp,
    read_record_count,
)
from kafka_index.core.kernels.checksums import crc32
from kafka_index.core.kernels.compile_cache import compiled, inlined
from kafka_index.core.kernels.memory import Integer, read_int8, read_int64
from kafka_index.core.kernels.record_fields import RECORD_VALID, RECORDS_REMAINING, read_record

#: Results of `measure_messages`: valid, a length below the minimum, a compressed message within a
#: compressed message, or a checksum mismatch.
MESSAGES_VALID, MESSAGES_BAD_LENGTH, MESSAGES_NESTED, MESSAGES_BAD_CRC = range(4)


class RecordSection(NamedTuple):
    """The uncompressed records of one log entry, and the values to which their fields are relative.

    `start`, `end`: start and end address. `record_count`: number of records. `base_offset`,
    `base_timestamp`: added to the deltas of each record. `append_timestamp`: the timestamp of all
    records if `uses_append_time` is not 0. `is_message_set`: 0 for the records of a v2 batch, 1 for
    v0 and v1 messages.
    """

    start: np.uint64
    end: np.uint64
    record_count: Integer
    base_offset: Integer
    base_timestamp: Integer
    append_timestamp: Integer
    uses_append_time: Integer
    is_message_set: Integer


@inlined
def next_record(
    section: RecordSection, address: np.uint64, left: Integer
) -> tuple[np.uint64, Integer, Integer, Integer]:
    """Read offset and timestamp of one record of a section.

    `address`: start of the record. `left`: number of records left, including this one. Returns the
    address after the record (uint64), its offset, its timestamp, and `RECORD_VALID` or the reason
    why Kafka would not return it. Sums overflow as in Java.
    """
    if section.is_message_set:
        offset = read_int64(address) + section.base_offset
        length = read_length(address)
        following = address + np.uint64(LOG_OVERHEAD_BYTES + length)
        return following, offset, _message_timestamp(section, address), np.int64(RECORD_VALID)
    following, timestamp_delta, offset_delta, code = read_record(address, section.end)
    if left == 1 and code == RECORD_VALID and following != section.end:
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
    # A wrapper's append time applies to inner messages of the same version.
    timestamp: Integer = read_message_timestamp(address)
    return section.append_timestamp if magic == 1 and section.uses_append_time else timestamp


@compiled
def named_section(fields: tuple[Any, ...]) -> RecordSection:
    """Convert a plain tuple to a section.

    Python passes plain tuples to kernels that run once per batch: numba takes longer to determine
    the type of a named tuple than to decompress a small batch.
    """
    return RecordSection(
        fields[0], fields[1], fields[2], fields[3], fields[4], fields[5], fields[6], fields[7]
    )


@compiled
def check_records(fields: tuple[Any, ...]) -> tuple[Integer, Integer]:
    """Return how many records Kafka would return, and the error of the next one, if any.

    `fields` are the fields of a `RecordSection`.
    """
    section = named_section(fields)
    return check_rest(section, section.start, section.record_count)


@compiled
def check_rest(
    section: RecordSection, address: np.uint64, left: Integer
) -> tuple[Integer, Integer]:
    """Run `check_records` from the record at `address` on; `left` includes this record."""
    for row in range(left):
        address, _, _, code = next_record(section, address, left - row)
        if code != RECORD_VALID:
            return row, code
    return left, np.int64(RECORD_VALID)


@compiled
def measure_messages(
    start: np.uint64, end: np.uint64, verify_crc: bool
) -> tuple[Integer, Integer, Integer, Integer, np.uint64]:
    """Count the messages in a compressed message (``DeepRecordsIterator``).

    `start`, `end`: start and end of the inner message set. `verify_crc`: verify each message's
    checksum, as the consumer does (``check.crcs``). Returns the number of complete messages, the
    number before the first invalid one, the offset field of the last one, `MESSAGES_VALID` or an
    error code, and the address (uint64) where the set ended. An incomplete message at the end is
    ignored; one with an invalid length makes the whole set invalid.
    """
    count = np.int64(0)
    plain = np.int64(-1)
    wrong = np.int64(MESSAGES_VALID)
    last_offset = np.int64(0)
    address = start
    while np.int64(end) - np.int64(address) >= LOG_OVERHEAD_BYTES:
        length = read_length(address)
        if length < MIN_LENGTH:
            return count, plain, last_offset, np.int64(MESSAGES_BAD_LENGTH), address
        if length > np.int64(end) - np.int64(address) - LOG_OVERHEAD_BYTES:
            break
        if plain < 0 and read_message_attributes(address) & COMPRESSION_MASK:
            plain, wrong = count, np.int64(MESSAGES_NESTED)
        if plain < 0 and verify_crc:
            covered = address + np.uint64(MAGIC_POSITION)
            computed = crc32(covered, np.uint64(LOG_OVERHEAD_BYTES + length - MAGIC_POSITION))
            if computed != read_message_crc(address):
                plain, wrong = count, np.int64(MESSAGES_BAD_CRC)
        last_offset = read_int64(address)
        count += 1
        address += np.uint64(LOG_OVERHEAD_BYTES + length)
    return count, (count if plain < 0 else plain), last_offset, wrong, address


@compiled
def batch_section(header: np.uint64, start: np.uint64, end: np.uint64) -> RecordSection:
    """Return the section of a v2 batch.

    `header`: address of its header. `start`, `end`: start and end address of its records, in the
    batch or decompressed.
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
    """Return the section of an uncompressed message."""
    none = np.int64(0)
    return RecordSection(start, end, np.int64(1), none, none, none, none, np.int64(1))


#: No records.
EMPTY_SECTION = RecordSection(np.uint64(0), np.uint64(0), 0, 0, 0, 0, 0, 0)


def warm_up() -> None:
    check_records(tuple(EMPTY_SECTION))
    measure_messages(EMPTY_SECTION.start, EMPTY_SECTION.end, False)
