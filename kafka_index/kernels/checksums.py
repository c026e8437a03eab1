"""Checksums of batches, callable from compiled loops.

Magic 2 is covered by CRC-32C. The fastest function for this CPU is registered with LLVM under a
name that numba can call and cache (a ctypes pointer cannot be cached): one of our own, or
google-crc32c's on processors other than x86 and where `METHOD_VARIABLE` asks for it. Magic 0 and 1
are covered by CRC-32 (IEEE), for which no library has a symbol everywhere: eight bytes a step by
table.
"""

from __future__ import annotations

import ctypes
import importlib.util
import logging
import os
from typing import Any

import llvmlite.binding
import numpy as np
from numba import types
from numpy.typing import NDArray

from kafka_index.kernels.compile_cache import compiled
from kafka_index.kernels.fast_crc32c import fast_crc32c_address, supported_methods
from kafka_index.kernels.memory import read_int8, read_int32_little

_log = logging.getLogger(__name__)

#: Environment variable that names the method of CRC-32C, one of `crc32c_methods`, instead of the
#: fastest.
METHOD_VARIABLE = "KAFKA_INDEX_CRC32C"
#: The method of google-crc32c, which works everywhere.
LIBRARY_METHOD = "library"

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


def crc32c_methods() -> list[str]:
    """Return the methods that work on this CPU, the fastest first."""
    return [*supported_methods(), LIBRARY_METHOD]


def chosen_method() -> str:
    """Return the method that the environment asks for, or else the fastest."""
    methods = crc32c_methods()
    chosen = os.environ.get(METHOD_VARIABLE) or methods[0]
    if chosen in methods:
        return chosen
    # Not an error: on a cluster of different machines some may not have what the others do.
    _log.warning(
        "%s=%s is not one of the methods of this CPU (%s); using %s",
        METHOD_VARIABLE,
        chosen,
        ", ".join(methods),
        methods[0],
    )
    return methods[0]


def method_address(method: str) -> int:
    """Return the address of ``uint32 (uint32 crc, address, size)`` by a method of this CPU."""
    library = _library_address()
    return library if method == LIBRARY_METHOD else fast_crc32c_address(method, library)


#: The method in use.
CRC32C_METHOD = chosen_method()
llvmlite.binding.add_symbol(_SYMBOL, method_address(CRC32C_METHOD))

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
    mask = np.uint64(0xFFFFFFFF)
    value = mask
    position = address
    end = address + size
    while position + np.uint64(8) <= end:
        low = value ^ (np.uint64(read_int32_little(position)) & mask)
        word = low | np.uint64(read_int32_little(position + np.uint64(4))) << np.uint64(32)
        value = np.uint64(0)
        for lane in range(8):
            byte = word >> np.uint64(8 * lane) & np.uint64(0xFF)
            value ^= np.uint64(_TABLES[7 - lane, byte])
        position += np.uint64(8)
    while position < end:
        last = (value ^ np.uint64(read_int8(position))) & np.uint64(0xFF)
        value = (value >> np.uint64(8)) ^ np.uint64(_TABLES[0, last])
        position += np.uint64(1)
    return np.int64(value ^ mask)


@compiled
def _crc32c(address: np.uint64, size: np.uint64) -> np.int64:
    return np.int64(crc32c_extend(np.uint32(0), address, size))


def crc32c(data: bytes | memoryview) -> int:
    """Return the CRC-32C of some bytes, 0 .. 2^32 - 1."""
    memory = np.frombuffer(data, np.uint8)
    return int(_crc32c(np.uint64(memory.ctypes.data), np.uint64(len(memory))))
