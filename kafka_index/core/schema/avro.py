"""Avro schemas: their Arrow types, and the decoding of many datums in one call.

`AvroSchema` parses a schema. `AvroSchema.decoder` compiles the schema, or selected members of it,
to the operations of `core.kernels.avro`. A recursive record is decoded to JSON text by fastavro,
because Arrow has no recursive types.

Source: Avro's specification, for names, aliases and logical types. A top-level ``bytes`` value has
no length prefix, as in Confluent's serializers.
"""

from __future__ import annotations

import base64
import datetime as dt
import decimal
import io
import json
import math
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kafka_index.core.errors import BadSchemaError
from kafka_index.core.format.integers import INT64_MAX
from kafka_index.core.kernels import avro as ops
from kafka_index.core.schema.align import Form, Member, Selection, Shape
from kafka_index.core.schema.bodies import Bodies, Decoded, DecodedTooLargeError, import_extra
from kafka_index.core.schema.column_memory import ColumnMemory, ColumnSpec, Loop, row_errors
from kafka_index.core.schema.wire import Reason

#: The sizes in bytes of the primitive types; 0 for a variable size.
_PRIMITIVES = {
    "null": 0,
    "boolean": 1,
    "int": 0,
    "long": 0,
    "float": 4,
    "double": 8,
    "bytes": 0,
    "string": 0,
}
_NAMED = ("record", "error", "enum", "fixed")
_MAX_PRECISION = 38
_UUID_BYTES = 16
_MAX_DEPTH = 200
# The maximum size of a ``fixed`` type: each row reserves memory for the value, even if null.
_MAX_FIXED_BYTES = 1 << 20
# The estimated bytes of Python objects per byte of an Avro record that becomes JSON text.
_JSON_EXPANSION = 128
# Python converts integers of at most 4,300 digits to text.
_MAX_DIGITS = 4096
# The level of values that are skipped, instead of written to a column.
_SKIPPED = -1
# The column of a value of variable size contains lengths of 4 bytes.
_LENGTH_BYTES = 4
_OPERANDS = {
    **dict.fromkeys(("int", "long", "enum"), ops.VARINT),
    **dict.fromkeys(("bytes", "string"), ops.SIZED_BYTES),
}


@dataclass(slots=True, eq=False)
class _AvroType:
    """A type of a schema. A record may contain itself."""

    kind: str
    name: str = ""
    logical: str = ""
    aliases: tuple[str, ...] = ()
    fields: list[tuple[str, _AvroType, tuple[str, ...]]] = field(default_factory=list)
    children: list[_AvroType] = field(default_factory=list)
    symbols: tuple[str, ...] = ()
    size: int = 0
    precision: int = 0
    scale: int = 0
    #: Whether a record becomes JSON text, and the function that converts the bytes of the record.
    is_text: bool = False
    json_text: Callable[[bytes], str | None] | None = None


class _Parser:
    """Parses schemas, each of which may use the named types of the schemas before it."""

    def __init__(self) -> None:
        self._named_types: dict[str, _AvroType] = {}
        self.records: list[_AvroType] = []

    def parse(self, schema: Any, namespace: str = "", depth: int = 0) -> _AvroType:  # noqa: PLR0911
        if depth > _MAX_DEPTH:
            raise BadSchemaError(
                "the Avro schema is nested too deeply", expected=f"at most {_MAX_DEPTH} levels"
            )
        match schema:
            case str():
                return self._resolve_name(schema, namespace)
            case []:
                raise BadSchemaError("a union in the Avro schema has no branches")
            case list():
                branches = [self.parse(branch, namespace, depth) for branch in schema]
                return _AvroType("union", children=branches)
            case {"type": "record" | "error"}:
                return self._parse_record(schema, namespace, depth)
            case {"type": "enum", "symbols": list(symbols)}:
                node = _AvroType("enum", symbols=tuple(map(_parse_name, symbols)))
                self._register(node, schema, namespace)
                return node
            case {"type": "fixed", "size": int(size)} if 0 <= size <= _MAX_FIXED_BYTES:
                node = _set_logical_type(_AvroType("fixed", size=size), schema)
                self._register(node, schema, namespace)
                return node
            case {"type": "array", "items": inner} | {"type": "map", "values": inner}:
                return _AvroType(schema["type"], children=[self.parse(inner, namespace, depth + 1)])
            case {"type": str(kind)} if kind in _PRIMITIVES:
                return _set_logical_type(_AvroType(kind, size=_PRIMITIVES[kind]), schema)
            case {"type": str() | dict() | list() as inner} if inner not in _NAMED:
                return self.parse(inner, namespace, depth + 1)
        raise BadSchemaError("the text is not an Avro schema", found=json.dumps(schema)[:200])

    def _resolve_name(self, name: str, namespace: str) -> _AvroType:
        if name in _PRIMITIVES:
            return _AvroType(name, size=_PRIMITIVES[name])
        for full_name in (name if "." in name or not namespace else f"{namespace}.{name}", name):
            if full_name in self._named_types:
                return self._named_types[full_name]
        raise BadSchemaError("the Avro schema refers to an undefined type", found=name)

    def _register(self, node: _AvroType, schema: Mapping[str, Any], namespace: str) -> str:
        """Register a named type; return the namespace of the types in it."""
        name = schema.get("name")
        if not isinstance(name, str) or not name:
            raise BadSchemaError("an Avro type has no name", found=json.dumps(schema)[:200])
        if "." not in name:
            namespace = schema.get("namespace", namespace)
            name = f"{namespace}.{name}" if namespace else name
        node.name = _parse_name(name)
        namespace = name.rpartition(".")[0]
        node.aliases = tuple(
            alias if "." in alias or not namespace else f"{namespace}.{alias}"
            for alias in _aliases(schema)
        )
        if node.kind == "record":
            self._named_types[name] = node
        else:
            # A schema and its references may define a type repeatedly; the first definition is
            # used.
            self._named_types.setdefault(name, node)
        return namespace

    def _parse_record(self, schema: Mapping[str, Any], namespace: str, depth: int) -> _AvroType:
        node = _AvroType("record")
        self.records.append(node)
        namespace = self._register(node, schema, namespace)
        fields = schema.get("fields")
        if not isinstance(fields, list):
            raise BadSchemaError("the Avro record has no list of fields", found=node.name)
        for member in fields:
            if not isinstance(member, dict) or not isinstance(member.get("name"), str):
                raise BadSchemaError("a field of the Avro record has no name", found=node.name)
            field_type = self.parse(member.get("type"), namespace, depth + 1)
            node.fields.append((member["name"], field_type, _aliases(member)))
        if len({name for name, *_ in node.fields}) < len(node.fields):
            raise BadSchemaError("the Avro record has duplicate field names", found=node.name)
        return node


def _parse_name(name: Any) -> str:
    """Return the name of a type; raises `ValueError` for a lone surrogate, which Arrow rejects."""
    return str(name).encode().decode()


def _aliases(schema: Mapping[str, Any]) -> tuple[str, ...]:
    aliases = schema.get("aliases")
    return tuple(map(str, aliases)) if isinstance(aliases, list) else ()


def _set_logical_type(node: _AvroType, schema: Mapping[str, Any]) -> _AvroType:
    """Set the logical type of a node. An unknown or invalid logical type is ignored."""
    logical = schema.get("logicalType")
    if not isinstance(logical, str):
        return node
    if logical == "decimal":
        precision, scale = schema.get("precision"), schema.get("scale", 0)
        if node.kind not in ("bytes", "fixed"):
            return node
        if not (isinstance(precision, int) and isinstance(scale, int)):
            return node
        if not (0 <= scale <= precision <= _MAX_DIGITS and precision > 0):
            return node
        if node.kind == "bytes" or (node.size and 10**precision <= 1 << (8 * node.size - 1)):
            node.logical, node.precision, node.scale = "decimal", precision, scale
    elif (node.kind, logical) in _LEAVES or (
        (node.kind, logical, node.size) == ("fixed", "uuid", _UUID_BYTES)
    ):
        node.logical = logical
    return node


class _Leaf(NamedTuple):
    """A type without members: its Arrow type, and the operation that decodes it.

    Numbers from `lowest` to `highest` are valid. The decoder multiplies them by `factor`.
    """

    type: pa.DataType
    code: int
    lowest: int = 0
    highest: int = 0
    factor: int = 1


_DAY_MS = 86_400_000
# Days of the years 1 to 9999, the range of Protobuf's Timestamp and of readers of tables.
_FIRST_DAY, _END_DAY = -719_162, 2_932_897
_UTC_US, _LOCAL_US = pa.timestamp("us", "UTC"), pa.timestamp("us")


def _timestamp(arrow_type: pa.DataType, factor: int) -> _Leaf:
    day = _DAY_MS * 1000 // factor
    return _Leaf(arrow_type, ops.NUMBER, _FIRST_DAY * day, _END_DAY * day - 1, factor)


#: The leaves by type and logical type, except decimals, enums and fixed types.
_LEAVES: Mapping[tuple[str, str], _Leaf] = {
    ("boolean", ""): _Leaf(pa.bool_(), ops.BOOL),
    ("int", ""): _Leaf(pa.int32(), ops.NUMBER, -(1 << 31), (1 << 31) - 1),
    ("int", "date"): _Leaf(pa.date32(), ops.NUMBER, _FIRST_DAY, _END_DAY - 1),
    ("int", "time-millis"): _Leaf(pa.time64("us"), ops.NUMBER, 0, _DAY_MS - 1, 1000),
    ("long", ""): _Leaf(pa.int64(), ops.NUMBER, -INT64_MAX - 1, INT64_MAX),
    ("long", "time-micros"): _Leaf(pa.time64("us"), ops.NUMBER, 0, _DAY_MS * 1000 - 1),
    ("long", "timestamp-millis"): _timestamp(_UTC_US, 1000),
    ("long", "timestamp-micros"): _timestamp(_UTC_US, 1),
    ("long", "local-timestamp-millis"): _timestamp(_LOCAL_US, 1000),
    ("long", "local-timestamp-micros"): _timestamp(_LOCAL_US, 1),
    ("float", ""): _Leaf(pa.float32(), ops.FIXED),
    ("double", ""): _Leaf(pa.float64(), ops.FIXED),
    ("bytes", ""): _Leaf(pa.binary(), ops.BYTES),
    ("string", ""): _Leaf(pa.string(), ops.STRING),
}


def _select_leaf(node: _AvroType) -> _Leaf:
    if node.logical == "decimal" and node.precision <= _MAX_PRECISION:
        # The absolute value of a decimal is less than this power of 10.
        high, low = divmod(10**node.precision, 1 << 64)
        arrow_type = pa.decimal128(node.precision, node.scale)
        return _Leaf(arrow_type, ops.DECIMAL, low - (low >> 63 << 64), high)
    is_text = node.logical in ("decimal", "uuid")
    match node.kind:
        case "enum":
            return _Leaf(pa.string(), ops.ENUM, 0, len(node.symbols) - 1)
        case "fixed":
            arrow_type = pa.binary(node.size) if node.size else pa.binary()
            return _Leaf(pa.string() if is_text else arrow_type, ops.FIXED)
        case "bytes" if is_text:
            return _Leaf(pa.string(), ops.BYTES)
    return _LEAVES[node.kind, node.logical]


class AvroSchema:
    """A parsed Avro schema.

    Parameters
    ----------
    text : str
        The schema in JSON.
    references : sequence of str
        The schemas whose types `text` uses; each schema follows those that it refers to.

    Raises
    ------
    BadSchemaError
        The text is not a schema.
    """

    def __init__(self, text: str, references: Sequence[str] = ()) -> None:
        parser = _Parser()
        try:
            for reference in references:
                parser.parse(json.loads(reference))
            self._root = parser.parse(json.loads(text))
            self.shape = _build_shape(self._root, ()).check_limits()
            for node in parser.records:
                if node.is_text and node.fields:
                    node.json_text = _json_converter(node)
        except (ValueError, RecursionError) as error:
            message = f"the text is not an Avro schema: {error}"
            raise BadSchemaError(message, found=text[:200]) from error
        root_type = _non_null_branch(self._root) if _is_nullable(self._root) else self._root
        #: The full name of the root type, or the kind of an unnamed type.
        self.name = root_type.name or root_type.kind
        #: The earlier names of the root type.
        self.aliases = root_type.aliases

    def decoder(self, selection: Selection = None) -> AvroDecoder:
        """Return a decoder that decodes only the selected fields."""
        return AvroDecoder(self._root, self.shape, selection)


def _is_nullable(node: _AvroType) -> bool:
    kinds = [child.kind for child in node.children]
    return len(kinds) == 2 and kinds.count("null") == 1


def _non_null_branch(node: _AvroType) -> _AvroType:
    return next(child for child in node.children if child.kind != "null")


def _branch_names(node: _AvroType) -> list[str | None]:
    """Return the names of the members for the branches of a union; None for null."""
    short_names = [child.name.rpartition(".")[2] or child.kind for child in node.children]
    lower_names = [name.lower() for name in short_names]
    names: list[str | None] = []
    for child, short_name in zip(node.children, short_names, strict=True):
        if child.kind == "null":
            names.append(None)
            continue
        is_unique = lower_names.count(short_name.lower()) == 1
        name = short_name if is_unique else (child.name or short_name).replace(".", "_")
        while name.lower() in {earlier.lower() for earlier in names if earlier is not None}:
            name += "_"
        names.append(name)
    return names


def _build_shape(node: _AvroType, parents: tuple[_AvroType, ...]) -> Shape:  # noqa: PLR0911
    match node.kind:
        case "null":
            return Shape.make_leaf(pa.null())
        case "record":
            if node in parents or not node.fields:
                node.is_text = True
                return Shape.make_leaf(pa.string())
            ancestors = (*parents, node)
            members = [
                Member(name, _build_shape(field_type, ancestors), aliases)
                for name, field_type, aliases in node.fields
            ]
            return Shape.make_struct(members).check_limits()
        case "array":
            return Shape.make_list(_build_shape(node.children[0], parents))
        case "map":
            return Shape.make_map(
                Shape.make_leaf(pa.string()), _build_shape(node.children[0], parents)
            )
        case "union" if len(node.children) == 1 or _is_nullable(node):
            child = node.children[0] if len(node.children) == 1 else _non_null_branch(node)
            return _build_shape(child, parents)
        case "union":
            branches = zip(_branch_names(node), node.children, strict=True)
            return Shape.make_struct(
                [Member(name, _build_shape(child, parents)) for name, child in branches if name],
                Form.UNION,
            )
    return Shape.make_leaf(_select_leaf(node).type)


def _min_size_bytes(node: _AvroType, parents: tuple[_AvroType, ...] = ()) -> int:
    if node.kind == "record":
        if node in parents:
            return 0
        parents = (*parents, node)
        return sum(_min_size_bytes(field_type, parents) for _, field_type, _ in node.fields)
    return node.size if node.kind in ("null", "fixed") else max(node.size, 1)


@dataclass(slots=True)
class _Column(ColumnSpec):
    """A column that a decoder fills, and the columns of its members, keys or elements."""

    node: _AvroType = field(default_factory=lambda: _AvroType("null"))
    children: list[_Column] = field(default_factory=list)


class _Compiler:
    """Compiles a type to operations, and to the columns that the operations fill."""

    def __init__(self, root: _AvroType, selection: Selection) -> None:
        self.operations: list[list[int]] = []
        self.columns: list[_Column] = []
        self.level_count = 1
        self._routines: dict[int, int] = {}
        self._calls: list[tuple[_AvroType, int]] = []
        if root.kind == "bytes" and not root.logical:
            self.root = self._add_column(root, 0, _LENGTH_BYTES, has_data=True)
            self._emit(ops.BYTES, ops.REMAINING_BYTES, column=self.root)
        else:
            self.root = self._compile(root, selection, 0, ())
        self._emit(ops.END)
        self._compile_routines()

    def _emit(
        self,
        code: int,
        operand: int = ops.NO_OPERAND,
        *,
        column: _Column | None = None,
        level: int = 0,
        argument: int = 0,
        target: int = 0,
        lowest: int = 0,
        highest: int = 0,
    ) -> int:
        number = -1 if column is None else column.number
        self.operations.append([code, operand, number, level, argument, target, lowest, highest])
        return len(self.operations) - 1

    def _set_target(self, operation: int) -> None:
        """Set the target of an operation to the operation that follows."""
        self.operations[operation][ops.TARGET] = len(self.operations)

    def _add_column(
        self, node: _AvroType, level: int, width: int = 0, *, has_data: bool = False
    ) -> _Column:
        column = _Column(-1, level, width, has_data, node=node)
        if level != _SKIPPED:
            column.number = len(self.columns)
            self.columns.append(column)
        return column

    def _compile(
        self, node: _AvroType, selection: Selection, level: int, parents: tuple[_AvroType, ...]
    ) -> _Column:
        match node.kind:
            case "record" if level == _SKIPPED:
                # The record is skipped by a routine, because the record may contain itself.
                self._emit_call(node)
                return self._add_column(node, level)
            case "record" if node in parents or not node.fields:
                # Arrow has no type for the record, so the column has its bytes, which become JSON
                # text.
                column = self._add_column(node, level, _LENGTH_BYTES, has_data=True)
                self._emit(ops.CAPTURE)
                self._emit_call(node)
                self._emit(ops.CAPTURE_END, column=column, level=level)
                return column
            case "record":
                column = self._add_column(node, level)
                for name, field_type, _ in node.fields:
                    self._compile_member(column, name, field_type, selection, (*parents, node))
                return column
            case "array" | "map":
                return self._compile_blocks(node, selection, level, parents)
            case "union":
                return self._compile_union(node, selection, level, parents)
        return self._compile_leaf(node, level)

    def _compile_member(
        self,
        parent: _Column,
        name: str | None,
        node: _AvroType,
        selection: Selection,
        parents: tuple[_AvroType, ...],
    ) -> _Column:
        """Compile a member of a record or union; the null branch of a union has no name."""
        if name is None or (selection is not None and name not in selection):
            return self._compile(node, None, _SKIPPED, parents)
        column = self._compile(node, selection and selection[name], parent.level, parents)
        parent.children.append(column)
        return column

    def _compile_leaf(self, node: _AvroType, level: int) -> _Column:
        if node.kind == "null":
            return self._add_column(node, level)
        operand = _OPERANDS.get(node.kind, ops.FIXED_BYTES)
        if level == _SKIPPED:
            self._emit(ops.SKIP, operand, argument=node.size)
            return self._add_column(node, level)
        arrow_type, code, lowest, highest, factor = _select_leaf(node)
        if code in (ops.BYTES, ops.STRING) or (code == ops.FIXED and not node.size):
            column = self._add_column(node, level, _LENGTH_BYTES, has_data=True)
        elif code == ops.ENUM:
            column = self._add_column(node, level, pa.int32().byte_width)
        elif code == ops.FIXED:
            column = self._add_column(node, level, node.size)
        else:
            column = self._add_column(node, level, max(arrow_type.bit_width // 8, 1))
        self._emit(
            code,
            operand,
            column=column,
            level=level,
            argument=factor if operand == ops.VARINT else node.size,
            lowest=lowest,
            highest=highest,
        )
        return column

    def _compile_blocks(
        self, node: _AvroType, selection: Selection, level: int, parents: tuple[_AvroType, ...]
    ) -> _Column:
        column = self._add_column(node, level, _LENGTH_BYTES)
        inner_level, value = _SKIPPED, node.children[0]
        if level != _SKIPPED:
            inner_level = self.level_count
            self.level_count += 1
        lowest = _min_size_bytes(value) + (node.kind == "map")
        start = self._emit(ops.BLOCKS, column=column, level=inner_level, lowest=lowest)
        if node.kind == "map":
            column.children.append(self._compile_leaf(_AvroType("string"), inner_level))
        selection = selection and selection[""]
        column.children.append(self._compile(value, selection, inner_level, parents))
        self._emit(ops.BLOCKS_END, level=inner_level, target=start)
        self._set_target(start)
        return column

    def _compile_union(
        self, node: _AvroType, selection: Selection, level: int, parents: tuple[_AvroType, ...]
    ) -> _Column:
        if _is_nullable(node):
            null = int(node.children[1].kind == "null")
            start = self._emit(ops.NULLABLE, ops.VARINT, level=level, argument=null)
            column = self._compile(_non_null_branch(node), selection, level, parents)
            column.is_nullable = True
            self.operations[start][ops.COLUMN] = column.number
            self._set_target(start)
            return column
        is_single = len(node.children) == 1
        column = self._add_column(node, _SKIPPED if is_single else level)
        column.is_nullable = True
        start = self._emit(
            ops.UNION, ops.VARINT, column=column, level=level, highest=len(node.children) - 1
        )
        for _ in node.children:
            self._emit(ops.BRANCH)
        if is_single:
            self._set_target(start + 1)
            return self._compile(node.children[0], selection, level, parents)
        jumps = []
        branches = zip(_branch_names(node), node.children, strict=True)
        for branch, (name, child) in enumerate(branches, start + 1):
            self._set_target(branch)
            member = self._compile_member(column, name, child, selection, parents)
            member.is_nullable = True
            self.operations[branch][ops.COLUMN] = member.number
            self.operations[branch][ops.ARGUMENT] = int(name is not None)
            jumps.append(self._emit(ops.JUMP))
        for jump in jumps:
            self._set_target(jump)
        return column

    def _emit_call(self, node: _AvroType) -> None:
        self._calls.append((node, self._emit(ops.CALL)))

    def _compile_routines(self) -> None:
        """Compile the routines that skip recursive records."""
        while self._calls:
            node, call = self._calls.pop()
            if id(node) not in self._routines:
                self._routines[id(node)] = len(self.operations)
                for _, field_type, _ in node.fields:
                    self._compile(field_type, None, _SKIPPED, ())
                self._emit(ops.RETURN)
            self.operations[call][ops.TARGET] = self._routines[id(node)]


class AvroDecoder:
    """Decodes datums of an Avro schema to an Arrow array."""

    def __init__(self, root: _AvroType, shape: Shape, selection: Selection) -> None:
        compiled = _Compiler(root, selection)
        self._root = compiled.root
        self._json_columns = [
            column
            for column in compiled.columns
            if column.node.kind == "record" and column.has_data
        ]
        self._type = shape.select(selection).type
        operations = np.array(compiled.operations, np.int64)
        self._loop = Loop(ops.decode_avro, (operations,), compiled.columns, compiled.level_count)

    def decode(self, bodies: Bodies, max_bytes: int) -> Decoded:
        """Decode the bodies of rows; the array has null for each row that failed.

        Raises `DecodedTooLargeError` if the values need more memory.
        """
        rows = len(bodies)
        memory = ColumnMemory(self._loop, bodies, max_bytes)
        statuses = memory.run()
        json_bytes = sum(memory.data_bytes(column) for column in self._json_columns)
        if json_bytes * _JSON_EXPANSION > max_bytes:
            raise DecodedTooLargeError
        try:
            array = _build_array(memory, self._root, self._type)
        except _TEXT_ERRORS as error:
            if rows == 1:
                return Decoded(pa.nulls(1, self._type), {0: _text_error_reason(error)})
            half = rows // 2
            first_half = self.decode(bodies.slice(0, half), max_bytes)
            second_half = self.decode(bodies.slice(half, rows), max_bytes)
            errors = {half + row: reason for row, reason in second_half.errors.items()}
            array = pa.concat_arrays([first_half.array, second_half.array])
            return Decoded(array, {**first_half.errors, **errors})
        return Decoded(array, row_errors(statuses))


#: Errors of conversions to text. The compiled loop does not check values that become text.
_TEXT_ERRORS = (ValueError, IndexError, OverflowError, RecursionError, EOFError)


def _text_error_reason(error: Exception) -> Reason:
    match error:
        case UnicodeDecodeError():
            return Reason.BAD_UTF8
        case IndexError():
            return Reason.BAD_INDEX
        case RecursionError():
            return Reason.TOO_LARGE
    return Reason.OUT_OF_RANGE


def _build_array(memory: ColumnMemory, column: _Column, arrow_type: pa.DataType) -> pa.Array:
    if pa.types.is_null(arrow_type):
        return pa.nulls(memory.count(column.level))
    if pa.types.is_struct(arrow_type):
        members = zip(column.children, arrow_type, strict=True)
        children = [_build_array(memory, child, member.type) for child, member in members]
        return memory.build_nested(column, arrow_type, *children)
    if pa.types.is_list(arrow_type):
        elements = _build_array(memory, column.children[0], arrow_type.value_type)
        return memory.build_nested(column, arrow_type, elements)
    if pa.types.is_map(arrow_type):
        fields = [arrow_type.key_field, arrow_type.item_field]
        members = zip(column.children, fields, strict=True)
        children = [_build_array(memory, child, member.type) for child, member in members]
        entries = pa.StructArray.from_arrays(children, fields=fields)
        return memory.build_nested(column, arrow_type, entries)
    return _build_leaf_array(memory, column, arrow_type)


def _build_leaf_array(memory: ColumnMemory, column: _Column, arrow_type: pa.DataType) -> pa.Array:
    node = column.node
    if node.kind == "enum":
        symbols = pa.array(node.symbols or ("",), pa.string())
        numbers = memory.build_numbers(column, pa.int32())
        return pa.DictionaryArray.from_arrays(numbers, symbols).dictionary_decode()
    if not pa.types.is_string(arrow_type) or node.kind == "string":
        return (memory.build_binary if column.has_data else memory.build_numbers)(
            column, arrow_type
        )
    if column.has_data:
        array = memory.build_binary(column, pa.binary())
    else:
        array = memory.build_numbers(column, pa.binary(node.size))
    if node.kind == "record" and not node.fields:
        return pc.if_else(array.is_valid(), "{}", pa.scalar(None, pa.string()))
    to_text = _text_converter(node)
    strings = [None if value is None else to_text(value) for value in array.to_pylist()]
    return pa.array(strings, pa.string())


def _text_converter(node: _AvroType) -> Callable[[bytes], str | None]:
    """Return a function that converts the bytes of a value to text."""
    if node.json_text is not None:
        return node.json_text
    if node.logical == "uuid":
        return lambda value: str(uuid.UUID(bytes=value))
    limit = 10**node.precision

    def decimal_text(value: bytes) -> str:
        number = int.from_bytes(value, "big", signed=True)
        if abs(number) >= limit:
            raise ValueError("a decimal has more digits than its precision")
        sign, digits, _ = decimal.Decimal(number).as_tuple()
        return f"{decimal.Decimal((sign, digits, -node.scale)):f}"

    return decimal_text


# ---------------------------------------------------------------------- JSON text
def _json_converter(node: _AvroType) -> Callable[[bytes], str | None]:
    """Return a function that converts datums of a record to JSON text, with fastavro.

    Raises `BadSchemaError` for a schema that fastavro rejects.
    """
    fastavro = import_extra("fastavro")
    try:
        schema = fastavro.parse_schema(_fastavro_schema(node, {}))
    except fastavro.schema.SchemaParseException as error:
        raise BadSchemaError(f"the text is not an Avro schema: {error}", found=node.name) from error

    def convert(datum: bytes) -> str | None:
        if not datum:
            # Without bytes, the parent of the record is null or did not decode.
            return None
        value = json_value(fastavro.schemaless_reader(io.BytesIO(datum), schema))
        return json.dumps(value, ensure_ascii=False, allow_nan=False)

    return convert


def json_value(value: Any) -> Any:  # noqa: PLR0911
    """Convert a decoded value to its form in JSON: times in ISO 8601, bytes in base64."""
    match value:
        case float() if not math.isfinite(value):
            return str(value)
        case dict():
            return {str(key): json_value(member) for key, member in value.items()}
        case list() | tuple():
            return [json_value(element) for element in value]
        case bytes():
            return base64.b64encode(value).decode()
        case decimal.Decimal():
            return f"{value:f}"
        case dt.datetime() | dt.date() | dt.time():
            return value.isoformat()
        case uuid.UUID():
            return str(value)
    return value


def _fastavro_schema(node: _AvroType, names: dict[int, str]) -> Any:  # noqa: PLR0911
    """Convert a type to a schema for fastavro, in which types are renamed to be unique."""
    if node.name:
        if id(node) in names:
            return names[id(node)]
        names[id(node)] = f"T{len(names)}"
    definition = {"type": node.kind, "name": names.get(id(node))}
    match node.kind:
        case "record":
            fields = [
                {"name": name, "type": _fastavro_schema(field_type, names)}
                for name, field_type, _ in node.fields
            ]
            return {**definition, "fields": fields}
        case "enum":
            return {**definition, "symbols": list(node.symbols)}
        case "array":
            if not _min_size_bytes(node.children[0]):
                # The datum of such an array could have a few bytes, but any number of elements.
                raise BadSchemaError("a recursive record has an array of elements without bytes")
            return {"type": "array", "items": _fastavro_schema(node.children[0], names)}
        case "map":
            return {"type": "map", "values": _fastavro_schema(node.children[0], names)}
        case "union":
            return [_fastavro_schema(child, names) for child in node.children]
    schema: dict[str, Any] = {"type": node.kind}
    if node.kind == "fixed":
        schema = {**definition, "size": node.size}
    if node.logical:
        schema["logicalType"] = node.logical
    if node.logical == "decimal":
        schema |= {"precision": node.precision, "scale": node.scale}
    return schema
