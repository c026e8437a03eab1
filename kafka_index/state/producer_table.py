"""The producers, transactions and leader epochs of a stretch of a log, batch by batch.

A table begins empty, because the past of a segment is not known yet. What it makes of a segment is
a `SegmentState`, which a `PartitionState` completes. Source: Kafka's ``LogSegment.recover`` and
``ProducerStateManager``.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kafka_index.kernels.markers import CONTROL_COMPRESSED, CONTROL_MESSAGE
from kafka_index.kernels.open_transactions import drop_closed
from kafka_index.kernels.producer_columns import (
    ABORT_COLUMNS,
    ABORT_FIRST_OFFSET,
    ABORT_LAST_OFFSET,
    ABORT_NEXT_OPEN_OFFSET,
    ABORT_PRODUCER_ID,
    EPOCH_COLUMNS,
    NO_OFFSET,
    PRODUCER_COLUMNS,
    STATE_ABORTS,
    STATE_EPOCHS,
    STATE_LATEST_EPOCH,
    STATE_NODES,
    STATE_PRODUCERS,
    STATE_SIZE,
    STATE_TRANSACTIONAL,
)
from kafka_index.kernels.producer_state import (
    PRODUCERS_MARKER_INVALID,
    PRODUCERS_MARKER_REFUSED,
    PRODUCERS_NO_ROOM,
    PRODUCERS_NOT_TRANSACTIONAL,
    PRODUCERS_OK,
    PRODUCERS_TRANSACTION_UNKNOWN,
    fill_buckets,
    follow_producers,
)
from kafka_index.layout.producer_state import ABORTED_TXN, PRODUCER_STATE_ENTRY
from kafka_index.layout.records import NO_LEADER_EPOCH
from kafka_index.records.batch_source import COMPRESSED_MARKER, INVALID_MARKER, ScanStop
from kafka_index.records.batch_table import BatchColumns

Longs = NDArray[np.int64]

#: A batch without the transactional flag in a transaction of its producer.
NOT_TRANSACTIONAL = "not_transactional"

_REFUSALS = {
    PRODUCERS_MARKER_REFUSED: "unreadable_marker",
    PRODUCERS_NOT_TRANSACTIONAL: NOT_TRANSACTIONAL,
    PRODUCERS_TRANSACTION_UNKNOWN: "transaction_unknown",
}
#: All reasons for which a table refuses a batch, which recovery comes to after its index entries.
PRODUCER_REFUSALS = frozenset((*_REFUSALS.values(), COMPRESSED_MARKER))

_FIRST_ROWS = 32


class ProducerTable:
    """What batches do to producers and leader epochs.

    Attributes
    ----------
    map_end_offset : int
        The offset after the last record batch; -1 while there is none. Messages of magic 0 and 1
        do not move it. Kafka: ``ProducerStateManager.mapEndOffset``.
    """

    def __init__(self) -> None:
        self._state = np.zeros(STATE_SIZE, np.int64)
        self._state[STATE_LATEST_EPOCH] = NO_LEADER_EPOCH
        self._producers = np.empty((_FIRST_ROWS, PRODUCER_COLUMNS), np.int64)
        self._buckets = np.full(2 * _FIRST_ROWS, -1, np.int64)
        self._nodes = np.empty((_FIRST_ROWS, 2), np.int64)
        self._aborts = np.empty((_FIRST_ROWS, ABORT_COLUMNS), np.int64)
        self._epochs = np.empty((_FIRST_ROWS, EPOCH_COLUMNS), np.int64)
        self.map_end_offset = NO_OFFSET

    @property
    def has_transactions(self) -> bool:
        """Whether any batch so far belongs to a transaction."""
        return bool(self._state[STATE_TRANSACTIONAL])

    @property
    def producers(self) -> Longs:
        """The producers in the order they appeared, columns as in the kernel: a view."""
        return self._producers[: self._state[STATE_PRODUCERS]]

    @property
    def aborts(self) -> Longs:
        """The aborted transactions in the order of their markers, as in the kernel: a view."""
        return self._aborts[: self._state[STATE_ABORTS]]

    @property
    def epochs(self) -> Longs:
        """Leader epochs that rise, with start offset and byte position: a view."""
        return self._epochs[: self._state[STATE_EPOCHS]]

    def follow(self, batches: BatchColumns) -> tuple[int, ScanStop | None]:
        """Follow a chunk.

        Returns
        -------
        tuple of int and (ScanStop or None)
            How many of the batches recovery still takes up into the indexes, and why it goes no
            further than those.
        """
        row = 0
        while True:
            code, row = follow_producers(
                batches.position_bytes,
                batches.base_offset,
                batches.last_offset,
                batches.max_timestamp_ms,
                batches.leader_epoch,
                batches.attributes,
                batches.producer_id,
                batches.control_type,
                batches.producer_epoch,
                batches.base_sequence,
                batches.coordinator_epoch,
                batches.control_timestamp_ms,
                row,
                self._producers,
                self._buckets,
                self._nodes,
                self._aborts,
                self._epochs,
                self._state,
            )
            if code != PRODUCERS_NO_ROOM:
                break
            self._make_room(1)
        if code == PRODUCERS_OK:
            self._advance(batches)
            return len(batches), None
        self._advance(batches.head(row))
        position = int(batches.position_bytes[row])
        # The batch itself is behind recovery already: its entry is made before its producer.
        if code == PRODUCERS_MARKER_INVALID:
            return row + 1, ScanStop(INVALID_MARKER, position)
        reason = _REFUSALS[code]
        if code == PRODUCERS_MARKER_REFUSED and batches.control_type[row] == CONTROL_COMPRESSED:
            reason = COMPRESSED_MARKER
        return row + 1, ScanStop(reason, position, refused=True)

    def _advance(self, batches: BatchColumns) -> None:
        """Move the end of the map after the last record batch (updateMapEndOffset)."""
        row = len(batches) - 1
        if row >= 0 and batches.control_type[row] == CONTROL_MESSAGE:
            rows = np.flatnonzero(batches.control_type != CONTROL_MESSAGE)
            row = int(rows[-1]) if len(rows) else -1
        if row >= 0:
            self.map_end_offset = int((batches.last_offset[row : row + 1] + 1)[0])

    def _make_room(self, more: int) -> None:
        """Let each table take as many rows more, twice what it has where that is less."""
        state = self._state
        count = int(state[STATE_PRODUCERS])
        if count + more > len(self._producers):
            self._producers = _grown(self._producers, count + more)
            self._buckets = np.empty(2 * len(self._producers), np.int64)
            fill_buckets(self._producers, count, self._buckets)
        if state[STATE_NODES] + more > len(self._nodes):
            # Most often that alone makes room: the list grows with what is open at a time.
            drop_closed(self._producers, self._nodes, state)
            if 2 * (state[STATE_NODES] + more) > len(self._nodes):
                self._nodes = _grown(self._nodes, int(state[STATE_NODES]) + more)
        if state[STATE_ABORTS] + more > len(self._aborts):
            self._aborts = _grown(self._aborts, int(state[STATE_ABORTS]) + more)
        if state[STATE_EPOCHS] + more > len(self._epochs):
            self._epochs = _grown(self._epochs, int(state[STATE_EPOCHS]) + more)


def entries_of(producers: Longs) -> NDArray[np.void]:
    """Return rows of the kernel's table of producers as `PRODUCER_STATE_ENTRY`."""
    entries = np.empty(len(producers), PRODUCER_STATE_ENTRY)
    for column, name in enumerate(PRODUCER_STATE_ENTRY.names or ()):
        entries[name] = producers[:, column]
    return entries


def aborted_txns(aborts: Longs) -> NDArray[np.void]:
    """Return rows of the kernel's list of aborted transactions as `ABORTED_TXN`."""
    aborted = np.zeros(len(aborts), ABORTED_TXN)
    aborted["producer_id"] = aborts[:, ABORT_PRODUCER_ID]
    aborted["first_offset"] = aborts[:, ABORT_FIRST_OFFSET]
    aborted["last_offset"] = aborts[:, ABORT_LAST_OFFSET]
    stable = aborts[:, ABORT_NEXT_OPEN_OFFSET]
    aborted["last_stable_offset"] = np.where(
        stable == NO_OFFSET, aborts[:, ABORT_LAST_OFFSET] + 1, stable
    )
    return aborted


def _grown(table: Longs, rows: int) -> Longs:
    """Return a table with the same rows and room for at least twice as many, a power of 2."""
    capacity = max(2 * len(table), 1 << (rows - 1).bit_length())
    larger = np.empty((capacity, table.shape[1]), np.int64)
    larger[: len(table)] = table
    return larger
