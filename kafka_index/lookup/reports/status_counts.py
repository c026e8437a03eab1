"""Counting queries by partition and status, at the pace of the lookups themselves."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kafka_index.lookup.inventory.partition_codes import NO_PARTITION
from kafka_index.lookup.inventory.tables import Inventory
from kafka_index.lookup.keys import Longs, integers, plain_array
from kafka_index.lookup.reports.piece_report import PartitionCount
from kafka_index.reading.answers import Status

#: Partitions that are not there are told one by one up to so many.
MOST_STRANGERS = 1_000


class StatusCounts:
    """Counts the queries of a piece.

    Parameters
    ----------
    inventory : Inventory
        The partitions that are there.
    """

    def __init__(self, inventory: Inventory) -> None:
        self._inventory = inventory
        self._known: Longs = np.zeros(0, np.int64)
        self._others: Counter[tuple[str | None, int | None, int]] = Counter()

    def add(self, topics: pa.Array, partitions: pa.Array, statuses: NDArray[np.int8]) -> None:
        """Count queries.

        Parameters
        ----------
        topics, partitions : Array, shape (n,)
            As the queries hold them.
        statuses : ndarray of int8, shape (n,)
            `Status` of their answers.
        """
        numbers, present = integers(plain_array(partitions))
        codes = self._inventory.codes(topics, numbers)
        if present is not None:
            codes = np.where(present, codes, np.int32(NO_PARTITION))
        # The cells of a partition stand together, and those of none before all others.
        cells = (codes - NO_PARTITION) * np.int64(len(Status)) + statuses
        size = (self._inventory.partitions.num_rows + 1) * len(Status)
        counts = np.bincount(cells, minlength=size)
        self._known = counts if not len(self._known) else self._known + counts
        others = np.flatnonzero(codes == NO_PARTITION)
        if len(others):
            missing = None if present is None else ~present[others]
            # As they are counted: what is no int64 is no partition.
            left = pa.array(numbers[others], mask=missing)
            self._add_others(topics.take(pa.array(others)), left, statuses[others])

    def counts(self) -> list[PartitionCount]:
        """Return what was counted."""
        counts = []
        for cell in np.flatnonzero(self._known[len(Status) :]).tolist():
            code, status = divmod(cell, len(Status))
            queries = int(self._known[cell + len(Status)])
            counts.append(PartitionCount(*self._inventory.name_of(code), status, queries))
        return counts + [PartitionCount(*key, queries) for key, queries in self._others.items()]

    def _add_others(
        self, topics: pa.Array, partitions: pa.Array, statuses: NDArray[np.int8]
    ) -> None:
        names = ["topic", "partition", "status"]
        # Not as strings: they may not be UTF-8.
        texts = plain_array(topics).cast(pa.large_binary())
        table = pa.table([texts, partitions, pa.array(statuses)], names=names)
        grouped = table.group_by(names).aggregate([([], "count_all")])
        # The most frequent are told, if not all can be; there may be as many as queries.
        grouped = grouped.sort_by([("count_all", "descending")])
        told = grouped.slice(0, MOST_STRANGERS)
        for row in told.to_pylist():
            name = None if row["topic"] is None else row["topic"].decode(errors="replace")
            self._add_other((name, row["partition"], row["status"]), row["count_all"])
        rest = grouped.slice(MOST_STRANGERS)
        for row in rest.group_by("status").aggregate([("count_all", "sum")]).to_pylist():
            self._add_other((None, None, row["status"]), row["count_all_sum"])

    def _add_other(self, key: tuple[str | None, int | None, int], queries: int) -> None:
        if len(self._others) >= MOST_STRANGERS and key not in self._others:
            key = (None, None, key[2])
        self._others[key] += queries
