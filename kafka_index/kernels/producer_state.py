"""The producers of a partition, followed batch by batch: epochs, sequences, transactions.

The tables are arrays that the caller makes and grows. They begin empty: what was before is not
known yet. What a later look at the past may change is noted beside the state itself (the fields
from ``PRODUCER_FIRST_KIND`` on).

Source: Kafka's ``LogSegment.updateProducerState``, ``ProducerAppendInfo``, ``ProducerStateEntry``,
``ProducerStateManager`` and ``LeaderEpochFileCache.assign``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kafka_index.kernels.big_endian import Integer
from kafka_index.kernels.compile_cache import compiled
from kafka_index.kernels.markers import CONTROL_EMPTY, CONTROL_INVALID, CONTROL_REFUSED
from kafka_index.kernels.open_transactions import (
    carried_open_offsets,
    close_transaction,
    drop_closed,
    next_open_offset,
    open_transaction,
)
from kafka_index.kernels.producer_columns import (
    ABORT_COLUMNS,
    ABORT_FIRST_OFFSET,
    ABORT_LAST_OFFSET,
    ABORT_MAY_BEGIN_EARLIER,
    ABORT_NEXT_OPEN_OFFSET,
    ABORT_POSITION,
    ABORT_PRODUCER_ID,
    ABORT_ROW,
    EPOCH_COLUMNS,
    EPOCH_NUMBER,
    EPOCH_POSITION,
    EPOCH_START_OFFSET,
    FIRST_MARKER,
    FIRST_NONE,
    FIRST_PLAIN,
    FIRST_TRANSACTIONAL,
    NO_NODE,
    NO_OFFSET,
    PRODUCER_COLUMNS,
    PRODUCER_COORDINATOR_EPOCH,
    PRODUCER_EPOCH,
    PRODUCER_EPOCH_CHANGED,
    PRODUCER_FIRST_EPOCH,
    PRODUCER_FIRST_KIND,
    PRODUCER_FIRST_MARKER_ROW,
    PRODUCER_FIRST_POSITION,
    PRODUCER_HAS_DATA,
    PRODUCER_HAS_MARKER,
    PRODUCER_ID,
    PRODUCER_LAST_OFFSET,
    PRODUCER_LAST_SEQUENCE,
    PRODUCER_NODE,
    PRODUCER_OFFSET_DELTA,
    PRODUCER_TIMESTAMP,
    PRODUCER_TXN_FIRST_OFFSET,
    PRODUCER_TXN_IS_FIRST,
    STATE_ABORTS,
    STATE_BATCHES,
    STATE_EPOCHS,
    STATE_LATEST_EPOCH,
    STATE_NODES,
    STATE_PRODUCERS,
    STATE_SIZE,
    STATE_TRANSACTIONAL,
)
from kafka_index.layout.index_entries import INT32_MAX
from kafka_index.layout.records import (
    CONTROL_ABORT,
    CONTROL_COMMIT,
    CONTROL_MASK,
    NO_LEADER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    TRANSACTIONAL_MASK,
)

#: What `follow_producers` found.
(
    PRODUCERS_OK,
    PRODUCERS_NO_ROOM,
    PRODUCERS_MARKER_INVALID,
    PRODUCERS_MARKER_REFUSED,
    PRODUCERS_NOT_TRANSACTIONAL,
    PRODUCERS_TRANSACTION_UNKNOWN,
) = range(6)

_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_HIGH_HALF = np.uint64(32)


@compiled
def find_producer(
    producers: NDArray[np.int64], buckets: NDArray[np.int64], producer_id: Integer
) -> tuple[Any, Any]:
    """Return the row of a producer, or -1, and its bucket or the one where it belongs."""
    mask = np.uint64(len(buckets) - 1)
    bucket = ((np.uint64(producer_id) * _MULTIPLIER) >> _HIGH_HALF) & mask
    while buckets[bucket] >= 0 and producers[buckets[bucket], PRODUCER_ID] != producer_id:
        bucket = (bucket + np.uint64(1)) & mask
    return buckets[bucket], np.int64(bucket)


@compiled
def fill_buckets(producers: NDArray[np.int64], count: Integer, buckets: NDArray[np.int64]) -> None:
    """Make the hash table anew."""
    buckets[:] = -1
    for row in range(count):
        _, bucket = find_producer(producers, buckets, producers[row, PRODUCER_ID])
        buckets[bucket] = row


@compiled
def add_producer(
    producers: NDArray[np.int64],
    buckets: NDArray[np.int64],
    state: NDArray[np.int64],
    producer_id: Integer,
    bucket: Integer,
) -> Any:
    """Add an entry without any batch, as ``ProducerStateEntry.empty`` makes it."""
    row = state[STATE_PRODUCERS]
    state[STATE_PRODUCERS] += 1
    buckets[bucket] = row
    entry = producers[row]
    entry[:] = 0
    entry[PRODUCER_ID] = producer_id
    entry[PRODUCER_EPOCH] = NO_PRODUCER_EPOCH
    entry[PRODUCER_LAST_SEQUENCE] = NO_SEQUENCE
    entry[PRODUCER_LAST_OFFSET] = NO_OFFSET
    entry[PRODUCER_TIMESTAMP] = NO_TIMESTAMP
    entry[PRODUCER_COORDINATOR_EPOCH] = -1
    entry[PRODUCER_TXN_FIRST_OFFSET] = NO_OFFSET
    entry[PRODUCER_NODE] = NO_NODE
    entry[PRODUCER_FIRST_MARKER_ROW] = -1
    return row


@compiled
def _take_epoch(entry: NDArray[np.int64], epoch: Integer) -> None:
    """Another epoch than the last one forgets its batches."""
    if entry[PRODUCER_EPOCH] != epoch:
        entry[PRODUCER_LAST_SEQUENCE] = NO_SEQUENCE
        entry[PRODUCER_LAST_OFFSET] = NO_OFFSET
        entry[PRODUCER_OFFSET_DELTA] = 0
        if entry[PRODUCER_FIRST_KIND] != FIRST_NONE:
            entry[PRODUCER_EPOCH_CHANGED] = 1
        entry[PRODUCER_EPOCH] = epoch


@compiled
def _note_first(entry: NDArray[np.int64], kind: int, position: Integer, epoch: Integer) -> None:
    if entry[PRODUCER_FIRST_KIND] == FIRST_NONE:
        entry[PRODUCER_FIRST_KIND] = kind
        entry[PRODUCER_FIRST_POSITION] = position
        entry[PRODUCER_FIRST_EPOCH] = epoch


@compiled
def last_sequence_of(base_sequence: Integer, offset_delta: Integer) -> Any:
    """Return the sequence of a batch's last record; behind 2^31 - 1 comes 0."""
    if base_sequence == NO_SEQUENCE:
        return np.int64(NO_SEQUENCE)
    if base_sequence > INT32_MAX - offset_delta:
        return offset_delta - (INT32_MAX - base_sequence) - 1
    return base_sequence + offset_delta


@compiled
def follow_producers(  # noqa: PLR0911, PLR0912, PLR0915, C901, because it is one loop, and hot
    position_bytes: NDArray[np.int64],
    base_offsets: NDArray[np.int64],
    last_offsets: NDArray[np.int64],
    max_timestamps: NDArray[np.int64],
    leader_epochs: NDArray[np.int64],
    attributes: NDArray[np.int64],
    producer_ids: NDArray[np.int64],
    control_types: NDArray[np.int64],
    producer_epochs: NDArray[np.int64],
    base_sequences: NDArray[np.int64],
    coordinator_epochs: NDArray[np.int64],
    control_timestamps: NDArray[np.int64],
    first_row: int,
    producers: NDArray[np.int64],
    buckets: NDArray[np.int64],
    nodes: NDArray[np.int64],
    aborts: NDArray[np.int64],
    epochs: NDArray[np.int64],
    state: NDArray[np.int64],
) -> tuple[int, int]:
    """Follow producers and leader epochs through a chunk and stop where recovery would.

    Parameters
    ----------
    position_bytes, base_offsets, ..., control_timestamps : ndarray of int64, shape (n,)
        The chunk, in file order; those from ``attributes`` on count where there is a producer.
    first_row : int
        Where to begin in it.
    producers : ndarray of int64, shape (capacity, PRODUCER_COLUMNS)
        Changed in place, as all that follow.
    buckets : ndarray of int64, shape (a power of 2, twice the producers or more,)
        The hash table over it: rows, -1 for free.
    nodes, aborts, epochs : ndarray of int64, shape (capacity, 2), (capacity, 7), (capacity, 3)
        Open transactions by first offset; aborted ones; leader epochs that rise.
    state : ndarray of int64, shape (STATE_SIZE,)
        Counts; see above.

    Returns
    -------
    tuple of int
        One of the ``PRODUCERS_`` codes, and the row concerned (n when there is none). After
        `PRODUCERS_NO_ROOM` nothing of that row has been taken up but its leader epoch.
    """
    for row in range(first_row, len(producer_ids)):
        leader_epoch = leader_epochs[row]
        if leader_epoch > state[STATE_LATEST_EPOCH]:
            count = state[STATE_EPOCHS]
            if count == len(epochs):
                return PRODUCERS_NO_ROOM, row
            epochs[count, EPOCH_NUMBER] = leader_epoch
            epochs[count, EPOCH_START_OFFSET] = base_offsets[row]
            epochs[count, EPOCH_POSITION] = position_bytes[row]
            state[STATE_EPOCHS] += 1
            state[STATE_LATEST_EPOCH] = leader_epoch
        producer_id = producer_ids[row]
        if producer_id < 0:
            continue
        if (
            2 * (state[STATE_PRODUCERS] + 1) > len(buckets)
            or state[STATE_PRODUCERS] == len(producers)
            or state[STATE_NODES] == len(nodes)
            or state[STATE_ABORTS] == len(aborts)
        ):
            return PRODUCERS_NO_ROOM, row
        control = np.int64(CONTROL_COMMIT)
        is_control = attributes[row] & CONTROL_MASK != 0
        if is_control:
            control = control_types[row]
            if control == CONTROL_INVALID:
                return PRODUCERS_MARKER_INVALID, row
            # Every code from `CONTROL_REFUSED` down is a refusal, compressed markers included.
            if control <= CONTROL_REFUSED or control > CONTROL_COMMIT:
                return PRODUCERS_MARKER_REFUSED, row
        number, bucket = find_producer(producers, buckets, producer_id)
        epoch = producer_epochs[row]
        if number < 0:
            number = add_producer(producers, buckets, state, producer_id, bucket)
        if control == CONTROL_EMPTY:
            continue
        entry = producers[number]
        is_transactional = attributes[row] & TRANSACTIONAL_MASK != 0
        if is_transactional:
            state[STATE_TRANSACTIONAL] = 1
        is_first = entry[PRODUCER_FIRST_KIND] == FIRST_NONE
        if is_control:
            _take_epoch(entry, epoch)
            _note_first(entry, FIRST_MARKER, position_bytes[row], epoch)
            if entry[PRODUCER_HAS_MARKER] == 0:
                entry[PRODUCER_HAS_MARKER] = 1
                entry[PRODUCER_FIRST_MARKER_ROW] = state[STATE_BATCHES] + row
            entry[PRODUCER_COORDINATOR_EPOCH] = coordinator_epochs[row]
            entry[PRODUCER_TIMESTAMP] = control_timestamps[row]
            node = entry[PRODUCER_NODE]
            # As the first of its producer it may end what began before.
            if control == CONTROL_ABORT and (node != NO_NODE or is_first):
                abort = aborts[state[STATE_ABORTS]]
                abort[ABORT_ROW] = state[STATE_BATCHES] + row
                abort[ABORT_POSITION] = position_bytes[row]
                abort[ABORT_PRODUCER_ID] = producer_id
                abort[ABORT_FIRST_OFFSET] = entry[PRODUCER_TXN_FIRST_OFFSET]
                abort[ABORT_LAST_OFFSET] = base_offsets[row]
                abort[ABORT_NEXT_OPEN_OFFSET] = next_open_offset(nodes, state, number)
                abort[ABORT_MAY_BEGIN_EARLIER] = entry[PRODUCER_TXN_IS_FIRST]
                state[STATE_ABORTS] += 1
            if node != NO_NODE and not close_transaction(producers, nodes, state, number):
                return PRODUCERS_TRANSACTION_UNKNOWN, row
            continue
        if not is_transactional and entry[PRODUCER_NODE] != NO_NODE:
            return PRODUCERS_NOT_TRANSACTIONAL, row
        _take_epoch(entry, epoch)
        _note_first(
            entry,
            FIRST_TRANSACTIONAL if is_transactional else FIRST_PLAIN,
            position_bytes[row],
            epoch,
        )
        offset_delta = last_offsets[row] - base_offsets[row]
        entry[PRODUCER_HAS_DATA] = 1
        entry[PRODUCER_LAST_SEQUENCE] = last_sequence_of(base_sequences[row], offset_delta)
        entry[PRODUCER_LAST_OFFSET] = last_offsets[row]
        entry[PRODUCER_OFFSET_DELTA] = offset_delta
        entry[PRODUCER_TIMESTAMP] = max_timestamps[row]
        if is_transactional and entry[PRODUCER_NODE] == NO_NODE:
            open_transaction(producers, nodes, state, number, base_offsets[row])
            entry[PRODUCER_TXN_IS_FIRST] = is_first
    state[STATE_BATCHES] += len(producer_ids)
    return PRODUCERS_OK, len(producer_ids)


def warm_up() -> None:
    """Load or compile the kernels of this module."""
    nothing = np.empty(0, np.int64)
    producers = np.empty((1, PRODUCER_COLUMNS), np.int64)
    nodes, aborts, epochs = (
        np.empty((1, columns), np.int64) for columns in (2, ABORT_COLUMNS, EPOCH_COLUMNS)
    )
    buckets = np.full(2, -1, np.int64)
    state = np.zeros(STATE_SIZE, np.int64)
    state[STATE_LATEST_EPOCH] = NO_LEADER_EPOCH
    columns = (nothing,) * 12
    follow_producers(
        *columns,
        0,
        producers,
        buckets,
        nodes,
        aborts,
        epochs,
        state,
    )
    fill_buckets(producers, 0, buckets)
    row = add_producer(producers, buckets, state, 0, 0)
    open_transaction(producers, nodes, state, row, 0)
    drop_closed(producers, nodes, state)
    carried_open_offsets(nothing, nothing, nothing, nothing, nothing, nothing)
