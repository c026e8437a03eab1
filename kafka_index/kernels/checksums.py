"""Checksums callable from compiled loops.

Magic 2 is covered by CRC-32C: a compiled function, our own for CPUs with wide carry-less
multiplication and google-crc32c's for all others, is registered with LLVM under a name that numba
can call and cache (a ctypes pointer cannot be cached). Magic 0 and 1
are covered by CRC-32 (IEEE), for which no library gives us a symbol everywhere: eight bytes a step
by table.
"""

from __future__ import annotations

import ctypes
import importlib.util
from typing import Any

import llvmlite.binding
import numpy as np
from numba import types
from numpy.typing import NDArray

from kafka_index.kernels.big_endian import read_int8, read_int32_little
from kafka_index.kernels.compile_cache import compiled
from kafka_index.kernels.fast_crc32c import fast_crc32c_address

_SYMBOL = "kafka_index_crc32c_extend"
_CRC32_POLYNOMIAL = 0xEDB88320


def _library_address() -> int:
    extension = importlib.util.find_spec("google_crc32c._crc32c")
    if extension is None or extension.origin is None:
        raise ImportError("google-crc32c has no compiled extension on this platform")
    function = ctypes.CDLL(extension.origin).crc32c_extend
    address = ctypes.cast(function, ctypes.c_void_p).value
    if address is None:
        raise ImportError("google-crc32c's extension has no crc32c_extend")
    return address


def _register() -> None:
    address = fast_crc32c_address() or _library_address()
    llvmlite.binding.add_symbol(_SYMBOL, address)


_register()

#: ``crc32c_extend(crc, address, size)``: the CRC-32C of what ``crc`` covers and these bytes.
crc32c_extend: Any = types.ExternalFunction(
    _SYMBOL, types.uint32(types.uint32, types.uintp, types.uintp)
)


def _tables() -> NDArray[np.uint32]:
    tables = np.zeros((8, 256), np.uint32)
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = (value >> 1) ^ (_CRC32_POLYNOMIAL if value & 1 else 0)
        tables[0, byte] = value
    for level in range(1, 8):
        previous = tables[level - 1]
        tables[level] = (previous >> np.uint32(8)) ^ tables[0][previous & np.uint32(0xFF)]
    return tables


_TABLES = _tables()


@compiled
def crc32(address: np.uint64, size: np.uint64) -> np.int64:
    """Return the CRC-32 (IEEE) of the bytes at an address, as a non-negative int64."""
    value = np.uint64(0xFFFFFFFF)
    mask = np.uint64(0xFF)
    position = address
    end = address + size
    while position + np.uint64(8) <= end:
        low = value ^ (np.uint64(read_int32_little(position)) & np.uint64(0xFFFFFFFF))
        high = np.uint64(read_int32_little(position + np.uint64(4)))
        value = np.uint64(
            _TABLES[7, low & mask]
            ^ _TABLES[6, (low >> np.uint64(8)) & mask]
            ^ _TABLES[5, (low >> np.uint64(16)) & mask]
            ^ _TABLES[4, (low >> np.uint64(24)) & mask]
            ^ _TABLES[3, high & mask]
            ^ _TABLES[2, (high >> np.uint64(8)) & mask]
            ^ _TABLES[1, (high >> np.uint64(16)) & mask]
            ^ _TABLES[0, (high >> np.uint64(24)) & mask]
        )
        position += np.uint64(8)
    while position < end:
        byte = np.uint64(read_int8(position))
        value = (value >> np.uint64(8)) ^ np.uint64(_TABLES[0, (value ^ byte) & mask])
        position += np.uint64(1)
    return np.int64(value ^ np.uint64(0xFFFFFFFF))


@compiled
def _crc32c(address: np.uint64, size: np.uint64) -> np.int64:
    return np.int64(crc32c_extend(np.uint32(0), address, size))


def crc32c(data: bytes | memoryview) -> int:
    """Return the CRC-32C of some bytes, 0 .. 2^32 - 1."""
    memory = np.frombuffer(data, np.uint8)
    return int(_crc32c(np.uint64(memory.ctypes.data), np.uint64(len(memory))))
