"""The offset index (``.index``, offset to position) and the time index (``.timeindex``).

Sources: Kafka's ``OffsetIndex`` and ``TimeIndex``.
"""

from __future__ import annotations

import mmap
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from os import PathLike
from typing import Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from kafka_index.core.contexts import Closeable
from kafka_index.core.errors import (
    ConfigError,
    CorruptIndexError,
    IndexFullError,
    IndexOffsetOverflowError,
    InvalidOffsetError,
    InvalidTimestampError,
    KafkaIndexError,
    PublishError,
)
from kafka_index.core.format.integers import INT32_MAX
from kafka_index.core.format.longs import Longs
from kafka_index.core.format.records import NO_TIMESTAMP, OFFSET_ENTRY, TIME_ENTRY, offset_range
from kafka_index.core.index.slot_search import EntryMap, SlotSearch
from kafka_index.core.kernels.index_entries import (
    append_offset_entries,
    append_time_entries,
    can_convert_to_relative_offset,
)
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
            size = 0 if growing else self._round_down(max_index_size)
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
        """Set the file size, rounded down to a multiple of the entry size; keep the entries.

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
            rounded = self._round_down(new_size)
            if rounded < self.size_in_bytes:
                raise IndexFullError(
                    "the entries exceed the new size of the index",
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
        """Unmap the file without trimming it."""
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

    def _grow(self, entries: int) -> None:
        """Extend a growing file by space for this many entries, up to its maximum size."""
        self._check_writable()
        self._check_open()
        required_bytes = (self._entries + entries) * self.entry_size
        max_bytes = self._max_entries * self.entry_size
        if self._mapping.length < min(required_bytes, max_bytes):
            self._remap(
                min(max_bytes, max(required_bytes, 2 * self._mapping.length, _FIRST_GROWTH_BYTES))
            )

    def _round_down(self, size: int) -> int:
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


class OffsetPosition(NamedTuple):
    """An entry: the last offset of a batch, absolute, and the position of the batch in the log."""

    offset: int
    position: int


class OffsetIndex(AbstractIndex):
    """The memory-mapped ``.index`` of one segment. For the parameters, see `AbstractIndex`."""

    layout = OFFSET_ENTRY
    key_field = "relative_offset"
    value_field = "position_bytes"
    least_step = 1
    _last_offset: int

    @property
    def last_offset(self) -> int:
        """Offset of the last entry; the base offset if there is none."""
        return self._last_offset

    def append(self, offset: int, position: int) -> None:
        """Append one entry.

        Raises
        ------
        IndexFullError
            The index is full.
        InvalidOffsetError
            The offset is not above the last one.
        IndexOffsetOverflowError
            The offset cannot be stored relative to the base offset.
        """
        self.append_many(np.array([offset], np.int64), np.array([position], np.int64))

    def append_many(self, offsets: Longs, positions: Longs) -> None:
        """Append entries in order; raise the error of the first one that `append` rejects.

        Parameters
        ----------
        offsets, positions : ndarray of int64, shape (n,)
            Absolute offsets, and byte positions in the log.
        """
        _, error = self.try_append_many(offsets, positions)
        if error is not None:
            raise error

    def try_append_many(
        self, offsets: Longs, positions: Longs
    ) -> tuple[int, KafkaIndexError | None]:
        """Run `append_many`, but return the number of appended entries and the next error."""
        with self._lock:
            self._grow(len(offsets))
            accepted = append_offset_entries(
                self._mapping.data,
                self._entries,
                self._max_entries,
                self.base_offset,
                self._last_offset,
                offsets,
                positions,
            )
            if accepted:
                self._entries += accepted
                self._last_offset = int(offsets[accepted - 1])
            if accepted == len(offsets):
                return accepted, None
            return accepted, self._rejection(int(offsets[accepted]))

    def lookup(self, target_offset: int) -> OffsetPosition:
        """Return the last entry at or below an offset; (base offset, 0) if there is none."""
        offsets, positions = self.lookup_many(np.array([target_offset], np.int64))
        return OffsetPosition(int(offsets[0]), int(positions[0]))

    def fetch_upper_bound_offset(
        self, fetch_offset: OffsetPosition, fetch_size: int
    ) -> OffsetPosition | None:
        """Return the first entry whose position is at or after the end of a fetch, if any."""
        target = np.array([fetch_offset.position + fetch_size], np.int64)
        slot = int(self.ceiling_slots(target, "position_bytes")[0])
        return None if slot == NOT_FOUND else self.entry(slot)

    def entry(self, slot: int) -> OffsetPosition:
        """Return the entry in a slot; raises `IndexError` if there is none."""
        offsets, positions = self.read_entries(slot, slot + 1)
        return OffsetPosition(int(offsets[0]), int(positions[0]))

    def sanity_check(self) -> None:
        """Check the size, and that the last offset is not below the base offset."""
        if self._entries and self._last_offset < self.base_offset:
            raise CorruptIndexError(
                "the last offset is below the base offset",
                path=self.path,
                position_bytes=self.size_in_bytes - self.entry_size,
                expected=f"{self.base_offset} or more",
                found=self._last_offset,
            )
        self._check_size()

    def _entries_changed(self) -> None:
        last = self.entry(self._entries - 1).offset if self._entries else self.base_offset
        self._last_offset = last

    def _rejection(self, offset: int) -> KafkaIndexError:
        if self.is_full:
            return IndexFullError(
                "the offset index is full", path=self.path, expected=f"{self._max_entries} entries"
            )
        if self._entries and offset <= self._last_offset:
            return InvalidOffsetError(
                "the offset is not above the last offset of the offset index",
                path=self.path,
                expected=f"more than {self._last_offset}",
                found=offset,
            )
        return self._overflow(offset)


class TimestampOffset(NamedTuple):
    """An entry: no record up to this offset (absolute) has a larger timestamp (ms)."""

    timestamp: int
    offset: int


class TimeIndex(AbstractIndex):
    """The memory-mapped ``.timeindex`` of one segment. For the parameters, see `AbstractIndex`."""

    layout = TIME_ENTRY
    key_field = "timestamp_ms"
    value_field = "relative_offset"
    least_step = 0
    _last_entry: TimestampOffset

    @property
    def is_full(self) -> bool:
        """Whether only the slot reserved for the roll of the segment is free."""
        return self._entries >= self._max_entries - 1

    @property
    def last_entry(self) -> TimestampOffset:
        """The last entry; (-1, base offset) if there is none."""
        return self._last_entry

    def maybe_append(self, timestamp: int, offset: int, *, skip_full_check: bool = False) -> None:
        """Append one entry, unless its timestamp equals the last one.

        Parameters
        ----------
        timestamp : int
            In ms.
        offset : int
            Absolute.
        skip_full_check : bool
            Use the slot that is reserved for the roll.

        Raises
        ------
        IndexFullError
            The index is full; raised even if nothing would be appended.
        InvalidOffsetError, InvalidTimestampError
            The offset or timestamp is below the last entry's.
        IndexOffsetOverflowError
            The offset cannot be stored relative to the base offset.
        """
        self.maybe_append_many(
            np.array([timestamp], np.int64),
            np.array([offset], np.int64),
            skip_full_check=skip_full_check,
        )

    def maybe_append_many(
        self, timestamps: Longs, offsets: Longs, *, skip_full_check: bool = False
    ) -> None:
        """Run `maybe_append` in order; raise the error of the first entry that is rejected.

        Parameters
        ----------
        timestamps, offsets : ndarray of int64, shape (n,)
            In ms, and absolute.
        skip_full_check : bool
            As in `maybe_append`.
        """
        _, error = self.try_maybe_append_many(timestamps, offsets, skip_full_check=skip_full_check)
        if error is not None:
            raise error

    def try_maybe_append_many(
        self, timestamps: Longs, offsets: Longs, *, skip_full_check: bool = False
    ) -> tuple[int, KafkaIndexError | None]:
        """Run `maybe_append_many`, but return the number of accepted entries and the next error."""
        with self._lock:
            full_entries = INT32_MAX if skip_full_check else self._max_entries - 1
            self._grow(len(offsets))
            accepted, self._entries, last_row = append_time_entries(
                self._mapping.data,
                self._entries,
                self._max_entries,
                full_entries,
                self.base_offset,
                *self._last_entry,
                timestamps,
                offsets,
            )
            if last_row >= 0:
                self._last_entry = TimestampOffset(
                    int(timestamps[last_row]), int(offsets[last_row])
                )
            if accepted == len(offsets):
                return accepted, None
            return accepted, self._rejection(
                int(timestamps[accepted]), int(offsets[accepted]), full_entries
            )

    def lookup(self, target_timestamp: int) -> TimestampOffset:
        """Return the last entry at or below a timestamp; (-1, base offset) if there is none."""
        timestamps, offsets = self.lookup_many(np.array([target_timestamp], np.int64))
        return TimestampOffset(int(timestamps[0]), int(offsets[0]))

    def entry(self, slot: int) -> TimestampOffset:
        """Return the entry in a slot; raises `IndexError` if there is none."""
        timestamps, offsets = self.read_entries(slot, slot + 1)
        return TimestampOffset(int(timestamps[0]), int(offsets[0]))

    def sanity_check(self) -> None:
        """Check the size, and compare the last entry with the first and the base offset."""
        last = self._last_entry
        if self._entries and last.timestamp < self.entry(0).timestamp:
            raise CorruptIndexError(
                "the last timestamp is below the first timestamp",
                path=self.path,
                position_bytes=self.size_in_bytes - self.entry_size,
                expected=f"{self.entry(0).timestamp} or more",
                found=last.timestamp,
            )
        if self._entries and last.offset < self.base_offset:
            raise CorruptIndexError(
                "the last offset is below the base offset",
                path=self.path,
                position_bytes=self.size_in_bytes - self.entry_size,
                expected=f"{self.base_offset} or more",
                found=last.offset,
            )
        self._check_size()

    def _entries_changed(self) -> None:
        self._last_entry = (
            self.entry(self._entries - 1)
            if self._entries
            else TimestampOffset(NO_TIMESTAMP, self.base_offset)
        )

    def _rejection(self, timestamp: int, offset: int, full_entries: int) -> KafkaIndexError:
        """Return the error of a rejected entry; the checks have Kafka's order."""
        full = IndexFullError(
            "the time index is full", path=self.path, expected=f"{self._max_entries} entries"
        )
        if self._entries >= full_entries:
            return full
        if self._entries and offset < self._last_entry.offset:
            return InvalidOffsetError(
                "the offset is below the last offset of the time index",
                path=self.path,
                expected=f"{self._last_entry.offset} or more",
                found=offset,
            )
        if self._entries and timestamp < self._last_entry.timestamp:
            return InvalidTimestampError(
                "the timestamp is below the last timestamp of the time index",
                path=self.path,
                expected=f"{self._last_entry.timestamp} or more",
                found=timestamp,
            )
        return full if self._entries >= self._max_entries else self._overflow(offset)
