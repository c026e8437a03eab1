"""Decompress the records of a batch as Kafka does, within a memory limit for the process.

A few kilobytes can decompress to terabytes, in every thread. The threads share a
`DecompressionBudget` that limits the sum of their decompressed bytes: a thread waits for free
memory, and a batch that exceeds the whole budget is rejected during decompression. Internal memory
of decoders (zstd: a window of up to 128 MiB) is not counted. `core.kernels.decompress` handles
small batches in common formats, this module all others.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import threading
import zlib
from collections import deque
from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from kafka_index.core.contexts import Closeable, lock_and_condition
from kafka_index.core.errors import CorruptLogError, TooLargeError
from kafka_index.core.format.names import COMPRESSION_NAMES
from kafka_index.core.format.records import MAGIC_RECORD_BATCH
from kafka_index.core.fs.store import Bytes
from kafka_index.core.kernels.memory import UNPACK_NO_ROOM, UNPACK_SLACK_BYTES

#: Decompressed bytes, in order.
Chunks = Iterator[bytes]

_CHUNK_BYTES = 16 * 1024
_INT32_BYTES = 4

_XERIAL_MAGIC = b"\x82SNAPPY\0"
_XERIAL_HEADER_BYTES = 16
_XERIAL_MIN_VERSION = 1
_SNAPPY_MAX_CHUNK_BYTES = 512 * 1024 * 1024
#: A larger chunk counts twice, because it is copied to the previous output.
_SNAPPY_SMALL_CHUNK_BYTES = 1024 * 1024
_LZ4_MAGIC = b"\x04\x22\x4d\x18"
_LZ4_CONTENT_CHECKSUM, _LZ4_CONTENT_SIZE, _LZ4_BLOCK_CHECKSUM = 4, 8, 16
#: Version 1, independent blocks, no reserved bits: the only frames that Kafka reads.
_LZ4_FIXED_MASK, _LZ4_FIXED_FLAGS = 0xE3, 0x60
_LZ4_MIN_HEADER_BYTES = 6
_LZ4_STORED = 0x80000000
_LZ4_MAX_BLOCK_BYTES = 4 * 1024 * 1024
_XX_1, _XX_2, _XX_3 = 0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D
_XX_4, _XX_5 = 0x27D4EB2F, 0x165667B1
_UINT32 = 0xFFFFFFFF


def read_zstd(packed: memoryview) -> Chunks:
    """Decompress zstd frames, one chunk at a time."""
    return _read_arrow_chunks(packed, "zstd")


def _read_arrow_chunks(packed: memoryview | bytes, name: str) -> Chunks:
    stream = pa.CompressedInputStream(pa.BufferReader(pa.py_buffer(packed)), name)
    while True:
        try:
            chunk: bytes = stream.read(_CHUNK_BYTES)
        except OSError as error:
            raise _corrupt_records_error(name, str(error)) from error
        if not chunk:
            return
        yield chunk


def _corrupt_records_error(name: str, reason: str) -> CorruptLogError:
    return CorruptLogError(f"the records cannot be decompressed with {name}: {reason}")


_GZIP_MAGIC = b"\x1f\x8b\x08"
_GZIP_FIXED_BYTES = 10
_GZIP_HEADER_CRC, _GZIP_EXTRA, _GZIP_NAME, _GZIP_COMMENT = 2, 4, 8, 16
_GZIP_TRAILER_BYTES = 8
#: This many bytes or fewer after a gzip trailer are ignored, since no gzip stream is that short.
_GZIP_SMALLEST_BYTES = 18
_GZIP_INPUT_BYTES = 8 * 1024
_ZERO = re.compile(rb"\0")


def read_gzip(packed: memoryview) -> Chunks:
    return _read_gzip_chunks(packed, _gzip_header_end(packed, 0))


def _gzip_header_end(packed: memoryview, start: int) -> int:
    if packed[start : start + len(_GZIP_MAGIC)] != _GZIP_MAGIC:
        raise _corrupt_records_error("gzip", "the gzip header is missing")
    end = start + _GZIP_FIXED_BYTES
    flags = packed[start + 3] if end <= len(packed) else 0
    if flags & _GZIP_EXTRA:
        end += 2 + int.from_bytes(packed[end : end + 2], "little")
    for flag in (_GZIP_NAME, _GZIP_COMMENT):
        if flags & flag:
            terminator = _ZERO.search(packed, min(end, len(packed)))
            end = len(packed) + 1 if terminator is None else terminator.end()
    if flags & _GZIP_HEADER_CRC:
        checksum = zlib.crc32(packed[start:end]) & 0xFFFF
        if int.from_bytes(packed[end : end + 2], "little") != checksum:
            raise _corrupt_records_error("gzip", "the header has a wrong checksum")
        end += 2
    if end > len(packed):
        raise _corrupt_records_error("gzip", "the header is truncated")
    return end


def _read_gzip_chunks(packed: memoryview, position: int) -> Chunks:
    while True:
        inflater = zlib.decompressobj(-zlib.MAX_WBITS)
        checksum = size = 0
        pending: bytes | memoryview = b""
        finished = False
        while not finished:
            if not pending:
                pending = packed[position : position + _GZIP_INPUT_BYTES]
                position += len(pending)
            try:
                chunk = inflater.decompress(pending, _CHUNK_BYTES)
            except zlib.error as error:
                raise _corrupt_records_error("gzip", str(error)) from error
            finished = inflater.eof
            if not chunk and not finished and position == len(packed):
                raise _corrupt_records_error("gzip", "the data is truncated")
            pending = inflater.unconsumed_tail
            checksum = zlib.crc32(chunk, checksum)
            size += len(chunk)
            if chunk:
                yield chunk
        position -= len(inflater.unused_data)
        trailer = packed[position : position + _GZIP_TRAILER_BYTES]
        expected = checksum.to_bytes(4, "little") + (size & 0xFFFFFFFF).to_bytes(4, "little")
        if trailer != expected:
            raise _corrupt_records_error("gzip", "the trailer has a wrong checksum or size")
        position += _GZIP_TRAILER_BYTES
        if len(packed) - position <= _GZIP_SMALLEST_BYTES:
            return
        try:
            position = _gzip_header_end(packed, position)
        except CorruptLogError:
            return  # Data after a stream that is not a gzip stream itself is ignored.


def read_snappy(packed: memoryview, max_bytes: int, *, is_whole: bool = False) -> Chunks:
    """Decompress snappy chunks with xerial framing, or a single unframed block.

    A block is decompressed in one step, so a block larger than ``max_bytes`` is rejected before.
    Kafka ignores bytes after the last chunk; with `is_whole` they are an error.
    """
    if not packed:
        raise _corrupt_records_error("snappy", "the data is empty")
    header = bytes(packed[:_XERIAL_HEADER_BYTES])
    if len(header) < _XERIAL_HEADER_BYTES or not header.startswith(_XERIAL_MAGIC):
        # A single unframed block; Kafka decompresses it when it opens the stream.
        return iter((_snappy_block(packed, _snappy_size(packed, max_bytes)),))
    return _read_xerial_chunks(packed, max_bytes, is_whole=is_whole)


def _read_xerial_chunks(packed: memoryview, max_bytes: int, *, is_whole: bool) -> Chunks:
    position = _XERIAL_HEADER_BYTES
    remaining_bytes = max_bytes
    # An incomplete length field ends the stream.
    while position + _INT32_BYTES <= len(packed):
        length = packed[position : position + _INT32_BYTES]
        if length == _XERIAL_MAGIC[:_INT32_BYTES]:
            header = bytes(packed[position : position + _XERIAL_HEADER_BYTES])
            if len(header) < _XERIAL_HEADER_BYTES:
                raise _corrupt_records_error("snappy", "a further header is truncated")
            if not header.startswith(_XERIAL_MAGIC):
                break
            # snappy-java checks the version only in further headers, not in the first.
            if int.from_bytes(header[8:12], "big", signed=True) < _XERIAL_MIN_VERSION:
                raise _corrupt_records_error("snappy", "a further header has an unknown version")
            position += _XERIAL_HEADER_BYTES
            continue
        size = int.from_bytes(length, "big", signed=True)
        position += _INT32_BYTES
        if not 0 <= size <= _SNAPPY_MAX_CHUNK_BYTES or size > len(packed) - position:
            raise _corrupt_records_error(
                "snappy", f"a chunk has {size} bytes, but {len(packed) - position} bytes remain"
            )
        block = packed[position : position + size]
        unpacked_bytes = _snappy_size(block, max_bytes)
        copies = 2 if unpacked_bytes > _SNAPPY_SMALL_CHUNK_BYTES else 1
        if copies * unpacked_bytes > remaining_bytes:
            raise TooLargeError.of_records(max_bytes)
        chunk = _snappy_block(block, unpacked_bytes)
        remaining_bytes -= len(chunk)
        position += size
        if chunk:
            yield chunk
    if is_whole and position < len(packed):
        raise _corrupt_records_error(
            "snappy", f"{len(packed) - position} bytes follow the last chunk"
        )


def _snappy_size(block: memoryview, max_bytes: int) -> int:
    size = 0
    for at, byte in enumerate(block[:5]):
        size |= (byte & 0x7F) << 7 * at
        if byte < 0x80:
            break
    else:
        raise _corrupt_records_error("snappy", "the size is missing or too long")
    # Snappy cannot produce more than 64 bytes from 3.
    if size > 64 * len(block):
        raise _corrupt_records_error(
            "snappy", f"{len(block)} bytes cannot decompress to {size} bytes"
        )
    if size > max_bytes:
        raise TooLargeError.of_records(max_bytes)
    return size


def _snappy_block(block: memoryview, size: int) -> bytes:
    try:
        unpacked: bytes = pa.Codec("snappy").decompress(pa.py_buffer(block), size, asbytes=True)
    except (OSError, pa.ArrowInvalid) as error:
        raise _corrupt_records_error("snappy", str(error)) from error
    return unpacked


def read_lz4(packed: memoryview, *, ignore_header_checksum: bool) -> Chunks:
    """Decompress an lz4 frame, one block at a time."""
    if len(packed) < _LZ4_MIN_HEADER_BYTES or packed[: len(_LZ4_MAGIC)] != _LZ4_MAGIC:
        raise _corrupt_records_error("lz4", "the frame header is missing")
    flags, block_descriptor = packed[4], packed[5]
    if flags & _LZ4_FIXED_MASK != _LZ4_FIXED_FLAGS:
        raise _corrupt_records_error("lz4", f"the flags 0x{flags:02x} are not supported")
    if block_descriptor & 0x8F or block_descriptor < 0x40:
        raise _corrupt_records_error(
            "lz4", f"the block descriptor 0x{block_descriptor:02x} is invalid"
        )
    end = _LZ4_MIN_HEADER_BYTES + (8 if flags & _LZ4_CONTENT_SIZE else 0)
    if end >= len(packed):
        raise _corrupt_records_error("lz4", "the frame header is truncated")
    if not ignore_header_checksum and packed[end] != _header_checksum(bytes(packed[4:end])):
        raise _corrupt_records_error("lz4", "the frame header has a wrong checksum")
    return _read_lz4_chunks(packed, end + 1, flags, block_descriptor)


def _read_lz4_chunks(
    packed: memoryview, position: int, flags: int, block_descriptor: int
) -> Chunks:
    # Each block is decompressed as a frame of its own, since Kafka ignores the content checksum and
    # everything after the end mark.
    checksum_bytes = _INT32_BYTES if flags & _LZ4_BLOCK_CHECKSUM else 0
    descriptor = bytes((_LZ4_FIXED_FLAGS | flags & _LZ4_BLOCK_CHECKSUM, block_descriptor))
    header = _LZ4_MAGIC + descriptor + bytes((_header_checksum(descriptor),))
    while True:
        size = int.from_bytes(packed[position : position + _INT32_BYTES], "little")
        start = position
        position += _INT32_BYTES
        if position > len(packed):
            raise _corrupt_records_error("lz4", "the end mark is missing")
        if size & ~_LZ4_STORED == 0:
            if flags & _LZ4_CONTENT_CHECKSUM and position + _INT32_BYTES > len(packed):
                raise _corrupt_records_error("lz4", "the content checksum is missing")
            return
        if size & ~_LZ4_STORED > _LZ4_MAX_BLOCK_BYTES:
            raise _corrupt_records_error("lz4", "a block is too large")
        position += (size & ~_LZ4_STORED) + checksum_bytes
        if position > len(packed):
            raise _corrupt_records_error("lz4", "a block is truncated")
        yield from _read_arrow_chunks(header + packed[start:position] + bytes(_INT32_BYTES), "lz4")


def _header_checksum(descriptor: bytes) -> int:
    """Return the second byte of the xxHash32 of fewer than 16 bytes."""
    value = _XX_5 + len(descriptor)
    words = len(descriptor) // _INT32_BYTES * _INT32_BYTES
    for at in range(0, words, _INT32_BYTES):
        word = int.from_bytes(descriptor[at : at + _INT32_BYTES], "little")
        value = _rotate_left(value + word * _XX_3, 17) * _XX_4
    for byte in descriptor[words:]:
        value = _rotate_left(value + byte * _XX_5, 11) * _XX_1
    value &= _UINT32
    value = (value ^ value >> 15) * _XX_2 & _UINT32
    value = (value ^ value >> 13) * _XX_3 & _UINT32
    return (value ^ value >> 16) >> 8 & 0xFF


def _rotate_left(value: int, bits: int) -> int:
    value &= _UINT32
    return (value << bits | value >> 32 - bits) & _UINT32


_GZIP, _SNAPPY, _LZ4, _ZSTD = range(1, len(COMPRESSION_NAMES))
#: Initial and second reservation for a batch; after that, the whole budget is reserved.
_RESERVATIONS = (4 * 1024 * 1024, 32 * 1024 * 1024)
#: Memory in which a thread decompresses small batches.
_SCRATCH_BYTES = _RESERVATIONS[0]


def decompress(
    codec: int, data: bytes | Bytes, *, max_bytes: int, magic: int = 2
) -> bytes | bytearray:
    """Decompress all records of a batch.

    `data` is the batch without its header, or the value of a message. `magic` is needed because lz4
    frames in v0 messages have a wrong header checksum. Raises `CorruptLogError` for an unknown
    codec or invalid data, and `TooLargeError` if the output exceeds `max_bytes`.
    """
    records: bytes | bytearray = b""
    for chunk in _open_chunks(codec, _view(data), magic, max_bytes):
        if len(records) + len(chunk) > max_bytes:
            raise TooLargeError.of_records(max_bytes)
        if not records:
            # Often there is only one chunk, which is not copied.
            records = chunk
            continue
        if isinstance(records, bytes):
            records = bytearray(records)
        records += chunk
    return records


def _view(data: bytes | Bytes) -> memoryview:
    return memoryview(data) if isinstance(data, bytes) else data.data


def _open_chunks(codec: int, packed: memoryview, magic: int, max_bytes: int) -> Chunks:
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
        self._lock, self._changed = lock_and_condition()
        self._waiting: deque[object] = deque()

    @property
    def free_bytes(self) -> int:
        """Bytes that no thread has reserved."""
        return self._free

    def decompress(self, codec: int, data: bytes | Bytes, *, magic: int = 2) -> DecompressedRecords:
        """Decompress records within the budget; parameters and errors as in `decompress`.

        Waits until other threads release enough memory. The calling thread must not hold reserved
        memory.
        """
        limits = [limit for limit in _RESERVATIONS if limit < self.max_bytes]
        for limit in limits:
            try:
                return self._decompress(codec, data, magic, limit)
            except TooLargeError:
                continue
        return self._decompress(codec, data, magic, self.max_bytes)

    def _decompress(
        self, codec: int, data: bytes | Bytes, magic: int, limit: int
    ) -> DecompressedRecords:
        self._acquire(limit)
        used_bytes = 0
        try:
            records: bytes | bytearray | None = None
            if limit <= _SCRATCH_BYTES and magic >= MAGIC_RECORD_BATCH:
                try:
                    records = _thread_scratch().decompress(codec, data, limit)
                except TooLargeError:
                    # With the whole budget, `decompress` below decides whether the data is corrupt
                    # or too large.
                    if limit < self.max_bytes:
                        raise
            if records is None:
                records = decompress(codec, data, magic=magic, max_bytes=limit)
            used_bytes = len(records)
        finally:
            self.release(limit - used_bytes)
        return DecompressedRecords(np.frombuffer(records, np.uint8), self)

    @contextlib.contextmanager
    def reserve(self, size: int) -> Iterator[None]:
        """Reserve memory during a context; the calling thread must not hold any reserved memory."""
        self._acquire(size)
        try:
            yield
        finally:
            self.release(size)

    def _acquire(self, size: int) -> None:
        ticket = object()
        with self._lock:
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
        with self._lock:
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

    def decompress(self, codec: int, data: bytes | Bytes, limit: int) -> bytes | None:
        """Decompress a v2 batch in a format supported by compiled loops; None for any other.

        Raises `TooLargeError` if the output exceeds `limit`.
        """
        packed = np.frombuffer(data, np.uint8)
        start = packed.ctypes.data
        size = self._unpack(
            codec,
            np.uint64(start),
            np.uint64(start + len(packed)),
            self._address,
            limit,
            self._contexts,
        )
        if size == UNPACK_NO_ROOM:
            raise TooLargeError.of_records(limit)
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


# A forked child gets new budgets, because the parent's reservations do not apply to it.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=shared_budget.cache_clear)
