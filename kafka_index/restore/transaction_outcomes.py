"""The outcomes of transactions whose markers are lost, by everything else that a dump has of them.

``__transaction_state`` holds the decisions of coordinators, with the partitions of each
transaction, as far as it is not compacted. Producers of ``transaction.version`` 2 get a new epoch
with each transaction, so that the epoch identifies it: records of epoch e are ended by a marker of
epoch e + 1. Transactions of older producers share an epoch; they are told apart by the times of
their decisions and of the markers that are left. A timeout raises the epoch once more. Source:
``TransactionMetadata.prepareAbortOrCommit``, ``prepareFenceProducerEpoch``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from kafka_index.errors import CorruptRecordError, raise_retriable
from kafka_index.layout.integers import INT64_MAX
from kafka_index.layout.names import TopicPartition
from kafka_index.metadata import Transaction
from kafka_index.metadata.decoding import TopicLog
from kafka_index.metadata.topic_states import transaction_change
from kafka_index.records.decompression import DecompressionBudget
from kafka_index.storage import SegmentFile

# The first version whose producers get a new epoch with each transaction.
_EPOCH_BUMP = 2
_ALWAYS = -1


class Outcome(StrEnum):
    """The outcome of a transaction; an open one is ended by its coordinator."""

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


class Ending(NamedTuple):
    """The end of a transaction: its outcome, and the producer epoch of its markers.

    `is_pending`: not all markers are known to be written, so that the coordinator writes them.
    """

    outcome: Outcome
    epoch: int
    is_pending: bool


class TransactionKey(NamedTuple):
    """The records of a transaction in a partition.

    It was decided after `after_ms`, the time of the marker before it in the partition, and at
    `until_ms` at the latest.
    """

    partition: TopicPartition
    producer_id: int
    epoch: int
    after_ms: int = _ALWAYS
    until_ms: int = INT64_MAX


@dataclass(slots=True, eq=False)
class _Decision:
    """A transaction in ``__transaction_state``, decided at a time.

    The partitions are None if only the record of its completion is left.
    """

    ending: Ending
    has_own_epoch: bool
    partitions: frozenset[TopicPartition] | None
    time_ms: int

    def may_list(self, partition: TopicPartition) -> bool:
        """Return whether the transaction may have records in a partition."""
        return self.partitions is None or partition in self.partitions


@dataclass(slots=True)
class TransactionOutcomes:
    """The decisions of coordinators by producer id, and markers found in partitions.

    All decisions since `complete_since_ms` are known. `markers` returns the outcomes by producer id
    and epoch of the records, of markers with a higher epoch; it is called if nothing else decides.
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
        """Read the logs of ``__transaction_state``; what cannot be read of them is passed over."""
        found = cls(markers)
        for segments in logs:
            found._read(segments, budget)
        return found

    def by_epoch(self, key: TransactionKey) -> Ending | None:
        """Return the end of a transaction that has an epoch of its own; None if it is unknown."""
        listed = [
            each for each in self.decisions.get(key.producer_id, ()) if each.may_list(key.partition)
        ]
        if any(each.ending.epoch == key.epoch and not each.has_own_epoch for each in listed):
            # The servers were upgraded while this was the epoch.
            return None
        own = [
            each.ending
            for each in listed
            if each.has_own_epoch
            and each.ending.epoch == key.epoch + (each.ending.outcome is not Outcome.OPEN)
        ]
        return own[-1] if len({each.outcome for each in own}) == 1 else None

    def by_markers(self, key: TransactionKey) -> Ending | None:
        """Return the end of a transaction by its markers in other partitions; None if unknown."""
        outcomes = self.markers().get((key.producer_id, key.epoch), set())
        if len(outcomes) != 1:
            return None
        return Ending(next(iter(outcomes)), key.epoch + 1, is_pending=False)

    def by_time(self, key: TransactionKey) -> list[Ending]:
        """Return the ends of all transactions that a key may mean; none if some may be unknown."""
        if self.complete_since_ms.get(key.producer_id, INT64_MAX) > key.after_ms:
            return []
        return [
            each.ending
            for each in self.decisions.get(key.producer_id, ())
            if each.partitions is not None
            and key.partition in each.partitions
            and (each.ending.outcome is Outcome.OPEN or key.after_ms < each.time_ms <= key.until_ms)
            and (each.ending.epoch == key.epoch or _is_fence(each.ending, key.epoch))
        ]

    def _read(self, segments: Sequence[SegmentFile], budget: DecompressionBudget) -> None:
        log = TopicLog(segments, budget)
        latest: dict[str, tuple[int, _Decision]] = {}
        producers: set[int] = set()
        next_offset, complete_since_ms = 0, _ALWAYS
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
                self._add(latest, change[1])
        raise_retriable(log.faults)
        if log.faults:
            complete_since_ms = INT64_MAX
        self.complete_since_ms |= dict.fromkeys(producers, complete_since_ms)

    def _add(self, latest: dict[str, tuple[int, _Decision]], one: Transaction) -> None:
        """Add the state of a transactional id after all earlier ones."""
        producer_id, before = latest.pop(one.transactional_id, (one.producer_id, None))
        outcome, is_complete = _OUTCOMES.get(one.state), one.state.startswith("Complete")
        if before is not None:
            before.ending = before.ending._replace(is_pending=False)
            if before.ending.outcome is Outcome.OPEN:
                # The next state has the same transaction, or begins after its end.
                self.decisions[producer_id].remove(before)
        is_known = is_complete and before is not None and before.ending.outcome is outcome
        if outcome is None or is_known:
            return
        decision = _Decision(
            Ending(outcome, one.producer_epoch, is_pending=not is_complete),
            one.client_version >= _EPOCH_BUMP,
            None if is_complete else frozenset(TopicPartition(*each) for each in one.partitions),
            one.last_update_timestamp_ms,
        )
        latest[one.transactional_id] = one.producer_id, decision
        self.decisions[one.producer_id].append(decision)


def _is_fence(ending: Ending, epoch: int) -> bool:
    """Return whether a timeout or a new producer may have aborted a transaction of an epoch."""
    return ending.outcome is Outcome.ABORT and epoch < ending.epoch <= epoch + _EPOCH_BUMP
