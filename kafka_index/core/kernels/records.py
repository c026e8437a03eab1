"""The walk over the records of an entry of a log: the batches of magic 2, messages of 0 and 1.

`RecordSection` says where the records of an entry lie uncompressed, and `next_record` reads the
offset and timestamp of one.

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
from kafka_index.core.kernels.record_fields import RECORD_SOUND, RECORDS_REMAINING, read_record

#: What `measure_messages` has found: nothing wrong, a length below any message's, a message that is
#: compressed itself, or one with a wrong checksum.
MESSAGES_SOUND, MESSAGES_BAD_LENGTH, MESSAGES_NESTED, MESSAGES_BAD_CRC = range(4)


class RecordSection(NamedTuple):
    """The records of one entry, uncompressed, and what their fields are relative to.

    `start`, `end`: addresses of the first record and after the last; `record_count`: how many
    records there are; `base_offset`: added to the offset of each. `base_timestamp`,
    `append_timestamp`: added to the timestamp delta of each; the timestamp of all where
    ``uses_append_time``. `uses_append_time`: 0, or anything else for yes; `is_message_set`: 0 for
    the records of a batch of magic 2, 1 for messages of magic 0 and 1.
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

    `section` (RecordSection): the records; `address`: where the record starts; `left`: how many
    records of the section are left, this one included. Returns the address after the record
    (uint64), its offset, its timestamp, and `RECORD_SOUND` or why Kafka would not return it. Sums
    wrap around, as Java's do.
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

    `fields` (tuple): those of a `RecordSection`.
    """
    section = named_section(fields)
    return check_rest(section, section.start, section.record_count)


@compiled
def check_rest(
    section: RecordSection, address: np.uint64, left: Integer
) -> tuple[Integer, Integer]:
    """Do what `check_records` does from a record on, of which and those after it are left."""
    for row in range(left):
        address, _, _, code = next_record(section, address, left - row)
        if code != RECORD_SOUND:
            return row, code
    return left, np.int64(RECORD_SOUND)


@compiled
def measure_messages(
    start: np.uint64, end: np.uint64, verify_crc: bool
) -> tuple[Integer, Integer, Integer, Integer, np.uint64]:
    """Count the messages in a compressed one (``DeepRecordsIterator``).

    `start`, `end`: where the inner message set starts and ends; `verify_crc`: whether the checksum
    of each message is verified, as the consumer does (``check.crcs``). Returns how many whole
    messages there are, how many of them come before the first that is wrong, the last one's offset
    as it stands, `MESSAGES_SOUND` or what is wrong with that message, and the address (uint64)
    where the set ended. A message that is cut short is ignored; one with a wrong length makes all
    of the set wrong.
    """
    count = np.int64(0)
    plain = np.int64(-1)
    wrong = np.int64(MESSAGES_SOUND)
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
    """Return the section of a batch of magic 2.

    `header`: address of its header; `start`, `end`: addresses of its first record and after the
    last: in the batch itself, or in what its records decompress to.
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
    measure_messages(EMPTY_SECTION.start, EMPTY_SECTION.end, False)
