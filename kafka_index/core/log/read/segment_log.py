"""The bytes of a ``.log`` file, which is opened on first use, and the cache of open segments."""

from __future__ import annotations

import resource
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, TypeVar
from weakref import WeakSet

import numpy as np

from kafka_index.core.contexts import Closeable
from kafka_index.core.format.longs import Longs
from kafka_index.core.fs.reading import FileArray, array_of
from kafka_index.core.fs.store import Bytes, ByteSource
from kafka_index.core.index.sparse_indexes import OffsetPosition
from kafka_index.core.log.scan.file_records import (
    LogEnd,
    batch_at,
    end_of_batches,
    open_log,
    scan_to_end,
    stop_at,
)
from kafka_index.core.logdir.partition_files import SegmentFile

if TYPE_CHECKING:
    from kafka_index.core.log.read.batch_decoder import BatchDecoder

# The ``.log`` file and both index files are memory-mapped. A mapping keeps a file descriptor open.
_FILES_PER_SEGMENT = 3
_RESERVED_FILES = 128
_MIN_SEGMENTS = 8

#: If more bytes than this follow the last index entry, the index is incomplete.
MAX_TAIL_BYTES = 16 << 20
_T = TypeVar("_T")


class SegmentCache:
    """Closes the least recently used segments if more than `max_open` are open.

    A closed segment is reopened on its next use. If all caches together would reach the process's
    limit of open files, fewer than `max_open` segments stay open, but at least one.
    """

    _all: ClassVar[WeakSet[SegmentCache]] = WeakSet()
    _lock: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, max_open: int = 256) -> None:
        if max_open < 1:
            raise ValueError(f"max_open is {max_open}, but must be at least 1")
        self._max_open = max_open
        self._open: OrderedDict[int, Closeable] = OrderedDict()
        self._on_use: Callable[[Closeable], None] | None = None
        with self._lock:
            self._all.add(self)

    def __len__(self) -> int:
        return len(self._open)

    def use(self, segment: Closeable) -> None:
        """Mark a segment as the most recently used one; close others if too many are open."""
        if id(segment) not in self._open:
            self._evict()
        self._open[id(segment)] = segment
        self._open.move_to_end(id(segment))
        if self._on_use is not None:
            # Avoid recursion: the callback may use other segments.
            on_use, self._on_use = self._on_use, None
            try:
                on_use(segment)
            finally:
                self._on_use = on_use

    @contextmanager
    def announcing(self, on_use: Callable[[Closeable], None] | None) -> Iterator[None]:
        """Call `on_use` with each segment that is about to be used in the context.

        In a nested context, the function of the outer context is called.
        """
        if on_use is None or self._on_use is not None:
            yield
            return
        self._on_use = on_use
        try:
            yield
        finally:
            self._on_use = None

    def forget(self, segment: Closeable) -> None:
        self._open.pop(id(segment), None)

    def _evict(self) -> None:
        with self._lock:
            open_in_other_caches = sum(len(cache) for cache in self._all) - len(self)
        limit = max(1, min(self._max_open, _max_segments() - open_in_other_caches))
        while len(self._open) >= limit:
            _, oldest = self._open.popitem(last=False)
            oldest.close()


def _max_segments() -> int:
    """Return the maximum number of open segments for this process."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit == resource.RLIM_INFINITY:
        limit = 1 << 20
    return max(_MIN_SEGMENTS, (limit - _RESERVED_FILES) // _FILES_PER_SEGMENT)


class SegmentLog:
    """A ``.log`` file that is opened on first use, and reopened on the next use after `close`.

    Opening fails if the file has changed since it was listed.
    """

    def __init__(
        self,
        segment: SegmentFile,
        max_decompressed_bytes: int,
        open_source: Callable[[str, SegmentFile], ByteSource] = open_log,
    ) -> None:
        self._segment = segment
        self._open_source = open_source
        self._max_decompressed_bytes = max_decompressed_bytes
        self._file: FileArray | None = None
        self._address = np.uint64(0)

    def open(self) -> FileArray:
        """Open the file if it is not open.

        Raises `InputError` if the file cannot be opened, or has changed since it was listed.
        """
        if self._file is None:
            self._file = array_of(self._open_source(self._segment.log_path, self._segment))
            self._address = np.uint64(self._file.array.ctypes.data)
        return self._file

    @property
    def is_fetched(self) -> bool:
        return self.open().is_fetched

    @property
    def array(self) -> Bytes:
        return self.open().array

    @property
    def address(self) -> np.uint64:
        """Memory address of the first byte of the log, which is valid until `close`."""
        self.open()
        return self._address

    @property
    def size_bytes(self) -> int:
        return self.open().size_bytes

    def request(self, starts: Longs, ends: Longs, *, ahead: bool = False) -> None:
        self.open().request(starts, ends, ahead=ahead)

    def fetch(self, starts: Longs, ends: Longs) -> None:
        self.open().fetch(starts, ends)

    def complete(self, read: Callable[[], _T]) -> _T:
        return self.open().complete(read)

    def batch(self, position_bytes: int) -> Bytes:
        return batch_at(self.array, position_bytes)

    @cached_property
    def decoder(self) -> BatchDecoder:
        """The record decoder of this log. Its module is imported on first use."""
        from kafka_index.core.log.read.batch_decoder import BatchDecoder  # noqa: PLC0415

        return BatchDecoder(self, self._max_decompressed_bytes)

    def first_offset_at(self, position_bytes: int) -> int:
        """Return the first offset inside a compressed v0 or v1 message.

        Raises `CorruptLogError` if the message cannot be decompressed.
        """
        return self.decoder.first_offset_at(position_bytes)

    def unreadable_reason(self, position_bytes: int) -> str:
        """Return why the batch at a position, or one of its records, cannot be read."""
        return self.complete(lambda: self._find_unreadable_reason(position_bytes))

    def scan_to_end(self, last_entry: OffsetPosition) -> LogEnd:
        """Verify the batches from the last index entry on, and return the end of the log.

        If a remote log continues long after the entry, its end is streamed instead of cached.
        """
        base_offset = self._segment.base_offset
        if self.is_fetched and self.size_bytes - last_entry.position > MAX_TAIL_BYTES:
            from kafka_index.core.log.scan.segment_scan import LogFileSource  # noqa: PLC0415

            source = LogFileSource(
                self._segment.log_path,
                listed_segment=self._segment,
                start_bytes=last_entry.position,
                recovers=False,
            )
            end = end_of_batches(source.chunks(), last_entry, base_offset)
            return replace(end, stop=source.stop)
        end = self.complete(
            lambda: scan_to_end(self.array, last_entry, base_offset, verify_crc=True)
        )
        self.check_faults()
        return end

    def check_faults(self) -> None:
        if self._file is not None:
            self._file.check_faults()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _find_unreadable_reason(self, position_bytes: int) -> str:
        stop = stop_at(self.array, position_bytes, self._segment.base_offset)
        if stop is not None:
            return stop.text
        return self.decoder.unreadable_reason(position_bytes)
