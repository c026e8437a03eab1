"""Searches with decoded keys and values: conditions over members, and what is printed."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import kafka_index
from kafka_index.core.errors import InputError
from kafka_index.core.query.matches import match_split
from kafka_index.core.query.read_plan import RecordSplit
from tests.support.command_line import run_here
from tests.support.record_tables import batch_of, write_partition
from tests.support.registry_records import schema_record, write_quoted_members, write_topic
from tests.support.typed_dump import write_typed_dump


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_typed_dump(tmp_path_factory.mktemp("typed"))


def _value(row: dict[str, Any], name: str) -> Any:
    return (row["value"] or {}).get(name)


@pytest.mark.parametrize(
    ("topic", "condition", "expected"),
    [
        ("orders", "value.customer_id = 'c-2'", lambda row: _value(row, "customer_id") == "c-2"),
        ("orders", "value.amount > 1.25", lambda row: (_value(row, "amount") or 0) > 1.25),
        ("orders", "value.id between 2 and 1e15 and offset < 3", lambda row: row["offset"] == 1),
        ("orders", "value IS NULL", lambda row: row["value"] is None),
        ("orders", "key = 'k-1'", lambda row: row["key"] == "k-1"),
        ("orders", "value.status LIKE 'P%' OR offset = 0", lambda row: row["offset"] in (0, 3)),
        ("mixed", "value.Payment.id = 7", lambda row: row["offset"] == 10),
        ("mixed", "_decode_error = 'bad_utf8'", lambda row: row["_decode_error"] == "bad_utf8"),
        ("mixed", "value_type = 'shop.Order' and value_schema_id = 2 and _decode_error IS NULL",
         lambda row: row["value_type"] == "shop.Order" and row["_decode_error"] is None),
    ],
)  # fmt: skip
def test_condition_on_decoded_members_selects_matching_rows(
    dump: Path, topic: str, condition: str, expected: Callable[[dict[str, Any]], bool]
) -> None:
    rows = kafka_index.read_records(dump, topics=topic, decode="both").to_arrow().to_pylist()
    records = kafka_index.find_records(dump, topics=topic, decode="both", where=condition)
    wanted = [row for row in rows if expected(row)]
    assert wanted
    assert records.to_arrow().to_pylist() == wanted


@pytest.mark.parametrize("member", ['"first name"', '"order-id"', '"größe"'])
def test_condition_on_quoted_members_selects_matching_rows(tmp_path: Path, member: str) -> None:
    write_quoted_members(tmp_path)
    records = kafka_index.find_records(
        tmp_path, topics="people", decode="value", where=f"value.{member} = 1 AND offset > 0"
    )
    assert records.to_arrow()["offset"].to_pylist() == [1]


@pytest.mark.parametrize(
    ("condition", "message"),
    [
        ('value."a.b" = 1', "'a.b' contains a dot"),
        ('value."last name" = 1', "value has no member last name"),
        ('"value" IS NULL', "is not supported"),
        ('key = "k"', "is not supported"),
    ],
)
def test_condition_with_other_quoted_names_is_rejected(
    tmp_path: Path, condition: str, message: str
) -> None:
    write_quoted_members(tmp_path)
    with pytest.raises(InputError, match=message):
        kafka_index.find_records(tmp_path, topics="people", decode="value", where=condition)


def test_condition_decodes_only_the_members_it_uses(dump: Path) -> None:
    records = kafka_index.find_records(
        dump, topics="orders", decode="value", where="value.amount > 1 AND partition = 0"
    )
    where = records._plan.settings.where
    assert where is not None
    assert where.typed is not None
    schema = where.typed.schema(records._plan.settings.record_schema)
    assert [one.name for one in schema.field("value").type] == ["amount"]


def test_rows_that_cannot_be_decoded_are_counted_by_a_search(dump: Path) -> None:
    records = kafka_index.find_records(
        dump, topics="mixed", decode="value", where="value.Order.id = 1"
    )
    assert records.to_arrow().num_rows == 2
    assert records.decode_errors["unknown_id"] == 1
    assert records.summary["exit_code"] == 1


@pytest.mark.parametrize("max_bytes", [1, 500, 1 << 20])
def test_undecodable_rows_are_counted_once_in_a_resumed_search(
    tmp_path: Path, max_bytes: int
) -> None:
    values = [b"\0\0\0\0\1" + (b"\x02x" if number % 3 else b"\x02") for number in range(300)]
    write_topic(tmp_path, "_schemas", [schema_record("names-value", 1, 1)])
    log = batch_of(0, [(number, None, value) for number, value in enumerate(values)])
    write_partition(tmp_path, {0: log}, "names-0")
    records = kafka_index.find_records(
        tmp_path, topics="names", decode="value", where="value = 'x'"
    )
    settings, counts, rows = records._plan.settings, Counter[str](), 0
    rest: RecordSplit | None = records._plan.splits[0]
    while rest is not None:
        matches = match_split(rest, "", settings=settings, max_bytes=max_bytes)
        counts.update(matches.unmatched_errors)
        rows += sum(map(len, matches.batches))
        rest = matches.remainder
    assert (rows, counts) == (200, {"truncated": 100})


def test_records_after_the_last_printed_record_are_not_counted(tmp_path: Path) -> None:
    write_topic(tmp_path, "_schemas", [schema_record("names-value", 1, 1)])
    values = [b"\0\0\0\0\1\x02x"] * 5 + [b"\0\0\0\0\1\x09"]
    log = batch_of(0, [(number, None, value) for number, value in enumerate(values)])
    write_partition(tmp_path, {0: log}, "names-0")
    arguments = ("names", "--input", tmp_path, "--decode", "value")
    assert run_here("cat", *arguments, "-n", "5").returncode == 0
    assert run_here("cat", *arguments).returncode == 1


@pytest.mark.parametrize(
    ("condition", "message"),
    [
        ("value.nothing = 1", "value has no member nothing"),
        ("value.amount = 'x'", "condition is invalid"),
        ("value.amount + 1 = 2", "is not supported"),
        ("value.amount", "neither true nor false|condition is invalid"),
    ],
)
def test_condition_that_does_not_fit_the_types_is_rejected(
    dump: Path, condition: str, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        kafka_index.find_records(dump, topics="orders", decode="value", where=condition)
    with pytest.raises(InputError, match="a decoded value, and requires decode"):
        kafka_index.find_records(dump, topics="orders", where="value.amount > 1")
    with pytest.raises(InputError, match="a decoded value, and requires decode"):
        kafka_index.find_records(dump, topics="orders", where='value."order-id" > 1')


def test_decoded_record_is_printed_with_its_bytes(dump: Path) -> None:
    arguments = ("--input", dump, "--topics", "orders", "--where", "offset = 1")
    record = json.loads(run_here("find", *arguments, "--decode", "both", "--json").stdout)
    assert record["decoded"] == {
        "key": "k-2",
        "value": {"status": None, "id": 1 << 40, "customer_id": "c-2", "amount": 0.1,
                  "currency": None, "old": None},
        "error": None,
    }  # fmt: skip
    assert record["value"] == {"hex": record["value"]["hex"]}
