"""Executors that cannot do the work: one line that says why, and nothing is published."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.conftest import run
from tests.support.builds import leftover_files
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
    assert leftover_files(out.parent) == []


def test_package_missing_on_executors_is_reported_with_their_interpreter(
    cluster: Cluster, data: Path, tmp_path: Path
) -> None:
    poor = executor_python(tmp_path / "venv", without=["numba", "msgspec"])

    result = run(poor, *build(cluster.master, data, tmp_path / "out"))

    check_refused(
        result,
        tmp_path / "out",
        "the Python of the executors lacks msgspec, numba",
        str(poor),
        "install the packages into the Python of the executors",
    )


def test_failed_worker_start_is_reported_with_its_executor(
    cluster: Cluster, python: Path, data: Path, tmp_path: Path
) -> None:
    command = build(cluster.master, data, tmp_path / "out")

    result = run(python, *command, settings=["spark.python.daemon.module=nowhere.daemon"])

    text = "the Python of an executor lacks the package nowhere on 127.0.0.1 executor "
    check_refused(result, tmp_path / "out", text)


@pytest.fixture(scope="module")
def unshared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that the workers of `cluster_without_shared_folder` do not share."""
    return tmp_path_factory.mktemp("unshared_folder")


@pytest.fixture(scope="module")
def cluster_without_shared_folder(
    unshared_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    mount = f'mount -t tmpfs none "{unshared_folder}" && exec "$@"'
    wrapper = ["unshare", "--mount", "--map-root-user", "sh", "-c", mount, "sh"]
    if subprocess.run([*wrapper, "true"], check=False, capture_output=True).returncode != 0:
        pytest.skip("CANNOT MOUNT in a namespace: executors with other disks are NOT tested")
    folder = tmp_path_factory.mktemp("cluster") / "unshared_folder"
    with standalone_cluster(folder, workers=1, wrapper=wrapper) as running:
        yield running


@pytest.mark.parametrize(
    ("hidden", "text"),
    [
        ("out", "does not see the driver's output folder"),
        ("data", "does not see the input"),
    ],
)
def test_output_folder_that_is_not_shared_is_rejected_before_the_run(
    cluster_without_shared_folder: Cluster,
    unshared_folder: Path,
    python: Path,
    data: Path,
    tmp_path: Path,
    hidden: str,
    text: str,
) -> None:
    folders = {
        name: (unshared_folder if name == hidden else tmp_path) / name for name in ("out", "data")
    }
    folders["out"].mkdir()
    shutil.copytree(data, folders["data"])

    result = run(
        python, *build(cluster_without_shared_folder.master, folders["data"], folders["out"])
    )

    check_refused(
        result, folders["out"], text, str(folders[hidden]), "a path that all nodes can read"
    )
