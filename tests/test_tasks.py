"""Spreading work over bins."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_index.tasks import balance


@given(st.lists(st.integers(0, 1000), max_size=40), st.integers(1, 7), st.integers(0, 50))
def test_no_bin_has_more_than_the_smallest_and_one_item(
    sizes: list[int], bins: int, overhead: int
) -> None:
    loads = [0] * bins
    for size, number in zip(sizes, balance(sizes, bins, overhead=overhead), strict=True):
        loads[number] += size + overhead
    assert max(loads) - min(loads) <= max(sizes, default=0) + overhead


def test_items_without_a_size_are_spread_too() -> None:
    assert sorted(balance([0] * 6, 3)) == [0, 0, 1, 1, 2, 2]


def test_no_bins_are_refused() -> None:
    with pytest.raises(ValueError, match="one bin or more, not 0"):
        balance([1], 0)
