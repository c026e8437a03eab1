"""``spark.read.format("kafka-log")``: rows, options, and how Spark finds it."""

from __future__ import annotations

import json
import pickle
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import EqualTo, Filter, GreaterThanOrEqual, LessThan, Not
from pyspark.sql.types import LongType, StructType

import kafka_index
from kafka_index.core.errors import InputError
from kafka_index.core.fs.uris import TieredOptions
from kafka_index.core.log.choices import Isolation, OnDamage
from kafka_index.core.log.scan.segment_scan import read_batches
from kafka_index.core.query.bounds import EARLIEST
from kafka_index.spark import KafkaLogSource
from kafka_index.spark.data_source import FilteringReader, KafkaLogReader, parse_options
from kafka_index.spark.option_values import parse_by_partition, parse_number
from tests.support.command_line import DUMP, build_here, copy_partitions, index_files
from tests.support.damaged_dumps import (
    remove_segment,
    remove_segment_of_unknown_topic,
    write_dump,
)
from tests.support.partition_model import expected_read
from tests.support.record_tables import batch_of, rows_of, write_partition
from tests.support.segments import batch, marker
from tests.support.tiered import ENCRYPTED, setting

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def source(spark: SparkSession) -> SparkSession:
    spark.dataSource.register(KafkaLogSource)
    return spark


def test_data_source_rows_equal_read_records(source: SparkSession) -> None:
    reader = source.read.format("kafka-log").option("path", str(DUMP))
    frame = reader.option("subscribe", "orders.eu-west, payments").option("minPartitions", "7")
    loaded = frame.option("includeHeaders", "true").load()
    assert loaded.rdd.getNumPartitions() >= 7
    actual = sorted(
        (row.topic, row.partition, row.offset, row.key, row.value, row.timestampType)
        for row in loaded.collect()
    )
    expected = kafka_index.read_records(DUMP, topics="orders.eu-west|payments").read_all()
    names = ("topic", "partition", "offset", "key", "value", "timestampType")
    assert actual == [(*row[:3], *row[3:]) for row in rows_of(expected, *names)]
    times = loaded.selectExpr("sum(unix_millis(timestamp))", "count(headers)").first()
    assert times is not None
    assert times[0] == sum(expected["timestamp"].cast("int64").to_pylist())
    assert times[1] == len(expected) - expected["headers"].null_count


def test_schema_selects_the_columns(source: SparkSession, tmp_path: Path) -> None:
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


def test_lost_offsets_raise_an_error_or_yield_a_row(source: SparkSession, tmp_path: Path) -> None:
    write_dump(tmp_path / "lost")
    remove_segment(tmp_path / "lost")
    write_dump(tmp_path / "unknown")
    remove_segment_of_unknown_topic(tmp_path / "unknown")
    reader = source.read.format("kafka-log").option("subscribe", "orders")
    offsets = [*range(12), *range(24, 36)]

    with pytest.raises(PySparkException, match="offsets 12 to 23 are missing"):
        reader.load(str(tmp_path / "lost")).collect()
    assert [row.offset for row in reader.load(str(tmp_path / "unknown")).collect()] == offsets
    rows = reader.option("mode", "PERMISSIVE").load(str(tmp_path / "lost")).collect()
    assert [row.offset for row in rows if row.offset is not None] == offsets
    (lost,) = [row["_corrupt_record"] for row in rows if row.offset is None]
    assert "offsets 12 to 23 are missing" in lost


def test_damage_in_a_data_source_read_is_an_error_or_a_row(
    source: SparkSession, tmp_path: Path
) -> None:
    write_partition(tmp_path, {0: batch(0, 1) + batch(1, 1, crc=7) + batch(2, 1)})
    reader = source.read.format("kafka-log")
    with pytest.raises(PySparkException, match="bad_crc"):
        reader.load(str(tmp_path)).collect()
    rows = reader.option("mode", "PERMISSIVE").load(str(tmp_path)).collect()
    assert [row.offset for row in rows] == [0, None, 2]
    assert "bad_crc" in rows[1]["_corrupt_record"]


@pytest.mark.parametrize("name", ["cut", "huge length", "garbage", "twice", "back", "torn"])
def test_data_source_ends_a_log_like_read_records(
    source: SparkSession, tmp_path: Path, name: str
) -> None:
    batches = [batch_of(5 * at, [(1000, None, bytes(100))] * 5) for at in range(30)]
    size, whole = len(batches[0]), b"".join(batches)
    place = 20 * size
    log = {
        "cut": whole[:99] + b"\x07" + whole[100 : 6 * size + 48],
        "huge length": whole[: place + 8] + b"\x7f\xff\xff\xff" + whole[place + 12 :],
        "garbage": whole + bytes(range(1, 90)),
        "twice": whole[:place] + whole[place - size :],
        "back": whole[: place + 7] + b"\x03" + whole[place + 8 :],
        "torn": whole[:-7],
    }[name]
    write_partition(tmp_path, {0: log})
    expected = expected_read(log, 0)
    assert bool(expected.damage) == (name != "torn")
    reader = source.read.format("kafka-log").option("mode", "PERMISSIVE")
    rows = reader.option("columns", "offset,position_bytes").load(str(tmp_path)).collect()
    assert [row.offset for row in rows if row["_corrupt_record"] is None] == expected.offsets
    actual = [row.position_bytes for row in rows if row["_corrupt_record"] is not None]
    assert actual == expected.damage


def read_here(path: Path, **options: str) -> list[dict[str, Any]]:
    """Return the rows of a table that is read in this process, as Spark lets workers do."""
    source = KafkaLogSource({"path": str(path), **options})
    reader = source.reader(source.schema())
    assert isinstance(reader, KafkaLogReader)
    batches = (each for task in reader.partitions() for each in reader.read(task))
    return [row for each in batches for row in each.to_pylist()]


def test_offset_that_the_log_no_longer_has_is_data_loss(
    source: SparkSession, tmp_path: Path
) -> None:
    write_partition(tmp_path, {5: batch(5, 2)})
    at = '{"topic": {"0": %d}}'
    before, beyond = {"startingOffsets": at % 1}, {"endingOffsets": at % 8}
    with pytest.raises(PySparkException, match="does not have the starting offset"):
        source.read.format("kafka-log").options(**before).load(str(tmp_path)).collect()
    with pytest.raises(InputError, match=r"does not have the ending offset.*5\.\.7"):
        read_here(tmp_path, **beyond)
    with pytest.raises(InputError, match="topic-0 starts after its end"):
        read_here(tmp_path, startingOffsets=at % 7, endingTimestamp="ms:0")
    for options in (before, beyond):
        assert len(read_here(tmp_path, **options, failOnDataLoss="false")) == 2


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("subscribe", "t,u", "topic u does not exist in the logs"),
        ("assign", '{"t": [0, 2]}', "assigned partitions do not exist in the logs: t-2"),
        ("startingOffsets", '{"t": {"0": 1}}', "partitions have no bounds: t-1"),
        (
            "endingOffsetsByTimestamp",
            '{"t": {"0": "ms:1", "1": "ms:1", "2": "ms:1"}}',
            "not read.*t-2",
        ),
    ],
)
def test_missing_requested_partition_is_an_error(
    tmp_path: Path, name: str, value: str, reason: str
) -> None:
    for number in range(2):
        write_partition(tmp_path, {0: batch(0, 3)}, f"t-{number}")
    with pytest.raises(InputError, match=reason):
        read_here(tmp_path, **{name: value})
    assert {row["partition"] for row in read_here(tmp_path, assign='{"t": [1]}')} == {1}


def test_tasks_have_no_more_records_than_allowed(source: SparkSession, tmp_path: Path) -> None:
    log = b"".join(batch(7 * number, 7, last_offset_delta=6) for number in range(10))
    write_partition(tmp_path, {0: log})
    reader = source.read.format("kafka-log").option("maxRecordsPerPartition", "9")
    frame = reader.load(str(tmp_path)).selectExpr("spark_partition_id() AS task", "offset")
    tasks: dict[int, list[int]] = {}
    for row in frame.collect():
        tasks.setdefault(row.task, []).append(row.offset)
    assert sorted(offset for offsets in tasks.values() for offset in offsets) == list(range(70))
    # Spark's Kafka source divides 70 offsets into 8 equal ranges.
    assert sorted(map(len, tasks.values())) == [8, 8, 9, 9, 9, 9, 9, 9]


def test_raw_batches_of_the_data_source_are_accepted_by_builds(
    source: SparkSession, tmp_path: Path
) -> None:
    dump = copy_partitions(tmp_path / "dump", "orders.eu-west-0", "payments-0")
    raw = source.read.format("kafka-log").option("rows", "raw").load(str(dump))
    raw.repartition(3).write.parquet(str(tmp_path / "raw"))
    for given, out in ((dump, "of-logs"), (tmp_path / "raw", "of-raw")):
        assert build_here("--input", given, "--output", tmp_path / out).returncode == 0
    assert index_files(tmp_path / "of-raw") == index_files(tmp_path / "of-logs")
    assert len(index_files(tmp_path / "of-raw")) > 2


def test_data_source_batches_equal_the_batch_table(source: SparkSession, tmp_path: Path) -> None:
    aborted = batch(2, 2, producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
    log = batch(0, 2) + aborted + marker(4, 7, 0, commit=False) + batch(5, 3, crc=7)
    folder = write_partition(tmp_path, {0: log})
    reader = source.read.format("kafka-log").option("rows", "batches").option("mode", "PERMISSIVE")
    *rows, damage = reader.load(str(tmp_path)).collect()
    expected = [
        row for found in read_batches(folder / f"{0:020d}.log") for row in found.to_pylist()
    ]
    assert [row.asDict() for row in rows] == [one | {"_corrupt_record": None} for one in expected]
    assert rows[2].control_type == 0
    assert "bad_crc" in damage["_corrupt_record"]
    assert damage.position_bytes == len(log) - len(batch(5, 3))


def test_pushed_filters_read_less_without_changing_the_result(
    source: SparkSession, tmp_path: Path
) -> None:
    for number in range(3):
        log = b"".join(
            batch_of(at, [(1_700_000_000_000 + 1000 * at, b"k%d" % (at % 3), b"v" * 50)])
            for at in range(2000)
        )
        write_partition(tmp_path, {0: log}, f"t-{number}", indexed=True)
    conditions = (
        "offset >= 1700 AND offset < 1750 AND partition = 1",
        "timestamp > timestamp_millis(1700000000000 + 1990000) AND key = X'6b31'",
        "topic IN ('t', 'u') AND partition IN (0, 2) AND offset = 7",
        "timestamp = timestamp_micros(1700000000000500)",
        "NOT partition = 1 AND offset <= 3",
    )
    source.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        pushing = source.read.format("kafka-log").option("pushFilters", "true").load(str(tmp_path))
        result = [sorted(pushing.where(condition).collect()) for condition in conditions]
        planned = pushing.where(conditions[0]).rdd.getNumPartitions()
    finally:
        source.conf.unset("spark.sql.python.filterPushdown.enabled")
    plain = source.read.format("kafka-log").load(str(tmp_path))
    assert result == [sorted(plain.where(condition).collect()) for condition in conditions]
    assert [len(rows) for rows in result] == [50, 9, 2, 0, 8]
    assert planned == 1


def test_filtered_reader_plans_only_the_required_bytes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    for number in range(3):
        log = b"".join(batch(10 * at, 10) for at in range(2000))
        write_partition(tmp_path, {0: log}, f"t-{number}", indexed=True)
    options = parse_options({"path": str(tmp_path), "pushFilters": "true"})
    reader = FilteringReader(options, StructType().add("offset", LongType()))
    filters: list[Filter] = [
        GreaterThanOrEqual(("offset",), 10_005),
        LessThan(("offset",), 10_007),
        EqualTo(("partition",), 2),
        Not(EqualTo(("partition",), 0)),
    ]
    assert list(reader.pushFilters(filters)) == filters
    text = "pushed filters that narrow the read: offset >= 10005; offset < 10007; partition = 2"
    assert text in caplog.text
    (group,) = reader.partitions()
    assert sum(split.size_bytes for split, _ in group.value) == len(batch(0, 10))
    assert [row for rows in reader.read(group) for row in rows["offset"].to_pylist()] == [
        10_005,
        10_006,
    ]


def test_task_reads_at_most_max_partition_bytes(source: SparkSession, tmp_path: Path) -> None:
    one = batch(0, 10)
    log = b"".join(batch(10 * at, 10) for at in range(2000))
    write_partition(tmp_path, {0: log}, "t-0", indexed=True)
    reader = source.read.format("kafka-log").option("maxPartitionBytes", f"{len(one) * 500}b")
    frame = reader.load(str(tmp_path))
    assert 4 <= frame.rdd.getNumPartitions() <= 6
    assert frame.count() == 20_000


def test_encrypted_remote_segments_are_read_with_the_options_of_tiered_storage(
    source: SparkSession,
) -> None:
    at = setting(ENCRYPTED)
    reader = source.read.format("kafka-log").option("tiered", at.remote)
    pairs = ",".join(f"{key}={file}" for key, file in at.keys)
    names = ("topic", "partition", "offset", "key", "value")
    actual = sorted(
        tuple(row[name] for name in names)
        for row in reader.option("tieredKeys", pairs).load(at.data).collect()
    )
    tiered = TieredOptions((at.remote,), keys=at.keys)
    expected = kafka_index.read_records(at.data, tiered=tiered, columns=names)
    assert actual == sorted(rows_of(expected.read_all(), *names))
    assert actual


# -------------------------------------------------------------------------- without a session


def test_data_source_module_imports_no_heavy_library() -> None:
    code = (
        "import sys, pyspark.sql.datasource; before = set(sys.modules); import pyspark_kafka_log;"
        "print(pyspark_kafka_log.DefaultSource.name(), *sorted(set(sys.modules) - before))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True
    )
    assert result.stdout.split() == ["kafka-log", "pyspark_kafka_log"]


def test_module_without_pyspark_has_no_data_source() -> None:
    code = (
        "import sys; sys.modules['pyspark'] = None; import pyspark_kafka_log;"
        "print(hasattr(pyspark_kafka_log, 'DefaultSource'))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True
    )
    assert result.stdout.split() == ["False"]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({}, "path is missing"),
        (
            {"path": "x", "subscribe": "a", "assign": "{}"},
            "subscribe and assign are mutually exclusive",
        ),
        ({"path": "x", "startingOffsets": "latest"}, "cannot be latest"),
        ({"path": "x", "endingOffsets": "earliest"}, "cannot be earliest"),
        ({"path": "x", "startingOffsets": "soon"}, "startingoffsets is malformed"),
        ({"path": "x", "startingOffsets": '{"t": 3}'}, "startingoffsets is malformed"),
        ({"path": "x", "startingTimestamp": "-5"}, "startingtimestamp is malformed"),
        ({"path": "x", "startingTimestamp": "1795245919"}, "looks like seconds"),
        ({"path": "x", "endingOffsetsByTimestamp": '{"t": {"0": 1795245919}}'}, "like seconds"),
        ({"path": "x", "startingTimestamp": "now", "endingTimestamp": "-7d"}, "after the end"),
        ({"path": "x", "mode": "LENIENT"}, "mode is malformed"),
        ({"path": "x", "startingOfsets": "earliest"}, "startingofsets.*mean startingoffsets"),
        (
            {"path": "x", "topics": "orders"},
            r"unknown option topics.*did you mean subscribePattern\?",
        ),
        (
            {"path": "x", "nonsense": "1"},
            "unknown option nonsense for reading from kafka-log; see kafka-index help",
        ),
        ({"path": "x", "rows": "lines"}, "rows is malformed"),
        (
            {"path": "x", "rows": "raw", "includeHeaders": "true"},
            "cannot be combined with rows=raw",
        ),
        (
            {"path": "x", "rows": "raw", "kafka.isolation.level": "read_committed"},
            "cannot be combined with rows=raw",
        ),
        ({"path": "x", "kafka.auto.offset.reset": "latest"}, "auto.offset.reset is not supported"),
        ({"path": "x", "kafka.interceptor.classes": "x"}, "is not supported"),
        ({"path": "x", "minPartitions": "0"}, "minpartitions is malformed"),
        ({"path": "x", "maxPartitionBytes": "lots"}, "maxpartitionbytes is malformed"),
        ({"path": "x", "maxRecordsPerPartition": "0"}, "maxrecordsperpartition is malformed"),
        ({"path": "x", "subscribe": " , "}, "subscribe is malformed"),
        ({"path": "x", "subscribePattern": "("}, "subscribepattern is malformed"),
        ({"path": "x", "assign": '{"t": 0}'}, "assign is malformed"),
        ({"path": "x", "startingOffsets": '{"t": {"0": -1}}'}, "cannot be latest"),
        ({"path": "x", "endingOffsets": '{"t": {"0": -2}}'}, "cannot be earliest"),
        (
            {
                "path": "x",
                "startingOffsets": '{"t": {"0": 5}}',
                "endingOffsets": '{"t": {"0": 4}}',
            },
            "starts after its end",
        ),
        (
            {
                "path": "x",
                "startingOffsetsByTimestamp": '{"t": {"0": "ms:5"}}',
                "endingOffsetsByTimestamp": '{"t": {"1": "ms:9"}}',
            },
            "has only one of the start and end bounds",
        ),
        ({"path": "x", "tieredFormat": "aiven"}, "requires the option tiered"),
        ({"tiered": "x", "tieredKeys": "key"}, "tieredkeys is malformed"),
        ({"path": "x", "failOnDataLoss": "maybe"}, "failondataloss is malformed"),
    ],
)
def test_unsupported_option_is_rejected(options: dict[str, str], reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        parse_options(options)


def test_options_of_sparks_kafka_source_are_accepted() -> None:
    options = parse_options(
        {
            "PATH": "/a, /b",
            "subscribePattern": " (?i)OR|__consumer_offsets|^a$ ",
            "startingOffsetsByTimestamp": '{"t": {"0": "2024-05-01", "1": 1714521600000}}',
            "endingTimestamp": "ms:2000",
            "endingOffsets": "latest",
            "kafka.security.protocol": "SSL",
            "mode": "dropmalformed",
        }
    )
    assert options.paths == ("/a", "/b")
    assert options.topics is not None
    # A pattern matches some part of a name, and no internal topics.
    names = ("orders", "my-orders", "a", "ba", "__consumer_offsets", "__consumer_offsets2")
    result = [name for name in names if re.fullmatch(options.topics, name)]
    assert result == ["orders", "my-orders", "a", "__consumer_offsets2"]
    assert options.bounds.starting_timestamp == {"t": dict.fromkeys((0, 1), 1714521600000)}
    assert options.bounds.ending_timestamp == 2000
    assert options.bounds.starting_offsets is None
    assert options.settings.on_damage is OnDamage.DROP
    assert options.settings.isolation is Isolation.READ_UNCOMMITTED
    assert options.ignored == ("kafka.security.protocol",)
    assert parse_options({"path": "x"}).bounds.starting_offsets == EARLIEST
    subscribed = parse_options({"path": "x", "subscribe": "a.b,c"})
    assert subscribed.topics == r"a\.b|c"
    assert subscribed.topic_names == ("a.b", "c")


def test_times_of_a_table_are_relative_to_when_it_was_loaded(tmp_path: Path) -> None:
    write_partition(tmp_path, {0: batch(0, 2, timestamps=[0, 1])})
    source = KafkaLogSource({"path": str(tmp_path), "startingTimestamp": "-7d"})
    shipped = pickle.loads(pickle.dumps(source))  # noqa: S301, because it was made here
    time.sleep(0.01)
    readers = [one.reader(one.schema()) for one in (source, shipped)]
    starts = {vars(reader)["_options"].bounds.starting_timestamp for reader in readers}
    assert len(starts) == 1


def test_options_of_streams_have_no_effect_on_a_batch_read() -> None:
    names = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "groupIdPrefix")
    options = parse_options({"path": "x", **dict.fromkeys(names, "5")})
    assert options.ignored == tuple(sorted(map(str.lower, names)))


def test_options_without_effect_are_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_partition(tmp_path, {0: batch(0, 1)})
    given = {"path": str(tmp_path), "kafka.bootstrap.servers": "b:9092", "kafka.group.id": "g"}
    source = KafkaLogSource(given)
    with caplog.at_level("WARNING"):
        source.reader(source.schema()).partitions()
    (warning,) = caplog.messages
    assert warning.endswith("kafka.bootstrap.servers, kafka.group.id")


def test_options_of_stores_are_passed_on() -> None:
    options = parse_options({"path": "x", "storage.region": "eu-west-1", "tiered": "s3://b/t"})
    assert options.storage.items == (("region", "eu-west-1"),)
    assert options.tiered == TieredOptions(("s3://b/t",))


def test_schema_of_other_types_is_rejected() -> None:
    source = KafkaLogSource({"path": "x"})
    with pytest.raises(InputError, match="no column key of this type"):
        source.reader(StructType().add("key", LongType()))


# ------------------------------------------------------------------ numbers in the options

NAME = "startingoffsets"
TOO_LONG = "9" * 5000


@pytest.mark.parametrize("text", ["1_000", "1.0", "0x1", "", TOO_LONG, "9223372036854775808"])
def test_numeric_option_text_rejected_by_java_is_rejected(text: str) -> None:
    with pytest.raises(InputError, match="malformed"):
        parse_number({NAME: text}, NAME, 0)


@pytest.mark.parametrize("text", ["1000", " 1000 ", "+1000", "\u0661\u0660\u0660\u0660"])
def test_numeric_option_text_is_parsed_as_by_java(text: str) -> None:
    assert parse_number({NAME: text}, NAME, 0) == 1000


@pytest.mark.parametrize(
    "text",
    [
        '{"t": {"1_0": 1}}',
        '{"t": {"2147483648": 1}}',
        '{"t": {"0": "1_000"}}',
        '{"t": {"0": true}}',
        '{"t": {"0": null}}',
        '{"t": {"0": Infinity}}',
        '{"t": {"0": 9223372036854775808}}',
        f'{{"t": {{"{TOO_LONG}": 1}}}}',
    ],
)
def test_invalid_offset_of_a_partition_is_rejected(text: str) -> None:
    with pytest.raises(InputError, match="malformed"):
        parse_by_partition({NAME: text}, NAME)


def test_partition_number_is_parsed_as_by_java_and_spark() -> None:
    text = json.dumps({"t": {"\u0661": 5, "02": 7.9, "3": "9"}})

    assert parse_by_partition({NAME: text}, NAME) == {"t": {1: 5, 2: 7, 3: 9}}
