"""The offset index (``.index``, offset to position) and the time index (``.timeindex``).

Sources: Kafka's ``OffsetIndex`` and ``TimeIndex``.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from kafka_index.core.errors import (
    CorruptIndexError,
    IndexFullError,
    InvalidOffsetError,
    InvalidTimestampError,
    KafkaIndexError,
)
from kafka_index.core.format.integers import INT32_MAX
from kafka_index.core.format.longs import Longs
from kafka_index.core.format.records import NO_TIMESTAMP, OFFSET_ENTRY, TIME_ENTRY
from kafka_index.core.index.abstract_index import AbstractIndex
from kafka_index.core.kernels.index_entries import append_offset_entries, append_time_entries
from kafka_index.core.kernels.search import NOT_FOUND


class OffsetPosition(NamedTuple):
    """An entry: the last offset of a batch, absolute, and the position of the batch in the log."""

    offset: int
    position: int


class OffsetIndex(AbstractIndex):
    """The memory-mapped ``.index`` of one segment. Parameters are those of `AbstractIndex`."""

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
            self._make_room(len(offsets))
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
            return accepted, self._refusal(int(offsets[accepted]))

    def lookup(self, target_offset: int) -> OffsetPosition:
        """Return the last entry at or below an offset; (base offset, 0) if there is none."""
        offsets, positions = self.lookup_many(np.array([target_offset], np.int64))
        return OffsetPosition(int(offsets[0]), int(positions[0]))

    def fetch_upper_bound_offset(
        self, fetch_offset: OffsetPosition, fetch_size: int
    ) -> OffsetPosition | None:
        """Return the first entry whose position is at or after the end of a fetch, None if none."""
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

    def _refusal(self, offset: int) -> KafkaIndexError:
        if self.is_full:
            return IndexFullError(
                "the offset index is full", path=self.path, expected=f"{self._max_entries} entries"
            )
        if self._entries and offset <= self._last_offset:
            return InvalidOffsetError(
                "the offset is not above the last one of the offset index",
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
    """The memory-mapped ``.timeindex`` of one segment. Parameters are those of `AbstractIndex`."""

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
            The offset or timestamp is below that of the last entry.
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
            self._make_room(len(offsets))
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
            return accepted, self._refusal(
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
                "the last timestamp is below the first",
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

    def _refusal(self, timestamp: int, offset: int, full_entries: int) -> KafkaIndexError:
        """Return the error of a rejected entry; the checks have Kafka's order."""
        full = IndexFullError(
            "the time index is full", path=self.path, expected=f"{self._max_entries} entries"
        )
        if self._entries >= full_entries:
            return full
        if self._entries and offset < self._last_entry.offset:
            return InvalidOffsetError(
                "the offset is below the last one of the time index",
                path=self.path,
                expected=f"{self._last_entry.offset} or more",
                found=offset,
            )
        if self._entries and timestamp < self._last_entry.timestamp:
            return InvalidTimestampError(
                "the timestamp is below the last one of the time index",
                path=self.path,
                expected=f"{self._last_entry.timestamp} or more",
                found=timestamp,
            )
        return full if self._entries >= self._max_entries else self._overflow(offset)
