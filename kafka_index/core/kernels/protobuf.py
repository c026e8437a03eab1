"""Protobuf messages of many records into columns, in one pass.

`decode_messages` walks over the fields of messages, and of the messages in them. It writes values
to the memory that `core.kernels.avro` describes: columns, levels, lengths and validity. Zeros are
the defaults of Protobuf. A row that the reference decoder may read otherwise is left to it: damage,
groups, fields of another type than the schema has, and what comes twice but may be there once.

Source: the guide "Encoding" of Protocol Buffers.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kafka_index.core.kernels.avro import (
    ABSENT,
    BAD_UTF8,
    CAPACITY,
    COLUMN_FIELDS,
    COUNT,
    DATA,
    DATA_USED,
    DECODED,
    LEVEL_FIELDS,
    NEEDS_LEVEL,
    VALID,
    VALUES,
    is_utf8,
    undo_row,
)
from kafka_index.core.kernels.compile_cache import compiled, inlined, writable_and_not
from kafka_index.core.kernels.memory import (
    Integer,
    copy_field,
    read_int8,
    read_int32_little,
    read_int64_native,
    write_int8,
    write_int32_native,
    write_int64_native,
)

#: The status of a row that is left to the reference decoder.
ODD = 50

#: The fields of a message: the first of its entries, how many there are, its level and its kind.
FIRST, ENTRIES, LEVEL, MESSAGE_KIND = range(4)
MESSAGE_FIELDS = 4
#: A time has seconds and nanoseconds, and an entry of a map no other fields than key and value.
ANY_MESSAGE, TIME, MAP_ENTRY = range(3)
#: An entry, at the number of its field: a bit for each wire type that it may have, its kind, its
#: column, the message that it is, the level of its elements and the column of the list (or -1),
#: whether its presence is kept, and the column and the case of its oneof (or -1).
WIRE_TYPES, FIELD_KIND, COLUMN, CHILD, ELEMENTS, LIST, PRESENCE, ONEOF, CASE = range(9)
ENTRY_FIELDS = 9
#: The kinds of fields; what is of none counts for its oneof only.
INT64, INT32, SINT64, SINT32, BOOL, FIXED64, FIXED32, STRING, BYTES, MESSAGE, NONE = range(11)

_MAX_DEPTH = 100
_VARINT, _FIXED64, _SIZED, _FIXED32 = 0, 1, 2, 5
_MAX_VARINT_BYTES = 10
_MAX_TAG = (1 << 32) - 1
_LOW_BITS = 0xFFFFFFFF
_MIN_SECONDS, _MAX_SECONDS, _SECOND_NS = -62_135_596_800, 253_402_300_799, 1_000_000_000


@inlined
def _read_varint(base: np.uint64, at: Integer, end: Integer) -> tuple[np.uint64, Integer]:
    """Return a number and the position after it, which is negative for none."""
    if at >= end:
        return np.uint64(0), np.int64(-1)
    byte = read_int8(base + np.uint64(at))
    at += 1
    if byte >= 0:
        return np.uint64(byte), np.int64(at)
    value = np.uint64(byte & 0x7F)
    shift = np.uint64(7)
    for _ in range(_MAX_VARINT_BYTES - 1):
        if at >= end:
            return np.uint64(0), np.int64(-1)
        byte = read_int8(base + np.uint64(at))
        at += 1
        value |= np.uint64(byte & 0x7F) << shift
        if byte >= 0:
            return value, np.int64(at)
        shift += np.uint64(7)
    return np.uint64(0), np.int64(-1)


@inlined
def _store(values: Integer, index: Integer, kind: Integer, value: np.uint64) -> None:
    """Write a number to a column."""
    if kind in (INT64, FIXED64):
        write_int64_native(np.uint64(values + 8 * index), np.int64(value))
    elif kind in (INT32, FIXED32):
        write_int32_native(np.uint64(values + 4 * index), np.int64(value))
    elif kind == BOOL:
        write_int8(np.uint64(values + index), np.int64(value != np.uint64(0)))
    elif kind == SINT64:
        number = np.int64(value >> np.uint64(1)) ^ -np.int64(value & np.uint64(1))
        write_int64_native(np.uint64(values + 8 * index), number)
    else:
        low = np.int64(value & np.uint64(_LOW_BITS))
        write_int32_native(np.uint64(values + 4 * index), (low >> 1) ^ -(low & 1))


@compiled
def decode_messages(  # noqa: PLR0912, PLR0915, C901, because it is one loop, and hot
    data: NDArray[np.uint8],
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
    first_row: int,
    messages: NDArray[np.int64],
    entries: NDArray[np.int64],
    columns: NDArray[np.int64],
    levels: NDArray[np.int64],
    statuses: NDArray[np.uint8],
    needs: NDArray[np.int64],
) -> int:
    """Decode the messages of rows from `first_row` on; return the row that was reached.

    `messages` (int64, (m, MESSAGE_FIELDS)), `entries` (int64, (k, ENTRY_FIELDS)): the types, that
    of the rows first. The other parameters are those of `decode_avro`.
    """
    base = np.uint64(data.ctypes.data)
    readable_end = base + np.uint64(len(data))
    # End, message, level whose element ends, column of the list, and place in that.
    above = np.empty((_MAX_DEPTH, 5), np.int64)
    level_count = levels.shape[0]
    saved = np.zeros(level_count, np.int64)
    rows = len(starts)
    row = np.int64(first_row)
    while row < rows:
        at, end = starts[row], ends[row]
        if at < 0:
            statuses[row] = ABSENT
            row += 1
            continue
        levels[0, COUNT] = row
        for level in range(1, level_count):
            saved[level] = levels[level, COUNT]
        depth, node = np.int64(0), np.int64(0)
        status = np.int64(DECODED)
        while True:
            if at == end:
                if depth == 0:
                    break
                depth -= 1
                end, node = above[depth, 0], above[depth, 1]
                level = above[depth, 2]
                if level >= 0:
                    levels[level, COUNT] += 1
                    length = np.uint64(columns[above[depth, 3], VALUES] + 4 * above[depth, 4])
                    write_int32_native(length, read_int32_little(length) + 1)
                continue
            tag, at = _read_varint(base, at, end)
            wire_type = np.int64(tag & np.uint64(7))
            number = np.int64(tag >> np.uint64(3))
            if at < 0 or tag > np.uint64(_MAX_TAG) or number == 0:
                status = np.int64(ODD)
                break
            # upb keeps an entry of a map with other fields as unknown.
            if messages[node, MESSAGE_KIND] == MAP_ENTRY and number > 2:
                status = np.int64(ODD)
                break
            value, size = np.uint64(0), np.int64(0)
            if wire_type == _VARINT:
                value, at = _read_varint(base, at, end)
            elif wire_type == _SIZED:
                value, at = _read_varint(base, at, end)
                if at < 0 or value > np.uint64(end - at):
                    status = np.int64(ODD)
                    break
                size = np.int64(value)
            elif wire_type == _FIXED64:
                if end - at >= 8:
                    value = np.uint64(read_int64_native(base + np.uint64(at)))
                at += 8
            elif wire_type == _FIXED32:
                if end - at >= 4:
                    value = np.uint64(read_int32_little(base + np.uint64(at)))
                at += 4
            else:
                status = np.int64(ODD)
                break
            if at < 0 or at > end:
                status = np.int64(ODD)
                break
            entry = messages[node, FIRST] + number
            if number >= messages[node, ENTRIES] or entries[entry, WIRE_TYPES] == 0:
                at += size
                continue
            if (entries[entry, WIRE_TYPES] >> wire_type) & 1 == 0:
                status = np.int64(ODD)
                break
            kind, column = entries[entry, FIELD_KIND], entries[entry, COLUMN]
            elements = entries[entry, ELEMENTS]
            place = levels[messages[node, LEVEL], COUNT]
            index = place
            if elements >= 0:
                index = levels[elements, COUNT]
                if index >= levels[elements, CAPACITY]:
                    needs[0], needs[1], needs[2] = elements, -1, index + 1
                    status = np.int64(NEEDS_LEVEL)
                    break
            elif entries[entry, ONEOF] >= 0:
                case = np.uint64(columns[entries[entry, ONEOF], VALUES] + 4 * place)
                known = read_int32_little(case)
                if known != 0 and known != entries[entry, CASE]:
                    status = np.int64(ODD)
                    break
                write_int32_native(case, entries[entry, CASE])
            if kind == NONE:
                at += size
                continue
            if entries[entry, PRESENCE] != 0:
                write_int8(np.uint64(columns[column, VALID] + index), np.int64(1))
            if kind == STRING or kind == BYTES:  # noqa: PLR1714, SIM109
                length = np.uint64(columns[column, VALUES] + 4 * index)
                source = base + np.uint64(at)
                if elements < 0 and read_int32_little(length) != 0:
                    # The bytes of the first one are in place already.
                    status = np.int64(ODD)
                    break
                if kind == STRING and not is_utf8(source, size, readable_end):
                    status = np.int64(BAD_UTF8)
                    break
                used = columns[column, DATA_USED]
                target = np.uint64(columns[column, DATA]) + np.uint64(used)
                copy_field(target, source, size, readable_end)
                columns[column, DATA_USED] = used + size
                write_int32_native(length, size)
                at += size
            elif kind == MESSAGE:
                if depth == _MAX_DEPTH:
                    status = np.int64(ODD)
                    break
                above[depth, 0], above[depth, 1] = end, node
                above[depth, 2], above[depth, 3] = elements, entries[entry, LIST]
                above[depth, 4] = place
                depth += 1
                end, node = at + size, entries[entry, CHILD]
                continue
            elif wire_type == _SIZED:
                # Packed numbers.
                stop = at + size
                while at < stop:
                    if kind == FIXED64:
                        value = np.uint64(0)
                        if stop - at >= 8:
                            value = np.uint64(read_int64_native(base + np.uint64(at)))
                        at += 8
                    elif kind == FIXED32:
                        value = np.uint64(0)
                        if stop - at >= 4:
                            value = np.uint64(read_int32_little(base + np.uint64(at)))
                        at += 4
                    else:
                        value, at = _read_varint(base, at, stop)
                    if at < 0 or at > stop:
                        status = np.int64(ODD)
                        break
                    index = levels[elements, COUNT]
                    if index >= levels[elements, CAPACITY]:
                        needs[0], needs[1], needs[2] = elements, -1, index + 1
                        status = np.int64(NEEDS_LEVEL)
                        break
                    _store(columns[column, VALUES], index, kind, value)
                    levels[elements, COUNT] += 1
                    length = np.uint64(columns[entries[entry, LIST], VALUES] + 4 * place)
                    write_int32_native(length, read_int32_little(length) + 1)
                if status != DECODED:
                    break
                continue
            else:
                if messages[node, MESSAGE_KIND] == TIME:
                    # Of the years 1 to 9999.
                    signed = np.int64(value)
                    is_seconds = number == 1 and _MIN_SECONDS <= signed <= _MAX_SECONDS
                    if not (is_seconds or (number == 2 and 0 <= signed < _SECOND_NS)):
                        status = np.int64(ODD)
                        break
                _store(columns[column, VALUES], index, kind, value)
            if elements >= 0:
                levels[elements, COUNT] += 1
                length = np.uint64(columns[entries[entry, LIST], VALUES] + 4 * place)
                write_int32_native(length, read_int32_little(length) + 1)
        if status == DECODED:
            statuses[row] = DECODED
            row += 1
            continue
        undo_row(columns, levels, saved, row)
        if status >= NEEDS_LEVEL:
            return int(row)
        statuses[row] = status
        row += 1
    return int(row)


def warm_up() -> None:
    """Load or compile the decoding of messages, over no rows."""
    nothing = np.empty(0, np.int64)
    messages = np.zeros((1, MESSAGE_FIELDS), np.int64)
    entries = np.zeros((1, ENTRY_FIELDS), np.int64)
    columns, levels = np.zeros((0, COLUMN_FIELDS), np.int64), np.zeros((1, LEVEL_FIELDS), np.int64)
    statuses, needs = np.empty(0, np.uint8), np.zeros(3, np.int64)
    for data in writable_and_not(np.empty(0, np.uint8)):
        decode_messages(
            data, nothing, nothing, 0, messages, entries, columns, levels, statuses, needs
        )
