"""Answers of ascending lookups as runs: neighbours that found the same, once.

The fewer batches a log has for its queries, the shorter the table of runs, which stays in the
processor's cache while the answers are put back in the order of the queries.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kafka_index.kernels.compile_cache import compiled
from kafka_index.layout.integers import Longs


@compiled
def number_runs(batches: Longs, entries: Longs, runs: Longs, firsts: Longs) -> int:
    """Assign a run to each query: neighbours that found the same batch and index entry share one.

    Parameters
    ----------
    batches, entries : ndarray of int64, shape (n,)
        What each query found.
    runs : ndarray of int64, shape (n,)
        Filled with the run of each query, from 0 on.
    firsts : ndarray of int64, shape (n,)
        Filled with the first query of each run.

    Returns
    -------
    int
        The number of runs.
    """
    run = -1
    for query in range(len(batches)):
        if run < 0 or batches[query] != batches[query - 1] or entries[query] != entries[query - 1]:
            run += 1
            firsts[run] = query
        runs[query] = run
    return run + 1


@compiled
def put_back_runs(
    values: Longs, runs: Longs, rows: Longs, run_of_row: NDArray[np.int32], answers: Longs
) -> None:
    """Put what runs have found where the answers to their queries go.

    Parameters
    ----------
    values : ndarray of int64, shape (k, m)
        What each run found.
    runs : ndarray of int64, shape (n,)
        The run of each query.
    rows : ndarray of int64, shape (n,)
        Where the answers go.
    run_of_row : ndarray of int32, shape (n,)
        Scratch space; empty where `rows` are not 0 to n - 1, in any order.
    answers : ndarray of int64, shape (k, ...)
        Filled there.
    """
    if len(run_of_row):
        # One column is written in any order, all others in order.
        for query in range(len(rows)):
            run_of_row[rows[query]] = runs[query]
        for column in range(len(values)):
            for row in range(len(rows)):
                answers[column, row] = values[column, run_of_row[row]]
        return
    for column in range(len(values)):
        for query in range(len(rows)):
            answers[column, rows[query]] = values[column, runs[query]]


def warm_up(nothing: Longs) -> None:
    """Load or compile the kernels of this module."""
    number_runs(nothing, nothing, nothing, nothing)
    table = nothing.reshape(1, 0)
    put_back_runs(table, nothing, nothing, np.empty(0, np.int32), table)
