"""The columns of lake tables: types as Iceberg and Delta store them, and batches cast to them.

Columns of Kafka keep their types. In decoded values, which evolve, integers are int64 and floats
are double from the start: an int64 file under an int column is an error in Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from kafka_index.commands.export.request import ExportFormat
from kafka_index.core.errors import InputError
from kafka_index.core.records.record_table import RECORD_SCHEMA

#: The years 1 to 9999, which every reader of tables supports.
_MIN_MS, _MAX_MS = -62_135_596_800_000, 253_402_300_799_999
_UINT64_DIGITS, _MAX_DIGITS = 20, 38
_INT64_TYPES = (pt.is_signed_integer, pt.is_uint8, pt.is_uint16, pt.is_uint32)
_STRINGS = (pt.is_string, pt.is_large_string, pt.is_string_view)
_BINARIES = (pt.is_binary, pt.is_large_binary, pt.is_binary_view)
_LISTS = (pt.is_list, pt.is_large_list, pt.is_fixed_size_list)


def is_outside_calendar(times_ms: pa.Array) -> pa.Array:
    """Return a mask of the times outside of the years 1 to 9999."""
    return pc.or_(pc.less(times_ms, _MIN_MS), pc.greater(times_ms, _MAX_MS))


def table_schema(schema: pa.Schema, form: ExportFormat) -> pa.Schema:
    """Return the columns of a table for records; all of them are nullable.

    Raises `InputError`, which names the column, if the table format has no such type, or if two
    names differ only in case.
    """
    _refuse_same_names((), schema.names)
    types = _TableTypes(form)
    return pa.schema(pa.field(each.name, types.column_type(each)) for each in schema)


class _TableTypes:
    """Maps Arrow types to the types of a table format."""

    def __init__(self, form: ExportFormat) -> None:
        self._is_delta = form is ExportFormat.DELTA

    def column_type(self, column: pa.Field) -> pa.DataType:
        number = RECORD_SCHEMA.get_field_index(column.name)
        is_own = number >= 0 and RECORD_SCHEMA.field(number).type == column.type
        if is_own and pt.is_integer(column.type):
            return pa.int64() if column.type.bit_width > 32 else pa.int32()
        return self._type((column.name,), column.type)

    def _type(self, path: tuple[str, ...], kind: pa.DataType) -> pa.DataType:
        if isinstance(kind, pa.BaseExtensionType):
            return self._type(path, kind.storage_type)
        if pt.is_dictionary(kind):
            return self._type(path, kind.value_type)
        if pt.is_struct(kind) and kind.num_fields:
            _refuse_same_names(path, [each.name for each in kind])
            return pa.struct(
                pa.field(each.name, self._type((*path, each.name), each.type)) for each in kind
            )
        if _is_one(kind, _LISTS):
            return pa.list_(pa.field("element", self._type((*path, "element"), kind.value_type)))
        if pt.is_map(kind):
            key, item = ((*path, name) for name in ("key", "value"))
            return pa.map_(self._type(key, kind.key_type), self._type(item, kind.item_type))
        found = self._primitive(kind)
        if found is None:
            raise InputError(
                f"a table has no type for the column {'.'.join(path)}",
                found=kind,
                hint="omit it from --columns",
            )
        return found

    def _primitive(self, kind: pa.DataType) -> pa.DataType | None:  # noqa: PLR0911, a case each
        if _is_one(kind, _INT64_TYPES):
            return pa.int64()
        if pt.is_floating(kind):
            return pa.float64()
        if pt.is_uint64(kind):
            return pa.decimal128(_UINT64_DIGITS)
        if _is_one(kind, _STRINGS) or pt.is_null(kind):
            return pa.string()
        if _is_one(kind, _BINARIES) or (self._is_delta and pt.is_fixed_size_binary(kind)):
            return pa.binary()
        if pt.is_decimal(kind) and kind.precision <= _MAX_DIGITS:
            return pa.decimal128(kind.precision, kind.scale)
        if pt.is_date(kind):
            return pa.date32()
        if pt.is_time(kind) and not self._is_delta:
            return pa.time64("us")
        if kind == pa.time64("us"):
            # Delta has no type for times: microseconds since midnight.
            return pa.int64()
        if pt.is_timestamp(kind):
            zone = None if kind.tz is None else "UTC"
            return pa.int64() if kind.unit == "ns" else pa.timestamp("us", zone)
        return kind if pt.is_boolean(kind) or pt.is_fixed_size_binary(kind) else None


def _is_one(kind: pa.DataType, tests: Iterable[Callable[[pa.DataType], bool]]) -> bool:
    return any(test(kind) for test in tests)


def _refuse_same_names(path: tuple[str, ...], names: Iterable[str]) -> None:
    known: dict[str, str] = {}
    for name in names:
        other = known.setdefault(name.casefold(), name)
        if known[name.casefold()] is not name:
            raise InputError(
                "the names of two columns of a table differ only in case",
                found=f"{'.'.join((*path, other))} and {'.'.join((*path, name))}",
            )


def refuse_changed_types(
    schema: pa.Schema,
    table: pa.Schema,
    name: str,
    widens: Callable[[pa.DataType, pa.DataType], bool],
) -> None:
    """Raise `InputError` if columns cannot be added to a table.

    Parameters
    ----------
    schema, table : pa.Schema
        The columns of the files, as returned by `table_schema`, and the columns of the table.
    name : str
        The table, for the message.
    widens : callable
        Returns whether a type of the table may stay, or become the type of the files.
    """
    columns, known = pa.struct(list(schema)), pa.struct(list(table))
    found = _first_difference((), columns, known, widens)
    if found is not None:
        path, own, other = found
        raise InputError(
            f"the table {name} cannot take the column {'.'.join(path)}",
            expected=other,
            found=own,
            hint="export to another table, or omit the column from --columns",
        )


def _first_difference(
    path: tuple[str, ...],
    own: pa.DataType,
    table: pa.DataType,
    widens: Callable[[pa.DataType, pa.DataType], bool],
) -> tuple[tuple[str, ...], str, str] | None:
    """Return the first column that differs, with its type in the files and in the table."""
    kind = _kind(own)
    if kind != _kind(table):
        is_wider = not own.num_fields and not table.num_fields and widens(table, own)
        return None if is_wider else (path, str(own), str(table))
    required = [each for each in table if not each.nullable] if kind == "struct" else []
    if required:
        return (*path, required[0].name), "a column with nulls", f"{required[0].type} not null"
    columns, known = _children(own), _children(table)
    differences = (
        _first_difference((*path, name), columns[name], known[name], widens)
        for name in known
        if name in columns
    )
    return next((one for one in differences if one is not None), None)


def _children(kind: pa.DataType) -> dict[str, pa.DataType]:
    """Return the types within a type, keyed by column name."""
    if pt.is_struct(kind):
        return {each.name: each.type for each in kind}
    if pt.is_map(kind):
        return {"key": kind.key_type, "value": kind.item_type}
    return {"element": kind.value_type} if _is_one(kind, _LISTS) else {}


def _kind(kind: pa.DataType) -> str:
    """Return the name of a type, without the size of its offsets."""
    if pt.is_struct(kind) or pt.is_map(kind):
        return "struct" if pt.is_struct(kind) else "map"
    return "list" if _is_one(kind, _LISTS) else str(kind).removeprefix("large_")


def small_type(kind: pa.DataType) -> pa.DataType:
    """Return a type with offsets of 32 bits, at any depth."""
    if pt.is_struct(kind):
        return pa.struct([pa.field(each.name, small_type(each.type)) for each in kind])
    if pt.is_map(kind):
        return pa.map_(small_type(kind.key_type), small_type(kind.item_type))
    if _is_one(kind, _LISTS):
        return pa.list_(pa.field("element", small_type(kind.value_type)))
    if _is_one(kind, _STRINGS):
        return pa.string()
    return pa.binary() if _is_one(kind, _BINARIES) else kind


def table_batch(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return the columns of a batch with the types of a table; missing columns are null.

    A timestamp outside of the years 1 to 9999 becomes null.
    """
    names = set(batch.schema.names)
    arrays = [
        _cast(batch.column(each.name), each.type)
        if each.name in names
        else pa.nulls(len(batch), each.type)
        for each in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _cast(array: pa.Array, kind: pa.DataType) -> pa.Array:
    if array.type == pa.timestamp("ms", "UTC"):
        outside = is_outside_calendar(array.view(pa.int64()))
        if np.asarray(pc.fill_null(outside, fill_value=False)).any():
            array = pc.if_else(outside, pa.scalar(None, array.type), array)
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    if _kind(array.type) == _kind(kind) and not _have_same_members(array.type, kind):
        return _with_members(array, kind)
    return array.cast(kind, safe=False)


def _have_same_members(own: pa.DataType, kind: pa.DataType) -> bool:
    """Return whether two types have the same members in the same order, at any depth."""
    members, known = _children(own), _children(kind)
    return list(members) == list(known) and all(
        _have_same_members(members[name], known[name]) for name in known
    )


def _with_members(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return an array with the members of a type; Arrow does not reorder or add members."""
    mask = pc.is_null(array)
    if pt.is_struct(kind):
        members = [
            _cast(array.field(each.name), each.type)
            if array.type.get_field_index(each.name) >= 0
            else pa.nulls(len(array), each.type)
            for each in kind
        ]
        return pa.StructArray.from_arrays(members, fields=list(kind), mask=mask)
    # Arrow takes no mask with a slice of offsets.
    offsets = pa.array(np.array(array.offsets), pa.int32())
    if pt.is_map(kind):
        keys, items = _cast(array.keys, kind.key_type), _cast(array.items, kind.item_type)
        return pa.MapArray.from_arrays(offsets, keys, items, type=kind, mask=mask)
    values = _cast(array.values, kind.value_type)
    return pa.ListArray.from_arrays(offsets, values, type=kind, mask=mask)
