"""Restores on Spark give what restores on threads give."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from kafka_index.restore.job import RestoreJob
from kafka_index.restore.partition_restoring import PartitionTask
from kafka_index.restore.request import RestoreRequest
from kafka_index.restore.restored_partition import RestoredPartition
from kafka_index.restore.threads import OnSettled, on_threads
from kafka_index.spark.jobs import Jobs
from kafka_index.spark.restore import restore_in_tasks
from kafka_index.spark.shared_target import shared_target
from tests.support.restoring import contents, copy_dump

PARTITIONS = ("payments-0", "audit.trail-0", "shipments.tracking-0", "customer-profiles-0")


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("restores")
    dump = copy_dump(folder / "dump", *PARTITIONS)
    log = sorted((dump / "audit.trail-0").glob("*.log"))[1]
    data = bytearray(log.read_bytes())
    data[len(data) // 2] ^= 1
    log.write_bytes(data)
    return dump


def test_the_output_is_that_of_threads(spark: SparkSession, dump: Path, tmp_path: Path) -> None:
    def on_spark(tasks: list[PartitionTask], on_settled: OnSettled) -> None:
        with shared_target([tasks[0].output]) as target, Jobs(spark) as jobs:
            for group in restore_in_tasks(spark, tasks, workers=2, jobs=jobs, target=target):
                on_settled(group)

    results = []
    for name, runner in (("threads", on_threads(2)), ("spark", on_spark)):
        seen: list[RestoredPartition] = []
        job = RestoreJob.prepare(RestoreRequest([str(dump)], str(tmp_path / name)))
        result = job.run(runner, seen.append)  # type: ignore[arg-type]
        assert len(seen) == len(PARTITIONS)
        results.append(result.partitions)

    assert results[0] == results[1]
    assert any(each.lost for each in results[0])
    assert contents(tmp_path / "spark") == contents(tmp_path / "threads")
