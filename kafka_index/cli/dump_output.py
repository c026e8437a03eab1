"""Print rows to a terminal or a file: tables, JSON lines, and file contents."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, TextIO

import pyarrow as pa
import pyarrow.compute as pc

from kafka_index.cli.record_text import RecordText
from kafka_index.cli.terminal import Paint, print_text, terminal_size
from kafka_index.core.errors import plural, printable
from kafka_index.core.format.names import COMPRESSION_NAMES
from kafka_index.core.format.records import (
    COMPRESSION_MASK,
    CONTROL_MASK,
    DELETE_HORIZON_MASK,
    NO_TIMESTAMP,
    TIMESTAMP_TYPE_MASK,
    TRANSACTIONAL_MASK,
)
from kafka_index.core.fs.json_lines import json_lines
from kafka_index.core.log.choices import BytesForm
from kafka_index.core.query.printed_records import PrintedRecords, log_decoder

if TYPE_CHECKING:
    from kafka_index.commands.dump.result import SelectedRows

_SEGMENT_COLUMNS = ("topic", "partition", "segment_base_offset")
_FLAGS = (
    (TRANSACTIONAL_MASK, "txn"),
    (CONTROL_MASK, "control"),
    (TIMESTAMP_TYPE_MASK, "append-time"),
    (DELETE_HORIZON_MASK, "horizon"),
)
_LINES_PER_WRITE = 8192
_GAP = "  "
_NULL = "-"
# Control characters and characters without a glyph.
_CONTROL_CHARACTERS = r"\p{C}"
_CHARS_PER_WRITE = 64 * 1024
_ELLIPSIS = "…"
# Columns with timestamps, which tables show in ISO 8601.
_TIME_COLUMNS = frozenset(
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
#: Columns of wide tables in order of decreasing importance. Columns that are not listed here are
#: more important.
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


class TablePrinter:
    """Prints rows as a table or as JSON lines.

    If `is_wide`, a table has all columns, even if the terminal is too narrow.
    """

    #: The option with which all columns are printed.
    _wide_option = "--json"

    def __init__(self, stream: TextIO, *, as_json: bool, is_wide: bool = False) -> None:
        self._stream = stream
        self._as_json = as_json
        self._paint = Paint(stream)
        is_bounded = stream.isatty() and not (as_json or is_wide)
        self._columns = terminal_size(stream)[0] if is_bounded else None
        self._rows = AlignedRows(self._columns)

    def rows(self, batch: pa.RecordBatch) -> None:
        for start in range(0, batch.num_rows, _LINES_PER_WRITE):
            chunk = batch.slice(start, _LINES_PER_WRITE)
            lines = json_lines(chunk).to_pylist() if self._as_json else self._rows.lines(chunk)
            self._stream.write("\n".join(lines) + "\n")

    def remark(self, text: str, *, bad: bool = False) -> None:
        """Print a line about the rows, in table output only."""
        if not self._as_json:
            print_text(self._stream, [(self._paint.bad if bad else self._paint.faint)(text)])
            self.note_hidden_columns()

    def note_hidden_columns(self) -> None:
        """Print how many columns are hidden, and the option that prints all columns."""
        if self._rows.hidden:
            count = plural(len(self._rows.hidden), "column")
            hint = f"{count} hidden; use {self._wide_option} to print all columns"
            print_text(self._stream, [self._paint.faint(hint)])
            self._rows.hidden = ()


class DumpPrinter(TablePrinter):
    """Prints the rows of several files; notes and titles appear in table output only.

    `RecordText` formats keys and values of records.
    """

    _wide_option = "--wide"

    def __init__(
        self,
        stream: TextIO,
        *,
        as_json: bool,
        is_wide: bool,
        keys: BytesForm | None,
        values: BytesForm | None,
    ) -> None:
        super().__init__(stream, as_json=as_json, is_wide=is_wide)
        self._create_record_text = partial(RecordText, as_json=as_json, keys=keys, values=values)
        self._text = self._create_record_text()
        self._files = 0

    def begin(self, path: str, title: str) -> None:
        self._rows = AlignedRows(self._columns)
        self._text = self._create_record_text(decode=log_decoder(path))
        if not self._as_json:
            if self._files:
                self._stream.write("\n")
            print_text(self._stream, [self._paint.strong(f"{path}: {title}")])
        self._files += 1

    def rows(self, batch: pa.RecordBatch) -> None:
        """Print rows; a table shows times in ISO 8601, and attributes by name."""
        super().rows(
            batch if self._as_json else _format_time_columns(_format_attributes_column(batch))
        )

    def records(self, records: PrintedRecords, select: SelectedRows | None) -> None:
        chunks = self._text.lines(records, None if select is None else select.select)
        if self._columns is not None:
            chunks = _truncate(chunks, self._columns)
        pending: list[str] = []
        pending_chars = 0
        for chunk in chunks:
            pending.append(chunk)
            pending_chars += len(chunk)
            if pending_chars >= _CHARS_PER_WRITE:
                self._stream.write("".join(pending))
                pending.clear()
                pending_chars = 0
        self._stream.write("".join(pending))

    def skipped_batch(self, position_bytes: int, reason: str) -> None:
        if self._as_json:
            skipped = {"position_bytes": position_bytes, "reason": reason}
            self._stream.write(json.dumps(skipped) + "\n")


class AlignedRows:
    """Formats the batches of one file as a table.

    A column is as wide as its widest cell so far, so the table may widen from one batch to the
    next. If the first batch makes the table wider than `max_width`, the least important columns are
    hidden; `hidden` has their names.
    """

    def __init__(self, max_width: int | None = None) -> None:
        self._max_width = max_width
        self._widths: dict[str, int] = {}
        self.hidden: tuple[str, ...] = ()

    def lines(self, batch: pa.RecordBatch) -> Iterator[str]:
        """Yield the lines of a batch, with the header before the first batch."""
        is_first = not self._widths
        cells_by_name = dict(
            zip(batch.schema.names, map(_format_column, batch.columns), strict=True)
        )
        widths = {
            name: max(self._widths.get(name, len(name)), pc.max(pc.utf8_length(cells)).as_py() or 0)
            for name, cells in cells_by_name.items()
            if is_first or name in self._widths
        }
        if is_first and self._max_width is not None:
            fitting_columns = _select_columns(widths, self._max_width)
            self.hidden = tuple(name for name in widths if name not in fitting_columns)
            widths = {name: width for name, width in widths.items() if name in fitting_columns}
        self._widths = widths
        if is_first:
            yield _GAP.join(name.rjust(width) for name, width in widths.items())
        padded_cells = [pc.utf8_lpad(cells_by_name[name], width) for name, width in widths.items()]
        yield from pc.binary_join_element_wise(*padded_cells, _GAP).to_pylist()


def _format_column(column: pa.Array) -> pa.Array:
    """Format a column without line ends and terminal control characters."""
    cells = pc.fill_null(column.cast(pa.string()), _NULL)
    is_number = pa.types.is_primitive(column.type)
    if is_number or not pc.any(pc.match_substring_regex(cells, _CONTROL_CHARACTERS)).as_py():
        return cells
    return pa.array(map(printable, cells.to_pylist()), pa.string())


def _select_columns(widths: Mapping[str, int], max_width: int) -> set[str]:
    """Return the most important columns that fit into a width; at least one column."""
    ranked_columns = sorted(widths, key=lambda name: _RANKS.get(name, -1))
    columns: set[str] = set()
    remaining_width = max_width
    for name in ranked_columns:
        remaining_width -= widths[name] + (len(_GAP) if columns else 0)
        if remaining_width < 0 and columns:
            break
        columns.add(name)
    return columns


def _format_attributes_column(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Replace attributes by names, and drop columns whose values are in the title."""
    if "attributes" not in batch.schema.names:
        return batch
    batch = batch.drop_columns([n for n in _SEGMENT_COLUMNS if n in batch.schema.names])
    column_index = batch.schema.get_field_index("attributes")
    encoded = batch.column(column_index).dictionary_encode()
    names = pa.array([_format_attributes(value) for value in encoded.dictionary.to_pylist()])
    return batch.set_column(column_index, "attributes", names.take(encoded.indices))


def _format_attributes(attributes: int) -> str:
    codec = attributes & COMPRESSION_MASK
    name = COMPRESSION_NAMES[codec] if codec < len(COMPRESSION_NAMES) else f"codec-{codec}"
    return "+".join([name, *(flag for mask, flag in _FLAGS if attributes & mask)])


def _format_time_columns(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Convert times to ISO 8601, and remove the unit from column names."""
    names, columns = [], []
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        is_time = name in _TIME_COLUMNS
        names.append(name.removesuffix("_ms") if is_time else name)
        columns.append(_format_times(column) if is_time else column)
    return pa.RecordBatch.from_arrays(columns, names)


def _format_times(column: pa.Array) -> pa.Array:
    is_in_calendar = pc.and_(pc.greater_equal(column, 0), pc.less_equal(column, _LAST_TIME_MS))
    times = pc.if_else(is_in_calendar, column, None).cast(pa.timestamp("ms", "UTC"))
    texts = pc.strftime(times, format="%Y-%m-%dT%H:%M:%SZ")
    numbers = pc.if_else(pc.equal(column, NO_TIMESTAMP), None, column).cast(pa.string())
    return pc.coalesce(texts, numbers)


def _truncate(chunks: Iterable[str], width: int) -> Iterator[str]:
    """Truncate lines to the width of the terminal."""
    line_width = 0
    for chunk in chunks:
        ends_line = chunk.endswith("\n")
        text = chunk.removesuffix("\n")
        if line_width < width and text:
            remaining_width = width - line_width
            yield text if len(text) <= remaining_width else text[: remaining_width - 1] + _ELLIPSIS
        line_width += len(text)
        if ends_line:
            yield "\n"
            line_width = 0
