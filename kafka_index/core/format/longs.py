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


def longs_of(values: object, name: str) -> Longs:
    """Convert a caller's numbers to an array; raises `ConfigError` for other types and shapes."""
    try:
        found = np.asarray(values)
    except (TypeError, ValueError):
        found = np.empty((), object)
    is_whole = found.dtype.kind == "i" or (
        found.dtype.kind == "u" and (not found.size or int(found.max()) <= INT64_MAX)
    )
    if found.ndim != 1 or (found.size and not is_whole):
        raise ConfigError(
            f"{name} is not an array of integers",
            expected="integers of 64 bits, in one dimension",
            found=argument_text(values),
        )
    return np.asarray(found, np.int64)
