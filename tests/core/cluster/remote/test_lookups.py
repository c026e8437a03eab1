"""Lookups in tiered partitions, compared with the answers of the broker."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kafka_index import read_records
from kafka_index.core.fs.uris import TieredOptions
from kafka_index.core.log.choices import By, Resolve
from kafka_index.core.log.read.answers import UNREADABLE
from kafka_index.core.query.inventory import Inventory, collect_inventory
from kafka_index.core.query.lookups import Keys, Lookups, LookupSettings, QueryBatch
from tests.support.command_line import Argument, run_here
from tests.support.remote import upload
from tests.support.tiered import ENCRYPTED, SETTINGS, Setting, keys, setting

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
    """Return the inventory after it was pickled."""
    kind, arguments = inventory.__reduce__()[:2]
    assert kind is Inventory
    assert isinstance(arguments, tuple)
    return Inventory(*arguments)


def _ask(lookups: Lookups, rows: list[dict[str, Any]], values: list[int]) -> list[dict[str, Any]]:
    answers = lookups.answer(
        QueryBatch(
            pa.array([row["topic"] for row in rows]),
            pa.array([int(row["partition"]) for row in rows]),
            Keys(np.array(values, np.int64)),
        )
    )
    assert not [finding for finding in lookups.drain_findings() if finding.kind == UNREADABLE]
    return [dict(row) for row in answers.to_arrow().to_pylist()]


def _as_broker(answer: dict[str, Any]) -> _Answer:
    """Return offset, timestamp and epoch in the form of a ListOffsets response."""
    if answer["found_offset"] is None:
        return -1, -1, None
    return answer["found_offset"], answer["found_timestamp_ms"], answer["found_leader_epoch"]


def _expected(row: dict[str, str], timestamp: str) -> _Answer:
    epoch = row["leaderEpoch"]
    if not row["offset"]:
        return -1, -1, None
    return int(row["offset"]), int(row[timestamp]), int(epoch) if epoch else None


@pytest.mark.parametrize("name", SETTINGS)
def test_lookups_of_times_equal_the_answers_of_the_broker(name: str) -> None:
    at = setting(name)
    rows = [
        row for row in at.rows("offsets_for_times.csv.gz") if row["isolation"] == "read_uncommitted"
    ]
    with _lookups(at, By.TIMESTAMP) as lookups:
        result = _ask(lookups, rows, [int(row["timestamp"]) for row in rows])

    assert len(rows) > 300
    assert [_as_broker(answer) for answer in result] == [
        _expected(row, "foundTimestamp") for row in rows
    ]


@pytest.mark.parametrize("name", SETTINGS)
def test_lookups_of_offsets_equal_the_answers_of_the_broker(name: str) -> None:
    at = setting(name)
    rows = [row for row in at.rows("offsets.csv.gz") if row["isolation"] == "read_uncommitted"]
    with _lookups(at, By.TIMESTAMP) as lookups:
        result = _ask(lookups, rows, [_SPECS[row["spec"]] for row in rows])

    for row, answer in zip(rows, result, strict=True):
        assert _as_broker(answer) == _expected(row, "timestamp"), row


def test_largest_local_timestamp_has_no_effect_on_other_answers() -> None:
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
        actual = _ask(lookups, rows, records["offset"].to_pylist())

    assert {row["status"] for row in actual} == {"found"}
    for column, expected in (("found_offset", "offset"), ("found_timestamp_ms", "timestamp")):
        assert [row[column] for row in actual] == records[expected].to_pylist()


@pytest.mark.parametrize("name", ["local", "aiven-zstd-enc"])
def test_lookups_in_remote_objects_only_answer_up_to_their_end(name: str) -> None:
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
        result = _ask(lookups, rows, [row["offset"] for row in rows])

    assert len(rows) > 1000
    assert [row["found_timestamp_ms"] for row in result] == [row["timestamp"] for row in rows]


def test_lookup_uses_the_remote_indexes() -> None:
    at = setting("aiven-zstd-enc")
    with _lookups(at, By.OFFSET, with_data=False) as lookups:
        lookups.answer(
            QueryBatch(pa.array(["wallet_tx"]), pa.array([0]), Keys(np.array([100], np.int64)))
        )
        assert lookups.drain_findings() == []


_TOPIC = "wallet_tx"


def _answers(at: Setting, remote: str, data: str) -> pa.RecordBatch:
    inventory = collect_inventory([data], tiered=TieredOptions((remote,)))
    timestamps = np.arange(1763900000000, 1772000000000, 50_000_000)
    with keys(at.keys), Lookups(inventory, LookupSettings(By.TIMESTAMP, Resolve.RECORD)) as lookups:
        answers = lookups.answer(
            QueryBatch(
                pa.array([_TOPIC] * len(timestamps)),
                pa.array([0] * len(timestamps)),
                Keys(timestamps),
            )
        )
        assert lookups.drain_findings() == []
    return answers.to_arrow()


@pytest.mark.parametrize("name", ["local", "aiven-plain", "aiven-zstd-enc"])
def test_lookups_in_s3_equal_local_lookups(name: str, module_bucket: str) -> None:
    at = setting(name)
    remote = upload(Path(at.remote), f"{module_bucket}/{name}/remote")
    data = upload(Path(at.data), f"{module_bucket}/{name}/data")

    result = _answers(at, remote, data)

    assert result == _answers(at, at.remote, at.data)
    assert result.column("found_offset").null_count < len(result)


def _lookup(*arguments: Argument) -> dict[str, object]:
    result = run_here("lookup", *arguments, "--topic", "wallet_tx", "--partition", 0, "--json")
    assert result.returncode == 0, result.stderr
    answer: dict[str, object] = json.loads(result.stdout)
    return {**answer, "stderr": result.stderr}


def test_lookup_combines_a_log_directory_and_remote_segments() -> None:
    at = setting("local")
    answer = _lookup("--logs", at.data, "--tiered", at.remote, "--timestamp", -2)

    assert answer["found_offset"] == 0
    assert answer["stderr"] == ""


def test_log_start_without_a_log_directory_is_reported_as_a_lower_bound() -> None:
    at = setting("local")
    answer = _lookup("--tiered", at.remote, "--tiered-format", "local", "--offset", 100)

    assert answer["status"] == "found"
    assert "2 partitions without a log directory: the log start may be after the start of" in str(
        answer["stderr"]
    )


def test_encrypted_segment_is_read_with_its_keys() -> None:
    at = setting(ENCRYPTED)
    pairs = [text for name, path in at.keys for text in ("--tiered-key", f"{name}={path}")]
    answer = _lookup("--tiered", at.remote, *pairs, "--offset", 100, "--resolve", "record")

    assert answer["found_offset"] == 100
    assert str(answer["log_path"]).startswith("tiered+aiven:///")


def test_encrypted_segment_without_its_key_is_unreadable_with_a_hint() -> None:
    at = setting(ENCRYPTED)
    result = run_here(
        "lookup", "--tiered", at.remote, "--topic", "turnover", "--partition", 0, "--offset", 7
    )

    assert result.returncode == 1
    assert "private key is missing: give --tiered-key gk-" in result.stderr


_ORDER = [("topic", "ascending"), ("partition", "ascending"), ("offset", "ascending")]

#: Our columns, by their names in the truth.
_COLUMNS = {
    "topic": "topic",
    "partition": "partition",
    "offset": "offset",
    "timestamp": "timestamp",
    "leader_epoch": "leaderEpoch",
    "key": "key",
    "value": "value",
}


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
@pytest.mark.parametrize("name", SETTINGS)
def test_records_of_a_tiered_dump_equal_those_of_consumers(name: str, isolation: str) -> None:
    at = setting(name)
    truth = pq.read_table(at.path / "truth" / f"{isolation}.parquet").sort_by(_ORDER)

    result = read_records(
        at.data,
        tiered=TieredOptions((at.remote,), keys=at.keys),
        topics="(?!__).*",
        columns=tuple(_COLUMNS),
        isolation=isolation,
    ).read_all()

    assert result.num_rows == truth.num_rows
    for column, name_there in _COLUMNS.items():
        # The expected values of read_committed have only offsets and timestamps.
        if name_there in truth.column_names:
            values = result[column]
            if pa.types.is_timestamp(values.type):
                values = values.cast(pa.int64())
            assert values.to_pylist() == truth[name_there].to_pylist(), column
