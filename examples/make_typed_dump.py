"""Write `examples/typed`, a small data directory with typed records and their ``_schemas``.

    python examples/make_typed_dump.py [FOLDER]

needs fastavro (``pip install 'kafka-index[typed]'``). Each run writes the same bytes. The records
of ``_schemas`` are as Confluent's registry writes them, and the frames of keys and values as its
serializers do.
"""

from __future__ import annotations

import io
import json
import shutil
import struct
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq

import kafka_index

HERE = Path(__file__).resolve().parent
START_MS = 1_795_000_000_000
CUSTOMERS = ("Ada", "Björn", "Chloé", "Dmitri", "Esra")

KEY = {"type": "string"}
CUSTOMER = {
    "type": "record",
    "name": "Customer",
    "namespace": "shop",
    "fields": [{"name": "id", "type": "string"}, {"name": "name", "type": "string"}],
}
ORDER_FIELDS: list[dict[str, Any]] = [
    {"name": "id", "type": "long"},
    {"name": "customer", "type": "shop.Customer"},
    {"name": "total", "type": "double"},
    {"name": "placed_at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
]
ORDER_V1 = {"type": "record", "name": "Order", "namespace": "shop", "fields": ORDER_FIELDS}
ORDER_V2 = {
    **ORDER_V1,
    "fields": [
        *ORDER_FIELDS,
        {"name": "currency", "type": "string", "default": "EUR"},
        {"name": "coupon", "type": ["null", "string"], "default": None},
    ],
}
COUPON = {
    "type": "record",
    "name": "Coupon",
    "namespace": "shop",
    "fields": [{"name": "code", "type": "string"}, {"name": "percent", "type": "int"}],
}
MONEY = """\
syntax = "proto3";
package shop;

message Money {
  string currency = 1;
  int64 cents = 2;
}
"""
PAYMENT = """\
syntax = "proto3";
package shop;

import "shop/money.proto";

message Payment {
  int64 order_id = 1;
  Money amount = 2;
  oneof method {
    string card = 3;
    string iban = 4;
  }
}

message Refund {
  int64 order_id = 1;
  Money amount = 2;
}
"""
CART = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "title": "Cart",
    "type": "object",
    "properties": {
        "customer_id": {"type": "string"},
        "items": {"type": "array", "items": {"type": "string"}},
        "total": {"type": "number"},
    },
    "required": ["customer_id"],
}

Record = tuple[bytes | None, bytes | None]


def compact(value: object) -> str:
    """Return JSON without spaces."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def registered(
    subject: str, version: int, schema_id: int, schema: object, **more: object
) -> Record:
    """Return the record of a schema; `more` are members of its value."""
    text = schema if isinstance(schema, str) else compact(schema)
    key = {"keytype": "SCHEMA", "subject": subject, "version": version, "magic": 1}
    value = {"subject": subject, "version": version, "id": schema_id, **more, "schema": text}
    return compact(key).encode(), compact({**value, "deleted": False}).encode()


def reference(name: str, subject: str) -> list[dict[str, object]]:
    """Return the member ``references`` of a record."""
    return [{"name": name, "subject": subject, "version": 1}]


def schemas() -> Iterator[Record]:
    """Yield the records of ``_schemas``."""
    customer = reference("shop.Customer", "shop.Customer")
    yield b'{"keytype":"NOOP","magic":0}', None
    yield b'{"keytype":"CONFIG","magic":0}', b'{"compatibilityLevel":"BACKWARD"}'
    yield registered("orders-key", 1, 1, KEY)
    yield registered("shop.Customer", 1, 2, CUSTOMER)
    yield registered("orders-value", 1, 3, ORDER_V1, references=customer)
    yield registered("coupons-value", 1, 4, COUPON)
    yield registered("shop/money.proto", 1, 5, MONEY, schemaType="PROTOBUF")
    yield registered(
        "payments-value",
        1,
        6,
        PAYMENT,
        schemaType="PROTOBUF",
        references=reference("shop/money.proto", "shop/money.proto"),
    )
    yield registered("carts-value", 1, 7, CART, schemaType="JSON")
    yield registered("orders-value", 2, 8, ORDER_V2, references=customer)
    config = {"keytype": "CONFIG", "subject": "orders-value", "magic": 0}
    yield compact(config).encode(), b'{"compatibilityLevel":"FULL"}'
    deletion = {"keytype": "DELETE_SUBJECT", "subject": "coupons-value", "magic": 0}
    yield compact(deletion).encode(), b'{"subject":"coupons-value","version":1}'


def framed(schema_id: int, body: bytes) -> bytes:
    """Return a body after the id of its schema."""
    return b"\0" + struct.pack(">i", schema_id) + body


def avro(schema_id: int, schema: dict[str, Any], value: object) -> bytes:
    """Return a framed value of Avro."""
    parsed = fastavro.parse_schema(schema, named_schemas=dict(_NAMED))
    out = io.BytesIO()
    fastavro.schemaless_writer(out, parsed, value)
    return framed(schema_id, out.getvalue())


_NAMED: dict[str, Any] = {}
fastavro.parse_schema(CUSTOMER, named_schemas=_NAMED)


def varint(value: int) -> bytes:
    """Return a varint of Protobuf."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def message(*fields: tuple[int, int | str | bytes]) -> bytes:
    """Return a message of Protobuf: numbers as varints, and texts or messages by their length."""
    out = b""
    for number, value in fields:
        if isinstance(value, int):
            out += varint(number << 3) + varint(value)
            continue
        data = value.encode() if isinstance(value, str) else value
        out += varint(number << 3 | 2) + varint(len(data)) + data
    return out


def orders() -> Iterator[Record]:
    """Yield orders: the first half of the first version, a deletion at every 25th."""
    for number in range(200):
        key = avro(1, KEY, f"order-{number}")
        if number % 25 == 24:
            yield key, None
            continue
        customer = {"id": f"c-{number % 20}", "name": CUSTOMERS[number % len(CUSTOMERS)]}
        total = (number * 37 % 211) + number / 4
        order = {"id": number, "customer": customer, "total": total}
        order["placed_at"] = START_MS + number * 60_000
        if number < 100:
            yield key, avro(3, ORDER_V1, order)
            continue
        order |= {"currency": "USD" if number % 3 else "EUR"}
        order["coupon"] = f"SAVE{number % 7}" if number % 7 else None
        yield key, avro(8, ORDER_V2, order)


def payments() -> Iterator[Record]:
    """Yield payments, and every 10th time a refund, which is the second type of the file."""
    for number in range(60):
        amount = message((1, "EUR"), (2, 1000 + number))
        if number % 10 == 9:
            body = b"\x02\x02" + message((1, number), (2, amount))
        else:
            method = (3, f"4111-{number:04}") if number % 2 else (4, f"DE{number:020}")
            body = b"\0" + message((1, number), (2, amount), method)
        yield f"order-{number}".encode(), framed(6, body)


def carts() -> Iterator[Record]:
    """Yield carts of JSON."""
    for number in range(40):
        items = [f"sku-{number}-{item}" for item in range(number % 4)]
        cart = {"customer_id": f"c-{number % 20}", "items": items, "total": number * 2.5}
        yield None, framed(7, compact(cart).encode())


def coupons() -> Iterator[Record]:
    """Yield coupons, whose subject was deleted."""
    for number in range(7):
        yield None, avro(4, COUPON, {"code": f"SAVE{number}", "percent": number * 5})


TOPICS = {
    "_schemas": schemas,
    "carts": carts,
    "coupons": coupons,
    "orders": orders,
    "payments": payments,
}


def main() -> None:
    """Write the dump."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "typed"
    rows = [
        {
            "topic": topic,
            "partition": 0,
            "offset": offset,
            "timestamp": START_MS + offset * 60_000,
            "key": key,
            "value": value,
        }
        for topic, records in TOPICS.items()
        for offset, (key, value) in enumerate(records())
    ]
    columns = [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("ms", tz="UTC")),
        ("key", pa.binary()),
        ("value", pa.binary()),
    ]
    shutil.rmtree(folder, ignore_errors=True)
    with tempfile.TemporaryDirectory() as scratch:
        pq.write_table(pa.Table.from_pylist(rows, pa.schema(columns)), f"{scratch}/records.parquet")
        kafka_index.import_records(f"{scratch}/records.parquet", folder).raise_for_damage()
    # The manifests of the import have times and a random id.
    for manifest in folder.rglob(".import.kafka-index"):
        manifest.unlink()


if __name__ == "__main__":
    main()
