"""Spreading work over bins."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_index.execution import Waves
from kafka_index.execution.engine import balance, split_waves


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


def sizes_of(costs: list[int], waves: Waves, workers: int) -> list[int]:
    return [end - start for start, end in split_waves(costs, waves, workers)]


def test_waves_whose_results_are_kept_have_a_gibibyte_for_each_worker_or_are_64() -> None:
    quarter = 256 << 20
    assert sizes_of([quarter] * 20, Waves.KEPT, 2) == [8, 8, 4]
    assert sizes_of([8 * quarter] * 640, Waves.KEPT, 2) == [10] * 64
    assert sizes_of([], Waves.KEPT, 2) == []


def test_waves_grow_up_to_a_few_works_for_each_worker() -> None:
    assert sizes_of([1] * 30, Waves.GROWING, 2) == [2, 4, 8, 8, 8]


def test_one_wave_has_all_works() -> None:
    assert sizes_of([1 << 40] * 9, Waves.ONE, 1) == [9]
    assert sizes_of([], Waves.ONE, 1) == []
