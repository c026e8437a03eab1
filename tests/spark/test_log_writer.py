"""``df.write.format("kafka-log")``: logs from DataFrames, and what is refused at the commit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, lit

import kafka_index
from kafka_index.commands.import_.import_manifest import counts_of_run
from kafka_index.commands.import_.request import ImportMode, ImportSettings
from kafka_index.commands.import_.table_files import list_table_files
from kafka_index.core.errors import InputError
from kafka_index.core.output.locks import DirectoryLock
from kafka_index.spark import KafkaLogSource
from kafka_index.spark.import_tables import write_tables
from kafka_index.spark.workers import session_workers
from tests.support.command_line import DUMP, copy_partitions
from tests.support.record_tables import rows_of

COLUMNS = ("topic", "partition", "offset", "timestamp", "timestampType", "key", "value")


@pytest.fixture(scope="module")
def session(spark: SparkSession) -> SparkSession:
    spark.dataSource.register(KafkaLogSource)
    return spark


@pytest.fixture(scope="module")
def frame(session: SparkSession) -> DataFrame:
    reader = session.read.format("kafka-log").option("includeHeaders", "true")
    return reader.option("subscribe", "orders.eu-west, payments").load(str(DUMP))


def sorted_frame(frame: DataFrame) -> DataFrame:
    return frame.repartition("topic", "partition").sortWithinPartitions(
        "topic", "partition", "offset"
    )


def records(path: Path) -> list[tuple[object, ...]]:
    return rows_of(kafka_index.read_records(path).read_all(), *COLUMNS)


def test_rows_are_written_as_logs_and_continue_them(frame: DataFrame, tmp_path: Path) -> None:
    for part in ("offset < 100", "offset >= 100"):
        writer = sorted_frame(frame.where(part)).write.format("kafka-log").mode("append")
        writer.option("compression.type", "lz4").save(str(tmp_path / "logs"))

    expected = kafka_index.read_records(DUMP, topics="orders.eu-west|payments").read_all()
    actual = kafka_index.read_records(tmp_path / "logs").read_all()
    assert actual.equals(expected)

    sorted_frame(frame.where("offset < 5")).write.format("kafka-log").mode("overwrite").save(
        str(tmp_path / "logs")
    )
    assert {row[2] for row in records(tmp_path / "logs")} <= set(range(5))


def test_overwrite_of_a_foreign_directory_is_rejected(frame: DataFrame, tmp_path: Path) -> None:
    data = copy_partitions(tmp_path / "data", "payments-0")
    with pytest.raises(InputError, match="no import wrote the partition"):
        KafkaLogSource({"path": str(data)}).writer(frame.schema, True)  # noqa: FBT003, Spark's
    assert records(data) == records(DUMP / "payments-0")


def test_partition_from_two_tasks_is_rejected_and_nothing_is_written(
    frame: DataFrame, tmp_path: Path
) -> None:
    scattered = frame.repartition(3).sortWithinPartitions("topic", "partition", "offset")
    with pytest.raises(
        PySparkException, match=r'several tasks have rows.*repartition\("topic", "partition"\)'
    ):
        scattered.write.format("kafka-log").mode("append").save(str(tmp_path / "logs"))
    assert list((tmp_path / "logs").iterdir()) == []


def test_unsorted_rows_are_rejected_with_the_missing_sort_call(
    frame: DataFrame, tmp_path: Path
) -> None:
    backward = frame.repartition("topic", "partition").sortWithinPartitions(col("offset").desc())
    with pytest.raises(PySparkException, match=r"do not ascend.*sortWithinPartitions"):
        backward.write.format("kafka-log").mode("append").save(str(tmp_path / "logs"))
    assert list((tmp_path / "logs").iterdir()) == []


def test_row_without_a_topic_is_rejected_with_its_reason(frame: DataFrame, tmp_path: Path) -> None:
    without = sorted_frame(frame.withColumn("topic", lit(None).cast("string")))
    with pytest.raises(PySparkException, match="a record has no topic") as caught:
        without.write.format("kafka-log").mode("append").save(str(tmp_path / "logs"))
    assert "sortWithinPartitions" not in str(caught.value).partition("\n")[0]


def test_directory_of_a_running_broker_is_rejected(frame: DataFrame, tmp_path: Path) -> None:
    with (
        DirectoryLock.for_data_directories([str(tmp_path)]),
        pytest.raises(PySparkException, match="a broker"),
    ):
        sorted_frame(frame).write.format("kafka-log").mode("append").save(str(tmp_path))


def test_files_are_imported_on_spark(session: SparkSession, tmp_path: Path) -> None:
    table = kafka_index.read_records(DUMP).read_all()
    (tmp_path / "tables").mkdir()
    half = len(table) // 2
    pq.write_table(table.slice(0, half), tmp_path / "tables" / "a.parquet")
    pq.write_table(table.slice(half), tmp_path / "tables" / "b.parquet")
    files = list_table_files([str(tmp_path / "tables")])
    settings = ImportSettings.of_properties({"segment.bytes": "65536"}, mode=ImportMode.CREATE)
    root = tmp_path / "logs"

    with session_workers(session) as workers:
        properties = {"segment.bytes": "65536"}
        write_tables(workers, files, str(root), settings, properties)
        assert kafka_index.read_records(root).read_all().equals(table)
        counts = [counts_of_run(str(path), settings.run_id) for path in root.iterdir()]
        assert sum(count.records for count in counts if count is not None) == len(table)
        before = {path: path.stat() for path in root.rglob("*.log")}
        # The same run again continues: all is there.
        write_tables(workers, files, str(root), settings, properties)
        assert {path: path.stat() for path in root.rglob("*.log")} == before
        other = replace(settings, run_id="other")
        with pytest.raises(PySparkException, match="the partition already exists"):
            write_tables(workers, files, str(root), other, properties)
