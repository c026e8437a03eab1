"""Encode columns of records as v2 batches, like `DefaultRecord.writeTo`, in bulk.

`pack_batches` writes the records of consecutive batches and leaves space for the headers.
`seal_batches` writes the headers and checksums, after compression if any. Sources: Kafka's
``DefaultRecord.writeTo``, ``MemoryRecordsBuilder`` and ``DefaultRecordBatch.writeHeader``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kafka_index.core.format.integers import INT32_MAX
from kafka_index.core.format.records import (
    LOG_OVERHEAD_BYTES,
    MAGIC_RECORD_BATCH,
    RECORD_BATCH_HEADER,
    RECORD_BATCH_OVERHEAD_BYTES,
)
from kafka_index.core.kernels.batch_header import checksums_of
from kafka_index.core.kernels.compile_cache import compiled
from kafka_index.core.kernels.memory import (
    Integer,
    Records,
    copy_bytes,
    field_writer,
    record_type,
    write_int8,
)

#: A batch: position, size including the header, row of its first record, and header fields. The
#: caller sets the last five, which do not depend on the records.
PACKED = record_type(
    "position",
    "size_bytes",
    "first_row",
    "base_offset",
    "last_offset_delta",
    "base_timestamp",
    "max_timestamp",
    "record_count",
    "attributes",
    "leader_epoch",
    "producer_id",
    "producer_epoch",
    "base_sequence",
)

_write_base_offset: Any = field_writer(RECORD_BATCH_HEADER, "base_offset")
_write_length: Any = field_writer(RECORD_BATCH_HEADER, "length")
_write_leader_epoch: Any = field_writer(RECORD_BATCH_HEADER, "leader_epoch")
_write_magic: Any = field_writer(RECORD_BATCH_HEADER, "magic")
_write_crc: Any = field_writer(RECORD_BATCH_HEADER, "crc")
_write_attributes: Any = field_writer(RECORD_BATCH_HEADER, "attributes")
_write_last_offset_delta: Any = field_writer(RECORD_BATCH_HEADER, "last_offset_delta")
_write_base_timestamp: Any = field_writer(RECORD_BATCH_HEADER, "base_timestamp_ms")
_write_max_timestamp: Any = field_writer(RECORD_BATCH_HEADER, "max_timestamp_ms")
_write_producer_id: Any = field_writer(RECORD_BATCH_HEADER, "producer_id")
_write_producer_epoch: Any = field_writer(RECORD_BATCH_HEADER, "producer_epoch")
_write_base_sequence: Any = field_writer(RECORD_BATCH_HEADER, "base_sequence")
_write_record_count: Any = field_writer(RECORD_BATCH_HEADER, "record_count")


@compiled
def _zigzag(value: Integer) -> np.uint64:
    signed = np.int64(value)
    return np.uint64((signed << np.int64(1)) ^ (signed >> np.int64(63)))


@compiled
def varint_size(value: Integer) -> Integer:
    """Return the size of a number as a zigzag varint, in bytes (``ByteUtils.sizeOfVarlong``)."""
    left = _zigzag(value) >> np.uint64(7)
    size = np.int64(1)
    while left:
        left >>= np.uint64(7)
        size += 1
    return size


@compiled
def _write_varint(place: np.uint64, value: Integer) -> np.uint64:
    """Write a zigzag varint; return the address after it."""
    left = _zigzag(value)
    while left > np.uint64(0x7F):
        write_int8(place, np.int64(left & np.uint64(0x7F)) | np.int64(0x80))
        left >>= np.uint64(7)
        place += np.uint64(1)
    write_int8(place, np.int64(left))
    return place + np.uint64(1)


@compiled
def _field_size(size: Integer) -> Integer:
    return varint_size(size) + max(size, 0)


@compiled
def _write_field(place: np.uint64, address: Integer, size: Integer) -> np.uint64:
    """Write bytes after their length, -1 for null; return the address after them."""
    place = _write_varint(place, size)
    if size > 0:
        copy_bytes(place, np.uint64(address), size)
        place += np.uint64(size)
    return place


@compiled
def pack_batches(
    offsets: NDArray[np.int64],
    timestamps: NDArray[np.int64],
    keys: NDArray[np.int64],
    key_sizes: NDArray[np.int64],
    values: NDArray[np.int64],
    value_sizes: NDArray[np.int64],
    header_starts: NDArray[np.int64],
    headers: NDArray[np.int64],
    groups: NDArray[np.int64],
    first_row: int,
    max_batch_bytes: int,
    base_offset: int,
    base_timestamp: int,
    data: NDArray[np.uint8],
    packed: Records,
) -> tuple[Integer, Integer, Integer]:
    """Encode records into batches until the records or the output space are exhausted.

    `offsets`, `timestamps` (int64, (n,)): offsets ascend. `keys`, `key_sizes`, `values`,
    `value_sizes` (int64, (n,)): memory addresses and sizes in bytes, -1 for null. `header_starts`
    (int64, (n + 1,)): start of each record's headers in `headers`. `headers` (int64, (4, m)):
    addresses and sizes of header names and values. `groups` (int64, (n,)): records of different
    groups never share a batch. `first_row`: the first record. `max_batch_bytes`: maximum size of a
    batch with more than one record. `base_offset`, `base_timestamp`: of the first batch; if
    `base_offset` is negative, the offset and timestamp of the first record are used. `data`
    (uint8), `packed` (PACKED, (b,)): filled. Returns the row after the last encoded record, the
    number of batches, and, if the space is exhausted, the minimum size of the next batch, otherwise
    0.
    """
    start = np.uint64(data.ctypes.data)
    room = np.int64(len(data))
    used = np.int64(0)
    row = np.int64(first_row)
    count = np.int64(0)
    while row < len(offsets):
        if count == len(packed):
            return row, count, np.int64(RECORD_BATCH_OVERHEAD_BYTES)
        batch_offset, batch_timestamp = offsets[row], timestamps[row]
        if base_offset >= 0 and row == first_row:
            batch_offset, batch_timestamp = np.int64(base_offset), np.int64(base_timestamp)
        size = np.int64(RECORD_BATCH_OVERHEAD_BYTES)
        largest = np.int64(-1)
        first = row
        while row < len(offsets):
            delta = offsets[row] - batch_offset
            body = (
                1
                + varint_size(timestamps[row] - batch_timestamp)
                + varint_size(delta)
                + _field_size(key_sizes[row])
                + _field_size(value_sizes[row])
                + varint_size(header_starts[row + 1] - header_starts[row])
            )
            for number in range(header_starts[row], header_starts[row + 1]):
                body += _field_size(headers[1, number]) + _field_size(headers[3, number])
            following = size + varint_size(body) + body
            if row > first and (
                following > max_batch_bytes or delta > INT32_MAX or groups[row] != groups[first]
            ):
                break
            if used + following > room:
                # The batch is started again with more space, or in the next call.
                return first, count, following
            place = start + np.uint64(used + size)
            place = _write_varint(place, body)
            write_int8(place, np.int64(0))
            place = _write_varint(place + np.uint64(1), timestamps[row] - batch_timestamp)
            place = _write_varint(place, delta)
            place = _write_field(place, keys[row], key_sizes[row])
            place = _write_field(place, values[row], value_sizes[row])
            place = _write_varint(place, header_starts[row + 1] - header_starts[row])
            for number in range(header_starts[row], header_starts[row + 1]):
                place = _write_field(place, headers[0, number], headers[1, number])
                place = _write_field(place, headers[2, number], headers[3, number])
            size = following
            largest = max(largest, timestamps[row])
            row += 1
        batch = packed[count]
        batch.position = used
        batch.size_bytes = size
        batch.first_row = first
        batch.base_offset = batch_offset
        batch.last_offset_delta = offsets[row - 1] - batch_offset
        batch.base_timestamp = batch_timestamp
        batch.max_timestamp = largest
        batch.record_count = row - first
        used += size
        count += 1
    return row, count, np.int64(0)


@compiled
def seal_batches(data: NDArray[np.uint8], packed: Records) -> None:
    """Write the headers and checksums of batches.

    `data` (uint8): the batches. `packed` (PACKED, (n,)): their positions and header fields.
    """
    begin = np.uint64(data.ctypes.data)
    for number in range(len(packed)):
        batch = packed[number]
        start = begin + np.uint64(batch.position)
        _write_base_offset(start, batch.base_offset)
        _write_length(start, batch.size_bytes - LOG_OVERHEAD_BYTES)
        _write_leader_epoch(start, batch.leader_epoch)
        _write_magic(start, np.int64(MAGIC_RECORD_BATCH))
        _write_attributes(start, batch.attributes)
        _write_last_offset_delta(start, batch.last_offset_delta)
        _write_base_timestamp(start, batch.base_timestamp)
        _write_max_timestamp(start, batch.max_timestamp)
        _write_producer_id(start, batch.producer_id)
        _write_producer_epoch(start, batch.producer_epoch)
        _write_base_sequence(start, batch.base_sequence)
        _write_record_count(start, batch.record_count)
        _, checksum = checksums_of(start, batch.size_bytes)
        _write_crc(start, checksum)


def warm_up(nothing: NDArray[np.int64]) -> None:
    headers = np.empty((4, 0), np.int64)
    starts = np.zeros(1, np.int64)
    data, packed = np.empty(0, np.uint8), np.empty(0, PACKED)
    columns = *(nothing,) * 6, starts, headers, nothing
    pack_batches(*columns, 0, 0, -1, 0, data, packed)
    seal_batches(data, packed)
