"""Format records as aligned columns or JSON lines, with keys and values as text or hex digits.

Output contains no line ends or terminal control characters from records. Large keys and values are
formatted in parts, so that their complete text is never in memory.
"""

from __future__ import annotations

import codecs
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from functools import partial
from itertools import chain
from json.encoder import encode_basestring, encode_basestring_ascii
from typing import TYPE_CHECKING, Protocol, TextIO

import pyarrow as pa

from kafka_index.core.errors import printable
from kafka_index.core.format.records import CONTROL_ABORT, CONTROL_COMMIT, NO_TIMESTAMP
from kafka_index.core.format.times import format_time
from kafka_index.core.log.choices import BytesForm
from kafka_index.core.query.printed_records import (
    Decode,
    Decoded,
    OptionalBytes,
    PrintedHeader,
    PrintedRecords,
    Row,
    topic_decoder,
)

if TYPE_CHECKING:
    from kafka_index.core.query.record_stream import RecordStream

TEXT, HEX, NONE = BytesForm

#: Keys and values above this size are written in parts of this size.
PART_BYTES = 64 * 1024
#: Names of control records by type (``ControlRecordType``).
_CONTROL_TYPES = (
    "abort",
    "commit",
    "leader_change",
    "snapshot_header",
    "snapshot_footer",
    "kraft_version",
    "kraft_voters",
)
# Longer binary keys and values are truncated to this size on a terminal.
_TRUNCATED_BYTES = 24
_CONTROL_KEY_BYTES = 4
_TRANSACTION_MARKER_BYTES = 6
_GAP = "  "


def json_value(data: OptionalBytes, form: str) -> Iterable[str]:
    return _format_value(data, form, encode_basestring_ascii, '{"hex": "', '"}')


def readable_value(data: OptionalBytes, form: str) -> Iterable[str]:
    """Yield the parts of a value as quoted text or hexadecimal digits."""
    return _format_value(data, form, _quote, "0x", "")


def _format_value(
    data: OptionalBytes, form: str, quote: Callable[[str], str], before_hex: str, after_hex: str
) -> Iterable[str]:
    if data is None:
        return ("null",)
    if len(data) > PART_BYTES:
        return _format_large_value(data, form, quote, before_hex, after_hex)
    if form == TEXT:
        try:
            return (quote(str(data, "utf-8")),)
        except UnicodeDecodeError:
            pass
    return (before_hex, data.hex(), after_hex)


def _format_large_value(
    data: memoryview, form: str, quote: Callable[[str], str], before_hex: str, after_hex: str
) -> Iterator[str]:
    if form == TEXT and _is_text(data):
        yield '"'
        for text in codecs.iterdecode(split_bytes(data), "utf-8"):
            yield quote(text)[1:-1]
        yield '"'
        return
    yield from chain((before_hex,), (part.hex() for part in split_bytes(data)), (after_hex,))


def split_bytes(data: memoryview) -> Iterator[bytes]:
    """Yield bytes in parts of at most `PART_BYTES`."""
    for start in range(0, len(data), PART_BYTES):
        yield bytes(data[start : start + PART_BYTES])


def _is_text(data: memoryview) -> bool:
    try:
        for _ in codecs.iterdecode(split_bytes(data), "utf-8"):
            pass
    except UnicodeDecodeError:
        return False
    return True


def _quote(text: str) -> str:
    """Quote a text as in JSON, with all unprintable characters escaped."""
    quoted = encode_basestring(text)
    if quoted.isprintable():
        return quoted
    return "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in quoted)


class RecordText:
    """Formats records as JSON objects or as aligned columns.

    `keys` and `values` are a `BytesForm`, by default text; `values` also applies to headers.
    `decode` decodes the records of an internal topic. Columns then show the decoded record, unless
    `keys` or `values` is set. JSON always contains the decoded record, the key and the value.
    """

    _columns: tuple[str, ...] = ("position_bytes", "offset", "timestamp", "producer_id", "sequence")
    _align: Callable[[str, int], str] = staticmethod(str.rjust)

    def __init__(
        self, *, as_json: bool, keys: str | None, values: str | None, decode: Decode | None = None
    ) -> None:
        self._as_json = as_json
        self._keys = keys or TEXT
        self._values = values or TEXT
        self._decode = decode
        self._shows_decoded = keys is None and values is None
        self._widths: list[int] = []
        # JSON text of the first members of every object.
        self._first_members = ""

    def lines(
        self,
        records: PrintedRecords,
        select: Callable[[Iterable[Row]], Iterator[Row]] | None = None,
    ) -> Iterator[str]:
        """Yield the lines of records in parts, including line ends.

        In a table, the column names precede the first row. `select` filters the rows; by default,
        all rows are printed.
        """
        rows = records.rows() if select is None else select(records.rows())
        if self._decode is not None:
            rows = map(partial(decode_row, self._decode), rows)
        return (self._json_lines if self._as_json else self._table_lines)(rows)

    def members(self, records: PrintedRecords) -> Iterator[tuple[str, str]]:
        """Yield the names and texts of the first record's key, value and headers."""
        row = next(records.rows())
        if self._decode is not None:
            row = decode_row(self._decode, row)
        if row.is_control:
            yield "control", _format_control(row).removeprefix("control: ")
            return
        if row.decoded is not None:
            yield "record", format_decoded(row.decoded)
            return
        yield "key", "".join(readable_value(row.key, self._keys))
        yield "value", "".join(readable_value(row.value, self._values))
        for name, value in row.headers:
            yield (
                "header",
                f"{''.join(readable_value(name, TEXT))} = {''.join(readable_value(value, TEXT))}",
            )

    def _table_lines(self, rows: Iterable[Row]) -> Iterator[str]:
        align, format_leading_cells = self._align, self._format_leading_cells
        for row in rows:
            is_first = not self._widths
            leading_cells = format_leading_cells(row)
            widths = list(
                map(max, self._widths or map(len, self._columns), map(len, leading_cells))
            )
            self._widths = widths
            if is_first:
                forms = (("key", self._keys), ("value", self._values))
                value_columns = [name for name, form in forms if form != NONE]
                yield _GAP.join([*map(align, self._columns, widths), *value_columns]) + "\n"
            yield _GAP.join([*map(align, leading_cells, widths), ""])
            if row.is_control:
                yield _format_control(row)
            elif row.decoded is not None and self._shows_decoded:
                yield format_decoded(row.decoded)
            else:
                yield from self._value_cells(row)
            yield "\n"

    def _format_leading_cells(self, row: Row) -> tuple[str, ...]:
        """Return the cells of a row before the key and value."""
        return (
            str(row.position_bytes),
            str(row.offset),
            readable_time(row.timestamp_ms),
            str(row.producer_id),
            str(row.sequence),
        )

    def _value_cells(self, row: Row) -> Iterator[str]:
        gap = ""
        for data, form in ((row.key, self._keys), (row.value, self._values)):
            if form != NONE:
                yield gap
                yield from self._readable_value(data, form)
                gap = _GAP
        separator = f"{gap}headers: "
        for name, value in row.headers:
            yield separator
            yield from readable_value(name, TEXT)
            if self._values != NONE:
                yield " = "
                yield from self._readable_value(value, self._values)
            separator = ", "

    def _readable_value(self, data: OptionalBytes, form: str) -> Iterable[str]:
        """Yield the parts of a readable key or value."""
        return readable_value(data, form)

    def _json_lines(self, rows: Iterable[Row]) -> Iterator[str]:
        for row in rows:
            keys, values = self._keys, self._values
            control, epoch = "null", "null"
            if row.is_control:
                # The keys and values of control records are binary, even if they are valid UTF-8.
                keys = HEX if keys == TEXT else keys
                values = HEX if values == TEXT else values
                control = encode_basestring_ascii(_control_type(row))
                epoch = json.dumps(_coordinator_epoch(row))
            yield (
                f'{{{self._first_members}"position_bytes": {row.position_bytes}, '
                f'"offset": {row.offset}, '
                f'"timestamp_ms": {row.timestamp_ms}, "producer_id": {row.producer_id}, '
                f'"producer_epoch": {row.producer_epoch}, "sequence": {row.sequence}, '
                f'"control_type": {control}, "coordinator_epoch": {epoch}, '
                f'"key_bytes": {_format_size(row.key)}, "value_bytes": {_format_size(row.value)}, '
            )
            if keys != NONE:
                yield '"key": '
                yield from json_value(row.key, keys)
                yield ", "
            if values != NONE:
                yield '"value": '
                yield from json_value(row.value, values)
                yield ", "
            yield from self._json_headers(row.headers) if row.headers else ('"headers": []',)
            if row.decoded is not None:
                yield f', "decoded": {_format_decoded_json(row.decoded)}'
            yield "}\n"

    def _json_headers(self, headers: Iterable[PrintedHeader]) -> Iterator[str]:
        separator = '"headers": [{"key": '
        for name, value in headers:
            yield separator
            yield from json_value(name, TEXT)
            if self._values != NONE:
                yield ', "value": '
                yield from json_value(value, self._values)
            separator = '}, {"key": '
        yield "}]"


def readable_time(timestamp_ms: int) -> str:
    """Format a timestamp; return a dash for -1, which means no timestamp."""
    if timestamp_ms == NO_TIMESTAMP:
        return "-"
    time = format_time(timestamp_ms) if timestamp_ms >= 0 else None
    return time or str(timestamp_ms)


def decode_row(decode: Decode, row: Row) -> Row:
    """Add the decoded record to a row, and remove its value if the value contains secrets."""
    if row.is_control:
        return row
    key, value = (None if data is None else bytes(data) for data in (row.key, row.value))
    decoded = decode(key, value)
    return row._replace(decoded=decoded, value=None if decoded.hides_value else row.value)


def format_decoded(decoded: Decoded) -> str:
    """Format a decoded record of an internal topic."""
    if decoded.error is not None:
        return printable(f"decoding failed: {decoded.error}")
    parts = (decoded.key, decoded.value or "null")
    return printable(_GAP.join(text for text in parts if text is not None))


def _format_decoded_json(decoded: Decoded) -> str:
    error = "null" if decoded.error is None else json.dumps(decoded.error)
    key, value = decoded.key or "null", decoded.value or "null"
    return f'{{"key": {key}, "value": {value}, "error": {error}}}'


def _format_size(data: OptionalBytes) -> str:
    return "null" if data is None else str(len(data))


def _control_type(row: Row) -> str:
    key = b"" if row.key is None else row.key
    if len(key) < _CONTROL_KEY_BYTES or int.from_bytes(key[:2], "big", signed=True) < 0:
        return "unreadable"
    number = int.from_bytes(key[2:4], "big", signed=True)
    return _CONTROL_TYPES[number] if 0 <= number < len(_CONTROL_TYPES) else f"unknown-{number}"


def _coordinator_epoch(row: Row) -> int | None:
    ends_transaction = _control_type(row) in (
        _CONTROL_TYPES[CONTROL_ABORT],
        _CONTROL_TYPES[CONTROL_COMMIT],
    )
    value = b"" if row.value is None else row.value
    if not ends_transaction or len(value) < _TRANSACTION_MARKER_BYTES:
        return None
    return int.from_bytes(value[2:_TRANSACTION_MARKER_BYTES], "big", signed=True)


def _format_control(row: Row) -> str:
    kind = _control_type(row)
    epoch = _coordinator_epoch(row)
    if epoch is not None:
        return f"control: {kind}, coordinator epoch {epoch}"
    key, value = ("".join(readable_value(data, HEX)) for data in (row.key, row.value))
    return f"control: {kind}, key {key}, value {value}"


class RecordPrinter(Protocol):
    """Formats records of several partitions."""

    def record_lines(self, rows: pa.RecordBatch) -> Iterator[str]:
        """Yield the formatted records in parts; `rows` has `PRINTED_COLUMNS` of one topic."""


def print_records(
    records: RecordStream,
    printer: RecordPrinter,
    print_context: Callable[[TextIO], AbstractContextManager[object]] = nullcontext,
) -> None:
    """Print records to stdout while they are read; enter `print_context` for each batch."""
    with closing(records.batches()) as batches:
        for batch in batches:
            with print_context(sys.stdout):
                sys.stdout.writelines(printer.record_lines(batch))
                sys.stdout.flush()


class PartitionedRecordText(RecordText):
    """Formats records of several partitions as JSON objects or columns."""

    _columns = ("partition", "offset", "timestamp")
    _align = staticmethod(str.ljust)

    def __init__(self, *, as_json: bool, values: str) -> None:
        super().__init__(as_json=as_json, keys=TEXT, values=values)
        self._shows_decoded = True
        self._partition = ""
        self._is_terminal = sys.stdout.isatty()

    def record_lines(self, rows: pa.RecordBatch) -> Iterator[str]:
        """Yield the lines of records in parts; `rows` has `PRINTED_COLUMNS` of one topic."""
        topic = rows.column("topic")[0].as_py()
        self._decode = topic_decoder(topic)
        numbers = rows.column("partition").to_pylist()
        return self.lines(
            PrintedRecords.from_rows(rows), partial(self._set_partitions, topic, numbers)
        )

    def _set_partitions(
        self, topic: str, numbers: Sequence[int], rows: Iterable[Row]
    ) -> Iterator[Row]:
        """Yield rows; before each row, set the partition that the output shows for the row."""
        previous_number = None
        for number, row in zip(numbers, rows, strict=True):
            if number != previous_number:
                previous_number = number
                self._partition = printable(f"{topic}-{number}")
                self._first_members = f'"topic": {json.dumps(topic)}, "partition": {number}, '
            yield row

    def _readable_value(self, data: OptionalBytes, form: str) -> Iterable[str]:
        """Yield the parts of a key or value; on a terminal, truncate long binary values."""
        if self._is_terminal and form == TEXT and data is not None:
            content = memoryview(data)
            if len(content) > 2 * _TRUNCATED_BYTES and not _is_text(content):
                return "0x", content[:_TRUNCATED_BYTES].hex(), f"... ({len(content):,} bytes)"
        return super()._readable_value(data, form)

    def _format_leading_cells(self, row: Row) -> tuple[str, ...]:
        return self._partition, str(row.offset), readable_time(row.timestamp_ms)
