"""Works on threads of this process."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterable
from functools import partial

import pytest

from kafka_index.execution import Parts, ThreadEngine


def double(work: int, _attempt_id: str) -> int:
    return 2 * work


def collect(found: Iterable[int], seen: list[int]) -> None:
    """Append one by one: a list that an error interrupts stays as it was."""
    for each in found:
        seen.append(each)  # noqa: PERF402


@pytest.mark.parametrize("threads", [1, 3, 50])
def test_results_come_in_order_where_that_is_wanted(threads: int) -> None:
    works = range(200)
    with ThreadEngine(threads).start("test") as workers:
        found = workers.run(works, double, sizes=works, what="{} works", ordered=True)
        assert list(found) == [2 * work for work in works]
        assert sorted(workers.run(works, double, sizes=works, what="")) == [2 * n for n in works]


def test_results_come_as_they_are_there() -> None:
    gate = threading.Event()

    def wait_for_others(work: int, _attempt_id: str) -> int:
        if not work:
            gate.wait()
        return work

    with ThreadEngine(2).start("test") as workers:
        found = workers.run(range(4), wait_for_others, sizes=[1] * 4, what="")
        assert {next(found) for _ in range(3)} == {1, 2, 3}
        gate.set()
        assert list(found) == [0]


def test_no_more_is_begun_than_a_few_works_for_each_thread() -> None:
    begun = []

    def begin(work: int, _attempt_id: str) -> int:
        begun.append(work)
        return work

    with ThreadEngine(3).start("test") as workers:
        found = workers.run(range(100), begin, sizes=[1] * 100, what="", ordered=True)
        assert next(found) == 0
        found.close()
    assert len(begun) <= 7


def test_threads_share_the_parts_of_a_work_and_one_of_them_joins_the_pieces() -> None:
    meeting = threading.Barrier(3)

    def part(number: int, attempt_id: str) -> tuple[int, str]:
        meeting.wait(60)
        return number, attempt_id

    def divide(_work: int) -> Parts[list[tuple[int, str]]]:
        return Parts([partial(part, number) for number in range(3)], lambda pieces, _: pieces)

    with ThreadEngine(3).start("test") as workers:
        (pieces,) = workers.run_parts([0], divide, sizes=[1], what="")
    assert [number for number, _ in pieces] == [0, 1, 2]
    assert len({attempt_id for _, attempt_id in pieces}) == 3


def test_the_results_of_what_runs_come_before_the_error_that_ends_the_run() -> None:
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
        found = workers.run(range(100), fail_at_first, sizes=[1] * 100, what="")
        with pytest.raises(OSError, match="no space"):
            collect(found, seen)
    assert seen[0] == 1
    assert len(seen) < 50


def test_a_run_that_is_left_ends_with_the_context() -> None:
    begun = threading.Event()
    ended = []

    def work(number: int, _attempt_id: str) -> int:
        begun.set()
        ended.append(number)
        return number

    with ThreadEngine(2).start("left") as workers:
        found = workers.run(range(100), work, sizes=[1] * 100, what="")
        next(found)
        begun.wait()
    count = len(ended)
    assert not [each for each in threading.enumerate() if each.name.startswith("left")]
    assert len(ended) == count < 100


def test_a_signal_is_raised_after_the_results_of_what_runs() -> None:
    def interrupt(work: int, _attempt_id: str) -> int:
        if work == 1:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        return work

    seen: list[int] = []
    with ThreadEngine(1).start("test") as workers:
        found = workers.run(range(100), interrupt, sizes=[1] * 100, what="")
        with pytest.raises(KeyboardInterrupt):
            collect(found, seen)
    assert seen == list(range(len(seen)))
    assert len(seen) < 100
