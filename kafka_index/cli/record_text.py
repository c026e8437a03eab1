"""Records as text: one line each, readable or as JSON.

Bytes are shown as a quoted text where they are UTF-8, else, or when asked for, as hex digits; so
that every text stays on its line and no byte reaches a terminal that could command it. A large key
or value is written in pieces: it is never held as text.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice, pairwise
from json.encoder import encode_basestring, encode_basestring_ascii
from typing import NamedTuple, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kafka_index.cli.decoded_records import Decode, Decoded
from kafka_index.cli.text import format_time
from kafka_index.layout.integers import Longs
from kafka_index.layout.records import (
    CONTROL_ABORT,
    CONTROL_COMMIT,
    NO_TIMESTAMP,
)
from kafka_index.records.record_chunk import RecordChunk
from kafka_index.records.record_table import (
    RecordTable,
    WindowBatches,
)

TEXT, HEX, NONE = "text", "hex", "none"
#: How keys and values can be shown.
FORMS = (TEXT, HEX, NONE)

#: ``ControlRecordType``.
_CONTROL_TYPES = (
    "abort",
    "commit",
    "leader_change",
    "snapshot_header",
    "snapshot_footer",
    "kraft_version",
    "kraft_voters",
)
_CONTROL_KEY_BYTES = 4
_MARKER_VALUE_BYTES = 6
#: The columns of numbers of a row, in its order.
NUMBER_COLUMNS = (
    "position_bytes",
    "offset",
    "timestamp",
    "producer_id",
    "producer_epoch",
    "sequence",
    "is_control",
)
_COLUMNS = ("position_bytes", "offset", "timestamp", "producer_id", "sequence")
_GAP = "  "
#: A key or value with more bytes is written in pieces of this size.
_PIECE_BYTES = 64 * 1024

_Bytes = memoryview | None
_Header = tuple[memoryview, _Bytes]


class Row(NamedTuple):
    """A record to be printed."""

    position_bytes: int
    offset: int
    timestamp_ms: int
    producer_id: int
    producer_epoch: int
    sequence: int
    is_control: bool
    key: _Bytes
    value: _Bytes
    headers: Sequence[_Header]
    decoded: Decoded | None = None


@dataclass(frozen=True, slots=True)
class PrintedRecords:
    """Records to be printed, as columns.

    Parameters
    ----------
    numbers : pa.RecordBatch
        Columns of `RECORD_SCHEMA` that are numbers.
    keys, values : pa.Array of binary
        A row for each record.
    header_counts : ndarray of int64, shape (n,)
        How many headers each record has.
    header_names, header_values : pa.Array of binary
        Those of all records, in order.
    """

    numbers: pa.RecordBatch
    keys: pa.Array
    values: pa.Array
    header_counts: Longs
    header_names: pa.Array
    header_values: pa.Array

    @classmethod
    def of_chunk(cls, chunk: RecordChunk, source: WindowBatches) -> Self:
        """Copy the records of a chunk."""
        numbers = RecordTable("", -1, NUMBER_COLUMNS).convert(chunk, source)
        counts, headers = chunk.header_counts(), chunk.header_columns()
        return cls(numbers, chunk.keys, chunk.values, counts, *headers)

    @classmethod
    def of_rows(cls, rows: pa.RecordBatch) -> Self:
        """Return records of a table that has `NUMBER_COLUMNS`, keys, values and headers."""
        headers = rows.column("headers")
        pairs = headers.flatten()
        return cls(
            rows.select(NUMBER_COLUMNS),
            rows.column("key"),
            rows.column("value"),
            np.asarray(pc.list_value_length(headers).fill_null(0)).astype(np.int64),
            pairs.field("key").cast(pa.binary()),
            pairs.field("value"),
        )

    def __len__(self) -> int:
        """Return the number of records."""
        return len(self.keys)

    def rows(self) -> Iterator[Row]:
        """Yield the records."""
        numbers = (self.numbers[name] for name in NUMBER_COLUMNS)
        # Timestamps as numbers: Python's do not reach as far as Kafka's.
        numbers = (
            (column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column).to_pylist()
            for column in numbers
        )
        return map(Row, *numbers, _slices(self.keys), _slices(self.values), self._headers())

    def _headers(self) -> Iterator[Sequence[_Header]]:
        names = (name or memoryview(b"") for name in _slices(self.header_names))
        pairs = zip(names, _slices(self.header_values), strict=True)
        for count in self.header_counts.tolist():
            yield list(islice(pairs, count)) if count else ()


class RecordText:
    """Formats records.

    Parameters
    ----------
    as_json : bool
        Lines are JSON objects; else columns for people, as wide as the rows so far.
    keys, values : str or None
        One of `FORMS` each; that of values applies to headers too. By default text.
    decode : callable, optional
        Decodes the records of one of Kafka's own topics. People get what it returns instead of
        keys and values, unless these are asked for; JSON has both.
    """

    def __init__(
        self, *, as_json: bool, keys: str | None, values: str | None, decode: Decode | None = None
    ) -> None:
        self._as_json = as_json
        self._keys = keys or TEXT
        self._values = values or TEXT
        self._decode = decode
        self._shows_decoded = keys is None and values is None
        self._widths: list[int] = []
        # Members of every JSON object before the others.
        self._first_members = ""

    def lines(
        self,
        records: PrintedRecords,
        select: Callable[[Iterable[Row]], Iterator[Row]] | None = None,
    ) -> Iterator[str]:
        """Yield the lines of records in pieces, line ends included.

        Parameters
        ----------
        records : PrintedRecords
            The records.
        select : callable, optional
            Returns those that are printed; all by default.

        Notes
        -----
        The first line of all is preceded by the names of the columns.
        """
        rows = records.rows() if select is None else select(records.rows())
        if self._decode is not None:
            rows = map(partial(_decoded, self._decode), rows)
        return (self._json if self._as_json else self._readable)(rows)

    def members(self, records: PrintedRecords) -> Iterator[tuple[str, str]]:
        """Yield the parts of the first record, each with its name, for people."""
        row = next(records.rows())
        if self._decode is not None:
            row = _decoded(self._decode, row)
        if row.is_control:
            yield "control", _control_text(row).removeprefix("control: ")
            return
        if row.decoded is not None:
            yield "record", decoded_text(row.decoded)
            return
        yield "key", "".join(_shown(row.key, self._keys))
        yield "value", "".join(_shown(row.value, self._values))
        for name, value in row.headers:
            yield "header", f"{''.join(_shown(name, TEXT))} = {''.join(_shown(value, TEXT))}"

    def refusal(self, position_bytes: int, reason: str) -> Iterable[str]:
        """Return the lines for a batch none of whose records is printed; people get a remark."""
        if not self._as_json:
            return ()
        return (json.dumps({"position_bytes": position_bytes, "reason": reason}) + "\n",)

    def _readable(self, rows: Iterable[Row]) -> Iterator[str]:
        for row in rows:
            first = not self._widths
            numbers = (
                str(row.position_bytes),
                str(row.offset),
                readable_time(row.timestamp_ms),
                str(row.producer_id),
                str(row.sequence),
            )
            widths = list(map(max, self._widths or map(len, _COLUMNS), map(len, numbers)))
            self._widths = widths
            if first:
                forms = (("key", self._keys), ("value", self._values))
                shown = [name for name, form in forms if form != NONE]
                yield _GAP.join([*map(str.rjust, _COLUMNS, widths), *shown]) + "\n"
            yield _GAP.join([*map(str.rjust, numbers, widths), ""])
            if row.is_control:
                yield _control_text(row)
            elif row.decoded is not None and self._shows_decoded:
                yield decoded_text(row.decoded)
            else:
                yield from self._cells(row)
            yield "\n"

    def _cells(self, row: Row) -> Iterator[str]:
        gap = ""
        for data, form in ((row.key, self._keys), (row.value, self._values)):
            if form != NONE:
                yield gap
                yield from _shown(data, form)
                gap = _GAP
        before = f"{gap}headers: "
        for name, value in row.headers:
            yield before
            yield from _shown(name, TEXT)
            if self._values != NONE:
                yield " = "
                yield from _shown(value, self._values)
            before = ", "

    def _json(self, rows: Iterable[Row]) -> Iterator[str]:
        for row in rows:
            keys, values = self._keys, self._values
            control, epoch = "null", "null"
            if row.is_control:
                # The bytes of control records are not text, even where they could be read as one.
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
                f'"key_bytes": {_size(row.key)}, "value_bytes": {_size(row.value)}, '
            )
            if keys != NONE:
                yield '"key": '
                yield from _json_value(row.key, keys)
                yield ", "
            if values != NONE:
                yield '"value": '
                yield from _json_value(row.value, values)
                yield ", "
            yield from self._json_headers(row.headers) if row.headers else ('"headers": []',)
            if row.decoded is not None:
                yield f', "decoded": {_decoded_json(row.decoded)}'
            yield "}\n"

    def _json_headers(self, headers: Iterable[_Header]) -> Iterator[str]:
        before = '"headers": [{"key": '
        for name, value in headers:
            yield before
            yield from _json_value(name, TEXT)
            if self._values != NONE:
                yield ', "value": '
                yield from _json_value(value, self._values)
            before = '}, {"key": '
        yield "}]"


def readable_time(timestamp_ms: int) -> str:
    """Return a time for people; a dash for none."""
    if timestamp_ms == NO_TIMESTAMP:
        return "-"
    time = format_time(timestamp_ms) if timestamp_ms >= 0 else None
    return time or str(timestamp_ms)


def _decoded(decode: Decode, row: Row) -> Row:
    """Return a row with what its bytes mean, and without those that must not be shown."""
    if row.is_control:
        return row
    key, value = (None if data is None else bytes(data) for data in (row.key, row.value))
    found = decode(key, value)
    return row._replace(decoded=found, value=None if found.hides_value else row.value)


def decoded_text(decoded: Decoded) -> str:
    """Return what the bytes of a record of Kafka's own mean."""
    if decoded.error is not None:
        return f"not decoded: {decoded.error}"
    return _GAP.join(text for text in (decoded.key, decoded.value or "null") if text is not None)


def _decoded_json(decoded: Decoded) -> str:
    error = "null" if decoded.error is None else json.dumps(decoded.error)
    key, value = decoded.key or "null", decoded.value or "null"
    return f'{{"key": {key}, "value": {value}, "error": {error}}}'


def _slices(column: pa.Array) -> Iterator[_Bytes]:
    """Yield views of the bytes of a column."""
    _, ends, data = column.buffers()
    view = memoryview(data)
    present = column.is_valid().to_pylist()
    for is_present, (start, end) in zip(
        present, pairwise(np.frombuffer(ends, np.int32).tolist()), strict=True
    ):
        yield view[start:end] if is_present else None


def _size(data: _Bytes) -> str:
    return "null" if data is None else str(len(data))


def _json_value(data: _Bytes, form: str) -> Iterable[str]:
    return _value(data, form, encode_basestring_ascii, '{"hex": "', '"}')


def _shown(data: _Bytes, form: str) -> Iterable[str]:
    return _value(data, form, _quoted, "0x", "")


def _value(
    data: _Bytes, form: str, quote: Callable[[str], str], before_hex: str, after_hex: str
) -> Iterable[str]:
    """Return the pieces of bytes as quoted text, or as hex digits between two other texts."""
    if data is None:
        return ("null",)
    if len(data) > _PIECE_BYTES:
        return _large_value(data, form, quote, before_hex, after_hex)
    if form == TEXT:
        try:
            return (quote(str(data, "utf-8")),)
        except UnicodeDecodeError:
            pass
    return (before_hex, data.hex(), after_hex)


def _large_value(
    data: memoryview, form: str, quote: Callable[[str], str], before_hex: str, after_hex: str
) -> Iterator[str]:
    if form == TEXT and _is_text(data):
        yield '"'
        for text in codecs.iterdecode(_pieces(data), "utf-8"):
            yield quote(text)[1:-1]
        yield '"'
        return
    yield from chain((before_hex,), (piece.hex() for piece in _pieces(data)), (after_hex,))


def _pieces(data: memoryview) -> Iterator[bytes]:
    for start in range(0, len(data), _PIECE_BYTES):
        yield bytes(data[start : start + _PIECE_BYTES])


def _is_text(data: memoryview) -> bool:
    try:
        for _ in codecs.iterdecode(_pieces(data), "utf-8"):
            pass
    except UnicodeDecodeError:
        return False
    return True


def _quoted(text: str) -> str:
    """Return a text in JSON's quotes, with every character that is not printable escaped."""
    quoted = encode_basestring(text)
    if quoted.isprintable():
        return quoted
    return "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in quoted)


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
    if not ends_transaction or len(value) < _MARKER_VALUE_BYTES:
        return None
    return int.from_bytes(value[2:_MARKER_VALUE_BYTES], "big", signed=True)


def _control_text(row: Row) -> str:
    kind = _control_type(row)
    epoch = _coordinator_epoch(row)
    if epoch is not None:
        return f"control: {kind}, coordinator epoch {epoch}"
    key, value = ("".join(_shown(data, HEX)) for data in (row.key, row.value))
    return f"control: {kind}, key {key}, value {value}"
