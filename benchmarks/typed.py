"""Typed values on one core: Avro against fastavro, Protobuf against ptars, export with decoding.

The record has 10 fields: one is nullable, one is an enum, one is a timestamp and one is a list of
strings. fastavro decodes each datum to a dict, which pyarrow converts to Arrow. ptars decodes
messages without frames. The exports write values of 1 KB to Parquet with zstd.
"""

from __future__ import annotations

import datetime as dt
import io
import json
import random
import shutil
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import fastavro
import numpy as np
import ptars
import pyarrow as pa

from benchmarks.recover import seconds
from kafka_index import export_records
from kafka_index.core.records.record_batch import Record, write_record_batch
from kafka_index.core.schema.avro import AvroSchema
from kafka_index.core.schema.bodies import Bodies
from kafka_index.core.schema.protobuf import ProtobufFile
from tests.support.random_protobuf import message_class
from tests.support.registry_records import schema_record, write_topic

_RECORDS, _REFERENCE_RECORDS, _BATCH_RECORDS = 200_000, 20_000, 8192
_ROUNDS = 7
_AVRO_GOAL, _PROTOBUF_GOAL, _EXPORT_GOAL = 30.0, 0.8, 1.5
_EXPORTED, _VALUE_BYTES = 60_000, 1024
_NO_LIMIT = 1 << 40
_STATUSES = ("NEW", "PAID", "SENT")
AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "customer", "type": "string"},
        {"name": "amount", "type": "double"},
        {"name": "currency", "type": ["null", "string"]},
        {"name": "status", "type": {"type": "enum", "name": "S", "symbols": list(_STATUSES)}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "count", "type": "int"},
        {"name": "note", "type": "string"},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "ok", "type": "boolean"},
    ],
}
PROTOBUF = """syntax = "proto3"; import "google/protobuf/timestamp.proto";
enum Status { NEW = 0; PAID = 1; SENT = 2; }
message Order { int64 id = 1; string customer = 2; double amount = 3; optional string currency = 4;
  Status status = 5; google.protobuf.Timestamp at = 6; int32 count = 7; string note = 8;
  repeated string tags = 9; bool ok = 10; }"""


def _value(number: int, note: str) -> dict[str, Any]:
    return {
        "id": number * 1_000_003,
        "customer": f"customer-{number % 1000}",
        "amount": number / 4,
        "currency": "EUR" if number % 3 else None,
        "status": _STATUSES[number % 3],
        "at": dt.datetime(2026, 1, 1, tzinfo=dt.UTC) + dt.timedelta(seconds=number),
        "count": number % 100,
        "note": note,
        "tags": ["a-tag", "b-tag"][: number % 3],
        "ok": number % 2 == 0,
    }


def _datums(values: Sequence[dict[str, Any]]) -> list[bytes]:
    schema = fastavro.parse_schema(json.loads(json.dumps(AVRO)))
    found = []
    for value in values:
        file = io.BytesIO()
        fastavro.schemaless_writer(file, schema, value)
        found.append(file.getvalue())
    return found


def _messages(values: Sequence[dict[str, Any]]) -> list[bytes]:
    kind = message_class(ProtobufFile(PROTOBUF).message((0,)))
    found = []
    for value in values:
        given = {name: one for name, one in value.items() if name != "at" and one is not None}
        message = kind(**given)
        message.at.FromDatetime(value["at"])
        found.append(message.SerializeToString())
    return found


def _bodies(bodies: Sequence[bytes]) -> list[Bodies]:
    """Return the bodies in parts of the size of a record batch."""
    sizes = np.array([len(body) for body in bodies], np.int64)
    ends = np.cumsum(sizes)
    all_bodies = Bodies(np.frombuffer(b"".join(bodies), np.uint8), ends - sizes, ends)
    return [
        all_bodies.slice(first, min(first + _BATCH_RECORDS, len(bodies)))
        for first in range(0, len(bodies), _BATCH_RECORDS)
    ]


def _median(tasks: Sequence[Callable[[], object]]) -> list[float]:
    """Return the median CPU seconds of each task; each round runs all tasks."""
    for task in tasks:
        task()
    rounds = [[seconds(task) for task in tasks] for _ in range(_ROUNDS)]
    return [statistics.median(times) for times in zip(*rounds, strict=True)]


def run(scratch: Path) -> bool:
    """Measure and print the rates; return whether they reach the goals."""
    print(f"Typed values: {_RECORDS:,} records of 10 fields, one core (median of rounds, in turn)")
    values = [_value(number, "n" * 80) for number in range(_RECORDS)]
    reached = _avro(_datums(values))
    reached &= _protobuf(_messages(values))
    return reached & _export(scratch)


def _avro(datums: list[bytes]) -> bool:
    schema = AvroSchema(json.dumps(AVRO))
    decoder, parts = schema.decoder(), _bodies(datums)
    parsed = fastavro.parse_schema(json.loads(json.dumps(AVRO)))
    few = datums[:_REFERENCE_RECORDS]

    def reference() -> object:
        rows = [fastavro.schemaless_reader(io.BytesIO(datum), parsed) for datum in few]
        return pa.array(rows, schema.shape.type)

    own, other = _median([lambda: [decoder.decode(part, _NO_LIMIT) for part in parts], reference])
    rate, reference_rate = _RECORDS / own, _REFERENCE_RECORDS / other
    return _print_rates("Avro to Arrow, fastavro", rate, reference_rate, _AVRO_GOAL)


def _protobuf(messages: list[bytes]) -> bool:
    message = ProtobufFile(PROTOBUF).message((0,))
    decoder, parts = message.decoder(), _bodies(messages)
    descriptor = message._descriptor  # noqa: SLF001, as ptars needs it
    handler = ptars.HandlerPool([descriptor.file]).get_for_message(descriptor)
    arrays = [
        pa.array(messages[first : first + _BATCH_RECORDS], pa.binary())
        for first in range(0, len(messages), _BATCH_RECORDS)
    ]
    own, other = _median(
        [
            lambda: [decoder.decode(part, _NO_LIMIT) for part in parts],
            lambda: [handler.array_to_record_batch(array) for array in arrays],
        ]
    )
    return _print_rates(
        "Protobuf to Arrow, ptars", _RECORDS / own, _RECORDS / other, _PROTOBUF_GOAL
    )


def _print_rates(name: str, rate: float, reference: float, goal: float) -> bool:
    row = f"{name:28} {rate / 1e6:8.2f} {reference / 1e6:8.3f} M/s {rate / reference:8.2f}"
    print(f"{row}  goal {goal:.2f}", flush=True)
    return rate / reference >= goal


def _export(scratch: Path) -> bool:
    root, output = scratch / "typed", scratch / "typed-exported"
    shutil.rmtree(root, ignore_errors=True)
    _write(root)

    def export(decode: str | None) -> None:
        shutil.rmtree(output, ignore_errors=True)
        done = export_records(root, output, topics="orders", decode=decode, threads=1)
        assert done.ok

    # An export runs in several threads, so the CPU time of the process is measured.
    tasks = [partial(export, None), partial(export, "value")]
    times: list[list[float]] = [[], []]
    for _ in range(_ROUNDS):
        for task, task_times in zip(tasks, times, strict=True):
            started = time.process_time()
            task()
            task_times.append(time.process_time() - started)
    plain, typed = (statistics.median(task_times[1:]) for task_times in times)
    shutil.rmtree(output, ignore_errors=True)
    print(
        f"{'export of values of 1 KB':28} {plain:8.2f} {typed:8.2f} s   {typed / plain:8.2f}"
        f"  goal {_EXPORT_GOAL:.2f} or less",
        flush=True,
    )
    return typed / plain <= _EXPORT_GOAL


def _write(root: Path) -> None:
    """Write a log of framed values, and the topic of their schema."""
    source = random.Random(1)
    notes = (source.randbytes(_VALUE_BYTES // 2).hex()[:960] for _ in range(_EXPORTED))
    values = [_value(number, note) for number, note in enumerate(notes)]
    folder = root / "orders-0"
    folder.mkdir(parents=True)
    datums = _datums(values)
    with (folder / f"{0:020d}.log").open("wb") as file:
        for first in range(0, _EXPORTED, 16):
            records = [
                Record(1_700_000_000_000 + first + at, None, b"\0\0\0\0\1" + datum)
                for at, datum in enumerate(datums[first : first + 16])
            ]
            file.write(write_record_batch(records, first))
    write_topic(root, "_schemas", [schema_record("orders-value", 1, 1, json.dumps(AVRO))])
