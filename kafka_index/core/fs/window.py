"""Sequential reading of a file in windows, for mapped and for remote files.

A window of a mapped file is either read into a buffer that stays in the CPU cache, or is a view of
the map. A view saves the copy, but costs page faults. Which is faster depends on the folio size of
the file in the page cache, which the kernel does not report. On one machine, mapping took 21 ms and
reading 29 ms for a file. After the same bytes had been written in smaller units, mapping took 84 ms
and reading 38. So both are measured from time to time, and the faster one is used.

A remote file is one stream. Memory holds the blocks that the stream reads ahead, and one batch if
it spans blocks.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator

import numpy as np

from kafka_index.core.errors import InputError
from kafka_index.core.fs.local_store import MappedFile
from kafka_index.core.fs.store import Bytes, ByteSource

#: Size of a window, which fits into the L2 cache while it is processed.
WINDOW_BYTES = 1 << 20

_TRIAL_WINDOWS = 2
_WINDOWS_BETWEEN_TRIALS = 64
_READ, _MAP = range(2)


class WindowWalk:
    """Returns consecutive windows of a mapped file."""

    def __init__(self, file: MappedFile, window_bytes: int = WINDOW_BYTES) -> None:
        self._file = file
        self._window_bytes = window_bytes
        self._buffer = np.empty(min(window_bytes, file.size_bytes), np.uint8)
        self._ways = [_READ] * _TRIAL_WINDOWS + [_MAP] * _TRIAL_WINDOWS
        self._costs = [float("inf"), float("inf")]
        self._way = _READ
        self._handed_out_at = 0.0

    def window(self, position_bytes: int, size_bytes: int | None = None) -> Bytes:
        """Return the window at a position; it is valid until the next call.

        The default size is `window_bytes`; at the end of the file it is smaller. Raises
        `InputError` if the disk fails, or the file ends before its size.
        """
        wanted = min(size_bytes or self._window_bytes, self._file.size_bytes - position_bytes)
        if wanted > len(self._buffer):
            # The window is one large batch, for which a buffer would have no size limit.
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
    """Returns consecutive windows of a remote file.

    `window` raises the errors of the file.
    """

    def __init__(self, file: ByteSource, start_bytes: int = 0) -> None:
        self._size_bytes = file.size_bytes
        self._stream = file.stream(start_bytes)
        self._pieces: deque[Bytes] = deque()
        self._start_bytes = self._end_bytes = start_bytes

    def window(self, position_bytes: int, size_bytes: int = WINDOW_BYTES) -> Bytes:
        """Return a window; its position must not precede that of the previous window.

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
            # The rest of a block, without a copy.
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
        while position_bytes < self._size_bytes:
            window = self.window(position_bytes, 1)
            yield window
            position_bytes += len(window)

    def close(self) -> None:
        """Close the stream and stop reading ahead."""
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
