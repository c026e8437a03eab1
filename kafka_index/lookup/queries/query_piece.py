"""What one task answers, and the queries in it as they are read."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass

import pyarrow as pa

from kafka_index.errors import InputError, ReadError
from kafka_index.lookup.keys import Keys
from kafka_index.lookup.queries.columns import PARTITION, TOPIC
from kafka_index.lookup.queries.query_files import QueryFormat
from kafka_index.lookup.settings import By

#: The one column of texts as they are read: each query as it stands in its file.
LINE = "line"


@dataclass(frozen=True, slots=True)
class QueryPiece:
    """A file of queries, or some row groups of one: what one task answers.

    Parameters
    ----------
    number : int
        Place among all pieces: their order is that of the queries.
    path : str
        The file, absolute.
    format : QueryFormat
        Its form.
    by : By
        What the queries ask for.
    row_groups : tuple of int
        Of a Parquet file; none of one without rows.
    rows : int, optional
        How many queries; None when only reading tells.
    size_bytes : int
        About how many bytes are read.
    file_bytes : int
        Size of the file when it was checked.
    columns : tuple of str
        Those of all files, in the order of the first: what answers in another format have. Of
        JSON lines: the members of the first lines of all files.
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

    def check_unchanged(self) -> None:
        """Check that the file is as large as it was.

        Raises
        ------
        InputError
            It is not, or is gone.
        """
        if file_size(self.path) != self.file_bytes:
            raise self.changed()

    def changed(self) -> ReadError:
        """Return the error for a file that is not what it was."""
        return ReadError(
            "the file of queries is not what it was when the run began",
            path=self.path,
            hint="run again when nothing writes to it",
        )


def file_size(path: str) -> int:
    """Return the size of a file of queries.

    Raises
    ------
    InputError
        It cannot be looked at.
    """
    try:
        found = os.stat(path)
    except OSError as error:
        raise InputError(f"cannot read the queries: {error.strerror}", path=path) from error
    if not stat.S_ISREG(found.st_mode):
        raise InputError(
            "not a regular file", path=path, hint="queries are read more than once: give a file"
        )
    return found.st_size


@dataclass(frozen=True, slots=True)
class QueryBatch:
    """Some queries: what is asked, and what passes through.

    Parameters
    ----------
    rows : pa.RecordBatch
        All columns as they are in the file. CSV and JSON lines: the one column `LINE`, the text
        of each query without its line end.
    topics : Array
        Topics.
    partitions : Array of integers
        Partitions, null where a cell holds none.
    keys : Keys
        Offsets or timestamps.
    """

    rows: pa.RecordBatch
    topics: pa.Array
    partitions: pa.Array
    keys: Keys

    @classmethod
    def of(cls, rows: pa.RecordBatch, by: By) -> QueryBatch:
        """Return the queries of columns that `check_columns` lets pass."""
        topics, partitions, keys = (rows.column(name) for name in (TOPIC, PARTITION, by.column))
        return cls(rows, topics, partitions, Keys.of(keys, by))

    def __len__(self) -> int:
        """Return the number of queries."""
        return int(self.rows.num_rows)
