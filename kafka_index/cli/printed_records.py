"""Records to be printed: as columns, and as rows of views of their bytes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import NamedTuple, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kafka_index.cli.decoded_records import Decoded
from kafka_index.layout.integers import Longs
from kafka_index.records.record_chunk import RecordChunk
from kafka_index.records.record_table import RecordTable, WindowBatches

#: The columns of numbers of a row, in its order.
NUMBER_COLUMNS = (
    "position_bytes",
    "offset",
    "timestamp",
    "producer_id",
    "producer_epoch",
    "sequence",
    "is_control",
)

MaybeBytes = memoryview | None
PrintedHeader = tuple[memoryview, MaybeBytes]


class Row(NamedTuple):
    """A record to be printed."""

    position_bytes: int
    offset: int
    timestamp_ms: int
    producer_id: int
    producer_epoch: int
    sequence: int
    is_control: bool
    key: MaybeBytes
    value: MaybeBytes
    headers: Sequence[PrintedHeader]
    decoded: Decoded | None = None


@dataclass(frozen=True, slots=True)
class PrintedRecords:
    """Records to be printed, as columns.

    `numbers` are columns of `RECORD_SCHEMA`. `header_counts` has the number of headers of each
    record; their names and values, of all records, come in order.
    """

    numbers: pa.RecordBatch
    keys: pa.Array
    values: pa.Array
    header_counts: Longs
    header_names: pa.Array
    header_values: pa.Array

    @classmethod
    def of_chunk(cls, chunk: RecordChunk, source: WindowBatches) -> Self:
        """Copy the records of a chunk."""
        numbers = RecordTable("", -1, NUMBER_COLUMNS).convert(chunk, source)
        counts, headers = chunk.header_counts(), chunk.header_columns()
        return cls(numbers, chunk.keys, chunk.values, counts, *headers)

    @classmethod
    def of_rows(cls, rows: pa.RecordBatch) -> Self:
        """Return records of a table that has `NUMBER_COLUMNS`, keys, values and headers."""
        headers = rows.column("headers")
        pairs = headers.flatten()
        return cls(
            rows.select(NUMBER_COLUMNS),
            rows.column("key"),
            rows.column("value"),
            np.asarray(pc.list_value_length(headers).fill_null(0)).astype(np.int64),
            pairs.field("key").cast(pa.binary()),
            pairs.field("value"),
        )

    def __len__(self) -> int:
        """Return the number of records."""
        return len(self.keys)

    def rows(self) -> Iterator[Row]:
        """Yield the records."""
        numbers = (self.numbers[name] for name in NUMBER_COLUMNS)
        # Timestamps as numbers: Python's do not reach as far as Kafka's.
        numbers = (
            (column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column).to_pylist()
            for column in numbers
        )
        return map(Row, *numbers, _slices(self.keys), _slices(self.values), self._headers())

    def _headers(self) -> Iterator[Sequence[PrintedHeader]]:
        names = (name or memoryview(b"") for name in _slices(self.header_names))
        pairs = zip(names, _slices(self.header_values), strict=True)
        for count in self.header_counts.tolist():
            yield list(islice(pairs, count)) if count else ()


def _slices(column: pa.Array) -> Iterator[MaybeBytes]:
    """Yield views of the bytes of a column."""
    _, ends, data = column.buffers()
    view = memoryview(data)
    present = column.is_valid().to_pylist()
    for is_present, (start, end) in zip(
        present, pairwise(np.frombuffer(ends, np.int32).tolist()), strict=True
    ):
        yield view[start:end] if is_present else None
