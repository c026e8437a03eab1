"""Producer state of a partition, tracked batch by batch: epochs, sequences, transactions.

The caller allocates and grows the tables. They start empty, since the state before the segment is
not yet known. Values that depend on it are kept separately (see `PRODUCER`).

Source: Kafka's ``LogSegment.updateProducerState``, ``ProducerAppendInfo.append``,
``ProducerStateManager`` and ``LeaderEpochFileCache.assign``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kafka_index.core.format.longs import Longs
from kafka_index.core.format.records import (
    CONTROL_ABORT,
    CONTROL_COMMIT,
    CONTROL_MASK,
    TRANSACTIONAL_MASK,
)
from kafka_index.core.kernels import producer_tables
from kafka_index.core.kernels.compile_cache import compiled
from kafka_index.core.kernels.headers import CONTROL_EMPTY, CONTROL_INVALID, CONTROL_REFUSED
from kafka_index.core.kernels.memory import Integer, Records
from kafka_index.core.kernels.producer_tables import (
    FIRST_MARKER,
    FIRST_NONE,
    FIRST_PLAIN,
    FIRST_TRANSACTIONAL,
    NO_NODE,
    ProducerTables,
    close_transaction,
    drop_closed,
    fill_last_stable_offsets,
    next_open_offset_in,
    open_transaction,
)
from kafka_index.core.kernels.scan import SCAN_COLUMNS, BatchColumns

_reset_entry = compiled(producer_tables.reset_entry)
_change_epoch = compiled(producer_tables.change_epoch)
_add_batch = compiled(producer_tables.add_batch)
_add_marker = compiled(producer_tables.add_marker)
_last_sequence_of = compiled(producer_tables.last_sequence_of)

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
    """Return the row of a producer (-1 for none), and its bucket or the one for inserting it."""
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
    """Update the producer epoch, and record the first batch that affects the state."""
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
    """Track producers and leader epochs through a chunk; stop where recovery would fail.

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
            # As the first batch of its producer, it may end a transaction of an earlier segment.
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
    """Fill in the sequence at each offset delta after a base sequence (`last_sequence_of`)."""
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
