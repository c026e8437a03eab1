"""Numbers and times out of texts: the cells of CSV and JSON.

A cell that holds neither is marked, never an error. Whole columns are parsed at a time; only cells
of unusual form are looked at one by one.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kafka_index.layout.times import parse_integer, parse_iso_time
from kafka_index.lookup.keys import Flags, Keys, Longs, ceil_divide
from kafka_index.lookup.settings import By

_INT64 = np.iinfo(np.int64)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)
_BLANKS = " \t"

# So many digits always fit into int64.
_SHORT_INTEGER = r"^[+-]?[0-9]{1,18}$"
# What Arrow parses at once, in microseconds.
_ZONED = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,6})?)?(Z|[+-][0-9]{2}:?[0-9]{2})$"  # noqa: E501


def text_keys(column: pa.Array, by: By) -> Keys:
    """Return the keys of a column of texts.

    Parameters
    ----------
    column : Array of strings
        Integers (timestamps: milliseconds); for timestamps also ISO 8601 dates and times, UTC
        where they name no zone, rounded up to a millisecond.
    by : By
        What the column holds.

    Notes
    -----
    Only an integer can be a special timestamp: a time before 1970 is no valid key.
    """
    if by is By.OFFSET:
        return Keys(*text_integers(column))
    times = _all_times(column)
    if times is not None:
        return Keys(times, times >= 0)
    values, valid = text_integers(column)
    if valid is None:
        return Keys(values)
    rest = np.flatnonzero(~valid & _present(column))
    if len(rest):
        values = values.copy()
        values[rest], valid[rest] = _times(column.take(pa.array(rest)))
    return Keys(values, valid)


def text_integers(column: pa.Array) -> tuple[Longs, Flags | None]:
    """Return texts as int64, and which of them hold one (None: all)."""
    whole = _cast(column, pa.int64())
    # Arrow takes 0x10 for a number.
    if whole is not None and not any(
        pc.any(pc.starts_with(column, start)).as_py() for start in ("0x", "0X")
    ):
        return _filled(whole), _present(column) if column.null_count else None
    texts = pc.utf8_trim(_legible(column), _BLANKS)
    short = pc.fill_null(pc.match_substring_regex(texts, _SHORT_INTEGER), False)  # noqa: FBT003
    unsigned = pc.utf8_ltrim(pc.if_else(short, texts, None), "+")
    values = _filled(pc.cast(unsigned, pa.int64())).copy()
    valid = np.array(short.to_numpy(zero_copy_only=False))
    for row in np.flatnonzero(~valid):
        text = texts[int(row)].as_py()
        value = None if text is None else parse_integer(text)
        if value is not None:
            values[row], valid[row] = value, True
    return values, valid


def _all_times(column: pa.Array) -> Longs | None:
    """Return a column that holds nothing but times with a zone, as most do, else None."""
    if not len(column) or column.null_count:
        return None
    # One look first: a column of integers should not pay for being tried as times.
    if parse_iso_time(_legible(column.slice(0, 1))[0].as_py() or "") is None:
        return None
    parsed = _cast(column, pa.timestamp("us", "UTC"))
    return None if parsed is None else _microseconds(parsed)


def _times(column: pa.Array) -> tuple[Longs, Flags]:
    """Return texts that are no integers as times, and which of them are one, not before 1970."""
    texts = pc.utf8_trim(_legible(column), _BLANKS)
    zoned = pc.match_substring_regex(texts, _ZONED)
    parsed = _cast(pc.if_else(zoned, texts, None), pa.timestamp("us", "UTC"))
    values = np.full(len(column), -1, np.int64)
    left = np.arange(len(column))
    if parsed is not None:
        done = np.array(zoned.to_numpy(zero_copy_only=False))
        values[done] = _microseconds(parsed)[done]
        left = np.flatnonzero(~done)
    for row in left:
        time = parse_iso_time(texts[int(row)].as_py())
        if time is not None:
            values[row] = time
    return values, values >= 0


def _microseconds(times: pa.Array) -> Longs:
    return ceil_divide(_filled(times.view(pa.int64())), 1_000)


def _cast(column: pa.Array, kind: pa.DataType) -> pa.Array | None:
    try:
        return pc.cast(column, kind)
    except pa.ArrowInvalid:
        return None


def _legible(column: pa.Array) -> pa.Array:
    """Return texts with those that are not UTF-8 made empty: no number is among them."""
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        cells = column.cast(pa.binary()).to_pylist()
        return pa.array([None if cell is None else _decoded(cell) for cell in cells], pa.string())
    return column


def _decoded(cell: bytes) -> str:
    try:
        return cell.decode()
    except UnicodeDecodeError:
        return ""


def _present(column: pa.Array) -> Flags:
    return np.array(pc.is_valid(column).to_numpy(zero_copy_only=False))


def _filled(column: pa.Array) -> Longs:
    values: Longs = column.fill_null(0).to_numpy(zero_copy_only=False)
    return values
