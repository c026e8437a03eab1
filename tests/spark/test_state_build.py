"""Whole partitions on Spark, in two jobs: the same files and rows as the local engine's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from kafka_index.build import BuildSettings, SegmentReport, plan_build, run_local
from kafka_index.build.plan import partition_groups
from kafka_index.build.report import report_table
from kafka_index.build.scan import stage_segments
from kafka_index.spark.build import build_logs, build_waves, publish_bin
from kafka_index.spark.staged_rows import plan_publishing, staged_table
from kafka_index.storage import list_dump, sweep
from kafka_index.storage.segment_table import SegmentTable
from tests.support.dumps import leftovers
from tests.support.transactional_logs import built_files, log_path, segments, write

PARTITIONS = ("a.b-c-0", "a.b-c-1", "z-7")


class _Rows:
    """Takes a local build's rows."""

    def __init__(self) -> None:
        self.rows: list[SegmentReport] = []

    def on_scanned(self, row: SegmentReport) -> None:
        """Only the final rows count."""

    def on_report(self, row: SegmentReport) -> None:
        self.rows.append(row)


def _data(root: Path) -> Path:
    for number, name in enumerate(PARTITIONS):
        write(root / name, segments(number + 3))
    return root


def _settings(target: Path | None) -> BuildSettings:
    return BuildSettings(target_root=None if target is None else str(target), run_id="run")


def _plan(data: Path, bins: int) -> pa.Table:
    return plan_build(list_dump([str(data)], topics=None).segments, bins=bins)


def _local(data: Path, target: Path | None) -> pa.Table:
    taken = _Rows()
    listed = list_dump([str(data)], topics=None).segments
    run_local(listed, _settings(target), threads=2, listener=taken)
    return report_table(taken.rows)


def _told(rows: pa.Table) -> list[str]:
    names = [name for name in rows.schema.names if name not in {"seconds", "log_path"}]
    return sorted(map(repr, rows.select(names).to_pylist()))


@pytest.mark.parametrize("bins", [1, 5])
@pytest.mark.parametrize("in_place", [False, True])
def test_spark_writes_and_reports_what_the_local_engine_does(
    spark: SparkSession, tmp_path: Path, bins: int, *, in_place: bool
) -> None:
    here, there = (_data(tmp_path / name) for name in ("here", "there"))
    # One is cut by recovery; one is of no use, which changes those behind it.
    for data in (here, there):
        for name, size in (("z-7", -3), ("a.b-c-1", 30)):
            log = log_path(data / name, sorted(segments(2))[1])
            log.write_bytes(log.read_bytes()[:size])
        log_path(data / "a.b-c-0", 0).write_bytes(segments(1, producers=1)[0])
    local_target = None if in_place else tmp_path / "local"
    expected = _local(here, local_target)
    target = None if in_place else tmp_path / "spark"

    report = build_logs(spark, _plan(there, bins), _settings(target), bins=bins)

    assert _told(report) == _told(expected)
    without_records = [
        {
            name: data
            for name, data in built_files(root).items()
            if not name.endswith((".kafka-index", ".tmp"))
        }
        for root in (target or there, local_target or here)
    ]
    assert without_records[0] == without_records[1] != {}


def test_a_second_build_finds_everything_right(spark: SparkSession, tmp_path: Path) -> None:
    data = _data(tmp_path / "data")
    settings = _settings(tmp_path / "out")
    build_logs(spark, _plan(data, 2), settings, bins=2)
    files = built_files(tmp_path / "out")

    report = build_logs(spark, _plan(data, 3), replace(settings, run_id="next"), bins=3)

    assert set(report["status"].to_pylist()) == {"unchanged"}
    assert built_files(tmp_path / "out") == files
    assert leftovers(tmp_path) == []


def test_fail_fast_publishes_nothing_once_a_scan_has_failed(
    spark: SparkSession, tmp_path: Path
) -> None:
    data = _data(tmp_path / "data")
    plan = _plan(data, 2)
    log_path(data / "z-7", 0).unlink()

    report = build_logs(spark, plan, _settings(tmp_path / "out"), bins=2, fail_fast=True)

    assert report["status"].to_pylist() == ["failed"]
    sweep(map(str, (tmp_path / "out").iterdir()), run_id="run")
    assert built_files(tmp_path / "out") == {}


def test_an_input_that_ends_early_publishes_whole_partitions_only(tmp_path: Path) -> None:
    data = _data(tmp_path / "data")
    _local(data, tmp_path / "local")
    settings = _settings(tmp_path / "out")
    listed = list_dump([str(data)], topics=None).segments
    staged = staged_table(list(stage_segments(listed, settings, attempt_id="scan")))
    rows = plan_publishing(staged, _plan(data, 1), bins=1)

    early = rows.slice(0, rows.num_rows - 1).to_batches()
    published = pa.Table.from_batches(publish_bin(early, settings=settings))

    assert set(published["topic"].to_pylist()) == {"a.b-c"}
    sweep(map(str, (tmp_path / "out").iterdir()), run_id="run")
    expected = built_files(tmp_path / "local")
    assert built_files(tmp_path / "out") == {
        name: content for name, content in expected.items() if not name.startswith("z-7/")
    }


def test_waves_give_the_files_and_rows_of_one_build(spark: SparkSession, tmp_path: Path) -> None:
    data = _data(tmp_path / "data")
    expected = _local(data, tmp_path / "local")
    listed = SegmentTable.of(list_dump([str(data)], topics=None).segments)
    waves = partition_groups(listed, max_bytes=1, max_segments=1)

    tables = list(build_waves(spark, waves, _settings(tmp_path / "out"), cores=2))

    assert len(tables) == len(PARTITIONS)
    assert _told(pa.concat_tables(tables)) == _told(expected)
    assert built_files(tmp_path / "out") == built_files(tmp_path / "local")


def test_a_run_that_is_left_after_a_wave_has_published_that_wave_and_ends_the_others(
    spark: SparkSession, tmp_path: Path
) -> None:
    data = _data(tmp_path / "data")
    for number in range(30):
        write(data / f"more-{number}", segments(2))
    listed = SegmentTable.of(list_dump([str(data)], topics=None).segments)
    waves = partition_groups(listed, max_bytes=1, max_segments=1)
    running = build_waves(spark, waves, _settings(tmp_path / "out"), cores=2)

    first = next(running)
    running.close()

    assert set(first["status"].to_pylist()) == {"built"}
    assert spark.sparkContext.statusTracker().getActiveJobsIds() == []
    largest = waves[0][0]
    folder = tmp_path / "out" / f"{largest.topic}-{largest.partition}"
    assert len(list(folder.glob("*.index"))) == len(waves[0])
    assert len(list((tmp_path / "out").glob("*/*.index"))) < len(listed)
