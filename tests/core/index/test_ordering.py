"""Targets in ascending order, and the rows they came from."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from kafka_index.core.index.slot_search import ascending

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
INT64S = st.integers(INT64_MIN, INT64_MAX)
# Near together they are packed with their rows, far apart they are not.
TARGETS = st.lists(st.integers(-5, 5) | st.sampled_from((INT64_MIN, INT64_MAX)), max_size=40)


def assert_sorted(targets: NDArray[np.int64]) -> None:
    """In ascending order, with the row of each, and equal ones in the order of their rows."""
    before = targets.copy()
    values, rows = ascending(targets)
    expected = sorted(range(len(targets)), key=lambda row: int(targets[row]))
    assert rows.tolist() == expected
    assert values.tolist() == [int(targets[row]) for row in expected]
    assert {str(values.dtype), str(rows.dtype)} == {"int64"}
    assert targets.tolist() == before.tolist()


@given(TARGETS | st.lists(INT64S, max_size=40) | st.lists(st.integers(0, 9), max_size=700))
def test_ascending_returns_sorted_targets_with_their_rows(targets: list[int]) -> None:
    assert_sorted(np.array(targets, np.int64))


@given(st.integers(0, 62), INT64S, st.integers(2, 70))
def test_targets_of_any_distribution_are_sorted(bits: int, least: int, count: int) -> None:
    # From one bit on the spread and the rows do not fit into one integer.
    least = min(least, INT64_MAX - (1 << bits))
    spread = [least + (1 << bits) * (row * 7 % count) // count for row in range(count)]
    assert_sorted(np.array([*spread, least + (1 << bits), least], np.int64))


@pytest.mark.parametrize("count", [1023, 1024, 5000])
@pytest.mark.parametrize("bits", [1, 10, 11, 30, 50])
@pytest.mark.parametrize("least", [0, -17, INT64_MIN])
def test_many_targets_are_sorted(count: int, bits: int, least: int) -> None:
    targets = np.random.default_rng(bits).integers(0, 1 << bits, count)
    assert_sorted(targets + least)


def test_empty_targets_are_sorted() -> None:
    values, rows = ascending(np.empty(0, np.int64))
    assert (values.tolist(), rows.tolist()) == ([], [])


def test_sorted_targets_are_not_copied() -> None:
    targets = np.arange(100)
    assert ascending(targets)[0] is targets


@pytest.mark.parametrize("kind", [np.int32, np.int16, ">i8"])
def test_targets_of_other_integer_types_are_sorted(kind: str) -> None:
    values, rows = ascending(np.array([3, -1, 2], kind))
    assert (values.tolist(), rows.tolist()) == ([-1, 2, 3], [1, 2, 0])
    assert values.dtype == np.int64


def test_strided_targets_are_sorted() -> None:
    assert_sorted(np.array([9, 0, 4, 0, 7, 0, 1, 0], np.int64)[::2])
