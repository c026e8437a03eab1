"""``export`` and ``find`` on Spark: the same as on threads."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from pyspark.sql import SparkSession

from kafka_index.export import ExportSettings, SplitResult, export_local, plan_export
from kafka_index.spark.export import export_splits
from kafka_index.spark.find import match_on_spark
from kafka_index.spark.jobs import Jobs
from kafka_index.spark.shared_target import shared_target
from kafka_index.tables import OnDamage, ReadSettings, plan_read
from kafka_index.tables.matches import SplitMatches, match_local
from kafka_index.tables.record_filter import RecordFilter
from kafka_index.tables.records import list_partitions
from tests.support.command_line import DUMP


def test_files_are_those_of_a_local_run(spark: SparkSession, tmp_path: Path) -> None:
    files = list_partitions(DUMP, topics="orders.*|payments").files
    results: list[SplitResult] = []
    for name in ("here", "there"):
        settings = ExportSettings(str(tmp_path / name))
        (tmp_path / name).mkdir()
        plan = plan_export(files, settings, split_bytes=100_000)
        if name == "here":
            export_local(plan.works, settings, threads=2, on_split=results.append)
            continue
        with shared_target([settings.output]) as target, Jobs(spark) as jobs:
            done = list(
                export_splits(spark, plan.works, settings, workers=2, jobs=jobs, target=target)
            )
        assert done == sorted(results, key=lambda one: one.number)
    here, there = (
        {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*.parquet")}
        for root in (tmp_path / "here", tmp_path / "there")
    )
    assert here == there
    assert len(here) > len(files)


def test_a_run_that_ends_early_has_recorded_the_waves_before(
    spark: SparkSession, tmp_path: Path
) -> None:
    files = list_partitions(DUMP, topics="orders.*|payments").files
    settings = ExportSettings(str(tmp_path))
    plan = plan_export(files, settings, split_bytes=50_000)
    for partition in plan.partitions:
        partition.begin()
    with shared_target([settings.output]) as target, Jobs(spark) as jobs:
        results = export_splits(spark, plan.works, settings, workers=1, jobs=jobs, target=target)
        done = next(results)
        written = list(tmp_path.rglob("*.parquet"))
    assert 0 < len(written) < len(plan.works)
    plan.partition_of[done.number].add(done)
    again = plan_export(files, settings, split_bytes=50_000)
    assert len(again.works) == len(plan.works) - 1


def test_matches_are_those_of_a_local_run(spark: SparkSession) -> None:
    settings = ReadSettings(
        columns=("topic", "partition", "offset", "key"),
        on_damage=OnDamage.DROP,
        record_filter=RecordFilter(key_regex="1.*7$"),
    )
    plan = plan_read(DUMP, topics="orders.*|payments", settings=settings, max_split_bytes=50_000)
    here = _rows(match_local(plan.splits, settings, threads=2))
    with Jobs(spark) as jobs:
        there = _rows(
            match_on_spark(spark, plan.splits, settings, workers=2, limit=None, jobs=jobs)
        )
    assert here == there
    assert len(here) > 10


def _rows(found: Iterable[SplitMatches]) -> list[dict[str, object]]:
    return [row for matches in found for batch in matches.batches for row in batch.to_pylist()]
