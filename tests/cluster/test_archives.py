"""``spark-submit --archives`` with a packed environment: nothing is installed on the nodes."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import venv
from importlib import metadata
from pathlib import Path

import venv_pack

from tests.cluster.conftest import check_warm
from tests.support.builds import leftover_files
from tests.support.command_line import ROOT, SETTINGS, index_files
from tests.support.spark_cluster import SPARK_CLASS, Cluster, driver_environment
from tests.support.timeouts import scaled

DEPENDENCIES = (
    "numpy",
    "pandas",
    "pyarrow",
    "numba",
    "google-crc32c",
    "msgspec",
    "click",
)
SECONDS = 120


def distributions() -> set[str]:
    """Archives for executors."""
    result: set[str] = set()
    waiting = list(DEPENDENCIES)
    while waiting:
        name = waiting.pop()
        if name not in result:
            result.add(name)
            needed = [line for line in metadata.requires(name) or () if "extra ==" not in line]
            names = (re.split(r"[^\w.-]", line)[0] for line in needed)
            waiting += [each for each in names if _is_installed(each)]
    return result


def _is_installed(name: str) -> bool:
    try:
        metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def environment_archive(folder: Path) -> Path:
    """Pack an environment of what is installed here, as ``pip install`` would make it."""
    venv.create(folder / "venv", with_pip=False, symlinks=True)
    (site_packages,) = (folder / "venv").glob("lib/python*/site-packages")
    for name in distributions():
        for file in metadata.files(name) or ():
            source = Path(str(file.locate()))
            if ".." in file.parts or "tests" in file.parts or not source.is_file():
                continue
            target = site_packages / file
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)
    archive = folder / "environment.tar.gz"
    # Without compression, which would take most of the time of this test.
    venv_pack.pack(prefix=str(folder / "venv"), output=str(archive), compress_level=0)
    shutil.rmtree(folder / "venv")
    return archive


def test_build_runs_in_a_packed_environment(
    cluster: Cluster, data: Path, expected: dict[str, bytes], tmp_path: Path
) -> None:
    archive = environment_archive(tmp_path / "environment")
    job = tmp_path / "build_index.py"
    shutil.copy(ROOT / "jobs" / "build_index.py", job)
    known = cluster.executor_logs()

    result = subprocess.run(
        [
            *(SPARK_CLASS.with_name("spark-submit"), "--master", cluster.master),
            *("--archives", f"{archive}#environment", job, "--config", SETTINGS),
            *("--input", data, "--output", tmp_path / "out"),
        ],
        env={
            **driver_environment(Path("./environment/bin/python")),
            "SPARK_HOME": str(SPARK_CLASS.parents[1]),
            "PYSPARK_DRIVER_PYTHON": sys.executable,
        },
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=scaled(SECONDS),
        check=False,
    )

    assert result.returncode == 0, result.stdout + result.stderr
    totals = rf"INFO kafka_index[.\w]+: run [0-9a-f]+: 1 round, {len(expected) // 2} segments,"
    # spark-submit prints both streams of a driver on its stdout.
    assert re.search(totals, result.stdout), result.stdout + result.stderr
    assert index_files(tmp_path / "out") == expected
    assert leftover_files(tmp_path) == []
    check_warm(cluster.executor_logs() - known)
