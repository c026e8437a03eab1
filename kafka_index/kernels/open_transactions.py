"""The list of open transactions, sorted by first offset, and who is the earliest at a marker.

Offsets rise, so a transaction most often goes to the end of the list, and the earliest open one is
at its head. Source: Kafka's ``ProducerStateManager.ongoingTxns`` and what it does with them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kafka_index.kernels.big_endian import Integer
from kafka_index.kernels.compile_cache import compiled
from kafka_index.kernels.producer_columns import (
    GONE_NODE,
    NO_NODE,
    NO_OFFSET,
    NODE_CLOSED,
    NODE_FIRST_OFFSET,
    NODE_PRODUCER,
    PRODUCER_NODE,
    PRODUCER_TXN_FIRST_OFFSET,
    PRODUCER_TXN_IS_FIRST,
    SHARED_NODE,
    STATE_HEAD,
    STATE_NODES,
)


@compiled
def open_transaction(
    producers: NDArray[np.int64],
    nodes: NDArray[np.int64],
    state: NDArray[np.int64],
    row: Integer,
    first_offset: Integer,
) -> None:
    """Put a producer's transaction into the list, which is sorted by first offset."""
    place = state[STATE_NODES]
    # Offsets rise, so this ends at once but in a log that is out of order.
    while place > state[STATE_HEAD] and nodes[place - 1, NODE_FIRST_OFFSET] > first_offset:
        place -= 1
    producers[row, PRODUCER_TXN_FIRST_OFFSET] = first_offset
    before = place - 1
    if (
        before >= state[STATE_HEAD]
        and nodes[before, NODE_FIRST_OFFSET] == first_offset
        and nodes[before, NODE_PRODUCER] != NODE_CLOSED
    ):
        # As in Kafka's map by first offset: the later one takes the place.
        producers[nodes[before, NODE_PRODUCER], PRODUCER_NODE] = SHARED_NODE
        nodes[before, NODE_PRODUCER] = row
        producers[row, PRODUCER_NODE] = before
        return
    for later in range(state[STATE_NODES], place, -1):
        nodes[later] = nodes[later - 1]
        if nodes[later, NODE_PRODUCER] != NODE_CLOSED:
            producers[nodes[later, NODE_PRODUCER], PRODUCER_NODE] = later
    state[STATE_NODES] += 1
    nodes[place, NODE_FIRST_OFFSET] = first_offset
    nodes[place, NODE_PRODUCER] = row
    producers[row, PRODUCER_NODE] = place


@compiled
def close_transaction(
    producers: NDArray[np.int64], nodes: NDArray[np.int64], state: NDArray[np.int64], row: Integer
) -> bool:
    """Take a producer's transaction out of the list; return whether it was there."""
    entry = producers[row]
    node = entry[PRODUCER_NODE]
    if node == SHARED_NODE:
        node = np.int64(GONE_NODE)
        for one in range(state[STATE_HEAD], state[STATE_NODES]):
            is_open = nodes[one, NODE_PRODUCER] != NODE_CLOSED
            if is_open and nodes[one, NODE_FIRST_OFFSET] == entry[PRODUCER_TXN_FIRST_OFFSET]:
                node = np.int64(one)
                producers[nodes[one, NODE_PRODUCER], PRODUCER_NODE] = GONE_NODE
    if node == GONE_NODE:
        return False
    nodes[node, NODE_PRODUCER] = NODE_CLOSED
    while (
        state[STATE_HEAD] < state[STATE_NODES]
        and nodes[state[STATE_HEAD], NODE_PRODUCER] == NODE_CLOSED
    ):
        state[STATE_HEAD] += 1
    entry[PRODUCER_NODE] = NO_NODE
    entry[PRODUCER_TXN_FIRST_OFFSET] = NO_OFFSET
    entry[PRODUCER_TXN_IS_FIRST] = 0
    return True


@compiled
def drop_closed(
    producers: NDArray[np.int64], nodes: NDArray[np.int64], state: NDArray[np.int64]
) -> None:
    """Take the transactions that have ended out of the list."""
    kept = 0
    for node in range(state[STATE_HEAD], state[STATE_NODES]):
        row = nodes[node, NODE_PRODUCER]
        if row != NODE_CLOSED:
            nodes[kept] = nodes[node]
            producers[row, PRODUCER_NODE] = kept
            kept += 1
    state[STATE_HEAD] = 0
    state[STATE_NODES] = kept


@compiled
def next_open_offset(nodes: NDArray[np.int64], state: NDArray[np.int64], row: Integer) -> Any:
    """Return the first offset of the earliest open transaction of another producer."""
    for node in range(state[STATE_HEAD], state[STATE_NODES]):
        if nodes[node, NODE_PRODUCER] != NODE_CLOSED and nodes[node, NODE_PRODUCER] != row:
            return nodes[node, NODE_FIRST_OFFSET]
    return np.int64(NO_OFFSET)


@compiled
def carried_open_offsets(
    first_offsets: NDArray[np.int64],
    producer_ids: NDArray[np.int64],
    end_rows: NDArray[np.int64],
    abort_rows: NDArray[np.int64],
    abort_producer_ids: NDArray[np.int64],
    found: NDArray[np.int64],
) -> None:
    """Find, for each aborted transaction, the earliest one of another producer from before.

    Parameters
    ----------
    first_offsets, producer_ids, end_rows : ndarray of int64, shape (m,)
        Transactions that were open before the segment, by first offset: where they begin, whose
        they are, and the row of the batch that ends them (a large number when none does).
    abort_rows, abort_producer_ids : ndarray of int64, shape (n,)
        The rows of the markers, which rise, and whose they are.
    found : ndarray of int64, shape (n,)
        Filled with first offsets, `NO_OFFSET` where there is none.
    """
    head = 0
    for abort in range(len(abort_rows)):
        row = abort_rows[abort]
        while head < len(end_rows) and end_rows[head] < row:
            head += 1
        found[abort] = NO_OFFSET
        for one in range(head, len(end_rows)):
            if end_rows[one] >= row and producer_ids[one] != abort_producer_ids[abort]:
                found[abort] = first_offsets[one]
                break
