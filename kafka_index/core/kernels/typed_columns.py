"""The memory of typed columns, which the Avro and Protobuf decoders fill row by row.

A column belongs to a level. Level 0 has the rows, and each array or map has a level for its
elements. A column of variable size stores the length of each value instead of offsets, and a
nullable column stores a byte instead of a bit for validity. Zeros therefore mean null, empty or 0,
so that a decoder writes nothing for a null record. The data of a column has space for the bodies of
all records.

A decoder leaves a corrupt row as zeros and sets its status. If a level has no space for further
elements, the decoder undoes the row and returns. The caller enlarges the level and continues at the
undone row.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kafka_index.core.kernels.compile_cache import compiled, inlined
from kafka_index.core.kernels.memory import (
    Integer,
    copy_field,
    read_int8,
    read_int32_little,
    read_int64_native,
    write_int8,
    write_int32_native,
)

#: The fields of a column: addresses of values (or lengths), of validity and of data, used bytes of
#: data, level, and bytes per value.
VALUES, VALID, DATA, DATA_USED, COLUMN_LEVEL, WIDTH = range(6)
COLUMN_FIELDS = 6
#: The fields of a level: the number of elements, the number of elements that fit into memory, and
#: the number of elements before the current row.
COUNT, CAPACITY, SAVED_COUNT = range(3)
LEVEL_FIELDS = 3
#: The size of a decoder's stack for nested values: number of frames, and fields of a frame.
MAX_FRAMES, FRAME_FIELDS = 512, 5

#: The statuses of rows. Only `DECODED` and `TRAILING` rows have a value. `UNDECIDED` rows need a
#: reference decoder. `NEEDS_ELEMENTS` is never stored.
(
    DECODED,
    ABSENT,
    TRAILING,
    TRUNCATED,
    BAD_UTF8,
    BAD_INDEX,
    OUT_OF_RANGE,
    TOO_LARGE,
    UNDECIDED,
    NEEDS_ELEMENTS,
) = range(10)

#: The length of a value of variable size is an int32.
LENGTH_BYTES = 4
#: Bytes after the end of a column's data that may be overwritten.
DATA_SLACK_BYTES = 64

_WORD_BYTES = 8
_HIGH_BITS = np.uint64(0x8080808080808080)


@inlined
def start_row(levels: NDArray[np.int64], row: Integer) -> None:
    """Start a row: set the count of level 0 to this row, and save the count of each level."""
    levels[0, COUNT] = row
    for level in range(levels.shape[0]):
        levels[level, SAVED_COUNT] = levels[level, COUNT]


@inlined
def end_row(
    columns: NDArray[np.int64],
    levels: NDArray[np.int64],
    row: Integer,
    status: Integer,
    statuses: NDArray[np.uint8],
) -> bool:
    """Store the status of a row, or undo the row; return False if a level must be enlarged."""
    if status > TRAILING:
        _undo_row(columns, levels)
    if status == NEEDS_ELEMENTS:
        return False
    statuses[row] = status
    return True


@compiled
def _undo_row(columns: NDArray[np.int64], levels: NDArray[np.int64]) -> None:
    for column in range(columns.shape[0]):
        level = columns[column, COLUMN_LEVEL]
        # The row, or the last element, may be incomplete.
        end = min(levels[level, COUNT] + 1, levels[level, CAPACITY])
        valid, values = np.uint64(columns[column, VALID]), np.uint64(columns[column, VALUES])
        width = columns[column, WIDTH]
        for index in range(levels[level, SAVED_COUNT], end):
            if valid != np.uint64(0):
                write_int8(valid + np.uint64(index), np.int64(0))
            if columns[column, DATA] != 0:
                columns[column, DATA_USED] -= read_int32_little(
                    values + np.uint64(LENGTH_BYTES * index)
                )
            for byte in range(width):
                write_int8(values + np.uint64(width * index + byte), np.int64(0))
    for level in range(levels.shape[0]):
        levels[level, COUNT] = levels[level, SAVED_COUNT]


@inlined
def value_address(
    columns: NDArray[np.int64], column: Integer, index: Integer, width: Integer
) -> np.uint64:
    """Return the address of the value at `index`, or of its length."""
    return np.uint64(columns[column, VALUES] + width * index)


@inlined
def set_valid(columns: NDArray[np.int64], column: Integer, index: Integer) -> None:
    """Mark a value of a nullable column as not null."""
    write_int8(np.uint64(columns[column, VALID] + index), np.int64(1))


@inlined
def append_bytes(
    columns: NDArray[np.int64],
    column: Integer,
    index: Integer,
    source: np.uint64,
    size: Integer,
    readable_end: np.uint64,
) -> None:
    """Append bytes to the data of a column as the value at `index`."""
    used_bytes = columns[column, DATA_USED]
    copy_field(np.uint64(columns[column, DATA] + used_bytes), source, size, readable_end)
    columns[column, DATA_USED] = used_bytes + size
    write_int32_native(value_address(columns, column, index, LENGTH_BYTES), size)


@inlined
def is_utf8(address: np.uint64, size: Integer, readable_end: np.uint64) -> bool:
    """Return whether bytes are UTF-8; nothing at or after `readable_end` is read."""
    checked_bytes = np.int64(0)
    high_bits = np.uint64(0)
    while checked_bytes + _WORD_BYTES <= size:
        high_bits |= np.uint64(read_int64_native(address + np.uint64(checked_bytes)))
        checked_bytes += _WORD_BYTES
    if checked_bytes < size:
        rest_address = address + np.uint64(checked_bytes)
        if rest_address + np.uint64(_WORD_BYTES) <= readable_end:
            # The bytes after the text are shifted out.
            word = np.uint64(read_int64_native(rest_address))
            high_bits |= word << np.uint64(8 * (_WORD_BYTES - (size - checked_bytes)))
        else:
            while checked_bytes < size:
                high_bits |= np.uint64(read_int8(address + np.uint64(checked_bytes)) & 0x80)
                checked_bytes += 1
    return bool(high_bits & _HIGH_BITS == np.uint64(0)) or _is_long_utf8(address, size)


@compiled
def _is_long_utf8(address: np.uint64, size: Integer) -> bool:  # noqa: C901, PLR0912
    """Return whether bytes that are not ASCII are UTF-8, by the rules of Python's decoder."""
    at = np.int64(0)
    while at < size:
        first_byte = read_int8(address + np.uint64(at)) & 0xFF
        at += 1
        if first_byte < 0x80:
            continue
        lowest_byte, highest_byte = np.int64(0x80), np.int64(0xBF)
        if 0xC2 <= first_byte <= 0xDF:
            continuation_bytes = 1
        elif 0xE0 <= first_byte <= 0xEF:
            continuation_bytes = 2
            if first_byte == 0xE0:
                lowest_byte = np.int64(0xA0)
            elif first_byte == 0xED:
                highest_byte = np.int64(0x9F)
        elif 0xF0 <= first_byte <= 0xF4:
            continuation_bytes = 3
            if first_byte == 0xF0:
                lowest_byte = np.int64(0x90)
            elif first_byte == 0xF4:
                highest_byte = np.int64(0x8F)
        else:
            return False
        if at + continuation_bytes > size:
            return False
        for _ in range(continuation_bytes):
            byte = read_int8(address + np.uint64(at)) & 0xFF
            if byte < lowest_byte or byte > highest_byte:
                return False
            lowest_byte, highest_byte = np.int64(0x80), np.int64(0xBF)
            at += 1
    return True


def no_columns() -> tuple[NDArray[Any], ...]:
    """Return the arguments `columns` to `needs` for a call of a decoder without rows."""
    return (
        np.zeros((0, COLUMN_FIELDS), np.int64),
        np.zeros((1, LEVEL_FIELDS), np.int64),
        np.zeros((MAX_FRAMES, FRAME_FIELDS), np.int64),
        np.empty(0, np.uint8),
        np.zeros(2, np.int64),
    )
