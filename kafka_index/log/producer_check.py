"""Whether recovery would get through the producers and epochs of a segment.

The state begins empty, as it is for a segment that is recovered on its own.
Source: Kafka's ``LogSegment.updateProducerState`` and what it calls.
"""

from __future__ import annotations

import numpy as np

from kafka_index.kernels import rehash, track_producers
from kafka_index.kernels.transactions import (
    PRODUCERS_ABORT_OFFSET_BACKWARD,
    PRODUCERS_EPOCH_OFFSET_NEGATIVE,
    PRODUCERS_MARKER_INVALID,
    PRODUCERS_MARKER_REFUSED,
    PRODUCERS_NOT_TRANSACTIONAL,
    PRODUCERS_OK,
    PRODUCERS_TABLE_FULL,
    PRODUCERS_TRANSACTION_UNKNOWN,
    SLOT_OPEN,
    STATE_LATEST_EPOCH,
    STATE_SIZE,
    STATE_TRANSACTIONAL,
    STATE_USED,
)
from kafka_index.log.batch_table import BatchColumns
from kafka_index.log.source import INVALID_MARKER, ScanStop

_FIRST_SLOTS = 64

_REFUSALS = {
    PRODUCERS_MARKER_REFUSED: "unreadable_marker",
    PRODUCERS_NOT_TRANSACTIONAL: "not_transactional",
    PRODUCERS_TRANSACTION_UNKNOWN: "transaction_unknown",
    PRODUCERS_ABORT_OFFSET_BACKWARD: "abort_offset_backward",
    PRODUCERS_EPOCH_OFFSET_NEGATIVE: "epoch_offset_negative",
}


class ProducerCheck:
    """The producers and epochs of one segment, as far as recovery may fail on them."""

    def __init__(self) -> None:
        self._make_tables(_FIRST_SLOTS)
        self._state = np.zeros(STATE_SIZE, np.int64)
        self._state[STATE_LATEST_EPOCH] = -1

    @property
    def has_transactions(self) -> bool:
        """Whether any batch so far belongs to a transaction."""
        return bool(self._state[STATE_TRANSACTIONAL])

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
            code, row = track_producers(
                batches.base_offset,
                batches.leader_epoch,
                batches.producer_id,
                batches.attributes,
                batches.control_type,
                row,
                self._keys,
                self._slots,
                self._first_offsets,
                self._state,
            )
            if code != PRODUCERS_TABLE_FULL:
                break
            self._grow()
        if code == PRODUCERS_OK:
            return len(batches), None
        position = int(batches.position_bytes[row])
        # The batch itself is behind recovery already: its entry is made before its producer.
        if code == PRODUCERS_MARKER_INVALID:
            return row + 1, ScanStop(INVALID_MARKER, position)
        return row + 1, ScanStop(_REFUSALS[code], position, refused=True)

    def _make_tables(self, slots: int) -> None:
        self._keys = np.zeros((2, slots), np.int64)
        self._slots = np.zeros((2, slots), np.uint8)
        self._first_offsets = np.zeros(slots, np.int64)

    def _grow(self) -> None:
        keys, slots, first_offsets = self._keys, self._slots, self._first_offsets
        # Only open transactions move: most often that alone makes room, and the tables do not grow
        # with the transactions of a log, only with those that are open at a time.
        length = keys.shape[1]
        open_transactions = int(np.count_nonzero(slots == SLOT_OPEN, axis=1).max())
        self._make_tables(length if 4 * open_transactions <= length else 4 * length)
        self._state[STATE_USED] = rehash(
            keys, slots, first_offsets, self._keys, self._slots, self._first_offsets
        )
