"""Avro schemas: their types in Arrow, and the decoding of many datums at a time.

`AvroSchema` parses a schema. `AvroSchema.decoder` compiles it, or the members of it that are
wanted, to the operations of `core.kernels.avro`. A record within itself becomes JSON text, which
fastavro decodes: no type of Arrow is recursive.

Source: Avro's specification. Its names and aliases, logical types, and the top-level ``bytes`` of
Confluent's serializers, which have no length.
"""

from __future__ import annotations

import base64
import datetime as dt
import decimal
import io
import json
import math
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from kafka_index.core.errors import BadSchemaError
from kafka_index.core.kernels import avro as ops
from kafka_index.core.schema.align import ELEMENT, Form, Member, Selection, Shape
from kafka_index.core.schema.bodies import (
    Bodies,
    Decoded,
    import_extra,
    masked,
)
from kafka_index.core.schema.column_memory import ColumnMemory, ColumnSpec, Loop
from kafka_index.core.schema.wire import Reason

_PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
_NAMED = ("record", "error", "enum", "fixed")
_MAX_PRECISION = 38
_INT128_BYTES = 16
_UUID_BYTES = 16
_MAX_DEPTH = 200
# Rows have memory for a fixed value whether they hold it or not.
_MAX_FIXED_BYTES = 1 << 20
# Python converts integers of 4,300 digits to text.
_MOST_DIGITS = 4096
_UTC_US, _LOCAL_US = pa.timestamp("us", "UTC"), pa.timestamp("us")

#: The statuses of rows as the codes of their errors.
_ERRORS: Mapping[int, Reason] = {
    ops.TRUNCATED: Reason.TRUNCATED,
    ops.TRAILING: Reason.TRAILING,
    ops.BAD_UTF8: Reason.BAD_UTF8,
    ops.BAD_INDEX: Reason.BAD_INDEX,
    ops.BAD_LENGTH: Reason.TRUNCATED,
    ops.BAD_VARINT: Reason.TRUNCATED,
    ops.OUT_OF_RANGE: Reason.OUT_OF_RANGE,
    ops.TOO_DEEP: Reason.TOO_LARGE,
    ops.TOO_LARGE: Reason.TOO_LARGE,
}


@dataclass(slots=True, eq=False)
class _Node:
    """A type of a schema; that of a record may be within itself."""

    kind: str
    name: str = ""
    logical: str = ""
    aliases: tuple[str, ...] = ()
    fields: list[tuple[str, _Node, tuple[str, ...]]] = field(default_factory=list)
    children: list[_Node] = field(default_factory=list)
    symbols: tuple[str, ...] = ()
    size: int = 0
    precision: int = 0
    scale: int = 0


class _Parser:
    """Parses schemas whose names may be those of others."""

    def __init__(self) -> None:
        self.named: dict[str, _Node] = {}

    def parse(self, schema: Any, namespace: str = "", depth: int = 0) -> _Node:  # noqa: PLR0911
        if depth > _MAX_DEPTH:
            raise BadSchemaError("an Avro schema that is nested too deeply")
        match schema:
            case str():
                return self._of_name(schema, namespace)
            case []:
                raise BadSchemaError("a union of Avro has no type")
            case list():
                return _Node("union", children=[self.parse(s, namespace, depth) for s in schema])
            case {"type": "record" | "error"}:
                return self._record(schema, namespace, depth)
            case {"type": "enum", "symbols": list(symbols)}:
                node = _Node("enum", symbols=tuple(map(_utf8, symbols)))
                self._name(node, schema, namespace)
                return node
            case {"type": "fixed", "size": int(size)} if 0 <= size <= _MAX_FIXED_BYTES:
                node = _with_logical(_Node("fixed", size=size), schema)
                self._name(node, schema, namespace)
                return node
            case {"type": "array", "items": items}:
                return _Node("array", children=[self.parse(items, namespace, depth + 1)])
            case {"type": "map", "values": values}:
                return _Node("map", children=[self.parse(values, namespace, depth + 1)])
            case {"type": str(kind)} if kind in _PRIMITIVES:
                return _with_logical(_Node(kind), schema)
            case {"type": str() | dict() | list() as inner} if inner not in _NAMED:
                return self.parse(inner, namespace, depth + 1)
        raise BadSchemaError("not an Avro schema", found=json.dumps(schema)[:200])

    def _of_name(self, name: str, namespace: str) -> _Node:
        if name in _PRIMITIVES:
            return _Node(name)
        for full in (name if "." in name or not namespace else f"{namespace}.{name}", name):
            if full in self.named:
                return self.named[full]
        raise BadSchemaError("an Avro schema names a type that it does not define", found=name)

    def _name(self, node: _Node, schema: Mapping[str, Any], namespace: str) -> str:
        """Register a named type; return the namespace of what it contains."""
        name = schema.get("name")
        if not isinstance(name, str) or not name:
            raise BadSchemaError("a named Avro type has no name", found=json.dumps(schema)[:200])
        if "." not in name:
            own = schema.get("namespace", namespace)
            name = f"{own}.{name}" if own else name
        _utf8(name)
        inner = name.rpartition(".")[0]
        node.name = name
        node.aliases = tuple(
            alias if "." in alias or not inner else f"{inner}.{alias}" for alias in _aliases(schema)
        )
        if name in self.named and node.kind != "record":
            # The same definition twice, as references that repeat it have it.
            return inner
        self.named[name] = node
        return inner

    def _record(self, schema: Mapping[str, Any], namespace: str, depth: int) -> _Node:
        node = _Node("record")
        inner = self._name(node, schema, namespace)
        fields = schema.get("fields")
        if not isinstance(fields, list):
            raise BadSchemaError("an Avro record has no fields", found=node.name)
        for one in fields:
            if not isinstance(one, dict) or not isinstance(one.get("name"), str):
                raise BadSchemaError("a field of an Avro record has no name", found=node.name)
            kind = self.parse(one.get("type"), inner, depth + 1)
            node.fields.append((one["name"], kind, _aliases(one)))
        if len({name for name, *_ in node.fields}) < len(node.fields):
            raise BadSchemaError("two fields of an Avro record have one name", found=node.name)
        return node


def _utf8(name: Any) -> str:
    """Return a name as text; raises `ValueError` for one that Arrow does not hold."""
    return str(name).encode().decode()


def _aliases(schema: Mapping[str, Any]) -> tuple[str, ...]:
    aliases = schema.get("aliases")
    return tuple(map(str, aliases)) if isinstance(aliases, list) else ()


def _with_logical(node: _Node, schema: Mapping[str, Any]) -> _Node:
    """Set the logical type of a node, if it is known and valid; others are ignored."""
    logical = schema.get("logicalType")
    if logical == "decimal":
        precision, scale = schema.get("precision"), schema.get("scale", 0)
        if not (isinstance(precision, int) and isinstance(scale, int)):
            return node
        if 0 <= scale <= precision <= _MOST_DIGITS:
            node.precision, node.scale = precision, scale
            if precision > 0 and node.kind in ("bytes", "fixed"):
                node.logical = "decimal"
    elif (node.kind, logical) in _LOGICAL_TYPES:
        node.logical = str(logical)
    elif (node.kind, logical, node.size) == ("fixed", "uuid", _UUID_BYTES):
        node.logical = "uuid"
    return node


_LOGICAL_TYPES: Mapping[tuple[str, str], tuple[pa.DataType, int, int]] = {
    ("int", "date"): (pa.date32(), ops.DATE, 1),
    ("int", "time-millis"): (pa.time64("us"), ops.TIME, 1000),
    ("long", "time-micros"): (pa.time64("us"), ops.TIME, 1),
    ("long", "timestamp-millis"): (_UTC_US, ops.TIMESTAMP, 1000),
    ("long", "timestamp-micros"): (_UTC_US, ops.TIMESTAMP, 1),
    ("long", "local-timestamp-millis"): (_LOCAL_US, ops.TIMESTAMP, 1000),
    ("long", "local-timestamp-micros"): (_LOCAL_US, ops.TIMESTAMP, 1),
}
_SIMPLE: Mapping[str, tuple[pa.DataType, int]] = {
    "boolean": (pa.bool_(), ops.BOOL),
    "int": (pa.int32(), ops.INT),
    "long": (pa.int64(), ops.LONG),
    "float": (pa.float32(), ops.FLOAT),
    "double": (pa.float64(), ops.DOUBLE),
    "bytes": (pa.binary(), ops.BYTES),
    "string": (pa.string(), ops.STRING),
}
_WIDTHS = {
    ops.BOOL: 1,
    ops.INT: 4,
    ops.FLOAT: 4,
    ops.ENUM: 4,
    ops.LONG: 8,
    ops.DATE: 4,
    ops.TIME: 8,
    ops.TIMESTAMP: 8,
    ops.DOUBLE: 8,
    ops.DECIMAL_BYTES: 16,
    ops.DECIMAL_FIXED: 16,
}


class AvroSchema:
    """A parsed Avro schema.

    Parameters
    ----------
    text : str
        The schema in JSON.
    references : sequence of str
        The schemas whose types it names, each after those that it needs itself.

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
            self.shape = _shape_of(self._root, ()).checked()
        except (ValueError, RecursionError) as error:
            raise BadSchemaError(f"not an Avro schema: {error}", found=text[:200]) from error
        named = _other(self._root) if _is_nullable(self._root) else self._root
        #: The full name of the record, or the kind of any other type.
        self.name = named.name or _member_name(named)
        #: The earlier names of the record.
        self.aliases = named.aliases

    def decoder(self, selection: Selection = None) -> AvroDecoder:
        """Return the decoder of the members that are wanted."""
        return AvroDecoder(self._root, selection)


def _is_nullable(node: _Node) -> bool:
    """Return whether a union stands for a nullable type."""
    kinds = [child.kind for child in node.children]
    return len(kinds) == 2 and kinds.count("null") == 1


def _other(node: _Node) -> _Node:
    """Return the type of a nullable union that is not null."""
    return next(child for child in node.children if child.kind != "null")


def _branch_names(node: _Node) -> list[str | None]:
    """Return the names of the members for the branches of a union; None for null."""
    names: list[str | None] = []
    short = [_member_name(child) for child in node.children]
    for child, name in zip(node.children, short, strict=True):
        if child.kind == "null":
            names.append(None)
            continue
        is_unique = [one.lower() for one in short].count(name.lower()) == 1
        full = name if is_unique else (child.name or name).replace(".", "_")
        while full.lower() in {one.lower() for one in names if one is not None}:
            full += "_"
        names.append(full)
    return names


def _member_name(node: _Node) -> str:
    return node.name.rpartition(".")[2] or node.kind


def _shape_of(node: _Node, above: tuple[_Node, ...]) -> Shape:  # noqa: PLR0911
    """Return the shape of a type within others."""
    if node.kind == "record":
        if node in above or not node.fields:
            return Shape.of_leaf(pa.string())
        inner = (*above, node)
        return Shape.of_struct(
            [Member(name, _shape_of(kind, inner), aliases) for name, kind, aliases in node.fields]
        ).checked()
    if node.kind == "array":
        return Shape.of_list(_shape_of(node.children[0], above))
    if node.kind == "map":
        return Shape.of_map(Shape.of_leaf(pa.string()), _shape_of(node.children[0], above))
    if node.kind == "union":
        if len(node.children) == 1:
            return _shape_of(node.children[0], above)
        if _is_nullable(node):
            return _shape_of(_other(node), above)
        names = _branch_names(node)
        return Shape.of_struct(
            [
                Member(name, _shape_of(child, above))
                for name, child in zip(names, node.children, strict=True)
                if name is not None
            ],
            Form.UNION,
        )
    return Shape.of_leaf(_leaf_type(node))


def _leaf_type(node: _Node) -> pa.DataType:  # noqa: PLR0911
    if node.kind == "null":
        return pa.null()
    if node.logical == "decimal":
        if node.precision > _MAX_PRECISION:
            return pa.string()
        return pa.decimal128(node.precision, node.scale)
    if node.kind == "enum" or node.logical == "uuid":
        return pa.string()
    if node.kind == "fixed":
        return pa.binary(node.size) if node.size else pa.binary()
    if node.logical:
        return _LOGICAL_TYPES[node.kind, node.logical][0]
    return _SIMPLE[node.kind][0]


def _least_size(node: _Node, above: tuple[_Node, ...] = ()) -> int:  # noqa: PLR0911
    """Return the least number of bytes of a value; 0 for values that never have any."""
    match node.kind:
        case "null":
            return 0
        case "float":
            return 4
        case "double":
            return 8
        case "fixed":
            return node.size
        case "record":
            if node in above:
                return 0
            return sum(_least_size(kind, (*above, node)) for _, kind, _ in node.fields)
        case "union" if len(node.children) == 1 or not node.children:
            return 1
    return 1


@dataclass(slots=True)
class _Column(ColumnSpec):
    """A column that a decoder fills, and how its array is made."""

    node: _Node = field(default_factory=lambda: _Node("null"))
    #: For the element or value of an array or map, and its key.
    children: list[_Column] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    form: str = ""


class AvroDecoder:
    """Decodes datums of a schema to an array of Arrow."""

    def __init__(self, root: _Node, selection: Selection) -> None:
        self._operations: list[list[int]] = []
        self._columns: list[_Column] = []
        self._level_of_parent: list[int] = [0]
        self._routines: dict[int, int] = {}
        self._pending: list[tuple[_Node, list[int]]] = []
        self._root = root
        if root.kind == "bytes" and not root.logical:
            self._top = self._new_column(root, 0, 4, has_data=True)
            self._emit(ops.REST, self._top.number)
        else:
            self._top = self._compile(root, selection, 0, ())
        self._emit(ops.END)
        self._compile_routines()
        code = np.array(self._operations, np.int64)
        self._loop = Loop(ops.decode_avro, (code,), self._columns, len(self._level_of_parent))

    # ------------------------------------------------------------------ operations
    def _emit(
        self,
        code: int,
        column: int = -1,
        argument: int = 0,
        target: int = 0,
        level: int = 0,
        least: int = 0,
    ) -> int:
        self._operations.append([code, column, argument, target, level, least])
        return len(self._operations) - 1

    def _new_column(
        self, node: _Node, level: int, width: int, *, has_data: bool = False, form: str = "leaf"
    ) -> _Column:
        column = _Column(len(self._columns), level, width, has_data, node=node, form=form)
        self._columns.append(column)
        return column

    def _new_level(self) -> int:
        self._level_of_parent.append(0)
        return len(self._level_of_parent) - 1

    def _compile(
        self, node: _Node, selection: Selection, level: int, above: tuple[_Node, ...]
    ) -> _Column:
        match node.kind:
            case "record":
                if node in above or not node.fields:
                    return self._capture(node, level)
                column = self._new_column(node, level, 0, form="struct")
                for name, kind, _ in node.fields:
                    if selection is not None and name not in selection:
                        self._skip(kind)
                        continue
                    wanted = None if selection is None else selection[name]
                    column.names.append(name)
                    column.children.append(self._compile(kind, wanted, level, (*above, node)))
                return column
            case "array" | "map":
                return self._blocks(node, selection, level, above)
            case "union":
                return self._union(node, selection, level, above)
        return self._leaf(node, level)

    def _leaf(self, node: _Node, level: int) -> _Column:
        if node.kind == "null":
            return self._new_column(node, level, 0, form="null")
        code, argument, width, has_data = _leaf_operation(node)
        column = self._new_column(node, level, width, has_data=has_data)
        # A decimal is less than this number.
        high, low = divmod(10**node.precision, 1 << 64) if width == _INT128_BYTES else (0, 0)
        self._emit(code, column.number, argument, high, level, low - (low >> 63 << 64))
        return column

    def _blocks(
        self, node: _Node, selection: Selection, level: int, above: tuple[_Node, ...]
    ) -> _Column:
        inner = self._new_level()
        column = self._new_column(node, level, 4, form=node.kind)
        value = node.children[0]
        least = _least_size(value) + (node.kind == "map")
        start = self._emit(ops.BLOCKS, column.number, level=inner, least=least)
        if node.kind == "map":
            column.children.append(self._leaf(_Node("string"), inner))
        wanted = None if selection is None else selection[""]
        column.children.append(self._compile(value, wanted, inner, above))
        end = self._emit(ops.BLOCKS_END, -1, target=start, level=inner)
        self._operations[start][ops.TARGET] = end + 1
        return column

    def _union(
        self, node: _Node, selection: Selection, level: int, above: tuple[_Node, ...]
    ) -> _Column:
        if len(node.children) == 1:
            self._emit(ops.UNION, -1, 1, level=level)
            branch = self._emit(ops.BRANCH)
            self._operations[branch][ops.TARGET] = branch + 1
            return self._compile(node.children[0], selection, level, above)
        if _is_nullable(node):
            null = next(at for at, one in enumerate(node.children) if one.kind == "null")
            start = self._emit(ops.NULLABLE, argument=null, level=level)
            column = self._compile(_other(node), selection, level, above)
            column.is_nullable = True
            self._operations[start][ops.COLUMN] = column.number
            self._operations[start][ops.TARGET] = len(self._operations)
            return column
        column = self._new_column(node, level, 0, form="struct")
        column.is_nullable = True
        self._emit(ops.UNION, column.number, len(node.children), level=level)
        branches = [self._emit(ops.BRANCH) for _ in node.children]
        jumps = []
        names = _branch_names(node)
        for branch, name, child in zip(branches, names, node.children, strict=True):
            self._operations[branch][ops.TARGET] = len(self._operations)
            # Null has no member.
            self._operations[branch][ops.ARGUMENT] = int(name is not None)
            if name is not None and (selection is None or name in selection):
                wanted = None if selection is None else selection[name]
                member = self._compile(child, wanted, level, above)
                member.is_nullable = True
                self._operations[branch][ops.COLUMN] = member.number
                column.names.append(name)
                column.children.append(member)
            else:
                self._skip(child)
            jumps.append(self._emit(ops.JUMP))
        for jump in jumps:
            self._operations[jump][ops.TARGET] = len(self._operations)
        return column

    def _capture(self, node: _Node, level: int) -> _Column:
        """Compile a record within itself: its bytes are kept, and become JSON text later."""
        column = self._new_column(node, level, 4, has_data=True, form="json")
        self._emit(ops.CAPTURE)
        self._call(node)
        self._emit(ops.CAPTURE_END, column.number, level=level)
        return column

    def _call(self, node: _Node) -> None:
        self._pending.append((node, self._operations[self._emit(ops.CALL)]))

    def _compile_routines(self) -> None:
        """Compile the skipping of records that contain themselves."""
        while self._pending:
            node, call = self._pending.pop()
            if id(node) not in self._routines:
                self._routines[id(node)] = len(self._operations)
                for _, kind, _ in node.fields:
                    self._skip(kind)
                self._emit(ops.RETURN)
            call[ops.TARGET] = self._routines[id(node)]

    def _skip(self, node: _Node) -> None:  # noqa: C901, PLR0912
        match node.kind:
            case "null":
                pass
            case "boolean":
                self._emit(ops.SKIP_FIXED, argument=1)
            case "int" | "long" | "enum":
                self._emit(ops.SKIP_VARINT)
            case "float":
                self._emit(ops.SKIP_FIXED, argument=4)
            case "double":
                self._emit(ops.SKIP_FIXED, argument=8)
            case "bytes" | "string":
                self._emit(ops.SKIP_BYTES)
            case "fixed":
                self._emit(ops.SKIP_FIXED, argument=node.size)
            case "record":
                # A routine of its own: the record may contain itself.
                self._call(node)
            case "array" | "map":
                least = _least_size(node.children[0]) + (node.kind == "map")
                start = self._emit(ops.BLOCKS, level=-1, least=least)
                if node.kind == "map":
                    self._emit(ops.SKIP_BYTES)
                self._skip(node.children[0])
                end = self._emit(ops.BLOCKS_END, target=start, level=-1)
                self._operations[start][ops.TARGET] = end + 1
            case "union":
                self._emit(ops.UNION, -1, len(node.children))
                branches = [self._emit(ops.BRANCH) for _ in node.children]
                jumps = []
                for branch, child in zip(branches, node.children, strict=True):
                    self._operations[branch][ops.TARGET] = len(self._operations)
                    self._skip(child)
                    jumps.append(self._emit(ops.JUMP))
                for jump in jumps:
                    self._operations[jump][ops.TARGET] = len(self._operations)

    # ------------------------------------------------------------------ decoding
    def decode(self, bodies: Bodies, max_bytes: int) -> Decoded:
        """Decode the bodies of rows; the array has null for each row that failed.

        Raises `DecodedTooLargeError` if the values of more than one row need more memory.
        """
        rows = len(bodies)
        if rows == 1 and self._loop.widths[0] > max_bytes:
            return self._refused(bodies, Reason.TOO_LARGE)
        memory = ColumnMemory(self._loop, bodies, max_bytes)
        statuses = memory.run()
        absent = (statuses != ops.DECODED) & (statuses != ops.TRAILING)
        try:
            array = masked(_array(memory, self._top), absent)
        except _FAILURES as error:
            if rows == 1:
                return self._refused(bodies, _reason_of(error))
            half = rows // 2
            first = self.decode(bodies.slice(0, half), max_bytes)
            second = self.decode(bodies.slice(half, rows), max_bytes)
            errors = {half + row: reason for row, reason in second.errors.items()}
            return Decoded(
                pa.concat_arrays([first.array, second.array]), {**first.errors, **errors}
            )
        failed = np.flatnonzero(statuses > ops.ABSENT)
        codes = zip(failed.tolist(), statuses[failed].tolist(), strict=True)
        return Decoded(array, {row: _ERRORS[code] for row, code in codes})

    def _refused(self, bodies: Bodies, reason: Reason) -> Decoded:
        """Return a null for a row."""
        kind = _array(ColumnMemory(self._loop, bodies.slice(0, 0), 0), self._top).type
        return Decoded(pa.nulls(1, kind), {0: reason})


#: What fastavro raises over a record within itself, whose bytes the operations only skip.
_FAILURES = (ValueError, IndexError, OverflowError, RecursionError, EOFError)


def _reason_of(error: Exception) -> Reason:
    match error:
        case UnicodeDecodeError():
            return Reason.BAD_UTF8
        case IndexError():
            return Reason.BAD_INDEX
        case RecursionError():
            return Reason.TOO_LARGE
    return Reason.OUT_OF_RANGE


def _leaf_operation(node: _Node) -> tuple[int, int, int, bool]:
    """Return operation, argument, width of values, and whether there is data of variable size."""
    if node.logical == "decimal" and node.precision <= _MAX_PRECISION:
        code = ops.DECIMAL_BYTES if node.kind == "bytes" else ops.DECIMAL_FIXED
        return code, node.size, _INT128_BYTES, False
    if node.kind == "fixed":
        return ops.FIXED, node.size, node.size, False
    if node.kind == "enum":
        return ops.ENUM, len(node.symbols), 4, False
    if (node.kind, node.logical) in _LOGICAL_TYPES:
        _, code, factor = _LOGICAL_TYPES[node.kind, node.logical]
        return code, factor, _WIDTHS[code], False
    code = _SIMPLE[node.kind][1]
    has_data = code in (ops.BYTES, ops.STRING)
    return code, 1, 4 if has_data else _WIDTHS[code], has_data


def _array(memory: ColumnMemory, column: _Column) -> pa.Array:
    """Return the array of a column."""
    node = column.node
    if column.form == "null":
        return pa.nulls(memory.count(column.level))
    children = [_array(memory, child) for child in column.children]
    if column.form == "struct":
        pairs = zip(column.names, children, strict=True)
        return memory.struct(column, [pa.field(name, one.type) for name, one in pairs], children)
    if column.form == "array":
        kind = pa.list_(pa.field(ELEMENT, children[0].type))
        return memory.nested(column, kind, children[0])
    if column.form == "map":
        kind = pa.map_(pa.string(), pa.field("value", children[1].type))
        fields = [kind.key_field, kind.item_field]
        return memory.nested(column, kind, pa.StructArray.from_arrays(children, fields=fields))
    if column.has_data:
        array = memory.binary(column, pa.string() if node.kind == "string" else pa.binary())
        return _json_texts(array, node) if column.form == "json" else _wide_decimals(array, node)
    return _fixed_array(memory, column)


def _fixed_array(memory: ColumnMemory, column: _Column) -> pa.Array:
    """Return a column of values of a fixed width."""
    node = column.node
    if node.kind == "enum":
        numbers = memory.numbers(column, pa.int32())
        if not node.symbols:
            return pa.nulls(len(numbers), pa.string())
        symbols = pa.array(node.symbols, pa.string())
        return pa.DictionaryArray.from_arrays(numbers, symbols).dictionary_decode()
    is_decimal = node.logical == "decimal" and node.precision <= _MAX_PRECISION
    if node.kind != "fixed" or is_decimal:
        return memory.numbers(column, _leaf_type(node))
    if not node.size:
        # All that such a type holds, and null.
        empty = pa.array([b""] * memory.count(column.level), pa.binary())
        valid = memory.validity(column)[0]
        return pa.Array.from_buffers(pa.binary(), len(empty), [valid, *empty.buffers()[1:]])
    array = memory.numbers(column, pa.binary(node.size))
    return _uuid_texts(array) if node.logical == "uuid" else _wide_decimals(array, node)


def _uuid_texts(array: pa.Array) -> pa.Array:
    texts = [None if one is None else str(uuid.UUID(bytes=one)) for one in array.to_pylist()]
    return pa.array(texts, pa.string())


def _wide_decimals(array: pa.Array, node: _Node) -> pa.Array:
    """Return decimals of more digits than Arrow's have, as text."""
    if node.logical != "decimal":
        return array
    return pa.array(
        [
            None if one is None else _decimal_text(int.from_bytes(one, "big", signed=True), node)
            for one in array.to_pylist()
        ],
        pa.string(),
    )


def _decimal_text(number: int, node: _Node) -> str:
    sign, digits, _ = decimal.Decimal(number).as_tuple()
    return f"{decimal.Decimal((sign, digits, -node.scale)):f}"


# ---------------------------------------------------------------------- JSON text
def _json_texts(array: pa.Array, node: _Node) -> pa.Array:
    """Return datums of a record as JSON texts, as fastavro decodes them."""
    fastavro = import_extra("fastavro")
    schema = fastavro.parse_schema(_as_schema(node, set()))
    texts: list[str | None] = []
    for one in array.to_pylist():
        if not one:
            # No bytes are a record without fields, or one that a null or failed parent has.
            texts.append(None if one is None or node.fields else "{}")
            continue
        value = fastavro.schemaless_reader(io.BytesIO(one), schema)
        texts.append(json.dumps(json_value(value), ensure_ascii=False, allow_nan=False))
    return pa.array(texts, pa.string())


def json_value(value: Any) -> Any:  # noqa: PLR0911
    """Return a decoded value as JSON has it: times as ISO 8601, bytes in base64."""
    match value:
        case float() if not math.isfinite(value):
            return str(value)
        case dict():
            return {str(key): json_value(one) for key, one in value.items()}
        case list() | tuple():
            return [json_value(one) for one in value]
        case bytes():
            return base64.b64encode(value).decode()
        case decimal.Decimal():
            return f"{value:f}"
        case dt.datetime() | dt.date() | dt.time():
            return value.isoformat()
        case uuid.UUID():
            return str(value)
    return value


def _as_schema(node: _Node, known: set[str]) -> Any:  # noqa: PLR0911
    """Return a type as a schema that fastavro parses, with all names defined in it."""
    if node.name and node.name in known:
        return node.name
    if node.name:
        known.add(node.name)
    named = {"name": node.name}
    match node.kind:
        case "record":
            fields = [
                {"name": name, "type": _as_schema(kind, known)} for name, kind, _ in node.fields
            ]
            return {"type": "record", **named, "fields": fields}
        case "enum":
            return {"type": "enum", **named, "symbols": list(node.symbols)}
        case "fixed":
            return {"type": "fixed", **named, "size": node.size, **_logical_of(node)}
        case "array":
            return {"type": "array", "items": _as_schema(node.children[0], known)}
        case "map":
            return {"type": "map", "values": _as_schema(node.children[0], known)}
        case "union":
            return [_as_schema(child, known) for child in node.children]
    return {"type": node.kind, **_logical_of(node)}


def _logical_of(node: _Node) -> dict[str, Any]:
    if node.logical == "decimal":
        return {"logicalType": "decimal", "precision": node.precision, "scale": node.scale}
    return {"logicalType": node.logical} if node.logical else {}
