"""The rows that a dump prints: by offset or range of times, and up to a number."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from kafka_index.cli.printed_records import Row
from kafka_index.records.batch_table import BatchColumns

# First and last offset of each kind of row.
_OFFSETS = (("base_offset", "last_offset"), ("first_offset", "last_offset"))
#: First and last time of each kind of row.
TIME_COLUMNS = (("base_timestamp_ms", "max_timestamp_ms"), ("timestamp_ms", "timestamp_ms"))


@dataclass(frozen=True, slots=True)
class Selection:
    """The rows that a dump prints of each file, at most `limit`.

    By offset: batches and transactions that span it, records at it, and the index entry from which
    a search for it starts. By time: records and entries from a time on, and before another, and
    batches that may hold such.
    """

    offset: int | None = None
    from_ms: int | None = None
    to_ms: int | None = None
    limit: int | None = None

    @property
    def has_times(self) -> bool:
        """Whether rows are selected by time."""
        return self.from_ms is not None or self.to_ms is not None

    def of_rows(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows of a table that are selected; index entries by offset are not."""
        masks = []
        names = rows.schema.names
        for first, last in _OFFSETS:
            if self.offset is not None and first in names:
                masks.append(pc.less_equal(rows.column(first), self.offset))
                masks.append(pc.greater_equal(rows.column(last), self.offset))
                break
        for first, last in TIME_COLUMNS:
            if self.has_times and first in names:
                masks += self._time_masks(rows.column(first), rows.column(last))
                break
        return rows.filter(reduce(pc.and_, masks)) if masks else rows

    def of_batches(self, batches: BatchColumns) -> NDArray[np.bool_]:
        """Return which batches may hold records that are selected."""
        held = np.ones(batches.rows, np.bool_)
        if self.offset is not None:
            held &= (batches.base_offset <= self.offset) & (batches.last_offset >= self.offset)
        if self.from_ms is not None:
            held &= batches.max_timestamp_ms >= self.from_ms
        return held

    def has_record(self, row: Row) -> bool:
        """Return whether a record is selected."""
        if self.offset is not None and row.offset != self.offset:
            return False
        if self.from_ms is not None and row.timestamp_ms < self.from_ms:
            return False
        return self.to_ms is None or 0 <= row.timestamp_ms < self.to_ms

    def is_past(self, first_offset: int) -> bool:
        """Return whether nothing from an offset on is selected."""
        return self.offset is not None and first_offset > self.offset

    def _time_masks(self, first: pa.Array, last: pa.Array) -> list[pa.Array]:
        masks = [pc.greater_equal(last, 0)]
        if self.from_ms is not None:
            masks.append(pc.greater_equal(last, self.from_ms))
        if self.to_ms is not None:
            masks.append(pc.less(first, self.to_ms))
        return masks
