"""Typed columns of the data source equal those of `read_records`."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import kafka_index
from kafka_index.spark import KafkaLogSource
from tests.support.typed_dump import topics, write_typed_dump


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
    found = [row.asDict(recursive=True) for row in frame.orderBy("offset").collect()]
    expected = kafka_index.read_records(dump, topics=topic, decode="both").to_arrow().to_pylist()
    assert len(found) == len(topics()[topic])
    for row, own in zip(found, expected, strict=True):
        for name in ("key", "value", "value_schema_id", "value_type", "_decode_error"):
            assert _plain(row[name]) == _plain(own[name])


def test_member_alone_is_read(source: SparkSession, dump: Path) -> None:
    reader = source.read.format("kafka-log").option("path", str(dump)).option("decode", "value")
    frame = reader.option("subscribe", "orders").option("columns", "offset,value.amount").load()
    assert frame.select("value.*").columns == ["amount"]
    total = frame.selectExpr("sum(value.amount)").first()
    assert total is not None
    assert total[0] == pytest.approx(1.7)
    with pytest.raises(PySparkException, match="requires decode"):
        source.read.format("kafka-log").option("path", str(dump)).option("schemas", "dump").load()


def _plain(value: object) -> object:
    """A value with maps as mappings and bytes as such."""
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()} or None
    if isinstance(value, list):
        if value and all(isinstance(one, tuple) for one in value):
            return {key: _plain(one) for key, one in value}
        return [_plain(one) for one in value] or None
    return bytes(value) if isinstance(value, bytearray) else value or None
