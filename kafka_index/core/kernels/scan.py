"""Scan the record batches of a log into columns; verify each, and stop like a broker's recovery.

Sources: Kafka's ``FileLogInputStream.nextBatch``, ``DefaultRecordBatch.ensureValid``,
``LegacyRecord.ensureValid`` and ``LogSegment.recover``.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kafka_index.core.format.longs import Longs
from kafka_index.core.format.records import (
    CONTROL_MASK,
    DELETE_HORIZON_MASK,
    HEADER_SIZE_UP_TO_MAGIC,
    MAGIC_RECORD_BATCH,
    NO_LEADER_EPOCH,
    NO_PRODUCER_ID,
    NO_TIMESTAMP,
)
from kafka_index.core.kernels.batch_header import (
    AT_END,
    BAD_LENGTH,
    BAD_SIZE,
    TORN_BATCH,
    TORN_HEADER,
    batch_size,
    checksum_matches,
    magic_of,
    read_attributes,
    read_base_offset,
    read_base_sequence,
    read_last_offset_delta,
    read_leader_epoch,
    read_max_timestamp,
    read_message_attributes,
    read_message_timestamp,
    read_producer_epoch,
    read_producer_id,
    read_record_count,
)
from kafka_index.core.kernels.compile_cache import compiled
from kafka_index.core.kernels.headers import CONTROL_MESSAGE, CONTROL_NONE, read_control_batch
from kafka_index.core.kernels.index_entries import can_convert_to_relative_offset
from kafka_index.core.kernels.memory import Integer, prefetch, read_int64_native, write_int64_native


class BatchColumns(NamedTuple):
    """A chunk of batches in file order: int64 arrays of equal length.

    A scan reuses the memory of a chunk: it is valid only until the next one is requested.

    Parameters
    ----------
    position_bytes, size_bytes : ndarray of int64, shape (n,)
        Position in the log and size of a batch.
    base_offset, last_offset : ndarray of int64, shape (n,)
        Absolute.
    max_timestamp_ms : ndarray of int64, shape (n,)
        -1 for message format v0.
    leader_epoch : ndarray of int64, shape (n,)
        -1 for none.
    attributes : ndarray of int64, shape (n,)
        As in the batch header.
    producer_id : ndarray of int64, shape (n,)
        -1 for none.
    control_type : ndarray of int64, shape (n,)
        Type of the record of a control batch with a producer ID, or one of the codes of
        `kafka_index.core.kernels.headers`; `CONTROL_NONE` for all other batches.
    producer_epoch, base_sequence : ndarray of int64, shape (n,)
        Undefined if there is no producer.
    coordinator_epoch, control_timestamp_ms : ndarray of int64, shape (n,)
        From the record of a transaction marker; undefined for all other batches.
    magic : ndarray of int64, shape (n,)
        A broker treats values above 2 as 2, and negative ones as 1. Consumers fail at such values.
    record_count : ndarray of int64, shape (n,)
        As in the batch header; 1 for magic 0 and 1. -1 if a batch table lacks this column.
    """

    position_bytes: Longs
    size_bytes: Longs
    base_offset: Longs
    last_offset: Longs
    max_timestamp_ms: Longs
    leader_epoch: Longs
    attributes: Longs
    producer_id: Longs
    control_type: Longs
    producer_epoch: Longs
    base_sequence: Longs
    coordinator_epoch: Longs
    control_timestamp_ms: Longs
    magic: Longs
    record_count: Longs

    @property
    def rows(self) -> int:
        return len(self.position_bytes)

    @property
    def is_control(self) -> NDArray[np.bool_]:
        """Whether each batch is a control batch (``isControlBatch``); v0 and v1 messages never are.

        In the attributes of a message this bit has no meaning.
        """
        has_bit: NDArray[np.bool_] = self.attributes & CONTROL_MASK != 0
        has_bit[self.control_type == CONTROL_MESSAGE] = False
        return has_bit

    @property
    def has_unknown_magic(self) -> NDArray[np.bool_]:
        """Whether each magic byte is outside 0 to 2.

        No checksum covers this byte.
        """
        is_unknown: NDArray[np.bool_] = (self.magic < 0) | (self.magic > MAGIC_RECORD_BATCH)
        return is_unknown

    def slice(self, start: int, end: int) -> BatchColumns:
        """Return the batches of a range of rows, as views."""
        return BatchColumns(*(column[start:end] for column in self))

    @property
    def end_bytes(self) -> int:
        """Position after the last batch; the chunk must not be empty."""
        return int(self.position_bytes[-1] + self.size_bytes[-1])


#: Rows of the array filled by `scan_batches`, one per field of `BatchColumns`.
SCAN_COLUMNS = len(BatchColumns._fields)
_ROW: Any = BatchColumns._make(range(SCAN_COLUMNS))

#: Batches per chunk. Not a power of two: columns at a distance of 128 KiB share cache lines, which
#: doubles the time of a scan.
CHUNK_BATCHES = 16384 + 72

#: Why `scan_batches` returned before the end of the batches.
SCAN_ROWS_FULL, SCAN_NEED_BYTES = range(2)
#: Why the batches ended: the codes of `batch_size`, and codes of further checks by `scan_batches`.
SCAN_END = AT_END
SCAN_TORN_HEADER = TORN_HEADER
SCAN_BAD_LENGTH = BAD_LENGTH
SCAN_TORN_BATCH = TORN_BATCH
SCAN_BAD_SIZE = BAD_SIZE
SCAN_BAD_CRC = BAD_SIZE - 1
SCAN_OFFSET_OVERFLOW = BAD_SIZE - 2

# Placeholder for the control type of a marker that has not been read yet.
_CONTROL_UNREAD = CONTROL_MESSAGE - 1

_SMALL_BATCHES_AHEAD = 24
_LARGE_BATCHES_AHEAD = 4
_CACHE_LINE = 64
_MARKERS_AHEAD = 16
_SMALL_BATCH = 512


def scan_batches(
    window: NDArray[np.uint8],
    window_position: int,
    log_size: int,
    position: Integer,
    segment_base_offset: int,
    verify_crc: bool,
    columns: Longs,
    count: int,
) -> tuple[int, Integer, int]:
    """Scan batches from a position until the columns are full, or the window or the log ends.

    `window` (uint8): bytes of the log from position `window_position` on. `log_size`: size of the
    log. `position`: position of the next batch. `segment_base_offset`: offsets must be within 2^31
    - 1 of it. `verify_crc`: if False, only headers are read. `columns` (int64, (SCAN_COLUMNS,
    capacity)): filled with the fields of `BatchColumns`. `count`: number of batches already in
    them. Returns a ``SCAN_`` code, the position of the next or invalid batch, and the new number of
    batches.
    """
    # Addresses have one type, but numba compiles separately for writable and read-only arrays.
    address = window.ctypes.data
    code, position, filled, has_markers = _scan_window(
        address,
        len(window),
        window_position,
        log_size,
        position,
        segment_base_offset,
        verify_crc,
        columns,
        count,
    )
    if has_markers:
        _read_markers(address - window_position, columns, count, filled)
    return code, position, filled


@compiled
def _read_markers(log: int, columns: Longs, start_row: int, end_row: int) -> None:
    """Fill in the columns of transaction markers, in a separate pass: most logs have none."""
    first_row = np.uint64(columns.ctypes.data)
    stride = np.uint64(columns.strides[0])
    for number in range(start_row, end_row):
        row = first_row + np.uint64(8 * number)
        kind = row + np.uint64(_ROW.control_type) * stride
        if number + _MARKERS_AHEAD < end_row:
            ahead = row + np.uint64(8 * _MARKERS_AHEAD)
            prefetch(
                np.uint64(log + read_int64_native(ahead + np.uint64(_ROW.position_bytes) * stride))
                + np.uint64(_CACHE_LINE)
            )
        if read_int64_native(kind) != _CONTROL_UNREAD:
            continue
        start = log + read_int64_native(row + np.uint64(_ROW.position_bytes) * stride)
        end = start + read_int64_native(row + np.uint64(_ROW.size_bytes) * stride)
        control, epoch, timestamp = read_control_batch(start, end)
        write_int64_native(kind, control)
        write_int64_native(row + np.uint64(_ROW.coordinator_epoch) * stride, epoch)
        write_int64_native(row + np.uint64(_ROW.control_timestamp_ms) * stride, timestamp)


@compiled
def _scan_window(  # noqa: PLR0912, PLR0915, C901, because it is one loop, and hot
    window: int,
    window_bytes: int,
    window_position: int,
    log_size: int,
    position: Integer,
    segment_base_offset: int,
    verify_crc: bool,
    columns: Longs,
    count: int,
) -> tuple[int, Integer, int, bool]:
    """Do the work of `scan_batches` except for markers; also return whether there are markers."""
    window_end = window_position + window_bytes
    capacity = columns.shape[1]
    address = np.uint64(window)
    # Stores use addresses too, since array indexing must handle negative indices.
    first_row = np.uint64(columns.ctypes.data)
    stride = np.uint64(columns.strides[0])
    has_markers = False
    while True:
        left = log_size - position
        if left > HEADER_SIZE_UP_TO_MAGIC:
            if count == capacity:
                return SCAN_ROWS_FULL, position, count, has_markers
            if position < window_position or position + HEADER_SIZE_UP_TO_MAGIC > window_end:
                return SCAN_NEED_BYTES, position, count, has_markers
        start = address + np.uint64(position - window_position)
        size = batch_size(start, left)
        if size < 0:
            return int(size), position, count, has_markers
        if position + size > window_end:
            return SCAN_NEED_BYTES, position, count, has_markers
        if not verify_crc:
            # The hardware prefetcher fails if only headers are read. Since batch sizes are similar,
            # the address of a later header can be estimated.
            ahead = _SMALL_BATCHES_AHEAD if size <= _SMALL_BATCH else _LARGE_BATCHES_AHEAD
            header_ahead = start + np.uint64(ahead * size)
            prefetch(header_ahead)
            prefetch(header_ahead + np.uint64(_CACHE_LINE))
        if verify_crc and not checksum_matches(start, size):
            return SCAN_BAD_CRC, position, count, has_markers
        base_offset = read_base_offset(start)
        control: Integer = np.int64(CONTROL_NONE)
        magic = magic_of(start)
        if magic >= MAGIC_RECORD_BATCH:
            leader_epoch = read_leader_epoch(start)
            attributes = read_attributes(start)
            last_offset = base_offset + read_last_offset_delta(start)
            max_timestamp = read_max_timestamp(start)
            producer_id = read_producer_id(start)
            record_count = read_record_count(start)
            if producer_id >= 0:
                row = first_row + np.uint64(8 * count)
                write_int64_native(
                    row + np.uint64(_ROW.producer_epoch) * stride, read_producer_epoch(start)
                )
                write_int64_native(
                    row + np.uint64(_ROW.base_sequence) * stride, read_base_sequence(start)
                )
                if attributes & CONTROL_MASK:
                    control = np.int64(_CONTROL_UNREAD)
                    has_markers = True
        else:
            control = np.int64(CONTROL_MESSAGE)
            leader_epoch = np.int64(NO_LEADER_EPOCH)
            attributes = read_message_attributes(start)
            last_offset = base_offset
            max_timestamp = np.int64(NO_TIMESTAMP)
            if magic != 0:
                max_timestamp = read_message_timestamp(start)
            producer_id = np.int64(NO_PRODUCER_ID)
            record_count = np.int64(1)
        if not can_convert_to_relative_offset(last_offset, segment_base_offset):
            return SCAN_OFFSET_OVERFLOW, position, count, has_markers
        row = first_row + np.uint64(8 * count)
        write_int64_native(row + np.uint64(_ROW.position_bytes) * stride, position)
        write_int64_native(row + np.uint64(_ROW.size_bytes) * stride, size)
        write_int64_native(row + np.uint64(_ROW.base_offset) * stride, base_offset)
        write_int64_native(row + np.uint64(_ROW.last_offset) * stride, last_offset)
        write_int64_native(row + np.uint64(_ROW.max_timestamp_ms) * stride, max_timestamp)
        write_int64_native(row + np.uint64(_ROW.attributes) * stride, attributes)
        write_int64_native(row + np.uint64(_ROW.producer_id) * stride, producer_id)
        write_int64_native(row + np.uint64(_ROW.control_type) * stride, control)
        write_int64_native(row + np.uint64(_ROW.leader_epoch) * stride, leader_epoch)
        write_int64_native(row + np.uint64(_ROW.magic) * stride, np.int64(magic))
        write_int64_native(row + np.uint64(_ROW.record_count) * stride, record_count)
        count += 1
        position += size


@compiled
def are_contiguous(
    base_offsets: Longs,
    last_offsets: Longs,
    attributes: Longs,
    control_types: Longs,
    next_offset: Integer,
) -> bool:
    """Return whether batches cover all offsets from `next_offset` on, without gap or overlap.

    `base_offsets`, `last_offsets`, `attributes`, `control_types` (int64, (n,)): of `BatchColumns`.
    Returns False, too, if a batch has a delete horizon or is a v0 or v1 message.
    """
    for row in range(len(base_offsets)):
        at = np.uint64(row)
        is_marked = attributes[at] & DELETE_HORIZON_MASK != 0
        is_message = control_types[at] == CONTROL_MESSAGE
        last = last_offsets[at]
        if base_offsets[at] != next_offset or last < next_offset or is_marked or is_message:
            return False
        next_offset = last + 1
    return True


def warm_up(window: NDArray[np.uint8], columns: Longs) -> None:
    scan_batches(window, 0, 0, 0, 0, True, columns, 0)
    _read_markers(0, columns, 0, 0)
    nothing = np.empty(0, np.int64)
    are_contiguous(nothing, nothing, nothing, nothing, 0)
