"""A dump with ``_schemas`` and topics of typed records, and what each record holds."""

from __future__ import annotations

import json
import struct
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kafka_index.core.schema.protobuf import ProtobufFile
from kafka_index.core.schema.registry import compute_guid
from tests.support.random_avro import encode
from tests.support.random_protobuf import message_class
from tests.support.record_tables import write_partition
from tests.support.registry_records import delete_subject, schema_record, write_topic
from tests.support.segments import batch, record

_STATUS = {"type": "enum", "name": "Status", "symbols": ["NEW", "PAID"]}


def _order(*fields: tuple[Any, ...], name: str = "Order") -> dict[str, Any]:
    return {
        "type": "record",
        "name": name,
        "namespace": "shop",
        "fields": [
            {"name": field[0], "type": field[1], **({"aliases": [field[2]]} if field[2:] else {})}
            for field in fields
        ],
    }


ORDERS = (
    _order(("id", "int"), ("customer", "string"), ("amount", "float"), ("old", "string")),
    _order(("id", "long"), ("customer_id", "string", "customer"), ("amount", "double")),
    _order(
        ("status", _STATUS),
        ("id", "long"),
        ("customer_id", "string", "customer"),
        ("amount", "double"),
        ("currency", ["null", "string"]),
    ),
)
CONFLICT = (_order(("x", "int"), name="C"), _order(("x", "string"), ("X", "long"), name="C"))
MOVED, CREATED = _order(("lat", "double"), name="Moved"), _order(("user", "string"), name="Created")
PAYMENT = """syntax = "proto3"; package pay; message Header { string trace = 1; }
message Payment { int64 id = 1; optional string note = 2; map<string, int32> counts = 3;
  message Line { string sku = 1; } repeated Line lines = 4; }"""
CART = {
    "title": "Cart",
    "type": "object",
    "properties": {
        "id": {"type": "integer"},
        "total": {"type": ["number", "null"]},
        "either": {"oneOf": [{"type": "string"}, {"properties": {"n": {"type": "integer"}}}]},
        "kind": {"enum": ["a", 3]},
    },
}


def framed(schema_id: int, body: bytes) -> bytes:
    """A value in Confluent's form."""
    return struct.pack(">bi", 0, schema_id) + body


def avro(schema: Any, value: Any) -> bytes:
    """The datum of a value."""
    return encode(schema, [value])[0]


def order(version: int, **value: Any) -> bytes:
    """The value of an order of a version, framed: its id is 2 and more."""
    return framed(2 + version, avro(ORDERS[version], value))


def payment(**fields: Any) -> bytes:
    """A framed payment, the second message of its file."""
    kind = message_class(ProtobufFile(PAYMENT).message((1,)))
    counts = fields.pop("counts", {})
    lines = fields.pop("lines", [])
    message = kind(**fields)
    message.counts.update(counts)
    for sku in lines:
        message.lines.add(sku=sku)
    return framed(20, b"\x02\x02" + message.SerializeToString())


@dataclass(frozen=True, slots=True)
class Typed:
    """A record: its key and value, the value that is expected, or the code of its error."""

    value: bytes | None
    expected: Any = None
    error: str | None = None
    key: bytes | None = None
    headers: Sequence[tuple[bytes, bytes | None]] = ()


def _orders() -> list[Typed]:
    first = {"id": 1, "customer": "c-1", "amount": 1.5, "old": "o"}
    second = {"id": 1 << 40, "customer_id": "c-2", "amount": 0.1}
    third = {**second, "status": "PAID", "currency": None}
    nothing = dict.fromkeys(("status", "id", "customer_id", "amount", "currency", "old"))
    return [
        Typed(
            order(0, **first),
            {**nothing, "id": 1, "customer_id": "c-1", "amount": 1.5, "old": "o"},
            key=framed(1, b"\x06k-1"),
        ),
        Typed(order(1, **second), {**nothing, **second}, key=framed(1, b"\x06k-2")),
        Typed(None, None, key=framed(1, b"\x06k-1")),
        Typed(order(2, **third), {**nothing, **third}, key=framed(1, b"\x06k-3")),
    ]


def _mixed() -> list[Typed]:
    good = {"id": 1, "customer": "c", "amount": 0.5, "old": ""}
    result = {"Order": good, "Payment": None, "Cart": None}
    body = avro(ORDERS[0], good)
    return [
        Typed(order(0, **good), result),
        Typed(b"", error="no_magic"),
        Typed(b"hello", error="no_magic"),
        Typed(b"\0\0", error="truncated"),
        Typed(framed(2, body[:-3]), error="truncated"),
        Typed(framed(2, body + b"\0"), result, error="trailing"),
        Typed(framed(99, body), error="unknown_id"),
        Typed(framed(2, b"\x02\x04\xff\xfe"), error="bad_utf8"),
        Typed(framed(20, b"\x02\x0c\x08\x01"), error="bad_index"),
        Typed(framed(20, b"\x02\x02\x0a"), error="truncated"),
        Typed(payment(id=7), {"Order": None, "Cart": None, "Payment": {
            "id": 7, "note": None, "counts": [], "lines": []}}),
        Typed(framed(30, b'{"id": '), error="truncated"),
        Typed(framed(30, b'{"id": "x"}'), error="bad_value"),
        Typed(framed(30, b'{"id": 9223372036854775808}'), error="out_of_range"),
        Typed(framed(30, b'{"id": 5.0, "more": [1]}'), {"Order": None, "Payment": None, "Cart": {
            "id": 5, "total": None, "either": None, "kind": None,
            "additional_properties": '{"more": [1]}'}}),
        Typed(None),
    ]  # fmt: skip


def _carts() -> list[Typed]:
    values = [
        {"id": 1, "total": 2, "either": "s", "kind": "a"},
        {"id": (1 << 62) + 1, "total": None, "either": {"n": 3}, "kind": 3},
    ]
    expected: list[Any] = [
        {"id": 1, "total": 2.0, "either": {"string": "s", "object": None}, "kind": '"a"'},
        {"id": (1 << 62) + 1, "total": None, "kind": "3", "either": {
            "string": None, "object": {"n": 3, "additional_properties": None}}},
    ]  # fmt: skip
    bom = b"\xef\xbb\xbf"
    return [
        Typed(framed(30, start + json.dumps(value).encode()),
              {**found, "additional_properties": None})
        for value, found, start in zip(values, expected, (b"", bom), strict=True)
    ]  # fmt: skip


def _headers() -> list[Typed]:
    good = {"id": 1, "customer_id": "c", "amount": 0.5}
    body = avro(ORDERS[1], good)
    guid = uuid.UUID(compute_guid(json.dumps(ORDERS[1]), ())).bytes
    name = b"__value_schema_id"
    return [
        Typed(body, good, headers=[(name, b"\1" + guid)]),
        Typed(body, good, headers=[(name, b"\1" + bytes(16)), (name, b"\1" + guid)]),
        Typed(body, good, headers=[(name, b"\0" + struct.pack(">i", 3))]),
        Typed(b"\1" + guid + body, good),
        Typed(framed(3, body), good, headers=[(name, None)]),
        Typed(body, None, "unknown_id", headers=[(name, b"\1" + bytes(range(16)))]),
    ]


def topics() -> Mapping[str, list[Typed]]:
    """The records of each topic."""
    return {
        "orders": _orders(),
        "mixed": _mixed(),
        "carts": _carts(),
        "headers": _headers(),
        "conflict": [
            Typed(framed(40, avro(CONFLICT[0], {"x": 1})),
                  {"x": 1, "x__string": None, "X__2": None}),
            Typed(framed(41, avro(CONFLICT[1], {"x": "one", "X": 2})),
                  {"x": None, "x__string": "one", "X__2": 2}),
        ],
        "events": [
            Typed(framed(50, avro(MOVED, {"lat": 1.5})), {
                "Moved": {"lat": 1.5}, "Created": None}),
            Typed(framed(51, avro(CREATED, {"user": "u"})), {
                "Moved": None, "Created": {"user": "u"}}),
        ],
        "payments": [
            Typed(payment(id=-1, note="", counts={"a": 1}, lines=["x", "y"]), {
                "id": -1, "note": "", "counts": [("a", 1)], "lines": [{"sku": "x"}, {"sku": "y"}],
            }),
        ],
        "numbers": [Typed(framed(1, b"\x02x"), "x", key=struct.pack(">q", 7))],
        "plain": [Typed(b'{"id": 1}', b'{"id": 1}', key=b"k")],
        "gone": [Typed(framed(77, b"\0"), framed(77, b"\0"), error="unknown_id")],
    }  # fmt: skip


def schemas() -> list[tuple[bytes | None, bytes | None]]:
    """The records of ``_schemas``."""
    return [
        schema_record("orders-key", 1, 1),
        *(
            schema_record("orders-value", number + 1, number + 2, json.dumps(schema))
            for number, schema in enumerate(ORDERS)
        ),
        schema_record("payments-value", 1, 20, PAYMENT, schemaType="PROTOBUF"),
        schema_record("carts-value", 1, 30, json.dumps(CART), schemaType="JSON"),
        schema_record("numbers-value", 1, 1),
        schema_record("conflict-value", 1, 40, json.dumps(CONFLICT[0])),
        schema_record("conflict-value", 2, 41, json.dumps(CONFLICT[1])),
        schema_record("shop.Moved", 1, 50, json.dumps(MOVED)),
        schema_record("events-shop.Created", 1, 51, json.dumps(CREATED)),
        delete_subject("orders-value", 2),
    ]


def write_typed_dump(root: Path) -> Path:
    """Write the dump; return its folder."""
    for topic, records in topics().items():
        payload = b"".join(
            record(number, number, one.key, one.value, one.headers)
            for number, one in enumerate(records)
        )
        log = batch(
            0,
            payload=payload,
            record_count=len(records),
            last_offset_delta=len(records) - 1,
            max_timestamp=1000 + len(records) - 1,
            base_timestamp=1000,
        )
        write_partition(root, {0: log}, f"{topic}-0")
    write_topic(root, "_schemas", schemas())
    return root
