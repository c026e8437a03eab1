"""Records of Kafka's own topics, and partitions that hold them."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

from kafka_index.core.cluster.metadata.decoding import TopicLog
from kafka_index.core.format.message_bytes import MessageWriter, uuid_text
from kafka_index.core.format.message_schemas import MessageSchema, Struct, Value
from kafka_index.core.format.messages import (
    CLUSTER_METADATA,
    REMOTE_LOG_METADATA,
    TRANSACTION_RECORDS,
)
from kafka_index.core.logdir.partition_files import SegmentFile
from kafka_index.core.records.decompression import DecompressionBudget
from tests.support.segments import batch, control_batch, control_key, marker, record

Pair = tuple[bytes | None, bytes | None]

SNAPSHOT_FOOTER = 4
_SHORT = struct.Struct(">h")


def uuid_of(number: int) -> str:
    """A UUID that is easy to tell from others."""
    return uuid_text(number.to_bytes(16, "big"))


def _value(
    schemas: Sequence[MessageSchema], name: str, version: int | None, message: dict[str, Value]
) -> bytes:
    (schema,) = [schema for schema in schemas if schema.name == name]
    number = schema.versions.highest if version is None else version
    writer = MessageWriter()
    writer.unsigned_varint(1)
    writer.unsigned_varint(schema.api_key)
    writer.unsigned_varint(number)
    return bytes(writer.data) + schema.encode(message, number)


def cluster_record(name: str, version: int | None = None, /, **message: Value) -> Pair:
    """A record of the metadata log."""
    return None, _value(CLUSTER_METADATA, name, version, message)


def remote_record(name: str, /, **message: Value) -> Pair:
    """A record of ``__remote_log_metadata``."""
    return None, _value(REMOTE_LOG_METADATA, name, None, message)


def coordinator_record(
    schemas: Sequence[MessageSchema],
    name: str,
    key: dict[str, Value],
    value: dict[str, Value] | None,
    version: int | None = None,
) -> Pair:
    """A record with a key; `name` is that of the type."""
    by_name = {schema.name: schema for schema in schemas}
    key_schema, value_schema = by_name[f"{name}Key"], by_name[f"{name}Value"]
    number = value_schema.versions.highest if version is None else version
    return (
        _SHORT.pack(key_schema.api_key) + key_schema.encode(key, 0),
        None if value is None else _SHORT.pack(number) + value_schema.encode(value, number),
    )


def log_batch(base_offset: int, *records: Pair, producer_id: int = -1) -> bytes:
    """A batch of records; transactional where it has a producer."""
    transactional = producer_id >= 0
    return batch(
        base_offset,
        len(records),
        payload=b"".join(record(at, 0, key, value) for at, (key, value) in enumerate(records)),
        producer_id=producer_id,
        producer_epoch=0 if transactional else -1,
        base_sequence=0 if transactional else -1,
        transactional=transactional,
    )


def transaction_states(producer_id: int, *states: tuple[int, int, list[str]]) -> bytes:
    """A log of the states of one transactional id: status, epoch, and partitions by their names."""
    records = []
    for status, epoch, partitions in states:
        names = [partition.rpartition("-") for partition in partitions]
        value: dict[str, Value] = {
            "producerId": producer_id,
            "previousProducerId": -1,
            "nextProducerId": -1,
            "producerEpoch": epoch,
            "transactionStatus": status,
            "transactionPartitions": [
                Struct(topic=topic, partitionIds=[int(number)]) for topic, _, number in names
            ],
            "clientTransactionVersion": 2,
        }
        key: dict[str, Value] = {"transactionalId": "x"}
        records.append(coordinator_record(TRANSACTION_RECORDS, "TransactionLog", key, value))
    return log_batch(0, *records) if records else b""


def end_of_transaction(base_offset: int, producer_id: int, *, commit: bool) -> bytes:
    """A marker."""
    return marker(base_offset, producer_id, 0, commit=commit)


def write_log(directory: Path, *batches: bytes, base_offset: int = 0) -> Path:
    """A segment of a partition."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{base_offset:020d}.log"
    path.write_bytes(b"".join(batches))
    return path


def write_snapshot(
    directory: Path, end_offset: int, *records: Pair, has_footer: bool = True
) -> Path:
    """A snapshot of the metadata log."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{end_offset:020d}-0000000001.checkpoint"
    path.write_bytes(log_batch(0, *records) + (_footer(len(records)) if has_footer else b""))
    return path


def _footer(base_offset: int) -> bytes:
    key = control_key(SNAPSHOT_FOOTER)
    return control_batch(base_offset, -1, -1, key, b"\0\0\0\0", transactional=False)


def snapshot_of(directory: Path) -> Path:
    """A snapshot of all records of a metadata log, a batch for each."""
    (path,) = directory.glob("*.log")
    info = path.stat()
    segment = SegmentFile("__cluster_metadata", 0, 0, str(path), info.st_size, info.st_mtime_ns)
    records = list(TopicLog([segment], DecompressionBudget(2**24)).records())
    pairs = [(one.key, one.value) for one in records if not one.is_control]
    batches = [log_batch(at, pair) for at, pair in enumerate(pairs)]
    snapshot = directory / f"{records[-1].offset + 1:020d}-0000000001.checkpoint"
    snapshot.write_bytes(b"".join(batches) + _footer(len(pairs)))
    return snapshot
