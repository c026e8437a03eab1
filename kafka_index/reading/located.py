"""The batches and entries that a segment has found for ascending queries, in their order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from kafka_index.kernels.answer_runs import number_runs
from kafka_index.layout.integers import Longs
from kafka_index.reading.answers import (
    BATCH_BASE_OFFSET,
    BATCH_LAST_OFFSET,
    BATCH_POSITION,
    BATCH_SIZE,
    ENTRY_OFFSET,
    ENTRY_POSITION,
    NULL,
    Answers,
    Resolve,
)
from kafka_index.reading.segment_log import SegmentLog
from kafka_index.scan.file_records import read_batch_fields


@dataclass(frozen=True, slots=True)
class Located:
    """The batches and entries that a segment has found for n queries.

    `values` are as in `Answers.values`. `batches` are positions: `AT_END` for none, `damage_at` if
    damage hides the batch, and zeros at index level. `runs`, where queries with the same result
    share one column, has the column of each query.
    """

    values: Longs
    batches: Longs
    runs: Longs | None = None

    def in_runs(self, resolve: Resolve) -> Located:
        """Return one column for neighbours that found the same batch and entry."""
        runs, firsts = np.empty_like(self.batches), np.empty_like(self.batches)
        firsts = firsts[: number_runs(self.batches, self.values[ENTRY_OFFSET], runs, firsts)]
        values = Answers.empty(len(firsts), resolve).values
        for column in (ENTRY_OFFSET, ENTRY_POSITION):
            values[column] = self.values[column][firsts]
        return Located(values, self.batches[firsts], runs)

    def expanded(self) -> Located:
        """Return a column for each query."""
        if self.runs is None:
            return self
        return Located(self.values[:, self.runs], self.batches[self.runs])

    def read_headers(self, log: SegmentLog) -> None:
        """Fill in the fields of the headers of the batches."""
        values = self.values
        values[BATCH_POSITION] = np.where(self.batches >= 0, self.batches, NULL)
        read_batch_fields(
            log.array,
            self.batches,
            values[BATCH_BASE_OFFSET],
            values[BATCH_LAST_OFFSET],
            values[BATCH_SIZE],
            budget=log.budget,
        )

    @classmethod
    def joined(cls, parts: Sequence[Located]) -> Self:
        """Return what was located for consecutive queries, as one."""
        parts = [part.expanded() for part in parts]
        return cls(
            np.concatenate([part.values for part in parts], axis=1),
            np.concatenate([part.batches for part in parts]),
        )
