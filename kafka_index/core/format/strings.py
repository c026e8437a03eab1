"""Strings: quotations in errors, bytes as text, and text as Java reads it."""

from __future__ import annotations

import base64
import binascii
import codecs
import contextlib
import os
import re
from typing import Final, NamedTuple

from kafka_index.core.errors import InputError
from kafka_index.core.format.names import split_directory_name

_QUOTED_CHARACTERS = 60

_HEX, _BASE64 = "hex:", "base64:"

_ERRORS = "kafka_index.java"
_REPLACEMENT = "\ufffd"
_SURROGATE_LEAD = 0xED

#: Unknown topic and directory IDs (``Uuid.ZERO_UUID``).
ZERO_UUID: Final = "A" * 22
# Base64 of 16 bytes in the URL-safe alphabet. Padding is optional.
_UUID = re.compile(r"([A-Za-z0-9_-]{22})(?:==)?")
_LINE_END = re.compile(r"\r\n|\n|\r")
_KEY_END = re.compile(r"(?<!\\)(?:\\\\)*([=: \t\f])")
_SEPARATOR = re.compile(r"[ \t\f]*[=:]?[ \t\f]*")
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|u|.|$)", re.DOTALL)
_BLANKS = " \t\f"
_LETTERS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def quote_content(text: str | bytes, path: str | os.PathLike[str] | None) -> str:
    """Quote malformed text from a file, such as a line, for an error message.

    A symbolic link in a dump may point to a file that the creator of the dump cannot read. So
    nothing is quoted from a link, or from a file in a linked partition directory.
    """
    if path is not None and is_linked(os.fspath(path)):
        return "[not shown: the file is a link]"
    if len(text) <= _QUOTED_CHARACTERS:
        return repr(text)
    return f"{text[:_QUOTED_CHARACTERS]!r}... ({len(text)} characters)"


def is_linked(path: str) -> bool:
    """Return whether a file or its partition directory is a symbolic link."""
    directory = os.path.dirname(path)
    is_partition = split_directory_name(os.path.basename(directory)) is not None
    return os.path.islink(path) or (is_partition and os.path.islink(directory))


def parse_bytes(text: str) -> bytes:
    """Parse bytes: UTF-8 text, or hex or base64 after a prefix.

    The prefixes are ``hex:`` and ``base64:``; raises `InputError` if the rest is malformed.
    """
    try:
        if text.startswith(_HEX):
            return bytes.fromhex(text.removeprefix(_HEX))
        if text.startswith(_BASE64):
            return base64.b64decode(text.removeprefix(_BASE64), validate=True)
    except (ValueError, binascii.Error) as error:
        raise InputError(
            "the bytes are malformed", expected="hex:00ff or base64:AP8=", found=text
        ) from error
    return text.encode(errors="surrogateescape")


def bytes_to_text(data: bytes) -> str:
    """Return the text that `parse_bytes` reads: UTF-8 if it is printable, otherwise ``hex:``."""
    with contextlib.suppress(UnicodeDecodeError):
        text = data.decode()
        if text.isprintable() and not text.startswith(("hex:", "base64:")):
            return text
    return f"hex:{data.hex()}"


def decode_utf8(data: bytes) -> str:
    """Decode UTF-8; invalid bytes are replaced as in Java's ``new String(bytes, UTF_8)``.

    Kafka's clients decode header names like this. Python and Java differ only for an encoded
    surrogate: Java replaces its bytes with one character, Python with one per byte.
    """
    return data.decode(errors=_ERRORS)


def _replace_invalid(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeDecodeError):
        raise error
    invalid_bytes = error.object[error.start : error.start + 3]
    if (
        invalid_bytes[0] == _SURROGATE_LEAD
        and len(invalid_bytes) > 1
        and _continues(invalid_bytes[1])
    ):
        is_complete = len(invalid_bytes) > 2 and _continues(invalid_bytes[2])
        return _REPLACEMENT, error.start + (3 if is_complete else 2)
    return _REPLACEMENT, error.end


def _continues(byte: int) -> bool:
    """Return whether this is a UTF-8 continuation byte."""
    return byte & 0xC0 == 0x80


codecs.register_error(_ERRORS, _replace_invalid)


class Property(NamedTuple):
    """The value of a property, with trailing whitespace, and its line number."""

    value: str
    line: int


def parse_java_uuid(text: str) -> str | None:
    """Return a UUID in Kafka's format, None if Kafka rejects the text (``Uuid.fromString``)."""
    match = _UUID.fullmatch(text)
    if match is None:
        return None
    data = base64.urlsafe_b64decode(f"{match[1]}==")
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def is_reserved_directory_id(uuid: str) -> bool:
    """Return whether the directory ID is reserved (``DirectoryId.reserved``)."""
    data = base64.urlsafe_b64decode(f"{uuid}==")
    return not any(data[:8]) and int.from_bytes(data[8:], "big", signed=True) < 100


def load_properties(data: bytes) -> dict[str, Property]:
    """Parse properties in Latin-1 (``java.util.Properties.load``).

    Raises `ValueError` if an escape is malformed.
    """
    properties: dict[str, Property] = {}
    logical, begins_at = None, 0
    for number, natural in enumerate(_LINE_END.split(data.decode("latin-1")), start=1):
        line = natural.lstrip(_BLANKS)
        if logical is None:
            if not line or line[0] in "#!":
                continue
            logical, begins_at = "", number
        logical += line
        backslashes = len(line) - len(line.rstrip("\\"))
        if backslashes % 2:
            logical = logical[:-1]
            continue
        _add_property(properties, logical, begins_at)
        logical = None
    if logical is not None:
        _add_property(properties, logical, begins_at)
    return properties


def parse_properties(text: str) -> dict[str, str]:
    """Parse properties with trimmed values; empty if malformed."""
    try:
        properties = load_properties(text.encode())
    except ValueError:
        return {}
    return {name: entry.value.strip() for name, entry in properties.items()}


def _add_property(properties: dict[str, Property], line: str, number: int) -> None:
    key_terminator = _KEY_END.search(line)
    key_end = len(line) if key_terminator is None else key_terminator.start(1)
    separator = _SEPARATOR.match(line, key_end)
    value = line[key_end if separator is None else separator.end() :]
    properties[_ESCAPE.sub(_unescape, line[:key_end])] = Property(
        _ESCAPE.sub(_unescape, value), number
    )


def _unescape(match: re.Match[str]) -> str:
    text = match[1]
    if text == "u":
        raise ValueError("malformed \\uxxxx encoding")
    return chr(int(text[1:], 16)) if len(text) == 5 else _LETTERS.get(text, text)
