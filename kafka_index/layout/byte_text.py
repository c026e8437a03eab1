"""Bytes as text: on a command line or in a file (``hex:``, ``base64:``), and as Java reads it."""

from __future__ import annotations

import base64
import binascii
import codecs

from kafka_index.errors import InputError

_HEX, _BASE64 = "hex:", "base64:"


def parse_bytes(text: str) -> bytes:
    """Return the bytes that a text means: its UTF-8, or bytes in hex or base64 after a prefix.

    The prefixes are ``hex:`` and ``base64:``; raises `InputError` for a text after them that is
    neither.
    """
    try:
        if text.startswith(_HEX):
            return bytes.fromhex(text.removeprefix(_HEX))
        if text.startswith(_BASE64):
            return base64.b64decode(text.removeprefix(_BASE64), validate=True)
    except (ValueError, binascii.Error) as error:
        raise InputError(
            "malformed bytes", expected="hex:00ff or base64:AP8=", found=text
        ) from error
    return text.encode(errors="surrogateescape")


_ERRORS = "kafka_index.java"
_REPLACEMENT = "\ufffd"
_SURROGATE_LEAD = 0xED


def decode_utf8(data: bytes) -> str:
    """Decode UTF-8; invalid bytes are replaced as by Java's ``new String(bytes, UTF_8)``.

    Kafka's clients return the names of headers so. Python and Java replace the same bytes, but for
    a surrogate encoded by itself: its bytes are one replacement character to Java, and one each to
    Python.
    """
    return data.decode(errors=_ERRORS)


def _replace(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeDecodeError):
        raise error
    found = error.object[error.start : error.start + 3]
    if found[0] == _SURROGATE_LEAD and len(found) > 1 and _continues(found[1]):
        is_whole = len(found) > 2 and _continues(found[2])
        return _REPLACEMENT, error.start + (3 if is_whole else 2)
    return _REPLACEMENT, error.end


def _continues(byte: int) -> bool:
    """Return whether a byte continues a character."""
    return byte & 0xC0 == 0x80


codecs.register_error(_ERRORS, _replace)
