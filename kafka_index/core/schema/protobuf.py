"""Protobuf schemas: their Arrow types, and the decoding of many messages in one call.

`ProtobufFile` compiles the text of a schema with grpcio-tools. `ProtobufMessage` is a message type
of the file. Its decoder builds tables for `core.kernels.protobuf` from the selected fields. The
library upb decodes the rows that the compiled loop leaves undecided, and is the reference
implementation in tests.

Sources: the guides "Encoding" and "Field Presence" of Protocol Buffers, ``protoc``'s rules for map
entries, and the formats of stored schemas in Confluent's ``ProtobufSchema`` and Karapace's
``serialize``.
"""

from __future__ import annotations

import ast
import base64
import json
import os
import re
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from kafka_index.core.errors import BadSchemaError
from kafka_index.core.kernels import protobuf as loop
from kafka_index.core.kernels.typed_columns import UNDECIDED
from kafka_index.core.schema.align import Member, Selection, Shape
from kafka_index.core.schema.bodies import Bodies, Decoded, DecodedTooLargeError, import_extra
from kafka_index.core.schema.column_memory import ColumnMemory, ColumnSpec, Loop, row_errors
from kafka_index.core.schema.wire import MessagePath, Reason

_MAIN = "kafka_index_main.proto"
_MIN_SECONDS, _MAX_SECONDS = -62_135_596_800, 253_402_300_799
_SECOND_US = 1_000_000
_MAX_DEPTH = 64
# Messages with field numbers of this value or above are decoded by upb.
_MAX_NUMBERS = 4096
# If all enum numbers in a column are below this limit, they are positions in a list of names.
_MAX_SYMBOLS = 256
# The estimated bytes of Python objects per byte of a message.
_UPB_EXPANSION = 32

# Numbers of field types in descriptors (``FieldDescriptorProto.Type``).
_INT32, _STRING, _GROUP, _MESSAGE, _BYTES, _ENUM = 5, 9, 10, 11, 12, 14
_SCALARS: Mapping[int, tuple[pa.DataType, int]] = {
    1: (pa.float64(), loop.FIXED64),
    2: (pa.float32(), loop.FIXED32),
    3: (pa.int64(), loop.INT64),
    4: (pa.uint64(), loop.INT64),
    5: (pa.int32(), loop.INT32),
    6: (pa.uint64(), loop.FIXED64),
    7: (pa.uint32(), loop.FIXED32),
    8: (pa.bool_(), loop.BOOL),
    9: (pa.string(), loop.STRING),
    12: (pa.binary(), loop.BYTES),
    13: (pa.uint32(), loop.INT32),
    15: (pa.int32(), loop.FIXED32),
    16: (pa.int64(), loop.FIXED64),
    17: (pa.int32(), loop.SINT32),
    18: (pa.int64(), loop.SINT64),
}
# Bytes per value. All other values, and the lengths of strings and bytes, have 4 bytes.
_WIDTHS = {loop.BOOL: 1, **dict.fromkeys((loop.INT64, loop.SINT64, loop.FIXED64), 8)}
# Wire types. All other fields are varints, whose wire type is 0.
_WIRE_TYPES = {
    loop.FIXED64: 1,
    loop.FIXED32: 5,
    **dict.fromkeys((loop.STRING, loop.BYTES, loop.MESSAGE), 2),
}
_PACKED = 1 << 2
_MESSAGE_KINDS = {"timestamp": loop.TIME, "entry": loop.MAP_ENTRY}
_WRAPPERS = tuple(
    f"google.protobuf.{name}Value"
    for name in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
)
_TIMESTAMP = "google.protobuf.Timestamp"
_JSON_TYPES = tuple(f"google.protobuf.{name}" for name in ("Struct", "Value", "ListValue", "Any"))
_COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
_SYNTAX = re.compile(r"\s*(?:syntax|edition)\s*=")
#: Files that schemas import, but that no registry stores.
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
    """A value is out of the range of its Arrow type."""


@dataclass(slots=True)
class _FieldType:
    """The type of a field, of an element or of a message.

    `kind` is ``message``, ``timestamp``, ``wrapper``, ``entry`` of a map, ``enum``, ``scalar``,
    ``json``, or ``none`` for a field that is not decoded. `number` is the number of the type in the
    field's descriptor.
    """

    kind: str
    shape: Shape
    number: int
    descriptor: Any = None
    fields: list[_Field] = field(default_factory=list)

    @property
    def code(self) -> int:
        """The code of the type in the compiled loop."""
        if self.kind == "json":
            return loop.BYTES
        return loop.MESSAGE if self.number == _MESSAGE else _SCALARS[self.number][1]


@dataclass(slots=True)
class _Field:
    """A field of a message; for a repeated field, `value` is the type of an element."""

    name: str
    number: int
    value: _FieldType
    is_repeated: bool = False
    has_presence: bool = False
    oneof: str | None = None

    @property
    def shape(self) -> Shape:
        is_list = self.is_repeated and self.value.kind != "entry"
        return Shape.make_list(self.value.shape) if is_list else self.value.shape


class ProtobufFile:
    """A compiled Protobuf schema: a file with its imports.

    Parameters
    ----------
    text : str
        The text of the file, or its ``FileDescriptorProto`` in base64.
    references : mapping of str to str
        The texts of imported files, keyed by import path.

    Raises
    ------
    BadSchemaError
        The text does not compile.
    """

    def __init__(self, text: str, references: Mapping[str, str] | None = None) -> None:
        pool = import_extra("google.protobuf.descriptor_pool").DescriptorPool()
        try:
            for file in _compile(text, references or {}):
                for message in file.message_type:
                    _mark_map_entries(message)
                pool.Add(file)
                self._file = pool.FindFileByName(file.name)
        except (TypeError, KeyError) as error:
            raise BadSchemaError(f"the text is not a Protobuf schema: {error}") from error

    def message(self, path: MessagePath) -> ProtobufMessage:
        """Return a message type by its positions in the file and enclosing types, or by its name.

        Raises `IndexError` if no type has the path or the name.
        """
        steps: Sequence[int | str] = path
        if isinstance(path[0], str):
            steps = path[0].removeprefix(f"{self._file.package}.").split(".")
        types = self._file.message_types_by_name
        for step in steps:
            try:
                descriptor = types[step] if isinstance(step, str) else list(types.values())[step]
            except KeyError as error:
                raise IndexError(f"the schema has no message type {path[0]}") from error
            types = descriptor.nested_types_by_name
        return ProtobufMessage(descriptor)


def _compile(text: str, references: Mapping[str, str]) -> list[Any]:
    """Return the descriptors of a file and its imports; each follows the files that it imports."""
    parse = import_extra("google.protobuf.descriptor_pb2").FileDescriptorProto.FromString
    with tempfile.TemporaryDirectory() as folder:
        for name, content in {**_BUILT_IN, **references}.items():
            _write_file(folder, name, content)
        if (descriptor := _parse_stored_descriptor(text, parse)) is None:
            return list(map(parse, _compile_main(folder, text)))
        files: dict[str, Any] = {}
        for name in descriptor.dependency:
            for file in map(parse, _protoc(folder, name)):
                files.setdefault(file.name, file)
    return [*files.values(), descriptor]


def _write_file(folder: str, name: str, text: str) -> None:
    path = os.path.join(folder, name)
    if not os.path.realpath(path).startswith(os.path.realpath(folder) + os.sep):
        raise BadSchemaError("a Protobuf import points outside the folder of imports", found=name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    # protoc prints a warning if a file declares no syntax. The default is proto2.
    has_syntax = _SYNTAX.match(_COMMENT.sub(" ", text))
    with open(path, "w", encoding="utf-8") as file:
        file.write(text if has_syntax else f'syntax = "proto2";{text}')


def _parse_stored_descriptor(text: str, parse: Callable[[bytes], Any]) -> Any:
    """Return the descriptor that a schema text contains in base64; None if it is source code."""
    if re.search(r"[\s{;]", text.strip()):
        return None
    try:
        return parse(base64.b64decode(text, validate=True))
    except (ValueError, import_extra("google.protobuf.message").DecodeError):
        return None


def _compile_main(folder: str, text: str) -> list[bytes]:
    _write_file(folder, _MAIN, text)
    try:
        return list(_protoc(folder, _MAIN))
    except BadSchemaError:
        if _SYNTAX.match(_COMMENT.sub(" ", text)):
            raise
        # Karapace omits the syntax and the field labels of proto2. The text compiles as proto3,
        # whose messages have the same bytes.
        _write_file(folder, _MAIN, f'syntax = "proto3";{text}')
        return list(_protoc(folder, _MAIN))


def _protoc(folder: str, name: str) -> Iterator[bytes]:
    """Compile a file; yield the serialized descriptors of all files, imports first."""
    protoc = import_extra("grpc_tools.protoc")
    compiler = import_extra("grpc_tools._protoc_compiler")
    bundled_folder = os.path.join(os.path.dirname(protoc.__file__), "_proto")
    try:
        with warnings.catch_warnings():
            # protoc warns of unused imports.
            warnings.simplefilter("ignore")
            modules = compiler.get_protos(name.encode(), [folder.encode(), bundled_folder.encode()])
    except (compiler.ProtocErrors, compiler.ProtocError) as error:
        reason = _protoc_message(error).replace(f"{_MAIN}:", "line ").strip()
        raise BadSchemaError(f"the text is not a Protobuf schema: {reason}") from error
    for _, module in modules:
        # The compiler returns the source of Python modules, which contains each file's descriptor
        # as the argument of `AddSerializedFile`.
        for node in ast.walk(ast.parse(module)):
            if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "AddSerializedFile":
                yield ast.literal_eval(node.args[0])


def _protoc_message(error: Exception) -> str:
    try:
        return str(error)
    except UnicodeDecodeError as decode_error:
        # grpcio-tools fails to decode an error message that is not ASCII.
        return decode_error.object.decode(errors="replace")


def _mark_map_entries(message: Any) -> None:
    """Mark the map entries of a message that Karapace stores as repeated messages."""
    entries = {entry.name: entry for entry in message.nested_type}
    for member in message.field:
        words = member.name.split("_")
        name = "".join(word[:1].upper() + word[1:] for word in words) + "Entry"
        entry = entries.get(name)
        if (
            entry is not None
            and member.label == member.LABEL_REPEATED
            and member.type_name.endswith(name)
            and [(entry_field.name, entry_field.number) for entry_field in entry.field]
            == [("key", 1), ("value", 2)]
            and not (entry.nested_type or entry.enum_type or entry.oneof_decl)
            and entry.field[0].type not in (1, 2, _GROUP, _MESSAGE, _BYTES, _ENUM)
        ):
            entry.options.map_entry = True
    for nested in message.nested_type:
        _mark_map_entries(nested)


class ProtobufMessage:
    """A message type of a Protobuf file."""

    def __init__(self, descriptor: Any) -> None:
        self._descriptor = descriptor
        self.name: str = descriptor.full_name
        self._type = _message_type(descriptor, ())

    @property
    def shape(self) -> Shape:
        return self._type.shape

    def decoder(self, selection: Selection = None) -> MessageDecoder:
        """Return a decoder that decodes only the selected fields."""
        return MessageDecoder(self._descriptor, _select_fields(self._type, selection))


def _message_type(descriptor: Any, parents: tuple[str, ...]) -> _FieldType:
    name = descriptor.full_name
    names = [member.name for member in descriptor.fields]
    if len(parents) > _MAX_DEPTH:
        raise BadSchemaError(
            "the Protobuf schema is nested too deeply",
            expected=f"at most {_MAX_DEPTH} levels",
            found=name,
        )
    if name in _JSON_TYPES or name in parents or not names:
        return _FieldType("json", Shape.make_leaf(pa.string()), _MESSAGE, descriptor)
    fields = [_parse_field(member, (*parents, name)) for member in descriptor.fields]
    if name == _TIMESTAMP and names == ["seconds", "nanos"]:
        shape = Shape.make_leaf(pa.timestamp("us", "UTC"))
        return _FieldType("timestamp", shape, _MESSAGE, descriptor, fields)
    if name in _WRAPPERS and names == ["value"]:
        return _FieldType("wrapper", fields[0].shape, _MESSAGE, descriptor, fields)
    members = [Member(member.name, member.shape, number=member.number) for member in fields]
    return _FieldType(
        "message", Shape.make_struct(members).check_limits(), _MESSAGE, descriptor, fields
    )


def _parse_field(descriptor: Any, parents: tuple[str, ...]) -> _Field:
    oneof = descriptor.containing_oneof
    return _Field(
        descriptor.name,
        descriptor.number,
        _field_type(descriptor, parents),
        descriptor.is_repeated,
        descriptor.has_presence,
        None if oneof is None or len(oneof.fields) == 1 else oneof.name,
    )


def _field_type(descriptor: Any, parents: tuple[str, ...]) -> _FieldType:
    message = descriptor.message_type
    if descriptor.type == _ENUM:
        return _FieldType("enum", Shape.make_leaf(pa.string()), _INT32, descriptor.enum_type)
    if message is None:
        return _FieldType("scalar", Shape.make_leaf(_SCALARS[descriptor.type][0]), descriptor.type)
    if message.GetOptions().map_entry:
        key, value = (
            _Field(entry_field.name, entry_field.number, _field_type(entry_field, parents))
            for entry_field in message.fields
        )
        shape = Shape.make_map(key.shape, value.shape)
        return _FieldType("entry", shape, _MESSAGE, fields=[key, value])
    return replace(_message_type(message, parents), number=descriptor.type)


def _select_fields(field_type: _FieldType, selection: Selection) -> _FieldType:
    """Return a type that contains only the selected fields."""
    if selection is None or field_type.kind not in ("message", "entry"):
        return field_type
    shape = field_type.shape.select(selection)
    if field_type.kind == "entry":
        key, value = field_type.fields
        value = replace(value, value=_select_fields(value.value, selection[""]))
        return replace(field_type, shape=shape, fields=[key, value])
    fields = []
    oneofs = {member.oneof for member in field_type.fields if member.name in selection} - {None}
    for member in field_type.fields:
        if member.name in selection:
            member_selection = selection[member.name]
            if member.is_repeated and member.value.kind != "entry":
                member_selection = member_selection and member_selection[""]
            fields.append(replace(member, value=_select_fields(member.value, member_selection)))
        elif member.oneof in oneofs:
            # A skipped field of the oneof is still read, because it clears the oneof's earlier
            # fields.
            skipped_type = _FieldType("none", Shape.make_leaf(pa.null()), member.value.number)
            fields.append(replace(member, value=skipped_type, is_repeated=False))
    return replace(field_type, shape=shape, fields=fields)


def _needs_upb(field_type: _FieldType) -> bool:
    """Return whether upb must decode a type: for groups, or fields with high numbers."""
    return field_type.number == _GROUP or any(
        member.number >= _MAX_NUMBERS or _needs_upb(member.value) for member in field_type.fields
    )


#: A function that builds an Arrow array from the columns that the loop filled.
_Builder: TypeAlias = Callable[[ColumnMemory], pa.Array]


class _Compiler:
    """Builds the compiled loop's tables for a message type, and the builder of the type's array."""

    def __init__(self, root: _FieldType) -> None:
        self.columns: list[ColumnSpec] = []
        #: The columns of messages that become JSON text.
        self.json_columns: list[ColumnSpec] = []
        self.level_count = 1
        self._messages: list[list[int]] = []
        self._entries: list[list[list[int]]] = []
        self.build = self._add_value(root, 0, [0] * loop.ENTRY_FIELDS, has_presence=False)

    @property
    def code(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The loop's tables of message types, and of their entries, one for each field number."""
        first_entry = 0
        for message, entries in zip(self._messages, self._entries, strict=True):
            message[loop.FIRST] = first_entry
            first_entry += len(entries)
        entries = [entry for message_entries in self._entries for entry in message_entries]
        return np.array(self._messages, np.int64), np.array(entries, np.int64)

    def _add_column(
        self, level: int, width: int, *, has_data: bool = False, is_nullable: bool = False
    ) -> ColumnSpec:
        self.columns.append(ColumnSpec(len(self.columns), level, width, has_data, is_nullable))
        return self.columns[-1]

    def _add_message(self, message_type: _FieldType, level: int) -> tuple[int, list[_Builder]]:
        """Add a message type; return its number, and the array builders of its fields."""
        number = len(self._messages)
        count = max((member.number for member in message_type.fields), default=0) + 1
        entries = [[0] * loop.ENTRY_FIELDS for _ in range(count)]
        message_kind = _MESSAGE_KINDS.get(message_type.kind, loop.ANY_MESSAGE)
        self._messages.append([0, count, level, message_kind])
        self._entries.append(entries)
        oneofs: dict[str, tuple[int, int]] = {}
        builders = []
        for member in message_type.fields:
            entry = entries[member.number]
            wire_type = _WIRE_TYPES.get(member.value.code, 0)
            # Numbers of a repeated field may be packed.
            packed = _PACKED if member.is_repeated else 0
            entry[loop.WIRE_TYPES] = 1 << wire_type | packed
            entry[loop.ELEMENTS] = entry[loop.LIST] = entry[loop.ONEOF] = -1
            if member.oneof is not None:
                column, case = oneofs.get(member.oneof) or (self._add_column(level, 4).number, 0)
                oneofs[member.oneof] = column, case + 1
                entry[loop.ONEOF], entry[loop.CASE] = oneofs[member.oneof]
            if member.value.kind == "none":
                entry[loop.FIELD_KIND] = loop.NONE
            elif member.is_repeated:
                builders.append(self._add_list(member, level, entry))
            else:
                has_presence = member.has_presence
                builders.append(
                    self._add_value(member.value, level, entry, has_presence=has_presence)
                )
        return number, builders

    def _add_list(self, member: _Field, level: int, entry: list[int]) -> _Builder:
        lengths, inner_level = self._add_column(level, 4), self.level_count
        self.level_count += 1
        entry[loop.ELEMENTS], entry[loop.LIST] = inner_level, lengths.number
        build = self._add_value(member.value, inner_level, entry, has_presence=False)
        arrow_type = member.shape.type
        if member.value.kind == "entry":
            return lambda memory: _build_map_array(memory, lengths, arrow_type, build(memory))
        return lambda memory: memory.build_nested(lengths, arrow_type, build(memory))

    def _add_value(
        self, field_type: _FieldType, level: int, entry: list[int], *, has_presence: bool
    ) -> _Builder:
        if field_type.code == loop.MESSAGE:
            column = self._add_column(level, 0, is_nullable=has_presence)
            entry[loop.CHILD], builders = self._add_message(field_type, level)
            build = partial(_build_message_array, column, field_type, builders)
        else:
            has_data = field_type.code in (loop.STRING, loop.BYTES)
            width = _WIDTHS.get(field_type.code, 4)
            column = self._add_column(level, width, has_data=has_data, is_nullable=has_presence)
            if field_type.kind == "json":
                self.json_columns.append(column)
            build = partial(_build_leaf_array, column, field_type)
        entry[loop.FIELD_KIND], entry[loop.COLUMN] = field_type.code, column.number
        entry[loop.NULLABLE] = int(has_presence)
        return build


def _build_message_array(
    column: ColumnSpec, message_type: _FieldType, builders: list[_Builder], memory: ColumnMemory
) -> pa.Array:
    children = [build(memory) for build in builders]
    match message_type.kind:
        case "message":
            return memory.build_nested(column, message_type.shape.type, *children)
        case "entry":
            fields = [message_type.shape.type.key_field, message_type.shape.type.item_field]
            return pa.StructArray.from_arrays(children, fields=fields)
        case "wrapper":
            (values,) = children
        case _:
            seconds, nanos = (np.asarray(child) for child in children)
            times = seconds * _SECOND_US + nanos.astype(np.int64) // 1000
            values = pa.array(times).view(message_type.shape.type)
    # The array has the validity of the message, which is null if the field is absent.
    buffers = [memory.validity(column)[0], *values.buffers()[1:]]
    return pa.Array.from_buffers(values.type, len(values), buffers)


def _build_leaf_array(column: ColumnSpec, field_type: _FieldType, memory: ColumnMemory) -> pa.Array:
    if field_type.kind == "enum":
        return _enum_names(memory.build_numbers(column, pa.int32()), field_type.descriptor)
    if field_type.kind == "json":
        message = _message_class(field_type.descriptor)
        bodies = memory.build_binary(column, pa.binary()).to_pylist()
        return pa.array(
            [None if body is None else _format_json(message, body) for body in bodies], pa.string()
        )
    return (memory.build_binary if column.has_data else memory.build_numbers)(
        column, field_type.shape.type
    )


def _enum_names(numbers: pa.Array, descriptor: Any) -> pa.Array:
    """Convert the numbers of an enum to names; a number without a name becomes text.

    Raises `_BadValueError` for a number without a name in a closed enum, as in proto2.
    """
    names = descriptor.values_by_number
    lowest, highest = (value.as_py() for value in pc.min_max(numbers).values())
    if lowest is not None and lowest >= 0 and highest < _MAX_SYMBOLS:
        enum_numbers = range(highest + 1)
        positions = numbers
    else:
        used_numbers = pc.unique(numbers.drop_null())
        enum_numbers, positions = used_numbers.to_pylist(), pc.index_in(numbers, used_numbers)
    if descriptor.is_closed and any(
        number not in names for number in pc.unique(numbers.drop_null()).to_pylist()
    ):
        raise _BadValueError
    symbols = [names[number].name if number in names else str(number) for number in enum_numbers]
    dictionary = pa.array(symbols, pa.string())
    return pa.DictionaryArray.from_arrays(positions, dictionary).dictionary_decode()


def _build_map_array(
    memory: ColumnMemory, column: ColumnSpec, arrow_type: pa.DataType, entries: pa.Array
) -> pa.Array:
    """Build maps with entries sorted by key; of entries with equal keys, the last is kept."""
    sizes = memory.values(column).view(np.int32)
    if len(entries) < 2 or sizes.max() < 2:
        return memory.build_nested(column, arrow_type, entries)
    rows = np.repeat(np.arange(len(sizes)), sizes)
    row_keys = pa.table({"row": pa.array(rows), "key": entries.field("key")})
    order = pc.sort_indices(row_keys, sort_keys=[("row", "ascending"), ("key", "ascending")])
    entries = entries.take(order)
    keys = entries.field("key")
    is_last = np.ones(len(keys), np.bool_)
    is_last[:-1] = np.asarray(pc.not_equal(keys[:-1], keys[1:])) | (rows[:-1] != rows[1:])
    if not is_last.all():
        entries = entries.filter(pa.array(is_last))
        sizes[:] = np.bincount(rows[is_last], minlength=len(sizes))
    return memory.build_nested(column, arrow_type, entries)


class MessageDecoder:
    """Decodes messages of a type to an Arrow array."""

    def __init__(self, descriptor: Any, field_type: _FieldType) -> None:
        self._type = field_type
        self._class = _message_class(descriptor)
        decode_error: type[Exception] = import_extra("google.protobuf.message").DecodeError
        self._failures = (ValueError, _BadValueError, RecursionError, decode_error)
        self._compiled: _Compiler | None = None
        if field_type.kind == "message" and not _needs_upb(field_type):
            self._compiled = compiler = _Compiler(field_type)
            self._loop = Loop(
                loop.decode_messages, compiler.code, compiler.columns, compiler.level_count
            )

    def decode(self, bodies: Bodies, max_bytes: int) -> Decoded:
        """Decode the bodies of rows; the array has null for each row that failed.

        Raises `DecodedTooLargeError` if the values need more memory.
        """
        if self._compiled is None:
            return self._decode_with_upb(bodies, max_bytes)
        memory = ColumnMemory(self._loop, bodies, max_bytes)
        statuses = memory.run()
        text_bytes = sum(map(memory.data_bytes, self._compiled.json_columns))
        if text_bytes * _UPB_EXPANSION > max_bytes and len(bodies) > 1:
            raise DecodedTooLargeError
        try:
            array = self._compiled.build(memory)
        except self._failures:
            # A message that becomes JSON text is corrupt, or an enum has an unknown number. upb
            # finds the rows with errors.
            return self._decode_with_upb(bodies, max_bytes)
        errors = row_errors(statuses)
        undecided = np.flatnonzero(statuses == UNDECIDED)
        if len(undecided):
            upb_decoded = self._decode_with_upb(bodies.take(undecided), max_bytes)
            positions = np.arange(len(bodies))
            positions[undecided] = len(bodies) + np.arange(len(undecided))
            array = pa.concat_arrays([array, upb_decoded.array]).take(pa.array(positions))
            errors |= {int(undecided[row]): reason for row, reason in upb_decoded.errors.items()}
        return Decoded(array, errors)

    def _decode_with_upb(self, bodies: Bodies, max_bytes: int) -> Decoded:
        if bodies.size_bytes * _UPB_EXPANSION > max_bytes and len(bodies) > 1:
            raise DecodedTooLargeError
        values: list[Any] = []
        errors: dict[int, Reason] = {}
        for row in range(len(bodies)):
            value = None
            if bodies.starts[row] >= 0:
                try:
                    value = _to_python(self._class.FromString(bodies.row_bytes(row)), self._type)
                except self._failures as error:
                    errors[row] = _error_reason(error)
            values.append(value)
        return Decoded(pa.array(values, self._type.shape.type), errors)


def _message_class(descriptor: Any) -> Any:
    return import_extra("google.protobuf.message_factory").GetMessageClass(descriptor)


def _to_python(value: Any, field_type: _FieldType) -> Any:
    """Convert a value of upb to the Python value that Arrow accepts for the type."""
    match field_type.kind:
        case "scalar":
            if isinstance(value, bytes) and field_type.number != _BYTES:
                # upb does not check the strings of proto2.
                raise ValueError("invalid UTF-8")
            return value
        case "enum":
            names = field_type.descriptor.values_by_number
            return names[value].name if value in names else str(value)
        case "json":
            return _format_json(type(value), value.SerializeToString())
        case "timestamp":
            if not _MIN_SECONDS <= value.seconds <= _MAX_SECONDS:
                raise _BadValueError
            return value.seconds * _SECOND_US + value.nanos // 1000
        case "wrapper":
            return value.value
    fields = (member for member in field_type.fields if member.value.kind != "none")
    return {member.name: _field_to_python(value, member) for member in fields}


def _field_to_python(message: Any, member: _Field) -> Any:
    value = getattr(message, member.name)
    if member.value.kind == "entry":
        key, item = (entry_field.value for entry_field in member.value.fields)
        pairs = sorted(value.items(), key=lambda pair: pair[0])
        return [(_to_python(name, key), _to_python(content, item)) for name, content in pairs]
    if member.is_repeated:
        return [_to_python(element, member.value) for element in value]
    if member.has_presence and not message.HasField(member.name):
        return None
    return _to_python(value, member.value)


def _error_reason(error: Exception) -> Reason:
    message = str(error)
    if isinstance(error, _BadValueError):
        return Reason.OUT_OF_RANGE
    if "UTF-8" in message.upper():
        return Reason.BAD_UTF8
    return Reason.TRUNCATED if "EOF" in message or "orrupt" in message else Reason.BAD_VALUE


def _format_json(message: Any, body: bytes) -> str:
    """Convert the bytes of a message to Protobuf's JSON format; raises an error if corrupt."""
    json_format = import_extra("google.protobuf.json_format")
    parsed = message.FromString(body)
    try:
        value = json_format.MessageToDict(
            parsed, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
        )
    except (AttributeError, TypeError, ValueError, json_format.Error):
        # The message has an ``Any`` with an unknown type, or a number that JSON cannot represent.
        # Serialize deterministically, because map entries have no defined order.
        body = parsed.SerializeToString(deterministic=True)
        value = {"@bytes": base64.b64encode(body).decode()}
    return json.dumps(value, ensure_ascii=False, sort_keys=True)
