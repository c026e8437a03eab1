"""Queries in CSV files: every row is a query, in its place."""

from __future__ import annotations

import csv
import gzip
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_index.commands.lookup import queries
from kafka_index.commands.lookup.queries import open_queries, read_split
from kafka_index.core.errors import InputError
from kafka_index.core.log.choices import By
from tests.commands.lookup.building import put, query_keys

HEADER = "topic,partition,offset,note\n"


def cells(path: Path) -> list[tuple[Any, ...]]:
    """The cells of all rows that pass through."""
    return [
        tuple(row.values())
        for split in open_queries(str(path), By.OFFSET).splits
        for batch in read_split(split)
        for row in batch.to_pylist()
    ]


def test_csv_query_keeps_its_cells(tmp_path: Path) -> None:
    path = put(tmp_path / "q.csv", HEADER + 't,0,5,"a, ""b"""\nu,1, 7 ,  x  \nu,+1,07,""\n')
    assert query_keys(path) == [("t", 0, 5), ("u", 1, 7), ("u", 1, 7)]
    assert cells(path) == [
        ("t", "0", "5", 'a, "b"'),
        ("u", "1", " 7 ", "  x  "),
        ("u", "+1", "07", ""),
    ]


def test_csv_columns_are_accepted_in_any_order(tmp_path: Path) -> None:
    put(tmp_path / "a.csv", "note,offset,topic,partition\nx,5,t,0\n")
    put(tmp_path / "b.csv", HEADER + "u,1,6,y\n")
    assert query_keys(tmp_path) == [("t", 0, 5), ("u", 1, 6)]
    assert cells(tmp_path) == [("x", "5", "t", "0"), ("y", "6", "u", "1")]


def test_empty_key_cell_is_an_invalid_query(tmp_path: Path) -> None:
    rows = ["t,0,,", ",0,1,", "t,x,1,", "t,0,99999999999999999999,", "t,99999999999,1,"]
    path = put(tmp_path / "q.csv", HEADER + "\n".join(rows))
    assert query_keys(path) == [
        ("t", 0, None),
        (None, 0, 1),
        ("t", None, 1),
        ("t", 0, None),
        ("t", 99_999_999_999, 1),
    ]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (
            "t,0,1,a\nt,0,2\n",
            "row 3, with the header, does not parse: Expected Number of Columns: 4 Found: 3",
        ),
        (
            "t,0,3,a,b\n",
            "row 2, with the header, does not parse: Expected Number of Columns: 4 Found: 5",
        ),
        (
            '"t\nu",0,1,a\nt\n',
            "row 3, with the header, does not parse: Expected Number of Columns: 4 Found: 1",
        ),
        (
            't,0,1,x\nt,0,1,"x\nt,0,1,y\n',
            "row 3, with the header, does not parse: .*unterminated quote",
        ),
        ('t,0,1,"x', "row 2, with the header, does not parse: .*unterminated quote"),
        ("t,0,1,a\nt,0,1,\xe4\n", "row 3, with the header, does not parse: Invalid unicode"),
        ("t,0,1,a\r\nt,0,2,b\n", "a row does not parse: .*equal line ends"),
    ],
)
def test_malformed_csv_row_is_rejected_with_its_line(
    tmp_path: Path, rows: str, message: str
) -> None:
    path = put(tmp_path / "q.csv", (HEADER + rows).encode("latin-1"))
    with pytest.raises(InputError, match=message) as caught:
        query_keys(path)
    assert caught.value.path == str(path)


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_csv_accepts_any_line_ends_and_skips_empty_lines(tmp_path: Path, end: str) -> None:
    text = "\n" + HEADER + "\n\nt,0,1,a\n\n\nt,0,2,b\nt,0,3,c"
    path = put(tmp_path / "q.csv", text.replace("\n", end))
    assert query_keys(path) == [("t", 0, 1), ("t", 0, 2), ("t", 0, 3)]


def test_quoted_csv_row_can_span_lines(tmp_path: Path) -> None:
    path = put(tmp_path / "q.csv", HEADER + 't,0,1,"one\n\ntwo"\nt,0,2,"x\n"\n')
    assert [row[3] for row in cells(path)] == ["one\n\ntwo", "x\n"]


def test_csv_byte_order_mark_is_not_part_of_a_column_name(tmp_path: Path) -> None:
    path = put(tmp_path / "q.csv", b"\xef\xbb\xbf" + HEADER.encode() + b"t,0,1,\n")
    assert query_keys(path) == [("t", 0, 1)]


def test_csv_column_names_can_be_quoted_and_other_columns_duplicated(tmp_path: Path) -> None:
    path = put(tmp_path / "q.csv", '"topic","partition","offset","a\nb",x,x\nt,0,1,2,3,4\n')
    (split,) = open_queries(str(path), By.OFFSET).splits
    assert split.columns == ("topic", "partition", "offset", "a\nb", "x", "x")
    assert query_keys(path) == [("t", 0, 1)]


def test_empty_trailing_csv_cell_is_ignored(tmp_path: Path) -> None:
    path = put(tmp_path / "q.csv", HEADER + "t,0,1,a,\nt,0,2,b\n")
    assert cells(path) == [("t", "0", "1", "a"), ("t", "0", "2", "b")]


def test_compressed_csv_is_read(tmp_path: Path) -> None:
    path = put(tmp_path / "q.csv.gz", gzip.compress((HEADER + "t,0,1,\n").encode()))
    assert query_keys(path) == [("t", 0, 1)]


def test_truncated_compressed_csv_is_rejected(tmp_path: Path) -> None:
    data = gzip.compress((HEADER + "t,0,1,\n" * 100_000).encode())
    path = put(tmp_path / "q.csv.gz", data[: len(data) // 2])
    with pytest.raises(InputError, match="the queries cannot be read"):
        query_keys(path)


@pytest.mark.parametrize("text", ["", "\n\n", HEADER, HEADER.strip(), HEADER + "\n\n"])
def test_query_file_without_queries_is_accepted(tmp_path: Path, text: str) -> None:
    assert query_keys(put(tmp_path / "q.csv", text)) == []


def test_empty_files_next_to_others_can_have_any_columns(tmp_path: Path) -> None:
    put(tmp_path / "a.csv", "")
    put(tmp_path / "b.csv", HEADER + "t,0,1,\n")
    assert query_keys(tmp_path) == [("t", 0, 1)]


def test_csv_times_are_parsed(tmp_path: Path) -> None:
    text = "topic,partition,timestamp\nt,0,2024-05-01T00:00:00.0001Z\nt,0,17\nt,0,soon\n"
    path = put(tmp_path / "q.csv", text)
    assert [row[2] for row in query_keys(path, By.TIMESTAMP)] == [1_714_521_600_001, 17, None]


def test_csv_cell_of_megabytes_is_read_but_a_cell_above_the_block_size_is_rejected(
    tmp_path: Path,
) -> None:
    path = put(tmp_path / "q.csv", HEADER + f"t,0,1,{'x' * (8 << 20)}\nt,0,2,\n")
    assert query_keys(path) == [("t", 0, 1), ("t", 0, 2)]
    put(path, HEADER + f"t,0,1,{'x' * (40 << 20)}\n")
    with pytest.raises(
        InputError, match="row 2, with the header, does not parse: Maximum line size"
    ):
        query_keys(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("topic;partition;offset\n", r"no column topic, partition, offset .*found topic;part"),
        ("topic, partition,offset\n", r"no column partition .*found topic, ' partition', offset"),
        ("topic,partition,offset,status\n", "names of answer columns: status"),
        ("topic,topic,partition,offset\n", "more than one column topic"),
        (HEADER.encode("utf-16"), "no column topic"),
    ],
)
def test_malformed_csv_file_is_rejected(tmp_path: Path, text: str | bytes, message: str) -> None:
    path = put(tmp_path / "q.csv", text)
    with pytest.raises(InputError, match=message) as caught:
        query_keys(path)
    assert caught.value.path == str(path)


def test_query_files_with_different_columns_are_rejected(tmp_path: Path) -> None:
    put(tmp_path / "a.csv", HEADER)
    put(tmp_path / "b.csv", "topic,partition,offset\n")
    with pytest.raises(InputError, match=r"the columns differ from .*a.csv: note is missing"):
        query_keys(tmp_path)


def test_query_file_that_grew_after_its_check_is_rejected(tmp_path: Path) -> None:
    path = put(tmp_path / "q.csv", HEADER + "t,0,1,x\n")
    (split,) = open_queries(str(path), By.OFFSET).splits
    put(path, HEADER + "t,0,1,x\n" * 2)
    with pytest.raises(InputError, match="changed during the run"):
        list(read_split(split))


def test_csv_path_with_duckdb_glob_characters_is_read(tmp_path: Path) -> None:
    put(tmp_path / "q*.csv", HEADER + "t,0,1,\n")
    put(tmp_path / "q1.csv", HEADER + "t,0,2,\n")
    assert query_keys(tmp_path) == [("t", 0, 1), ("t", 0, 2)]


CELL = st.text(st.sampled_from('ab ,"\n;\\é'), max_size=6)


@given(rows=st.lists(st.lists(CELL, min_size=4, max_size=4).filter(any), max_size=12))
def test_random_csv_rows_keep_their_order_across_batches(rows: list[list[str]]) -> None:
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "q.csv"
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(["topic", "partition", "offset", "note"])
            writer.writerows(rows)
        patch.setattr(queries, "_BATCH_TEXT_BYTES", 0)
        patch.setattr(queries, "_MIN_TEXT_ROWS", 2)
        result = [tuple(cell or "" for cell in row) for row in cells(path)]
    assert result == list(map(tuple, rows))
