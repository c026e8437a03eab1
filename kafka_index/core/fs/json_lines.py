"""Conversion of Arrow columns of any type to JSON lines."""

from __future__ import annotations

import json
import math
from base64 import b64encode
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

_STRING_TYPE = pa.large_string()
_ESCAPED = r'["\\\x00-\x1f]'


def json_lines(rows: pa.RecordBatch) -> pa.Array:
    """Return rows as JSON objects, without line ends.

    Times are ISO 8601, with ``Z`` if the type has a zone. Decimals are strings, so that readers
    keep all digits. Bytes are base64. NaN and infinities are null, since JSON lacks them. Maps are
    objects. Raises `pa.ArrowInvalid` if JSON cannot represent a value.
    """
    lines = concatenate("{", *_format_members(rows), "}")
    return pa.repeat(lines, rows.num_rows) if isinstance(lines, pa.Scalar) else lines


def extended_lines(objects: pa.Array, rows: pa.RecordBatch) -> pa.Array:
    """Add the columns of `rows` to JSON objects; return the objects as lines with line ends.

    `objects` has one JSON object for each row, as large strings without surrounding whitespace.
    """
    open_objects = pc.binary_slice(objects.cast(pa.large_binary()), 0, -1).cast(_STRING_TYPE)
    open_objects = pc.ascii_rtrim(open_objects, " \t\r")
    # Without its closing brace, only an empty object ends with an opening brace.
    separator = pc.if_else(pc.ends_with(open_objects, "{"), "", ",").cast(_STRING_TYPE)
    return concatenate(open_objects, separator, *_format_members(rows), "}\n")


def concatenate(*strings: pa.Array | pa.Scalar | str) -> pa.Array | pa.Scalar:
    """Join strings row by row; the result is a scalar if no part is an array.

    A null in any part makes the result null.
    """
    scalars = (
        pa.scalar(string, _STRING_TYPE) if isinstance(string, str) else string for string in strings
    )
    return pc.binary_join_element_wise(*scalars, pa.scalar("", _STRING_TYPE))


def plain_column(column: pa.Array) -> pa.Array:
    """Decode dictionary columns, and convert extension types to their storage types."""
    while isinstance(column, pa.ExtensionArray | pa.DictionaryArray):
        is_encoded = isinstance(column, pa.DictionaryArray)
        column = column.dictionary_decode() if is_encoded else column.storage
    return column


def is_binary(data_type: pa.DataType) -> bool:
    types = pa.types
    type_checks = (types.is_binary, types.is_large_binary, types.is_fixed_size_binary)
    return any(is_type(data_type) for is_type in (*type_checks, types.is_binary_view))


def base64_texts(column: pa.Array) -> pa.Array:
    return pa.array(
        [None if value is None else b64encode(value).decode() for value in column.to_pylist()],
        _STRING_TYPE,
    )


def _format_members(rows: pa.RecordBatch) -> list[pa.Array | pa.Scalar]:
    members: list[pa.Array | pa.Scalar] = []
    for name, column in zip(rows.schema.names, rows.columns, strict=True):
        prefix = f"{',' if members else ''}{json.dumps(name, ensure_ascii=False)}:"
        try:
            members += [pa.scalar(prefix, _STRING_TYPE), json_values(column)]
        except (ValueError, TypeError) as error:
            raise pa.ArrowInvalid(f"{name}: {error}") from error
    return members


def json_values(column: pa.Array) -> pa.Array | pa.Scalar:
    """Return each value as JSON; a scalar if all values are null."""
    if column.null_count == len(column):
        return pa.scalar("null", _STRING_TYPE)
    column = plain_column(column)
    data_type, types = column.type, pa.types
    if types.is_nested(data_type):
        rows = _python_rows(column)
        lines = [None if row is None else json.dumps(_to_json_value(row)) for row in rows]
        values = pa.array(lines, _STRING_TYPE)
    elif types.is_integer(data_type) or types.is_boolean(data_type) or types.is_duration(data_type):
        values = column.cast(_STRING_TYPE)
    elif types.is_floating(data_type):
        values = pc.if_else(pc.is_finite(column), column.cast(_STRING_TYPE), None)
    elif (
        types.is_string(data_type)
        or types.is_large_string(data_type)
        or types.is_string_view(data_type)
    ):
        values = _quote_strings(column.cast(_STRING_TYPE))
    elif is_binary(data_type):
        values = concatenate('"', base64_texts(column), '"')
    elif types.is_timestamp(data_type):
        # Timestamps are formatted in UTC, without a time zone lookup.
        utc_times = column.view(pa.int64()).view(pa.timestamp(data_type.unit)).cast(_STRING_TYPE)
        times = pc.replace_substring(utc_times, " ", "T", max_replacements=1)
        values = concatenate('"', times, '"' if data_type.tz is None else 'Z"')
    else:
        values = concatenate('"', column.cast(_STRING_TYPE), '"')
    return values.fill_null("null")


def _python_rows(column: pa.Array) -> list[Any]:
    """Return nested values; in rows with years that Python lacks, their times are strings."""
    try:
        rows: list[Any] = column.to_pylist(maps_as_pydicts="lossy")
    except (OverflowError, ValueError):
        if len(column) > 1:
            return [_python_rows(column.slice(row, 1))[0] for row in range(len(column))]
        rows = column.cast(_replace_times(column.type)).to_pylist(maps_as_pydicts="lossy")
    return rows


def _replace_times(data_type: pa.DataType) -> pa.DataType:
    """Replace dates and timestamps in a nested type by strings."""
    types = pa.types
    if types.is_struct(data_type):
        return pa.struct([item.with_type(_replace_times(item.type)) for item in data_type])
    if types.is_map(data_type):
        return pa.map_(_replace_times(data_type.key_type), _replace_times(data_type.item_type))
    if types.is_list(data_type):
        return pa.list_(data_type.value_field.with_type(_replace_times(data_type.value_type)))
    return pa.string() if types.is_date(data_type) or types.is_timestamp(data_type) else data_type


def _quote_strings(strings: pa.Array) -> pa.Array:
    strings.validate(full=True)
    needs_escape = pc.match_substring_regex(strings, _ESCAPED).fill_null(False)  # noqa: FBT003
    if pc.any(needs_escape).as_py():
        escaped_strings = [
            json.dumps(string, ensure_ascii=False)[1:-1]
            for string in strings.filter(needs_escape).to_pylist()
        ]
        strings = pc.replace_with_mask(
            strings, needs_escape, pa.array(escaped_strings, _STRING_TYPE)
        )
    return concatenate('"', strings, '"')


def _to_json_value(value: Any) -> Any:
    """Convert a nested value to a form that JSON can represent."""
    match value:
        case dict():
            return {str(name): _to_json_value(member) for name, member in value.items()}
        case list():
            return [_to_json_value(member) for member in value]
        case bytes():
            value = b64encode(value).decode()
        case datetime() if value.tzinfo is None:
            value = value.isoformat()
        case datetime():
            value = f"{value.astimezone(UTC).replace(tzinfo=None).isoformat()}Z"
        case float() if not math.isfinite(value):
            value = None
    return value if isinstance(value, str | int | float | None) else str(value)
