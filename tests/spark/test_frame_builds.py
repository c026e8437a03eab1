"""Builds from the rows of DataFrames: the files that the logs give."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from kafka_index.core.errors import ConfigError, InputError
from kafka_index.core.log.recovery.settings import BuildSettings
from kafka_index.core.logdir.listing import list_dump
from kafka_index.spark import build_indexes
from tests.support.command_line import build_here
from tests.support.dumps import batch_table, built_rows, leftovers, raw_batch_table, write_parquet
from tests.support.transactional_logs import built_files, segments, write

_Form = Callable[[Path], pa.Table]
_Read = Callable[[SparkSession, pa.Table, Path], DataFrame]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    data = tmp_path_factory.mktemp("logs")
    for number, name in enumerate(("a-0", "a-1", "z-7")):
        write(data / name, segments(number + 3))
    return data


@pytest.fixture(scope="module")
def expected(data: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    out = tmp_path_factory.mktemp("expected")
    listed = list_dump([str(data)], topics=None).segments
    built_rows(listed, BuildSettings(target_root=str(out)))
    return _files(out)


def _files(root: Path) -> dict[str, bytes]:
    return {name: data for name, data in built_files(root).items() if "/." not in name}


def _shuffled(table: pa.Table) -> pa.Table:
    return table.take(np.random.default_rng(7).permutation(table.num_rows))


def _from_orc(spark: SparkSession, table: pa.Table, folder: Path) -> DataFrame:
    spark.createDataFrame(table).write.orc(str(folder / "table.orc"))
    return spark.read.orc(str(folder / "table.orc"))


def _from_query(spark: SparkSession, table: pa.Table, _folder: Path) -> DataFrame:
    other = table.set_column(0, "topic", pa.array(["other"] * table.num_rows))
    frame = spark.createDataFrame(pa.concat_tables([other, table]))
    return frame.filter("topic != 'other'").withColumnRenamed("topic", "TOPIC")


def _from_folders(spark: SparkSession, table: pa.Table, folder: Path) -> DataFrame:
    path = str(folder / "table.parquet")
    spark.createDataFrame(table).write.partitionBy("topic", "partition").parquet(path)
    return spark.read.parquet(path)


@pytest.mark.parametrize("form", [batch_table, raw_batch_table])
@pytest.mark.parametrize("read", [_from_orc, _from_query, _from_folders])
def test_build_from_a_dataframe_equals_a_log_build(
    spark: SparkSession,
    data: Path,
    expected: dict[str, bytes],
    tmp_path: Path,
    form: _Form,
    read: _Read,
) -> None:
    frame = read(spark, _shuffled(form(data)), tmp_path)

    built = build_indexes(frame, tmp_path / "out")

    assert built.ok
    assert set(built.rows["log_path"].to_pylist()) == {"DataFrame"}
    assert _files(tmp_path / "out") == expected
    assert leftovers(tmp_path / "out") == []


def test_missing_columns_of_a_frame_are_all_reported(spark: SparkSession, tmp_path: Path) -> None:
    frame = spark.sql("SELECT 'a' AS topic, 0 AS partition, 'x' AS batch")
    with pytest.raises(InputError, match=r"segment_base_offset is missing.*batch is string"):
        build_indexes(frame, tmp_path / "out")
    with pytest.raises(ConfigError, match="output is empty"):
        build_indexes(frame, "")


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ("CAST(NULL AS STRING) AS topic, 0 AS partition", "column topic is null"),
        ("'a' AS topic, 5000000000L AS partition", "not a 32-bit integer"),
    ],
)
def test_rows_without_a_segment_stop_the_build(
    spark: SparkSession, tmp_path: Path, change: str, text: str
) -> None:
    query = f"SELECT {change}, 0L AS segment_base_offset, 0L AS position_bytes, X'00' AS batch"
    with pytest.raises(InputError, match=text):
        build_indexes(spark.sql(query), tmp_path / "out")
    assert _files(tmp_path / "out") == {}


def test_hive_style_folders_are_read_by_the_command(
    spark: SparkSession, data: Path, expected: dict[str, bytes], tmp_path: Path
) -> None:
    folder = tmp_path / "table"
    frame = spark.createDataFrame(_shuffled(raw_batch_table(data)))
    frame.write.partitionBy("topic", "partition").parquet(str(folder))

    result = build_here("--input", folder, "--format", "parquet", "--output", tmp_path / "out")

    assert result.returncode == 0, result.stderr
    assert _files(tmp_path / "out") == expected


def test_upper_case_names_and_binary_views_are_accepted_as_columns(
    data: Path, expected: dict[str, bytes], tmp_path: Path
) -> None:
    table = raw_batch_table(data)
    views = table.set_column(
        table.schema.get_field_index("batch"), "batch", table["batch"].cast(pa.binary_view())
    )
    renamed = views.rename_columns([name.upper() for name in views.column_names])
    path = write_parquet(tmp_path / "in.parquet", renamed)

    result = build_here("--input", path, "--output", tmp_path / "out")

    assert result.returncode == 0, result.stderr
    assert _files(tmp_path / "out") == expected
