"""The tables that follow the producers of a log, and Kafka's rules for the entry of one producer.

The rules are plain Python over any object with the fields of an entry. The kernel that follows a
scanned log compiles them over rows of its table; a log that grows calls them as they are.

Open transactions are a list sorted by first offset. Offsets rise, so a transaction most often goes
to the end of the list, and the earliest open one is at its head. The functions take the tables one
by one, and a row of `COUNTS`: each array that is passed costs two updates of its reference count.

Sources: Kafka's ``ProducerStateEntry``, ``ProducerAppendInfo``, ``DefaultRecordBatch``, and
``ProducerStateManager.ongoingTxns``, ``lastStableOffset`` and ``completeTxn``.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kafka_index.core.format.integers import INT32_MAX
from kafka_index.core.format.longs import Longs
from kafka_index.core.format.records import (
    NO_COORDINATOR_EPOCH,
    NO_LAST_OFFSET,
    NO_LEADER_EPOCH,
    NO_OFFSET_DELTA,
    NO_OPEN_TXN,
    NO_PRODUCER_EPOCH,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    PRODUCER_STATE_ENTRY,
)
from kafka_index.core.kernels.compile_cache import compiled
from kafka_index.core.kernels.memory import Integer, Records, record_type

#: For an offset: there is none, or it is not known here.
NO_OFFSET = -1


#: A producer: the fields of a snapshot's entry, then what a later look at the past may change.
#:
#: ===================== ==================================================================
#: field                 meaning
#: ===================== ==================================================================
#: node                  place in the list of open transactions, or one of the codes below
#: first_kind            kind of its first batch that counts: ``FIRST_``
#: first_position_bytes  where that batch is
#: first_epoch           the producer epoch of that batch
#: epoch_changed         whether a later batch had another epoch
#: has_data, has_marker  whether there was a batch of data, a marker
#: first_marker_row      number of its first marker in the segment, -1 for none
#: txn_is_first          whether the open transaction began with its first batch
#: ===================== ==================================================================
PRODUCER = record_type(
    *(PRODUCER_STATE_ENTRY.names or ()),
    "node",
    "first_kind",
    "first_position_bytes",
    "first_epoch",
    "epoch_changed",
    "has_data",
    "has_marker",
    "first_marker_row",
    "txn_is_first",
)

#: The kind of the first batch of a producer that counts (a marker without records does not).
FIRST_NONE, FIRST_TRANSACTIONAL, FIRST_PLAIN, FIRST_MARKER = range(4)

#: An open transaction: its first offset, and whose it is, by the row or the id of the producer;
#: `NO_OWNER` when it has ended.
OPEN_TRANSACTION = record_type("first_offset", "owner")
NO_OWNER = -1
#: In ``node``: no transaction is open; or it shares its place in the list with another, which began
#: at the same offset and is named there; or that other one has ended, and the place with it.
NO_NODE, SHARED_NODE, GONE_NODE = -1, -2, -3

#: An aborted transaction. ``row`` is the number of its marker in the segment; ``first_offset`` and
#: ``next_open_offset`` are `NO_OFFSET` where none is known in the segment.
ABORT = record_type(
    "row",
    "position_bytes",
    "producer_id",
    "first_offset",
    "last_offset",
    "next_open_offset",
    "may_begin_earlier",
)

#: A leader epoch that is above all before it in the segment.
EPOCH = record_type("epoch", "start_offset", "position_bytes")

#: Rows in use of each table; the first open transaction that may still be open; the latest epoch;
#: batches followed; whether one was transactional.
COUNTS = record_type(
    "producers",
    "open_transactions",
    "head",
    "aborts",
    "epochs",
    "latest_epoch",
    "batches",
    "has_transactions",
)


class ProducerTables(NamedTuple):
    """The state of the producers of a stretch of a log.

    `producers` (PRODUCER, (capacity,)): in the order they appeared; `buckets` (int64, (a power of
    2, twice the producers or more,)): the hash table over them: rows, -1 for free;
    `open_transactions` (OPEN_TRANSACTION, (capacity,)): by first offset; `aborts` (ABORT,
    (capacity,)): in the order of their markers; `epochs` (EPOCH, (capacity,)): ascending; `counts`
    (COUNTS, (1,)): how much of them is in use.
    """

    producers: Records
    buckets: Longs
    open_transactions: Records
    aborts: Records
    epochs: Records
    counts: Records

    @classmethod
    def empty(cls, rows: int) -> ProducerTables:
        """Return tables with room for some rows, a power of 2."""
        counts = np.zeros(1, COUNTS)
        counts["latest_epoch"] = NO_LEADER_EPOCH
        return cls(
            np.empty(rows, PRODUCER),
            np.full(2 * rows, -1, np.int64),
            np.empty(rows, OPEN_TRANSACTION),
            np.empty(rows, ABORT),
            np.empty(rows, EPOCH),
            counts,
        )


def reset_entry(entry: Any, producer_id: Integer) -> None:
    """Make the entry of a producer without any batch (ProducerStateEntry.empty)."""
    entry.producer_id = producer_id
    entry.producer_epoch = NO_PRODUCER_EPOCH
    entry.last_sequence = NO_SEQUENCE
    entry.last_offset = NO_LAST_OFFSET
    entry.offset_delta = NO_OFFSET_DELTA
    entry.timestamp_ms = NO_TIMESTAMP
    entry.coordinator_epoch = NO_COORDINATOR_EPOCH
    entry.current_txn_first_offset = NO_OPEN_TXN


def change_epoch(entry: Any, epoch: Integer) -> bool:
    """Forget the last batch when its producer epoch is another one; return whether it is.

    Source: ``ProducerStateEntry.maybeUpdateProducerEpoch``.
    """
    if entry.producer_epoch == epoch:
        return False
    entry.last_sequence = NO_SEQUENCE
    entry.last_offset = NO_LAST_OFFSET
    entry.offset_delta = NO_OFFSET_DELTA
    entry.producer_epoch = epoch
    return True


def add_batch(
    entry: Any,
    last_sequence: Integer,
    last_offset: Integer,
    offset_delta: Integer,
    timestamp_ms: Integer,
) -> None:
    """Record a batch of data of the entry's epoch (ProducerStateEntry.addBatch)."""
    entry.last_sequence = last_sequence
    entry.last_offset = last_offset
    entry.offset_delta = offset_delta
    entry.timestamp_ms = timestamp_ms


def add_marker(entry: Any, coordinator_epoch: Integer, timestamp_ms: Integer) -> None:
    """Record a marker of the entry's epoch, which ends its transaction.

    Source: ``ProducerStateEntry.update``, as ``ProducerAppendInfo.appendEndTxnMarker`` calls it.
    """
    entry.coordinator_epoch = coordinator_epoch
    entry.timestamp_ms = timestamp_ms
    entry.current_txn_first_offset = NO_OPEN_TXN


def last_sequence_of(base_sequence: Integer, offset_delta: Integer) -> Any:
    """Return the sequence that many records after a base sequence; after 2^31 - 1 comes 0.

    Source: ``DefaultRecordBatch.lastSequence`` and ``incrementSequence``. In Java the sums wrap
    around, which only those of a negative delta reach; no broker writes one.
    """
    if base_sequence == NO_SEQUENCE:
        return base_sequence
    if offset_delta < 0:
        sequence = base_sequence + offset_delta
        if base_sequence > -(2**31) - 1 - offset_delta:
            sequence -= 2**31
        return ((sequence + 2**31) & (2**32 - 1)) - 2**31
    if base_sequence > INT32_MAX - offset_delta:
        return offset_delta - (INT32_MAX - base_sequence) - 1
    return base_sequence + offset_delta


def first_sequence_of(last_sequence: Integer, offset_delta: Integer) -> Any:
    """Return the sequence of the first record of a batch.

    Source: ``DefaultRecordBatch.decrementSequence``.
    """
    if last_sequence < offset_delta:
        return INT32_MAX - (offset_delta - last_sequence) + 1
    return last_sequence - offset_delta


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

    `transactions` (sequence): by first offset; anything with the fields of `OPEN_TRANSACTION`.
    `first`, `end`: which of them to look at; `owner`: the producer whose transaction has ended.
    """
    for place in range(first, end):
        if transactions[place].owner != NO_OWNER and transactions[place].owner != owner:
            return transactions[place].first_offset
    return NO_OFFSET


def last_stable_offset(next_open_offset: Integer, last_offset: Integer) -> Any:
    """Return the last stable offset once a transaction has ended.

    `next_open_offset`: where the earliest one of another producer begins, `NO_OFFSET` for none;
    `last_offset`: where the transaction has ended: the offset of its marker.

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

    `earlier` (OPEN_TRANSACTION, (m,)): transactions that were open before the segment, by first
    offset, each owned by its producer id; transactions that end in the segment are closed.
    `end_rows` (int64, (m,)): the row of the batch that ends each (a large number when none does);
    `by_end` (int64, (m,)): the order of these; `aborts` (ABORT, (n,)): the aborted transactions, in
    the order of their markers; `found` (int64, (n,)): filled.
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
