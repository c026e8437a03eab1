"""Whole partitions on Spark, in two jobs: the same files and rows as the local engine's."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from kafka_index.build import BuildSettings, SegmentReport, build_logs
from kafka_index.build.plan import partition_groups
from kafka_index.build.waves import build_waves
from kafka_index.spark.workers import session_workers
from kafka_index.storage import SegmentFile, list_dump, sweep
from kafka_index.storage.segment_table import SegmentTable
from tests.support.dumps import CollectedRows, built_rows, leftovers
from tests.support.transactional_logs import built_files, log_path, segments, write

PARTITIONS = ("a.b-c-0", "a.b-c-1", "z-7")


def _data(root: Path) -> Path:
    for number, name in enumerate(PARTITIONS):
        write(root / name, segments(number + 3))
    return root


def _settings(target: Path | None) -> BuildSettings:
    return BuildSettings(target_root=None if target is None else str(target), run_id="run")


def _listed(data: Path) -> SegmentTable:
    return SegmentTable.of(list_dump([str(data)], topics=None).segments)


def _local(data: Path, target: Path | None) -> list[SegmentReport]:
    return built_rows(_listed(data), _settings(target))


def _build(
    spark: SparkSession, segments: Sequence[SegmentFile], settings: BuildSettings
) -> list[SegmentReport]:
    collected = CollectedRows()
    with session_workers(spark) as workers:
        build_logs(workers, segments, settings, listener=collected)
    return collected.rows


def _told(rows: Iterable[SegmentReport]) -> list[str]:
    return sorted(repr(replace(row, seconds=0, log_path="")) for row in rows)


@pytest.mark.parametrize("in_place", [False, True])
def test_spark_writes_and_reports_what_the_local_engine_does(
    spark: SparkSession, tmp_path: Path, *, in_place: bool
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

    rows = _build(spark, _listed(there), _settings(target))

    assert _told(rows) == _told(expected)
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
    _build(spark, _listed(data), settings)
    files = built_files(tmp_path / "out")

    rows = _build(spark, _listed(data), replace(settings, run_id="next"))

    assert {row.status for row in rows} == {"unchanged"}
    assert built_files(tmp_path / "out") == files
    assert leftovers(tmp_path) == []


def test_fail_fast_publishes_nothing_once_a_scan_has_failed(
    spark: SparkSession, tmp_path: Path
) -> None:
    data = _data(tmp_path / "data")
    waves = [_listed(data)]
    log_path(data / "z-7", 0).unlink()

    with session_workers(spark) as workers:
        (rows,) = build_waves(workers, waves, _settings(tmp_path / "out"), fail_fast=True)

    assert [row.status for row in rows] == ["failed"]
    sweep(map(str, (tmp_path / "out").iterdir()), run_id="run")
    assert built_files(tmp_path / "out") == {}


def test_waves_give_the_files_and_rows_of_one_build(spark: SparkSession, tmp_path: Path) -> None:
    data = _data(tmp_path / "data")
    expected = _local(data, tmp_path / "local")
    waves = partition_groups(_listed(data), max_bytes=1, max_segments=1)

    with session_workers(spark) as workers:
        reports = list(build_waves(workers, waves, _settings(tmp_path / "out")))

    assert len(reports) == len(PARTITIONS)
    assert _told(chain.from_iterable(reports)) == _told(expected)
    assert built_files(tmp_path / "out") == built_files(tmp_path / "local")


def test_a_run_that_is_left_after_a_wave_has_published_that_wave_and_ends_the_others(
    spark: SparkSession, tmp_path: Path
) -> None:
    data = _data(tmp_path / "data")
    for number in range(30):
        write(data / f"more-{number}", segments(2))
    listed = _listed(data)
    waves = partition_groups(listed, max_bytes=1, max_segments=1)

    with session_workers(spark) as workers:
        running = build_waves(workers, waves, _settings(tmp_path / "out"))
        first = next(running)
        running.close()

    assert {row.status for row in first} == {"built"}
    # The tracker learns of the end of a job from events, which arrive later.
    spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
    assert spark.sparkContext.statusTracker().getActiveJobsIds() == []
    largest = waves[0][0]
    folder = tmp_path / "out" / f"{largest.topic}-{largest.partition}"
    assert len(list(folder.glob("*.index"))) == len(waves[0])
    assert len(list((tmp_path / "out").glob("*/*.index"))) < len(listed)
