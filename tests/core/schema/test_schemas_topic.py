"""The schemas of ``_schemas``: versions, ids, GUIDs, references, and what is not understood."""

from __future__ import annotations

import pickle
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_index.core.errors import BadSchemaError, InputError, UnknownSchemaError
from kafka_index.core.records.decompression import DecompressionBudget
from kafka_index.core.schema.registry import (
    KeyKind,
    SchemaKey,
    SchemaReference,
    Schemas,
    SchemaType,
    SubjectSettings,
    SubjectVersion,
    VersionState,
    compute_guid,
)
from kafka_index.core.schema.schemas_topic import SchemasTopic, read_dump_schemas
from tests.support.damaged_dumps import flip
from tests.support.record_tables import batch_of, write_partition
from tests.support.registry_records import (
    Written,
    delete_subject,
    hard_delete,
    log_records,
    schema_record,
    setting,
    write_topic,
)
from tests.support.segments import ZSTD

LIVE, DELETED, GONE = VersionState
BUDGET = DecompressionBudget(1 << 26)
ADDRESS = (
    '{"fields":[{"name":"street","type":"string"},{"default":null,"name":"zip",'
    '"type":["null","string"]}],"name":"Address","namespace":"common","type":"record"}'
)
CUSTOMER = (
    '{"fields":[{"name":"name","type":"string"},{"name":"home","type":"common.Address"}],'
    '"name":"Customer","namespace":"common","type":"record"}'
)


def replayed(records: Iterable[Written]) -> Schemas:
    topic = SchemasTopic()
    for record in log_records(records):
        topic.add(record)
    return topic.schemas("_schemas")


def states(schemas: Schemas, subject: str) -> list[tuple[int, int | None, VersionState]]:
    return [
        (each.version, each.schema.schema_id, each.state) for each in schemas.list_versions(subject)
    ]


# ------------------------------------------------------------------------------- GUIDs


@pytest.mark.parametrize(
    ("text", "references", "guid"),
    [
        ('{"type":"string"}', (), "2809284b-6e54-d0d3-4017-715ffe5636bd"),
        (ADDRESS, (), "8fd91eab-b222-4f82-edca-0ddd34121486"),
        (CUSTOMER, ("common.Address",), "19af52ef-dc91-e6cf-31c9-1ae8d9050b46"),
    ],
)
def test_computed_schema_guid_equals_the_guid_in_headers(
    text: str, references: tuple[str, ...], guid: str
) -> None:
    # From records whose headers official readers resolved.
    named = [SchemaReference(name, name, 1) for name in references]
    assert compute_guid(text, named) == guid


@pytest.mark.parametrize(
    "more",
    [
        {"metadata": {"properties": {"owner": "x"}}},
        {"metadata": {"tags": {"a": ["PII"]}, "sensitive": ["b"]}},
        {"metadata": {}},
        {"ruleSet": {"domainRules": [{"name": "r", "type": "ENCRYPT", "params": {"k": "v"}}]}},
        {"ruleSet": {"migrationRules": [{"name": "r", "disabled": True}]}},
        {"references": [{"name": "a", "subject": "b", "version": 1}]},
    ],
)
def test_schema_guid_depends_on_metadata_rules_and_references(more: dict[str, Any]) -> None:
    plain = replayed([schema_record("a", 1, 1)]).find(SchemaKey(KeyKind.ID, 1))
    rich = replayed([schema_record("a", 1, 1, **more)]).find(SchemaKey(KeyKind.ID, 1))
    assert rich.guid != plain.guid


def test_md5_in_a_schema_record_is_its_guid() -> None:
    stored = schema_record("a", 1, 1, md5="AAECAwQFBgcICQoLDA0ODw==")
    result = replayed([stored]).find(
        SchemaKey(KeyKind.GUID, "00010203-0405-0607-0809-0a0b0c0d0e0f")
    )
    assert result.schema_id == 1


def test_malformed_metadata_leaves_the_schema_readable() -> None:
    odd = schema_record("a", 1, 1, metadata={"tags": [1], "properties": {"x": None}}, md5="%")
    assert replayed([odd]).find(SchemaKey(KeyKind.ID, 1)).text == '"string"'


def test_schema_rule_types_are_read() -> None:
    rules = {"domainRules": [{"name": "pii", "type": "ENCRYPT"}]}
    assert replayed([schema_record("a", 1, 1, ruleSet=rules)]).find(
        SchemaKey(KeyKind.ID, 1)
    ).rule_types == ("ENCRYPT",)


# ------------------------------------------------------------------------------- versions

VERSIONS: dict[str, tuple[list[Written], list[tuple[int, int, VersionState]]]] = {
    "soft delete": (
        [schema_record("a", 1, 7), schema_record("a", 1, 7, deleted=True)],
        [(1, 7, DELETED)],
    ),
    "hard delete": ([schema_record("a", 1, 7), hard_delete("a", 1)], [(1, 7, GONE)]),
    "Karapace's hard delete": (
        [schema_record("a", 1, 7), hard_delete("a", 1, b"")],
        [(1, 7, GONE)],
    ),
    "hard delete after compaction": ([hard_delete("a", 1)], []),
    "deleted subject": (
        [
            schema_record("a", 1, 7),
            schema_record("a", 2, 8),
            delete_subject("a", 1),
            schema_record("a", 3, 9),
        ],
        [(1, 7, DELETED), (2, 8, LIVE), (3, 9, LIVE)],
    ),
    "version registered again": (
        [schema_record("a", 1, 7), delete_subject("a", 1), schema_record("a", 1, 7)],
        [(1, 7, LIVE)],
    ),
    "version replaced": (
        [schema_record("a", 1, 7), hard_delete("a", 1), schema_record("a", 1, 8, '"long"')],
        [(1, 8, LIVE)],
    ),
    "gaps and descending ids": (
        [schema_record("a", 5, 3), schema_record("a", 2, 900, '"long"')],
        [(2, 900, LIVE), (5, 3, LIVE)],
    ),
}


@pytest.mark.parametrize("case", VERSIONS)
def test_schema_versions_have_the_state_of_their_last_record(case: str) -> None:
    records, expected = VERSIONS[case]
    replayed_records = replayed(records)
    assert states(replayed_records, "a") == expected
    assert not replayed_records.unreadable


def test_replaced_schema_stays_readable_by_id_and_guid() -> None:
    replayed_records = replayed(VERSIONS["version replaced"][0])
    assert replayed_records.find(SchemaKey(KeyKind.ID, 7)).subjects == (
        SubjectVersion("a", 1, GONE),
    )
    assert (
        replayed_records.find(SchemaKey(KeyKind.GUID, compute_guid('"string"', ()))).schema_id == 7
    )


def test_schema_id_of_several_subjects_is_one_schema() -> None:
    replayed_records = replayed([schema_record("b", 1, 4), schema_record("a", 3, 4)])
    assert replayed_records.find(SchemaKey(KeyKind.ID, 4)).subjects == (
        SubjectVersion("a", 3),
        SubjectVersion("b", 1),
    )
    assert len(replayed_records) == 1


def test_same_schema_id_in_another_context_is_another_schema() -> None:
    replayed_records = replayed(
        [schema_record("a", 1, 1), schema_record(":.ctx:a", 1, 1, '"long"')]
    )
    assert (
        replayed_records.find(SchemaKey(KeyKind.ID, 1)).text,
        replayed_records.find(SchemaKey(KeyKind.ID, 1), ".ctx").text,
    ) == (
        '"string"',
        '"long"',
    )
    assert replayed_records.subjects() == [":.ctx:a", "a"]
    with pytest.raises(UnknownSchemaError, match=r"no schema has id 1 in context \.other"):
        replayed_records.find(SchemaKey(KeyKind.ID, 1), ".other")


def test_schema_id_with_two_texts_is_a_conflict_and_the_later_text_is_used() -> None:
    replayed_records = replayed([schema_record("a", 1, 1), schema_record("b", 1, 1, '"long"')])
    assert replayed_records.find(SchemaKey(KeyKind.ID, 1)).text == '"long"'
    assert (
        replayed_records.find(SchemaKey(KeyKind.GUID, compute_guid('"string"', ()))).text
        == '"string"'
    )
    assert [(conflict.offset, conflict.reason) for conflict in replayed_records.conflicts] == [
        (1, "id 1 has a different schema at offset 0")
    ]


def test_subject_settings_are_those_of_the_last_record() -> None:
    replayed_records = replayed(
        [
            setting("CONFIG", None, compatibilityLevel="NONE"),
            setting("CONFIG", "a", compatibilityLevel="FULL"),
            setting("CONFIG", "a"),
            setting("CONFIG", "b", alias="a", overrideMetadata={"properties": {"x": "y"}}),
            setting("MODE", "b", mode="IMPORT"),
        ]
    )
    assert replayed_records.settings == {
        "": SubjectSettings("NONE"),
        "b": SubjectSettings(mode="IMPORT", alias="a"),
    }


def test_schema_type_defaults_to_avro() -> None:
    replayed_records = replayed(
        schema_record("a", number, number, more, schemaType=more)
        for number, more in enumerate(("PROTOBUF", "JSON"), start=1)
    )
    assert [record.type for record in replayed_records] == [SchemaType.PROTOBUF, SchemaType.JSON]
    assert (
        replayed([schema_record("a", 1, 1)]).find(SchemaKey(KeyKind.ID, 1)).type is SchemaType.AVRO
    )


# ------------------------------------------------------------------------------- hostile records

ODD: dict[str, tuple[Written, str]] = {
    "no key": ((None, b"{}"), "not a schema record: Input data was truncated"),
    "key of text": ((b"hello", b"{}"), "not a schema record: JSON is malformed"),
    "deep key": ((b"[" * 100_000, b"{}"), "not a schema record: Expected `object`"),
    "value of text": (
        (hard_delete("a", 1)[0], b"hello"),
        "not a schema record: JSON is malformed",
    ),
    "deep value": (
        (hard_delete("a", 1)[0], b'{"id":1,"schema":"","metadata":' + b'{"a":' * 100_000),
        "nested too deeply",
    ),
    "id of text": (schema_record("a", 1, "x"), "Expected `int`, got `str` - at `$.id`"),  # type: ignore[arg-type]
    "huge id": (schema_record("a", 1, 1 << 63), "at `$.id`"),
    "huge version": (schema_record("a", 1 << 31, 1), "at `$.version`"),
    "lone surrogate": (
        (hard_delete("a", 1)[0], b'{"id":1,"schema":"\\ud800"}'),
        "not a schema record",
    ),
    "invalid UTF-8": (
        (hard_delete("a", 1)[0], b'{"id":1,"schema":"\xff"}'),
        "not a schema record",
    ),
    "unknown type": (schema_record("a", 1, 1, schemaType="XSD"), "unknown schema type 'XSD'"),
    "no version": ((b'{"keytype":"SCHEMA","subject":"a"}', b'{"id":1,"schema":"x"}'), "no subject"),
}


@pytest.mark.parametrize("case", ODD)
def test_malformed_schema_record_is_reported_with_its_offset(case: str) -> None:
    odd, reason = ODD[case]
    replayed_records = replayed(
        [schema_record("b", 1, 9), odd, schema_record("a", 2, 10, '"long"')]
    )
    ((offset, text),) = [(each.offset, each.reason) for each in replayed_records.unreadable]
    assert offset == 1
    assert reason in text
    assert [record.schema_id for record in replayed_records] == [9, 10]


def test_rules_that_are_no_list_are_ignored() -> None:
    replayed_records = replayed([schema_record("a", 1, 1, ruleSet={"domainRules": 7})])
    assert replayed_records.find(SchemaKey(KeyKind.ID, 1)).rule_types == ()
    assert not replayed_records.unreadable


def test_schema_topic_records_of_other_types_are_counted() -> None:
    other = [setting("NOOP", None), setting("CONTEXT", None), setting("NOOP", None)]
    replayed_records = replayed([*other, (b'{"magic":0,"keytype":"FUTURE","x":[1]}', b"\xff")])
    assert replayed_records.skipped == {"NOOP": 2, "CONTEXT": 1, "FUTURE": 1}
    assert not replayed_records.unreadable


def test_schema_record_key_is_read_in_any_field_order() -> None:
    _, value = schema_record("a", 1, 5)
    key = b'{"magic":1,"version":1,"subject":"a","keytype":"SCHEMA"}'
    assert states(replayed([(key, value)]), "a") == [(1, 5, LIVE)]


# ------------------------------------------------------------------------------- references


def referring(subject: str, schema_id: int, *names: str, version: int = 1) -> Written:
    references = [{"name": f"n.{name}", "subject": name, "version": version} for name in names]
    text = f'"{schema_id}"'
    return schema_record(subject, 1, schema_id, text, references=references)


def test_schema_references_precede_the_schemas_that_use_them() -> None:
    replayed_records = replayed(
        [referring("a", 1, "b", "c"), referring("b", 2, "c"), referring("c", 3)]
    )
    references = replayed_records.find_references(replayed_records.find(SchemaKey(KeyKind.ID, 1)))
    assert [(name, each.schema_id) for name, each in references.items()] == [("n.c", 3), ("n.b", 2)]


def test_reference_to_deleted_version_resolves() -> None:
    replayed_records = replayed([referring("a", 1, "b"), referring("b", 2), delete_subject("b", 1)])
    assert (
        replayed_records.find_references(replayed_records.find(SchemaKey(KeyKind.ID, 1)))[
            "n.b"
        ].schema_id
        == 2
    )


def test_reference_to_the_latest_version_resolves_to_the_last_live_version() -> None:
    replayed_records = replayed(
        [
            referring("a", 1, "b", version=-1),
            schema_record("b", 1, 2),
            schema_record("b", 2, 3, '"long"', deleted=True),
        ]
    )
    assert (
        replayed_records.find_references(replayed_records.find(SchemaKey(KeyKind.ID, 1)))[
            "n.b"
        ].schema_id
        == 2
    )


def test_schema_reference_within_a_context_resolves_to_a_subject_of_that_context() -> None:
    replayed_records = replayed(
        [referring(":.c:a", 1, "b"), schema_record("b", 1, 2), schema_record(":.c:b", 1, 2, '"x"')]
    )
    assert (
        replayed_records.find_references(replayed_records.find(SchemaKey(KeyKind.ID, 1), ".c"))[
            "n.b"
        ].context
        == ".c"
    )


@pytest.mark.parametrize(
    ("records", "reason"),
    [
        ([referring("a", 1, "a")], "schema 1 refers to itself"),
        (
            [referring("a", 1, "b"), referring("b", 2, "c"), referring("c", 3, "a")],
            r"schema 1 refers to itself through reference 'n\.a' of schema 3",
        ),
        (
            [referring("a", 1, "b")],
            r"schema 1 refers to 'n\.b', but version 1 of subject b does not exist",
        ),
    ],
)
def test_circular_or_missing_schema_reference_is_rejected(
    records: list[Written], reason: str
) -> None:
    replayed_records = replayed(records)
    with pytest.raises(BadSchemaError, match=reason):
        replayed_records.find_references(replayed_records.find(SchemaKey(KeyKind.ID, 1)))


def test_long_chain_of_references_resolves() -> None:
    links = 5000
    replayed_records = replayed(
        referring(f"s{number}", number + 1, f"s{number + 1}")
        if number < links
        else referring(f"s{number}", number + 1)
        for number in range(links + 1)
    )
    assert (
        len(replayed_records.find_references(replayed_records.find(SchemaKey(KeyKind.ID, 1))))
        == links
    )


# ------------------------------------------------------------------------------- foreign ids


def test_apicurio_ids_are_not_resolved_as_registry_ids() -> None:
    replayed_records = replayed([schema_record("a", 1, 5)])
    assert replayed_records.find(SchemaKey(KeyKind.ID, 5)).schema_id == 5
    for kind in (KeyKind.WIDE_ID, KeyKind.CONTENT_ID, KeyKind.GLOBAL_ID):
        with pytest.raises(UnknownSchemaError, match="no schema has"):
            replayed_records.find(SchemaKey(kind, 5))


def test_schemas_are_equal_after_pickling() -> None:
    replayed_records = replayed([schema_record("a", 1, 5)])
    sent: Schemas = pickle.loads(pickle.dumps(replayed_records))  # noqa: S301
    assert sent.find(SchemaKey(KeyKind.ID, 5)) == replayed_records.find(SchemaKey(KeyKind.ID, 5))


# ------------------------------------------------------------------------------- logs


@pytest.mark.parametrize("damaged", [0, 1, 2, 3])
def test_schemas_after_damage_in_the_topic_are_read(tmp_path: Path, damaged: int) -> None:
    records = [schema_record(f"s{number}", 1, number) for number in range(4)]
    batches = [
        batch_of(offset, [(1000, key, value)]) for offset, (key, value) in enumerate(records)
    ]
    write_partition(tmp_path, {0: b"".join(batches)}, "_schemas-0")
    position = len(b"".join(batches[:damaged]))
    log = tmp_path / "_schemas-0" / f"{0:020d}.log"
    flip(log, position + len(batches[damaged]) - 5)
    result = read_dump_schemas([str(tmp_path)], BUDGET)
    assert [each.schema_id for each in result] == [n for n in range(4) if n != damaged]
    (problem,) = result.unreadable
    assert (problem.path, problem.position_bytes) == (str(log), position)
    assert problem.reason.startswith("bad_crc")


def test_oversized_schema_record_is_reported_and_others_are_read(tmp_path: Path) -> None:
    records = [
        schema_record("a", 1, 1),
        schema_record("b", 1, 2, "x" * (1 << 21)),
        schema_record("c", 1, 3, '"long"'),
    ]
    batches = [
        batch_of(offset, [(1000, key, value)], ZSTD) for offset, (key, value) in enumerate(records)
    ]
    write_partition(tmp_path, {0: b"".join(batches)}, "_schemas-0")
    result = read_dump_schemas([str(tmp_path)], DecompressionBudget(1 << 20))
    assert [each.schema_id for each in result] == [1, 3]
    assert ["--max-decompressed-bytes" in each.reason for each in result.unreadable] == [True]
    assert len(read_dump_schemas([str(tmp_path)], BUDGET)) == 3


def test_schemas_topic_with_backward_offsets_is_replayed_by_offset(tmp_path: Path) -> None:
    records = log_records(
        [schema_record("a", 1, 1), delete_subject("a", 1), schema_record("a", 1, 1)]
    )
    batches = [
        batch_of(offset, [(1000, records[offset].key, records[offset].value)])
        for offset in (2, 0, 1)
    ]
    write_partition(tmp_path, {0: b"".join(batches)}, "_schemas-0")
    assert states(read_dump_schemas([str(tmp_path)], BUDGET), "a") == [(1, 1, LIVE)]


def test_input_without_the_schemas_topic_is_rejected(tmp_path: Path) -> None:
    write_topic(tmp_path, "orders", [schema_record("a", 1, 1)])
    with pytest.raises(InputError, match="no topic matches '_schemas'"):
        read_dump_schemas([str(tmp_path)], BUDGET)


def test_schemas_can_be_read_from_another_topic_name(tmp_path: Path) -> None:
    write_topic(tmp_path, "my.schemas", [schema_record("a", 1, 1)])
    assert len(read_dump_schemas([str(tmp_path)], BUDGET, "my.schemas")) == 1


# ------------------------------------------------------------------------------- against a model


class Operation(NamedTuple):
    kind: str
    subject: str
    version: int
    schema_id: int


OPERATIONS = st.lists(
    st.builds(
        Operation,
        st.sampled_from(["write", "write", "write", "soft", "hard", "empty", "delete"]),
        st.sampled_from(["a", "b"]),
        st.integers(1, 3),
        st.integers(1, 3),
    ),
    max_size=20,
)


def written(operation: Operation) -> Written:
    kind, subject, version, schema_id = operation
    text = f'"{schema_id}"'
    match kind:
        case "write":
            return schema_record(subject, version, schema_id, text)
        case "soft":
            return schema_record(subject, version, schema_id, text, deleted=True)
        case "delete":
            return delete_subject(subject, version)
    return hard_delete(subject, version, b"" if kind == "empty" else None)


def model_of(operations: Iterable[Operation]) -> dict[tuple[str, int], tuple[int, VersionState]]:
    """What a registry would know, and what it has forgotten but the log has."""
    result: dict[tuple[str, int], tuple[int, VersionState]] = {}
    for kind, subject, version, schema_id in operations:
        place = (subject, version)
        if kind in ("write", "soft"):
            result[place] = schema_id, LIVE if kind == "write" else DELETED
        elif kind == "delete":
            for (other, number), (known, state) in list(result.items()):
                if other == subject and number <= version and state is LIVE:
                    result[other, number] = known, DELETED
        elif place in result:
            result[place] = result[place][0], GONE
    return result


@given(OPERATIONS, st.randoms(use_true_random=False))
def test_schema_replay_equals_the_model_in_any_record_order(
    operations: list[Operation], order: random.Random
) -> None:
    records = log_records(map(written, operations))
    order.shuffle(records)
    topic = SchemasTopic()
    for record in records:
        topic.add(record)
    actual = topic.schemas("")
    expected = model_of(operations)
    for (subject, version), (schema_id, state) in expected.items():
        known = {each.version: each for each in actual.list_versions(subject)}[version]
        assert known.state is state
        if state is not GONE:
            assert known.schema.schema_id == schema_id
    assert {each.schema_id for each in actual} == {
        operation.schema_id for operation in operations if operation.kind in ("write", "soft")
    }
    assert not actual.unreadable + actual.conflicts
