"""``export`` on Spark: the same files as on threads."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from kafka_index.export import ExportSettings, SplitResult, export_local, plan_export
from kafka_index.spark.export import export_splits
from kafka_index.spark.jobs import Jobs
from kafka_index.spark.shared_target import shared_target
from kafka_index.tables.records import list_partitions
from tests.support.command_line import DUMP


def test_files_are_those_of_a_local_run(spark: SparkSession, tmp_path: Path) -> None:
    files = list_partitions(DUMP, topics="orders.*|payments")
    results: list[SplitResult] = []
    for name in ("here", "there"):
        settings = ExportSettings(str(tmp_path / name))
        (tmp_path / name).mkdir()
        plan = plan_export(files, settings, split_bytes=100_000)
        if name == "here":
            export_local(plan.works, settings, threads=2, on_split=results.append)
            continue
        with shared_target([settings.output]) as target, Jobs(spark) as jobs:
            done = export_splits(spark, plan.works, settings, workers=2, jobs=jobs, target=target)
        assert sorted(done, key=lambda one: one.number) == sorted(
            results, key=lambda one: one.number
        )
    here, there = (
        {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*.parquet")}
        for root in (tmp_path / "here", tmp_path / "there")
    )
    assert here == there
    assert len(here) > len(files)
