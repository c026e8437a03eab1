"""From batches to records: the first record at or behind an offset, or as late as a timestamp.

Ascending targets share one pass, and each batch that is looked into is verified and read once. What
is not plain (compressed batches) is unpacked by the caller and handed in as arrays.

Sources: Kafka's ``FileRecords.searchForTimestamp`` and ``DefaultRecordBatch.iterator``.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kafka_index.kernels.batch_header import (
    AT_END,
    batch_size,
    checksum_matches,
    codec_of,
    damage_at,
    last_offset_of,
    leader_epoch_of,
    magic_of,
    max_timestamp_of,
    read_attributes,
    read_base_offset,
    read_base_timestamp,
    read_record_count,
)
from kafka_index.kernels.big_endian import Integer
from kafka_index.kernels.compile_cache import compiled
from kafka_index.kernels.records import read_record
from kafka_index.kernels.walk import NOWHERE
from kafka_index.layout.records import (
    MAGIC_RECORD_BATCH,
    RECORD_BATCH_OVERHEAD_BYTES,
    TIMESTAMP_TYPE_MASK,
)

#: Why a call came back: it is done, or the records of the batch at ``STATE_OPEN`` are needed.
FIND_DONE, FIND_NEEDS_RECORDS = range(2)

#: What can be wrong with a batch: nothing, its checksum, one of its records.
FAULT_NONE, FAULT_CRC, FAULT_RECORD = range(3)

#: The state, an array of int64 that begins as zeros but for ``STATE_OPEN`` and ``STATE_GIVEN``:
#: `NOWHERE`.
(
    STATE_QUERY,
    STATE_OPEN,
    STATE_GIVEN,
    STATE_CURSOR,
    STATE_LEFT,
    STATE_FAULT,
) = range(6)
STATE_SIZE = 6

#: Rows of the array that is filled.
FOUND_BATCH, FOUND_OFFSET, FOUND_TIMESTAMP, FOUND_EPOCH = range(4)
FOUND_ROWS = 4


def new_state() -> NDArray[np.int64]:
    """Return the state of a pass that has not begun."""
    state = np.zeros(STATE_SIZE, np.int64)
    state[[STATE_OPEN, STATE_GIVEN]] = NOWHERE
    return state


@compiled
def find_records(  # noqa: PLR0912, PLR0915, C901, because it is one loop, and hot
    log: np.uint64,
    log_size: int,
    by_timestamp: bool,
    starting_offset: int,
    targets: NDArray[np.int64],
    batches: NDArray[np.int64],
    given_offsets: NDArray[np.int64],
    given_timestamps: NDArray[np.int64],
    state: NDArray[np.int64],
    found: NDArray[np.int64],
) -> int:
    """Find the first record that fits each of ascending targets, in its batch or a later one.

    Parameters
    ----------
    log : int
        Memory address of the log.
    log_size : int
        How many bytes of it count.
    by_timestamp : bool
        Whether targets are timestamps; else they are offsets.
    starting_offset : int
        No record below it fits.
    targets : ndarray of int64, shape (n,)
        Ascending.
    batches : ndarray of int64, shape (n,)
        Where to begin for each: the position of a batch, or something negative, which is kept.
    given_offsets, given_timestamps : ndarray of int64, shape (m,)
        The records of the batch at ``state[STATE_GIVEN]``.
    state : ndarray of int64, shape (STATE_SIZE,)
        From `new_state`. After `FIND_NEEDS_RECORDS` the caller hands in the records of the batch at
        ``STATE_OPEN``, sets ``STATE_GIVEN`` to it and ``STATE_FAULT`` to what is wrong behind
        them, and calls again.
    found : ndarray of int64, shape (FOUND_ROWS, n)
        Filled: position of the batch (or `AT_END`, or `damage_at`), offset, timestamp and leader
        epoch.

    Returns
    -------
    int
        One of the ``FIND_`` codes.
    """
    query = state[STATE_QUERY]
    opened = state[STATE_OPEN]
    given = state[STATE_GIVEN]
    cursor = state[STATE_CURSOR]
    left = state[STATE_LEFT]
    fault = state[STATE_FAULT]
    is_given = opened != NOWHERE and opened == given
    if is_given and state[STATE_LEFT] < 0:
        # Back with the records that were asked for.
        left = np.int64(len(given_offsets))
        cursor = np.int64(0)
    while query < len(targets):
        target = targets[query]
        position = batches[query]
        if position >= 0 and position < opened:
            position = opened
        answer = position
        while position >= 0:
            size = batch_size(log + np.uint64(position), log_size - position)
            if size < 0:
                answer = np.int64(AT_END) if size == AT_END else damage_at(position)
                break
            start = log + np.uint64(position)
            if by_timestamp and max_timestamp_of(start) < target:
                position += size
                continue
            if not by_timestamp and last_offset_of(start) < target:
                position += size
                continue
            magic = magic_of(start)
            if position != opened:
                opened = position
                is_given = False
                fault = np.int64(FAULT_NONE)
                if not checksum_matches(start, size):
                    fault = np.int64(FAULT_CRC)
                    left = np.int64(0)
                elif codec_of(start) != 0:
                    is_given = True
                    if given != position:
                        state[STATE_QUERY] = query
                        state[STATE_OPEN] = opened
                        state[STATE_LEFT] = -1
                        return FIND_NEEDS_RECORDS
                    left = np.int64(len(given_offsets))
                    cursor = np.int64(0)
                    fault = state[STATE_FAULT]
                elif magic >= MAGIC_RECORD_BATCH:
                    left = read_record_count(start)
                    cursor = position + RECORD_BATCH_OVERHEAD_BYTES
                    if left < 0:
                        left = np.int64(0)
                        fault = np.int64(FAULT_RECORD)
                else:
                    left = np.int64(1)
            hit = False
            offset: Integer = np.int64(0)
            timestamp: Integer = np.int64(0)
            if magic < MAGIC_RECORD_BATCH and not is_given:
                if left > 0:
                    offset = read_base_offset(start)
                    timestamp = max_timestamp_of(start)
                    key = timestamp if by_timestamp else offset
                    hit = bool(key >= target and offset >= starting_offset)
            elif is_given:
                while left > 0:
                    offset = given_offsets[cursor]
                    timestamp = given_timestamps[cursor]
                    key = timestamp if by_timestamp else offset
                    if key >= target and offset >= starting_offset:
                        hit = True
                        break
                    cursor += 1
                    left -= 1
            else:
                base_offset = read_base_offset(start)
                base_timestamp = read_base_timestamp(start)
                append_time = (read_attributes(start) & TIMESTAMP_TYPE_MASK) != 0
                append_timestamp = max_timestamp_of(start)
                end = start + np.uint64(size)
                while left > 0:
                    following, timestamp_delta, offset_delta, code = read_record(
                        log + np.uint64(cursor), end
                    )
                    # Behind the last record nothing may follow.
                    if code != 0 or (left == 1 and following != end):
                        fault = np.int64(FAULT_RECORD)
                        left = np.int64(0)
                        break
                    offset = base_offset + offset_delta
                    timestamp = (
                        append_timestamp if append_time else base_timestamp + timestamp_delta
                    )
                    key = timestamp if by_timestamp else offset
                    if key >= target and offset >= starting_offset:
                        hit = True
                        break
                    cursor = np.int64(following - log)
                    left -= 1
            if hit:
                answer = position
                found[FOUND_OFFSET, query] = offset
                found[FOUND_TIMESTAMP, query] = timestamp
                found[FOUND_EPOCH, query] = leader_epoch_of(start)
                break
            if fault != FAULT_NONE:
                answer = damage_at(position)
                break
            position += size
        found[FOUND_BATCH, query] = answer
        query += 1
    state[STATE_QUERY] = query
    state[STATE_OPEN] = opened
    state[STATE_CURSOR] = cursor
    state[STATE_LEFT] = left
    state[STATE_FAULT] = fault
    return FIND_DONE


def warm_up(address: np.uint64, nothing: NDArray[np.int64]) -> None:
    """Load or compile the search for records, over a log without bytes."""
    found = np.empty((FOUND_ROWS, 0), np.int64)
    for by_timestamp in (True, False):
        find_records(
            address, 0, by_timestamp, 0, nothing, nothing, nothing, nothing, new_state(), found
        )
