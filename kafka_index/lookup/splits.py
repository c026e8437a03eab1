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

    Parameters
    ----------
    number : int
        Position among all splits, whose order is that of the queries.
    path : str
        The file, absolute.
    format : QueryFormat
        Its format.
    by : By
        What the queries ask for.
    row_groups : tuple of int
        Of a Parquet file; empty for one without rows.
    rows : int, optional
        Number of queries; None when only reading reveals it.
    size_bytes : int
        About how many bytes are read.
    file_bytes : int
        Size of the file when it was checked.
    first_row : int
        Queries of the file before the split.
    columns : tuple of str
        The columns of all files, in the order of the first file. Of JSON lines: the members of the
        first lines of all files.
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
        """Check that the file still has its size.

        Raises
        ------
        InputError
            It has another size, or is gone.
        """
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
    """Some queries: what they ask for, and what passes through.

    Parameters
    ----------
    rows : pa.RecordBatch
        The columns that pass through.
    topics : Array
        Topics.
    partitions : Array of integers
        Partitions, null where a cell does not hold one.
    keys : Keys
        Offsets or timestamps.
    lines : Array of large strings, optional
        JSON lines that are answered as JSON lines: a JSON object for each query, instead of `rows`.
    malformed : ndarray of bool, shape (n,), optional
        Rows of text that are none: of a wrong width, or not JSON. Their keys are invalid.
    cells : pa.RecordBatch, optional
        The columns as they were read, where `rows` has them in other types.
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
