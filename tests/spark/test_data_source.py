"""``spark.read.format("kafka-log")``: rows, options, and how Spark finds it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StructType

import kafka_index
from kafka_index.errors import InputError
from kafka_index.spark.data_source import KafkaLogSource
from kafka_index.spark.source_options import parse_options
from kafka_index.tables import Isolation, OnDamage
from kafka_index.tables.bounds import EARLIEST
from tests.support.command_line import DUMP
from tests.support.record_tables import rows_of, write_partition
from tests.support.segments import batch, marker

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def source(spark: SparkSession) -> SparkSession:
    spark.dataSource.register(KafkaLogSource)
    return spark


def test_rows_are_those_of_read_records(source: SparkSession) -> None:
    reader = source.read.format("kafka-log").option("path", str(DUMP))
    frame = reader.option("subscribe", "orders.eu-west, payments").option("minPartitions", "7")
    loaded = frame.option("includeHeaders", "true").load()
    assert loaded.rdd.getNumPartitions() >= 7
    found = sorted(
        (row.topic, row.partition, row.offset, row.key, row.value, row.timestampType)
        for row in loaded.collect()
    )
    expected = kafka_index.read_records(DUMP, topics="orders.eu-west|payments").read_all()
    names = ("topic", "partition", "offset", "key", "value", "timestampType")
    assert found == [(*row[:3], *row[3:]) for row in rows_of(expected, *names)]
    times = loaded.selectExpr("sum(unix_millis(timestamp))", "count(headers)").first()
    assert times is not None
    assert times[0] == sum(expected["timestamp"].cast("int64").to_pylist())
    assert times[1] == len(expected) - expected["headers"].null_count


def test_a_schema_selects_the_columns(source: SparkSession, tmp_path: Path) -> None:
    write_partition(tmp_path, {0: batch(0, 5)})
    reader = source.read.format("kafka-log").schema("offset long, topic string")
    frame = reader.load(str(tmp_path))
    assert frame.columns == ["offset", "topic"]
    assert [row.offset for row in frame.orderBy("offset").collect()] == [0, 1, 2, 3, 4]
    assert reader.load(str(tmp_path)).count() == 5


def test_bounds_and_isolation_are_those_of_the_options(
    source: SparkSession, tmp_path: Path
) -> None:
    aborted = batch(2, 2, producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
    log = batch(0, 2) + aborted + marker(4, 7, 0, commit=False) + batch(5, 3)
    write_partition(tmp_path, {0: log})
    reader = (
        source.read.format("kafka-log")
        .option("startingOffsets", '{"topic": {"0": 1}}')
        .option("endingOffsets", '{"topic": {"0": 7}}')
        .option("kafka.isolation.level", "read_committed")
        .option("kafka.bootstrap.servers", "ignored:9092")
    )
    rows = reader.load(str(tmp_path)).select("offset").collect()
    assert sorted(row.offset for row in rows) == [1, 5, 6]


def test_damage_fails_or_is_a_row(source: SparkSession, tmp_path: Path) -> None:
    write_partition(tmp_path, {0: batch(0, 1) + batch(1, 1, crc=7) + batch(2, 1)})
    reader = source.read.format("kafka-log")
    with pytest.raises(PySparkException, match="bad_crc"):
        reader.load(str(tmp_path)).collect()
    rows = reader.option("mode", "PERMISSIVE").load(str(tmp_path)).collect()
    assert [row.offset for row in rows] == [0, None, 2]
    assert "bad_crc" in rows[1]["_corrupt_record"]


def test_an_offset_that_the_log_no_longer_has_is_data_loss(
    source: SparkSession, tmp_path: Path
) -> None:
    write_partition(tmp_path, {5: batch(5, 2)})
    reader = source.read.format("kafka-log").option("startingOffsets", '{"topic": {"0": 1}}')
    with pytest.raises(PySparkException, match="does not have the starting offset"):
        reader.load(str(tmp_path)).collect()
    assert reader.option("failOnDataLoss", "false").load(str(tmp_path)).count() == 2


# -------------------------------------------------------------------------- without a session


def test_the_module_that_spark_finds_loads_nothing_heavy() -> None:
    code = (
        "import sys, pyspark.sql.datasource; before = set(sys.modules); import pyspark_kafka_log;"
        "print(pyspark_kafka_log.DefaultSource.name(), *sorted(set(sys.modules) - before))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True
    )
    assert done.stdout.split() == ["kafka-log", "pyspark_kafka_log"]


def test_without_spark_the_module_has_no_source() -> None:
    code = (
        "import sys; sys.modules['pyspark'] = None; import pyspark_kafka_log;"
        "print(hasattr(pyspark_kafka_log, 'DefaultSource'))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True
    )
    assert done.stdout.split() == ["False"]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({}, "path is missing"),
        ({"path": "x", "subscribe": "a", "assign": "{}"}, "give one of"),
        ({"path": "x", "startingOffsets": "latest"}, "cannot be latest"),
        ({"path": "x", "endingOffsets": "earliest"}, "cannot be earliest"),
        ({"path": "x", "startingOffsets": "soon"}, "startingoffsets is malformed"),
        ({"path": "x", "startingOffsets": '{"t": 3}'}, "startingoffsets is malformed"),
        ({"path": "x", "startingTimestamp": "-5"}, "startingtimestamp is malformed"),
        ({"path": "x", "mode": "LENIENT"}, "mode is malformed"),
        ({"path": "x", "startingOfsets": "earliest"}, "no such option.*startingofsets"),
        ({"path": "x", "rows": "raw"}, "not a form of rows"),
        ({"path": "x", "failOnDataLoss": "maybe"}, "failondataloss is malformed"),
    ],
)
def test_an_option_that_cannot_be_honoured_is_refused(options: dict[str, str], reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        parse_options(options)


def test_options_are_those_of_sparks_kafka_source() -> None:
    options = parse_options(
        {
            "PATH": "/a, /b",
            "subscribePattern": "or.*",
            "startingOffsetsByTimestamp": '{"t": {"0": 1000}}',
            "endingTimestamp": "2000",
            "endingOffsets": "latest",
            "kafka.security.protocol": "SSL",
            "mode": "dropmalformed",
        }
    )
    assert options.paths == ["/a", "/b"]
    assert options.topics == "or.*"
    assert options.bounds.starting_timestamp == {"t": {0: 1000}}
    assert options.bounds.ending_timestamp == 2000
    assert options.bounds.starting_offsets is None
    assert options.settings.on_damage is OnDamage.DROP
    assert options.settings.isolation is Isolation.READ_UNCOMMITTED
    assert options.ignored == ("kafka.security.protocol",)
    assert parse_options({"path": "x"}).bounds.starting_offsets == EARLIEST
    assert parse_options({"path": "x", "subscribe": "a.b,c"}).topics == r"a\.b|c"


def test_a_schema_of_other_types_is_refused() -> None:
    source = KafkaLogSource({"path": "x"})
    with pytest.raises(InputError, match="no column key of this type"):
        source.reader(StructType().add("key", LongType()))
