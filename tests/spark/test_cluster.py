"""The job as users submit it: a cluster of processes, the package in a zip, nothing installed."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pyspark

import kafka_index
from kafka_index.lookup import By
from tests.spark.lookups import answer, files, make_dump, make_queries, write_queries
from tests.support.timeouts import TIMEOUT_SECONDS

ROOT = Path(kafka_index.__file__).resolve().parent.parent


def package_zip(path: Path) -> Path:
    """What ``--py-files`` takes."""
    with zipfile.ZipFile(path, "w") as archive:
        for source in sorted((ROOT / "kafka_index").rglob("*")):
            if source.suffix in {".py", ".properties", ".typed"}:
                archive.write(source, source.relative_to(ROOT))
    return path


def spark_home(folder: Path) -> Path:
    """The installed Spark under another folder, where a cluster of one machine may write."""
    folder.mkdir()
    for entry in Path(pyspark.__file__).parent.iterdir():
        (folder / entry.name).symlink_to(entry)
    return folder


def submit(folder: Path, name: str, *options: str | Path) -> subprocess.CompletedProcess[str]:
    """Submit a job, away from the checkout: nobody can see the package but zipped."""
    home = spark_home(folder / "spark")
    job = folder / name
    job.write_text((ROOT / "jobs" / name).read_text())
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1",
    }
    command = [home / "bin" / "spark-submit", "--master", "local-cluster[2,1,1024]"]
    command += ["--py-files", package_zip(folder / "package.zip"), job, *options]
    done = subprocess.run(
        list(map(str, command)),
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "workers start cold" not in done.stdout + done.stderr
    return done


def test_lookups_run_on_a_cluster_with_the_package_in_a_zip(tmp_path: Path) -> None:
    inventory = make_dump(tmp_path)
    tables = [make_queries("offset", 200, seed) for seed in range(3)]
    queries = write_queries(tmp_path / "queries", tables)
    answer(queries, inventory, By.OFFSET, tmp_path / "local")

    done = submit(
        tmp_path,
        "lookup.py",
        *("--logs", tmp_path / "logs", "--indexes", tmp_path / "indexes", "--by", "offset"),
        *("--queries", queries, "--output", tmp_path / "out"),
    )

    assert "600 queries in " in done.stdout
    assert files(tmp_path / "out") == files(tmp_path / "local")
