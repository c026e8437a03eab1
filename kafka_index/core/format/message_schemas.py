"""Schemas of Kafka's messages, and decoding and encoding of messages with them.

A schema is text with the fields in wire order, separated by commas or line ends::

    OffsetCommitValue 1 versions=0-4 flexible=4+
        offset int64, leaderEpoch int32 3+ default=-1, metadata string, commitTimestamp int64,
        expireTimestamp int64 1 default=-1, topicId uuid 4+ tag=0

The first line has the name of the message, its API key or record type (``-`` for none), the valid
versions, and the flexible versions. A field has a name, a type, the versions that have it
(default: all), and optionally ``nullable``, ``tag=N`` and ``default=X``. Types are Kafka's. ``[]``
before a type, or alone before indented fields, is an array, ``{}`` a structure. A structure used
by several messages is defined before them as ``NAME {}`` with its fields; its name is then a type.
Source: the JSON files of Kafka's message generator, release 4.3.1.
"""

from __future__ import annotations

import base64
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple, TypeAlias

from kafka_index.core.errors import CorruptRecordError
from kafka_index.core.format.integers import INT32_MAX
from kafka_index.core.format.message_bytes import INT8, NUMBERS, MessageReader, MessageWriter
from kafka_index.core.format.strings import ZERO_UUID

Value: TypeAlias = "bool | int | float | str | bytes | Struct | list[Value] | None"

_INDENT = 4
_ARRAY: Final = "[]"
STRUCT: Final = "{}"
_DEFAULTS: dict[str, Value] = {
    "bool": False,
    "float64": 0.0,
    "string": "",
    "bytes": b"",
    "uuid": ZERO_UUID,
}


class Struct(dict[str, Value]):
    """The fields of a message or structure, with Kafka's names.

    It has every field of the schema; a field that a version lacks has its default. The methods
    return a field with its type in the schema.
    """

    __slots__ = ()

    def integer(self, name: str) -> int:
        value = self[name]
        if not isinstance(value, int):
            raise TypeError(f"{name} is not an integer")
        return value

    def text(self, name: str) -> str:
        """Return a string or a UUID; empty for null."""
        value = self[name]
        if value is not None and not isinstance(value, str):
            raise TypeError(f"{name} is not a string")
        return value or ""

    def optional_text(self, name: str) -> str | None:
        return None if self[name] is None else self.text(name)

    def flag(self, name: str) -> bool:
        return bool(self[name])

    def binary(self, name: str) -> bytes | None:
        value = self[name]
        if value is not None and not isinstance(value, bytes):
            raise TypeError(f"{name} is not bytes")
        return value

    def integers(self, name: str) -> tuple[int, ...]:
        """Return an array of numbers; empty for null."""
        return tuple(value for value in self._array_items(name) if isinstance(value, int))

    def texts(self, name: str) -> tuple[str, ...]:
        """Return an array of strings or UUIDs; empty for null."""
        return tuple(value for value in self._array_items(name) if isinstance(value, str))

    def structs(self, name: str) -> list[Struct]:
        """Return an array of structures; empty for null."""
        return [value for value in self._array_items(name) if isinstance(value, Struct)]

    def struct(self, name: str) -> Struct:
        value = self[name]
        if not isinstance(value, Struct):
            raise TypeError(f"{name} is not a structure")
        return value

    def _array_items(self, name: str) -> list[Value]:
        value = self[name]
        return value if isinstance(value, list) else []


@dataclass(frozen=True, slots=True)
class Versions:
    """A range of versions, both ends inclusive."""

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
    """A field of a message, with Kafka's name.

    If `is_array`, `type` is the element type; ``{}`` is a structure with `fields`. `tag` is the
    number of a tagged field, and `default` its value if it is absent.
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
        if isinstance(self.default, list):
            return []
        return Struct(self.default) if isinstance(self.default, Struct) else self.default


class _VersionFormat(NamedTuple):
    """A version of a message, and whether it has the flexible encoding."""

    version: int
    flexible: bool


@dataclass(frozen=True)
class MessageSchema:
    """The schema of a message, with Kafka's name and the fields in wire order.

    `api_key` is the API key or record type, -1 for none; `flexible` are the versions with the
    flexible encoding.
    """

    name: str
    api_key: int
    versions: Versions
    flexible: Versions
    fields: tuple[Field, ...]
    _readers: dict[int, Callable[[MessageReader], Struct]] = dataclasses.field(
        default_factory=dict, repr=False, compare=False
    )

    def read(self, reader: MessageReader, version: int) -> Struct:
        """Read a message; bytes after it are not read.

        Raises `CorruptRecordError` if the bytes are not such a message, or the version does not
        exist.
        """
        read = self._readers.get(version)
        if read is None:
            read = self._readers[version] = _struct_reader(
                self.fields, self._version_format(version)
            )
        return read(reader)

    def decode(self, data: bytes, version: int) -> Struct:
        """Decode a complete message; like Kafka, ignore bytes after it."""
        return self.read(MessageReader(data), version)

    def encode(self, message: Mapping[str, Value], version: int) -> bytes:
        """Encode a message; fields that it lacks get their defaults."""
        writer = MessageWriter()
        _write_struct(self.fields, self._version_format(version), message, writer)
        return bytes(writer.data)

    def as_json(self, message: Struct, version: int) -> dict[str, object]:
        """Return the JSON of Kafka's ``JsonConverter`` for the message."""
        return _json_struct(self.fields, message, version)

    def _version_format(self, version: int) -> _VersionFormat:
        if version not in self.versions:
            raise CorruptRecordError(
                f"unknown version of {self.name}",
                expected=f"{self.versions.lowest} to {self.versions.highest}",
                found=version,
            )
        return _VersionFormat(version, version in self.flexible)


_Line: TypeAlias = tuple[int, list[str]]


def parse_schemas(text: str) -> tuple[MessageSchema, ...]:
    """Parse schemas in the form described in this module's docstring."""
    lines = [
        ((len(line) - len(line.lstrip())) // _INDENT, field.split())
        for line in text.splitlines()
        if line.strip()
        for field in line.strip().rstrip(",").split(",")
    ]
    structures: dict[str, tuple[Field, ...]] = {}
    schemas = []
    for (name, *words), field_lines in _split_blocks(lines, 0):
        fields = tuple(_parse_fields(field_lines, 1, structures))
        if words == [STRUCT]:
            structures[name] = fields
            continue
        key, *option_words = words
        options = dict(word.split("=") for word in option_words)
        versions, flexible = map(Versions.parse, (options["versions"], options["flexible"]))
        schemas.append(
            MessageSchema(name, -1 if key == "-" else int(key), versions, flexible, fields)
        )
    return tuple(schemas)


def _split_blocks(
    lines: Sequence[_Line], depth: int
) -> Iterator[tuple[list[str], Sequence[_Line]]]:
    starts = [at for at, (indent, _) in enumerate(lines) if indent == depth]
    for start, end in pairwise([*starts, len(lines)]):
        yield lines[start][1], lines[start + 1 : end]


def _parse_fields(
    lines: Sequence[_Line], depth: int, structures: Mapping[str, tuple[Field, ...]]
) -> Iterator[Field]:
    """Parse the fields of one level and below; types may refer to `structures`."""
    for words, nested_lines in _split_blocks(lines, depth):
        yield _parse_field(
            words, tuple(_parse_fields(nested_lines, depth + 1, structures)), structures
        )


def _parse_field(
    words: list[str], fields: tuple[Field, ...], structures: Mapping[str, tuple[Field, ...]]
) -> Field:
    name, type_name = words[:2]
    options = dict(word.partition("=")[::2] for word in words[2:])
    versions = [word for word in words[2:] if word[0].isdigit()]
    is_array = type_name.startswith(_ARRAY)
    type_name = (type_name.removeprefix(_ARRAY) or STRUCT) if is_array else type_name
    if type_name in structures:
        type_name, fields = STRUCT, structures[type_name]
    default: Value = [] if is_array else _DEFAULTS.get(type_name, 0)
    if type_name == STRUCT and not is_array:
        default = Struct({field.name: field.absent() for field in fields})
    if "default" in options:
        text = options["default"]
        default = None if text == "null" else text == "true" if type_name == "bool" else int(text)
    return Field(
        name,
        type_name,
        is_array,
        Versions.parse(versions[0] if versions else "0+"),
        "nullable" in options,
        int(options["tag"]) if "tag" in options else None,
        default,
        fields,
    )


# ---------------------------------------------------------------------------------- reading


_Read = Callable[[MessageReader], Value]


def _struct_reader(
    fields: tuple[Field, ...], form: _VersionFormat
) -> Callable[[MessageReader], Struct]:
    """Return a function that reads a structure of one version, for many reads."""
    steps: list[tuple[str, _Read]] = []
    tagged: dict[int, tuple[str, _Read]] = {}
    for field in fields:
        if form.version in field.versions:
            step = field.name, _field_reader(field, form)
            if field.tag is None:
                steps.append(step)
            else:
                tagged[field.tag] = step
    in_order = [name for name, _ in steps] == [field.name for field in fields]

    def read(reader: MessageReader) -> Struct:
        message = Struct() if in_order else Struct({field.name: field.absent() for field in fields})
        for name, step in steps:
            message[name] = step(reader)
        if form.flexible:
            for _ in range(reader.unsigned_varint()):
                tag, size = reader.unsigned_varint(), reader.unsigned_varint()
                content = MessageReader(reader.raw(size))
                # Tagged fields of later releases are skipped, as intended by KIP-482.
                if tag in tagged:
                    name, step = tagged[tag]
                    message[name] = step(content)
        return message

    return read


def _field_reader(field: Field, form: _VersionFormat) -> _Read:
    element = _element_reader(field, form)
    if field.is_array:

        def read_array(reader: MessageReader) -> Value:
            length = reader.array_length(compact=form.flexible)
            if length is None:
                return _check_nullable(field, reader)
            return [element(reader) for _ in range(length)]

        return read_array
    if field.type == STRUCT and field.nullable:
        marker = _lowest_marker(field)
        return lambda reader: None if reader.number(INT8) < marker else element(reader)
    if field.nullable or field.type not in ("string", "bytes"):
        return element

    def read_checked(reader: MessageReader) -> Value:
        value = element(reader)
        return _check_nullable(field, reader) if value is None else value

    return read_checked


def _lowest_marker(field: Field) -> int:
    """Return the lowest value, of the byte before a nullable structure, that means not null."""
    return 0 if field.tag is None else 1


def _check_nullable(field: Field, reader: MessageReader) -> Value:
    if not field.nullable:
        raise reader.corrupt(f"the field {field.name} is null, but it is not nullable")
    return None


def _element_reader(field: Field, form: _VersionFormat) -> _Read:
    match field.type:
        case "{}":
            return _struct_reader(field.fields, form)
        case "string":
            return lambda reader: reader.string(compact=form.flexible)
        case "bytes":
            return lambda reader: reader.nullable_bytes(compact=form.flexible)
        case "bool":
            return MessageReader.boolean
        case "uuid":
            return MessageReader.uuid
    number = NUMBERS[field.type]
    return lambda reader: reader.number(number)


# ---------------------------------------------------------------------------------- writing


def _write_struct(
    fields: tuple[Field, ...],
    form: _VersionFormat,
    message: Mapping[str, Value],
    writer: MessageWriter,
) -> None:
    tagged: list[tuple[int, bytes]] = []
    for field in fields:
        value = message.get(field.name, field.absent())
        if form.version not in field.versions:
            continue
        if field.tag is None:
            _write_field(field, form, value, writer)
        elif value != field.absent():
            content = MessageWriter()
            _write_field(field, form, value, content)
            tagged.append((field.tag, bytes(content.data)))
    if form.flexible:
        writer.unsigned_varint(len(tagged))
        for tag, data in sorted(tagged):
            writer.unsigned_varint(tag)
            writer.unsigned_varint(len(data))
            writer.raw(data)


def _write_field(
    field: Field,
    form: _VersionFormat,
    value: Value,
    writer: MessageWriter,
) -> None:
    if value is None and not field.nullable:
        raise ValueError(f"the field {field.name} cannot be null")
    if field.is_array:
        elements = value if isinstance(value, list) else None
        writer.array_length(None if elements is None else len(elements), compact=form.flexible)
        for element in elements or []:
            _write_element(field, form, element, writer)
        return
    if field.type == STRUCT and field.nullable:
        writer.number(INT8, _lowest_marker(field) - 1 if value is None else 1)
        if value is None:
            return
    _write_element(field, form, value, writer)


def _write_element(
    field: Field,
    form: _VersionFormat,
    value: Value,
    writer: MessageWriter,
) -> None:
    match field.type, value:
        case "{}", dict():
            _write_struct(field.fields, form, value, writer)
        case "string", str() | None:
            writer.string(value, compact=form.flexible)
        case "bytes", bytes() | None:
            writer.nullable_bytes(value, compact=form.flexible)
        case "bool", bool():
            writer.boolean(value)
        case "uuid", str():
            writer.uuid(value)
        case "float64", float():
            writer.number(NUMBERS["float64"], value)
        case kind, int() if kind in NUMBERS:
            writer.number(NUMBERS[kind], value)
        case _:
            raise TypeError(f"the field {field.name} cannot be {value!r}")


# ------------------------------------------------------------------------------------- JSON


def _json_struct(fields: tuple[Field, ...], message: Struct, version: int) -> dict[str, object]:
    return {
        field.name: _json_value(field, message[field.name], version)
        for field in fields
        if version in field.versions
        and (field.tag is None or message[field.name] != field.absent())
    }


def _json_value(field: Field, value: Value, version: int) -> object:
    if isinstance(value, list):
        return [_json_value(field, element, version) for element in value]
    if isinstance(value, Struct):
        return _json_struct(field.fields, value, version)
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value
