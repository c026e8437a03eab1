"""Choose the batches that get index entries, and append the entries to indexes like Kafka.

Sources: Kafka's ``LogSegment.recover`` and ``append`` (batch by batch since 3.9.1 and 4.1),
``AbstractIndex.toRelative``, ``OffsetIndex.append`` and ``TimeIndex.maybeAppend``.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kafka_index.core.format.integers import INT32_MAX
from kafka_index.core.format.records import OFFSET_ENTRY, TIME_ENTRY, field_position
from kafka_index.core.kernels.compile_cache import compiled
from kafka_index.core.kernels.memory import Integer, write_int32, write_int64

#: Fields of the state that `choose_entries` keeps between chunks, an int64 array.
STATE_LAST_INDEX_POSITION, STATE_MAX_TIMESTAMP, STATE_OFFSET_OF_MAX_TIMESTAMP = range(3)

_OFFSET_ENTRY_BYTES = OFFSET_ENTRY.itemsize
_POSITION = field_position(OFFSET_ENTRY, "position_bytes")
_TIME_ENTRY_BYTES = TIME_ENTRY.itemsize
_TIME_OFFSET = field_position(TIME_ENTRY, "relative_offset")


@compiled
def can_convert_to_relative_offset(offset: Integer, base_offset: Integer) -> bool:
    """Return whether an offset can be stored relative to the base offset of a segment."""
    relative = offset - base_offset
    return bool(relative >= 0 and relative <= INT32_MAX)


@compiled
def choose_entries(
    positions: NDArray[np.int64],
    last_offsets: NDArray[np.int64],
    max_timestamps: NDArray[np.int64],
    first: Integer,
    end: Integer,
    index_interval_bytes: int,
    state: NDArray[np.int64],
    rows: NDArray[np.int64],
    entry_timestamps: NDArray[np.int64],
    entry_timestamp_offsets: NDArray[np.int64],
    count: Integer,
) -> Integer:
    """Choose the batches that get index entries (``LogSegment.recover`` and ``append``).

    `positions`, `last_offsets`, `max_timestamps` (int64, (n,)): the batches in file order, in
    bytes, absolute offsets and ms. `first`, `end`: the range of rows. `index_interval_bytes`: an
    entry is due after more than this many bytes. `state` (int64, (3 or more,)): updated; (0, -1,
    -1) for an empty segment. `rows`, `entry_timestamps`, `entry_timestamp_offsets` (int64, (at
    least n,)): filled from `count` on with the row of the batch that gets the offset index entry,
    and the largest timestamp so far with the last offset of its batch. Returns the new number of
    entries.
    """
    last_index_position = state[STATE_LAST_INDEX_POSITION]
    max_timestamp = state[STATE_MAX_TIMESTAMP]
    offset_of_max = state[STATE_OFFSET_OF_MAX_TIMESTAMP]
    for row in range(first, end):
        if max_timestamps[row] > max_timestamp:
            max_timestamp = max_timestamps[row]
            offset_of_max = last_offsets[row]
        if positions[row] - last_index_position > index_interval_bytes:
            rows[count] = row
            entry_timestamps[count] = max_timestamp
            entry_timestamp_offsets[count] = offset_of_max
            count += 1
            last_index_position = positions[row]
    state[STATE_LAST_INDEX_POSITION] = last_index_position
    state[STATE_MAX_TIMESTAMP] = max_timestamp
    state[STATE_OFFSET_OF_MAX_TIMESTAMP] = offset_of_max
    return count


@compiled
def append_offset_entries(
    data: NDArray[np.uint8],
    entries: int,
    max_entries: int,
    base_offset: int,
    last_offset: int,
    offsets: NDArray[np.int64],
    positions: NDArray[np.int64],
) -> int:
    """Append offset index entries until one must be rejected.

    `data` (uint8): the index file, with space for the new entries. `entries`, `max_entries`:
    current and maximum number of entries. `base_offset`, `last_offset`: of the segment and of the
    last entry, absolute. `offsets`, `positions` (int64, (n,)): the new entries, absolute offsets
    and bytes. Returns the number of appended entries.
    """
    address = np.uint64(data.ctypes.data)
    for row in range(len(offsets)):
        fits = can_convert_to_relative_offset(offsets[row], base_offset)
        if entries >= max_entries or not fits:
            return row
        if entries > 0 and offsets[row] <= last_offset:
            return row
        entry = address + np.uint64(entries * _OFFSET_ENTRY_BYTES)
        write_int32(entry, offsets[row] - base_offset)
        write_int32(entry + np.uint64(_POSITION), positions[row])
        last_offset = offsets[row]
        entries += 1
    return len(offsets)


@compiled
def append_time_entries(
    data: NDArray[np.uint8],
    entries: int,
    max_entries: int,
    full_entries: int,
    base_offset: int,
    last_timestamp: int,
    last_offset: int,
    timestamps: NDArray[np.int64],
    offsets: NDArray[np.int64],
) -> tuple[int, int, int]:
    """Append time index entries, skipping equal timestamps, until one must be rejected.

    `data`, `entries`, `max_entries`, `base_offset`, `offsets`: as in `append_offset_entries`.
    `full_entries`: with at least this many entries, even skipped entries are rejected.
    `last_timestamp`, `last_offset`: the last entry; (-1, base offset) if there is none.
    `timestamps` (int64, (n,)): in ms. Returns how many were accepted, the new number of entries,
    and the row of the last one appended (-1 for none).
    """
    last_row = -1
    address = np.uint64(data.ctypes.data)
    for row in range(len(offsets)):
        timestamp = timestamps[row]
        if entries >= full_entries:
            return row, entries, last_row
        if entries > 0 and (offsets[row] < last_offset or timestamp < last_timestamp):
            return row, entries, last_row
        if timestamp > last_timestamp:
            fits = can_convert_to_relative_offset(offsets[row], base_offset)
            if entries >= max_entries or not fits:
                return row, entries, last_row
            entry = address + np.uint64(entries * _TIME_ENTRY_BYTES)
            write_int64(entry, timestamp)
            write_int32(entry + np.uint64(_TIME_OFFSET), offsets[row] - base_offset)
            last_timestamp = timestamp
            last_offset = offsets[row]
            last_row = row
            entries += 1
    return len(offsets), entries, last_row
