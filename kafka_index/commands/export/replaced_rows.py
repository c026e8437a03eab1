"""Replaced rows of tables: files without them, and with the newest records of new history files.

Rows are replaced by the offsets of a partition, and in a table with the newest record of each key
also by their keys. Keys are compared by their bytes, within a partition, as the log cleaner of
Kafka does. These are the steps:

1. Find the newest record of each key in the new history files.
2. Find the rows of the table that are replaced. Files without one stay.
3. Write the other rows of the remaining files, and the newest records, to new files. A key whose
   newest record is a tombstone gets no row. A record without a key is always a row.

DuckDB finds the keys, and spills what does not fit into its memory to the local working folder. The
merge of deltalake holds one side of its join in memory, and pyiceberg makes an expression of all
keys, and reads null lists as empty lists.
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

#: Rows are read in batches of this many, and of about this many bytes: other tools write row groups
#: of any size.
_BATCH_ROWS, _BATCH_BYTES = 16 * 1024, 16 * 1024 * 1024
#: A file of a table has about this many bytes of rows in memory.
_FILE_BYTES = 512 * 1024 * 1024
#: Partitions whose files are written at a time, if another tool has put them into one file.
_MAX_OPEN = 2
#: The place of a row: the number of its file in the high bits, its row number in these low bits.
_ROW_BITS = 40
_NEWEST = """
SELECT
    partition, key,
    arg_max(place, "offset") AS newest, arg_max(is_tombstone, "offset") AS is_tombstone
FROM input_rows WHERE key IS NOT NULL GROUP BY partition, key"""
_KEY_COLUMNS = {"partition": pa.int32(), "key": pa.binary()}
_PLACE = {"place": pa.int64()}
_NEWEST_SCHEMA = pa.schema({**_KEY_COLUMNS, "newest": pa.int64(), "is_tombstone": pa.bool_()})
_ADDED = "SELECT newest FROM input_rows WHERE NOT is_tombstone ORDER BY newest"
_REMOVED = """
SELECT place FROM input_rows LEFT JOIN read_parquet({file}) AS found USING (partition, key)
WHERE newest IS NOT NULL OR is_replaced ORDER BY place"""


@dataclass(frozen=True, slots=True)
class RowRange:
    """Rows of a partition in a table, the end exclusive."""

    partition: int
    first_offset: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class TableFile:
    """A file of a table, with the least and greatest partition and offset of its rows.

    `has_nulls`: some rows have no partition or offset, because another tool has added them.
    """

    path: str
    partitions: tuple[int, int]
    offsets: tuple[int, int]
    has_nulls: bool

    def overlaps(self, rows: RowRange) -> bool:
        """Return whether the file may contain rows of this range."""
        (least, most), (low, high) = self.partitions, self.offsets
        is_near = low < rows.end_offset and high >= rows.first_offset
        return least <= rows.partition <= most and is_near

    def is_within(self, rows: RowRange) -> bool:
        """Return whether the file contains only rows of this range."""
        low, high = self.offsets
        is_inside = rows.first_offset <= low and high < rows.end_offset
        is_own = self.partitions == (rows.partition, rows.partition) and not self.has_nulls
        return is_own and is_inside


def has_rows_of(file: TableFile, partitions: Collection[int]) -> bool:
    """Return whether a file has rows of any of these partitions.

    The bounds of a file that another tool has written may contain partitions without a row.
    """
    low, high = file.partitions
    if low == high:
        return low in partitions
    with pq.ParquetFile(readable(file.path)) as found:
        if "partition" not in found.schema_arrow.names:
            return True
        batches = found.iter_batches(columns=["partition"])
        return any(np.isin(batch.column(0), list(partitions)).any() for batch in batches)


def replace_rows(
    files: Sequence[TableFile],
    ranges: Sequence[RowRange],
    history_files: Sequence[str],
    schema: pa.Schema,
    settings: ExportSettings,
    folder: str,
) -> tuple[list[str], list[str]]:
    """Return the files to remove from a table, and new files with the rows that stay or are added.

    Parameters
    ----------
    files : sequence of TableFile
        The files of the table that may have rows of the partitions.
    ranges : sequence of RowRange
        Rows that are replaced.
    history_files : sequence of str
        History files whose newest records are added. Apart from the ranges, they are later than all
        rows of the table.
    schema : pa.Schema
        The columns of the table.
    settings : ExportSettings
        The settings, with the typed columns of the topic.
    folder : str
        The folder of the table.
    """
    key = settings.raw_column(KEY)
    lost = {one.path: None for one in files if any(map(one.is_within, ranges))}
    # Any file may have the keys of new records.
    others = [
        one.path
        for one in files
        if one.path not in lost and (history_files or any(map(one.overlaps, ranges)))
    ]
    with ExitStack() as stack:
        scratch = stack.enter_context(tempfile.TemporaryDirectory(dir=workspace()))
        output = stack.enter_context(_TableFiles(folder, settings, schema))
        newest = os.path.join(scratch, "newest.parquet")
        if history_files:
            _write_newest(history_files, key, newest)
            removed = _Places(_replaced_keys(others, key, newest, ranges))
        else:
            removed = _Places(_replaced_offsets(others, ranges))
        while (place := removed.next) is not None:
            number = place >> _ROW_BITS
            lost[others[number]] = None
            for first, batch in _rows(number, others[number], schema):
                is_kept = np.ones(len(batch), np.bool_)
                is_kept[removed.up_to(first + len(batch) - 1) - first] = False
                output.write(batch.filter(pa.array(is_kept)))
        if history_files:
            added = _Places(_query(_newest_rows(newest), _NEWEST_SCHEMA, _ADDED))
            for number, path in enumerate(history_files):
                for first, batch in _rows(number, path, schema):
                    is_kept = np.array(pc.is_null(batch.column(key)))
                    is_kept[added.up_to(first + len(batch) - 1) - first] = True
                    output.write(batch.filter(pa.array(is_kept)))
        return list(lost), output.finish()


def _write_newest(paths: Sequence[str], key: str, target: str) -> None:
    """Write the place of the newest record of each key to a local file."""
    columns = {**_KEY_COLUMNS, "offset": pa.int64(), "is_tombstone": pa.bool_()}
    rows = _with_places(paths, ("partition", key, "offset", TOMBSTONE), columns)
    with pq.ParquetWriter(target, _NEWEST_SCHEMA) as writer:
        for batch in _query(rows, pa.schema({**columns, **_PLACE}), _NEWEST):
            writer.write_batch(batch.cast(_NEWEST_SCHEMA))


def _replaced_keys(
    paths: Sequence[str], key: str, newest: str, ranges: Sequence[RowRange]
) -> Iterator[pa.RecordBatch]:
    """Yield the places of the rows with the keys of new records, and of the rows in ranges."""
    columns = {**_KEY_COLUMNS, "offset": pa.int64()}
    rows = _with_places(paths, ("partition", key, "offset"), columns)
    schema = pa.schema({**columns, **_PLACE, "is_replaced": pa.bool_()})
    marked = (batch.append_column("is_replaced", _is_within(batch, ranges)) for batch in rows)
    text = newest.replace("'", "''")
    return _query(marked, schema, _REMOVED.format(file=f"'{text}'"))


def _replaced_offsets(paths: Sequence[str], ranges: Sequence[RowRange]) -> Iterator[pa.RecordBatch]:
    """Yield the places of the rows in ranges."""
    columns = {"partition": pa.int32(), "offset": pa.int64()}
    for batch in _with_places(paths, tuple(columns), columns):
        yield batch.filter(_is_within(batch, ranges)).select(list(_PLACE))


def _is_within(batch: pa.RecordBatch, ranges: Sequence[RowRange]) -> pa.Array:
    """Return which rows are in a range."""
    partition, offset = (
        np.asarray(pc.fill_null(batch.column(name), -1)) for name in ("partition", "offset")
    )
    found = np.zeros(len(batch), np.bool_)
    for rows in ranges:
        is_own = (partition == rows.partition) & (offset >= rows.first_offset)
        found |= is_own & (offset < rows.end_offset)
    return pa.array(found)


def _with_places(
    paths: Sequence[str], names: Sequence[str], columns: Mapping[str, pa.DataType]
) -> Iterator[pa.RecordBatch]:
    """Yield columns of files under other names, with the places of their rows."""
    schema = pa.schema(list(zip(names, columns.values(), strict=True)))
    for number, path in enumerate(paths):
        for first, batch in _rows(number, path, schema):
            places = pa.array(np.arange(first, first + len(batch)))
            yield pa.RecordBatch.from_arrays([*batch.columns, places], names=[*columns, *_PLACE])


def _rows(number: int, path: str, schema: pa.Schema) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield columns of a file in batches, each with the place of its first row."""
    place = number << _ROW_BITS
    with pq.ParquetFile(readable(path)) as file:
        known = set(file.schema_arrow.names)
        own = [name for name in schema.names if name in known]
        # A batch over several row groups could be of any size.
        for group in range(file.num_row_groups):
            found = file.metadata.row_group(group)
            most = found.num_rows * _BATCH_BYTES // max(found.total_byte_size, 1)
            rows = max(min(most, _BATCH_ROWS), 1)
            for batch in file.iter_batches(rows, row_groups=[group], columns=own):
                yield place, table_batch(batch, schema)
                place += len(batch)


def _newest_rows(path: str) -> Iterator[pa.RecordBatch]:
    with pq.ParquetFile(path) as file:
        yield from file.iter_batches(columns=_NEWEST_SCHEMA.names)


def _query(
    batches: Iterator[pa.RecordBatch], schema: pa.Schema, query: str
) -> Iterator[pa.RecordBatch]:
    return query_batches(
        batches, schema, query, rows="keys of the table", batch_rows=1 << 16, threads=2
    )


class _Places:
    """Places of rows in ascending order, from batches of one column."""

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self._batches = batches
        self._held: Longs = np.empty(0, np.int64)

    @property
    def next(self) -> int | None:
        """The next place; None after the last one."""
        while not len(self._held):
            batch = next(self._batches, None)
            if batch is None:
                return None
            self._held = np.asarray(batch.column(0))
        return int(self._held[0])

    def up_to(self, last: int) -> Longs:
        """Return the next places, up to one."""
        found = [np.empty(0, np.int64)]
        while (place := self.next) is not None and place <= last:
            count = int(np.searchsorted(self._held, last, "right"))
            found.append(self._held[:count])
            self._held = self._held[count:]
        return np.concatenate(found)


class _TableFiles:
    """Writes rows to files of a table, each of one partition; `paths` are the complete files.

    Their names are never used again: a random number takes the place of the revision.
    """

    def __init__(self, folder: str, settings: ExportSettings, schema: pa.Schema) -> None:
        self._folder, self._settings, self._schema = folder, settings, schema
        self._open: OrderedDict[int, tuple[SplitFiles, int]] = OrderedDict()
        self._cleaned: set[int] = set()
        self._paths: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        with ExitStack() as stack:
            for files, _ in self._open.values():
                stack.push(files)

    def write(self, batch: pa.RecordBatch) -> None:
        """Add rows."""
        # Another tool may have added rows without a partition.
        partitions = np.asarray(pc.fill_null(batch.column("partition"), -1))
        found = np.unique(partitions).tolist()
        for partition in found:
            rows = batch if len(found) == 1 else batch.filter(pa.array(partitions == partition))
            if partition not in self._open:
                self._open[partition] = self._files_of(partition), 0
            files, size = self._open.pop(partition)
            self._open[partition] = files, size + rows.nbytes
            files.write(rows)
            if size + rows.nbytes >= _FILE_BYTES:
                self._finish(partition)

    def finish(self) -> list[str]:
        """Give all files their names; return their paths."""
        while self._open:
            self._finish(next(iter(self._open)))
        return self._paths

    def _files_of(self, partition: int) -> SplitFiles:
        if len(self._open) == _MAX_OPEN:
            self._finish(next(iter(self._open)))
        # Not next to the data files of the export, because the export removes unknown files there.
        folder = os.path.join(self._folder, "data", f"partition-{partition}")
        if partition not in self._cleaned:
            self._cleaned.add(partition)
            remove_scratch_files(folder)
        number = secrets.randbits(64)
        settings = replace(self._settings, revision=number)
        return SplitFiles(folder, settings, str(number), self._schema)

    def _finish(self, partition: int) -> None:
        files, _ = self._open[partition]
        files.finish()
        del self._open[partition]
        self._paths += files.paths
