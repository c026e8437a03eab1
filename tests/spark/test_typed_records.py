"""Typed columns of the data source equal those of `read_records`."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import kafka_index
from kafka_index.spark import KafkaLogSource
from tests.support.command_line import run_here
from tests.support.typed_dump import topics, write_typed_dump
from tests.support.typed_topics import (
    TOPICS,
    check_rows,
    exported_rows,
    rows_of_topics,
    write_topics,
)


@pytest.fixture(scope="module")
def source(spark: SparkSession) -> SparkSession:
    spark.dataSource.register(KafkaLogSource)
    return spark


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_typed_dump(tmp_path_factory.mktemp("typed"))


@pytest.mark.parametrize("topic", ["orders", "mixed", "payments", "headers", "plain"])
def test_rows_equal_those_of_read_records(source: SparkSession, dump: Path, topic: str) -> None:
    frame = (
        source.read.format("kafka-log")
        .option("path", str(dump))
        .option("subscribe", topic)
        .option("decode", "both")
        .load()
    )
    actual = [row.asDict(recursive=True) for row in frame.orderBy("offset").collect()]
    expected = kafka_index.read_records(dump, topics=topic, decode="both").to_arrow().to_pylist()
    assert len(actual) == len(topics()[topic])
    for row, own in zip(actual, expected, strict=True):
        for name in ("key", "value", "value_schema_id", "value_type", "_decode_error"):
            assert _plain(row[name]) == _plain(own[name])


def test_selected_struct_member_is_read_without_others(source: SparkSession, dump: Path) -> None:
    reader = source.read.format("kafka-log").option("path", str(dump)).option("decode", "value")
    frame = reader.option("subscribe", "orders").option("columns", "offset,value.amount").load()
    assert frame.select("value.*").columns == ["amount"]
    total = frame.selectExpr("sum(value.amount)").first()
    assert total is not None
    assert total[0] == pytest.approx(1.7)
    with pytest.raises(PySparkException, match="requires the option decode"):
        source.read.format("kafka-log").option("path", str(dump)).option("schemas", "dump").load()


@pytest.mark.parametrize("topics", TOPICS, ids="-".join)
def test_rows_of_topics_without_schema_keep_their_bytes_without_error(
    source: SparkSession, tmp_path: Path, topics: tuple[str, ...]
) -> None:
    frame = (
        source.read.format("kafka-log")
        .option("path", str(write_topics(tmp_path)))
        .option("subscribe", ",".join(topics))
        .option("decode", "value")
        .load()
    )
    check_rows(topics, rows_of_topics([row.asDict() for row in frame.collect()]), is_one_table=True)


@pytest.mark.usefixtures("in_session")
@pytest.mark.parametrize(("topics", "code"), [(("typed", "plain"), 0), (("typed", "lost"), 1)])
def test_export_on_spark_keeps_topics_without_schema(
    tmp_path: Path, topics: tuple[str, ...], code: int
) -> None:
    dump, output = write_topics(tmp_path / "dump"), tmp_path / "out"
    arguments = ("--topics", "|".join(topics), "--decode", "value", "--engine", "spark")
    result = run_here("export", "--input", dump, "--output", output, *arguments)
    assert result.returncode == code, result.stderr
    check_rows(topics, exported_rows(output), is_one_table=False)


def _plain(value: object) -> object:
    """A value with maps as mappings and bytes as such."""
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()} or None
    if isinstance(value, list):
        if value and all(isinstance(one, tuple) for one in value):
            return {key: _plain(one) for key, one in value}
        return [_plain(one) for one in value] or None
    return bytes(value) if isinstance(value, bytearray) else value or None
