"""Lookups on Spark: the files that the local engine writes, and in an S3 server."""

from __future__ import annotations

from itertools import starmap
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PythonException
from pyspark.sql import SparkSession

from kafka_index.commands.lookup.lookup_job import answer_queries
from kafka_index.commands.lookup.output import AnswerTarget
from kafka_index.commands.lookup.queries import open_queries
from kafka_index.commands.lookup.result import LookupTotals
from kafka_index.core.errors import InputError
from kafka_index.core.log.choices import By, Resolve, Status
from kafka_index.core.query.inventory import collect_inventory
from kafka_index.core.query.lookups import LookupSettings
from kafka_index.spark.workers import session_workers
from tests.spark.lookups import answer, files, make_dump, make_queries, write_queries
from tests.support.dumps import dump, leftovers
from tests.support.remote import download, upload


@pytest.mark.parametrize(
    ("by", "form", "resolve"),
    [
        (By.OFFSET, "parquet", Resolve.BATCH),
        (By.OFFSET, "csv", Resolve.RECORD),
        (By.OFFSET, "json", Resolve.INDEX),
        (By.TIMESTAMP, "parquet", Resolve.RECORD),
        (By.TIMESTAMP, "json", Resolve.BATCH),
    ],
)
def test_spark_output_and_report_equal_those_of_the_local_engine(
    spark: SparkSession, tmp_path: Path, by: By, form: str, resolve: Resolve
) -> None:
    inventory = make_dump(tmp_path)
    tables = list(starmap(make_queries, ((by.value, 700 * n, n) for n in range(1, 4))))
    queries = write_queries(tmp_path / "queries", tables, form)
    expected = answer(queries, inventory, by, tmp_path / "local", resolve=resolve)

    totals = answer(queries, inventory, by, tmp_path / "out", spark=spark, resolve=resolve)

    assert files(tmp_path / "out") == files(tmp_path / "local")
    assert totals.report_table() == expected.report_table()
    assert totals.rows == sum(table.num_rows for table in tables)
    assert totals.queries_of_status[Status.FOUND] > 700
    assert totals.queries_of_status[Status.UNKNOWN_PARTITION] > 500
    assert totals.queries_of_status[Status.INVALID_QUERY] > 20
    assert leftovers(tmp_path) == []


def test_empty_query_file_has_an_empty_answer_file(spark: SparkSession, tmp_path: Path) -> None:
    inventory = make_dump(tmp_path)
    some = make_queries("offset", 50)
    queries = write_queries(tmp_path / "queries", [some.slice(0, 0), some, some.slice(0, 0)])
    out = tmp_path / "out"
    totals = answer(queries, inventory, By.OFFSET, out, spark=spark)
    assert dict(totals.rows_of_split) == {0: 0, 1: 50, 2: 0}
    assert [pq.read_metadata(part).num_rows for part in sorted(out.glob("part*"))] == [0, 50, 0]


def test_single_output_file_has_the_splits_in_order(spark: SparkSession, tmp_path: Path) -> None:
    inventory = make_dump(tmp_path)
    tables = [make_queries("offset", 100, seed) for seed in range(3)]
    queries = write_queries(tmp_path / "queries", tables)
    for name, session in (("local", None), ("spark", spark)):
        out = tmp_path / f"{name}.parquet"
        answer(queries, inventory, By.OFFSET, out, spark=session)
    local, ours = (pq.read_table(tmp_path / f"{name}.parquet") for name in ("local", "spark"))
    assert ours == local
    assert ours["note"].to_pylist() == [f"query {n}" for n in range(100)] * 3


def test_damage_and_missing_indexes_are_found_by_both_engines(
    spark: SparkSession, tmp_path: Path
) -> None:
    segments = dump()
    log = segments["orders", 0, 0]
    for number in range(400, 500):
        damaged = bytearray(log[number])
        damaged[80] ^= 1
        log[number] = bytes(damaged)
    inventory = make_dump(tmp_path, segments)
    for path in (tmp_path / "indexes" / "a.b-c-7").glob("*.index"):
        path.unlink()
    queries = write_queries(tmp_path / "queries", [make_queries("offset", 2000)] * 2)
    level = Resolve.RECORD
    expected = answer(queries, inventory, By.OFFSET, tmp_path / "local", resolve=level)
    out = tmp_path / "out"

    totals = answer(queries, inventory, By.OFFSET, out, spark=spark, resolve=level)

    assert files(out) == files(tmp_path / "local")
    assert {finding.kind for finding in expected.findings} == {"no_index", "unreadable"}
    assert totals.findings == expected.findings
    assert totals.report_table() == expected.report_table()


def test_starting_offsets_come_in_the_order_of_the_queries(
    spark: SparkSession, tmp_path: Path
) -> None:
    inventory = make_dump(tmp_path)
    tables = [
        pa.table({"topic": ["orders"], "partition": [1], "timestamp": [-2]}),
        pa.table({"topic": ["a.b-c", "orders"], "partition": [7, 0], "timestamp": [2**60, 1000]}),
    ]
    queries = write_queries(tmp_path / "queries", tables)
    by = By.TIMESTAMP
    expected = answer(queries, inventory, by, tmp_path / "local", starting_offsets=True)
    out = tmp_path / "out"
    totals = answer(queries, inventory, by, out, spark=spark, starting_offsets=True)
    assert [start.partition for start in totals.starting_offsets] == [1, 7, 0]
    assert totals.starting_offsets == expected.starting_offsets


@pytest.mark.parametrize("form", ["parquet", "csv"])
def test_unreadable_query_found_during_the_run_leaves_no_output(
    spark: SparkSession, tmp_path: Path, form: str
) -> None:
    inventory = make_dump(tmp_path)
    tables = [make_queries("offset", 200, seed) for seed in range(3)]
    queries = write_queries(tmp_path / "queries", tables, form)
    opened = open_queries(str(queries), By.OFFSET)
    spoiled = queries / f"queries-1.{form}"
    if form == "csv":
        spoiled.write_text(spoiled.read_text() + 'half a query,"')
    else:
        pq.write_table(tables[0].slice(1), spoiled)

    with pytest.raises(InputError, match=str(spoiled)):
        answer(opened, inventory, By.OFFSET, tmp_path / "out", spark=spark)

    assert not (tmp_path / "out").exists()
    assert leftovers(tmp_path) == []


def test_part_that_cannot_be_written_fails_the_run_and_leaves_no_output(
    spark: SparkSession, tmp_path: Path
) -> None:
    inventory = make_dump(tmp_path)
    opened = open_queries(
        str(write_queries(tmp_path / "queries", [make_queries("offset", 200)])), By.OFFSET
    )
    with AnswerTarget(str(tmp_path / "out"), opened) as target:
        Path(target.part_path(opened.splits[0])).mkdir()
        settings = LookupSettings(By.OFFSET, Resolve.BATCH)
        with session_workers(spark) as workers:
            reports = answer_queries(workers, opened, inventory, settings, target)
            with pytest.raises(PythonException, match="PublishError"):
                next(reports)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["indexes", "logs", "queries"]


def test_tasks_write_the_same_answer_files_as_the_local_engine(
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
    queries_path = open_queries(f"{configured_bucket}/queries", By.OFFSET)
    totals = LookupTotals()
    with AnswerTarget(f"{configured_bucket}/out", queries_path) as target:
        settings = LookupSettings(By.OFFSET, Resolve.RECORD)
        with session_workers(spark) as workers:
            for report in answer_queries(workers, queries_path, inventory, settings, target):
                totals.add(report)
        target.publish(totals.rows_of_split)

    assert download(f"{configured_bucket}/out") == files(tmp_path / "local")
    assert totals.queries_of_status == expected.queries_of_status
    assert not any(name.startswith(".") for name in download(configured_bucket))
