"""The Spark engine over logs: the same as the local one."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from kafka_index.build import SegmentReport, build_logs
from kafka_index.build.report import report_table
from kafka_index.spark import workers as spark_workers
from kafka_index.spark.workers import session_workers
from kafka_index.storage import SegmentFile, create_scratch, list_dump, scratch_path, sweep
from tests.support.dumps import (
    CollectedRows,
    built_rows,
    dump,
    index_files,
    leftovers,
    outcomes,
    settings,
    write_logs,
)


def _listed(logs: Path) -> Sequence[SegmentFile]:
    return list_dump([str(logs)], topics=None).segments


def _local(logs: Path, target: Path) -> list[SegmentReport]:
    return built_rows(_listed(logs), settings(target))


def _build(
    spark: SparkSession, segments: Sequence[SegmentFile], target: Path, *, fail_fast: bool = False
) -> list[SegmentReport]:
    collected = CollectedRows()
    with session_workers(spark) as workers:
        build_logs(workers, segments, settings(target), listener=collected, fail_fast=fail_fast)
    return collected.rows


def test_spark_writes_and_reports_what_the_local_engine_does(
    spark: SparkSession, tmp_path: Path
) -> None:
    logs = write_logs(tmp_path / "logs", dump())
    expected = _local(logs, tmp_path / "local")

    rows = _build(spark, _listed(logs), tmp_path / "spark")

    assert outcomes(report_table(rows)) == outcomes(report_table(expected))
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
    listed = list(_listed(logs))
    (logs / "orders-1" / f"{0:020d}.log").unlink()

    rows = _build(spark, listed, tmp_path / "spark")

    assert {(row.topic, row.partition, row.segment_base_offset): row.status for row in rows} == {
        ("a.b-c", 7, 500): "truncated",
        ("orders", 0, 0): "built",
        ("orders", 0, 2700): "built",
        ("orders", 1, 0): "failed",
    }


def test_fail_fast_ends_a_task_at_its_first_failed_segment(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = write_logs(tmp_path / "logs", dump())
    listed = list(_listed(logs))
    for path in logs.rglob("*.log"):
        path.unlink()
    monkeypatch.setattr(spark_workers, "_MAX_BINS", 1)

    rows = _build(spark, listed, tmp_path / "spark", fail_fast=True)

    assert [row.status for row in rows] == ["failed"]


def test_no_segments_give_no_rows(spark: SparkSession, tmp_path: Path) -> None:
    assert _build(spark, [], tmp_path / "spark") == []


def test_what_a_killed_attempt_left_is_in_nobodys_way(spark: SparkSession, tmp_path: Path) -> None:
    logs = write_logs(tmp_path / "logs", dump())
    _local(logs, tmp_path / "local")
    folder = tmp_path / "spark" / "orders-0"
    folder.mkdir(parents=True)
    for attempt in range(50):
        index = str(folder / f"{0:020d}.index")
        os.close(create_scratch(scratch_path(index, "run", f"task{attempt}_9"), attributes_of=None))

    _build(spark, _listed(logs), tmp_path / "spark")

    assert index_files(tmp_path / "spark") == index_files(tmp_path / "local")
    assert sweep([str(folder)], run_id="run") == 50
    assert leftovers(tmp_path) == []
