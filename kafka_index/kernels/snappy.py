"""Snappy blocks in xerial framing, decompressed in a compiled loop.

Sources: snappy-java's ``SnappyInputStream``, the snappy format.
"""

from __future__ import annotations

import numpy as np

from kafka_index.kernels.big_endian import Integer, read_int8, read_int32, read_int64
from kafka_index.kernels.compile_cache import compiled
from kafka_index.kernels.copying import (
    UNPACK_NO_ROOM,
    UNPACK_REFUSED,
    copy_literals,
    copy_match,
)

_INT32_BYTES = 4
_BYTE = 0xFF
_XERIAL_MAGIC = int.from_bytes(b"\x82SNAPPY\0", "big", signed=True)
_XERIAL_HEADER_BYTES = 16


@compiled
def _snappy_block(  # noqa: PLR0911, PLR0912, C901, because each refusal is one exit
    source: np.uint64, end: np.uint64, out: np.uint64, room: Integer
) -> Integer:
    """Decompress a block; return its size, or a refusal."""
    size = np.int64(0)
    shift = np.int64(0)
    while True:
        if source >= end or shift > 28:
            return np.int64(UNPACK_REFUSED)
        byte = read_int8(source)
        source += np.uint64(1)
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte >= 0:
            break
    # Snappy cannot make more than 64 bytes of 3.
    if size > 64 * (np.int64(end) - np.int64(source)):
        return np.int64(UNPACK_REFUSED)
    if size > room:
        return np.int64(UNPACK_NO_ROOM)
    target = out
    limit = out + np.uint64(size)
    while source < end:
        tag = read_int8(source) & _BYTE
        source += np.uint64(1)
        kind = tag & 3
        left = np.int64(end) - np.int64(source)
        distance = np.int64(0)
        if kind == 0:
            length = tag >> 2
            if length >= 60:
                count = length - 59
                if left < count:
                    return np.int64(UNPACK_REFUSED)
                length = np.int64(0)
                for at in range(count):
                    length |= (read_int8(source + np.uint64(at)) & _BYTE) << 8 * at
                source += np.uint64(count)
                left -= count
            length += 1
            if length > left or length > np.int64(limit) - np.int64(target):
                return np.int64(UNPACK_REFUSED)
            copy_literals(target, source, length, end)
            source += np.uint64(length)
            target += np.uint64(length)
            continue
        count = 1 if kind == 1 else (2 if kind == 2 else 4)
        if left < count:
            return np.int64(UNPACK_REFUSED)
        for at in range(count):
            distance |= (read_int8(source + np.uint64(at)) & _BYTE) << 8 * at
        source += np.uint64(count)
        if kind == 1:
            distance |= (tag >> 5) << 8
            length = 4 + (tag >> 2 & 7)
        else:
            length = 1 + (tag >> 2)
        if (
            distance == 0
            or distance > np.int64(target) - np.int64(out)
            or length > np.int64(limit) - np.int64(target)
        ):
            return np.int64(UNPACK_REFUSED)
        copy_match(target, np.uint64(distance), length)
        target += np.uint64(length)
    return size if target == limit else np.int64(UNPACK_REFUSED)


@compiled
def unpack_snappy(source: np.uint64, end: np.uint64, out: np.uint64, room: Integer) -> Integer:
    """Decompress blocks; parameters and result as for `kafka_index.kernels.unpacking.unpack`."""
    if np.int64(end) - np.int64(source) < _XERIAL_HEADER_BYTES:
        return np.int64(UNPACK_REFUSED)
    if read_int64(source) != _XERIAL_MAGIC:
        return np.int64(UNPACK_REFUSED)
    source += np.uint64(_XERIAL_HEADER_BYTES)
    total = np.int64(0)
    while source < end:
        left = np.int64(end) - np.int64(source) - _INT32_BYTES
        size: Integer = np.int64(-1)
        if left >= 0:
            size = read_int32(source)
        if size < 0 or size > left:
            return np.int64(UNPACK_REFUSED)
        source += np.uint64(_INT32_BYTES)
        found = _snappy_block(
            source, source + np.uint64(size), out + np.uint64(total), room - total
        )
        if found < 0:
            return found
        total += found
        source += np.uint64(size)
    return total
