"""A Spark Connect server that knows nothing of the package, nor does its Python."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kafka_index.core.log.choices import By
from tests.cluster.conftest import finish, run
from tests.spark.lookups import answer, files, make_dump, make_queries, write_queries
from tests.support.builds import leftover_files, state_files
from tests.support.command_line import SETTINGS, Argument, index_files
from tests.support.record_jobs import DRIVER_SECONDS, RecordJobs
from tests.support.spark_cluster import SPARK_CLASS, driver_environment
from tests.support.timeouts import scaled, wait_for

pytest.importorskip("grpc", reason="Spark Connect is not installed: pip install pyspark[connect]")


@pytest.fixture(scope="module")
def remote(python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("connect")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    environment = driver_environment(python)
    del environment["PYTHONPATH"]
    command = [
        *(str(SPARK_CLASS.with_name("spark-submit")), "--master", "local[2]"),
        *("--class", "org.apache.spark.sql.connect.service.SparkConnectServer"),
        *("--conf", f"spark.connect.grpc.binding.port={port}", "spark-internal"),
    ]
    with (folder / "server.log").open("w") as log:
        server = subprocess.Popen(
            command,
            env=environment,
            cwd=folder,
            stdout=log,
            stderr=subprocess.STDOUT,
            process_group=0,
        )
    try:
        wait_for(lambda: _accepts(port), 60, f"a Connect server, see {folder}")
        yield f"sc://127.0.0.1:{port}"
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait(timeout=scaled(10))


def _accepts(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


PROGRESS = """
import sys
from kafka_index.core.query.lookups import By
from kafka_index.spark import list_dump, lookup_offsets
from kafka_index.spark.session import build_session
from kafka_index.spark.jobs import is_connect
from tests.spark.lookups import answer
from pathlib import Path

folder = Path(sys.argv[1])
session = build_session(sys.argv[2], "progress")
assert is_connect(session)
inventory = list_dump(folder / "logs", indexes=folder / "indexes")
seen = []

class Seen:
    def on_begin(self):
        pass

    def on_units(self, done, total):
        seen.append((done, total))

answer(folder / "queries", inventory, By.OFFSET, folder / "out", spark=session, listener=Seen())
queries = session.read.parquet(str(folder / "queries"))
found = lookup_offsets(queries, inventory).where("status = 'found'").count()
assert found > 100, found
assert seen == sorted(seen) and seen[-1] == (3, 3), seen
session.stop()
"""


def driver(
    python: Path, *arguments: Argument, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run a driver of Python to its end."""
    process = subprocess.Popen(
        [sys.executable, *map(str, arguments)],
        env={**driver_environment(python), **variables},
        cwd="/",
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    return finish(process, seconds=DRIVER_SECONDS)


def test_build_equals_that_of_the_local_engine(
    remote: str, python: Path, data: Path, expected: dict[str, bytes], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    result = run(
        python,
        *("build", "--engine", "spark", "--master", remote, "--config", SETTINGS),
        *("--input", data, "--output", out),
    )
    assert (result.returncode, result.stderr) == (0, "")
    assert index_files(out) == expected
    for folder in sorted(data.with_name("undisturbed").iterdir()):
        assert state_files(out / folder.name) == state_files(folder)
    assert leftover_files(tmp_path) == []


def test_lookups_equal_those_of_the_local_engine(remote: str, python: Path, tmp_path: Path) -> None:
    inventory = make_dump(tmp_path)
    queries = write_queries(tmp_path / "queries", [make_queries("offset", 200, 1)])
    answer(queries, inventory, By.OFFSET, tmp_path / "local")

    result = run(
        python,
        *("lookup", "--engine", "spark", "--master", remote, "--by", "offset"),
        *("--logs", tmp_path / "logs", "--indexes", tmp_path / "indexes"),
        *("--queries", queries, "--output", tmp_path / "out"),
    )

    assert (result.returncode, result.stderr) == (0, "")
    assert files(tmp_path / "out") == files(tmp_path / "local")


def test_lookups_report_their_progress(remote: str, python: Path, tmp_path: Path) -> None:
    inventory = make_dump(tmp_path)
    tables = [make_queries("offset", 200, seed) for seed in range(3)]
    answer(write_queries(tmp_path / "queries", tables), inventory, By.OFFSET, tmp_path / "local")

    result = driver(python, "-c", PROGRESS, tmp_path, remote)

    assert result.returncode == 0, result.stdout + result.stderr
    assert "Traceback" not in result.stderr
    assert files(tmp_path / "out") == files(tmp_path / "local")


def test_record_jobs_equal_the_local_engine(remote: str, python: Path, tmp_path: Path) -> None:
    jobs = RecordJobs(tmp_path / "records")
    jobs.check(driver(python, *jobs.driver(), SPARK_REMOTE=remote))
