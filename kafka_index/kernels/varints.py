"""Zigzag varints, as Kafka's records have them.

Source: Kafka's ``ByteUtils.readVarint`` and ``readVarlong``.
"""

from __future__ import annotations

import numpy as np

from kafka_index.kernels.big_endian import Integer, read_int8
from kafka_index.kernels.compile_cache import compiled

#: The most bytes of a varint of 32 bits and of one of 64.
VARINT_BYTES = 5
VARLONG_BYTES = 10

#: Returned as the position after a varint that ends too early, or has more bytes than its kind
#: allows. Both are beyond every end, and stay there whatever is added: one comparison at the end
#: of a record finds all of its faults.
VARINT_CUT = np.int64(1 << 60)
VARINT_TOO_LONG = np.int64(1 << 61)

_MORE_BITS = 7
_UINT32 = np.uint64(0xFFFFFFFF)


@compiled
def _read_long_varint(position: Integer, end: Integer, max_bytes: int) -> tuple[Integer, Integer]:
    value = np.uint64(0)
    shift = np.uint64(0)
    for used in range(max_bytes):
        if position + used >= end:
            return np.int64(0), VARINT_CUT
        byte = read_int8(np.uint64(position + used))
        value |= np.uint64(byte & 0x7F) << shift
        if byte >= 0:
            if max_bytes == VARINT_BYTES:
                # Java shifts in 32 bits: the highest bits of a fifth byte are lost.
                value &= _UINT32
            signed = np.int64(value >> np.uint64(1)) ^ -np.int64(value & np.uint64(1))
            return signed, position + used + 1
        shift += np.uint64(_MORE_BITS)
    return np.int64(0), VARINT_TOO_LONG


@compiled
def read_varint(position: Integer, end: Integer, max_bytes: int) -> tuple[Integer, Integer]:
    """Read a zigzag varint.

    Parameters
    ----------
    position, end : int64
        Addresses of its first byte, and after the last byte it may have.
    max_bytes : int
        `VARINT_BYTES` or `VARLONG_BYTES`.

    Returns
    -------
    tuple of int64
        The value, and the address after it; `VARINT_CUT` or `VARINT_TOO_LONG` for that when it
        cannot be read.
    """
    if position >= end:
        return np.int64(0), VARINT_CUT
    value = read_int8(np.uint64(position))
    if value >= 0:
        return value >> 1 ^ -(value & 1), position + 1
    if position + 1 < end:
        byte = read_int8(np.uint64(position + 1))
        if byte >= 0:
            value = value & 0x7F | byte << _MORE_BITS
            return value >> 1 ^ -(value & 1), position + 2
    return _read_long_varint(position, end, max_bytes)
