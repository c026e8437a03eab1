"""The counts, findings and starting offsets of a split of queries, batch by batch."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kafka_index.commands.lookup.queries import QuerySplit
from kafka_index.commands.lookup.result import (
    MAX_FINDINGS,
    MAX_INVALID,
    InvalidQuery,
    QueryGroup,
    SplitReport,
    StartingOffset,
)
from kafka_index.commands.lookup.starting_offsets import starting_offsets_of
from kafka_index.core.errors import InputError
from kafka_index.core.format.longs import Longs
from kafka_index.core.log.choices import Resolve, Status
from kafka_index.core.log.read.answers import (
    Answers,
    SpecialTimestamp,
)
from kafka_index.core.query.choices import By
from kafka_index.core.query.inventory import Inventory
from kafka_index.core.query.keys import NO_PARTITION, PARTITION, QueryBatch, integers, plain_array
from kafka_index.core.query.lookups import Lookups

# Partitions that do not exist are counted one by one up to this many.
_MAX_UNKNOWN = 1_000

_MAX_CELL = 60
_WRONG_KEY = {
    By.OFFSET: "not an integer",
    By.TIMESTAMP: "neither milliseconds nor a time from 1970 on",
}


class SplitStats:
    """Gathers the report of a split, batch by batch.

    The lookups answer this split only until `report`. Raises `InputError` if starting
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

    def add(self, rows: pa.RecordBatch, queries: QueryBatch, answers: Answers) -> None:
        """Count queries, which are in rows as they were read, and their answers."""
        if len(self._invalid) < MAX_INVALID:
            wrong = np.flatnonzero(answers.status == Status.INVALID_QUERY)
            for row in wrong[: MAX_INVALID - len(self._invalid)].tolist():
                self._invalid.append(self._invalid_query(rows, queries, row))
        self._rows += len(answers)
        self._counts.add(queries.topics, queries.partitions, answers.status)
        wanted = min(self._max_starts - len(self._starts), len(answers))
        if wanted > 0:
            self._starts += starting_offsets_of(self._lookups, queries, answers, wanted)

    def _invalid_query(self, rows: pa.RecordBatch, queries: QueryBatch, row: int) -> InvalidQuery:
        topic = plain_array(queries.topics.slice(row, 1))[0].as_py()
        return InvalidQuery(
            self._split.path,
            self._split.first_row + self._rows + row + 1,
            topic,
            queries.partitions[row].as_py(),
            self._reason(rows, queries, row, topic),
        )

    def _reason(
        self, rows: pa.RecordBatch, queries: QueryBatch, row: int, topic: str | None
    ) -> str:
        settings, keys = self._lookups.settings, queries.keys
        name = settings.by.column
        if topic is None:
            return "no topic"
        if not queries.partitions[row].is_valid:
            return _not_a_number(PARTITION, rows.column(PARTITION)[row].as_py(), "not an integer")
        if keys.valid is not None and not keys.valid[row]:
            return _not_a_number(name, rows.column(name)[row].as_py(), _WRONG_KEY[settings.by])
        value = int(keys.values[row])
        if settings.by is By.OFFSET:
            return f"offset {value} is negative"
        if keys.specials and value >= min(SpecialTimestamp):
            return f"timestamp {value} has no answer at the level of {settings.resolve.value}"
        return f"timestamp {value} is before 1970, and is not one of Kafka's special timestamps"

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


def _not_a_number(name: str, cell: object, wrong: str) -> str:
    if cell is None:
        return f"no {name}, or it is {wrong}"
    text = str(cell)
    shown = text if len(text) <= _MAX_CELL else f"{text[:_MAX_CELL]}..."
    return f"{name} {shown!r} is {wrong}"


class StatusCounts:
    """Counts queries by partition and status, at the pace of the lookups themselves."""

    def __init__(self, inventory: Inventory) -> None:
        self._inventory = inventory
        self._known: Longs = np.zeros(0, np.int64)
        self._others: Counter[QueryGroup] = Counter()

    def add(self, topics: pa.Array, partitions: pa.Array, statuses: NDArray[np.int8]) -> None:
        """Count queries by the statuses of their answers."""
        numbers, present = integers(partitions)
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
