"""Queries in CSV whose answers are Parquet or JSON lines."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kafka_index.errors import InputError
from kafka_index.lookup import (
    By,
    QueryFormat,
)
from kafka_index.lookup.queries import text_records
from kafka_index.reading.answers import ANSWER_SCHEMA
from tests.lookup.building import (
    C,
    J,
    P,
    convert,
    make_dump,
    read_answers,
    without_answers,
)


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_dump(tmp_path_factory.mktemp("dump"))


CSV_QUERIES = (
    'note,topic,partition,timestamp,"a ""b"""\n'
    'x,orders,0, 1005 ,"say ""hi"",\nü"\n'
    "\n"
    ",orders,+0,1970-01-01T00:00:01.0051Z,0123\n"
    "y,,x,soon,\n"
    "z,orders,99999999999,99999999999999999999,1e3\n"
    '"",orders,0,-1, \n'
)


def test_csv_becomes_columns_of_texts_but_for_what_is_asked(dump: Path, tmp_path: Path) -> None:
    output = convert(tmp_path, dump, CSV_QUERIES, (C, P), By.TIMESTAMP)
    answers = pq.read_table(output)
    asked = [
        ("note", pa.string()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("timestamp", pa.int64()),
        ('a "b"', pa.string()),
    ]
    assert answers.schema.equals(pa.schema([*asked, *ANSWER_SCHEMA]))
    rows = answers.select(range(len(asked))).to_pydict()
    assert rows == {
        "note": ["x", "", "y", "z", ""],
        "topic": ["orders", "orders", "", "orders", "orders"],
        "partition": [0, 0, None, None, 0],
        "timestamp": [1005, 1006, None, None, -1],
        'a "b"': ['say "hi",\nü', "0123", "", "1e3", " "],
    }
    assert answers["status"].to_pylist() == [
        "found", "found", "invalid_query", "invalid_query", "found",
    ]  # fmt: skip


def test_csv_becomes_strings_of_json_but_for_integers_that_are_asked(
    dump: Path, tmp_path: Path
) -> None:
    output = convert(tmp_path, dump, CSV_QUERIES, (C, J), By.TIMESTAMP)
    names = ("note", "topic", "partition", "timestamp", 'a "b"')
    assert [tuple(row.values()) for row in without_answers(read_answers(output))] == [
        ("x", "orders", 0, 1005, 'say "hi",\nü'),
        ("", "orders", 0, "1970-01-01T00:00:01.0051Z", "0123"),
        ("y", "", "x", "soon", ""),
        ("z", "orders", 99999999999, "99999999999999999999", "1e3"),
        ("", "orders", 0, -1, " "),
    ]
    assert tuple(read_answers(output)[0])[:5] == names


@pytest.mark.parametrize("form", [P, J])
def test_a_cell_that_is_not_utf8_is_named_with_its_line(
    dump: Path, tmp_path: Path, form: QueryFormat, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_records, "BLOCK_BYTES", 64)
    lines = (
        b"\ntopic,partition,offset,note\n" + b'orders,0,5,"a\nb"\n\n' * 40 + b"orders,0,5,\xe4\n"
    )
    with pytest.raises(InputError, match=r"q\.csv: line 123: note is not UTF-8 text"):
        convert(tmp_path, dump, lines, (C, form))


@pytest.mark.parametrize("form", [P, J])
def test_two_columns_of_one_name_are_refused(dump: Path, tmp_path: Path, form: QueryFormat) -> None:
    with pytest.raises(InputError, match=r"columns of different names, .* more than one note"):
        convert(tmp_path, dump, "topic,partition,offset,note,note\norders,0,5,,\n", (C, form))
