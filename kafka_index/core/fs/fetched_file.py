"""A remote file in memory, of which only the needed ranges are fetched.

The memory has the size of the file and initially no pages. Reading a page that was not fetched
causes a page fault, which `core.kernels.sigbus_guard` records. The missing pages are fetched, and
the read is repeated. Kernels can therefore use the memory like a mapped file: a result that used a
missing byte is discarded. Ranges that are requested before a read are fetched in parallel.
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

from kafka_index.core.format.longs import Longs, find_ranges
from kafka_index.core.fs.remote_file import MAX_REQUESTS
from kafka_index.core.fs.store import Bytes, ByteSource
from kafka_index.core.kernels.sigbus_guard import SigbusGuard

#: Ranges separated by at most this gap share a request (`benchmarks/remote_lookups.py`).
MAX_GAP_BYTES = 512 << 10
#: Maximum size of a request.
MAX_REQUEST_BYTES = 8 << 20
#: Limit for the fetched pages of all files of this process; a file that is being read is not
#: evicted.
MAX_RESIDENT_BYTES = 256 << 20

_PAGE = mmap.PAGESIZE
# Bytes fetched after the first page fault of a read, doubled after each further page fault.
_FIRST_FETCH_BYTES = 32 << 10
# A range needs one or two memory mappings, and a process may have 65,530 mappings.
_MAX_RESIDENT_RANGES = 8192
_PROT_READ, _PROT_WRITE = 1, 2
_MAP_SHARED, _MAP_PRIVATE, _MAP_FIXED, _MAP_ANONYMOUS = 0x01, 0x02, 0x10, 0x20
# Linux flag of mmap: populate all pages, instead of one page fault for each page.
_MAP_POPULATE = 0x8000

_T = TypeVar("_T")


class BytesMissingError(Exception):
    """A read needs bytes that have not been fetched; `FetchedFile.complete` repeats the read."""


class _PageRequest(NamedTuple):
    start: int
    size: int
    data: Future[Bytes]


class FetchedFile:
    """A remote file as an array (`FileArray`), read by one thread at a time.

    If page faults cannot be recorded (outside 64-bit Linux), the constructor fetches the complete
    file.
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
        self._requested_pages = np.zeros(-(-self.size_bytes // _PAGE), np.bool_)
        # Requests that the next read waits for, and requests in advance for a later read.
        self._pending: deque[_PageRequest] = deque()
        self._read_ahead: deque[_PageRequest] = deque()
        self.resident_bytes = 0
        self.resident_ranges = 0
        self.array = self._reserve()
        self.address = self.array.ctypes.data

    @property
    def is_missing_bytes(self) -> bool:
        """Whether a read used bytes that had not been fetched."""
        return self._guard is not None and self._guard.faulted

    def request(self, starts: Longs, ends: Longs, *, ahead: bool = False) -> None:
        with self._lock:
            is_full = (
                self.resident_bytes > MAX_RESIDENT_BYTES
                or self.resident_ranges > _MAX_RESIDENT_RANGES
            )
            if is_full and self._depth == 0:
                self._drop_pages()
            if not ahead:
                self._pending += self._read_ahead
                self._read_ahead.clear()
            page_requests = self._request_pages(
                starts // _PAGE, -(-np.minimum(ends, self.size_bytes) // _PAGE)
            )
            (self._read_ahead if ahead else self._pending).extend(page_requests)

    def fetch(self, starts: Longs, ends: Longs) -> None:
        self.request(starts, ends)
        self._await_requests()

    def complete(self, read: Callable[[], _T]) -> _T:
        """Return the result of a read, which is repeated until all its bytes were fetched.

        Errors of `read` are ignored while bytes are missing.
        """
        with self._lock:
            if self._depth:
                self.check_faults()
            if self._depth == 0 and self._guard is not None:
                self._guard.rearm()
            self._depth += 1
            try:
                return self._read_until_complete(read)
            except BaseException:
                if self.is_missing_bytes:
                    # Pages that were missing contain zeros, so all pages are dropped.
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
            for page_requests in (self._pending, self._read_ahead):
                for page_request in page_requests:
                    page_request.data.cancel()
                page_requests.clear()
            self._drop_pages()

    def close(self) -> None:
        with self._lock:
            self.release()
            _resident_files.forget(self)
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
        if hasattr(self, "address"):
            self.close()

    def _reserve(self) -> Bytes:
        """Reserve memory of the size of the file; reads of this memory cause page faults."""
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
        position = 0
        for block in self._source.stream():
            content[position : position + len(block)] = block
            position += len(block)
        self._requested_pages[:] = True
        return content

    def _read_until_complete(self, read: Callable[[], _T]) -> _T:
        self._await_requests()
        ahead_bytes = _FIRST_FETCH_BYTES
        while True:
            try:
                result = read()
            except BytesMissingError:
                pass
            except Exception:
                # An error is meaningless if bytes were missing, because they were read as zeros.
                if not self.is_missing_bytes:
                    raise
            else:
                if not self.is_missing_bytes:
                    return result
            self._fetch_missing(ahead_bytes)
            ahead_bytes = min(2 * ahead_bytes, MAX_REQUEST_BYTES)

    def _drop_pages(self) -> None:
        """Remove the fetched pages, but not the pending requests."""
        self.resident_bytes = self.resident_ranges = 0
        if self._guard is None or self._map is None:
            return
        self._guard.drain_faults()
        self._remove_pages(0, len(self._requested_pages))
        self._requested_pages[:] = False
        for page_request in (*self._pending, *self._read_ahead):
            first_page = page_request.start // _PAGE
            self._requested_pages[first_page : first_page - (-page_request.size // _PAGE)] = True

    def _fetch_missing(self, ahead_bytes: int) -> None:
        assert self._guard is not None  # noqa: S101, for mypy: without one nothing is missing
        addresses, is_complete = self._guard.drain_faults()
        pages = np.unique((addresses - np.uint64(self.address)).astype(np.int64) // _PAGE)
        if not is_complete:
            for first_page, end_page in find_ranges(~self._requested_pages).tolist():
                self._remove_pages(first_page, end_page)
        # These pages now contain zeros, so the file is released if fetching fails.
        try:
            # The missing range may have been requested in advance for a later read.
            self._pending += self._read_ahead
            self._read_ahead.clear()
            end_pages = np.minimum(pages + ahead_bytes // _PAGE, len(self._requested_pages))
            self._pending += self._request_pages(pages, end_pages)
            self._await_requests()
        except BaseException:
            self.release()
            raise

    def _request_pages(self, first_pages: Longs, end_pages: Longs) -> list[_PageRequest]:
        """Request the pages in these ranges that have not been requested yet."""
        page_requests: list[_PageRequest] = []
        coverage_changes = np.zeros(len(self._requested_pages) + 1, np.int64)
        np.add.at(coverage_changes, first_pages, 1)
        np.add.at(coverage_changes, np.maximum(end_pages, first_pages), -1)
        is_missing = (np.cumsum(coverage_changes[:-1]) > 0) & ~self._requested_pages
        missing_ranges = find_ranges(is_missing)
        if not len(missing_ranges):
            return page_requests
        _resident_files.evict_others(self)
        for first_page, end_page in _merge_ranges(missing_ranges):
            self._requested_pages[first_page:end_page] = True
            for page in range(first_page, end_page, MAX_REQUEST_BYTES // _PAGE):
                start = page * _PAGE
                end = min(page + MAX_REQUEST_BYTES // _PAGE, end_page) * _PAGE
                size = min(end, self.size_bytes) - start
                future = requests(os.getpid()).submit(self._source.read_at, start, size)
                page_requests.append(_PageRequest(start, size, future))
        return page_requests

    def _await_requests(self) -> None:
        """Wait for the requested ranges, and copy their bytes into the array."""
        try:
            while self._pending:
                self._store_pages(self._pending[0].start, self._pending[0].data.result())
                self._pending.popleft()
        except BaseException:
            self.release()
            raise

    def _store_pages(self, start: int, data: Bytes) -> None:
        size = -(-len(data) // _PAGE) * _PAGE
        _map_fixed(
            self.address + start,
            size,
            _PROT_READ | _PROT_WRITE,
            _MAP_PRIVATE | _MAP_ANONYMOUS | _MAP_POPULATE,
        )
        ctypes.memmove(self.address + start, data.ctypes.data, len(data))
        self.resident_bytes += size
        self.resident_ranges += 1

    def _remove_pages(self, first_page: int, end_page: int) -> None:
        """Remove pages, so that reading them causes page faults again."""
        start = first_page * _PAGE
        _map_fixed(
            self.address + start,
            (end_page - first_page) * _PAGE,
            _PROT_READ,
            _MAP_SHARED,
            self._descriptor,
            start,
        )


class _ResidentFiles:
    """The files of this process that hold fetched pages, least recently read first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._files: OrderedDict[int, ref[FetchedFile]] = OrderedDict()

    def evict_others(self, file: FetchedFile) -> None:
        """Release the least recently read files while the pages of all files exceed a limit."""
        with self._lock:
            self._files[id(file)] = ref(file)
            self._files.move_to_end(id(file))
            files = [
                candidate
                for reference in self._files.values()
                if (candidate := reference()) is not None
            ]
            size = sum(candidate.resident_bytes for candidate in files)
            ranges = sum(candidate.resident_ranges for candidate in files)
            for candidate in files:
                if size <= MAX_RESIDENT_BYTES and ranges <= _MAX_RESIDENT_RANGES:
                    break
                # A file without pages may have requests, which are about to be read.
                if candidate is file or not candidate.resident_bytes:
                    continue
                # Skip a file that another thread is reading.
                if not candidate._lock.acquire(blocking=False):  # noqa: SLF001, its own
                    continue
                try:
                    size -= candidate.resident_bytes
                    ranges -= candidate.resident_ranges
                    candidate.release()
                    del self._files[id(candidate)]
                finally:
                    candidate._lock.release()  # noqa: SLF001, its own

    def forget(self, file: FetchedFile) -> None:
        with self._lock:
            self._files.pop(id(file), None)


_resident_files = _ResidentFiles()


@cache
def requests(_process: int) -> ThreadPoolExecutor:
    # A forked process does not have its parent's threads.
    return ThreadPoolExecutor(MAX_REQUESTS, thread_name_prefix="fetch")


@cache
def _load_libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    return libc


def _map_fixed(
    address: int, size: int, protection: int, flags: int, descriptor: int = -1, start: int = 0
) -> None:
    mapped_address = _load_libc().mmap(
        address, size, protection, flags | _MAP_FIXED, descriptor, start
    )
    if mapped_address != address:
        raise MemoryError(f"cannot map memory: {os.strerror(ctypes.get_errno())}")


def _merge_ranges(ranges: Longs) -> list[tuple[int, int]]:
    """Merge page ranges that are separated by at most `MAX_GAP_BYTES`."""
    gaps = np.flatnonzero((ranges[1:, 0] - ranges[:-1, 1]) * _PAGE > MAX_GAP_BYTES)
    starts = ranges[np.append(0, gaps + 1), 0]
    ends = ranges[np.append(gaps, len(ranges) - 1), 1]
    return list(zip(starts.tolist(), ends.tolist(), strict=True))
