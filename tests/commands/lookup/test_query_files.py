"""The files that a path to queries names."""

from __future__ import annotations

from pathlib import Path

import pytest

from kafka_index.commands.lookup.queries import QueryFormat, find_query_files
from kafka_index.core.errors import InputError


def put(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"")


def found(path: Path | str) -> list[str]:
    return [Path(file).name for file in find_query_files(str(path))[0]]


@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("q.parquet", QueryFormat.PARQUET),
        ("part-0.snappy.parquet", QueryFormat.PARQUET),
        ("q.csv", QueryFormat.CSV),
        ("q.CSV", QueryFormat.CSV),
        ("q.csv.gz", QueryFormat.CSV),
        ("q.json", QueryFormat.JSON),
        ("q.jsonl", QueryFormat.JSON),
        ("q.ndjson.zst", QueryFormat.JSON),
    ],
)
def test_file_extension_determines_the_query_format(
    tmp_path: Path, name: str, form: QueryFormat
) -> None:
    put(tmp_path, name)
    assert find_query_files(str(tmp_path / name)) == ([str(tmp_path / name)], form)


@pytest.mark.parametrize("name", ["q.txt", "q", "q.parquet.gz", "q.gz", "q.orc"])
def test_unknown_file_extension_of_queries_is_rejected(tmp_path: Path, name: str) -> None:
    put(tmp_path, name)
    with pytest.raises(InputError, match="unknown ending"):
        found(tmp_path / name)


def test_query_files_of_a_folder_are_sorted_and_hidden_files_are_skipped(tmp_path: Path) -> None:
    put(tmp_path, "b.csv", "a.csv", "_SUCCESS", ".part.crc", "_temporary/0/c.csv", ".hidden/d.csv")
    put(tmp_path, "x.csv._COPYING_", "z/1.csv", "y/2.csv")
    assert found(tmp_path) == ["a.csv", "b.csv", "2.csv", "1.csv"]


def test_query_globs_match_files_and_folders_except_hidden_ones(tmp_path: Path) -> None:
    put(tmp_path, "one/a.csv", "two/b.csv", "c.csv", "_d.csv", "one/.e.csv")
    assert found(f"{tmp_path}/*") == ["c.csv", "a.csv", "b.csv"]
    assert found(f"{tmp_path}/*/*.csv") == ["a.csv", "b.csv"]


def test_hidden_query_file_given_by_path_is_read(tmp_path: Path) -> None:
    put(tmp_path, "_q.csv")
    assert found(tmp_path / "_q.csv") == ["_q.csv"]


def test_query_file_matched_twice_is_read_once(tmp_path: Path) -> None:
    put(tmp_path, "a/a.csv")
    assert found(f"{tmp_path}/**") == ["a.csv"]


def test_query_files_of_two_formats_are_rejected_with_both_formats(tmp_path: Path) -> None:
    put(tmp_path, "a.csv", "b.json")
    with pytest.raises(
        InputError, match=r"b\.json: the format of the file differs from that of .*a\.csv"
    ) as caught:
        found(tmp_path)
    assert caught.value.path == str(tmp_path / "b.json")


@pytest.mark.parametrize("name", ["nowhere", "*.csv"])
def test_missing_query_path_is_rejected(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match=r"No such file|no path matches"):
        found(tmp_path / name)


def test_empty_query_folder_is_rejected(tmp_path: Path) -> None:
    put(tmp_path, "_SUCCESS")
    with pytest.raises(InputError, match="no query files found"):
        found(tmp_path)


def test_hive_partition_columns_of_query_folders_are_rejected(tmp_path: Path) -> None:
    put(tmp_path, "day=2024-05-01/a.parquet")
    with pytest.raises(InputError, match="a folder name contains the value of a column"):
        found(tmp_path)
