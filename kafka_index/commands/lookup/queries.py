"""Queries: from a path to checked splits, and from a split to batches.

Files of Parquet are checked by their footers, split and read by row groups.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from kafka_index.commands.lookup.query_files import (
    PARTITION,
    TOPIC,
    QueryBatch,
    QueryFormat,
    QuerySplit,
    check_columns,
    errors_of,
    file_size,
    find_query_files,
    needed_columns,
    refuse_differences,
)
from kafka_index.commands.lookup.text_queries import check_csv, check_json, read_csv, read_json
from kafka_index.core.errors import InputError
from kafka_index.core.format.integers import INT32_MAX
from kafka_index.core.fs.registry import readable
from kafka_index.core.query.keys import By, Keys

if TYPE_CHECKING:
    import pyarrow.parquet as pq

#: Rows of a split, where its row groups allow.
SPLIT_ROWS = 1_000_000
#: Rows of a batch, if they are small. More are slower: they do not fit into caches.
READ_ROWS = 250_000
# Fewer queries make smaller splits, so that there is work for all threads.
_MIN_SPLIT_ROWS = 100_000
_SPLITS = 32
_BATCH_BYTES = 256 << 20
_MIN_BATCH_ROWS = 1_000

_ARROW_SCHEMA = b"ARROW:schema"
# Spark and Hive used to write instants as 96-bit integers, which have no unit. As nanoseconds they
# overflow and Spark cannot read them, so they become what Spark itself writes today.
_INSTANT = pa.timestamp("us", "UTC")
_INT32 = -INT32_MAX - 1, INT32_MAX


def check_parquet(files: Sequence[str], by: By) -> list[QuerySplit]:
    """Check the columns of all files, and divide them into splits.

    Raises `InputError` if a file cannot be read, or its columns are not right or not those of the
    others.
    """
    schemas: list[tuple[str, pa.Schema]] = []
    footers: list[pq.FileMetaData] = []
    sizes = [file_size(path) for path in files]
    for path in files:
        with _errors_of(path):
            footers.append(read_footer(path))
            schemas.append((path, parquet_schema(footers[-1])))
        check_columns(schemas[-1][1], by, path=path)
    refuse_differences(schemas)
    rows = sum(footer.num_rows for footer in footers)
    split_rows = min(max(rows // _SPLITS, _MIN_SPLIT_ROWS), SPLIT_ROWS)
    splits: list[QuerySplit] = []
    for path, footer, size in zip(files, footers, sizes, strict=True):
        first_row = 0
        for groups in _row_groups(footer, split_rows):
            metadata = [footer.row_group(group) for group in groups]
            splits.append(
                QuerySplit(
                    number=len(splits),
                    path=path,
                    format=QueryFormat.PARQUET,
                    by=by,
                    row_groups=groups,
                    rows=sum(group.num_rows for group in metadata),
                    size_bytes=sum(_compressed_bytes(group) for group in metadata),
                    file_bytes=size,
                    columns=tuple(schemas[0][1].names),
                    first_row=first_row,
                )
            )
            first_row += splits[-1].rows or 0
    return splits


def read_footer(path: str) -> pq.FileMetaData:
    """Return the footer of a local or remote file."""
    import pyarrow.parquet as pq  # noqa: PLC0415, slow to import

    return pq.read_metadata(readable(path))


def parquet_schema(footer: pq.FileMetaData) -> pa.Schema:
    """Return the columns of a file as they are read and written."""
    # The metadata of the file comes with the schema only if Arrow wrote it.
    metadata = {k: v for k, v in (footer.metadata or {}).items() if k != _ARROW_SCHEMA}
    schema = footer.schema.to_arrow_schema()
    schema = schema.with_metadata({**metadata, **(schema.metadata or {})} or None)
    for number in _instants(footer):
        name = footer.schema.column(number).path
        place = schema.get_field_index(name)
        if place >= 0:
            schema = schema.set(place, schema.field(place).with_type(_INSTANT))
    return schema


def read_parquet(split: QuerySplit, *, max_rows: int = READ_ROWS) -> Iterator[QueryBatch]:
    """Read a split of a Parquet file, at most so many rows at a time.

    Raises `InputError` if it cannot be read, or changed after it was checked.
    """
    import pyarrow.parquet as pq  # noqa: PLC0415, slow to import

    rows = 0
    with _errors_of(split.path):
        file = readable(split.path)
        footer = pq.read_metadata(file)
        unit = "us" if _instants(footer) else None
        if any(group >= footer.num_row_groups for group in split.row_groups):
            raise split.changed()
        schema = parquet_schema(footer)
        with pq.ParquetFile(
            file,
            metadata=footer,
            coerce_int96_timestamp_unit=unit,
            # Each topic is looked up once instead of once a row.
            read_dictionary=[TOPIC] if schema.field(TOPIC).type == pa.string() else [],
        ) as opened:
            batches = opened.iter_batches(
                batch_size=_batch_rows(footer, split.row_groups, max_rows),
                row_groups=list(split.row_groups),
                use_threads=False,
            )
            for batch in batches if split.row_groups else ():
                rows += batch.num_rows
                typed = _typed(batch, schema)
                keys = Keys.of(typed.column(split.by.column), split.by)
                yield QueryBatch(typed, batch.column(TOPIC), typed.column(PARTITION), keys)
    if rows != split.rows:
        raise split.changed()


def _typed(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    if batch.schema.equals(schema):
        return batch
    columns = [
        column if column.type == field.type else column.cast(field.type)
        for column, field in zip(batch.columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _row_groups(footer: pq.FileMetaData, max_rows: int) -> Iterator[tuple[int, ...]]:
    """Yield the row groups of each split: at most so many rows, or a single larger group."""
    groups: list[int] = []
    rows = 0
    for number in range(footer.num_row_groups):
        more = footer.row_group(number).num_rows
        if groups and rows + more > max_rows:
            yield tuple(groups)
            groups, rows = [], 0
        groups.append(number)
        rows += more
    # A file without rows is a split, too: its part holds the columns.
    yield tuple(groups)


def _batch_rows(footer: pq.FileMetaData, row_groups: Sequence[int], max_rows: int) -> int:
    groups = [footer.row_group(number) for number in row_groups]
    rows = max(sum(group.num_rows for group in groups), 1)
    size = max(sum(group.total_byte_size for group in groups), 1)
    return int(max(min(max_rows, _BATCH_BYTES * rows // size), _MIN_BATCH_ROWS))


def _compressed_bytes(group: pq.RowGroupMetaData) -> int:
    return sum(group.column(number).total_compressed_size for number in range(group.num_columns))


def _instants(footer: pq.FileMetaData) -> list[int]:
    """Return the columns of 96-bit instants."""
    return [
        number
        for number in range(footer.num_columns)
        if footer.schema.column(number).physical_type == "INT96"
    ]


@contextmanager
def _errors_of(path: str) -> Iterator[None]:
    """Raise what is wrong with a file as an InputError that names it."""
    try:
        with errors_of(path):
            yield
    except pa.ArrowException as error:
        raise InputError(f"not a valid Parquet file: {error}", path=path) from error


@dataclass(frozen=True, slots=True)
class Queries:
    """The checked queries of a run.

    The files are absolute, in the order of the queries; each has one split or more.
    """

    path: str
    by: By
    format: QueryFormat
    files: tuple[str, ...]
    splits: tuple[QuerySplit, ...]

    @property
    def rows(self) -> int | None:
        """Number of queries; None when only reading reveals it."""
        counts = [split.rows for split in self.splits]
        return None if None in counts else sum(count or 0 for count in counts)


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
    if form is QueryFormat.PARQUET:
        splits = check_parquet(files, by)
    else:
        sizes = list(map(file_size, files))
        names = check_csv(files, by) if form is QueryFormat.CSV else check_json(files, by)
        splits = [
            QuerySplit(number, file, form, by, (), None, size, size, names or needed_columns(by))
            for number, (file, size) in enumerate(zip(files, sizes, strict=True))
        ]
    return Queries(path, by, form, tuple(files), tuple(splits))


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
