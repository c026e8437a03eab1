"""Seek over the batch headers of a log, from the position in an index entry to the target batch.

Ascending targets share one pass: batches that were passed for one target are not read for the next.
If the next index entry is further ahead, the pass jumps there and verifies the entry: the batches
from the entry's position must include one whose last offset is the entry's offset. A time index
entry is valid if the first batch with a max timestamp at or after the entry's timestamp has exactly
this timestamp and contains the entry's offset.

Sources: Kafka's ``FileRecords.searchForOffsetFromPosition`` and ``searchForTimestamp``.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kafka_index.core.format.records import (
    HEADER_SIZE_UP_TO_MAGIC,
    MAGIC_RECORD_BATCH,
    NO_TIMESTAMP,
)
from kafka_index.core.kernels.batch_header import (
    AT_DAMAGE,
    AT_END,
    batch_size,
    damage_at,
    is_compressed_message,
    last_offset_of,
    magic_of,
    max_timestamp_of,
    read_base_offset,
    read_batch_fields,
)
from kafka_index.core.kernels.compile_cache import compiled, writable_and_not
from kafka_index.core.kernels.memory import Integer, prefetch


@compiled
def entry_end(log: np.uint64, log_size: int, position: Integer, offset: Integer) -> Integer:
    """Return the position of the batch whose last offset is the offset of an offset index entry.

    `log`: memory address of the log. `log_size`: its size. `position`, `offset`: the entry, its
    offset absolute. The batch is at the position of the entry, or later if an older broker wrote
    one entry per append. Returns `AT_END` if no batch ends at the offset, `AT_DAMAGE` if a
    corruption comes first.
    """
    while True:
        size = batch_size(log + np.uint64(position), log_size - position)
        if size < 0:
            return AT_DAMAGE
        last_offset = last_offset_of(log + np.uint64(position))
        if last_offset >= offset:
            return position if last_offset == offset else AT_END
        position += size


@compiled
def reaches(log: np.uint64, log_size: int, start: Integer, position: Integer) -> bool:
    """Return whether iterating over batches from `start` reaches exactly `position`."""
    while start < position:
        size = batch_size(log + np.uint64(start), log_size - start)
        if size < 0:
            return False
        start += size
    return bool(start == position)


@compiled
def time_entry_end(
    log: np.uint64, log_size: int, position: Integer, timestamp: Integer, offset: Integer
) -> Integer:
    """Return the position of the batch that produced a time index entry.

    `log`, `log_size`: as in `entry_end`. `position`: start of the search, from the offset index.
    `timestamp`, `offset`: the entry, its offset absolute. The result is the first batch with a
    timestamp at or after the entry's, if it has exactly this timestamp and contains the offset;
    otherwise `AT_DAMAGE`.
    """
    while True:
        size = batch_size(log + np.uint64(position), log_size - position)
        if size < 0:
            return AT_DAMAGE
        start = log + np.uint64(position)
        latest = max_timestamp_of(start)
        if latest >= timestamp:
            # The header of a v0 or v1 wrapper message has its last offset; inner messages may have
            # smaller ones.
            legacy = magic_of(start) < MAGIC_RECORD_BATCH
            begins = legacy or read_base_offset(start) <= offset
            holds = begins and offset <= last_offset_of(start)
            return position if holds and latest == timestamp else AT_DAMAGE
        position += size


@compiled
def time_entries_hold(
    log: np.uint64,
    log_size: int,
    timestamps: NDArray[np.int64],
    offsets: NDArray[np.int64],
) -> bool:
    """Return whether all time index entries are valid, in one pass from the start of the log.

    The offset index is not used: if offsets in the log decrease, it may point past the batch of a
    time index entry. `log`, `log_size`: as in `entry_end`. `timestamps`, `offsets` (int64, (n,)):
    the entries, timestamps ascending, offsets absolute.
    """
    position: Integer = np.int64(0)
    for row in range(len(timestamps)):
        position = time_entry_end(log, log_size, position, timestamps[row], offsets[row])
        if position < 0:
            return False
    return True


@compiled
def largest_timestamp_after(
    log: np.uint64, log_size: int, position: Integer
) -> tuple[Integer, Integer, Integer]:
    """Return the largest timestamp between a position and the end of the log.

    Returns the timestamp (-1 for none), the last offset of the first batch that has it, and the
    position after the last valid batch.
    """
    timestamp: Integer = np.int64(NO_TIMESTAMP)
    offset: Integer = np.int64(-1)
    while True:
        size = batch_size(log + np.uint64(position), log_size - position)
        if size < 0:
            return timestamp, offset, position
        start = log + np.uint64(position)
        found = max_timestamp_of(start)
        if found > timestamp:
            timestamp = found
            offset = last_offset_of(start)
        position += size


@compiled
def first_with_timestamp(
    log: np.uint64, log_size: int, position: Integer, timestamp: Integer
) -> Integer:
    """Return the position of the first batch whose max timestamp equals `timestamp`.

    The search starts at `position`. Returns `AT_END` or `damage_at` if there is no such batch.
    """
    while True:
        size = batch_size(log + np.uint64(position), log_size - position)
        if size < 0:
            return size if size == AT_END else damage_at(position)
        if max_timestamp_of(log + np.uint64(position)) == timestamp:
            return position
        position += size


#: Why a seek returned: it is complete; an offset or time index entry does not match the log; or the
#: caller must decompress a v0 or v1 message to determine its first offset.
SEEK_DONE, SEEK_MISMATCH, SEEK_TIME_MISMATCH, SEEK_NEEDS_FIRST_OFFSET = range(4)

#: Fields of the state of a seek, an int64 array from `new_state`.
(
    STATE_QUERY,
    STATE_POSITION,
    STATE_PREVIOUS,
    STATE_PREVIOUS_LAST_OFFSET,
    STATE_UNPACKED_POSITION,
    STATE_UNPACKED_FIRST_OFFSET,
    STATE_DAMAGE,
    STATE_DAMAGED_ENTRY,
    STATE_TIMES_HOLD,
) = range(9)
STATE_SIZE = 9
#: Value of a position in the state if there is none.
NOWHERE = -1

# Prefetch the headers for the target 8 rows ahead: 4 KiB from its index entry, which is the default
# index interval.
_AHEAD_TARGETS = 8
_AHEAD_BYTES = 4096
_CACHE_LINE = 64
_SMALL_BATCH = 512


def new_state() -> NDArray[np.int64]:
    state = np.zeros(STATE_SIZE, np.int64)
    state[[STATE_PREVIOUS, STATE_UNPACKED_POSITION, STATE_DAMAGE, STATE_DAMAGED_ENTRY]] = NOWHERE
    return state


@compiled
def _prefetch_headers(start: np.uint64, size: Integer) -> None:
    """Prefetch the batch headers after an address, assuming that all batches have this size."""
    step = _CACHE_LINE if size <= _SMALL_BATCH else size
    # Not a range loop: LLVM would unroll it, and the CPU drops prefetches that follow each other
    # too closely.
    ahead = np.uint64(0)
    while ahead < np.uint64(_AHEAD_BYTES):
        prefetch(start + ahead)
        ahead += np.uint64(step)


@compiled
def seek_to_offsets(  # noqa: PLR0912, PLR0915, C901, because it is one loop, and hot
    log: np.uint64,
    log_size: int,
    targets: NDArray[np.int64],
    entry_offsets: NDArray[np.int64],
    entry_positions: NDArray[np.int64],
    state: NDArray[np.int64],
    batches: NDArray[np.int64],
) -> int:
    """Find the batch that contains each target offset; if there is none, the next batch.

    `log`: memory address of the log. `log_size`: its size. `targets` (int64, (n,)): absolute
    offsets, ascending. `entry_offsets`, `entry_positions` (int64, (n,)): the index entry at or
    below each target; position 0 for none. `state` (int64, (STATE_SIZE,)): from `new_state`; call
    again with it to continue. After `SEEK_NEEDS_FIRST_OFFSET`, the caller sets
    ``STATE_UNPACKED_FIRST_OFFSET``, or sets ``STATE_DAMAGE`` to the position of a corrupt message.
    After `SEEK_MISMATCH`, the caller may continue if the log is corrupt rather than the index: it
    sets ``STATE_DAMAGED_ENTRY`` to the position in the index entry. `batches` (int64, (n,)): filled
    with positions of batches, `AT_END` or `damage_at`. Returns a ``SEEK_`` code for the target
    ``state[STATE_QUERY]``.
    """
    position = state[STATE_POSITION]
    previous = state[STATE_PREVIOUS]
    previous_last = state[STATE_PREVIOUS_LAST_OFFSET]
    query = state[STATE_QUERY]
    size: Integer = np.int64(0)
    code = SEEK_DONE
    while query < len(targets):
        target = targets[query]
        floor = entry_positions[query]
        if query + _AHEAD_TARGETS < len(targets):
            ahead = entry_positions[query + _AHEAD_TARGETS]
            if ahead > entry_positions[query + _AHEAD_TARGETS - 1]:
                _prefetch_headers(log + np.uint64(ahead), size)
        begun_there = floor == position and previous == NOWHERE
        if floor > previous and floor > 0 and not begun_there:
            if (
                floor != state[STATE_DAMAGED_ENTRY]
                and entry_end(log, log_size, floor, entry_offsets[query]) < 0
            ):
                code = SEEK_MISMATCH
                break
            position = floor
            previous = np.int64(NOWHERE)
        found: Integer = np.int64(AT_END)
        while True:
            size = batch_size(log + np.uint64(position), log_size - position)
            if size < 0:
                if previous != NOWHERE and previous_last >= target:
                    found = previous
                elif size != AT_END:
                    found = damage_at(position)
                break
            start = log + np.uint64(position)
            last = last_offset_of(start)
            base = read_base_offset(start)
            if is_compressed_message(start):
                if last < target:
                    base = last
                elif state[STATE_DAMAGE] == position:
                    overlaps = previous != NOWHERE and previous_last >= target
                    found = previous if overlaps else damage_at(position)
                    break
                elif state[STATE_UNPACKED_POSITION] != position:
                    code = SEEK_NEEDS_FIRST_OFFSET
                    break
                else:
                    base = state[STATE_UNPACKED_FIRST_OFFSET]
            if base >= target:
                overlaps = base > target and previous != NOWHERE and previous_last >= target
                found = previous if overlaps else position
                break
            previous = position
            previous_last = last
            position += size
        if code != SEEK_DONE:
            break
        batches[query] = found
        query += 1
    state[STATE_POSITION] = position
    state[STATE_PREVIOUS] = previous
    state[STATE_PREVIOUS_LAST_OFFSET] = previous_last
    state[STATE_QUERY] = query
    return code


@compiled
def seek_to_timestamps(
    log: np.uint64,
    log_size: int,
    starting_offset: int,
    least_offset: int,
    targets: NDArray[np.int64],
    entry_timestamps: NDArray[np.int64],
    entry_offsets: NDArray[np.int64],
    floor_offsets: NDArray[np.int64],
    floor_positions: NDArray[np.int64],
    state: NDArray[np.int64],
    batches: NDArray[np.int64],
) -> int:
    """Find, for each target timestamp, the first batch with a max timestamp at or after it.

    `log`, `log_size`: as in `seek_to_offsets`. `starting_offset`: the log start offset.
    `least_offset`: batches that end below it are skipped. A search for records skips none, because
    it compares the records with the starting offset later. `targets` (int64, (n,)): timestamps in
    ms, ascending. `entry_timestamps`, `entry_offsets` (int64, (n,)): the time index entry at or
    below each target; timestamp -1 for none. `floor_offsets`, `floor_positions` (int64, (n,)): the
    offset index entry at or below the larger of the time index entry's offset and the starting
    offset; position 0 for none. `state`, `batches`: as in `seek_to_offsets`. After
    `SEEK_TIME_MISMATCH`, the caller may verify all time index entries against the complete log, set
    ``STATE_TIMES_HOLD`` to 1, and call again. Returns `SEEK_DONE`, `SEEK_MISMATCH` or
    `SEEK_TIME_MISMATCH`.
    """
    position = state[STATE_POSITION]
    query = state[STATE_QUERY]
    # Offset of the last time index entry that was verified.
    proven = state[STATE_PREVIOUS]
    size: Integer = np.int64(0)
    code = SEEK_DONE
    while query < len(targets):
        target = targets[query]
        floor = floor_positions[query]
        if query + _AHEAD_TARGETS < len(targets):
            ahead = floor_positions[query + _AHEAD_TARGETS]
            if ahead > floor_positions[query + _AHEAD_TARGETS - 1]:
                _prefetch_headers(log + np.uint64(ahead), size)
        offset = entry_offsets[query]
        if floor > position or (query == 0 and entry_timestamps[query] > NO_TIMESTAMP):
            is_damaged = floor == state[STATE_DAMAGED_ENTRY]
            if (
                floor > 0
                and not is_damaged
                and entry_end(log, log_size, floor, floor_offsets[query]) < 0
            ):
                code = SEEK_MISMATCH
                break
            position = floor
            if (
                not is_damaged
                and state[STATE_TIMES_HOLD] == 0
                and entry_timestamps[query] > NO_TIMESTAMP
                and offset >= starting_offset
                and offset != proven
            ):
                end = time_entry_end(log, log_size, floor, entry_timestamps[query], offset)
                if end == AT_DAMAGE:
                    code = SEEK_TIME_MISMATCH
                    break
                # All batches from the floor entry to this one have smaller timestamps.
                position = end
                proven = offset
        while True:
            size = batch_size(log + np.uint64(position), log_size - position)
            if size < 0:
                batches[query] = AT_END if size == AT_END else damage_at(position)
                break
            start = log + np.uint64(position)
            if max_timestamp_of(start) >= target and last_offset_of(start) >= least_offset:
                batches[query] = position
                break
            position += size
        query += 1
    state[STATE_POSITION] = position
    state[STATE_PREVIOUS] = proven
    state[STATE_QUERY] = query
    return code


def warm_up(address: np.uint64, nothing: NDArray[np.int64]) -> None:
    entry_end(address, 0, 0, 0)
    reaches(address, 0, 0, 0)
    time_entry_end(address, 0, 0, 0, 0)
    time_entries_hold(address, 0, nothing, nothing)
    largest_timestamp_after(address, 0, 0)
    first_with_timestamp(address, 0, 0, 0)
    magic_of(np.uint64(np.zeros(HEADER_SIZE_UP_TO_MAGIC, np.uint8).ctypes.data))
    for targets in writable_and_not(nothing):
        seek_to_offsets(address, 0, targets, nothing, nothing, new_state(), nothing)
        seek_to_timestamps(
            address, 0, 0, 0, targets, nothing, nothing, nothing, nothing, new_state(), nothing
        )
    read_batch_fields(address, nothing, nothing, nothing, nothing)
