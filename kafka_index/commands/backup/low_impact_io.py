"""Reads with low impact on a broker's disk, processors and page cache.

Pages that a read brings into the page cache are dropped after the read. Pages that were cached
before stay cached, because consumers may be reading them. All reads share a bandwidth limit.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import Self

import numpy as np
import numpy.typing as npt

from kafka_index.core.format.longs import find_ranges
from kafka_index.core.fs.local_store import fill

# ioprio_set(2), which libc does not wrap.
_IOPRIO_SET = {"x86_64": 251, "aarch64": 30}
_WHO_PROCESS, _CLASS_NONE, _CLASS_IDLE, _CLASS_SHIFT = 1, 0, 3, 13
_NICENESS = 19
# Reads wait while the token bucket is negative; a full bucket allows the bytes of this time.
_BURST_SECONDS = 0.25
_IS_RESIDENT = 1
# O_NONBLOCK, so that opening a named pipe does not block.
_READ_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
_NOATIME_FLAGS = _READ_FLAGS | getattr(os, "O_NOATIME", 0)
_FILE_BLOCK_BYTES = 1 << 16
# The size of one read, of the read-ahead, and of one step of the bandwidth limit.
_STEP_BYTES = 4 << 20


def open_noatime(path: str, *, dir_fd: int | None = None, flags: int = 0) -> int:
    """Open a file or directory for reading, without updating its access time if permitted."""
    try:
        return os.open(path, flags | _NOATIME_FLAGS, dir_fd=dir_fd)
    except PermissionError:
        return os.open(path, flags | _READ_FLAGS, dir_fd=dir_fd)


def read_noatime(path: str, *, dir_fd: int | None = None) -> tuple[bytes, os.stat_result]:
    """Return the bytes of a small file, and its `os.stat` result."""
    descriptor = open_noatime(path, dir_fd=dir_fd)
    try:
        data = b""
        while block := os.read(descriptor, _FILE_BLOCK_BYTES):
            data += block
        return data, os.fstat(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def idle_io_priority() -> Iterator[None]:
    """Give this thread, and threads that it starts, idle I/O priority and the lowest CPU priority.

    The I/O priority has no effect on platforms without I/O priorities, and with the disk scheduler
    ``none``. Afterwards the priorities are restored, if permitted.
    """
    niceness = os.getpriority(os.PRIO_PROCESS, 0)
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, _NICENESS)
    _set_io_class(_CLASS_IDLE)
    try:
        yield
    finally:
        _set_io_class(_CLASS_NONE)
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, 0, niceness)


def _set_io_class(io_class: int) -> None:
    call = _IOPRIO_SET.get(platform.machine())
    if call is not None and sys.platform == "linux":
        _libc().syscall(call, _WHO_PROCESS, 0, io_class << _CLASS_SHIFT)


class Bandwidth:
    """A token bucket for the bytes that all threads read. Without a rate, reads are not limited."""

    def __init__(
        self,
        bytes_per_second: float | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._rate = bytes_per_second
        self._clock, self._sleep = clock, sleep
        self._lock = threading.Lock()
        self._filled_at = clock()
        self._tokens = 0.0

    def spend(self, size_bytes: int) -> None:
        """Wait until this many bytes may be read."""
        if self._rate is None:
            return
        with self._lock:
            now_s = self._clock()
            gained_tokens = (now_s - self._filled_at) * self._rate
            self._tokens = (
                min(self._tokens + gained_tokens, self._rate * _BURST_SECONDS) - size_bytes
            )
            self._filled_at = now_s
            debt = -self._tokens
        if debt > 0:
            self._sleep(debt / self._rate)


class LowImpactReader:
    """Reads an open file up to an end position, in large blocks; a context manager.

    The caller closes the descriptor, and must not read from the descriptor concurrently.
    """

    def __init__(self, descriptor: int, path: str, end_bytes: int, bandwidth: Bandwidth) -> None:
        self._descriptor = descriptor
        self._path = path
        self._end_bytes = end_bytes
        self._bandwidth = bandwidth

    def __enter__(self) -> Self:
        # Disable read-ahead by the kernel, so that only pages of this reader become resident.
        self._advise(os.POSIX_FADV_RANDOM, 0, 0)
        return self

    def __exit__(self, *_: object) -> None:
        self._advise(os.POSIX_FADV_NORMAL, 0, 0)

    def read_into(self, position_bytes: int, buffer: memoryview) -> int:
        """Fill a buffer; return the number of bytes, fewer only at the end position or end of file.

        Raises `InputError` on I/O errors.
        """
        size_bytes = max(min(len(buffer), self._end_bytes - position_bytes), 0)
        filled_bytes = 0
        step = min(size_bytes, _STEP_BYTES)
        resident_pages = _find_resident_pages(self._descriptor, position_bytes, step)
        while step:
            self._bandwidth.spend(step)
            start = position_bytes + filled_bytes
            # The kernel reads the next block ahead while the current block is copied.
            next_step = min(size_bytes - filled_bytes - step, _STEP_BYTES)
            next_resident_pages = None
            if next_step:
                next_resident_pages = _find_resident_pages(
                    self._descriptor, start + step, next_step
                )
                self._advise(os.POSIX_FADV_WILLNEED, start + step, next_step)
            read_bytes = fill(
                self._descriptor, self._path, start, buffer[filled_bytes : filled_bytes + step]
            )
            self._drop_pages(start, resident_pages)
            filled_bytes += read_bytes
            if read_bytes < step:
                self._drop_pages(start + step, next_resident_pages)
                break
            step, resident_pages = next_step, next_resident_pages
        return filled_bytes

    def _drop_pages(
        self, position_bytes: int, resident_pages: npt.NDArray[np.bool_] | None
    ) -> None:
        if resident_pages is None or resident_pages.all():
            return
        first_page = position_bytes // mmap.PAGESIZE
        for start, stop in find_ranges(~resident_pages).tolist():
            size = (stop - start) * mmap.PAGESIZE
            self._advise(os.POSIX_FADV_DONTNEED, (first_page + start) * mmap.PAGESIZE, size)

    def _advise(self, advice: int, start_bytes: int, size_bytes: int) -> None:
        # fadvise is optional: not every file system supports it.
        with suppress(OSError):
            os.posix_fadvise(self._descriptor, start_bytes, size_bytes, advice)


def _find_resident_pages(
    descriptor: int, position_bytes: int, size_bytes: int
) -> npt.NDArray[np.bool_] | None:
    """Return whether each page of a byte range is in the page cache; None if unknown.

    The kernel reports resident pages only to the owner of a file and to processes that may write
    the file. For other processes, all pages appear resident.
    """
    mapping_start = position_bytes // mmap.PAGESIZE * mmap.PAGESIZE
    size_bytes += position_bytes - mapping_start
    try:
        with mmap.mmap(
            descriptor, size_bytes, mmap.MAP_SHARED, mmap.PROT_READ, offset=mapping_start
        ) as mapped:
            array = np.frombuffer(mapped, np.uint8)
            pages = np.zeros(-(-size_bytes // mmap.PAGESIZE), np.uint8)
            address, size = ctypes.c_void_p(array.ctypes.data), ctypes.c_size_t(size_bytes)
            error_code = _libc().mincore(address, size, ctypes.c_void_p(pages.ctypes.data))
            del array
    except (OSError, ValueError, AttributeError):
        # The file is shorter now, or the platform does not support mincore.
        return None
    return None if error_code else (pages & _IS_RESIDENT).astype(np.bool_)


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
