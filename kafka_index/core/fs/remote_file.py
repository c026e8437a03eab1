"""A remote file open for reading: read-ahead for streams, merged requests for ranges.

A process has at most `MAX_REQUESTS` reads in flight, whatever the number of files and threads. A
stream holds at most `STREAM_BLOCKS` blocks of `BLOCK_BYTES`, including the block that the caller
processes: 32 MiB.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache, partial
from itertools import chain, islice
from threading import BoundedSemaphore
from typing import ClassVar

import numpy as np

from kafka_index.core.errors import ReadError
from kafka_index.core.fs.store import Bytes, FileInfo

#: Maximum number of concurrent read requests of a process.
MAX_REQUESTS = 16
#: Each request acquires this semaphore.
request_slots = BoundedSemaphore(MAX_REQUESTS)
#: Bytes per request of a stream.
BLOCK_BYTES = 8 << 20
#: Maximum number of blocks that a stream holds.
STREAM_BLOCKS = 4
#: Ranges separated by at most this gap share a request; measured in docs/benchmarks-dumps.md.
MAX_GAP_BYTES = 256 << 10

ReadAt = Callable[[int, int], Bytes]


def stream(read_at: ReadAt, start_bytes: int, end_bytes: int) -> Iterator[Bytes]:
    """Yield the bytes of a range in blocks, reading ahead.

    `read_at` is called with a position and a size, in other threads. It returns exactly as many
    bytes, or raises.
    """
    return read_ahead(
        (partial(read_at, position, size), size)
        for position in range(start_bytes, end_bytes, BLOCK_BYTES)
        for size in (min(BLOCK_BYTES, end_bytes - position),)
    )


def read_ahead(reads: Iterable[tuple[Callable[[], Bytes], int]]) -> Iterator[Bytes]:
    """Yield the results of reads in order, while other threads perform the next reads.

    Each read comes with its number of bytes, at most `BLOCK_BYTES`.
    """
    remaining_reads = iter(reads)
    first_reads = list(islice(remaining_reads, 2))
    if len(first_reads) == 1:
        yield first_reads[0][0]()
        return
    all_reads = chain(first_reads, remaining_reads)
    pending_reads: deque[tuple[Future[Bytes], int]] = deque()
    pending_bytes = 0

    def fill() -> None:
        nonlocal pending_bytes
        while (
            len(pending_reads) < MAX_REQUESTS and pending_bytes <= (STREAM_BLOCKS - 2) * BLOCK_BYTES
        ):
            read, size = next(all_reads, (None, 0))
            if read is None:
                return
            pending_reads.append((_request_threads().submit(read), size))
            pending_bytes += size

    try:
        fill()
        while pending_reads:
            future, size = pending_reads.popleft()
            block = future.result()
            pending_bytes -= size
            fill()
            yield block
            # Otherwise this block would stay in memory while the generator waits for the next
            # block.
            del block, future
    finally:
        for future, _ in pending_reads:
            future.cancel()


def read_ranges(read_at: ReadAt, starts: Sequence[int], ends: Sequence[int]) -> list[Bytes]:
    """Return the bytes of ranges; nearby ranges share a request.

    Starts are ascending, ends are exclusive, and ranges may overlap. `read_at` is as in `stream`.
    """
    joined_ranges = join_ranges(starts, ends)
    buffers = _fetch_ranges(read_at, joined_ranges)
    numbers = np.searchsorted([start for start, _ in joined_ranges], starts, "right") - 1
    return [
        buffers[number][start - joined_ranges[number][0] : end - joined_ranges[number][0]]
        for start, end, number in zip(starts, ends, numbers.tolist(), strict=True)
    ]


def _fetch_ranges(read_at: ReadAt, ranges: Sequence[tuple[int, int]]) -> list[Bytes]:
    """Return the bytes of ranges; large ranges are assembled from several requests."""
    buffers: list[Bytes] = [
        np.empty(end - start if end - start > BLOCK_BYTES else 0, np.uint8) for start, end in ranges
    ]

    def fetch(block: tuple[int, int]) -> None:
        number, position = block
        start, end = ranges[number]
        data = read_at(position, min(BLOCK_BYTES, end - position))
        if len(data) == end - start:
            buffers[number] = data
        else:
            buffers[number][position - start : position - start + len(data)] = data

    blocks = [
        (number, at)
        for number, (start, end) in enumerate(ranges)
        for at in range(start, end, BLOCK_BYTES)
    ]
    if len(blocks) == 1:
        fetch(blocks[0])
    else:
        list(_request_threads().map(fetch, blocks))
    return buffers


def join_ranges(starts: Sequence[int], ends: Sequence[int]) -> list[tuple[int, int]]:
    """Merge ranges that are separated by at most `MAX_GAP_BYTES`.

    Raises `ValueError` if the starts do not ascend or an end precedes its start.
    """
    joined_ranges: list[tuple[int, int]] = []
    previous_start = 0
    for start, end in zip(starts, ends, strict=True):
        if start < previous_start or end < start:
            raise ValueError(f"ranges must ascend: {start} to {end} after {previous_start}")
        previous_start = start
        if joined_ranges and start - joined_ranges[-1][1] <= MAX_GAP_BYTES:
            joined_ranges[-1] = joined_ranges[-1][0], max(joined_ranges[-1][1], end)
        else:
            joined_ranges.append((start, end))
    return joined_ranges


@cache
def _request_threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(MAX_REQUESTS, thread_name_prefix="store")


class RemoteFile(ABC):
    """A remote file open for reading, in the version that `info` describes."""

    #: The kind of file in error messages.
    _NOUN: ClassVar[str]
    #: The error for a response of unexpected length.
    _WRONG_LENGTH: ClassVar[str]

    def __init__(self, info: FileInfo) -> None:
        self._info = info
        self.path, self.size_bytes, self.mtime_ns = info.path, info.size_bytes, info.mtime_ns

    def read_at(self, position_bytes: int, size_bytes: int) -> Bytes:
        """Return up to `size_bytes` bytes, fewer only at the end of the file."""
        if position_bytes < 0 or size_bytes < 0:
            raise ValueError(f"negative position or size: {position_bytes}, {size_bytes}")
        requested_bytes = min(size_bytes, self.size_bytes - position_bytes)
        if requested_bytes <= 0:
            return np.empty(0, np.uint8)
        if requested_bytes > BLOCK_BYTES:
            return self.read_ranges([position_bytes], [position_bytes + requested_bytes])[0]
        data: Bytes = np.frombuffer(self._request(position_bytes, requested_bytes), np.uint8)
        if len(data) != requested_bytes:
            raise ReadError(
                self._WRONG_LENGTH,
                path=self.path,
                position_bytes=position_bytes,
                expected=requested_bytes,
                found=len(data),
            )
        return data

    def read_ranges(self, starts: Sequence[int], ends: Sequence[int]) -> list[Bytes]:
        return read_ranges(self.read_at, starts, ends)

    def stream(self, start_bytes: int = 0) -> Iterator[Bytes]:
        """Yield the bytes from a position on, reading ahead."""
        return stream(self.read_at, start_bytes, self.size_bytes)

    @abstractmethod
    def changed(self) -> str | None:
        """Return how the file changed since opening, such as ``removed``; None if unchanged."""

    def close(self) -> None:  # noqa: B027, because there is nothing to do
        ...

    @abstractmethod
    def _request(self, position_bytes: int, size_bytes: int) -> bytes | memoryview:
        """Request an existing byte range while holding one of `request_slots`."""

    def _change_error(self, change: str, position_bytes: int) -> ReadError:
        return ReadError(
            f"the {self._NOUN} changed while it was read: {change}",
            path=self.path,
            position_bytes=position_bytes,
            hint=f"run again when no process writes to the {self._NOUN}",
        )
