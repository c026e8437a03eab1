"""The decompressed records of one log entry, and the values to which their fields are relative.

Equivalent to Kafka's ``for (Record record : batch)``. Kafka reads an uncompressed batch record by
record, so an error does not affect earlier records. It reads a compressed batch completely first.
Sources: Kafka's ``DefaultRecordBatch``, ``AbstractLegacyRecordBatch`` with its
``DeepRecordsIterator``, and ``LegacyRecord``.
"""

from __future__ import annotations

import struct
from typing import Protocol

import numpy as np

from kafka_index.core.contexts import Closeable
from kafka_index.core.errors import CorruptLogError
from kafka_index.core.format.names import COMPRESSION_NAMES
from kafka_index.core.format.records import (
    COMPRESSION_MASK,
    LOG_OVERHEAD_BYTES,
    MAGIC_POSITION,
    MAGIC_RECORD_BATCH,
    MESSAGE_V0_HEADER,
    MESSAGE_V1_HEADER,
    MIN_LENGTH,
    RECORD_BATCH_HEADER,
    RECORD_BATCH_OVERHEAD_BYTES,
    TIMESTAMP_TYPE_MASK,
    field_position,
)
from kafka_index.core.fs.store import Bytes
from kafka_index.core.kernels.record_fields import (
    RECORD_BROKEN,
    RECORD_CUT,
    RECORD_SIZE_CUT,
    RECORD_SIZE_TOO_LONG,
    RECORD_VALID,
    RECORDS_REMAINING,
)
from kafka_index.core.kernels.records import (
    EMPTY_SECTION,
    MESSAGES_BAD_LENGTH,
    MESSAGES_NESTED,
    RecordSection,
    check_records,
    measure_messages,
)
from kafka_index.core.records.decompression import DecompressedRecords

_MIN_ENTRY_BYTES = LOG_OVERHEAD_BYTES + MIN_LENGTH
_ZSTD = COMPRESSION_NAMES.index("zstd")
_INT32 = struct.Struct(">i")
#: Offset, length, magic, attributes and timestamp of a message. A v0 message has no timestamp, but
#: key and value sizes follow, so it can always be unpacked.
_MESSAGE = struct.Struct(">qi4xbbq")
_V0_KEY = field_position(MESSAGE_V0_HEADER, "key_length")
_V1_KEY = field_position(MESSAGE_V1_HEADER, "key_length")
_NO_BYTES: Bytes = np.frombuffer(b"", np.uint8)

_ERROR_REASONS = {
    RECORD_SIZE_CUT: "the size of the record is malformed",
    RECORD_SIZE_TOO_LONG: "the size of the record is malformed",
    RECORD_CUT: "the record is larger than the rest of the batch",
    RECORD_BROKEN: "the fields of the record do not match the size of the record",
    RECORDS_REMAINING: "bytes follow the last record",
}


class BatchRecords(Closeable):
    """The decompressed records of one log entry; a context manager that releases their memory.

    `fault` is the reason if Kafka throws an exception after the records of a message set.
    """

    def __init__(
        self,
        section: RecordSection,
        data: Bytes,
        decompressed: DecompressedRecords | None = None,
        fault: str | None = None,
    ) -> None:
        self.section = section
        self.fault = fault
        self._data = data
        self._decompressed = decompressed

    def close(self) -> None:
        """Release the decompressed bytes; the section must not be used any more."""
        self.section, self._data = EMPTY_SECTION, _NO_BYTES
        if self._decompressed is not None:
            self._decompressed.close()

    @property
    def first_offset(self) -> int:
        """The offset of the first message in a message set.

        Raises `CorruptLogError` if no message can be read.
        """
        if not self.section.record_count:
            raise CorruptLogError(self.fault or "the message contains no inner message")
        first = self._data[:8].view(">i8").astype(np.int64)
        # The sum is computed with an array, so that it overflows as in Java.
        return int((first + self.section.base_offset)[0])


class Decompressor(Protocol):
    """Decompresses records within a limit."""

    def decompress(self, codec: int, data: bytes | Bytes, *, magic: int = 2) -> DecompressedRecords:
        """Decompress records, like `kafka_index.core.records.decompression.decompress`."""


def open_records(
    batch: Bytes, decompressor: Decompressor, *, verify_crc: bool = False
) -> BatchRecords:
    """Open the records of one log entry: a v2 batch, or an older message.

    The entry must be complete, with a verified checksum. The calling thread must not hold a part of
    the decompressor's budget. `verify_crc` verifies the checksums of messages inside a compressed
    message, as the consumer does and Kafka's iteration does not. Raises `CorruptLogError` without a
    position if Kafka throws before it returns a record, and `TooLargeError` if the records exceed
    the whole budget.
    """
    if len(batch) < _MIN_ENTRY_BYTES:
        raise CorruptLogError(
            "the log entry is shorter than the minimum", found=f"{len(batch)} bytes"
        )
    if _magic(batch) >= MAGIC_RECORD_BATCH:
        return _open_batch(batch, decompressor)
    return _open_message(batch, decompressor, verify_crc=verify_crc)


def first_offset(batch: Bytes, decompressor: Decompressor) -> int:
    """Return the first offset of an entry (``RecordBatch.baseOffset``).

    The header of a v2 batch contains it. The header of an older entry has the last offset; if
    compressed, the first inner message is read, and `CorruptLogError` is raised if that fails.
    For the parameters, see `open_records`.
    """
    if len(batch) >= _MIN_ENTRY_BYTES and _magic(batch) >= MAGIC_RECORD_BATCH:
        return int.from_bytes(batch[:8].tobytes(), "big", signed=True)
    with open_records(batch, decompressor) as records:
        return records.first_offset


def _magic(batch: Bytes) -> int:
    return int(batch[MAGIC_POSITION].view(np.int8))


def record_fault(decoded: int, count: int, code: int) -> str:
    """Return why the record after the first `decoded` records of a batch cannot be read."""
    return f"record {decoded + 1} of {count} cannot be read: {_ERROR_REASONS[code]}"


def _address_range(data: Bytes) -> tuple[np.uint64, np.uint64]:
    start = data.ctypes.data
    return np.uint64(start), np.uint64(start + len(data))


def _open_batch(batch: Bytes, decompressor: Decompressor) -> BatchRecords:
    if len(batch) < RECORD_BATCH_OVERHEAD_BYTES:
        raise CorruptLogError("the batch is shorter than its header", found=f"{len(batch)} bytes")
    header = batch[:RECORD_BATCH_OVERHEAD_BYTES].view(RECORD_BATCH_HEADER)[0]
    count = int(header["record_count"])
    if count == 0:
        # A batch without records is valid, whatever its codec and the bytes after its header.
        return BatchRecords(EMPTY_SECTION, _NO_BYTES)
    codec = int(header["attributes"]) & COMPRESSION_MASK
    data = batch[RECORD_BATCH_OVERHEAD_BYTES:]
    decompressed = decompressor.decompress(codec, data) if codec else None
    if decompressed is not None:
        data = decompressed.data
    section = RecordSection(
        *_address_range(data),
        count,
        int(header["base_offset"]),
        int(header["base_timestamp_ms"]),
        int(header["max_timestamp_ms"]),
        int(header["attributes"]) & TIMESTAMP_TYPE_MASK,
        0,
    )
    records = BatchRecords(section, data, decompressed)
    fault = None
    if count < 0:
        fault = CorruptLogError("the batch has a negative record count", found=count)
    elif codec:
        valid, code = check_records(tuple(section))
        if code != RECORD_VALID:
            fault = CorruptLogError(record_fault(int(valid), count, int(code)))
    if fault is not None:
        records.close()
        raise fault
    return records


def _open_message(batch: Bytes, decompressor: Decompressor, *, verify_crc: bool) -> BatchRecords:
    offset, _, magic, attributes, timestamp = _MESSAGE.unpack_from(batch.data)
    codec = attributes & COMPRESSION_MASK
    if codec >= len(COMPRESSION_NAMES):
        raise CorruptLogError("unknown codec", expected="0..4", found=codec)
    if codec == 0:
        return BatchRecords(RecordSection(*_address_range(batch), 1, 0, 0, 0, 0, 1), batch)
    if magic < 0 or codec == _ZSTD:
        raise CorruptLogError(f"a message of magic {magic} cannot be compressed with codec {codec}")
    packed = _message_value(batch, _V0_KEY if magic == 0 else _V1_KEY)
    decompressed = decompressor.decompress(codec, packed, magic=magic)
    try:
        return _inner_messages(
            decompressed, magic, offset, attributes, timestamp, verify_crc=verify_crc
        )
    except CorruptLogError:
        decompressed.close()
        raise


def _message_value(data: Bytes, key_position: int) -> Bytes:
    try:
        (key_bytes,) = _INT32.unpack_from(data.data, key_position)
        value_position = key_position + _INT32.size + max(key_bytes, 0)
        (value_bytes,) = _INT32.unpack_from(data.data, value_position)
    except struct.error as error:
        raise CorruptLogError("the message ends before the value") from error
    start = value_position + _INT32.size
    if value_bytes < 0:
        raise CorruptLogError("a compressed message has no value")
    if value_bytes > len(data) - start:
        raise CorruptLogError("the message ends inside the value")
    return data[start : start + value_bytes]


def _inner_messages(
    decompressed: DecompressedRecords,
    magic: int,
    offset: int,
    attributes: int,
    timestamp: int,
    *,
    verify_crc: bool,
) -> BatchRecords:
    """Open the messages in a compressed message (``DeepRecordsIterator``)."""
    start, end = _address_range(decompressed.data)
    count, plain, last_offset, code, address = measure_messages(start, end, verify_crc)
    if code == MESSAGES_BAD_LENGTH:
        (length,) = _INT32.unpack_from(decompressed.data.data, int(address) - int(start) + 8)
        raise CorruptLogError(
            "a message inside a compressed message has a wrong length", found=length
        )
    if not count:
        raise CorruptLogError("a compressed message contains no inner message")
    base_offset = 0
    if magic == 1:
        if offset != 0 and offset < last_offset:
            raise CorruptLogError(
                "the offset of a compressed message is below the offset of an inner message"
            )
        # Inner offsets are relative, and the wrapper has the offset of the last one. Some
        # librdkafka versions left the wrapper's offset at 0; then inner offsets are absolute. The
        # difference is computed with an array, so that it overflows as in Java.
        if offset != 0:
            base_offset = int((np.array([offset], np.int64) - last_offset)[0])
    section = RecordSection(
        start,
        np.uint64(address),
        int(plain),
        base_offset,
        0,
        timestamp if magic == 1 else 0,
        attributes & TIMESTAMP_TYPE_MASK if magic == 1 else 0,
        1,
    )
    fault = None
    if plain < count:
        reason = "is compressed, too" if code == MESSAGES_NESTED else "has a wrong checksum"
        fault = f"message {plain + 1} of {count} in a compressed message {reason}"
    return BatchRecords(section, decompressed.data, decompressed, fault)
