"""What a broker keeps of one producer, and how batches change it.

Sources: Kafka's ``ProducerStateEntry``, ``BatchMetadata`` and ``ProducerAppendInfo``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from kafka_index.config import INT32_MAX
from kafka_index.layout.producer_state import (
    NO_COORDINATOR_EPOCH,
    NO_LAST_OFFSET,
    NO_OFFSET_DELTA,
    NO_OPEN_TXN,
)
from kafka_index.layout.records import NO_PRODUCER_EPOCH, NO_SEQUENCE, NO_TIMESTAMP

BATCHES_KEPT = 5


class AppendOrigin(Enum):
    """Who appends, which decides what is checked."""

    REPLICATION = "replication"
    COORDINATOR = "coordinator"
    CLIENT = "client"


#: One of the last batches of a producer: last sequence, last offset, offset delta, timestamp in ms.
#: A plain tuple, which a log with many producers can have many of: the collector passes them over.
BatchMetadata = tuple[int, int, int, int]


def first_sequence(batch: BatchMetadata) -> int:
    """Return the sequence of a batch's first record."""
    last, _, delta, _ = batch
    return last - delta if last >= delta else last - delta + INT32_MAX + 1


class CompletedTxn(NamedTuple):
    """A transaction that a marker ends."""

    producer_id: int
    first_offset: int
    last_offset: int
    is_aborted: bool


@dataclass(slots=True)
class ProducerEntry:
    """The state of a producer."""

    producer_id: int
    epoch: int = NO_PRODUCER_EPOCH
    coordinator_epoch: int = NO_COORDINATOR_EPOCH
    last_timestamp_ms: int = NO_TIMESTAMP
    txn_first_offset: int = NO_OPEN_TXN
    batches: tuple[BatchMetadata, ...] = ()

    def copy(self) -> ProducerEntry:
        """Return another one like it."""
        return ProducerEntry(
            self.producer_id,
            self.epoch,
            self.coordinator_epoch,
            self.last_timestamp_ms,
            self.txn_first_offset,
            self.batches,
        )

    def row(self) -> tuple[int, int, int, int, int, int, int, int]:
        """Return the fields of `PRODUCER_STATE_ENTRY`."""
        last = self.batches[-1] if self.batches else None
        return (
            self.producer_id,
            self.epoch,
            *((NO_SEQUENCE, NO_LAST_OFFSET, NO_OFFSET_DELTA) if last is None else last[:3]),
            self.last_timestamp_ms,
            self.coordinator_epoch,
            self.txn_first_offset,
        )

    def take_epoch(self, epoch: int) -> None:
        """Forget the batches of another epoch."""
        if self.epoch != epoch:
            self.batches = ()
            self.epoch = epoch

    def add_batch(self, epoch: int, batch: BatchMetadata) -> None:
        """Take note of a batch of data."""
        self.take_epoch(epoch)
        self.batches = (*self.batches, batch)[-BATCHES_KEPT:]
        self.last_timestamp_ms = batch[3]

    def update(self, later: ProducerEntry) -> None:
        """Become what an append made of it."""
        self.take_epoch(later.epoch)
        self.batches = (*self.batches, *later.batches)[-BATCHES_KEPT:]
        self.coordinator_epoch = later.coordinator_epoch
        self.txn_first_offset = later.txn_first_offset
        self.last_timestamp_ms = later.last_timestamp_ms

    def is_next(self, epoch: int, base_sequence: int, *, is_transactional: bool) -> bool:
        """Return whether a batch of data is the next one, and no transaction begins or breaks.

        Then nothing is wrong with it, whoever appends it.
        """
        batches = self.batches
        if epoch != self.epoch or not batches:
            return False
        # Above all that are known it cannot be one of them.
        return (
            batches[-1][0] == base_sequence - 1 == max(batches)[0]
            and (self.txn_first_offset != NO_OPEN_TXN) is is_transactional
        )

    def find_duplicate(self, epoch: int, first: int, last: int) -> BatchMetadata | None:
        """Return the batch with these sequences, if it is one of the last."""
        if epoch == self.epoch:
            for batch in self.batches:
                if batch[0] == last and first_sequence(batch) == first:
                    return batch
        return None


class Refusal(Exception):  # noqa: N818, because whoever catches it makes an error with a place of it
    """A batch that its producer must not append."""

    def __init__(self, reason: str, expected: object, found: object) -> None:
        super().__init__(reason)
        self.reason = reason
        self.expected = expected
        self.found = found


class ProducerAppend:
    """What one append makes of one producer.

    Parameters
    ----------
    current : ProducerEntry
        What is known of it; not changed.
    origin : AppendOrigin
        Who appends.
    """

    def __init__(self, current: ProducerEntry, origin: AppendOrigin) -> None:
        self._current = current
        self._origin = origin
        self.updated = current.copy()
        self.updated.batches = ()
        self.started: list[int] = []

    def add_data(
        self,
        epoch: int,
        base_sequence: int,
        batch: BatchMetadata,
        base_offset: int,
        *,
        is_transactional: bool,
    ) -> None:
        """Take note of a batch of data.

        Raises
        ------
        Refusal
            Its epoch or its sequence is not one for it, or it stands inside a transaction without
            belonging to it.
        """
        self._check_epoch(epoch)
        if self._origin is AppendOrigin.CLIENT:
            self._check_sequence(epoch, base_sequence)
        updated = self.updated
        updated.add_batch(epoch, batch)
        if updated.txn_first_offset != NO_OPEN_TXN:
            if not is_transactional:
                raise Refusal(
                    "a batch outside of the producer's open transaction",
                    f"a transactional batch, after offset {updated.txn_first_offset}",
                    "one that is not",
                )
        elif is_transactional:
            updated.txn_first_offset = base_offset
            self.started.append(base_offset)

    def add_marker(
        self,
        epoch: int,
        coordinator_epoch: int,
        offset: int,
        timestamp_ms: int,
        *,
        is_abort: bool,
    ) -> CompletedTxn | None:
        """Take note of a marker; return the transaction that it ends, if one is open.

        Raises
        ------
        Refusal
            Its epoch, or that of its coordinator, is behind.
        """
        self._check_epoch(epoch)
        updated = self.updated
        if (
            updated.coordinator_epoch > coordinator_epoch
            and self._origin is not AppendOrigin.REPLICATION
        ):
            raise Refusal(
                "the coordinator's epoch is behind",
                f"{updated.coordinator_epoch} or more",
                coordinator_epoch,
            )
        completed = None
        if updated.txn_first_offset != NO_OPEN_TXN:
            completed = CompletedTxn(
                updated.producer_id, updated.txn_first_offset, offset, is_abort
            )
        updated.take_epoch(epoch)
        updated.coordinator_epoch = coordinator_epoch
        updated.txn_first_offset = NO_OPEN_TXN
        updated.last_timestamp_ms = timestamp_ms
        return completed

    def _check_epoch(self, epoch: int) -> None:
        if epoch < self.updated.epoch and self._origin is not AppendOrigin.REPLICATION:
            raise Refusal("the producer's epoch is fenced", f"{self.updated.epoch} or more", epoch)

    def _check_sequence(self, epoch: int, first: int) -> None:
        updated, current = self.updated, self._current
        if epoch != updated.epoch:
            if first != 0 and updated.epoch != NO_PRODUCER_EPOCH:
                raise Refusal("a new epoch of the producer must begin anew", "sequence 0", first)
            return
        last = NO_SEQUENCE
        if updated.batches:
            last = updated.batches[-1][0]
        elif epoch == current.epoch and current.batches:
            last = current.batches[-1][0]
        follows = first == last + 1 or (first == 0 and last == INT32_MAX)
        if current.epoch != NO_PRODUCER_EPOCH and not follows:
            raise Refusal("the producer's sequence is out of order", last + 1, first)
