"""Conditions over records: their times, and everything that is refused."""

from __future__ import annotations

import operator
import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

from kafka_index.core.errors import InputError
from kafka_index.core.log.filter.selection import CONDITION_COLUMNS, Condition, ConditionMatcher
from kafka_index.core.records.record_table import record_schema
from tests.support.campaign import sample_size

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
def test_condition_compares_times_in_milliseconds(
    condition: str, expected: tuple[int, ...]
) -> None:
    assert selected(condition) == list(expected)


def test_random_times_are_compared_as_in_python() -> None:
    draw = random.Random(5)
    for _ in range(sample_size(60, one_in=3)):
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
            time_ms
            for time_ms in times
            if _COMPARISONS[symbol](1000 * time_ms, 1000 * MAY + microseconds)
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
def test_imprecise_time_in_a_condition_is_rejected(condition: str, time: str) -> None:
    with pytest.raises(InputError):
        Condition.parse(condition.format(f"'{time}'"))


@pytest.mark.parametrize("time", ["now", "today", "yesterday", "-7d"])
def test_relative_time_in_a_condition_is_rejected(time: str) -> None:
    with pytest.raises(InputError, match="differs in each run"):
        Condition.parse(f"timestamp < '{time}'")


@pytest.mark.parametrize(
    ("condition", "reason"),
    [
        ("timestamp < 1714521600", "looks like seconds"),
        ("timestamp < -5", "before 1970"),
        ("timestamp = offset", "compares incompatible types"),
        ("timestamp LIKE '2024%'", "compares incompatible types"),
        ("timestamp BETWEEN 0 AND key", "compares incompatible types"),
        ("key = 5", "compares incompatible types"),
        ("offset = 'a'", "compares incompatible types"),
        ("header('a') = 5", "compares incompatible types"),
        ("0 < timestamp < '2024-05-01'", "condition is invalid"),
        ("offset = 1 = 1", "condition is invalid"),
        ("", "the text is empty"),
        ("  ", "the text is empty"),
        ("offset", "neither true nor false"),
        ("header(key) = 'a'", "condition is invalid"),
        ("value = 'a'", "condition is invalid"),
        ("offset = 1; DROP TABLE x", "condition is invalid"),
        ("1 = (SELECT 1)", "condition is invalid"),
        ("key = 'a", "condition is invalid"),
        ("offset = 1 --", "condition is invalid"),
        ('key = "a"', "condition is invalid"),
        ("offset = 1 AND", "condition is invalid"),
        ("(offset = 1", "condition is invalid"),
        ("offset = 1)", "condition is invalid"),
        ("key IN ()", "condition is invalid"),
        ("NOT " * 200 + "offset = 1", "nested too deeply"),
        ("(" * 200 + "offset = 1 OR offset = 2" + ")" * 200, "nested too deeply"),
        ("(" * 20_000, "nested too deeply"),
    ],
)
def test_invalid_condition_is_rejected_with_a_reason(condition: str, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        Condition.parse(condition)


@pytest.mark.parametrize(
    "condition",
    [
        # Other statements, and other parts of one.
        "1=1) union all select (1=1",
        "1=1) union all select * from read_csv('/etc/passwd') where (1=1",
        "offset = 1) or (offset = 2",
        "offset = 1) group by (offset",
        "offset = 1) window w as (order by key",
        "offset = 1); drop table rows; select (1=1",
        "offset = 1;",
        "; pragma version",
        "offset = 1 order by 1",
        "offset = 1 limit 1",
        "offset = 1 from rows",
        "offset = 1, key = 'a'",
        "offset = 1 as x",
        "distinct offset = 1",
        # Comments, and words that do not end.
        "offset = 1 -- and key = 'a'",
        "offset = 1 /* and */ and key = 'a'",
        "/*" * 2000,
        "'" * 2001,
        # Files, settings, and what another run takes for another.
        "exists (from read_csv('/etc/passwd'))",
        "key = (select content from read_text('/etc/passwd'))",
        "key in (select key from rows)",
        "key = any(select key from rows)",
        "key = any(['a'])",
        "getenv('HOME') = key",
        "current_setting('threads') = key",
        "current_setting('threads')::text = key",
        "random() < 1",
        "random()::bigint = offset",
        "now() > timestamp",
        "current_date = timestamp",
        "timestamp < timestamp '2024-05-01'",
        "timestamp < date '2024-05-01'",
        "timestamp < now() - interval 1 day",
        "offset = nextval('s')",
        # Windows, aggregates, lambdas, lists, parameters.
        "count(*) = 1",
        "sum(offset) = 1",
        "row_number() over () = 1",
        "lower(key) over () = 'a'",
        "lower(distinct key) = 'a'",
        "lower(key order by key) = 'a'",
        "lower(key) filter (where offset = 1) = 'a'",
        "lower(key := 'a') = 'a'",
        "main.lower(key) = 'a'",
        "key.lower() = 'a'",
        "lower(key, key) = 'a'",
        "lower() = 'a'",
        "header('a', 'b') = 'c'",
        "header(distinct 'a') = 'c'",
        "main.header('a') = 'c'",
        "header(lower('a')) = 'c'",
        "header_of(headers, 'a') = 'c'",
        "[x for x in [1, 2]] = [1]",
        "list_filter([1], lambda x: x = 1) = [1]",
        "len([1]) = 1",
        "(key, topic) = ('a', 'b')",
        "key[1] = 'a'",
        "key in 'abc'",
        "key in ['a']",
        "'a' in key",
        "key = ?",
        "key = $1",
        "key = $name",
        "#1 = 1",
        "*",
        "columns(*) = 1",
        "case when offset = 1 then true else false end",
        "true",
        "NULL",
        "offset",
        # Names and strings in other notations.
        'key = "a"',
        'key = "key"',
        "\"key\" = 'a'",
        "rows.key = 'a'",
        "headers is null",
        "rowid = 1",
        "key = E'a\\n'",
        "key = $$a$$",
        "key = $x$a) or (1=1$x$",
        "key = x'41'",
        "key = U&'a'",
        "key = 'a' 'b'",
        "key = `a`",
        "offset = 1_000",
        "offset = 0x10",
        "offset = 1e3",
        "offset = 1.5",
        "key collate nocase = 'A'",
        # Characters that look like others.
        "key = \u2018a\u2019",
        "\uff4b\uff45\uff59 = 'a'",
        "\u212aey = 'a'",
        "key\u00a0= 'a'",
        "\u200bkey = 'a'",
        "key = 'a'\u037e drop table rows",
        "key = '\udcff'",
        # Casts of what has another unit here, or to what has no integer value.
        "cast(timestamp as bigint) = 1",
        "cast(key as double) = 1",
        "cast(key as varchar(1)) = 'a'",
        "length(offset) = 1",
        "offset + 1 = 2",
        "key || 'a' = 'ba'",
        "key ilike 'a'",
        "key ~ 'a'",
        "key like 'a' escape 'b'",
        "key is distinct from 'a'",
        "offset = 1 collate de",
    ],
)
def test_sql_other_than_a_condition_is_rejected(condition: str) -> None:
    with pytest.raises(InputError):
        Condition.parse(condition)


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("key = 'offset'' = 1'", [b"offset' = 1"]),
        ("key = '--' or key = ';'", [b"--", b";"]),
        ("key = '\"'", [b'"']),
        ("key = '\u00fc\u2019' and oFFset >= 0", ["\u00fc\u2019".encode()]),
        ("key LIKE 'a%'", [b"ab", b"a"]),
        ("NOT key LIKE '%' AND key IS NULL", []),
        ("lower(key) = 'ab'", [b"ab", b"AB"]),
        ("upper('ab') = key", [b"AB"]),
        ("length(key) = 11", [b"offset' = 1"]),
        ("starts_with(key, 'a') and not ends_with(key, 'b')", [b"a"]),
        ("cast(key as bigint) between 41 and 43", [b"42"]),
        ("try_cast(key as bigint) > 1", [b"42"]),
        ("cast(offset as varchar) = '1'", [b"ab"]),
        ("(key = 'a') = (offset = 2)", "all"),
    ],
)
def test_condition_compares_keys_and_functions_as_in_sql(
    condition: str, expected: list[bytes] | str
) -> None:
    keys = [None, b"ab", b"a", b"AB", b"42", b"4.5", b"offset' = 1", b"--", b";", b'"']
    keys += ["\u00fc\u2019".encode(), b"\xff"]
    rows = [
        {"topic": "t", "partition": 0, "offset": offset, "timestamp": 0, "key": key}
        for offset, key in enumerate(keys)
    ]
    batch = pa.RecordBatch.from_pylist(rows, schema=record_schema(CONDITION_COLUMNS))
    matches = ConditionMatcher(Condition.parse(condition)).match(batch)
    actual = [key for key, is_match in zip(keys, matches, strict=True) if is_match]
    assert actual == (keys[1:] if expected == "all" else expected)


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
def test_condition_operators_have_the_precedence_of_sql(
    condition: str, expected: list[int]
) -> None:
    assert selected(condition, (0, 1, 2)) == expected
