"""Builds and lookups on Spark Connect, whose server is a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kafka_index.lookup import By
from tests.spark.lookups import answer, files, make_dump, make_queries, write_queries
from tests.support.timeouts import TIMEOUT_SECONDS

pytest.importorskip("grpc", reason="Spark Connect is not installed: pip install pyspark[connect]")
pytest.importorskip("grpc_status")

# In a process of its own: one that has run a classic session does not start a server.
SCRIPT = """
import sys
from pyspark.sql import SparkSession
from kafka_index.lookup import By, collect_inventory
from kafka_index.spark.lookup import lookup_offsets
from kafka_index.spark.jobs import is_connect
from tests.spark.lookups import answer
from pathlib import Path

folder = Path(sys.argv[1])
session = SparkSession.builder.remote("local[2]").getOrCreate()
assert is_connect(session)
inventory = collect_inventory([str(folder / "logs")], indexes=str(folder / "indexes"))
seen = []

class Seen:
    def on_begin(self):
        pass

    def on_share(self, done, total):
        seen.append((done, total))

answer(folder / "queries", inventory, By.OFFSET, folder / "out", spark=session, listener=Seen())
queries = session.read.parquet(str(folder / "queries"))
found = lookup_offsets(queries, inventory).where("status = 'found'").count()
assert found > 100, found
assert seen == sorted(seen) and seen[-1] == (3, 3), seen
session.stop()
"""


def test_lookups_run_on_connect_and_report_their_progress(tmp_path: Path) -> None:
    inventory = make_dump(tmp_path)
    tables = [make_queries("offset", 200, seed) for seed in range(3)]
    queries = write_queries(tmp_path / "queries", tables)
    answer(queries, inventory, By.OFFSET, tmp_path / "local")

    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, tmp_path],
        env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert files(tmp_path / "out") == files(tmp_path / "local")
