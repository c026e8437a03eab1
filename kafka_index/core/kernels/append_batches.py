"""Append batches like a leader: set header fields, decide when to roll, choose index entries.

Sources: Kafka's ``LogValidator``, ``DefaultRecordBatch.setLastOffset`` and ``setMaxTimestamp``,
``LogSegment.shouldRoll`` and ``LogSegment.append``.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kafka_index.core.format.records import (
    COMPRESSION_MASK,
    NO_TIMESTAMP,
    RECORD_BATCH_HEADER,
    RECORD_BATCH_OVERHEAD_BYTES,
    TIMESTAMP_TYPE_MASK,
    field_position,
)
from kafka_index.core.kernels.batch_header import (
    checksums_of,
    read_attributes,
    read_last_offset_delta,
    read_max_timestamp,
)
from kafka_index.core.kernels.compile_cache import compiled
from kafka_index.core.kernels.index_entries import can_convert_to_relative_offset, choose_entries
from kafka_index.core.kernels.memory import Integer, write_int32, write_int64
from kafka_index.core.kernels.record_fields import RECORD_VALID
from kafka_index.core.kernels.records import batch_section, next_record

#: Code of `largest_timestamps` for a compressed batch: its records were not read.
PACKED_RECORDS = -1
#: Code for a record whose timestamp is out of bounds; other codes are defined in
#: `kafka_index.core.kernels.record_fields`.
TIMESTAMP_OUT_OF_BOUNDS = 100

#: Fields of the append state of a segment, which `plan_appends` updates: log position of the last
#: indexed batch, largest timestamp and the last offset of its batch, size of the ``.log`` file,
#: timestamp of the first batch (`NO_BATCH` for none), number of offset index and of time index
#: entries, and timestamp of the last time index entry.
(
    GROWTH_LAST_INDEX_POSITION,
    GROWTH_MAX_TIMESTAMP,
    GROWTH_OFFSET_OF_MAX,
    GROWTH_SIZE,
    GROWTH_FIRST_TIMESTAMP,
    GROWTH_OFFSET_ENTRIES,
    GROWTH_TIME_ENTRIES,
    GROWTH_LAST_TIME_ENTRY,
) = range(8)
GROWTH_SIZE_OF_STATE = 8
NO_BATCH = -(2**63)

#: Fields of the limits of a segment: base offset, ``segment.bytes``, ``segment.ms`` minus the roll
#: jitter, creation time, current time, ``index.interval.bytes``, and maximum number of offset index
#: and of time index entries.
(
    LIMIT_BASE_OFFSET,
    LIMIT_SEGMENT_BYTES,
    LIMIT_WAIT_MS,
    LIMIT_CREATED_MS,
    LIMIT_NOW_MS,
    LIMIT_INTERVAL_BYTES,
    LIMIT_OFFSET_ENTRIES,
    LIMIT_TIME_ENTRIES,
) = range(8)
LIMITS = 8

#: Why `plan_appends` returned: all appends are planned, the segment must be rolled before the next
#: append, an index becomes full within an append, or an offset cannot be stored relative to the
#: base offset.
PLAN_DONE, PLAN_ROLL, PLAN_INDEX_FULL, PLAN_OFFSET_OVERFLOW = range(4)

_LEADER_EPOCH = field_position(RECORD_BATCH_HEADER, "leader_epoch")
_CRC = field_position(RECORD_BATCH_HEADER, "crc")
_ATTRIBUTES = field_position(RECORD_BATCH_HEADER, "attributes")
_MAX_TIMESTAMP = field_position(RECORD_BATCH_HEADER, "max_timestamp_ms")


@compiled
def largest_timestamps(
    window: NDArray[np.uint8],
    positions: NDArray[np.int64],
    sizes: NDArray[np.int64],
    counts: NDArray[np.int64],
    min_timestamp: int,
    max_timestamp_bound: int,
    largest: NDArray[np.int64],
    codes: NDArray[np.int64],
) -> None:
    """Find the largest record timestamp of each v2 batch, without decompressing any.

    `window` (uint8): the batches. `positions`, `sizes`, `counts` (int64, (n,)): position, size and
    record count of each batch. `min_timestamp`, `max_timestamp_bound`: bounds for timestamps other
    than -1, in ms. `largest` (int64, (n,)): filled with the largest timestamp of the records (-1
    for none), or with a timestamp out of bounds. `codes` (int64, (n,)): filled with `RECORD_VALID`
    or an error code.
    """
    address = np.uint64(window.ctypes.data)
    for row in range(len(positions)):
        start = address + np.uint64(positions[row])
        attributes = read_attributes(start)
        largest[row] = NO_TIMESTAMP
        if attributes & COMPRESSION_MASK:
            codes[row] = PACKED_RECORDS
            continue
        records = start + np.uint64(RECORD_BATCH_OVERHEAD_BYTES)
        section = batch_section(start, records, start + np.uint64(sizes[row]))
        codes[row] = RECORD_VALID
        highest: Integer = np.int64(NO_TIMESTAMP)
        for record in range(counts[row]):
            records, _, timestamp, code = next_record(section, records, counts[row] - record)
            if code != RECORD_VALID:
                codes[row] = code
                break
            if codes[row] == RECORD_VALID:
                highest = max(highest, timestamp)
                if timestamp != NO_TIMESTAMP and (
                    timestamp < min_timestamp or timestamp > max_timestamp_bound
                ):
                    codes[row] = TIMESTAMP_OUT_OF_BOUNDS
                    highest = timestamp
        largest[row] = highest


@compiled
def stamp_batches(
    window: NDArray[np.uint8],
    positions: NDArray[np.int64],
    sizes: NDArray[np.int64],
    next_offset: int,
    leader_epoch: int,
    timestamp_type: int,
    max_timestamps: NDArray[np.int64],
    base_offsets: NDArray[np.int64],
    last_offsets: NDArray[np.int64],
) -> int:
    """Assign offsets, leader epoch and timestamps to v2 batches; return the next offset.

    `window` (uint8): the batches, changed in place; a checksum is updated only if its bytes
    changed. `positions`, `sizes` (int64, (n,)): position and size of each batch. `next_offset`,
    `leader_epoch`: the first offset to assign, and the leader epoch. `timestamp_type`: 0, or
    `TIMESTAMP_TYPE_MASK` for LogAppendTime. `max_timestamps` (int64, (n,)): the max timestamp to
    write into each header. `base_offsets`, `last_offsets` (int64, (n,)): filled with the assigned
    offsets.
    """
    address = np.uint64(window.ctypes.data)
    for row in range(len(positions)):
        start = address + np.uint64(positions[row])
        delta = read_last_offset_delta(start)
        write_int64(start, next_offset)
        write_int32(start + np.uint64(_LEADER_EPOCH), leader_epoch)
        base_offsets[row] = next_offset
        last_offsets[row] = next_offset + delta
        next_offset += delta + 1
        attributes = read_attributes(start)
        typed = attributes & ~TIMESTAMP_TYPE_MASK | timestamp_type
        stored = read_max_timestamp(start)
        if typed == attributes and stored == max_timestamps[row]:
            continue
        # All flags are in the low byte; Kafka clears the high byte.
        window[positions[row] + _ATTRIBUTES] = 0
        window[positions[row] + _ATTRIBUTES + 1] = typed & 0x7F
        write_int64(start + np.uint64(_MAX_TIMESTAMP), max_timestamps[row])
        _, checksum = checksums_of(start, sizes[row])
        write_int32(start + np.uint64(_CRC), checksum)
    return next_offset


@compiled
def plan_appends(
    ends: NDArray[np.int64],
    first_append: int,
    positions: NDArray[np.int64],
    sizes: NDArray[np.int64],
    last_offsets: NDArray[np.int64],
    max_timestamps: NDArray[np.int64],
    may_roll: bool,
    limits: NDArray[np.int64],
    state: NDArray[np.int64],
    entry_rows: NDArray[np.int64],
    entry_timestamps: NDArray[np.int64],
    entry_timestamp_offsets: NDArray[np.int64],
) -> tuple[int, int, Integer]:
    """Plan appends to a segment until it must be rolled, and choose their index entries.

    `ends` (int64, (m,)): the row after the last batch of each append. `first_append`: the first
    append to plan. `positions` (int64, (n,)): filled with the log positions of the planned batches.
    `sizes`, `last_offsets`, `max_timestamps` (int64, (n,)): the batches. `may_roll`: False if the
    segment was just rolled, so that the first append must go into it. `limits`, `state`: arrays of
    the ``LIMIT_`` and ``GROWTH_`` fields; `state` is updated. `entry_rows`, `entry_timestamps`,
    `entry_timestamp_offsets` (int64, (n,)): filled with the row of the batch of each offset index
    entry, and the timestamp and offset of its time index entry. Returns a ``PLAN_`` code, the next
    append (after `PLAN_INDEX_FULL` and `PLAN_OFFSET_OVERFLOW`: the row of a batch), and the number
    of offset index entries.
    """
    base = limits[LIMIT_BASE_OFFSET]
    size = state[GROWTH_SIZE]
    entries: Integer = np.int64(0)
    code = PLAN_DONE
    append = first_append
    while append < len(ends):
        first = ends[append - 1] if append else 0
        end = ends[append]
        added = np.int64(0)
        latest = np.int64(NO_TIMESTAMP)
        for row in range(first, end):
            added += sizes[row]
            latest = max(latest, max_timestamps[row])
        fits = can_convert_to_relative_offset(last_offsets[end - 1], base)
        if may_roll or append > first_append:
            begun = state[GROWTH_FIRST_TIMESTAMP]
            waited = limits[LIMIT_NOW_MS] - limits[LIMIT_CREATED_MS]
            if begun >= 0:
                waited = latest - begun
            if (
                size > limits[LIMIT_SEGMENT_BYTES] - added
                or (size > 0 and waited > limits[LIMIT_WAIT_MS])
                or state[GROWTH_OFFSET_ENTRIES] >= limits[LIMIT_OFFSET_ENTRIES]
                or state[GROWTH_TIME_ENTRIES] >= limits[LIMIT_TIME_ENTRIES] - 1
                or not fits
            ):
                code = PLAN_ROLL
                break
        elif not fits:
            code = PLAN_OFFSET_OVERFLOW
            append = first
            break
        if state[GROWTH_FIRST_TIMESTAMP] == NO_BATCH:
            state[GROWTH_FIRST_TIMESTAMP] = max_timestamps[first]
        for row in range(first, end):
            positions[row] = size
            size += sizes[row]
        chosen = choose_entries(
            positions,
            last_offsets,
            max_timestamps,
            first,
            end,
            limits[LIMIT_INTERVAL_BYTES],
            state,
            entry_rows,
            entry_timestamps,
            entry_timestamp_offsets,
            entries,
        )
        for entry in range(entries, chosen):
            if (
                state[GROWTH_OFFSET_ENTRIES] >= limits[LIMIT_OFFSET_ENTRIES]
                or state[GROWTH_TIME_ENTRIES] >= limits[LIMIT_TIME_ENTRIES] - 1
            ):
                return PLAN_INDEX_FULL, entry_rows[entry], entry
            state[GROWTH_OFFSET_ENTRIES] += 1
            if entry_timestamps[entry] > state[GROWTH_LAST_TIME_ENTRY]:
                state[GROWTH_TIME_ENTRIES] += 1
                state[GROWTH_LAST_TIME_ENTRY] = entry_timestamps[entry]
        entries = chosen
        append += 1
    state[GROWTH_SIZE] = size
    return code, append, entries


def warm_up(window: NDArray[np.uint8], nothing: NDArray[np.int64]) -> None:
    largest_timestamps(window, nothing, nothing, nothing, 0, 0, nothing, nothing)
    stamp_batches(window, nothing, nothing, 0, 0, 0, nothing, nothing, nothing)
    plan_appends(
        nothing,
        0,
        nothing,
        nothing,
        nothing,
        nothing,
        False,
        np.zeros(LIMITS, np.int64),
        np.zeros(GROWTH_SIZE_OF_STATE, np.int64),
        nothing,
        nothing,
        nothing,
    )
