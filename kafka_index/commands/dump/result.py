"""The result of ``dump``: printed files, and their errors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from kafka_index.commands.dump.request import DumpRequest
from kafka_index.core.errors import Faults, InputError, KafkaIndexError, plural
from kafka_index.core.format.times import TimeSpan, describe_empty_range
from kafka_index.core.fs.inputs import reading_inputs, unread_texts
from kafka_index.core.fs.registry import store_of
from kafka_index.core.fs.store import Bytes
from kafka_index.core.job.result import BAD, Result, RunOutcome, Section
from kafka_index.core.parameters import time_range_ms
from kafka_index.core.query.printed_records import PrintedRecords, Row
from kafka_index.core.query.record_stream import decode_counts, decode_section
from kafka_index.core.records.batch_table import BatchColumns

# Columns with the first and last offset of a row; a table has at most one of these pairs.
_OFFSETS = (("base_offset", "last_offset"), ("first_offset", "last_offset"))
# Columns with the first and last time of a row; a table has at most one of these pairs.
_TIMES = (("base_timestamp_ms", "max_timestamp_ms"), ("timestamp_ms", "timestamp_ms"))


@dataclass(frozen=True, slots=True)
class DumpedFile:
    """A file to dump.

    Attributes
    ----------
    base_offset : int
        The base offset in the file name; 0 for a checkpoint.
    kind : str
        The suffix or the name of the file.
    """

    path: str
    base_offset: int
    kind: str

    @property
    def exists(self) -> bool:
        return store_of(self.path).is_file(self.path)

    @property
    def size_bytes(self) -> int:
        try:
            return store_of(self.path).info(self.path).size_bytes
        except FileNotFoundError:
            raise InputError("the file does not exist", path=self.path) from None

    def content(self) -> bytes:
        try:
            return store_of(self.path).read(self.path)
        except FileNotFoundError as error:
            reason = error.strerror or "the file does not exist"
            raise InputError(f"cannot read the file: {reason}", path=self.path) from error

    def fetched(self) -> bytes | None:
        """Return the content of a remote file; None for a local file, which is opened instead."""
        return self.content() if store_of(self.path).needs_requests else None

    def fetched_array(self) -> Bytes | None:
        """Return `fetched` as an array."""
        content = self.fetched()
        return None if content is None else np.frombuffer(content, np.uint8)


@dataclass(frozen=True, slots=True)
class Selection:
    """The selection of the rows of each file, up to `limit`.

    An offset selects the record at this offset, the batches and transactions that contain the
    offset, and the index entry at which a search for the offset starts. A time range selects
    records and entries in the range, and batches that may contain records in the range.
    """

    offset: int | None = None
    from_ms: int | None = None
    to_ms: int | None = None
    limit: int | None = None

    @classmethod
    def from_request(cls, request: DumpRequest) -> Selection:
        if request.at_time is not None:
            return cls(request.offset, request.at_time, None, 1)
        return cls(
            request.offset, *time_range_ms(request.from_time, request.to_time), request.limit
        )

    @property
    def has_times(self) -> bool:
        return self.from_ms is not None or self.to_ms is not None

    def select_rows(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the selected rows of a table. Index entries are selected only by time."""
        masks = []
        names = rows.schema.names
        for first_column, last_column in _OFFSETS:
            if self.offset is not None and first_column in names:
                masks.append(pc.less_equal(rows.column(first_column), self.offset))
                masks.append(pc.greater_equal(rows.column(last_column), self.offset))
                break
        for first_column, last_column in _TIMES:
            if self.has_times and first_column in names:
                masks += self._time_masks(rows.column(first_column), rows.column(last_column))
                break
        return rows.filter(reduce(pc.and_, masks)) if masks else rows

    def mask_batches(self, batches: BatchColumns) -> NDArray[np.bool_]:
        """Return which batches may contain selected records."""
        is_selected = np.ones(batches.rows, np.bool_)
        if self.offset is not None:
            is_selected &= (batches.base_offset <= self.offset) & (
                batches.last_offset >= self.offset
            )
        if self.from_ms is not None:
            is_selected &= batches.max_timestamp_ms >= self.from_ms
        return is_selected

    def has_record(self, row: Row) -> bool:
        if self.offset is not None and row.offset != self.offset:
            return False
        if self.from_ms is not None and row.timestamp_ms < self.from_ms:
            return False
        return self.to_ms is None or 0 <= row.timestamp_ms < self.to_ms

    def select_records(self, records: pa.RecordBatch) -> pa.RecordBatch:
        """Return the selected records of a table, as `has_record` selects rows."""
        masks = []
        if self.offset is not None:
            masks.append(pc.equal(records.column("offset"), self.offset))
        if self.has_times:
            times = records.column("timestamp").cast(pa.int64())
            masks += (
                self._time_masks(times, times)
                if self.to_ms is not None
                else [pc.greater_equal(times, self.from_ms)]
            )
        return records.filter(reduce(pc.and_, masks)) if masks else records

    def is_past(self, first_offset: int) -> bool:
        return self.offset is not None and first_offset > self.offset

    def _time_masks(self, start_times: pa.Array, end_times: pa.Array) -> list[pa.Array]:
        masks = [pc.greater_equal(end_times, 0)]
        if self.from_ms is not None:
            masks.append(pc.greater_equal(end_times, self.from_ms))
        if self.to_ms is not None:
            masks.append(pc.less(start_times, self.to_ms))
        return masks


class RowPrinter(Protocol):
    """Prints the rows of several files."""

    def begin(self, path: str, title: str) -> None:
        """Start a file."""

    def rows(self, batch: pa.RecordBatch) -> None:
        """Print rows with the columns of the file."""

    def records(self, records: PrintedRecords, select: SelectedRows | None) -> None:
        """Print the selected records of a log."""

    def skipped_batch(self, position_bytes: int, reason: str) -> None:
        """Report a skipped batch, in JSON output only."""

    def remark(self, text: str, *, bad: bool = False) -> None:
        """Print a line about the file, in table output only."""


class SelectedRows:
    """Passes the selected rows of several files to a printer.

    Attributes
    ----------
    printed : int
        The number of printed rows of the current file.
    decode_errors : Counter
        The number of keys and values that did not decode, by error code.
    notes : list of str
        The time ranges of files without selected rows.
    """

    def __init__(self, printer: RowPrinter, selection: Selection) -> None:
        self.selection = selection
        self.printed = 0
        self.notes: list[str] = []
        self.decode_errors: Counter[str] = Counter()
        self._printer = printer
        self._path = ""
        self._span = TimeSpan()

    @property
    def is_full(self) -> bool:
        """Whether the limit of the file is reached."""
        return self.selection.limit is not None and self.printed >= self.selection.limit

    def begin(self, path: str, title: str) -> None:
        """Start a file."""
        self._path, self._span = path, TimeSpan()
        self.printed = 0
        self._printer.begin(path, title)

    def track_times(self, rows: pa.RecordBatch) -> None:
        """Track the times of the next rows of the file, if rows are selected by time."""
        for first_column, last_column in _TIMES:
            if self.selection.has_times and first_column in rows.schema.names and len(rows):
                # The timestamp of the first row represents the start of the file.
                first_ms = (
                    rows.column(first_column)[0].as_py() if self._span.first_ms is None else None
                )
                self._span = self._span.with_times(
                    first_ms, pc.max(rows.column(last_column)).as_py()
                )
                return

    def end(self) -> None:
        """End a file; note its time range if none of its rows is selected."""
        selection = self.selection
        if selection.has_times and not self.printed:
            note = describe_empty_range(selection.from_ms, selection.to_ms, self._span, "the file")
            self.notes.append(f"{self._path}: {note}")

    def rows(self, batch: pa.RecordBatch) -> None:
        self.track_times(batch)
        batch = self.selection.select_rows(batch)
        if self.selection.limit is not None:
            batch = batch.slice(0, max(self.selection.limit - self.printed, 0))
        self.printed += batch.num_rows
        self._printer.rows(batch)

    def records(self, records: PrintedRecords) -> None:
        if self.selection == Selection():
            self.printed += len(records)
            self._printer.records(records, None)
        else:
            self._printer.records(records, self)

    def selected_records(self, records: pa.RecordBatch) -> pa.RecordBatch:
        """Return the records of a table that `select` will yield."""
        records = self.selection.select_records(records)
        if self.selection.limit is None or len(records) <= self.selection.limit - self.printed:
            return records
        # Copied, not sliced: the code that prints bytes reads the complete buffer of a column.
        return records.take(np.arange(self.selection.limit - self.printed))

    def select(self, rows: Iterable[Row]) -> Iterator[Row]:
        """Yield the selected records, and count them."""
        for row in rows:
            if self.is_full:
                return
            if self.selection.has_record(row):
                self.printed += 1
                yield row

    def skipped_batch(self, position_bytes: int, reason: str) -> None:
        """Report a skipped batch, in JSON output only."""
        self._printer.skipped_batch(position_bytes, reason)

    def print_limit(self) -> None:
        """Print that the rows of the file end at the limit."""
        self.remark(f"stopped after {plural(self.printed, 'row')} (--limit)")

    def fault(self, fault: KafkaIndexError | None) -> None:
        """Print the corruption of a file, if any."""
        if fault is not None:
            location = "" if fault.position_bytes is None else f" at byte {fault.position_bytes}"
            self.remark(f"corrupt{location}: {fault.message}", bad=True)

    def remark(self, text: str, *, bad: bool = False) -> None:
        """Print a line about the file, in table output only."""
        self._printer.remark(text, bad=bad)


#: Prints a file or directory; returns its errors.
Dump = Callable[[SelectedRows], Iterable[KafkaIndexError]]
_SCHEMA = pa.schema([("path", pa.string()), ("rows", pa.int64()), ("reason", pa.string())])


class DumpResult(Result):
    """The result of a dump: `print_rows` prints files and directories, and collects errors."""

    command = "dump"

    def __init__(
        self, dumps: Sequence[tuple[str, Dump]], selection: Selection, *, follows_links: bool
    ) -> None:
        self._dumps, self._selection, self._follows_links = dumps, selection, follows_links
        self._rows: list[dict[str, object]] = []
        self._faults = Faults()
        self._notes: tuple[str, ...] = ()
        self._unread: tuple[str, ...] = ()
        self.decode_errors: Mapping[str, int] = {}

    def print_rows(self, printer: RowPrinter) -> None:
        output = SelectedRows(printer, self._selection)
        with reading_inputs(follow_links=self._follows_links) as unread:
            for path, dump in self._dumps:
                output.printed = 0
                faults = list(dump(output))
                self._faults.add(*faults)
                reason = str(faults[0]) if faults else None
                self._rows.append({"path": path, "rows": output.printed, "reason": reason})
        self._notes, self._unread = tuple(output.notes), unread_texts(unread)
        self.decode_errors = dict(sorted(output.decode_errors.items()))

    @property
    def headline(self) -> str:
        """The number of rows, files and errors."""
        text = f"{plural(self.counts['rows'], 'row')} of {plural(len(self._dumps), 'input')}"
        return f"{text}; {plural(self._faults.total, 'error')}" if self._faults.total else text

    @property
    def facts(self) -> Sequence[str]:
        """The time ranges of files without a row in the selected range."""
        return self._notes

    @property
    def sections(self) -> Sequence[Section]:
        """The corrupt and unreadable files, and the keys and values that did not decode."""
        lines = list(map(str, self._faults.first))
        damage = Section("corrupt or unreadable files:", lines, BAD, self._faults.total, "error")
        return [damage, decode_section(self.decode_errors)]

    @property
    def outcome(self) -> RunOutcome:
        """Damage for corrupt files, the environment for failed reads."""
        return RunOutcome.of_faults(self._faults.retriable).with_damage(
            (*self._unread, *self.decode_errors)
        )

    @property
    def unread(self) -> Sequence[str]:
        """Input entries that were not read, with reasons."""
        return self._unread

    @property
    def counts(self) -> Mapping[str, int]:
        """Files, rows, and errors."""
        rows = sum(row["rows"] for row in self._rows if isinstance(row["rows"], int))
        return {
            "files": len(self._dumps),
            "rows": rows,
            "damaged": self._faults.total,
            **decode_counts(self.decode_errors),
        }

    def to_arrow(self) -> pa.Table:
        """Return a row per printed file."""
        return pa.Table.from_pylist(self._rows, schema=_SCHEMA)
