"""Rewrites that drop records by members of decoded values."""

from __future__ import annotations

from pathlib import Path

import pytest

import kafka_index
from kafka_index.core.errors import ConfigError, InputError
from tests.support.registry_records import write_quoted_members
from tests.support.typed_dump import topics, write_typed_dump

TOPICS = topics()


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_typed_dump(tmp_path_factory.mktemp("typed"))


def values_of(root: Path, topic: str) -> list[bytes | None]:
    values: list[bytes | None] = (
        kafka_index.read_records(root, topics=topic).to_arrow()["value"].to_pylist()
    )
    return values


def test_records_that_match_a_condition_on_decoded_members_are_dropped(
    dump: Path, tmp_path: Path
) -> None:
    output = tmp_path / "clean"
    result = kafka_index.rewrite_dump(
        dump,
        output,
        # One of its records has an unknown schema.
        topics="(?!headers).*",
        drop_where="value.customer_id = 'c-2' AND value.amount < 1",
        decode="value",
        allow_revive=True,
    )
    assert result.ok
    orders = [one.value for one in TOPICS["orders"]]
    assert values_of(output, "orders") == [orders[0], orders[2]]
    for topic in ("payments", "plain", "events", "gone"):
        assert values_of(output, topic) == [one.value for one in TOPICS[topic]]


def test_records_that_match_a_condition_on_quoted_members_are_dropped(tmp_path: Path) -> None:
    data = write_quoted_members(tmp_path / "in")
    result = kafka_index.rewrite_dump(
        data,
        tmp_path / "out",
        topics="people",
        drop_where='value."first name" = 1 OR value."order-id" > 1',
        decode="value",
        allow_revive=True,
    )
    assert result.ok
    assert values_of(tmp_path / "out", "people") == values_of(data, "people")[:1]


def test_partition_with_an_undecodable_record_is_skipped(dump: Path, tmp_path: Path) -> None:
    where = "value.Order.id = 1"
    failed = kafka_index.rewrite_dump(
        dump,
        tmp_path / "a",
        topics="mixed|orders",
        drop_where=where,
        decode="value",
        overwrite=True,
    )
    assert not failed.ok
    assert "does not decode" in str([row.reason for row in failed.partitions])
    kept = kafka_index.rewrite_dump(
        dump,
        tmp_path / "b",
        topics="mixed",
        drop_where=where,
        decode="value",
        decode_errors="keep",
        allow_revive=True,
    )
    assert kept.ok
    left = [one for one in TOPICS["mixed"] if (one.expected or {}).get("Order") is None]
    assert values_of(tmp_path / "b", "mixed") == [one.value for one in left]


def test_condition_on_missing_members_is_rejected(dump: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no topic has the members"):
        kafka_index.rewrite_dump(dump, tmp_path, drop_where="value.nothing = 1", decode="value")
    with pytest.raises(InputError, match="condition is invalid"):
        kafka_index.rewrite_dump(dump, tmp_path, drop_where="value.amount = 'x'", decode="value")
    with pytest.raises(InputError, match="is a member of a decoded value, and requires decode"):
        kafka_index.rewrite_dump(dump, tmp_path, drop_where="value.amount = 1")
    with pytest.raises(ConfigError, match="decode requires drop_where"):
        kafka_index.rewrite_dump(dump, tmp_path, drop_keys=["k"], decode="value")
