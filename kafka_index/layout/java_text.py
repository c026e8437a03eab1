"""Text as Java reads it, which is what Kafka's clients return of the names of headers."""

from __future__ import annotations

import codecs

_ERRORS = "kafka_index.java"
_REPLACEMENT = "\ufffd"
_SURROGATE_LEAD = 0xED


def decode_utf8(data: bytes) -> str:
    """Decode UTF-8; what is not valid is replaced as by Java's ``new String(bytes, UTF_8)``.

    Python and Java replace the same bytes, but for a surrogate encoded by itself: its bytes are one
    replacement character to Java, and one each to Python.
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
