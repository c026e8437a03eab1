"""Compare the entries of index files and of ``leader-epoch-checkpoint`` with the batches of a log.

Offset index: offsets ascend, each position is the start of a batch, and each offset is above the
last offsets of all batches before its position. Time index: no batch that ends before an entry's
offset has a larger timestamp than the entry.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple

import numpy as np

from kafka_index.core.format.leader_epochs import LeaderEpochCache
from kafka_index.core.format.longs import Longs
from kafka_index.core.format.records import NO_LEADER_EPOCH, NO_TIMESTAMP, OFFSET_ENTRY, TIME_ENTRY
from kafka_index.core.records.batch_table import BatchColumns

_NO_OFFSET = -1


class EntryFault(StrEnum):
    """How the entries of an index file differ from the batches of their log."""

    #: The entry for the largest timestamp is missing.
    INCOMPLETE = "incomplete"
    #: An entry is beyond the last batch of the log.
    STALE = "stale"
    #: An entry does not point to the start of a batch.
    MISPLACED = "misplaced"
    #: The offset or timestamp of an entry is too low for the batches before the entry.
    TOO_LOW = "too_low"
    #: No entry matches, so the entries belong to another segment.
    FOREIGN = "foreign"


class IndexMismatch(NamedTuple):
    """The first entry that does not match the log, and the kind of the mismatch."""

    fault: EntryFault
    entry: int
    expected: str
    found: str


class StoredEntries(NamedTuple):
    """The entries that an index file contains.

    Attributes
    ----------
    offsets
        Absolute offsets.
    values
        Positions in bytes, or timestamps in ms.
    padding
        Number of zero entries at the end of the file, which `offsets` and `values` do not contain.
    torn_bytes
        Number of bytes after the last complete entry.
    disorder
        The first entry that is negative or not above the previous entry, None if all ascend.
    """

    offsets: Longs
    values: Longs
    padding: int
    torn_bytes: int
    disorder: int | None


def read_offset_entries(data: bytes, base_offset: int) -> StoredEntries:
    entries = _read_entries(data, OFFSET_ENTRY)
    return entries._replace(offsets=entries.offsets + base_offset)


def read_time_entries(data: bytes, base_offset: int) -> StoredEntries:
    entries = _read_entries(data, TIME_ENTRY)
    return entries._replace(offsets=entries.values + base_offset, values=entries.offsets)


def _read_entries(data: bytes, dtype: np.dtype[np.void]) -> StoredEntries:
    """Return entries with the first stored field as `offsets`, and the second as `values`."""
    size = dtype.itemsize
    raw = np.frombuffer(data, dtype, len(data) // size)
    keys, values = (raw[name].astype(np.int64) for name in dtype.names or ())
    count = int(np.flatnonzero((keys != 0) | (values != 0)).max(initial=-1)) + 1
    keys, values = keys[:count], values[:count]
    is_wrong = (keys < 0) | (values < 0)
    is_wrong[1:] |= (np.diff(keys) <= 0) | (np.diff(values) < 0)
    return StoredEntries(keys, values, len(raw) - count, len(data) % size, _first_row(is_wrong))


def _first_row(mask: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> int | None:
    rows = np.flatnonzero(mask)
    return int(rows[0]) if len(rows) else None


class OffsetEntryCheck:
    """Compares ascending offset index entries with the batches of their log, chunk by chunk."""

    def __init__(self, entries: StoredEntries) -> None:
        self._offsets, self._positions = entries.offsets, entries.values
        self._next = 0
        self._matching_count = 0
        self._largest = _NO_OFFSET
        self._mismatch: IndexMismatch | None = None

    def observe(self, batches: BatchColumns) -> None:
        """Compare the entries that point into a chunk of batches."""
        last = batches.last_offset
        largest = np.maximum.accumulate(np.concatenate(([self._largest], last)))
        self._largest = int(largest[-1])
        first = self._next
        end = int(np.searchsorted(self._positions, batches.end_bytes))
        if end <= first:
            return
        self._next = end
        positions, offsets = self._positions[first:end], self._offsets[first:end]
        rows = np.searchsorted(batches.position_bytes, positions, side="right") - 1
        rows = np.maximum(rows, 0)
        is_placed = batches.position_bytes[rows] == positions
        is_above = offsets > largest[rows]
        self._matching_count += int((is_placed & is_above).sum())
        if self._mismatch is not None:
            return
        for is_wrong, fault in (
            (~is_placed, EntryFault.MISPLACED),
            (~is_above, EntryFault.TOO_LOW),
        ):
            row = _first_row(is_wrong)
            if row is None or (self._mismatch is not None and self._mismatch.entry <= first + row):
                continue
            batch = int(rows[row])
            self._mismatch = IndexMismatch(
                fault,
                first + row,
                f"the position of a batch, such as {int(batches.position_bytes[batch])}"
                if fault is EntryFault.MISPLACED
                else f"an offset above {int(largest[batch])}",
                f"offset {int(offsets[row])} at byte {int(positions[row])}",
            )

    def mismatch(self, end_offset: int, end_bytes: int) -> IndexMismatch | None:
        """After all batches were observed, return the first entry that does not match."""
        mismatch = self._mismatch
        count = len(self._offsets)
        if mismatch is not None and not self._matching_count and count > 1:
            return mismatch._replace(fault=EntryFault.FOREIGN)
        if mismatch is None and self._next < count:
            fault = EntryFault.STALE if self._matching_count or count == 1 else EntryFault.FOREIGN
            position = int(self._positions[self._next])
            return IndexMismatch(
                fault,
                self._next,
                f"a position below {end_bytes}",
                f"offset {int(self._offsets[self._next])} at byte {position}",
            )
        if mismatch is None and count and int(self._offsets[-1]) >= end_offset:
            return IndexMismatch(
                EntryFault.STALE,
                count - 1,
                f"an offset below {end_offset}",
                f"offset {int(self._offsets[-1])} at byte {int(self._positions[-1])}",
            )
        return mismatch


class TimeEntryCheck:
    """Compares ascending time index entries with the batches of their log, chunk by chunk."""

    def __init__(self, entries: StoredEntries) -> None:
        self._offsets, self._times = entries.offsets, entries.values
        self._latest = np.full(len(self._offsets), NO_TIMESTAMP, np.int64)

    def observe(self, batches: BatchColumns) -> None:
        """For each entry, track the largest timestamp of the batches that end before its offset."""
        if not len(self._offsets):
            return
        last, times = batches.last_offset, batches.max_timestamp_ms
        first = int(np.searchsorted(self._offsets, int(last.min()), side="right"))
        if first == len(self._offsets):
            return
        if (np.diff(last) < 0).any():
            order = np.argsort(last, kind="stable")
            last, times = last[order], times[order]
        latest = np.maximum.accumulate(times)
        # For each entry, the number of batches that end before its offset.
        ended_batches = np.searchsorted(last, self._offsets[first:], side="left")
        latest_before = np.where(
            ended_batches > 0, latest[np.maximum(ended_batches, 1) - 1], NO_TIMESTAMP
        )
        np.maximum(self._latest[first:], latest_before, out=self._latest[first:])

    def mismatch(
        self, end_offset: int, max_timestamp_ms: int, *, is_closed: bool
    ) -> IndexMismatch | None:
        """After all batches were observed, return the first entry that does not match.

        If the segment is closed, the last entry must have the largest timestamp.
        """
        is_wrong = self._latest > self._times
        row = _first_row(is_wrong)
        count = len(self._offsets)
        if row is not None:
            is_foreign = count > 1 and bool(is_wrong.all())
            return IndexMismatch(
                EntryFault.FOREIGN if is_foreign else EntryFault.TOO_LOW,
                row,
                f"timestamp {int(self._latest[row])} or later",
                self._describe_entry(row),
            )
        if count and (
            int(self._offsets[-1]) >= end_offset or int(self._times[-1]) > max_timestamp_ms
        ):
            row = int(np.searchsorted(self._offsets, end_offset))
            row = min(row, int(np.searchsorted(self._times, max_timestamp_ms, side="right")))
            fault = EntryFault.STALE if row or count == 1 else EntryFault.FOREIGN
            expected = f"an offset below {end_offset}, a timestamp up to {max_timestamp_ms}"
            return IndexMismatch(fault, row, expected, self._describe_entry(row))
        last_timestamp = int(self._times[-1]) if count else NO_TIMESTAMP
        if is_closed and last_timestamp < max_timestamp_ms:
            return IndexMismatch(
                EntryFault.INCOMPLETE,
                count,
                f"a last entry of timestamp {max_timestamp_ms}",
                f"timestamp {last_timestamp}" if count else "no entry",
            )
        return None

    def _describe_entry(self, row: int) -> str:
        return f"timestamp {int(self._times[row])} at offset {int(self._offsets[row])}"


class EpochRange(NamedTuple):
    """First and last offset of consecutive batches with the same leader epoch."""

    epoch: int
    first_offset: int
    last_offset: int


class EpochRanges:
    """The leader epochs of the batches of a log, in order."""

    def __init__(self) -> None:
        self.ranges: list[EpochRange] = []

    def observe(self, batches: BatchColumns) -> None:
        epochs = batches.leader_epoch
        starts = [0]
        if not (epochs == epochs[0]).all():
            starts += (np.flatnonzero(np.diff(epochs)) + 1).tolist()
        for start, end in zip(starts, [*starts[1:], batches.rows], strict=True):
            epoch = int(epochs[start])
            if epoch == NO_LEADER_EPOCH:
                continue
            first_offset = int(batches.base_offset[start])
            if self.ranges and self.ranges[-1].epoch == epoch:
                first_offset = self.ranges.pop().first_offset
            self.ranges.append(EpochRange(epoch, first_offset, int(batches.last_offset[end - 1])))


class WrongEpoch(NamedTuple):
    """An offset with a wrong epoch in the checkpoint; `found` is None if it has none."""

    offset: int
    expected: int
    found: int | None


def first_wrong_epoch(
    cache: LeaderEpochCache, ranges: Iterable[EpochRange], log_start_offset: int
) -> WrongEpoch | None:
    """Return the first offset whose epoch in the checkpoint is wrong, None if all match."""
    for epoch, first_offset, last_offset in ranges:
        if last_offset < log_start_offset:
            continue
        for offset in (max(first_offset, log_start_offset), last_offset):
            checkpoint_epoch = cache.epoch_for_offset(offset)
            if checkpoint_epoch != epoch:
                return WrongEpoch(offset, epoch, checkpoint_epoch)
    return None
