"""Values of Apicurio and AWS Glue, whose schemas come from a folder."""

from __future__ import annotations

import json
import struct
import uuid
import zlib
from pathlib import Path

import pytest

import kafka_index
from kafka_index import UseStatus
from tests.support.registry_records import write_topic

PROTO = """syntax = "proto3"; package shop;
message Payment { int64 id = 1; }
message Refund { string reason = 2; }"""
GLUE_ID = uuid.UUID("b7b4a7f0-3b52-4c1e-9d0f-0f4c0c2a9a11")
REFUND = b"\x12\x04late"

#: Values, and what they decode to: the name of the message with its fields, or the text.
VALUES: dict[str, tuple[list[bytes], list[object]]] = {
    "Apicurio, 4 bytes": (
        [b"\0\0\0\0\7\x09\x0a\x07Payment\x08\x05", b"\0\0\0\0\7\x08\x0a\x06Refund" + REFUND],
        [{"Payment": {"id": 5}, "Refund": None}, {"Payment": None, "Refund": {"reason": "late"}}],
    ),
    "Apicurio, 8 bytes": (
        [b"\0" + struct.pack(">q", 7) + b"\x0d\x0a\x0bshop.Refund" + REFUND],
        [{"reason": "late"}],
    ),
    "Glue": (
        [b"\3\0" + GLUE_ID.bytes + b"\x06abc", b"\3\5" + GLUE_ID.bytes + zlib.compress(b"\x02d")],
        ["abc", "d"],
    ),
}


@pytest.mark.parametrize("case", VALUES)
def test_values_are_decoded_with_the_schemas_of_a_folder(tmp_path: Path, case: str) -> None:
    values, expected = VALUES[case]
    folder = tmp_path / "schemas"
    folder.mkdir()
    (folder / "pay.proto").write_text(PROTO)
    (folder / "text.avsc").write_text('"string"')
    listed = [{"file": "pay.proto", "id": 7}, {"file": "text.avsc", "guid": str(GLUE_ID)}]
    (folder / "schemas.json").write_text(json.dumps({"schemas": listed}))
    root = write_topic(tmp_path / "data", "events", [(None, value) for value in values])
    records = kafka_index.read_records(root, decode="value", schemas=str(folder))
    assert records.to_arrow()["value"].to_pylist() == expected
    uses = kafka_index.read_schemas(root, schemas=folder).uses
    assert {use.status for use in uses if use.part == "value"} == {UseStatus.FOUND}
