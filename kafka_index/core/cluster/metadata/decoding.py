"""Read and decode the records of Kafka's internal topics, and remove secrets.

If a batch is unreadable or the end of a log is corrupt, the error is collected and reading
continues. Only one chunk of records is in memory.

Sources: Kafka's ``MetadataRecordSerde``, ``CoordinatorRecordSerde`` and ``RemoteLogMetadataSerde``.
Credentials (SCRAM, delegation tokens) are removed during decoding. Values of configurations that
may be secret are also removed. Unknown configurations count as secret, as in Kafka
(``KafkaConfigSchema.isSensitive``).
"""

from __future__ import annotations

import re
import struct
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple

import pyarrow as pa

from kafka_index.core.errors import CorruptLogError, CorruptRecordError, KafkaIndexError
from kafka_index.core.format.message_bytes import MessageReader, MessageWriter
from kafka_index.core.format.message_schemas import MessageSchema, Struct, Value
from kafka_index.core.format.messages import (
    CLUSTER_METADATA,
    GROUP_RECORDS,
    REMOTE_LOG_METADATA,
    SHARE_RECORDS,
    TRANSACTION_RECORDS,
)
from kafka_index.core.log.scan.segment_scan import LogFileSource
from kafka_index.core.log.scan.valid_batches import read_batches_after
from kafka_index.core.logdir.partition_files import SegmentFile
from kafka_index.core.records.batch_table import PREALLOCATED_TAIL, WindowBatches
from kafka_index.core.records.decompression import DecompressionBudget
from kafka_index.core.records.record_decoder import BatchDamage, RecordDecoder
from kafka_index.core.records.record_table import RecordTable

#: Shown instead of a value that may be secret (``Password.HIDDEN``).
HIDDEN: Final = "[hidden]"

#: Resource types (``ConfigResource.Type``).
TOPIC_RESOURCE: Final = 2
BROKER_RESOURCE: Final = 4
CLIENT_METRICS_RESOURCE: Final = 16
GROUP_RESOURCE: Final = 32
#: The resource name of configurations that apply to all brokers.
ALL_BROKERS: Final = ""

# Topic configurations in LogConfig.configNames of Kafka 4.3.1 and older releases.
_TOPIC_CONFIG_TEXT = """
    cleanup.policy compression.gzip.level compression.lz4.level compression.type
    compression.zstd.level delete.retention.ms file.delete.delay.ms flush.messages flush.ms
    follower.replication.throttled.replicas index.interval.bytes internal.segment.bytes
    leader.replication.throttled.replicas local.retention.bytes local.retention.ms
    max.compaction.lag.ms max.message.bytes message.downconversion.enable message.format.version
    message.timestamp.after.max.ms message.timestamp.before.max.ms
    message.timestamp.difference.max.ms message.timestamp.type min.cleanable.dirty.ratio
    min.compaction.lag.ms min.insync.replicas preallocate remote.log.copy.disable
    remote.log.delete.on.disable remote.storage.enable retention.bytes retention.ms segment.bytes
    segment.index.bytes segment.jitter.ms segment.ms unclean.leader.election.enable
"""
_TOPIC_CONFIGS = frozenset(_TOPIC_CONFIG_TEXT.split())
_CLIENT_METRICS_CONFIGS = frozenset({"interval.ms", "match", "metrics"})
_GROUP_PREFIXES = ("consumer.", "share.", "streams.")
# Broker settings with these prefixes are numbers, sizes, times and policies, not secrets.
_BROKER_PREFIXES = (
    "background.threads",
    "compression.",
    "follower.replication.throttled.",
    "leader.replication.throttled.",
    "log.",
    "max.connection",
    "message.max.bytes",
    "min.insync.replicas",
    "num.",
    "remote.log.manager.",
    "replica.alter.log.dirs.",
    "transaction.partition.verification.enable",
    "unclean.leader.election.enable",
)

_INT16 = struct.Struct(">h")
_FRAME_VERSION = 1
_WORD_START = re.compile(r"(?<!^)(?=[A-Z])")
#: Records that contain credentials.
_CREDENTIAL_RECORDS = frozenset({"UserScramCredentialRecord", "DelegationTokenRecord"})
#: The producer ID of a batch without a producer (``RecordBatch.NO_PRODUCER_ID``).
NO_PRODUCER_ID = -1


def is_public_config(resource_type: int, name: str) -> bool:
    """Return whether the value of a configuration can be shown.

    `resource_type` is a ``ConfigResource.Type``.
    """
    return (
        (resource_type == TOPIC_RESOURCE and name in _TOPIC_CONFIGS)
        or (resource_type == BROKER_RESOURCE and name.startswith(_BROKER_PREFIXES))
        or (resource_type == CLIENT_METRICS_RESOURCE and name in _CLIENT_METRICS_CONFIGS)
        or (resource_type == GROUP_RESOURCE and name.startswith(_GROUP_PREFIXES))
    )


class RecordName(NamedTuple):
    """The name of a record type, for counting records.

    `name` is Kafka's message name, such as ``TopicRecord``; for an unknown type, it contains the
    type's number. `is_known` is True for types and versions up to Kafka 4.3.1.
    """

    name: str
    is_known: bool


@dataclass(frozen=True, slots=True)
class DecodedRecord:
    """A decoded record of a known type.

    `name` is Kafka's message name without the suffix ``Key`` or ``Value``. `record_type` is the API
    key, or the number of the record type. `version` is the version of the value, -1 if there is no
    value. If `is_withheld`, the value contained credentials and is None.
    """

    name: str
    record_type: int
    key: Struct | None
    value: Struct | None
    version: int
    is_withheld: bool = False


class UnknownRecordError(CorruptRecordError):
    """A record of a type or version that Kafka 4.3.1 does not know."""

    problem = "the record has an unknown type"

    def __init__(self, name: str) -> None:
        super().__init__(self.problem, found=name)
        self.name = name


class LaterVersionError(UnknownRecordError):
    """A record of a known type, but in a version on which Kafka 4.3.1 fails."""

    problem = "the record has an unknown version, on which Kafka 4.3.1 fails"


class CoordinatorCodec:
    """Decodes the records of a topic whose keys and values are separate messages.

    For each record type, `schemas` contains the schemas of its key and its value.
    """

    def __init__(self, schemas: tuple[MessageSchema, ...]) -> None:
        self._keys = {s.api_key: s for s in schemas if s.name.endswith("Key")}
        self._values = {s.api_key: s for s in schemas if s.name.endswith("Value")}

    def record_type(self, key: bytes) -> int:
        """Return the record type of a key; raise `CorruptRecordError` if the key is too short."""
        return MessageReader(key).int16()

    def record_name(self, record_type: int) -> str:
        """Return the name of a record type; raise `UnknownRecordError` for other types."""
        schema = self._keys.get(record_type)
        if schema is None:
            raise UnknownRecordError(f"record type {record_type}")
        return schema.name.removesuffix("Key")

    def decode_key(self, key: bytes) -> Struct:
        record_type = self.record_type(key)
        self.record_name(record_type)
        return self._keys[record_type].read(MessageReader(key, _INT16.size), 0)

    def decode_value(self, record_type: int, value: bytes) -> tuple[Struct, int]:
        """Decode a value; return the message and its version.

        Raises `LaterVersionError` if the version is unknown.
        """
        reader = MessageReader(value)
        version = reader.int16()
        schema = self._values[record_type]
        if version not in schema.versions:
            raise LaterVersionError(f"{schema.name} version {version}")
        return schema.read(reader, version), version

    def decode(self, key: bytes | None, value: bytes | None) -> DecodedRecord:
        if key is None:
            raise CorruptRecordError("the record has no key")
        decoded_key = self.decode_key(key)
        record_type = self.record_type(key)
        name = self.record_name(record_type)
        if value is None:
            return DecodedRecord(name, record_type, decoded_key, None, -1)
        message, version = self.decode_value(record_type, value)
        return DecodedRecord(name, record_type, decoded_key, message, version)

    def encode(
        self, name: str, version: int, key: Mapping[str, Value], value: Mapping[str, Value]
    ) -> tuple[bytes, bytes]:
        """Encode the key and value of a record; missing fields get their default values."""
        record_type = next(
            number for number, schema in self._keys.items() if schema.name == f"{name}Key"
        )
        key_data = self._keys[record_type].encode(key, 0)
        value_data = self._values[record_type].encode(value, version)
        return _INT16.pack(record_type) + key_data, _INT16.pack(version) + value_data

    def as_json(self, record: DecodedRecord) -> tuple[object, object]:
        """Return key and value as ``kafka-dump-log`` prints them, None for a null value."""
        number = record.record_type
        data = self._keys[number].as_json(record.key or Struct(), 0)
        key_json = {"type": str(number), "data": data}
        if record.value is None:
            return key_json, None
        data = self._values[number].as_json(record.value, record.version)
        return key_json, {"version": str(record.version), "data": data}


class ValueCodec:
    """Decodes the records of a topic whose values start with an API key and a version."""

    def __init__(self, schemas: tuple[MessageSchema, ...]) -> None:
        self._schemas = {schema.api_key: schema for schema in schemas}
        self._names = {schema.name: schema for schema in schemas}

    def decode(self, value: bytes | None) -> DecodedRecord:
        if value is None:
            raise CorruptRecordError("the record has no value")
        reader = MessageReader(value)
        frame = reader.unsigned_varint()
        if frame != _FRAME_VERSION:
            raise UnknownRecordError(f"frame version {frame}")
        api_key, version = reader.unsigned_varint(), reader.unsigned_varint()
        schema = self._schemas.get(api_key)
        if schema is None:
            raise UnknownRecordError(f"API key {api_key}")
        if version not in schema.versions:
            raise LaterVersionError(f"{schema.name} version {version}")
        message = schema.read(reader, version)
        if reader.remaining:
            raise reader.corrupt(
                f"bytes follow the {schema.name}", expected=0, found=reader.remaining
            )
        if schema.name in _CREDENTIAL_RECORDS:
            return DecodedRecord(schema.name, api_key, None, None, version, is_withheld=True)
        _hide_secret_config(message)
        return DecodedRecord(schema.name, api_key, None, message, version)

    def encode(self, name: str, version: int, message: Mapping[str, Value]) -> bytes:
        """Encode a value; missing fields get their default values."""
        schema = self._names[name]
        writer = MessageWriter()
        writer.unsigned_varint(_FRAME_VERSION)
        writer.unsigned_varint(schema.api_key)
        writer.unsigned_varint(version)
        return bytes(writer.data) + schema.encode(message, version)

    def as_json(self, record: DecodedRecord) -> Mapping[str, object]:
        """Return a value as ``kafka-dump-log`` prints it, without parts that may be secret."""
        schema = self._names[record.name]
        data = None if record.value is None else schema.as_json(record.value, record.version)
        return {"type": record_type_name(record.name), "version": record.version, "data": data}


def record_type_name(name: str) -> str:
    """Return a message name in the form of Kafka's constants: ``TOPIC_RECORD``."""
    return _WORD_START.sub("_", name).upper()


def has_secret(record: DecodedRecord) -> bool:
    """Return whether the record contains a hidden value."""
    return record.is_withheld or (record.value is not None and record.value.get("value") == HIDDEN)


def _hide_secret_config(message: Struct) -> None:
    """Hide the value of a configuration that may be secret.

    A null value, which deletes the configuration, stays null.
    """
    if "resourceType" in message and message.get("value") is not None:
        name = message.text("name")
        if not is_public_config(message.integer("resourceType"), name):
            message["value"] = HIDDEN


METADATA_CODEC: Final = ValueCodec(CLUSTER_METADATA)
REMOTE_LOG_CODEC: Final = ValueCodec(REMOTE_LOG_METADATA)
GROUP_CODEC: Final = CoordinatorCodec(GROUP_RECORDS)
TRANSACTION_CODEC: Final = CoordinatorCodec(TRANSACTION_RECORDS)
SHARE_CODEC: Final = CoordinatorCodec(SHARE_RECORDS)


class LogRecord(NamedTuple):
    """A record of a log; `producer_id` is -1 if its batch has no producer."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    producer_id: int
    is_control: bool


_RECORD_COLUMNS = ("offset", "timestamp", "key", "value", "producer_id", "is_control")


@dataclass
class TopicLog:
    """Reads the segments of one partition, or one metadata snapshot, in order.

    Attributes
    ----------
    start_offset : int
        Records with lower offsets are skipped.
    recovers : bool
        Whether reading ends at the first corruption, where recovery truncates the log
        (`truncation`).
    may_grow : bool
        Whether a broker may append records during the read. Appended records are not read.
    reads_past_corruption : bool
        Whether valid batches after a corruption are also read.
    truncation : CorruptLogError, optional
        The corruption at which recovery truncates the log; it is not one of the `faults`.
    faults : list of KafkaIndexError
        After `records` is exhausted, the errors that explain missing records.
    end_offset : int
        After `records` is exhausted, the offset after the last batch.
    """

    segments: Sequence[SegmentFile]
    budget: DecompressionBudget
    start_offset: int = 0
    verify_crc: bool = True
    recovers: bool = False
    may_grow: bool = False
    reads_past_corruption: bool = False
    truncation: CorruptLogError | None = None
    faults: list[KafkaIndexError] = field(default_factory=list)
    end_offset: int = 0

    def records(self) -> Iterator[LogRecord]:
        """Yield all readable records in log order."""
        self.end_offset = self.start_offset
        decoder = RecordDecoder(self.budget)
        for segment in self.segments:
            try:
                yield from self._read_segment(segment, decoder)
            except KafkaIndexError as error:
                self.faults.append(error)
            if self.truncation is not None:
                return

    def _read_segment(self, segment: SegmentFile, decoder: RecordDecoder) -> Iterator[LogRecord]:
        source = LogFileSource.of_segment(
            segment, verify_crc=self.verify_crc, may_grow=self.may_grow
        )
        table = RecordTable(segment.topic, segment.partition, _RECORD_COLUMNS)
        for window, start, batches in source.windows():
            batch_source = WindowBatches(window, start, batches)
            yield from self._decode_batches(segment, table, decoder, batch_source)
        scan_end = source.stop
        if scan_end is None or scan_end.code == PREALLOCATED_TAIL:
            return
        hint = None if self.reads_past_corruption else "later records of the segment were not read"
        corruption = scan_end.error(CorruptLogError, segment.log_path, hint=hint)
        if self.recovers:
            self.truncation = corruption
            return
        self.faults.append(corruption)
        if self.reads_past_corruption:
            for batch_source in read_batches_after(segment, scan_end.position_bytes):
                yield from self._decode_batches(segment, table, decoder, batch_source)

    def _decode_batches(
        self,
        segment: SegmentFile,
        table: RecordTable,
        decoder: RecordDecoder,
        source: WindowBatches,
    ) -> Iterator[LogRecord]:
        batches = source.batches
        positions = batches.position_bytes
        for decoded in decoder.decode(
            source.window,
            positions - source.position_bytes,
            batches.size_bytes,
            partial(table.convert, source=source),
            first_offset=self.start_offset,
        ):
            if isinstance(decoded, BatchDamage):
                position = int(positions[decoded.batch])
                self.faults.append(decoded.error.at(segment.log_path, position))
            else:
                offsets, times, *columns = decoded.columns
                values = (offsets, times.cast(pa.int64()), *columns)
                rows = zip(*(column.to_pylist() for column in values), strict=True)
                yield from map(LogRecord._make, rows)
        if batches.rows:
            self.end_offset = max(self.end_offset, int(batches.last_offset[-1]) + 1)


class TopicState(ABC):
    """Collects the records of an internal topic; `counts` are the numbers of records by type."""

    def __init__(self) -> None:
        self.counts: Counter[RecordName] = Counter()

    @abstractmethod
    def add(self, record: LogRecord) -> None:
        """Apply a record; raise `CorruptRecordError` if the record cannot be read."""

    def _count_record(self, read_name: Callable[[], str]) -> bool:
        """Count a record by the name of its type; return whether the type is known.

        Raises `LaterVersionError` if the version of the record is unknown.
        """
        try:
            self.counts[RecordName(read_name(), is_known=True)] += 1
        except UnknownRecordError as error:
            count_unknown(self.counts, error)
            return False
        return True


def count_unknown(counts: Counter[RecordName], error: UnknownRecordError) -> None:
    """Count a record of an unknown type; raise `error` if Kafka fails on the record's version."""
    counts[RecordName(error.name, is_known=False)] += 1
    if isinstance(error, LaterVersionError):
        raise error
