"""Appending entries to a mapped index: checked and written in one pass, in Kafka's order.

Sources: Kafka's ``OffsetIndex.append`` and ``TimeIndex.maybeAppend``.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kafka_index.kernels.big_endian import write_int32, write_int64
from kafka_index.kernels.compile_cache import compiled
from kafka_index.layout.index_entries import INT32_MAX, OFFSET_ENTRY, TIME_ENTRY
from kafka_index.layout.records import field_position

_OFFSET_ENTRY_BYTES = OFFSET_ENTRY.itemsize
_POSITION = field_position(OFFSET_ENTRY, "position_bytes")
_TIME_ENTRY_BYTES = TIME_ENTRY.itemsize
_TIME_OFFSET = field_position(TIME_ENTRY, "relative_offset")


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
    """Append offset entries up to the first that must be refused.

    Parameters
    ----------
    data : ndarray of uint8
        The map, with room for what is appended.
    entries, max_entries : int
        How many entries there are, and may be.
    base_offset, last_offset : int
        Of the segment, and of the last entry; absolute.
    offsets, positions : ndarray of int64, shape (n,)
        The new entries: absolute offsets, bytes.

    Returns
    -------
    int
        How many were appended.
    """
    address = np.uint64(data.ctypes.data)
    for row in range(len(offsets)):
        relative = offsets[row] - base_offset
        if entries >= max_entries or relative < 0 or relative > INT32_MAX:
            return row
        if entries > 0 and offsets[row] <= last_offset:
            return row
        entry = address + np.uint64(entries * _OFFSET_ENTRY_BYTES)
        write_int32(entry, relative)
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
    """Append time entries, leaving out equal timestamps, up to the first that must be refused.

    Parameters
    ----------
    data, entries, max_entries, base_offset, offsets
        As for `append_offset_entries`.
    full_entries : int
        From how many entries on even an entry that would be left out is refused.
    last_timestamp, last_offset : int
        Of the last entry; (-1, base offset) when there is none.
    timestamps : ndarray of int64, shape (n,)
        In ms.

    Returns
    -------
    tuple of int
        How many were taken, how many entries there are now, and the row of the last one appended
        (-1 when none was).
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
            relative = offsets[row] - base_offset
            if entries >= max_entries or relative < 0 or relative > INT32_MAX:
                return row, entries, last_row
            entry = address + np.uint64(entries * _TIME_ENTRY_BYTES)
            write_int64(entry, timestamp)
            write_int32(entry + np.uint64(_TIME_OFFSET), relative)
            last_timestamp = timestamp
            last_offset = offsets[row]
            last_row = row
            entries += 1
    return len(offsets), entries, last_row
