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
from kafka_index.core.query.choices import BytesForm
from kafka_index.core.query.printed_records import PrintedRecords, decoder_of

if TYPE_CHECKING:
    from kafka_index.commands.dump.result import SelectedRows

_SEGMENT_COLUMNS = ("topic", "partition", "segment_base_offset")
_FLAGS = (
    (TRANSACTIONAL_MASK, "txn"),
    (CONTROL_MASK, "control"),
    (TIMESTAMP_TYPE_MASK, "append-time"),
    (DELETE_HORIZON_MASK, "horizon"),
)
_LINES_AT_A_TIME = 8192
_GAP = "  "
_NULL = "-"
# Control characters and characters without a glyph.
_CONTROLS = r"\p{C}"
_WRITE_CHARS = 64 * 1024
_ELLIPSIS = "…"
# Columns printed as times.
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
#: The columns of wide tables, most important first; all others precede them.
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

    `is_wide` prints all columns even if the terminal is too narrow.
    """

    #: The option that prints all columns.
    _wide_option = "--json"

    def __init__(self, stream: TextIO, *, as_json: bool, is_wide: bool = False) -> None:
        self._stream = stream
        self._as_json = as_json
        self._paint = Paint(stream)
        is_bounded = stream.isatty() and not (as_json or is_wide)
        self._columns = terminal_size(stream)[0] if is_bounded else None
        self._rows = AlignedRows(self._columns)

    def rows(self, batch: pa.RecordBatch) -> None:
        for start in range(0, batch.num_rows, _LINES_AT_A_TIME):
            part = batch.slice(start, _LINES_AT_A_TIME)
            lines = json_lines(part).to_pylist() if self._as_json else self._rows.lines(part)
            self._stream.write("\n".join(lines) + "\n")

    def remark(self, text: str, *, bad: bool = False) -> None:
        """Print a line about the rows, in table output only."""
        if not self._as_json:
            print_text(self._stream, [(self._paint.bad if bad else self._paint.faint)(text)])
            self.note_hidden_columns()

    def note_hidden_columns(self) -> None:
        """Print how many columns are hidden, and the option that shows them."""
        if self._rows.hidden:
            more = plural(len(self._rows.hidden), "more column")
            print_text(self._stream, [self._paint.faint(f"{more} with {self._wide_option}")])
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
        self._text_of = partial(RecordText, as_json=as_json, keys=keys, values=values)
        self._text = self._text_of()
        self._files = 0

    def begin(self, path: str, title: str) -> None:
        self._rows = AlignedRows(self._columns)
        self._text = self._text_of(decode=decoder_of(path))
        if not self._as_json:
            if self._files:
                self._stream.write("\n")
            print_text(self._stream, [self._paint.strong(f"{path}: {title}")])
        self._files += 1

    def rows(self, batch: pa.RecordBatch) -> None:
        """Print rows; tables show times in ISO 8601 and names of attributes."""
        super().rows(batch if self._as_json else _readable_times(_readable_batches(batch)))

    def records(self, records: PrintedRecords, select: SelectedRows | None) -> None:
        parts = self._text.lines(records, None if select is None else select.select)
        if self._columns is not None:
            parts = _truncate(parts, self._columns)
        waiting: list[str] = []
        size = 0
        for part in parts:
            waiting.append(part)
            size += len(part)
            if size >= _WRITE_CHARS:
                self._stream.write("".join(waiting))
                waiting.clear()
                size = 0
        self._stream.write("".join(waiting))

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
        first = not self._widths
        texts = dict(zip(batch.schema.names, map(_texts, batch.columns), strict=True))
        widths = {
            name: max(self._widths.get(name, len(name)), pc.max(pc.utf8_length(cells)).as_py() or 0)
            for name, cells in texts.items()
            if first or name in self._widths
        }
        if first and self._max_width is not None:
            kept = _fitting(widths, self._max_width)
            self.hidden = tuple(name for name in widths if name not in kept)
            widths = {name: width for name, width in widths.items() if name in kept}
        self._widths = widths
        if first:
            yield _GAP.join(name.rjust(width) for name, width in widths.items())
        cells = [pc.utf8_lpad(texts[name], width) for name, width in widths.items()]
        yield from pc.binary_join_element_wise(*cells, _GAP).to_pylist()


def _texts(column: pa.Array) -> pa.Array:
    """Format a column without line ends and terminal control characters."""
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


def _readable_batches(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Drop the columns that are in the title, and replace attributes by their names."""
    if "attributes" not in batch.schema.names:
        return batch
    batch = batch.drop_columns([n for n in _SEGMENT_COLUMNS if n in batch.schema.names])
    place = batch.schema.get_field_index("attributes")
    encoded = batch.column(place).dictionary_encode()
    names = pa.array([_attributes_text(value) for value in encoded.dictionary.to_pylist()])
    return batch.set_column(place, "attributes", names.take(encoded.indices))


def _attributes_text(attributes: int) -> str:
    codec = attributes & COMPRESSION_MASK
    name = COMPRESSION_NAMES[codec] if codec < len(COMPRESSION_NAMES) else f"codec-{codec}"
    return "+".join([name, *(flag for mask, flag in _FLAGS if attributes & mask)])


def _readable_times(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Convert times to ISO 8601, and remove the unit from column names."""
    names, columns = [], []
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        is_time = name in _TIMES
        names.append(name.removesuffix("_ms") if is_time else name)
        columns.append(_time_texts(column) if is_time else column)
    return pa.RecordBatch.from_arrays(columns, names)


def _time_texts(column: pa.Array) -> pa.Array:
    in_calendar = pc.and_(pc.greater_equal(column, 0), pc.less_equal(column, _LAST_TIME_MS))
    known = pc.if_else(in_calendar, column, None).cast(pa.timestamp("ms", "UTC"))
    texts = pc.strftime(known, format="%Y-%m-%dT%H:%M:%SZ")
    numbers = pc.if_else(pc.equal(column, NO_TIMESTAMP), None, column).cast(pa.string())
    return pc.coalesce(texts, numbers)


def _truncate(parts: Iterable[str], width: int) -> Iterator[str]:
    """Truncate lines to the width of the terminal."""
    used = 0
    for part in parts:
        ends = part.endswith("\n")
        text = part.removesuffix("\n")
        if used < width and text:
            room = width - used
            yield text if len(text) <= room else text[: room - 1] + _ELLIPSIS
        used += len(text)
        if ends:
            yield "\n"
            used = 0
