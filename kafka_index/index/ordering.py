"""Putting many targets into ascending order, which is how an index is searched fastest."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kafka_index.kernels import is_ascending

Longs = NDArray[np.int64]

_KEY_BITS = 63


def ascending(targets: Longs) -> tuple[Longs, Longs]:
    """Sort targets.

    Parameters
    ----------
    targets : ndarray of int64, shape (n,)
        In any order.

    Returns
    -------
    tuple of ndarray of int64, shape (n,)
        The targets in ascending order, and the row each of them had.
    """
    count = len(targets)
    targets = np.ascontiguousarray(targets, np.int64)
    if is_ascending(targets):
        return targets, np.arange(count)
    least, largest = int(targets.min()), int(targets.max())
    row_bits = max(count - 1, 1).bit_length()
    if (largest - least).bit_length() + row_bits > _KEY_BITS:
        rows = np.argsort(targets, kind="stable")
        return targets[rows], rows
    # One sort of plain integers, target and row in one, is twice as fast as an argsort.
    packed = targets - least
    packed <<= row_bits
    packed |= np.arange(count)
    packed.sort()
    rows = packed & ((1 << row_bits) - 1)
    packed >>= row_bits
    packed += least
    return packed, rows
