"""Outcomes of transactions: from ``__transaction_state``, or from markers of other partitions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from kafka_index.core.cluster.metadata.decoding import TopicLog
from kafka_index.core.cluster.metadata.topic_states import Transaction, transaction_change
from kafka_index.core.errors import (
    CorruptRecordError,
    raise_retriable,
)
from kafka_index.core.format.integers import INT64_MAX
from kafka_index.core.format.names import (
    TopicPartition,
)
from kafka_index.core.logdir.partition_files import SegmentFile
from kafka_index.core.records.decompression import DecompressionBudget

# The first client transaction version with a new producer epoch for each transaction.
_BUMPING_CLIENT_VERSION = 2
# A transaction timeout raises the producer epoch, and a new producer raises it again.
_MAX_FENCING_STEPS = 2
_BEFORE_ALL_RECORDS = -1


class Outcome(StrEnum):
    """The outcome of a transaction."""

    COMMIT = "committed"
    ABORT = "aborted"
    OPEN = "open"


_OUTCOMES = {
    "Ongoing": Outcome.OPEN,
    "PrepareCommit": Outcome.COMMIT,
    "PrepareAbort": Outcome.ABORT,
    "CompleteCommit": Outcome.COMMIT,
    "CompleteAbort": Outcome.ABORT,
}


class TransactionEnd(NamedTuple):
    """The end of a transaction: its outcome, and the producer epoch of its markers.

    If `is_pending`, the coordinator may still have to write markers.
    """

    outcome: Outcome
    epoch: int
    is_pending: bool


class TransactionKey(NamedTuple):
    """The records of a transaction in a partition.

    The coordinator decided the outcome after `after_ms`, the time of the previous marker in the
    partition, and not later than `until_ms`.
    """

    partition: TopicPartition
    producer_id: int
    epoch: int
    after_ms: int = _BEFORE_ALL_RECORDS
    until_ms: int = INT64_MAX


@dataclass(slots=True, eq=False)
class _Decision:
    """A transaction in ``__transaction_state``, and the time of its decision.

    The partitions are None if only the record of the completed transaction remains.
    """

    ending: TransactionEnd
    has_own_epoch: bool
    partitions: frozenset[TopicPartition] | None
    time_ms: int

    def may_contain(self, partition: TopicPartition) -> bool:
        return self.partitions is None or partition in self.partitions


@dataclass(slots=True)
class TransactionOutcomes:
    """The decisions of coordinators by producer ID, and the markers in all partitions.

    `complete_since_ms` is the time since which all decisions about a producer are known. `markers`
    reads all partitions, and returns the outcomes in markers with a higher epoch, by producer ID
    and epoch of the records.
    """

    markers: Callable[[], Mapping[tuple[int, int], set[Outcome]]]
    decisions: dict[int, list[_Decision]] = field(default_factory=lambda: defaultdict(list))
    complete_since_ms: dict[int, int] = field(default_factory=dict)

    @classmethod
    def read(
        cls,
        logs: Iterable[Sequence[SegmentFile]],
        budget: DecompressionBudget,
        markers: Callable[[], Mapping[tuple[int, int], set[Outcome]]],
    ) -> TransactionOutcomes:
        """Read the logs of ``__transaction_state``; skip unreadable parts."""
        outcomes = cls(markers)
        for segments in logs:
            outcomes._read_log(segments, budget)
        return outcomes

    def end_by_epoch(self, key: TransactionKey) -> TransactionEnd | None:
        """Return the end of a transaction that has its own producer epoch; None if unknown."""
        decisions = [
            decision
            for decision in self.decisions.get(key.producer_id, ())
            if decision.may_contain(key.partition)
        ]
        if any(
            decision.ending.epoch == key.epoch and not decision.has_own_epoch
            for decision in decisions
        ):
            # The producer had this epoch before and after an upgrade to transaction version 2, so
            # several transactions may have the epoch.
            return None
        ends = [
            decision.ending
            for decision in decisions
            if decision.has_own_epoch
            and decision.ending.epoch == key.epoch + (decision.ending.outcome is not Outcome.OPEN)
        ]
        return ends[-1] if len({decision.outcome for decision in ends}) == 1 else None

    def end_by_markers(self, key: TransactionKey) -> TransactionEnd | None:
        """Return the end of a transaction by its markers in other partitions; None if unknown."""
        outcomes = self.markers().get((key.producer_id, key.epoch), set())
        if len(outcomes) != 1:
            return None
        return TransactionEnd(next(iter(outcomes)), key.epoch + 1, is_pending=False)

    def ends_by_time(self, key: TransactionKey) -> list[TransactionEnd]:
        """Return the ends of all transactions that match a key; empty if one may be missing."""
        if self.complete_since_ms.get(key.producer_id, INT64_MAX) > key.after_ms:
            return []
        return [
            decision.ending
            for decision in self.decisions.get(key.producer_id, ())
            if decision.partitions is not None
            and key.partition in decision.partitions
            and (
                decision.ending.outcome is Outcome.OPEN
                or key.after_ms < decision.time_ms <= key.until_ms
            )
            and (decision.ending.epoch == key.epoch or _is_fencing(decision.ending, key.epoch))
        ]

    def _read_log(self, segments: Sequence[SegmentFile], budget: DecompressionBudget) -> None:
        log = TopicLog(segments, budget)
        latest: dict[str, tuple[int, _Decision]] = {}
        producers: set[int] = set()
        next_offset, complete_since_ms = 0, _BEFORE_ALL_RECORDS
        for record in log.records():
            if record.offset != next_offset:
                complete_since_ms = record.timestamp_ms
            next_offset = record.offset + 1
            try:
                change = transaction_change(record)
            except CorruptRecordError:
                complete_since_ms = INT64_MAX
                continue
            if change is not None and change[1] is not None:
                producers.add(change[1].producer_id)
                self._add_state(latest, change[1])
        raise_retriable(log.faults)
        if log.faults:
            complete_since_ms = INT64_MAX
        self.complete_since_ms |= dict.fromkeys(producers, complete_since_ms)

    def _add_state(
        self, latest: dict[str, tuple[int, _Decision]], transaction: Transaction
    ) -> None:
        """Add the next state of a transactional ID."""
        producer_id, previous = latest.pop(
            transaction.transactional_id, (transaction.producer_id, None)
        )
        outcome, is_complete = (
            _OUTCOMES.get(transaction.state),
            transaction.state.startswith("Complete"),
        )
        if previous is not None:
            previous.ending = previous.ending._replace(is_pending=False)
            if previous.ending.outcome is Outcome.OPEN:
                # The open state is outdated: the new state is of the same or a later transaction.
                self.decisions[producer_id].remove(previous)
        is_known = is_complete and previous is not None and previous.ending.outcome is outcome
        if outcome is None or is_known:
            return
        decision = _Decision(
            TransactionEnd(outcome, transaction.producer_epoch, is_pending=not is_complete),
            transaction.client_version >= _BUMPING_CLIENT_VERSION,
            None
            if is_complete
            else frozenset(
                TopicPartition(*topic_partition) for topic_partition in transaction.partitions
            ),
            transaction.last_update_timestamp_ms,
        )
        latest[transaction.transactional_id] = transaction.producer_id, decision
        self.decisions[transaction.producer_id].append(decision)


def _is_fencing(ending: TransactionEnd, epoch: int) -> bool:
    """Return whether a timeout or a new producer may have aborted a transaction of `epoch`."""
    return ending.outcome is Outcome.ABORT and epoch < ending.epoch <= epoch + _MAX_FENCING_STEPS
