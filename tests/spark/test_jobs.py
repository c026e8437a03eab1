"""Jobs of a run: what the progress line is told, and what the Spark UI shows."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql import SparkSession

from kafka_index.spark.jobs import Jobs
from tests.support.timeouts import TIMEOUT_SECONDS, wait_for

# Workers cannot import this module.
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]


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


def test_jobs_are_cancelled_from_another_thread(spark: SparkSession) -> None:
    def wait(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        time.sleep(TIMEOUT_SECONDS)
        yield from batches

    jobs = Jobs(spark)
    with ThreadPoolExecutor(1) as pool:

        def run() -> None:
            with jobs.job("wait"):
                spark.range(0, 1, 1, 1).mapInArrow(wait, "id long").toArrow()

        future = pool.submit(run)
        tracker = spark.sparkContext.statusTracker()
        wait_for(tracker.getActiveStageIds, 30, "a stage that runs")
        jobs.cancel()
        error = future.exception(timeout=TIMEOUT_SECONDS / 2)
    assert "cancelled" in str(error)
