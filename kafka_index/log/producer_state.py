"""The producers of a partition that is appended to, as a broker keeps them in memory.

Source: Kafka's ``ProducerStateManager`` and ``ProducerAppendInfo``.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kafka_index.errors import ProducerStateError
from kafka_index.layout.producer_state import ABORTED_TXN, PRODUCER_STATE_ENTRY
from kafka_index.log.batch_table import BatchColumns
from kafka_index.log.partition_state import PartitionState, ProducerExpiration
from kafka_index.log.producer_snapshot import encode_snapshot, java_map_order
from kafka_index.log.producer_table import (
    COORDINATOR_FENCED,
    EPOCH_FENCED,
    OUT_OF_SEQUENCE,
    ProducerTable,
    aborted_txns,
)

Entries = NDArray[np.void]


class ProducerStateManager:
    """Sequences, epochs and open transactions of a partition's producers.

    Parameters
    ----------
    entries : ndarray of PRODUCER_STATE_ENTRY, optional
        The producers of a snapshot, in its order.
    map_end_offset : int
        The offset that the state is at.
    expiration : ProducerExpiration, optional
        Leave out producers that are idle; by default none is.
    """

    def __init__(
        self,
        entries: Entries | None = None,
        *,
        map_end_offset: int = 0,
        expiration: ProducerExpiration | None = None,
    ) -> None:
        if entries is None:
            entries = np.empty(0, PRODUCER_STATE_ENTRY)
        loaded = PartitionState(entries, expiration=expiration).loaded_entries
        self._table = ProducerTable.of_entries(loaded)
        self.map_end_offset = map_end_offset

    @property
    def first_open_offset(self) -> int | None:
        """First offset of the earliest transaction that is open (Kafka: firstUndecidedOffset)."""
        return self._table.first_open_offset

    def entries(self) -> Entries:
        """Return the producers as `PRODUCER_STATE_ENTRY`, as a broker's map iterates over them."""
        entries = self._table.entries()
        return entries[java_map_order(entries["producer_id"])[0]]

    def entry(self, producer_id: int) -> np.void | None:
        """Return what is known of one producer (`PRODUCER_STATE_ENTRY`); None for nothing."""
        found = self._table.entries_of_producers(np.array([producer_id]))
        return found[0] if len(found) else None

    def last_stable_offset(self, end_offset: int) -> int:
        """Return the offset below which every transaction is decided.

        Parameters
        ----------
        end_offset : int
            The high watermark or the log's end, which it never exceeds.
        """
        first = self.first_open_offset
        return end_offset if first is None else min(first, end_offset)

    def snapshot(self) -> bytes:
        """Return the bytes of the ``.snapshot`` at `map_end_offset`."""
        return encode_snapshot(self.entries())

    def append(self, batches: BatchColumns, *, from_client: bool) -> NDArray[np.void]:
        """Take up batches that are appended, all of them or none.

        Parameters
        ----------
        batches : BatchColumns
            With their final offsets.
        from_client : bool
            Check epochs and sequences as a leader does; replicas take what their leader has.

        Returns
        -------
        ndarray of ABORTED_TXN, shape (n,)
            The entries that belong in the transaction index of the segment they go to, in order.

        Raises
        ------
        ProducerStateError
            A batch is of an older epoch, out of sequence, outside its producer's transaction, or a
            marker that cannot be read; nothing has changed.
        """
        if not len(batches):
            return np.empty(0, ABORTED_TXN)
        # Tried out first on the producers concerned, so that a refusal leaves all as it was.
        trial = ProducerTable.of_entries(
            self._table.entries_of_producers(np.unique(batches.producer_id)),
            from_client=from_client,
        )
        taken, stop = trial.follow(batches)
        if stop is not None:
            raise self._error(stop.reason, batches, taken - 1, trial)
        self._table.forget_lists()
        self._table.follow(batches)
        self.map_end_offset = int(batches.last_offset[-1]) + 1
        return aborted_txns(self._table.aborts)

    def _error(
        self, reason: str, batches: BatchColumns, row: int, trial: ProducerTable
    ) -> ProducerStateError:
        producer_id = int(batches.producer_id[row])
        number = trial.row_of(producer_id)
        known = np.zeros(1, PRODUCER_STATE_ENTRY)[0] if number is None else trial.entries()[number]
        message = f"{reason}: batch at offset {batches.base_offset[row]} of producer {producer_id}"
        expected, found = None, None
        if reason == EPOCH_FENCED:
            expected = f"producer epoch {known['producer_epoch']} or above"
            found = int(batches.producer_epoch[row])
        elif reason == COORDINATOR_FENCED:
            expected = f"coordinator epoch {known['coordinator_epoch']} or above"
            found = int(batches.coordinator_epoch[row])
        elif reason == OUT_OF_SEQUENCE:
            same_epoch = known["producer_epoch"] == batches.producer_epoch[row]
            follows = (int(known["last_sequence"]) + 1) % 2**31 if same_epoch else 0
            expected = f"sequence {follows}"
            found = int(batches.base_sequence[row])
        return ProducerStateError(
            message,
            position_bytes=int(batches.position_bytes[row]),
            expected=expected,
            found=found,
        )
