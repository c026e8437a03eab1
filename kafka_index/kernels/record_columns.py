"""Records of many batches into columns: a pass over their fields, then a copy of each column.

`decode_batches` fills an array of int64 with a row of fields for each record: numbers as they are,
keys, values and headers as memory addresses and sizes. `copy_fields` then copies the bytes of one
such column to the layout of Arrow's binary arrays, so that a column nobody asked for costs nothing.

Sources: Kafka's ``DefaultRecordBatch.iterator`` and ``LegacyRecord``.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kafka_index.kernels.batch_header import codec_of, magic_of
from kafka_index.kernels.big_endian import (
    Integer,
    read_int8,
    read_int32,
    write_int64_native,
)
from kafka_index.kernels.compile_cache import compiled
from kafka_index.kernels.copying import (
    UNPACK_NO_ROOM,
    UNPACK_REFUSED,
    UNPACK_SLACK_BYTES,
    VECTOR_BYTES,
    copy_bytes,
    copy_vector,
)
from kafka_index.kernels.records import (
    FIELD_NULL,
    RECORD_SOUND,
    RECORDS_REMAINING,
    RecordSection,
    batch_section,
    check_records,
    message_section,
    next_record,
    read_fields,
    read_short_fields,
    read_sized_field,
)
from kafka_index.kernels.unpacking import unpack
from kafka_index.kernels.varints import VARINT_CUT
from kafka_index.layout.records import (
    MAGIC_POSITION,
    MAGIC_RECORD_BATCH,
    MESSAGE_V0_HEADER,
    MESSAGE_V1_HEADER,
    RECORD_BATCH_OVERHEAD_BYTES,
    field_position,
)

#: Rows of the array that `decode_batches` fills.
(
    FIELD_OFFSET,
    FIELD_TIMESTAMP,
    FIELD_KEY,
    FIELD_KEY_SIZE,
    FIELD_VALUE,
    FIELD_VALUE_SIZE,
    FIELD_HEADERS,
    FIELD_HEADER_COUNT,
) = range(8)
FIELD_ROWS = 8

#: Rows of the array that `decode_headers` fills.
HEADER_KEY, HEADER_KEY_SIZE, HEADER_VALUE, HEADER_VALUE_SIZE = range(4)
HEADER_ROWS = 4

#: Why a call of `decode_batches` returned: the batches are done; the chunk has as many records as
#: it may have, or the arena has; the caller has to decompress the records of the batch at
#: ``STATE_BATCH``; those handed in are done; or that batch is damaged (``STATE_FAULT``), after the
#: records before the damage.
(
    DECODE_DONE,
    DECODE_FULL,
    DECODE_ARENA_FULL,
    DECODE_NEEDS_RECORDS,
    DECODE_SECTION_DONE,
    DECODE_FAULT,
) = range(6)

#: What ``STATE_FAULT`` can be besides the codes of `kafka_index.kernels.records`: a batch with a
#: negative record count, a message that ends before its key or its value does, and a record with
#: more than `MAX_HEADERS` headers.
NEGATIVE_RECORD_COUNT, CUT_FIELD, TOO_MANY_HEADERS = -1, -2, -3

#: The state between two calls, an array of int64: the number of the batch; how many of its records
#: are left (`NOT_OPEN`: all of them) and the address of the next one; rows, bytes and headers of
#: the chunk so far; bytes of the arena in use; why the batch is damaged; whether its records were
#: handed in, and the fields of their `RecordSection`.
(
    STATE_BATCH,
    STATE_LEFT,
    STATE_CURSOR,
    STATE_ROWS,
    STATE_BYTES,
    STATE_HEADERS,
    STATE_ARENA_USED,
    STATE_FAULT,
    STATE_HANDED_IN,
    STATE_SECTION,
) = range(10)
STATE_SIZE = STATE_SECTION + len(RecordSection._fields)
NOT_OPEN = -1

#: A chunk ends after the record with which its headers exceed the first number. No record may have
#: more than the second: headers take as much memory as they have in bytes sixteen times over.
MAX_CHUNK_HEADERS, MAX_HEADERS = 256 * 1024, 1024 * 1024
#: A chunk ends before the record that would make it larger: Arrow's offsets are int32.
_MAX_CHUNK_BYTES = 1 << 30

_INT32_BYTES = 4
_LONG_BYTES = 8
_V0_KEY = field_position(MESSAGE_V0_HEADER, "key_length")
_V1_KEY = field_position(MESSAGE_V1_HEADER, "key_length")
#: From this size on memcpy is faster than a loop.
_LONG_COPY_BYTES = 512
#: Bytes after the end of an output that `copy_fields` may overwrite.
COPY_SLACK_BYTES = UNPACK_SLACK_BYTES


def new_state() -> NDArray[np.int64]:
    """Return the state before the first batch."""
    state = np.zeros(STATE_SIZE, np.int64)
    state[STATE_LEFT] = NOT_OPEN
    return state


def hand_in_section(state: NDArray[np.int64], section: RecordSection) -> None:
    """Hand in the decompressed records of the batch at ``STATE_BATCH``."""
    fields = [int(field) for field in section]
    state[STATE_SECTION:] = np.array(fields, np.int64)
    state[STATE_LEFT] = max(fields[2], 0)
    state[STATE_CURSOR] = fields[0]
    state[STATE_HANDED_IN] = 1


def skip_batch(state: NDArray[np.int64], batch_ends: NDArray[np.int64]) -> None:
    """Continue after the batch at ``STATE_BATCH``, which has no further records."""
    batch_ends[state[STATE_BATCH]] = state[STATE_ROWS]
    state[STATE_BATCH] += 1
    state[STATE_LEFT] = NOT_OPEN
    state[STATE_HANDED_IN] = 0


def begin_chunk(state: NDArray[np.int64]) -> None:
    """Begin a chunk: the rows so far have been taken."""
    state[STATE_ROWS] = state[STATE_BYTES] = state[STATE_HEADERS] = 0


@compiled
def decode_batches(  # noqa: PLR0912, PLR0915, C901, because it is one loop, and hot
    window: np.uint64,
    positions: NDArray[np.int64],
    sizes: NDArray[np.int64],
    first_offset: int,
    last_offset: int,
    with_bytes: bool,
    max_bytes: int,
    arena: NDArray[np.uint8],
    contexts: NDArray[np.int64],
    fields: NDArray[np.int64],
    batch_ends: NDArray[np.int64],
    state: NDArray[np.int64],
) -> int:
    """Decode the records of batches whose sizes have been checked.

    Parameters
    ----------
    window : uint64
        Memory address that positions count from.
    positions, sizes : ndarray of int64, shape (n,)
        The batches.
    first_offset, last_offset : int
        Records below the first or above the second are left out.
    with_bytes : bool
        Whether keys, values and headers are wanted; else only offsets and timestamps are filled.
    max_bytes : int
        A chunk ends after the record that makes it larger than this.
    arena : ndarray of uint8
        Memory for decompressed records, and `UNPACK_SLACK_BYTES`.
    contexts : ndarray of int64
        As for `kafka_index.kernels.unpacking.unpack`.
    fields : ndarray of int64, shape (FIELD_ROWS, m)
        Filled from ``STATE_ROWS`` on. Sizes include `FIELD_NULL`.
    batch_ends : ndarray of int64, shape (n,)
        Filled for each batch that is done: the row of the chunk after its last record.
    state : ndarray of int64, shape (STATE_SIZE,)
        From `new_state`.

    Returns
    -------
    int
        One of the ``DECODE_`` codes.
    """
    room = fields.shape[1]
    out = np.uint64(fields.ctypes.data)
    column = np.uint64(_LONG_BYTES * room)
    batch = state[STATE_BATCH]
    left = state[STATE_LEFT]
    cursor = np.uint64(state[STATE_CURSOR])
    row = state[STATE_ROWS]
    chunk_bytes = state[STATE_BYTES]
    chunk_headers = state[STATE_HEADERS]
    handed_in = state[STATE_HANDED_IN]
    section = RecordSection(
        np.uint64(state[STATE_SECTION]),
        np.uint64(state[STATE_SECTION + 1]),
        state[STATE_SECTION + 2],
        state[STATE_SECTION + 3],
        state[STATE_SECTION + 4],
        state[STATE_SECTION + 5],
        state[STATE_SECTION + 6],
        state[STATE_SECTION + 7],
    )
    # The row where a compressed batch begins that can be undone; -1 for none.
    undone_row = np.int64(-1)
    used = np.int64(0)
    code = DECODE_DONE
    while batch < len(positions):
        if left == NOT_OPEN:
            undone_row = np.int64(-1)
            start = window + np.uint64(positions[batch])
            codec = codec_of(start)
            end = start + np.uint64(sizes[batch])
            if magic_of(start) < MAGIC_RECORD_BATCH:
                section = message_section(start, end)
            else:
                section = batch_section(start, start + np.uint64(RECORD_BATCH_OVERHEAD_BYTES), end)
            if codec != 0 and section.record_count != 0:
                fits = section.record_count <= room - row
                if row and not fits:
                    code = DECODE_FULL
                    break
                used = state[STATE_ARENA_USED]
                size: Integer = np.int64(UNPACK_REFUSED)
                records = np.uint64(arena.ctypes.data) + np.uint64(used)
                if not section.is_message_set:
                    room_left = len(arena) - UNPACK_SLACK_BYTES - used
                    size = unpack(codec, section.start, end, records, room_left, contexts)
                if size >= 0:
                    section = batch_section(start, records, records + np.uint64(size))
                    # Kafka reads a compressed batch whole before it returns the first record. One
                    # whose records all fit in the chunk is undone at a fault instead.
                    fault: Integer = np.int64(RECORD_SOUND)
                    undone_row = row
                    if not fits:
                        undone_row = np.int64(-1)
                        _, fault = check_records(section)
                    if section.record_count < 0 or fault != RECORD_SOUND:
                        size = np.int64(UNPACK_REFUSED)
                if size < 0:
                    is_full = size == UNPACK_NO_ROOM and used > 0
                    code = DECODE_ARENA_FULL if is_full else DECODE_NEEDS_RECORDS
                    break
                state[STATE_ARENA_USED] = used + size
            left = np.int64(section.record_count)
            cursor = section.start
            if left < 0:
                state[STATE_FAULT] = NEGATIVE_RECORD_COUNT
                code = DECODE_FAULT
                break
        while left > 0:
            is_full = chunk_bytes > max_bytes or chunk_headers > MAX_CHUNK_HEADERS
            if row == room or (is_full and undone_row < 0):
                code = DECODE_FULL
                break
            place = out + np.uint64(_LONG_BYTES * row)
            header_count: Integer = np.int64(0)
            if with_bytes and not section.is_message_set:
                record = read_short_fields(cursor, section.end)
                if record.code != RECORD_SOUND:
                    record = read_fields(cursor, section.end)
                fault = record.code
                following = np.uint64(record.end)
                if left == 1 and fault == RECORD_SOUND and following != section.end:
                    fault = np.int64(RECORDS_REMAINING)
                offset: Integer = section.base_offset + record.offset_delta
                timestamp: Integer = section.base_timestamp + record.timestamp_delta
                if section.uses_append_time:
                    timestamp = section.append_timestamp
                header_count = record.header_count
                if header_count > MAX_HEADERS and fault == RECORD_SOUND:
                    fault = np.int64(TOO_MANY_HEADERS)
                _write_fields(
                    place,
                    column,
                    record.key,
                    max(record.key_size, FIELD_NULL),
                    record.value,
                    max(record.value_size, FIELD_NULL),
                    record.headers,
                    header_count,
                )
            else:
                following, offset, timestamp, fault = next_record(section, cursor, left)
                if with_bytes and not _write_message(place, column, cursor, following):
                    fault = np.int64(CUT_FIELD)
            if fault != RECORD_SOUND:
                state[STATE_FAULT] = fault
                code = DECODE_FAULT
                if undone_row >= 0:
                    # The caller finds out what Kafka makes of the batch.
                    row = undone_row
                    left = np.int64(NOT_OPEN)
                    state[STATE_ARENA_USED] = used
                    code = DECODE_NEEDS_RECORDS
                break
            if first_offset <= offset <= last_offset:
                record_bytes = np.int64(following) - np.int64(cursor)
                if row and chunk_bytes + record_bytes > _MAX_CHUNK_BYTES:
                    code = DECODE_FULL
                    break
                write_int64_native(place, offset)
                write_int64_native(place + column, timestamp)
                row += 1
                chunk_bytes += record_bytes
                chunk_headers += header_count
            cursor = following
            left -= 1
        if code != DECODE_DONE:
            break
        if handed_in:
            code = DECODE_SECTION_DONE
            break
        batch_ends[batch] = row
        batch += 1
        left = np.int64(NOT_OPEN)
    state[STATE_BATCH] = batch
    state[STATE_LEFT] = left
    state[STATE_CURSOR] = np.int64(cursor)
    state[STATE_ROWS] = row
    state[STATE_BYTES] = chunk_bytes
    state[STATE_HEADERS] = chunk_headers
    state[STATE_SECTION] = np.int64(section.start)
    state[STATE_SECTION + 1] = np.int64(section.end)
    state[STATE_SECTION + 2] = section.record_count
    state[STATE_SECTION + 3] = section.base_offset
    state[STATE_SECTION + 4] = section.base_timestamp
    state[STATE_SECTION + 5] = section.append_timestamp
    state[STATE_SECTION + 6] = section.uses_append_time
    state[STATE_SECTION + 7] = section.is_message_set
    return code


@compiled
def _write_fields(
    place: np.uint64,
    column: np.uint64,
    key: Integer,
    key_size: Integer,
    value: Integer,
    value_size: Integer,
    headers: Integer,
    header_count: Integer,
) -> None:
    """Write a row of `fields` from `FIELD_KEY` on."""
    write_int64_native(place + column * np.uint64(FIELD_KEY), key)
    write_int64_native(place + column * np.uint64(FIELD_KEY_SIZE), key_size)
    write_int64_native(place + column * np.uint64(FIELD_VALUE), value)
    write_int64_native(place + column * np.uint64(FIELD_VALUE_SIZE), value_size)
    write_int64_native(place + column * np.uint64(FIELD_HEADERS), headers)
    write_int64_native(place + column * np.uint64(FIELD_HEADER_COUNT), header_count)


@compiled
def _write_message(
    place: np.uint64, column: np.uint64, message: np.uint64, following: np.uint64
) -> bool:
    """Write key and value of a message; return whether they lie in it."""
    is_v0 = read_int8(message + np.uint64(MAGIC_POSITION)) == 0
    end = np.int64(following)
    key, key_size, position = _read_message_field(
        np.int64(message) + (_V0_KEY if is_v0 else _V1_KEY), end
    )
    value, value_size, position = _read_message_field(position, end)
    _write_fields(place, column, key, key_size, value, value_size, np.int64(following), np.int64(0))
    return bool(position <= end)


@compiled
def _read_message_field(position: Integer, end: Integer) -> tuple[Integer, Integer, Integer]:
    """Return start and size of a field of a message, and the address after it."""
    start = position + _INT32_BYTES
    if start > end:
        return end, np.int64(FIELD_NULL), VARINT_CUT
    size = read_int32(np.uint64(position))
    if size > end - start:
        return end, np.int64(FIELD_NULL), VARINT_CUT
    return start, max(size, FIELD_NULL), start + max(size, 0)


@compiled
def decode_headers(fields: NDArray[np.int64], rows: int, headers: NDArray[np.int64]) -> None:
    """Find the headers of records of a chunk.

    Parameters
    ----------
    fields : ndarray of int64, shape (FIELD_ROWS, m)
        As `decode_batches` has filled them.
    rows : int
        How many of them.
    headers : ndarray of int64, shape (HEADER_ROWS, k)
        Filled; k is the sum of ``FIELD_HEADER_COUNT``.
    """
    # `decode_batches` has found that all of them end within their record.
    end = VARINT_CUT
    at = 0
    for row in range(rows):
        position: Integer = fields[FIELD_HEADERS, row]
        for _ in range(fields[FIELD_HEADER_COUNT, row]):
            key, key_size, position = read_sized_field(position, end)
            value, value_size, position = read_sized_field(position, end)
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
    """Copy the bytes of a column to the layout of Arrow's binary arrays.

    Parameters
    ----------
    addresses, sizes : ndarray of int64, shape (n,)
        Where they are; `FIELD_NULL` for null.
    readable_end : uint64
        Fields that end within `COPY_SLACK_BYTES` before this address are copied byte by byte, since
        nothing may be read after it.
    ends : ndarray of int32, shape (n + 1,)
        Filled with offsets.
    data : ndarray of uint8
        Filled; `COPY_SLACK_BYTES` longer than all fields.

    Returns
    -------
    int
        How many are null.
    """
    out = np.uint64(data.ctypes.data)
    step = np.uint64(VECTOR_BYTES)
    total = np.int64(0)
    nulls = 0
    ends[0] = 0
    for row in range(len(sizes)):
        size = sizes[row]
        if size > 0:
            source = np.uint64(addresses[row])
            target = out + np.uint64(total)
            if readable_end - (source + np.uint64(size)) < np.uint64(VECTOR_BYTES):
                copy_bytes(target, source, size)
            elif size <= VECTOR_BYTES:
                copy_vector(target, source, size)
            elif size <= _LONG_COPY_BYTES:
                done = np.uint64(0)
                while done < np.uint64(size):
                    copy_vector(target + done, source + done, size)
                    done += step
            else:
                copy_bytes(target, source, size)
            total += size
        elif size < 0:
            nulls += 1
        ends[row + 1] = total
    return nulls


def warm_up(address: np.uint64, nothing: NDArray[np.int64]) -> None:
    """Load or compile the decoding of records, over no batches."""
    fields = np.empty((FIELD_ROWS, 1), np.int64)
    arena = np.empty(0, np.uint8)
    for with_bytes in (True, False):
        decode_batches(
            address,
            nothing,
            nothing,
            0,
            0,
            with_bytes,
            0,
            arena,
            nothing,
            fields,
            nothing,
            new_state(),
        )
    decode_headers(fields, 0, fields)
    copy_fields(nothing, nothing, address, np.empty(1, np.int32), np.empty(0, np.uint8))
