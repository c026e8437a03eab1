"""Index entries, runs of answers and the radix sort, against plain Python."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_index.core.kernels.index_entries import choose_entries
from kafka_index.core.kernels.search import number_groups, radix_sort, scatter_groups
from tests.support import kernel_models

Batch = tuple[int, int, int]
TIMES = st.integers(-3, 30) | st.sampled_from((-(2**63), 2**63 - 1))


@st.composite
def batches(draw: st.DrawFn) -> list[Batch]:
    """Positions, last offsets and timestamps of a log."""
    rows = draw(st.lists(st.tuples(st.integers(26, 120), st.integers(1, 9), TIMES), max_size=40))
    position, offset = 0, -1
    result = []
    for size, delta, time in rows:
        offset += delta
        result.append((position, offset, time))
        position += size
    return result


def chosen(parts: list[list[Batch]], interval: int) -> tuple[list[Batch], Batch]:
    """The choices of the kernel chunk by chunk; rows count from the first chunk on."""
    state = np.array([0, -1, -1], np.int64)
    result = []
    before = 0
    for part in parts:
        columns = np.array(part, np.int64).reshape(-1, 3).T.copy()
        out = np.empty((3, len(part)), np.int64)
        size = len(part)
        count = choose_entries(
            columns[0], columns[1], columns[2], 0, size, interval, state, out[0], out[1], out[2], 0
        )
        result += [
            (int(row) + before, int(time), int(offset)) for row, time, offset in out[:, :count].T
        ]
        before += len(part)
    return result, (int(state[0]), int(state[1]), int(state[2]))


@given(batches(), st.sampled_from((0, 1, 100, 250, 4096)))
def test_index_entries_equal_the_reference_implementation(rows: list[Batch], interval: int) -> None:
    assert chosen([rows], interval) == kernel_models.choose_entries(rows, interval)


@given(batches(), st.integers(0, 40), st.integers(0, 40))
def test_chunk_size_does_not_change_index_entries(
    rows: list[Batch], first: int, second: int
) -> None:
    first, second = sorted((first, second))
    parts = [rows[:first], rows[first:second], rows[second:]]
    assert chosen(parts, 100) == chosen([rows], 100)


def test_index_entry_is_added_only_above_the_interval() -> None:
    rows = [(0, 0, 5), (100, 1, 5), (201, 2, 5)]
    assert chosen([rows], 100)[0] == [(2, 5, 0)]


def test_time_entry_points_to_the_batch_with_the_larger_timestamp() -> None:
    rows = [(0, 4, 90), (200, 9, 30), (400, 12, 91)]
    assert chosen([rows], 100)[0] == [(1, 90, 4), (2, 91, 12)]


@pytest.mark.parametrize("high_bits", [0, 1, 10, 11, 20, 21, 40])
@pytest.mark.parametrize("low_bits", [0, 5, 23])
def test_keys_are_sorted_stably_by_their_high_bits(low_bits: int, high_bits: int) -> None:
    generated = np.random.default_rng(high_bits).integers(0, 1 << (low_bits + high_bits), 3000)
    expected = sorted(generated.tolist(), key=lambda key: key >> low_bits)

    actual = radix_sort(generated.copy(), np.empty_like(generated), low_bits, high_bits)

    assert actual.tolist() == expected


def test_adjacent_queries_with_the_same_result_share_a_scan() -> None:
    batches = np.array([0, 0, 40, 40, 40, 0])
    entries = np.array([-1, -1, -1, 7, 7, 7])
    runs, firsts = np.empty(6, np.int64), np.empty(6, np.int64)

    count = number_groups(batches, entries, runs, firsts)

    assert runs.tolist() == [0, 0, 1, 2, 2, 3]
    assert firsts[:count].tolist() == [0, 2, 3, 5]


@pytest.mark.parametrize("answers", [6, 9])
def test_shared_results_are_returned_in_query_order(answers: int) -> None:
    runs = np.array([0, 0, 1, 2, 2, 3])
    values = np.arange(8).reshape(2, 4) * 10
    rows = np.random.default_rng(3).permutation(answers)[:6]
    array = np.full((3, answers), -1)
    scratch = np.empty(6 if answers == 6 else 0, np.int32)

    scatter_groups(values, runs, rows, scratch, array)

    expected = np.full((3, answers), -1)
    expected[:2, rows] = values[:, runs]
    assert array.tolist() == expected.tolist()
