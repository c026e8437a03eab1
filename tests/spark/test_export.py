"""``export`` and ``find`` on Spark: the same as on threads."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from kafka_index.export import (
    ExportPlan,
    ExportSettings,
    SplitResult,
    export_local,
    plan_export,
)
from kafka_index.spark.export import export_splits
from kafka_index.spark.find import match_on_spark
from kafka_index.spark.jobs import Jobs
from kafka_index.spark.shared_target import shared_target
from kafka_index.tables import OnDamage, ReadSettings, plan_read
from kafka_index.tables.matches import SplitMatches, match_local
from kafka_index.tables.records import list_partitions
from kafka_index.tables.settings import RecordFilter
from tests.support.command_line import DUMP
from tests.support.record_tables import batch_of, write_partition


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


@pytest.mark.parametrize("choice", ["fail", "continue", "restart"])
def test_another_history_is_treated_as_on_threads(
    spark: SparkSession, tmp_path: Path, choice: str
) -> None:
    batches = [batch_of(at, [(1000 + at, None, b"old")]) for at in range(40)]
    others = [batch_of(at, [(2000 + at, None, b"new")]) for at in range(60)]
    outputs = {}
    for name in ("here", "there"):
        settings = ExportSettings(str(tmp_path / name))
        root = tmp_path / f"in-{name}"
        for count, log in ((20, batches), (40, batches), (60, [*batches[:30], *others[30:]])):
            write_partition(root, {0: b"".join(log[:count])})
            files = list_partitions(root).files
            plan = plan_export(files, settings, on_data_loss=choice)
            _run(spark if name == "there" else None, plan, settings)
        outputs[name] = {
            str(path.relative_to(tmp_path / name)): path.read_bytes()
            for path in (tmp_path / name).rglob("*.parquet*")
        }
        (row,) = [one.report() for one in plan.partitions]
        expected = {"fail": "failed", "continue": "continued", "restart": "restarted"}
        assert row.status.value == expected[choice]
    assert outputs["here"] == outputs["there"]


def _run(spark: SparkSession | None, plan: ExportPlan, settings: ExportSettings) -> None:
    for partition in plan.partitions:
        if partition.works:
            partition.begin()

    def add(result: SplitResult) -> None:
        plan.partition_of[result.number].add(result)

    if spark is None:
        export_local(plan.works, settings, threads=2, on_split=add)
    elif plan.works:
        with shared_target([settings.output]) as target, Jobs(spark) as jobs:
            for result in export_splits(
                spark, plan.works, settings, workers=2, jobs=jobs, target=target
            ):
                add(result)
    for partition in plan.partitions:
        partition.finish()
