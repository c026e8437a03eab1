"""The DAG of the examples, run by Airflow's own runner."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.servers.airflow import airflow_program, needing_downloads
from tests.support.command_line import ROOT, copy_partitions, environment
from tests.support.timeouts import TIMEOUT_SECONDS

FOLDER = ROOT / "examples" / "pipeline"
DAY = "2026-05-02"


@pytest.fixture(scope="module")
def airflow(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """Airflow's command line over an empty database of its own."""
    needing_downloads("Airflow")
    program = airflow_program()
    home = tmp_path_factory.mktemp("airflow")
    variables = {
        # Its own packages, not those of the tests; kafka-index has an environment of its own.
        **{name: value for name, value in os.environ.items() if not name.startswith("PYTHON")},
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__DAGS_FOLDER": str(FOLDER),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__UNIT_TEST_MODE": "False",
        "KAFKA_INDEX": f"env PYTHONPATH={environment()['PYTHONPATH']} "
        f"{sys.executable} -m kafka_index",
    }

    def run(*arguments: str, **more: str) -> str:
        result = subprocess.run(
            [str(program), *arguments],
            env={**variables, **more},
            capture_output=True,
            text=True,
            check=False,
            timeout=TIMEOUT_SECONDS,
        )
        return f"{result.stdout}\n{result.stderr}\nexit code {result.returncode}"

    assert "exit code 0" in run("db", "migrate")
    return run


def test_airflow_day_without_queries_skips_the_lookup(
    airflow: Callable[..., str], tmp_path: Path
) -> None:
    copy_partitions(tmp_path / "dumps" / DAY, "app-logs-0")
    output = airflow(
        *("dags", "test", "kafka_dump", DAY),
        KAFKA_DUMPS=str(tmp_path / "dumps"),
        KAFKA_RESULTS=str(tmp_path / "results"),
    )
    assert "exit code 0" in output, output
    results = tmp_path / "results" / DAY
    assert json.loads((results / "build.json").read_text())["outcome"] == "done", output
    assert (results / "verify.parquet").exists()
    assert not (results / "lookup.json").exists()


def test_damage_fails_the_dag_without_a_retry(airflow: Callable[..., str], tmp_path: Path) -> None:
    data = copy_partitions(tmp_path / "dumps" / DAY, "app-logs-0")
    log = next(data.glob("*/*.log"))
    content = bytearray(log.read_bytes())
    content[100] ^= 1
    log.write_bytes(content)
    output = airflow(
        *("dags", "test", "kafka_dump", DAY),
        KAFKA_DUMPS=str(tmp_path / "dumps"),
        KAFKA_RESULTS=str(tmp_path / "results"),
    )
    results = tmp_path / "results" / DAY
    assert json.loads((results / "verify.json").read_text())["outcome"] == "damage", output
    assert "verify found damage" in output
    assert "AirflowFailException" in output
    report = pq.read_table(results / "verify.parquet").to_pylist()
    assert str(log) in {row["path"] for row in report if row["harmful"]}
    assert not (results / "build.json").exists()


# Ends a step of the DAG's file in several ways, without Airflow's scheduler, whose pauses are long.
_STEPS = """
import os, pathlib, sys
from airflow.exceptions import AirflowException
sys.path.insert(0, sys.argv[1])
import kafka_dump_dag
for end in sys.argv[3:]:
    os.environ["KAFKA_INDEX"] = f"sh -c '{end}'"
    try:
        kafka_dump_dag._run(pathlib.Path(sys.argv[2]), "build")
    except AirflowException as error:
        print(end, type(error).__name__, sep=": ")
"""


@pytest.mark.usefixtures("airflow")
def test_step_ended_by_a_signal_is_retried(tmp_path: Path) -> None:
    result = subprocess.run(
        [
            *(airflow_program().with_name("python"), "-c", _STEPS, FOLDER, tmp_path),
            *("kill -9 $$", "kill -2 $$", "exit 137", "exit 2"),
        ],
        env={
            **{name: value for name, value in os.environ.items() if not name.startswith("PYTHON")},
            "AIRFLOW_HOME": str(tmp_path),
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_SECONDS,
    )
    assert [line for line in result.stdout.splitlines() if line.startswith(("kill", "exit"))] == [
        "kill -9 $$: AirflowException",
        "kill -2 $$: AirflowException",
        "exit 137: AirflowException",
        "exit 2: AirflowFailException",
    ], result.stderr
