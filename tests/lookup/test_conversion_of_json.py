"""Queries in JSON lines whose answers are Parquet or CSV."""

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
    query,
    read_answers,
    run,
    without_answers,
    write_queries,
)


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_dump(tmp_path_factory.mktemp("dump"))


JSON_QUERIES = [
    '{"topic":"orders","partition":0,"timestamp":1005,"note":"x\\ny\\"","n":1.50}',
    "",
    ' {"n" : {"a" : [1, "}"]}, "timestamp":"1970-01-01T00:00:01.0051Z","partition":"0"} ',
    '{"topic":7,"partition":true,"timestamp":null,"note":null,"n":123456789012345678901234567890}',
    '{"topic":"orders","partition":0,"timestamp":-1,"note":"\\ud800","n":false}',
    "{}",
]


def test_json_becomes_columns_of_texts_but_for_what_is_asked(dump: Path, tmp_path: Path) -> None:
    output = convert(tmp_path, dump, "\n".join(JSON_QUERIES), (J, P), By.TIMESTAMP)
    answers = pq.read_table(output)
    types = [pa.string(), pa.int32(), pa.int64(), pa.string(), pa.string()]
    assert answers.schema.types[:5] == types
    assert answers.select(range(5)).to_pydict() == {
        "topic": ["orders", None, "7", "orders", None],
        "partition": [0, 0, None, 0, None],
        "timestamp": [1005, 1006, None, -1, None],
        "note": ['x\ny"', None, None, '"\\ud800"', None],
        "n": ["1.50", '{"a" : [1, "}"]}', "123456789012345678901234567890", "false", None],
    }
    assert answers["status"].to_pylist() == [
        "found", "invalid_query", "invalid_query", "found", "invalid_query",
    ]  # fmt: skip


def test_json_becomes_cells_as_they_stand(dump: Path, tmp_path: Path) -> None:
    output = convert(tmp_path, dump, "\n".join(JSON_QUERIES), (J, C), By.TIMESTAMP)
    assert [tuple(row.values()) for row in without_answers(read_answers(output))] == [
        ("orders", "0", "1005", 'x\ny"', "1.50"),
        ("", "0", "1970-01-01T00:00:01.0051Z", "", '{"a" : [1, "}"]}'),
        ("7", "true", "", "", "123456789012345678901234567890"),
        ("orders", "0", "-1", '"\\ud800"', "false"),
        ("", "", "", "", ""),
    ]


@pytest.mark.parametrize("more", ['"id":7', '"id":"x"', '"id":null'])
def test_lines_of_one_kind_and_of_several_make_the_same_columns(
    dump: Path, tmp_path: Path, more: str
) -> None:
    # The first are parsed at once, the others one by one.
    line = f'{{"topic":"orders","partition":0,"offset":5,"note":"ü",{more}}}\n'
    odd = '{"topic":"orders","partition":"0","offset":5,"note":[],"id":{}}\n'
    alone = pq.read_table(convert(tmp_path, dump, line, (J, P)))
    (tmp_path / "out.parquet").unlink()
    both = pq.read_table(convert(tmp_path, dump, line + odd, (J, P)))
    assert both.slice(0, 1).equals(alone)


@pytest.mark.parametrize("form", [P, C])
def test_columns_are_the_members_of_the_first_lines_of_all_files(
    dump: Path, tmp_path: Path, form: QueryFormat
) -> None:
    write_queries(tmp_path / "queries" / "a.json", [query("orders", 0, 5, a="x")])
    write_queries(tmp_path / "queries" / "b.json", [query("orders", 0, 6, b="y")])
    run(tmp_path / "queries", tmp_path / "out", dump, output_format=form)
    one, other = read_answers(tmp_path / "out")
    assert (
        list(one) == list(other) == ["topic", "partition", "offset", "a", "b", *ANSWER_SCHEMA.names]
    )
    assert (one["a"], one["b"] or None, other["a"] or None, other["b"]) == ("x", None, None, "y")


@pytest.mark.parametrize("output", ["out", "out.csv"])
def test_a_member_that_turns_up_later_is_named_with_its_line(
    dump: Path, tmp_path: Path, output: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_records, "BLOCK_BYTES", 4_000)
    rows = [query("orders", 0, 5)] * 1_500
    path = write_queries(tmp_path / "q.json", rows)
    path.write_text("\n" + path.read_text() + '{"topic":"orders","partition":0,"offset":5,"x":1}\n')
    with pytest.raises(InputError, match=r"q\.json: line 1502: the member 'x' is in none"):
        run(path, tmp_path / output, dump, output_format=C)
    assert [one.name for one in tmp_path.iterdir()] == ["q.json"]
    run(path, tmp_path / "same", dump)
    assert read_answers(tmp_path / "same")[-1]["x"] == 1


@pytest.mark.parametrize("form", [P, C])
def test_json_that_is_not_utf8_is_named_with_its_line(
    dump: Path, tmp_path: Path, form: QueryFormat
) -> None:
    good = b'{"topic":"orders","partition":0,"offset":5,"note":"x"}\n'
    with pytest.raises(InputError, match=r"q\.json: line 1002: no JSON: .*utf-8"):
        convert(tmp_path, dump, good * 1_001 + good.replace(b'"x"', b'"\xe4"'), (J, form))
