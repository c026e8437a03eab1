"""Decode the records of many batches into columns, in one pass.

`decode_batches` validates each record and writes the requested columns directly to the memory of
Arrow arrays. It only notes the positions of headers; `find_headers` reads them later if they are
requested, since few records have any. A call ends when a chunk is full, or at records that the
caller must decompress.

Sources: Kafka's ``DefaultRecordBatch.iterator`` and ``LegacyRecord``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kafka_index.core.format.longs import Longs
from kafka_index.core.format.records import MAGIC_RECORD_BATCH, RECORD_BATCH_OVERHEAD_BYTES
from kafka_index.core.kernels.batch_header import codec_of, magic_of
from kafka_index.core.kernels.compile_cache import compiled
from kafka_index.core.kernels.decompress import unpack
from kafka_index.core.kernels.memory import (
    LINE_BYTES,
    UNPACK_NO_ROOM,
    UNPACK_REFUSED,
    UNPACK_SLACK_BYTES,
    Integer,
    Records,
    copy_field,
    copy_lines,
    read_int32_little,
    record_type,
    write_int8,
    write_int32_native,
    write_int64_native,
)
from kafka_index.core.kernels.record_fields import (
    FIELD_NULL,
    RECORD_VALID,
    RECORDS_REMAINING,
    SHORT_OFFSET_BITS,
    VARINT_CUT,
    read_fields,
    read_message,
    read_short_fields,
    read_sized_field,
)
from kafka_index.core.kernels.records import (
    RecordSection,
    batch_section,
    check_rest,
    message_section,
    next_record,
)

#: Columns to decode in addition to offsets and timestamps, as bits.
PART_KEYS, PART_VALUES, PART_HEADERS = 1, 2, 4

#: Addresses and capacities of a chunk's columns. For keys and values: the addresses of their end
#: offsets (int32, one more than rows, the first one initialized), of their validity bytes, and of
#: their data, and the data capacity without `UNPACK_SLACK_BYTES`. The last fields are the address
#: and row stride of the array of header places, and the maximum number of records.
CHUNK = record_type(
    "offsets",
    "timestamps",
    "key_ends",
    "key_present",
    "keys",
    "key_bytes",
    "value_ends",
    "value_present",
    "values",
    "value_bytes",
    "places",
    "place_stride",
    "rows",
)

#: Why `decode_batches` returned: all batches are decoded; the chunk or the arena is full; the next
#: record alone needs more bytes (``needed_key_bytes``, ``needed_value_bytes``) than the chunk has;
#: the caller must decompress the batch; the section that the caller handed in is decoded; or the
#: batch is corrupt (``fault``) after the records decoded so far.
(
    DECODE_DONE,
    DECODE_FULL,
    DECODE_ARENA_FULL,
    DECODE_NEEDS_ROOM,
    DECODE_NEEDS_RECORDS,
    DECODE_SECTION_DONE,
    DECODE_FAULT,
) = range(7)

#: Further values of ``fault``, besides the codes of `core.kernels.record_fields`: a negative record
#: count, a message that ends within its key or value, or a record with more than `MAX_HEADERS`
#: headers.
NEGATIVE_RECORD_COUNT, CUT_FIELD, TOO_MANY_HEADERS = -1, -2, -3

#: The state of `decode_batches`: number of the current batch; its remaining records (`NOT_OPEN`:
#: all) and the address of the next one; rows of the chunk, rows with headers, number of headers,
#: bytes of headers; used bytes of the arena; the error code of a corrupt batch; bytes needed for
#: key and value of the next record; whether the caller handed in the section of the batch; and the
#: fields of this `RecordSection`.
STATE = record_type(
    "batch",
    "left",
    "cursor",
    "rows",
    "header_rows",
    "headers",
    "header_bytes",
    "arena_used",
    "fault",
    "needed_key_bytes",
    "needed_value_bytes",
    "handed_in",
    *RecordSection._fields,
)
NOT_OPEN = -1


def new_state() -> Records:
    """Return the state before the first batch, an array of one row."""
    states = np.zeros(1, STATE)
    states["left"] = NOT_OPEN
    return states


def hand_in_section(state: Any, section: RecordSection) -> None:
    for name, value in zip(section._fields, section, strict=True):
        setattr(state, name, int(value))
    state.left = max(state.record_count, 0)
    state.cursor = state.start
    state.handed_in = 1


def skip_batch(state: Any, batch_ends: Longs) -> None:
    """Skip the remaining records of the current batch."""
    batch_ends[state.batch] = state.rows
    state.batch += 1
    state.left = NOT_OPEN
    state.handed_in = 0


def begin_chunk(state: Any) -> None:
    """Start a new chunk, after the caller has consumed the previous rows."""
    state.rows = state.header_rows = state.headers = state.header_bytes = 0


@compiled
def load_section(state: Any) -> RecordSection:
    return RecordSection(
        np.uint64(state.start),
        np.uint64(state.end),
        state.record_count,
        state.base_offset,
        state.base_timestamp,
        state.append_timestamp,
        state.uses_append_time,
        state.is_message_set,
    )


@compiled
def store_section(state: Any, section: RecordSection) -> None:
    state.start = np.int64(section.start)
    state.end = np.int64(section.end)
    state.record_count = section.record_count
    state.base_offset = section.base_offset
    state.base_timestamp = section.base_timestamp
    state.append_timestamp = section.append_timestamp
    state.uses_append_time = section.uses_append_time
    state.is_message_set = section.is_message_set


#: Rows of the array of header places: row of the record in the chunk, address of its headers, their
#: number, and end address of the record.
PLACE_ROW, PLACE_ADDRESS, PLACE_COUNT, PLACE_END = range(4)
PLACE_ROWS = 4

#: Rows of the result of `find_headers`.
HEADER_KEY, HEADER_KEY_SIZE, HEADER_VALUE, HEADER_VALUE_SIZE = range(4)
HEADER_ROWS = 4

#: Bytes after the end of an output that `copy_fields` may overwrite.
COPY_SLACK_BYTES = UNPACK_SLACK_BYTES

#: A chunk ends after the record at which its headers exceed the first limit. A record with more
#: headers than the second limit is rejected: in memory, headers take sixteen times their bytes.
MAX_CHUNK_HEADERS, MAX_HEADERS = 256 * 1024, 1024 * 1024
#: Maximum bytes of headers in a chunk with more than one record.
MAX_CHUNK_HEADER_BYTES = 4 * 1024 * 1024

# For fewer records in a batch, the call of `decode_short_records` costs more than it saves.
_FEW_RECORDS = 3
_ALL_BITS = -1

_INT32_BYTES = np.uint64(4)
_LONG_BYTES = np.uint64(8)


@compiled
def find_headers(places: NDArray[np.int64], headers: NDArray[np.int64]) -> None:
    """Find the names and values of headers in memory.

    `places` (int64, (PLACE_ROWS, n)): filled by `decode_batches`. `headers` (int64, (HEADER_ROWS,
    k)): filled; k is the sum of the counts.
    """
    at = 0
    for place in range(places.shape[1]):
        position: Integer = places[PLACE_ADDRESS, place]
        end = places[PLACE_END, place]
        for _ in range(places[PLACE_COUNT, place]):
            # `decode_batches` has verified that the headers end within the record. If the log was
            # overwritten since then, an invalid name is returned as empty, and an invalid value as
            # null.
            key, key_size, position = read_sized_field(position, end)
            if key_size < 0 or position > end:
                key_size, position = np.int64(0), VARINT_CUT
            value, value_size, position = read_sized_field(position, end)
            if position > end:
                value_size = np.int64(FIELD_NULL)
            headers[HEADER_KEY, at] = key
            headers[HEADER_KEY_SIZE, at] = key_size
            headers[HEADER_VALUE, at] = value
            headers[HEADER_VALUE_SIZE, at] = max(value_size, FIELD_NULL)
            at += 1


@compiled
def copy_fields(
    addresses: NDArray[np.int64],
    sizes: NDArray[np.int64],
    readable_end: np.uint64,
    ends: NDArray[np.int32],
    data: NDArray[np.uint8],
) -> int:
    """Copy byte strings into Arrow's binary layout.

    `addresses`, `sizes` (int64, (n,)): the strings; `FIELD_NULL` for null. `readable_end`: nothing
    at or after this address is read. `ends` (int32, (n + 1,)): filled with offsets. `data` (uint8):
    filled; `COPY_SLACK_BYTES` longer than all strings. Returns the number of nulls.
    """
    out = np.uint64(data.ctypes.data)
    total = np.int64(0)
    nulls = 0
    ends[0] = 0
    for row in range(len(sizes)):
        size = sizes[row]
        copy_field(out + np.uint64(total), np.uint64(addresses[row]), size, readable_end)
        if size < 0:
            nulls += 1
        else:
            total += size
        ends[row + 1] = total
    return nulls


@compiled
def may_have_short_records(
    section: RecordSection, readable_end: np.uint64, first_offset: int, last_offset: int
) -> bool:
    """Return whether `decode_short_records` can be used for a section.

    `readable_end`: nothing at or after this address may be read. `first_offset`, `last_offset`: the
    requested range of offsets.
    """
    # If no short offset delta can leave the requested range, no offset has to be checked.
    # Differences of shifted offsets cannot overflow.
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
    chunk: Any,
    row: Integer,
    room: Integer,
    key_total: Integer,
    value_total: Integer,
    parts: int,
) -> tuple[np.uint64, Integer, Integer, Integer]:
    """Decode records of the most common shape, until one differs or does not fit in the chunk.

    This is the hot loop. As a separate function it needs fewer CPU registers, which makes it a
    quarter faster. `section`: records for which `may_have_short_records` is True. `cursor`: address
    of the next record. `left`: number of records left. `chunk` (CHUNK): the columns. `row`, `room`:
    row of the next record, and the maximum number of rows. `key_total`, `value_total`: bytes of
    keys and values so far. `parts`: bits of ``PART_``. Returns the address of the next record, its
    row, and the bytes of keys and values.
    """
    offsets = np.uint64(chunk.offsets)
    timestamps = np.uint64(chunk.timestamps)
    key_ends = np.uint64(chunk.key_ends) + _INT32_BYTES
    key_present = np.uint64(chunk.key_present)
    keys = np.uint64(chunk.keys)
    value_ends = np.uint64(chunk.value_ends) + _INT32_BYTES
    value_present = np.uint64(chunk.value_present)
    values = np.uint64(chunk.values)
    key_bytes, value_bytes = chunk.key_bytes, chunk.value_bytes
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
        if record.code != RECORD_VALID or (place == last and following != end):
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
    return cursor, np.int64(place), key_total, value_total


@compiled
def decode_batches(  # noqa: PLR0912, PLR0915, C901, because it is one loop, and hot
    window: np.uint64,
    window_bytes: int,
    positions: NDArray[np.int64],
    sizes: NDArray[np.int64],
    first_offset: int,
    last_offset: int,
    parts: int,
    arena: NDArray[np.uint8],
    contexts: NDArray[np.int64],
    chunks: Records,
    batch_ends: NDArray[np.int64],
    states: Records,
) -> int:
    """Decode the records of batches whose sizes have been verified.

    `window`: memory address to which positions are relative. `window_bytes`: readable bytes there.
    `positions`, `sizes` (int64, (n,)): the batches. `first_offset`, `last_offset`: the requested
    range of offsets, both inclusive. `parts`: bits of ``PART_``. `arena` (uint8): memory for
    decompressed records, plus `UNPACK_SLACK_BYTES`. `contexts`: as in
    `core.kernels.decompress.unpack`. `chunks` (CHUNK, (1,)): the columns, filled from row ``rows``
    of the state on. `batch_ends` (int64, (n,)): filled for each completed batch with the row after
    its last record. `states` (STATE, (1,)): from `new_state`. Returns a ``DECODE_`` code.
    """
    chunk, state = chunks[0], states[0]
    offsets = np.uint64(chunk.offsets)
    timestamps = np.uint64(chunk.timestamps)
    key_ends = np.uint64(chunk.key_ends)
    key_present = np.uint64(chunk.key_present)
    keys = np.uint64(chunk.keys)
    value_ends = np.uint64(chunk.value_ends)
    value_present = np.uint64(chunk.value_present)
    values = np.uint64(chunk.values)
    key_bytes, value_bytes, room = chunk.key_bytes, chunk.value_bytes, chunk.rows
    wants_keys, wants_values = parts & PART_KEYS != 0, parts & PART_VALUES != 0
    wants_headers = parts & PART_HEADERS != 0
    window_end = window + np.uint64(window_bytes)
    arena_start = np.uint64(arena.ctypes.data)
    batch = state.batch
    left = state.left
    cursor = np.uint64(state.cursor)
    row = state.rows
    header_rows = state.header_rows
    headers = state.headers
    header_bytes: Integer = state.header_bytes
    handed_in = state.handed_in
    section = load_section(state)
    key_total: Integer = np.int64(0)
    value_total: Integer = np.int64(0)
    if wants_keys:
        key_total = read_int32_little(key_ends + _INT32_BYTES * np.uint64(row))
    if wants_values:
        value_total = read_int32_little(value_ends + _INT32_BYTES * np.uint64(row))
    # First row of the current compressed batch, whose rows can be removed again; -1 for none.
    undone_row = np.int64(-1)
    undone_header_rows = undone_headers = np.int64(0)
    undone_header_bytes: Integer = np.int64(0)
    # Used bytes of the arena before this batch was decompressed; -1 for none.
    used = np.int64(-1)
    code = DECODE_DONE
    while batch < len(positions):
        if left == NOT_OPEN:
            undone_row = used = np.int64(-1)
            start = window + np.uint64(positions[batch])
            codec = codec_of(start)
            end = start + np.uint64(sizes[batch])
            if magic_of(start) < MAGIC_RECORD_BATCH:
                section = message_section(start, end)
            else:
                section = batch_section(start, start + np.uint64(RECORD_BATCH_OVERHEAD_BYTES), end)
            if codec != 0 and section.record_count != 0:
                used = state.arena_used
                size: Integer = np.int64(UNPACK_REFUSED)
                records = arena_start + np.uint64(used)
                if not section.is_message_set and section.record_count > 0:
                    room_left = len(arena) - UNPACK_SLACK_BYTES - used
                    size = unpack(codec, section.start, end, records, room_left, contexts)
                if size < 0:
                    is_full = size == UNPACK_NO_ROOM and used > 0
                    code = DECODE_ARENA_FULL if is_full else DECODE_NEEDS_RECORDS
                    break
                section = batch_section(start, records, records + np.uint64(size))
                state.arena_used = used + size
                # Kafka decodes a compressed batch completely before it returns its first record.
                # Here the rows are removed again if the batch is corrupt.
                undone_row = row
                undone_header_rows, undone_headers = header_rows, headers
                undone_header_bytes = header_bytes
            left = np.int64(section.record_count)
            cursor = section.start
            if left < 0:
                state.fault = NEGATIVE_RECORD_COUNT
                code = DECODE_FAULT
                break
        # The end of the memory that may be read. Memory after a section handed in must not be read.
        readable_end = section.end
        if not handed_in:
            is_in_window = window <= section.start <= window_end
            readable_end = window_end if is_in_window else arena_start + np.uint64(len(arena))
        may_run = left > _FEW_RECORDS and may_have_short_records(
            section, readable_end, first_offset, last_offset
        )
        while left > 0:
            if row == room or headers > MAX_CHUNK_HEADERS:
                code = DECODE_FULL
                break
            if may_run:
                first_row = row
                cursor, row, key_total, value_total = decode_short_records(
                    section, cursor, left, chunk, row, room, key_total, value_total, parts
                )
                may_run = row > first_row
                left -= row - first_row
                if left == 0 or row == room:
                    continue
            if section.is_message_set:
                following, offset, timestamp, fault = next_record(section, cursor, left)
                record = read_message(cursor, following)
                if parts and record.code != RECORD_VALID:
                    fault = np.int64(CUT_FIELD)
            else:
                record = read_short_fields(cursor, section.end)
                if record.code != RECORD_VALID:
                    record = read_fields(cursor, section.end)
                fault = record.code
                following = np.uint64(record.end)
                if left == 1 and fault == RECORD_VALID and following != section.end:
                    fault = np.int64(RECORDS_REMAINING)
                offset = section.base_offset + record.offset_delta
                timestamp = section.base_timestamp + record.timestamp_delta
                if section.uses_append_time:
                    timestamp = section.append_timestamp
                if record.header_count > MAX_HEADERS and wants_headers and fault == RECORD_VALID:
                    fault = np.int64(TOO_MANY_HEADERS)
            if fault != RECORD_VALID:
                state.fault = fault
                code = DECODE_FAULT
                break
            if first_offset <= offset <= last_offset:
                key_end = key_total + max(record.key_size, 0)
                value_end = value_total + max(record.value_size, 0)
                if (wants_keys and key_end > key_bytes) or (
                    wants_values and value_end > value_bytes
                ):
                    state.needed_key_bytes = record.key_size
                    state.needed_value_bytes = record.value_size
                    code = DECODE_FULL if row else DECODE_NEEDS_ROOM
                    break
                if wants_headers and record.header_count > 0:
                    own_bytes = np.int64(following) - record.headers
                    if header_bytes and header_bytes + own_bytes > MAX_CHUNK_HEADER_BYTES:
                        code = DECODE_FULL
                        break
                    _write_place(
                        chunk, header_rows, row, record.headers, record.header_count, following
                    )
                    header_rows += 1
                    headers += record.header_count
                    header_bytes += own_bytes
                place = np.uint64(row)
                write_int64_native(offsets + _LONG_BYTES * place, offset)
                write_int64_native(timestamps + _LONG_BYTES * place, timestamp)
                if wants_keys:
                    target = keys + np.uint64(key_total)
                    copy_field(target, np.uint64(record.key), record.key_size, readable_end)
                    write_int8(key_present + place, np.int64(record.key_size >= 0))
                    key_total = key_end
                    write_int32_native(key_ends + _INT32_BYTES * (place + np.uint64(1)), key_end)
                if wants_values:
                    target = values + np.uint64(value_total)
                    copy_field(target, np.uint64(record.value), record.value_size, readable_end)
                    write_int8(value_present + place, np.int64(record.value_size >= 0))
                    value_total = value_end
                    write_int32_native(
                        value_ends + _INT32_BYTES * (place + np.uint64(1)), value_end
                    )
                row += 1
            cursor = following
            left -= 1
        if code != DECODE_DONE:
            if undone_row >= 0:
                fault = np.int64(state.fault)
                if code != DECODE_FAULT:
                    # The chunk may end within a compressed batch only if the rest of the batch is
                    # valid.
                    _, fault = check_rest(section, cursor, left)
                if fault != RECORD_VALID:
                    # The caller opens the batch with `open_records`, which reports the same error
                    # as Kafka.
                    row, header_rows, headers = undone_row, undone_header_rows, undone_headers
                    header_bytes = undone_header_bytes
                    left = np.int64(NOT_OPEN)
                    state.arena_used = used
                    code = DECODE_NEEDS_RECORDS
            break
        if handed_in:
            code = DECODE_SECTION_DONE
            break
        if used >= 0 and headers == undone_headers:
            # No header place refers to the decompressed bytes, so their memory can be reused.
            state.arena_used = used
        batch_ends[batch] = row
        batch += 1
        left = np.int64(NOT_OPEN)
    state.batch = batch
    state.left = left
    state.cursor = np.int64(cursor)
    state.rows = row
    state.header_rows = header_rows
    state.headers = headers
    state.header_bytes = header_bytes
    store_section(state, section)
    return code


@compiled
def _write_place(
    chunk: Any,
    entry: Integer,
    row: Integer,
    address: Integer,
    count: Integer,
    end: np.uint64,
) -> None:
    """Record the position of a record's headers."""
    place = np.uint64(chunk.places) + _LONG_BYTES * np.uint64(entry)
    stride = np.uint64(chunk.place_stride)
    write_int64_native(place + np.uint64(PLACE_ROW) * stride, row)
    write_int64_native(place + np.uint64(PLACE_ADDRESS) * stride, address)
    write_int64_native(place + np.uint64(PLACE_COUNT) * stride, count)
    write_int64_native(place + np.uint64(PLACE_END) * stride, np.int64(end))


def warm_up(address: np.uint64, nothing: NDArray[np.int64]) -> None:
    arena = np.empty(0, np.uint8)
    chunks = np.zeros(1, CHUNK)
    decode_batches(
        address, 0, nothing, nothing, 0, 0, 0, arena, nothing, chunks, nothing, new_state()
    )
    headers = np.empty((HEADER_ROWS, 0), np.int64)
    find_headers(np.empty((PLACE_ROWS, 0), np.int64), headers)
    copy_fields(nothing, nothing, address, np.empty(1, np.int32), arena)
