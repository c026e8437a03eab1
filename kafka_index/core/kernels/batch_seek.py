"""Walks over the batch headers of a log, from a position that an index gave to the batch asked for.

Ascending targets share one walk: batches that the search for one target has passed are not visited
for the next. The walk jumps where an index entry leads further ahead, and then the entry is
verified: the batches from its position on must reach a batch that ends at its offset. An entry of a
time index fits when the first batch as late has its timestamp and its offset.

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
    """Return where the batch begins that an entry of an offset index ends with.

    `log`: memory address of the log; `log_size`: how many bytes of it count; `position`, `offset`:
    the entry, its offset absolute. Returns position of the batch whose last offset it is. That is
    the one the entry leads to, or (an entry an append, as older brokers made them) one after it.
    `AT_END` when no batch ends there, `AT_DAMAGE` when damage comes first.
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
    """Return whether a walk over batches from a start reaches a position."""
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
    """Return where the batch begins that an entry of a time index was made of.

    `log`, `log_size`: as for `entry_end`; `position`: where to begin: where the offset index leads
    for the entry's offset; `timestamp`, `offset`: the entry, its offset absolute. Returns position
    of the first batch that is as late, if it has that very timestamp and holds the offset;
    `AT_DAMAGE` otherwise.
    """
    while True:
        size = batch_size(log + np.uint64(position), log_size - position)
        if size < 0:
            return AT_DAMAGE
        start = log + np.uint64(position)
        latest = max_timestamp_of(start)
        if latest >= timestamp:
            # Magic 0 and 1: the last offset of a wrapper, and its records lie below it.
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
    """Return whether all entries of a time index hold, each against the log from its start.

    Where offsets go back, the offset index may lead past the batch that an entry was made of.

    `log`, `log_size`: as for `entry_end`; `timestamps`, `offsets` (int64, (n,)): the entries,
    timestamps ascending, offsets absolute.
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
    """Walk to the end of the log and return the largest timestamp on the way.

    Returns the timestamp (-1 for none), the last offset of the first batch that has it, and where
    the walk ended: the end of the log, or damage.
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
    """Return the first batch from a position on whose largest timestamp is this very one.

    Without one it is `AT_END`, or `damage_at`.
    """
    while True:
        size = batch_size(log + np.uint64(position), log_size - position)
        if size < 0:
            return size if size == AT_END else damage_at(position)
        if max_timestamp_of(log + np.uint64(position)) == timestamp:
            return position
        position += size


#: Why a call of a walk came back: it is done; an entry of the offset index, or of the time index,
#: does not hold; or the first offset of a compressed message of magic 0 or 1 is needed, which is
#: known only when it is decompressed.
WALK_DONE, WALK_MISFIT, WALK_TIME_MISFIT, WALK_NEEDS_FIRST_OFFSET = range(4)

#: The state of a walk, an array of int64 that begins as zeros but for `NOWHERE`.
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
#: In place of a position in the state: there is none.
NOWHERE = -1

# The walk after a floor entry is at most as long as an index interval, which is 4 KiB.
_AHEAD_TARGETS = 8
_AHEAD_BYTES = 4096
_CACHE_LINE = 64
_SMALL_BATCH = 512


def new_state() -> NDArray[np.int64]:
    """Return the state of a walk that has not begun."""
    state = np.zeros(STATE_SIZE, np.int64)
    state[[STATE_PREVIOUS, STATE_UNPACKED_POSITION, STATE_DAMAGE, STATE_DAMAGED_ENTRY]] = NOWHERE
    return state


@compiled
def _prefetch_walk(start: np.uint64, size: Integer) -> None:
    """Prefetch the headers that a walk from an address will visit, if batches are of a size."""
    step = _CACHE_LINE if size <= _SMALL_BATCH else size
    # Not over a range, which LLVM unrolls: requests that close together have no effect.
    ahead = np.uint64(0)
    while ahead < np.uint64(_AHEAD_BYTES):
        prefetch(start + ahead)
        ahead += np.uint64(step)


@compiled
def walk_to_offsets(  # noqa: PLR0912, PLR0915, C901, because it is one loop, and hot
    log: np.uint64,
    log_size: int,
    targets: NDArray[np.int64],
    entry_offsets: NDArray[np.int64],
    entry_positions: NDArray[np.int64],
    state: NDArray[np.int64],
    batches: NDArray[np.int64],
) -> int:
    """Find the batches that contain ascending offsets, or the next ones.

    `log`: memory address of the log; `log_size`: how many bytes of it count; `targets` (int64,
    (n,)): absolute offsets, ascending. `entry_offsets`, `entry_positions` (int64, (n,)): the index
    entry at or below each; position 0 where there is none. `state` (int64, (STATE_SIZE,)): from
    `new_state`; a call that came back before the end is continued with it. After
    `WALK_NEEDS_FIRST_OFFSET` the caller fills in ``STATE_UNPACKED_FIRST_OFFSET``, and after damage
    inside that message sets ``STATE_DAMAGE`` to its position instead. After `WALK_MISFIT` it may
    find that the log is to blame, set ``STATE_DAMAGED_ENTRY`` to the position of the entry, and go
    on. `batches` (int64, (n,)): filled with positions of batches, `AT_END` or `damage_at`. Returns
    one of the ``WALK_`` codes; ``state[STATE_QUERY]`` is the target it concerns.
    """
    position = state[STATE_POSITION]
    previous = state[STATE_PREVIOUS]
    previous_last = state[STATE_PREVIOUS_LAST_OFFSET]
    query = state[STATE_QUERY]
    size: Integer = np.int64(0)
    code = WALK_DONE
    while query < len(targets):
        target = targets[query]
        floor = entry_positions[query]
        if query + _AHEAD_TARGETS < len(targets):
            ahead = entry_positions[query + _AHEAD_TARGETS]
            if ahead > entry_positions[query + _AHEAD_TARGETS - 1]:
                _prefetch_walk(log + np.uint64(ahead), size)
        begun_there = floor == position and previous == NOWHERE
        if floor > previous and floor > 0 and not begun_there:
            if (
                floor != state[STATE_DAMAGED_ENTRY]
                and entry_end(log, log_size, floor, entry_offsets[query]) < 0
            ):
                code = WALK_MISFIT
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
                    code = WALK_NEEDS_FIRST_OFFSET
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
        if code != WALK_DONE:
            break
        batches[query] = found
        query += 1
    state[STATE_POSITION] = position
    state[STATE_PREVIOUS] = previous
    state[STATE_PREVIOUS_LAST_OFFSET] = previous_last
    state[STATE_QUERY] = query
    return code


@compiled
def walk_to_timestamps(
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
    """Find the first batches whose largest timestamp is at or above ascending timestamps.

    `log`, `log_size`: as for `walk_to_offsets`; `starting_offset`: the log start offset: what lies
    below it counts for nothing. `least_offset`: a batch that ends below it does not count. To find
    records, all count: then the records are compared with the starting offset. `targets`
    (int64, (n,)): timestamps in ms, ascending. `entry_timestamps`, `entry_offsets` (int64, (n,)):
    the time index entry at or below each; timestamp -1 where there is none. `floor_offsets`,
    `floor_positions` (int64, (n,)): the offset index entry at or below the larger of that offset
    and the starting offset; position 0 where there is none. `state`, `batches`: as for
    `walk_to_offsets`. After `WALK_TIME_MISFIT` the caller may find that all entries of the time
    index hold against the whole log, set ``STATE_TIMES_HOLD`` to 1, and call again. Returns
    `WALK_DONE`, `WALK_MISFIT` or `WALK_TIME_MISFIT`.
    """
    position = state[STATE_POSITION]
    query = state[STATE_QUERY]
    # The last time entry that was verified.
    proven = state[STATE_PREVIOUS]
    size: Integer = np.int64(0)
    code = WALK_DONE
    while query < len(targets):
        target = targets[query]
        floor = floor_positions[query]
        if query + _AHEAD_TARGETS < len(targets):
            ahead = floor_positions[query + _AHEAD_TARGETS]
            if ahead > floor_positions[query + _AHEAD_TARGETS - 1]:
                _prefetch_walk(log + np.uint64(ahead), size)
        offset = entry_offsets[query]
        if floor > position or (query == 0 and entry_timestamps[query] > NO_TIMESTAMP):
            is_damaged = floor == state[STATE_DAMAGED_ENTRY]
            if (
                floor > 0
                and not is_damaged
                and entry_end(log, log_size, floor, floor_offsets[query]) < 0
            ):
                code = WALK_MISFIT
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
                    code = WALK_TIME_MISFIT
                    break
                # All before it are earlier than it is.
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
    """Load or compile the walks, over a log without bytes."""
    entry_end(address, 0, 0, 0)
    reaches(address, 0, 0, 0)
    time_entry_end(address, 0, 0, 0, 0)
    time_entries_hold(address, 0, nothing, nothing)
    largest_timestamp_after(address, 0, 0)
    first_with_timestamp(address, 0, 0, 0)
    magic_of(np.uint64(np.zeros(HEADER_SIZE_UP_TO_MAGIC, np.uint8).ctypes.data))
    for targets in writable_and_not(nothing):
        walk_to_offsets(address, 0, targets, nothing, nothing, new_state(), nothing)
        walk_to_timestamps(
            address, 0, 0, 0, targets, nothing, nothing, nothing, nothing, new_state(), nothing
        )
    read_batch_fields(address, nothing, nothing, nothing, nothing)
