"""Base class of the offset index and the time index: a memory-mapped file of fixed-size entries.

Source: Kafka's ``AbstractIndex``; the methods keep its names. The interface uses absolute offsets.
Only this package handles the relative offsets stored in files.
"""

from __future__ import annotations

import mmap
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from os import PathLike
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from kafka_index.core.closeable import Closeable
from kafka_index.core.errors import (
    ConfigError,
    CorruptIndexError,
    IndexFullError,
    IndexOffsetOverflowError,
    PublishError,
)
from kafka_index.core.format.records import offset_range
from kafka_index.core.index.slot_search import EntryMap, SlotSearch
from kafka_index.core.kernels.index_entries import can_convert_to_relative_offset
from kafka_index.core.kernels.search import NOT_FOUND, count_entries

#: Used instead of a path: the index exists only in memory until it is closed.
IN_MEMORY = "<memory>"

_FIRST_GROWTH_BYTES = mmap.PAGESIZE


class AbstractIndex(SlotSearch, Closeable, ABC):
    """A memory-mapped index file of one segment.

    Parameters
    ----------
    path : path
        The index file. A writable index creates it empty, with the size ``max_index_size`` rounded
        down to a multiple of the entry size. All slots of an existing file count as entries.
        `IN_MEMORY` for no file.
    base_offset : int
        Base offset of the segment, absolute.
    max_index_size : int, optional
        ``segment.index.bytes``, in bytes; required to create a file or to `reset` it.
    writable : bool
        If False, the file is opened read-only and needs no write permission (KAFKA-5104).
    growing : bool
        Start with an empty index, and extend the file with its entries up to ``max_index_size``
        instead of preallocating it.
    content : ndarray of uint8, optional
        The bytes of a file that was fetched elsewhere; no file is opened or written.

    Raises
    ------
    InputError
        The file is missing or cannot be opened for reading.
    PublishError
        The file cannot be created or resized, for example because the disk is full.
    ConfigError
        ``max_index_size`` is less than one entry.
    """

    def __init__(
        self,
        path: str | PathLike[str],
        base_offset: int,
        max_index_size: int = -1,
        *,
        writable: bool = True,
        growing: bool = False,
        content: NDArray[np.uint8] | None = None,
    ) -> None:
        in_memory = path == IN_MEMORY
        writable = writable and content is None
        mapping = EntryMap(self.layout, writable=writable, in_memory=in_memory)
        super().__init__(os.fspath(path), mapping, base_offset)
        self.max_index_size = max_index_size
        self.writable = writable
        # Serializes modifications of the index.
        self._lock = threading.RLock()
        self._max_entries = 0
        created = writable and (growing or in_memory or not os.path.exists(self.path))
        if created and max_index_size < self.entry_size:
            raise ConfigError(
                "the largest index size is less than one entry",
                path=self.path,
                expected=f"{self.entry_size} bytes or more",
                found=max_index_size,
            )
        if created:
            size = 0 if growing else self._rounded(max_index_size)
            self._mapping.open(self.path, size)
            self._max_entries = max_index_size // self.entry_size
        else:
            if content is None:
                self._mapping.open(self.path, None)
            else:
                self._mapping.open_content(content)
            self._entries = self._max_entries = self._mapping.length // self.entry_size
        self._entries_changed()

    @property
    def max_entries(self) -> int:
        """Maximum number of entries."""
        return self._max_entries

    @property
    def length(self) -> int:
        """Size of the file in bytes."""
        return self._mapping.length

    @property
    def size_in_bytes(self) -> int:
        """Size of the entries in bytes."""
        return self._entries * self.entry_size

    @property
    def is_full(self) -> bool:
        """Whether no further entry fits."""
        return self._entries >= self._max_entries

    def entry_bytes(self) -> NDArray[np.uint8]:
        """Return a copy of the stored entries."""
        with self._remap_lock.reading():
            self._check_open()
            return self._mapping.data[: self.size_in_bytes].copy()

    def can_append_offset(self, offset: int) -> bool:
        """Return whether an offset can be stored relative to the base offset."""
        return bool(can_convert_to_relative_offset(offset, self.base_offset))

    def resize(self, new_size: int) -> bool:
        """Set the size of the file, rounded down to a multiple of the entry size; keep the entries.

        Returns
        -------
        bool
            False if the file already has that size.

        Raises
        ------
        IndexFullError
            The entries would not fit. Kafka throws too, but leaves the index unmapped.
        """
        with self._lock:
            rounded = self._rounded(new_size)
            if rounded < self.size_in_bytes:
                raise IndexFullError(
                    "the entries of the index do not fit in its new size",
                    path=self.path,
                    expected=f"{self.size_in_bytes} bytes or more",
                    found=new_size,
                )
            if rounded == self._mapping.length and self._max_entries * self.entry_size == rounded:
                return False
            self._remap(rounded)
            self._max_entries = rounded // self.entry_size
            return True

    def trim_to_valid_size(self) -> None:
        """Truncate the file after the last entry."""
        with self._lock:
            if self.writable:
                self.resize(self.size_in_bytes)

    def truncate(self) -> None:
        """Remove all entries; the file keeps its size."""
        self._truncate_to_entries(0)

    def truncate_to(self, offset: int) -> None:
        """Remove the entries at and above an offset."""
        with self._lock:
            field, relative = "relative_offset", max(offset - self.base_offset, -1)
            slot = int(self.floor_slots(np.array([relative], np.int64), field)[0])
            if slot == NOT_FOUND:
                self._truncate_to_entries(0)
            else:
                exact = self._mapping.entries[field][slot] == relative
                self._truncate_to_entries(slot if exact else slot + 1)

    def reset(self) -> None:
        """Remove all entries and set the file to its maximum size."""
        with self._lock:
            self.truncate()
            self.resize(self.max_index_size)

    @abstractmethod
    def sanity_check(self) -> None:
        """Check the file without the log.

        Raises
        ------
        CorruptIndexError
            The size is not a multiple of the entry size, or the last entry is invalid.
        """

    def skip_padding(self) -> None:
        """Exclude the zero padding that a killed broker leaves at the end of the file.

        The first entry is kept: in a time index it can mean 0 ms at the base offset.
        """
        with self._lock:
            if self._entries == 1:
                return
            address = np.uint64(self._mapping.data.ctypes.data)
            self._truncate_to_entries(count_entries(address, self._entries, self.entry_size))

    def flush(self) -> None:
        """Write changed pages to the disk."""
        with self._lock:
            self._mapping.flush()

    def close_handler(self) -> None:
        """Unmap the file as it is, without trimming it."""
        with self._lock, self._remap_lock.writing():
            self._mapping.close()

    def close(self) -> None:
        """Trim a writable index and unmap it."""
        with self._lock:
            if self._mapping.is_open:
                self.trim_to_valid_size()
            self.close_handler()

    def _check_writable(self) -> None:
        if not self.writable:
            raise PublishError("the index is open for reading only", path=self.path)

    def _truncate_to_entries(self, entries: int) -> None:
        with self._lock:
            self._entries = entries
            self._entries_changed()

    @abstractmethod
    def _entries_changed(self) -> None:
        """Update the cached last entry."""

    def _check_size(self) -> None:
        if self._mapping.length % self.entry_size:
            raise CorruptIndexError(
                "the size is not a whole number of entries",
                path=self.path,
                expected=f"a multiple of {self.entry_size} bytes",
                found=f"{self._mapping.length} bytes",
            )

    def _overflow(self, offset: int) -> IndexOffsetOverflowError:
        return IndexOffsetOverflowError(
            "the offset cannot be stored relative to the base offset",
            path=self.path,
            expected=offset_range(self.base_offset),
            found=offset,
        )

    def _make_room(self, entries: int) -> None:
        """Extend a growing file for this many more entries, up to its maximum size."""
        self._check_writable()
        self._check_open()
        needed = (self._entries + entries) * self.entry_size
        largest = self._max_entries * self.entry_size
        if self._mapping.length < min(needed, largest):
            self._remap(min(largest, max(needed, 2 * self._mapping.length, _FIRST_GROWTH_BYTES)))

    def _rounded(self, size: int) -> int:
        return size - size % self.entry_size

    def _remap(self, size: int) -> None:
        self._check_writable()
        with self._remap_lock.writing():
            self._mapping.resize(self.path, size)


_Index = TypeVar("_Index", bound=AbstractIndex)


class LazyIndex(Generic[_Index]):
    """An index file that is opened on first use, and can be closed and reopened.

    Source: Kafka's ``LazyIndex``, which lets a broker start without mapping two files per segment.

    Parameters
    ----------
    load : callable
        Opens the index; `get` passes on its exceptions.
    """

    def __init__(self, load: Callable[[], _Index]) -> None:
        self._load = load
        self._index: _Index | None = None

    @property
    def is_open(self) -> bool:
        """Whether the file is currently open."""
        return self._index is not None

    @property
    def faulted(self) -> bool:
        """Whether the file was truncated while it was open."""
        return self._index is not None and self._index.faulted

    def get(self) -> _Index:
        """Return the index; open it if necessary."""
        if self._index is None:
            self._index = self._load()
        return self._index

    def close(self) -> None:
        """Unmap the file; the next `get` reopens it."""
        if self._index is not None:
            self._index.close_handler()
            self._index = None
