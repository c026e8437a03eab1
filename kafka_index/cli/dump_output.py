"""A file to dump, and its rows: which are printed; for people with remarks, or as JSON lines.

Rows are made column by column with Arrow's kernels: a 2 GiB log can hold 25 million batches.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import TextIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from kafka_index.cli.terminal import Paint, print_log, print_text, terminal_size
from kafka_index.core.errors import InputError, KafkaIndexError, plural, printable
from kafka_index.core.format.records import NO_TIMESTAMP
from kafka_index.core.format.times import TimeSpan, empty_range_text
from kafka_index.core.fs.json_lines import json_lines
from kafka_index.core.fs.registry import store_of
from kafka_index.core.fs.store import Bytes
from kafka_index.core.query.printed_records import Row
from kafka_index.core.records.batch_table import BatchColumns

# First and last offset of each kind of row.
_OFFSETS = (("base_offset", "last_offset"), ("first_offset", "last_offset"))
#: First and last time of each kind of row.
TIME_COLUMNS = (("base_timestamp_ms", "max_timestamp_ms"), ("timestamp_ms", "timestamp_ms"))
_LINES_AT_A_TIME = 8192
_GAP = "  "
_NULL = "-"
# Control characters, and those without a glyph.
_CONTROLS = r"\p{C}"
_WRITE_CHARS = 64 * 1024
_CUT = "…"
# Columns of times, which people read as such.
_TIMES = frozenset(
    {
        "timestamp_ms",
        "base_timestamp_ms",
        "max_timestamp_ms",
        "control_timestamp_ms",
        "first_timestamp_ms",
        "last_timestamp",
    }
)
# The last millisecond of the year 9999.
_LAST_TIME_MS = 253402300799999
#: The columns of wide tables, the most important first; all others come before them.
_RANKED = (
    "damage",
    "base_offset",
    "next_offset",
    "last_offset",
    "position_bytes",
    "size_bytes",
    "max_timestamp",
    "first_timestamp",
    "attributes",
    "record_count",
    "leader_epoch",
    "producer_id",
    "base_sequence",
    "producer_epoch",
    "control_type",
    "base_timestamp",
    "magic",
    "crc",
    "coordinator_epoch",
    "control_timestamp",
)
_RANKS = {name: rank for rank, name in enumerate(_RANKED)}


@dataclass(frozen=True, slots=True)
class DumpedFile:
    """A file that can be dumped, by path or URI.

    The base offset is that of its name, 0 for a checkpoint; the kind is its suffix, or its name.
    """

    path: str
    base_offset: int
    kind: str

    @property
    def is_there(self) -> bool:
        """Whether there is such a file."""
        return store_of(self.path).is_file(self.path)

    @property
    def size_bytes(self) -> int:
        """Its size."""
        try:
            return store_of(self.path).info(self.path).size_bytes
        except FileNotFoundError:
            raise InputError("no such file", path=self.path) from None

    def content(self) -> bytes:
        """Return its bytes, of a file that is small."""
        try:
            return store_of(self.path).read(self.path)
        except FileNotFoundError as error:
            reason = error.strerror or "no such file"
            raise InputError(f"cannot read the file: {reason}", path=self.path) from error

    def fetched(self) -> bytes | None:
        """Return the content of a file of a store; None of a local one, which is opened."""
        return self.content() if store_of(self.path).needs_requests else None

    def fetched_array(self) -> Bytes | None:
        """Return the same as an array."""
        content = self.fetched()
        return None if content is None else np.frombuffer(content, np.uint8)


@dataclass(frozen=True, slots=True)
class Selection:
    """The rows that a dump prints of each file, at most `limit`.

    By offset: batches and transactions that span it, records at it, and the index entry from which
    a search for it starts. By time: records and entries from a time on, and before another, and
    batches that may hold such.
    """

    offset: int | None = None
    from_ms: int | None = None
    to_ms: int | None = None
    limit: int | None = None

    @property
    def has_times(self) -> bool:
        """Whether rows are selected by time."""
        return self.from_ms is not None or self.to_ms is not None

    def of_rows(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows of a table that are selected; index entries by offset are not."""
        masks = []
        names = rows.schema.names
        for first, last in _OFFSETS:
            if self.offset is not None and first in names:
                masks.append(pc.less_equal(rows.column(first), self.offset))
                masks.append(pc.greater_equal(rows.column(last), self.offset))
                break
        for first, last in TIME_COLUMNS:
            if self.has_times and first in names:
                masks += self._time_masks(rows.column(first), rows.column(last))
                break
        return rows.filter(reduce(pc.and_, masks)) if masks else rows

    def of_batches(self, batches: BatchColumns) -> NDArray[np.bool_]:
        """Return which batches may hold records that are selected."""
        held = np.ones(batches.rows, np.bool_)
        if self.offset is not None:
            held &= (batches.base_offset <= self.offset) & (batches.last_offset >= self.offset)
        if self.from_ms is not None:
            held &= batches.max_timestamp_ms >= self.from_ms
        return held

    def has_record(self, row: Row) -> bool:
        """Return whether a record is selected."""
        if self.offset is not None and row.offset != self.offset:
            return False
        if self.from_ms is not None and row.timestamp_ms < self.from_ms:
            return False
        return self.to_ms is None or 0 <= row.timestamp_ms < self.to_ms

    def is_past(self, first_offset: int) -> bool:
        """Return whether nothing from an offset on is selected."""
        return self.offset is not None and first_offset > self.offset

    def _time_masks(self, first: pa.Array, last: pa.Array) -> list[pa.Array]:
        masks = [pc.greater_equal(last, 0)]
        if self.from_ms is not None:
            masks.append(pc.greater_equal(last, self.from_ms))
        if self.to_ms is not None:
            masks.append(pc.less(first, self.to_ms))
        return masks


class DumpOutput:
    """Prints the rows of one file after another, as columns or as JSON objects and nothing else.

    `is_wide` prints all columns also where the terminal is narrower. `printed` counts the rows of
    the file that were printed.
    """

    def __init__(
        self,
        stream: TextIO,
        *,
        as_json: bool,
        is_wide: bool = False,
        selection: Selection | None = None,
    ) -> None:
        self._stream = stream
        self.as_json = as_json
        self.selection = selection or Selection()
        self._paint = Paint(stream)
        is_bounded = stream.isatty() and not (as_json or is_wide)
        self._columns = terminal_size(stream)[0] if is_bounded else None
        self._rows = AlignedRows(self._columns)
        self._files = 0
        self._span = TimeSpan()
        self.printed = 0

    @property
    def is_full(self) -> bool:
        """Whether no more rows of the file are to be printed."""
        return self.selection.limit is not None and self.printed >= self.selection.limit

    def begin(self, title: str) -> None:
        """Print the title of a file."""
        self._rows = AlignedRows(self._columns)
        self.printed = 0
        self._span = TimeSpan()
        if not self.as_json:
            if self._files:
                self._stream.write("\n")
            print_text(self._stream, [self._paint.strong(title)])
        self._files += 1

    def follow_times(self, rows: pa.RecordBatch) -> None:
        """Follow the times of the next rows of the file, where rows are selected by time."""
        for first, last in TIME_COLUMNS:
            if self.selection.has_times and first in rows.schema.names and len(rows):
                # The timestamp of the first row stands for the file.
                first_ms = rows.column(first)[0].as_py() if self._span.first_ms is None else None
                self._span = self._span.with_times(first_ms, pc.max(rows.column(last)).as_py())
                return

    def end(self) -> None:
        """Print where a range of times lies that selected nothing of the file."""
        selection = self.selection
        if selection.has_times and not self.printed:
            text = empty_range_text(selection.from_ms, selection.to_ms, self._span, "the file")
            if self.as_json:
                print_log(text)
            else:
                self.remark(text)

    def rows(self, batch: pa.RecordBatch) -> None:
        """Print those of the rows that are selected."""
        self.follow_times(batch)
        batch = self.selection.of_rows(batch)
        if self.selection.limit is not None:
            batch = batch.slice(0, max(self.selection.limit - self.printed, 0))
        self.printed += batch.num_rows
        for start in range(0, batch.num_rows, _LINES_AT_A_TIME):
            part = batch.slice(start, _LINES_AT_A_TIME)
            lines = (
                json_lines(part).to_pylist()
                if self.as_json
                else self._rows.lines(with_readable_times(part))
            )
            self._stream.write("\n".join(lines) + "\n")

    def write(self, pieces: Iterable[str]) -> None:
        """Write rows that are already text, in pieces, line ends included.

        On a terminal each line is cut at its width, unless the output is wide.
        """
        if self._columns is not None:
            pieces = _cut(pieces, self._columns)
        waiting: list[str] = []
        size = 0
        for piece in pieces:
            waiting.append(piece)
            size += len(piece)
            if size >= _WRITE_CHARS:
                self._stream.write("".join(waiting))
                waiting.clear()
                size = 0
        self._stream.write("".join(waiting))

    def of_records(self, rows: Iterable[Row]) -> Iterator[Row]:
        """Yield those of some records that are selected."""
        for row in rows:
            if self.is_full:
                return
            if self.selection.has_record(row):
                self.printed += 1
                yield row

    def limited(self) -> None:
        """Print a remark that there may be more rows than were asked for."""
        self.remark(f"stopped after {plural(self.printed, 'row')} (--limit)")

    def fault(self, fault: KafkaIndexError | None) -> None:
        """Print a remark about the fault of a file, if it has one."""
        if fault is not None:
            place = "" if fault.position_bytes is None else f" at byte {fault.position_bytes}"
            self.remark(f"damaged{place}: {fault.message}", bad=True)

    def remark(self, text: str, *, bad: bool = False) -> None:
        """Print a line about the file, unless the output is JSON."""
        if not self.as_json:
            text = (self._paint.bad if bad else self._paint.faint)(text)
            print_text(self._stream, [text])
            self.note_hidden_columns("--wide")

    def note_hidden_columns(self, option: str) -> None:
        """Print how many columns the terminal is too narrow for, and the option that shows them."""
        if self._rows.left_out:
            more = plural(len(self._rows.left_out), "more column")
            print_text(self._stream, [self._paint.faint(f"{more} with {option}")])
            self._rows.left_out = ()


class AlignedRows:
    """Formats the batches of one file as a table.

    A column is as wide as its widest cell so far: the table may widen from one batch to the next,
    but no cell is cut. If the table is wider than `max_width` with its first batch, the least
    important columns are left out; `left_out` has their names.
    """

    def __init__(self, max_width: int | None = None) -> None:
        self._max_width = max_width
        self._widths: dict[str, int] = {}
        self.left_out: tuple[str, ...] = ()

    def lines(self, batch: pa.RecordBatch) -> Iterator[str]:
        """Yield a line per row, and the header before the first batch."""
        first = not self._widths
        texts = dict(zip(batch.schema.names, map(_texts, batch.columns), strict=True))
        widths = {
            name: max(self._widths.get(name, len(name)), pc.max(pc.utf8_length(cells)).as_py() or 0)
            for name, cells in texts.items()
            if first or name in self._widths
        }
        if first and self._max_width is not None:
            kept = _fitting(widths, self._max_width)
            self.left_out = tuple(name for name in widths if name not in kept)
            widths = {name: width for name, width in widths.items() if name in kept}
        self._widths = widths
        if first:
            yield _GAP.join(name.rjust(width) for name, width in widths.items())
        cells = [pc.utf8_lpad(texts[name], width) for name, width in widths.items()]
        yield from pc.binary_join_element_wise(*cells, _GAP).to_pylist()


def _texts(column: pa.Array) -> pa.Array:
    """Return a column as texts that end no line and control no terminal."""
    cells = pc.fill_null(column.cast(pa.string()), _NULL)
    is_number = pa.types.is_primitive(column.type)
    if is_number or not pc.any(pc.match_substring_regex(cells, _CONTROLS)).as_py():
        return cells
    return pa.array(map(printable, cells.to_pylist()), pa.string())


def _fitting(widths: Mapping[str, int], max_width: int) -> set[str]:
    """Return the most important columns that fit."""
    ranked = sorted(widths, key=lambda name: _RANKS.get(name, -1))
    kept: set[str] = set()
    room = max_width
    for name in ranked:
        room -= widths[name] + (len(_GAP) if kept else 0)
        if room < 0 and kept:
            break
        kept.add(name)
    return kept


def with_readable_times(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows whose times are ISO 8601, under names without a unit."""
    names, columns = [], []
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        is_time = name in _TIMES
        names.append(name.removesuffix("_ms") if is_time else name)
        columns.append(_readable_times(column) if is_time else column)
    return pa.RecordBatch.from_arrays(columns, names)


def _readable_times(column: pa.Array) -> pa.Array:
    in_calendar = pc.and_(pc.greater_equal(column, 0), pc.less_equal(column, _LAST_TIME_MS))
    known = pc.if_else(in_calendar, column, None).cast(pa.timestamp("ms", "UTC"))
    texts = pc.strftime(known, format="%Y-%m-%dT%H:%M:%SZ")
    numbers = pc.if_else(pc.equal(column, NO_TIMESTAMP), None, column).cast(pa.string())
    return pc.coalesce(texts, numbers)


def _cut(pieces: Iterable[str], width: int) -> Iterator[str]:
    """Yield pieces of lines that are not wider than a terminal."""
    used = 0
    for piece in pieces:
        ends = piece.endswith("\n")
        text = piece.removesuffix("\n")
        if used < width and text:
            room = width - used
            yield text if len(text) <= room else text[: room - 1] + _CUT
        used += len(text)
        if ends:
            yield "\n"
            used = 0
