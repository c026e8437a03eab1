"""Texts as Java reads them: properties and UUIDs."""

from __future__ import annotations

import base64
import re
from typing import NamedTuple

# Base64 of 16 bytes in the alphabet for URLs. Padding may be missing, not be wrong.
_UUID = re.compile(r"([A-Za-z0-9_-]{22})(?:==)?")
_LINE_END = re.compile(r"\r\n|\n|\r")
_KEY_END = re.compile(r"(?<!\\)(?:\\\\)*([=: \t\f])")
_SEPARATOR = re.compile(r"[ \t\f]*[=:]?[ \t\f]*")
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|u|.|$)", re.DOTALL)
_BLANKS = " \t\f"
_LETTERS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


class Property(NamedTuple):
    """A value, with the blanks after it, and its line."""

    value: str
    line: int


def parse_java_uuid(text: str) -> str | None:
    """Return a UUID as Kafka writes it; None where it refuses the text (``Uuid.fromString``)."""
    match = _UUID.fullmatch(text)
    if match is None:
        return None
    data = base64.urlsafe_b64decode(f"{match[1]}==")
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def is_reserved_directory_id(uuid: str) -> bool:
    """Return whether no directory may have this id (``DirectoryId.reserved``)."""
    data = base64.urlsafe_b64decode(f"{uuid}==")
    return not any(data[:8]) and int.from_bytes(data[8:], "big", signed=True) < 100


def load_properties(data: bytes) -> dict[str, Property]:
    """Return the properties of a text in Latin-1 (``java.util.Properties.load``).

    Raises `ValueError` if an escape is malformed.
    """
    found: dict[str, Property] = {}
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
        _add(found, logical, begins_at)
        logical = None
    if logical is not None:
        _add(found, logical, begins_at)
    return found


def properties_of(text: str) -> dict[str, str]:
    """Return the properties of a text, without blanks around values; none where it is malformed."""
    try:
        found = load_properties(text.encode())
    except ValueError:
        return {}
    return {name: one.value.strip() for name, one in found.items()}


def _add(found: dict[str, Property], line: str, number: int) -> None:
    end = _KEY_END.search(line)
    at = len(line) if end is None else end.start(1)
    rest = _SEPARATOR.match(line, at)
    value = line[at if rest is None else rest.end() :]
    found[_ESCAPE.sub(_unescaped, line[:at])] = Property(_ESCAPE.sub(_unescaped, value), number)


def _unescaped(match: re.Match[str]) -> str:
    text = match[1]
    if text == "u":
        raise ValueError("malformed \\uxxxx encoding")
    return chr(int(text[1:], 16)) if len(text) == 5 else _LETTERS.get(text, text)
