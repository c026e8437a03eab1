"""lz4 frames of independent blocks, decompressed in a compiled loop.

Sources: Kafka's ``Lz4BlockInputStream``, the LZ4 block format.
"""

from __future__ import annotations

import numpy as np

from kafka_index.kernels.big_endian import Integer, read_int8, read_int32_little
from kafka_index.kernels.compile_cache import compiled
from kafka_index.kernels.copying import (
    UNPACK_NO_ROOM,
    UNPACK_REFUSED,
    WORD_BYTES,
    copy_bytes,
    copy_literals,
    copy_match,
    copy_vector,
    copy_word,
)

_INT32_BYTES = 4
_BYTE = 0xFF
_LZ4_MAGIC = 0x184D2204
_LZ4_HEADER_BYTES = 7
_LZ4_STORED = 0x80000000
_LZ4_UINT32 = 0xFFFFFFFF
_LZ4_MIN_MATCH = 4
#: What a match may not reach into, and what a block ends with at least after literals that are not
#: its last (LZ4_decompress_safe).
_LZ4_LAST_LITERALS, _LZ4_LAST_BYTES = 5, 8
_LZ4_LONG = 15
#: What a sequence of short lengths reads and writes at most, wide copies and the last literals
#: included.
_LZ4_SHORT_INPUT, _LZ4_SHORT = 48, 64
_LZ4_CONTENT_CHECKSUM = 4
#: Flags (with or without a checksum of the content), block descriptor, and the checksum of both;
#: and the most bytes of a block.
_LZ4_HEADERS = np.array(
    [
        (0x60, 0x40, 0x82, 1 << 16),
        (0x60, 0x50, 0xFB, 1 << 18),
        (0x60, 0x60, 0x51, 1 << 20),
        (0x60, 0x70, 0x73, 1 << 22),
        (0x64, 0x40, 0xA7, 1 << 16),
        (0x64, 0x50, 0x08, 1 << 18),
        (0x64, 0x60, 0x85, 1 << 20),
        (0x64, 0x70, 0xB9, 1 << 22),
    ],
    np.int64,
)


@compiled
def _lz4_length(value: Integer, source: np.uint64, end: np.uint64) -> tuple[Integer, np.uint64]:
    """Return a length that begins with 4 bits, and the address after it; -1 where it is cut."""
    if value == _LZ4_LONG:
        while True:
            if source >= end:
                return np.int64(-1), source
            byte = read_int8(source) & _BYTE
            source += np.uint64(1)
            value += byte
            if byte != _BYTE:
                break
    return value, source


@compiled
def _lz4_block(  # noqa: PLR0911, because each refusal is one exit
    source: np.uint64, end: np.uint64, out: np.uint64, room: Integer
) -> Integer:
    """Decompress a block; return its size, or a refusal."""
    target = out
    limit = out + np.uint64(room)
    while source < end:
        token = read_int8(source) & _BYTE
        if source + np.uint64(_LZ4_SHORT_INPUT) <= end and target + np.uint64(_LZ4_SHORT) <= limit:
            # Nearly all sequences: few literals and a short match, copied without a loop.
            size = token >> 4
            copy_vector(target, source + np.uint64(1), size)
            place = source + np.uint64(1 + size)
            high = read_int8(place + np.uint64(1)) & _BYTE
            distance = np.uint64(read_int8(place) & _BYTE | high << 8)
            match = token & _LZ4_LONG
            start = target + np.uint64(size)
            if (
                size < _LZ4_LONG
                and match < _LZ4_LONG
                and distance >= np.uint64(WORD_BYTES)
                and distance <= start - out
            ):
                match += _LZ4_MIN_MATCH
                origin = start - distance
                copy_word(start, origin, match)
                copy_word(start + np.uint64(8), origin + np.uint64(8), match)
                copy_word(start + np.uint64(16), origin + np.uint64(16), match)
                target = start + np.uint64(match)
                source = place + np.uint64(2)
                continue
        source += np.uint64(1)
        size, source = _lz4_length(token >> 4, source, end)
        left = np.int64(end) - np.int64(source)
        if size < 0 or size > left:
            return np.int64(UNPACK_REFUSED)
        if size > np.int64(limit) - np.int64(target):
            return np.int64(UNPACK_NO_ROOM)
        copy_literals(target, source, size, end)
        target += np.uint64(size)
        source += np.uint64(size)
        if source == end:
            return np.int64(target) - np.int64(out)
        if left - size < _LZ4_LAST_BYTES:
            return np.int64(UNPACK_REFUSED)
        high = read_int8(source + np.uint64(1)) & _BYTE
        distance = np.uint64(read_int8(source) & _BYTE | high << 8)
        source += np.uint64(2)
        if distance == np.uint64(0) or distance > target - out:
            return np.int64(UNPACK_REFUSED)
        size, source = _lz4_length(token & _LZ4_LONG, source, end)
        if size < 0:
            return np.int64(UNPACK_REFUSED)
        size += _LZ4_MIN_MATCH
        if size > np.int64(limit) - np.int64(target) - _LZ4_LAST_LITERALS:
            return np.int64(UNPACK_NO_ROOM)
        copy_match(target, distance, size)
        target += np.uint64(size)
    return np.int64(UNPACK_REFUSED)


@compiled
def unpack_lz4(  # noqa: PLR0911, PLR0912, C901, because each refusal is one exit
    source: np.uint64, end: np.uint64, out: np.uint64, room: Integer
) -> Integer:
    """Decompress a frame; parameters and result as for `kafka_index.kernels.unpacking.unpack`."""
    if np.int64(end) - np.int64(source) < _LZ4_HEADER_BYTES + _INT32_BYTES:
        return np.int64(UNPACK_REFUSED)
    if read_int32_little(source) != _LZ4_MAGIC:
        return np.int64(UNPACK_REFUSED)
    flags = read_int8(source + np.uint64(4)) & _BYTE
    max_block = np.int64(0)
    for row in range(len(_LZ4_HEADERS)):
        if (
            flags == _LZ4_HEADERS[row, 0]
            and read_int8(source + np.uint64(5)) & _BYTE == _LZ4_HEADERS[row, 1]
            and read_int8(source + np.uint64(6)) & _BYTE == _LZ4_HEADERS[row, 2]
        ):
            max_block = _LZ4_HEADERS[row, 3]
    if max_block == 0:
        return np.int64(UNPACK_REFUSED)
    source += np.uint64(_LZ4_HEADER_BYTES)
    total = np.int64(0)
    while np.int64(end) - np.int64(source) >= _INT32_BYTES:
        size = read_int32_little(source) & _LZ4_UINT32
        source += np.uint64(_INT32_BYTES)
        is_stored = size & _LZ4_STORED
        size &= _LZ4_STORED - 1
        if size == 0:
            # Kafka reads no further, but a checksum of the content has to be there.
            rest = np.int64(end) - np.int64(source)
            if flags & _LZ4_CONTENT_CHECKSUM and rest < _INT32_BYTES:
                return np.int64(UNPACK_REFUSED)
            return total
        if size > np.int64(end) - np.int64(source):
            return np.int64(UNPACK_REFUSED)
        if is_stored:
            if size > max_block:
                return np.int64(UNPACK_REFUSED)
            if size > room - total:
                return np.int64(UNPACK_NO_ROOM)
            copy_bytes(out + np.uint64(total), source, size)
            found: Integer = size
        else:
            block_room = min(max_block, room - total)
            found = _lz4_block(source, source + np.uint64(size), out + np.uint64(total), block_room)
            if found < 0:
                # A block that does not fit in what its frame allows is for others to judge.
                is_full = found == UNPACK_NO_ROOM and block_room < max_block
                return np.int64(UNPACK_NO_ROOM if is_full else UNPACK_REFUSED)
        total += found
        source += np.uint64(size)
    return np.int64(UNPACK_REFUSED)
