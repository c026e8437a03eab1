"""What texts of both kinds make of types alike."""

from __future__ import annotations

from base64 import b64encode

import pyarrow as pa

from kafka_index.lookup.text_arrays import TEXT


def stored(column: pa.Array) -> pa.Array:
    """Return a column as an array of a type that Arrow itself knows what to do with."""
    while isinstance(column, pa.ExtensionArray | pa.DictionaryArray):
        is_coded = isinstance(column, pa.DictionaryArray)
        column = column.dictionary_decode() if is_coded else column.storage
    return column


def is_text(kind: pa.DataType) -> bool:
    """Return whether values are texts."""
    types = pa.types
    checks = (types.is_string, types.is_large_string, types.is_string_view)
    return any(check(kind) for check in checks)


def is_binary(kind: pa.DataType) -> bool:
    """Return whether values are bytes."""
    types = pa.types
    checks = (
        types.is_binary,
        types.is_large_binary,
        types.is_fixed_size_binary,
        types.is_binary_view,
    )
    return any(check(kind) for check in checks)


def base64_texts(column: pa.Array) -> pa.Array:
    """Return bytes as base64."""
    return pa.array(
        [None if value is None else b64encode(value).decode() for value in column.to_pylist()],
        TEXT,
    )
