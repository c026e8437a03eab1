"""Works as tasks of Spark: their jobs, the stores that they open, and the folders of the driver."""

from __future__ import annotations

import base64
import contextlib
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest
from pyspark import TaskContext, cloudpickle
from pyspark.sql import DataFrame, SparkSession

from kafka_index.core.errors import EngineError, ExecutorError, PublishError
from kafka_index.core.fs.registry import configure_stores, storage_options
from kafka_index.core.fs.store import StorageOptions, parse_storage_options
from kafka_index.core.job.engine import JobSizes, Listener, SplittableTask, TaskSplitter
from kafka_index.spark import workers as module
from kafka_index.spark.jobs import Jobs
from kafka_index.spark.workers import (
    ExecutorCheck,
    SparkJob,
    SparkWorkers,
    probe_files,
    session_workers,
    task,
)
from tests.support.timeouts import TIMEOUT_SECONDS, wait_for


def test_items_without_sizes_are_distributed_over_all_spark_tasks(spark: SparkSession) -> None:
    # Sent by value, since workers do not import the tests.
    def task_of(work: int, _attempt_id: str) -> tuple[int, int]:
        context = TaskContext.get()
        assert context is not None
        return work, context.partitionId()

    works = list(range(40))
    with session_workers(spark) as workers:
        listing = list(workers.run(works, task_of, sizes=[0] * 40, description="{:,} works"))
    assert [work for work, _ in listing] == works
    assert set(Counter(number for _, number in listing).values()) == {8}


def test_spark_task_runs_all_parts_of_an_item(spark: SparkSession) -> None:
    def divide(work: int) -> SplittableTask[tuple[int, list[int], set[str]]]:
        def part(number: int, attempt_id: str) -> tuple[int, str]:
            return number, attempt_id

        def join(pieces: list[tuple[int, str]], attempt_id: str) -> tuple[int, list[int], set[str]]:
            attempts = {attempt_id, *(attempt for _, attempt in pieces)}
            return work, [number for number, _ in pieces], attempts

        return SplittableTask([partial(part, number) for number in range(3)], join)

    with session_workers(spark) as workers:
        listing = list(
            workers.run([0, 1], TaskSplitter(divide), sizes=[1, 1], description="{:,} works")
        )
    assert [(work, numbers) for work, numbers, _ in listing] == [(0, [0, 1, 2]), (1, [0, 1, 2])]
    assert all(len(attempts) == 1 for *_, attempts in listing)


class LosingWorkers(SparkWorkers):
    """Workers whose jobs end as if done before all of their works are, as cancelled ones can."""

    def frame_of(self, job: SparkJob) -> DataFrame:
        return super().frame_of(job).filter("bin != 1")


def test_job_with_missing_results_has_failed(spark: SparkSession) -> None:
    def double(work: int, _attempt_id: str) -> int:
        return 2 * work

    with session_workers(spark) as workers:
        losing = LosingWorkers(spark, workers.jobs, workers.check)
        assert list(losing.run(range(3), double, sizes=[0] * 3, description="{:,} works")) == [
            0,
            2,
            4,
        ]
        result = losing.run(range(9), double, sizes=[0] * 9, description="{:,} works")
        with pytest.raises(EngineError, match="without the results of all") as caught:
            next(result)
    assert (caught.value.expected, caught.value.found) == ("9", "5")


def test_stage_starts_when_its_results_are_requested(spark: SparkSession) -> None:
    seen: list[tuple[int, int]] = []

    class Shares(Listener):
        def on_begin(self) -> None:
            seen.clear()

        def on_units(self, done: int, total: int) -> None:
            seen.append((done, total))

    def double(work: int, _attempt_id: str) -> int:
        return 2 * work

    with session_workers(spark, listener=Shares(), tasks=12) as workers:
        result = workers.run(
            range(12), double, sizes=[0] * 12, description="{:,} works", jobs=JobSizes.GROWING
        )
        assert [next(result), next(result)] == [0, 2]
        assert max(seen) == (2, 12)
        assert next(result) == 4
        assert max(seen) == (6, 12)
        result.close()
    assert max(seen) == (6, 12)


# Workers cannot import this module.
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]


def work(spark: SparkSession) -> None:
    spark.range(0, 100, 1, 2).repartition(4).count()


def test_progress_of_jobs_is_monotonic(
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


def test_job_that_fails_is_not_counted(spark: SparkSession) -> None:
    seen: list[tuple[int, int]] = []
    with Jobs(spark, items=4, on_progress=lambda *shares: seen.append(shares)) as jobs:
        with contextlib.suppress(ZeroDivisionError), jobs.job("fail", items=4):
            raise ZeroDivisionError
        with jobs.job("succeed", items=1):
            work(spark)
    assert seen[-1] == (1, 4)


def test_job_name_is_reset_after_its_context(spark: SparkSession) -> None:
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


def test_storage_options_are_passed_to_tasks(spark: SparkSession, tmp_path: Path) -> None:
    def options_of_task(_: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        given, resolved = storage_options().items, storage_options().resolve()
        yield pa.record_batch({"options": [repr(given), repr(resolved)]})

    secret = tmp_path / "secret"
    secret.write_text("hidden")
    configure_stores(parse_storage_options(["region=eu-west-1", f"session_token=@{secret}"]))
    try:
        frame = spark.range(0, 1, 1, 1).mapInArrow(task(options_of_task), "options string")
        given, resolved = [row.options for row in frame.collect()]
        plan = str(frame._jdf.queryExecution().toString())
    finally:
        configure_stores(StorageOptions())

    assert "hidden" not in given
    assert "eu-west-1" in given
    assert "hidden" in resolved
    # The task was read from the file, when it ran.
    assert "hidden" not in plan
    assert base64.b64encode(b"hidden").decode() not in plan


def test_task_that_finds_the_probe_file_continues_and_removes_it(tmp_path: Path) -> None:
    with probe_files([str(tmp_path)]) as probes:
        ExecutorCheck(probes=probes).run()
        assert len(list(tmp_path.iterdir())) == 1
    assert list(tmp_path.iterdir()) == []


def test_task_that_sees_another_output_folder_fails(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    with probe_files([str(folder)]) as probes:
        folder.rename(tmp_path / "of-the-driver")
        folder.mkdir()
        with pytest.raises(
            ExecutorError, match="does not see the driver's output folder"
        ) as caught:
            ExecutorCheck(probes=probes).run()
        assert caught.value.path == str(folder)


def test_folder_without_write_permission_for_the_probe_file_is_reported(tmp_path: Path) -> None:
    missing = str(tmp_path / "missing")
    with pytest.raises(PublishError) as caught, probe_files([str(tmp_path), missing]):
        pass
    assert caught.value.path == missing
    assert list(tmp_path.iterdir()) == []


def test_object_stores_need_no_probe_file() -> None:
    with probe_files(["s3://bucket/out"]) as probes:
        assert probes == ()


def test_jobs_send_at_most_their_limit_through_the_driver(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[tuple[int, int]] = []

    class SmallWorkers(SparkWorkers):
        def frame_of(self, job: SparkJob) -> DataFrame:
            sent.append((job.tasks, job.size_bytes))
            return super().frame_of(job)

    def answer(work: bytes, _attempt_id: str) -> bytes:
        return work[:8] + os.urandom(2_000)

    works = [os.urandom(500) for _ in range(60)]
    monkeypatch.setattr(module.DriverLimits, "of", lambda _: module.DriverLimits(20_000, 40_000))
    with session_workers(spark) as workers:
        small = SmallWorkers(spark, workers.jobs, workers.check)
        for jobs in (JobSizes.ONE, JobSizes.EQUAL):
            sent.clear()
            listing = list(small.run(works, answer, sizes=[1] * 60, description="{:,}", jobs=jobs))
            assert [each[:8] for each in listing] == [work[:8] for work in works]
            assert sum(count for count, _ in sent) == 60
            assert max(size for _, size in sent) <= 20_000
            # 500 bytes of a work give 2,000 and more: what one job has shown, the next ones keep.
            assert all(2_000 * count <= 44_000 for count, _ in sent)


@pytest.mark.parametrize(
    ("results", "message", "expected"),
    [
        ("8m", "4", (1 << 20, 2 << 20)),
        ("0", "128", (32 << 20, 256 << 20)),
        ("1g", "", (32 << 20, 256 << 20)),
    ],
)
def test_driver_result_limits_are_a_quarter_of_the_settings(
    results: str, message: str, expected: tuple[int, int]
) -> None:
    settings = {"spark.driver.maxResultSize": results, "spark.rpc.message.maxSize": message}

    class Session:
        conf = SimpleNamespace(get=lambda name, _default: settings[name])

    limits = module.DriverLimits.of(Session())  # type: ignore[arg-type]
    assert (limits.work_bytes, limits.result_bytes) == expected
