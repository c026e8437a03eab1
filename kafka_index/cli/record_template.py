r"""Format records by a kcat template (``-f``), byte for byte: ``%o``, ``%k``, ``%s``, ``\n``.

Bytes that are not UTF-8 become surrogates (``surrogateescape``), as in `os.fsdecode`; a stream with
this error handler writes the original bytes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from kafka_index.cli.record_text import PART_BYTES, decode_row, split_bytes
from kafka_index.core.errors import ConfigError, printable
from kafka_index.core.query.printed_records import OptionalBytes, PrintedRecords, Row, topic_decoder

#: Error handler that preserves bytes in text.
BYTES_AS_TEXT = "surrogateescape"

_NULL = "NULL"
_TOKEN = re.compile("%(.?)", re.DOTALL)
# kcat parses the digits with strtoul, as an octal number after a 0.
_ESCAPE = re.compile(r"\\(x[0-9A-Fa-f]{1,2}|0[0-7]*|[1-9][0-9]*|.)", re.DOTALL)
_ESCAPED = {"n": "\n", "r": "\r", "t": "\t"}
_LENGTH_BYTES = 4


@dataclass(frozen=True, slots=True)
class _PartitionFormat:
    """Formats the values of tokens for records of one partition."""

    topic: str
    number: int
    null: str
    is_terminal: bool

    def text(self, data: OptionalBytes) -> Iterable[str]:
        """Yield the parts of a key or a value."""
        return (self.null,) if data is None else self.plain(data)

    def plain(self, data: memoryview) -> Iterable[str]:
        """Yield bytes as text; on a terminal, escape control characters."""
        if len(data) <= PART_BYTES and not self.is_terminal:
            return (str(data, "utf-8", BYTES_AS_TEXT),)
        parts = (str(part, "utf-8", BYTES_AS_TEXT) for part in split_bytes(data))
        return map(printable, parts) if self.is_terminal else parts

    def headers(self, row: Row) -> Iterator[str]:
        """Yield the parts of headers, like ``print_headers`` in kcat's format.c."""
        separator = ""
        for name, value in row.headers:
            yield separator
            yield from self.plain(name)
            yield "="
            yield from (_NULL,) if value is None else self.plain(value)
            separator = ","

    def packed_length(self, data: OptionalBytes) -> Iterable[str]:
        """Yield the length of a value as four big-endian bytes."""
        return self.plain(memoryview(_length(data).to_bytes(_LENGTH_BYTES, "big", signed=True)))


_Formatter = Callable[[_PartitionFormat, Row], Iterable[str]]

_TOKENS: Mapping[str, _Formatter] = {
    "t": lambda partition, _: (partition.topic,),
    "p": lambda partition, _: (str(partition.number),),
    "o": lambda _, row: (str(row.offset),),
    "k": lambda partition, row: partition.text(row.key),
    "K": lambda _, row: (str(_length(row.key)),),
    "s": lambda partition, row: partition.text(row.value),
    "v": lambda partition, row: partition.text(row.value),
    "S": lambda _, row: (str(_length(row.value)),),
    "R": lambda partition, row: partition.packed_length(row.value),
    "T": lambda _, row: (str(row.timestamp_ms),),
    "h": lambda partition, row: partition.headers(row),
}


class RecordTemplate:
    """Formats records by a template.

    If `names_null`, null is printed as ``NULL`` instead of an empty text. If `is_terminal`, control
    characters in records are escaped. Raises `ConfigError` for an unknown token.
    """

    def __init__(
        self, template: str, *, names_null: bool = False, is_terminal: bool = False
    ) -> None:
        self._formatters = list(_parse_template(template))
        self._null = _NULL if names_null else ""
        self._is_terminal = is_terminal

    def record_lines(self, rows: pa.RecordBatch) -> Iterator[str]:
        """Yield the formatted records in parts; `rows` has `PRINTED_COLUMNS` of one topic."""
        topic = rows.column("topic")[0].as_py()
        decode = topic_decoder(topic)
        is_typed = [not pa.types.is_binary(rows.column(name).type) for name in ("key", "value")]
        printed_rows: Iterator[Row] = PrintedRecords.from_rows(rows).rows()
        if any(is_typed):
            printed_rows = (_encode_decoded_fields(row, *is_typed) for row in printed_rows)
        if decode is not None:
            # Decoding also removes the secrets that internal topics contain.
            printed_rows = (decode_row(decode, row) for row in printed_rows)
        return self._format_rows(topic, rows.column("partition").to_pylist(), printed_rows)

    def _format_rows(
        self, topic: str, numbers: Sequence[int], rows: Iterator[Row]
    ) -> Iterator[str]:
        partition_formats = {
            number: _PartitionFormat(topic, number, self._null, self._is_terminal)
            for number in set(numbers)
        }
        for number, row in zip(numbers, rows, strict=True):
            for format_token in self._formatters:
                yield from format_token(partition_formats[number], row)


def _encode_decoded_fields(row: Row, has_key: bool, has_value: bool) -> Row:  # noqa: FBT001, because they are flags
    """Replace the key or value of a row by the JSON text of the decoded key or value."""
    decoded = row.decoded
    if decoded is None or decoded.error is not None:
        return row
    key = _encode_text(decoded.key) if has_key else row.key
    return row._replace(key=key, value=_encode_text(decoded.value) if has_value else row.value)


def _encode_text(text: str | None) -> OptionalBytes:
    return None if text is None else memoryview(text.encode())


def prints_line_breaks(template: str) -> bool:
    parts = _TOKEN.split(template)
    return "R" in parts[1::2] or any("\n" in _unescape(text) for text in parts[::2])


def _parse_template(template: str) -> Iterator[_Formatter]:
    for number, text in enumerate(_TOKEN.split(template)):
        if not number % 2:
            if text:
                yield _format_literal(_unescape(text))
        elif text == "%":
            yield _format_literal("%")
        elif text in _TOKENS:
            yield _TOKENS[text]
        else:
            raise ConfigError(
                f"unknown token %{text} in the template",
                expected=", ".join(f"%{token}" for token in (*_TOKENS, "%")),
            )


def _format_literal(text: str) -> _Formatter:
    return lambda _place, _row: (text,)


def _unescape(text: str) -> str:
    return _ESCAPE.sub(_unescape_match, text)


def _unescape_match(match: re.Match[str]) -> str:
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


def _length(data: OptionalBytes) -> int:
    return -1 if data is None else len(data)
