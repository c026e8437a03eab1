"""The choice of index entries against a loop over tuples."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kafka_index.kernels.index_entries import choose_entries
from tests.support import twins

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
def test_entries_are_chosen_as_by_hand(rows: list[Batch], interval: int) -> None:
    assert chosen([rows], interval) == twins.choose_entries(rows, interval)


@given(batches(), st.integers(0, 40), st.integers(0, 40))
def test_chunks_make_no_difference(rows: list[Batch], first: int, second: int) -> None:
    first, second = sorted((first, second))
    parts = [rows[:first], rows[first:second], rows[second:]]
    assert chosen(parts, 100) == chosen([rows], 100)


def test_exactly_the_interval_is_not_yet_enough() -> None:
    rows = [(0, 0, 5), (100, 1, 5), (201, 2, 5)]
    assert chosen([rows], 100)[0] == [(2, 5, 0)]


def test_the_entry_of_a_later_timestamp_names_the_batch_that_holds_it() -> None:
    rows = [(0, 4, 90), (200, 9, 30), (400, 12, 91)]
    assert chosen([rows], 100)[0] == [(1, 90, 4), (2, 91, 12)]
