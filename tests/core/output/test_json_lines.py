"""Columns as JSON lines: values of every type, and any text."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_index.core.fs.json_lines import extended_lines, json_lines

ODD = 'a "b"\\ \n\t\x01 ü 😀'
COLUMNS: dict[str, tuple[pa.Array, list[Any]]] = {
    "text": (pa.array([ODD, "", None]), [ODD, "", None]),
    "code": (pa.array(["x", None, "y"]).dictionary_encode(), ["x", None, "y"]),
    "real": (pa.array([1.5, float("nan"), float("-inf")]), [1.5, None, None]),
    "big": (pa.array([2**64 - 1, None, 0], pa.uint64()), [2**64 - 1, None, 0]),
    "yes": (pa.array([True, None, False]), [True, None, False]),
    "decimal": (
        pa.array([Decimal("12345678901234567.890"), None, Decimal(-1)], pa.decimal128(20, 3)),
        ["12345678901234567.890", None, "-1.000"],
    ),
    "moment": (
        pa.array([1_714_521_600_000_000_001, None, -1], pa.timestamp("ns", "Asia/Tokyo")),
        ["2024-05-01T00:00:00.000000001Z", None, "1969-12-31T23:59:59.999999999Z"],
    ),
    "local": (
        pa.array([1_714_521_600_001, None, 0], pa.timestamp("ms")),
        ["2024-05-01T00:00:00.001", None, "1970-01-01T00:00:00.000"],
    ),
    "day": (
        pa.array([date(2024, 5, 1), None, date(1969, 12, 31)]),
        ["2024-05-01", None, "1969-12-31"],
    ),
    "hour": (
        pa.array([time(1, 2, 3, 4), None, time(0)]),
        ["01:02:03.000004", None, "00:00:00.000000"],
    ),
    "bytes": (pa.array([b"\x00\xff", b"", None]), ["AP8=", "", None]),
    "nothing": (pa.nulls(3), [None, None, None]),
    "struct": (
        pa.array([{"a": 1, "b": {"c": ODD}}, None, {"a": None, "b": None}]),
        [{"a": 1, "b": {"c": ODD}}, None, {"a": None, "b": None}],
    ),
    "list": (pa.array([[1, None], None, []]), [[1, None], None, []]),
    "fixed": (pa.array([[1, 2], None, [3, 4]], pa.list_(pa.int8(), 2)), [[1, 2], None, [3, 4]]),
    "map": (
        pa.array([[(ODD, 1), ("b", None)], None, []], pa.map_(pa.string(), pa.int64())),
        [{ODD: 1, "b": None}, None, {}],
    ),
    "numbered": (
        pa.array([[(1, "x")], None, []], pa.map_(pa.int64(), pa.string())),
        [{"1": "x"}, None, {}],
    ),
    "times": (
        pa.array([[datetime(2024, 5, 1, tzinfo=UTC)], None, [None]]),
        [["2024-05-01T00:00:00Z"], None, [None]],
    ),
    "decimals": (pa.array([[Decimal("1.50")], [None], []]), [["1.50"], [None], []]),
}


def test_json_line_has_the_values_of_its_row() -> None:
    rows = pa.RecordBatch.from_pydict({name: column for name, (column, _) in COLUMNS.items()})
    lines = [json.loads(line) for line in json_lines(rows).to_pylist()]
    for name, (_, expected) in COLUMNS.items():
        assert [line[name] for line in lines] == expected, name


def test_string_that_is_not_utf8_is_rejected() -> None:
    broken = pa.array([b"a", b"\xe4", b"b"]).view(pa.string())
    with pytest.raises(pa.ArrowInvalid, match="broken: "):
        json_lines(pa.RecordBatch.from_arrays([broken], ["broken"]))


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


@given(st.lists(st.tuples(TEXTS, st.none() | TEXTS), min_size=1, max_size=20), TEXTS)
def test_random_text_in_json_is_read_back(rows: list[tuple[str, str | None]], name: str) -> None:
    columns = [pa.array(column, pa.string()) for column in zip(*rows, strict=True)]
    batch = pa.RecordBatch.from_arrays(columns, [name, f"{name}2"])
    objects = json_lines(batch)
    assert [json.loads(line) for line in objects.to_pylist()] == batch.to_pylist()
    more = pa.RecordBatch.from_arrays(columns, [f"{name}3", f"{name}4"])
    extended = [json.loads(line) for line in extended_lines(objects, more).to_pylist()]
    assert extended == [a | b for a, b in zip(batch.to_pylist(), more.to_pylist(), strict=True)]


def test_empty_json_object_gets_additional_members() -> None:
    rows = pa.RecordBatch.from_pydict({"a": [1, None]})
    objects = pa.array(["{ }", '{"x":2 }'], pa.large_string())
    assert extended_lines(objects, rows).to_pylist() == ['{"a":1}\n', '{"x":2,"a":null}\n']


def test_nested_time_outside_the_python_calendar_is_written_as_text() -> None:
    kind = pa.struct([("day", pa.date32()), ("at", pa.timestamp("us", "UTC"))])
    days, times = pa.array([0, 3_000_000], pa.int32()), pa.array([0, 1 << 60], pa.int64())
    column = pa.StructArray.from_arrays(
        [days.cast(pa.date32()), times.cast(kind[1].type)], fields=list(kind)
    )
    rows = [
        json.loads(line)["v"] for line in json_lines(pa.record_batch({"v": column})).to_pylist()
    ]
    assert rows[0] == {"day": "1970-01-01", "at": "1970-01-01T00:00:00Z"}
    assert rows[1]["day"] == "10183-09-21"
    assert rows[1]["at"].endswith("Z")
