"""Queries in Parquet files."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kafka_index.commands.lookup.queries import open_queries, read_split
from kafka_index.core.errors import InputError
from kafka_index.core.log.choices import By
from kafka_index.core.query.lookups import QueryBatch

SCHEMA = pa.schema([("topic", pa.string()), ("partition", pa.int32()), ("offset", pa.int64())])


def table(rows: int, start: int = 0, **columns: Any) -> pa.Table:
    offsets = range(start, start + rows)
    made = pa.table([["t"] * rows, [0] * rows, list(offsets)], schema=SCHEMA)
    for name, values in columns.items():
        made = made.append_column(name, values)
    return made


def read(path: Path, by: By = By.OFFSET) -> list[pa.RecordBatch]:
    return [rows for split in open_queries(str(path), by).splits for rows in read_split(split)]


def batches(path: Path, by: By = By.OFFSET) -> list[QueryBatch]:
    return [QueryBatch.from_table(rows, by) for rows in read(path, by)]


def offsets(path: Path) -> list[int]:
    return [value for batch in batches(path) for value in batch.keys.values.tolist()]


def refused(path: Path, message: str, by: By = By.OFFSET) -> None:
    with pytest.raises(InputError, match=message):
        open_queries(str(path), by)


def test_queries_keep_the_order_of_files_and_rows(tmp_path: Path) -> None:
    for number in range(3):
        pq.write_table(table(5, 10 * number), tmp_path / f"{number}.parquet", row_group_size=2)
    queries = open_queries(str(tmp_path), By.OFFSET)
    assert queries.rows == 15
    assert offsets(tmp_path) == [*range(5), *range(10, 15), *range(20, 25)]


def test_row_groups_are_grouped_into_splits_of_bounded_size(tmp_path: Path) -> None:
    pq.write_table(table(250_000), tmp_path / "q.parquet", row_group_size=30_000)
    splits = open_queries(str(tmp_path / "q.parquet"), By.OFFSET).splits
    assert [split.number for split in splits] == [0, 1, 2]
    assert [split.row_groups for split in splits] == [(0, 1, 2), (3, 4, 5), (6, 7, 8)]
    assert [split.rows for split in splits] == [90_000, 90_000, 70_000]
    assert offsets(tmp_path / "q.parquet") == list(range(250_000))


def test_split_is_read_in_batches_of_bounded_rows(tmp_path: Path) -> None:
    pq.write_table(table(10_000), tmp_path / "q.parquet")
    (split,) = open_queries(str(tmp_path), By.OFFSET).splits
    assert [len(batch) for batch in read_split(split, max_rows=4_000)] == [4_000, 4_000, 2_000]


def test_parquet_file_without_rows_is_an_empty_split(tmp_path: Path) -> None:
    pq.write_table(table(0), tmp_path / "a.parquet")
    pq.ParquetWriter(tmp_path / "b.parquet", SCHEMA).close()
    splits = open_queries(str(tmp_path), By.OFFSET).splits
    assert [(split.rows, split.row_groups) for split in splits] == [(0, (0,)), (0, ())]
    assert batches(tmp_path) == []


@pytest.mark.parametrize(
    ("topic", "partition", "offset"),
    [
        (pa.string(), pa.int8(), pa.int16()),
        (pa.large_string(), pa.uint64(), pa.uint32()),
        (pa.dictionary(pa.int32(), pa.string()), pa.int64(), pa.int64()),
    ],
)
def test_any_string_and_integer_types_are_accepted(
    tmp_path: Path, topic: pa.DataType, partition: pa.DataType, offset: pa.DataType
) -> None:
    kinds = [("topic", topic), ("partition", partition), ("offset", offset)]
    asked = pa.table([["a", None], [1, None], [2, None]], schema=SCHEMA).cast(pa.schema(kinds))
    pq.write_table(asked, tmp_path / "q.parquet")
    (batch,) = batches(tmp_path)
    (rows,) = read(tmp_path)
    assert rows.schema.types[1:] == asked.schema.types[1:]
    assert batch.topics.to_pylist() == ["a", None]
    assert batch.partitions.to_pylist() == [1, None]
    assert batch.keys.is_valid is not None
    assert batch.keys.values[0] == 2
    assert batch.keys.is_valid.tolist() == [True, False]


def test_missing_columns_are_reported_with_the_existing_ones(tmp_path: Path) -> None:
    pq.write_table(table(1).rename_columns(["topic", "part", "offs"]), tmp_path / "q.parquet")
    refused(tmp_path, r"no column partition, offset .*found topic, part, offs")


def test_queries_with_the_other_key_column_are_rejected_with_a_hint(tmp_path: Path) -> None:
    pq.write_table(table(1), tmp_path / "q.parquet")
    refused(tmp_path, r"no column timestamp .*give --by offset", By.TIMESTAMP)


def test_all_columns_of_wrong_type_are_reported(tmp_path: Path) -> None:
    wrong = pa.table({"topic": [1], "partition": ["0"], "offset": [1.5]})
    pq.write_table(wrong, tmp_path / "q.parquet")
    refused(
        tmp_path,
        "topic is int64, not a string, partition is string, not an integer, "
        "offset is double, not an integer",
    )


@pytest.mark.parametrize("kind", [pa.string(), pa.float64(), pa.decimal128(18, 3), pa.time64("us")])
def test_timestamp_column_of_another_type_is_rejected(tmp_path: Path, kind: pa.DataType) -> None:
    asked = table(0).drop_columns(["offset"]).append_column("timestamp", pa.array([], kind))
    pq.write_table(asked, tmp_path / "q.parquet")
    refused(tmp_path, "timestamp is .*, not an integer .milliseconds., a timestamp or a date",
            By.TIMESTAMP)  # fmt: skip


@pytest.mark.parametrize("name", ["status", "found_offset", "Status"])
def test_columns_named_like_answer_columns_are_rejected(tmp_path: Path, name: str) -> None:
    pq.write_table(table(1, **{name: pa.array([1])}), tmp_path / "q.parquet")
    refused(tmp_path, f"names of answer columns: {name}")


def test_duplicate_parquet_column_is_rejected(tmp_path: Path) -> None:
    pq.write_table(table(1, topic=pa.array(["x"])), tmp_path / "q.parquet")
    refused(tmp_path, "more than one column topic")


def test_every_parquet_query_file_is_checked(tmp_path: Path) -> None:
    pq.write_table(table(1), tmp_path / "a.parquet")
    pq.write_table(table(1).drop_columns(["offset"]), tmp_path / "b.parquet")
    refused(tmp_path, r"b\.parquet: the queries have no column offset")


@pytest.mark.parametrize(
    ("columns", "difference"),
    [
        ({}, "note is missing"),
        ({"note": pa.array([1])}, "note is int64, not string"),
        ({"note": pa.array(["x"]), "more": pa.array([1])}, "more is additional"),
    ],
)
def test_query_files_with_different_columns_are_rejected(
    tmp_path: Path, columns: dict[str, pa.Array], difference: str
) -> None:
    pq.write_table(table(1, note=pa.array(["x"])), tmp_path / "a.parquet")
    pq.write_table(table(1, **columns), tmp_path / "b.parquet")
    refused(tmp_path, rf"b\.parquet: the columns differ from .*a\.parquet: {difference}")


def test_columns_in_another_order_are_accepted(tmp_path: Path) -> None:
    pq.write_table(table(1), tmp_path / "a.parquet")
    pq.write_table(table(1, 7).select(["offset", "partition", "topic"]), tmp_path / "b.parquet")
    assert offsets(tmp_path) == [0, 7]


def test_file_that_is_not_parquet_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "q.parquet").write_bytes(b"topic,partition,offset\n")
    refused(tmp_path, "not a valid Parquet file")


def test_query_file_changed_after_its_check_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "q.parquet"
    pq.write_table(table(100), path, row_group_size=10)
    (split,) = open_queries(str(path), By.OFFSET).splits
    for other in (table(99), table(101), table(100, 7, x=pa.array(["x"] * 100))):
        pq.write_table(other, path, row_group_size=10)
        with pytest.raises(InputError, match="changed during the run"):
            list(read_split(split))
    path.unlink()
    with pytest.raises(InputError, match="the queries cannot be read"):
        list(read_split(split))


def test_damaged_parquet_page_is_rejected_with_its_file(tmp_path: Path) -> None:
    path = tmp_path / "q.parquet"
    pq.write_table(table(1000), path, compression="zstd", use_dictionary=False)
    data = bytearray(path.read_bytes())
    data[20:120] = bytes(100)
    (split,) = open_queries(str(path), By.OFFSET).splits
    path.write_bytes(data)
    with pytest.raises(InputError, match=r"q\.parquet"):
        list(read_split(split))


def test_int96_timestamps_after_the_year_2262_are_read_in_microseconds(
    tmp_path: Path,
) -> None:
    moment = datetime(2024, 5, 1, 0, 0, 0, 1, tzinfo=UTC)
    asked = table(1).drop_columns(["offset"])
    asked = asked.append_column("timestamp", pa.array([moment], pa.timestamp("us", "UTC")))
    asked = asked.append_column("far", pa.array([datetime(9999, 1, 1)], pa.timestamp("us")))  # noqa: DTZ001, has no zone
    pq.write_table(asked, tmp_path / "q.parquet", use_deprecated_int96_timestamps=True,
                   store_schema=False)  # fmt: skip
    assert pq.ParquetFile(tmp_path / "q.parquet").schema.column(2).physical_type == "INT96"
    (batch,) = batches(tmp_path, By.TIMESTAMP)
    assert batch.keys.values.tolist() == [1_714_521_600_001]
    (rows,) = read(tmp_path, By.TIMESTAMP)
    assert rows.schema.field("timestamp").type.unit == "us"
    assert rows.column("far")[0].as_py() == datetime(9999, 1, 1)  # noqa: DTZ001


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_timestamp_columns_of_any_unit_are_read(tmp_path: Path, unit: str) -> None:
    values = np.array([0, 86_400], "datetime64[s]").astype(f"datetime64[{unit}]")
    asked = table(2).drop_columns(["offset"]).append_column("timestamp", pa.array(values))
    pq.write_table(asked, tmp_path / "q.parquet")
    (batch,) = batches(tmp_path, By.TIMESTAMP)
    assert batch.keys.values.tolist() == [0, 86_400_000]
