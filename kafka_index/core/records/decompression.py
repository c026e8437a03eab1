"""Decompressing the records of a batch as Kafka does, within one bound for the whole process.

A few kilobytes can decompress to terabytes, and every thread of a process may meet such a batch.
The threads share a `DecompressionBudget`: the sum of the decompressed bytes at a time stays within
it, a thread waits until there is room, and a batch that alone needs more is refused while it is
being decompressed, not after. What a decoder keeps for itself (zstd: a window of up to 128 MiB)
comes on top. Small batches in the forms that clients write are decompressed by the compiled loops
of `core.kernels.decompress`, all others by `core.records.compressed_streams`.
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
#: What is reserved for a batch at first, and what when it turns out to need more; the whole budget
#: comes last.
_FIRST_ROOMS = (4 * 1024 * 1024, 32 * 1024 * 1024)
#: The memory in which a thread decompresses small batches.
_SCRATCH_BYTES = _FIRST_ROOMS[0]


def decompress(
    codec: int, data: bytes | Bytes, *, max_bytes: int, magic: int = 2
) -> bytes | bytearray:
    """Decompress the records of a batch, all of them.

    The bytes are those after the header of the batch, or the value of a message; the magic counts
    because lz4 frames of magic 0 have a wrong header checksum. Raises `CorruptLogError` for an
    unknown codec or bytes that are not of it, and `TooLargeError` for more than `max_bytes` of
    output.
    """
    records: bytes | bytearray = b""
    for piece in _pieces(codec, _view(data), magic, max_bytes):
        if len(records) + len(piece) > max_bytes:
            raise TooLargeError.of_records(max_bytes)
        if not records:
            # Often the only one.
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
    """Decompressed records, read-only, whose room in the budget is released when they are closed.

    Without a budget, the caller counts their bytes.
    """

    def __init__(self, data: Bytes, budget: DecompressionBudget | None = None) -> None:
        self.data = data
        self._budget = budget

    def close(self) -> None:
        """Give the room back; the data must not be used any more."""
        budget, self._budget = self._budget, None
        if budget is not None:
            size = len(self.data)
            self.data = self.data[:0]
            budget.release(size)


class DecompressionBudget:
    """Room for at most `max_bytes` of decompressed records, shared by threads and served in order.

    A thread holds no room while it waits for more: a batch that outgrows its reservation is
    dropped, and decompressed again in more room. So threads cannot wait for each other.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._free = max_bytes
        self._changed = threading.Condition()
        self._waiting: deque[object] = deque()

    @property
    def free_bytes(self) -> int:
        """The number of bytes that no thread holds."""
        return self._free

    def decompress(self, codec: int, data: bytes | Bytes, *, magic: int = 2) -> DecompressedRecords:
        """Decompress records within the budget; parameters and errors as for `decompress`.

        Waits while other threads hold the room that is needed. The calling thread must not hold
        any.
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
                    # The last room: damage, which may look the same there, is told apart.
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
        """Hold room for the time of a context; the calling thread must not hold any other."""
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
        """Give room back."""
        with self._changed:
            self._free += size
            if self._waiting:
                self._changed.notify_all()


class _Scratch:
    """Memory and contexts with which one thread decompresses one batch after the other."""

    def __init__(self) -> None:
        # The libraries of the codecs are loaded where there is something to decompress.
        from kafka_index.core.kernels.decompress import new_contexts, unpack  # noqa: PLC0415

        self._unpack = unpack
        self._memory: Bytes = np.empty(_SCRATCH_BYTES + UNPACK_SLACK_BYTES, np.uint8)
        self._address = np.uint64(self._memory.ctypes.data)
        self._contexts = new_contexts(self)

    def decompress(self, codec: int, data: bytes | Bytes, room: int) -> bytes | None:
        """Decompress a batch of magic 2 in a form that a compiled loop reads; None for any other.

        Raises `TooLargeError` if it needs more room than is given.
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
    """Return the budget of this process for a limit: one for all who name the same limit."""
    return DecompressionBudget(max_bytes)


# A child that is forked while a thread waits or decompresses begins with nothing reserved.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=shared_budget.cache_clear)
