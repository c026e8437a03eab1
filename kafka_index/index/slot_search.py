"""Searching the entries of a mapped index, offset or time.

Source: the lookups of Kafka's ``AbstractIndex``.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from kafka_index.index.entry_map import EntryMap, RemapLock
from kafka_index.kernels.bulk_search import find_disorder, find_entries, is_ascending
from kafka_index.kernels.radix_sort import radix_sort
from kafka_index.kernels.search import NOT_FOUND, find_floors
from kafka_index.layout.index_entries import WARM_BYTES
from kafka_index.layout.integers import Longs
from kafka_index.layout.records import NO_TIMESTAMP, field_position

#: From so many lookups on sorting them pays.
BULK_LOOKUPS = 32
_KEY_BITS = 63
#: From so many targets on a radix sort pays for its tables.
_RADIX_SORTED = 1024


class SlotSearch:
    """The entries of an index, to be searched.

    Changing the mapping takes the remap lock. The path is for errors.
    """

    layout: ClassVar[np.dtype[np.void]]
    #: The field that lookups go by, which is the first, and the other one.
    key_field: ClassVar[str]
    value_field: ClassVar[str]
    #: By how much the other field grows from entry to entry, at the least.
    least_step: ClassVar[int]

    def __init__(self, path: str, mapping: EntryMap, base_offset: int) -> None:
        self.path = path
        self.base_offset = base_offset
        self._mapping = mapping
        # Keeps readers off a map that changes.
        self._remap_lock = RemapLock()
        self._entries = 0
        # What is added to keys and values as stored; the key in place of a missing entry; and where
        # targets are cut off, because offsets far below would wrap around to far above.
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
        """The number of entries at the end that are searched first (KAFKA-6432)."""
        return WARM_BYTES // self.entry_size

    @property
    def entries(self) -> int:
        """Number of entries."""
        return self._entries

    @property
    def faulted(self) -> bool:
        """Whether the file was cut while it was open for reading, and zeros were read from it."""
        return self._mapping.faulted

    def find_disorder(self) -> int:
        """Return the first slot that cannot follow the one before it, `NOT_FOUND` for none."""
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

        Targets are keys as stored, timestamps in ms or offsets relative to the base offset,
        compared with a field, `key_field` by default. The slot is `kafka_index.kernels.NOT_FOUND`
        where all entries are above.
        """
        with self._remap_lock.reading():
            return self._find_floors(targets, field)

    def ceiling_slots(self, targets: Longs, field: str | None = None) -> Longs:
        """Find, for each target, the slot of the first entry above it, or equal to it.

        As in Kafka, an equal entry counts unless it is the very first, whose key the search never
        compares for equality. Parameters and result are those of `floor_slots`.
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

    def ceiling_many(self, targets: Longs) -> tuple[Longs, Longs]:
        """Return the first entries above, or equal to, targets in any order.

        Parameters
        ----------
        targets : ndarray of int64, shape (n,)
            As for `lookup_many`.

        Returns
        -------
        tuple of ndarray of int64, shape (n,)
            As from `lookup_many`; `kafka_index.kernels.NOT_FOUND` in both where all entries are
            below. See `ceiling_slots` for the very first entry.
        """
        slots = self.ceiling_slots(self._as_stored(targets))
        found = slots != NOT_FOUND
        keys, values = (np.full(len(targets), NOT_FOUND, np.int64) for _ in range(2))
        with self._remap_lock.reading():
            self._check_open()
            keys[found], values[found] = self._entries_in(slots[found])
        return keys, values

    def lookup_many(self, targets: Longs) -> tuple[Longs, Longs]:
        """Do `lookup` for many targets, in any order.

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
            found = np.empty((2, len(targets)), np.int64)
            self.look_up_ascending(*ascending(targets), *found)
            return found[0], found[1]
        keys = np.full(len(targets), self._missing_key, np.int64)
        values = np.full(len(targets), self._value_base, np.int64)
        with self._remap_lock.reading():
            slots = self._find_floors(self._as_stored(targets))
            present = slots != NOT_FOUND
            keys[present], values[present] = self._entries_in(slots[present])
        return keys, values

    def look_up_ascending(self, targets: Longs, rows: Longs, keys: Longs, values: Longs) -> None:
        """Do `lookup_many` for ascending targets.

        `rows` has the row of the answer to each target in `keys` and `values`, which are filled
        there.
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
        """Return the entries ``start:stop``, as from `lookup_many`."""
        end = self._entries if stop is None else stop
        if not 0 <= start <= end <= self._entries:
            raise IndexError(f"entries {start}:{end} of {self._entries} in {self.path}")
        with self._remap_lock.reading():
            self._check_open()
            return self._entries_in(slice(start, end))

    def _as_stored(self, targets: Longs) -> Longs:
        """Return the targets of lookups as keys are stored."""
        return np.maximum(targets, self._min_target) - self._key_base

    def _entries_in(self, slots: Longs | slice) -> tuple[Longs, Longs]:
        """Return the entries in slots, offsets absolute; the caller holds the remap lock."""
        return (
            self._read(self.key_field, slots) + self._key_base,
            self._read(self.value_field, slots) + self._value_base,
        )

    def _find_floors(self, targets: Longs, field: str | None = None) -> Longs:
        """Do `floor_slots`; the caller holds the remap lock until the slots are read."""
        self._check_open()
        name = self.key_field if field is None else field
        slots = np.empty(len(targets), np.int64)
        find_floors(
            self._mapping.data,
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

        As in Kafka, a slot that was found can be read even if it has been truncated meanwhile.
        """
        return self._mapping.entries[name][slots].astype(np.int64)

    def _check_open(self) -> None:
        # Kernels would read, or write, whatever memory follows an array without bytes.
        if not self._mapping.is_open:
            raise ValueError(f"the index is closed: {self.path}")


def ascending(targets: Longs) -> tuple[Longs, Longs]:
    """Return targets in ascending order, and the row each of them had."""
    count = len(targets)
    targets = np.ascontiguousarray(targets, np.int64)
    if count < 2 or is_ascending(targets):
        return targets, np.arange(count)
    least, largest = int(targets.min()), int(targets.max())
    row_bits = max(count - 1, 1).bit_length()
    if (largest - least).bit_length() + row_bits > _KEY_BITS:
        rows = np.argsort(targets, kind="stable")
        return targets[rows], rows
    # One sort of plain integers, target and row in one, is twice as fast as an argsort.
    packed = targets - least
    packed <<= row_bits
    packed |= np.arange(count)
    if count < _RADIX_SORTED:
        packed.sort()
    else:
        target_bits = (largest - least).bit_length()
        packed = radix_sort(packed, np.empty_like(packed), row_bits, target_bits)
    rows = packed & ((1 << row_bits) - 1)
    packed >>= row_bits
    packed += least
    return packed, rows
