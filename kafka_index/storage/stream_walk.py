"""Walking a file of an object store or HDFS: one stream, read once from front to back.

In memory are the pieces that the stream reads ahead, and one batch where it spans pieces.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import numpy as np

from kafka_index.storage.window import WINDOW_BYTES
from kafka_index.stores import Bytes, ByteSource


class StreamWalk:
    """Hands out windows of a file that is not on a local disk, front to back.

    Parameters
    ----------
    file : ByteSource
        The file; its errors are raised by `window`.
    start_bytes : int
        Where to begin.
    """

    def __init__(self, file: ByteSource, start_bytes: int = 0) -> None:
        self._size_bytes = file.size_bytes
        self._stream = file.stream(start_bytes)
        self._pieces: deque[Bytes] = deque()
        self._start_bytes = self._end_bytes = start_bytes

    def window(self, position_bytes: int, size_bytes: int = WINDOW_BYTES) -> Bytes:
        """Return a window that begins at a position, not before that of the last one.

        Parameters
        ----------
        position_bytes : int
            Where to continue.
        size_bytes : int
            How much is wanted at least; the end of the file gives less.
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
