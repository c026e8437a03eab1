"""Conditions over records: their times, and everything that is refused."""

from __future__ import annotations

import operator
import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

from kafka_index.core.errors import InputError
from kafka_index.core.log.filter.condition import CONDITION_COLUMNS, Condition, ConditionMatcher
from kafka_index.core.records.record_table import record_schema
from tests.support.campaign import drawn

MAY = 1_714_521_600_000
#: From Kafka's smallest to its largest; those of DuckDB end between.
TIMES = (-1, 0, 1, MAY - 1, MAY, MAY + 1, 9_223_372_036_854_776, 2**62, 2**63 - 1)
_COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def selected(condition: str, times: tuple[int, ...] = TIMES) -> list[int]:
    """The times that a condition selects."""
    rows = {
        "topic": ["t"] * len(times),
        "partition": [0] * len(times),
        "offset": range(len(times)),
        "timestamp": pa.array(times, pa.int64()),
        "key": [None] * len(times),
        "headers": [None] * len(times),
    }
    schema = record_schema(CONDITION_COLUMNS)
    arrays = [pa.array(rows[name]).cast(schema.field(name).type) for name in schema.names]
    matches = ConditionMatcher(Condition.parse(condition)).match(
        pa.RecordBatch.from_arrays(arrays, schema=schema)
    )
    return [each for each, is_match in zip(times, matches, strict=True) if is_match]


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("timestamp >= '2024-05-01T00:00:00Z'", TIMES[4:]),
        ("timestamp >= '2024-05-01'", TIMES[4:]),
        ("timestamp >= '2024-05-01 02:00:00+02:00'", TIMES[4:]),
        ("timestamp >= '2024-04-30T18:30-05:30'", TIMES[4:]),
        (f"timestamp >= {MAY}", TIMES[4:]),
        (f"timestamp >= 'ms:{2**62}'", TIMES[7:]),
        ("timestamp = -1", TIMES[:1]),
        ("timestamp IS NULL", ()),
        ("timestamp IS NOT NULL", TIMES),
        ("NOT timestamp < '2024-05-01'", TIMES[4:]),
        ("(timestamp) < ('2024-05-01') AND ((offset) > 0)", TIMES[1:4]),
        ("'2024-05-01' <= timestamp", TIMES[4:]),
        ("timestamp IN ('2024-05-01', 0, '2024-05-01T00:00:00.001Z')", (0, MAY, MAY + 1)),
        ("timestamp NOT BETWEEN 0 AND '2024-05-01T00:00:00.000Z'", (-1, *TIMES[5:])),
        ("timestamp > '2024-04-30T23:59:59.9995Z'", TIMES[4:]),
        ("timestamp <= '2024-05-01T00:00:00.0000001Z'", TIMES[:5]),
        ("timestamp <> '2024-05-01T00:00:00.0001Z'", TIMES),
        ("timestamp < '2024-05-01T00:00:00.0000Z'", TIMES[:4]),
        ("timestamp = NULL", ()),
    ],
)
def test_times_are_compared_as_milliseconds(condition: str, expected: tuple[int, ...]) -> None:
    assert selected(condition) == list(expected)


def test_drawn_times_are_compared_as_python_does() -> None:
    draw = random.Random(5)
    for _ in range(drawn(60, one_in=3)):
        symbol = draw.choice(list(_COMPARISONS))
        microseconds = draw.choice([0, 1, 999, 1000, 1001, draw.randrange(10**9)])
        zone = draw.choice([0, 90, -690])
        moment = datetime(2024, 5, 1, tzinfo=UTC) + timedelta(microseconds=microseconds)
        east = (
            ""
            if not zone
            else f"{'-' if zone < 0 else '+'}{abs(zone) // 60:02}:{abs(zone) % 60:02}"
        )
        text = (moment.replace(tzinfo=None) + timedelta(minutes=zone)).isoformat(" ") + east
        around = MAY + microseconds // 1000
        times = (*TIMES, around - 1, around, around + 1)
        expected = [
            each for each in times if _COMPARISONS[symbol](1000 * each, 1000 * MAY + microseconds)
        ]
        assert selected(f"timestamp {symbol} '{text}'", times) == expected, (symbol, text)


@pytest.mark.parametrize(
    "time",
    [
        "2024-05-01 00:00:00 Europe/Berlin",
        "2024-05-01 00:00:00 EST",
        "2024-05-01T00:00:00+02:00:00",
        "2024-05-01T00:00:00+25:00",
        "2024-05-01T00:00:00 UTC",
        "2024-02-30",
        "2024",
        "infinity",
        "epoch",
        "",
    ],
)
@pytest.mark.parametrize(
    "condition", ["timestamp < {}", "{} = timestamp", "timestamp IN (0, {})", "(timestamp) > ({})"]
)
def test_a_time_that_is_not_known_exactly_is_refused(condition: str, time: str) -> None:
    with pytest.raises(InputError):
        Condition.parse(condition.format(f"'{time}'"))


@pytest.mark.parametrize("time", ["now", "today", "yesterday", "-7d"])
def test_a_time_that_another_run_takes_for_another_is_refused(time: str) -> None:
    with pytest.raises(InputError, match="another one in each run"):
        Condition.parse(f"timestamp < '{time}'")


@pytest.mark.parametrize(
    ("condition", "reason"),
    [
        ("timestamp < 1714521600", "looks like seconds"),
        ("timestamp < -5", "before 1970"),
        ("timestamp = offset", "compares what cannot be compared"),
        ("timestamp LIKE '2024%'", "compares what cannot be compared"),
        ("timestamp BETWEEN 0 AND key", "compares what cannot be compared"),
        ("key = 5", "compares what cannot be compared"),
        ("offset = 'a'", "compares what cannot be compared"),
        ("header('a') = 5", "compares what cannot be compared"),
        ("0 < timestamp < '2024-05-01'", "not a condition"),
        ("offset = 1 = 1", "not a condition"),
        ("", "the end of ''"),
        ("offset", "the end of"),
        ("header(key) = 'a'", "not a condition"),
        ("value = 'a'", "not a condition"),
        ("offset = 1; DROP TABLE x", "not a condition"),
        ("1 = (SELECT 1)", "not a condition"),
        ("lower(key) = 'a'", "not a condition"),
        ("key = 'a", "not a condition"),
        ("offset = 1 --", "not a condition"),
        ('key = "a"', "not a condition"),
        ("offset = 1 AND", "the end of"),
        ("(offset = 1", "the end of"),
        ("offset = 1)", "not a condition"),
        ("key IN ()", "not a condition"),
        ("NOT " * 200 + "offset = 1", "nested too deeply"),
        ("(" * 200 + "offset = 1 OR offset = 2" + ")" * 200, "nested too deeply"),
        ("(" * 20_000, "nested too deeply"),
    ],
)
def test_what_is_no_condition_is_refused_with_its_reason(condition: str, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        Condition.parse(condition)


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("offset = 1 OR offset = 2 AND partition = 1", [1]),
        ("(offset = 1 OR offset = 2) AND partition = 0", [1, 2]),
        ("((offset = 1) OR (((offset)) IN (2)))", [1, 2]),
        ("NOT (offset >= 1 OR offset = 0)", []),
        ("offset = '2'", [2]),
        ("key IS NULL AND offset NOT IN (0, 1)", [2]),
        ("1 = 1 AND 'a' <> 'b' AND offset < 1", [0]),
        ("NULL IS NULL", [0, 1, 2]),
        ("offset IN (1, NULL)", [1]),
    ],
)
def test_words_bind_as_in_sql(condition: str, expected: list[int]) -> None:
    assert selected(condition, (0, 1, 2)) == expected
