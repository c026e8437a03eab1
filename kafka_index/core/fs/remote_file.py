"""A remote file open for reading: read-ahead for streams, merged requests for ranges.

A process has at most `MAX_REQUESTS` reads in flight, whatever the number of files and threads. A
stream holds at most `STREAM_BLOCKS` blocks of `BLOCK_BYTES`, including the caller's: 32 MiB.
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
#: Acquired by each request.
request_slots = BoundedSemaphore(MAX_REQUESTS)
#: Bytes per request of a stream.
BLOCK_BYTES = 8 << 20
#: Blocks that a stream holds.
STREAM_BLOCKS = 4
#: Ranges separated by at most this gap share a request; measured in docs/benchmarks-dumps.md.
MAX_GAP_BYTES = 256 << 10

ReadAt = Callable[[int, int], Bytes]


def stream(read_at: ReadAt, start_bytes: int, end_bytes: int) -> Iterator[Bytes]:
    """Yield the bytes of a range in blocks, reading ahead.

    `read_at` is called in other threads. It returns exactly the bytes between two positions, or
    raises.
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
    rest = iter(reads)
    first = list(islice(rest, 2))
    if len(first) == 1:
        yield first[0][0]()
        return
    following = chain(first, rest)
    waiting: deque[tuple[Future[Bytes], int]] = deque()
    under_way = 0

    def fill() -> None:
        nonlocal under_way
        while len(waiting) < MAX_REQUESTS and under_way <= (STREAM_BLOCKS - 2) * BLOCK_BYTES:
            read, size = next(following, (None, 0))
            if read is None:
                return
            waiting.append((_requests().submit(read), size))
            under_way += size

    try:
        fill()
        while waiting:
            future, size = waiting.popleft()
            block = future.result()
            under_way -= size
            fill()
            yield block
            # Otherwise this block would stay in memory while waiting for the next.
            del block, future
    finally:
        for future, _ in waiting:
            future.cancel()


def read_ranges(read_at: ReadAt, starts: Sequence[int], ends: Sequence[int]) -> list[Bytes]:
    """Return the bytes of ranges; nearby ranges share a request.

    Starts are ascending, ends are exclusive, and ranges may overlap. `read_at` is as in `stream`.
    """
    joined = join_ranges(starts, ends)
    buffers = _fetch(read_at, joined)
    numbers = np.searchsorted([start for start, _ in joined], starts, "right") - 1
    return [
        buffers[number][start - joined[number][0] : end - joined[number][0]]
        for start, end, number in zip(starts, ends, numbers.tolist(), strict=True)
    ]


def _fetch(read_at: ReadAt, joined: Sequence[tuple[int, int]]) -> list[Bytes]:
    """Return the bytes of ranges; large ranges are assembled from several requests."""
    buffers: list[Bytes] = [
        np.empty(end - start if end - start > BLOCK_BYTES else 0, np.uint8) for start, end in joined
    ]

    def fetch(block: tuple[int, int]) -> None:
        number, at = block
        start, end = joined[number]
        found = read_at(at, min(BLOCK_BYTES, end - at))
        if len(found) == end - start:
            buffers[number] = found
        else:
            buffers[number][at - start : at - start + len(found)] = found

    blocks = [
        (number, at)
        for number, (start, end) in enumerate(joined)
        for at in range(start, end, BLOCK_BYTES)
    ]
    if len(blocks) == 1:
        fetch(blocks[0])
    else:
        list(_requests().map(fetch, blocks))
    return buffers


def join_ranges(starts: Sequence[int], ends: Sequence[int]) -> list[tuple[int, int]]:
    """Merge ranges that are separated by at most `MAX_GAP_BYTES`.

    Raises `ValueError` if the starts do not ascend or an end precedes its start.
    """
    joined: list[tuple[int, int]] = []
    last = 0
    for start, end in zip(starts, ends, strict=True):
        if start < last or end < start:
            raise ValueError(f"not an ascending range: {start} to {end} after {last}")
        last = start
        if joined and start - joined[-1][1] <= MAX_GAP_BYTES:
            joined[-1] = joined[-1][0], max(joined[-1][1], end)
        else:
            joined.append((start, end))
    return joined


@cache
def _requests() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(MAX_REQUESTS, thread_name_prefix="store")


class RemoteFile(ABC):
    """A remote file open for reading, in the version that it had when it was opened."""

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
        wanted = min(size_bytes, self.size_bytes - position_bytes)
        if wanted <= 0:
            return np.empty(0, np.uint8)
        if wanted > BLOCK_BYTES:
            return self.read_ranges([position_bytes], [position_bytes + wanted])[0]
        found: Bytes = np.frombuffer(self._request(position_bytes, wanted), np.uint8)
        if len(found) != wanted:
            raise ReadError(
                self._WRONG_LENGTH,
                path=self.path,
                position_bytes=position_bytes,
                expected=wanted,
                found=len(found),
            )
        return found

    def read_ranges(self, starts: Sequence[int], ends: Sequence[int]) -> list[Bytes]:
        return read_ranges(self.read_at, starts, ends)

    def stream(self, start_bytes: int = 0) -> Iterator[Bytes]:
        """Yield the bytes from a position on, reading ahead."""
        return stream(self.read_at, start_bytes, self.size_bytes)

    @abstractmethod
    def changed(self) -> str | None:
        """Return how the file changed since it was opened, None if it did not."""

    def close(self) -> None:  # noqa: B027, because there is nothing to do
        ...

    @abstractmethod
    def _request(self, position_bytes: int, size_bytes: int) -> bytes | memoryview:
        """Request an existing byte range while holding one of `request_slots`."""

    def _changed_error(self, how: str, position_bytes: int) -> ReadError:
        return ReadError(
            f"the {self._NOUN} changed while it was read: {how}",
            path=self.path,
            position_bytes=position_bytes,
            hint="run again when nothing writes to it",
        )
