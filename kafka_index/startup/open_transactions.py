"""Transactions that are open after a start, and that no coordinator ends.

A coordinator that loads ``__transaction_state`` ends the transactions that are ``Ongoing`` there,
once they have timed out, and writes the markers of prepared ones. Markers of a completed
transaction are never written again: its records, and all after them, stay above the last stable
offset. Source: ``TransactionCoordinator.abortTimedOutTransactions``,
``TransactionStateManager.loadTransactionsForTxnTopicPartition``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from kafka_index.errors import raise_retriable
from kafka_index.layout.names import TRANSACTION_STATE_TOPIC, TopicPartition
from kafka_index.metadata import ClusterImage, Transaction, read_metadata
from kafka_index.records.decompression import DecompressionBudget
from kafka_index.startup.prediction import Outcome, PartitionPrediction

_PENDING = ("Ongoing", "PrepareCommit", "PrepareAbort", "PrepareEpochFence")


@dataclass(frozen=True)
class OpenTransactions:
    """The coordinators of a broker that starts, and the replicas of its partitions.

    The partitions are those of all data directories; a node id and a cluster may not be known.
    """

    partitions: Sequence[PartitionPrediction]
    cluster: ClusterImage | None
    node_id: int | None
    budget: DecompressionBudget

    def judged(self) -> tuple[list[PartitionPrediction], int]:
        """Return the partitions, and how many may have coordinators on other brokers."""
        judged, elsewhere = [], 0
        for one in self.partitions:
            if one.outcome is Outcome.LOADED and one.loaded is not None:
                open_rows = one.loaded.producers["current_txn_first_offset"] >= 0
                found = one.loaded.producers[open_rows]
                reasons = {
                    int(row["current_txn_first_offset"]): self._why_unended(one, row["producer_id"])
                    for row in found
                }
                elsewhere += None in reasons.values()
                judged.append(self._with_reasons(one, reasons))
            else:
                judged.append(one)
        return judged, elsewhere

    def _why_unended(self, one: PartitionPrediction, producer_id: int) -> str | None:
        """Return why no coordinator ends a transaction: empty if one does, None if unknown."""
        partition = one.topic, one.partition
        transaction = self._transactions.get(int(producer_id))
        if transaction is None:
            return "no coordinator has its producer" if self._has_all_coordinators else None
        if transaction.state in _PENDING and partition in transaction.partitions:
            return ""
        return f"the state of {transaction.transactional_id} is {transaction.state}"

    def _with_reasons(
        self, one: PartitionPrediction, reasons: Mapping[int, str | None]
    ) -> PartitionPrediction:
        offset = min((each for each, reason in reasons.items() if reason), default=None)
        if offset is None:
            return one
        text = (
            f"read_committed consumers get nothing from offset {offset} on: the transaction that "
            f"begins there is open, and no coordinator ends it ({reasons[offset]})"
        )
        if self._is_only_here(one):
            return replace(one, unserved="; ".join(filter(None, (one.unserved, text))))
        text += ", unless another replica has its marker"
        return replace(one, unknown="; ".join(filter(None, (one.unknown, text))))

    def _is_only_here(self, one: PartitionPrediction) -> bool:
        topic = None if self.cluster is None else self.cluster.topic_named(one.topic)
        found = None if topic is None else topic.partitions.get(one.partition)
        return found is not None and found.replicas == (self.node_id,)

    @cached_property
    def _states(self) -> dict[TopicPartition, str]:
        return {
            TopicPartition(one.topic, one.partition): one.directory
            for one in self.partitions
            if one.topic == TRANSACTION_STATE_TOPIC and one.outcome is Outcome.LOADED
        }

    @cached_property
    def _read(self) -> tuple[Mapping[int, Transaction], bool]:
        """The transactions by producer id, and whether all records could be read."""
        if not self._states:
            return {}, True
        read = read_metadata(
            list(self._states.values()), budget=self.budget, topics=(TRANSACTION_STATE_TOPIC,)
        )
        raise_retriable(read.faults.first)
        by_id = {}
        for one in read.transactions or ():
            for producer_id in (one.previous_producer_id, one.producer_id):
                if producer_id is not None:
                    by_id[producer_id] = one
        return by_id, not read.faults.total

    @property
    def _transactions(self) -> Mapping[int, Transaction]:
        return self._read[0]

    @cached_property
    def _has_all_coordinators(self) -> bool:
        """Whether all transaction coordinators of the cluster are on this broker."""
        if self.cluster is None or not self._read[1]:
            return False
        topic = self.cluster.topic_named(TRANSACTION_STATE_TOPIC)
        numbers: Iterable[int] = () if topic is None else topic.partitions
        return all(
            TopicPartition(TRANSACTION_STATE_TOPIC, number) in self._states for number in numbers
        )
