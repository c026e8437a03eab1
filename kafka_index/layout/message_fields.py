"""The fields of Kafka's messages: their schemas as text, and their values.

`kafka_index.layout.message_schemas` describes the text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from kafka_index.layout.integers import INT32_MAX

Value: TypeAlias = "bool | int | float | str | bytes | Struct | list[Value] | None"

#: Topic ids and directory ids that are not known (``Uuid.ZERO_UUID``).
ZERO_UUID: Final = "A" * 22

_INDENT = 4
_ARRAY = "[]"
#: The type of a structure.
STRUCT: Final = "{}"
_DEFAULTS: dict[str, Value] = {
    "bool": False,
    "float64": 0.0,
    "string": "",
    "bytes": b"",
    "uuid": ZERO_UUID,
}


class Struct(dict[str, Value]):
    """The fields of a message, or of a structure in it, under Kafka's names.

    Every field of the schema is there; a field that a version lacks has its default. The methods
    return a field of a type that the schema gives it.
    """

    __slots__ = ()

    def integer(self, name: str) -> int:
        """Return a number."""
        value = self[name]
        if not isinstance(value, int):
            raise TypeError(f"{name} is not an integer")
        return value

    def text(self, name: str) -> str:
        """Return a string or a UUID; the empty string for null."""
        value = self[name]
        if value is not None and not isinstance(value, str):
            raise TypeError(f"{name} is not a string")
        return value or ""

    def optional_text(self, name: str) -> str | None:
        """Return a string that may be null."""
        return None if self[name] is None else self.text(name)

    def flag(self, name: str) -> bool:
        """Return a boolean."""
        return bool(self[name])

    def binary(self, name: str) -> bytes | None:
        """Return bytes that may be null."""
        value = self[name]
        if value is not None and not isinstance(value, bytes):
            raise TypeError(f"{name} is not bytes")
        return value

    def integers(self, name: str) -> tuple[int, ...]:
        """Return an array of numbers; empty for null."""
        return tuple(value for value in self._items_of(name) if isinstance(value, int))

    def texts(self, name: str) -> tuple[str, ...]:
        """Return an array of strings or UUIDs; empty for null."""
        return tuple(value for value in self._items_of(name) if isinstance(value, str))

    def structs(self, name: str) -> list[Struct]:
        """Return an array of structures; empty for null."""
        return [value for value in self._items_of(name) if isinstance(value, Struct)]

    def struct(self, name: str) -> Struct:
        """Return a structure."""
        value = self[name]
        if not isinstance(value, Struct):
            raise TypeError(f"{name} is not a structure")
        return value

    def _items_of(self, name: str) -> list[Value]:
        value = self[name]
        return value if isinstance(value, list) else []


@dataclass(frozen=True, slots=True)
class Versions:
    """A range of versions, both ends included."""

    lowest: int
    highest: int

    def __contains__(self, version: int) -> bool:
        return self.lowest <= version <= self.highest

    @classmethod
    def parse(cls, text: str) -> Versions:
        """Parse ``0``, ``0-4``, ``2+`` or ``none``."""
        if text == "none":
            return cls(0, -1)
        lowest, dash, highest = text.partition("-")
        if text.endswith("+"):
            return cls(int(text[:-1]), INT32_MAX)
        return cls(int(lowest), int(highest if dash else lowest))


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a message, under Kafka's name.

    The type is that of the elements if it `is_array`; ``{}`` is a structure of `fields`. `tag` is
    its number among the tagged fields, and `default` its value where it is absent.
    """

    name: str
    type: str
    is_array: bool
    versions: Versions
    nullable: bool
    tag: int | None
    default: Value
    fields: tuple[Field, ...]

    def absent(self) -> Value:
        """Return the value of the field where it is absent."""
        if isinstance(self.default, list):
            return []
        return Struct(self.default) if isinstance(self.default, Struct) else self.default


@dataclass(frozen=True, slots=True)
class SchemaLine:
    """A line of a schema: how far it is indented, and its words."""

    depth: int
    words: list[str]


def schema_lines(text: str) -> list[SchemaLine]:
    """Split the text of schemas into lines."""
    return [
        SchemaLine((len(line) - len(line.lstrip())) // _INDENT, line.split())
        for line in text.splitlines()
        if line.strip()
    ]


def parse_fields(
    lines: list[SchemaLine], depth: int, structures: Mapping[str, tuple[Field, ...]]
) -> Iterator[Field]:
    """Parse the fields of one level, and those below them; types may name structures."""
    at = 0
    while at < len(lines):
        end = at + 1
        while end < len(lines) and lines[end].depth > depth:
            end += 1
        fields = tuple(parse_fields(lines[at + 1 : end], depth + 1, structures))
        yield _field(lines[at].words, fields, structures)
        at = end


def _field(
    words: list[str], fields: tuple[Field, ...], structures: Mapping[str, tuple[Field, ...]]
) -> Field:
    name, kind = words[:2]
    options = dict(word.partition("=")[::2] for word in words[2:])
    versions = [word for word in words[2:] if word[0].isdigit()]
    is_array = kind.startswith(_ARRAY)
    kind = (kind.removeprefix(_ARRAY) or STRUCT) if is_array else kind
    if kind in structures:
        kind, fields = STRUCT, structures[kind]
    default: Value = [] if is_array else _DEFAULTS.get(kind, 0)
    if kind == STRUCT and not is_array:
        default = Struct({field.name: field.absent() for field in fields})
    if "default" in options:
        text = options["default"]
        default = None if text == "null" else text == "true" if kind == "bool" else int(text)
    return Field(
        name,
        kind,
        is_array,
        Versions.parse(versions[0] if versions else "0+"),
        "nullable" in options,
        int(options["tag"]) if "tag" in options else None,
        default,
        fields,
    )
