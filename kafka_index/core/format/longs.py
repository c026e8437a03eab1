"""Arrays of int64: columns of offsets, positions and timestamps."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kafka_index.core.errors import ConfigError, argument_text
from kafka_index.core.format.integers import INT64_MAX

Longs = NDArray[np.int64]


def find_ranges(flags: NDArray[np.bool_]) -> Longs:
    """Return the start and exclusive end of each range of set flags, shape (n, 2)."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], flags, [False])).astype(np.int8)))
    ranges: Longs = edges.reshape(-1, 2)
    return ranges


def to_longs(values: object, name: str) -> Longs:
    """Convert a caller's numbers to an array; raises `ConfigError` for other types and shapes."""
    try:
        array = np.asarray(values)
    except (TypeError, ValueError):
        array = np.empty((), object)
    is_int64 = array.dtype.kind == "i" or (
        array.dtype.kind == "u" and (not array.size or int(array.max()) <= INT64_MAX)
    )
    if array.ndim != 1 or (array.size and not is_int64):
        raise ConfigError(
            f"{name} is not an array of integers",
            expected="a one-dimensional array of 64-bit integers",
            found=argument_text(values),
        )
    return np.asarray(array, np.int64)
