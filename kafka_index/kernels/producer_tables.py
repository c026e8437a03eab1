"""The tables that follow the producers of a log, and Kafka's rules for the entry of one producer.

The rules are plain Python over any object with the fields of an entry. The kernel that follows a
scanned log compiles them over rows of its table; a log that grows calls them as they are.

Sources: Kafka's ``ProducerStateEntry``, ``ProducerAppendInfo`` and ``DefaultRecordBatch``.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kafka_index.kernels.big_endian import Integer
from kafka_index.layout.integers import INT32_MAX, Longs
from kafka_index.layout.records import (
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

Records = NDArray[np.record]

#: For an offset: there is none, or it is not known here.
NO_OFFSET = -1


def _record(*names: str) -> np.dtype[Any]:
    """Return the type of a row of integers, whose fields are attributes in Python as in numba."""
    return np.dtype((np.record, [(name, np.int64) for name in names]))


#: A producer: the fields of a snapshot's entry, then what a later look at the past may change.
#:
#: ===================== ==================================================================
#: field                 meaning
#: ===================== ==================================================================
#: node                  place in the list of open transactions, or one of the codes below
#: first_kind            what its first batch was, of those that count: ``FIRST_``
#: first_position_bytes  where that batch is
#: first_epoch           the producer epoch of that batch
#: epoch_changed         whether a later batch had another epoch
#: has_data, has_marker  whether there was a batch of data, a marker
#: first_marker_row      number of its first marker in the segment, -1 for none
#: txn_is_first          whether the open transaction began with its first batch
#: ===================== ==================================================================
PRODUCER = _record(
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

#: What the first batch of a producer was, of those that count (a marker without records does not).
FIRST_NONE, FIRST_TRANSACTIONAL, FIRST_PLAIN, FIRST_MARKER = range(4)

#: An open transaction: its first offset, and whose it is, by the row or the id of the producer;
#: `NO_OWNER` when it has ended.
OPEN_TRANSACTION = _record("first_offset", "owner")
NO_OWNER = -1
#: In ``node``: no transaction is open; or it shares its place in the list with another one that
#: began at the same offset and is named there; or that other one has ended, and the place with it.
NO_NODE, SHARED_NODE, GONE_NODE = -1, -2, -3

#: An aborted transaction. ``row`` is the number of its marker in the segment; ``first_offset`` and
#: ``next_open_offset`` are `NO_OFFSET` where none is known in the segment.
ABORT = _record(
    "row",
    "position_bytes",
    "producer_id",
    "first_offset",
    "last_offset",
    "next_open_offset",
    "may_begin_earlier",
)

#: A leader epoch that is above all before it in the segment.
EPOCH = _record("epoch", "start_offset", "position_bytes")

#: Rows in use of each table; the first open transaction that may still be open; the latest epoch;
#: batches followed; whether one was transactional.
COUNTS = _record(
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

    Parameters
    ----------
    producers : ndarray of PRODUCER, shape (capacity,)
        In the order they appeared.
    buckets : ndarray of int64, shape (a power of 2, twice the producers or more,)
        The hash table over them: rows, -1 for free.
    open_transactions : ndarray of OPEN_TRANSACTION, shape (capacity,)
        By first offset.
    aborts : ndarray of ABORT, shape (capacity,)
        In the order of their markers.
    epochs : ndarray of EPOCH, shape (capacity,)
        Ascending.
    counts : ndarray of COUNTS, shape (1,)
        How much of them is in use.
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

    Notes
    -----
    ProducerStateEntry.maybeUpdateProducerEpoch.
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

    Notes
    -----
    ProducerStateEntry.update, as ProducerAppendInfo.appendEndTxnMarker calls it.
    """
    entry.coordinator_epoch = coordinator_epoch
    entry.timestamp_ms = timestamp_ms
    entry.current_txn_first_offset = NO_OPEN_TXN


def last_sequence_of(base_sequence: Integer, offset_delta: Integer) -> Any:
    """Return the sequence that many records after a base sequence; after 2^31 - 1 comes 0.

    Notes
    -----
    DefaultRecordBatch.lastSequence and incrementSequence. In Java the sums wrap around, which only
    those of a negative delta reach; no broker writes one.
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

    Notes
    -----
    DefaultRecordBatch.decrementSequence.
    """
    if last_sequence < offset_delta:
        return INT32_MAX - (offset_delta - last_sequence) + 1
    return last_sequence - offset_delta
