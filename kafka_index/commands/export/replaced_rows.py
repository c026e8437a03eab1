"""Replaces rows of a lake table by new files, without the replaced rows and with newer records.

Rows to replace are found by partition and offset. In a table with the newest record of each key,
rows with the keys of new records are replaced too. Kafka's log cleaner also compares keys by their
bytes, within a partition. These are the steps:

1. Find the newest record of each key in the new history files.
2. Find the rows of the table to replace. Files without such rows are kept.
3. Write the other rows of the affected files, and the newest records, to new files. No row is
   written for a key whose newest record is a tombstone. All records without a key are written.

DuckDB joins the keys, and spills them to the local working folder if they do not fit into memory.
The merge functions of table libraries are not used: deltalake holds one side of the join in memory.
pyiceberg builds an expression of all keys, and reads null lists as empty lists.
"""

from __future__ import annotations

import os
import secrets
import tempfile
from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kafka_index.commands.export.data_files import SplitFiles
from kafka_index.commands.export.partition_export import remove_scratch_files
from kafka_index.commands.export.settings import TOMBSTONE, ExportSettings
from kafka_index.commands.export.table_schema import table_batch
from kafka_index.core.format.longs import Longs
from kafka_index.core.fs.local_work import query_batches, workspace
from kafka_index.core.fs.registry import readable
from kafka_index.core.schema.columns import KEY

#: The maximum rows and bytes of a batch that is read. Row groups of other tools can have any size.
_BATCH_ROWS, _BATCH_BYTES = 16 * 1024, 16 * 1024 * 1024
#: A new file of a table is completed once its rows have about this many bytes in memory.
_FILE_BYTES = 512 * 1024 * 1024
#: The maximum number of open new files, one per partition. A file that another tool has merged may
#: contain several partitions.
_MAX_OPEN = 2
#: A row ID has the number of the file in its high bits, and the row number in these low bits.
_ROW_BITS = 40
_NEWEST = """
SELECT
    partition, key,
    arg_max(row_id, "offset") AS newest, arg_max(is_tombstone, "offset") AS is_tombstone
FROM input_rows WHERE key IS NOT NULL GROUP BY partition, key"""
_KEY_COLUMNS = {"partition": pa.int32(), "key": pa.binary()}
_ROW_ID = {"row_id": pa.int64()}
_NEWEST_SCHEMA = pa.schema({**_KEY_COLUMNS, "newest": pa.int64(), "is_tombstone": pa.bool_()})
_ADDED = "SELECT newest FROM input_rows WHERE NOT is_tombstone ORDER BY newest"
_REMOVED = """
SELECT row_id FROM input_rows LEFT JOIN read_parquet({file}) AS newest_rows USING (partition, key)
WHERE newest IS NOT NULL OR is_replaced ORDER BY row_id"""


@dataclass(frozen=True, slots=True)
class RowRange:
    """Rows of a partition in a table; `end_offset` is exclusive."""

    partition: int
    first_offset: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class TableFile:
    """A file of a table.

    Attributes
    ----------
    partitions, offsets : tuple of int
        The minimum and maximum in its rows.
    has_nulls : bool
        Some rows have no partition or offset, because another tool has added them.
    """

    path: str
    partitions: tuple[int, int]
    offsets: tuple[int, int]
    has_nulls: bool

    def overlaps(self, rows: RowRange) -> bool:
        """Return whether the file may contain rows of this range."""
        (min_partition, max_partition), (min_offset, max_offset) = self.partitions, self.offsets
        is_offset_range_near = min_offset < rows.end_offset and max_offset >= rows.first_offset
        return min_partition <= rows.partition <= max_partition and is_offset_range_near

    def is_covered_by(self, rows: RowRange) -> bool:
        """Return whether the file contains only rows of this range."""
        min_offset, max_offset = self.offsets
        is_within_offsets = rows.first_offset <= min_offset and max_offset < rows.end_offset
        is_one_partition = (
            self.partitions == (rows.partition, rows.partition) and not self.has_nulls
        )
        return is_one_partition and is_within_offsets


def has_rows_of(file: TableFile, partitions: Collection[int]) -> bool:
    """Return whether a file has rows of any of these partitions.

    If another tool has merged files, the bounds of the file may include partitions without rows, so
    the column is read.
    """
    min_partition, max_partition = file.partitions
    if min_partition == max_partition:
        return min_partition in partitions
    with pq.ParquetFile(readable(file.path)) as parquet_file:
        if "partition" not in parquet_file.schema_arrow.names:
            return True
        batches = parquet_file.iter_batches(columns=["partition"])
        return any(np.isin(batch.column(0), list(partitions)).any() for batch in batches)


def replace_rows(
    files: Sequence[TableFile],
    ranges: Sequence[RowRange],
    history_files: Sequence[str],
    schema: pa.Schema,
    settings: ExportSettings,
    folder: str,
) -> tuple[list[str], list[str]]:
    """Write new files with kept and added rows; return the paths of removed and of new files.

    Parameters
    ----------
    files : sequence of TableFile
        The files of the table that may have rows of the partitions.
    ranges : sequence of RowRange
        Rows that are replaced.
    history_files : sequence of str
        History files whose newest records are added. Outside of `ranges`, the offsets in history
        files are later than all offsets in the table.
    schema : pa.Schema
        The columns of the table.
    settings : ExportSettings
        The settings, with the typed columns of the topic.
    folder : str
        The folder of the table.
    """
    key = settings.raw_column(KEY)
    removed_paths = {file.path: None for file in files if any(map(file.is_covered_by, ranges))}
    # Any file of the table may contain the keys of records in history files.
    searched_paths = [
        file.path
        for file in files
        if file.path not in removed_paths and (history_files or any(map(file.overlaps, ranges)))
    ]
    with ExitStack() as stack:
        scratch = stack.enter_context(tempfile.TemporaryDirectory(dir=workspace()))
        output = stack.enter_context(_TableFiles(folder, settings, schema))
        newest_path = os.path.join(scratch, "newest.parquet")
        if history_files:
            _write_newest(history_files, key, newest_path)
            replaced_row_ids = _RowIds(_replaced_keys(searched_paths, key, newest_path, ranges))
        else:
            replaced_row_ids = _RowIds(_replaced_offsets(searched_paths, ranges))
        while (row_id := replaced_row_ids.next) is not None:
            file_number = row_id >> _ROW_BITS
            removed_paths[searched_paths[file_number]] = None
            for first_row_id, batch in _read_rows(file_number, searched_paths[file_number], schema):
                is_unchanged = np.ones(len(batch), np.bool_)
                next_row_ids = replaced_row_ids.take_up_to(first_row_id + len(batch) - 1)
                is_unchanged[next_row_ids - first_row_id] = False
                output.write(batch.filter(pa.array(is_unchanged)))
        if history_files:
            newest_row_ids = _RowIds(_query(_read_newest(newest_path), _NEWEST_SCHEMA, _ADDED))
            for file_number, path in enumerate(history_files):
                for first_row_id, batch in _read_rows(file_number, path, schema):
                    is_newest = np.array(pc.is_null(batch.column(key)))
                    newest = newest_row_ids.take_up_to(first_row_id + len(batch) - 1)
                    is_newest[newest - first_row_id] = True
                    output.write(batch.filter(pa.array(is_newest)))
        return list(removed_paths), output.finish()


def _write_newest(paths: Sequence[str], key: str, target: str) -> None:
    """Write the row ID of the newest record of each key to a local file."""
    columns = {**_KEY_COLUMNS, "offset": pa.int64(), "is_tombstone": pa.bool_()}
    rows = _read_with_row_ids(paths, ("partition", key, "offset", TOMBSTONE), columns)
    with pq.ParquetWriter(target, _NEWEST_SCHEMA) as writer:
        for batch in _query(rows, pa.schema({**columns, **_ROW_ID}), _NEWEST):
            writer.write_batch(batch.cast(_NEWEST_SCHEMA))


def _replaced_keys(
    paths: Sequence[str], key: str, newest: str, ranges: Sequence[RowRange]
) -> Iterator[pa.RecordBatch]:
    """Yield the IDs of rows that have the key of a new record, or are in a range."""
    columns = {**_KEY_COLUMNS, "offset": pa.int64()}
    rows = _read_with_row_ids(paths, ("partition", key, "offset"), columns)
    schema = pa.schema({**columns, **_ROW_ID, "is_replaced": pa.bool_()})
    flagged_rows = (
        batch.append_column("is_replaced", _is_in_ranges(batch, ranges)) for batch in rows
    )
    quoted_path = newest.replace("'", "''")
    return _query(flagged_rows, schema, _REMOVED.format(file=f"'{quoted_path}'"))


def _replaced_offsets(paths: Sequence[str], ranges: Sequence[RowRange]) -> Iterator[pa.RecordBatch]:
    """Yield the IDs of the rows in ranges."""
    columns = {"partition": pa.int32(), "offset": pa.int64()}
    for batch in _read_with_row_ids(paths, tuple(columns), columns):
        yield batch.filter(_is_in_ranges(batch, ranges)).select(list(_ROW_ID))


def _is_in_ranges(batch: pa.RecordBatch, ranges: Sequence[RowRange]) -> pa.Array:
    """Return a mask of the rows that are in a range."""
    partition, offset = (
        np.asarray(pc.fill_null(batch.column(name), -1)) for name in ("partition", "offset")
    )
    is_in_range = np.zeros(len(batch), np.bool_)
    for row_range in ranges:
        is_at_or_after = (partition == row_range.partition) & (offset >= row_range.first_offset)
        is_in_range |= is_at_or_after & (offset < row_range.end_offset)
    return pa.array(is_in_range)


def _read_with_row_ids(
    paths: Sequence[str], names: Sequence[str], columns: Mapping[str, pa.DataType]
) -> Iterator[pa.RecordBatch]:
    """Yield batches of the files' columns, renamed to `columns`, with a column of row IDs."""
    schema = pa.schema(list(zip(names, columns.values(), strict=True)))
    for file_number, path in enumerate(paths):
        for first_row_id, batch in _read_rows(file_number, path, schema):
            row_ids = pa.array(np.arange(first_row_id, first_row_id + len(batch)))
            yield pa.RecordBatch.from_arrays([*batch.columns, row_ids], names=[*columns, *_ROW_ID])


def _read_rows(
    file_number: int, path: str, schema: pa.Schema
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield batches of the columns of a file, each with the ID of its first row."""
    row_id = file_number << _ROW_BITS
    with pq.ParquetFile(readable(path)) as file:
        file_columns = set(file.schema_arrow.names)
        selected_columns = [name for name in schema.names if name in file_columns]
        # Row groups are read separately: a batch across several row groups could have any size.
        for group in range(file.num_row_groups):
            row_group = file.metadata.row_group(group)
            fitting_rows = row_group.num_rows * _BATCH_BYTES // max(row_group.total_byte_size, 1)
            rows = max(min(fitting_rows, _BATCH_ROWS), 1)
            for batch in file.iter_batches(rows, row_groups=[group], columns=selected_columns):
                yield row_id, table_batch(batch, schema)
                row_id += len(batch)


def _read_newest(path: str) -> Iterator[pa.RecordBatch]:
    with pq.ParquetFile(path) as file:
        yield from file.iter_batches(columns=_NEWEST_SCHEMA.names)


def _query(
    batches: Iterator[pa.RecordBatch], schema: pa.Schema, query: str
) -> Iterator[pa.RecordBatch]:
    return query_batches(
        batches, schema, query, rows="keys of the table", batch_rows=1 << 16, threads=2
    )


class _RowIds:
    """An iterator over ascending row IDs, which are read from batches with one column."""

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self._batches = batches
        self._row_ids: Longs = np.empty(0, np.int64)

    @property
    def next(self) -> int | None:
        """The next row ID; None at the end."""
        while not len(self._row_ids):
            batch = next(self._batches, None)
            if batch is None:
                return None
            self._row_ids = np.asarray(batch.column(0))
        return int(self._row_ids[0])

    def take_up_to(self, last_row_id: int) -> Longs:
        """Return the next row IDs up to an ID, inclusive, and advance beyond them."""
        chunks = [np.empty(0, np.int64)]
        while (row_id := self.next) is not None and row_id <= last_row_id:
            count = int(np.searchsorted(self._row_ids, last_row_id, "right"))
            chunks.append(self._row_ids[:count])
            self._row_ids = self._row_ids[count:]
        return np.concatenate(chunks)


class _TableFiles:
    """Writes rows to files of a table, each with rows of one partition.

    The names of the files are unique: they contain a random number instead of the revision.
    """

    def __init__(self, folder: str, settings: ExportSettings, schema: pa.Schema) -> None:
        self._folder, self._settings, self._schema = folder, settings, schema
        self._open_files: OrderedDict[int, tuple[SplitFiles, int]] = OrderedDict()
        self._cleaned_partitions: set[int] = set()
        self._paths: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        with ExitStack() as stack:
            for files, _ in self._open_files.values():
                stack.push(files)

    def write(self, batch: pa.RecordBatch) -> None:
        # Another tool may have added rows without a partition.
        partitions = np.asarray(pc.fill_null(batch.column("partition"), -1))
        for partition in np.unique(partitions).tolist():
            is_partition = partitions == partition
            rows = batch if is_partition.all() else batch.filter(pa.array(is_partition))
            if partition not in self._open_files:
                self._open_files[partition] = self._open_partition(partition), 0
            files, size = self._open_files.pop(partition)
            self._open_files[partition] = files, size + rows.nbytes
            files.write(rows)
            if size + rows.nbytes >= _FILE_BYTES:
                self._close_files(partition)

    def finish(self) -> list[str]:
        """Rename all files to their final names; return their paths."""
        while self._open_files:
            self._close_files(next(iter(self._open_files)))
        return self._paths

    def _open_partition(self, partition: int) -> SplitFiles:
        if len(self._open_files) == _MAX_OPEN:
            self._close_files(next(iter(self._open_files)))
        # This is not the folder of the partition's data files, because exports remove unknown files
        # there.
        folder = os.path.join(self._folder, "data", f"partition-{partition}")
        if partition not in self._cleaned_partitions:
            self._cleaned_partitions.add(partition)
            remove_scratch_files(folder)
        file_id = secrets.randbits(64)
        settings = replace(self._settings, revision=file_id)
        return SplitFiles(folder, settings, str(file_id), self._schema)

    def _close_files(self, partition: int) -> None:
        files, _ = self._open_files[partition]
        files.finish()
        del self._open_files[partition]
        self._paths += files.paths
