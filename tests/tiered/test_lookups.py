"""Lookups in tiered partitions, against what the broker itself answered."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kafka_index.lookup import By, Inventory, Keys, Lookups, LookupSettings, collect_inventory
from kafka_index.reading.answers import UNREADABLE, Resolve
from kafka_index.tiered.options import TieredOptions
from tests.support.tiered import SETTINGS, Setting, keys, setting

#: Specs that depend on what is local, or was uploaded: only a log directory knows.
_SPECS = {
    "latest(-1)": -1,
    "earliest(-2)": -2,
    "max-timestamp(-3)": -3,
    "earliest-local(-4)": -4,
    "latest-tiered(-5)": -5,
    "earliest-pending-upload(-6)": -6,
}
_Answer = tuple[int, int, int | None]


@contextmanager
def _lookups(at: Setting, by: By, *, with_data: bool = True) -> Iterator[Lookups]:
    with keys(at.keys):
        inventory = collect_inventory(
            [at.data] if with_data else [], tiered=TieredOptions((at.remote,))
        )
        with Lookups(_pickled(inventory), LookupSettings(by, Resolve.RECORD)) as lookups:
            yield lookups


def _pickled(inventory: Inventory) -> Inventory:
    """Return the inventory as a worker gets it."""
    kind, arguments = inventory.__reduce__()[:2]
    assert kind is Inventory
    assert isinstance(arguments, tuple)
    return Inventory(*arguments)


def _ask(lookups: Lookups, rows: list[dict[str, Any]], values: list[int]) -> list[dict[str, Any]]:
    answers = lookups.answer(
        pa.array([row["topic"] for row in rows]),
        pa.array([int(row["partition"]) for row in rows]),
        Keys(np.array(values, np.int64)),
    )
    assert not [each for each in lookups.drain_findings() if each.kind == UNREADABLE]
    return [dict(row) for row in answers.to_arrow().to_pylist()]


def _as_broker(answer: dict[str, Any]) -> _Answer:
    """Return offset, timestamp and epoch as a ListOffsets response has them."""
    if answer["found_offset"] is None:
        return -1, -1, None
    return answer["found_offset"], answer["found_timestamp_ms"], answer["found_leader_epoch"]


def _expected(row: dict[str, str], timestamp: str) -> _Answer:
    epoch = row["leaderEpoch"]
    if not row["offset"]:
        return -1, -1, None
    return int(row["offset"]), int(row[timestamp]), int(epoch) if epoch else None


@pytest.mark.parametrize("name", SETTINGS)
def test_every_answer_of_offsets_for_times_is_the_brokers(name: str) -> None:
    at = setting(name)
    rows = [
        row for row in at.rows("offsets_for_times.csv.gz") if row["isolation"] == "read_uncommitted"
    ]
    with _lookups(at, By.TIMESTAMP) as lookups:
        found = _ask(lookups, rows, [int(row["timestamp"]) for row in rows])

    assert len(rows) > 300
    assert [_as_broker(answer) for answer in found] == [
        _expected(row, "foundTimestamp") for row in rows
    ]


@pytest.mark.parametrize("name", SETTINGS)
def test_every_answer_of_list_offsets_is_the_brokers(name: str) -> None:
    at = setting(name)
    rows = [row for row in at.rows("offsets.csv.gz") if row["isolation"] == "read_uncommitted"]
    with _lookups(at, By.TIMESTAMP) as lookups:
        found = _ask(lookups, rows, [_SPECS[row["spec"]] for row in rows])

    for row, answer in zip(rows, found, strict=True):
        assert _as_broker(answer) == _expected(row, "timestamp"), row


def test_the_largest_local_timestamp_has_no_effect_on_other_answers() -> None:
    at = setting("local")
    # In the middle of the remote segments.
    row = next(
        row
        for row in pq.read_table(at.path / "truth" / "read_uncommitted.parquet").to_pylist()
        if row["topic"] == "log_gz" and row["offset"] == 200
    )
    with _lookups(at, By.TIMESTAMP) as lookups:
        _ask(lookups, [row], [-3])
        (found,) = _ask(lookups, [row], [row["timestamp"]])

    assert found["found_timestamp_ms"] >= row["timestamp"]


@pytest.mark.parametrize("name", SETTINGS)
def test_every_record_is_found_by_its_offset(name: str) -> None:
    at = setting(name)
    records = pq.read_table(at.path / "truth" / "read_uncommitted.parquet")
    rows = records.select(["topic", "partition"]).to_pylist()
    with _lookups(at, By.OFFSET) as lookups:
        found = _ask(lookups, rows, records["offset"].to_pylist())

    assert {row["status"] for row in found} == {"found"}
    for column, expected in (("found_offset", "offset"), ("found_timestamp_ms", "timestamp")):
        assert [row[column] for row in found] == records[expected].to_pylist()


@pytest.mark.parametrize("name", ["local", "aiven-zstd-enc"])
def test_the_objects_alone_answer_as_far_as_they_reach(name: str) -> None:
    at = setting(name)
    records = pq.read_table(at.path / "truth" / "read_uncommitted.parquet").to_pylist()
    with _lookups(at, By.OFFSET, with_data=False) as lookups:
        ends = {
            (row["topic"], row["partition"]): row["tiered_end_offset"]
            for row in lookups.inventory.partitions.to_pylist()
        }
        rows = [
            row
            for row in records
            if row["offset"] <= ends.get((row["topic"], row["partition"]), -1)
        ]
        found = _ask(lookups, rows, [row["offset"] for row in rows])

    assert len(rows) > 1000
    assert [row["found_timestamp_ms"] for row in found] == [row["timestamp"] for row in rows]


def test_a_lookup_uses_the_remote_indexes() -> None:
    at = setting("aiven-zstd-enc")
    with _lookups(at, By.OFFSET, with_data=False) as lookups:
        lookups.answer(pa.array(["wallet_tx"]), pa.array([0]), Keys(np.array([100], np.int64)))
        assert lookups.drain_findings() == []
