"""Schemas of Kafka's messages, and the reading and writing of messages by them.

A schema is text, a line per field, in the order of the bytes::

    OffsetCommitValue 1 versions=0-4 flexible=4+
        offset int64
        leaderEpoch int32 3+ default=-1
        metadata string
        topicId uuid 4+ tag=0

The first line has the name of the message, its API key or record type (``-`` for none), the
versions that exist, and those with the flexible encoding. A field has a name, a type, the versions
that have it (all of them when there is none), and ``nullable``, ``tag=N`` and ``default=X`` as
they apply. Types are Kafka's; ``[]`` before a type, or alone before indented fields, is an array,
``{}`` a structure. A structure of several messages is given once, before them, as ``NAME {}`` with
its fields, and its name is then a type. Source: the JSON files of Kafka's message generator,
release 4.3.1.
"""

from __future__ import annotations

import base64
import dataclasses
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from kafka_index.errors import CorruptRecordError
from kafka_index.layout.message_bytes import INT8, NUMBERS, MessageReader, MessageWriter
from kafka_index.layout.message_fields import (
    STRUCT,
    Field,
    Struct,
    Value,
    Versions,
    parse_fields,
    schema_lines,
)


def _number_reader(form: struct.Struct) -> Callable[[MessageReader], Value]:
    return lambda reader: reader.number(form)


_READERS: dict[str, Callable[[MessageReader], Value]] = {
    "bool": MessageReader.boolean,
    "uuid": MessageReader.uuid,
    **{kind: _number_reader(form) for kind, form in NUMBERS.items()},
}
_NULLABLE_TYPES = ("string", "bytes")


class _Form(NamedTuple):
    """A version of a message, and whether it has the flexible encoding."""

    version: int
    flexible: bool


@dataclass(frozen=True)
class MessageSchema:
    """The schema of a message, under Kafka's name, with its fields in the order of the bytes.

    The API key or record type is -1 for none; `flexible` are the versions with the flexible
    encoding.
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
        """Read a message, and nothing after it.

        Raises `CorruptRecordError` if the bytes are not such a message, or the version does not
        exist.
        """
        read = self._readers.get(version)
        if read is None:
            read = self._readers[version] = _struct_reader(self.fields, self._form(version))
        return read(reader)

    def decode(self, data: bytes, version: int) -> Struct:
        """Read a message that the bytes hold, whole; Kafka passes over the bytes after it."""
        return self.read(MessageReader(data), version)

    def encode(self, message: Mapping[str, Value], version: int) -> bytes:
        """Return the bytes of a message; fields that are not given have their defaults."""
        writer = MessageWriter()
        _write_struct(self.fields, self._form(version), message, writer)
        return bytes(writer.data)

    def as_json(self, message: Struct, version: int) -> dict[str, object]:
        """Return the JSON of Kafka's ``JsonConverter`` for the message."""
        return _json_struct(self.fields, message, version)

    def _form(self, version: int) -> _Form:
        if version not in self.versions:
            raise CorruptRecordError(
                f"unknown version of {self.name}",
                expected=f"{self.versions.lowest} to {self.versions.highest}",
                found=version,
            )
        return _Form(version, version in self.flexible)


def parse_schemas(text: str) -> tuple[MessageSchema, ...]:
    """Parse schemas in the form that this module's text describes."""
    lines = schema_lines(text)
    starts = [at for at, line in enumerate(lines) if line.depth == 0]
    structures: dict[str, tuple[Field, ...]] = {}
    schemas = []
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        name, *words = lines[start].words
        fields = tuple(parse_fields(lines[start + 1 : end], 1, structures))
        if words == [STRUCT]:
            structures[name] = fields
        else:
            schemas.append(_schema(name, words, fields))
    return tuple(schemas)


def _schema(name: str, words: list[str], fields: tuple[Field, ...]) -> MessageSchema:
    key, *others = words
    options = dict(word.split("=") for word in others)
    return MessageSchema(
        name,
        -1 if key == "-" else int(key),
        Versions.parse(options["versions"]),
        Versions.parse(options["flexible"]),
        fields,
    )


# ---------------------------------------------------------------------------------- reading


_Read = Callable[[MessageReader], Value]


def _struct_reader(fields: tuple[Field, ...], form: _Form) -> Callable[[MessageReader], Struct]:
    """Return a reader of a structure in a version; it is made once, and reads millions."""
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
                # A tag of a later release is passed over: that is what tags are for.
                if tag in tagged:
                    name, step = tagged[tag]
                    message[name] = step(content)
        return message

    return read


def _field_reader(field: Field, form: _Form) -> _Read:
    element = _element_reader(field, form)
    if field.is_array:

        def read_array(reader: MessageReader) -> Value:
            length = reader.array_length(compact=form.flexible)
            if length is None:
                return _checked_null(field, reader)
            return [element(reader) for _ in range(length)]

        return read_array
    if field.type == STRUCT and field.nullable:
        marker = _lowest_marker(field)
        return lambda reader: None if reader.number(INT8) < marker else element(reader)
    if field.nullable or field.type not in _NULLABLE_TYPES:
        return element

    def read_checked(reader: MessageReader) -> Value:
        value = element(reader)
        return _checked_null(field, reader) if value is None else value

    return read_checked


def _lowest_marker(field: Field) -> int:
    """Return the lowest byte before a nullable structure that is not null."""
    return 0 if field.tag is None else 1


def _checked_null(field: Field, reader: MessageReader) -> Value:
    if not field.nullable:
        raise reader.corrupt(f"the field {field.name} is null, which it cannot be")
    return None


def _element_reader(field: Field, form: _Form) -> _Read:
    match field.type:
        case "{}":
            return _struct_reader(field.fields, form)
        case "string":
            return lambda reader: reader.string(compact=form.flexible)
        case "bytes":
            return lambda reader: reader.nullable_bytes(compact=form.flexible)
    return _READERS[field.type]


# ---------------------------------------------------------------------------------- writing


def _write_struct(
    fields: tuple[Field, ...],
    form: _Form,
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
    form: _Form,
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
    form: _Form,
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
