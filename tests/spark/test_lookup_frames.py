"""Data frames of queries become data frames of answers, row by row."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from kafka_index.core.errors import InputError, KafkaIndexError
from kafka_index.core.log.choices import By, Resolve
from kafka_index.core.log.read.answers import ANSWER_SCHEMA
from kafka_index.core.query.inventory import Inventory
from kafka_index.core.query.lookups import Keys, Lookups, LookupSettings, QueryBatch
from kafka_index.spark import list_dump, lookup_offsets, lookup_timestamps
from kafka_index.spark.workers import spark_schema
from tests.spark.lookups import make_dump, make_queries
from tests.support.command_line import DUMP
from tests.support.segments import batch

#: A winter's day; the zone below is an hour ahead of UTC then.
NOON = datetime(2026, 1, 15, 12, tzinfo=UTC)
ZONE = "Europe/Berlin"


@pytest.fixture(scope="module")
def inventory(tmp_path_factory: pytest.TempPathFactory) -> Inventory:
    return make_dump(tmp_path_factory.mktemp("frames"))


@pytest.fixture(scope="module")
def days(tmp_path_factory: pytest.TempPathFactory) -> Inventory:
    """A record an hour, from the midnight (UTC) before `NOON`: its offset is the hour."""
    first = int(NOON.timestamp() - 12 * 3600) * 1000
    hours = [first + 3_600_000 * hour for hour in range(48)]
    log = [batch(hour, 1, timestamps=[time]) for hour, time in enumerate(hours)]
    return make_dump(tmp_path_factory.mktemp("days"), {("t", 0, 0): log})


@pytest.fixture
def zone(spark: SparkSession) -> Iterator[None]:
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", ZONE)
    yield
    spark.conf.set("spark.sql.session.timeZone", before or "UTC")


def expected(table: pa.Table, inventory: Inventory, by: By, resolve: Resolve) -> pa.Table:
    with Lookups(inventory, LookupSettings(by, resolve)) as lookups:
        keys = Keys.from_column(table[by.column], by)
        answers = lookups.answer(QueryBatch(table["topic"], table["partition"], keys)).to_arrow()
    columns = [*table.columns, *answers.columns]
    return pa.table(columns, schema=pa.schema([*table.schema, *answers.schema]))


@pytest.mark.parametrize("by", list(By))
@pytest.mark.parametrize("resolve", list(Resolve))
def test_lookup_frame_keeps_all_rows_and_columns(
    spark: SparkSession, inventory: Inventory, by: By, resolve: Resolve
) -> None:
    table = make_queries(by.value, 500)
    look_up = lookup_offsets if by is By.OFFSET else lookup_timestamps
    queries = spark.createDataFrame(table).repartition(3)

    answers = look_up(queries, inventory, resolve=resolve)

    assert answers.schema == spark_schema(pa.schema([*table.schema, *ANSWER_SCHEMA]))
    actual = answers.toArrow().sort_by("note")
    theirs = expected(table, inventory, by, resolve).sort_by("note")
    assert actual.to_pylist() == theirs.to_pylist()


def test_lookup_frame_accepts_paths_or_an_inventory(spark: SparkSession) -> None:
    queries = spark.createDataFrame(
        [("payments", 0, 5)], "topic string, partition int, offset long"
    )
    wanted = lookup_offsets(queries, list_dump(DUMP)).collect()
    config = {"log.index.interval.bytes": 4096}
    assert lookup_offsets(queries, DUMP, config=config).collect() == wanted
    assert lookup_offsets(queries, [str(DUMP)]).collect() == wanted
    with pytest.raises(InputError, match="no such thing"):
        lookup_offsets(queries, "no such thing")


def test_partitions_without_rows_are_accepted(spark: SparkSession, inventory: Inventory) -> None:
    table = make_queries("offset", 3)
    queries = spark.createDataFrame(table).repartition(20)
    assert lookup_offsets(queries, inventory).count() == 3
    nothing = lookup_offsets(queries.where("false"), inventory)
    assert nothing.toArrow().num_rows == 0
    assert nothing.columns == [*table.column_names, *ANSWER_SCHEMA.names]


def test_answer_frame_can_be_transformed(spark: SparkSession, inventory: Inventory) -> None:
    queries = spark.createDataFrame(make_queries("offset", 400))
    result = lookup_offsets(queries, inventory).where("status = 'found'")
    counts = result.groupBy("topic").agg(F.count("*").alias("found")).collect()
    assert {row["topic"] for row in counts} == {"orders", "a.b-c"}


def test_integers_of_every_width_are_offsets(spark: SparkSession, inventory: Inventory) -> None:
    queries = spark.range(5).selectExpr(
        "'orders' as topic", "cast(0 as tinyint) as partition", "cast(id as smallint) as offset"
    )
    rows = lookup_offsets(queries, inventory).collect()
    assert [row["batch_base_offset"] for row in rows] == [0, 0, 0, 3, 3]


# -------------------------------------------------------------------------------------- times


def hour_found(frame: DataFrame, days: Inventory) -> list[Any]:
    return [row["found_offset"] for row in lookup_timestamps(frame, days).collect()]


def in_hour(spark: SparkSession, expression: str) -> DataFrame:
    return spark.sql(f"SELECT 't' AS topic, 0 AS partition, {expression} AS timestamp")


@pytest.mark.usefixtures("zone")
@pytest.mark.parametrize(
    ("expression", "hour"),
    [
        ("timestamp '2026-01-15 12:00:00 UTC'", 12),
        ("timestamp '2026-01-15 12:00:00'", 11),  # in the session's zone
        ("timestamp_ntz '2026-01-15 12:00:00'", 11),
        ("date '2026-01-16'", 23),
        ("timestamp '2026-01-15 12:00:00.000001 UTC'", 13),  # the first at or after
        (f"{int(NOON.timestamp()) * 1000}L", 12),
        ("-2L", 0),
        ("-1L", 48),
    ],
)
def test_times_are_interpreted_in_the_session_time_zone(
    spark: SparkSession, days: Inventory, expression: str, hour: int
) -> None:
    assert hour_found(in_hour(spark, expression), days) == [hour]


def test_time_before_1970_is_not_special(spark: SparkSession, days: Inventory) -> None:
    frame = in_hour(spark, "timestamp '1969-12-31 23:59:59.999 UTC'")
    assert [row["status"] for row in lookup_timestamps(frame, days).collect()] == ["invalid_query"]


@pytest.mark.usefixtures("zone")
def test_timestamp_and_date_columns_are_unchanged(spark: SparkSession, days: Inventory) -> None:
    frame = in_hour(spark, "date '2026-01-15'").withColumn(
        "noted", F.expr("timestamp_ntz '2026-01-15 12:00:00'")
    )
    (row,) = lookup_timestamps(frame, days).collect()
    assert row["timestamp"] == date(2026, 1, 15)
    assert row["noted"] == NOON.replace(tzinfo=None)
    result = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=row["found_timestamp_ms"])
    assert result == NOON.replace(hour=0)


# -------------------------------------------------------------------------------------- usage


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        (["topic", "partition"], "no column offset"),
        (["*", "1 AS timestamp"], "by timestamp"),
        (["*", "'1' AS offset"], "offset is string, not an integer"),
        (["*", "current_date() AS offset"], "offset is date, not an integer"),
        (["topic", "1.5 AS partition", "1 AS offset"], "partition is decimal"),
        (["*", "1 AS offset", "1 AS status"], "names of answer columns: status"),
    ],
)
def test_wrong_columns_are_rejected_at_once(
    spark: SparkSession, inventory: Inventory, columns: list[str], says: str
) -> None:
    frame = spark.sql("SELECT 't' AS topic, 0 AS partition").selectExpr(*columns)
    with pytest.raises(InputError, match=says):
        lookup_offsets(frame, inventory)


@pytest.mark.parametrize("look_up", [lookup_offsets, lookup_timestamps])
def test_level_is_a_member_or_its_value(
    spark: SparkSession, inventory: Inventory, look_up: Any
) -> None:
    schema = "topic string, partition int, offset long, timestamp long"
    queries = spark.createDataFrame([("t", 0, 1, 0)], schema)
    queries = queries.drop("timestamp" if look_up is lookup_offsets else "offset")
    for level in Resolve:
        wanted = look_up(queries, inventory, resolve=level).collect()
        assert look_up(queries, inventory, resolve=level.value).collect() == wanted
    for wrong in ("nonsense", None, 1):
        with pytest.raises(KafkaIndexError, match="expected index, batch, record"):
            look_up(queries, inventory, resolve=wrong)
