"""Builds of logs on Spark: the same files and rows as the local engine's."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from kafka_index.commands.build.log_build import (
    LogRound,
    build_logs,
    build_rounds,
    group_by_partition,
    partition_groups,
)
from kafka_index.core.log.recovery.publish import publish_partitions
from kafka_index.core.log.recovery.scan import stage_segments
from kafka_index.core.log.recovery.settings import BuildSettings, SegmentReport, report_table
from kafka_index.core.log.recovery.staged_segment import StagedSegment
from kafka_index.core.logdir.listing import list_dump
from kafka_index.core.logdir.partition_files import SegmentFile
from kafka_index.core.logdir.segment_table import SegmentTable
from kafka_index.core.output.publish import create_scratch, scratch_path, sweep
from kafka_index.spark import workers as spark_workers
from kafka_index.spark.workers import session_workers
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
from tests.support.transactional_logs import built_files, log_path, segments, write

TURNS = int(os.environ.get("KAFKA_INDEX_TURNS", "30"))
PARTITIONS = ("a.b-c-0", "a.b-c-1", "z-7")


def _data(root: Path) -> Path:
    for number, name in enumerate(PARTITIONS):
        write(root / name, segments(number + 3))
    return root


def _settings(target: Path | None) -> BuildSettings:
    return BuildSettings(target_root=None if target is None else str(target), run_id="run")


def _listed(logs: Path) -> SegmentTable:
    return SegmentTable.from_files(list_dump([str(logs)], topics=None).segments)


def _build(
    spark: SparkSession,
    segments: Sequence[SegmentFile],
    settings: BuildSettings,
    *,
    fail_fast: bool = False,
) -> list[SegmentReport]:
    collected = CollectedRows()
    with session_workers(spark) as workers:
        build_logs(workers, segments, settings, listener=collected, fail_fast=fail_fast)
    return collected.rows


def test_build_on_spark_equals_the_local_engine(spark: SparkSession, tmp_path: Path) -> None:
    logs = write_logs(tmp_path / "logs", dump())
    expected = built_rows(_listed(logs), settings(tmp_path / "local"))

    rows = _build(spark, _listed(logs), settings(tmp_path / "spark"))

    assert outcomes(report_table(rows)) == outcomes(report_table(expected))
    assert index_files(tmp_path / "spark") == index_files(tmp_path / "local")
    assert len(index_files(tmp_path / "spark")) == 2 * len(dump())
    assert leftovers(tmp_path) == []


def test_damaged_segment_and_a_missing_one_are_rows_of_the_report(
    spark: SparkSession, tmp_path: Path
) -> None:
    written = dump()
    damaged = bytearray(written["a.b-c", 7, 500][60])
    damaged[80] ^= 1
    written["a.b-c", 7, 500][60] = bytes(damaged)
    logs = write_logs(tmp_path / "logs", written)
    listed = list(_listed(logs))
    (logs / "orders-1" / f"{0:020d}.log").unlink()

    rows = _build(spark, listed, settings(tmp_path / "spark"))

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
    monkeypatch.setattr(spark_workers, "count_bins", lambda *_: 1)

    rows = _build(spark, listed, settings(tmp_path / "spark"), fail_fast=True)

    assert [row.status for row in rows] == ["failed"]


def test_build_of_no_segments_returns_no_rows(spark: SparkSession, tmp_path: Path) -> None:
    assert _build(spark, [], settings(tmp_path / "spark")) == []


def test_leftovers_of_a_killed_attempt_do_not_block_a_build(
    spark: SparkSession, tmp_path: Path
) -> None:
    logs = write_logs(tmp_path / "logs", dump())
    built_rows(_listed(logs), settings(tmp_path / "local"))
    folder = tmp_path / "spark" / "orders-0"
    folder.mkdir(parents=True)
    for attempt in range(50):
        index = str(folder / f"{0:020d}.index")
        os.close(create_scratch(scratch_path(index, "run", f"task{attempt}_9"), attributes_of=None))

    _build(spark, _listed(logs), settings(tmp_path / "spark"))

    assert index_files(tmp_path / "spark") == index_files(tmp_path / "local")
    assert len(leftovers(tmp_path)) == 50
    sweep([str(folder)], run_id="run")
    assert leftovers(tmp_path) == []


# ------------------------------------------------------------ partitions, whose state is folded


def _told(rows: Iterable[SegmentReport]) -> list[str]:
    return sorted(repr(replace(row, seconds=0, log_path="")) for row in rows)


@pytest.mark.parametrize("in_place", [False, True])
def test_spark_output_and_report_equal_those_of_the_local_engine(
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
    expected = built_rows(_listed(here), _settings(local_target))
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


def test_second_build_on_spark_writes_nothing(spark: SparkSession, tmp_path: Path) -> None:
    data = _data(tmp_path / "data")
    first = _settings(tmp_path / "out")
    _build(spark, _listed(data), first)
    files = built_files(tmp_path / "out")

    rows = _build(spark, _listed(data), replace(first, run_id="next"))

    assert {row.status for row in rows} == {"unchanged"}
    assert built_files(tmp_path / "out") == files
    assert leftovers(tmp_path) == []


def test_fail_fast_publishes_nothing_once_a_scan_has_failed(
    spark: SparkSession, tmp_path: Path
) -> None:
    data = _data(tmp_path / "data")
    rounds = [LogRound(_listed(data))]
    log_path(data / "z-7", 0).unlink()

    with session_workers(spark) as workers:
        (rows,) = build_rounds(workers, rounds, _settings(tmp_path / "out"), fail_fast=True)

    assert [row.status for row in rows] == ["failed"]
    sweep(map(str, (tmp_path / "out").iterdir()), run_id="run")
    assert built_files(tmp_path / "out") == {}


def test_build_in_rounds_equals_a_single_build(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "kafka_index")
    data = _data(tmp_path / "data")
    expected = built_rows(_listed(data), _settings(tmp_path / "local"))
    rounds = list(map(LogRound, partition_groups(_listed(data), max_bytes=1, max_segments=1)))

    with session_workers(spark) as workers:
        reports = list(build_rounds(workers, rounds, _settings(tmp_path / "out")))

    assert len(reports) == len(PARTITIONS)
    (line,) = caplog.messages
    size = sum(each.log_size_bytes for each in _listed(data)) / 1e9
    assert line.startswith(
        f"run run: {len(PARTITIONS)} rounds, {len(expected)} segments, {size:.2f} GB of logs, "
    )
    (sent,) = re.findall(r"([\d.]+) MB through the driver, [\d.]+ s$", line)
    assert float(sent) > 0
    assert _told(chain.from_iterable(reports)) == _told(expected)
    assert built_files(tmp_path / "out") == built_files(tmp_path / "local")


def test_abandoned_build_has_published_its_finished_rounds_only(
    spark: SparkSession, tmp_path: Path
) -> None:
    data = _data(tmp_path / "data")
    for number in range(TURNS):
        write(data / f"more-{number}", segments(2))
    listed = _listed(data)
    rounds = list(map(LogRound, partition_groups(listed, max_bytes=1, max_segments=1)))

    with session_workers(spark) as workers:
        running = build_rounds(workers, rounds, _settings(tmp_path / "out"))
        first = next(running)
        running.close()

    assert {row.status for row in first} == {"built"}
    # The tracker learns of the end of a job from events, which arrive later.
    spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
    assert spark.sparkContext.statusTracker().getActiveJobsIds() == []
    largest = rounds[0].segments[0]
    folder = tmp_path / "out" / f"{largest.topic}-{largest.partition}"
    assert len(list(folder.glob("*.index"))) == len(rounds[0].segments)
    assert len(list((tmp_path / "out").glob("*/*.index"))) < len(listed)


def test_two_concurrent_publications_leave_the_files_of_one_attempt(tmp_path: Path) -> None:
    data = _data(tmp_path / "data")
    built_rows(_listed(data), _settings(tmp_path / "expected"))
    chosen = replace(_settings(tmp_path / "out"), shares_staged=True, force=True)
    for turn in range(TURNS):
        # Files of an earlier run are in place: a publication removes an old .index first.
        own = replace(chosen, run_id=f"run{turn}")
        staged = list(stage_segments(_listed(data), own, attempt_id="scan"))
        with ThreadPoolExecutor(2) as pool:
            publish = partial(_publish_when_ready, staged, own, threading.Barrier(2))
            attempts = list(pool.map(publish, ("first", "second")))

        for rows in attempts:
            assert {row.reason for row in rows} == {None}
            assert {row.status for row in rows} == {"built"}
        assert _without_records(tmp_path / "out") == _without_records(tmp_path / "expected")
        sweep(map(str, (tmp_path / "out").iterdir()), run_id=own.run_id)
        assert leftovers(tmp_path / "out") == []


def _publish_when_ready(
    staged: list[StagedSegment], settings: BuildSettings, ready: threading.Barrier, attempt_id: str
) -> list[SegmentReport]:
    ready.wait()
    return list(publish_partitions(group_by_partition(staged), settings, attempt_id=attempt_id))


def _without_records(root: Path) -> dict[str, bytes]:
    return {name: data for name, data in built_files(root).items() if "/." not in name}
