"""Protobuf schemas: their types in Arrow, and the decoding of many messages at a time.

`ProtobufFile` compiles the text of a schema, which grpcio-tools does. `ProtobufMessage` is one of
its types. Its decoder makes the tables of `core.kernels.protobuf`, of the fields that are wanted.
Rows that the compiled loop leaves out are decoded by upb, which is also the reference in tests.

Sources: the guides "Encoding" and "Field Presence" of Protocol Buffers, ``protoc``'s rules for map
entries, and Confluent's ``ProtobufSchema`` and Karapace's ``serialize`` for what registries store.
"""

from __future__ import annotations

import ast
import base64
import json
import os
import re
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from kafka_index.core.errors import BadSchemaError
from kafka_index.core.kernels import avro as ops
from kafka_index.core.kernels import protobuf as loop
from kafka_index.core.schema.align import Member, Selection, Shape
from kafka_index.core.schema.bodies import (
    Bodies,
    Decoded,
    DecodedTooLargeError,
    import_extra,
    masked,
)
from kafka_index.core.schema.column_memory import ColumnMemory, ColumnSpec, Loop
from kafka_index.core.schema.wire import MessagePath, Reason

_MAIN = "kafka_index_main.proto"
_MIN_SECONDS, _MAX_SECONDS = -62_135_596_800, 253_402_300_799
_MICROS = 1_000_000
_MAX_DEPTH = 64
# Messages with fields of higher numbers are decoded by upb.
_MOST_NUMBERS = 4096
# Numbers of enums below are positions in a list of all names.
_MOST_SYMBOLS = 256
# Python's objects of a message, for each of its bytes.
_UPB_EXPANSION = 32
_WITH_FIELDS = ("message", "timestamp", "wrapper")

# Types of fields in descriptors (``FieldDescriptorProto.Type``).
_GROUP, _MESSAGE, _BYTES, _ENUM, _INT32 = 10, 11, 12, 14, 5
_SCALARS: Mapping[int, pa.DataType] = {
    1: pa.float64(),
    2: pa.float32(),
    3: pa.int64(),
    4: pa.uint64(),
    5: pa.int32(),
    6: pa.uint64(),
    7: pa.uint32(),
    8: pa.bool_(),
    9: pa.string(),
    12: pa.binary(),
    13: pa.uint32(),
    15: pa.int32(),
    16: pa.int64(),
    17: pa.int32(),
    18: pa.int64(),
}
_WRAPPERS = tuple(
    f"google.protobuf.{name}Value"
    for name in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
)
_TIMESTAMP = "google.protobuf.Timestamp"
_AS_JSON = tuple(f"google.protobuf.{name}" for name in ("Struct", "Value", "ListValue", "Any"))
_COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
_SYNTAX = re.compile(r"\s*(?:syntax|edition)\s*=")
#: Files that Confluent's registry and protoc's users import without storing them.
_BUILT_IN = {
    "confluent/meta.proto": """syntax = "proto3"; package confluent;
import "google/protobuf/descriptor.proto";
message Meta { string doc = 1; map<string, string> params = 2; repeated string tags = 3; }
extend google.protobuf.FileOptions { Meta file_meta = 1088; }
extend google.protobuf.MessageOptions { Meta message_meta = 1088; }
extend google.protobuf.FieldOptions { Meta field_meta = 1088; }
extend google.protobuf.EnumOptions { Meta enum_meta = 1088; }
extend google.protobuf.EnumValueOptions { Meta enum_value_meta = 1088; }
""",
    "confluent/type/decimal.proto": """syntax = "proto3"; package confluent.type;
message Decimal { bytes value = 1; uint32 precision = 2; int32 scale = 3; }
""",
}


class _BadValueError(Exception):
    """A value that is of no type of Arrow."""


#: What is raised over a message that is damaged.
_FAILURES = (ValueError, _BadValueError, RecursionError)


@dataclass(slots=True)
class _Type:
    """The type of a field, an element or a message."""

    kind: str
    shape: Shape
    #: The type of the field in the file of the decoder.
    wire: int
    descriptor: Any = None
    fields: list[_Field] = field(default_factory=list)


@dataclass(slots=True)
class _Field:
    """A field of a message. `key` is that of a map, and `value` is an element of a list."""

    name: str
    number: int
    value: _Type
    is_list: bool = False
    key: _Type | None = None
    has_presence: bool = False
    oneof: str | None = None

    @property
    def shape(self) -> Shape:
        if self.key is not None:
            return Shape.of_map(self.key.shape, self.value.shape)
        return Shape.of_list(self.value.shape) if self.is_list else self.value.shape


class ProtobufFile:
    """A compiled schema of Protobuf: the file, and those that it imports.

    Parameters
    ----------
    text : str
        The text of the file, or its ``FileDescriptorProto`` in base64.
    references : mapping of str to str
        The texts of imported files, by the paths of the imports.

    Raises
    ------
    BadSchemaError
        The text does not compile.
    """

    def __init__(self, text: str, references: Mapping[str, str] | None = None) -> None:
        self._pb2 = import_extra("google.protobuf.descriptor_pb2")
        files = self._compile(text, references or {})
        pool = import_extra("google.protobuf.descriptor_pool").DescriptorPool()
        try:
            for file in files:
                for message in file.message_type:
                    _restore_maps(message)
                pool.Add(file)
            self._file = pool.FindFileByName(files[-1].name)
        except (TypeError, KeyError) as error:
            raise BadSchemaError(f"not a Protobuf schema: {error}") from error
        self._main = files[-1]

    def message(self, path: MessagePath) -> ProtobufMessage:
        """Return a type by the positions in the file and in other types, or by its name.

        Raises `IndexError` if there is none.
        """
        level, names = self._main.message_type, []
        for index in path:
            if isinstance(index, str):
                return self.named(index)
            found = level[index]
            names.append(found.name)
            level = found.nested_type
        return self.named(".".join(names))

    def named(self, name: str) -> ProtobufMessage:
        """Return a type by its name in the file, or its full name.

        Raises `IndexError` if there is none.
        """
        package = self._file.package
        if package and name.startswith(f"{package}."):
            name = name[len(package) + 1 :]
        first, *rest = name.split(".")
        try:
            found = self._file.message_types_by_name[first]
            for one in rest:
                found = found.nested_types_by_name[one]
        except KeyError as error:
            raise IndexError(f"the schema has no message {name}") from error
        return ProtobufMessage(found)

    @property
    def paths(self) -> list[tuple[int, ...]]:
        """The positions of the types that are not within others."""
        return [(number,) for number in range(len(self._main.message_type))]

    def _compile(self, text: str, references: Mapping[str, str]) -> list[Any]:
        """Return the descriptors of all files, each after those that it imports."""
        ready = _descriptor_of(text, self._pb2)
        files: list[Any] = []
        with tempfile.TemporaryDirectory() as folder:
            for name, content in {**_BUILT_IN, **references}.items():
                _write(folder, name, content)
            if ready is None:
                return [
                    self._pb2.FileDescriptorProto.FromString(one) for one in _compile(folder, text)
                ]
            for name in ready.dependency:
                known = {file.name for file in files}
                found = map(self._pb2.FileDescriptorProto.FromString, _protoc(folder, name))
                files += [file for file in found if file.name not in known]
        return [*files, ready]


def _write(folder: str, name: str, text: str) -> None:
    path = os.path.join(folder, name)
    if not os.path.realpath(path).startswith(os.path.realpath(folder) + os.sep):
        raise BadSchemaError("a Protobuf import leads out of the folder of imports", found=name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    # protoc writes a warning to the terminal if a file has neither; proto2 is its default.
    has_syntax = _SYNTAX.match(_COMMENT.sub(" ", text))
    with open(path, "w", encoding="utf-8") as file:
        file.write(text if has_syntax else f'syntax = "proto2";{text}')


def _descriptor_of(text: str, pb2: Any) -> Any:
    """Return the descriptor that a text is in base64; None for source code."""
    if re.search(r"[\s{;]", text.strip()):
        return None
    try:
        return pb2.FileDescriptorProto.FromString(base64.b64decode(text, validate=True))
    except (ValueError, import_extra("google.protobuf.message").DecodeError):
        return None


def _compile(folder: str, text: str) -> list[bytes]:
    """Compile the text of a file, which may lack what Karapace leaves out."""
    _write(folder, _MAIN, text)
    try:
        return list(_protoc(folder, _MAIN))
    except BadSchemaError:
        if _SYNTAX.match(_COMMENT.sub(" ", text)):
            raise
        # Of proto2, its syntax and labels are left out; the bytes are the same in proto3.
        _write(folder, _MAIN, f'syntax = "proto3";{text}')
        return list(_protoc(folder, _MAIN))


def _protoc(folder: str, name: str) -> Iterator[bytes]:
    """Compile a file; yield the serialized descriptors of all files, imports first."""
    protoc = import_extra("grpc_tools.protoc")
    compiler = import_extra("grpc_tools._protoc_compiler")
    own = os.path.join(os.path.dirname(protoc.__file__), "_proto")
    try:
        with warnings.catch_warnings():
            # Of imports that are not used.
            warnings.simplefilter("ignore")
            modules = compiler.get_protos(name.encode(), [folder.encode(), own.encode()])
    except (compiler.ProtocErrors, compiler.ProtocError) as error:
        reason = str(error).replace(f"{_MAIN}:", "line ").strip()
        raise BadSchemaError(f"not a Protobuf schema: {reason}") from error
    for _, module in modules:
        # The compiler makes modules of Python: the descriptor is an argument of a call in each.
        for node in ast.walk(ast.parse(module)):
            if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "AddSerializedFile":
                yield ast.literal_eval(node.args[0])


def _restore_maps(message: Any) -> None:
    """Make maps of the repeated entries that Karapace writes in their place."""
    entries = {entry.name: entry for entry in message.nested_type}
    for one in message.field:
        name = "".join(part[:1].upper() + part[1:] for part in one.name.split("_")) + "Entry"
        entry = entries.get(name)
        if entry is None or one.label != one.LABEL_REPEATED or not one.type_name.endswith(name):
            continue
        if [(part.name, part.number) for part in entry.field] != [("key", 1), ("value", 2)]:
            continue
        is_plain = not (entry.nested_type or entry.enum_type or entry.oneof_decl)
        key_type = entry.field[0].type
        if is_plain and key_type not in (1, 2, _GROUP, _MESSAGE, _BYTES, _ENUM):
            entry.options.map_entry = True
    for nested in message.nested_type:
        _restore_maps(nested)


class ProtobufMessage:
    """A type of messages, with its columns."""

    def __init__(self, descriptor: Any) -> None:
        self._descriptor = descriptor
        self.name: str = descriptor.full_name
        self._type = _type_of_message(descriptor, ())

    @property
    def shape(self) -> Shape:
        """The columns of the message."""
        return self._type.shape

    def decoder(self, selection: Selection = None) -> MessageDecoder:
        """Return the decoder of the fields that are wanted."""
        return MessageDecoder(self._descriptor, _selected(self._type, selection))


def _type_of_message(descriptor: Any, above: tuple[str, ...]) -> _Type:
    name = descriptor.full_name
    if len(above) > _MAX_DEPTH:
        raise BadSchemaError("a Protobuf schema is nested too deeply", found=name)
    if name == _TIMESTAMP and [one.name for one in descriptor.fields] == ["seconds", "nanos"]:
        shape = Shape.of_leaf(pa.timestamp("us", "UTC"))
        fields = [_field_of(one, (name,)) for one in descriptor.fields]
        return _Type("timestamp", shape, _MESSAGE, descriptor, fields)
    if name in _AS_JSON or name in above or not descriptor.fields:
        return _Type("json", Shape.of_leaf(pa.string()), _BYTES, descriptor)
    fields = [_field_of(one, (*above, name)) for one in descriptor.fields]
    if name in _WRAPPERS and [one.name for one in fields] == ["value"]:
        return _Type("wrapper", fields[0].shape, _MESSAGE, descriptor, fields)
    shape = Shape.of_struct([Member(one.name, one.shape, number=one.number) for one in fields])
    return _Type("message", shape.checked(), _MESSAGE, descriptor, fields)


def _field_of(one: Any, above: tuple[str, ...]) -> _Field:
    kind = one.message_type
    if kind is not None and kind.GetOptions().map_entry:
        key, value = (_type_of_field(part, above) for part in kind.fields)
        return _Field(one.name, one.number, value, key=key)
    oneof = one.containing_oneof
    return _Field(
        one.name,
        one.number,
        _type_of_field(one, above),
        is_list=one.is_repeated,
        has_presence=one.has_presence,
        oneof=None if oneof is None or len(oneof.fields) == 1 else oneof.name,
    )


def _type_of_field(one: Any, above: tuple[str, ...]) -> _Type:
    if one.type == _ENUM:
        return _Type("enum", Shape.of_leaf(pa.string()), _INT32, one.enum_type)
    if one.type in (_MESSAGE, _GROUP):
        found = _type_of_message(one.message_type, above)
        if one.type == _GROUP:
            found.wire = _GROUP
        return found
    return _Type("scalar", Shape.of_leaf(_SCALARS[one.type]), one.type)


def _selected(kind: _Type, selection: Selection) -> _Type:
    """Return a type with the fields that are wanted only."""
    if selection is None or kind.kind != "message":
        return kind
    fields = []
    oneofs = {one.oneof for one in kind.fields if one.name in selection} - {None}
    for one in kind.fields:
        if one.name not in selection and one.oneof in oneofs:
            # It ends what other members of its oneof had before.
            nothing = _Type("none", Shape.of_leaf(pa.null()), one.value.wire)
            fields.append(_Field(one.name, one.number, nothing, oneof=one.oneof))
        elif one.name in selection:
            wanted = selection[one.name]
            if (one.is_list or one.key is not None) and wanted is not None:
                wanted = wanted[""]
            value = _selected(one.value, wanted)
            fields.append(
                _Field(
                    one.name,
                    one.number,
                    value,
                    one.is_list,
                    one.key,
                    one.has_presence,
                    one.oneof,
                )
            )
    return _Type(kind.kind, kind.shape.select(selection), kind.wire, kind.descriptor, fields)


def _needs_upb(kind: _Type) -> bool:
    """Return whether a message has groups, or fields of high numbers."""
    return kind.wire == _GROUP or any(
        one.number >= _MOST_NUMBERS or _needs_upb(one.value) for one in kind.fields
    )


@dataclass(slots=True)
class _Part:
    """A value, or a list of values, and the columns that it is made of."""

    kind: _Type
    column: ColumnSpec
    children: list[_Part] = field(default_factory=list)
    fields: list[_Field] = field(default_factory=list)


class _Tables:
    """The tables of the compiled loop for a type of messages."""

    def __init__(self, root: _Type) -> None:
        self.columns: list[ColumnSpec] = []
        self.levels = 1
        self._messages: list[list[int]] = []
        self._entries: list[list[list[int]]] = []
        self.root = _Part(root, self._column(0, 0))
        self._add_message(root.fields, 0, loop.ANY_MESSAGE, self.root)

    @property
    def code(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The messages and their entries."""
        first = 0
        for message, entries in zip(self._messages, self._entries, strict=True):
            message[loop.FIRST] = first
            first += len(entries)
        entries = [entry for own in self._entries for entry in own]
        return np.array(self._messages, np.int64), np.array(entries, np.int64)

    def _column(
        self, level: int, width: int, *, has_data: bool = False, is_nullable: bool = False
    ) -> ColumnSpec:
        self.columns.append(ColumnSpec(len(self.columns), level, width, has_data, is_nullable))
        return self.columns[-1]

    def _add_message(self, fields: list[_Field], level: int, kind: int, part: _Part) -> int:
        """Add a message whose fields become children of a part; return its number."""
        number = len(self._messages)
        count = max((one.number for one in fields), default=0) + 1
        own = [[0] * loop.ENTRY_FIELDS for _ in range(count)]
        self._messages.append([0, count, level, kind])
        self._entries.append(own)
        oneofs: dict[str, tuple[int, int]] = {}
        for one in fields:
            entry = own[one.number]
            entry[loop.WIRE_TYPES] = _wire_types(one)
            entry[loop.ELEMENTS] = entry[loop.LIST] = entry[loop.ONEOF] = -1
            if one.oneof is not None:
                column, case = oneofs.get(one.oneof, (-1, 0))
                if column < 0:
                    column = self._column(level, 4).number
                oneofs[one.oneof] = column, case + 1
                entry[loop.ONEOF], entry[loop.CASE] = column, case + 1
            if one.value.kind == "none":
                entry[loop.FIELD_KIND] = loop.NONE
                continue
            part.fields.append(one)
            if one.is_list or one.key is not None:
                part.children.append(self._add_list(one, level, entry))
            else:
                has_presence = one.has_presence
                part.children.append(self._add_value(one.value, level, entry, has_presence))
        return number

    def _add_list(self, one: _Field, level: int, entry: list[int]) -> _Part:
        inner = self.levels
        self.levels += 1
        lengths = self._column(level, 4)
        entry[loop.ELEMENTS], entry[loop.LIST] = inner, lengths.number
        part = _Part(one.value, lengths)
        if one.key is None:
            part.children.append(self._add_value(one.value, inner, entry, has_presence=False))
            return part
        pair = [_Field("key", 1, one.key), _Field("value", 2, one.value)]
        entry[loop.FIELD_KIND], entry[loop.COLUMN] = loop.MESSAGE, -1
        entry[loop.CHILD] = self._add_message(pair, inner, loop.MAP_ENTRY, part)
        part.fields = []
        return part

    def _add_value(
        self,
        kind: _Type,
        level: int,
        entry: list[int],
        has_presence: bool,  # noqa: FBT001
    ) -> _Part:
        entry[loop.PRESENCE] = int(has_presence)
        if kind.kind in _WITH_FIELDS:
            part = _Part(kind, self._column(level, 0, is_nullable=has_presence))
            is_time = kind.kind == "timestamp"
            form = loop.TIME if is_time else loop.ANY_MESSAGE
            entry[loop.FIELD_KIND] = loop.MESSAGE
            entry[loop.CHILD] = self._add_message(kind.fields, level, form, part)
        else:
            code = loop.BYTES if kind.kind == "json" else _KINDS[kind.wire]
            width = _WIDTHS[code]
            has_data = code in (loop.STRING, loop.BYTES)
            column = self._column(level, width, has_data=has_data, is_nullable=has_presence)
            part = _Part(kind, column)
            entry[loop.FIELD_KIND] = code
        entry[loop.COLUMN] = part.column.number
        return part


_KINDS = {
    1: loop.FIXED64,
    2: loop.FIXED32,
    3: loop.INT64,
    4: loop.INT64,
    5: loop.INT32,
    6: loop.FIXED64,
    7: loop.FIXED32,
    8: loop.BOOL,
    9: loop.STRING,
    12: loop.BYTES,
    13: loop.INT32,
    15: loop.FIXED32,
    16: loop.FIXED64,
    17: loop.SINT32,
    18: loop.SINT64,
}
_WIDTHS = {
    loop.INT64: 8,
    loop.SINT64: 8,
    loop.FIXED64: 8,
    loop.BOOL: 1,
    **dict.fromkeys((loop.INT32, loop.SINT32, loop.FIXED32, loop.STRING, loop.BYTES), 4),
}


class MessageDecoder:
    """Decodes messages of a type to an array of Arrow."""

    def __init__(self, descriptor: Any, kind: _Type) -> None:
        self._descriptor = descriptor
        self._type = kind
        self._decode_error: type[Exception] = import_extra("google.protobuf.message").DecodeError
        self._loop: Loop | None = None
        if kind.kind == "message" and not _needs_upb(kind):
            self._tables = tables = _Tables(kind)
            self._loop = Loop(loop.decode_messages, tables.code, tables.columns, tables.levels)

    def decode(self, bodies: Bodies, max_bytes: int) -> Decoded:
        """Decode the bodies of rows; the array has null for each row that failed.

        Raises `DecodedTooLargeError` if the values of more than one row need more memory.
        """
        if self._loop is None:
            size_bytes = int(np.maximum(bodies.ends - bodies.starts, 0).sum())
            if size_bytes * _UPB_EXPANSION > max_bytes and len(bodies) > 1:
                raise DecodedTooLargeError
            return Decoded(*self._decode_with_upb(bodies))
        memory = ColumnMemory(self._loop, bodies, max_bytes)
        statuses = memory.run()
        try:
            array = self._array(memory, self._tables.root)
        except (*_FAILURES, self._decode_error):
            # A message that becomes JSON text is damaged.
            return Decoded(*self._decode_with_upb(bodies))
        array = masked(array, statuses != ops.DECODED)
        errors = dict.fromkeys(np.flatnonzero(statuses == ops.BAD_UTF8).tolist(), Reason.BAD_UTF8)
        errors |= dict.fromkeys(
            np.flatnonzero(statuses == ops.TOO_LARGE).tolist(), Reason.TOO_LARGE
        )
        odd = np.flatnonzero(statuses == loop.ODD)
        if len(odd):
            others, found = self._decode_with_upb(bodies.of_rows(odd))
            places = np.arange(len(bodies))
            places[odd] = len(bodies) + np.arange(len(odd))
            array = pa.concat_arrays([array, others]).take(pa.array(places))
            errors |= {int(odd[row]): reason for row, reason in found.items()}
        return Decoded(array, errors)

    # ------------------------------------------------------------------ arrays
    def _array(self, memory: ColumnMemory, part: _Part) -> pa.Array:
        """Return the array of a message."""
        children = []
        for one, own in zip(part.fields, part.children, strict=True):
            if one.key is not None:
                pair = [self._value(memory, each) for each in own.children]
                children.append(_map_array(memory, own.column, one.shape.type, pair))
            elif one.is_list:
                values = self._value(memory, own.children[0])
                children.append(memory.nested(own.column, one.shape.type, values))
            else:
                children.append(self._value(memory, own))
        return memory.struct(part.column, list(part.kind.shape.type), children)

    def _value(self, memory: ColumnMemory, part: _Part) -> pa.Array:
        kind, column = part.kind, part.column
        match kind.kind:
            case "message":
                return self._array(memory, part)
            case "enum":
                return _enum_texts(memory.numbers(column, pa.int32()), kind.descriptor)
            case "json":
                return _json_texts(memory.binary(column, pa.binary()), kind.descriptor)
            case "wrapper" | "timestamp":
                valid = memory.validity(column)[0]
                values = _value_of_known(kind, [self._value(memory, one) for one in part.children])
                buffers = [valid, *values.buffers()[1:]]
                return pa.Array.from_buffers(values.type, len(values), buffers)
        if pa.types.is_string(kind.shape.type) or pa.types.is_binary(kind.shape.type):
            return memory.binary(column, kind.shape.type)
        return memory.numbers(column, kind.shape.type)

    # ------------------------------------------------------------------ upb
    def _decode_with_upb(self, bodies: Bodies) -> tuple[pa.Array, dict[int, Reason]]:
        message = import_extra("google.protobuf.message_factory").GetMessageClass(self._descriptor)
        values: list[Any] = []
        errors: dict[int, Reason] = {}
        for row in range(len(bodies)):
            value = None
            if bodies.starts[row] >= 0:
                try:
                    value = python_value(message.FromString(bodies.bytes_of(row)), self._type)
                except (*_FAILURES, self._decode_error) as error:
                    errors[row] = _reason_of(error)
            values.append(value)
        return pa.array(values, self._type.shape.type), errors


def python_value(message: Any, kind: _Type) -> Any:
    """Return a message of upb as the value that Arrow takes for its type."""
    match kind.kind:
        case "json":
            return _json_text(message.SerializeToString(), type(message))
        case "timestamp":
            return _micros(message.seconds, message.nanos)
        case "wrapper":
            return message.value
    found: dict[str, Any] = {}
    for one in kind.fields:
        if one.value.kind == "none":
            continue
        value = getattr(message, one.name)
        if one.key is not None:
            found[one.name] = [
                (_python_scalar(key, one.key), _python_scalar(each, one.value))
                for key, each in sorted(value.items(), key=lambda pair: pair[0])
            ]
        elif one.is_list:
            found[one.name] = [_python_scalar(each, one.value) for each in value]
        elif one.has_presence and not message.HasField(one.name):
            found[one.name] = None
        else:
            found[one.name] = _python_scalar(value, one.value)
    return found


def _python_scalar(value: Any, kind: _Type) -> Any:
    if kind.kind == "scalar":
        if isinstance(value, bytes) and kind.wire != _BYTES:
            # Of proto2, upb checks no text.
            raise ValueError("invalid UTF-8")
        return value
    if kind.kind == "enum":
        names = kind.descriptor.values_by_number
        return names[value].name if value in names else str(value)
    return python_value(value, kind)


def _micros(seconds: int, nanos: int) -> int:
    if not _MIN_SECONDS <= seconds <= _MAX_SECONDS:
        raise _BadValueError
    return seconds * _MICROS + nanos // 1000


def _map_array(
    memory: ColumnMemory, column: ColumnSpec, kind: pa.DataType, pair: list[pa.Array]
) -> pa.Array:
    """Return maps with their entries by key; of entries with one key, the last counts."""
    entries = pa.StructArray.from_arrays(pair, fields=[kind.key_field, kind.item_field])
    sizes = memory.values(column).view(np.int32)
    if len(entries) < 2 or sizes.max() < 2:
        return memory.nested(column, kind, entries)
    rows = np.repeat(np.arange(len(sizes)), sizes)
    places = pa.table({"row": pa.array(rows), "key": entries.field("key")})
    order = pc.sort_indices(places, sort_keys=[("row", "ascending"), ("key", "ascending")])
    entries = entries.take(order)
    keys = entries.field("key")
    is_last = np.ones(len(keys), np.bool_)
    is_last[:-1] = np.asarray(pc.not_equal(keys[:-1], keys[1:])) | (rows[:-1] != rows[1:])
    if not is_last.all():
        entries = entries.filter(pa.array(is_last))
        sizes[:] = np.bincount(rows[is_last], minlength=len(sizes))
    return memory.nested(column, kind, entries)


def _value_of_known(kind: _Type, children: list[pa.Array]) -> pa.Array:
    """Return the value of a wrapper, or the time of seconds and nanoseconds."""
    if kind.kind == "wrapper":
        return children[0]
    seconds, nanos = (np.asarray(child) for child in children)
    times = seconds * _MICROS + nanos.astype(np.int64) // 1000
    return pa.array(times).view(pa.timestamp("us", "UTC"))


def _wire_types(one: _Field) -> int:
    """Return a bit for each wire type that a field may have."""
    if one.key is not None or one.value.wire in (9, _MESSAGE, _BYTES):
        return 1 << 2
    own = 1 << {1: 1, 2: 5, 6: 1, 7: 5, 15: 5, 16: 1, _GROUP: 3}.get(one.value.wire, 0)
    # Numbers in a list may be packed.
    return own | 1 << 2 if one.is_list else own


def _reason_of(error: Exception) -> Reason:
    text = str(error)
    if isinstance(error, _BadValueError):
        return Reason.OUT_OF_RANGE
    if "UTF-8" in text.upper():
        return Reason.BAD_UTF8
    return Reason.TRUNCATED if "EOF" in text or "orrupt" in text else Reason.BAD_VALUE


def _enum_texts(array: pa.Array, descriptor: Any) -> pa.Array:
    """Return the names of the numbers of an enum; a number without a name as text."""
    names = descriptor.values_by_number
    least, most = (one.as_py() for one in pc.min_max(array).values())
    if least is not None and least >= 0 and most < _MOST_SYMBOLS:
        distinct = range(most + 1)
        positions = array
    else:
        found = pc.unique(array.drop_null())
        distinct, positions = found.to_pylist(), pc.index_in(array, found)
    texts = [names[n].name if n in names else str(n) for n in distinct]
    return pa.DictionaryArray.from_arrays(positions, pa.array(texts, pa.string())).cast(pa.string())


def _json_texts(array: pa.Array, descriptor: Any) -> pa.Array:
    message = import_extra("google.protobuf.message_factory").GetMessageClass(descriptor)
    texts = [None if one is None else _json_text(one, message) for one in array.to_pylist()]
    return pa.array(texts, pa.string())


def _json_text(body: bytes, message: Any) -> str:
    """Return a message in the JSON of Protobuf; raises `ValueError` if it is damaged."""
    json_format = import_extra("google.protobuf.json_format")
    found = message.FromString(body)
    try:
        value = json_format.MessageToDict(
            found, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
        )
    except (AttributeError, TypeError, ValueError, json_format.Error):
        # An Any of a type that no schema has, or a number that JSON does not have.
        value = {"@bytes": base64.b64encode(body).decode()}
    # The fields of a map have no order of their own.
    return json.dumps(value, ensure_ascii=False, sort_keys=True)
