"""Batch headers: fields, size, validity and checksum.

All functions take memory addresses and are inlined.

Sources: Kafka's ``FileLogInputStream.nextBatch``, ``DefaultRecordBatch.ensureValid`` and
``LegacyRecord.ensureValid``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kafka_index.core.format.records import (
    COMPRESSION_MASK,
    HEADER_SIZE_UP_TO_MAGIC,
    LOG_OVERHEAD_BYTES,
    MAGIC_POSITION,
    MAGIC_RECORD_BATCH,
    MESSAGE_V0_HEADER,
    MESSAGE_V1_HEADER,
    MIN_LENGTH,
    NO_LEADER_EPOCH,
    NO_TIMESTAMP,
    RECORD_BATCH_HEADER,
    RECORD_BATCH_OVERHEAD_BYTES,
    field_position,
)
from kafka_index.core.kernels.checksums import crc32, crc32c_extend
from kafka_index.core.kernels.compile_cache import compiled, writable_and_not
from kafka_index.core.kernels.memory import Integer, field_reader, prefetch

#: Fields at the same position in all versions. ``base_offset`` of a compressed v0 or v1 message is
#: the offset of its LAST record.
read_base_offset: Any = field_reader(RECORD_BATCH_HEADER, "base_offset")
read_length: Any = field_reader(RECORD_BATCH_HEADER, "length")
_read_magic: Any = field_reader(RECORD_BATCH_HEADER, "magic")

#: Fields of v2 batches.
read_leader_epoch: Any = field_reader(RECORD_BATCH_HEADER, "leader_epoch")
read_crc: Any = field_reader(RECORD_BATCH_HEADER, "crc")
read_attributes: Any = field_reader(RECORD_BATCH_HEADER, "attributes")
read_last_offset_delta: Any = field_reader(RECORD_BATCH_HEADER, "last_offset_delta")
read_base_timestamp: Any = field_reader(RECORD_BATCH_HEADER, "base_timestamp_ms")
read_max_timestamp: Any = field_reader(RECORD_BATCH_HEADER, "max_timestamp_ms")
read_producer_id: Any = field_reader(RECORD_BATCH_HEADER, "producer_id")
read_producer_epoch: Any = field_reader(RECORD_BATCH_HEADER, "producer_epoch")
read_base_sequence: Any = field_reader(RECORD_BATCH_HEADER, "base_sequence")
read_record_count: Any = field_reader(RECORD_BATCH_HEADER, "record_count")

#: Fields of v0 and v1 messages; only v1 has the timestamp.
read_message_crc: Any = field_reader(MESSAGE_V0_HEADER, "crc")
read_message_attributes: Any = field_reader(MESSAGE_V0_HEADER, "attributes")
read_message_timestamp: Any = field_reader(MESSAGE_V1_HEADER, "timestamp_ms")

#: Returned by `batch_size` instead of a size: the log ends here, or the reason why no valid batch
#: follows. Searches return `AT_END` instead of a position if no batch up to the log end matches.
AT_END, TORN_HEADER, BAD_LENGTH, TORN_BATCH, BAD_SIZE = range(-1, -6, -1)
#: The bytes at a position are not a valid batch: they are corrupt, truncated or zeros. `damage_at`
#: combines this code with the position.
AT_DAMAGE = -2

#: Returned instead of the base offset of a compressed v0 or v1 message: its header only contains
#: the last offset.
NOT_IN_HEADER = -(2**63)

# Number of batch headers to prefetch, enough to hide the memory latency.
_BATCHES_AHEAD = 16
_CHECKSUM_START = field_position(RECORD_BATCH_HEADER, "attributes")


@compiled
def damage_at(position: Integer) -> Integer:
    """Encode the position of a corruption as a code, or decode it (the function is its inverse)."""
    return AT_DAMAGE - position


@compiled
def magic_of(start: np.uint64) -> Integer:
    magic: Integer = _read_magic(start)
    return magic


@compiled
def batch_size(start: np.uint64, left: Integer) -> Integer:
    """Return the size of a batch in bytes, `AT_END`, or an error code.

    `start`: address of the batch. `left`: bytes of the log from there on; if the batch is longer,
    the result is `TORN_BATCH`. Only the header up to the magic byte is read.
    """
    if left <= HEADER_SIZE_UP_TO_MAGIC:
        return AT_END if left == 0 else TORN_HEADER
    length: Integer = read_length(start)
    if length < MIN_LENGTH:
        return BAD_LENGTH
    size = LOG_OVERHEAD_BYTES + length
    if size > left:
        return TORN_BATCH
    if size < RECORD_BATCH_OVERHEAD_BYTES and magic_of(start) >= MAGIC_RECORD_BATCH:
        return BAD_SIZE
    return size


@compiled
def last_offset_of(start: np.uint64) -> Integer:
    offset: Integer = read_base_offset(start)
    if magic_of(start) >= MAGIC_RECORD_BATCH:
        offset += read_last_offset_delta(start)
    return offset


@compiled
def max_timestamp_of(start: np.uint64) -> Integer:
    """Return the largest timestamp in the header of a batch of any version, in ms."""
    magic = magic_of(start)
    timestamp: Integer = np.int64(NO_TIMESTAMP)
    if magic >= MAGIC_RECORD_BATCH:
        timestamp = read_max_timestamp(start)
    elif magic != 0:
        timestamp = read_message_timestamp(start)
    return timestamp


@compiled
def attributes_of(start: np.uint64) -> Integer:
    attributes: Integer = read_message_attributes(start)
    if magic_of(start) >= MAGIC_RECORD_BATCH:
        attributes = read_attributes(start)
    return attributes


@compiled
def codec_of(start: np.uint64) -> Integer:
    return attributes_of(start) & COMPRESSION_MASK


@compiled
def leader_epoch_of(start: np.uint64) -> Integer:
    epoch: Integer = np.int64(NO_LEADER_EPOCH)
    if magic_of(start) >= MAGIC_RECORD_BATCH:
        epoch = read_leader_epoch(start)
    return epoch


@compiled
def is_compressed_message(start: np.uint64) -> bool:
    """Return whether this is a compressed v0 or v1 message; its header has no base offset."""
    return bool(magic_of(start) < MAGIC_RECORD_BATCH and codec_of(start) != 0)


@compiled
def checksums_of(start: np.uint64, size: Integer) -> tuple[Integer, Integer]:
    """Return the stored and the computed checksum of a batch."""
    if magic_of(start) >= MAGIC_RECORD_BATCH:
        covered = start + np.uint64(_CHECKSUM_START)
        computed = crc32c_extend(np.uint32(0), covered, np.uint64(size - _CHECKSUM_START))
        return read_crc(start), np.int64(computed)
    covered = start + np.uint64(MAGIC_POSITION)
    return read_message_crc(start), crc32(covered, np.uint64(size - MAGIC_POSITION))


@compiled
def checksum_matches(start: np.uint64, size: Integer) -> bool:
    stored, computed = checksums_of(start, size)
    return bool(stored == computed)


@compiled
def fill_checksum_matches(
    window: NDArray[np.uint8],
    starts: NDArray[np.int64],
    sizes: NDArray[np.int64],
    matches: NDArray[np.bool_],
) -> None:
    """Verify the checksums of batches.

    `window` (uint8): bytes of a log. `starts`, `sizes` (int64, (n,)): position in the window and
    size of each batch. `matches` (bool, (n,)): filled.
    """
    address = np.uint64(window.ctypes.data)
    for row in range(len(starts)):
        matches[row] = checksum_matches(address + np.uint64(starts[row]), sizes[row])


@compiled
def batch_checksums(window: NDArray[np.uint8], start: int, size: int) -> tuple[Integer, Integer]:
    """Return the stored and the computed checksum of the batch that begins at ``window[start]``."""
    return checksums_of(np.uint64(window.ctypes.data) + np.uint64(start), size)


@compiled
def read_batch_fields(
    log: np.uint64,
    batches: NDArray[np.int64],
    base_offsets: NDArray[np.int64],
    last_offsets: NDArray[np.int64],
    sizes: NDArray[np.int64],
) -> None:
    """Read offsets and sizes from batch headers; skip rows with a negative position.

    `log`: memory address of the log. `batches` (int64, (n,)): positions of batches. `base_offsets`,
    `last_offsets`, `sizes` (int64, (n,)): filled; the base offset of a compressed v0 or v1 message
    is `NOT_IN_HEADER`.
    """
    for row in range(len(batches)):
        if row + _BATCHES_AHEAD < len(batches) and batches[row + _BATCHES_AHEAD] >= 0:
            prefetch(log + np.uint64(batches[row + _BATCHES_AHEAD]))
        if batches[row] < 0:
            continue
        start = log + np.uint64(batches[row])
        inside = is_compressed_message(start)
        base_offsets[row] = NOT_IN_HEADER if inside else read_base_offset(start)
        last_offsets[row] = last_offset_of(start)
        sizes[row] = LOG_OVERHEAD_BYTES + read_length(start)


def warm_up() -> None:
    batch = np.zeros(RECORD_BATCH_HEADER.itemsize, np.uint8)
    start, size = np.uint64(batch.ctypes.data), len(batch)
    damage_at(0)
    max_timestamp_of(start)
    leader_epoch_of(start)
    checksum_matches(start, size)
    nothing = np.empty(0, np.int64)
    for window in writable_and_not(batch):
        batch_checksums(window, 0, size)
        fill_checksum_matches(window, nothing, nothing, np.empty(0, np.bool_))
