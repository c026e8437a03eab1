"""The places of the chunks of a transformed log: equal sizes, or a packed list of sizes.

Source: ``FixedSizeChunkIndex``, ``VariableSizeChunkIndex`` and ``ChunkSizesBinaryCodec`` of Aiven's
plugin.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

import numpy as np
import pyarrow as pa

from kafka_index.layout.integers import INT32_MAX, Longs

_MAX_WIDTH = 4
# Count, base, width, and the last size.
_PACKED_OVERHEAD_BYTES = 13


@dataclass(frozen=True)
class ChunkIndex:
    """The chunks of a log, each with `chunk_size_bytes` of it; the last has the rest.

    `starts`, of shape (n + 1,), has the start of each chunk in the object, and the end of the last
    one. Raises `ValueError` if the number of chunks is not that of the sizes, or the object would
    exceed 2^31 - 1 bytes.
    """

    original_size_bytes: int
    chunk_size_bytes: int
    starts: Longs

    def __post_init__(self) -> None:
        expected = _count(self.original_size_bytes, self.chunk_size_bytes)
        if len(self.starts) - 1 != expected:
            raise ValueError(f"{len(self.starts) - 1} chunks, where the log has {expected}")
        if (np.diff(self.starts) <= 0).any():
            raise ValueError("a chunk has no bytes")

    @classmethod
    def fixed(
        cls, original_size: int, chunk_size: int, stored_size: int, last_stored_size: int
    ) -> Self:
        """Return the index of chunks that are stored in one size, except the last one."""
        sizes = np.full(_count(original_size, chunk_size), stored_size, np.int64)
        sizes[-1:] = last_stored_size
        return cls._of_sizes(original_size, chunk_size, sizes)

    @classmethod
    def _of_sizes(cls, original_size: int, chunk_size: int, sizes: Longs) -> Self:
        return cls(original_size, chunk_size, np.append(0, np.cumsum(sizes)))

    @property
    def count(self) -> int:
        """Number of chunks."""
        return len(self.starts) - 1

    @property
    def stored_size_bytes(self) -> int:
        """Size of the object."""
        return int(self.starts[-1])

    def original_size(self, chunk: int) -> int:
        """Return how many bytes of the log a chunk holds."""
        start = chunk * self.chunk_size_bytes
        return min(self.chunk_size_bytes, self.original_size_bytes - start)

    def within(self, start_bytes: int, end_bytes: int) -> range:
        """Return the chunks that hold a range of the log, end exclusive."""
        if start_bytes >= end_bytes:
            return range(0)
        return range(
            start_bytes // self.chunk_size_bytes, (end_bytes - 1) // self.chunk_size_bytes + 1
        )

    def pieces(self) -> Iterator[tuple[int, int, int]]:
        """Yield number, start and end in the object of each chunk."""
        starts = self.starts.tolist()
        yield from zip(range(self.count), starts, starts[1:], strict=False)


def parse_chunk_index(original_size: int, chunk_size: int, packed: bytes) -> ChunkIndex:
    """Return the index of chunks of various sizes from ``transformedChunks``, one zstd frame.

    Raises `ValueError` if the frame or its content is damaged, or does not fit the log.
    """
    count = _count(original_size, chunk_size)
    largest = _PACKED_OVERHEAD_BYTES + _MAX_WIDTH * count
    try:
        with pa.CompressedInputStream(pa.py_buffer(packed), "zstd") as stream:
            data = stream.read(largest + 1)
    except (OSError, pa.ArrowInvalid) as error:
        raise ValueError(f"its zstd frame cannot be read: {error}") from error
    if len(data) < 4:
        raise ValueError("its list of sizes is cut")
    found = int.from_bytes(data[:4], "big", signed=True)
    if found != count:
        raise ValueError(f"{found} chunks, where the log has {count}")
    sizes = _unpack(count, data)
    if sizes.size and (int(sizes.min()) < 0 or int(sizes.sum()) > INT32_MAX):
        raise ValueError("a size of a chunk is impossible")
    return ChunkIndex._of_sizes(original_size, chunk_size, sizes)  # noqa: SLF001, of its own kind


def _unpack(count: int, data: bytes) -> Longs:
    if count == 0:
        expected, sizes = 4, np.empty(0, np.int64)
    elif count == 1:
        expected, sizes = 8, np.frombuffer(data[4:8].ljust(4), ">i4").astype(np.int64)
    else:
        width = data[8] if len(data) > 8 else 0
        if not 1 <= width <= _MAX_WIDTH:
            raise ValueError(f"{width} bytes a size")
        expected = _PACKED_OVERHEAD_BYTES + (count - 1) * width
        if len(data) == expected:
            base = int.from_bytes(data[4:8], "big", signed=True)
            deltas = np.frombuffer(data[9:-4], np.uint8).reshape(-1, width).astype(np.int64)
            places = 1 << (8 * np.arange(width - 1, -1, -1, dtype=np.int64))
            last = int.from_bytes(data[-4:], "big", signed=True)
            sizes = np.append(base + deltas @ places, last)
    if len(data) != expected:
        raise ValueError(f"a list of {len(data)} bytes, where {count} sizes take {expected}")
    return sizes


def _count(original_size: int, chunk_size: int) -> int:
    return -(-original_size // chunk_size)
