"""Report files: Arrow tables are written atomically, in the format of the file's suffix."""

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
    """Writes an HTML page."""

    def interrupt(self) -> None:
        """Mark the run as ended by an error or a signal."""

    def add_segments(self, segments: Iterable[pa.RecordBatch]) -> None:
        """Add the input segments that the page shows."""

    def finish(self, conclusion: Conclusion) -> None:
        """Set the conclusion of the run."""


#: Creates the sink of a page from the path of its file and the columns of the report.
PageMaker = Callable[[str, pa.Schema], PageSink]


class _JsonSink:
    def __init__(self, path: str, _schema: pa.Schema) -> None:
        self._file = open(path, "w", encoding="utf-8")  # noqa: SIM115, a member

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


PAGE_SUFFIX = ".html"


def check_report_path(path: str, *, has_page: bool = False) -> str:
    """Return the path or URI of a report.

    Raises `InputError` if its suffix is not ``.parquet``, ``.json``, ``.csv``, ``.arrow`` or, if
    the command has a page, ``.html``.
    """
    report_path = plain_path(path)
    suffix = os.path.splitext(report_path)[1].lower()
    suffixes = [*_SINKS, *([PAGE_SUFFIX] if has_page else [])]
    if suffix not in suffixes:
        raise InputError(
            "the suffix of the report is not a supported format",
            path=path,
            expected=" or ".join(suffixes),
            found=suffix or "none",
            hint="only build, verify, predict, restore, lookup and stats write HTML reports"
            if suffix == PAGE_SUFFIX
            else None,
        )
    return report_path


class ReportFile:
    """Writes the tables of a report in bounded memory, and publishes it atomically at the end.

    A context manager, not thread-safe. The rows are written to a hidden file next to the report,
    or in TMPDIR for a report in a store. If the run ends with an error, the report contains the
    rows written before the error. If the report has no row yet, or a write has failed, an older
    report stays unchanged. A failed write does not end the run: the results are printed first, and
    the end of the context raises `PublishError`. Raises `InputError` for an unsupported suffix or a
    directory, and `PublishError` if the file cannot be created.
    """

    def __init__(self, path: str, schema: pa.Schema, page: PageMaker | None = None) -> None:
        self.path = check_report_path(path, has_page=page is not None)
        self._schema = schema
        self._rows = 0
        self._failure: PublishError | None = None
        self.is_published = False
        writable_path = self.path
        if not store_of(self.path).stages_locally:
            name = os.path.basename(self.path)
            writable_path = os.path.join(workspace(), f"{os.urandom(8).hex()}-{name}")
        if os.path.isdir(writable_path):
            raise InputError("the report is a directory", path=path, hint="give the path of a file")
        self._file = AtomicFile(writable_path, noun="report")
        suffix = os.path.splitext(self.path)[1].lower()
        self._page = None
        try:
            if suffix == PAGE_SUFFIX and page is not None:
                self._page = page(self._file.scratch_path, schema)
            self._sink = self._page or _SINKS[suffix](self._file.scratch_path, schema)
        except OSError:
            with self._file, self._file.writing():
                raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self.is_published:
            return
        with self._file:
            if self._page is not None and error_type is not None:
                self._page.interrupt()
            self._write_guarded(self._sink.close)
            if self._failure is not None:
                if error_type is None:
                    raise self._failure
            elif error_type is None or self._rows > 0:
                self._file.commit()
                self._upload()

    def write_table(self, table: pa.Table) -> None:
        """Add rows with the columns of the report."""
        self._rows += table.num_rows
        rows = table.select(self._schema.names).cast(self._schema)
        self._write_guarded(lambda: self._sink.write_table(rows))

    def add_segments(self, segments: Iterable[pa.RecordBatch]) -> None:
        """Add the input segments that a page shows; `segments` is read when the page is written."""
        if self._page is not None:
            self._page.add_segments(segments)

    def finish(self, conclusion: Conclusion) -> None:
        """Set the conclusion of the run, for a page."""
        if self._page is not None:
            self._page.finish(conclusion)

    def publish(self, conclusion: Conclusion, extra_files: Mapping[str, str]) -> None:
        """Publish the report durably before the run continues; no more rows may follow.

        `extra_files` has the contents of files next to a local report, keyed by file name suffix.
        """
        self.finish(conclusion)
        self.__exit__(None, None, None)
        self.is_published = True
        if not store_of(self.path).stages_locally:
            return
        for suffix, text in extra_files.items():
            with AtomicFile(f"{self.path}{suffix}") as file:
                file.write(text.encode())
                file.commit()
        folder = os.path.dirname(os.path.abspath(self.path))
        sync([folder], "make the report durable")

    def _upload(self) -> None:
        """Upload the report if it is in a store."""
        if self._file.path != self.path:
            with open(self._file.path, "rb") as file:
                store_of(self.path).put(self.path, file.read())
            os.unlink(self._file.path)

    def _write_guarded(self, write: Callable[[], None]) -> None:
        """Call `write` unless an earlier write failed, which the end of the context raises."""
        if self._failure is not None and write != self._sink.close:
            return
        try:
            with self._file.writing():
                write()
        except PublishError as error:
            self._failure = self._failure or error
