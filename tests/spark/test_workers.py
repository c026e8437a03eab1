"""Works as tasks of Spark."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial

import pytest
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession

from kafka_index.errors import EngineError
from kafka_index.execution import Parts, Waves
from kafka_index.spark.workers import SparkWorkers, session_workers


def test_works_without_bytes_are_spread_over_all_tasks(spark: SparkSession) -> None:
    # Sent by value, since workers do not import the tests.
    def task_of(work: int, _attempt_id: str) -> tuple[int, int]:
        context = TaskContext.get()
        assert context is not None
        return work, context.partitionId()

    works = list(range(40))
    with session_workers(spark) as workers:
        found = list(workers.run(works, task_of, sizes=[0] * 40, what="{:,} works"))
    assert [work for work, _ in found] == works
    assert set(Counter(number for _, number in found).values()) == {5}


def test_a_task_does_all_parts_of_a_work(spark: SparkSession) -> None:
    def divide(work: int) -> Parts[tuple[int, list[int], set[str]]]:
        def part(number: int, attempt_id: str) -> tuple[int, str]:
            return number, attempt_id

        def join(pieces: list[tuple[int, str]], attempt_id: str) -> tuple[int, list[int], set[str]]:
            attempts = {attempt_id, *(attempt for _, attempt in pieces)}
            return work, [number for number, _ in pieces], attempts

        return Parts([partial(part, number) for number in range(3)], join)

    with session_workers(spark) as workers:
        found = list(workers.run_parts([0, 1], divide, sizes=[1, 1], what="{:,} works"))
    assert [(work, numbers) for work, numbers, _ in found] == [(0, [0, 1, 2]), (1, [0, 1, 2])]
    assert all(len(attempts) == 1 for *_, attempts in found)


class LosingWorkers(SparkWorkers):
    """Workers whose jobs end as if done before all of their works are, as cancelled ones can."""

    def frame(self, works: Sequence[object], sizes: Sequence[int]) -> DataFrame:
        return super().frame(works, sizes).filter("number != 3")


def test_a_job_without_the_results_of_all_its_works_has_failed(spark: SparkSession) -> None:
    def double(work: int, _attempt_id: str) -> int:
        return 2 * work

    with session_workers(spark) as workers:
        losing = LosingWorkers(spark, workers.jobs, workers.target, workers.count)
        assert list(losing.run(range(3), double, sizes=[0] * 3, what="{:,} works")) == [0, 2, 4]
        found = losing.run(range(5), double, sizes=[0] * 5, what="{:,} works")
        with pytest.raises(EngineError, match="without the results of all") as caught:
            next(found)
    assert (caught.value.expected, caught.value.found) == ("5", "4")


def test_a_wave_begins_when_its_results_are_asked_for(spark: SparkSession) -> None:
    seen: list[tuple[int, int]] = []

    class Listener:
        def on_begin(self) -> None:
            seen.clear()

        def on_share(self, done: int, total: int) -> None:
            seen.append((done, total))

    def double(work: int, _attempt_id: str) -> int:
        return 2 * work

    with session_workers(spark, listener=Listener(), works=12) as workers:
        found = workers.run(
            range(12), double, sizes=[0] * 12, what="{:,} works", waves=Waves.GROWING
        )
        assert [next(found), next(found)] == [0, 2]
        assert max(seen) == (2, 12)
        assert next(found) == 4
        assert max(seen) == (6, 12)
        found.close()
    assert max(seen) == (6, 12)
