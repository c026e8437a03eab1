"""Conversion of Arrow columns of any type to JSON lines."""

from __future__ import annotations

import json
import math
from base64 import b64encode
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

_TEXT = pa.large_string()
_ESCAPED = r'["\\\x00-\x1f]'


def json_lines(rows: pa.RecordBatch) -> pa.Array:
    """Return rows as JSON objects, without line ends.

    Times are ISO 8601, with ``Z`` if the type has a zone. Decimals are strings, so that readers
    keep all digits. Bytes are base64. NaN and infinities are null, since JSON lacks them. Maps are
    objects. Raises `pa.ArrowInvalid` if JSON cannot represent a value.
    """
    lines = concatenate("{", *_members(rows), "}")
    return pa.repeat(lines, rows.num_rows) if isinstance(lines, pa.Scalar) else lines


def extended_lines(objects: pa.Array, rows: pa.RecordBatch) -> pa.Array:
    """Return JSON lines, including line ends: objects extended by the columns of `rows`.

    The objects are large strings without surrounding whitespace, as many as rows.
    """
    opened = pc.binary_slice(objects.cast(pa.large_binary()), 0, -1).cast(_TEXT)
    opened = pc.ascii_rtrim(opened, " \t\r")
    # Only an empty object still ends with its opening brace here.
    separator = pc.if_else(pc.ends_with(opened, "{"), "", ",").cast(_TEXT)
    return concatenate(opened, separator, *_members(rows), "}\n")


def concatenate(*parts: pa.Array | pa.Scalar | str) -> pa.Array | pa.Scalar:
    """Join strings row by row; the result is a scalar if all parts are.

    Any null makes it null.
    """
    scalars = (pa.scalar(part, _TEXT) if isinstance(part, str) else part for part in parts)
    return pc.binary_join_element_wise(*scalars, pa.scalar("", _TEXT))


def plain_column(column: pa.Array) -> pa.Array:
    """Convert dictionary and extension types to their plain types."""
    while isinstance(column, pa.ExtensionArray | pa.DictionaryArray):
        is_encoded = isinstance(column, pa.DictionaryArray)
        column = column.dictionary_decode() if is_encoded else column.storage
    return column


def is_binary(kind: pa.DataType) -> bool:
    types = pa.types
    checks = (types.is_binary, types.is_large_binary, types.is_fixed_size_binary)
    return any(check(kind) for check in (*checks, types.is_binary_view))


def base64_texts(column: pa.Array) -> pa.Array:
    return pa.array(
        [None if value is None else b64encode(value).decode() for value in column.to_pylist()],
        _TEXT,
    )


def _members(rows: pa.RecordBatch) -> list[pa.Array | pa.Scalar]:
    parts: list[pa.Array | pa.Scalar] = []
    for name, column in zip(rows.schema.names, rows.columns, strict=True):
        prefix = f"{',' if parts else ''}{json.dumps(name, ensure_ascii=False)}:"
        try:
            parts += [pa.scalar(prefix, _TEXT), json_values(column)]
        except (ValueError, TypeError) as error:
            raise pa.ArrowInvalid(f"{name}: {error}") from error
    return parts


def json_values(column: pa.Array) -> pa.Array | pa.Scalar:
    """Return each value as JSON; one scalar if all values are null."""
    if column.null_count == len(column):
        return pa.scalar("null", _TEXT)
    column = plain_column(column)
    kind, types = column.type, pa.types
    if types.is_nested(kind):
        rows = _python_rows(column)
        texts = [None if row is None else json.dumps(_plain(row)) for row in rows]
        values = pa.array(texts, _TEXT)
    elif types.is_integer(kind) or types.is_boolean(kind) or types.is_duration(kind):
        values = column.cast(_TEXT)
    elif types.is_floating(kind):
        values = pc.if_else(pc.is_finite(column), column.cast(_TEXT), None)
    elif types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
        values = _strings(column.cast(_TEXT))
    elif is_binary(kind):
        values = concatenate('"', base64_texts(column), '"')
    elif types.is_timestamp(kind):
        # Timestamps are formatted in UTC, without a time zone lookup.
        plain = column.view(pa.int64()).view(pa.timestamp(kind.unit)).cast(_TEXT)
        times = pc.replace_substring(plain, " ", "T", max_replacements=1)
        values = concatenate('"', times, '"' if kind.tz is None else 'Z"')
    else:
        values = concatenate('"', column.cast(_TEXT), '"')
    return values.fill_null("null")


def _python_rows(column: pa.Array) -> list[Any]:
    """Return nested values; their times are texts in rows with years that Python does not have."""
    try:
        rows: list[Any] = column.to_pylist(maps_as_pydicts="lossy")
    except (OverflowError, ValueError):
        if len(column) > 1:
            return [_python_rows(column.slice(row, 1))[0] for row in range(len(column))]
        rows = column.cast(_with_texts(column.type)).to_pylist(maps_as_pydicts="lossy")
    return rows


def _with_texts(kind: pa.DataType) -> pa.DataType:
    """Return a nested type with text in place of dates and timestamps."""
    types = pa.types
    if types.is_struct(kind):
        return pa.struct([one.with_type(_with_texts(one.type)) for one in kind])
    if types.is_map(kind):
        return pa.map_(_with_texts(kind.key_type), _with_texts(kind.item_type))
    if types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_with_texts(kind.value_type)))
    return pa.string() if types.is_date(kind) or types.is_timestamp(kind) else kind


def _strings(texts: pa.Array) -> pa.Array:
    texts.validate(full=True)
    escaped = pc.match_substring_regex(texts, _ESCAPED).fill_null(False)  # noqa: FBT003
    if pc.any(escaped).as_py():
        replaced = [
            json.dumps(text, ensure_ascii=False)[1:-1] for text in texts.filter(escaped).to_pylist()
        ]
        texts = pc.replace_with_mask(texts, escaped, pa.array(replaced, _TEXT))
    return concatenate('"', texts, '"')


def _plain(value: Any) -> Any:
    """Convert a nested value to a form that JSON can represent."""
    match value:
        case dict():
            return {str(name): _plain(item) for name, item in value.items()}
        case list():
            return [_plain(item) for item in value]
        case bytes():
            value = b64encode(value).decode()
        case datetime() if value.tzinfo is None:
            value = value.isoformat()
        case datetime():
            value = f"{value.astimezone(UTC).replace(tzinfo=None).isoformat()}Z"
        case float() if not math.isfinite(value):
            value = None
    return value if isinstance(value, str | int | float | None) else str(value)
