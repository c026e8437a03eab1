"""Schemas from files: a folder with or without its list, one file, and what is written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kafka_index.core.errors import InputError
from kafka_index.core.schema.folder import read_folder, read_topic_schema, write_folder
from kafka_index.core.schema.registry import (
    KeyKind,
    SchemaKey,
    Schemas,
    SchemaType,
    SubjectVersion,
)
from kafka_index.core.schema.schemas_topic import SchemasTopic
from tests.support.registry_records import (
    Written,
    hard_delete,
    log_records,
    schema_record,
    setting,
)

ADDRESS = '{"type":"record","name":"Address","namespace":"common","fields":[]}'
CUSTOMER = """{"type":"record","name":"Customer","namespace":"common","fields":[
    {"name":"home","type":["null",{"type":"array","items":"Address"}]},
    {"name":"self","type":["null","Customer"]}]}"""
MONEY = 'syntax = "proto3"; package common; message Money { int64 units = 1; }'
PAYMENT = """syntax = "proto3"; // import "not/this.proto";
/* import "nor/this.proto"; */ package pay; import public "common/money.proto";
import 'google/protobuf/any.proto'; message Payment { common.Money total = 1; }"""
CART = (
    '{"type":"object","properties":{"to":{"$ref":"../types/address.json#/x"},"i":{"$ref":"#/y"}}}'
)


def write(root: Path, files: dict[str, str | dict[str, object]]) -> Path:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content))
    return root


def replayed(*records: Written) -> Schemas:
    topic = SchemasTopic()
    for record in log_records(records):
        topic.add(record)
    return topic.schemas("_schemas")


def references(schemas: Schemas) -> dict[str, list[str]]:
    return {
        schema.subjects[0].subject: sorted(schemas.find_references(schema))
        for schema in schemas
        if schema.references
    }


def test_schema_files_of_a_folder_can_refer_to_each_other(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "address.avsc": ADDRESS,
            "customer.avsc": CUSTOMER,
            "common/money.proto": MONEY,
            "payment.proto": PAYMENT,
            "carts/cart.json": CART,
            "types/address.json": "{}",
            "README.md": "no schema",
            ".hidden.avsc": "no schema",
        },
    )
    result = read_folder(str(tmp_path))
    assert {each.subjects[0].subject: each.type for each in result} == {
        "address.avsc": SchemaType.AVRO,
        "customer.avsc": SchemaType.AVRO,
        "common/money.proto": SchemaType.PROTOBUF,
        "payment.proto": SchemaType.PROTOBUF,
        "carts/cart.json": SchemaType.JSON,
        "types/address.json": SchemaType.JSON,
    }
    assert references(result) == {
        "customer.avsc": ["common.Address"],
        "payment.proto": ["common/money.proto"],
        "carts/cart.json": ["../types/address.json#/x"],
    }
    assert {each.schema_id for each in result} == {None}


def test_schemas_json_maps_ids_and_topics(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "address.avsc": ADDRESS,
            "pay.proto": MONEY,
            "unlisted.avsc": "no schema",
            "schemas.json": {
                "topics": {
                    "orders": {"key": "key.avsc", "value": "address.avsc"},
                    "payments": {"value": "pay.proto#common.Money"},
                },
                "schemas": [
                    {"file": "address.avsc", "id": 7},
                    {"file": "address.avsc", "guid": "b7b4a7f0-0000-0000-0000-000000000001"},
                ],
            },
            "key.avsc": '"long"',
        },
    )
    result = read_folder(str(tmp_path))
    assert result.find(SchemaKey(KeyKind.ID, 7)).text == ADDRESS
    value = result.topics.get(("payments", False))
    assert value is not None
    assert (value.schema.text, value.type_name) == (MONEY, "common.Money")
    key = result.topics.get(("orders", True))
    assert key is not None
    assert (key.schema.text, key.type_name) == ('"long"', None)
    assert result.topics.get(("payments", True)) is None
    # A folder may have the ids of any registry.
    for kind, value_of_key in (
        (KeyKind.WIDE_ID, 7),
        (KeyKind.CONTENT_ID, 7),
        (KeyKind.GLUE_UUID, "b7b4a7f0-0000-0000-0000-000000000001"),
    ):
        assert result.find(SchemaKey(kind, value_of_key)).text == ADDRESS


def test_schema_file_is_read_with_its_references(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "payment.proto": PAYMENT,
            "common/money.proto": MONEY,
            "other.proto": "no schema",
            "common.Address.avsc": ADDRESS,
            "customer.avsc": CUSTOMER,
        },
    )
    schemas, chosen = read_topic_schema(f"{tmp_path}/payment.proto#pay.Payment")
    assert (chosen.schema.text, chosen.type_name) == (PAYMENT, "pay.Payment")
    assert list(schemas.find_references(chosen.schema)) == ["common/money.proto"]
    schemas, chosen = read_topic_schema(f"{tmp_path}/customer.avsc")
    assert list(schemas.find_references(chosen.schema)) == ["common.Address"]


WRONG: dict[str, tuple[dict[str, str | dict[str, object]], str]] = {
    "empty folder": ({"README": ""}, "the folder has no schema files"),
    "not JSON": ({"a.avsc": "{"}, "the schema is not JSON"),
    "too deep": ({"a.avsc": "[" * 100_000}, "the schema is not JSON"),
    "list of text": ({"schemas.json": "[]"}, "not a list of schemas"),
    "misspelt member": (
        {"a.avsc": ADDRESS, "schemas.json": {"topic": {}}},
        "Object contains unknown field `topic`",
    ),
    "misspelt member of a schema": (
        {"a.avsc": ADDRESS, "schemas.json": {"schemas": [{"file": "a.avsc", "schema_id": 7}]}},
        "Object contains unknown field `schema_id`",
    ),
    "missing file": ({"schemas.json": {"schemas": [{"file": "a.avsc"}]}}, "No such file"),
    "file outside": (
        {"schemas.json": {"schemas": [{"file": "../a.avsc"}]}},
        "outside of the folder",
    ),
    "other ending": ({"schemas.json": {"schemas": [{"file": "a.txt"}]}}, "not a schema file"),
    "other type": (
        {"a.avsc": ADDRESS, "schemas.json": {"schemas": [{"file": "a.avsc", "type": "XSD"}]}},
        "Invalid enum value 'XSD'",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_invalid_schema_folder_is_rejected(tmp_path: Path, case: str) -> None:
    files, reason = WRONG[case]
    with pytest.raises(InputError, match=reason):
        read_folder(str(write(tmp_path / "schemas", files)))


def test_schema_that_is_not_utf8_is_rejected_with_its_position(tmp_path: Path) -> None:
    (tmp_path / "a.avsc").write_bytes(b'"lo\xffng"')
    with pytest.raises(InputError, match="not UTF-8") as error:
        read_folder(str(tmp_path))
    assert error.value.position_bytes == 3


def test_written_schema_folder_is_read_back(tmp_path: Path) -> None:
    schemas = replayed(
        schema_record("orders-value", 1, 7, ADDRESS),
        schema_record(
            "orders-value",
            2,
            8,
            CUSTOMER,
            references=[{"name": "common.Address", "subject": "orders-value", "version": 1}],
        ),
        schema_record(":.ctx:orders-value", 1, 7, '"long"\r\n'),
        schema_record("common/money.proto", 1, 9, MONEY, schemaType="PROTOBUF"),
        schema_record("x" * 249, 1, 10, "{}", schemaType="JSON"),
        schema_record("x" * 249, 2, 11, '{"a": "\u00e9"}', schemaType="JSON"),
        schema_record("../../outside", 1, 12, '"int"'),
        schema_record("gone", 1, 13, '"float"', deleted=True),
        hard_delete("gone", 1),
        *(
            setting("CONFIG", subject, compatibilityLevel="FULL")
            for subject in ("orders-value", ":.ctx:orders-value", "x" * 249, "common/money.proto")
        ),
    )
    assert len(write_folder(schemas, schemas.all, str(tmp_path))) == len(schemas) + 1
    result = read_folder(str(tmp_path))
    assert result.all == schemas.all
    assert result.settings == schemas.settings
    assert [*result.settings] == sorted(schemas.settings)
    assert result.find(SchemaKey(KeyKind.ID, 8)).subjects == (SubjectVersion("orders-value", 2),)
