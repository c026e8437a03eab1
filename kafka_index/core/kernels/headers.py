"""Read batch table columns that an index build does not need, and transaction markers.

Recovery reads the first record of each control batch with a producer ID. An invalid record either
ends recovery after the batch (InvalidRecordException) or keeps the broker from starting. Sources:
Kafka's ``ProducerStateManager`` with ``ProducerAppendInfo.append``, ``DefaultRecord.readFrom``,
``ControlRecordType.parse``, ``EndTransactionMarker.deserialize``.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kafka_index.core.format.names import COMPRESSION_NAMES
from kafka_index.core.format.records import (
    COMPRESSION_MASK,
    CONTROL_COMMIT,
    CONTROL_MASK,
    LOG_OVERHEAD_BYTES,
    MAGIC_RECORD_BATCH,
    NO_PRODUCER_EPOCH,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    RECORD_BATCH_OVERHEAD_BYTES,
    TIMESTAMP_TYPE_MASK,
)
from kafka_index.core.kernels.batch_header import (
    magic_of,
    read_attributes,
    read_base_sequence,
    read_base_timestamp,
    read_crc,
    read_length,
    read_max_timestamp,
    read_message_crc,
    read_message_timestamp,
    read_producer_epoch,
    read_record_count,
)
from kafka_index.core.kernels.compile_cache import compiled
from kafka_index.core.kernels.memory import Integer, read_int16, read_int32
from kafka_index.core.kernels.record_fields import RECORD_SIZE_TOO_LONG, RECORD_VALID, read_fields

#: Not a control batch, or a control batch without a producer ID: recovery does not read its record.
CONTROL_NONE = -1
#: A control batch without records, after the log cleaner removed its transaction.
CONTROL_EMPTY = -2
#: An invalid transaction marker: recovery keeps its batch and ends after it.
CONTROL_INVALID = -3
#: A transaction marker on which recovery fails.
CONTROL_REFUSED = -4
#: A control batch with compressed records, rejected without reading them.
CONTROL_COMPRESSED = -5
#: A v0 or v1 message, which producer state ignores.
CONTROL_MESSAGE = -6

_CONTROL_KEY_BYTES = 4
_MARKER_VALUE_BYTES = 6
_SHORT_BYTES = 2


@compiled
def _read_marker(  # noqa: PLR0911, because each of Kafka's refusals is one exit
    start: np.uint64, end: np.uint64, is_only: Integer
) -> tuple[Integer, Integer, Integer]:
    """Read one control record; return (control type or code, coordinator epoch, time delta)."""
    record = read_fields(start, end)
    if record.code == RECORD_SIZE_TOO_LONG:
        return CONTROL_REFUSED, -1, 0
    if record.code != RECORD_VALID or (is_only and np.uint64(record.end) != end):
        return CONTROL_INVALID, -1, 0
    if record.key_size < 0:
        return CONTROL_REFUSED, -1, 0
    key = np.uint64(record.key)
    if record.key_size < _CONTROL_KEY_BYTES or read_int16(key) < 0:
        return CONTROL_INVALID, -1, 0
    control_type = read_int16(key + np.uint64(_SHORT_BYTES))
    if control_type < 0 or control_type > CONTROL_COMMIT or record.value_size < _SHORT_BYTES:
        return CONTROL_REFUSED, -1, 0
    value = np.uint64(record.value)
    if read_int16(value) < 0:
        return CONTROL_INVALID, -1, 0
    if record.value_size < _MARKER_VALUE_BYTES:
        return CONTROL_REFUSED, -1, 0
    return control_type, read_int32(value + np.uint64(_SHORT_BYTES)), record.timestamp_delta


@compiled
def read_control_batch(  # noqa: PLR0911, because each of Kafka's refusals is one exit
    start: Integer, end: Integer
) -> tuple[Integer, Integer, Integer]:
    """Read the transaction marker of a control batch with a producer ID.

    `start`, `end`: start and end address of the batch. Returns the control type or a code of this
    module, the coordinator epoch and the timestamp in ms (-1 if there is none).
    """
    at = np.uint64(start)
    attributes = read_attributes(at)
    records = read_record_count(at)
    if records == 0:
        return CONTROL_EMPTY, -1, -1
    codec = attributes & COMPRESSION_MASK
    if codec >= len(COMPRESSION_NAMES):
        return CONTROL_REFUSED, -1, -1
    if codec != 0:
        return CONTROL_COMPRESSED, -1, -1
    if records < 0:
        return CONTROL_INVALID, -1, -1
    first = at + np.uint64(RECORD_BATCH_OVERHEAD_BYTES)
    code, coordinator_epoch, delta = _read_marker(first, np.uint64(end), records == 1)
    if code < 0:
        return code, -1, -1
    if attributes & TIMESTAMP_TYPE_MASK:
        return code, coordinator_epoch, read_max_timestamp(at)
    base_timestamp = read_base_timestamp(at)
    return code, coordinator_epoch, base_timestamp + delta


#: Rows of the array that `read_headers` fills.
(
    HEADER_CRC,
    HEADER_BASE_TIMESTAMP,
    HEADER_PRODUCER_EPOCH,
    HEADER_BASE_SEQUENCE,
    HEADER_CONTROL_TYPE,
    HEADER_COORDINATOR_EPOCH,
    HEADER_CONTROL_TIMESTAMP,
) = range(7)
HEADER_COLUMNS = 7


def read_headers(
    window: NDArray[np.uint8],
    window_position: int,
    positions: NDArray[np.int64],
    columns: NDArray[np.int64],
) -> None:
    """Read further header fields of batches that a scan has accepted.

    `window` (uint8): bytes of the log from `window_position` on, containing the complete batches.
    `positions` (int64, (n,)): byte positions of the batches in the log. `columns` (int64,
    (HEADER_COLUMNS, at least n)): filled. The control type of a batch without a valid transaction
    marker is a ``CONTROL_`` code.
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
            continue
        columns[HEADER_CRC, row] = read_crc(start)
        columns[HEADER_BASE_TIMESTAMP, row] = read_base_timestamp(start)
        columns[HEADER_PRODUCER_EPOCH, row] = read_producer_epoch(start)
        columns[HEADER_BASE_SEQUENCE, row] = read_base_sequence(start)
        if read_attributes(start) & CONTROL_MASK:
            has_control = True
    return has_control


@compiled
def _read_control_fields(
    log: int, positions: NDArray[np.int64], columns: NDArray[np.int64]
) -> None:
    """Read the records of control batches, in a separate pass because most logs have none."""
    for row in range(len(positions)):
        start = log + positions[row]
        at = np.uint64(start)
        if magic_of(at) < MAGIC_RECORD_BATCH or read_attributes(at) & CONTROL_MASK == 0:
            continue
        end = start + LOG_OVERHEAD_BYTES + read_length(at)
        control, epoch, timestamp = read_control_batch(start, end)
        columns[HEADER_CONTROL_TYPE, row] = control
        columns[HEADER_COORDINATOR_EPOCH, row] = epoch
        columns[HEADER_CONTROL_TIMESTAMP, row] = timestamp


def warm_up(nothing: NDArray[np.int64], columns: NDArray[np.int64]) -> None:
    _read_fields(0, nothing, columns)
    _read_control_fields(0, nothing, columns)
