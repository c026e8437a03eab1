"""``export`` and ``find`` on Spark: the same as on threads."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from kafka_index.commands.export.export_job import export, export_splits
from kafka_index.commands.export.plan import ExportPlan, plan_export
from kafka_index.commands.export.request import ExportRequest
from kafka_index.commands.export.result import SplitResult
from kafka_index.commands.export.settings import ExportSettings
from kafka_index.core.job.engine import Engine, ThreadEngine, Workers
from kafka_index.core.log.choices import OnDamage
from kafka_index.core.query.matches import find_matches
from kafka_index.core.query.read_plan import ReadPlan
from kafka_index.core.query.records import list_partitions, plan_read
from kafka_index.core.query.settings import ReadSettings, RecordFilter
from kafka_index.spark.workers import session_workers
from tests.support.command_line import DUMP
from tests.support.lake_tables import FORMATS, as_records, newest_records, records_of
from tests.support.record_tables import batch_of, write_partition


def test_export_on_spark_equals_a_local_export(spark: SparkSession, tmp_path: Path) -> None:
    files = list_partitions(DUMP, topics="orders.*|payments").files
    results: list[list[SplitResult]] = []
    for name in ("here", "there"):
        settings = ExportSettings(str(tmp_path / name))
        (tmp_path / name).mkdir()
        plan = plan_export(files, settings, split_bytes=100_000)
        with workers_of(spark if name == "there" else None, settings.output) as workers:
            result = export_splits(workers, plan.tasks, settings)
            # What was seen of logs has no equality of its own.
            counts = (replace(one, seen=()) for one in result)
            results.append(sorted(counts, key=lambda one: one.number))
    assert results[0] == results[1]
    here, there = (
        {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*.parquet")}
        for root in (tmp_path / "here", tmp_path / "there")
    )
    assert here == there
    assert len(here) > len(files)


@pytest.mark.parametrize("history", ["full", "latest"])
@pytest.mark.parametrize("form", FORMATS)
def test_tables_written_on_spark_equal_the_records(
    spark: SparkSession, tmp_path: Path, form: str, history: str
) -> None:
    class Session(Engine):
        on_spark, threads = True, None

        def start(self, *_given: object, **options: Any) -> AbstractContextManager[Workers]:
            return session_workers(spark, outputs=options["outputs"])

    lake = FORMATS[form](tmp_path / "lake", history)
    topics = ("orders.eu-west", "payments", "customer-profiles")
    names = [str(name).removeprefix("--") for name in lake.options[::2]]
    given = dict(zip(names, map(str, lake.options[1::2]), strict=True))
    request = ExportRequest.build({"inputs": [str(DUMP)], "topics": topics, **given})
    assert export(request, Session()).ok
    for topic in topics:
        records = records_of(DUMP, topics=[topic])
        expected = newest_records(records) if history == "latest" else records
        assert as_records(lake.read(topic)).equals(expected)


def test_find_on_spark_equals_a_local_find(spark: SparkSession) -> None:
    settings = ReadSettings(
        columns=("topic", "partition", "offset", "key"),
        on_damage=OnDamage.DROP,
        record_filter=RecordFilter(key_regex="1.*7$"),
    )
    plan = plan_read(DUMP, topics="orders.*|payments", settings=settings, max_split_bytes=50_000)
    with workers_of(None) as threads, workers_of(spark) as tasks:
        here, there = _rows(threads, plan), _rows(tasks, plan)
    assert here == there
    assert len(here) > 10


def workers_of(spark: SparkSession | None, *outputs: str) -> AbstractContextManager[Workers]:
    if spark is None:
        return ThreadEngine(2).start("test")
    return session_workers(spark, outputs=outputs)


def _rows(workers: Workers, plan: ReadPlan) -> list[dict[str, object]]:
    result = find_matches(workers, plan.splits, plan.settings, limit=None)
    return [row for matches in result for batch in matches.batches for row in batch.to_pylist()]


@pytest.mark.parametrize("choice", ["fail", "continue", "restart"])
def test_diverged_history_is_exported_as_by_the_local_engine(
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
        (row,) = [partition.report() for partition in plan.partitions]
        expected = {"fail": "failed", "continue": "continued", "restart": "restarted"}
        assert row.status.value == expected[choice]
    assert outputs["here"] == outputs["there"]


def _run(spark: SparkSession | None, plan: ExportPlan, settings: ExportSettings) -> None:
    for partition in plan.partitions:
        if partition.tasks:
            partition.begin()

    with workers_of(spark, settings.output) as workers:
        for result in export_splits(workers, plan.tasks, settings):
            plan.export_by_split[result.number].add(result)
    for partition in plan.partitions:
        partition.finish()
