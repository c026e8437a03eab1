"""Data files: the records of a split as Parquet or JSON lines, optionally with a file per day."""

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

#: Rows are buffered up to about this many bytes, and then written as one Parquet row group.
_GROUP_BYTES = 16 * 1024 * 1024
#: Columns whose numbers mostly ascend, and the Parquet encoding for such columns.
_ASCENDING, _DELTA = ("offset", "timestamp"), "DELTA_BINARY_PACKED"

#: Hive's default partition: the date folder of records without a timestamp in the years 1 to 9999.
_NO_DATE = "__HIVE_DEFAULT_PARTITION__"
#: The maximum number of open data files of a split, one for each day.
_MAX_OPEN = 8
_DAY_MS = 24 * 3600 * 1000


class DataFile:
    """Writes a data file in row groups of about `_GROUP_BYTES`.

    The scratch path contains the `attempt` ID, and the number of the file within this attempt.
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
        self._buffered_batches: list[pa.RecordBatch] = []
        self._buffered_bytes = 0
        self._first_offset: int | None = None
        self._last_offset = 0
        self._schema = schema
        self._parquet: pq.ParquetWriter | None = None
        if settings.format is not ExportFormat.JSONL:
            self._parquet = pq.ParquetWriter(
                self._file.scratch_path,
                self._schema,
                compression="zstd",
                use_dictionary=_dictionary_columns(self._schema),
                column_encoding={name: _DELTA for name in _ASCENDING if name in self._schema.names},
            )

    def write(self, batch: pa.RecordBatch) -> None:
        """Add records, in the order of their offsets."""
        offsets = batch.column("offset")
        if self._first_offset is None:
            self._first_offset = offsets[0].as_py() or 0
        self._last_offset = offsets[-1].as_py() or 0
        if self._settings.format.is_table:
            self._buffered_batches.append(table_batch(batch, self._schema))
        else:
            self._buffered_batches.append(batch.select(self._schema.names))
        self._buffered_bytes += batch.nbytes
        if self._buffered_bytes >= _GROUP_BYTES:
            self._flush()

    def commit(self) -> tuple[str, int]:
        """Rename the file to its final name; return its path and size."""
        self._flush()
        self._close_parquet()
        size_bytes = os.stat(self._file.scratch_path).st_size
        assert self._first_offset is not None  # noqa: S101, because a file has records
        name = self._settings.file_name(self._first_offset, self._last_offset)
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
        if not self._buffered_batches:
            return
        table = pa.Table.from_batches(self._buffered_batches, self._schema)
        self._buffered_batches, self._buffered_bytes = [], 0
        with self._file.writing():
            if self._parquet is not None:
                self._parquet.write_table(table, row_group_size=max(len(table), 1))
                return
            for batch in table.to_batches(max_chunksize=8192):
                lines = json_lines(_format_timestamps(batch)).to_pylist()
                self._file.write("".join(f"{line}\n" for line in lines).encode())

    def _close_parquet(self) -> None:
        writer, self._parquet = self._parquet, None
        if writer is not None:
            with self._file.writing():
                writer.close()


def _dictionary_columns(schema: pa.Schema) -> list[str]:
    """Return the columns for Parquet's dictionary encoding, whose values often repeat."""
    return [
        path
        for field in schema
        if field.name not in _ASCENDING and (field.name != "value" or field.type != pa.binary())
        for path in (
            _string_columns(field.name, field.type)
            if pa.types.is_nested(field.type) or field.name in (KEY, VALUE)
            else [field.name]
        )
    ]


def _string_columns(path: str, data_type: pa.DataType) -> Iterator[str]:
    """Yield the paths of the string and binary columns within a Parquet column."""
    if pa.types.is_struct(data_type):
        for field in data_type:
            yield from _string_columns(f"{path}.{field.name}", field.type)
    elif pa.types.is_map(data_type):
        yield from _string_columns(f"{path}.key_value.key", data_type.key_type)
        yield from _string_columns(f"{path}.key_value.value", data_type.item_type)
    elif pa.types.is_list(data_type):
        yield from _string_columns(f"{path}.list.element", data_type.value_type)
    elif pa.types.is_string(data_type) or pa.types.is_binary(data_type):
        yield path


def _format_timestamps(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Format all timestamps of a batch as strings if any is outside of the years 1 to 9999.

    A timestamp outside of these years becomes the number of milliseconds since the epoch.
    """
    column_index = batch.schema.get_field_index("timestamp")
    if column_index < 0 or not len(batch):
        return batch
    times = batch.column(column_index).view(pa.int64())
    is_outside = np.asarray(is_outside_calendar(times))
    if not is_outside.any():
        return batch
    calendar_times = pc.if_else(pa.array(is_outside), 0, times).view(pa.timestamp("ms"))
    time_strings = pc.replace_substring(
        calendar_times.cast(pa.string()), " ", "T", max_replacements=1
    )
    time_strings = pc.binary_join_element_wise(time_strings, "Z", "")
    time_strings = pc.if_else(pa.array(is_outside), times.cast(pa.string()), time_strings)
    return batch.set_column(column_index, "timestamp", time_strings)


class SplitFiles:
    """Writes the records of a split; a context manager that removes files without a final name.

    Parameters
    ----------
    attempt : str
        A unique ID of letters, digits and underscores.
    schema : pa.Schema, optional
        By default the file schema of the settings.

    Attributes
    ----------
    paths : list of str
        The paths of the complete files.
    records, size_bytes : int
        Counts for the complete files; `records` also counts records in open files.
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
        self._open_files: OrderedDict[str, DataFile] = OrderedDict()
        self._opened_count = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with ExitStack() as stack:
            for file in self._open_files.values():
                stack.callback(file.drop)

    def write(self, batch: pa.RecordBatch) -> None:
        """Add records, in the order of their offsets; raises `PublishError` if the disk is full."""
        self.records += len(batch)
        if not self._settings.by_date:
            self._file_of(self._folder).write(batch)
            return
        for name, rows in _split_by_date(batch):
            self._file_of(os.path.join(self._folder, f"date={name}")).write(rows)

    def finish(self) -> None:
        """Rename all files to their final names; raises `PublishError` if that fails."""
        while self._open_files:
            self._commit(next(iter(self._open_files)))
        folders = set(map(os.path.dirname, self.paths))
        store_of(self._folder).make_durable(folders, "make the data files durable")

    def _file_of(self, folder: str) -> DataFile:
        file = self._open_files.get(folder)
        if file is None:
            if len(self._open_files) == _MAX_OPEN:
                self._commit(next(iter(self._open_files)))
            self._opened_count += 1
            file = DataFile(folder, self._attempt, self._opened_count, self._settings, self._schema)
            self._open_files[folder] = file
        self._open_files.move_to_end(folder)
        return file

    def _commit(self, folder: str) -> None:
        file = self._open_files[folder]
        path, size_bytes = file.commit()
        del self._open_files[folder]
        file.drop()
        self.paths.append(path)
        self.size_bytes += size_bytes


def _split_by_date(batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Yield the date and the records of each day, in the order in which days first occur."""
    times = batch.column("timestamp")
    ticks = pc.fill_null(times.view(pa.int64()), np.iinfo(np.int64).max)
    if times.type.unit == "us":
        # In rows of a lake table, a timestamp outside of the years 1 to 9999 is null.
        days = np.asarray(ticks) // (_DAY_MS * 1000)
        is_outside = np.asarray(times.is_null())
    else:
        days, is_outside = np.asarray(ticks) // _DAY_MS, np.asarray(is_outside_calendar(ticks))
    days[is_outside] = np.iinfo(np.int64).max
    unique, first_rows = np.unique(days, return_index=True)
    for day in unique[np.argsort(first_rows)].tolist():
        rows = batch if len(unique) == 1 else batch.filter(pa.array(days == day))
        yield _date_name(day), rows


def _date_name(day: int) -> str:
    if day == np.iinfo(np.int64).max:
        return _NO_DATE
    return str(np.datetime64(day, "D"))


def add_tombstone_column(batch: pa.RecordBatch, settings: ExportSettings) -> pa.RecordBatch:
    """Return records with an additional boolean column that marks tombstones.

    A record without a key is no tombstone, because it deletes nothing. If values are decoded, the
    column with their raw bytes keeps only the bytes of values that did not decode. It is null for
    all other rows.
    """
    key, value = (settings.raw_column(side) for side in (KEY, VALUE))
    is_null = pc.is_null(batch.column(value))
    is_tombstone = pc.and_(is_null, pc.is_valid(batch.column(key)))
    if value != VALUE:
        failed = pc.is_valid(batch.column(side_names(VALUE)[2]))
        raw = pc.if_else(failed, batch.column(value), pa.scalar(None, pa.binary()))
        batch = batch.set_column(batch.schema.get_field_index(value), value, raw)
    return batch.append_column(TOMBSTONE, is_tombstone)
