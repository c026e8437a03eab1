r"""Format records by a kcat template (``-f``), byte for byte: ``%o``, ``%k``, ``%s``, ``\n``.

Bytes that are not UTF-8 become surrogates (``surrogateescape``), as in `os.fsdecode`; a stream with
this error handler writes the original bytes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from kafka_index.cli.record_text import PART_BYTES, decoded_row, split_bytes
from kafka_index.core.errors import ConfigError, printable
from kafka_index.core.query.printed_records import MaybeBytes, PrintedRecords, Row, decoder_of_topic

#: Error handler that preserves bytes in text.
BYTES_AS_TEXT = "surrogateescape"

_NULL = "NULL"
_TOKEN = re.compile("%(.?)", re.DOTALL)
# C's strtoul parses the digits, as octal after a 0.
_ESCAPE = re.compile(r"\\(x[0-9A-Fa-f]{1,2}|0[0-7]*|[1-9][0-9]*|.)", re.DOTALL)
_ESCAPED = {"n": "\n", "r": "\r", "t": "\t"}
_LENGTH_BYTES = 4


@dataclass(frozen=True, slots=True)
class _Place:
    """The partition of a record, and how its bytes are printed."""

    topic: str
    partition: int
    null: str
    is_shown: bool

    def text(self, data: MaybeBytes) -> Iterable[str]:
        """Yield the parts of a key or a value."""
        return (self.null,) if data is None else self.plain(data)

    def plain(self, data: memoryview) -> Iterable[str]:
        """Yield bytes unchanged; on a terminal without control characters."""
        if len(data) <= PART_BYTES and not self.is_shown:
            return (str(data, "utf-8", BYTES_AS_TEXT),)
        parts = (str(part, "utf-8", BYTES_AS_TEXT) for part in split_bytes(data))
        return map(printable, parts) if self.is_shown else parts

    def headers(self, row: Row) -> Iterator[str]:
        """Yield the parts of headers, like ``print_headers`` in kcat's format.c."""
        before = ""
        for name, value in row.headers:
            yield before
            yield from self.plain(name)
            yield "="
            yield from (_NULL,) if value is None else self.plain(value)
            before = ","

    def packed_length(self, data: MaybeBytes) -> Iterable[str]:
        """Yield the length of a value as four bytes, big-endian."""
        return self.plain(memoryview(_length(data).to_bytes(_LENGTH_BYTES, "big", signed=True)))


_Part = Callable[[_Place, Row], Iterable[str]]

_TOKENS: Mapping[str, _Part] = {
    "t": lambda place, _: (place.topic,),
    "p": lambda place, _: (str(place.partition),),
    "o": lambda _, row: (str(row.offset),),
    "k": lambda place, row: place.text(row.key),
    "K": lambda _, row: (str(_length(row.key)),),
    "s": lambda place, row: place.text(row.value),
    "v": lambda place, row: place.text(row.value),
    "S": lambda _, row: (str(_length(row.value)),),
    "R": lambda place, row: place.packed_length(row.value),
    "T": lambda _, row: (str(row.timestamp_ms),),
    "h": lambda place, row: place.headers(row),
}


class RecordTemplate:
    """Formats records by a template.

    With `names_null`, null is printed as ``NULL`` instead of nothing. With `is_shown`, the text
    goes to a terminal, and control characters in records are removed. Raises `ConfigError` for an
    unknown token.
    """

    def __init__(self, template: str, *, names_null: bool = False, is_shown: bool = False) -> None:
        self._parts = list(_parts(template))
        self._null = _NULL if names_null else ""
        self._is_shown = is_shown

    def found_lines(self, rows: pa.RecordBatch) -> Iterator[str]:
        """Yield the text of records of one topic with `PRINTED_COLUMNS`, in parts."""
        topic = rows.column("topic")[0].as_py()
        decode = decoder_of_topic(topic)
        is_typed = [not pa.types.is_binary(rows.column(name).type) for name in ("key", "value")]
        printed: Iterator[Row] = PrintedRecords.of_rows(rows).rows()
        if any(is_typed):
            printed = (_as_json(row, *is_typed) for row in printed)
        if decode is not None:
            # Secrets of the cluster are omitted.
            printed = (decoded_row(decode, row) for row in printed)
        return self._texts(topic, rows.column("partition").to_pylist(), printed)

    def _texts(self, topic: str, numbers: Sequence[int], rows: Iterator[Row]) -> Iterator[str]:
        places = {
            number: _Place(topic, number, self._null, self._is_shown) for number in set(numbers)
        }
        for number, row in zip(numbers, rows, strict=True):
            for part in self._parts:
                yield from part(places[number], row)


def _as_json(row: Row, has_key: bool, has_value: bool) -> Row:  # noqa: FBT001, of both parts
    """Return a row whose key or value is JSON, if it is decoded."""
    found = row.decoded
    if found is None or found.error is not None:
        return row
    key = _encoded(found.key) if has_key else row.key
    return row._replace(key=key, value=_encoded(found.value) if has_value else row.value)


def _encoded(text: str | None) -> MaybeBytes:
    return None if text is None else memoryview(text.encode())


def ends_lines(template: str) -> bool:
    parts = _TOKEN.split(template)
    return "R" in parts[1::2] or any("\n" in _unescaped(text) for text in parts[::2])


def _parts(template: str) -> Iterator[_Part]:
    for number, text in enumerate(_TOKEN.split(template)):
        if not number % 2:
            if text:
                yield _fixed(_unescaped(text))
        elif text == "%":
            yield _fixed("%")
        elif text in _TOKENS:
            yield _TOKENS[text]
        else:
            raise ConfigError(
                f"%{text} is not a token of a format",
                expected=", ".join(f"%{each}" for each in (*_TOKENS, "%")),
            )


def _fixed(text: str) -> _Part:
    return lambda _place, _row: (text,)


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(_character, text)


def _character(match: re.Match[str]) -> str:
    text = match[1]
    if text in _ESCAPED:
        return _ESCAPED[text]
    if text[0] == "x" and len(text) > 1:
        code = int(text[1:], 16)
    elif text.isdecimal() and text.isascii():
        code = int(text, 8 if text[0] == "0" else 10) & 0xFF
    else:
        return text
    return bytes([code]).decode("utf-8", BYTES_AS_TEXT)


def _length(data: MaybeBytes) -> int:
    return -1 if data is None else len(data)
