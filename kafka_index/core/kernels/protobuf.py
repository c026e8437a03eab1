"""Decode the Protobuf messages of many records into columns, in one pass.

`decode_messages` iterates over the fields of messages and of nested messages. It writes values to
the memory that `typed_columns` describes, in which zeros are the defaults of Protobuf. Rows with
status `UNDECIDED` are decoded by upb, Protobuf's own decoder: corrupt messages, groups, fields with
an unexpected wire type, and singular fields that occur several times.

Source: the guide "Encoding" of Protocol Buffers.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kafka_index.core.kernels.compile_cache import compiled, inlined, writable_and_not
from kafka_index.core.kernels.memory import (
    Integer,
    borrowed,
    read_int8,
    read_int32_little,
    read_int64_native,
    write_int8,
    write_int32_native,
    write_int64_native,
)
from kafka_index.core.kernels.record_fields import VARINT_CUT
from kafka_index.core.kernels.typed_columns import (
    ABSENT,
    CAPACITY,
    COUNT,
    DECODED,
    LENGTH_BYTES,
    NEEDS_ELEMENTS,
    UNDECIDED,
    VALUES,
    append_bytes,
    end_row,
    is_utf8,
    no_columns,
    set_valid,
    start_row,
    value_address,
)

#: The fields of a message type: its first entry, the number of its entries, its level and its kind.
FIRST, ENTRIES, LEVEL, MESSAGE_KIND = range(4)
MESSAGE_FIELDS = 4
#: The kinds of messages. A `TIME` has seconds and nanoseconds, and a `MAP_ENTRY` has only key and
#: value.
ANY_MESSAGE, TIME, MAP_ENTRY = range(3)
#: The fields of an entry, which describes one field of a message type and is at the position of its
#: field number: a bit for each accepted wire type, the kind, the column, the number of the nested
#: message, the level of list elements and the column of the list (or -1), whether the column is
#: nullable, and the column and the case of the oneof (or -1).
WIRE_TYPES, FIELD_KIND, COLUMN, CHILD, ELEMENTS, LIST, NULLABLE, ONEOF, CASE = range(9)
ENTRY_FIELDS = 9
#: The kinds of fields. A field of kind `NONE` only clears earlier members of its oneof.
INT64, INT32, SINT64, SINT32, BOOL, FIXED64, FIXED32, STRING, BYTES, MESSAGE, NONE = range(11)

_MAX_DEPTH = 100
_VARINT, _FIXED64, _SIZED, _FIXED32 = 0, 1, 2, 5
# A bit for each of the wire types 0, 1, 2 and 5.
_WIRE_TYPES = 0b100111
_VARINT_BITS, _MAX_VARINT_BYTES = 7, 10
_MAX_TAG = (1 << 32) - 1
_LOW_BITS = 0xFFFFFFFF
_MIN_SECONDS, _MAX_SECONDS, _SECOND_NS = -62_135_596_800, 253_402_300_799, 1_000_000_000


@inlined
def _read_varint(at: Integer, end: Integer) -> tuple[np.uint64, Integer]:
    """Read a varint; return it and the address after it, or `VARINT_CUT` instead of the address."""
    value = np.uint64(0)
    for byte_number in range(_MAX_VARINT_BYTES):
        if at >= end:
            break
        byte = read_int8(np.uint64(at))
        at += 1
        value |= np.uint64(byte & 0x7F) << np.uint64(_VARINT_BITS * byte_number)
        if byte >= 0:
            return value, at
    return value, VARINT_CUT


@inlined
def _read_number(wire_type: Integer, at: Integer, end: Integer) -> tuple[np.uint64, Integer]:
    """Read a number or a length; return it and the address after it, which may exceed `end`."""
    if wire_type == _FIXED64:
        value = read_int64_native(np.uint64(at)) if end - at >= 8 else np.int64(0)
        return np.uint64(value), at + 8
    if wire_type == _FIXED32:
        value = read_int32_little(np.uint64(at)) if end - at >= 4 else np.int64(0)
        return np.uint64(value), at + 4
    return _read_varint(at, end)


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


@inlined
def _end_element(
    columns: NDArray[np.int64],
    levels: NDArray[np.int64],
    elements: Integer,
    list_column: Integer,
    list_index: Integer,
) -> None:
    """Add an element to the count of its level and to the length of its list."""
    levels[elements, COUNT] += 1
    length = value_address(columns, list_column, list_index, LENGTH_BYTES)
    write_int32_native(length, read_int32_little(length) + 1)


@inlined
def _decode_message(  # noqa: C901, PLR0911, PLR0912, PLR0915, because it is one loop, and hot
    at: Integer,
    end: Integer,
    readable_end: np.uint64,
    messages: NDArray[np.int64],
    entries: NDArray[np.int64],
    columns: NDArray[np.int64],
    levels: NDArray[np.int64],
    frames: NDArray[np.int64],
    needs: NDArray[np.int64],
) -> Integer:
    """Decode the message between two addresses; return its status."""
    depth = node = np.int64(0)
    while True:
        if at == end:
            if depth == 0:
                return DECODED
            depth -= 1
            end, node = frames[depth, 0], frames[depth, 1]
            elements, list_column, index = frames[depth, 2], frames[depth, 3], frames[depth, 4]
            if elements >= 0:
                _end_element(columns, levels, elements, list_column, index)
            continue
        tag, at = _read_varint(at, end)
        wire_type = np.int64(tag & np.uint64(7))
        number = np.int64(tag >> np.uint64(3))
        if at > end or tag > np.uint64(_MAX_TAG) or number == 0:
            return UNDECIDED
        # upb treats a map entry with further fields as an unknown field.
        if messages[node, MESSAGE_KIND] == MAP_ENTRY and number > 2:
            return UNDECIDED
        if (_WIRE_TYPES >> wire_type) & 1 == 0:
            return UNDECIDED
        value, at = _read_number(wire_type, at, end)
        if at > end or (wire_type == _SIZED and value > np.uint64(end - at)):
            return UNDECIDED
        size = np.int64(value) if wire_type == _SIZED else np.int64(0)
        entry = messages[node, FIRST] + number
        if number >= messages[node, ENTRIES] or entries[entry, WIRE_TYPES] == 0:
            at += size
            continue
        if (entries[entry, WIRE_TYPES] >> wire_type) & 1 == 0:
            return UNDECIDED
        kind, column = entries[entry, FIELD_KIND], entries[entry, COLUMN]
        elements, list_column = entries[entry, ELEMENTS], entries[entry, LIST]
        index_above = levels[messages[node, LEVEL], COUNT]
        index = index_above
        if elements >= 0:
            index = levels[elements, COUNT]
            if index >= levels[elements, CAPACITY]:
                needs[0], needs[1] = elements, index + 1
                return NEEDS_ELEMENTS
        elif entries[entry, ONEOF] >= 0:
            case = value_address(columns, entries[entry, ONEOF], index_above, LENGTH_BYTES)
            earlier = read_int32_little(case)
            if earlier != 0 and earlier != entries[entry, CASE]:
                return UNDECIDED
            write_int32_native(case, entries[entry, CASE])
        if kind == NONE:
            at += size
            continue
        if entries[entry, NULLABLE] != 0:
            set_valid(columns, column, index)
        if kind == STRING or kind == BYTES:  # noqa: PLR1714, SIM109
            source = np.uint64(at)
            length = value_address(columns, column, index, LENGTH_BYTES)
            if elements < 0 and read_int32_little(length) != 0:
                # The bytes of an earlier occurrence are already in the data.
                return UNDECIDED
            if kind == STRING and not is_utf8(source, size, readable_end):
                # A later occurrence of the field may replace the invalid string.
                return UNDECIDED
            append_bytes(columns, column, index, source, size, readable_end)
            at += size
        elif kind == MESSAGE:
            if depth == _MAX_DEPTH:
                return UNDECIDED
            frames[depth, 0], frames[depth, 1] = end, node
            frames[depth, 2], frames[depth, 3], frames[depth, 4] = (
                elements,
                list_column,
                index_above,
            )
            depth += 1
            end, node = at + size, entries[entry, CHILD]
            continue
        elif wire_type == _SIZED:
            # A packed list of numbers.
            packed_end = at + size
            packed_type = _VARINT
            if kind == FIXED64 or kind == FIXED32:  # noqa: PLR1714, SIM109
                packed_type = _FIXED64 if kind == FIXED64 else _FIXED32
            while at < packed_end:
                value, at = _read_number(packed_type, at, packed_end)
                if at > packed_end:
                    return UNDECIDED
                index = levels[elements, COUNT]
                if index >= levels[elements, CAPACITY]:
                    needs[0], needs[1] = elements, index + 1
                    return NEEDS_ELEMENTS
                _store(columns[column, VALUES], index, kind, value)
                _end_element(columns, levels, elements, list_column, index_above)
            continue
        else:
            if messages[node, MESSAGE_KIND] == TIME:
                # Times are in the years 1 to 9999.
                signed = np.int64(value)
                is_seconds = number == 1 and _MIN_SECONDS <= signed <= _MAX_SECONDS
                if not (is_seconds or (number == 2 and 0 <= signed < _SECOND_NS)):
                    return UNDECIDED
            _store(columns[column, VALUES], index, kind, value)
        if elements >= 0:
            _end_element(columns, levels, elements, list_column, index_above)


@compiled
def decode_messages(
    data: NDArray[np.uint8],
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
    first_row: int,
    messages: NDArray[np.int64],
    entries: NDArray[np.int64],
    columns: NDArray[np.int64],
    levels: NDArray[np.int64],
    frames: NDArray[np.int64],
    statuses: NDArray[np.uint8],
    needs: NDArray[np.int64],
) -> int:
    """Decode the messages of rows from `first_row` on; return the first row without a status.

    `messages` (int64, (m, MESSAGE_FIELDS)), `entries` (int64, (k, ENTRY_FIELDS)): the message
    types, starting with the type of the rows. For the other parameters, see `decode_avro`.
    """
    base = np.int64(data.ctypes.data)
    readable_end = np.uint64(base + len(data))
    messages, entries, columns = borrowed(messages), borrowed(entries), borrowed(columns)
    levels, frames = borrowed(levels), borrowed(frames)
    statuses, needs = borrowed(statuses), borrowed(needs)
    for row in range(first_row, len(starts)):
        if starts[row] < 0:
            statuses[row] = ABSENT
            continue
        start_row(levels, row)
        at, end = base + starts[row], base + ends[row]
        status = _decode_message(
            at, end, readable_end, messages, entries, columns, levels, frames, needs
        )
        if not end_row(columns, levels, row, status, statuses):
            return row
    return len(starts)


def warm_up() -> None:
    """Load or compile `decode_messages`, by calling it without rows."""
    nothing = np.empty(0, np.int64)
    messages = np.zeros((1, MESSAGE_FIELDS), np.int64)
    entries = np.zeros((1, ENTRY_FIELDS), np.int64)
    for data in writable_and_not(np.empty(0, np.uint8)):
        decode_messages(data, nothing, nothing, 0, messages, entries, *no_columns())
