"""Sorting integers by some of their bits, several times as fast as numpy's sort of integers."""

from __future__ import annotations

import numpy as np

from kafka_index.kernels.compile_cache import compiled
from kafka_index.layout.integers import Longs

# So many places at a time are written to; more of them than the TLB has pages for would be slower.
_DIGIT_BITS = 10
_DIGITS = 1 << _DIGIT_BITS


@compiled
def radix_sort(keys: Longs, scratch: Longs, low_bits: int, high_bits: int) -> Longs:
    """Sort keys by their high bits; those of equal high bits keep their order.

    Parameters
    ----------
    keys : ndarray of int64, shape (n,)
        0 or more. Overwritten.
    scratch : ndarray of int64, shape (n,)
        Overwritten.
    low_bits : int
        How many low bits do not count.
    high_bits : int
        How many bits above them do; those above are 0.

    Returns
    -------
    ndarray of int64, shape (n,)
        ``keys`` or ``scratch``, whichever holds the sorted keys.
    """
    passes = (high_bits + _DIGIT_BITS - 1) // _DIGIT_BITS
    places = np.zeros((passes, _DIGITS), np.int64)
    for row in range(len(keys)):
        rest = keys[row] >> low_bits
        for number in range(passes):
            places[number, rest & (_DIGITS - 1)] += 1
            rest >>= _DIGIT_BITS
    for number in range(passes):
        starts = places[number]
        start = 0
        for digit in range(_DIGITS):
            count = starts[digit]
            starts[digit] = start
            start += count
        shift = low_bits + number * _DIGIT_BITS
        for row in range(len(keys)):
            key = keys[row]
            digit = (key >> shift) & (_DIGITS - 1)
            place = starts[digit]
            starts[digit] = place + 1
            scratch[place] = key
        keys, scratch = scratch, keys
    return keys


def warm_up(nothing: Longs) -> None:
    """Load or compile the sort."""
    radix_sort(nothing, nothing, 0, 0)
