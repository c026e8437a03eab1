"""The counts and findings of the queries of a split, gathered while they are answered."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kafka_index.errors import InputError
from kafka_index.layout.integers import Longs
from kafka_index.lookup.invalid_queries import invalid_queries
from kafka_index.lookup.inventory import Inventory
from kafka_index.lookup.keys import integers, plain_array
from kafka_index.lookup.lookups import Lookups
from kafka_index.lookup.partition_codes import NO_PARTITION
from kafka_index.lookup.report import (
    MAX_FINDINGS,
    MAX_INVALID,
    InvalidQuery,
    QueryGroup,
    SplitReport,
    StartingOffset,
)
from kafka_index.lookup.splits import QueryBatch, QuerySplit
from kafka_index.lookup.starting_offsets import starting_offsets_of
from kafka_index.reading.answers import Answers, Resolve, Status

# Partitions that do not exist are counted one by one up to this many.
_MAX_UNKNOWN = 1_000


class SplitTally:
    """Gathers the report of a split, batch by batch.

    The lookups answer the split, and nothing else meanwhile. Raises `InputError` if starting
    offsets are asked for at the index level, which does not know where logs end.
    """

    def __init__(
        self, split: QuerySplit, lookups: Lookups, *, starting_offsets: bool = False
    ) -> None:
        if starting_offsets and lookups.settings.resolve is Resolve.INDEX:
            raise InputError(
                "the index level has no starting offsets", hint="resolve to batch or record"
            )
        self._split = split
        self._lookups = lookups
        self._rows = 0
        self._counts = StatusCounts(lookups.inventory)
        self._starts: list[StartingOffset] = []
        self._invalid: list[InvalidQuery] = []
        # With one more, two queries are about the same partition, which is an error anyway.
        wanted = lookups.inventory.partition_count + 1
        self._max_starts = wanted if starting_offsets else 0

    def add(self, batch: QueryBatch, answers: Answers) -> None:
        """Count queries and their answers."""
        if len(self._invalid) < MAX_INVALID:
            rows = np.flatnonzero(answers.status == Status.INVALID_QUERY)
            room = MAX_INVALID - len(self._invalid)
            self._invalid += invalid_queries(
                batch, rows[:room], self._split, self._rows, self._lookups.settings
            )
        self._rows += len(answers)
        self._counts.add(batch.topics, batch.partitions, answers.status)
        wanted = min(self._max_starts - len(self._starts), len(answers))
        if wanted > 0:
            self._starts += starting_offsets_of(self._lookups, batch, answers, wanted)

    def report(self) -> SplitReport:
        """Return the report of the split."""
        findings = self._lookups.drain_findings()
        return SplitReport(
            number=self._split.number,
            rows=self._rows,
            counts=self._counts.counts(),
            findings=tuple(findings[:MAX_FINDINGS]),
            findings_left_out=max(len(findings) - MAX_FINDINGS, 0),
            starting_offsets=tuple(self._starts),
            invalid=tuple(self._invalid),
        )


class StatusCounts:
    """Counts queries by partition and status, at the pace of the lookups themselves."""

    def __init__(self, inventory: Inventory) -> None:
        self._inventory = inventory
        self._known: Longs = np.zeros(0, np.int64)
        self._others: Counter[QueryGroup] = Counter()

    def add(self, topics: pa.Array, partitions: pa.Array, statuses: NDArray[np.int8]) -> None:
        """Count queries by the statuses of their answers."""
        numbers, present = integers(plain_array(partitions))
        codes = self._inventory.codes(topics, numbers)
        if present is not None:
            codes = np.where(present, codes, np.int32(NO_PARTITION))
        # The counts of a partition are adjacent; those of no partition come first.
        cells = (codes - NO_PARTITION) * np.int64(len(Status)) + statuses
        size = (self._inventory.partitions.num_rows + 1) * len(Status)
        counts = np.bincount(cells, minlength=size)
        self._known = counts if not len(self._known) else self._known + counts
        others = np.flatnonzero(codes == NO_PARTITION)
        if len(others):
            missing = None if present is None else ~present[others]
            # A number beyond int64 is not a partition.
            left = pa.array(numbers[others], mask=missing)
            self._add_others(topics.take(pa.array(others)), left, statuses[others])

    def counts(self) -> Counter[QueryGroup]:
        """Return the counts."""
        counts = Counter(self._others)
        for cell in np.flatnonzero(self._known[len(Status) :]).tolist():
            code, status = divmod(cell, len(Status))
            group = (*self._inventory.name_of(code), status)
            counts[group] += int(self._known[cell + len(Status)])
        return counts

    def _add_others(
        self, topics: pa.Array, partitions: pa.Array, statuses: NDArray[np.int8]
    ) -> None:
        names = ["topic", "partition", "status"]
        # Not as strings: those of Parquet may not be UTF-8.
        texts = plain_array(topics).cast(pa.large_binary())
        table = pa.table([texts, partitions, pa.array(statuses)], names=names)
        grouped = table.group_by(names).aggregate([([], "count_all")])
        # Only the most frequent are counted one by one: there may be as many as queries.
        grouped = grouped.sort_by([("count_all", "descending")])
        for row in grouped.slice(0, _MAX_UNKNOWN).to_pylist():
            name = None if row["topic"] is None else row["topic"].decode(errors="replace")
            self._add_other((name, row["partition"], row["status"]), row["count_all"])
        rest = grouped.slice(_MAX_UNKNOWN)
        for row in rest.group_by("status").aggregate([("count_all", "sum")]).to_pylist():
            self._add_other((None, None, row["status"]), row["count_all_sum"])

    def _add_other(self, group: QueryGroup, queries: int) -> None:
        if len(self._others) >= _MAX_UNKNOWN and group not in self._others:
            group = (None, None, group[2])
        self._others[group] += queries
