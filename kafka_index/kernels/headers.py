"""The columns of the batch table that an index build does not need, read after a scan."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kafka_index.kernels.batch_header import (
    magic_of,
    read_attributes,
    read_base_sequence,
    read_base_timestamp,
    read_crc,
    read_length,
    read_message_crc,
    read_message_timestamp,
    read_producer_epoch,
    read_record_count,
)
from kafka_index.kernels.big_endian import Integer
from kafka_index.kernels.compile_cache import compiled
from kafka_index.kernels.markers import read_control_batch
from kafka_index.layout.records import (
    CONTROL_MASK,
    LOG_OVERHEAD_BYTES,
    MAGIC_RECORD_BATCH,
    NO_PRODUCER_EPOCH,
    NO_SEQUENCE,
    NO_TIMESTAMP,
)

#: Rows of the array that `read_headers` fills.
(
    HEADER_MAGIC,
    HEADER_CRC,
    HEADER_BASE_TIMESTAMP,
    HEADER_PRODUCER_EPOCH,
    HEADER_BASE_SEQUENCE,
    HEADER_RECORD_COUNT,
    HEADER_CONTROL_TYPE,
    HEADER_COORDINATOR_EPOCH,
    HEADER_CONTROL_TIMESTAMP,
) = range(9)
HEADER_COLUMNS = 9


def read_headers(
    window: NDArray[np.uint8],
    window_position: int,
    positions: NDArray[np.int64],
    columns: NDArray[np.int64],
) -> None:
    """Read further header fields of batches that a scan has accepted.

    Parameters
    ----------
    window : ndarray of uint8
        Bytes of the log from ``window_position`` on, the batches whole among them.
    window_position : int
        Byte position in the log of ``window[0]``.
    positions : ndarray of int64, shape (n,)
        Byte positions of the batches in the log.
    columns : ndarray of int64, shape (HEADER_COLUMNS, at least n)
        Filled. A message of magic 0 or 1 counts as one record; control fields are those of
        `kafka_index.kernels.markers`.
    """
    address = window.ctypes.data - window_position
    if _read_fields(address, positions, columns):
        _read_control_fields(address, positions, columns)


@compiled
def _read_fields(log: int, positions: NDArray[np.int64], columns: NDArray[np.int64]) -> bool:
    """Read the fields of the headers; return whether there are control batches."""
    has_control = False
    for row in range(len(positions)):
        start = np.uint64(log + positions[row])
        magic = magic_of(start)
        columns[HEADER_MAGIC, row] = magic
        columns[HEADER_CONTROL_TYPE, row] = -1
        columns[HEADER_COORDINATOR_EPOCH, row] = -1
        columns[HEADER_CONTROL_TIMESTAMP, row] = NO_TIMESTAMP
        if magic < MAGIC_RECORD_BATCH:
            columns[HEADER_CRC, row] = read_message_crc(start)
            timestamp: Integer = np.int64(NO_TIMESTAMP)
            if magic != 0:
                timestamp = read_message_timestamp(start)
            columns[HEADER_BASE_TIMESTAMP, row] = timestamp
            columns[HEADER_PRODUCER_EPOCH, row] = NO_PRODUCER_EPOCH
            columns[HEADER_BASE_SEQUENCE, row] = NO_SEQUENCE
            columns[HEADER_RECORD_COUNT, row] = 1
            continue
        columns[HEADER_CRC, row] = read_crc(start)
        columns[HEADER_BASE_TIMESTAMP, row] = read_base_timestamp(start)
        columns[HEADER_PRODUCER_EPOCH, row] = read_producer_epoch(start)
        columns[HEADER_BASE_SEQUENCE, row] = read_base_sequence(start)
        columns[HEADER_RECORD_COUNT, row] = read_record_count(start)
        if read_attributes(start) & CONTROL_MASK:
            has_control = True
    return has_control


@compiled
def _read_control_fields(
    log: int, positions: NDArray[np.int64], columns: NDArray[np.int64]
) -> None:
    """Read the records of control batches; apart from the headers, for most logs have none."""
    for row in range(len(positions)):
        start = log + positions[row]
        if columns[HEADER_MAGIC, row] < MAGIC_RECORD_BATCH:
            continue
        if read_attributes(np.uint64(start)) & CONTROL_MASK == 0:
            continue
        end = start + LOG_OVERHEAD_BYTES + read_length(np.uint64(start))
        control, epoch, timestamp = read_control_batch(start, end)
        columns[HEADER_CONTROL_TYPE, row] = control
        columns[HEADER_COORDINATOR_EPOCH, row] = epoch
        columns[HEADER_CONTROL_TIMESTAMP, row] = timestamp


def warm_up(nothing: NDArray[np.int64], columns: NDArray[np.int64]) -> None:
    """Load or compile the reading of headers, of no batches."""
    _read_fields(0, nothing, columns)
    _read_control_fields(0, nothing, columns)
