"""Exports with typed columns: files, report, exit code, and runs after a new schema version."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet as pq
import pytest

import kafka_index
from kafka_index.core.errors import InputError
from kafka_index.core.job.engine import ThreadWorkers
from tests.support.command_line import run_here
from tests.support.random_avro import encode
from tests.support.record_tables import batch_of, write_partition
from tests.support.registry_records import schema_record, write_topic
from tests.support.typed_dump import ORDERS, framed, topics, write_typed_dump

TOPICS = topics()


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_typed_dump(tmp_path_factory.mktemp("typed"))


def test_parquet_has_the_columns_of_read_records(dump: Path, tmp_path: Path) -> None:
    exported = kafka_index.export_records(
        dump, tmp_path, topics="(?!_).*", decode="both", by_date=True
    )
    for topic in TOPICS:
        expected = kafka_index.read_records(dump, topics=topic, decode="both").to_arrow()
        files = sorted(tmp_path.glob(f"topic={topic}/partition=0/date=*/*.parquet"))
        table = pq.ParquetFile(files[0]).read()
        assert table.to_pylist() == expected.select(table.column_names).to_pylist()
    assert exported.summary["exit_code"] == 1
    failed = [one.error for own in TOPICS.values() for one in own if one.error is not None]
    assert sum(exported.decode_errors.values()) == len(failed)
    row = next(one for one in exported.to_arrow().to_pylist() if one["topic"] == "mixed")
    assert row["decode_errors"] == len([one for one in TOPICS["mixed"] if one.error is not None])
    assert "bad_utf8: 1" in row["decode_error_codes"]


def test_json_lines_have_nested_values(dump: Path, tmp_path: Path) -> None:
    kafka_index.export_records(
        dump, tmp_path, topics="payments", decode="value", columns=["value"], format="jsonl"
    )
    line = next(tmp_path.glob("topic=payments/*/*.jsonl")).read_text()
    assert json.loads(line)["value"] == {
        "id": -1,
        "note": "",
        "counts": {"a": 1},
        "lines": [{"sku": "x"}, {"sku": "y"}],
    }


def test_export_after_a_new_schema_version_writes_additional_columns(tmp_path: Path) -> None:
    values: list[dict[str, Any]] = [
        {"id": 1, "customer": "c-1", "amount": 1.5, "old": "o"},
        {"id": 2, "customer_id": "c-2", "amount": 2.5, "status": "NEW", "currency": "EUR"},
    ]
    written = [
        framed(2 + version, encode(ORDERS[version], [value])[0])
        for version, value in zip((0, 2), values, strict=True)
    ]
    versions = [
        schema_record("orders-value", 1, 2, json.dumps(ORDERS[0])),
        schema_record("orders-value", 2, 4, json.dumps(ORDERS[2])),
    ]
    root, output = tmp_path / "dump", tmp_path / "out"
    for count in (1, 2):
        log = b"".join(batch_of(at, [(at, None, written[at])]) for at in range(count))
        write_partition(root, {0: log}, "orders-0")
        write_topic(root, "_schemas", versions[:count])
        kafka_index.export_records(
            root, output, topics="orders", decode="value", on_data_loss="continue"
        )
    files = sorted(output.glob("topic=orders/*/*.parquet"))
    assert len(files) == 2
    newer = duckdb.read_parquet(str(files[1])).select("value.id, value.customer_id, value.currency")
    assert newer.fetchall() == [(2, "c-2", "EUR")]
    joined = duckdb.read_parquet(f"{output}/*/*/*.parquet", union_by_name=True)
    assert joined.select("value.id, value.old").order("1").fetchall() == [(1, "o"), (2, None)]


def test_rerun_with_other_decoding_options_is_rejected(dump: Path, tmp_path: Path) -> None:
    kafka_index.export_records(dump, tmp_path, topics="orders", decode="value")
    for decode in (None, "both"):
        with pytest.raises(InputError, match="another value of --decode"):
            kafka_index.export_records(dump, tmp_path, topics="orders", decode=decode)
    second_records = kafka_index.export_records(dump, tmp_path, topics="orders", decode="value")
    assert second_records.counts["records"] == 0


def test_undecodable_row_fails_the_partition_in_fail_fast_mode(dump: Path, tmp_path: Path) -> None:
    exported = kafka_index.export_records(
        dump, tmp_path, topics="mixed|orders", decode="value", decode_errors="fail"
    )
    statuses = {row.topic: row.status.value for row in exported.partitions}
    assert statuses == {"mixed": "failed", "orders": "exported"}
    reason = next(row.reason for row in exported.partitions if row.topic == "mixed")
    assert reason is not None
    assert "does not decode: no_magic" in reason


@pytest.mark.parametrize(
    "command",
    [
        ("export", "--decode", "value", "--format", "delta", "--output", "out"),
        ("find", "--decode", "value", "--where", "value.id >= 0"),
        ("rewrite", "--decode", "value", "--drop-where", "value.id < 0", "--output", "out"),
    ],
    ids=lambda command: command[0],
)
def test_schemas_of_records_are_found_on_the_chosen_number_of_threads(
    dump: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    counts: dict[str, int] = {}

    def create(self: ThreadWorkers, count: int, name: str) -> None:
        counts[name] = count
        create_workers(self, count, name)

    create_workers = ThreadWorkers.__init__
    monkeypatch.setattr(ThreadWorkers, "__init__", create)
    monkeypatch.chdir(tmp_path)
    name, *options = command
    selection = ("--input", dump, "--topics", "orders|carts", "--threads", 7)
    run_here(name, *selection, *options)
    assert counts["schemas"] == 7


def _write_events(root: Path, subjects: tuple[str, str], count: int) -> None:
    """Write records of one type or two, with schemas of these subjects."""
    schemas = [_record("Moved", "lat"), _record("Created", "user")]
    values = [framed(1 + number, encode(one, [{one["fields"][0]["name"]: 7}])[0])
              for number, one in enumerate(schemas)]  # fmt: skip
    log = b"".join(batch_of(at, [(at, None, values[at])]) for at in range(count))
    write_partition(root, {0: log}, "events-0")
    records = [
        schema_record(subject, 1, 1 + number, json.dumps(one))
        for number, (subject, one) in enumerate(zip(subjects, schemas, strict=True))
    ]
    write_topic(root, "_schemas", records[:count])


def _record(name: str, field: str) -> dict[str, Any]:
    fields = [{"name": field, "type": "int"}]
    return {"type": "record", "name": name, "namespace": "shop", "fields": fields}


@pytest.mark.parametrize("prefix", ["events-", ""])
def test_second_record_type_of_a_topic_adds_a_struct_member(tmp_path: Path, prefix: str) -> None:
    root, output = tmp_path / "dump", tmp_path / "out"
    for count in (1, 2):
        _write_events(root, (f"{prefix}shop.Moved", f"{prefix}shop.Created"), count)
        result = kafka_index.export_records(
            root, output, topics="events", decode="value", on_data_loss="continue"
        )
        assert result.ok
    joined = duckdb.read_parquet(f"{output}/*/*/*.parquet", union_by_name=True)
    rows = joined.select('value.Moved.lat, value.Created.user, "offset"').order("3").fetchall()
    assert rows == [(7, None, 0), (None, 7, 1)]


def test_second_record_type_of_another_subject_is_rejected_before_a_file_is_written(
    tmp_path: Path,
) -> None:
    root, output = tmp_path / "dump", tmp_path / "out"
    _write_events(root, ("events-value", "other-value"), 1)
    kafka_index.export_records(root, output, topics="events", decode="value")
    files = {path: path.read_bytes() for path in output.rglob("*") if path.is_file()}
    _write_events(root, ("events-value", "other-value"), 2)
    with pytest.raises(InputError, match="values of topic events do not decode to the same form"):
        kafka_index.export_records(root, output, topics="events", decode="value")
    assert files == {path: path.read_bytes() for path in output.rglob("*") if path.is_file()}
