"""Builds of many small segments: little passes through the driver, however many there are."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kafka_index.core.format.names import LOG_SUFFIX, segment_file_name
from tests.cluster.conftest import event_log, finish, run, start
from tests.support.builds import leftover_files
from tests.support.command_line import Argument, build_here
from tests.support.dumps import raw_batch_table
from tests.support.segments import batch
from tests.support.spark_cluster import Cluster, standalone_cluster
from tests.support.timeouts import TIMEOUT_SECONDS, wait_for
from tests.support.transactional_logs import built_files

PARTITIONS, SEGMENTS = 40, 100
# Spark refuses the results of a job, or the data of a task, that are larger.
LIMITS = ["spark.driver.maxResultSize=1m", "spark.rpc.message.maxSize=1", "spark.driver.memory=1g"]


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One-batch segments, in partitions of hard links to the same logs."""
    root = tmp_path_factory.mktemp("many") / "logs"
    first = root / "topic-0"
    first.mkdir(parents=True)
    for offset in range(SEGMENTS):
        name = segment_file_name(offset, LOG_SUFFIX)
        (first / name).write_bytes(batch(offset, records=1))
        for number in range(1, PARTITIONS):
            folder = root / f"topic-{number}"
            folder.mkdir(exist_ok=True)
            os.link(first / name, folder / name)
    return root


@pytest.fixture(scope="module")
def expected(logs: Path) -> dict[str, bytes]:
    out = logs.with_name("expected")
    assert build_here("--input", logs, "--output", out).returncode == 0
    return _files(out)


def _files(root: Path) -> dict[str, bytes]:
    return {name: data for name, data in built_files(root).items() if "/." not in name}


def build(cluster: Cluster, given: Path, out: Path) -> list[Argument]:
    options: list[Argument] = ["build", "--engine", "spark", "--master", cluster.master]
    return [*options, "--input", given, "--output", out]


@pytest.mark.parametrize("form", ["logs", "parquet in random order"])
def test_build_of_many_small_segments_fits_the_result_limits_of_the_driver(
    cluster: Cluster,
    python: Path,
    logs: Path,
    expected: dict[str, bytes],
    tmp_path: Path,
    form: str,
) -> None:
    given = logs
    if form != "logs":
        table = raw_batch_table(logs)
        order = np.random.default_rng(7).permutation(table.num_rows)
        given = tmp_path / "in.parquet"
        pq.write_table(table.take(pa.array(order)), given, row_group_size=1_000)
    out = tmp_path / "out"

    result = run(python, *build(cluster, given, out), settings=LIMITS)

    assert (result.returncode, result.stderr) == (0, "")
    assert _files(out) == expected
    assert leftover_files(tmp_path) == []


def test_executors_that_join_later_run_tasks(
    logs: Path, expected: dict[str, bytes], python: Path, tmp_path: Path
) -> None:
    events, out = tmp_path / "events", tmp_path / "out"
    with standalone_cluster(tmp_path / "cluster", workers=1) as small:
        driver = start(python, *build(small, logs, out), settings=event_log(events))
        wait_for(lambda: list(out.glob("*/*")), TIMEOUT_SECONDS, "the first scanned segment")
        small.add_worker()
        result = finish(driver)

    assert (result.returncode, result.stderr) == (0, "")
    assert _files(out) == expected
    tasks = tasks_of(events)
    assert set(tasks) == {"0", "1"}
    # Two cores share what was left when the second one joined.
    joined = min(task["Launch Time"] for task in tasks["1"])
    first = [task for task in tasks["0"] if task["Launch Time"] >= joined]
    assert len(tasks["1"]) >= len(first) / 3


def tasks_of(events: Path) -> dict[str, list[dict[str, int]]]:
    """Return the tasks of each executor, from an event log."""
    tasks: dict[str, list[dict[str, int]]] = defaultdict(list)
    for path in events.rglob("events_*"):
        for line in path.read_text().splitlines():
            event = json.loads(line)
            if event["Event"] == "SparkListenerTaskEnd":
                tasks[event["Task Info"]["Executor ID"]].append(event["Task Info"])
    return tasks


def test_build_starts_without_executors_under_dynamic_allocation(
    cluster: Cluster, python: Path, logs: Path, expected: dict[str, bytes], tmp_path: Path
) -> None:
    allocation = {"enabled": "true", "shuffleTracking.enabled": "true", "minExecutors": "0"}
    settings = [f"spark.dynamicAllocation.{name}={value}" for name, value in allocation.items()]
    out, events = tmp_path / "out", tmp_path / "events"

    result = run(python, *build(cluster, logs, out), settings=[*settings, *event_log(events)])

    assert (result.returncode, result.stderr) == (0, "")
    assert _files(out) == expected
    assert len(tasks_of(events)) == 2
