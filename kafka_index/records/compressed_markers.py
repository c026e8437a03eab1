"""Control batches that are compressed: no broker writes any, but recovery would unpack them.

Of a plain control batch recovery reads the first record; of a compressed one it unpacks and reads
all, and only then looks at the first. Source: Kafka's ``DefaultRecordBatch.iterator`` with its
``StreamRecordIterator``, and ``DefaultRecord.readFrom`` of a stream.
"""

from __future__ import annotations

import numpy as np

from kafka_index.errors import CorruptLogError
from kafka_index.kernels.markers import (
    CONTROL_COMPRESSED,
    CONTROL_INVALID,
    CONTROL_REFUSED,
    read_marker_record,
)
from kafka_index.layout.records import (
    COMPRESSION_MASK,
    RECORD_BATCH_HEADER,
    RECORD_BATCH_OVERHEAD_BYTES,
    TIMESTAMP_TYPE_MASK,
)
from kafka_index.records.batch_table import BatchColumns
from kafka_index.records.compression import UnpackingStream, open_stream
from kafka_index.storage import Bytes

#: A marker has 20 bytes. A batch that unpacks to more than this is refused, so that one made to
#: fill the memory cannot; Kafka would go on until it runs out of its own.
MOST_BYTES = 4 * 1024 * 1024

#: Kafka makes an array for the records first, and no JVM makes one as large as this.
_TOO_MANY_RECORDS = 2**31 - 2

_VARINT_BYTES = 5
_VARLONG_BYTES = 10
_VARINT_MORE = 0x80


class _InvalidRecord(Exception):  # noqa: N818, because it is named after Kafka's
    """What Kafka calls InvalidRecordException: the scan ends behind the batch."""


def resolve_compressed_markers(window: Bytes, window_position: int, batches: BatchColumns) -> None:
    """Replace `CONTROL_COMPRESSED` in ``control_type`` by what the unpacked marker says.

    Its coordinator epoch and timestamp are filled in as well.

    Parameters
    ----------
    window : ndarray of uint8
        Bytes of the log from ``window_position`` on, the batches whole among them.
    window_position : int
        Byte position in the log of ``window[0]``.
    batches : BatchColumns
        Changed in place.
    """
    for row in np.flatnonzero(batches.control_type == CONTROL_COMPRESSED):
        start = int(batches.position_bytes[row]) - window_position
        batch = window[start : start + int(batches.size_bytes[row])]
        try:
            control_type, coordinator_epoch, timestamp_ms = _read_compressed(batch)
        except _InvalidRecord:
            control_type, coordinator_epoch, timestamp_ms = CONTROL_INVALID, -1, -1
        except CorruptLogError:
            control_type, coordinator_epoch, timestamp_ms = CONTROL_REFUSED, -1, -1
        batches.control_type[row] = control_type
        batches.coordinator_epoch[row] = coordinator_epoch
        batches.control_timestamp_ms[row] = timestamp_ms


def _read_compressed(batch: Bytes) -> tuple[int, int, int]:
    """Return control type or code, coordinator epoch and timestamp of a compressed marker."""
    header = batch[:RECORD_BATCH_OVERHEAD_BYTES].view(RECORD_BATCH_HEADER)[0]
    codec = int(header["attributes"]) & COMPRESSION_MASK
    stream = open_stream(codec, batch[RECORD_BATCH_OVERHEAD_BYTES:])
    count = int(header["record_count"])
    if count < 0:
        raise _InvalidRecord
    if count >= _TOO_MANY_RECORDS:
        raise CorruptLogError("more records than a broker can make room for")
    first = b""
    left = MOST_BYTES
    for number in range(count):
        record = _read_record(stream, left)
        left -= len(record)
        if number == 0:
            first = record
    if stream.read(1):
        raise _InvalidRecord
    memory = np.frombuffer(first, np.uint8)
    start = memory.ctypes.data
    code, coordinator_epoch, delta = read_marker_record(
        start,
        start + len(memory),
        True,  # noqa: FBT003, a kernel
    )
    if int(header["attributes"]) & TIMESTAMP_TYPE_MASK:
        timestamp_ms = int(header["max_timestamp_ms"])
    else:
        # In an array the sum wraps around, as Java's does.
        timestamp_ms = int((np.array([header["base_timestamp_ms"]], np.int64) + delta)[0])
    return int(code), int(coordinator_epoch), timestamp_ms


def _read_record(stream: UnpackingStream, most_bytes: int) -> bytes:
    """Read one record and check its structure, as ``DefaultRecord.readFrom`` does."""
    record = bytearray()
    while not record or record[-1] >= _VARINT_MORE:
        byte = stream.read(1)
        if not byte or len(record) == _VARINT_BYTES:
            raise _InvalidRecord
        record += byte
    size = _Cursor(record).varint(_VARINT_BYTES)
    if size < 0:
        raise _InvalidRecord
    if size > most_bytes - len(record):
        # Too few of them are found out without keeping them.
        body = stream.read(most_bytes)
        if len(body) < most_bytes:
            raise _InvalidRecord
        raise CorruptLogError("the records unpack to more than is allowed")
    body = stream.read(size)
    if len(body) < size:
        raise _InvalidRecord
    _check_structure(_Cursor(body))
    return bytes(record) + body


def _check_structure(record: _Cursor) -> None:
    record.skip(1)  # attributes
    record.varint(_VARLONG_BYTES)  # timestamp delta
    record.varint(_VARINT_BYTES)  # offset delta
    for _ in ("key", "value"):
        record.skip(record.varint(_VARINT_BYTES))
    headers = record.varint(_VARINT_BYTES)
    if not 0 <= headers <= record.left:
        raise _InvalidRecord
    for _ in range(headers):
        key_bytes = record.varint(_VARINT_BYTES)
        if key_bytes < 0:
            raise _InvalidRecord
        record.skip(key_bytes)
        record.skip(record.varint(_VARINT_BYTES))
    if record.left:
        raise _InvalidRecord


class _Cursor:
    """A place in the bytes of a record."""

    def __init__(self, data: bytes | bytearray) -> None:
        self._data = data
        self._position = 0

    @property
    def left(self) -> int:
        """How many bytes follow."""
        return len(self._data) - self._position

    def skip(self, size: int) -> None:
        """Pass over bytes; over none when the size is negative, which means null."""
        if size > self.left:
            raise _InvalidRecord
        self._position += max(size, 0)

    def varint(self, most_bytes: int) -> int:
        """Read a zigzag varint of 32 bits, or of 64 where it may have 10 bytes."""
        value = 0
        for used in range(min(most_bytes, self.left)):
            byte = self._data[self._position + used]
            value |= (byte & ~_VARINT_MORE) << 7 * used
            if byte < _VARINT_MORE:
                self._position += used + 1
                value &= (1 << (32 if most_bytes == _VARINT_BYTES else 64)) - 1
                return value >> 1 ^ -(value & 1)
        raise _InvalidRecord
