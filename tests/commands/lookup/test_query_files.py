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
def test_the_name_says_the_format(tmp_path: Path, name: str, form: QueryFormat) -> None:
    put(tmp_path, name)
    assert find_query_files(str(tmp_path / name)) == ([str(tmp_path / name)], form)


@pytest.mark.parametrize("name", ["q.txt", "q", "q.parquet.gz", "q.gz", "q.orc"])
def test_a_name_that_says_no_format_is_refused(tmp_path: Path, name: str) -> None:
    put(tmp_path, name)
    with pytest.raises(InputError, match="unknown ending"):
        found(tmp_path / name)


def test_files_of_a_folder_come_sorted_and_what_spark_ignores_is_ignored(tmp_path: Path) -> None:
    put(tmp_path, "b.csv", "a.csv", "_SUCCESS", ".part.crc", "_temporary/0/c.csv", ".hidden/d.csv")
    put(tmp_path, "x.csv._COPYING_", "z/1.csv", "y/2.csv")
    assert found(tmp_path) == ["a.csv", "b.csv", "2.csv", "1.csv"]


def test_globs_match_files_and_folders_but_nothing_hidden(tmp_path: Path) -> None:
    put(tmp_path, "one/a.csv", "two/b.csv", "c.csv", "_d.csv", "one/.e.csv")
    assert found(f"{tmp_path}/*") == ["c.csv", "a.csv", "b.csv"]
    assert found(f"{tmp_path}/*/*.csv") == ["a.csv", "b.csv"]


def test_a_hidden_file_that_is_named_is_meant(tmp_path: Path) -> None:
    put(tmp_path, "_q.csv")
    assert found(tmp_path / "_q.csv") == ["_q.csv"]


def test_a_file_that_two_matches_name_is_read_once(tmp_path: Path) -> None:
    put(tmp_path, "a/a.csv")
    assert found(f"{tmp_path}/**") == ["a.csv"]


def test_several_formats_are_refused_naming_both(tmp_path: Path) -> None:
    put(tmp_path, "a.csv", "b.json")
    with pytest.raises(InputError, match=r"several formats: also .*b\.json") as caught:
        found(tmp_path)
    assert caught.value.path == str(tmp_path / "a.csv")


@pytest.mark.parametrize("name", ["nowhere", "*.csv"])
def test_nothing_there_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match=r"No such file|no path matches"):
        found(tmp_path / name)


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    put(tmp_path, "_SUCCESS")
    with pytest.raises(InputError, match="no query files found"):
        found(tmp_path)


def test_columns_in_the_names_of_folders_are_refused_not_dropped(tmp_path: Path) -> None:
    put(tmp_path, "day=2024-05-01/a.parquet")
    with pytest.raises(InputError, match="a folder name contains the value of a column"):
        found(tmp_path)
