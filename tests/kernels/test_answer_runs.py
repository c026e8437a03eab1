"""Runs of answers: put back, they are what every query found by itself."""

from __future__ import annotations

import numpy as np
import pytest

from kafka_index.kernels.search import number_runs, put_back_runs


def test_neighbours_that_found_the_same_share_a_run() -> None:
    batches = np.array([0, 0, 40, 40, 40, 0])
    entries = np.array([-1, -1, -1, 7, 7, 7])
    runs, firsts = np.empty(6, np.int64), np.empty(6, np.int64)

    count = number_runs(batches, entries, runs, firsts)

    assert runs.tolist() == [0, 0, 1, 2, 2, 3]
    assert firsts[:count].tolist() == [0, 2, 3, 5]


@pytest.mark.parametrize("answers", [6, 9])
def test_runs_are_put_back_where_their_queries_were(answers: int) -> None:
    runs = np.array([0, 0, 1, 2, 2, 3])
    values = np.arange(8).reshape(2, 4) * 10
    rows = np.random.default_rng(3).permutation(answers)[:6]
    found = np.full((3, answers), -1)
    scratch = np.empty(6 if answers == 6 else 0, np.int32)

    put_back_runs(values, runs, rows, scratch, found)

    expected = np.full((3, answers), -1)
    expected[:2, rows] = values[:, runs]
    assert found.tolist() == expected.tolist()
