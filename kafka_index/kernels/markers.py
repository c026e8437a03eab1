"""Reading the record of a control batch, as Kafka's recovery does.

Recovery reads the first record of every control batch that has a producer id. What it makes of a
bad one differs: some faults end the scan behind the batch (Kafka: InvalidRecordException), others
are not foreseen and keep the broker from starting. Sources: Kafka's ``DefaultRecordBatch``,
``DefaultRecord.readFrom``, ``ControlRecordType.parse``, ``EndTransactionMarker.deserialize``.
"""

from __future__ import annotations

import numpy as np

from kafka_index.kernels.big_endian import Integer, read_int8, read_int16, read_int32, read_int64
from kafka_index.kernels.compile_cache import compiled
from kafka_index.layout.records import (
    COMPRESSION_MASK,
    COMPRESSION_NAMES,
    CONTROL_COMMIT,
    RECORD_BATCH_HEADER,
    RECORD_BATCH_OVERHEAD_BYTES,
    TIMESTAMP_TYPE_MASK,
    field_position,
)

#: No control batch (or one without a producer, whose record recovery does not read).
CONTROL_NONE = -1
#: A control batch without records: the cleaner took its transaction away.
CONTROL_EMPTY = -2
#: A marker that ends the scan: its batch is kept, what follows is not.
CONTROL_INVALID = -3
#: A marker that recovery fails on.
CONTROL_REFUSED = -4
#: A control batch whose records are compressed, which is refused without a look at them.
CONTROL_COMPRESSED = -5
#: A message of magic 0 or 1, which producer state never sees.
CONTROL_MESSAGE = -6

_OVERHEAD = RECORD_BATCH_OVERHEAD_BYTES
_ATTRIBUTES = field_position(RECORD_BATCH_HEADER, "attributes")
_BASE_TIMESTAMP = field_position(RECORD_BATCH_HEADER, "base_timestamp_ms")
_MAX_TIMESTAMP = field_position(RECORD_BATCH_HEADER, "max_timestamp_ms")
_RECORD_COUNT = field_position(RECORD_BATCH_HEADER, "record_count")
_VARINT_OK = 0
_VARINT_SHORT = 1
_VARINT_LONG = 2
_VARINT_BYTES = 5
_VARLONG_BYTES = 10
_CONTROL_KEY_BYTES = 4
_MARKER_VALUE_BYTES = 6
_SHORT_BYTES = 2


@compiled
def _read_varint(
    position: Integer, end: Integer, most_bytes: int
) -> tuple[Integer, Integer, Integer]:
    """Read a zigzag varint; return (fault, value, position behind it)."""
    value = np.uint64(0)
    shift = np.uint64(0)
    for used in range(most_bytes):
        if position + used >= end:
            return _VARINT_SHORT, 0, end
        byte = np.uint64(read_int8(np.uint64(position + used))) & np.uint64(0xFF)
        value |= (byte & np.uint64(0x7F)) << shift
        if byte < np.uint64(0x80):
            if most_bytes == _VARINT_BYTES:
                value &= np.uint64(0xFFFFFFFF)
            signed = np.int64(value >> np.uint64(1)) ^ -np.int64(value & np.uint64(1))
            return _VARINT_OK, signed, position + used + 1
        shift += np.uint64(7)
    return _VARINT_LONG, 0, position + most_bytes


@compiled
def _read_field(position: Integer, end: Integer) -> tuple[bool, Integer, Integer]:
    """Read a length and skip as many bytes; return (sound, length or -1, position behind)."""
    fault, length, position = _read_varint(position, end, _VARINT_BYTES)
    if fault != _VARINT_OK or length > end - position:
        return False, -1, position
    if length < 0:
        return True, -1, position
    return True, length, position + length


@compiled
def _skip_headers(position: Integer, end: Integer) -> Integer:
    """Skip the headers of a record; return the position behind them, or -1 when not sound."""
    fault, headers, position = _read_varint(position, end, _VARINT_BYTES)
    if fault != _VARINT_OK or headers < 0 or headers > end - position:
        return -1
    for _ in range(headers):
        sound, length, position = _read_field(position, end)
        if not sound or length < 0:
            return -1
        sound, length, position = _read_field(position, end)
        if not sound:
            return -1
    return position


@compiled
def read_marker_record(  # noqa: PLR0911, C901, because each of Kafka's refusals is one exit
    start: Integer, end: Integer, only: bool
) -> tuple[Integer, Integer, Integer]:
    """Read one control record; return (control type or code, coordinator epoch, time delta)."""
    fault, size, position = _read_varint(start, end, _VARINT_BYTES)
    if fault == _VARINT_LONG:
        return CONTROL_REFUSED, -1, 0
    if fault == _VARINT_SHORT or size > end - position or position >= end:
        return CONTROL_INVALID, -1, 0
    record_start = position
    fault, delta, position = _read_varint(position + 1, end, _VARLONG_BYTES)
    if fault != _VARINT_OK:
        return CONTROL_INVALID, -1, 0
    fault, _, position = _read_varint(position, end, _VARINT_BYTES)
    if fault != _VARINT_OK:
        return CONTROL_INVALID, -1, 0
    sound, key_bytes, key_end = _read_field(position, end)
    if not sound:
        return CONTROL_INVALID, -1, 0
    sound, value_bytes, value_end = _read_field(key_end, end)
    if not sound:
        return CONTROL_INVALID, -1, 0
    record_end = _skip_headers(value_end, end)
    if record_end < 0 or record_end - record_start != size or (only and record_end != end):
        return CONTROL_INVALID, -1, 0
    if key_bytes < 0:
        return CONTROL_REFUSED, -1, 0
    key = np.uint64(key_end - key_bytes)
    if key_bytes < _CONTROL_KEY_BYTES or read_int16(key) < 0:
        return CONTROL_INVALID, -1, 0
    control_type = read_int16(key + np.uint64(_SHORT_BYTES))
    if control_type < 0 or control_type > CONTROL_COMMIT or value_bytes < _SHORT_BYTES:
        return CONTROL_REFUSED, -1, 0
    value = np.uint64(value_end - value_bytes)
    if read_int16(value) < 0:
        return CONTROL_INVALID, -1, 0
    if value_bytes < _MARKER_VALUE_BYTES:
        return CONTROL_REFUSED, -1, 0
    return control_type, read_int32(value + np.uint64(_SHORT_BYTES)), delta


@compiled
def read_control_batch(  # noqa: PLR0911, because each of Kafka's refusals is one exit
    start: Integer, end: Integer
) -> tuple[Integer, Integer, Integer]:
    """Read the marker of a control batch with a producer id.

    Parameters
    ----------
    start, end : int
        The addresses where the batch starts and ends.

    Returns
    -------
    tuple of int
        The control type or one of this module's codes, the coordinator epoch (-1 when there is
        none) and the marker's timestamp in ms (-1 when there is none).
    """
    at = np.uint64(start)
    attributes = read_int16(at + np.uint64(_ATTRIBUTES))
    records = read_int32(at + np.uint64(_RECORD_COUNT))
    if records == 0:
        return CONTROL_EMPTY, -1, -1
    codec = attributes & COMPRESSION_MASK
    if codec >= len(COMPRESSION_NAMES):
        return CONTROL_REFUSED, -1, -1
    if codec != 0:
        return CONTROL_COMPRESSED, -1, -1
    if records < 0:
        return CONTROL_INVALID, -1, -1
    code, coordinator_epoch, delta = read_marker_record(start + _OVERHEAD, end, records == 1)
    if code < 0:
        return code, -1, -1
    if attributes & TIMESTAMP_TYPE_MASK:
        return code, coordinator_epoch, read_int64(at + np.uint64(_MAX_TIMESTAMP))
    base_timestamp = read_int64(at + np.uint64(_BASE_TIMESTAMP))
    return code, coordinator_epoch, base_timestamp + delta
