"""Logs to measure on: batches of one size, made with numpy."""

from __future__ import annotations

import os
from pathlib import Path

import google_crc32c
import numpy as np

from kafka_index.layout.names import LOG_SUFFIX, segment_file_name
from kafka_index.layout.records import RECORD_BATCH_HEADER, field_position

_CRC = field_position(RECORD_BATCH_HEADER, "crc")
_COVERED = field_position(RECORD_BATCH_HEADER, "attributes")
_AT_A_TIME_BYTES = 64 << 20
_RECORD_BYTES = 100
_READ_BYTES = 1 << 20


def write_log(partition_directory: Path, batch_bytes: int, log_bytes: int) -> Path:
    """Write a segment of batches of one size, with random payload, unless it is there already."""
    path = partition_directory / segment_file_name(0, LOG_SUFFIX)
    batches = log_bytes // batch_bytes
    if path.exists() and path.stat().st_size == batches * batch_bytes:
        return path
    partition_directory.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(0)
    at_a_time = max(1, _AT_A_TIME_BYTES // batch_bytes)
    # Large writes, as a restore makes them: the page cache then holds large pieces of the file.
    with path.open("wb", buffering=0) as file:
        for first in range(0, batches, at_a_time):
            file.write(_batches(random, first, min(at_a_time, batches - first), batch_bytes))
    return path


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
    records = max(1, (size - RECORD_BATCH_HEADER.itemsize) // _RECORD_BYTES)
    header = np.zeros(count, RECORD_BATCH_HEADER)
    number = np.arange(first, first + count)
    header["base_offset"] = number * records
    header["length"] = size - 12
    header["magic"] = 2
    header["last_offset_delta"] = records - 1
    header["base_timestamp_ms"] = header["max_timestamp_ms"] = 1_700_000_000_000 + number * 5
    header["producer_id"] = header["producer_epoch"] = header["base_sequence"] = -1
    header["record_count"] = records
    data = random.integers(0, 256, (count, size), dtype=np.uint8)
    data[:, : RECORD_BATCH_HEADER.itemsize] = header.view(np.uint8).reshape(count, -1)
    crcs = [google_crc32c.value(row[_COVERED:].tobytes()) for row in data]
    data[:, _CRC : _CRC + 4] = np.array(crcs, ">u4").view(np.uint8).reshape(count, 4)
    return data.data
