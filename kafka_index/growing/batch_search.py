"""Batches of a log that grows, found by offset or walked from a position.

Source: Kafka's ``FileRecords``.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from kafka_index.errors import CorruptLogError
from kafka_index.index import TimestampOffset
from kafka_index.index.offset_index import OffsetPosition
from kafka_index.kernels.batch_header import NOT_IN_HEADER, max_timestamp_of, read_batch_fields
from kafka_index.kernels.scan import SCAN_ROWS_FULL
from kafka_index.kernels.walk import (
    STATE_POSITION,
    STATE_TOLD_FIRST_OFFSET,
    STATE_TOLD_POSITION,
    WALK_DONE,
    WALK_NEEDS_FIRST_OFFSET,
    new_state,
    walk_to_offsets,
)
from kafka_index.layout.records import (
    HEADER_SIZE_UP_TO_MAGIC,
    LOG_OVERHEAD_BYTES,
    NO_TIMESTAMP,
)
from kafka_index.records.batch_table import BatchColumns
from kafka_index.records.positions import LogOffsetPosition
from kafka_index.records.record_decoding import first_offset
from kafka_index.scan.scanner import Scanner, entry_length
from kafka_index.storage import Bytes


def find_batch(log: Bytes, offset: int, floor: OffsetPosition) -> LogOffsetPosition | None:
    """Find the batch that holds an offset, or the next one; None when there is none.

    Parameters
    ----------
    log : ndarray of uint8
        The log.
    offset : int
        Absolute.
    floor : OffsetPosition
        Where to begin, from the offset index.

    Raises
    ------
    CorruptLogError
        What is there is no batch, or the index does not fit the log.
    """
    address = np.uint64(log.ctypes.data)
    targets = np.array([offset], np.int64)
    entry = np.array([floor.offset], np.int64), np.array([floor.position], np.int64)
    state = new_state()
    found = np.empty(1, np.int64)
    code = walk_to_offsets(address, len(log), targets, *entry, state, found)
    while code == WALK_NEEDS_FIRST_OFFSET:
        position = int(state[STATE_POSITION])
        state[STATE_TOLD_POSITION] = position
        state[STATE_TOLD_FIRST_OFFSET] = first_offset(_entry_at(log, position))
        code = walk_to_offsets(address, len(log), targets, *entry, state, found)
    if code != WALK_DONE or found[0] < -1:
        raise CorruptLogError(
            "the log cannot be read, or its index does not fit it",
            position_bytes=floor.position,
            hint="rebuild the index files of the partition",
        )
    if found[0] < 0:
        return None
    fields = np.empty((3, 1), np.int64)
    read_batch_fields(address, found, *fields)
    position = int(found[0])
    base_offset = int(fields[0, 0])
    if base_offset == NOT_IN_HEADER:
        base_offset = first_offset(_entry_at(log, position))
    return LogOffsetPosition(base_offset, position, int(fields[2, 0]))


def batches_from(
    log: Bytes, position_bytes: int, base_offset: int, *, verify_crc: bool = False
) -> Iterator[BatchColumns]:
    """Yield the batches from a position on, chunk by chunk, up to the first that is none."""
    scanner = Scanner(base_offset, verify_crc=verify_crc)
    scanner.position = position_bytes
    code = SCAN_ROWS_FULL
    while code == SCAN_ROWS_FULL:
        code = scanner.scan(log, 0, len(log))
        yield from scanner.take()


def largest_timestamp_from(log: Bytes, position_bytes: int, base_offset: int) -> TimestampOffset:
    """Return the first largest timestamp from a position on, and its batch's last offset.

    Source: ``FileRecords.largestTimestampAfter``.
    """
    largest = TimestampOffset(NO_TIMESTAMP, -1)
    for batches in batches_from(log, position_bytes, base_offset):
        row = int(np.argmax(batches.max_timestamp_ms))
        timestamp = int(batches.max_timestamp_ms[row])
        if timestamp > largest.timestamp:
            largest = TimestampOffset(timestamp, int(batches.last_offset[row]))
    return largest


def next_offset_from(
    log: Bytes, position_bytes: int, base_offset: int, *, whole: bool = False
) -> int:
    """Return the offset behind the last batch; the base offset when there is none.

    Parameters
    ----------
    log : ndarray of uint8
        The log.
    position_bytes : int
        Where to begin.
    base_offset : int
        Of the segment.
    whole : bool
        Refuse a log with anything behind the last batch.

    Raises
    ------
    CorruptLogError
        There is something, and there must not be.
    """
    next_offset = base_offset
    end = position_bytes
    for batches in batches_from(log, position_bytes, base_offset):
        next_offset = int(batches.last_offset[-1]) + 1
        end = batches.end_bytes
    if whole and end != len(log):
        raise CorruptLogError(
            "there is no whole batch at its end",
            position_bytes=end,
            expected=f"a batch up to {len(log)}",
        )
    return next_offset


def first_batch_timestamp(log: Bytes) -> int:
    """Return the largest timestamp of the first batch, which must be there."""
    if len(log) <= HEADER_SIZE_UP_TO_MAGIC:
        return NO_TIMESTAMP
    return int(max_timestamp_of(np.uint64(log.ctypes.data)))


def _entry_at(log: Bytes, position: int) -> Bytes:
    header = log[position : position + LOG_OVERHEAD_BYTES]
    return log[position : position + LOG_OVERHEAD_BYTES + entry_length(header)]
