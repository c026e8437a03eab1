"""What pandas, polars and DuckDB make of `read_records`, as it is."""

from __future__ import annotations

from pathlib import Path

import pytest

import kafka_index
from tests.support.command_line import DUMP


@pytest.fixture
def values_by_topic() -> dict[str, int]:
    """The number of values by topic, counted by Arrow."""
    table = kafka_index.read_records(DUMP, topics="orders.*|payments").read_all()
    counted = table.group_by("topic").aggregate([("value", "count")])
    counts: dict[str, int] = dict(
        zip(counted["topic"].to_pylist(), counted["value_count"].to_pylist(), strict=True)
    )
    assert len(counts) == 2
    return counts


def test_duckdb_queries_records(values_by_topic: dict[str, int]) -> None:
    duckdb = pytest.importorskip("duckdb")
    records = kafka_index.read_records(DUMP, topics="orders.*|payments")
    with duckdb.connect() as connection:
        connection.register("records", records)
        rows = connection.execute(
            "SELECT topic, count(value) FROM records WHERE timestamp > '2000-01-01' GROUP BY topic"
        ).fetchall()
    assert dict(rows) == values_by_topic


def test_duckdb_reads_headers(tmp_path: Path) -> None:
    duckdb = pytest.importorskip("duckdb")
    records = kafka_index.read_records(DUMP, topics="orders.*", columns=("offset", "headers"))
    with duckdb.connect(tmp_path / "any.db") as connection:
        connection.register("records", records)
        (count,) = connection.execute(
            "SELECT count(*) FROM (SELECT unnest(headers) FROM records)"
        ).fetchone()
    table = kafka_index.read_records(DUMP, topics="orders.*", columns=("headers",)).read_all()
    assert count == sum(len(headers or ()) for headers in table["headers"].to_pylist())


def test_polars_queries_records(values_by_topic: dict[str, int]) -> None:
    polars = pytest.importorskip("polars")
    frame = polars.from_arrow(kafka_index.read_records(DUMP, topics="orders.*|payments"))
    counted = frame.group_by("topic").agg(polars.col("value").count())
    assert dict(counted.iter_rows()) == values_by_topic


def test_pandas_queries_records(values_by_topic: dict[str, int]) -> None:
    frame = kafka_index.read_records(DUMP, topics="orders.*|payments").read_pandas()
    assert frame.groupby("topic")["value"].count().to_dict() == values_by_topic
