"""``verify`` on Spark: the same rows as on threads."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

from kafka_index.build.plan import plan_waves
from kafka_index.spark.jobs import Jobs
from kafka_index.spark.verify import verify_waves
from kafka_index.storage import list_dump
from kafka_index.storage.segment_table import SegmentTable
from kafka_index.verification import PartitionFindings, VerifySettings, findings_table, run_local
from tests.support.command_line import DUMP


def test_rows_are_those_of_a_local_run(spark: SparkSession, tmp_path: Path) -> None:
    data = tmp_path / "data"
    shutil.copytree(DUMP, data)
    for path in data.glob("payments-*/*.timeindex"):
        path.write_bytes(b"")
    segments = list_dump([str(data)], topics=None).segments
    settings = VerifySettings(0)
    found: list[PartitionFindings] = []
    run_local(segments, settings, threads=2, on_partition=found.append)
    here = findings_table(row for one in found for row in one.findings)

    with Jobs(spark) as jobs:
        waves = plan_waves(SegmentTable.of(segments), cores=2)
        there = pa.concat_tables(verify_waves(spark, waves, settings, cores=2, jobs=jobs))

    order = [("path", "ascending"), ("kind", "ascending"), ("class", "ascending")]
    assert there.sort_by(order).to_pylist() == here.sort_by(order).to_pylist()
    assert here.num_rows > 100
