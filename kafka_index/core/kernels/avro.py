"""Avro datums of many records into columns, in one pass.

`decode_avro` runs the operations of a schema, which `core.schema.avro` compiles, over the bodies of
records. It writes values straight to the memory of Arrow's arrays. A column belongs to a level: the
rows, or the elements of an array or map. Lengths instead of offsets are written for what has a
variable size, and a byte instead of a bit for validity: memory of zeros then means null and empty,
so that a null record costs nothing.

A body that is damaged leaves zeros and its status. If memory does not suffice, the row is undone
too, and the caller goes on at that row with more. No byte outside of a body is read as a part of
it.

Source: the section "Binary Encoding" of Avro's specification.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kafka_index.core.kernels.compile_cache import compiled, inlined, writable_and_not
from kafka_index.core.kernels.memory import (
    Integer,
    copy_bytes,
    copy_field,
    read_int8,
    read_int32_little,
    read_int64_native,
    write_int8,
    write_int32_native,
    write_int64_native,
)
from kafka_index.core.kernels.record_fields import (
    VARINT_CUT,
    VARINT_TOO_LONG,
    VARLONG_BYTES,
    read_varint,
)

#: The operations. Each is a row: code, column, two arguments, level.
(
    END,
    BOOL,
    INT,
    DATE,
    LONG,
    TIME,
    TIMESTAMP,
    FLOAT,
    DOUBLE,
    BYTES,
    STRING,
    FIXED,
    ENUM,
    DECIMAL_BYTES,
    DECIMAL_FIXED,
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
    SKIP_VARINT,
    SKIP_FIXED,
    SKIP_BYTES,
    REST,
) = range(29)
#: The fields of an operation: `LEAST` of `BLOCKS` is the least size of an element in bytes.
CODE, COLUMN, ARGUMENT, TARGET, LEVEL, LEAST = range(6)
OPERATION_FIELDS = 6

#: The fields of a column: addresses of values (or lengths), validity and data, and bytes of data.
VALUES, VALID, DATA, DATA_CAPACITY, DATA_USED, COLUMN_LEVEL, WIDTH = range(7)
COLUMN_FIELDS = 7

#: The fields of a level: the elements so far, and how many there may be.
COUNT, CAPACITY = range(2)
LEVEL_FIELDS = 2

#: The statuses of rows.
(
    DECODED,
    ABSENT,
    TRUNCATED,
    TRAILING,
    BAD_UTF8,
    BAD_INDEX,
    BAD_LENGTH,
    BAD_VARINT,
    OUT_OF_RANGE,
    TOO_DEEP,
    TOO_LARGE,
) = range(11)
#: Returned instead of a status if the memory of a level or a column is too small.
NEEDS_LEVEL, _NEEDS_DATA = 100, 101

#: The deepest nesting of arrays, maps and recursive records.
MAX_FRAMES = 512
#: Bytes after the end of a column's data that may be overwritten.
DATA_SLACK_BYTES = 64

_DAY_US = 86_400_000_000
# The years 1 to 9999, as Protobuf and readers of tables have them.
_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896
_FIRST_US, _END_US = _FIRST_DAY * _DAY_US, (_LAST_DAY + 1) * _DAY_US
_INT32_MIN, _INT32_MAX = -(1 << 31), (1 << 31) - 1
_INT64_MAX = (1 << 63) - 1
_MOST_COUNT = 1 << 62
_DECIMAL_BYTES = 16
_WORD = 8
_HIGH_BITS = np.uint64(0x8080808080808080)


@inlined
def _read_long(base: np.uint64, at: Integer, end: Integer) -> tuple[Integer, Integer]:
    """Return a number and the position after it, or its status as a negative position."""
    start = np.int64(base)
    value, after = read_varint(start + at, start + end, VARLONG_BYTES)
    if after == VARINT_CUT:
        return value, np.int64(-TRUNCATED)
    if after == VARINT_TOO_LONG:
        return value, np.int64(-BAD_VARINT)
    return value, after - start


@inlined
def _read_size(base: np.uint64, at: Integer, end: Integer) -> tuple[Integer, Integer]:
    """Return the size of the bytes that follow, and their position or a status as `_read_long`."""
    size, at = _read_long(base, at, end)
    if at >= 0 and size < 0:
        at = np.int64(-BAD_LENGTH)
    elif at >= 0 and size > end - at:
        at = np.int64(-TRUNCATED)
    return size, at


@compiled
def _is_long_utf8(base: np.uint64, size: Integer) -> bool:  # noqa: C901, PLR0912
    """Return whether bytes are UTF-8, as Python's decoder judges."""
    at = np.int64(0)
    while at < size:
        first = read_int8(base + np.uint64(at)) & 0xFF
        at += 1
        if first < 0x80:
            continue
        least, most = np.int64(0x80), np.int64(0xBF)
        if 0xC2 <= first <= 0xDF:
            more = 1
        elif 0xE0 <= first <= 0xEF:
            more = 2
            if first == 0xE0:
                least = np.int64(0xA0)
            elif first == 0xED:
                most = np.int64(0x9F)
        elif 0xF0 <= first <= 0xF4:
            more = 3
            if first == 0xF0:
                least = np.int64(0x90)
            elif first == 0xF4:
                most = np.int64(0x8F)
        else:
            return False
        if at + more > size:
            return False
        for _ in range(more):
            byte = read_int8(base + np.uint64(at)) & 0xFF
            if byte < least or byte > most:
                return False
            least, most = np.int64(0x80), np.int64(0xBF)
            at += 1
    return True


@inlined
def is_utf8(address: np.uint64, size: Integer, readable_end: np.uint64) -> bool:
    """Return whether bytes are UTF-8; nothing at or after `readable_end` is read."""
    done = np.int64(0)
    high = np.uint64(0)
    while done + _WORD <= size:
        high |= np.uint64(read_int64_native(address + np.uint64(done)))
        done += _WORD
    if done < size:
        rest = address + np.uint64(done)
        if rest + np.uint64(_WORD) <= readable_end:
            # The bytes after the text are shifted out.
            word = np.uint64(read_int64_native(rest))
            high |= word << np.uint64(8 * (_WORD - (size - done)))
        else:
            while done < size:
                high |= np.uint64(read_int8(address + np.uint64(done)) & 0x80)
                done += 1
    return bool(high & _HIGH_BITS == np.uint64(0)) or _is_long_utf8(address, size)


@compiled
def _read_decimal(
    address: np.uint64, size: Integer, target: np.uint64, limit_high: Integer, limit_low: Integer
) -> bool:
    """Write a big-endian integer as Arrow's decimal128; return whether it is below a limit."""
    fill = np.int64(0)
    if size > 0 and read_int8(address) < 0:
        fill = np.int64(-1)
    first = max(size - _DECIMAL_BYTES, 0)
    for at in range(first):
        if read_int8(address + np.uint64(at)) != fill:
            return False
    if first > 0 and (read_int8(address + np.uint64(first)) < 0) != (fill < 0):
        return False
    for number in range(_DECIMAL_BYTES):
        byte = fill
        if number < size:
            byte = read_int8(address + np.uint64(size - 1 - number))
        write_int8(target + np.uint64(number), byte)
    low = np.uint64(read_int64_native(target))
    high = np.uint64(read_int64_native(target + np.uint64(_WORD)))
    if fill < 0:
        low = np.uint64(0) - low
        high = ~high
        if low == np.uint64(0):
            high += np.uint64(1)
    limit = np.uint64(limit_high)
    return bool(high < limit or (high == limit and low < np.uint64(limit_low)))


@compiled
def undo_row(
    columns: NDArray[np.int64], levels: NDArray[np.int64], saved: NDArray[np.int64], row: Integer
) -> None:
    """Clear what a row has written."""
    for number in range(columns.shape[0]):
        level = columns[number, COLUMN_LEVEL]
        first = row if level == 0 else saved[level]
        last = row + 1 if level == 0 else min(levels[level, COUNT] + 1, levels[level, CAPACITY])
        valid, values = np.uint64(columns[number, VALID]), np.uint64(columns[number, VALUES])
        width = columns[number, WIDTH]
        for at in range(first, last):
            if valid != np.uint64(0):
                write_int8(valid + np.uint64(at), np.int64(0))
            if columns[number, DATA] != 0:
                size = read_int32_little(values + np.uint64(4 * at))
                columns[number, DATA_USED] -= size
            for byte in range(width):
                write_int8(values + np.uint64(width * at + byte), np.int64(0))
    for level in range(1, levels.shape[0]):
        levels[level, COUNT] = saved[level]


@compiled
def decode_avro(  # noqa: PLR0912, PLR0915, C901, because it is one loop, and hot
    data: NDArray[np.uint8],
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
    first_row: int,
    operations: NDArray[np.int64],
    columns: NDArray[np.int64],
    levels: NDArray[np.int64],
    statuses: NDArray[np.uint8],
    needs: NDArray[np.int64],
) -> int:
    """Decode the bodies of rows from `first_row` on; return the row that was reached.

    `data` (uint8): the memory of the bodies; `starts`, `ends` (int64, (n,)): where they are, a
    start of -1 for a row without; `operations` (int64, (k, OPERATION_FIELDS)): of the schema;
    `columns` (int64, (c, COLUMN_FIELDS)), `levels` (int64, (l, LEVEL_FIELDS)): the memory to fill,
    zeros, with `DATA_SLACK_BYTES` after data; `statuses` (uint8, (n,)): filled; `needs` (int64,
    (3,)): if the result is less than n, the level or -1, the column, and how much is needed.
    """
    base = np.uint64(data.ctypes.data)
    readable_end = base + np.uint64(len(data))
    frames = np.empty((MAX_FRAMES, 2), np.int64)
    level_count = levels.shape[0]
    saved = np.zeros(level_count, np.int64)
    rows = len(starts)
    row = np.int64(first_row)
    while row < rows:
        at = starts[row]
        end = ends[row]
        if at < 0:
            statuses[row] = ABSENT
            row += 1
            continue
        levels[0, COUNT] = row
        for level in range(1, level_count):
            saved[level] = levels[level, COUNT]
        pc = np.int64(0)
        depth = np.int64(0)
        status = np.int64(DECODED)
        while True:
            code = operations[pc, CODE]
            if code == END:
                break
            column = operations[pc, COLUMN]
            if code == STRING or code == BYTES:  # noqa: PLR1714, SIM109
                size, at = _read_size(base, at, end)
                if at < 0:
                    status = np.int64(-at)
                    break
                source = base + np.uint64(at)
                if code == STRING and not is_utf8(source, size, readable_end):
                    status = np.int64(BAD_UTF8)
                    break
                used = columns[column, DATA_USED]
                if used + size > columns[column, DATA_CAPACITY]:
                    needs[0], needs[1], needs[2] = -1, column, used + size
                    status = np.int64(_NEEDS_DATA)
                    break
                copy_field(
                    np.uint64(columns[column, DATA]) + np.uint64(used), source, size, readable_end
                )
                columns[column, DATA_USED] = used + size
                index = levels[operations[pc, LEVEL], COUNT]
                write_int32_native(np.uint64(columns[column, VALUES] + 4 * index), size)
                at += size
            elif INT <= code <= TIMESTAMP:
                value, at = _read_long(base, at, end)
                if at < 0:
                    status = np.int64(-at)
                    break
                index = levels[operations[pc, LEVEL], COUNT]
                if code <= DATE:
                    lowest, highest = np.int64(_INT32_MIN), np.int64(_INT32_MAX)
                    if code == DATE:
                        lowest, highest = np.int64(_FIRST_DAY), np.int64(_LAST_DAY)
                    if value < lowest or value > highest:
                        status = np.int64(OUT_OF_RANGE)
                        break
                    write_int32_native(np.uint64(columns[column, VALUES] + 4 * index), value)
                else:
                    factor = operations[pc, ARGUMENT]
                    if factor != 1:
                        if value > _INT64_MAX // factor or value < -(_INT64_MAX // factor):
                            status = np.int64(OUT_OF_RANGE)
                            break
                        value *= factor
                    if code == TIME and (value < 0 or value >= _DAY_US):
                        status = np.int64(OUT_OF_RANGE)
                        break
                    if code == TIMESTAMP and (value < _FIRST_US or value >= _END_US):
                        status = np.int64(OUT_OF_RANGE)
                        break
                    write_int64_native(np.uint64(columns[column, VALUES] + 8 * index), value)
            elif code == DOUBLE:
                if end - at < 8:
                    status = np.int64(TRUNCATED)
                    break
                index = levels[operations[pc, LEVEL], COUNT]
                number = read_int64_native(base + np.uint64(at))
                write_int64_native(np.uint64(columns[column, VALUES] + 8 * index), number)
                at += 8
            elif code == NULLABLE:
                branch, at = _read_long(base, at, end)
                if at < 0:
                    status = np.int64(-at)
                    break
                if branch == operations[pc, ARGUMENT]:
                    pc = operations[pc, TARGET]
                    continue
                if branch != 1 - operations[pc, ARGUMENT]:
                    status = np.int64(BAD_INDEX)
                    break
                if column >= 0:
                    index = levels[operations[pc, LEVEL], COUNT]
                    write_int8(np.uint64(columns[column, VALID] + index), np.int64(1))
            elif code == BLOCKS or code == BLOCKS_END:  # noqa: PLR1714, SIM109
                level = operations[pc, LEVEL]
                start = pc
                if code == BLOCKS_END:
                    if level >= 0:
                        levels[level, COUNT] += 1
                    frames[depth - 1, 0] -= 1
                    if frames[depth - 1, 0] > 0:
                        pc = operations[pc, TARGET] + 1
                        continue
                    start = operations[pc, TARGET]
                else:
                    if depth == MAX_FRAMES:
                        status = np.int64(TOO_DEEP)
                        break
                    frames[depth, 1] = 0
                    depth += 1
                # The next blocks, up to one that has elements to decode.
                least = operations[start, LEAST]
                while True:
                    count, at = _read_long(base, at, end)
                    if at < 0:
                        break
                    if count < 0:
                        _, at = _read_long(base, at, end)
                        if at < 0:
                            break
                        count = -count
                        if count < 0:
                            status = np.int64(BAD_LENGTH)
                            break
                    if count == 0:
                        break
                    if least > 0 and count > (end - at) // least:
                        status = np.int64(TRUNCATED)
                        break
                    if level >= 0:
                        known = levels[level, COUNT]
                        if count > levels[level, CAPACITY] - known:
                            # The sum must not overflow.
                            needed = min(count, np.int64(_MOST_COUNT)) + known
                            needs[0], needs[1], needs[2] = level, -1, needed
                            status = np.int64(NEEDS_LEVEL)
                            break
                    frames[depth - 1, 1] += count
                    if least > 0:
                        break
                    # Elements without bytes, such as nulls.
                    if level >= 0:
                        levels[level, COUNT] += count
                if at < 0:
                    status = np.int64(-at)
                    break
                if status != DECODED:
                    break
                if count > 0:
                    frames[depth - 1, 0] = count
                    pc = start + 1
                    continue
                depth -= 1
                column = operations[start, COLUMN]
                if column >= 0:
                    index = levels[columns[column, COLUMN_LEVEL], COUNT]
                    address = np.uint64(columns[column, VALUES] + 4 * index)
                    write_int32_native(address, frames[depth, 1])
                pc = operations[start, TARGET]
                continue
            elif code == ENUM:
                value, at = _read_long(base, at, end)
                if at < 0:
                    status = np.int64(-at)
                    break
                if value < 0 or value >= operations[pc, ARGUMENT]:
                    status = np.int64(BAD_INDEX)
                    break
                index = levels[operations[pc, LEVEL], COUNT]
                write_int32_native(np.uint64(columns[column, VALUES] + 4 * index), value)
            elif code == BOOL:
                if at >= end:
                    status = np.int64(TRUNCATED)
                    break
                index = levels[operations[pc, LEVEL], COUNT]
                value = np.int64(read_int8(base + np.uint64(at)) != 0)
                write_int8(np.uint64(columns[column, VALUES] + index), value)
                at += 1
            elif code == FLOAT:
                if end - at < 4:
                    status = np.int64(TRUNCATED)
                    break
                index = levels[operations[pc, LEVEL], COUNT]
                number = read_int32_little(base + np.uint64(at))
                write_int32_native(np.uint64(columns[column, VALUES] + 4 * index), number)
                at += 4
            elif code == FIXED or code == DECIMAL_FIXED:  # noqa: PLR1714, SIM109
                size = operations[pc, ARGUMENT]
                if end - at < size:
                    status = np.int64(TRUNCATED)
                    break
                index = levels[operations[pc, LEVEL], COUNT]
                target = np.uint64(columns[column, VALUES] + columns[column, WIDTH] * index)
                if code == FIXED:
                    copy_bytes(target, base + np.uint64(at), size)
                elif not _read_decimal(
                    base + np.uint64(at),
                    size,
                    target,
                    operations[pc, TARGET],
                    operations[pc, LEAST],
                ):
                    status = np.int64(OUT_OF_RANGE)
                    break
                at += size
            elif code == DECIMAL_BYTES:
                size, at = _read_size(base, at, end)
                if at < 0:
                    status = np.int64(-at)
                    break
                index = levels[operations[pc, LEVEL], COUNT]
                target = np.uint64(columns[column, VALUES] + _DECIMAL_BYTES * index)
                if not _read_decimal(
                    base + np.uint64(at),
                    size,
                    target,
                    operations[pc, TARGET],
                    operations[pc, LEAST],
                ):
                    status = np.int64(OUT_OF_RANGE)
                    break
                at += size
            elif code == UNION:
                branch, at = _read_long(base, at, end)
                if at < 0:
                    status = np.int64(-at)
                    break
                if branch < 0 or branch >= operations[pc, ARGUMENT]:
                    status = np.int64(BAD_INDEX)
                    break
                chosen = pc + 1 + branch
                level = operations[pc, LEVEL]
                own = operations[chosen, COLUMN]
                if column >= 0 and operations[chosen, ARGUMENT] != 0:
                    index = levels[level, COUNT]
                    write_int8(np.uint64(columns[column, VALID] + index), np.int64(1))
                    if own >= 0:
                        write_int8(np.uint64(columns[own, VALID] + index), np.int64(1))
                pc = operations[chosen, TARGET]
                continue
            elif code == JUMP:
                pc = operations[pc, TARGET]
                continue
            elif code == SKIP_VARINT:
                _, at = _read_long(base, at, end)
                if at < 0:
                    status = np.int64(-at)
                    break
            elif code == SKIP_FIXED:
                at += operations[pc, ARGUMENT]
                if at > end:
                    status = np.int64(TRUNCATED)
                    break
            elif code == SKIP_BYTES:
                size, at = _read_size(base, at, end)
                if at < 0:
                    status = np.int64(-at)
                    break
                at += size
            elif code == CALL or code == CAPTURE:  # noqa: PLR1714, SIM109
                if depth == MAX_FRAMES:
                    status = np.int64(TOO_DEEP)
                    break
                if code == CALL:
                    frames[depth, 0] = pc + 1
                    depth += 1
                    pc = operations[pc, TARGET]
                    continue
                frames[depth, 0] = at
                depth += 1
            elif code == RETURN:
                depth -= 1
                pc = frames[depth, 0]
                continue
            else:
                # CAPTURE_END, or REST: what is left of the body.
                source_at = at
                if code == CAPTURE_END:
                    depth -= 1
                    source_at = frames[depth, 0]
                else:
                    at = np.int64(end)
                size = at - source_at
                used = columns[column, DATA_USED]
                if used + size > columns[column, DATA_CAPACITY]:
                    needs[0], needs[1], needs[2] = -1, column, used + size
                    status = np.int64(_NEEDS_DATA)
                    break
                target = np.uint64(columns[column, DATA]) + np.uint64(used)
                copy_field(target, base + np.uint64(source_at), size, readable_end)
                columns[column, DATA_USED] = used + size
                index = levels[operations[pc, LEVEL], COUNT]
                write_int32_native(np.uint64(columns[column, VALUES] + 4 * index), size)
            pc += 1
        if status == DECODED:
            statuses[row] = DECODED if at == end else TRAILING
            row += 1
            continue
        undo_row(columns, levels, saved, row)
        if status >= NEEDS_LEVEL:
            return int(row)
        statuses[row] = status
        row += 1
    return int(row)


def warm_up() -> None:
    """Load or compile the decoding of Avro, over no rows."""
    numbers = np.zeros((1, OPERATION_FIELDS), np.int64)
    columns = np.zeros((0, COLUMN_FIELDS), np.int64)
    levels = np.zeros((1, LEVEL_FIELDS), np.int64)
    nothing: Any = np.empty(0, np.int64)
    statuses = np.empty(0, np.uint8)
    for data in writable_and_not(np.empty(0, np.uint8)):
        decode_avro(
            data, nothing, nothing, 0, numbers, columns, levels, statuses, np.zeros(3, np.int64)
        )
