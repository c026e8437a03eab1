"""Columns as lines of JSON."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kafka_index.lookup.conversion.values import base64_texts, is_binary, is_text, stored
from kafka_index.lookup.queries.texts import text_integers
from kafka_index.lookup.text_arrays import TEXT, join_texts

_NULL = "null"
_ODD = r'["\\\x00-\x1f]'


def json_lines(rows: pa.RecordBatch, numbers: Collection[str] = ()) -> pa.Array:
    """Return rows as objects, a line each, without line ends.

    Parameters
    ----------
    rows : RecordBatch
        Columns of different names.
    numbers : collection of str
        Columns of texts whose integers become numbers; what else they hold stays a string.

    Raises
    ------
    pa.ArrowException
        JSON cannot hold such values, or a text is not UTF-8.
    """
    values = []
    for name, column in zip(rows.schema.names, rows.columns, strict=True):
        try:
            values.append(_integers(column) if name in numbers else json_values(column))
        except pa.ArrowInvalid as error:
            raise pa.ArrowInvalid(f"{name}: {error}") from error
    return _objects(rows.schema.names, values)


def json_values(column: pa.Array) -> pa.Array:
    """Return each value of a column as JSON, whatever its type.

    Notes
    -----
    Times are ISO 8601, with ``Z`` where their type has a zone. Decimals are strings, of which no
    reader loses a digit. Bytes are base64. NaN and infinities, which JSON lacks, are null. Maps are
    objects, whatever their keys.
    """
    column = stored(column)
    kind, types = column.type, pa.types
    if types.is_struct(kind):
        values = _objects([field.name for field in kind], map(json_values, column.flatten()))
        values = pc.if_else(column.is_valid(), values, None)
    elif types.is_map(kind):
        values = _map(column)
    elif types.is_nested(kind):
        values = join_texts(
            ["[", _joined(column, json_values(pc.list_flatten(column))), "]"], null=None
        )
    elif types.is_floating(kind):
        finite = pc.is_finite(column)
        values = pc.if_else(finite, pc.cast(column, TEXT), None)
    elif types.is_integer(kind) or types.is_boolean(kind) or types.is_duration(kind):
        values = pc.cast(column, TEXT)
    elif is_text(kind):
        values = _strings(pc.cast(column, TEXT))
    else:
        values = join_texts(['"', _plain_text(column), '"'], null=None)
    return pc.fill_null(values, _NULL)


def _plain_text(column: pa.Array) -> pa.Array:
    """Return values as texts in which nothing needs to be escaped."""
    kind = column.type
    if is_binary(kind):
        return base64_texts(column)
    if not pa.types.is_timestamp(kind):
        return pc.cast(column, TEXT)
    # In UTC, without asking what is known about zones.
    plain = column.view(pa.int64()).view(pa.timestamp(kind.unit))
    texts = pc.replace_substring(pc.cast(plain, TEXT), " ", "T", max_replacements=1)
    return texts if kind.tz is None else join_texts([texts, "Z"], null=None)


def _strings(texts: pa.Array) -> pa.Array:
    texts.validate(full=True)
    odd = pc.fill_null(pc.match_substring_regex(texts, _ODD), False)  # noqa: FBT003
    if pc.any(odd).as_py():
        escaped = [
            json.dumps(text, ensure_ascii=False)[1:-1] for text in texts.filter(odd).to_pylist()
        ]
        texts = pc.replace_with_mask(texts, odd, pa.array(escaped, TEXT))
    return join_texts(['"', texts, '"'], null=None)


def _integers(texts: pa.Array) -> pa.Array:
    values, valid = text_integers(texts)
    numbers = pc.cast(pa.array(values), TEXT)
    return numbers if valid is None else pc.if_else(pa.array(valid), numbers, json_values(texts))


def _objects(names: Any, values: Any) -> pa.Array:
    pieces: list[Any] = []
    for name, value in zip(names, values, strict=True):
        pieces += [f"{',' if pieces else '{'}{json.dumps(name, ensure_ascii=False)}:", value]
    return join_texts([*pieces, "}"])


def _map(column: pa.Array) -> pa.Array:
    kind = column.type
    pairs = [pa.field("key", kind.key_type, nullable=False), pa.field("value", kind.item_type)]
    entries = column.cast(pa.list_(pa.struct(pairs)))
    keys, values = map(json_values, pc.list_flatten(entries).flatten())
    # Names of members are strings: of a number, of a struct, what would be its JSON.
    names = pc.if_else(pc.starts_with(keys, '"'), keys, _strings(keys))
    return join_texts(["{", _joined(entries, join_texts([names, ":", values])), "}"], null=None)


def _joined(lists: pa.Array, values: pa.Array) -> pa.Array:
    """Return the texts of the values of each list with commas between them."""
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy()
    offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
    regrouped = pa.ListArray.from_arrays(pa.array(offsets), values)
    joined = pc.binary_join(regrouped, pa.scalar(",", TEXT))
    return pc.if_else(lists.is_valid(), joined, None)
