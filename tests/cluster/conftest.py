"""A cluster for all tests of this folder, and executors that have the dependencies alone."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pytest

from tests.support.builds import copy_dump
from tests.support.command_line import COMMAND, SETTINGS, Argument, build_here, index_files
from tests.support.spark_cluster import (
    Cluster,
    driver_environment,
    executor_python,
    standalone_cluster,
)
from tests.support.timeouts import scaled

_COMMAND_SECONDS = 90
_PROGRESS = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z .*\n")


@pytest.fixture(scope="session")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of executors, which lacks the package."""
    interpreter = executor_python(tmp_path_factory.mktemp("executor") / "venv")
    lacking = subprocess.run(
        [interpreter, "-c", "import numba, pyarrow, pyspark, kafka_index"],
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
    )
    assert "No module named 'kafka_index'" in lacking.stderr
    return interpreter


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with standalone_cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_dump(tmp_path_factory.mktemp("data") / "data", copies=2)


@pytest.fixture(scope="session")
def expected(data: Path) -> dict[str, bytes]:
    """The indexes that the local engine builds."""
    out = data.with_name("undisturbed")
    assert build_here("--input", data, "--output", out, "--config", SETTINGS).returncode == 0
    return index_files(out)


def event_log(folder: Path) -> list[str]:
    """Return the settings of a driver that writes its events as text into a new folder."""
    folder.mkdir()
    settings = {"enabled": "true", "compress": "false", "dir": folder.as_uri()}
    return [f"spark.eventLog.{name}={value}" for name, value in settings.items()]


def check_warm(logs: Iterable[Path]) -> None:
    """Executors wrote logs, and none says that its daemon could not prepare workers."""
    texts = [log.read_text(errors="replace") for log in logs]
    assert texts
    assert not any("warming up Python workers failed" in text for text in texts)


def start(
    python: Path, *arguments: Argument, settings: Sequence[str] = ()
) -> subprocess.Popen[str]:
    """Start the console script as a driver; settings as ``name=value``."""
    options = " ".join(f"--conf {setting}" for setting in settings)
    return subprocess.Popen(
        [*COMMAND, *map(str, arguments)],
        env={**driver_environment(python), "PYSPARK_SUBMIT_ARGS": f"{options} pyspark-shell"},
        cwd="/",
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(
    process: subprocess.Popen[str], *, seconds: float = _COMMAND_SECONDS
) -> subprocess.CompletedProcess[str]:
    """Wait for a command; its standard error comes without progress, which only long ones show."""
    try:
        stdout, stderr = process.communicate(timeout=scaled(seconds))
    except subprocess.TimeoutExpired:
        process.kill()
        stdout, stderr = process.communicate()
        raise AssertionError(f"a driver hangs: {stdout}{stderr}") from None
    stderr = _PROGRESS.sub("", stderr)
    return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)


def run(
    python: Path, *arguments: Argument, settings: Sequence[str] = ()
) -> subprocess.CompletedProcess[str]:
    return finish(start(python, *arguments, settings=settings))
