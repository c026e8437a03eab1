"""The structure of Protobuf messages, before they are decoded.

`check_messages` walks over the tags of messages and of the messages in them. It finds the rows that
a decoder may read otherwise than the reference: damage, groups, and fields that are of another type
than the schema has. It also adds up the memory that the elements of lists take.

Source: the guide "Encoding" of Protocol Buffers.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kafka_index.core.kernels.compile_cache import compiled, inlined, writable_and_not
from kafka_index.core.kernels.memory import Integer, read_int8

#: The fields of a message: the first of its entries in the table, how many there are, and its kind.
FIRST, COUNT, KIND = range(3)
#: A time has seconds and nanoseconds, and an entry of a map no other fields than key and value.
ANY_MESSAGE, TIME, MAP_ENTRY = range(3)
#: An entry, at the number of its field: a bit for each wire type that it may have, and then the
#: message that it is, plus one, and the bytes of an element.
WIRE_TYPES_BITS, CHILD_BITS = 6, 20

#: The statuses of rows.
PLAIN, ODD = range(2)

_MAX_DEPTH = 100
_MIN_SECONDS, _MAX_SECONDS, _SECOND_NS = -62_135_596_800, 253_402_300_799, 1_000_000_000
_VARINT, _FIXED64, _SIZED, _FIXED32 = 0, 1, 2, 5
_MAX_VARINT_BYTES = 10
_MAX_TAG = (1 << 32) - 1


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


@compiled
def check_messages(  # noqa: C901, PLR0912, PLR0915
    data: NDArray[np.uint8],
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
    messages: NDArray[np.int64],
    entries: NDArray[np.int64],
    statuses: NDArray[np.uint8],
    sizes: NDArray[np.int64],
) -> None:
    """Check the messages of rows.

    `data` (uint8): the memory of the bodies; `starts`, `ends` (int64, (n,)): where they are, a
    start of -1 for a row without; `messages` (int64, (m, 3)), `entries` (int64, (k,)): the types,
    that of the rows first; `statuses` (uint8, (n,)), `sizes` (int64, (n,)): filled, with what the
    elements of lists and maps take.
    """
    base = np.uint64(data.ctypes.data)
    above = np.empty((_MAX_DEPTH, 2), np.int64)
    child_mask = np.int64((1 << CHILD_BITS) - 1)
    for row in range(len(starts)):
        statuses[row] = PLAIN
        sizes[row] = 0
        at, end = starts[row], ends[row]
        if at < 0:
            continue
        depth = np.int64(0)
        node = np.int64(0)
        total = np.int64(0)
        is_odd = False
        while True:
            if at == end:
                if depth == 0:
                    break
                depth -= 1
                end, node = above[depth, 0], above[depth, 1]
                continue
            tag, at = _read_varint(base, at, end)
            wire_type = np.int64(tag & np.uint64(7))
            number = np.int64(tag >> np.uint64(3))
            if at < 0 or tag > np.uint64(_MAX_TAG) or number == 0:
                is_odd = True
                break
            entry = np.int64(0)
            # upb keeps an entry of a map with other fields as unknown.
            if messages[node, KIND] == MAP_ENTRY and number > 2:
                is_odd = True
                break
            if number < messages[node, COUNT]:
                entry = entries[messages[node, FIRST] + number]
                if entry != 0 and (entry >> wire_type) & 1 == 0:
                    is_odd = True
                    break
                total += entry >> (WIRE_TYPES_BITS + CHILD_BITS)
            if wire_type == _SIZED:
                size, at = _read_varint(base, at, end)
                if at < 0 or size > np.uint64(end - at):
                    is_odd = True
                    break
                child = (entry >> WIRE_TYPES_BITS) & child_mask
                if child == 0:
                    at += np.int64(size)
                    continue
                if depth == _MAX_DEPTH:
                    is_odd = True
                    break
                above[depth, 0], above[depth, 1] = end, node
                depth += 1
                end, node = at + np.int64(size), child - 1
            elif wire_type == _VARINT:
                value, at = _read_varint(base, at, end)
                if messages[node, KIND] == TIME:
                    # Limits of timestamps: the years 1 to 9999.
                    signed = np.int64(value)
                    is_seconds = number == 1 and _MIN_SECONDS <= signed <= _MAX_SECONDS
                    if not (is_seconds or (number == 2 and 0 <= signed < _SECOND_NS)):
                        is_odd = True
                        break
            elif wire_type == _FIXED64:
                at += 8
            elif wire_type == _FIXED32:
                at += 4
            else:
                is_odd = True
                break
            if at < 0 or at > end:
                is_odd = True
                break
        statuses[row] = ODD if is_odd else PLAIN
        sizes[row] = total


def warm_up() -> None:
    """Load or compile the check, over no rows."""
    nothing = np.empty(0, np.int64)
    messages = np.zeros((1, 3), np.int64)
    for data in writable_and_not(np.empty(0, np.uint8)):
        check_messages(data, nothing, nothing, messages, nothing, np.empty(0, np.uint8), nothing)
