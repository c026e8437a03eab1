"""A report as a file: Arrow tables in, a file of one of its formats out, whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from kafka_index.core.errors import InputError, PublishError
from kafka_index.core.fs.durable_files import AtomicFile, sync
from kafka_index.core.fs.json_lines import json_lines
from kafka_index.core.fs.local_work import workspace
from kafka_index.core.fs.paths import plain_path
from kafka_index.core.fs.registry import store_of

if TYPE_CHECKING:
    from kafka_index.core.job.result import Conclusion

_LINES_AT_A_TIME = 8192


class _Sink(Protocol):
    def write_table(self, table: pa.Table) -> None: ...

    def close(self) -> None: ...


class PageSink(_Sink, Protocol):
    """Writes a page of HTML."""

    def interrupt(self) -> None:
        """Note that an error or a signal ends the run."""

    def add_segments(self, segments: Iterable[pa.RecordBatch]) -> None:
        """Name the segments of the input."""

    def finish(self, verdict: Conclusion) -> None:
        """Set the verdict of the run."""


#: Makes the sink of a page: from the path of its file and the columns of the report.
PageMaker = Callable[[str, pa.Schema], PageSink]


class _JsonSink:
    def __init__(self, path: str, _schema: pa.Schema) -> None:
        self._file = open(path, "w", encoding="utf-8")  # noqa: SIM115, because close() is a method here

    def write_table(self, table: pa.Table) -> None:
        for batch in table.to_batches(max_chunksize=_LINES_AT_A_TIME):
            self._file.writelines(f"{line}\n" for line in json_lines(batch).to_pylist())

    def close(self) -> None:
        self._file.close()


_SINKS: dict[str, Callable[[str, pa.Schema], _Sink]] = {
    ".parquet": lambda path, schema: pq.ParquetWriter(path, schema, compression="zstd"),
    ".json": _JsonSink,
    ".csv": pa_csv.CSVWriter,
    ".arrow": pa.ipc.new_file,
}


#: The ending of a page.
PAGE_SUFFIX = ".html"


def check_report_path(path: str, *, has_page: bool = False) -> str:
    """Return the path or URI of a report, whose ending is its format.

    Raises `InputError` if it is not one of ``.parquet``, ``.json``, ``.csv``, ``.arrow`` and, with
    a page, ``.html``.
    """
    place = plain_path(path)
    ending = os.path.splitext(place)[1].lower()
    endings = [*_SINKS, *([PAGE_SUFFIX] if has_page else [])]
    if ending not in endings:
        raise InputError(
            "the report's ending does not say its format",
            path=path,
            expected=" or ".join(endings),
            found=ending or "none",
            hint="pages are written by build, verify, predict, restore, lookup and stats"
            if ending == PAGE_SUFFIX
            else None,
        )
    return place


class ReportFile:
    """Writes a report, table by table into bounded memory, and lets it appear whole.

    The path ends in ``.parquet``, ``.json`` (one object a line), ``.csv``, ``.arrow`` or, with a
    page, ``.html``. A context manager. The rows go to a hidden file beside the report (in TMPDIR,
    where the report goes to a store), which takes the report's name at the end, also when the run
    ends in an error, with the rows so far (but an error before the first row, or in writing the
    report, leaves an older report alone). A write that fails does not end the work: its results are
    printed first, and the end raises PublishError. Not for use by several threads at once. Raises
    `InputError` for another ending or a folder, and `PublishError` if it cannot be written, before
    any work is done.
    """

    def __init__(self, path: str, schema: pa.Schema, page: PageMaker | None = None) -> None:
        self.path = check_report_path(path, has_page=page is not None)
        self._schema = schema
        self._rows = 0
        self._failure: PublishError | None = None
        #: The report is in its place.
        self.is_published = False
        local = self.path
        if not store_of(self.path).stages_beside:
            name = os.path.basename(self.path)
            local = os.path.join(workspace(), f"{os.urandom(8).hex()}-{name}")
        if os.path.isdir(local):
            raise InputError("the report is a folder", path=path, hint="name a file in it")
        self._file = AtomicFile(local, what="report")
        ending = os.path.splitext(self.path)[1].lower()
        self._page = None
        try:
            if ending == PAGE_SUFFIX and page is not None:
                self._page = page(self._file.scratch_path, schema)
            self._sink = self._page or _SINKS[ending](self._file.scratch_path, schema)
        except OSError:
            with self._file, self._file.writing():
                raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self.is_published:
            return
        with self._file:
            if self._page is not None and kind is not None:
                self._page.interrupt()
            self._guard(self._sink.close)
            if self._failure is not None:
                if kind is None:
                    raise self._failure
            elif kind is None or self._rows > 0:
                self._file.commit()
                self._put()

    def write_table(self, table: pa.Table) -> None:
        """Add the rows of a table that has the report's columns."""
        self._rows += table.num_rows
        rows = table.select(self._schema.names).cast(self._schema)
        self._guard(lambda: self._sink.write_table(rows))

    def add_segments(self, segments: Iterable[pa.RecordBatch]) -> None:
        """Name the segments of the input, which a page draws; read when the page is written."""
        if self._page is not None:
            self._page.add_segments(segments)

    def finish(self, verdict: Conclusion) -> None:
        """Set the verdict of the run, which a page shows."""
        if self._page is not None:
            self._page.finish(verdict)

    def publish(self, conclusion: Conclusion, beside: Mapping[str, str]) -> None:
        """Put the report in its place, durably, before the work goes on; no rows follow.

        `beside` has texts for files next to a local report, by the endings of their names.
        """
        self.finish(conclusion)
        self.__exit__(None, None, None)
        self.is_published = True
        if not store_of(self.path).stages_beside:
            return
        for ending, text in beside.items():
            with AtomicFile(f"{self.path}{ending}") as file:
                file.write(text.encode())
                file.commit()
        folder = os.path.dirname(os.path.abspath(self.path))
        sync([folder], "make the report durable")

    def _put(self) -> None:
        """Put the whole report where it goes to a store."""
        if self._file.path != self.path:
            with open(self._file.path, "rb") as file:
                store_of(self.path).put(self.path, file.read())
            os.unlink(self._file.path)

    def _guard(self, write: Callable[[], None]) -> None:
        """Write, unless a write has failed: the work goes on, and the end reports the failure."""
        if self._failure is not None and write != self._sink.close:
            return
        try:
            with self._file.writing():
                write()
        except PublishError as error:
            self._failure = self._failure or error
