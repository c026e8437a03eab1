"""Decode the Avro datums of many records into columns, in one pass.

`decode_avro` executes the operations that `core.schema.avro` compiles from a schema, on the body of
each record. It writes values directly to the memory of Arrow's arrays, which `typed_columns`
describes. Bytes outside of a body are never decoded.

Source: the section "Binary Encoding" of Avro's specification.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kafka_index.core.kernels.compile_cache import compiled, inlined, writable_and_not
from kafka_index.core.kernels.memory import (
    WORD_BYTES,
    Integer,
    borrowed,
    copy_bytes,
    copy_word,
    read_int8,
    read_int32_little,
    read_int64_native,
    write_int8,
    write_int32_native,
    write_int64_native,
)
from kafka_index.core.kernels.record_fields import VARLONG_BYTES, read_varint
from kafka_index.core.kernels.typed_columns import (
    ABSENT,
    BAD_INDEX,
    BAD_UTF8,
    CAPACITY,
    COLUMN_LEVEL,
    COUNT,
    DECODED,
    LENGTH_BYTES,
    MAX_FRAMES,
    NEEDS_ELEMENTS,
    OUT_OF_RANGE,
    TOO_LARGE,
    TRAILING,
    TRUNCATED,
    WIDTH,
    append_bytes,
    end_row,
    is_utf8,
    no_columns,
    set_valid,
    start_row,
    value_address,
)

#: The fields of an operation. `OPERAND` is the kind of its operand, `COLUMN` the column that it
#: writes to (or -1), and `LEVEL` the level of the value (-1 for elements that are skipped). The
#: other fields depend on the operation:
#:
#: - `NUMBER`, `ENUM`: a number from `LOWEST` to `HIGHEST`, which is multiplied by `ARGUMENT`.
#: - `DECIMAL`: its absolute value is below a limit, whose low and high 64 bits are `LOWEST` and
#:   `HIGHEST`.
#: - `NULLABLE`: `ARGUMENT` is the position of null in the union. `TARGET` is the operation after
#:   the value.
#: - `UNION`: one `BRANCH` for each of `HIGHEST + 1` types follows. The `TARGET` of a branch decodes
#:   its value, and the `ARGUMENT` of a branch is 0 for null.
#: - `BLOCKS`: each element has at least `LOWEST` bytes. `TARGET` is the operation after the
#:   matching `BLOCKS_END`, whose own `TARGET` is this `BLOCKS`.
#: - `JUMP`, `CALL`: continue at `TARGET`. A call ends at `RETURN`.
#: - `CAPTURE`, `CAPTURE_END`: the bytes between these operations become the value.
CODE, OPERAND, COLUMN, LEVEL, ARGUMENT, TARGET, LOWEST, HIGHEST = range(8)
OPERATION_FIELDS = 8
(
    END,
    SKIP,
    BOOL,
    FIXED,
    NUMBER,
    ENUM,
    DECIMAL,
    BYTES,
    STRING,
    NULLABLE,
    UNION,
    BRANCH,
    JUMP,
    BLOCKS,
    BLOCKS_END,
    CALL,
    RETURN,
    CAPTURE,
    CAPTURE_END,
) = range(19)
#: The kinds of operands: none, a varint, a varint size followed by bytes, `ARGUMENT` bytes, or all
#: remaining bytes.
NO_OPERAND, VARINT, SIZED_BYTES, FIXED_BYTES, REMAINING_BYTES = range(5)

#: Fields of the stack frame of an array or map: the elements that remain in its current block, and
#: the elements of all its blocks so far. The frame of a call or a capture contains one address.
REMAINING, ALL_ELEMENTS = range(2)
RETURN_ADDRESS = 0

_INT32_BYTES, _DECIMAL_BYTES = 4, 16
_MAX_COUNT = 1 << 62


@compiled
def _write_decimal(
    source: np.uint64,
    size: Integer,
    target: np.uint64,
    limit_low_word: Integer,
    limit_high_word: Integer,
) -> bool:
    """Write a big-endian integer as Arrow's decimal128.

    Returns whether the absolute value is below the limit, given as two 64-bit words.
    """
    fill = np.int64(0)
    if size > 0 and read_int8(source) < 0:
        fill = np.int64(-1)
    first_byte = max(size - _DECIMAL_BYTES, 0)
    for at in range(first_byte):
        if read_int8(source + np.uint64(at)) != fill:
            return False
    if first_byte > 0 and (read_int8(source + np.uint64(first_byte)) < 0) != (fill < 0):
        return False
    for at in range(_DECIMAL_BYTES):
        byte = fill
        if at < size:
            byte = read_int8(source + np.uint64(size - 1 - at))
        write_int8(target + np.uint64(at), byte)
    low = np.uint64(read_int64_native(target))
    high = np.uint64(read_int64_native(target + np.uint64(WORD_BYTES)))
    if fill < 0:
        low = np.uint64(0) - low
        high = ~high
        if low == np.uint64(0):
            high += np.uint64(1)
    limit = np.uint64(limit_high_word)
    return bool(high < limit or (high == limit and low < np.uint64(limit_low_word)))


@inlined
def _next_block(
    at: Integer,
    end: Integer,
    lowest: Integer,
    level: Integer,
    levels: NDArray[np.int64],
    frames: NDArray[np.int64],
    depth: Integer,
    needs: NDArray[np.int64],
) -> tuple[Integer, Integer]:
    """Read the header of the next block of an array or map, and add its elements to the frame.

    Returns the number of elements and the address of the first one. The number is 0 after the last
    block. It is a negative status if the block is invalid or the level has too little memory.
    Blocks whose elements have no bytes, such as nulls, are counted and skipped.
    """
    while True:
        count, at = read_varint(at, end, VARLONG_BYTES)
        if count < 0:
            # A negative count is followed by the size of the block in bytes.
            count = -count
            _, at = read_varint(at, end, VARLONG_BYTES)
        if at > end or count < 0 or (lowest > 0 and count > (end - at) // lowest):
            return np.int64(-TRUNCATED), at
        if level >= 0 and count > levels[level, CAPACITY] - levels[level, COUNT]:
            # The count is limited, because the sum must not overflow.
            needs[0], needs[1] = level, levels[level, COUNT] + min(count, np.int64(_MAX_COUNT))
            return np.int64(-NEEDS_ELEMENTS), at
        frames[depth, ALL_ELEMENTS] += count
        if lowest > 0 or count == 0:
            frames[depth, REMAINING] = count
            return count, at
        if level >= 0:
            levels[level, COUNT] += count


@inlined
def _decode_datum(  # noqa: C901, PLR0911, PLR0912, PLR0915, because it is one loop, and hot
    at: Integer,
    end: Integer,
    readable_end: np.uint64,
    operations: NDArray[np.int64],
    columns: NDArray[np.int64],
    levels: NDArray[np.int64],
    frames: NDArray[np.int64],
    needs: NDArray[np.int64],
) -> Integer:
    """Decode the datum between two addresses; return its status."""
    pc = np.int64(0)
    depth = np.int64(0)
    while True:
        code, operand = operations[pc, CODE], operations[pc, OPERAND]
        column, level = operations[pc, COLUMN], operations[pc, LEVEL]
        value: Integer = np.int64(0)
        size: Integer = np.int64(0)
        if operand == VARINT:
            value, at = read_varint(at, end, VARLONG_BYTES)
            if at > end:
                return TRUNCATED
        elif operand != NO_OPERAND:
            if operand == SIZED_BYTES:
                size, at = read_varint(at, end, VARLONG_BYTES)
            elif operand == FIXED_BYTES:
                size = operations[pc, ARGUMENT]
            else:
                size = end - at
            if size < 0 or size > end - at:
                return TRUNCATED
        source = np.uint64(at)
        at += size

        if code == STRING or code == BYTES:  # noqa: PLR1714, SIM109
            if code == STRING and not is_utf8(source, size, readable_end):
                return BAD_UTF8
            append_bytes(columns, column, levels[level, COUNT], source, size, readable_end)
        elif code == NUMBER or code == ENUM:  # noqa: PLR1714, SIM109
            if value < operations[pc, LOWEST] or value > operations[pc, HIGHEST]:
                return BAD_INDEX if code == ENUM else OUT_OF_RANGE
            if columns[column, WIDTH] == WORD_BYTES:
                target = value_address(columns, column, levels[level, COUNT], WORD_BYTES)
                write_int64_native(target, value * operations[pc, ARGUMENT])
            else:
                target = value_address(columns, column, levels[level, COUNT], _INT32_BYTES)
                write_int32_native(target, value)
        elif code == FIXED:
            target = value_address(columns, column, levels[level, COUNT], size)
            if size == WORD_BYTES:
                copy_word(target, source, size)
            elif size == _INT32_BYTES:
                write_int32_native(target, read_int32_little(source))
            else:
                copy_bytes(target, source, size)
        elif code == NULLABLE:
            if value == operations[pc, ARGUMENT]:
                pc = operations[pc, TARGET]
                continue
            if value != 1 - operations[pc, ARGUMENT]:
                return BAD_INDEX
            if column >= 0:
                set_valid(columns, column, levels[level, COUNT])
        elif code == BLOCKS or code == BLOCKS_END:  # noqa: PLR1714, SIM109
            start = pc
            if code == BLOCKS_END:
                start = operations[pc, TARGET]
                if level >= 0:
                    levels[level, COUNT] += 1
                frames[depth - 1, REMAINING] -= 1
                if frames[depth - 1, REMAINING] > 0:
                    pc = start + 1
                    continue
            else:
                if depth == MAX_FRAMES:
                    return TOO_LARGE
                frames[depth, ALL_ELEMENTS] = 0
                depth += 1
            lowest = operations[start, LOWEST]
            count, at = _next_block(at, end, lowest, level, levels, frames, depth - 1, needs)
            if count < 0:
                return -count
            if count > 0:
                pc = start + 1
                continue
            depth -= 1
            column = operations[start, COLUMN]
            if column >= 0:
                index = levels[columns[column, COLUMN_LEVEL], COUNT]
                length = value_address(columns, column, index, LENGTH_BYTES)
                write_int32_native(length, frames[depth, ALL_ELEMENTS])
            pc = operations[start, TARGET]
            continue
        elif code == BOOL:
            target = value_address(columns, column, levels[level, COUNT], 1)
            write_int8(target, np.int64(read_int8(source) != 0))
        elif code == DECIMAL:
            target = value_address(columns, column, levels[level, COUNT], _DECIMAL_BYTES)
            lowest, highest = operations[pc, LOWEST], operations[pc, HIGHEST]
            if not _write_decimal(source, size, target, lowest, highest):
                return OUT_OF_RANGE
        elif code == UNION:
            if value < 0 or value > operations[pc, HIGHEST]:
                return BAD_INDEX
            branch = pc + 1 + value
            if column >= 0 and operations[branch, ARGUMENT] != 0:
                set_valid(columns, column, levels[level, COUNT])
                if operations[branch, COLUMN] >= 0:
                    set_valid(columns, operations[branch, COLUMN], levels[level, COUNT])
            pc = operations[branch, TARGET]
            continue
        elif code == JUMP:
            pc = operations[pc, TARGET]
            continue
        elif code == CALL or code == CAPTURE:  # noqa: PLR1714, SIM109
            if depth == MAX_FRAMES:
                return TOO_LARGE
            frames[depth, RETURN_ADDRESS] = at if code == CAPTURE else pc + 1
            depth += 1
            if code == CALL:
                pc = operations[pc, TARGET]
                continue
        elif code == RETURN:
            depth -= 1
            pc = frames[depth, RETURN_ADDRESS]
            continue
        elif code == CAPTURE_END:
            depth -= 1
            size = at - frames[depth, RETURN_ADDRESS]
            source = np.uint64(at - size)
            append_bytes(columns, column, levels[level, COUNT], source, size, readable_end)
        elif code == END:
            return DECODED if at == end else TRAILING
        pc += 1


@compiled
def decode_avro(
    data: NDArray[np.uint8],
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
    first_row: int,
    operations: NDArray[np.int64],
    columns: NDArray[np.int64],
    levels: NDArray[np.int64],
    frames: NDArray[np.int64],
    statuses: NDArray[np.uint8],
    needs: NDArray[np.int64],
) -> int:
    """Decode the bodies of rows from `first_row` on; return the first row without a status.

    `data` (uint8): the memory of the bodies; `starts`, `ends` (int64, (n,)): their positions, a
    start of -1 for a row without a body; `operations` (int64, (k, OPERATION_FIELDS)): compiled from
    the schema; `columns` (int64, (c, COLUMN_FIELDS)), `levels` (int64, (l, LEVEL_FIELDS)): the
    memory to fill, zeros, with `DATA_SLACK_BYTES` after data; `frames` (int64, (MAX_FRAMES,
    FRAME_FIELDS)): memory for the stack; `statuses` (uint8, (n,)): filled; `needs` (int64, (2,)):
    if the result is less than n, filled with the level that is full and the number of elements that
    it needs.
    """
    base = np.int64(data.ctypes.data)
    readable_end = np.uint64(base + len(data))
    operations, columns, levels = borrowed(operations), borrowed(columns), borrowed(levels)
    frames, statuses, needs = borrowed(frames), borrowed(statuses), borrowed(needs)
    for row in range(first_row, len(starts)):
        if starts[row] < 0:
            statuses[row] = ABSENT
            continue
        start_row(levels, row)
        at, end = base + starts[row], base + ends[row]
        status = _decode_datum(at, end, readable_end, operations, columns, levels, frames, needs)
        if not end_row(columns, levels, row, status, statuses):
            return row
    return len(starts)


def warm_up() -> None:
    """Load or compile `decode_avro`, by calling it without rows."""
    operations = np.zeros((1, OPERATION_FIELDS), np.int64)
    nothing: Any = np.empty(0, np.int64)
    for data in writable_and_not(np.empty(0, np.uint8)):
        decode_avro(data, nothing, nothing, 0, operations, *no_columns())
