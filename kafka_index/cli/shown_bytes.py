"""Keys and values as text.

They are quoted where they are UTF-8, else, or when asked for, hex digits; so that every text stays
on its line and no byte reaches a terminal that could command it. Large ones are written in pieces:
they are never held as text.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from json.encoder import encode_basestring, encode_basestring_ascii

from kafka_index.cli.printed_records import MaybeBytes

TEXT, HEX, NONE = "text", "hex", "none"
#: How keys and values can be shown.
FORMS = (TEXT, HEX, NONE)

#: A key or value with more bytes is written in pieces of this size.
_PIECE_BYTES = 64 * 1024


def json_value(data: MaybeBytes, form: str) -> Iterable[str]:
    """Return the pieces of a value of JSON."""
    return _value(data, form, encode_basestring_ascii, '{"hex": "', '"}')


def shown_bytes(data: MaybeBytes, form: str) -> Iterable[str]:
    """Return the pieces of what people get."""
    return _value(data, form, _quoted, "0x", "")


def _value(
    data: MaybeBytes, form: str, quote: Callable[[str], str], before_hex: str, after_hex: str
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
