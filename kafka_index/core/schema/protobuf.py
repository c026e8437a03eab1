"""Protobuf schemas: their types in Arrow, and the decoding of many messages at a time.

`ProtobufFile` compiles the text of a schema, which grpcio-tools does. `ProtobufMessage` is one of
its types. The decoder describes what it reads in a file of its own: only the fields that are
wanted, in which enums are numbers, and a message that becomes JSON text is bytes. ptars decodes
that. Where it cannot, upb does, which is also the reference in tests.

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
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from kafka_index.core.errors import BadSchemaError
from kafka_index.core.kernels.protobuf import (
    ANY_MESSAGE,
    CHILD_BITS,
    MAP_ENTRY,
    ODD,
    TIME,
    WIRE_TYPES_BITS,
    check_messages,
)
from kafka_index.core.kernels.record_columns import COPY_SLACK_BYTES, copy_fields
from kafka_index.core.schema.align import Member, Selection, Shape
from kafka_index.core.schema.bodies import (
    Bodies,
    Decoded,
    DecodedTooLargeError,
    import_extra,
    masked,
    with_children,
)
from kafka_index.core.schema.wire import MessagePath, Reason

_MAIN, _PACKAGE = "kafka_index_main.proto", "kafka_index_decoded"
_MIN_SECONDS, _MAX_SECONDS = -62_135_596_800, 253_402_300_799
_MICROS = 1_000_000
# What a byte of a body may become, and what an element of a list takes besides.
_EXPANSION, _ELEMENT_BYTES = 8, 16
_MAX_DEPTH = 64
# Fields of higher numbers are not checked.
_MOST_NUMBERS = 4096
# Numbers of enums below are positions in a list of all names.
_MOST_SYMBOLS = 256
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
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


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
        if re.search(r"^\s*(?:syntax|edition)\s*=", text, re.MULTILINE):
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
    for one in kind.fields:
        if one.name in selection:
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


def _has_groups(kind: _Type) -> bool:
    return kind.wire == _GROUP or any(_has_groups(one.value) for one in kind.fields)


class _DecoderFile:
    """Describes what a decoder reads, for ptars."""

    def __init__(self, root: _Type) -> None:
        pb2 = import_extra("google.protobuf.descriptor_pb2")
        self._file = pb2.FileDescriptorProto(
            name="kafka_index_decoded.proto", package=_PACKAGE, syntax="proto3"
        )
        self._file.dependency.append("google/protobuf/timestamp.proto")
        self._add(root)
        pool = import_extra("google.protobuf.descriptor_pool").DescriptorPool()
        times = pb2.FileDescriptorProto()
        import_extra("google.protobuf.timestamp_pb2").DESCRIPTOR.CopyToProto(times)
        pool.Add(times)
        pool.Add(self._file)
        self.descriptor = pool.FindMessageTypeByName(f"{_PACKAGE}.M0")

    def _add(self, kind: _Type) -> str:
        name = f"M{len(self._file.message_type)}"
        message = self._file.message_type.add(name=name)
        oneofs: dict[str, int] = {}
        optional: list[Any] = []
        for one in kind.fields:
            found = message.field.add(
                name=f"f{one.number}", number=one.number, label=3 if one.is_list else 1
            )
            if one.key is not None:
                found.label, found.type = 3, _MESSAGE
                entry = message.nested_type.add(name=f"F{one.number}Entry")
                entry.options.map_entry = True
                for number, (part, of) in enumerate((("key", one.key), ("value", one.value)), 1):
                    self._set_type(entry.field.add(name=part, number=number, label=1), of)
                found.type_name = f".{_PACKAGE}.{name}.{entry.name}"
                continue
            self._set_type(found, one.value)
            if one.oneof is not None:
                if one.oneof not in oneofs:
                    oneofs[one.oneof] = len(message.oneof_decl)
                    message.oneof_decl.add(name=f"o{len(oneofs)}")
                found.oneof_index = oneofs[one.oneof]
            elif one.has_presence and not one.is_list and found.type != _MESSAGE:
                optional.append(found)
        # The oneofs that stand for optional fields come last.
        for found in optional:
            found.proto3_optional = True
            found.oneof_index = len(message.oneof_decl)
            message.oneof_decl.add(name=f"_{found.name}")
        return name

    def _set_type(self, found: Any, kind: _Type) -> None:
        found.type = kind.wire
        if kind.kind == "timestamp":
            found.type_name = f".{_TIMESTAMP}"
        elif kind.wire == _MESSAGE:
            found.type_name = f".{_PACKAGE}.{self._add(kind)}"


class MessageDecoder:
    """Decodes messages of a type to an array of Arrow."""

    def __init__(self, descriptor: Any, kind: _Type) -> None:
        self._descriptor = descriptor
        self._type = kind
        self._decode_error: type[Exception] = import_extra("google.protobuf.message").DecodeError
        self._messages, self._entries = _tables(kind)

    @cached_property
    def _handler(self) -> Any:
        """The decoder of ptars, None for what it does not read."""
        ptars = import_extra("ptars")
        if self._type.kind != "message" or _has_groups(self._type):
            return None
        descriptor = _DecoderFile(self._type).descriptor
        # A value that is missing in a map is its default: null would be a panic.
        config = ptars.PtarsConfig(timestamp_unit="us", map_value_nullable=True)
        return ptars.HandlerPool([descriptor.file], config).get_for_message(descriptor)

    def decode(self, bodies: Bodies, max_bytes: int) -> Decoded:
        """Decode the bodies of rows; the array has null for each row that failed.

        Raises `DecodedTooLargeError` if the values of more than one row may need more memory.
        """
        rows = len(bodies)
        statuses, sizes = np.zeros(rows, np.uint8), np.zeros(rows, np.int64)
        check_messages(
            bodies.data, bodies.starts, bodies.ends, self._messages, self._entries, statuses, sizes
        )
        own_sizes = np.where(bodies.starts < 0, 0, bodies.ends - bodies.starts)
        # A byte of a packed number becomes eight at most.
        if int(sizes.sum()) + _EXPANSION * int(own_sizes.sum()) > max_bytes:
            if rows > 1:
                raise DecodedTooLargeError
            return Decoded(pa.nulls(1, self._type.shape.type), {0: Reason.TOO_LARGE})
        absent = bodies.starts < 0
        odd = np.flatnonzero(statuses == ODD)
        if not len(odd):
            array, errors = self._decode(bodies)
        else:
            starts = bodies.starts.copy()
            starts[odd] = -1
            array, errors = self._decode(replace(bodies, starts=starts))
            others, found = self._decode_with_upb(bodies.of_rows(odd))
            places = np.arange(rows)
            places[odd] = rows + np.arange(len(odd))
            array = pa.concat_arrays([array, others]).take(pa.array(places))
            errors |= {int(odd[row]): reason for row, reason in found.items()}
        absent[list(errors)] = True
        return Decoded(masked(array, absent), errors)

    def _decode(self, bodies: Bodies) -> tuple[pa.Array, dict[int, Reason]]:
        """Decode rows; halves of those that fail, until each row that is bad is known."""
        try:
            if self._handler is not None:
                batch = self._handler.array_to_record_batch(_binary_array(bodies))
                return self._message(batch.to_struct_array(), self._type), {}
        except BaseException as error:
            # ptars panics over some messages, with an error that is no `Exception`.
            is_panic = type(error).__name__ == "PanicException"
            if not (is_panic or isinstance(error, (*_FAILURES, self._decode_error))):
                raise
        if len(bodies) == 1 or self._handler is None:
            return self._decode_with_upb(bodies)
        half = len(bodies) // 2
        first, errors = self._decode(bodies.slice(0, half))
        second, others = self._decode(bodies.slice(half, len(bodies)))
        return pa.concat_arrays([first, second]), {
            **errors,
            **{half + row: reason for row, reason in others.items()},
        }

    # ------------------------------------------------------------------ arrays of ptars
    def _message(self, array: pa.Array, kind: _Type) -> pa.Array:
        children = []
        for one in kind.fields:
            column = array.field(f"f{one.number}")
            if one.key is not None:
                items = self._value(_without_nulls(column.items), one.value)
                pair = [self._value(column.keys, one.key), items]
                of = one.shape.type
                entries = pa.StructArray.from_arrays(pair, fields=[of.key_field, of.item_field])
                children.append(with_children(column, of, [_in_order(column, entries)]))
            elif one.is_list:
                values = self._value(column.values, one.value)
                children.append(with_children(column, one.shape.type, [values]))
            else:
                children.append(self._value(column, one.value))
        return with_children(array, kind.shape.type, children)

    def _value(self, array: pa.Array, kind: _Type) -> pa.Array:
        match kind.kind:
            case "enum":
                return _enum_texts(array, kind.descriptor)
            case "json":
                return _json_texts(array, kind.descriptor)
            case "message":
                return self._message(array, kind)
            case "wrapper":
                return masked(array.field("f1"), np.asarray(array.is_null()))
        return array

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


def _tables(root: _Type) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the fields of messages for `check_messages`."""
    messages: list[tuple[int, int, int]] = []
    entries: list[int] = []
    waiting: list[tuple[list[_Field], int]] = [(root.fields, ANY_MESSAGE)]
    number = 0
    while number < len(waiting):
        fields, kind = waiting[number]
        number += 1
        known = [one for one in fields if one.number < _MOST_NUMBERS]
        own = [0] * (max((one.number for one in known), default=0) + 1)
        for one in known:
            child = 0
            if one.key is not None:
                entry = [_Field("key", 1, one.key), _Field("value", 2, one.value)]
                waiting.append((entry, MAP_ENTRY))
                child = len(waiting)
            elif one.value.kind in _WITH_FIELDS:
                is_time = one.value.kind == "timestamp"
                waiting.append((one.value.fields, TIME if is_time else ANY_MESSAGE))
                child = len(waiting)
            width = _width(one.value) + _ELEMENT_BYTES if one.is_list or one.key else 0
            own[one.number] = (width << CHILD_BITS | child) << WIRE_TYPES_BITS | _wire_types(one)
        messages.append((len(entries), len(own), kind))
        entries += own
    return np.array(messages, np.int64), np.array(entries, np.int64)


def _wire_types(one: _Field) -> int:
    """Return a bit for each wire type that a field may have."""
    if one.key is not None or one.value.wire in (9, _MESSAGE, _BYTES):
        return 1 << 2
    own = 1 << {1: 1, 2: 5, 6: 1, 7: 5, 15: 5, 16: 1, _GROUP: 3}.get(one.value.wire, 0)
    # Numbers in a list may be packed.
    return own | 1 << 2 if one.is_list else own


def _width(kind: _Type) -> int:
    return sum(_width(one.value) + 8 for one in kind.fields) if kind.fields else 16


def _binary_array(bodies: Bodies) -> pa.Array:
    """Return the bodies as an array, empty for rows without."""
    starts = bodies.starts
    sizes = np.where(starts < 0, 0, bodies.ends - starts)
    ends = np.zeros(len(bodies) + 1, np.int32)
    data = np.empty(int(sizes.sum()) + COPY_SLACK_BYTES, np.uint8)
    base = bodies.data.ctypes.data
    readable_end = np.uint64(base + len(bodies.data))
    copy_fields(np.maximum(starts, 0) + base, sizes, readable_end, ends, data)
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), len(bodies), buffers)


def _in_order(column: pa.Array, entries: pa.Array) -> pa.Array:
    """Return the entries of maps by their keys: in each run, ptars has them in another order."""
    if len(entries) < 2:
        return entries
    sizes = np.diff(np.asarray(column.offsets))
    rows = pa.array(np.repeat(np.arange(len(column)), sizes))
    places = pa.table({"row": rows, "key": entries.field("key")})
    order = [("row", "ascending"), ("key", "ascending")]
    return entries.take(pc.sort_indices(places, sort_keys=order))


def _without_nulls(array: pa.Array) -> pa.Array:
    """Return an array with the defaults of its type for null."""
    if not array.null_count:
        return array
    kind = array.type
    if pa.types.is_struct(kind):
        # The members of a null have their defaults.
        children = [array.field(number) for number in range(kind.num_fields)]
        return pa.StructArray.from_arrays(children, fields=list(kind))
    default: Any = "" if pa.types.is_string(kind) else b"" if pa.types.is_binary(kind) else 0
    return array.fill_null(pa.scalar(default).cast(kind))


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
