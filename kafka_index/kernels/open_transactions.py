"""The list of open transactions, sorted by first offset, and who is the earliest at a marker.

Offsets rise, so a transaction most often goes to the end of the list, and the earliest open one is
at its head. The functions take the tables one by one, and a row of `COUNTS`: each array that is
passed costs two updates of its reference count.

Source: Kafka's ``ProducerStateManager.ongoingTxns``, ``lastStableOffset`` and ``completeTxn``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kafka_index.kernels.big_endian import Integer
from kafka_index.kernels.compile_cache import compiled
from kafka_index.kernels.producer_tables import (
    GONE_NODE,
    NO_NODE,
    NO_OFFSET,
    NODE_CLOSED,
    SHARED_NODE,
    Records,
)


@compiled
def open_transaction(
    producers: Records, nodes: Records, counts: Any, row: Integer, first_offset: Integer
) -> None:
    """Put a producer's transaction into the list, which is sorted by first offset."""
    head, place = counts.head, counts.open_transactions
    # Offsets rise, so this ends at once but in a log that is out of order.
    while place > head and nodes[place - 1].first_offset > first_offset:
        place -= 1
    producers[row].current_txn_first_offset = first_offset
    before = place - 1
    if (
        before >= head
        and nodes[before].first_offset == first_offset
        and nodes[before].producer_row != NODE_CLOSED
    ):
        # As in Kafka's map by first offset: the later one takes the place.
        producers[nodes[before].producer_row].node = SHARED_NODE
        nodes[before].producer_row = row
        producers[row].node = before
        return
    for later in range(counts.open_transactions, place, -1):
        nodes[later] = nodes[later - 1]
        if nodes[later].producer_row != NODE_CLOSED:
            producers[nodes[later].producer_row].node = later
    counts.open_transactions += 1
    nodes[place].first_offset = first_offset
    nodes[place].producer_row = row
    producers[row].node = place


@compiled
def close_transaction(producers: Records, nodes: Records, counts: Any, row: Integer) -> bool:
    """Remove a producer's transaction from the list; return whether it was there."""
    entry = producers[row]
    node = entry.node
    if node == SHARED_NODE:
        node = np.int64(GONE_NODE)
        for place in range(counts.head, counts.open_transactions):
            is_open = nodes[place].producer_row != NODE_CLOSED
            if is_open and nodes[place].first_offset == entry.current_txn_first_offset:
                node = np.int64(place)
                producers[nodes[place].producer_row].node = GONE_NODE
    if node == GONE_NODE:
        return False
    nodes[node].producer_row = NODE_CLOSED
    while counts.head < counts.open_transactions and nodes[counts.head].producer_row == NODE_CLOSED:
        counts.head += 1
    entry.node = NO_NODE
    entry.txn_is_first = 0
    return True


@compiled
def drop_closed(producers: Records, nodes: Records, counts: Any) -> None:
    """Remove the transactions that have ended from the list."""
    kept = 0
    for node in range(counts.head, counts.open_transactions):
        row = nodes[node].producer_row
        if row != NODE_CLOSED:
            nodes[kept] = nodes[node]
            producers[row].node = kept
            kept += 1
    counts.head = 0
    counts.open_transactions = kept


@compiled
def next_open_offset(nodes: Records, counts: Any, row: Integer) -> Any:
    """Return the first offset of the earliest open transaction of another producer."""
    for node in range(counts.head, counts.open_transactions):
        if nodes[node].producer_row != NODE_CLOSED and nodes[node].producer_row != row:
            return nodes[node].first_offset
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
        for earlier in range(head, len(end_rows)):
            if end_rows[earlier] >= row and producer_ids[earlier] != abort_producer_ids[abort]:
                found[abort] = first_offsets[earlier]
                break
