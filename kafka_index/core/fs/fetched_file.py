"""A remote file in memory, of which only the needed ranges are fetched.

The memory has the size of the file and initially no pages. Reading a page that was not fetched
causes a page fault, which `core.kernels.sigbus_guard` records. The missing pages are fetched and
the read is repeated. So kernels use it like a mapped file, and a result that used a missing byte is
discarded. Ranges that are known in advance are fetched in advance, in parallel.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from typing import ClassVar, NamedTuple, TypeVar
from weakref import ref

import numpy as np
from numpy.typing import NDArray

from kafka_index.core.format.longs import Longs
from kafka_index.core.fs.remote_file import MAX_REQUESTS
from kafka_index.core.fs.store import Bytes, ByteSource
from kafka_index.core.kernels.sigbus_guard import SigbusGuard

#: Ranges with at most this gap are fetched together (`benchmarks/remote_lookups.py`).
MAX_GAP_BYTES = 512 << 10
#: Maximum size of a request.
MAX_PIECE_BYTES = 8 << 20
#: Maximum memory of all files of this process that are not being read.
MAX_KEPT_BYTES = 256 << 20

_PAGE = mmap.PAGESIZE
# Bytes fetched after the first page fault of a read; doubled after each further one.
_FIRST_AHEAD_BYTES = 32 << 10
# Each needs one or two memory mappings, and a process may have 65,530.
_MAX_KEPT_RUNS = 8192
_PROT_READ, _PROT_WRITE = 1, 2
_MAP_SHARED, _MAP_PRIVATE, _MAP_FIXED, _MAP_ANONYMOUS = 0x01, 0x02, 0x10, 0x20
# Linux flag: map all pages at once, instead of one page fault each.
_MAP_POPULATE = 0x8000

_T = TypeVar("_T")


class BytesMissingError(Exception):
    """A read needs bytes that have not been fetched; `FetchedFile.complete` repeats it."""


class _Requested(NamedTuple):
    start: int
    size: int
    data: Future[Bytes]


class FetchedFile:
    """A remote file as an array (`FileArray`), read by one thread at a time.

    If pages cannot be guarded (outside 64-bit Linux), the file is fetched completely on first use.
    """

    is_fetched: ClassVar[bool] = True

    def __init__(self, source: ByteSource) -> None:
        self.path = source.path
        self.size_bytes = source.size_bytes
        self._source = source
        self._lock = threading.RLock()
        self._depth = 0
        self._map: mmap.mmap | None = None
        self._descriptor = -1
        self._guard: SigbusGuard | None = None
        self._wanted = np.zeros(-(-self.size_bytes // _PAGE), np.bool_)
        # Requests for the next read, and for the read after it.
        self._pending: deque[_Requested] = deque()
        self._ahead: deque[_Requested] = deque()
        self.kept_bytes = 0
        self.kept_runs = 0
        self.array = self._reserve()
        self.address = self.array.ctypes.data

    @property
    def is_missing_bytes(self) -> bool:
        """Whether a read used bytes that had not been fetched."""
        return self._guard is not None and self._guard.faulted

    def request(self, starts: Longs, ends: Longs, *, ahead: bool = False) -> None:
        with self._lock:
            is_full = self.kept_bytes > MAX_KEPT_BYTES or self.kept_runs > _MAX_KEPT_RUNS
            if is_full and self._depth == 0:
                self._drop_arrived()
            if not ahead:
                self._pending += self._ahead
                self._ahead.clear()
            requested = self._request_pages(
                starts // _PAGE, -(-np.minimum(ends, self.size_bytes) // _PAGE)
            )
            (self._ahead if ahead else self._pending).extend(requested)

    def fetch(self, starts: Longs, ends: Longs) -> None:
        self.request(starts, ends)
        self._arrive()

    def complete(self, read: Callable[[], _T]) -> _T:
        """Return the result of a read, which is repeated until all its bytes were fetched.

        Its errors are ignored while bytes are missing.
        """
        with self._lock:
            if self._depth:
                self.check_faults()
            if self._depth == 0 and self._guard is not None:
                self._guard.rearm()
            self._depth += 1
            try:
                return self._complete(read)
            except BaseException:
                if self.is_missing_bytes:
                    # Lost bytes were read as zeros.
                    self.release()
                raise
            finally:
                self._depth -= 1

    def check_faults(self) -> None:
        """Raise `BytesMissingError` if a read used bytes that had not been fetched."""
        if self.is_missing_bytes:
            raise BytesMissingError

    def release(self) -> None:
        with self._lock:
            for requested in (self._pending, self._ahead):
                for each in requested:
                    each.data.cancel()
                requested.clear()
            self._drop_arrived()

    def close(self) -> None:
        with self._lock:
            self.release()
            _kept.forget(self)
            self.array = np.empty(0, np.uint8)
            if self._guard is not None:
                self._guard.release()
                self._guard = None
            if self._map is not None:
                # A BufferError means that a view still exists; its deletion frees the memory.
                with contextlib.suppress(BufferError):
                    self._map.close()
                self._map = None
            if self._descriptor >= 0:
                os.close(self._descriptor)
                self._descriptor = -1
            self._source.close()

    def __del__(self) -> None:
        """Close it."""
        if hasattr(self, "address"):
            self.close()

    def _reserve(self) -> Bytes:
        """Reserve memory of the size of the file that faults when it is read."""
        if not self.size_bytes:
            return np.empty(0, np.uint8)
        if hasattr(os, "memfd_create"):
            self._descriptor = os.memfd_create("kafka-index", os.MFD_CLOEXEC)
            os.ftruncate(self._descriptor, self.size_bytes)
            self._map = mmap.mmap(self._descriptor, self.size_bytes, access=mmap.ACCESS_READ)
            # Pages after the end of a file fault, because they have no content.
            os.ftruncate(self._descriptor, 0)
            array = np.frombuffer(self._map, np.uint8)
            self._guard = SigbusGuard(array.ctypes.data, self.size_bytes)
            if self._guard.is_active:
                return array
            self._guard = None
        content = np.empty(self.size_bytes, np.uint8)
        at = 0
        for block in self._source.stream():
            content[at : at + len(block)] = block
            at += len(block)
        self._wanted[:] = True
        return content

    def _complete(self, read: Callable[[], _T]) -> _T:
        self._arrive()
        ahead = _FIRST_AHEAD_BYTES
        while True:
            try:
                found = read()
            except BytesMissingError:
                pass
            except Exception:
                # Missing bytes were read as zeros, so this error is meaningless.
                if not self.is_missing_bytes:
                    raise
            else:
                if not self.is_missing_bytes:
                    return found
            self._fetch_missing(ahead)
            ahead = min(2 * ahead, MAX_PIECE_BYTES)

    def _drop_arrived(self) -> None:
        """Remove the ranges that have arrived; keep the pending ones."""
        self.kept_bytes = self.kept_runs = 0
        if self._guard is None or self._map is None:
            return
        self._guard.drain_faults()
        self._empty(0, len(self._wanted))
        self._wanted[:] = False
        for each in (*self._pending, *self._ahead):
            first = each.start // _PAGE
            self._wanted[first : first - (-each.size // _PAGE)] = True

    def _fetch_missing(self, ahead_bytes: int) -> None:
        assert self._guard is not None  # noqa: S101, for mypy: without one nothing is missing
        addresses, are_all = self._guard.drain_faults()
        pages = np.unique((addresses - np.uint64(self.address)).astype(np.int64) // _PAGE)
        if not are_all:
            for first, end in _runs(~self._wanted).tolist():
                self._empty(first, end)
        # These pages now contain zeros: fetch them, or release the file.
        try:
            # The range may have been requested in advance.
            self._pending += self._ahead
            self._ahead.clear()
            ends = np.minimum(pages + ahead_bytes // _PAGE, len(self._wanted))
            self._pending += self._request_pages(pages, ends)
            self._arrive()
        except BaseException:
            self.release()
            raise

    def _request_pages(self, firsts: Longs, ends: Longs) -> list[_Requested]:
        """Start fetching the pages of ranges that have not been requested."""
        requested: list[_Requested] = []
        steps = np.zeros(len(self._wanted) + 1, np.int64)
        np.add.at(steps, firsts, 1)
        np.add.at(steps, np.maximum(ends, firsts), -1)
        missing = (np.cumsum(steps[:-1]) > 0) & ~self._wanted
        runs = _runs(missing)
        if not len(runs):
            return requested
        _kept.evict_others(self)
        for first, end in _joined(runs):
            self._wanted[first:end] = True
            for page in range(first, end, MAX_PIECE_BYTES // _PAGE):
                start = page * _PAGE
                stop = min(page + MAX_PIECE_BYTES // _PAGE, end) * _PAGE
                size = min(stop, self.size_bytes) - start
                future = requests(os.getpid()).submit(self._source.read_at, start, size)
                requested.append(_Requested(start, size, future))
        return requested

    def _arrive(self) -> None:
        """Wait for the requested ranges, and copy them into place."""
        try:
            while self._pending:
                self._put(self._pending[0].start, self._pending[0].data.result())
                self._pending.popleft()
        except BaseException:
            self.release()
            raise

    def _put(self, start: int, data: Bytes) -> None:
        size = -(-len(data) // _PAGE) * _PAGE
        _map_fixed(
            self.address + start,
            size,
            _PROT_READ | _PROT_WRITE,
            _MAP_PRIVATE | _MAP_ANONYMOUS | _MAP_POPULATE,
        )
        ctypes.memmove(self.address + start, data.ctypes.data, len(data))
        self.kept_bytes += size
        self.kept_runs += 1

    def _empty(self, first: int, end: int) -> None:
        """Make pages fault again."""
        start = first * _PAGE
        _map_fixed(
            self.address + start,
            (end - first) * _PAGE,
            _PROT_READ,
            _MAP_SHARED,
            self._descriptor,
            start,
        )


class _Kept:
    """The files of this process that hold pages, least recently read first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._files: OrderedDict[int, ref[FetchedFile]] = OrderedDict()

    def evict_others(self, file: FetchedFile) -> None:
        """Release the least recently read files if all together exceed the limit."""
        with self._lock:
            self._files[id(file)] = ref(file)
            self._files.move_to_end(id(file))
            files = [each for known in self._files.values() if (each := known()) is not None]
            size = sum(each.kept_bytes for each in files)
            runs = sum(each.kept_runs for each in files)
            for each in files:
                if size <= MAX_KEPT_BYTES and runs <= _MAX_KEPT_RUNS:
                    break
                # Requested ranges are about to be read.
                if each is file or not each.kept_bytes:
                    continue
                # Another thread may be fetching the same range.
                if not each._lock.acquire(blocking=False):  # noqa: SLF001, its own
                    continue
                try:
                    size -= each.kept_bytes
                    runs -= each.kept_runs
                    each.release()
                    del self._files[id(each)]
                finally:
                    each._lock.release()  # noqa: SLF001, its own

    def forget(self, file: FetchedFile) -> None:
        with self._lock:
            self._files.pop(id(file), None)


_kept = _Kept()


@cache
def requests(_process: int) -> ThreadPoolExecutor:
    # A forked process does not have its parent's threads.
    return ThreadPoolExecutor(MAX_REQUESTS, thread_name_prefix="fetch")


@cache
def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    return libc


def _map_fixed(
    address: int, size: int, protection: int, flags: int, descriptor: int = -1, start: int = 0
) -> None:
    found = _libc().mmap(address, size, protection, flags | _MAP_FIXED, descriptor, start)
    if found != address:
        raise MemoryError(f"cannot map memory: {os.strerror(ctypes.get_errno())}")


def _runs(flags: NDArray[np.bool_]) -> Longs:
    """Return start and end of each group of set flags, shape (n, 2)."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], flags, [False])).astype(np.int8)))
    runs: Longs = edges.reshape(-1, 2)
    return runs


def _joined(runs: Longs) -> list[tuple[int, int]]:
    """Merge page ranges with small gaps."""
    apart = np.flatnonzero((runs[1:, 0] - runs[:-1, 1]) * _PAGE > MAX_GAP_BYTES)
    firsts = runs[np.append(0, apart + 1), 0]
    ends = runs[np.append(apart, len(runs) - 1), 1]
    return list(zip(firsts.tolist(), ends.tolist(), strict=True))
