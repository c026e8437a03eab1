"""What recovery keeps of producers and epochs, as far as it would refuse a batch over it.

Source: Kafka's ``ProducerAppendInfo.append``, ``ProducerStateManager.completeTxn``,
``TransactionIndex.append`` and ``LeaderEpochFileCache.assign``. The state is kept in hash tables
made of arrays, because a log may have a million producers and the check runs for every batch.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kafka_index.kernels.big_endian import Integer
from kafka_index.kernels.compile_cache import compiled
from kafka_index.kernels.markers import (
    CONTROL_EMPTY,
    CONTROL_INVALID,
    CONTROL_REFUSED,
)
from kafka_index.layout.records import (
    CONTROL_ABORT,
    CONTROL_COMMIT,
    CONTROL_MASK,
    TRANSACTIONAL_MASK,
)

#: What `track_producers` found.
(
    PRODUCERS_OK,
    PRODUCERS_TABLE_FULL,
    PRODUCERS_MARKER_INVALID,
    PRODUCERS_MARKER_REFUSED,
    PRODUCERS_NOT_TRANSACTIONAL,
    PRODUCERS_TRANSACTION_UNKNOWN,
    PRODUCERS_ABORT_OFFSET_BACKWARD,
    PRODUCERS_EPOCH_OFFSET_NEGATIVE,
) = range(8)

#: Places of the state array: slots in use, the last abort marker's offset and whether there was
#: one, the latest leader epoch (-1 for none), whether any batch of a producer was transactional.
STATE_USED, STATE_LAST_ABORT, STATE_ANY_ABORT, STATE_LATEST_EPOCH, STATE_TRANSACTIONAL = range(5)
STATE_SIZE = 5

#: The two tables: producers, with the first offset of their transaction; first offsets.
TABLE_PRODUCERS, TABLE_FIRST_OFFSETS = range(2)
#: States of a slot.
SLOT_FREE, SLOT_CLOSED, SLOT_OPEN = range(3)
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_HIGH_HALF = np.uint64(32)


@compiled
def find_slot(keys: NDArray[np.int64], slots: NDArray[np.uint8], key: int) -> Integer:
    """Return the slot of a key, or the free slot where it belongs."""
    mask = np.uint64(len(keys) - 1)
    slot = ((np.uint64(key) * _MULTIPLIER) >> _HIGH_HALF) & mask
    while slots[slot] != SLOT_FREE and keys[slot] != key:
        slot = (slot + np.uint64(1)) & mask
    return np.int64(slot)


@compiled
def _open(keys: NDArray[np.int64], slots: NDArray[np.uint8], key: int) -> Integer:
    slot = find_slot(keys, slots, key)
    keys[slot] = key
    slots[slot] = SLOT_OPEN
    return slot


@compiled
def track_producers(  # noqa: PLR0911, PLR0912, C901, because each of Kafka's refusals is one exit
    base_offsets: NDArray[np.int64],
    leader_epochs: NDArray[np.int64],
    producer_ids: NDArray[np.int64],
    attributes: NDArray[np.int64],
    control_types: NDArray[np.int64],
    first_row: int,
    keys: NDArray[np.int64],
    slots: NDArray[np.uint8],
    first_offsets: NDArray[np.int64],
    state: NDArray[np.int64],
) -> tuple[int, int]:
    """Follow producers and epochs through a chunk and stop where recovery would.

    Parameters
    ----------
    base_offsets, leader_epochs, producer_ids, attributes, control_types : ndarray of int64, (n,)
        The chunk, in file order; leader epochs are -1 for magic 0 and 1.
    first_row : int
        Where to begin in it.
    keys, slots : ndarray of int64 and of uint8, shape (2, a power of 2)
        The two tables, changed in place.
    first_offsets : ndarray of int64, as long as a table
        First offset of a producer's open transaction, by slot of the first table.
    state : ndarray of int64, shape (STATE_SIZE,)
        Changed in place.

    Returns
    -------
    tuple of int
        One of the ``PRODUCERS_`` codes, and the row concerned (n when there is none).
    """
    producers, producer_slots = keys[TABLE_PRODUCERS], slots[TABLE_PRODUCERS]
    offsets, offset_slots = keys[TABLE_FIRST_OFFSETS], slots[TABLE_FIRST_OFFSETS]
    for row in range(first_row, len(producer_ids)):
        epoch = leader_epochs[row]
        if epoch > state[STATE_LATEST_EPOCH]:
            if base_offsets[row] < 0:
                return PRODUCERS_EPOCH_OFFSET_NEGATIVE, row
            state[STATE_LATEST_EPOCH] = epoch
        producer_id = producer_ids[row]
        if producer_id < 0:
            continue
        if attributes[row] & TRANSACTIONAL_MASK:
            state[STATE_TRANSACTIONAL] = 1
        if attributes[row] & CONTROL_MASK:
            control = control_types[row]
            if control == CONTROL_INVALID:
                return PRODUCERS_MARKER_INVALID, row
            if control == CONTROL_REFUSED or control > CONTROL_COMMIT:
                return PRODUCERS_MARKER_REFUSED, row
            if control == CONTROL_EMPTY or state[STATE_USED] == 0:
                continue
            slot = find_slot(producers, producer_slots, producer_id)
            if producer_slots[slot] != SLOT_OPEN:
                continue
            if control == CONTROL_ABORT:
                if state[STATE_ANY_ABORT] and base_offsets[row] <= state[STATE_LAST_ABORT]:
                    return PRODUCERS_ABORT_OFFSET_BACKWARD, row
                state[STATE_ANY_ABORT] = 1
                state[STATE_LAST_ABORT] = base_offsets[row]
            offset_slot = find_slot(offsets, offset_slots, first_offsets[slot])
            if offset_slots[offset_slot] != SLOT_OPEN:
                return PRODUCERS_TRANSACTION_UNKNOWN, row
            offset_slots[offset_slot] = SLOT_CLOSED
            producer_slots[slot] = SLOT_CLOSED
        elif attributes[row] & TRANSACTIONAL_MASK:
            slot = find_slot(producers, producer_slots, producer_id)
            if producer_slots[slot] != SLOT_OPEN:
                if 2 * (state[STATE_USED] + 1) > len(producers):
                    return PRODUCERS_TABLE_FULL, row
                state[STATE_USED] += 1
                _open(producers, producer_slots, producer_id)
                first_offsets[slot] = base_offsets[row]
                _open(offsets, offset_slots, base_offsets[row])
        elif state[STATE_USED] > 0:
            slot = find_slot(producers, producer_slots, producer_id)
            if producer_slots[slot] == SLOT_OPEN:
                return PRODUCERS_NOT_TRANSACTIONAL, row
    return PRODUCERS_OK, len(producer_ids)


@compiled
def rehash(
    keys: NDArray[np.int64],
    slots: NDArray[np.uint8],
    first_offsets: NDArray[np.int64],
    new_keys: NDArray[np.int64],
    new_slots: NDArray[np.uint8],
    new_first_offsets: NDArray[np.int64],
) -> int:
    """Move what is open into new tables; return how many slots are then in use."""
    used = 0
    for slot in range(keys.shape[1]):
        if slots[TABLE_PRODUCERS, slot] == SLOT_OPEN:
            new_slot = _open(
                new_keys[TABLE_PRODUCERS], new_slots[TABLE_PRODUCERS], keys[TABLE_PRODUCERS, slot]
            )
            new_first_offsets[new_slot] = first_offsets[slot]
            used += 1
        if slots[TABLE_FIRST_OFFSETS, slot] == SLOT_OPEN:
            _open(
                new_keys[TABLE_FIRST_OFFSETS],
                new_slots[TABLE_FIRST_OFFSETS],
                keys[TABLE_FIRST_OFFSETS, slot],
            )
    return used
