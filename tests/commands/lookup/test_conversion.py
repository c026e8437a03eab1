"""Queries in text whose answers are Parquet."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kafka_index.commands.lookup import queries
from kafka_index.commands.lookup.queries import QueryFormat
from kafka_index.core.errors import InputError
from kafka_index.core.log.choices import By
from kafka_index.core.log.read.answers import ANSWER_SCHEMA
from tests.commands.lookup.building import (
    ODD_TEXT,
    C,
    J,
    convert,
    query,
    read_answers,
    run,
    statuses,
    without_answers,
    write_queries,
)

SOURCE = pytest.mark.parametrize("source", [C, J], ids=["csv", "json"])


@SOURCE
def test_converted_answers_equal_those_in_the_query_format_in_the_same_order(
    dump: Path, tmp_path: Path, source: QueryFormat, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queries, "_BATCH_TEXT_BYTES", 0)
    monkeypatch.setattr(queries, "_MIN_TEXT_ROWS", 10)
    rows: list[dict[str, Any]] = []
    for number in range(5):
        some = [
            query("orders", row % 2, 3 * row, note=f"{number}-{row}, {ODD_TEXT}")
            for row in range(50)
        ]
        write_queries(tmp_path / "queries" / f"{number}{source.endings[0]}", some)
        rows += some
    output = tmp_path / "out.parquet"
    totals = run(tmp_path / "queries", output, dump, threads=3)
    run(tmp_path / "queries", tmp_path / "same", dump)
    answers = read_answers(output)
    assert [row["note"] for row in answers] == [row["note"] for row in rows]
    assert [int(row["offset"]) for row in answers] == [row["offset"] for row in rows]
    assert statuses(answers) == statuses(read_answers(tmp_path / "same"))
    assert list(answers[0]) == [*rows[0], *ANSWER_SCHEMA.names]
    assert totals.rows == len(rows)


@SOURCE
def test_query_files_without_rows_take_the_columns_of_other_files(
    dump: Path, tmp_path: Path, source: QueryFormat
) -> None:
    rows = [query("orders", 0, 5, note="x")]
    empty = write_queries(tmp_path / "queries" / f"a{source.endings[0]}", rows)
    empty.write_bytes(b"")
    run(empty, tmp_path / "none.parquet", dump)
    assert read_answers(tmp_path / "none.parquet") == []
    write_queries(tmp_path / "queries" / f"b{source.endings[0]}", rows)
    run(tmp_path / "queries", tmp_path / "out.parquet", dump)
    (answer,) = read_answers(tmp_path / "out.parquet")
    assert (answer["note"], answer["status"]) == ("x", "found")


@SOURCE
def test_compressed_query_files_are_converted_like_uncompressed_ones(
    dump: Path, tmp_path: Path, source: QueryFormat
) -> None:
    plain = write_queries(
        tmp_path / f"q{source.endings[0]}", [query("orders", 0, 5, note=ODD_TEXT)]
    )
    packed = tmp_path / f"z{source.endings[0]}.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    for path in (plain, packed):
        run(path, tmp_path / f"{path.name}.parquet", dump)
    one, other = (pq.read_table(tmp_path / f"{path.name}.parquet") for path in (plain, packed))
    assert one.equals(other)


CSV_QUERIES = (
    'note,topic,partition,timestamp,"a ""b"""\n'
    'x,orders,0, 1005 ,"say ""hi"",\nü"\n'
    "\n"
    ",orders,+0,1970-01-01T00:00:01.0051Z,0123\n"
    "y,,x,soon,\n"
    "z,orders,99999999999,99999999999999999999,1e3\n"
    '"",orders,0,-1, \n'
)
CSV_STATUSES = ["found", "found", "invalid_query", "invalid_query", "found"]


def test_csv_columns_except_partition_and_key_are_strings(dump: Path, tmp_path: Path) -> None:
    output = convert(tmp_path, dump, CSV_QUERIES, C, By.TIMESTAMP)
    answers = pq.read_table(output)
    passed = [
        ("note", pa.string()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("timestamp", pa.int64()),
        ('a "b"', pa.string()),
    ]
    assert answers.schema.equals(pa.schema([*passed, *ANSWER_SCHEMA]))
    assert answers.select(range(len(passed))).to_pydict() == {
        "note": ["x", None, "y", "z", ""],
        "topic": ["orders", "orders", None, "orders", "orders"],
        "partition": [0, 0, None, None, 0],
        "timestamp": [1005, 1006, None, None, -1],
        'a "b"': ['say "hi",\nü', "0123", None, "1e3", " "],
    }
    assert answers["status"].to_pylist() == CSV_STATUSES


def test_duplicate_csv_column_name_is_rejected(dump: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"unique column names, .* more than one column note"):
        convert(tmp_path, dump, "topic,partition,offset,note,note\norders,0,5,,\n", C)


JSON_QUERIES = [
    '{"topic":"orders","partition":0,"timestamp":1005,"note":"x\\ny\\"","n":1.50}',
    "",
    ' {"n" : {"a" : [1, "}"]}, "timestamp":"1970-01-01T00:00:01.0051Z","partition":"0"} ',
    '{"topic":7,"partition":true,"timestamp":null,"note":null,"n":18446744073709551615}',
    '{"topic":"orders","partition":0,"timestamp":-1,"note":"\\u00e9","n":false}',
    "{}",
]
JSON_STATUSES = ["found", "invalid_query", "invalid_query", "found"]
JSON_STATUSES += ["invalid_query"]


def test_json_columns_except_partition_and_key_are_strings(dump: Path, tmp_path: Path) -> None:
    output = convert(tmp_path, dump, "\n".join(JSON_QUERIES), J, By.TIMESTAMP)
    answers = pq.read_table(output)
    types = [pa.string(), pa.int32(), pa.int64(), pa.string(), pa.string()]
    assert answers.schema.types[:5] == types
    assert answers.select(range(5)).to_pydict() == {
        "topic": ["orders", None, "7", "orders", None],
        "partition": [0, 0, None, 0, None],
        "timestamp": [1005, 1006, None, -1, None],
        "note": ['x\ny"', None, None, "é", None],
        "n": ["1.5", '{"a":[1,"}"]}', "18446744073709551615", "false", None],
    }
    assert answers["status"].to_pylist() == JSON_STATUSES


def test_columns_are_the_members_of_the_first_line_of_each_file(dump: Path, tmp_path: Path) -> None:
    write_queries(tmp_path / "queries" / "a.json", [query("orders", 0, 5, a="x")])
    write_queries(tmp_path / "queries" / "b.json", [query("orders", 0, 6, b="y")])
    run(tmp_path / "queries", tmp_path / "out.parquet", dump)
    one, other = read_answers(tmp_path / "out.parquet")
    assert (
        list(one) == list(other) == ["topic", "partition", "offset", "a", "b", *ANSWER_SCHEMA.names]
    )
    assert (one["a"], one["b"], other["a"], other["b"]) == ("x", None, None, "y")


def test_json_member_missing_in_the_first_line_is_reported_with_its_query(
    dump: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queries, "_BATCH_TEXT_BYTES", 0)
    monkeypatch.setattr(queries, "_MIN_TEXT_ROWS", 10)
    path = write_queries(tmp_path / "q.json", [query("orders", 0, 5)] * 1_500)
    path.write_text("\n" + path.read_text() + '{"topic":"orders","partition":0,"offset":5,"x":1}\n')
    with pytest.raises(InputError, match=r"q\.json: query 1501 has the member 'x'"):
        run(path, tmp_path / "out.parquet", dump)
    assert [file.name for file in tmp_path.iterdir()] == ["q.json"]
    run(path, tmp_path / "same", dump)
    assert read_answers(tmp_path / "same")[-1]["x"] == 1


def test_invalid_query_is_answered_in_its_row(dump: Path, tmp_path: Path) -> None:
    (tmp_path / "q.json").write_text("\n".join(JSON_QUERIES))
    run(tmp_path / "q.json", tmp_path / "out.json", dump, By.TIMESTAMP)
    answers = read_answers(tmp_path / "out.json")
    assert statuses(answers) == JSON_STATUSES
    assert without_answers(answers)[4] == {}
