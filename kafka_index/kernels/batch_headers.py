"""What the headers of batches say, one batch at a time; shared by all walks over a log.

Source: Kafka's ``FileLogInputStream.nextBatch``.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kafka_index.kernels.big_endian import (
    Integer,
    prefetch,
    read_int8,
    read_int16,
    read_int32,
    read_int64,
)
from kafka_index.kernels.compile_cache import compiled
from kafka_index.layout.records import (
    COMPRESSION_MASK,
    HEADER_SIZE_UP_TO_MAGIC,
    LOG_OVERHEAD_BYTES,
    MAGIC_POSITION,
    MAGIC_RECORD_BATCH,
    MESSAGE_V0_HEADER,
    MESSAGE_V1_HEADER,
    MIN_LENGTH,
    NO_TIMESTAMP,
    RECORD_BATCH_HEADER,
    RECORD_BATCH_OVERHEAD_BYTES,
    field_position,
)

#: In place of the position of a batch: the log ends without one that fits.
AT_END = -1
#: What is there is no batch: the log is damaged, cut off, or ends in zeros. In place of the
#: position of a batch stands `damage_at`.
AT_DAMAGE = -2

#: In place of a base offset that is not in the header of a batch.
NOT_IN_HEADER = -(2**63)

# Enough of them to hide a trip to memory.
_AHEAD_BATCHES = 16
_LENGTH = field_position(RECORD_BATCH_HEADER, "length")
_ATTRIBUTES = field_position(RECORD_BATCH_HEADER, "attributes")
_LAST_OFFSET_DELTA = field_position(RECORD_BATCH_HEADER, "last_offset_delta")
_MAX_TIMESTAMP = field_position(RECORD_BATCH_HEADER, "max_timestamp_ms")
_MESSAGE_ATTRIBUTES = field_position(MESSAGE_V0_HEADER, "attributes")
_MESSAGE_TIMESTAMP = field_position(MESSAGE_V1_HEADER, "timestamp_ms")


@compiled
def damage_at(position: Integer) -> Integer:
    """Return what stands for damage at a position, or (it is its own inverse) that position."""
    return AT_DAMAGE - position


@compiled
def batch_size(log: np.uint64, log_size: int, position: Integer) -> Integer:
    """Return the size in bytes of the batch at a position, `AT_END` or `AT_DAMAGE`."""
    left = log_size - position
    if left <= HEADER_SIZE_UP_TO_MAGIC:
        return AT_END if left == 0 else AT_DAMAGE
    start = log + np.uint64(position)
    size: Integer = LOG_OVERHEAD_BYTES + read_int32(start + np.uint64(_LENGTH))
    if size < LOG_OVERHEAD_BYTES + MIN_LENGTH or size > left:
        return AT_DAMAGE
    if size < RECORD_BATCH_OVERHEAD_BYTES and magic_of(start) >= MAGIC_RECORD_BATCH:
        return AT_DAMAGE
    return size


@compiled
def magic_of(start: np.uint64) -> Integer:
    """Return the magic of the batch at an address."""
    magic: Integer = read_int8(start + np.uint64(MAGIC_POSITION))
    return magic


@compiled
def last_offset_of(start: np.uint64) -> Integer:
    """Return the last offset of the batch at an address."""
    offset: Integer = read_int64(start)
    if magic_of(start) >= MAGIC_RECORD_BATCH:
        offset += read_int32(start + np.uint64(_LAST_OFFSET_DELTA))
    return offset


@compiled
def max_timestamp_of(start: np.uint64) -> Integer:
    """Return the largest timestamp of the batch at an address, as its header has it."""
    magic = magic_of(start)
    timestamp: Integer = np.int64(NO_TIMESTAMP)
    if magic >= MAGIC_RECORD_BATCH:
        timestamp = read_int64(start + np.uint64(_MAX_TIMESTAMP))
    elif magic != 0:
        timestamp = read_int64(start + np.uint64(_MESSAGE_TIMESTAMP))
    return timestamp


@compiled
def codec_of(start: np.uint64) -> Integer:
    """Return the codec of the batch at an address, 0 for none."""
    attributes: Integer = np.int64(0)
    if magic_of(start) >= MAGIC_RECORD_BATCH:
        attributes = read_int16(start + np.uint64(_ATTRIBUTES))
    else:
        attributes = read_int8(start + np.uint64(_MESSAGE_ATTRIBUTES))
    return attributes & COMPRESSION_MASK


@compiled
def read_batch_fields(
    log: np.uint64,
    batches: NDArray[np.int64],
    base_offsets: NDArray[np.int64],
    last_offsets: NDArray[np.int64],
    sizes: NDArray[np.int64],
) -> None:
    """Read what the headers of batches say; where there is no position, fill in nothing.

    Parameters
    ----------
    log : int
        Memory address of the log.
    batches : ndarray of int64, shape (n,)
        Positions of batches; negative for none.
    base_offsets, last_offsets, sizes : ndarray of int64, shape (n,)
        Filled; with `NOT_IN_HEADER` for the base offset of a compressed message of magic 0 or 1.
    """
    for row in range(len(batches)):
        if row + _AHEAD_BATCHES < len(batches) and batches[row + _AHEAD_BATCHES] >= 0:
            prefetch(log + np.uint64(batches[row + _AHEAD_BATCHES]))
        if batches[row] < 0:
            continue
        start = log + np.uint64(batches[row])
        packed = magic_of(start) < MAGIC_RECORD_BATCH and codec_of(start) != 0
        base_offsets[row] = NOT_IN_HEADER if packed else read_int64(start)
        last_offsets[row] = last_offset_of(start)
        sizes[row] = LOG_OVERHEAD_BYTES + read_int32(start + np.uint64(_LENGTH))
