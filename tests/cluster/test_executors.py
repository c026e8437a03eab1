"""Executors that cannot do the work: one line that says why, and nothing is published."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.cluster.conftest import run
from tests.support.builds import rubbish
from tests.support.command_line import Argument
from tests.support.spark_cluster import Cluster, executor_python, standalone_cluster


def build(master: str, data: Path, out: Path) -> list[Argument]:
    where: list[Argument] = ["--input", data, "--output", out]
    return ["build", "--engine", "spark", "--master", master, *where]


def check_refused(done: subprocess.CompletedProcess[str], out: Path, *texts: str) -> None:
    """It says so in one line, and has written nothing."""
    assert done.returncode == 3, done.stdout + done.stderr
    assert done.stderr.startswith("kafka-index: error: ")
    assert done.stderr.count("\n") == 1
    for text in texts:
        assert text in done.stderr
    assert list(out.rglob("*")) == []
    assert rubbish(out.parent) == []


def test_a_package_that_executors_lack_is_named_with_their_interpreter(
    cluster: Cluster, data: Path, tmp_path: Path
) -> None:
    poor = executor_python(tmp_path / "venv", without=["numba", "orjson"])

    done = run(poor, *build(cluster.master, data, tmp_path / "out"))

    check_refused(
        done,
        tmp_path / "out",
        "the Python of the executors lacks numba, orjson",
        str(poor),
        "install it into the Python of the executors",
    )


def test_why_a_worker_does_not_start_is_said_with_its_executor(
    cluster: Cluster, python: Path, data: Path, tmp_path: Path
) -> None:
    command = build(cluster.master, data, tmp_path / "out")

    done = run(python, *command, settings=["spark.python.daemon.module=nowhere.daemon"])

    text = "the Python of an executor lacks the package nowhere on 127.0.0.1 executor "
    check_refused(done, tmp_path / "out", text)


@pytest.mark.parametrize(
    ("hidden", "text"),
    [
        ("out", "the executors do not see the driver's output folder"),
        ("data", "the executors do not see the input"),
    ],
)
def test_a_folder_that_is_not_shared_is_noticed_before_the_work(
    python: Path, data: Path, tmp_path: Path, hidden: str, text: str
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    copy = shutil.copytree(data, tmp_path / "data")
    # On these workers another, empty file system is mounted in its place.
    mount = f'mount -t tmpfs none "{tmp_path / hidden}" && exec "$@"'
    wrapper = ["unshare", "--mount", "--map-root-user", "sh", "-c", mount, "sh"]
    if subprocess.run([*wrapper, "true"], check=False, capture_output=True).returncode != 0:
        pytest.skip("CANNOT MOUNT in a namespace: executors with other disks are NOT tested")

    with standalone_cluster(tmp_path / "cluster", workers=1, wrapper=wrapper) as apart:
        done = run(python, *build(apart.master, copy, out))

    check_refused(done, out, text, str(tmp_path / hidden), "all nodes see under one path")
