"""Walking a file window by window, from front to back: a mapped one, and one of a store.

A window of a mapped file is read into a buffer that stays in the cache, or it is a view of the map,
which saves the copy but costs a page fault every few pages. Which is faster depends on the size of
the pieces in which the page cache holds this very file, and nothing reports that: on one machine
mapping took 21 ms for a file that reading took 29 ms for, and 84 ms against 38 after the same bytes
had been written in smaller pieces. So both are tried now and then, and the faster is kept.

A file of an object store or HDFS is one stream. In memory are the pieces that the stream reads
ahead, and one batch where it spans pieces.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator

import numpy as np

from kafka_index.core.errors import InputError
from kafka_index.core.fs.local_store import MappedFile
from kafka_index.core.fs.store import Bytes, ByteSource

#: A window: it stays in the second level cache until it has been worked on.
WINDOW_BYTES = 1 << 20

_TRIAL_WINDOWS = 2
_WINDOWS_BETWEEN_TRIALS = 64
_READ, _MAP = range(2)


class WindowWalk:
    """Hands out windows of a mapped file, front to back."""

    def __init__(self, file: MappedFile, window_bytes: int = WINDOW_BYTES) -> None:
        self._file = file
        self._window_bytes = window_bytes
        self._buffer = np.empty(min(window_bytes, file.size_bytes), np.uint8)
        self._ways = [_READ] * _TRIAL_WINDOWS + [_MAP] * _TRIAL_WINDOWS
        self._costs = [float("inf"), float("inf")]
        self._way = _READ
        self._handed_out_at = 0.0

    def window(self, position_bytes: int, size_bytes: int | None = None) -> Bytes:
        """Return the window that begins at a position, good until the next one is asked for.

        The size is by default `window_bytes`; the end of the file gives less. Raises `InputError`
        if the disk fails, or the file ends before its size.
        """
        wanted = min(size_bytes or self._window_bytes, self._file.size_bytes - position_bytes)
        if wanted > len(self._buffer):
            # One large batch: memory of our own for it would have no bound.
            return self._file.read_at(position_bytes, wanted)
        now = time.perf_counter()
        cost = now - self._handed_out_at
        self._costs[self._way] = min(self._costs[self._way], cost)
        self._way = self._choose()
        self._handed_out_at = time.perf_counter()
        if self._way == _MAP:
            return self._file.read_at(position_bytes, wanted)
        window = self._buffer[:wanted]
        found = self._file.read_into(position_bytes, window)
        if found < wanted:
            raise InputError(
                "the file ends early",
                path=self._file.path,
                expected=f"{self._file.size_bytes} bytes",
                found=position_bytes + found,
            )
        return window

    def _choose(self) -> int:
        if not self._ways:
            best = _READ if self._costs[_READ] <= self._costs[_MAP] else _MAP
            other = _MAP if best == _READ else _READ
            self._ways = [other] * _TRIAL_WINDOWS + [best] * _WINDOWS_BETWEEN_TRIALS
            self._costs = [float("inf"), float("inf")]
        return self._ways.pop()


class StreamWalk:
    """Hands out windows of a file that is not on a local disk, front to back from a start.

    The errors of the file are raised by `window`.
    """

    def __init__(self, file: ByteSource, start_bytes: int = 0) -> None:
        self._size_bytes = file.size_bytes
        self._stream = file.stream(start_bytes)
        self._pieces: deque[Bytes] = deque()
        self._start_bytes = self._end_bytes = start_bytes

    def window(self, position_bytes: int, size_bytes: int = WINDOW_BYTES) -> Bytes:
        """Return a window that begins at a position, not before that of the last one.

        It has at least `size_bytes`, less only at the end of the file.
        """
        end = min(position_bytes + size_bytes, self._size_bytes)
        while self._end_bytes < end and self._read():
            self._drop_before(position_bytes)
        self._drop_before(position_bytes)
        if not self._pieces:
            return np.empty(0, np.uint8)
        at = position_bytes - self._start_bytes
        if end <= self._start_bytes + len(self._pieces[0]):
            # The rest of a piece, without a copy.
            return self._pieces[0][at:]
        window = np.empty(end - position_bytes, np.uint8)
        filled = 0
        for piece in self._pieces:
            part = piece[at : at + len(window) - filled]
            window[filled : filled + len(part)] = part
            filled += len(part)
            at = 0
        return window

    def rest(self, position_bytes: int) -> Iterator[Bytes]:
        """Yield the bytes from a position to the end in pieces."""
        while position_bytes < self._size_bytes:
            window = self.window(position_bytes, 1)
            yield window
            position_bytes += len(window)

    def close(self) -> None:
        """End the stream, and what it reads ahead."""
        self._pieces.clear()
        self._stream = iter(())

    def _read(self) -> bool:
        piece = next(self._stream, None)
        if piece is None:
            return False
        self._pieces.append(piece)
        self._end_bytes += len(piece)
        return True

    def _drop_before(self, position_bytes: int) -> None:
        while self._pieces and self._start_bytes + len(self._pieces[0]) <= position_bytes:
            self._start_bytes += len(self._pieces.popleft())
