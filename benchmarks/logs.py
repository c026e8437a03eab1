"""Logs to measure on: batches of one size, full of records of about 100 bytes, made with numpy."""

from __future__ import annotations

import os
from pathlib import Path

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from kafka_index.core.format.names import LOG_SUFFIX, segment_file_name
from kafka_index.core.format.records import RECORD_BATCH_HEADER, field_position

#: The first record is of this time, and each later one a millisecond later.
FIRST_TIMESTAMP_MS = 1_700_000_000_000

LOG_BYTES = 1 << 29

_CRC = field_position(RECORD_BATCH_HEADER, "crc")
_COVERED = field_position(RECORD_BATCH_HEADER, "attributes")
_AT_A_TIME_BYTES = 64 << 20
_RECORD_BYTES = 100
_READ_BYTES = 1 << 20


def write_log(
    partition_directory: Path, batch_bytes: int, log_bytes: int, first_batch: int = 0
) -> Path:
    """Write a segment of batches of one size, with random values, unless it is there already."""
    base_offset = first_batch * records_in(batch_bytes)
    path = partition_directory / segment_file_name(base_offset, LOG_SUFFIX)
    batches = log_bytes // batch_bytes
    if path.exists() and path.stat().st_size == batches * batch_bytes:
        return path
    partition_directory.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(first_batch)
    at_a_time = max(1, _AT_A_TIME_BYTES // batch_bytes)
    # Large writes, as a restore makes them: the page cache then holds large pieces of the file.
    with path.open("wb", buffering=0) as file:
        for first in range(0, batches, at_a_time):
            count = min(at_a_time, batches - first)
            file.write(_batches(random, first_batch + first, count, batch_bytes))
    return path


def benchmark_log(scratch: Path, batch_bytes: int) -> Path:
    """Return the segment of 512 MiB that benchmarks share."""
    return write_log(scratch / f"logs-{batch_bytes}" / "topic-0", batch_bytes, LOG_BYTES)


def records_in(batch_bytes: int) -> int:
    """Return how many records a batch of a size has."""
    return max(1, (batch_bytes - RECORD_BATCH_HEADER.itemsize) // _RECORD_BYTES)


def warm(path: Path) -> None:
    """Bring a file into the page cache front to back, in the large pieces of a sequential read.

    How large the pieces are decides the speed of every way to read it, ours and Kafka's, and what
    was read at random before is there in small ones.
    """
    with path.open("rb", buffering=0) as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        while file.read(_READ_BYTES):
            pass


def _batches(random: np.random.Generator, first: int, count: int, size: int) -> memoryview:
    records = records_in(size)
    header = np.zeros(count, RECORD_BATCH_HEADER)
    number = np.arange(first, first + count)
    header["base_offset"] = number * records
    header["length"] = size - 12
    header["magic"] = 2
    header["last_offset_delta"] = records - 1
    header["base_timestamp_ms"] = FIRST_TIMESTAMP_MS + number * records
    header["max_timestamp_ms"] = header["base_timestamp_ms"] + records - 1
    header["producer_id"] = header["producer_epoch"] = header["base_sequence"] = -1
    header["record_count"] = records
    data = random.integers(0, 256, (count, size), dtype=np.uint8)
    overhead = RECORD_BATCH_HEADER.itemsize
    data[:, :overhead] = header.view(np.uint8).reshape(count, -1)
    # All but the values is the same in every batch.
    pattern, is_value = _records(records, size - overhead)
    data[:, overhead:][:, ~is_value] = pattern[~is_value]
    crcs = [google_crc32c.value(row[_COVERED:].tobytes()) for row in data]
    data[:, _CRC : _CRC + 4] = np.array(crcs, ">u4").view(np.uint8).reshape(count, 4)
    return data.data


def _records(count: int, size: int) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
    """Return records that fill so many bytes, a millisecond apart, and where their values are."""
    pattern, is_value = bytearray(), []
    for number in range(count):
        share = (size - len(pattern)) // (count - number)
        for key in (b"\x01", b"\x02k"):  # none, or one byte, where sizes without it skip a number
            front, value_bytes = _record(number, share, key)
            if len(front) + value_bytes + 1 == share:
                break
        pattern += front + bytes(value_bytes) + b"\x00"  # no headers
        is_value += [False] * len(front) + [True] * value_bytes + [False]
    return np.frombuffer(bytes(pattern), np.uint8), np.array(is_value)


def _record(number: int, size: int, key: bytes) -> tuple[bytes, int]:
    """Return what stands before a record's value, and the largest value that lets it fit."""
    value_bytes = size
    while True:
        inner = b"\x00" + varint(number) * 2 + key + varint(value_bytes)
        front = varint(len(inner) + value_bytes + 1) + inner
        if len(front) + value_bytes + 1 <= size:
            return front, value_bytes
        value_bytes -= 1


def varint(number: int) -> bytes:
    """Return a number of 0 or more as Kafka's records have it."""
    left = 2 * number
    out = bytearray()
    while left > 0x7F:
        out.append(left & 0x7F | 0x80)
        left >>= 7
    out.append(left)
    return bytes(out)
