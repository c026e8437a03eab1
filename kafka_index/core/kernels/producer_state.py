"""Producer state of a partition, tracked batch by batch: epochs, sequences, transactions.

The caller allocates and grows the tables. They start empty, because the producer state before the
segment is not known yet. Values that depend on that earlier state are kept separately (see
`PRODUCER`).

Source: Kafka's ``LogSegment.updateProducerState``, ``ProducerAppendInfo.append``,
``ProducerStateManager`` and ``LeaderEpochFileCache.assign``.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kafka_index.core.format.integers import INT32_MAX
from kafka_index.core.format.longs import Longs
from kafka_index.core.format.records import (
    CONTROL_ABORT,
    CONTROL_COMMIT,
    CONTROL_MASK,
    NO_COORDINATOR_EPOCH,
    NO_LAST_OFFSET,
    NO_LEADER_EPOCH,
    NO_OFFSET_DELTA,
    NO_OPEN_TXN,
    NO_PRODUCER_EPOCH,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    PRODUCER_STATE_ENTRY,
    TRANSACTIONAL_MASK,
)
from kafka_index.core.kernels.compile_cache import compiled
from kafka_index.core.kernels.headers import CONTROL_EMPTY, CONTROL_INVALID, CONTROL_REFUSED
from kafka_index.core.kernels.memory import Integer, Records, record_type
from kafka_index.core.kernels.scan import SCAN_COLUMNS, BatchColumns

#: The offset does not exist or is unknown.
NO_OFFSET = -1


#: A producer: the fields of a snapshot entry, then fields for merging with earlier segments.
#:
#: ===================== ==================================================================
#: field                 meaning
#: ===================== ==================================================================
#: node                  place in the list of open transactions, or one of the codes below
#: first_kind            ``FIRST_`` kind of the first batch that changes the producer state
#: first_position_bytes  position of that batch in the log
#: first_epoch           producer epoch of that batch
#: epoch_changed         whether a later batch had another producer epoch
#: has_data, has_marker  whether there was a data batch, and a transaction marker
#: first_marker_row      number of the batch with the first marker, -1 for none
#: txn_is_first          whether the producer's first batch began the open transaction
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

#: Kind of the first batch that changes the state of a producer. Control batches without records do
#: not change it.
FIRST_NONE, FIRST_TRANSACTIONAL, FIRST_PLAIN, FIRST_MARKER = range(4)

#: An open transaction: its first offset, and its owner: the row or the ID of its producer, or
#: `NO_OWNER` after the transaction has ended.
OPEN_TRANSACTION = record_type("first_offset", "owner")
NO_OWNER = -1
#: Values of ``node`` besides a place in the list: the producer has no open transaction; its
#: transaction shares the list entry of a later one with the same first offset; or an earlier
#: transaction that shared the list entry has ended and removed it.
NO_NODE, SHARED_NODE, GONE_NODE = -1, -2, -3

#: An aborted transaction. ``row`` is the number of the batch with its marker in the segment.
#: ``first_offset`` and ``next_open_offset`` are `NO_OFFSET` if they cannot be determined from the
#: segment.
ABORT = record_type(
    "row",
    "position_bytes",
    "producer_id",
    "first_offset",
    "last_offset",
    "next_open_offset",
    "may_begin_earlier",
)

#: A leader epoch above all earlier ones in the segment.
EPOCH = record_type("epoch", "start_offset", "position_bytes")

#: Used rows of each table; the head of the list of open transactions; the latest epoch; the number
#: of batches tracked; whether any batch was transactional.
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
    """Producer state over a range of a log.

    `producers` (PRODUCER, (capacity,)): in order of appearance. `buckets` (int64, (a power of 2, at
    least twice the producers,)): hash table of their rows, -1 for free. `open_transactions`
    (OPEN_TRANSACTION, (capacity,)): by first offset. `aborts` (ABORT, (capacity,)): in the order of
    their markers. `epochs` (EPOCH, (capacity,)): ascending. `counts` (COUNTS, (1,)): how many rows
    are in use.
    """

    producers: Records
    buckets: Longs
    open_transactions: Records
    aborts: Records
    epochs: Records
    counts: Records

    @classmethod
    def empty(cls, rows: int) -> ProducerTables:
        """Return empty tables with a capacity of `rows`, a power of 2."""
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
    """Reset the entry of a producer without batches (ProducerStateEntry.empty)."""
    entry.producer_id = producer_id
    entry.producer_epoch = NO_PRODUCER_EPOCH
    entry.last_sequence = NO_SEQUENCE
    entry.last_offset = NO_LAST_OFFSET
    entry.offset_delta = NO_OFFSET_DELTA
    entry.timestamp_ms = NO_TIMESTAMP
    entry.coordinator_epoch = NO_COORDINATOR_EPOCH
    entry.current_txn_first_offset = NO_OPEN_TXN


def change_epoch(entry: Any, epoch: Integer) -> bool:
    """Clear the last batch if the producer epoch changes; return whether it changes.

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
    """Add a data batch with the entry's producer epoch (ProducerStateEntry.addBatch)."""
    entry.last_sequence = last_sequence
    entry.last_offset = last_offset
    entry.offset_delta = offset_delta
    entry.timestamp_ms = timestamp_ms


def add_marker(entry: Any, coordinator_epoch: Integer, timestamp_ms: Integer) -> None:
    """Add a transaction marker with the entry's producer epoch, which ends the transaction.

    Source: ``ProducerStateEntry.update``, called by ``ProducerAppendInfo.appendEndTxnMarker``.
    """
    entry.coordinator_epoch = coordinator_epoch
    entry.timestamp_ms = timestamp_ms
    entry.current_txn_first_offset = NO_OPEN_TXN


def last_sequence_of(base_sequence: Integer, offset_delta: Integer) -> Any:
    """Return the sequence `offset_delta` records after a base sequence; 2^31 - 1 wraps to 0.

    Source: ``DefaultRecordBatch.lastSequence`` and ``incrementSequence``. Java's integer overflow
    is not reproduced: it needs a negative delta, which no broker writes.
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
    """Insert a producer's transaction into the list of open ones, sorted by first offset."""
    head, place = counts.head, counts.open_transactions
    # The loop ends immediately unless offsets in the log decrease.
    while place > head and nodes[place - 1].first_offset > first_offset:
        place -= 1
    producers[row].current_txn_first_offset = first_offset
    before = place - 1
    if (
        before >= head
        and nodes[before].first_offset == first_offset
        and nodes[before].owner != NO_OWNER
    ):
        # As in Kafka's `ongoingTxns`, a later transaction with the same first offset replaces the
        # earlier one.
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
    """Remove a producer's transaction from the list; return whether there was one."""
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
    """Remove transactions that have ended from the list."""
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
    """Return the first offset of the earliest open transaction of another owner.

    `NO_OFFSET` for none. `transactions`: by first offset, objects with the fields of
    `OPEN_TRANSACTION`. `first`, `end`: range to search. `owner`: the producer whose transaction has
    ended.
    """
    for place in range(first, end):
        if transactions[place].owner != NO_OWNER and transactions[place].owner != owner:
            return transactions[place].first_offset
    return NO_OFFSET


def last_stable_offset(next_open_offset: Integer, last_offset: Integer) -> Any:
    """Return the last stable offset after a transaction has ended.

    `next_open_offset`: first offset of the earliest open transaction of another producer,
    `NO_OFFSET` for none. `last_offset`: offset of the marker. Source:
    ``ProducerStateManager.lastStableOffset``.
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
    """Compute the last stable offset after each aborted transaction of a segment.

    `earlier` (OPEN_TRANSACTION, (m,)): transactions that were open before the segment, by first
    offset, owned by producer IDs; the owner of a transaction that ends in the segment is set to
    `NO_OWNER`. `end_rows` (int64, (m,)): the row of the batch that ends each transaction, or a
    large number if no batch of the segment does. `by_end` (int64, (m,)): the sort order of
    `end_rows`. `aborts` (ABORT, (n,)): aborted transactions in the order of their markers. `found`
    (int64, (n,)): filled.
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


_reset_entry = compiled(reset_entry)
_change_epoch = compiled(change_epoch)
_add_batch = compiled(add_batch)
_add_marker = compiled(add_marker)
_last_sequence_of = compiled(last_sequence_of)

#: Results of `follow_producers`.
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
def find_producer(producers: Records, buckets: Longs, producer_id: Integer) -> tuple[Any, Any]:
    """Return the row of a producer (-1 for none), and its hash bucket or a free one for it."""
    mask = np.uint64(len(buckets) - 1)
    bucket = ((np.uint64(producer_id) * _MULTIPLIER) >> _HIGH_HALF) & mask
    while buckets[bucket] >= 0 and producers[buckets[bucket]].producer_id != producer_id:
        bucket = (bucket + np.uint64(1)) & mask
    return buckets[bucket], np.int64(bucket)


@compiled
def fill_buckets(tables: ProducerTables) -> None:
    producers, buckets = tables.producers, tables.buckets
    buckets[:] = -1
    for row in range(tables.counts[0].producers):
        _, bucket = find_producer(producers, buckets, producers[row].producer_id)
        buckets[bucket] = row


@compiled
def add_producer(
    producers: Records, buckets: Longs, counts: Any, producer_id: Integer, bucket: Integer
) -> Any:
    """Add a producer without batches; return its row."""
    row = counts.producers
    counts.producers += 1
    buckets[bucket] = row
    entry = producers[row]
    _reset_entry(entry, producer_id)
    entry.node = NO_NODE
    entry.first_kind = FIRST_NONE
    entry.first_position_bytes = 0
    entry.first_epoch = 0
    entry.epoch_changed = 0
    entry.has_data = 0
    entry.has_marker = 0
    entry.first_marker_row = -1
    entry.txn_is_first = 0
    return row


@compiled
def _follow_epoch(entry: Any, kind: int, position: Integer, epoch: Integer) -> None:
    """Update the producer epoch, and record the first batch that changes the producer state."""
    if _change_epoch(entry, epoch) and entry.first_kind != FIRST_NONE:
        entry.epoch_changed = 1
    if entry.first_kind == FIRST_NONE:
        entry.first_kind = kind
        entry.first_position_bytes = position
        entry.first_epoch = epoch


@compiled
def follow_producers(  # noqa: PLR0911, PLR0912, PLR0915, C901, because it is one loop, and hot
    batches: BatchColumns, first_row: int, tables: ProducerTables
) -> tuple[int, int]:
    """Track producers and leader epochs through a chunk, up to a batch that ends recovery.

    `batches`: the chunk, in file order; columns from ``attributes`` on are used only for batches
    with a producer ID. `first_row`: the row to start at. `tables`: updated in place. Returns a
    ``PRODUCERS_`` code and its row (n if there is none). After `PRODUCERS_NO_ROOM`, only the leader
    epoch of that row has been recorded.
    """
    # Local names: accessing a tuple field in the loop would update reference counts.
    (
        position_bytes,
        _,
        base_offsets,
        last_offsets,
        max_timestamps,
        leader_epochs,
        attributes,
        producer_ids,
        control_types,
        producer_epochs,
        base_sequences,
        coordinator_epochs,
        control_timestamps,
        _,
        _,
    ) = batches
    producers, buckets, nodes, aborts, epochs, all_counts = tables
    counts = all_counts[0]
    count = len(producer_ids)
    latest_epoch = counts.latest_epoch
    for row in range(first_row, count):
        leader_epoch = leader_epochs[row]
        if leader_epoch > latest_epoch:
            if counts.epochs == len(epochs):
                return PRODUCERS_NO_ROOM, row
            epoch_row = epochs[counts.epochs]
            epoch_row.epoch = leader_epoch
            epoch_row.start_offset = base_offsets[row]
            epoch_row.position_bytes = position_bytes[row]
            counts.epochs += 1
            counts.latest_epoch = latest_epoch = leader_epoch
        producer_id = producer_ids[row]
        if producer_id < 0:
            continue
        if counts.open_transactions == len(nodes):
            # This usually frees enough space, since few transactions are open at a time.
            drop_closed(producers, nodes, counts)
            if 2 * counts.open_transactions >= len(nodes):
                return PRODUCERS_NO_ROOM, row
        if counts.producers == len(producers) or counts.aborts == len(aborts):
            return PRODUCERS_NO_ROOM, row
        flags = attributes[row]
        control = np.int64(CONTROL_COMMIT)
        is_control = flags & CONTROL_MASK != 0
        if is_control:
            control = control_types[row]
            if control == CONTROL_INVALID:
                return PRODUCERS_MARKER_INVALID, row
            # `CONTROL_REFUSED` and all lower codes are errors, including compressed markers.
            if control <= CONTROL_REFUSED or control > CONTROL_COMMIT:
                return PRODUCERS_MARKER_REFUSED, row
        number, bucket = find_producer(producers, buckets, producer_id)
        epoch = producer_epochs[row]
        if number < 0:
            number = add_producer(producers, buckets, counts, producer_id, bucket)
        if control == CONTROL_EMPTY:
            continue
        entry = producers[number]
        is_transactional = flags & TRANSACTIONAL_MASK != 0
        if is_transactional:
            counts.has_transactions = 1
        is_first = entry.first_kind == FIRST_NONE
        if is_control:
            _follow_epoch(entry, FIRST_MARKER, position_bytes[row], epoch)
            if entry.has_marker == 0:
                entry.has_marker = 1
                entry.first_marker_row = counts.batches + row
            # If this is the producer's first batch, it may end a transaction that began in an
            # earlier segment.
            if control == CONTROL_ABORT and (entry.node != NO_NODE or is_first):
                abort = aborts[counts.aborts]
                abort.row = counts.batches + row
                abort.position_bytes = position_bytes[row]
                abort.producer_id = producer_id
                abort.first_offset = entry.current_txn_first_offset
                abort.last_offset = base_offsets[row]
                abort.next_open_offset = next_open_offset_in(
                    nodes, counts.head, counts.open_transactions, number
                )
                abort.may_begin_earlier = entry.txn_is_first
                counts.aborts += 1
            if entry.node != NO_NODE and not close_transaction(producers, nodes, counts, number):
                return PRODUCERS_TRANSACTION_UNKNOWN, row
            _add_marker(entry, coordinator_epochs[row], control_timestamps[row])
            continue
        if not is_transactional and entry.node != NO_NODE:
            return PRODUCERS_NOT_TRANSACTIONAL, row
        kind = FIRST_TRANSACTIONAL if is_transactional else FIRST_PLAIN
        _follow_epoch(entry, kind, position_bytes[row], epoch)
        base_offset, last_offset = base_offsets[row], last_offsets[row]
        offset_delta = last_offset - base_offset
        entry.has_data = 1
        last_sequence = _last_sequence_of(base_sequences[row], offset_delta)
        timestamp_ms = max_timestamps[row]
        _add_batch(entry, last_sequence, last_offset, offset_delta, timestamp_ms)
        if is_transactional and entry.node == NO_NODE:
            open_transaction(producers, nodes, counts, number, base_offset)
            entry.txn_is_first = is_first
    counts.batches += count
    return PRODUCERS_OK, count


@compiled
def fill_last_sequences(base_sequences: Longs, offset_deltas: Longs, found: Longs) -> None:
    """Compute, for each row, the sequence at an offset delta after a base sequence."""
    for row in range(len(found)):
        found[row] = _last_sequence_of(base_sequences[row], offset_deltas[row])


def warm_up() -> None:
    nothing = np.empty(0, np.int64)
    tables = ProducerTables.empty(1)
    follow_producers(BatchColumns(*(nothing,) * SCAN_COLUMNS), 0, tables)
    fill_buckets(tables)
    fill_last_sequences(nothing, nothing, nothing)
    drop_closed(tables.producers, tables.open_transactions, tables.counts[0])
    fill_last_stable_offsets(
        tables.open_transactions[:0], nothing, nothing, tables.aborts[:0], nothing
    )
