"""Jobs that ``spark-submit`` runs on the standalone cluster report what threads do."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from kafka_index.cli.exit_status import ExitCode
from kafka_index.core.log.choices import By
from tests.cluster.conftest import check_warm, finish
from tests.spark.lookups import answer, files, make_dump, make_queries, write_queries
from tests.support.command_line import DUMP, ROOT, SETTINGS, Argument, run_here
from tests.support.record_jobs import DRIVER_SECONDS, RecordJobs
from tests.support.restoring import contents, copy_dump, logs, restore
from tests.support.spark_cluster import SPARK_CLASS, Cluster, driver_environment, package_zip


def submit(
    cluster: Cluster, python: Path, job: str, *arguments: Argument, seconds: float = 90
) -> subprocess.CompletedProcess[str]:
    """Run a job, or another driver by its path, with ``spark-submit``."""
    return finish(
        subprocess.Popen(
            [
                *(str(SPARK_CLASS.with_name("spark-submit")), "--master", cluster.master),
                *(str(ROOT / "jobs" / job), *map(str, arguments)),
            ],
            env={**driver_environment(python), "SPARK_HOME": str(SPARK_CLASS.parents[1])},
            cwd="/",
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ),
        seconds=seconds,
    )


def sorted_rows(report: Path) -> pa.Table:
    order = ("path", "kind", "class", "segment_base_offset")
    return pq.read_table(report).sort_by([(name, "ascending") for name in order])


def test_verification_equals_that_of_the_local_engine(
    cluster: Cluster, python: Path, tmp_path: Path
) -> None:
    data = tmp_path / "dump"
    shutil.copytree(DUMP, data)
    (damaged, *_) = sorted(data.glob("payments-*/*.timeindex"))
    damaged.write_bytes(b"")
    arguments = ("--input", data, "--report")
    here = run_here("verify", *arguments, tmp_path / "local.parquet")

    result = submit(cluster, python, "verify.py", *arguments, tmp_path / "cluster.parquet")

    assert result.returncode == here.returncode == ExitCode.DAMAGE, result.stderr
    # Paths are printed as seen from the working folder.
    assert f"{damaged.parent.name}/{damaged.name}" in result.stdout
    rows = sorted_rows(tmp_path / "cluster.parquet")
    assert rows.equals(sorted_rows(tmp_path / "local.parquet"))
    assert rows.num_rows > 100


def test_restore_equals_that_of_the_local_engine(
    cluster: Cluster, python: Path, tmp_path: Path
) -> None:
    dump = copy_dump(tmp_path / "dump", "audit.trail-0", "payments-0", "shipments.tracking-0")
    damaged = logs(dump / "audit.trail-0")[1]
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"?")
    here = restore(dump, tmp_path / "local")

    arguments = ("--config", SETTINGS, "--input", dump, "--output", tmp_path / "cluster")
    result = submit(cluster, python, "restore.py", *arguments)

    assert result.returncode == here.code == ExitCode.DAMAGE, result.stderr
    assert "WHAT REMAINS" in result.stdout
    assert contents(tmp_path / "cluster") == contents(tmp_path / "local")


def test_lookups_run_with_the_package_in_a_zip(
    cluster: Cluster, python: Path, tmp_path: Path
) -> None:
    inventory = make_dump(tmp_path)
    tables = [make_queries("offset", 200, seed) for seed in range(3)]
    queries = write_queries(tmp_path / "queries", tables)
    answer(queries, inventory, By.OFFSET, tmp_path / "local")
    environment = {**driver_environment(python), "SPARK_HOME": str(SPARK_CLASS.parents[1])}
    # Nobody sees the package but zipped.
    del environment["PYTHONPATH"]
    known = cluster.executor_logs()
    job = shutil.copy(ROOT / "jobs" / "lookup.py", tmp_path)

    result = finish(
        subprocess.Popen(
            [
                *(SPARK_CLASS.with_name("spark-submit"), "--master", cluster.master),
                *("--py-files", package_zip(tmp_path / "package.zip"), job, "--by", "offset"),
                *("--logs", tmp_path / "logs", "--indexes", tmp_path / "indexes"),
                *("--queries", queries, "--output", tmp_path / "out"),
            ],
            env=environment,
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
    )

    assert result.returncode == 0, result.stdout + result.stderr
    assert "600 queries" in result.stdout
    assert files(tmp_path / "out") == files(tmp_path / "local")
    check_warm(cluster.executor_logs() - known)


def test_record_jobs_equal_the_local_engine(cluster: Cluster, python: Path, tmp_path: Path) -> None:
    jobs = RecordJobs(tmp_path / "records")
    jobs.check(submit(cluster, python, *jobs.driver(), seconds=DRIVER_SECONDS))
