"""The Spark engine over logs: the same as the local one, whatever the bins are."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from kafka_index.build import build_segments, plan_build
from kafka_index.build.report import REPORT_SCHEMA, report_table
from kafka_index.spark.build import build_logs, publish_bin, stage_bin, stage_logs
from kafka_index.spark.staged_rows import STAGED_SCHEMA, plan_publishing
from kafka_index.spark.tasks import spark_schema
from kafka_index.storage import create_scratch, list_dump, scratch_path, sweep
from tests.support.dumps import dump, index_files, leftovers, outcomes, settings, write_logs


def _local(logs: Path, target: Path) -> pa.Table:
    segments = list_dump([str(logs)], topics=None).segments
    return report_table(list(build_segments(segments, settings(target), attempt_id="local")))


@pytest.mark.parametrize("bins", [1, 3, 9])
def test_spark_writes_and_reports_what_the_local_engine_does(
    spark: SparkSession, tmp_path: Path, bins: int
) -> None:
    logs = write_logs(tmp_path / "logs", dump())
    plan = plan_build(list_dump([str(logs)], topics=None).segments, bins=bins)
    expected = _local(logs, tmp_path / "local")

    report = build_logs(spark, plan, settings(tmp_path / "spark"), bins=bins)

    assert report.schema == REPORT_SCHEMA
    assert outcomes(report) == outcomes(expected)
    assert index_files(tmp_path / "spark") == index_files(tmp_path / "local")
    assert len(index_files(tmp_path / "spark")) == 2 * len(dump())
    assert leftovers(tmp_path) == []


def test_a_damaged_segment_and_a_missing_one_are_rows_of_the_report(
    spark: SparkSession, tmp_path: Path
) -> None:
    segments = dump()
    damaged = bytearray(segments["a.b-c", 7, 500][60])
    damaged[80] ^= 1
    segments["a.b-c", 7, 500][60] = bytes(damaged)
    logs = write_logs(tmp_path / "logs", segments)
    plan = plan_build(list_dump([str(logs)], topics=None).segments, bins=2)
    (logs / "orders-1" / f"{0:020d}.log").unlink()

    report = build_logs(spark, plan, settings(tmp_path / "spark"), bins=2)

    status = {tuple(row[:3]): row[-3] for row in outcomes(report)}
    assert status == {
        ("a.b-c", 7, 500): "truncated",
        ("orders", 0, 0): "built",
        ("orders", 0, 2700): "built",
        ("orders", 1, 0): "failed",
    }


def test_fail_fast_ends_a_bin_at_its_first_failed_segment(
    spark: SparkSession, tmp_path: Path
) -> None:
    logs = write_logs(tmp_path / "logs", dump())
    plan = plan_build(list_dump([str(logs)], topics=None).segments, bins=1)
    for path in logs.rglob("*.log"):
        path.unlink()

    report = build_logs(spark, plan, settings(tmp_path / "spark"), bins=1, fail_fast=True)

    assert report["status"].to_pylist() == ["failed"]


def test_work_without_rows_gives_a_report_without_rows(spark: SparkSession, tmp_path: Path) -> None:
    logs = write_logs(tmp_path / "logs", dump())
    plan = plan_build(list_dump([str(logs)], topics=None).segments, bins=2)
    work = spark.createDataFrame(plan).where("bin < 0")

    staged = stage_logs(work, settings(tmp_path / "spark"), 2)

    assert staged.schema == spark_schema(STAGED_SCHEMA)
    assert staged.toArrow().num_rows == 0


def test_an_input_that_ends_early_is_published_in_whole_partitions_alone(tmp_path: Path) -> None:
    logs = write_logs(tmp_path / "logs", dump())
    _local(logs, tmp_path / "local")
    short = settings(tmp_path / "short").indexes_alone()
    plan = plan_build(list_dump([str(logs)], topics=None).segments, bins=1)
    first_two = plan.slice(0, 2)
    assert set(first_two["topic"].to_pylist()) == {"a.b-c", "orders"}

    staged = pa.Table.from_batches(
        stage_bin(first_two.to_batches(), settings=short, fail_fast=False)
    )
    rows = plan_publishing(staged, plan, bins=1)
    for _ in publish_bin(rows.to_batches(), settings=short):
        pass

    built = index_files(tmp_path / "short")
    assert {Path(name).parent.name for name in built} == {"a.b-c-7"}
    assert built.items() <= index_files(tmp_path / "local").items()


def test_what_a_killed_attempt_left_is_in_nobodys_way(spark: SparkSession, tmp_path: Path) -> None:
    logs = write_logs(tmp_path / "logs", dump())
    _local(logs, tmp_path / "local")
    plan = plan_build(list_dump([str(logs)], topics=None).segments, bins=2)
    folder = tmp_path / "spark" / "orders-0"
    folder.mkdir(parents=True)
    for attempt in range(50):
        index = str(folder / f"{0:020d}.index")
        os.close(create_scratch(scratch_path(index, "run", f"task{attempt}_9"), attributes_of=None))

    build_logs(spark, plan, settings(tmp_path / "spark"), bins=2)

    assert index_files(tmp_path / "spark") == index_files(tmp_path / "local")
    assert sweep([str(folder)], run_id="run") == 50
    assert leftovers(tmp_path) == []
