"""Lookups on Spark over an S3 server: what tasks read lies there, and what they write."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from kafka_index.lookup import (
    By,
    LookupSettings,
    LookupTotals,
    answer_queries,
    answer_target,
    collect_inventory,
)
from kafka_index.lookup import open_queries as open_
from kafka_index.reading.answers import Resolve
from kafka_index.spark.workers import session_workers
from tests.spark.lookups import answer, files, make_dump, make_queries, write_queries
from tests.support.remote import download, upload


def test_tasks_write_what_the_local_engine_does_with_local_files(
    spark: SparkSession, tmp_path: Path, configured_bucket: str
) -> None:
    local = make_dump(tmp_path)
    queries = write_queries(tmp_path / "queries", [make_queries("offset", 700, n) for n in (1, 2)])
    expected = answer(queries, local, By.OFFSET, tmp_path / "local", resolve=Resolve.RECORD)
    for name in ("logs", "indexes", "queries"):
        upload(tmp_path / name, f"{configured_bucket}/{name}")

    inventory = collect_inventory(
        [f"{configured_bucket}/logs"], indexes=f"{configured_bucket}/indexes"
    )
    asked = open_(f"{configured_bucket}/queries", By.OFFSET)
    totals = LookupTotals()
    with answer_target(f"{configured_bucket}/out", asked) as target:
        settings = LookupSettings(By.OFFSET, Resolve.RECORD)
        with session_workers(spark) as workers:
            for report in answer_queries(workers, asked, inventory, settings, target):
                totals.add(report)
        target.publish(totals.rows_of_split)

    assert download(f"{configured_bucket}/out") == files(tmp_path / "local")
    assert totals.queries_of_status == expected.queries_of_status
    assert not any(name.startswith(".") for name in download(configured_bucket))
