"""The list of schemas: subjects, what records name, what is missing, and the folder of files."""

from __future__ import annotations

import json
import runpy
import struct
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import kafka_index
from kafka_index import RunOutcome, SchemaList, UseStatus
from kafka_index.core.errors import InputError
from kafka_index.core.schema.folder import read_folder
from kafka_index.core.schema.registry import VersionState
from kafka_index.core.schema.wire import MAX_KEYS
from tests.support.command_line import ROOT, run_here
from tests.support.registry_records import (
    Written,
    delete_subject,
    hard_delete,
    schema_record,
    setting,
    write_topic,
)

TYPED = ROOT / "examples" / "typed"
GUID = bytes(range(16))
SCHEMAS = [schema_record("orders-key", 1, 1), schema_record("orders-value", 1, 2, '"long"')]


def framed(schema_id: int, body: bytes = b".") -> bytes:
    return b"\0" + struct.pack(">i", schema_id) + body


def dump_of(root: Path, schemas: Sequence[Written] = SCHEMAS, **topics: Sequence[Written]) -> Path:
    write_topic(root, "_schemas", schemas)
    for topic, records in topics.items():
        write_topic(root, topic, records)
    return root


def uses_of(found: SchemaList) -> list[tuple[str, str, str | None, UseStatus, int]]:
    return [
        (use.topic, use.part, None if use.key is None else str(use.key), use.status, use.records)
        for use in found.uses
    ]


# ------------------------------------------------------------------------------- the example


def test_example_schemas_equal_the_output_of_their_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["", str(tmp_path / "typed")])
    runpy.run_path(str(ROOT / "examples" / "make_typed_dump.py"), run_name="__main__")
    written, committed = (
        {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*.*")}
        for root in (tmp_path / "typed", TYPED)
    )
    assert written == committed


def test_example_dump_has_the_schemas_of_its_records() -> None:
    schemas = kafka_index.read_schemas(TYPED)
    assert uses_of(schemas) == [
        ("carts", "key", None, UseStatus.NULL, 40),
        ("carts", "value", "id 7", UseStatus.FOUND, 40),
        ("coupons", "key", None, UseStatus.NULL, 7),
        ("coupons", "value", "id 4", UseStatus.FOUND, 7),
        ("orders", "key", "id 1", UseStatus.FOUND, 200),
        ("orders", "value", "id 3", UseStatus.FOUND, 96),
        ("orders", "value", "id 8", UseStatus.FOUND, 96),
        ("orders", "value", None, UseStatus.NULL, 8),
        ("payments", "key", None, UseStatus.UNFRAMED, 60),
        ("payments", "value", "id 6", UseStatus.FOUND, 60),
    ]
    rows = {(row["subject"], row["version"]): row for row in schemas.to_arrow().to_pylist()}
    order = rows["orders-value", 2]
    assert (order["schema_id"], order["type"], order["state"]) == (8, "AVRO", "live")
    assert (order["compatibility"], order["topic"]) == ("FULL", "orders")
    assert order["uses"] == [{"topic": "orders", "part": "value", "records": 96}]
    assert order["references"] == [
        {"name": "shop.Customer", "subject": "shop.Customer", "version": 1}
    ]
    assert rows["coupons-value", 1]["state"] == VersionState.DELETED
    assert schemas.conclusion.text == (
        "8 versions of 7 subjects; every schema of 499 keys and values was found"
    )


def test_schemas_without_records_option_reads_no_records() -> None:
    schemas = kafka_index.read_schemas(TYPED, skip_records=True)
    assert (schemas.uses, schemas.records, schemas.ok) == ((), None, True)
    assert schemas.conclusion.text == "8 versions of 7 subjects; records were not read"
    topics = {row["subject"]: row["topic"] for row in schemas.to_arrow().to_pylist()}
    assert topics["payments-value"] == "payments"
    assert topics["shop.Customer"] is None


def test_subject_option_lists_only_this_subject(tmp_path: Path) -> None:
    schemas = kafka_index.read_schemas(TYPED, subject="coupons-value", output=tmp_path / "out")
    assert schemas.to_arrow()["schema_id"].to_pylist() == [4]
    assert schemas.counts["found_uses"] == 7
    assert len(read_folder(str(tmp_path / "out"))) == 1
    with pytest.raises(InputError, match="subject 'coupons' does not exist"):
        kafka_index.read_schemas(TYPED, subject="coupons")


def test_schemas_json_has_versions_topics_and_settings() -> None:
    result = run_here("schemas", "--input", TYPED, "--json")
    printed: dict[str, Any] = json.loads(result.stdout)
    assert printed["settings"][""]["compatibility"] == "BACKWARD"
    assert len(printed["versions"]) == 8
    assert {
        "topic": "payments",
        "part": "value",
        "status": "found",
        "records": 60,
        "key_kind": "id",
        "key": 6,
        "schema_id": 6,
        "guid": "b73307e8-9a92-d593-6651-ada1cff5bd38",
        "reason": None,
    } in printed["topics"]


# ------------------------------------------------------------------------------- missing schemas

#: Records of a topic, and what their values are found to name.
VALUES: dict[str, tuple[list[bytes | None], list[tuple[str | None, UseStatus, int]], bool]] = {
    "known": ([framed(2)] * 3, [("id 2", UseStatus.FOUND, 3)], True),
    "missing": (
        [framed(2), framed(77)],
        [
            ("id 2", UseStatus.FOUND, 1),
            ("id 77", UseStatus.MISSING, 1),
        ],
        False,
    ),
    "all missing": ([framed(77)] * 30, [("id 77", UseStatus.MISSING, 30)], False),
    "GUID": (
        [b"\1" + GUID],
        [("guid 00010203-0405-0607-0809-0a0b0c0d0e0f", UseStatus.MISSING, 1)],
        False,
    ),
    "text": ([b"hello", b"", b"\0\0"], [(None, UseStatus.UNFRAMED, 3)], True),
    "null": ([None], [(None, UseStatus.NULL, 1)], True),
    "small numbers": (
        [struct.pack(">q", number) for number in range(20)],
        [("id 0", UseStatus.NO_ID, 20)],
        True,
    ),
    "times": (
        [struct.pack(">q", 1_795_000_000_000 + number * 3600_000) for number in range(50)],
        [("id 106990", UseStatus.NO_ID, 4)],
        True,
    ),
    "numbers of 16 bytes": (
        [b"\0" + struct.pack(">i", number * 7919 + 1) + bytes(11) for number in range(40)],
        [("id 1", UseStatus.FOUND, 1), ("id 7920", UseStatus.NO_ID, 1)],
        True,
    ),
}


@pytest.mark.parametrize("case", VALUES)
def test_schemas_used_by_values_are_counted(tmp_path: Path, case: str) -> None:
    values, expected, is_ok = VALUES[case]
    dump_of(tmp_path, events=[(b"k", value) for value in values])
    schemas = kafka_index.read_schemas(tmp_path)
    own = [use[2:] for use in uses_of(schemas) if use[1] == "value"]
    assert all(each in own for each in expected), own
    assert sum(use[2] for use in own) == len(values)
    assert schemas.ok == is_ok
    assert schemas.outcome is (RunOutcome.DONE if is_ok else RunOutcome.DAMAGE)


def test_schema_ids_are_resolved_in_the_given_context(tmp_path: Path) -> None:
    schemas = [*SCHEMAS, schema_record(":.staging:events-value", 1, 3, '"int"')]
    root = dump_of(tmp_path, schemas, events=[(None, framed(3))])
    result = run_here("schemas", "--input", root)
    assert result.returncode == 1
    assert (
        "id 3 in 1 value of events: only context .staging has a schema with this ID"
        in result.stdout
    )
    assert kafka_index.read_schemas(root, schema_context=".staging").ok


def test_records_of_schemas_beyond_the_counting_limit_are_summed_in_one_row(tmp_path: Path) -> None:
    ids = list(range(10, 10 + 2 * MAX_KEYS))
    dump_of(tmp_path, events=[(None, framed(id_, b"." * (id_ % 3))) for id_ in ids])
    schemas = kafka_index.read_schemas(tmp_path)
    values = [use for use in schemas.uses if use.part == "value"]
    assert len(values) == MAX_KEYS + 1
    assert values[-1].key is None
    assert sum(use.records for use in values) == len(ids)


def test_hard_deleted_schema_is_missing_once_the_log_is_compacted(tmp_path: Path) -> None:
    schemas = [*SCHEMAS, schema_record("gone-value", 1, 3, '"int"'), hard_delete("gone-value", 1)]
    records = [(None, framed(3))] * 4
    before = dump_of(tmp_path / "before", schemas, gone=records)
    after = dump_of(tmp_path / "after", [*SCHEMAS, schemas[-1]], gone=records)
    assert kafka_index.read_schemas(before).ok
    result = run_here("schemas", "--input", after)
    assert result.returncode == 1
    assert (
        "1 schema is missing or unusable, such as id 3 in 4 values of gone: no schema has this ID"
        in (result.stdout)
    )


BROKEN = {
    "missing reference": (
        [schema_record("a", 1, 5, references=[{"name": "n", "subject": "b", "version": 2}])],
        "schema 5 refers to 'n', but version 2 of subject b does not exist",
    ),
    "circular reference": (
        [schema_record("a", 1, 5, references=[{"name": "n", "subject": "a", "version": 1}])],
        "schema 5 refers to itself",
    ),
    "two texts of an id": (
        [schema_record("a", 1, 5, '"int"'), schema_record("b", 1, 5, '"long"')],
        "schema 5 has several different definitions",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_unusable_schema_is_damage_only_if_records_use_it(tmp_path: Path, case: str) -> None:
    schemas, reason = BROKEN[case]
    unused = dump_of(tmp_path / "unused", schemas, events=[(None, b"text")])
    result = run_here("schemas", "--input", unused)
    assert result.returncode == 0
    assert reason in result.stdout
    used = dump_of(tmp_path / "used", schemas, events=[(None, framed(5))])
    actual = kafka_index.read_schemas(used)
    (use,) = [use for use in actual.uses if use.part == "value"]
    assert use.status is UseStatus.UNUSABLE
    assert reason in (use.reason or "")
    assert not actual.ok


def test_malformed_record_of_the_schemas_topic_is_damage(tmp_path: Path) -> None:
    dump_of(tmp_path, [*SCHEMAS, (b"{", b"{")], events=[(None, framed(2))])
    result = run_here("schemas", "--input", tmp_path)
    assert result.returncode == 1
    assert "_schemas-0: offset 2: the record is not a schema record" in result.stdout
    assert "1 malformed schema record" in result.stdout


def test_subject_settings_are_printed(tmp_path: Path) -> None:
    schemas = [
        *SCHEMAS,
        setting("MODE", None, mode="READONLY"),
        setting("CONFIG", "orders-value", compatibilityLevel="FULL"),
        delete_subject("orders-key", 1),
    ]
    result = run_here("schemas", "--input", dump_of(tmp_path, schemas), "--skip-records")
    assert "registry: mode READONLY" in result.stdout
    assert "  orders-value: AVRO, version 1 (id 2); compatibility FULL\n" in result.stdout
    assert "  orders-key: AVRO, version 1 (id 1, deleted)\n" in result.stdout


# ------------------------------------------------------------------------------- sources, output


def test_written_folder_is_a_source_of_the_same_schemas(tmp_path: Path) -> None:
    output = tmp_path / "schemas"
    first = kafka_index.read_schemas(TYPED, output=output)
    second_schemas = kafka_index.read_schemas(TYPED, schemas=output)
    assert second_schemas.to_arrow().equals(first.to_arrow())
    assert uses_of(second_schemas) == uses_of(first)


@pytest.mark.parametrize("place", [".", "schemas", ".."])
def test_output_that_overlaps_the_input_is_rejected(tmp_path: Path, place: str) -> None:
    root = dump_of(tmp_path / "data")
    result = run_here("schemas", "--input", root, "--output", root / place)
    assert result.returncode == 2
    assert "the output" in result.stderr
    assert sorted(path.name for path in root.iterdir()) == ["_schemas-0"]


def test_output_of_an_earlier_run_is_replaced(tmp_path: Path) -> None:
    output = tmp_path / "schemas"
    kafka_index.read_schemas(TYPED, output=output)
    kafka_index.read_schemas(TYPED, output=output, subject="coupons-value")
    assert sorted(path.name for path in output.iterdir()) == [
        "_SUCCESS",
        "coupons-value-v1.avsc",
        "schemas.json",
    ]
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == ["schemas"]


@pytest.mark.parametrize("has_run", [False, True])
@pytest.mark.parametrize("name", ["notes.txt", "schemas.json"])
def test_output_with_other_files_is_rejected(tmp_path: Path, name: str, *, has_run: bool) -> None:
    if has_run:
        kafka_index.read_schemas(TYPED, output=tmp_path)
    (tmp_path / name).write_text("{}")
    before = sorted(tmp_path.iterdir())
    with pytest.raises(
        InputError, match="the output folder contains files that an earlier run did not write"
    ):
        kafka_index.read_schemas(TYPED, output=tmp_path)
    assert sorted(tmp_path.iterdir()) == before


def test_output_equal_to_the_schema_source_is_rejected(tmp_path: Path) -> None:
    folder = tmp_path / "schemas"
    kafka_index.read_schemas(TYPED, output=folder)
    with pytest.raises(InputError, match="the output is the input"):
        kafka_index.read_schemas(TYPED, schemas=folder, output=folder)


def test_unreachable_registry_is_an_environment_error() -> None:
    result = run_here("schemas", "--input", TYPED, "--schemas", "http://127.0.0.1:1")
    assert result.returncode == 3
    assert "the request to the schema registry failed" in result.stderr


def test_input_without_schemas_is_rejected(tmp_path: Path) -> None:
    root = write_topic(tmp_path, "orders", [(None, framed(1))])
    result = run_here("schemas", "--input", root)
    assert result.returncode == 2
    assert "give --schemas a folder of schemas or the URL of a registry" in result.stderr
    other = write_topic(tmp_path, "my-schemas", SCHEMAS)
    assert run_here("schemas", "--input", other, "--schemas", "dump:my-schemas").returncode == 0
