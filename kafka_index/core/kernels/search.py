"""Search of entries in a mapped index file, for one target or for many ascending targets.

For one target, there are two searches with the same results: the binary search that Kafka
originally used, and the warm/cold search (KAFKA-6432) that replaced it. A plain binary search near
the end probes different pages as the file grows, and can block on a cold page. The warm search
checks the last 8 KiB first. Source: Kafka's ``AbstractIndex.indexSlotRangeFor``.

Many targets are radix sorted, several times faster than numpy, and found by a galloping merge: each
search starts where the previous one ended and doubles its steps. Queries with the same result form
groups of neighbours. The table of groups usually fits in the CPU cache while the results are put
back in the order of the queries.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kafka_index.core.format.longs import Longs
from kafka_index.core.kernels.compile_cache import compiled, writable_and_not
from kafka_index.core.kernels.memory import Integer, read_int32, read_int64

#: No entry is at or below the target or, in a search for a ceiling, at or above it.
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

    `address`: memory address of the entries. `entry_bytes`, `key_position`, `key_bytes`: size of an
    entry, and position and width of its key (4 or 8). `target`: a key as stored, so offsets are
    relative to the base offset. `low`, `high`: first and last slot; the key of ``low`` must not
    exceed the target. `trace`: filled with the slots read, as far as it has space. `reads`: number
    of slots read before. Returns the slot and the new number of slots read.
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

    For the other parameters, see `binary_search`. ``entries`` is the number of entries, and
    ``warm_entries`` the size of the warm section (0 or less: plain binary search after reading the
    first slot). Returns the slot or `NOT_FOUND`, and the number of slots read.
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


@compiled
def find_floors(
    address: int,
    entries: int,
    entry_bytes: int,
    key_position: int,
    key_bytes: int,
    targets: NDArray[np.int64],
    warm_entries: int,
    slots: NDArray[np.int64],
) -> None:
    """Run `find_floor` for targets in any order, and store the results in ``slots``."""
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


_STRIDE = 512


@compiled
def gallop_floor(
    address: np.uint64, entries: int, entry_bytes: int, key_bytes: int, target: int, slot: int
) -> int:
    """Find the last slot whose key is at or below a target, searching forward from a slot.

    `address`: memory address of the entries, each of which starts with its key. `entries`,
    `entry_bytes`, `key_bytes`: number and size of entries, and size of keys (4 or 8). `target`: a
    key as stored. `slot`: a slot whose key is at or below the target, or `NOT_FOUND`.
    """
    step = 1
    high = slot + 1
    while high < entries and read_key(address, high, entry_bytes, 0, key_bytes) <= target:
        slot = high
        step <<= 1
        high = slot + step
    if high > entries:
        high = entries
    while slot + 1 < high:
        middle = (slot + high) >> 1
        if read_key(address, middle, entry_bytes, 0, key_bytes) <= target:
            slot = middle
        else:
            high = middle
    return slot


@compiled
def find_entries(
    address: np.uint64,
    entries: int,
    entry_bytes: int,
    key_bytes: int,
    key_base: int,
    value_base: int,
    missing_key: int,
    targets: NDArray[np.int64],
    rows: NDArray[np.int64],
    keys: NDArray[np.int64],
    values: NDArray[np.int64],
) -> None:
    """Look up the last entries at or below ascending targets.

    `address`, `entries`, `entry_bytes`, `key_bytes`: as in `gallop_floor`; an int32 value follows
    each key. `key_base`, `value_base`: added to keys and values, the base offset if they are
    relative offsets, else 0. `missing_key`: the key returned if all entries are above the target;
    the value is then `value_base`. `targets` (int64, (n,)): ascending, including `key_base`. `rows`
    (int64, (n,)): row of each target's result. `keys`, `values`: filled at these rows.
    """
    slot = NOT_FOUND
    key: Integer = missing_key
    value: Integer = value_base
    next_key: Integer = np.int64(0)
    if entries:
        next_key = read_key(address, 0, entry_bytes, 0, key_bytes)
    for query in range(len(targets)):
        target = targets[query] - key_base
        if slot + 1 < entries and next_key <= target:
            slot = gallop_floor(address, entries, entry_bytes, key_bytes, target, slot + 1)
            at = address + np.uint64(slot * entry_bytes)
            found = read_int32(at) if key_bytes == _INT32_BYTES else read_int64(at)
            key = found + key_base
            value = read_int32(at + np.uint64(key_bytes)) + value_base
            if slot + 1 < entries:
                next_key = read_key(address, slot + 1, entry_bytes, 0, key_bytes)
        row = rows[query]
        keys[row] = key
        values[row] = value


@compiled
def count_entries(address: np.uint64, entries: int, entry_bytes: int) -> int:
    """Return the number of entries before the zero padding.

    A killed broker leaves its index files at their preallocated size.
    """
    while entries > 0:
        at = address + np.uint64((entries - 1) * entry_bytes)
        # These two reads cover an entry of 8 or 12 bytes.
        if read_int64(at) != 0 or read_int32(at + np.uint64(entry_bytes - _INT32_BYTES)) != 0:
            break
        entries -= 1
    return entries


@compiled
def find_disorder(
    address: np.uint64, entries: int, entry_bytes: int, key_bytes: int, least_step: int
) -> int:
    """Return the first slot whose entry no broker would append after the previous entry.

    `address`, `entries`, `entry_bytes`, `key_bytes`: as in `gallop_floor`; an int32 value follows
    each key. `least_step`: minimum increase of the value between entries; keys must increase by at
    least 1. Returns a slot, or `NOT_FOUND`.
    """
    last_key = np.int64(0)
    last_value = np.int64(0)
    for slot in range(entries):
        at = address + np.uint64(slot * entry_bytes)
        key = read_int32(at) if key_bytes == _INT32_BYTES else read_int64(at)
        value = read_int32(at + np.uint64(key_bytes))
        if value < 0 or key < 0:
            return slot
        if slot and (key <= last_key or value < last_value + least_step):
            return slot
        last_key = key
        last_value = value
    return NOT_FOUND


@compiled
def is_ascending(values: NDArray[np.int64]) -> bool:
    for start in range(1, len(values), _STRIDE):
        # Slices without an early exit compile to vector instructions.
        these = values[start : start + _STRIDE]
        before = values[start - 1 : start - 1 + len(these)]
        falls = 0
        for row in range(len(these)):
            falls += these[row] < before[row]
        if falls:
            return False
    return True


# Bits that a pass sorts by. A pass with more write positions than the TLB has pages would be
# slower.
_DIGIT_BITS = 10
_DIGITS = 1 << _DIGIT_BITS


@compiled
def radix_sort(keys: Longs, scratch: Longs, low_bits: int, high_bits: int) -> Longs:
    """Sort keys by their high bits, stably.

    `keys` (int64, (n,)): non-negative; overwritten. `scratch` (int64, (n,)): overwritten.
    `low_bits`: number of low bits to ignore. `high_bits`: number of bits above them to sort by; all
    higher bits are 0. Returns ``keys`` or ``scratch``, whichever has the sorted keys.
    """
    passes = (high_bits + _DIGIT_BITS - 1) // _DIGIT_BITS
    places = np.zeros((passes, _DIGITS), np.int64)
    for row in range(len(keys)):
        rest = keys[row] >> low_bits
        for number in range(passes):
            places[number, rest & (_DIGITS - 1)] += 1
            rest >>= _DIGIT_BITS
    for number in range(passes):
        starts = places[number]
        start = 0
        for digit in range(_DIGITS):
            count = starts[digit]
            starts[digit] = start
            start += count
        shift = low_bits + number * _DIGIT_BITS
        for row in range(len(keys)):
            key = keys[row]
            digit = (key >> shift) & (_DIGITS - 1)
            place = starts[digit]
            starts[digit] = place + 1
            scratch[place] = key
        keys, scratch = scratch, keys
    return keys


@compiled
def number_groups(batches: Longs, entries: Longs, runs: Longs, firsts: Longs) -> int:
    """Group neighbouring queries that found the same batch and index entry.

    `batches`, `entries` (int64, (n,)): results of each query. `runs` (int64, (n,)): filled with the
    group of each query, from 0. `firsts` (int64, (n,)): filled with the first query of each group.
    Returns the number of groups.
    """
    run = -1
    for query in range(len(batches)):
        if run < 0 or batches[query] != batches[query - 1] or entries[query] != entries[query - 1]:
            run += 1
            firsts[run] = query
        runs[query] = run
    return run + 1


@compiled
def scatter_groups(
    values: Longs, runs: Longs, rows: Longs, run_of_row: NDArray[np.int32], answers: Longs
) -> None:
    """Copy the results of groups to the rows of their queries.

    `values` (int64, (k, m)): results of each group. `runs` (int64, (n,)): group of each query.
    `rows` (int64, (n,)): row of each query's result. `run_of_row` (int32, (n,)): scratch space;
    empty unless `rows` is a permutation of 0 to n - 1. `answers` (int64, (k, ...)): filled.
    """
    if len(run_of_row):
        # Only `run_of_row` is written in random order; the results are written in row order.
        for query in range(len(rows)):
            run_of_row[rows[query]] = runs[query]
        for column in range(len(values)):
            for row in range(len(rows)):
                answers[column, row] = values[column, run_of_row[row]]
        return
    for column in range(len(values)):
        for query in range(len(rows)):
            answers[column, rows[query]] = values[column, runs[query]]


def warm_up(address: np.uint64, nothing: Longs) -> None:
    for targets in writable_and_not(nothing):
        find_entries(address, 0, 8, 4, 0, 0, 0, targets, nothing, nothing, nothing)
        is_ascending(targets)
    count_entries(address, 0, 8)
    find_disorder(address, 0, 8, 4, 1)
    radix_sort(nothing, nothing, 0, 0)
    number_groups(nothing, nothing, nothing, nothing)
    table = nothing.reshape(1, 0)
    scatter_groups(table, nothing, nothing, np.empty(0, np.int32), table)
