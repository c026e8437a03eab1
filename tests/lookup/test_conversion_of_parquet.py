"""Queries in Parquet whose answers are CSV or JSON lines."""

from __future__ import annotations

import csv
import json
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_index.errors import InputError
from kafka_index.storage.json_lines import extended_lines, json_lines
from tests.lookup.building import (
    ODD_TEXT,
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


FLAT: dict[str, pa.Array] = {
    "text": pa.array([ODD_TEXT, "", None]),
    "code": pa.array(["x", None, "y"]).dictionary_encode(),
    "real": pa.array([1.5, float("nan"), float("-inf")]),
    "big": pa.array([2**64 - 1, None, 0], pa.uint64()),
    "yes": pa.array([True, None, False]),
    "decimal": pa.array(
        [Decimal("12345678901234567.890"), None, Decimal(-1)], pa.decimal128(20, 3)
    ),
    "moment": pa.array([1_714_521_600_000_000_001, None, -1], pa.timestamp("ns", "Asia/Tokyo")),
    "local": pa.array([1_714_521_600_001, None, 0], pa.timestamp("ms")),
    "day": pa.array([date(2024, 5, 1), None, date(1969, 12, 31)]),
    "hour": pa.array([time(1, 2, 3, 4), None, time(0)]),
    "bytes": pa.array([b"\x00\xff", b"", None]),
    "nothing": pa.nulls(3),
}


def flat_queries(**more: pa.Array) -> pa.Table:
    return pa.table(
        {
            "topic": pa.array(["orders"] * 3),
            "partition": pa.array([0, 0, None], pa.int16()),
            "offset": pa.array([5, 2**40, 5]),
            **FLAT,
            **more,
        }
    )


def test_csv_has_the_texts_that_pyarrow_writes(dump: Path, tmp_path: Path) -> None:
    output = convert(tmp_path, dump, flat_queries(), (P, C))
    asked = pq.read_table(tmp_path / "q.parquet").drop_columns(["bytes"])
    pa_csv.write_csv(asked, tmp_path / "twin.csv")
    with output.open(newline="") as ours, (tmp_path / "twin.csv").open(newline="") as theirs:
        rows = without_answers(csv.DictReader(ours))
        assert [row.pop("bytes") for row in rows] == ["AP8=", "", ""]
        assert rows == list(csv.DictReader(theirs))


def test_csv_distinguishes_nulls_from_empty_texts(dump: Path, tmp_path: Path) -> None:
    output = convert(tmp_path, dump, flat_queries(), (P, C))
    kept = pa_csv.ConvertOptions(
        column_types={"text": pa.string()},
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
    )
    parse = pa_csv.ParseOptions(newlines_in_values=True)
    answers = pa_csv.read_csv(output, parse_options=parse, convert_options=kept)
    assert answers["text"].to_pylist() == [ODD_TEXT, "", None]


def test_a_line_of_json_has_the_values_of_its_row(dump: Path, tmp_path: Path) -> None:
    output = convert(tmp_path, dump, flat_queries(), (P, J))
    first, second, third = without_answers(read_answers(output))
    assert first == {
        "topic": "orders",
        "partition": 0,
        "offset": 5,
        "text": ODD_TEXT,
        "code": "x",
        "real": 1.5,
        "big": 2**64 - 1,
        "yes": True,
        "decimal": "12345678901234567.890",
        "moment": "2024-05-01T00:00:00.000000001Z",
        "local": "2024-05-01T00:00:00.001",
        "day": "2024-05-01",
        "hour": "01:02:03.000004",
        "bytes": "AP8=",
        "nothing": None,
    }
    others = ["code", "real", "big", "yes", "decimal", "moment", "local", "day", "hour", "nothing"]
    assert {second[name] for name in others} == {None}
    assert (second["text"], second["bytes"]) == ("", "")
    assert (third["text"], third["real"], third["partition"]) == (None, None, None)
    assert (third["moment"], third["day"]) == ("1969-12-31T23:59:59.999999999Z", "1969-12-31")


NESTED: dict[str, tuple[pa.Array, list[Any]]] = {
    "struct": (
        pa.array([{"a": 1, "b": {"c": ODD_TEXT}}, None, {"a": None, "b": None}]),
        [{"a": 1, "b": {"c": ODD_TEXT}}, None, {"a": None, "b": None}],
    ),
    "list": (pa.array([[1, None], None, []]), [[1, None], None, []]),
    "lists": (pa.array([[["a"], None], [[]], [["b", "c"]]]), [[["a"], None], [[]], [["b", "c"]]]),
    "fixed": (pa.array([[1, 2], None, [3, 4]], pa.list_(pa.int8(), 2)), [[1, 2], None, [3, 4]]),
    "map": (
        pa.array([[(ODD_TEXT, 1), ("b", None)], None, []], pa.map_(pa.string(), pa.int64())),
        [{ODD_TEXT: 1, "b": None}, None, {}],
    ),
    "numbered": (
        pa.array([[(1, "x")], None, []], pa.map_(pa.int64(), pa.string())),
        [{"1": "x"}, None, {}],
    ),
    "times": (
        pa.array([[datetime(2024, 5, 1, tzinfo=UTC)], None, [None]]),
        [["2024-05-01T00:00:00Z"], None, [None]],
    ),
    "decimals": (
        pa.array([[Decimal("1.50")], [None], []]),
        [["1.50"], [None], []],
    ),
}


def test_nested_values_become_json(dump: Path, tmp_path: Path) -> None:
    queries = flat_queries(**{name: column for name, (column, _) in NESTED.items()})
    answers = read_answers(convert(tmp_path, dump, queries, (P, J)))
    for name, (_, expected) in NESTED.items():
        assert [row[name] for row in answers] == expected


def test_csv_refuses_columns_that_it_cannot_hold_before_anything_is_read(
    dump: Path, tmp_path: Path
) -> None:
    columns = {name: column for name, (column, _) in NESTED.items()}
    zone = pa.array([1, 2, 3], pa.timestamp("us", "Atlantis/Harbour"))
    with pytest.raises(InputError, match="CSV cannot hold the values of") as caught:
        convert(tmp_path, dump, flat_queries(**columns, zone=zone), (P, C))
    for name in (*NESTED, "zone"):
        assert f"{name} (" in caught.value.message
    for name in FLAT:
        assert f"{name} (" not in caught.value.message
    assert str(caught.value).endswith("leave these columns out, or choose another --output-format")
    assert [path.name for path in tmp_path.iterdir()] == ["q.parquet"]


def test_json_refuses_strings_that_are_not_utf8(dump: Path, tmp_path: Path) -> None:
    broken = pa.array([b"a", b"\xe4", b"b"]).view(pa.string())
    with pytest.raises(
        InputError, match=r"q\.parquet: the queries cannot be written as JSON lines: broken: "
    ):
        convert(tmp_path, dump, flat_queries(broken=broken), (P, J))


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


@given(st.lists(st.tuples(TEXTS, st.none() | TEXTS), min_size=1, max_size=20), TEXTS)
def test_any_text_is_read_as_it_was_written(rows: list[tuple[str, str | None]], name: str) -> None:
    columns = [pa.array(column, pa.string()) for column in zip(*rows, strict=True)]
    batch = pa.RecordBatch.from_arrays(columns, [name, f"{name}2"])
    objects = json_lines(batch)
    assert [json.loads(line) for line in objects.to_pylist()] == batch.to_pylist()
    more = pa.RecordBatch.from_arrays(columns, [f"{name}3", f"{name}4"])
    extended = [json.loads(line) for line in extended_lines(objects, more).to_pylist()]
    assert extended == [a | b for a, b in zip(batch.to_pylist(), more.to_pylist(), strict=True)]


def test_an_empty_object_is_extended() -> None:
    rows = pa.RecordBatch.from_pydict({"a": [1, None]})
    objects = pa.array(["{ }", '{"x":2 }'], pa.large_string())
    assert extended_lines(objects, rows).to_pylist() == ['{"a":1}\n', '{"x":2,"a":null}\n']
