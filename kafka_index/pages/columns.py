"""Columns of a page: packed in Python, unpacked by ``static/columns.js``.

An integer column is delta-coded or taken relative to another column, whichever packs better, mapped
to unsigned numbers (zigzag), and written byte plane by byte plane: first the low bytes of all rows.
A text column is its distinct values as JSON and, as integers, which of them each row has. All of it
is gzip, which every browser decompresses, in base64.
"""

from __future__ import annotations

import base64
import gzip
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kafka_index.layout.integers import Longs
from kafka_index.layout.names import OFFSET_DIGITS

#: Beyond this, integers of a column are BigInt in JavaScript: differences of smaller ones, doubled
#: by zigzag, are exact as its numbers.
_MAX_EXACT = 1 << 51
_MILLISECONDS = 1000
# Stands in a path for the base offset in 20 digits; no path holds it.
_BASE_OFFSET = "\0"
_QUICK, _BEST = 1, 9


@dataclass(frozen=True, slots=True)
class PackedColumn:
    """A column of a page: its bytes in base64, and the header by which the page unpacks them."""

    header: dict[str, object]
    payloads: tuple[str, ...]


def pack_columns(table: pa.Table) -> list[PackedColumn]:
    """Pack the columns of a table; those without a value are left out.

    A floating-point column is rounded to thousandths. In text columns, the base offset of a row in
    20 digits is written once.
    """
    integers: dict[str, Longs] = {}
    packed = []
    for name in table.column_names:
        column = table[name]
        if len(column) and column.null_count == len(column):
            continue
        kind = column.type
        if pa.types.is_string(kind):
            packed.append(_text(name, column, integers.get("segment_base_offset")))
            continue
        scale = 1
        if pa.types.is_boolean(kind):
            column = column.cast(pa.int8())
        elif pa.types.is_floating(kind):
            scale = _MILLISECONDS
            column = pc.round(pc.multiply(column, float(scale)))
        values = pc.fill_null(column.cast(pa.int64(), safe=False), 0).to_numpy()
        header, payloads = _integers(values, integers)
        if column.null_count:
            header["nulls"] = True
            missing = np.packbits(column.is_null().to_numpy(), bitorder="little")
            payloads += (_payload(missing.tobytes()),)
        if not header["wide"]:
            integers[name] = values
        form = "boolean" if pa.types.is_boolean(kind) else "integer"
        packed.append(
            PackedColumn({"name": name, "form": form, "scale": scale, **header}, payloads)
        )
    return packed


def _integers(
    values: Longs, others: Mapping[str, Longs]
) -> tuple[dict[str, object], tuple[str, ...]]:
    """Pack integers in the coding that gives the fewest bytes.

    ``relative`` is the column that they are taken relative to, the values before them if it is
    empty, nothing if it is null.
    """
    wide = _is_wide(values)
    codings: dict[str | None, Longs] = {None: values, "": np.diff(values, prepend=np.int64(0))}
    if not wide:
        codings |= {name: values - other for name, other in others.items()}
    planes = {name: _planes(coded) for name, coded in codings.items()}
    best = min(planes, key=lambda name: len(zlib.compress(planes[name][1], _QUICK)))
    width, raw = planes[best]
    header: dict[str, object] = {"width": width, "wide": wide, "relative": best}
    return header, (_payload(raw),)


def _is_wide(values: Longs) -> bool:
    return len(values) > 0 and bool(values.max() > _MAX_EXACT or values.min() < -_MAX_EXACT)


def _planes(values: Longs) -> tuple[int, bytes]:
    """Return the bytes that a value needs, and the byte planes of all."""
    zigzag = ((values << 1) ^ (values >> 63)).astype("<i8")
    planes = zigzag.view(np.uint8).reshape(-1, 8).T
    used = np.flatnonzero(planes.any(axis=1))
    width = int(used[-1]) + 1 if len(used) else 1
    return width, np.ascontiguousarray(planes[:width]).tobytes()


def _text(name: str, column: pa.ChunkedArray, base_offsets: Longs | None) -> PackedColumn:
    if base_offsets is not None and name.endswith("path"):
        column = pa.chunked_array([_without_base_offsets(column, base_offsets)])
    encoded = column.combine_chunks().dictionary_encode()
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.combine_chunks()
    codes = pc.fill_null(encoded.indices, -1).cast(pa.int64()).to_numpy()
    header, payloads = _integers(codes, {})
    words = json.dumps(encoded.dictionary.to_pylist()).encode()
    return PackedColumn({"name": name, "form": "text", **header}, (*payloads, _payload(words)))


def _without_base_offsets(column: pa.ChunkedArray, base_offsets: Longs) -> pa.Array:
    texts = (
        text if text is None else text.replace(f"{base:0{OFFSET_DIGITS}d}", _BASE_OFFSET)
        for text, base in zip(column.to_pylist(), base_offsets.tolist(), strict=True)
    )
    return pa.array(texts, pa.string())


def _payload(content: bytes) -> str:
    return base64.b64encode(gzip.compress(content, _BEST, mtime=0)).decode()
