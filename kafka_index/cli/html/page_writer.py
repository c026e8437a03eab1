"""Collect the rows of a report for an HTML page, then write the page."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from kafka_index.cli.html.page import (
    PageText,
    Part,
    Totals,
    are_units,
    bokeh_folder,
    find_values,
    pack_columns,
    rank_rows,
    weigh_rows,
)
from kafka_index.core.errors import LinkedOutError
from kafka_index.core.format.names import LOG_SUFFIX, OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX
from kafka_index.core.format.records import (
    MESSAGE_V1_HEADER,
    NO_TIMESTAMP,
    OFFSET_ENTRY,
    RECORD_BATCH_HEADER,
    TIME_ENTRY,
    field_position,
)
from kafka_index.core.fs.inputs import refuse_linked_out
from kafka_index.core.job.result import Conclusion, PageColumns, Severity

#: One row per segment of a dump, for the charts.
SEGMENT_SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("segment_base_offset", pa.int64()),
        ("log_size_bytes", pa.int64()),
        ("first_timestamp_ms", pa.int64()),
        ("max_timestamp_ms", pa.int64()),
        ("offset_entries", pa.int64()),
    ]
)
_MAGIC = field_position(RECORD_BATCH_HEADER, "magic")

#: Maximum number of rows in a page, and of additional rows that are not good; further rows are only
#: counted.
MAX_ROWS = 400_000
#: Columns of a page that are not columns of the report.
FOUND, SEVERITY, FIRST_TIMESTAMP = "found_", "severity_", "first_timestamp_ms"


def with_times(batch: pa.RecordBatch, *, reading: bool) -> pa.RecordBatch:
    """Convert segments with ``log_path`` to `SEGMENT_SCHEMA`.

    If not `reading`, values from files are null.
    """
    paths = batch.column("log_path").to_pylist() if reading else []
    firsts = first_timestamps(paths) if reading else pa.nulls(len(batch), pa.int64())
    known = {
        "first_timestamp_ms": firsts,
        "max_timestamp_ms": pa.array(
            map(_last_timestamp, paths) if reading else [None] * len(batch), pa.int64()
        ),
        "offset_entries": pa.array(
            map(_offset_entries, paths) if reading else [None] * len(batch), pa.int64()
        ),
    }
    columns = [
        known[field.name] if field.name in known else batch.column(field.name).cast(field.type)
        for field in SEGMENT_SCHEMA
    ]
    return pa.record_batch(columns, schema=SEGMENT_SCHEMA)


def first_timestamps(log_paths: Sequence[str | None]) -> pa.Array:
    """Return the base timestamp of the first batch of each log, int64."""
    return pa.array(map(_first_timestamp, log_paths), pa.int64())


def _first_timestamp(log_path: str | None) -> int | None:
    header = _read(log_path, RECORD_BATCH_HEADER.itemsize)
    if len(header) <= _MAGIC:
        return None
    magic = header[_MAGIC]
    layout, name = (
        (RECORD_BATCH_HEADER, "base_timestamp_ms")
        if magic == 2
        else (MESSAGE_V1_HEADER, "timestamp_ms")
    )
    if magic not in {1, 2} or len(header) < layout.itemsize:
        return None
    first = int(np.frombuffer(header, layout, 1)[name][0])
    return None if first <= NO_TIMESTAMP else first


def _last_timestamp(log_path: str | None) -> int | None:
    entry = _read(_beside(log_path, TIME_INDEX_SUFFIX), -TIME_ENTRY.itemsize)
    if len(entry) != TIME_ENTRY.itemsize:
        return None
    last = int(np.frombuffer(entry, TIME_ENTRY)["timestamp_ms"][0])
    # Zeros are preallocated; the largest timestamp is somewhere before them.
    return last if last > 0 else None


def _offset_entries(log_path: str | None) -> int | None:
    path = _beside(log_path, OFFSET_INDEX_SUFFIX)
    if path is None:
        return None
    try:
        size_bytes = os.stat(path).st_size
    except OSError:
        return None
    preallocated = size_bytes and not any(_read(path, -OFFSET_ENTRY.itemsize))
    return None if preallocated else size_bytes // OFFSET_ENTRY.itemsize


def _beside(log_path: str | None, suffix: str) -> str | None:
    if log_path is None or not log_path.endswith(LOG_SUFFIX):
        return None
    return log_path.removesuffix(LOG_SUFFIX) + suffix


def _read(path: str | None, count: int) -> bytes:
    """Return the first bytes of a local file, or with a negative count the last ones."""
    if path is None:
        return b""
    try:
        refuse_linked_out(path)
        with open(path, "rb", buffering=0) as file:
            if count < 0:
                file.seek(count, os.SEEK_END)
            return file.read(abs(count))
    except (OSError, LinkedOutError):
        return b""


class PageWriter:
    """The HTML page of a report, written when it is closed; a sink of `ReportFile`.

    `columns` determines how rows are counted; `about` has facts about the run for the footer.
    """

    def __init__(
        self,
        command: str,
        columns: PageColumns,
        about: Mapping[str, str],
        path: str,
        schema: pa.Schema,
    ) -> None:
        self._command = command
        self._columns = columns
        self._about = about
        self._path = path
        self._schema = schema
        self._folder = bokeh_folder(path)
        self._totals = Totals()
        self._kept: list[pa.Table] = []
        self._kept_rows = self._rows = 0
        self._segments: Iterable[pa.RecordBatch] = ()
        self._conclusion: Conclusion | None = None
        self._is_whole = True

    def write_table(self, table: pa.Table) -> None:
        severities = rank_rows(table, self._columns)
        found = find_values(table, self._columns)
        self._count(table, found, severities.to_numpy())
        self._rows += len(table)
        table = table.append_column(FOUND, found).append_column(SEVERITY, severities)
        room = max(MAX_ROWS - self._kept_rows, 0)
        if len(table) > room:
            bad = table.filter(pc.greater(severities, int(Severity.GOOD)))
            more = max(2 * MAX_ROWS - self._kept_rows, 0)
            table = table.slice(0, room) if not bad.num_rows else bad.slice(0, more)
        if not len(table):
            return
        if self._columns.rows_are_segments:
            firsts = first_timestamps(table["log_path"].to_pylist())
            table = table.append_column(FIRST_TIMESTAMP, firsts)
        self._kept.append(table)
        self._kept_rows += len(table)

    def add_segments(self, segments: Iterable[pa.RecordBatch]) -> None:
        """Add the input segments; they are read when the page is written."""
        self._segments = segments

    def finish(self, verdict: Conclusion) -> None:
        """Set the conclusion of the run."""
        self._conclusion = verdict

    def interrupt(self) -> None:
        """Record that the run was interrupted, so that rows are incomplete."""
        self._conclusion, self._is_whole = None, False

    def close(self) -> None:
        text = PageText(self._command, self._columns, self._totals, self._about, self._conclusion)
        rows = self._table()
        parts = [Part("rows", pack_columns(rows), len(rows), self._rows)]
        # The columns are packed; the rows are not needed any more.
        self._kept, rows = [], None
        if not self._columns.rows_are_segments:
            batches = [with_times(batch, reading=self._is_whole) for batch in self._segments]
            segments = pa.Table.from_batches(batches, SEGMENT_SCHEMA)
            shown = segments.slice(0, MAX_ROWS)
            parts.append(Part("segments", pack_columns(shown), len(shown), len(segments)))
        with open(self._path, "w", encoding="utf-8") as file:
            file.writelines(text.pieces(parts, self._folder))

    def _count(self, table: pa.Table, found: pa.ChunkedArray, severities: NDArray[np.int8]) -> None:
        totals = self._totals
        units = are_units(table, self._columns).to_numpy()
        weights = weigh_rows(table, self._columns)
        for severity, counter in ((None, totals.found), (Severity.BAD, totals.bad_of)):
            counted = pa.array(units if severity is None else units & (severities == severity))
            groups = pa.table({"found": found, "weight": weights}).filter(counted)
            sums = groups.group_by("found").aggregate([("weight", "sum")])
            for row in sums.to_pylist():
                counter[row["found"]] += row["weight_sum"]

    def _table(self) -> pa.Table:
        if self._kept:
            return pa.concat_tables(self._kept)
        schema = self._schema.append(pa.field(FOUND, pa.string()))
        return schema.append(pa.field(SEVERITY, pa.int8())).empty_table()
