"""Data files: the records of a split in Parquet or JSON lines, optionally a file per day."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kafka_index.commands.export.request import ExportFormat
from kafka_index.commands.export.settings import TOMBSTONE, ExportSettings
from kafka_index.commands.export.table_schema import is_outside_calendar, table_batch
from kafka_index.core.fs.durable_files import AtomicFile
from kafka_index.core.fs.json_lines import json_lines
from kafka_index.core.fs.registry import atomic_file, store_of
from kafka_index.core.output.publish import ROWS, scratch_path
from kafka_index.core.schema.columns import KEY, VALUE, side_names

#: Rows are buffered up to this many bytes, which are a row group of Parquet.
_GROUP_BYTES = 16 * 1024 * 1024
#: Columns of mostly ascending numbers, and the Parquet encoding of their differences.
_ASCENDING, _DELTA = ("offset", "timestamp"), "DELTA_BINARY_PACKED"

#: Hive's default partition: the folder of records with timestamps outside of the calendar.
_NO_DATE = "__HIVE_DEFAULT_PARTITION__"
#: The maximum number of open data files of a split, one for each day.
_MAX_OPEN = 8
_DAY_MS = 24 * 3600 * 1000


class DataFile:
    """Writes a data file in row groups of about `_GROUP_BYTES`.

    An attempt at a split numbers its files.
    """

    def __init__(
        self, folder: str, attempt: str, number: int, settings: ExportSettings, schema: pa.Schema
    ) -> None:
        store_of(folder).make_directory(folder)
        path = os.path.join(folder, ROWS)
        self._file: AtomicFile = atomic_file(
            path, scratch_path=scratch_path(path, attempt, str(number)), noun="data file"
        )
        self._folder = folder
        self._settings = settings
        self._held: list[pa.RecordBatch] = []
        self._held_bytes = 0
        self._first: int | None = None
        self._last = 0
        self._schema = schema
        self._parquet: pq.ParquetWriter | None = None
        if settings.format is not ExportFormat.JSONL:
            self._parquet = pq.ParquetWriter(
                self._file.scratch_path,
                self._schema,
                compression="zstd",
                use_dictionary=_dictionary_paths(self._schema),
                column_encoding={name: _DELTA for name in _ASCENDING if name in self._schema.names},
            )

    def write(self, batch: pa.RecordBatch) -> None:
        """Add records, in the order of their offsets."""
        offsets = batch.column("offset")
        if self._first is None:
            self._first = offsets[0].as_py() or 0
        self._last = offsets[-1].as_py() or 0
        if self._settings.format.is_table:
            self._held.append(table_batch(batch, self._schema))
        else:
            self._held.append(batch.select(self._schema.names))
        self._held_bytes += batch.nbytes
        if self._held_bytes >= _GROUP_BYTES:
            self._flush()

    def commit(self) -> tuple[str, int]:
        """Rename the file to its final name; return its path and size."""
        self._flush()
        self._close_parquet()
        size_bytes = os.stat(self._file.scratch_path).st_size
        assert self._first is not None  # noqa: S101, because a file has records
        name = self._settings.file_name(self._first, self._last)
        self._file.path = os.path.join(self._folder, name)
        self._file.commit()
        return self._file.path, size_bytes

    def drop(self) -> None:
        """Close the file, and remove it unless it has its final name."""
        try:
            self._close_parquet()
        finally:
            self._file.__exit__(None, None, None)

    def _flush(self) -> None:
        if not self._held:
            return
        table = pa.Table.from_batches(self._held, self._schema)
        self._held, self._held_bytes = [], 0
        with self._file.writing():
            if self._parquet is not None:
                self._parquet.write_table(table, row_group_size=max(len(table), 1))
                return
            for batch in table.to_batches(max_chunksize=8192):
                lines = json_lines(_with_times_as_text(batch)).to_pylist()
                self._file.write("".join(f"{line}\n" for line in lines).encode())

    def _close_parquet(self) -> None:
        writer, self._parquet = self._parquet, None
        if writer is not None:
            with self._file.writing():
                writer.close()


def _dictionary_paths(schema: pa.Schema) -> list[str]:
    """Return the columns of Parquet that get dictionaries, because their values often repeat."""
    return [
        path
        for one in schema
        if one.name not in _ASCENDING and (one.name != "value" or one.type != pa.binary())
        for path in (
            _text_paths(one.name, one.type)
            if pa.types.is_nested(one.type) or one.name in (KEY, VALUE)
            else [one.name]
        )
    ]


def _text_paths(path: str, kind: pa.DataType) -> Iterator[str]:
    """Yield the Parquet columns of strings and bytes within a column."""
    if pa.types.is_struct(kind):
        for one in kind:
            yield from _text_paths(f"{path}.{one.name}", one.type)
    elif pa.types.is_map(kind):
        yield from _text_paths(f"{path}.key_value.key", kind.key_type)
        yield from _text_paths(f"{path}.key_value.value", kind.item_type)
    elif pa.types.is_list(kind):
        yield from _text_paths(f"{path}.list.element", kind.value_type)
    elif pa.types.is_string(kind) or pa.types.is_binary(kind):
        yield path


def _with_times_as_text(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch whose timestamps outside the calendar are strings of ms since the epoch."""
    number = batch.schema.get_field_index("timestamp")
    if number < 0 or not len(batch):
        return batch
    times = batch.column(number).view(pa.int64())
    outside = np.asarray(is_outside_calendar(times))
    if not outside.any():
        return batch
    known = pc.if_else(pa.array(outside), 0, times).view(pa.timestamp("ms"))
    texts = pc.replace_substring(known.cast(pa.string()), " ", "T", max_replacements=1)
    texts = pc.binary_join_element_wise(texts, "Z", "")
    texts = pc.if_else(pa.array(outside), times.cast(pa.string()), texts)
    return batch.set_column(number, "timestamp", texts)


class SplitFiles:
    """Writes the records of a split; a context manager that removes files without a final name.

    `attempt` has letters, digits and underscores, and is unique. `paths` are the complete files,
    with `records` and `size_bytes`. By default, the schema is the file schema of the settings.
    """

    def __init__(
        self,
        folder: str,
        settings: ExportSettings,
        attempt: str,
        schema: pa.Schema | None = None,
    ) -> None:
        self.paths: list[str] = []
        self.records = 0
        self.size_bytes = 0
        self._folder = folder
        self._settings = settings
        self._attempt = attempt
        self._schema = settings.file_schema if schema is None else schema
        self._open: OrderedDict[str, DataFile] = OrderedDict()
        self._opened = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with ExitStack() as stack:
            for file in self._open.values():
                stack.callback(file.drop)

    def write(self, batch: pa.RecordBatch) -> None:
        """Add records, in the order of their offsets; raises `PublishError` if the disk is full."""
        self.records += len(batch)
        if not self._settings.by_date:
            self._file_of(self._folder).write(batch)
            return
        for name, rows in _by_date(batch):
            self._file_of(os.path.join(self._folder, f"date={name}")).write(rows)

    def finish(self) -> None:
        """Rename all files to their final names; raises `PublishError` if that fails."""
        while self._open:
            self._commit(next(iter(self._open)))
        folders = set(map(os.path.dirname, self.paths))
        store_of(self._folder).make_durable(folders, "make the data files durable")

    def _file_of(self, folder: str) -> DataFile:
        file = self._open.get(folder)
        if file is None:
            if len(self._open) == _MAX_OPEN:
                self._commit(next(iter(self._open)))
            self._opened += 1
            file = DataFile(folder, self._attempt, self._opened, self._settings, self._schema)
            self._open[folder] = file
        self._open.move_to_end(folder)
        return file

    def _commit(self, folder: str) -> None:
        file = self._open[folder]
        path, size_bytes = file.commit()
        del self._open[folder]
        file.drop()
        self.paths.append(path)
        self.size_bytes += size_bytes


def _by_date(batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Yield the records of each day, in the order of first occurrence."""
    times = batch.column("timestamp")
    ticks = pc.fill_null(times.view(pa.int64()), np.iinfo(np.int64).max)
    if times.type.unit == "us":
        # Rows of a table: a time outside of the calendar is null.
        days = np.asarray(ticks) // (_DAY_MS * 1000)
        outside = np.asarray(times.is_null())
    else:
        days, outside = np.asarray(ticks) // _DAY_MS, np.asarray(is_outside_calendar(ticks))
    days[outside] = np.iinfo(np.int64).max
    unique, first_rows = np.unique(days, return_index=True)
    for day in unique[np.argsort(first_rows)].tolist():
        rows = batch if len(unique) == 1 else batch.filter(pa.array(days == day))
        yield _date_name(day), rows


def _date_name(day: int) -> str:
    if day == np.iinfo(np.int64).max:
        return _NO_DATE
    return str(np.datetime64(day, "D"))


def with_tombstones(batch: pa.RecordBatch, settings: ExportSettings) -> pa.RecordBatch:
    """Return records with an additional boolean column that marks tombstones.

    A record without a key deletes nothing. Then only values that did not decode keep their bytes.
    """
    key, value = (settings.raw_column(part) for part in (KEY, VALUE))
    is_null = pc.is_null(batch.column(value))
    is_tombstone = pc.and_(is_null, pc.is_valid(batch.column(key)))
    if value != VALUE:
        failed = pc.is_valid(batch.column(side_names(VALUE)[2]))
        raw = pc.if_else(failed, batch.column(value), pa.scalar(None, pa.binary()))
        batch = batch.set_column(batch.schema.get_field_index(value), value, raw)
    return batch.append_column(TOMBSTONE, is_tombstone)
