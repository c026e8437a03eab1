"""lz4 frames of independent blocks, whose blocks the library decompresses.

Source: Kafka's ``Lz4BlockInputStream``.
"""

from __future__ import annotations

import numpy as np

from kafka_index.kernels.big_endian import Integer, read_int8, read_int32_little
from kafka_index.kernels.compile_cache import compiled
from kafka_index.kernels.copying import UNPACK_NO_ROOM, UNPACK_REFUSED, copy_bytes
from kafka_index.kernels.library_codecs import unpack_lz4_block

_INT32_BYTES = 4
_BYTE = 0xFF
_LZ4_MAGIC = 0x184D2204
_LZ4_HEADER_BYTES = 7
_LZ4_STORED = 0x80000000
_LZ4_UINT32 = 0xFFFFFFFF
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
def unpack_lz4(  # noqa: PLR0911, PLR0912, C901, because each refusal is one exit
    context: Integer, source: np.uint64, end: np.uint64, out: np.uint64, room: Integer
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
            found = unpack_lz4_block(context, source, size, out + np.uint64(total), block_room)
            if found < 0:
                # A block that does not fit in what its frame allows is for others to judge.
                is_full = found == UNPACK_NO_ROOM and block_room < max_block
                return np.int64(UNPACK_NO_ROOM if is_full else UNPACK_REFUSED)
        total += found
        source += np.uint64(size)
    return np.int64(UNPACK_REFUSED)
