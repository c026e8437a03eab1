"""A checksum for callers outside the compiled loops."""

from __future__ import annotations

import numpy as np

from kafka_index.kernels.compile_cache import compiled
from kafka_index.kernels.crc import crc32c_extend


@compiled
def _crc32c(address: np.uint64, size: np.uint64) -> np.int64:
    return np.int64(crc32c_extend(np.uint32(0), address, size))


def crc32c(data: bytes | memoryview) -> int:
    """Return the CRC-32C of some bytes, 0 .. 2^32 - 1."""
    memory = np.frombuffer(data, np.uint8)
    return int(_crc32c(np.uint64(memory.ctypes.data), np.uint64(len(memory))))
