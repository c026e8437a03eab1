"""The data files of an export: Parquet or JSON lines, each written whole before it gets its name.

A file is named by the first and the last offset in it. One partition's files never overlap, and the
same records always go to the same files, so that two attempts at a split write the same bytes.
"""

from __future__ import annotations

import os
import re
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Protocol, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kafka_index.export.settings import ExportFormat, ExportSettings
from kafka_index.storage.directories import directory_exists, scan_directory
from kafka_index.storage.json_lines import json_lines
from kafka_index.stores import is_remote, store_of
from kafka_index.stores.durable_files import make_durable, publish_error
from kafka_index.stores.staged_file import WholeFile, whole_file

_NAME = re.compile(r"(?P<first>[0-9]{20})-(?P<last>[0-9]{20})\.(?:parquet|jsonl)")
_SCRATCH = re.compile(r"\.(?:[^/]*)\.kafka-index-export\.tmp")
_DATE_FOLDER = re.compile(r"date=[^/]+")
#: The folder of records whose timestamp is no day of the calendar, as Hive names it.
_NO_DATE = "__HIVE_DEFAULT_PARTITION__"
#: Rows are held until they have this many bytes: a row group of Parquet.
_GROUP_BYTES = 16 * 1024 * 1024
#: Data files of a split that are open at a time: one for each day that is written to.
_MAX_OPEN = 8
_DAY_MS = 24 * 3600 * 1000
_MIN_MS, _MAX_MS = -62_135_596_800_000, 253_402_300_799_999


class _Sink(Protocol):
    def write(self, table: pa.Table) -> None: ...

    def close(self) -> None: ...


class SplitFiles:
    """Writes the records of a split.

    Parameters
    ----------
    folder : str
        Of the partition.
    settings : ExportSettings
        What is written.
    attempt : str
        Letters, digits and underscores; no two attempts at a split share it.

    Attributes
    ----------
    paths : list of str
        The files that have their names.
    records, size_bytes : int
        What they hold.

    Notes
    -----
    A context manager: files without a name are removed at its end.
    """

    def __init__(self, folder: str, settings: ExportSettings, attempt: str) -> None:
        self.paths: list[str] = []
        self.records = 0
        self.size_bytes = 0
        self._folder = folder
        self._settings = settings
        self._attempt = attempt
        self._open: OrderedDict[str, _DataFile] = OrderedDict()
        self._opened = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for file in self._open.values():
            file.drop()

    def write(self, batch: pa.RecordBatch) -> None:
        """Add records, in the order of their offsets.

        Raises
        ------
        PublishError
            There is no room for them.
        """
        self.records += len(batch)
        if not self._settings.by_date:
            self._file_of(self._folder).write(batch)
            return
        for name, rows in _by_date(batch):
            self._file_of(os.path.join(self._folder, f"date={name}")).write(rows)

    def finish(self) -> None:
        """Give all files their names.

        Raises
        ------
        PublishError
            One cannot be put in place.
        """
        while self._open:
            self._commit(next(iter(self._open)))
        folders = {os.path.dirname(path) for path in self.paths if not is_remote(path)}
        for path, error in make_durable(folders).items():
            raise publish_error(error, path, "make the data files durable")

    def _file_of(self, folder: str) -> _DataFile:
        file = self._open.get(folder)
        if file is None:
            if len(self._open) == _MAX_OPEN:
                self._commit(next(iter(self._open)))
            self._opened += 1
            scratch = f".{self._attempt}.{self._opened}.kafka-index-export.tmp"
            file = self._open[folder] = _DataFile(folder, scratch, self._settings)
        self._open.move_to_end(folder)
        return file

    def _commit(self, folder: str) -> None:
        file = self._open[folder]
        path, size_bytes = file.commit()
        del self._open[folder]
        file.drop()
        self.paths.append(path)
        self.size_bytes += size_bytes


class _DataFile:
    """One data file; its rows are held until they make a row group."""

    def __init__(self, folder: str, scratch: str, settings: ExportSettings) -> None:
        if not is_remote(folder):
            try:
                os.makedirs(folder, exist_ok=True)
            except OSError as error:
                raise publish_error(error, folder, "make the folder") from error
        path = os.path.join(folder, scratch.removesuffix(".tmp"))
        self._file: WholeFile = whole_file(
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
        is_parquet = settings.format is ExportFormat.PARQUET
        self._sink: _Sink | None = (
            _ParquetSink(self._file, self._schema) if is_parquet else _JsonSink(self._file)
        )

    def write(self, batch: pa.RecordBatch) -> None:
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
        self._close_sink()
        size_bytes = os.stat(self._file.scratch_path).st_size
        name = f"{self._first:020d}-{self._last:020d}{self._settings.format.ending}"
        self._file.path = os.path.join(self._folder, name)
        self._file.commit()
        return self._file.path, size_bytes

    def drop(self) -> None:
        """Close the file, and remove it unless it has its name."""
        try:
            self._close_sink()
        finally:
            self._file.__exit__(None, None, None)

    def _flush(self) -> None:
        if self._held and self._sink is not None:
            table = pa.Table.from_batches(self._held, self._schema)
            self._held, self._held_bytes = [], 0
            try:
                self._sink.write(table)
            except OSError as error:
                raise self._file.error(error) from error

    def _close_sink(self) -> None:
        sink, self._sink = self._sink, None
        if sink is not None:
            try:
                sink.close()
            except OSError as error:
                raise self._file.error(error) from error


class _ParquetSink:
    def __init__(self, file: WholeFile, schema: pa.Schema) -> None:
        # Offsets and times are numbers without repetitions; keys often repeat.
        self._writer = pq.ParquetWriter(file.scratch_path, schema, compression="zstd")

    def write(self, table: pa.Table) -> None:
        self._writer.write_table(table, row_group_size=max(len(table), 1))

    def close(self) -> None:
        self._writer.close()


class _JsonSink:
    def __init__(self, file: WholeFile) -> None:
        self._file = file

    def write(self, table: pa.Table) -> None:
        for batch in table.to_batches(max_chunksize=8192):
            lines = json_lines(_with_times_as_text(batch)).to_pylist()
            self._file.write("".join(f"{line}\n" for line in lines).encode())

    def close(self) -> None:
        """Nothing is held back."""


def _with_times_as_text(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch whose timestamps outside the calendar are ms since the epoch, as texts."""
    number = batch.schema.get_field_index("timestamp")
    if number < 0 or not len(batch):
        return batch
    times = batch.column(number).view(pa.int64())
    outside = np.asarray(_outside(times))
    if not outside.any():
        return batch
    known = pc.if_else(pa.array(outside), 0, times).view(pa.timestamp("ms"))
    texts = pc.replace_substring(known.cast(pa.string()), " ", "T", max_replacements=1)
    texts = pc.binary_join_element_wise(texts, "Z", "")
    texts = pc.if_else(pa.array(outside), times.cast(pa.string()), texts)
    return batch.set_column(number, "timestamp", texts)


def _outside(times_ms: pa.Array) -> pa.Array:
    """Return which times are no day of the years 1 to 9999."""
    return pc.or_(pc.less(times_ms, _MIN_MS), pc.greater(times_ms, _MAX_MS))


def _by_date(batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Yield the records of each day, in the order in which the days first occur."""
    times = np.asarray(batch.column("timestamp").view(pa.int64()))
    days = times // _DAY_MS
    days[np.asarray(_outside(pa.array(times)))] = np.iinfo(np.int64).max
    unique, first_rows = np.unique(days, return_index=True)
    for day in unique[np.argsort(first_rows)].tolist():
        rows = batch if len(unique) == 1 else batch.filter(pa.array(days == day))
        yield _date_name(day), rows


def _date_name(day: int) -> str:
    if day == np.iinfo(np.int64).max:
        return _NO_DATE
    return str(np.datetime64(day, "D"))


def data_files(folder: str) -> Iterator[tuple[str, int, int]]:
    """Yield path, first and last offset of each data file of a partition."""
    for path in _files_of(folder):
        found = _NAME.fullmatch(os.path.basename(path))
        if found is not None:
            yield path, int(found["first"]), int(found["last"])


def remove_data_files(
    folder: str, first_offset: int, end_offset: int | None = None, *, keep: Iterable[str] = ()
) -> None:
    """Remove the data files of a partition that begin within a range of offsets, but those kept.

    Raises
    ------
    PublishError
        One cannot be removed.
    """
    kept = set(keep)
    remove = [
        path
        for path, first, _ in data_files(folder)
        if first >= first_offset and (end_offset is None or first < end_offset) and path not in kept
    ]
    _remove(folder, remove)


def remove_scratch_files(folder: str) -> None:
    """Remove what killed runs were writing, while the lock of the output is held.

    Raises
    ------
    PublishError
        One cannot be removed.
    """
    if not is_remote(folder):
        found = _files_of(folder)
        _remove(folder, [path for path in found if _SCRATCH.fullmatch(os.path.basename(path))])


def _files_of(folder: str) -> list[str]:
    if not directory_exists(folder):
        return []
    found = []
    for entry in scan_directory(folder):
        if not entry.is_directory():
            found.append(entry.path)
        elif _DATE_FOLDER.fullmatch(entry.name):
            found += [one.path for one in scan_directory(entry.path) if not one.is_directory()]
    return found


def _remove(folder: str, paths: list[str]) -> None:
    if is_remote(folder):
        if paths:
            store_of(folder).delete(paths)
        return
    for path in paths:
        try:
            os.unlink(path)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise publish_error(error, path, "remove a file of an earlier run") from error
