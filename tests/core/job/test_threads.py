"""Works on threads of this process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_index.core.job.engine import (
    COST_BYTES,
    JobSizes,
    SplittableTask,
    TaskSplitter,
    ThreadEngine,
    balance,
    count_bins,
    split_jobs,
)
from tests.support.timeouts import TIMEOUT_SECONDS

# Interrupts runs of many small tasks at random times, where the caller's thread often has a lock.
INTERRUPTED_RUNS = """
import random, signal
from kafka_index.core.job.engine import ThreadEngine

def interrupt(*_):
    signal.raise_signal(signal.SIGINT)

signal.signal(signal.SIGALRM, interrupt)
interrupted = 0
for seed in range(400):
    try:
        with ThreadEngine(3).start("test") as workers:
            delay = random.Random(seed).uniform(1e-5, 4e-3)
            signal.setitimer(signal.ITIMER_REAL, delay)
            for _ in workers.run(range(300), lambda task, _attempt_id: task):
                pass
            signal.setitimer(signal.ITIMER_REAL, 0)
    except KeyboardInterrupt:
        interrupted += 1
print(interrupted)
"""


def double(work: int, _attempt_id: str) -> int:
    return 2 * work


def collect(found: Iterable[int], seen: list[int]) -> None:
    """Append one by one: a list that an error interrupts stays as it was."""
    for each in found:
        seen.append(each)  # noqa: PERF402


def test_run_that_is_interrupted_at_any_time_ends() -> None:
    command = [sys.executable, "-c", INTERRUPTED_RUNS]
    result = subprocess.run(command, stdout=subprocess.PIPE, timeout=TIMEOUT_SECONDS, check=True)
    assert int(result.stdout) > 50


@pytest.mark.parametrize("threads", [1, 3, 50])
def test_ordered_results_keep_the_order_of_tasks(threads: int) -> None:
    works = range(200)
    with ThreadEngine(threads).start("test") as workers:
        result = workers.run(works, double, sizes=works, description="{} works", ordered=True)
        assert list(result) == [2 * work for work in works]
        assert sorted(workers.run(works, double, sizes=works, description="")) == [
            2 * n for n in works
        ]


def test_unordered_results_arrive_as_completed() -> None:
    gate = threading.Event()

    def wait_for_others(work: int, _attempt_id: str) -> int:
        if not work:
            gate.wait()
        return work

    with ThreadEngine(2).start("test") as workers:
        result = workers.run(range(4), wait_for_others, sizes=[1] * 4, description="")
        assert {next(result) for _ in range(3)} == {1, 2, 3}
        gate.set()
        assert list(result) == [0]


def test_started_tasks_are_bounded_per_thread() -> None:
    begun = []

    def begin(work: int, _attempt_id: str) -> int:
        begun.append(work)
        return work

    with ThreadEngine(3).start("test") as workers:
        result = workers.run(range(100), begin, sizes=[1] * 100, description="", ordered=True)
        assert next(result) == 0
        result.close()
    assert len(begun) <= 7


def test_parts_of_a_task_run_on_several_threads_and_are_joined() -> None:
    meeting = threading.Barrier(3)

    def part(number: int, attempt_id: str) -> tuple[int, str]:
        meeting.wait(60)
        return number, attempt_id

    def divide(_work: int) -> SplittableTask[list[tuple[int, str]]]:
        return SplittableTask(
            [partial(part, number) for number in range(3)], lambda pieces, _: pieces
        )

    with ThreadEngine(3).start("test") as workers:
        (pieces,) = workers.run([0], TaskSplitter(divide), sizes=[1], description="")
    assert [number for number, _ in pieces] == [0, 1, 2]
    assert len({attempt_id for _, attempt_id in pieces}) == 3


def test_results_of_running_tasks_precede_the_error() -> None:
    meeting = threading.Barrier(2)

    def fail_at_first(work: int, _attempt_id: str) -> int:
        if work < 2:
            meeting.wait(60)
        else:
            time.sleep(0.05)
        if not work:
            raise OSError("no space")
        return work

    seen: list[int] = []
    with ThreadEngine(2).start("test") as workers:
        result = workers.run(range(100), fail_at_first, sizes=[1] * 100, description="")
        with pytest.raises(OSError, match="no space"):
            collect(result, seen)
    assert seen[0] == 1
    assert len(seen) < 50


def test_threads_of_an_abandoned_run_end_with_its_context() -> None:
    begun = threading.Event()
    ended = []

    def work(number: int, _attempt_id: str) -> int:
        begun.set()
        ended.append(number)
        return number

    with ThreadEngine(2).start("left") as workers:
        result = workers.run(range(100), work, sizes=[1] * 100, description="")
        next(result)
        begun.wait()
    count = len(ended)
    assert not [each for each in threading.enumerate() if each.name.startswith("left")]
    assert len(ended) == count < 100


def test_results_of_running_tasks_precede_a_signal() -> None:
    def interrupt(work: int, _attempt_id: str) -> int:
        if work == 1:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        return work

    seen: list[int] = []
    with ThreadEngine(1).start("test") as workers:
        result = workers.run(range(100), interrupt, sizes=[1] * 100, description="")
        with pytest.raises(KeyboardInterrupt):
            collect(result, seen)
    assert seen == list(range(len(seen)))
    assert len(seen) < 100


@given(st.lists(st.integers(0, 1000), max_size=40), st.integers(1, 7), st.integers(0, 50))
def test_bin_packing_without_sizes_differs_by_at_most_one_item(
    sizes: list[int], bins: int, overhead: int
) -> None:
    loads = [0] * bins
    for size, number in zip(sizes, balance(sizes, bins, overhead=overhead), strict=True):
        loads[number] += size + overhead
    assert max(loads) - min(loads) <= max(sizes, default=0) + overhead


def test_items_without_a_size_are_distributed() -> None:
    assert sorted(balance([0] * 6, 3)) == [0, 0, 1, 1, 2, 2]


def test_zero_bins_are_rejected() -> None:
    with pytest.raises(ValueError, match="one bin or more, not 0"):
        balance([1], 0)


def sizes_of(costs: list[int], jobs: JobSizes, workers: int) -> list[int]:
    return [end - start for start, end in split_jobs(costs, jobs, workers)]


def test_stage_size_with_kept_results_is_16_gib_in_at_most_64_stages() -> None:
    gibibyte = 1 << 30
    assert sizes_of([4 * gibibyte] * 10, JobSizes.EQUAL, 2) == [4, 4, 2]
    assert sizes_of([4 * gibibyte] * 640, JobSizes.EQUAL, 2) == [10] * 64
    assert sizes_of([1 << 40] * 80, JobSizes.EQUAL, 2) == [1] * 80
    assert sizes_of([], JobSizes.EQUAL, 2) == []


@pytest.mark.parametrize(
    ("works", "cost", "bins"),
    [
        (0, 0, 1),
        (1, 1 << 40, 1),
        (40, 40 * COST_BYTES, 5),
        (1000, 1 << 30, 64),
        (1000, 1 << 40, 1000),
        (50_000, 50_000 * COST_BYTES, 391),
    ],
)
def test_bin_count_depends_on_the_task_sizes(works: int, cost: int, bins: int) -> None:
    assert count_bins(works, cost) == bins


def test_stages_grow_up_to_a_bound_per_worker() -> None:
    assert sizes_of([1] * 30, JobSizes.GROWING, 2) == [2, 4, 8, 8, 8]


def test_small_job_runs_in_one_stage() -> None:
    assert sizes_of([1 << 40] * 9, JobSizes.ONE, 1) == [9]
    assert sizes_of([], JobSizes.ONE, 1) == []


@pytest.mark.parametrize(("inputs", "threads"), [(["/dump"], 1), (["/dump", "s3://bucket"], 2)])
def test_store_input_gets_more_threads(inputs: list[str], threads: int) -> None:
    with ThreadEngine().start("test", inputs=inputs) as workers:
        assert workers.count == threads * (os.cpu_count() or 1)
