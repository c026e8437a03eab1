"""Restores on Spark give what restores on threads give."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import kafka_index
from kafka_index.execution import ThreadEngine
from kafka_index.restore.job import RestoreJob
from kafka_index.restore.partition_restoring import restore_on
from kafka_index.restore.plan import RestoreRequest
from kafka_index.restore.restored_partition import RestoredPartition
from tests.spark.session_engine import SessionEngine
from tests.support.restoring import contents, copy_dump, damage, logs

PARTITIONS = ("payments-0", "audit.trail-0", "shipments.tracking-0", "customer-profiles-0")


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("restores")
    dump = copy_dump(folder / "dump", *PARTITIONS)
    damage(logs(dump / "audit.trail-0")[1])
    return dump


def test_the_output_is_that_of_threads(spark: SparkSession, dump: Path, tmp_path: Path) -> None:
    results = []
    for name, engine in (("threads", ThreadEngine(2)), ("spark", SessionEngine(spark))):
        seen: list[RestoredPartition] = []
        job = RestoreJob.prepare(RestoreRequest([str(dump)], str(tmp_path / name)))
        result = job.run(restore_on(engine), seen.append)
        assert len(seen) == len(PARTITIONS)
        results.append(result.partitions)

    assert results[0] == results[1]
    assert any(each.lost for each in results[0])
    assert contents(tmp_path / "spark") == contents(tmp_path / "threads")


def test_keys_are_dropped_as_on_threads(spark: SparkSession, dump: Path, tmp_path: Path) -> None:
    found = kafka_index.read_records(dump, topics="payments", columns=["key"]).read_all()
    keys = tuple(sorted(set(found["key"].to_pylist()) - {None}))[::3]
    results = []
    for name, engine in (("threads", ThreadEngine(2)), ("spark", SessionEngine(spark))):
        request = RestoreRequest([str(dump)], str(tmp_path / name), drop_keys=keys)
        result = RestoreJob.prepare(request).run(restore_on(engine), lambda _: None)
        results.append(result.partitions)

    assert results[0] == results[1]
    assert sum(each.dropped or 0 for each in results[0])
    assert contents(tmp_path / "spark") == contents(tmp_path / "threads")
