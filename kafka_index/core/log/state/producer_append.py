"""The state of one producer in a writable log, and the validation of appends.

`core.kernels.producer_state` has the rules that update an entry, shared with rebuilds. This module
has the validation that an append does first.

Sources: Kafka's ``ProducerStateEntry``, ``BatchMetadata`` and ``ProducerAppendInfo``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from operator import attrgetter
from typing import NamedTuple, Self

from kafka_index.core.format.integers import INT32_MAX
from kafka_index.core.format.records import (
    NO_COORDINATOR_EPOCH,
    NO_LAST_OFFSET,
    NO_OFFSET_DELTA,
    NO_OPEN_TXN,
    NO_PRODUCER_EPOCH,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    PRODUCER_STATE_ENTRY,
)
from kafka_index.core.kernels.producer_state import (
    add_batch,
    add_marker,
    change_epoch,
    first_sequence_of,
)

BATCHES_KEPT = 5


class AppendOrigin(StrEnum):
    """The origin of an append, which determines its validation (Kafka: ``AppendOrigin``)."""

    REPLICATION = "replication"
    COORDINATOR = "coordinator"
    CLIENT = "client"


#: A recent batch of a producer: last sequence, last offset, offset delta, timestamp in ms. A plain
#: tuple of integers, which the garbage collector does not track.
BatchMetadata = tuple[int, int, int, int]


class CompletedTxn(NamedTuple):
    """A transaction that a marker has ended."""

    producer_id: int
    first_offset: int
    last_offset: int
    is_aborted: bool


_FIELDS = attrgetter(*(PRODUCER_STATE_ENTRY.names or ()))


@dataclass(slots=True)
class ProducerStateEntry:
    """The fields of `PRODUCER_STATE_ENTRY` for a producer, and its recent batches."""

    producer_id: int
    producer_epoch: int = NO_PRODUCER_EPOCH
    last_sequence: int = NO_SEQUENCE
    last_offset: int = NO_LAST_OFFSET
    offset_delta: int = NO_OFFSET_DELTA
    timestamp_ms: int = NO_TIMESTAMP
    coordinator_epoch: int = NO_COORDINATOR_EPOCH
    current_txn_first_offset: int = NO_OPEN_TXN
    batches: tuple[BatchMetadata, ...] = ()

    @classmethod
    def of_row(cls, row: tuple[int, int, int, int, int, int, int, int]) -> Self:
        """Convert a snapshot entry."""
        entry = cls(*row)
        if entry.last_offset >= 0:
            entry.batches = (
                (entry.last_sequence, entry.last_offset, entry.offset_delta, entry.timestamp_ms),
            )
        return entry

    def copy(self) -> ProducerStateEntry:
        return ProducerStateEntry(*self.row(), self.batches)

    def row(self) -> tuple[int, int, int, int, int, int, int, int]:
        """Return the fields of `PRODUCER_STATE_ENTRY`."""
        return _FIELDS(self)

    def follow_epoch(self, epoch: int) -> None:
        """Change the producer epoch; forget the batches of another epoch."""
        if change_epoch(self, epoch):
            self.batches = ()

    def add_batch(self, batch: BatchMetadata) -> None:
        add_batch(self, *batch)
        self.batches = (*self.batches, batch)[-BATCHES_KEPT:]

    def update(self, later: ProducerStateEntry) -> None:
        """Apply the state after an append (ProducerStateEntry.update)."""
        self.follow_epoch(later.producer_epoch)
        for batch in later.batches:
            self.add_batch(batch)
        self.coordinator_epoch = later.coordinator_epoch
        self.current_txn_first_offset = later.current_txn_first_offset
        self.timestamp_ms = later.timestamp_ms

    def is_next(self, epoch: int, base_sequence: int, *, is_transactional: bool) -> bool:
        """Return whether a data batch follows the last one, inside or outside a transaction.

        Such a batch passes all checks, whatever its origin.
        """
        batches = self.batches
        if epoch != self.producer_epoch or not batches:
            return False
        # A sequence above all known ones cannot be a duplicate.
        return (
            batches[-1][0] == base_sequence - 1 == max(batches)[0]
            and (self.current_txn_first_offset != NO_OPEN_TXN) is is_transactional
        )

    def find_duplicate(self, epoch: int, first: int, last: int) -> BatchMetadata | None:
        """Return the recent batch with these sequences, if any."""
        if epoch == self.producer_epoch:
            for batch in self.batches:
                if batch[0] == last and first_sequence_of(last, batch[2]) == first:
                    return batch
        return None


class Refusal(Exception):  # noqa: N818, because its catcher raises an error with the position
    """A batch is invalid for its producer."""

    def __init__(self, reason: str, expected: object, found: object) -> None:
        super().__init__(reason)
        self.reason = reason
        self.expected = expected
        self.found = found


class ProducerAppendInfo:
    """The effect of one append on one producer, whose `current` state is not changed."""

    def __init__(self, current: ProducerStateEntry, origin: AppendOrigin) -> None:
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
        """Validate and record a data batch.

        Raises `Refusal` if its epoch or sequence does not follow, or if it is not transactional
        within an open transaction.
        """
        self._check_epoch(epoch)
        if self._origin is AppendOrigin.CLIENT:
            self._check_sequence(epoch, base_sequence)
        updated = self.updated
        updated.follow_epoch(epoch)
        updated.add_batch(batch)
        if updated.current_txn_first_offset != NO_OPEN_TXN:
            if not is_transactional:
                raise Refusal(
                    "a batch outside of the producer's open transaction",
                    f"a transactional batch, after offset {updated.current_txn_first_offset}",
                    "one that is not",
                )
        elif is_transactional:
            updated.current_txn_first_offset = base_offset
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
        """Validate and record a marker; return the open transaction that it ends.

        Raises `Refusal` if its producer epoch or coordinator epoch is below the last one.
        """
        self._check_epoch(epoch)
        updated = self.updated
        if (
            updated.coordinator_epoch > coordinator_epoch
            and self._origin is not AppendOrigin.REPLICATION
        ):
            raise Refusal(
                "the coordinator's epoch is fenced",
                f"{updated.coordinator_epoch} or more",
                coordinator_epoch,
            )
        completed = None
        if updated.current_txn_first_offset != NO_OPEN_TXN:
            completed = CompletedTxn(
                updated.producer_id, updated.current_txn_first_offset, offset, is_abort
            )
        updated.follow_epoch(epoch)
        add_marker(updated, coordinator_epoch, timestamp_ms)
        return completed

    def _check_epoch(self, epoch: int) -> None:
        if epoch < self.updated.producer_epoch and self._origin is not AppendOrigin.REPLICATION:
            raise Refusal(
                "the producer's epoch is fenced", f"{self.updated.producer_epoch} or more", epoch
            )

    def _check_sequence(self, epoch: int, first: int) -> None:
        updated, current = self.updated, self._current
        if epoch != updated.producer_epoch:
            if first != 0 and updated.producer_epoch != NO_PRODUCER_EPOCH:
                raise Refusal("a new epoch of the producer must start at sequence 0", 0, first)
            return
        last = NO_SEQUENCE
        if updated.batches:
            last = updated.batches[-1][0]
        elif epoch == current.producer_epoch and current.batches:
            last = current.batches[-1][0]
        follows = first == last + 1 or (first == 0 and last == INT32_MAX)
        if current.producer_epoch != NO_PRODUCER_EPOCH and not follows:
            raise Refusal("the producer's sequence is out of order", last + 1, first)
