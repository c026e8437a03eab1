"""A standalone cluster whose executors have the dependencies of the package and not the package."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

import kafka_index
from tests.cluster.conftest import check_warm, event_log, finish, run, start
from tests.support.builds import leftover_files, published, state_files
from tests.support.command_line import SETTINGS, index_files
from tests.support.gates import Gate, Step
from tests.support.spark_cluster import Cluster


def test_build_equals_that_of_the_local_engine(
    cluster: Cluster, python: Path, data: Path, expected: dict[str, bytes], tmp_path: Path
) -> None:
    out, events, warnings = (tmp_path / name for name in ("out", "events", "warnings"))
    known = cluster.executor_logs()

    result = run(
        python,
        *("build", "--engine", "spark", "--master", cluster.master, "--config", SETTINGS),
        *("--input", data, "--output", out),
        settings=[*event_log(events), warning_log(warnings)],
    )

    assert (result.returncode, result.stderr) == (0, "")
    assert warnings_of_jobs(warnings) == []
    assert index_files(out) == expected
    for folder in sorted(data.with_name("undisturbed").iterdir()):
        assert state_files(out / folder.name) == state_files(folder)
    assert leftover_files(tmp_path) == []
    check_warm(cluster.executor_logs() - known)
    count = len(list(data.glob("*/*.log")))
    partitions = len(list(data.iterdir()))
    actual = descriptions(events)
    size = sum(log.stat().st_size for log in data.glob("*/*.log")) / 1e9
    scan = f"scan {count} segments, {size:.2f} GB"
    assert {scan, f"merge {partitions} partitions"} <= actual, actual


def warning_log(path: Path) -> str:
    """Return the setting of a driver that logs as ours do, and its warnings into a file."""
    configuration = path.with_name("log4j2.properties")
    ours = Path(kafka_index.__file__).parent / "spark" / "log4j2.properties"
    text = ours.read_text().replace("rootLogger.level = error", "rootLogger.level = warn")
    text = re.sub(r"(?m)^(logger\.(tasks|scheduler)\.level) = off$", r"\1 = warn", text)
    configuration.write_text(text + _WARNINGS_TO_FILE.format(path=path))
    return f"spark.driver.extraJavaOptions=-Dlog4j2.configurationFile={configuration.as_uri()}"


_WARNINGS_TO_FILE = """
rootLogger.appenderRef.stderr.level = error
rootLogger.appenderRef.file.ref = file
appender.file.type = File
appender.file.name = file
appender.file.fileName = {path}
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %c: %m%n
"""


def warnings_of_jobs(path: Path) -> list[str]:
    """The warnings that are about jobs and their plans, not about this machine."""
    lines = path.read_text().splitlines()
    assert lines, "not even the warning that Hadoop's native library is missing"
    of_machine = ("org.apache.hadoop.util.NativeCodeLoader", "org.apache.spark.util.Utils")
    return [line for line in lines if not line.startswith(of_machine)]


def descriptions(events: Path) -> set[str]:
    """The descriptions of all jobs, as the Spark UI shows them."""
    result = set()
    for log in (path for path in events.rglob("*") if path.is_file()):
        for line in log.read_text().splitlines():
            event = json.loads(line) if line.startswith("{") else {}
            if event.get("Event") == "SparkListenerJobStart":
                result.add(event["Properties"].get("spark.job.description", ""))
    return result


PUBLISHED = 4


def build_with_killed_executors(
    cluster: Cluster, python: Path, data: Path, folder: Path, count: int, *settings: str
) -> tuple[subprocess.CompletedProcess[str], pa.Table]:
    """Kill executors while they publish; return how the build ended, and its report."""
    gate = Gate(folder / "gate", Step("os.rename", ".index", PUBLISHED + 1))
    out, report = folder / "out", folder / "report.parquet"
    process = start(
        python,
        *("build", "--engine", "spark", "--master", cluster.master, "--config", SETTINGS),
        *("--input", data, "--output", out, "--what", "index,timeindex", "--report", report),
        settings=[*settings, *gate.spark_settings],
    )
    gate.wait(process, lambda: len(published(out)) == PUBLISHED, processes=2)
    for pid in cluster.executors()[:count]:
        os.kill(pid, signal.SIGKILL)
    gate.wait_for_end(count)
    gate.open()
    result = finish(process)
    rows = pq.read_table(report)
    assert set(rows["status"].to_pylist()) == {"built"}
    return result, rows


def test_build_whose_executor_is_killed_gives_the_same_bytes(
    cluster: Cluster, python: Path, data: Path, expected: dict[str, bytes], tmp_path: Path
) -> None:
    done, rows = build_with_killed_executors(cluster, python, data, tmp_path, 1)

    assert done.returncode == 0, done.stderr
    assert index_files(tmp_path / "out") == expected
    assert leftover_files(tmp_path) == []
    # Those of the killed executor that were in place are found so by the next attempt.
    assert rows.num_rows == len(expected) // 2


def test_report_of_a_failed_job_lists_published_segments(
    cluster: Cluster, python: Path, data: Path, expected: dict[str, bytes], tmp_path: Path
) -> None:
    once = "spark.task.maxFailures=1"
    done, rows = build_with_killed_executors(cluster, python, data, tmp_path, 2, once)

    assert done.returncode == 3, done.stderr
    assert done.stderr.startswith("kafka-index: error: the Spark job failed")
    assert done.stderr.count("\n") == 1
    actual = index_files(tmp_path / "out")
    assert sum(name.endswith(".index") for name in actual) == PUBLISHED
    assert actual.items() <= expected.items()
    assert rows.num_rows == PUBLISHED
    assert leftover_files(tmp_path) == []
