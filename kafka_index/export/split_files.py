"""The data files of a split.

A file is named by the first and the last offset in it. One partition's files never overlap, and the
same records always go to the same files, so that two attempts at a split write the same bytes.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterator
from types import TracebackType
from typing import Self

import numpy as np
import pyarrow as pa

from kafka_index.export.data_file import DataFile, is_outside_calendar
from kafka_index.export.settings import ExportSettings
from kafka_index.stores import is_remote
from kafka_index.stores.durable_files import make_durable, publish_error

#: The folder of records whose timestamp is no day of the calendar, as Hive names it.
_NO_DATE = "__HIVE_DEFAULT_PARTITION__"
#: Data files of a split that are open at a time: one for each day that is written to.
_MAX_OPEN = 8
_DAY_MS = 24 * 3600 * 1000


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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
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
