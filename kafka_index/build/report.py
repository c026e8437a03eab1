"""The build report: a row per segment, and the file it is written to."""

from __future__ import annotations

import dataclasses
import fcntl
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from kafka_index.errors import InputError, PublishError
from kafka_index.log.source import PREALLOCATED_TAIL
from kafka_index.storage.failures import publish_error
from kafka_index.storage.paths import local_path

BUILT = "built"
UNCHANGED = "unchanged"
TRUNCATED = "truncated"
FAILED = "failed"
STATUSES = (BUILT, UNCHANGED, TRUNCATED, FAILED)


_ROWS_AT_A_TIME = 64 * 1024


@dataclass(frozen=True, slots=True)
class SegmentReport:
    """What became of one segment.

    Parameters
    ----------
    topic, partition, segment_base_offset
        The segment.
    log_path : str
        Its log, absolute.
    log_size_bytes : int
        Size of the log.
    valid_bytes : int, optional
        Length of the prefix that the indexes cover; None, as all of the next ones, when the
        segment failed before that was known.
    batch_count : int, optional
        Record batches in that prefix.
    offset_entries, time_entries : int, optional
        Entries of ``.index`` and ``.timeindex``.
    next_offset : int, optional
        The offset after the last one.
    max_timestamp_ms : int, optional
        The largest timestamp; -1 when there is none.
    status : str
        One of `STATUSES`.
    reason : str, optional
        Why the status is not ``built``.
    position_bytes : int, optional
        Where in the log the reason lies.
    seconds : float
        Time it took.
    """

    topic: str
    partition: int
    segment_base_offset: int
    log_path: str
    log_size_bytes: int
    valid_bytes: int | None
    batch_count: int | None
    offset_entries: int | None
    time_entries: int | None
    next_offset: int | None
    max_timestamp_ms: int | None
    status: str
    reason: str | None
    position_bytes: int | None
    seconds: float

    @classmethod
    def failed(
        cls,
        topic: str,
        partition: int,
        segment_base_offset: int,
        log_path: str,
        log_size_bytes: int,
        reason: str | None = None,
    ) -> Self:
        """Return the row of a segment of which nothing more is known."""
        return cls(
            topic=topic,
            partition=partition,
            segment_base_offset=segment_base_offset,
            log_path=log_path,
            log_size_bytes=log_size_bytes,
            valid_bytes=None,
            batch_count=None,
            offset_entries=None,
            time_entries=None,
            next_offset=None,
            max_timestamp_ms=None,
            status=FAILED,
            reason=reason,
            position_bytes=None,
            seconds=0.0,
        )

    @property
    def is_preallocated_tail(self) -> bool:
        """Whether the log ends in the zeros of preallocation, and all before them is sound."""
        return self.reason is not None and self.reason.startswith(PREALLOCATED_TAIL)

    @property
    def is_damage(self) -> bool:
        """Whether someone should look at this segment, and the exit code say so."""
        return self.status == FAILED or (self.status == TRUNCATED and not self.is_preallocated_tail)


REPORT_SCHEMA = pa.schema(
    [
        pa.field("topic", pa.string(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("segment_base_offset", pa.int64(), nullable=False),
        pa.field("log_path", pa.string(), nullable=False),
        pa.field("log_size_bytes", pa.int64(), nullable=False),
        pa.field("valid_bytes", pa.int64()),
        pa.field("batch_count", pa.int64()),
        pa.field("offset_entries", pa.int64()),
        pa.field("time_entries", pa.int64()),
        pa.field("next_offset", pa.int64()),
        pa.field("max_timestamp_ms", pa.int64()),
        pa.field("status", pa.string(), nullable=False),
        pa.field("reason", pa.string()),
        pa.field("position_bytes", pa.int64()),
        pa.field("seconds", pa.float64(), nullable=False),
    ]
)


def report_table(rows: Sequence[SegmentReport]) -> pa.Table:
    """Return report rows as an Arrow table of `REPORT_SCHEMA`."""
    columns = [[getattr(row, name) for row in rows] for name in REPORT_SCHEMA.names]
    return pa.table(
        [
            pa.array(column, field.type)
            for column, field in zip(columns, REPORT_SCHEMA, strict=True)
        ],
        schema=REPORT_SCHEMA,
    )


def report_rows(table: pa.Table) -> list[SegmentReport]:
    """Return the rows of an Arrow table of `REPORT_SCHEMA`."""
    columns = [table.column(name).to_pylist() for name in REPORT_SCHEMA.names]
    return [SegmentReport(*values) for values in zip(*columns, strict=True)]


class _Sink(Protocol):
    def write_table(self, table: pa.Table) -> None: ...

    def close(self) -> None: ...


class _JsonSink:
    def __init__(self, path: str) -> None:
        self._file = open(path, "w", encoding="utf-8")  # noqa: SIM115, because close() is a method here

    def write_table(self, table: pa.Table) -> None:
        for row in report_rows(table):
            self._file.write(json.dumps(dataclasses.asdict(row), ensure_ascii=False) + "\n")

    def close(self) -> None:
        self._file.close()


_SINKS: dict[str, Callable[[str], _Sink]] = {
    ".parquet": lambda path: pq.ParquetWriter(path, REPORT_SCHEMA, compression="zstd"),
    ".json": _JsonSink,
    ".csv": lambda path: pa_csv.CSVWriter(path, REPORT_SCHEMA),
}


def check_report_path(path: str) -> str:
    """Return the local path of a report, if its ending says what to write.

    Raises
    ------
    InputError
        The ending is none of ``.parquet``, ``.json`` and ``.csv``.
    """
    local = local_path(path)
    ending = os.path.splitext(local)[1].lower()
    if ending not in _SINKS:
        raise InputError(
            "the report's ending does not say its format",
            path=path,
            expected=" or ".join(_SINKS),
            found=ending or "none",
        )
    return local


class ReportWriter:
    """Writes a report, row by row into bounded memory, and lets it appear whole.

    Parameters
    ----------
    path : str
        Ends in ``.parquet``, ``.json`` (one object a line) or ``.csv``.

    Raises
    ------
    InputError
        The path has another ending, or is a folder.
    PublishError
        It cannot be written; found out here, before any work is done.

    Notes
    -----
    A context manager. The rows go to a hidden file beside the report, which takes the report's
    name at the end, also when the run ends in an error, with the rows so far (but an error
    before the first row leaves an older report alone). Not for use by several threads at once.
    """

    def __init__(self, path: str) -> None:
        self.path = check_report_path(path)
        if os.path.isdir(self.path):
            raise InputError("the report is a folder", path=path, hint="name a file in it")
        folder, name = os.path.split(self.path)
        self._scratch = os.path.join(folder, f".{name}.tmp")
        self._pending: list[SegmentReport] = []
        self._rows = 0
        try:
            self._lock = os.open(self._scratch, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise publish_error(error, self.path, "write the report") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._sink = _SINKS[os.path.splitext(self.path)[1].lower()](self._scratch)
        except BlockingIOError as error:
            os.close(self._lock)
            raise PublishError(
                "another run is writing this report", path=self.path, hint="give it another name"
            ) from error
        except OSError as error:
            os.close(self._lock)
            raise publish_error(error, self.path, "write the report") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        keep = kind is None or self._rows > 0
        try:
            self._flush()
            self._sink.close()
            if keep:
                os.fsync(self._lock)
                os.replace(self._scratch, self.path)
            else:
                os.unlink(self._scratch)
        except OSError as failure:
            raise publish_error(failure, self.path, "write the report") from failure
        finally:
            os.close(self._lock)

    def write(self, rows: Sequence[SegmentReport]) -> None:
        """Add rows."""
        self._pending += rows
        self._rows += len(rows)
        if len(self._pending) >= _ROWS_AT_A_TIME:
            self._flush()

    def write_table(self, table: pa.Table) -> None:
        """Add the rows of a table of `REPORT_SCHEMA`."""
        self._flush()
        self._rows += table.num_rows
        self._write(table.select(REPORT_SCHEMA.names).cast(REPORT_SCHEMA))

    def _flush(self) -> None:
        if self._pending:
            self._write(report_table(self._pending))
            self._pending = []

    def _write(self, table: pa.Table) -> None:
        try:
            self._sink.write_table(table)
        except OSError as error:
            raise publish_error(error, self.path, "write the report") from error
