"""The table of records: its columns, and their conversion from decoded chunks.

The first eight columns have the names and types of Spark's Kafka source. Columns that are not
requested are not decoded.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kafka_index.core.errors import InputError
from kafka_index.core.format.longs import Longs
from kafka_index.core.format.records import NO_SEQUENCE, TIMESTAMP_TYPE_MASK
from kafka_index.core.format.strings import decode_utf8
from kafka_index.core.kernels.headers import (
    CONTROL_MESSAGE,
    HEADER_BASE_SEQUENCE,
    HEADER_PRODUCER_EPOCH,
)
from kafka_index.core.kernels.producer_state import fill_last_sequences
from kafka_index.core.records.batch_table import BatchColumns, WindowBatches
from kafka_index.core.records.record_decoder import RecordChunk, RecordParts

#: ``TimestampType`` of a batch.
NO_TIMESTAMP_TYPE, CREATE_TIME, LOG_APPEND_TIME = -1, 0, 1

#: The column with the error, in rows that represent a corrupt range.
CORRUPT_RECORD = "_corrupt_record"

_HEADERS = pa.list_(
    pa.field(
        "element",
        pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]),
        nullable=False,
    )
)
_TIMESTAMP = pa.timestamp("ms", tz="UTC")

#: All columns, the columns of Spark's Kafka source first.
RECORD_SCHEMA = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", _TIMESTAMP),
        pa.field("timestampType", pa.int32()),
        pa.field("headers", _HEADERS),
        pa.field("leader_epoch", pa.int32()),
        pa.field("producer_id", pa.int64()),
        pa.field("producer_epoch", pa.int16()),
        pa.field("sequence", pa.int32()),
        pa.field("batch_base_offset", pa.int64()),
        pa.field("position_bytes", pa.int64()),
        pa.field("is_control", pa.bool_()),
        pa.field("is_aborted", pa.bool_()),
    ]
)
#: The default columns.
DEFAULT_COLUMNS = tuple(RECORD_SCHEMA.names[:8])

_PARTS = {
    "key": RecordParts.KEYS,
    "value": RecordParts.VALUES,
    "headers": RecordParts.HEADERS,
}


class RecordTable:
    """Converts the chunks of one partition to Arrow record batches.

    `columns` are names in `RECORD_SCHEMA`, in result order; an unknown name raises `InputError`.
    """

    def __init__(
        self, topic: str, partition: int, columns: Sequence[str] = DEFAULT_COLUMNS
    ) -> None:
        self.schema = record_schema(columns)
        #: Parts of records that must be decoded for these columns.
        self.parts = RecordParts.NONE
        for name in columns:
            self.parts |= _PARTS.get(name, RecordParts.NONE)
        self._topic = topic
        self._partition = partition
        self._constants: dict[tuple[str, object], pa.Array] = {}

    def convert(self, chunk: RecordChunk, source: WindowBatches) -> pa.RecordBatch:
        arrays = [self._column(name, chunk, source) for name in self.schema.names]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _column(  # noqa: PLR0911, PLR0912, C901, because each column is one exit
        self, name: str, chunk: RecordChunk, source: WindowBatches
    ) -> pa.Array:
        batches = source.batches
        match name:
            case "key":
                return chunk.keys
            case "value":
                return chunk.values
            case "headers":
                # Null instead of an empty list, like Spark's Kafka source.
                none = self._constant(name, None, len(chunk))
                return _headers(chunk) if chunk.has_headers else none
            case "offset":
                return _numbers(chunk.offsets, pa.int64())
            case "timestamp":
                return _numbers(chunk.timestamps_ms, _TIMESTAMP)
            case "topic":
                return self._constant(name, self._topic, len(chunk))
            case "partition":
                return self._constant(name, self._partition, len(chunk))
            case "timestampType":
                return self._batch_column(name, chunk, timestamp_types(source))
            case "leader_epoch":
                return self._batch_column(name, chunk, batches.leader_epoch)
            case "producer_id":
                return self._batch_column(name, chunk, batches.producer_id)
            case "position_bytes":
                return self._batch_column(name, chunk, batches.position_bytes)
            case "batch_base_offset":
                return self._batch_column(name, chunk, _base_offsets(chunk, batches))
            case "is_control":
                return self._batch_column(name, chunk, batches.is_control)
            case "is_aborted":
                none = np.zeros(batches.rows, np.bool_)
                aborted = none if source.is_aborted is None else source.is_aborted
                return self._batch_column(name, chunk, aborted)
            case "producer_epoch":
                epochs = source.read_headers()[HEADER_PRODUCER_EPOCH]
                return self._batch_column(name, chunk, epochs)
        return pa.array(_sequences(chunk, source)).cast(pa.int32())

    def _batch_column(self, name: str, chunk: RecordChunk, values: NDArray[np.generic]) -> pa.Array:
        """Return a column that has the value of each record's batch."""
        chunk_values = values[chunk.first_batch : chunk.first_batch + len(chunk.batch_ends)]
        if (chunk_values == chunk_values[0]).all():
            return self._constant(name, chunk_values[0].item(), len(chunk))
        column_type = self.schema.field(name).type
        return pa.array(chunk.of_batches(values).astype(column_type.to_pandas_dtype()), column_type)

    def _constant(self, name: str, value: object, count: int) -> pa.Array:
        """Return a column of one value, usually a slice of a cached column."""
        cached_column = self._constants.get((name, value))
        if cached_column is None or len(cached_column) < count:
            column_type = self.schema.field(name).type
            cached_column = pa.repeat(pa.scalar(value, column_type), count + count // 4)
            # Columns usually have few different values, in long runs; otherwise, the cache is
            # cleared.
            if len(self._constants) > len(self.schema):
                self._constants.clear()
            self._constants[name, value] = cached_column
        return cached_column[:count]


def record_schema(columns: Collection[str]) -> pa.Schema:
    """Return the schema of some columns of `RECORD_SCHEMA`, in their order.

    Raises `InputError` for an unknown or repeated column.
    """
    for name in columns:
        if name not in RECORD_SCHEMA.names:
            raise InputError(f"unknown column {name}", expected=", ".join(RECORD_SCHEMA.names))
    if len(set(columns)) < len(columns):
        raise InputError("a column is repeated", found=", ".join(columns))
    return pa.schema([RECORD_SCHEMA.field(name) for name in columns])


def timestamp_types(source: WindowBatches) -> Longs:
    """Return the timestamp type of each batch (``RecordBatch.timestampType``)."""
    batches = source.batches
    types = np.where(batches.attributes & TIMESTAMP_TYPE_MASK, LOG_APPEND_TIME, CREATE_TIME)
    if (batches.control_type == CONTROL_MESSAGE).any():
        types[batches.magic == 0] = NO_TIMESTAMP_TYPE
    return types


def _base_offsets(chunk: RecordChunk, batches: BatchColumns) -> Longs:
    base_offsets = batches.base_offset
    if chunk.inner_offsets:
        base_offsets = base_offsets.copy()
        for number, offset in chunk.inner_offsets.items():
            base_offsets[number] = offset
    return base_offsets


def _sequences(chunk: RecordChunk, source: WindowBatches) -> Longs:
    """Return the sequences of records; 2^31 - 1 wraps to 0 (``incrementSequence``)."""
    base = chunk.of_batches(source.read_headers()[HEADER_BASE_SEQUENCE])
    sequences = np.full(len(chunk), NO_SEQUENCE, np.int64)
    numbered = base >= 0
    if numbered.any():
        deltas = chunk.offsets - chunk.of_batches(source.batches.base_offset)
        numbered_sequences = sequences[numbered]
        fill_last_sequences(base[numbered], deltas[numbered], numbered_sequences)
        sequences[numbered] = numbered_sequences
    return sequences


def _numbers(values: Longs, kind: pa.DataType) -> pa.Array:
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)], 0)


def _headers(chunk: RecordChunk) -> pa.Array:
    """Return the headers of each record; null for none."""
    counts = chunk.header_counts()
    names, values = chunk.header_columns()
    pairs = pa.StructArray.from_arrays(
        [_decode_names(names), values], fields=list(_HEADERS.value_type)
    )
    ends = np.zeros(len(chunk) + 1, np.int32)
    np.cumsum(counts, out=ends[1:])
    present = pa.py_buffer(np.packbits(counts > 0, bitorder="little"))
    return pa.Array.from_buffers(
        _HEADERS, len(chunk), [present, pa.py_buffer(ends)], children=[pairs]
    )


def _decode_names(names: pa.Array) -> pa.Array:
    """Decode names; invalid UTF-8 is replaced, as in Kafka's ``RecordHeader.key``."""
    try:
        return names.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([decode_utf8(name) for name in names.to_pylist()], pa.string())
