"""Find records in batches: the first at or after an offset or a timestamp.

Ascending targets share one pass, in which each batch is verified and read once. The caller
decompresses batches and passes them as `RecordSection`.

Sources: Kafka's ``FileRecords.searchForTimestamp`` and ``DefaultRecordBatch.iterator``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kafka_index.core.format.records import MAGIC_RECORD_BATCH, RECORD_BATCH_OVERHEAD_BYTES
from kafka_index.core.kernels.batch_header import (
    AT_END,
    batch_size,
    checksum_matches,
    codec_of,
    damage_at,
    last_offset_of,
    leader_epoch_of,
    magic_of,
    max_timestamp_of,
)
from kafka_index.core.kernels.batch_seek import NOWHERE
from kafka_index.core.kernels.compile_cache import compiled, writable_and_not
from kafka_index.core.kernels.memory import Integer
from kafka_index.core.kernels.record_fields import RECORD_VALID
from kafka_index.core.kernels.records import (
    EMPTY_SECTION,
    batch_section,
    message_section,
    named_section,
    next_record,
)

#: Why `find_records` returned: all targets are processed, or it needs the records of the batch at
#: position ``STATE_OPEN``.
FIND_DONE, FIND_NEEDS_RECORDS = range(2)

#: Errors of a batch: none, its checksum, or one of its records.
FAULT_NONE, FAULT_CRC, FAULT_RECORD = range(3)

#: Fields of the search state, an int64 array from `new_state`.
STATE_QUERY, STATE_OPEN, STATE_FAULT = range(3)
STATE_SIZE = 3

#: Rows of the result array `found`.
FOUND_BATCH, FOUND_OFFSET, FOUND_TIMESTAMP, FOUND_EPOCH = range(4)
FOUND_ROWS = 4


def new_state() -> NDArray[np.int64]:
    state = np.zeros(STATE_SIZE, np.int64)
    state[STATE_OPEN] = NOWHERE
    return state


@compiled
def find_records(  # noqa: PLR0912, PLR0915, C901, because it is one loop, and hot
    log: np.uint64,
    log_size: int,
    by_timestamp: bool,
    starting_offset: int,
    targets: NDArray[np.int64],
    batches: NDArray[np.int64],
    given: tuple[Any, ...],
    state: NDArray[np.int64],
    found: NDArray[np.int64],
) -> int:
    """Find the first record at or after each target, starting the search at a given batch.

    `log`: memory address of the log. `log_size`: its size. `by_timestamp`: whether targets are
    timestamps rather than offsets. `starting_offset`: records below it never match. `targets`
    (int64, (n,)): ascending. `batches` (int64, (n,)): position of the batch where the search for
    each target starts; negative values are copied to the result. `given`: the fields of a
    `RecordSection` with the records of the batch at ``state[STATE_OPEN]``, which must stay in
    memory until the next call; `EMPTY_SECTION` in the first call. `state` (int64, (STATE_SIZE,)):
    from `new_state`. After `FIND_NEEDS_RECORDS`, the caller passes the records of the batch at
    ``STATE_OPEN``, sets ``STATE_FAULT`` to the error that follows these records, and calls again.
    `found` (int64, (FOUND_ROWS, n)): filled with the position of the batch (or `AT_END`, or
    `damage_at`), offset, timestamp and leader epoch. Returns a ``FIND_`` code.
    """
    query = state[STATE_QUERY]
    opened = state[STATE_OPEN]
    # For the open batch: its records, how many remain, the address of the next one, and the error
    # after the last one.
    section = named_section(given)
    left = np.int64(0)
    cursor = section.start
    fault = np.int64(FAULT_NONE)
    if opened != NOWHERE:
        left = np.int64(section.record_count)
        fault = state[STATE_FAULT]
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
                fault = np.int64(FAULT_NONE)
                if not checksum_matches(start, size):
                    fault = np.int64(FAULT_CRC)
                    left = np.int64(0)
                else:
                    if codec_of(start) != 0:
                        state[STATE_QUERY] = query
                        state[STATE_OPEN] = opened
                        return FIND_NEEDS_RECORDS
                    if magic >= MAGIC_RECORD_BATCH:
                        section = batch_section(
                            start,
                            start + np.uint64(RECORD_BATCH_OVERHEAD_BYTES),
                            start + np.uint64(size),
                        )
                    else:
                        section = message_section(start, start + np.uint64(size))
                    cursor = section.start
                    left = np.int64(section.record_count)
                    if left < 0:
                        left = np.int64(0)
                        fault = np.int64(FAULT_RECORD)
            hit = False
            offset: Integer = np.int64(0)
            timestamp: Integer = np.int64(0)
            while left > 0:
                following, offset, timestamp, code = next_record(section, cursor, left)
                if code != RECORD_VALID:
                    fault = np.int64(FAULT_RECORD)
                    left = np.int64(0)
                    break
                key = timestamp if by_timestamp else offset
                if key >= target and offset >= starting_offset:
                    hit = True
                    break
                cursor = following
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
    return FIND_DONE


def warm_up(address: np.uint64, nothing: NDArray[np.int64]) -> None:
    found = np.empty((FOUND_ROWS, 0), np.int64)
    for targets in writable_and_not(nothing):
        find_records(
            address, 0, True, 0, targets, nothing, tuple(EMPTY_SECTION), new_state(), found
        )
