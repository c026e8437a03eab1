"""Tasks: how work is spread over them, and how a run and the attempts at its tasks are named."""

from __future__ import annotations

import heapq
import os
from collections.abc import Sequence

#: The column of the bin that a row of work belongs to.
BIN = "bin"


def balance(sizes: Sequence[float], bins: int, *, overhead: float = 1) -> list[int]:
    """Assign each item to a bin so that the bins have about equal work.

    Sizes are in any unit; the overhead is the fixed cost of an item in the same unit, and keeps a
    bin of many small items from lasting longer than a bin of one large item. Some bins stay empty
    when there are fewer items. Greedy: the largest item first, each to the bin that has least. No
    bin ends up with more than the smallest bin and one item.
    """
    if bins < 1:
        raise ValueError(f"work needs one bin or more, not {bins}")
    loads: list[tuple[float, int]] = [(0, number) for number in range(bins)]
    bin_of = [0] * len(sizes)
    for item in sorted(range(len(sizes)), key=lambda item: -sizes[item]):
        load, number = loads[0]
        bin_of[item] = number
        heapq.heapreplace(loads, (load + sizes[item] + overhead, number))
    return bin_of


def new_run_id() -> str:
    """Return an id that names a run's scratch files: 16 hexadecimal digits."""
    return os.urandom(8).hex()


def attempt_id(task: int, attempt: int) -> str:
    """Return the id of one attempt at a task: no two attempts of a run may share scratch files."""
    return f"task{task}_{attempt}"
