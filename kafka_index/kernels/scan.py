"""The scan: walks record batches of a log into columns, verifying each, and stops as a broker does.

Sources: Kafka's ``FileLogInputStream.nextBatch``, ``DefaultRecordBatch.ensureValid``,
``LegacyRecord.ensureValid`` and ``LogSegment.recover``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kafka_index.kernels.big_endian import (
    UINT32_MASK,
    Integer,
    prefetch,
    read_int8,
    read_int16,
    read_int32,
    read_int64,
    write_int64_native,
)
from kafka_index.kernels.compile_cache import compiled
from kafka_index.kernels.crc import crc32, crc32c_extend
from kafka_index.kernels.markers import CONTROL_NONE, read_control_batch
from kafka_index.layout.index_entries import INT32_MAX
from kafka_index.layout.records import (
    CONTROL_MASK,
    HEADER_SIZE_UP_TO_MAGIC,
    LOG_OVERHEAD_BYTES,
    MAGIC_POSITION,
    MAGIC_RECORD_BATCH,
    MESSAGE_V0_HEADER,
    MESSAGE_V1_HEADER,
    MIN_LENGTH,
    NO_LEADER_EPOCH,
    NO_PRODUCER_ID,
    NO_TIMESTAMP,
    RECORD_BATCH_HEADER,
    RECORD_BATCH_OVERHEAD_BYTES,
    field_position,
)

#: Rows of the array that `scan_batches` fills: one int64 column each, what a build needs.
(
    COLUMN_POSITION,
    COLUMN_SIZE,
    COLUMN_BASE_OFFSET,
    COLUMN_LAST_OFFSET,
    COLUMN_MAX_TIMESTAMP,
    COLUMN_LEADER_EPOCH,
    COLUMN_ATTRIBUTES,
    COLUMN_PRODUCER_ID,
    COLUMN_CONTROL_TYPE,
    COLUMN_PRODUCER_EPOCH,
    COLUMN_BASE_SEQUENCE,
    COLUMN_COORDINATOR_EPOCH,
    COLUMN_CONTROL_TIMESTAMP,
) = range(13)
#: The last four are filled where there is a producer, and the last two where it is a marker.
SCAN_COLUMNS = 13
#: Batches a chunk: enough to spread what a chunk costs behind the scan. No power of two, because
#: columns that lie 128 KiB apart fall on the same cache lines, and a scan takes twice as long.
CHUNK_BATCHES = 16384 + 72

#: Why a call of `scan_batches` came back.
(
    SCAN_ROWS_FULL,
    SCAN_NEED_BYTES,
    SCAN_END,
    SCAN_TORN_HEADER,
    SCAN_TORN_BATCH,
    SCAN_BAD_LENGTH,
    SCAN_BAD_SIZE,
    SCAN_BAD_CRC,
    SCAN_OFFSET_OVERFLOW,
) = range(9)

_SMALL_BATCHES_AHEAD = 24
_LARGE_BATCHES_AHEAD = 4
_CACHE_LINE = 64
_SMALL_BATCH = 512
_LENGTH = field_position(RECORD_BATCH_HEADER, "length")
_LEADER_EPOCH = field_position(RECORD_BATCH_HEADER, "leader_epoch")
_CRC = field_position(RECORD_BATCH_HEADER, "crc")
_ATTRIBUTES = field_position(RECORD_BATCH_HEADER, "attributes")
_LAST_OFFSET_DELTA = field_position(RECORD_BATCH_HEADER, "last_offset_delta")
_MAX_TIMESTAMP = field_position(RECORD_BATCH_HEADER, "max_timestamp_ms")
_PRODUCER_ID = field_position(RECORD_BATCH_HEADER, "producer_id")
_PRODUCER_EPOCH = field_position(RECORD_BATCH_HEADER, "producer_epoch")
_BASE_SEQUENCE = field_position(RECORD_BATCH_HEADER, "base_sequence")
_MESSAGE_CRC = field_position(MESSAGE_V0_HEADER, "crc")
_MESSAGE_ATTRIBUTES = field_position(MESSAGE_V0_HEADER, "attributes")
_MESSAGE_TIMESTAMP = field_position(MESSAGE_V1_HEADER, "timestamp_ms")


@compiled
def _message_crc_matches(start: np.uint64, size: Integer) -> Any:
    found = crc32(start + np.uint64(MAGIC_POSITION), np.uint64(size - MAGIC_POSITION))
    return found == read_int32(start + np.uint64(_MESSAGE_CRC)) & UINT32_MASK


@compiled
def _read_producer(
    start: np.uint64,
    size: Integer,
    attributes: Integer,
    first_row: np.uint64,
    stride: np.uint64,
    count: Integer,
) -> Integer:
    """Fill the columns of a batch with a producer; return its control type."""
    row = first_row + np.uint64(8 * count)
    producer_epoch = read_int16(start + np.uint64(_PRODUCER_EPOCH))
    base_sequence = read_int32(start + np.uint64(_BASE_SEQUENCE))
    write_int64_native(row + np.uint64(COLUMN_PRODUCER_EPOCH) * stride, producer_epoch)
    write_int64_native(row + np.uint64(COLUMN_BASE_SEQUENCE) * stride, base_sequence)
    if attributes & CONTROL_MASK == 0:
        return np.int64(CONTROL_NONE)
    control, epoch, timestamp = read_control_batch(np.int64(start), np.int64(start) + size)
    write_int64_native(row + np.uint64(COLUMN_COORDINATOR_EPOCH) * stride, epoch)
    write_int64_native(row + np.uint64(COLUMN_CONTROL_TIMESTAMP) * stride, timestamp)
    return control


@compiled
def scan_batches(  # noqa: PLR0911, PLR0912, PLR0915, C901, because it is one loop, and hot
    window: NDArray[np.uint8],
    window_position: int,
    log_size: int,
    position: Integer,
    segment_base_offset: int,
    verify_crc: bool,
    columns: NDArray[np.int64],
    count: int,
) -> tuple[int, Integer, int]:
    """Walk batches from a position until the columns, the window or the log ends.

    Parameters
    ----------
    window : ndarray of uint8
        Bytes of the log from ``window_position`` on.
    window_position : int
        Byte position in the log of ``window[0]``.
    log_size : int
        Size of the whole log in bytes.
    position : int
        Byte position of the next batch: all the state there is between two calls.
    segment_base_offset : int
        Offsets must lie in this offset .. this + 2^31 - 1.
    verify_crc : bool
        Without it only headers are read, and no other byte is touched.
    columns : ndarray of int64, shape (SCAN_COLUMNS, capacity)
        Filled, a row of each column for each batch.
    count : int
        How many batches are in there already.

    Returns
    -------
    tuple of int
        One of the ``SCAN_`` codes, the position of the next (or the faulty) batch, and how many
        batches are filled in now.
    """
    window_end = window_position + len(window)
    capacity = columns.shape[1]
    address = np.uint64(window.ctypes.data)
    # Stores go by address too: an index that might be negative costs more than the store.
    first_row = np.uint64(columns.ctypes.data)
    stride = np.uint64(columns.strides[0])
    while True:
        if position >= log_size - HEADER_SIZE_UP_TO_MAGIC:
            return (SCAN_END if position == log_size else SCAN_TORN_HEADER), position, count
        if count == capacity:
            return SCAN_ROWS_FULL, position, count
        if position < window_position or position + HEADER_SIZE_UP_TO_MAGIC > window_end:
            return SCAN_NEED_BYTES, position, count
        start = address + np.uint64(position - window_position)
        length = read_int32(start + np.uint64(_LENGTH))
        if length < MIN_LENGTH:
            return SCAN_BAD_LENGTH, position, count
        size = LOG_OVERHEAD_BYTES + length
        if position > log_size - size:
            return SCAN_TORN_BATCH, position, count
        magic = read_int8(start + np.uint64(MAGIC_POSITION))
        if magic >= MAGIC_RECORD_BATCH and size < RECORD_BATCH_OVERHEAD_BYTES:
            return SCAN_BAD_SIZE, position, count
        if position + size > window_end:
            return SCAN_NEED_BYTES, position, count
        if not verify_crc:
            # Where headers alone are read, the CPU cannot guess what comes next; but batches are
            # of similar sizes.
            ahead = _SMALL_BATCHES_AHEAD if size <= _SMALL_BATCH else _LARGE_BATCHES_AHEAD
            header_ahead = start + np.uint64(ahead * size)
            prefetch(header_ahead)
            prefetch(header_ahead + np.uint64(_CACHE_LINE))
        base_offset = read_int64(start)
        control: Integer = np.int64(CONTROL_NONE)
        if magic >= MAGIC_RECORD_BATCH:
            if verify_crc:
                found = crc32c_extend(
                    np.uint32(0),
                    start + np.uint64(_ATTRIBUTES),
                    np.uint64(size - _ATTRIBUTES),
                )
                if np.int64(found) != read_int32(start + np.uint64(_CRC)) & UINT32_MASK:
                    return SCAN_BAD_CRC, position, count
            leader_epoch = read_int32(start + np.uint64(_LEADER_EPOCH))
            attributes = read_int16(start + np.uint64(_ATTRIBUTES))
            last_offset = base_offset + read_int32(start + np.uint64(_LAST_OFFSET_DELTA))
            max_timestamp = read_int64(start + np.uint64(_MAX_TIMESTAMP))
            producer_id = read_int64(start + np.uint64(_PRODUCER_ID))
            if producer_id >= 0:
                control = _read_producer(start, size, attributes, first_row, stride, count)
        else:
            if verify_crc and not _message_crc_matches(start, size):
                return SCAN_BAD_CRC, position, count
            leader_epoch = np.int64(NO_LEADER_EPOCH)
            attributes = read_int8(start + np.uint64(_MESSAGE_ATTRIBUTES))
            last_offset = base_offset
            max_timestamp = np.int64(NO_TIMESTAMP)
            if magic != 0:
                max_timestamp = read_int64(start + np.uint64(_MESSAGE_TIMESTAMP))
            producer_id = np.int64(NO_PRODUCER_ID)
        relative_offset = last_offset - segment_base_offset
        if relative_offset < 0 or relative_offset > INT32_MAX:
            return SCAN_OFFSET_OVERFLOW, position, count
        row = first_row + np.uint64(8 * count)
        write_int64_native(row + np.uint64(COLUMN_POSITION) * stride, position)
        write_int64_native(row + np.uint64(COLUMN_SIZE) * stride, size)
        write_int64_native(row + np.uint64(COLUMN_BASE_OFFSET) * stride, base_offset)
        write_int64_native(row + np.uint64(COLUMN_LAST_OFFSET) * stride, last_offset)
        write_int64_native(row + np.uint64(COLUMN_MAX_TIMESTAMP) * stride, max_timestamp)
        write_int64_native(row + np.uint64(COLUMN_ATTRIBUTES) * stride, attributes)
        write_int64_native(row + np.uint64(COLUMN_PRODUCER_ID) * stride, producer_id)
        write_int64_native(row + np.uint64(COLUMN_CONTROL_TYPE) * stride, control)
        write_int64_native(row + np.uint64(COLUMN_LEADER_EPOCH) * stride, leader_epoch)
        count += 1
        position += size


@compiled
def batch_checksums(window: NDArray[np.uint8], start: int, size: int) -> tuple[Integer, Integer]:
    """Return the stored and the computed checksum of the entry of a size at a place."""
    address = np.uint64(window.ctypes.data) + np.uint64(start)
    if read_int8(address + np.uint64(MAGIC_POSITION)) >= MAGIC_RECORD_BATCH:
        stored = read_int32(address + np.uint64(_CRC)) & UINT32_MASK
        first = address + np.uint64(_ATTRIBUTES)
        return stored, np.int64(crc32c_extend(np.uint32(0), first, np.uint64(size - _ATTRIBUTES)))
    stored = read_int32(address + np.uint64(_MESSAGE_CRC)) & UINT32_MASK
    covered = address + np.uint64(MAGIC_POSITION)
    return stored, crc32(covered, np.uint64(size - MAGIC_POSITION))
