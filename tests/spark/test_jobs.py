"""Jobs of a run: what the progress line is told, and what the Spark UI shows."""

from __future__ import annotations

import contextlib

from pyspark.sql import SparkSession

from kafka_index.spark.jobs import Jobs


def work(spark: SparkSession) -> None:
    spark.range(0, 100, 1, 2).repartition(4).count()


def test_progress_counts_the_items_of_finished_jobs_and_never_falls_back(
    spark: SparkSession,
) -> None:
    seen: list[tuple[int, int]] = []
    with Jobs(spark, items=10, on_progress=lambda *shares: seen.append(shares)) as jobs:
        for items in (3, 0, 7):
            with jobs.job(f"count {items}", items=items):
                work(spark)
    assert seen == sorted(seen)
    assert (3, 10) in seen
    assert seen[-1] == (10, 10)


def test_a_job_that_fails_is_not_counted(spark: SparkSession) -> None:
    seen: list[tuple[int, int]] = []
    with Jobs(spark, items=4, on_progress=lambda *shares: seen.append(shares)) as jobs:
        with contextlib.suppress(ZeroDivisionError), jobs.job("fail", items=4):
            raise ZeroDivisionError
        with jobs.job("succeed", items=1):
            work(spark)
    assert seen[-1] == (1, 4)


def test_a_job_has_its_name_in_the_context_and_not_after_it(spark: SparkSession) -> None:
    context = spark.sparkContext
    with Jobs(spark).job("scan 600 segments"):
        assert context.getLocalProperty("spark.job.description") == "scan 600 segments"
        group = context.getLocalProperty("spark.jobGroup.id")
        work(spark)
        assert context.statusTracker().getJobIdsForGroup(group)
    assert context.getLocalProperty("spark.job.description") is None
    assert context.getLocalProperty("spark.jobGroup.id") is None
