"""The search for the outcomes of transactions in an output that no coordinator would end.

Nothing is read unless a partition has losses or an open transaction.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

from kafka_index.commands.restore.lost_transaction_markers import UNKNOWN_OUTCOME, MarkerSearch
from kafka_index.commands.restore.partition_transactions import (
    AbortedIndexes,
    Outcome,
    PartitionTransactions,
    TransactionOutcomes,
    list_segments,
)
from kafka_index.commands.restore.plan import PartitionPlan, RestorePlan
from kafka_index.commands.restore.restored_partition import RestoredPartition
from kafka_index.core.cluster.replicas import read_dumps
from kafka_index.core.errors import InputError, is_retriable
from kafka_index.core.format.names import TRANSACTION_STATE_TOPIC, TopicPartition
from kafka_index.core.fs.store import is_remote
from kafka_index.core.log.state.snapshots import list_snapshots, load_latest_snapshot
from kafka_index.core.logdir.partition_files import SegmentFile
from kafka_index.core.records.decompression import shared_budget


@dataclass(frozen=True, slots=True)
class FoundTransactions:
    """Partitions with edits to be made, and producers whose transactions stay open in partitions.

    Of the latter it is not known that a coordinator ends them.
    """

    edited: list[PartitionPlan] = field(default_factory=list)
    open_producers: dict[TopicPartition, list[int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TransactionSearch:
    """The search for transactions without markers in the partitions of an output.

    `only_here` are partitions without replicas elsewhere; None for all.
    """

    plan: RestorePlan
    partitions: Sequence[RestoredPartition]
    output: str
    only_here: Container[TopicPartition] | None

    def run(self) -> FoundTransactions:
        """Search all partitions that have losses or open transactions."""
        plans = {each.partition: each for each in self.plan.partitions}
        has_states = any(True for _ in self._states())
        outcomes = cache(self._outcomes)
        found = FoundTransactions()
        for restored in self._restored():
            if restored.is_edited or not (restored.lost or restored.open_producers):
                continue
            plan = plans[restored.partition]
            search = MarkerSearch(
                plan.base.partition,
                self._read(restored),
                AbortedIndexes.read(
                    each.directory
                    for each in (plan.base, *plan.others)
                    if not is_remote(each.directory)
                ),
                outcomes,
                has_coordinator=has_states and plan.base.partition == plan.partition,
                is_whole_cluster=bool(self.plan.request.seeds),
                may_append=not restored.is_limited
                and (self.only_here is None or plan.partition in self.only_here),
                is_compacted=plan.known.cleaning.is_compacted is not False,
            )
            edits = search.edits()
            if edits:
                found.edited.append(replace(plan, edits=edits))
            if search.open_producers and not restored.is_limited:
                found.open_producers[restored.partition] = search.open_producers
        return found

    def _restored(self) -> Iterator[RestoredPartition]:
        return (each for each in self.partitions if not each.is_left_out)

    def _segments(self, restored: RestoredPartition) -> list[SegmentFile]:
        name = restored.partition.directory_name
        return list_segments(restored.partition, os.path.join(self.output, name))

    def _read(self, restored: RestoredPartition) -> PartitionTransactions:
        # What was left out for its transaction is no loss that may hide a marker.
        lost = [each for each in restored.lost if each.code != UNKNOWN_OUTCOME]
        directory = os.path.join(self.output, restored.partition.directory_name)
        at_end = [each for each in list_snapshots(directory) if each == restored.log_end_offset]
        _, producers, _ = load_latest_snapshot(directory, at_end)
        return PartitionTransactions.read(self._segments(restored), lost, producers)

    def _states(self) -> Iterator[RestoredPartition]:
        return (
            each for each in self._restored() if each.partition.topic == TRANSACTION_STATE_TOPIC
        )

    def _outcomes(self) -> TransactionOutcomes:
        logs = [self._segments(each) for each in self._states()]
        request = self.plan.request
        if not logs and request.topics is not None:
            states = re.compile(TRANSACTION_STATE_TOPIC)
            try:
                dump = read_dumps(request.inputs, request.tiered, topics=states)
            except InputError as error:
                if is_retriable(error):
                    raise
            else:
                logs = [each[0].segments.files() for each in dump.replicas.values()]
        budget = shared_budget(request.max_decompressed_bytes)
        return TransactionOutcomes.read(logs, budget, cache(self._markers))

    def _markers(self) -> Mapping[tuple[int, int], set[Outcome]]:
        """Return the outcomes in markers with an epoch above that of the batches before them."""
        found: dict[tuple[int, int], set[Outcome]] = defaultdict(set)
        for restored in self._restored():
            read = self._read(restored)
            rows = read.rows
            for first, last, has_marker in read.transactions():
                is_whole = has_marker and rows.gap[last - 1] == rows.gap[last] and first < last
                if is_whole and rows.epoch[last] == rows.epoch[last - 1] + 1:
                    key = int(rows.producer_id[last]), int(rows.epoch[last - 1])
                    found[key].add(rows.outcome(last))
        return found
