"""JSON schemas that are refused, and what is nested too deeply for types."""

from __future__ import annotations

import json

import pytest

from kafka_index.core.errors import BadSchemaError
from kafka_index.core.schema.json_values import JsonSchema
from tests.support.random_avro import bodies_of


def _doubled(levels: int, name: str) -> str:
    kinds = {
        f"d{level}": {
            "type": "object",
            "properties": {key: {"$ref": f"#/{name}/d{level - 1}"} for key in "ab"},
        }
        for level in range(1, levels)
    }
    return json.dumps(
        {name: {"d0": {"type": "integer"}, **kinds}, "$ref": f"#/{name}/d{levels - 1}"}
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        '{"$ref": "#/x"}',
        '{"properties": {"\\ud800": {"type": "string"}}}',
        '{"type": "array", "items":' * 5000 + "{}" + "}" * 5000,
        _doubled(20, "definitions"),
    ],
)
def test_invalid_schema_text_is_rejected(text: str) -> None:
    with pytest.raises(BadSchemaError):
        JsonSchema(text)


def test_too_deeply_nested_json_types_stay_text() -> None:
    schema = JsonSchema('{"type": "array", "items":' * 100 + "{}" + "}" * 100)
    body = b"[" * 100 + b"]" * 100
    assert schema.shape.depth < 64
    decoded = schema.decoder().decode(bodies_of([body]), 1 << 20)
    assert (decoded.errors, str(decoded.array[0].as_py()).count("[")) == ({}, 100)
