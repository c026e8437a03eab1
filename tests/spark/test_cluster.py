"""The job as users submit it: a cluster of processes, the package in a zip, nothing installed."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pyarrow.parquet as pq
import pyspark

import kafka_index
from tests.spark.dumps import dump, index_files, write_logs

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


def test_the_job_runs_on_a_cluster_with_the_package_in_a_zip(tmp_path: Path) -> None:
    logs = write_logs(tmp_path / "logs", dump())
    home = spark_home(tmp_path / "spark")
    # The job away from the checkout: neither driver nor executors can see the package but zipped.
    job = tmp_path / "build_index.py"
    job.write_text((ROOT / "jobs" / "build_index.py").read_text())
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1",
    }
    submit = [str(home / "bin" / "spark-submit"), "--master", "local-cluster[2,1,1024]"]
    submit += ["--py-files", str(package_zip(tmp_path / "package.zip")), str(job)]
    report = tmp_path / "report.parquet"
    options = ["--input", str(logs), "--output", str(tmp_path / "out"), "--report", str(report)]

    done = subprocess.run(
        submit + options,
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert "workers start cold" not in done.stdout + done.stderr
    assert set(pq.read_table(report)["status"].to_pylist()) == {"built"}
    assert len(index_files(tmp_path / "out")) == 2 * len(dump())
