"""Queries: from a path to checked splits, and from a split to batches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from kafka_index.lookup.csv_queries import check_csv, read_csv
from kafka_index.lookup.json_queries import check_json, read_json
from kafka_index.lookup.keys import By
from kafka_index.lookup.parquet_queries import READ_ROWS, check_parquet, read_parquet
from kafka_index.lookup.query_columns import PARTITION, QueryBatch, needed_columns
from kafka_index.lookup.query_files import QueryFormat, QuerySplit, file_size, find_query_files

_INT32 = -(2**31), 2**31 - 1


@dataclass(frozen=True, slots=True)
class Queries:
    """The checked queries of a run.

    The schema has the columns of all files (CSV: all strings); None for JSON lines, where each line
    has its own, and for CSV files that are all empty. The files are absolute, in the order of the
    queries; each has one split or more.
    """

    path: str
    by: By
    format: QueryFormat
    schema: pa.Schema | None
    files: tuple[str, ...]
    splits: tuple[QuerySplit, ...]

    @property
    def rows(self) -> int | None:
        """Number of queries; None when only reading reveals it."""
        counts = [split.rows for split in self.splits]
        return None if None in counts else sum(count or 0 for count in counts)

    @property
    def size_bytes(self) -> int:
        """Size of all splits."""
        return sum(split.size_bytes for split in self.splits)


def open_queries(path: str, by: By) -> Queries:
    """Find query files, check their columns, and divide them into splits.

    The path is a Parquet (``.parquet``), CSV (``.csv``) or JSON lines (``.json``, ``.jsonl``,
    ``.ndjson``) file, a folder of files of one format, or a glob of either. Names that start with
    ``_`` or ``.`` are ignored in folders and globs. Text may be compressed. Raises `InputError` if
    there are no files, they have several formats or an unknown one, or their columns are missing,
    of the wrong type, named like those of answers, or not the same in all files. For JSON lines
    only the first lines of each file are checked.
    """
    files, form = find_query_files(path)
    schema: pa.Schema | None = None
    if form is QueryFormat.PARQUET:
        schema, splits = check_parquet(files, by)
    else:
        sizes = list(map(file_size, files))
        names: tuple[str, ...]
        if form is QueryFormat.CSV:
            schema = check_csv(files, by)
            names = () if schema is None else tuple(schema.names)
        else:
            names = check_json(files, by)
        splits = [
            QuerySplit(number, file, form, by, (), None, size, size, names or needed_columns(by))
            for number, (file, size) in enumerate(zip(files, sizes, strict=True))
        ]
    return Queries(path, by, form, schema, tuple(files), tuple(splits))


def read_split(
    split: QuerySplit, *, as_parquet: bool = False, max_rows: int = READ_ROWS
) -> Iterator[QueryBatch]:
    """Read the queries of a split in their order.

    With `as_parquet` the queries will be written as Parquet, whatever their own format is. A batch
    of Parquet has at most so many rows; text is read by some megabytes. Raises `InputError` if the
    file cannot be read, is malformed as a whole, or changed after it was checked.
    """
    split.check_unchanged()
    if split.format is QueryFormat.PARQUET:
        return read_parquet(split, max_rows=max_rows)
    if split.format is QueryFormat.CSV:
        batches = read_csv(split)
    else:
        batches = read_json(split, as_lines=not as_parquet)
    if not as_parquet:
        return batches
    return (replace(batch, rows=_converted(batch, split), cells=batch.rows) for batch in batches)


def converted_schema(split: QuerySplit) -> pa.Schema:
    """Return the columns of CSV or JSON lines that are written as Parquet."""
    types = {PARTITION: pa.int32(), split.by.column: pa.int64()}
    return pa.schema([(name, types.get(name, pa.string())) for name in split.columns])


def _converted(batch: QueryBatch, split: QuerySplit) -> pa.RecordBatch:
    low, high = _INT32
    partitions = batch.partitions
    fits = pc.and_(pc.greater_equal(partitions, low), pc.less_equal(partitions, high))
    typed = {
        PARTITION: pc.if_else(fits, partitions, None).cast(pa.int32()),
        split.by.column: batch.keys.to_arrow(),
    }
    columns = [typed[name] if name in typed else batch.rows.column(name) for name in split.columns]
    return pa.RecordBatch.from_arrays(columns, schema=converted_schema(split))
