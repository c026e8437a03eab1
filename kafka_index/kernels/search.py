"""Finding the slot of an entry in a mapped index file.

Two searches give the same answers: the plain binary search that Kafka began with, and the warm/cold
search (KAFKA-6432) that replaced it. A plain search for something near the end probes pages that
change with the length of the file, and a page gone cold blocks the lookup; the other one looks at
the warm last 8 KiB first. Source: Kafka's ``AbstractIndex.indexSlotRangeFor``.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kafka_index.kernels.big_endian import Integer, read_int32, read_int64
from kafka_index.kernels.compile_cache import compiled

#: No slot is at or below (for a ceiling: above) the target.
NOT_FOUND = -1
_INT32_BYTES = 4


@compiled
def read_key(
    address: np.uint64, slot: int, entry_bytes: int, key_position: int, key_bytes: int
) -> Integer:
    """Read the int32 or int64 key of a slot."""
    position = address + np.uint64(slot * entry_bytes + key_position)
    key: Integer = read_int32(position) if key_bytes == _INT32_BYTES else read_int64(position)
    return key


@compiled
def binary_search(
    address: np.uint64,
    entry_bytes: int,
    key_position: int,
    key_bytes: int,
    target: int,
    low: int,
    high: int,
    trace: NDArray[np.int64],
    reads: int,
) -> tuple[int, int]:
    """Search slots ``low..high`` for the last key at or below a target.

    `address`: memory address of the entries; `entry_bytes`, `key_position`, `key_bytes`: size of an
    entry, and where in it the key stands and how wide it is (4 or 8); `target`: a key as stored, so
    relative to the base offset where keys are offsets. `low`, `high`: first and last slot; the key
    of ``low`` must not be above the target. `trace`: filled with the slots that were read, as far
    as it reaches; empty for no trace. `reads`: how many slots were read before. Returns the slot,
    and how many slots were read until now.
    """
    while low < high:
        middle = (low + high + 1) >> 1
        key = read_key(address, middle, entry_bytes, key_position, key_bytes)
        if reads < len(trace):
            trace[reads] = middle
        reads += 1
        if key > target:
            high = middle - 1
        elif key < target:
            low = middle
        else:
            return middle, reads
    return low, reads


@compiled
def find_floor(
    address: np.uint64,
    entries: int,
    entry_bytes: int,
    key_position: int,
    key_bytes: int,
    target: int,
    warm_entries: int,
    trace: NDArray[np.int64],
) -> tuple[int, int]:
    """Find the last slot whose key is at or below a target, warm section first.

    Parameters are those of `binary_search`, with ``entries`` the number of entries and
    ``warm_entries`` how many of the last are kept warm (0 or less: the plain search over all of
    them, after one look at the first).

    Returns the slot or `NOT_FOUND`, and how many slots were read.
    """
    if entries == 0:
        return NOT_FOUND, 0
    reads = 0
    high = entries - 1
    if warm_entries > 0:
        first_warm = entries - 1 - warm_entries
        if first_warm < 0:
            first_warm = 0
        if len(trace) > reads:
            trace[reads] = first_warm
        reads += 1
        if read_key(address, first_warm, entry_bytes, key_position, key_bytes) < target:
            return binary_search(
                address,
                entry_bytes,
                key_position,
                key_bytes,
                target,
                first_warm,
                high,
                trace,
                reads,
            )
        high = first_warm
    if len(trace) > reads:
        trace[reads] = 0
    reads += 1
    if read_key(address, 0, entry_bytes, key_position, key_bytes) > target:
        return NOT_FOUND, reads
    return binary_search(
        address, entry_bytes, key_position, key_bytes, target, 0, high, trace, reads
    )


def find_floors(
    data: NDArray[np.uint8],
    entries: int,
    entry_bytes: int,
    key_position: int,
    key_bytes: int,
    targets: NDArray[np.int64],
    warm_entries: int,
    slots: NDArray[np.int64],
) -> None:
    """Do `find_floor` for many targets in any order, into ``slots`` of the same length."""
    _find_floors(
        data.ctypes.data,
        entries,
        entry_bytes,
        key_position,
        key_bytes,
        targets,
        warm_entries,
        slots,
    )


@compiled
def _find_floors(
    address: int,
    entries: int,
    entry_bytes: int,
    key_position: int,
    key_bytes: int,
    targets: NDArray[np.int64],
    warm_entries: int,
    slots: NDArray[np.int64],
) -> None:
    no_trace = slots[:0]
    for query in range(len(targets)):
        slots[query] = find_floor(
            np.uint64(address),
            entries,
            entry_bytes,
            key_position,
            key_bytes,
            targets[query],
            warm_entries,
            no_trace,
        )[0]
