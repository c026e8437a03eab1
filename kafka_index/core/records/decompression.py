"""Decompress the records of a batch as Kafka does, within a memory limit for the process.

A few kilobytes can decompress to terabytes, in every thread. The threads share a
`DecompressionBudget` that limits the sum of their decompressed bytes: a thread waits for free
memory, and a batch that exceeds the whole budget is rejected during decompression. Internal memory
of decoders (zstd: a window of up to 128 MiB) is not counted. `core.kernels.decompress` handles
small batches in common formats, `core.records.compressed_streams` all others.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections import deque
from collections.abc import Iterator

import numpy as np

from kafka_index.core.closeable import Closeable
from kafka_index.core.errors import CorruptLogError, TooLargeError
from kafka_index.core.format.names import COMPRESSION_NAMES
from kafka_index.core.format.records import MAGIC_RECORD_BATCH
from kafka_index.core.fs.store import Bytes
from kafka_index.core.kernels.memory import UNPACK_NO_ROOM, UNPACK_SLACK_BYTES
from kafka_index.core.records.compressed_streams import (
    Pieces,
    read_gzip,
    read_lz4,
    read_snappy,
    read_zstd,
)

_GZIP, _SNAPPY, _LZ4, _ZSTD = range(1, len(COMPRESSION_NAMES))
#: Initial and second reservation for a batch; after that, the whole budget is reserved.
_FIRST_ROOMS = (4 * 1024 * 1024, 32 * 1024 * 1024)
#: Memory in which a thread decompresses small batches.
_SCRATCH_BYTES = _FIRST_ROOMS[0]


def decompress(
    codec: int, data: bytes | Bytes, *, max_bytes: int, magic: int = 2
) -> bytes | bytearray:
    """Decompress all records of a batch.

    `data` is the batch without its header, or the value of a message. `magic` is needed because lz4
    frames in v0 messages have a wrong header checksum. Raises `CorruptLogError` for an unknown
    codec or invalid data, and `TooLargeError` if the output exceeds `max_bytes`.
    """
    records: bytes | bytearray = b""
    for piece in _pieces(codec, _view(data), magic, max_bytes):
        if len(records) + len(piece) > max_bytes:
            raise TooLargeError.of_records(max_bytes)
        if not records:
            # Often there is only one.
            records = piece
            continue
        if isinstance(records, bytes):
            records = bytearray(records)
        records += piece
    return records


def _view(data: bytes | Bytes) -> memoryview:
    return memoryview(data) if isinstance(data, bytes) else data.data


def _pieces(codec: int, packed: memoryview, magic: int, max_bytes: int) -> Pieces:
    if codec == _GZIP:
        return read_gzip(packed)
    if codec == _SNAPPY:
        return read_snappy(packed, max_bytes)
    if codec == _LZ4:
        return read_lz4(packed, ignore_header_checksum=magic == 0)
    if codec == _ZSTD:
        return read_zstd(packed)
    raise CorruptLogError("unknown codec", expected=f"0..{_ZSTD}", found=codec)


class DecompressedRecords(Closeable):
    """Decompressed records, read-only; closing them releases their part of the budget.

    Without a budget, the caller counts their bytes.
    """

    def __init__(self, data: Bytes, budget: DecompressionBudget | None = None) -> None:
        self.data = data
        self._budget = budget

    def close(self) -> None:
        """Release the memory; the data must not be used any more."""
        budget, self._budget = self._budget, None
        if budget is not None:
            size = len(self.data)
            self.data = self.data[:0]
            budget.release(size)


class DecompressionBudget:
    """A limit of `max_bytes` for decompressed records, shared by threads in FIFO order.

    A thread holds no memory while it waits for more: a batch that exceeds its reservation is
    discarded and decompressed again with a larger one. This prevents deadlocks.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._free = max_bytes
        self._changed = threading.Condition()
        self._waiting: deque[object] = deque()

    @property
    def free_bytes(self) -> int:
        """Bytes that no thread has reserved."""
        return self._free

    def decompress(self, codec: int, data: bytes | Bytes, *, magic: int = 2) -> DecompressedRecords:
        """Decompress records within the budget; parameters and errors as in `decompress`.

        Waits until other threads release enough memory. The calling thread must not hold any.
        """
        rooms = [room for room in _FIRST_ROOMS if room < self.max_bytes]
        for room in rooms:
            try:
                return self._decompress(codec, data, magic, room)
            except TooLargeError:
                continue
        return self._decompress(codec, data, magic, self.max_bytes)

    def _decompress(
        self, codec: int, data: bytes | Bytes, magic: int, room: int
    ) -> DecompressedRecords:
        self._acquire(room)
        used = 0
        try:
            records: bytes | bytearray | None = None
            if room <= _SCRATCH_BYTES and magic >= MAGIC_RECORD_BATCH:
                try:
                    records = _thread_scratch().decompress(codec, data, room)
                except TooLargeError:
                    # The last attempt distinguishes corruption from lack of memory.
                    if room < self.max_bytes:
                        raise
            if records is None:
                records = decompress(codec, data, magic=magic, max_bytes=room)
            used = len(records)
        finally:
            self.release(room - used)
        return DecompressedRecords(np.frombuffer(records, np.uint8), self)

    @contextlib.contextmanager
    def reserve(self, size: int) -> Iterator[None]:
        """Reserve memory during a context; the calling thread must not hold any other."""
        self._acquire(size)
        try:
            yield
        finally:
            self.release(size)

    def _acquire(self, size: int) -> None:
        ticket = object()
        with self._changed:
            if not self._waiting and self._free >= size:
                self._free -= size
                return
            self._waiting.append(ticket)
            try:
                self._changed.wait_for(lambda: self._waiting[0] is ticket and self._free >= size)
                self._free -= size
            finally:
                self._waiting.remove(ticket)
                self._changed.notify_all()

    def release(self, size: int) -> None:
        with self._changed:
            self._free += size
            if self._waiting:
                self._changed.notify_all()


class _Scratch:
    """Memory and contexts of one thread for decompressing small batches."""

    def __init__(self) -> None:
        # The codec libraries are loaded only when there is something to decompress.
        from kafka_index.core.kernels.decompress import new_contexts, unpack  # noqa: PLC0415

        self._unpack = unpack
        self._memory: Bytes = np.empty(_SCRATCH_BYTES + UNPACK_SLACK_BYTES, np.uint8)
        self._address = np.uint64(self._memory.ctypes.data)
        self._contexts = new_contexts(self)

    def decompress(self, codec: int, data: bytes | Bytes, room: int) -> bytes | None:
        """Decompress a v2 batch in a format supported by compiled loops; None for any other.

        Raises `TooLargeError` if the output exceeds `room`.
        """
        packed = np.frombuffer(data, np.uint8)
        start = packed.ctypes.data
        size = self._unpack(
            codec,
            np.uint64(start),
            np.uint64(start + len(packed)),
            self._address,
            room,
            self._contexts,
        )
        if size == UNPACK_NO_ROOM:
            raise TooLargeError.of_records(room)
        return None if size < 0 else self._memory[:size].tobytes()


class _Threads(threading.local):
    scratch: _Scratch | None = None


_threads = _Threads()


def _thread_scratch() -> _Scratch:
    scratch = _threads.scratch
    if scratch is None:
        scratch = _threads.scratch = _Scratch()
    return scratch


@functools.cache
def shared_budget(max_bytes: int) -> DecompressionBudget:
    """Return the budget of this process for a limit; equal limits share one budget."""
    return DecompressionBudget(max_bytes)


# In a forked child, nothing is reserved, whatever the parent's threads were doing.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=shared_budget.cache_clear)
