"""Read an open file, mapped or remote, in consecutive windows or as an array.

A window of a mapped file is either read into a buffer that stays in the CPU cache, or is a view of
the memory mapping. A view saves the copy, but costs page faults. Which is faster depends on the
folio size of the file in the page cache, which the kernel does not report. On one machine, mapping
took 21 ms and reading 29 ms for a file. After the same bytes had been written in smaller units,
mapping took 84 ms and reading 38. Both methods are therefore measured from time to time, and the
faster method is used.

The windows of a remote file come from one stream. Memory holds the blocks that the stream reads
ahead, and one batch if the batch spans blocks. As an array, a remote file is fetched in the ranges
that are read (`kafka_index.core.fs.fetched_file`).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Protocol, TypeVar

import numpy as np

from kafka_index.core.errors import InputError
from kafka_index.core.format.longs import Longs
from kafka_index.core.fs.local_store import MappedFile
from kafka_index.core.fs.store import Bytes, ByteSource

#: Size of a window, which fits into the L2 cache while it is processed.
WINDOW_BYTES = 1 << 20

_TRIAL_WINDOWS = 2
_WINDOWS_BETWEEN_TRIALS = 64
_READ, _MAP = range(2)
_T = TypeVar("_T")


class FileArray(Protocol):
    """An open file as an array: mapped, or fetched in the ranges that are read.

    Every read of `array` runs in `complete` and ends with `check_faults`, because a fetched file is
    only partly in memory, and another process may truncate a mapped file.
    """

    @property
    def is_fetched(self) -> bool:
        """Whether parts of the file must be fetched before they are read."""

    @property
    def array(self) -> Bytes:
        """The bytes of the file; valid until `close`."""

    @property
    def size_bytes(self) -> int: ...

    def request(self, starts: Longs, ends: Longs, *, ahead: bool = False) -> None:
        """Start fetching ranges, end exclusive, unless already requested.

        With `ahead`, the ranges are fetched for a later read, and the next read does not wait for
        them.
        """

    def fetch(self, starts: Longs, ends: Longs) -> None:
        """Fetch ranges, end exclusive."""

    def complete(self, read: Callable[[], _T]) -> _T:
        """Return the result of a read, which is repeated until all needed bytes are fetched.

        Because `read` may be repeated, it must have no side effects. It must call `check_faults`
        before a permanent decision.
        """

    def check_faults(self) -> None:
        """Raise if zeros were read in place of missing bytes.

        `BytesMissingError` means that the bytes must be fetched, and `complete` repeats the read.
        `InputError` means that bytes of a mapped file were lost.
        """

    def close(self) -> None: ...


def array_of(file: ByteSource) -> FileArray:
    """Return an open file as an array; closing the array closes the file."""
    if isinstance(file, MappedFile):
        file.advise_random()
        # Many logs may be open, and the memory mapping does not need this descriptor.
        file.release_descriptor()
        return file
    from kafka_index.core.fs.fetched_file import FetchedFile  # noqa: PLC0415, for remote files only

    return FetchedFile(file)


class Windows(Protocol):
    """Consecutive windows of a file.

    `rest` is the file from the latest window on, for readers that continue there.
    """

    @property
    def rest(self) -> ByteSource | StreamWalk: ...

    def window(self, position_bytes: int, size_bytes: int) -> Bytes:
        """Return the window at a position, which is valid until the next call.

        Positions ascend. At the end of the file, a window is smaller.
        """

    def close(self) -> None: ...


def windows_of(file: ByteSource, start_bytes: int = 0, *, headers_only: bool = False) -> Windows:
    """Return the windows of an open file, which start at a position.

    With `headers_only`, a window of a mapped file extends to the end of the file, and few of its
    pages are read.
    """
    if not isinstance(file, MappedFile):
        return StreamWalk(file, start_bytes)
    if headers_only:
        file.advise_random()
        return MappedWindows(file)
    file.advise_sequential()
    return WindowWalk(file)


class MappedWindows:
    """Returns windows of a mapped file that extend to the end of the file."""

    def __init__(self, file: MappedFile) -> None:
        self.rest = file

    def window(self, position_bytes: int, size_bytes: int = 0) -> Bytes:  # noqa: ARG002, of others
        return self.rest.array[position_bytes:]

    def close(self) -> None: ...


class WindowWalk:
    """Returns consecutive windows of a mapped file."""

    def __init__(self, file: MappedFile, window_bytes: int = WINDOW_BYTES) -> None:
        self._file = self.rest = file
        self._window_bytes = window_bytes
        self._buffer = np.empty(min(window_bytes, file.size_bytes), np.uint8)
        self._next_methods = [_READ] * _TRIAL_WINDOWS + [_MAP] * _TRIAL_WINDOWS
        self._costs = [float("inf"), float("inf")]
        self._method = _READ
        self._returned_at = 0.0

    def window(self, position_bytes: int, size_bytes: int | None = None) -> Bytes:
        """Return the window at a position, which is valid until the next call.

        The default size is `window_bytes`; windows at the end of the file are smaller. Raises
        `InputError` if the disk fails, or the file ends before its size.
        """
        requested_bytes = min(
            size_bytes or self._window_bytes, self._file.size_bytes - position_bytes
        )
        if requested_bytes > len(self._buffer):
            # The window is one large batch: a buffer for it would have no size limit.
            return self._file.read_at(position_bytes, requested_bytes)
        now_s = time.perf_counter()
        cost = now_s - self._returned_at
        self._costs[self._method] = min(self._costs[self._method], cost)
        self._method = self._choose_method()
        self._returned_at = time.perf_counter()
        if self._method == _MAP:
            return self._file.read_at(position_bytes, requested_bytes)
        window = self._buffer[:requested_bytes]
        read_bytes = self._file.read_into(position_bytes, window)
        if read_bytes < requested_bytes:
            raise InputError(
                "the file ends early",
                path=self._file.path,
                expected=f"{self._file.size_bytes} bytes",
                found=position_bytes + read_bytes,
            )
        return window

    def close(self) -> None: ...

    def _choose_method(self) -> int:
        if not self._next_methods:
            faster_method = _READ if self._costs[_READ] <= self._costs[_MAP] else _MAP
            slower_method = _MAP if faster_method == _READ else _READ
            self._next_methods = [slower_method] * _TRIAL_WINDOWS + [
                faster_method
            ] * _WINDOWS_BETWEEN_TRIALS
            self._costs = [float("inf"), float("inf")]
        return self._next_methods.pop()


class StreamWalk:
    """Returns consecutive windows of a remote file; bytes are not requested twice.

    `window` raises the errors of the file.
    """

    def __init__(self, file: ByteSource, start_bytes: int = 0) -> None:
        self.path: str | None = file.path
        self.size_bytes = file.size_bytes
        self.read_at = file.read_at
        self._stream = file.stream(start_bytes)
        self._blocks: deque[Bytes] = deque()
        self._start_bytes = self._end_bytes = start_bytes

    @property
    def rest(self) -> StreamWalk:
        return self

    def window(self, position_bytes: int, size_bytes: int = WINDOW_BYTES) -> Bytes:
        """Return a window; its position must not precede the position of the previous window.

        The window has at least `size_bytes`, less only at the end of the file.
        """
        end_bytes = min(position_bytes + size_bytes, self.size_bytes)
        while self._end_bytes < end_bytes and self._read_block():
            self._drop_before(position_bytes)
        self._drop_before(position_bytes)
        if not self._blocks:
            return np.empty(0, np.uint8)
        offset = position_bytes - self._start_bytes
        if end_bytes <= self._start_bytes + len(self._blocks[0]):
            # Return the rest of the block without a copy.
            return self._blocks[0][offset:]
        window = np.empty(end_bytes - position_bytes, np.uint8)
        filled_bytes = 0
        for block in self._blocks:
            block_part = block[offset : offset + len(window) - filled_bytes]
            window[filled_bytes : filled_bytes + len(block_part)] = block_part
            filled_bytes += len(block_part)
            offset = 0
        return window

    def stream(self, position_bytes: int) -> Iterator[Bytes]:
        """Yield the bytes from a position on; the position must not precede the latest window."""
        while position_bytes < self.size_bytes:
            window = self.window(position_bytes, 1)
            yield window
            position_bytes += len(window)

    def close(self) -> None:
        """Close the stream and stop reading ahead."""
        self._blocks.clear()
        self._stream = iter(())

    def _read_block(self) -> bool:
        block = next(self._stream, None)
        if block is None:
            return False
        self._blocks.append(block)
        self._end_bytes += len(block)
        return True

    def _drop_before(self, position_bytes: int) -> None:
        while self._blocks and self._start_bytes + len(self._blocks[0]) <= position_bytes:
            self._start_bytes += len(self._blocks.popleft())
