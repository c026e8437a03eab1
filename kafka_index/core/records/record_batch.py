"""Encode v2 batches like Kafka: single batches, control batches, and Arrow columns in bulk.

`BatchEncoder` packs `RecordRows` into batches of at most ``batch.size`` bytes, compresses them, and
writes the headers. Compressed bytes can differ from the output of Java's libraries, but decompress
to the same records.

Sources: Kafka's ``MemoryRecordsBuilder``, ``DefaultRecord.writeTo``,
``DefaultRecordBatch.writeHeader``, ``SnappyCompression`` with snappy-java's ``SnappyOutputStream``,
``Lz4BlockOutputStream``, ``MemoryRecords.withEndTransactionMarker`` and
``withLeaderChangeMessage``, and ``ControlRecordType``.
"""

from __future__ import annotations

import gzip
import struct
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from itertools import chain
from numbers import Integral
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kafka_index.core.errors import (
    ConfigError,
    InputError,
    argument_text,
    check_field_types,
    refuse_other_types,
)
from kafka_index.core.format.integers import INT32_MAX, INT64_MAX, INT64_MIN
from kafka_index.core.format.longs import Longs
from kafka_index.core.format.message_bytes import unsigned_varint
from kafka_index.core.format.message_schemas import Struct
from kafka_index.core.format.names import COMPRESSION_NAMES
from kafka_index.core.format.records import (
    COMPRESSION_MASK,
    CONTROL_ABORT,
    CONTROL_COMMIT,
    CONTROL_MASK,
    DELETE_HORIZON_MASK,
    LOG_OVERHEAD_BYTES,
    MAGIC_RECORD_BATCH,
    NO_LEADER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    RECORD_BATCH_HEADER,
    RECORD_BATCH_OVERHEAD_BYTES,
    TIMESTAMP_TYPE_MASK,
    TRANSACTIONAL_MASK,
    field_position,
)
from kafka_index.core.fs.store import Bytes
from kafka_index.core.kernels.batch_header import batch_checksums
from kafka_index.core.kernels.memory import Records
from kafka_index.core.kernels.record_columns import HEADER_ROWS
from kafka_index.core.kernels.record_encoder import PACKED, pack_batches, seal_batches

_NULL_FIELD = b"\x01"
_UINT64 = 2**64 - 1
_SMALL = 64
_SMALL_VARINTS = tuple(bytes((zigzag,)) for zigzag in range(2 * _SMALL))

_NONE, _GZIP, _SNAPPY, _LZ4, _ZSTD = range(len(COMPRESSION_NAMES))
_LENGTH = struct.Struct(">i")
_XERIAL_HEADER = b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1)
_SNAPPY_CHUNK_BYTES = 32 * 1024
_LZ4_BLOCK_BYTES = 64 * 1024
#: Magic, version 1 with independent blocks, block size 64 KiB, and their checksum. Libraries link
#: blocks by default, and Kafka rejects such frames.
_LZ4_HEADER = bytes.fromhex("04224d18604082")
_LZ4_LENGTH = struct.Struct("<I")
_LZ4_STORED = 0x80000000
#: The fields of `RECORD_BATCH_HEADER`.
_HEADER = struct.Struct(">qiibIhiqqqhii")
_CRC = struct.Struct(">I")
_CRC_POSITION = field_position(RECORD_BATCH_HEADER, "crc")
_KEY = struct.Struct(">hh")
_MARKER = struct.Struct(">hi")
_KEY_VERSION = 0
_MARKER_VERSION = 0
_LEADER_CHANGE = 2
_LEADER_CHANGE_VERSION = 0


class Record(NamedTuple):
    """A record of a batch.

    Parameters
    ----------
    timestamp_ms : int
        0 or more, or -1 for none.
    key, value : bytes, optional
        None is Kafka's null.
    headers : sequence of (str, bytes or None)
        In order; a key can be repeated.
    offset_delta : int, optional
        Offset minus the batch's base offset. Default: one more than the previous record's.
    """

    timestamp_ms: int
    key: bytes | None = None
    value: bytes | None = None
    headers: Sequence[tuple[str, bytes | None]] = ()
    offset_delta: int | None = None


def encode_record(record: Record, timestamp_delta: int, offset_delta: int) -> bytes:
    """Encode a record; timestamp and offset are relative to the batch's."""
    key, value, headers = record.key, record.value, record.headers
    body = b"".join(
        (
            b"\0",
            _encode_varint(timestamp_delta),
            _encode_varint(offset_delta),
            _NULL_FIELD if key is None else _encode_varint(len(key)) + key,
            _NULL_FIELD if value is None else _encode_varint(len(value)) + value,
            _encode_varint(len(headers)),
            *(_encode_header(name, content) for name, content in headers),
        )
    )
    return _encode_varint(len(body)) + body


def _encode_header(name: str, content: bytes | None) -> bytes:
    key = name.encode()
    return (
        _encode_varint(len(key))
        + key
        + (_NULL_FIELD if content is None else _encode_varint(len(content)) + content)
    )


def _encode_varint(value: int) -> bytes:
    """Encode a zigzag varint; overflows of int64 wrap around as in Java."""
    if -_SMALL <= value < _SMALL:
        return _SMALL_VARINTS[(value << 1) ^ (value >> 63)]
    if not INT64_MIN <= value <= INT64_MAX:
        value = (value - INT64_MIN & _UINT64) + INT64_MIN
    return unsigned_varint((value << 1) ^ (value >> 63))


def parse_compression_type(name: str) -> int:
    """Return the codec bits of a ``compression.type``.

    Raises `ConfigError` for an unknown name.
    """
    if name not in COMPRESSION_NAMES:
        raise ConfigError(
            "unknown codec", expected=f"one of {', '.join(COMPRESSION_NAMES)}", found=repr(name)
        )
    return COMPRESSION_NAMES.index(name)


def compress(codec: int, data: bytes) -> bytes:
    """Compress records for the body of a batch; codec 0 returns them unchanged."""
    if codec == _NONE:
        return data
    if codec == _GZIP:
        return gzip.compress(data, mtime=0)
    if codec == _SNAPPY:
        return _XERIAL_HEADER + b"".join(
            _LENGTH.pack(len(chunk)) + chunk
            for chunk in (
                _compress_raw("snappy", block) for block in _split_blocks(data, _SNAPPY_CHUNK_BYTES)
            )
        )
    if codec == _LZ4:
        blocks = (_lz4_block(block) for block in _split_blocks(data, _LZ4_BLOCK_BYTES))
        return _LZ4_HEADER + b"".join(blocks) + bytes(_LZ4_LENGTH.size)
    if codec == _ZSTD:
        return _compress_raw("zstd", data)
    raise ConfigError("unknown codec", expected=f"0..{_ZSTD}", found=codec)


def _split_blocks(data: bytes, size: int) -> list[bytes]:
    return [data[start : start + size] for start in range(0, len(data), size)]


def _lz4_block(block: bytes) -> bytes:
    compressed = _compress_raw("lz4_raw", block)
    if len(compressed) < len(block):
        return _LZ4_LENGTH.pack(len(compressed)) + compressed
    return _LZ4_LENGTH.pack(len(block) | _LZ4_STORED) + block


def _compress_raw(name: str, data: bytes) -> bytes:
    packed: bytes = pa.Codec(name).compress(data, asbytes=True)
    return packed


@dataclass(frozen=True, slots=True)
class BatchFields:
    """The header fields of a batch that do not follow from its records.

    Parameters
    ----------
    leader_epoch : int
        -1 for none.
    compression : str
        A ``compression.type``: none, gzip, snappy, lz4 or zstd.
    log_append_time_ms : int, optional
        Sets the timestamp type to LogAppendTime, and all timestamps to this one.
    producer_id, producer_epoch, base_sequence : int
        -1 for none.
    is_transactional, is_control : bool
        Attribute flags.
    delete_horizon_ms : int, optional
        Time after which the log cleaner may remove tombstones and markers. It replaces the base
        timestamp.
    last_offset_delta : int, optional
        Default: the last record's. It is larger if the log cleaner removed records at the end.
    """

    leader_epoch: int = NO_LEADER_EPOCH
    compression: str = "none"
    log_append_time_ms: int | None = None
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH
    base_sequence: int = NO_SEQUENCE
    is_transactional: bool = False
    is_control: bool = False
    delete_horizon_ms: int | None = None
    last_offset_delta: int | None = None

    def attributes(self) -> int:
        return (
            parse_compression_type(self.compression)
            | (TIMESTAMP_TYPE_MASK if self.log_append_time_ms is not None else 0)
            | (TRANSACTIONAL_MASK if self.is_transactional else 0)
            | (CONTROL_MASK if self.is_control else 0)
            | (DELETE_HORIZON_MASK if self.delete_horizon_ms is not None else 0)
        )

    def check(self) -> None:
        """Raise for fields that Kafka's builder rejects.

        Raises `InputError` for a transaction without a producer, or a producer without epoch or
        sequence.
        """
        if self.is_transactional and self.producer_id == NO_PRODUCER_ID:
            raise InputError("a transactional batch needs a producer ID")
        if self.producer_id != NO_PRODUCER_ID:
            if self.producer_epoch == NO_PRODUCER_EPOCH:
                raise InputError(
                    "a batch with a producer ID needs a producer epoch",
                    expected="0 or more",
                    found=self.producer_epoch,
                )
            if self.base_sequence < 0 and not self.is_control:
                raise InputError(
                    "a batch with a producer ID needs a base sequence",
                    expected="0 or more",
                    found=self.base_sequence,
                )


_PLAIN = BatchFields()


def write_record_batch(
    records: Iterable[Record], base_offset: int = 0, fields: BatchFields = _PLAIN
) -> bytes:
    """Encode one batch.

    Parameters
    ----------
    records : iterable of Record
        At least one; offset deltas increase.
    base_offset : int
        Absolute; clients send 0.
    fields : BatchFields
        The remaining header fields.

    Returns
    -------
    bytes
        The batch with its header.

    Raises
    ------
    InputError
        There is no record, or Kafka's builder would reject a record or a field.
    """
    refuse_other_types(base_offset=(base_offset, Integral), fields=(fields, BatchFields))
    check_field_types(fields)
    try:
        return _write_batch(records, base_offset, fields)
    except (TypeError, AttributeError, struct.error) as error:
        raise InputError(
            f"records have the wrong type: {error}",
            expected="an iterable of Record, with bytes and integers",
            found=argument_text(records),
        ) from error


def _write_batch(records: Iterable[Record], base_offset: int, fields: BatchFields) -> bytes:
    fields.check()
    horizon = fields.delete_horizon_ms
    base_timestamp = horizon
    max_timestamp = NO_TIMESTAMP
    last_delta = -1
    count = 0
    encoded_records: list[bytes] = []
    for record in records:
        timestamp = record.timestamp_ms
        delta = last_delta + 1 if record.offset_delta is None else record.offset_delta
        if not last_delta < delta <= INT32_MAX:
            raise InputError(
                f"the offset delta of record {count + 1} does not increase",
                expected=f"{last_delta + 1}..{INT32_MAX}",
                found=delta,
            )
        if not NO_TIMESTAMP <= timestamp <= INT64_MAX:
            raise InputError(
                f"the timestamp of record {count + 1} is negative or too large",
                expected=f"{NO_TIMESTAMP}..{INT64_MAX}",
                found=timestamp,
            )
        if base_timestamp is None:
            base_timestamp = timestamp
        max_timestamp = max(max_timestamp, timestamp)
        encoded_records.append(encode_record(record, timestamp - base_timestamp, delta))
        last_delta = delta
        count += 1
    if base_timestamp is None or not count:
        raise InputError(
            "records is empty, but a batch needs a record",
            hint="use write_empty_batch for a batch without records",
        )
    attributes = fields.attributes()
    return _write_header(
        fields,
        base_offset,
        _last_delta(fields, last_delta),
        attributes,
        base_timestamp,
        max_timestamp if fields.log_append_time_ms is None else fields.log_append_time_ms,
        count,
        compress(attributes & COMPRESSION_MASK, b"".join(encoded_records)),
    )


def write_empty_batch(
    base_offset: int, last_offset: int, max_timestamp_ms: int, fields: BatchFields = _PLAIN
) -> bytes:
    """Encode a batch without records, which the log cleaner keeps as a producer's last batch.

    `max_timestamp_ms` is the largest timestamp of the removed records. Codec and delete horizon of
    the fields are ignored. Source: ``DefaultRecordBatch.writeEmptyHeader``.
    """
    attributes = fields.attributes() & (TIMESTAMP_TYPE_MASK | TRANSACTIONAL_MASK | CONTROL_MASK)
    delta = last_offset - base_offset
    return _write_header(
        fields, base_offset, delta, attributes, NO_TIMESTAMP, max_timestamp_ms, 0, b""
    )


def _last_delta(fields: BatchFields, delta_of_records: int) -> int:
    last_offset_delta = fields.last_offset_delta
    if last_offset_delta is None:
        return delta_of_records
    if not delta_of_records <= last_offset_delta <= INT32_MAX:
        raise InputError(
            "the last offset delta is out of range",
            expected=f"{delta_of_records}..{INT32_MAX}",
            found=last_offset_delta,
        )
    return last_offset_delta


def _write_header(
    fields: BatchFields,
    base_offset: int,
    last_delta: int,
    attributes: int,
    base_timestamp: int,
    max_timestamp: int,
    count: int,
    payload: bytes,
) -> bytes:
    size = RECORD_BATCH_OVERHEAD_BYTES + len(payload)
    if size > INT32_MAX:
        raise InputError(
            "the batch is too large", expected=f"{INT32_MAX} bytes or less", found=size
        )
    batch = bytearray(size)
    try:
        _HEADER.pack_into(
            batch,
            0,
            base_offset,
            size - LOG_OVERHEAD_BYTES,
            fields.leader_epoch,
            MAGIC_RECORD_BATCH,
            0,
            attributes,
            last_delta,
            base_timestamp,
            max_timestamp,
            fields.producer_id,
            fields.producer_epoch,
            fields.base_sequence,
            count,
        )
    except struct.error as error:
        raise InputError(f"a header field of the batch is out of range: {error}") from error
    batch[RECORD_BATCH_OVERHEAD_BYTES:] = payload
    _, checksum = batch_checksums(np.frombuffer(batch, np.uint8), 0, size)
    _CRC.pack_into(batch, _CRC_POSITION, int(checksum))
    return bytes(batch)


def write_end_transaction_marker(
    base_offset: int,
    timestamp_ms: int,
    producer_id: int,
    producer_epoch: int,
    *,
    is_commit: bool,
    coordinator_epoch: int,
    leader_epoch: int = NO_LEADER_EPOCH,
) -> bytes:
    """Encode the marker that commits or aborts a producer's transaction.

    The offset is absolute; `coordinator_epoch` is the epoch of the transaction coordinator.
    """
    kind = CONTROL_COMMIT if is_commit else CONTROL_ABORT
    fields = BatchFields(
        leader_epoch=leader_epoch,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=NO_SEQUENCE,
        is_transactional=True,
        is_control=True,
    )
    record = Record(
        timestamp_ms,
        _KEY.pack(_KEY_VERSION, kind),
        _MARKER.pack(_MARKER_VERSION, coordinator_epoch),
    )
    return write_record_batch([record], base_offset, fields)


def write_leader_change(
    base_offset: int,
    timestamp_ms: int,
    leader_epoch: int,
    leader_id: int,
    voters: Sequence[int] = (),
    granting_voters: Sequence[int] = (),
) -> bytes:
    """Encode the batch that announces the leader of a Raft quorum.

    The leader epoch is 0 or more; voters and granting voters are node IDs.
    """
    if leader_epoch < 0:
        raise InputError(
            "a leader change needs a leader epoch", expected="0 or more", found=leader_epoch
        )
    # Slow to import: it parses all of Kafka's message schemas.
    from kafka_index.core.format.messages import KRAFT_CONTROL  # noqa: PLC0415

    (schema,) = (
        message_schema
        for message_schema in KRAFT_CONTROL
        if message_schema.name == "LeaderChangeMessage"
    )
    value = schema.encode(
        {
            "version": _LEADER_CHANGE_VERSION,
            "leaderId": leader_id,
            "voters": [Struct(voterId=message_schema) for message_schema in voters],
            "grantingVoters": [
                Struct(voterId=message_schema) for message_schema in granting_voters
            ],
        },
        _LEADER_CHANGE_VERSION,
    )
    fields = BatchFields(leader_epoch=leader_epoch, is_control=True)
    record = Record(timestamp_ms, _KEY.pack(_KEY_VERSION, _LEADER_CHANGE), value)
    return write_record_batch([record], base_offset, fields)


_NULL = -1

#: Size of the output buffer in bytes; the buffer grows for a larger record.
_CHUNK_BYTES = 4 * 1024 * 1024
_CHUNK_BATCHES = 4096
#: Number of batches that a thread compresses per task.
_BATCHES_PER_TASK = 16


@dataclass(frozen=True, slots=True)
class RecordRows:
    """Records as numeric columns of length n, with ascending absolute offsets.

    Timestamps are -1 for none. Keys and values are memory addresses and sizes in bytes, -1 for
    null. `header_starts`, of length n + 1, has the first column of each record in `headers`, of
    shape (4, m): addresses and sizes of header names and values. `owners` keep the memory alive.
    """

    offsets: Longs
    timestamps_ms: Longs
    keys: Longs
    key_sizes: Longs
    values: Longs
    value_sizes: Longs
    header_starts: Longs
    headers: Longs
    owners: tuple[object, ...] = ()

    def __len__(self) -> int:
        return len(self.offsets)

    @property
    def columns(self) -> tuple[Longs, Longs, Longs, Longs, Longs, Longs, Longs, Longs]:
        """The first arguments of `pack_batches`."""
        return (
            self.offsets,
            self.timestamps_ms,
            self.keys,
            self.key_sizes,
            self.values,
            self.value_sizes,
            self.header_starts,
            self.headers,
        )

    @classmethod
    def of_arrays(
        cls,
        offsets: Longs,
        timestamps_ms: Longs,
        keys: pa.Array,
        values: pa.Array,
        headers: pa.Array | None = None,
    ) -> RecordRows:
        """Convert Arrow columns.

        Keys and values are binary, headers are lists of structs with ``key`` and ``value``. Raises
        `InputError` if a header or a header name is null.
        """
        starts = np.zeros(len(offsets) + 1, np.int64)
        fields = np.empty((HEADER_ROWS, 0), np.int64)
        owners: tuple[object, ...] = (keys, values)
        if headers is not None and headers.null_count < len(headers):
            np.cumsum(_numbers(pc.list_value_length(headers).fill_null(0)), out=starts[1:])
            pairs = headers.flatten()
            names, contents = (child.cast(pa.binary()) for child in pairs.flatten())
            if names.null_count:
                raise InputError("a header has no name", expected="a string")
            fields = np.empty((HEADER_ROWS, len(pairs)), np.int64)
            fields[0], fields[1] = _addresses(names)
            fields[2], fields[3] = _addresses(contents)
            owners = (*owners, names, contents)
        return cls(
            # Copied, because numba would compile another kernel for read-only Arrow memory.
            np.array(offsets, np.int64),
            np.array(timestamps_ms, np.int64),
            *_addresses(keys),
            *_addresses(values),
            starts,
            fields,
            owners,
        )


def _numbers(array: pa.Array) -> Longs:
    numbers: Longs = array.cast(pa.int64()).to_numpy(zero_copy_only=False)
    return numbers


def _addresses(array: pa.Array) -> tuple[Longs, Longs]:
    """Return the memory addresses and sizes of binary values, -1 for null."""
    _, ends, data = array.buffers()
    count = len(array)
    if not count:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    width = np.int64 if pa.types.is_large_binary(array.type) else np.int32
    bounds = np.frombuffer(ends, width)[array.offset : array.offset + count + 1].astype(np.int64)
    sizes = np.diff(bounds)
    if array.null_count:
        sizes[_numbers(array.is_null().cast(pa.int8())) == 1] = _NULL
    return bounds[:-1] + (0 if data is None else data.address), sizes


@dataclass(frozen=True, slots=True)
class EncodedBatches:
    """Consecutive complete batches: their bytes, and the numbers of batches and records.

    The bytes are valid until the next batches are requested.
    """

    data: Bytes
    batches: int
    records: int


class BatchEncoder:
    """Packs records into batches.

    ``batch_bytes`` is ``batch.size``: the maximum size of a batch with more than one record, before
    compression. `executor`, if given, compresses batches in other threads. Raises `ConfigError` for
    an unknown ``compression.type``.
    """

    def __init__(
        self,
        compression: str,
        batch_bytes: int,
        leader_epoch: int,
        compressors: Executor | None = None,
    ) -> None:
        self._compressors = compressors
        self._codec = parse_compression_type(compression)
        self._batch_bytes = batch_bytes
        self._leader_epoch = leader_epoch
        self._data: Bytes = np.empty(_CHUNK_BYTES, np.uint8)
        self._compress_raw = np.empty(_CHUNK_BATCHES, PACKED)

    def encode(
        self, rows: RecordRows, groups: Longs, *, uses_append_time: Longs, keeps_last: bool
    ) -> Iterator[EncodedBatches]:
        """Yield the batches of records.

        Records of different groups never share a batch. `uses_append_time`, nonzero for
        LogAppendTime, is constant within a group, whose records then have one timestamp. With
        `keeps_last`, the last batch is not returned, because further records may be added; it
        starts at the row given by the sum of `EncodedBatches.records`. Raises `InputError` for a
        batch larger than Kafka's formats allow.
        """
        row = 0
        while row < len(rows):
            next_row, count, required_bytes = map(
                int,
                pack_batches(
                    *rows.columns,
                    groups,
                    row,
                    self._batch_bytes,
                    -1,
                    0,
                    self._data,
                    self._compress_raw,
                ),
            )
            is_end = next_row == len(rows)
            if not count and required_bytes:
                self._data = _grow_buffer(self._data, required_bytes)
                continue
            packed = self._compress_raw[:count]
            # Relative to the first offset, since sums with absolute offsets could overflow.
            relative = packed["base_offset"] - packed["base_offset"][0]
            relative += packed["last_offset_delta"]
            fitting_batches = int(np.searchsorted(relative, INT32_MAX, "right"))
            if fitting_batches < count:
                # Batches that are returned together fit into one segment.
                count, is_end = fitting_batches, False
                next_row = int(packed["first_row"][fitting_batches])
            if is_end and keeps_last:
                count -= 1
                next_row = int(packed["first_row"][count])
            if count:
                data = self._seal(packed[:count], uses_append_time)
                yield EncodedBatches(data, count, next_row - row)
            if is_end:
                return
            row = next_row

    def _seal(self, packed: Records, uses_append_time: Longs) -> Bytes:
        append = uses_append_time[packed["first_row"]] != 0
        packed["attributes"] = self._codec | np.where(append, TIMESTAMP_TYPE_MASK, 0)
        packed["leader_epoch"] = self._leader_epoch
        packed["producer_id"] = NO_PRODUCER_ID
        packed["producer_epoch"] = NO_PRODUCER_EPOCH
        packed["base_sequence"] = NO_SEQUENCE
        data = self._data
        if self._codec:
            data = self._compressed(packed)
        seal_batches(data, packed)
        return data[: int(packed["position"][-1] + packed["size_bytes"][-1])]

    def _compressed(self, packed: Records) -> Bytes:
        """Compress the records of batches; update the positions of the batches."""
        starts = packed["position"] + RECORD_BATCH_OVERHEAD_BYTES
        ends = packed["position"] + packed["size_bytes"]
        cuts = range(_BATCHES_PER_TASK, len(starts), _BATCHES_PER_TASK)
        together = np.split(starts, cuts), np.split(ends, cuts)
        apply = map if self._compressors is None else self._compressors.map
        compressed: Iterable[list[bytes]] = apply(self._compress, *together)
        bodies = list(chain.from_iterable(compressed))
        sizes = np.array([len(body) for body in bodies]) + RECORD_BATCH_OVERHEAD_BYTES
        packed["size_bytes"] = sizes
        packed["position"] = np.cumsum(sizes) - sizes
        header = bytes(RECORD_BATCH_OVERHEAD_BYTES)
        return np.frombuffer(bytearray(header + header.join(bodies)), np.uint8)

    def _compress(self, starts: Longs, ends: Longs) -> list[bytes]:
        data = self._data
        return [
            compress(self._codec, data[start:end].tobytes())
            for start, end in zip(starts.tolist(), ends.tolist(), strict=True)
        ]


def encode_batch(rows: RecordRows, base_offset: int, fields: BatchFields) -> bytes:
    """Encode one batch of at least one record, like `kafka_index.write_record_batch`.

    Raises `InputError` for a batch larger than Kafka's formats allow.
    """
    horizon = fields.delete_horizon_ms
    base_timestamp = int(rows.timestamps_ms[0]) if horizon is None else horizon
    packed = np.empty(1, PACKED)
    data: Bytes = np.empty(_CHUNK_BYTES // 16, np.uint8)
    groups = np.zeros(len(rows), np.int64)
    while True:
        _, count, required_bytes = pack_batches(
            *rows.columns, groups, 0, INT64_MAX, base_offset, base_timestamp, data, packed
        )
        if count:
            break
        data = _grow_buffer(data, int(required_bytes))
    batch = packed[0]
    codec = parse_compression_type(fields.compression)
    if codec:
        records = compress(codec, data[RECORD_BATCH_OVERHEAD_BYTES : batch.size_bytes].tobytes())
        batch.size_bytes = RECORD_BATCH_OVERHEAD_BYTES + len(records)
        data = np.empty(batch.size_bytes, np.uint8)
        data[RECORD_BATCH_OVERHEAD_BYTES:] = np.frombuffer(records, np.uint8)
    if fields.last_offset_delta is not None:
        batch.last_offset_delta = fields.last_offset_delta
    if fields.log_append_time_ms is not None:
        batch.max_timestamp = fields.log_append_time_ms
    batch.attributes = fields.attributes()
    batch.leader_epoch = fields.leader_epoch
    batch.producer_id = fields.producer_id
    batch.producer_epoch = fields.producer_epoch
    batch.base_sequence = fields.base_sequence
    seal_batches(data, packed)
    return data[: batch.size_bytes].tobytes()


def _grow_buffer(data: Bytes, required_bytes: int) -> Bytes:
    if required_bytes > INT32_MAX:
        raise InputError(
            "a batch is too large", expected=f"{INT32_MAX} or less", found=required_bytes
        )
    # Doubled, because encoding restarts the batch for each record that does not fit.
    return np.empty(max(required_bytes, 2 * len(data)), np.uint8)
