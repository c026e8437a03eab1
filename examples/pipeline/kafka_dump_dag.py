"""A day's dump in Airflow: it is verified, its indexes are built, and its questions are answered.

kafka-index runs as a process of its own, in its own environment, on the machine of the worker.
Variables of the worker's environment:

``KAFKA_INDEX``
    The command, by default ``kafka-index``.
``KAFKA_INDEX_CONFIG``
    The ``server.properties`` of the brokers, by whose settings indexes are built. Those of topics
    are in the metadata log, where the dump has it.
``KAFKA_DUMPS``
    A folder with a data directory for each day, such as ``2026-05-01``.
``KAFKA_RESULTS``
    Where each day's indexes, reports and answers go, in a folder of the day.

A day without a file ``queries.csv`` (topic, partition, timestamp) in its results has no answers,
and that task is skipped. All steps can run twice: what is done already is left as it is. Only
answers to other queries, or of other logs or indexes, are not replaced: to answer again, remove
``answers.csv`` first.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from airflow.exceptions import AirflowException, AirflowFailException, AirflowSkipException
from airflow.sdk import dag, task

_DONE = 0
_DAMAGE = 1
# The environment, and what was interrupted, killed or terminated: another try may succeed.
_WORTH_A_RETRY = (3, 130, 137, 143)


@dag(
    dag_id="kafka_dump",
    schedule="@daily",
    start_date=datetime(2026, 5, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    default_args={"retries": 3, "retry_delay": timedelta(minutes=5)},
)
def kafka_dump() -> None:
    """Verify, build, look up."""

    @task
    def build(ds: str | None = None) -> dict[str, Any]:
        dump, results = _folders(ds)
        report = results / "build.parquet"
        return _run(
            results, "build", "--input", dump, "--output", results / "indexes", "--report", report
        )

    @task
    def verify(ds: str | None = None) -> dict[str, Any]:
        dump, results = _folders(ds)
        report = results / "verify.parquet"
        return _run(results, "verify", "--input", dump, "--report", report)

    @task
    def lookup(ds: str | None = None) -> dict[str, Any]:
        dump, results = _folders(ds)
        queries = results / "queries.csv"
        if not queries.exists():
            raise AirflowSkipException(f"{queries}: no such file")
        return _run(
            results,
            "lookup",
            *("--input", dump, "--indexes", results / "indexes", "--by", "timestamp"),
            *("--queries", queries, "--output", results / "answers.csv"),
        )

    verify() >> build() >> lookup()


def _folders(day: str | None) -> tuple[Path, Path]:
    if day is None:
        raise AirflowFailException("a run without a logical date has no day")
    results = Path(os.environ["KAFKA_RESULTS"], day)
    results.mkdir(parents=True, exist_ok=True)
    return Path(os.environ["KAFKA_DUMPS"], day), results


def _run(results: Path, command: str, *arguments: str | Path) -> dict[str, Any]:
    """Run a command; its exit code decides whether the task is tried again.

    Returns
    -------
    dict
        The counts, bytes and seconds of the run, for dashboards.
    """
    summary = results / f"{command}.json"
    program = shlex.split(os.environ.get("KAFKA_INDEX", "kafka-index"))
    config = os.environ.get("KAFKA_INDEX_CONFIG")
    options = ["--summary", str(summary), *(["--config", config] if config else [])]
    done = subprocess.run([*program, command, *map(str, arguments), *options], check=False)
    if done.returncode == _DONE:
        found = json.loads(summary.read_text())
        return {name: found[name] for name in ("run_id", "counts", "bytes", "seconds")}
    message = f"{command} ended with {done.returncode}, see {summary}"
    # Below 0 it is the signal that ended the process: -9 where the kernel was out of memory.
    if done.returncode < 0 or done.returncode in _WORTH_A_RETRY:
        raise AirflowException(message)
    if done.returncode == _DAMAGE:
        message = f"{command} found damage; the log above and {summary} say where"
    # Damage, wrong usage and bugs stay what they are however often they are tried.
    raise AirflowFailException(message)


kafka_dump()
