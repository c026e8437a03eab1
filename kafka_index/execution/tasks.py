"""Tasks: how works are spread over jobs and bins, and the names of runs and attempts."""

from __future__ import annotations

import heapq
import os
from collections.abc import Iterator, Sequence

from kafka_index.execution.engine import GROWN_WAVE, Waves

#: The column of the bin that a row of work belongs to.
BIN = "bin"
#: What opening, creating and publishing cost, in bytes that could be read meanwhile.
COST_BYTES = 4 << 20
_WAVE_BYTES_PER_WORKER = 1 << 30
# A wave is what a failed run loses: a small share of a large run.
_MAX_WAVES = 64


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


def split_waves(costs: Sequence[int], waves: Waves, workers: int) -> Iterator[tuple[int, int]]:
    """Yield the first work of each wave, and the one after its last.

    A cost is the bytes that a work takes as long as; so many works as workers are done at a time.
    """
    if waves is Waves.ONE:
        if costs:
            yield 0, len(costs)
        return
    max_bytes = wave_bytes(sum(costs), workers)
    max_works = workers if waves is Waves.GROWING else len(costs)
    start = size_bytes = 0
    for end, cost in enumerate(costs, start=1):
        size_bytes += cost
        if end == len(costs) or end - start == max_works or size_bytes >= max_bytes:
            yield start, end
            start, size_bytes = end, 0
            if waves is Waves.GROWING:
                max_works = min(2 * max_works, GROWN_WAVE * workers)


def wave_bytes(total_bytes: int, workers: int) -> int:
    """Return the bytes of a wave: enough for all workers, and a small share of a large run."""
    return max(workers * _WAVE_BYTES_PER_WORKER, total_bytes // _MAX_WAVES)


def new_run_id() -> str:
    """Return an id that names a run's scratch files: 16 hexadecimal digits."""
    return os.urandom(8).hex()


def attempt_id(task: int, attempt: int) -> str:
    """Return the id of one attempt at a task: no two attempts of a run may share scratch files."""
    return f"task{task}_{attempt}"
