"""The data files of a split, Parquet or JSON lines, each written whole before it gets its name.

A file is named by the first and the last offset in it. One partition's files never overlap, and the
same records always go to the same files, so that two attempts at a split write the same bytes.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterator
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kafka_index.export.settings import ExportFormat, ExportSettings
from kafka_index.storage.json_lines import json_lines
from kafka_index.stores import is_remote
from kafka_index.stores.durable_files import AtomicFile, make_durable, publish_error, publishing
from kafka_index.stores.registry import whole_file

#: Rows are held until they have this many bytes: a row group of Parquet.
_GROUP_BYTES = 16 * 1024 * 1024
#: Columns of numbers that mostly ascend, and how Parquet encodes their differences.
_ASCENDING, _DELTA = ("offset", "timestamp"), "DELTA_BINARY_PACKED"
_MIN_MS, _MAX_MS = -62_135_596_800_000, 253_402_300_799_999

#: The folder of records whose timestamp is no day of the calendar, as Hive names it.
_NO_DATE = "__HIVE_DEFAULT_PARTITION__"
#: Data files of a split that are open at a time: one for each day that is written to.
_MAX_OPEN = 8
_DAY_MS = 24 * 3600 * 1000


class DataFile:
    """Writes one data file; its rows are held until they make a row group.

    `scratch` is the name of the file until it is complete.
    """

    def __init__(self, folder: str, scratch: str, settings: ExportSettings) -> None:
        if not is_remote(folder):
            with publishing(folder, "make the folder"):
                os.makedirs(folder, exist_ok=True)
        path = os.path.join(folder, scratch.removesuffix(".tmp"))
        self._file: AtomicFile = whole_file(
            path, scratch_path=os.path.join(folder, scratch), what="data file"
        )
        self._folder = folder
        self._settings = settings
        self._held: list[pa.RecordBatch] = []
        self._held_bytes = 0
        self._first: int | None = None
        self._last = 0
        schema = settings.read_settings.schema
        self._schema = pa.schema([schema.field(name) for name in settings.file_columns])
        self._parquet: pq.ParquetWriter | None = None
        if settings.format is ExportFormat.PARQUET:
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
            self._first = offsets[0].as_py()
        self._last = offsets[-1].as_py()
        self._held.append(batch.select(self._schema.names))
        self._held_bytes += batch.nbytes
        if self._held_bytes >= _GROUP_BYTES:
            self._flush()

    def commit(self) -> tuple[str, int]:
        """Give the file its name; return its path and its size."""
        self._flush()
        self._close_parquet()
        size_bytes = os.stat(self._file.scratch_path).st_size
        name = f"{self._first:020d}-{self._last:020d}{self._settings.ending}"
        self._file.path = os.path.join(self._folder, name)
        self._file.commit()
        return self._file.path, size_bytes

    def drop(self) -> None:
        """Close the file, and remove it unless it has its name."""
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
    """Return the columns of Parquet whose values often repeat, as keys and header names do."""
    columns = [name for name in schema.names if name not in ("value", "headers", *_ASCENDING)]
    if "headers" in schema.names:
        columns += [f"headers.list.element.{name}" for name in ("key", "value")]
    return columns


def _with_times_as_text(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch whose timestamps outside the calendar are ms since the epoch, as texts."""
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


def is_outside_calendar(times_ms: pa.Array) -> pa.Array:
    """Return which times are no day of the years 1 to 9999."""
    return pc.or_(pc.less(times_ms, _MIN_MS), pc.greater(times_ms, _MAX_MS))


class SplitFiles:
    """Writes the records of a split; a context manager that removes files without a final name.

    No two attempts at a split share an attempt, of letters, digits and underscores. `paths` are the
    files that have their names; `records` and `size_bytes` are theirs.
    """

    def __init__(self, folder: str, settings: ExportSettings, attempt: str) -> None:
        self.paths: list[str] = []
        self.records = 0
        self.size_bytes = 0
        self._folder = folder
        self._settings = settings
        self._attempt = attempt
        self._open: OrderedDict[str, DataFile] = OrderedDict()
        self._opened = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._open.values():
            file.drop()

    def write(self, batch: pa.RecordBatch) -> None:
        """Add records, in the order of their offsets; raises `PublishError` if there is no room."""
        self.records += len(batch)
        if not self._settings.by_date:
            self._file_of(self._folder).write(batch)
            return
        for name, rows in _by_date(batch):
            self._file_of(os.path.join(self._folder, f"date={name}")).write(rows)

    def finish(self) -> None:
        """Give all files their names; raises `PublishError` if one cannot be put in place."""
        while self._open:
            self._commit(next(iter(self._open)))
        folders = {os.path.dirname(path) for path in self.paths if not is_remote(path)}
        for path, error in make_durable(folders).items():
            raise publish_error(error, path, "make the data files durable")

    def _file_of(self, folder: str) -> DataFile:
        file = self._open.get(folder)
        if file is None:
            if len(self._open) == _MAX_OPEN:
                self._commit(next(iter(self._open)))
            self._opened += 1
            scratch = f".{self._attempt}.{self._opened}.kafka-index-export.tmp"
            file = self._open[folder] = DataFile(folder, scratch, self._settings)
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
    """Yield the records of each day, in the order in which the days first occur."""
    times = np.asarray(batch.column("timestamp").view(pa.int64()))
    days = times // _DAY_MS
    days[np.asarray(is_outside_calendar(pa.array(times)))] = np.iinfo(np.int64).max
    unique, first_rows = np.unique(days, return_index=True)
    for day in unique[np.argsort(first_rows)].tolist():
        rows = batch if len(unique) == 1 else batch.filter(pa.array(days == day))
        yield _date_name(day), rows


def _date_name(day: int) -> str:
    if day == np.iinfo(np.int64).max:
        return _NO_DATE
    return str(np.datetime64(day, "D"))
