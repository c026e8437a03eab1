"""``verify`` on Spark: the same rows as on threads."""

from __future__ import annotations

import shutil
from pathlib import Path

from pyspark.sql import SparkSession

from kafka_index.execution import ThreadEngine
from kafka_index.spark.workers import session_workers
from kafka_index.storage import list_dump
from kafka_index.storage.segment_table import SegmentTable
from kafka_index.verification import VerifySettings, findings_table, verify_partitions
from tests.support.command_line import DUMP


def test_rows_are_those_of_a_local_run(spark: SparkSession, tmp_path: Path) -> None:
    data = tmp_path / "data"
    shutil.copytree(DUMP, data)
    for path in data.glob("payments-*/*.timeindex"):
        path.write_bytes(b"")
    segments = SegmentTable.of(list_dump([str(data)], topics=None).segments)
    tables = []
    for start in (ThreadEngine(2).start("verify"), session_workers(spark)):
        with start as workers:
            found = list(verify_partitions(workers, segments, VerifySettings(0)))
        tables.append(findings_table([row for one in found for row in one.findings]))

    order = [("path", "ascending"), ("kind", "ascending"), ("class", "ascending")]
    here, there = (table.sort_by(order).to_pylist() for table in tables)
    assert there == here
    assert len(here) > 100
