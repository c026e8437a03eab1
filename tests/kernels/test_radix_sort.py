"""The radix sort against Python's, by the bits that count."""

from __future__ import annotations

import numpy as np
import pytest

from kafka_index.kernels.search import radix_sort


@pytest.mark.parametrize("high_bits", [0, 1, 10, 11, 20, 21, 40])
@pytest.mark.parametrize("low_bits", [0, 5, 23])
def test_keys_are_sorted_by_their_high_bits_and_else_keep_their_order(
    low_bits: int, high_bits: int
) -> None:
    drawn = np.random.default_rng(high_bits).integers(0, 1 << (low_bits + high_bits), 3000)
    expected = sorted(drawn.tolist(), key=lambda key: key >> low_bits)

    found = radix_sort(drawn.copy(), np.empty_like(drawn), low_bits, high_bits)

    assert found.tolist() == expected
