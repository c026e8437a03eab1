"""A remote file that is open for reading: read-ahead for streams, joined requests for ranges.

`MAX_REQUESTS` reads of a process are under way at a time, whatever the number of files and threads.
A stream holds `STREAM_PIECES` pieces of `PIECE_BYTES` at most, the caller's included: 32 MiB.
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

#: Reads of pieces and ranges that a process has under way at a time.
MAX_REQUESTS = 16
#: Held by each of them.
request_slots = BoundedSemaphore(MAX_REQUESTS)
#: Bytes of one request of a stream.
PIECE_BYTES = 8 << 20
#: Pieces that a stream holds.
STREAM_PIECES = 4
#: Ranges with a gap of at most this are read by one request, measured in docs/benchmarks-dumps.md.
MAX_GAP_BYTES = 256 << 10

ReadAt = Callable[[int, int], Bytes]


def stream(read_at: ReadAt, start_bytes: int, end_bytes: int) -> Iterator[Bytes]:
    """Yield the bytes of a range in pieces, with the next ones on their way.

    `read_at` is called in other threads, and returns exactly the bytes between two positions, or
    raises.
    """
    return read_ahead(
        (partial(read_at, position, size), size)
        for position in range(start_bytes, end_bytes, PIECE_BYTES)
        for size in (min(PIECE_BYTES, end_bytes - position),)
    )


def read_ahead(reads: Iterable[tuple[Callable[[], Bytes], int]]) -> Iterator[Bytes]:
    """Yield the results of reads in order, with the next ones on their way in other threads.

    Each read comes with the number of its bytes, at most `PIECE_BYTES`.
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
        while len(waiting) < MAX_REQUESTS and under_way <= (STREAM_PIECES - 2) * PIECE_BYTES:
            read, size = next(following, (None, 0))
            if read is None:
                return
            waiting.append((_requests().submit(read), size))
            under_way += size

    try:
        fill()
        while waiting:
            future, size = waiting.popleft()
            piece = future.result()
            under_way -= size
            fill()
            yield piece
            del piece, future  # else it would be held while the next one is waited for
    finally:
        for future, _ in waiting:
            future.cancel()


def read_ranges(read_at: ReadAt, starts: Sequence[int], ends: Sequence[int]) -> list[Bytes]:
    """Return the bytes of ranges; ranges that are close to each other share a request.

    The starts ascend, the ends are exclusive, and ranges may overlap; `read_at` is as for `stream`.
    """
    joined = join_ranges(starts, ends)
    wholes = _fetch(read_at, joined)
    places = np.searchsorted([start for start, _ in joined], starts, "right") - 1
    return [
        wholes[place][start - joined[place][0] : end - joined[place][0]]
        for start, end, place in zip(starts, ends, places.tolist(), strict=True)
    ]


def _fetch(read_at: ReadAt, joined: Sequence[tuple[int, int]]) -> list[Bytes]:
    """Return the bytes of ranges, large ones put together from pieces."""
    wholes: list[Bytes] = [
        np.empty(end - start if end - start > PIECE_BYTES else 0, np.uint8) for start, end in joined
    ]

    def fetch(piece: tuple[int, int]) -> None:
        number, at = piece
        start, end = joined[number]
        found = read_at(at, min(PIECE_BYTES, end - at))
        if len(found) == end - start:
            wholes[number] = found
        else:
            wholes[number][at - start : at - start + len(found)] = found

    pieces = [
        (number, at)
        for number, (start, end) in enumerate(joined)
        for at in range(start, end, PIECE_BYTES)
    ]
    if len(pieces) == 1:
        fetch(pieces[0])
    else:
        list(_requests().map(fetch, pieces))
    return wholes


def join_ranges(starts: Sequence[int], ends: Sequence[int]) -> list[tuple[int, int]]:
    """Return the ranges to request: those with a gap of at most `MAX_GAP_BYTES` are joined.

    Raises `ValueError` if the starts do not ascend, or an end is before its start.
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
    """A remote file that is open for reading, in the version that it had when it was opened."""

    #: What errors call it.
    _NOUN: ClassVar[str]
    #: The error of an answer that has another length than was asked for.
    _WRONG_LENGTH: ClassVar[str]

    def __init__(self, info: FileInfo) -> None:
        self._info = info
        self.path, self.size_bytes, self.mtime_ns = info.path, info.size_bytes, info.mtime_ns

    def read_at(self, position_bytes: int, size_bytes: int) -> Bytes:
        """Return up to `size_bytes` bytes, fewer only at the end; by several requests if many."""
        if position_bytes < 0 or size_bytes < 0:
            raise ValueError(f"negative position or size: {position_bytes}, {size_bytes}")
        wanted = min(size_bytes, self.size_bytes - position_bytes)
        if wanted <= 0:
            return np.empty(0, np.uint8)
        if wanted > PIECE_BYTES:
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
        """Return the bytes of ascending ranges."""
        return read_ranges(self.read_at, starts, ends)

    def stream(self, start_bytes: int = 0) -> Iterator[Bytes]:
        """Yield the bytes from a position on, a few pieces ahead of the caller."""
        return stream(self.read_at, start_bytes, self.size_bytes)

    @abstractmethod
    def changed(self) -> str | None:
        """Return how the file differs from the one opened; None when it does not."""

    def close(self) -> None:  # noqa: B027, because there is nothing to do
        """Do nothing: connections belong to the store."""

    @abstractmethod
    def _request(self, position_bytes: int, size_bytes: int) -> bytes | memoryview:
        """Request bytes that the file has; hold one of `request_slots` meanwhile."""

    def _changed_error(self, how: str, position_bytes: int) -> ReadError:
        return ReadError(
            f"the {self._NOUN} changed while it was read: {how}",
            path=self.path,
            position_bytes=position_bytes,
            hint="run again when nothing writes to it",
        )
