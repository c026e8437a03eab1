"""The columns of lake tables: types as Iceberg and Delta store them, and batches cast to them.

Columns of Kafka records keep their types. In decoded values, integers are int64 and floats are
double from the start, because schemas evolve. Spark fails to read an int64 file if the table's
column is int.
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

    Raises `InputError` if the table format has no type for a column, or if two names differ only
    in case.
    """
    _refuse_same_names((), schema.names)
    types = _TableTypes(form)
    return pa.schema(pa.field(field.name, types.column_type(field)) for field in schema)


class _TableTypes:
    """Maps Arrow types to the types of a table format."""

    def __init__(self, form: ExportFormat) -> None:
        self._is_delta = form is ExportFormat.DELTA

    def column_type(self, column: pa.Field) -> pa.DataType:
        field_number = RECORD_SCHEMA.get_field_index(column.name)
        is_record_column = (
            field_number >= 0 and RECORD_SCHEMA.field(field_number).type == column.type
        )
        if is_record_column and pt.is_integer(column.type):
            return pa.int64() if column.type.bit_width > 32 else pa.int32()
        return self._type((column.name,), column.type)

    def _type(self, path: tuple[str, ...], data_type: pa.DataType) -> pa.DataType:
        if isinstance(data_type, pa.BaseExtensionType):
            return self._type(path, data_type.storage_type)
        if pt.is_dictionary(data_type):
            return self._type(path, data_type.value_type)
        if pt.is_struct(data_type) and data_type.num_fields:
            _refuse_same_names(path, [field.name for field in data_type])
            return pa.struct(
                pa.field(field.name, self._type((*path, field.name), field.type))
                for field in data_type
            )
        if _matches_any(data_type, _LISTS):
            return pa.list_(
                pa.field("element", self._type((*path, "element"), data_type.value_type))
            )
        if pt.is_map(data_type):
            key, item = ((*path, name) for name in ("key", "value"))
            return pa.map_(
                self._type(key, data_type.key_type), self._type(item, data_type.item_type)
            )
        table_type = self._primitive_type(data_type)
        if table_type is None:
            raise InputError(
                f"the table format has no type for the column {'.'.join(path)}",
                found=data_type,
                hint="omit the column from --columns",
            )
        return table_type

    def _primitive_type(self, data_type: pa.DataType) -> pa.DataType | None:  # noqa: PLR0911, a case each
        if _matches_any(data_type, _INT64_TYPES):
            return pa.int64()
        if pt.is_floating(data_type):
            return pa.float64()
        if pt.is_uint64(data_type):
            return pa.decimal128(_UINT64_DIGITS)
        if _matches_any(data_type, _STRINGS) or pt.is_null(data_type):
            return pa.string()
        if _matches_any(data_type, _BINARIES) or (
            self._is_delta and pt.is_fixed_size_binary(data_type)
        ):
            return pa.binary()
        if pt.is_decimal(data_type) and data_type.precision <= _MAX_DIGITS:
            return pa.decimal128(data_type.precision, data_type.scale)
        if pt.is_date(data_type):
            return pa.date32()
        if pt.is_time(data_type) and not self._is_delta:
            return pa.time64("us")
        if data_type == pa.time64("us"):
            # Delta has no type for a time of day, which becomes the number of microseconds since
            # midnight.
            return pa.int64()
        if pt.is_timestamp(data_type):
            zone = None if data_type.tz is None else "UTC"
            return pa.int64() if data_type.unit == "ns" else pa.timestamp("us", zone)
        return data_type if pt.is_boolean(data_type) or pt.is_fixed_size_binary(data_type) else None


def _matches_any(data_type: pa.DataType, tests: Iterable[Callable[[pa.DataType], bool]]) -> bool:
    return any(test(data_type) for test in tests)


def _refuse_same_names(path: tuple[str, ...], names: Iterable[str]) -> None:
    names_by_folded_name: dict[str, str] = {}
    for name in names:
        first_name = names_by_folded_name.setdefault(name.casefold(), name)
        if names_by_folded_name[name.casefold()] is not name:
            raise InputError(
                "two column names of a table differ only in case",
                found=f"{'.'.join((*path, first_name))} and {'.'.join((*path, name))}",
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
        Returns whether the type of a table column fits the files, or can be widened to fit.
    """
    file_type, table_type = pa.struct(list(schema)), pa.struct(list(table))
    difference = _first_difference((), file_type, table_type, widens)
    if difference is not None:
        path, found_type, expected_type = difference
        raise InputError(
            f"the table {name} and the data files have different types for the column "
            f"{'.'.join(path)}",
            expected=expected_type,
            found=found_type,
            hint="export to another table, or omit the column from --columns",
        )


def _first_difference(
    path: tuple[str, ...],
    file_type: pa.DataType,
    table_type: pa.DataType,
    widens: Callable[[pa.DataType, pa.DataType], bool],
) -> tuple[tuple[str, ...], str, str] | None:
    """Return the first column that differs, with its type in the files and in the table."""
    type_name = _type_name(file_type)
    if type_name != _type_name(table_type):
        is_wider = (
            not file_type.num_fields and not table_type.num_fields and widens(table_type, file_type)
        )
        return None if is_wider else (path, str(file_type), str(table_type))
    required_fields = (
        [field for field in table_type if not field.nullable] if type_name == "struct" else []
    )
    if required_fields:
        return (
            (*path, required_fields[0].name),
            "a column with nulls",
            f"{required_fields[0].type} not null",
        )
    file_children, table_children = _children(file_type), _children(table_type)
    differences = (
        _first_difference((*path, name), file_children[name], table_children[name], widens)
        for name in table_children
        if name in file_children
    )
    return next((difference for difference in differences if difference is not None), None)


def _children(data_type: pa.DataType) -> dict[str, pa.DataType]:
    """Return the member types of a nested type, by name."""
    if pt.is_struct(data_type):
        return {field.name: field.type for field in data_type}
    if pt.is_map(data_type):
        return {"key": data_type.key_type, "value": data_type.item_type}
    return {"element": data_type.value_type} if _matches_any(data_type, _LISTS) else {}


def _type_name(data_type: pa.DataType) -> str:
    """Return the name of a type, which is the same for offsets of 32 and 64 bits."""
    if pt.is_struct(data_type) or pt.is_map(data_type):
        return "struct" if pt.is_struct(data_type) else "map"
    return "list" if _matches_any(data_type, _LISTS) else str(data_type).removeprefix("large_")


def small_type(data_type: pa.DataType) -> pa.DataType:
    """Return a type with all 64-bit offsets replaced by 32-bit offsets, at any depth."""
    if pt.is_struct(data_type):
        return pa.struct([pa.field(field.name, small_type(field.type)) for field in data_type])
    if pt.is_map(data_type):
        return pa.map_(small_type(data_type.key_type), small_type(data_type.item_type))
    if _matches_any(data_type, _LISTS):
        return pa.list_(pa.field("element", small_type(data_type.value_type)))
    if _matches_any(data_type, _STRINGS):
        return pa.string()
    return pa.binary() if _matches_any(data_type, _BINARIES) else data_type


def table_batch(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return the columns of a batch with the types of a table; missing columns are null.

    A timestamp outside of the years 1 to 9999 becomes null.
    """
    names = set(batch.schema.names)
    arrays = [
        _cast(batch.column(field.name), field.type)
        if field.name in names
        else pa.nulls(len(batch), field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _cast(array: pa.Array, data_type: pa.DataType) -> pa.Array:
    if array.type == pa.timestamp("ms", "UTC"):
        outside = is_outside_calendar(array.view(pa.int64()))
        if np.asarray(pc.fill_null(outside, fill_value=False)).any():
            array = pc.if_else(outside, pa.scalar(None, array.type), array)
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    if _type_name(array.type) == _type_name(data_type) and not _has_same_members(
        array.type, data_type
    ):
        return _conform_members(array, data_type)
    return array.cast(data_type, safe=False)


def _has_same_members(data_type: pa.DataType, expected_type: pa.DataType) -> bool:
    """Return whether two types have the same members in the same order, at any depth."""
    members, expected_members = _children(data_type), _children(expected_type)
    return list(members) == list(expected_members) and all(
        _has_same_members(members[name], expected_members[name]) for name in expected_members
    )


def _conform_members(array: pa.Array, data_type: pa.DataType) -> pa.Array:
    """Reorder and add the members of nested values, which Arrow's casts do not do."""
    mask = pc.is_null(array)
    if pt.is_struct(data_type):
        members = [
            _cast(array.field(field.name), field.type)
            if array.type.get_field_index(field.name) >= 0
            else pa.nulls(len(array), field.type)
            for field in data_type
        ]
        return pa.StructArray.from_arrays(members, fields=list(data_type), mask=mask)
    # The offsets are copied, because Arrow accepts no mask if the offsets are a slice.
    offsets = pa.array(np.array(array.offsets), pa.int32())
    if pt.is_map(data_type):
        keys, items = _cast(array.keys, data_type.key_type), _cast(array.items, data_type.item_type)
        return pa.MapArray.from_arrays(offsets, keys, items, type=data_type, mask=mask)
    values = _cast(array.values, data_type.value_type)
    return pa.ListArray.from_arrays(offsets, values, type=data_type, mask=mask)
