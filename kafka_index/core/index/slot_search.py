"""The mapped entries of an offset or time index, and searches in them.

Source: the lookups of Kafka's ``AbstractIndex``.
"""

from __future__ import annotations

import mmap
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from kafka_index.core.contexts import lock_and_condition
from kafka_index.core.errors import InputError, KafkaIndexError, PublishError
from kafka_index.core.format.longs import Longs
from kafka_index.core.format.records import NO_TIMESTAMP, WARM_BYTES, field_position
from kafka_index.core.fs.durable_files import publish_error
from kafka_index.core.fs.inputs import refuse_linked_out
from kafka_index.core.fs.local_store import MappedFile
from kafka_index.core.kernels.search import (
    NOT_FOUND,
    find_disorder,
    find_entries,
    find_floors,
    is_ascending,
    radix_sort,
)

_MODE = 0o644

#: With at least this many lookups, sorting them pays off.
BULK_LOOKUPS = 32
_KEY_BITS = 63
#: With at least this many targets, the tables of a radix sort pay off.
_RADIX_SORTED = 1024


class EntryMap:
    """The entries of an index as an array: a memory-mapped file or bytes in memory.

    It is initially closed. Only a `writable` file is opened for writing (KAFKA-5104).
    """

    def __init__(
        self, layout: np.dtype[np.void], *, writable: bool, in_memory: bool = False
    ) -> None:
        self._layout = layout
        self._writable = writable
        self._in_memory = in_memory
        self._map: mmap.mmap | None = None
        self._file: MappedFile | None = None
        self._clear_views()
        self.length = 0
        self.is_open = False

    def open(self, path: str, size: int | None) -> None:
        """Open and map a file; if a size is given, create the file if missing and resize it.

        Raises `InputError` if the file cannot be opened, and `PublishError` if it cannot be created
        or resized.
        """
        if self._in_memory:
            self._allocate(size or 0)
            return
        if not self._writable:
            refuse_linked_out(path)
            self._file = MappedFile(path)
            self._file.release_descriptor()
            self.open_content(self._file.array)
            return
        # O_NONBLOCK, so that opening a named pipe does not wait; named pipes are rejected below.
        flags = os.O_CLOEXEC | os.O_NONBLOCK | os.O_RDWR
        try:
            descriptor = os.open(path, flags | (os.O_CREAT if size is not None else 0), _MODE)
        except OSError as error:
            error_class: type[KafkaIndexError] = InputError if size is None else PublishError
            raise error_class(f"cannot open the index: {error.strerror}", path=path) from error
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise InputError("the index is not a regular file", path=path)
        try:
            if size is not None:
                old_size = os.fstat(descriptor).st_size
                os.ftruncate(descriptor, min(old_size, size))
                if size > old_size:
                    # Allocate blocks: writing to a sparse part of a memory mapping kills the
                    # process if the disk is full.
                    os.posix_fallocate(descriptor, 0, size)
            self.length = os.fstat(descriptor).st_size
            # An empty file cannot be mapped.
            if self.length:
                self._map = mmap.mmap(descriptor, self.length, access=mmap.ACCESS_WRITE)
                self._set_views(np.frombuffer(self._map, np.uint8))
        except OSError as error:
            raise publish_error(error, path, "allocate space for the index") from error
        finally:
            os.close(descriptor)
        self.is_open = True

    def open_content(self, content: NDArray[np.uint8]) -> None:
        """Use the bytes of a file that was read elsewhere."""
        self.length = len(content)
        self._set_views(content)
        self.is_open = True

    def resize(self, path: str, size: int) -> None:
        """Resize the file; keep the bytes before the new end and fill up with zeros."""
        if self._in_memory:
            self._allocate(size)
            return
        self.close()
        self.open(path, size)

    @property
    def faulted(self) -> bool:
        """Whether pages of a read-only file were lost, so that zeros were read instead."""
        return self._file is not None and self._file.faulted

    def flush(self) -> None:
        """Write changed pages to the disk."""
        if self._map is not None:
            self._map.flush()

    def close(self) -> None:
        """Unmap the file; no other thread may be reading."""
        self.is_open = False
        # Views first: a memory mapping that still has views cannot be closed.
        self._clear_views()
        if self._file is not None:
            self._file.close()
            self._file = None
        if self._map is not None:
            self._map.close()
            self._map = None

    def _allocate(self, size: int) -> None:
        old = self.data[:size]
        data = np.zeros(size, np.uint8)
        data[: len(old)] = old
        self.length = size
        self._set_views(data)
        self.is_open = True

    def _set_views(self, data: NDArray[np.uint8]) -> None:
        self.data = data
        entry_count = len(data) // self._layout.itemsize
        self.entries = data[: entry_count * self._layout.itemsize].view(self._layout)

    def _clear_views(self) -> None:
        self.data = np.empty(0, np.uint8)
        self.entries = np.empty(0, self._layout)


class RemapLock:
    """A read-write lock in which a waiting writer precedes new readers.

    Reading a page after the end of a truncated file kills the process (SIGBUS), and kernels read
    without the GIL. So a memory mapping is resized only while no thread reads it. Source: Kafka's
    ``remapLock``. Readers must not acquire the lock recursively.
    """

    def __init__(self) -> None:
        self._lock, self._changed = lock_and_condition()
        self._readers = 0
        self._writers_waiting = 0
        self._writing = False

    @contextmanager
    def reading(self) -> Iterator[None]:
        with self._lock:
            self._changed.wait_for(lambda: not self._writing and not self._writers_waiting)
            self._readers += 1
        try:
            yield
        finally:
            with self._lock:
                self._readers -= 1
                self._changed.notify_all()

    @contextmanager
    def writing(self) -> Iterator[None]:
        with self._lock:
            self._writers_waiting += 1
            try:
                self._changed.wait_for(lambda: not self._writing and not self._readers)
            finally:
                self._writers_waiting -= 1
            self._writing = True
        try:
            yield
        finally:
            with self._lock:
                self._writing = False
                self._changed.notify_all()


class SlotSearch:
    """The entries of an index, with searches by key.

    `path` is used in errors. Changing the memory mapping requires the remap lock.
    """

    layout: ClassVar[np.dtype[np.void]]
    #: The field that lookups search, which is the first one of an entry, and the other field.
    key_field: ClassVar[str]
    value_field: ClassVar[str]
    #: Minimum increase of the value field between entries.
    least_step: ClassVar[int]

    def __init__(self, path: str, mapping: EntryMap, base_offset: int) -> None:
        self.path = path
        self.base_offset = base_offset
        self._mapping = mapping
        # Excludes readers while the memory mapping changes.
        self._remap_lock = RemapLock()
        self._entries = 0
        # Bases added to stored keys and values; the key returned if there is no entry; and the
        # minimum target, because offsets far below the base offset would overflow to large values.
        is_by_offset = self.key_field == "relative_offset"
        self._key_base, self._value_base = (base_offset, 0) if is_by_offset else (0, base_offset)
        self._missing_key = base_offset if is_by_offset else NO_TIMESTAMP
        self._min_target = base_offset - 1 if is_by_offset else int(np.iinfo(np.int64).min)

    @property
    def entry_size(self) -> int:
        """Size of an entry in bytes."""
        return self.layout.itemsize

    @property
    def warm_entries(self) -> int:
        """Number of entries at the end that are searched first (KAFKA-6432)."""
        return WARM_BYTES // self.entry_size

    @property
    def entries(self) -> int:
        """Number of entries."""
        return self._entries

    @property
    def faulted(self) -> bool:
        """Whether the file was truncated while it was open, and zeros were read instead."""
        return self._mapping.faulted

    def find_disorder(self) -> int:
        """Return the first slot whose entry may not follow the previous one, else `NOT_FOUND`."""
        with self._remap_lock.reading():
            self._check_open()
            return find_disorder(
                np.uint64(self._mapping.data.ctypes.data),
                self._entries,
                self.entry_size,
                self.layout[self.key_field].itemsize,
                self.least_step,
            )

    def floor_slots(self, targets: Longs, field: str | None = None) -> Longs:
        """Find, for each target, the slot of the last entry at or below it.

        Targets are stored keys: timestamps in ms, or offsets relative to the base offset. They are
        compared with `field`, by default `key_field`. The slot is `core.kernels.NOT_FOUND` if all
        entries are above the target.
        """
        with self._remap_lock.reading():
            return self._find_floors(targets, field)

    def ceiling_slots(self, targets: Longs, field: str | None = None) -> Longs:
        """Find, for each target, the slot of the first entry at or above it.

        As in Kafka, the very first entry is never compared for equality. For parameters and result,
        see `floor_slots`.
        """
        with self._remap_lock.reading():
            entries = self._entries
            floors = self._find_floors(targets, field)
            keys = floors
            if entries:
                keys = self._read(self.key_field if field is None else field, np.maximum(floors, 0))
        equal = (floors > 0) & (keys == targets)
        ceilings = np.where(equal, floors, floors + 1)
        return np.where(ceilings < entries, ceilings, NOT_FOUND)

    def lookup_many(self, targets: Longs) -> tuple[Longs, Longs]:
        """Run `lookup` for many targets, in any order.

        Parameters
        ----------
        targets : ndarray of int64, shape (n,)
            Absolute offsets, or timestamps in ms.

        Returns
        -------
        tuple of ndarray of int64, shape (n,)
            The entries found: absolute offsets and byte positions, or timestamps in ms and
            absolute offsets.
        """
        if len(targets) >= BULK_LOOKUPS:
            entries = np.empty((2, len(targets)), np.int64)
            self.look_up_ascending(*ascending(targets), *entries)
            return entries[0], entries[1]
        keys = np.full(len(targets), self._missing_key, np.int64)
        values = np.full(len(targets), self._value_base, np.int64)
        with self._remap_lock.reading():
            slots = self._find_floors(self._as_stored(targets))
            present = slots != NOT_FOUND
            keys[present], values[present] = self._entries_in(slots[present])
        return keys, values

    def look_up_ascending(self, targets: Longs, rows: Longs, keys: Longs, values: Longs) -> None:
        """Run `lookup_many` for ascending targets.

        `rows` has the row of each target's result; `keys` and `values` are filled at these rows.
        """
        if len(targets) and targets[0] < self._min_target:
            targets = np.maximum(targets, self._min_target)
        with self._remap_lock.reading():
            self._check_open()
            find_entries(
                np.uint64(self._mapping.data.ctypes.data),
                self._entries,
                self.entry_size,
                self.layout[self.key_field].itemsize,
                self._key_base,
                self._value_base,
                self._missing_key,
                targets,
                rows,
                keys,
                values,
            )

    def read_entries(self, start: int = 0, stop: int | None = None) -> tuple[Longs, Longs]:
        """Return the entries ``start:stop``, in the form of `lookup_many`."""
        end = self._entries if stop is None else stop
        if not 0 <= start <= end <= self._entries:
            raise IndexError(f"entries {start}:{end} of {self._entries} in {self.path}")
        with self._remap_lock.reading():
            self._check_open()
            return self._entries_in(slice(start, end))

    def _as_stored(self, targets: Longs) -> Longs:
        return np.maximum(targets, self._min_target) - self._key_base

    def _entries_in(self, slots: Longs | slice) -> tuple[Longs, Longs]:
        """Return the entries in slots with absolute offsets; the caller holds the remap lock."""
        return (
            self._read(self.key_field, slots) + self._key_base,
            self._read(self.value_field, slots) + self._value_base,
        )

    def _find_floors(self, targets: Longs, field: str | None = None) -> Longs:
        """Run `floor_slots`; the caller holds the remap lock until the slots are read."""
        self._check_open()
        name = self.key_field if field is None else field
        slots = np.empty(len(targets), np.int64)
        find_floors(
            self._mapping.data.ctypes.data,
            self._entries,
            self.entry_size,
            field_position(self.layout, name),
            self.layout[name].itemsize,
            np.ascontiguousarray(targets, np.int64),
            self.warm_entries,
            slots,
        )
        return slots

    def _read(self, name: str, slots: Longs | slice) -> Longs:
        """Read a field of slots; the caller holds the remap lock.

        As in Kafka, an entry that was truncated after its slot was found can still be read.
        """
        return self._mapping.entries[name][slots].astype(np.int64)

    def _check_open(self) -> None:
        # Kernels would access unrelated memory after an empty array.
        if not self._mapping.is_open:
            raise ValueError(f"the index is closed: {self.path}")


def ascending(targets: Longs) -> tuple[Longs, Longs]:
    """Sort targets; also return the original row of each."""
    count = len(targets)
    targets = np.ascontiguousarray(targets, np.int64)
    if count < 2 or is_ascending(targets):
        return targets, np.arange(count)
    min_target, max_target = int(targets.min()), int(targets.max())
    row_bits = max(count - 1, 1).bit_length()
    if (max_target - min_target).bit_length() + row_bits > _KEY_BITS:
        rows = np.argsort(targets, kind="stable")
        return targets[rows], rows
    # Sorting packed integers of target and row is twice as fast as an argsort.
    packed = targets - min_target
    packed <<= row_bits
    packed |= np.arange(count)
    if count < _RADIX_SORTED:
        packed.sort()
    else:
        target_bits = (max_target - min_target).bit_length()
        packed = radix_sort(packed, np.empty_like(packed), row_bits, target_bits)
    rows = packed & ((1 << row_bits) - 1)
    packed >>= row_bits
    packed += min_target
    return packed, rows
