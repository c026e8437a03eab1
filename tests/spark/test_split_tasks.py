"""Work of any kind as tasks of Spark."""

from __future__ import annotations

from collections import Counter

from pyspark import TaskContext
from pyspark.sql import SparkSession

from kafka_index.spark.jobs import Jobs
from kafka_index.spark.split_tasks import run_splits


def test_works_without_bytes_are_spread_over_all_tasks(spark: SparkSession) -> None:
    # Sent by value, since workers do not import the tests.
    def task_of(work: int) -> tuple[int, int]:
        context = TaskContext.get()
        assert context is not None
        return work, context.partitionId()

    works = list(range(40))
    with Jobs(spark) as jobs:
        found = run_splits(
            spark, works, [0] * 40, task_of, workers=2, jobs=jobs, description="forty works"
        )
    assert [work for work, _ in found] == works
    assert set(Counter(number for _, number in found).values()) == {5}
