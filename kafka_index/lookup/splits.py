"""A split: the queries that one task answers; and the batches in which they are read."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from kafka_index.errors import ReadError
from kafka_index.lookup.keys import By, Flags, Keys
from kafka_index.lookup.query_files import QueryFormat, file_size


@dataclass(frozen=True, slots=True)
class QuerySplit:
    """A file of queries, or some row groups of a Parquet file.

    `number` is the position among all splits, whose order is that of the queries. A Parquet file
    without rows has no row groups. `rows` is None when only reading reveals it. `size_bytes` is
    about the size of the read, `file_bytes` the size of the file when it was checked. `first_row`
    counts the queries of the file before the split. `columns` are those of all files, in the order
    of the first file; for JSON lines, the members of the first lines of all files.
    """

    number: int
    path: str
    format: QueryFormat
    by: By
    row_groups: tuple[int, ...]
    rows: int | None
    size_bytes: int
    file_bytes: int
    columns: tuple[str, ...] = ()
    first_row: int = 0

    def check_unchanged(self) -> None:
        """Check that the file still has its size; raises `InputError` if not, or if it is gone."""
        if file_size(self.path) != self.file_bytes:
            raise self.changed()

    def changed(self) -> ReadError:
        """Return the error for a file that changed after it was checked."""
        return ReadError(
            "the file of queries changed during the run",
            path=self.path,
            hint="run again when nothing writes to it",
        )


@dataclass(frozen=True, slots=True)
class QueryBatch:
    """Some queries: their keys, and the columns that pass through.

    Partitions are null where a cell does not hold one. `lines` are JSON lines that are answered as
    JSON lines: a JSON object for each query, instead of `rows`. `malformed` marks rows of text with
    a wrong width, or that are not JSON; their keys are invalid. `cells` are the columns as they
    were read, where `rows` has them in other types.
    """

    rows: pa.RecordBatch
    topics: pa.Array
    partitions: pa.Array
    keys: Keys
    lines: pa.Array | None = None
    malformed: Flags | None = None
    cells: pa.RecordBatch | None = None

    def __len__(self) -> int:
        """Return the number of queries."""
        return len(self.keys)
