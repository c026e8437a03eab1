"""The list of open transactions, sorted by first offset, and the last stable offset at a marker.

Offsets rise, so a transaction most often goes to the end of the list, and the earliest open one is
at its head. The functions take the tables one by one, and a row of `COUNTS`: each array that is
passed costs two updates of its reference count. The rule of the last stable offset is plain Python:
kernels call it compiled, a log that grows as it is.

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
    NO_OWNER,
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
        and nodes[before].owner != NO_OWNER
    ):
        # As in Kafka's map by first offset: the later one takes the place.
        producers[nodes[before].owner].node = SHARED_NODE
        nodes[before].owner = row
        producers[row].node = before
        return
    for later in range(counts.open_transactions, place, -1):
        nodes[later] = nodes[later - 1]
        if nodes[later].owner != NO_OWNER:
            producers[nodes[later].owner].node = later
    counts.open_transactions += 1
    nodes[place].first_offset = first_offset
    nodes[place].owner = row
    producers[row].node = place


@compiled
def close_transaction(producers: Records, nodes: Records, counts: Any, row: Integer) -> bool:
    """Remove a producer's transaction from the list; return whether it was there."""
    entry = producers[row]
    node = entry.node
    if node == SHARED_NODE:
        node = np.int64(GONE_NODE)
        for place in range(counts.head, counts.open_transactions):
            is_open = nodes[place].owner != NO_OWNER
            if is_open and nodes[place].first_offset == entry.current_txn_first_offset:
                node = np.int64(place)
                producers[nodes[place].owner].node = GONE_NODE
    if node == GONE_NODE:
        return False
    nodes[node].owner = NO_OWNER
    while counts.head < counts.open_transactions and nodes[counts.head].owner == NO_OWNER:
        counts.head += 1
    entry.node = NO_NODE
    entry.txn_is_first = 0
    return True


@compiled
def drop_closed(producers: Records, nodes: Records, counts: Any) -> None:
    """Remove the transactions that have ended from the list."""
    kept = 0
    for node in range(counts.head, counts.open_transactions):
        row = nodes[node].owner
        if row != NO_OWNER:
            nodes[kept] = nodes[node]
            producers[row].node = kept
            kept += 1
    counts.head = 0
    counts.open_transactions = kept


def next_open_offset(transactions: Any, first: Integer, end: Integer, owner: Integer) -> Any:
    """Return where the earliest open transaction of another owner begins, `NO_OFFSET` for none.

    Parameters
    ----------
    transactions : sequence
        By first offset; anything with the fields of `OPEN_TRANSACTION`.
    first, end : int
        Which of them to look at.
    owner : int
        The producer whose transaction has ended.
    """
    for place in range(first, end):
        if transactions[place].owner != NO_OWNER and transactions[place].owner != owner:
            return transactions[place].first_offset
    return NO_OFFSET


def last_stable_offset(next_open_offset: Integer, last_offset: Integer) -> Any:
    """Return the last stable offset once a transaction has ended.

    Parameters
    ----------
    next_open_offset : int
        Where the earliest one of another producer begins, `NO_OFFSET` for none.
    last_offset : int
        Where the transaction has ended: the offset of its marker.

    Notes
    -----
    ProducerStateManager.lastStableOffset.
    """
    return last_offset + 1 if next_open_offset == NO_OFFSET else next_open_offset


next_open_offset_in: Any = compiled(next_open_offset)
_last_stable_offset: Any = compiled(last_stable_offset)


@compiled
def fill_last_stable_offsets(
    earlier: Records,
    end_rows: NDArray[np.int64],
    by_end: NDArray[np.int64],
    aborts: Records,
    found: NDArray[np.int64],
) -> None:
    """Find the last stable offset after each aborted transaction of a segment.

    Parameters
    ----------
    earlier : ndarray of OPEN_TRANSACTION, shape (m,)
        Transactions that were open before the segment, by first offset, each owned by its producer
        id; those that end in the segment are closed.
    end_rows : ndarray of int64, shape (m,)
        The row of the batch that ends each (a large number when none does).
    by_end : ndarray of int64, shape (m,)
        The order of these.
    aborts : ndarray of ABORT, shape (n,)
        The aborted transactions, in the order of their markers.
    found : ndarray of int64, shape (n,)
        Filled.
    """
    head = 0
    ended = 0
    for number in range(len(aborts)):
        abort = aborts[number]
        while ended < len(by_end) and end_rows[by_end[ended]] < abort.row:
            earlier[by_end[ended]].owner = NO_OWNER
            ended += 1
        while head < len(earlier) and earlier[head].owner == NO_OWNER:
            head += 1
        offset = next_open_offset_in(earlier, head, len(earlier), abort.producer_id)
        within = abort.next_open_offset
        if offset == NO_OFFSET or (within != NO_OFFSET and within < offset):
            offset = within
        found[number] = _last_stable_offset(offset, abort.last_offset)
