"""Runs of records of the most common shape into columns: the hot loop of decoding.

It is a function of its own because it keeps less at hand than the loop around it, and what does
not fit in the CPU's registers makes it a quarter slower.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kafka_index.kernels.compile_cache import compiled
from kafka_index.kernels.decode_state import (
    CHUNK_KEY_BYTES,
    CHUNK_KEY_ENDS,
    CHUNK_KEY_PRESENT,
    CHUNK_KEYS,
    CHUNK_OFFSETS,
    CHUNK_TIMESTAMPS,
    CHUNK_VALUE_BYTES,
    CHUNK_VALUE_ENDS,
    CHUNK_VALUE_PRESENT,
    CHUNK_VALUES,
    PART_KEYS,
    PART_VALUES,
)
from kafka_index.kernels.memory import (
    LINE_BYTES,
    Integer,
    copy_lines,
    write_int8,
    write_int32_native,
    write_int64_native,
)
from kafka_index.kernels.record_fields import (
    RECORD_SOUND,
    SHORT_OFFSET_BITS,
    read_short_fields,
)
from kafka_index.kernels.records import RecordSection

_INT32_BYTES = np.uint64(4)
_LONG_BYTES = np.uint64(8)
_ALL_BITS = -1


class ShortRun(NamedTuple):
    """The end of a run: the address of the next record, its row, and bytes of keys and values."""

    cursor: np.uint64
    row: Integer
    key_total: Integer
    value_total: Integer


@compiled
def may_have_short_records(
    section: RecordSection, readable_end: np.uint64, first_offset: int, last_offset: int
) -> bool:
    """Return whether `decode_short_records` can read records of a section.

    `section` (RecordSection): the records; `readable_end`: nothing at or after this address may be
    read; `first_offset`, `last_offset`: no record below the first or above the second is wanted.
    """
    # Where all short deltas lead to a wanted offset, none has to be looked at. Differences of
    # shifted offsets cannot overflow.
    block = section.base_offset >> SHORT_OFFSET_BITS
    return bool(
        not section.is_message_set
        and section.end + np.uint64(LINE_BYTES) <= readable_end
        and block - (first_offset >> SHORT_OFFSET_BITS) > 1
        and (last_offset >> SHORT_OFFSET_BITS) - block > 1
    )


@compiled
def decode_short_records(
    section: RecordSection,
    cursor: np.uint64,
    left: Integer,
    chunk: NDArray[np.int64],
    row: Integer,
    room: Integer,
    key_total: Integer,
    value_total: Integer,
    parts: int,
) -> ShortRun:
    """Decode records until one has another shape, is damaged, or does not fit in the chunk.

    `section` (RecordSection): the records, for which `may_have_short_records` is true; `cursor`:
    address of the next one; `left`: how many are left; `chunk` (int64, (CHUNK_FIELDS,)): where the
    columns are; `row`, `room`: the row of the next record, and how many rows there may be;
    `key_total`, `value_total`: how many bytes of keys and values there are so far; `parts`: what is
    wanted, bits of ``PART_``.
    """
    offsets = np.uint64(chunk[CHUNK_OFFSETS])
    timestamps = np.uint64(chunk[CHUNK_TIMESTAMPS])
    key_ends = np.uint64(chunk[CHUNK_KEY_ENDS]) + _INT32_BYTES
    key_present = np.uint64(chunk[CHUNK_KEY_PRESENT])
    keys = np.uint64(chunk[CHUNK_KEYS])
    value_ends = np.uint64(chunk[CHUNK_VALUE_ENDS]) + _INT32_BYTES
    value_present = np.uint64(chunk[CHUNK_VALUE_PRESENT])
    values = np.uint64(chunk[CHUNK_VALUES])
    key_bytes, value_bytes = chunk[CHUNK_KEY_BYTES], chunk[CHUNK_VALUE_BYTES]
    wants_keys, wants_values = parts & PART_KEYS != 0, parts & PART_VALUES != 0
    end = section.end
    timestamp, delta_bits = section.base_timestamp, np.int64(_ALL_BITS)
    if section.uses_append_time:
        timestamp, delta_bits = section.append_timestamp, np.int64(0)
    place = np.uint64(row)
    last = np.uint64(row + left - 1)
    stop = np.uint64(min(room, row + left))
    while place < stop:
        record = read_short_fields(cursor, end)
        following = np.uint64(record.end)
        if record.code != RECORD_SOUND or (place == last and following != end):
            break
        key_size, value_size = max(record.key_size, 0), max(record.value_size, 0)
        if wants_keys and key_total + key_size > key_bytes:
            break
        if wants_values and value_total + value_size > value_bytes:
            break
        at = _LONG_BYTES * place
        write_int64_native(offsets + at, section.base_offset + record.offset_delta)
        write_int64_native(timestamps + at, timestamp + (record.timestamp_delta & delta_bits))
        if wants_keys:
            copy_lines(keys + np.uint64(key_total), np.uint64(record.key), key_size)
            write_int8(key_present + place, np.int64(record.key_size >= 0))
            key_total += key_size
            write_int32_native(key_ends + _INT32_BYTES * place, key_total)
        if wants_values:
            copy_lines(values + np.uint64(value_total), np.uint64(record.value), value_size)
            write_int8(value_present + place, np.int64(record.value_size >= 0))
            value_total += value_size
            write_int32_native(value_ends + _INT32_BYTES * place, value_total)
        place += np.uint64(1)
        cursor = following
    return ShortRun(cursor, np.int64(place), key_total, value_total)
