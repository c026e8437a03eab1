"""The texts of a broker's root files as Java reads them: properties, lines, and UUIDs."""

from __future__ import annotations

import base64
import re
from typing import NamedTuple

from kafka_index.layout.integers import INT32_MAX, INT64_MAX, parse_java_integer

# Base64 of 16 bytes in the alphabet for URLs. Padding may be missing, not be wrong.
_UUID = re.compile(r"([A-Za-z0-9_-]{22})(?:==)?")
_LINE_END = re.compile(r"\r\n|\n|\r")
_KEY_END = re.compile(r"(?<!\\)(?:\\\\)*([=: \t\f])")
_SEPARATOR = re.compile(r"[ \t\f]*[=:]?[ \t\f]*")
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|u|.|$)", re.DOTALL)
# Java's \s, which is ASCII only.
_WHITE_SPACE = re.compile(r"[ \t\n\v\f\r]+")
_BLANKS = " \t\f"
_LETTERS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
#: A list of Java's has no room for more entries.
_MAX_ENTRIES = INT32_MAX - 2


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


def java_lines(data: bytes) -> list[str]:
    """Return the lines of a UTF-8 text (``BufferedReader.readLine``).

    Raises
    ------
    UnicodeDecodeError
        It is not UTF-8.
    """
    lines = _LINE_END.split(data.decode())
    if lines[-1] == "":
        del lines[-1]
    return lines


def load_properties(data: bytes) -> dict[str, Property]:
    """Return the properties of a text in Latin-1 (``java.util.Properties.load``).

    Raises
    ------
    ValueError
        An escape is malformed.
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


class CheckpointFault(NamedTuple):
    """The reason why Java does not read a checkpoint: the exception, and the line."""

    exception: str
    line: int

    @property
    def is_input_output(self) -> bool:
        """Whether it is one for which a broker takes the directory offline."""
        return self.exception == "IOException"

    @property
    def is_error(self) -> bool:
        """Whether it is one that a broker catches nowhere."""
        return self.exception == "OutOfMemoryError"


def checkpoint_fault(lines: list[str], largest: tuple[int | None, ...]) -> CheckpointFault | None:
    """Return why a checkpoint is not read (``CheckpointFile.read``); None where it is.

    Parameters
    ----------
    lines : list of str
        Of the file.
    largest : tuple of int or None
        The largest number of each field of an entry; None for a text.
    """
    if not lines:
        return None
    if parse_java_integer(lines[0], INT32_MAX) != 0:
        return CheckpointFault("IOException", 1)
    if len(lines) == 1:
        return None
    count = parse_java_integer(lines[1], INT32_MAX)
    if count is None or not 0 <= count <= _MAX_ENTRIES:
        return CheckpointFault(_refused_count(count), 2)
    for number, line in enumerate(lines[2:], start=3):
        exception = _refused_entry(line, largest)
        if exception is not None:
            return CheckpointFault(exception, number)
    return None if len(lines) - 2 == count else CheckpointFault("IOException", 2)


def _refused_count(count: int | None) -> str:
    if count is None:
        return "IOException"
    return "IllegalArgumentException" if count < 0 else "OutOfMemoryError"


def _refused_entry(line: str, largest: tuple[int | None, ...]) -> str | None:
    words = _WHITE_SPACE.split(line)
    while words and not words[-1]:
        words.pop()
    if len(words) != len(largest):
        return "IOException"
    are_numbers = all(
        limit is None or parse_java_integer(word, limit) is not None
        for word, limit in zip(words, largest, strict=True)
    )
    return None if are_numbers else "NumberFormatException"


#: The fields of an offset checkpoint: topic, partition, offset.
OFFSET_FIELDS = (None, INT32_MAX, INT64_MAX)
#: The fields of a ``leader-epoch-checkpoint``.
EPOCH_FIELDS = (INT32_MAX, INT64_MAX)
