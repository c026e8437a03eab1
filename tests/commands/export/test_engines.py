"""Exports in DuckDB, polars and Arrow, as they are; and exports of tiered storage."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

import kafka_index
from kafka_index.core.fs.uris import TieredOptions
from tests.support.command_line import DUMP, run_here
from tests.support.record_tables import rows_of
from tests.support.tiered import ENCRYPTED, setting

TOPICS = "orders.*|payments"


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("lake") / "kafka"
    result = run_here("export", "--input", DUMP, "--topics", TOPICS, "--output", out)
    assert result.returncode == 0, result.stderr
    return out


@pytest.fixture(scope="module")
def offsets() -> list[tuple[str, int, int]]:
    """Topic, partition and offset of every record, by the logs."""
    columns = ("topic", "partition", "offset")
    return rows_of(
        kafka_index.read_records(DUMP, topics=TOPICS, columns=columns).read_all(), *columns
    )


def test_duckdb_finds_topics_and_partitions(
    lake: Path, offsets: list[tuple[str, int, int]]
) -> None:
    duckdb = pytest.importorskip("duckdb")
    with duckdb.connect() as connection:
        rows = connection.execute(
            f"SELECT topic, partition, \"offset\" FROM '{lake}/**/*.parquet' ORDER BY ALL"  # noqa: S608
        ).fetchall()
    assert rows == offsets


def test_polars_finds_topics_and_partitions(
    lake: Path, offsets: list[tuple[str, int, int]]
) -> None:
    polars = pytest.importorskip("polars")
    frame = polars.scan_parquet(f"{lake}/**/*.parquet", hive_partitioning=True).filter(
        polars.col("partition") == 1
    )
    rows = frame.select("topic", "partition", "offset").collect().sort(polars.all()).rows()
    assert rows == [row for row in offsets if row[1] == 1]


def test_arrow_finds_topics_and_partitions(lake: Path, offsets: list[tuple[str, int, int]]) -> None:
    table = pq.read_table(lake, columns=["topic", "partition", "offset"])
    assert sorted(rows_of(table, "topic", "partition", "offset")) == offsets


def test_remote_segments_are_exported_and_searched(tmp_path: Path) -> None:
    at = setting(ENCRYPTED)
    where = ["--input", at.data, "--tiered", at.remote]
    where += [part for key, file in at.keys for part in ("--tiered-key", f"{key}={file}")]
    result = run_here("export", *where, "--output", tmp_path / "out")
    assert result.returncode == 0, result.stderr
    columns = ("topic", "partition", "offset")
    tiered = TieredOptions((at.remote,), keys=at.keys)
    expected = rows_of(
        kafka_index.read_records(at.data, tiered=tiered, columns=columns).read_all(), *columns
    )
    table = pq.read_table(tmp_path / "out", columns=list(columns))
    assert sorted(rows_of(table, *columns)) == sorted(expected)
    actual = run_here("find", *where, "--value-contains", "", "--values", "none", "--json")
    assert actual.returncode == 0, actual.stderr
    values = pq.read_table(tmp_path / "out", columns=["value"])["value"]
    assert actual.stdout.count("\n") == len(values) - values.null_count
