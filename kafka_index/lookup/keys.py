"""What queries ask for, as numbers: offsets, or timestamps in milliseconds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from kafka_index.errors import InputError
from kafka_index.lookup.settings import By

Longs = NDArray[np.int64]
Flags = NDArray[np.bool_]

_INT64_MAX = np.iinfo(np.int64).max
_MS_PER_DAY = 86_400_000
# Of a timestamp type: how many of its units are a millisecond, or how many milliseconds one is.
_UNITS_PER_MS = {"ms": 1, "us": 1_000, "ns": 1_000_000}
_MS_PER_SECOND = 1_000


@dataclass(frozen=True, slots=True)
class Keys:
    """The offsets or timestamps of n queries.

    Parameters
    ----------
    values : ndarray of int64, shape (n,)
        Offsets, or milliseconds since the epoch; anything where `valid` is false.
    valid : ndarray of bool, shape (n,), optional
        Where there is one; None: everywhere.
    specials : bool
        Whether -1, -2 and -3 are places (`SpecialTimestamp`). Not so where the column has a
        timestamp's type: there they are the milliseconds before 1970.
    """

    values: Longs
    valid: Flags | None = None
    specials: bool = True

    def __len__(self) -> int:
        """Return the number of queries."""
        return len(self.values)

    @classmethod
    def of(cls, column: pa.Array | pa.ChunkedArray, by: By) -> Keys:
        """Return the keys of a column that `check_columns` lets pass.

        Parameters
        ----------
        column : Array
            Integers (timestamps: milliseconds), or for timestamps a timestamp or date type.
            Timestamps finer than milliseconds are rounded up: the first one at or after.
            Timestamps without a zone are UTC.
        by : By
            What the column holds.
        """
        column = plain_array(column)
        if pa.types.is_integer(column.type):
            values, valid = integers(column)
            return cls(values, valid)
        if by is By.OFFSET:
            raise InputError("offsets must be integers", found=column.type)
        return cls(milliseconds(column), _valid(column), specials=False)


def plain_array(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Return a column as one array, not dictionary-encoded."""
    if isinstance(column, pa.ChunkedArray):
        column = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
    if pa.types.is_dictionary(column.type):
        return column.dictionary_decode()
    return column


def integers(column: pa.Array) -> tuple[Longs, Flags | None]:
    """Return an array of integers as int64, and where there is one that fits (None: all)."""
    valid = _valid(column)
    if column.type == pa.uint64():
        wide = column.fill_null(0).to_numpy(zero_copy_only=False)
        fits = wide <= _INT64_MAX
        if not fits.all():
            valid = fits if valid is None else valid & fits
        return wide.astype(np.int64), valid
    return _longs(column.cast(pa.int64())), valid


def milliseconds(column: pa.Array) -> Longs:
    """Return an array of a timestamp or date type as milliseconds, rounded up."""
    kind = column.type
    if pa.types.is_date32(kind):
        return _longs(column.view(pa.int32()).cast(pa.int64())) * _MS_PER_DAY
    values = _longs(column.view(pa.int64()))
    if pa.types.is_date64(kind):
        return values
    if kind.unit == "s":
        # Beyond what milliseconds can say lies beyond every record, too.
        most = _INT64_MAX // _MS_PER_SECOND
        return np.clip(values, -most, most) * _MS_PER_SECOND
    return ceil_divide(values, _UNITS_PER_MS[kind.unit])


def ceil_divide(values: Longs, by: int) -> Longs:
    """Divide and round up, without the overflow of adding first."""
    if by == 1:
        return values
    whole: Longs = values // by
    whole += values != whole * by
    return whole


def _valid(column: pa.Array) -> Flags | None:
    if not column.null_count:
        return None
    return np.asarray(pc.is_valid(column).to_numpy(zero_copy_only=False))


def _longs(column: pa.Array) -> Longs:
    values: Longs = column.fill_null(0).to_numpy(zero_copy_only=False)
    return values
