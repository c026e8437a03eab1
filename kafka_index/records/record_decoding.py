"""The records of one entry of a log: their offsets and timestamps, for every magic and codec.

They are those that Kafka's ``for (Record record : batch)`` hands out. It reads a plain batch record
by record, so that what is wrong with a later one is no harm to those in front of it; a compressed
batch it reads whole beforehand. Sources: Kafka's ``DefaultRecordBatch``,
``AbstractLegacyRecordBatch`` with its ``DeepRecordsIterator``, and ``LegacyRecord``.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kafka_index.errors import CorruptLogError
from kafka_index.kernels.records import (
    MIN_RECORD_BYTES,
    RECORD_BAD_SIZE,
    RECORD_BROKEN,
    RECORD_CUT,
    RECORD_SOUND,
    RECORDS_REMAINING,
    decode_records,
)
from kafka_index.layout.records import (
    COMPRESSION_MASK,
    COMPRESSION_NAMES,
    LOG_OVERHEAD_BYTES,
    MAGIC_POSITION,
    MAGIC_RECORD_BATCH,
    MESSAGE_V0_HEADER,
    MESSAGE_V1_HEADER,
    MIN_LENGTH,
    NO_TIMESTAMP,
    RECORD_BATCH_HEADER,
    RECORD_BATCH_OVERHEAD_BYTES,
    TIMESTAMP_TYPE_MASK,
    field_position,
)
from kafka_index.records.compression import MOST_BYTES, decompress
from kafka_index.storage import Bytes

_SMALLEST_ENTRY = LOG_OVERHEAD_BYTES + MIN_LENGTH
_ZSTD = COMPRESSION_NAMES.index("zstd")
_INT32 = struct.Struct(">i")
_OVERHEAD = struct.Struct(">qi")
#: Offset, length, magic, attributes and timestamp of a message; where magic 0 has none, at least
#: key and value sizes stand, so that it can always be read.
_MESSAGE = struct.Struct(">qi4xbbq")
_V0_KEY = field_position(MESSAGE_V0_HEADER, "key_length")
_V1_KEY = field_position(MESSAGE_V1_HEADER, "key_length")

_FAULTS = {
    RECORD_BAD_SIZE: "its size cannot be read",
    RECORD_CUT: "it is larger than what is left of the batch",
    RECORD_BROKEN: "its fields do not fill its size",
    RECORDS_REMAINING: "it is the last one, and bytes remain behind it",
}


@dataclass(frozen=True, slots=True)
class BatchRecords:
    """The records of one batch, in order, control records among them.

    Parameters
    ----------
    offsets, timestamps_ms : ndarray of int64, shape (n,)
        Absolute. Without a timestamp, in messages of magic 0, it is -1.
    fault : str or None
        Why Kafka throws where it would hand out a further record; None when it does not.
    """

    offsets: NDArray[np.int64]
    timestamps_ms: NDArray[np.int64]
    fault: str | None = None

    def __len__(self) -> int:
        """Return the number of records."""
        return len(self.offsets)


def read_records(batch: Bytes, *, most_bytes: int = MOST_BYTES) -> BatchRecords:
    """Read the records of one entry of a log. Its checksum is the caller's matter.

    Parameters
    ----------
    batch : ndarray of uint8
        The whole entry, header included: a batch of magic 2 or above, or a message of a magic below
        with the messages in it.
    most_bytes : int
        A limit to what is unpacked.

    Returns
    -------
    BatchRecords
        All records, or those in front of the first that cannot be read.

    Raises
    ------
    CorruptLogError
        Kafka throws before it hands out any record, or the records unpack to more than
        ``most_bytes``. The error names no place.
    """
    if len(batch) < _SMALLEST_ENTRY:
        raise CorruptLogError("the entry is shorter than any", found=f"{len(batch)} bytes")
    if _magic(batch) >= MAGIC_RECORD_BATCH:
        return _read_batch(batch, most_bytes)
    return _read_message(batch, most_bytes)


def first_offset(batch: Bytes) -> int:
    """Return the first offset of an entry (``RecordBatch.baseOffset``).

    A batch of magic 2 has it in its header, where older ones have the last; their records tell.

    Parameters
    ----------
    batch : ndarray of uint8
        The whole entry, header included.

    Returns
    -------
    int
        The offset.

    Raises
    ------
    CorruptLogError
        The first record of a compressed message cannot be read.
    """
    if len(batch) >= _SMALLEST_ENTRY and _magic(batch) >= MAGIC_RECORD_BATCH:
        return int.from_bytes(batch[:8].tobytes(), "big", signed=True)
    records = read_records(batch)
    if not len(records):
        raise CorruptLogError(records.fault or "the message holds no other")
    return int(records.offsets[0])


def _magic(batch: Bytes) -> int:
    return int(batch[MAGIC_POSITION].view(np.int8))


def _read_batch(batch: Bytes, most_bytes: int) -> BatchRecords:
    if len(batch) < RECORD_BATCH_OVERHEAD_BYTES:
        raise CorruptLogError("the batch is shorter than its header", found=f"{len(batch)} bytes")
    header = batch[:RECORD_BATCH_OVERHEAD_BYTES].view(RECORD_BATCH_HEADER)[0]
    count = int(header["record_count"])
    if count == 0:
        # Whatever the codec is, and whatever follows.
        return BatchRecords(np.empty(0, np.int64), np.empty(0, np.int64))
    attributes = int(header["attributes"])
    codec = attributes & COMPRESSION_MASK
    data = batch[RECORD_BATCH_OVERHEAD_BYTES:]
    if codec:
        data = np.frombuffer(decompress(codec, data, most_bytes=most_bytes), np.uint8)
    if count < 0:
        raise CorruptLogError("the batch has a negative record count", found=count)
    # One more than there can be, for its fault to be found; the count alone is not to be trusted.
    rows = min(count, len(data) // MIN_RECORD_BYTES + 1)
    offsets, timestamps = np.empty(rows, np.int64), np.empty(rows, np.int64)
    decoded, code = decode_records(
        np.uint64(data.ctypes.data),
        np.uint64(data.ctypes.data + len(data)),
        rows,
        int(header["base_offset"]),
        int(header["base_timestamp_ms"]),
        int(header["max_timestamp_ms"]),
        attributes & TIMESTAMP_TYPE_MASK,
        offsets,
        timestamps,
    )
    if code == RECORD_SOUND:
        return BatchRecords(offsets, timestamps)
    fault = f"record {decoded + 1} of {count} cannot be read: {_FAULTS[int(code)]}"
    if codec:
        raise CorruptLogError(fault)
    return BatchRecords(offsets[:decoded], timestamps[:decoded], fault)


def _read_message(batch: Bytes, most_bytes: int) -> BatchRecords:
    data = batch.tobytes()
    offset, _, magic, attributes, timestamp = _MESSAGE.unpack_from(data)
    codec = attributes & COMPRESSION_MASK
    if magic == 0:
        timestamp = NO_TIMESTAMP
    if codec >= len(COMPRESSION_NAMES):
        raise CorruptLogError("unknown codec", expected="0..4", found=codec)
    if codec == 0:
        return BatchRecords(np.array([offset], np.int64), np.array([timestamp], np.int64))
    if magic < 0 or codec == _ZSTD:
        raise CorruptLogError(f"a message of magic {magic} cannot be compressed with codec {codec}")
    packed = _message_value(data, _V0_KEY if magic == 0 else _V1_KEY)
    inner = decompress(codec, packed, magic=magic, most_bytes=most_bytes)
    # Its own timestamp is for all in it, if it is the broker's; and if those are of magic 1 too.
    append_timestamp = timestamp if magic == 1 and attributes & TIMESTAMP_TYPE_MASK else None
    offsets, timestamps, plain = _read_inner_messages(inner, append_timestamp)
    if magic == 1:
        if offset != 0 and offset < offsets[-1]:
            raise CorruptLogError("a compressed message has a lower offset than one in it")
        # Inner offsets count from any number, and the wrapper's is that of the last. A librdkafka
        # left it at 0: then they are what they say.
        if offset != 0:
            offsets += offset - offsets[-1:]
    fault = None
    if plain < len(offsets):
        fault = f"message {plain + 1} of {len(offsets)} in a compressed one is compressed too"
    return BatchRecords(offsets[:plain], timestamps[:plain], fault)


def _message_value(data: bytes, key_position: int) -> bytes:
    try:
        (key_bytes,) = _INT32.unpack_from(data, key_position)
        value_position = key_position + _INT32.size + max(key_bytes, 0)
        (value_bytes,) = _INT32.unpack_from(data, value_position)
    except struct.error as error:
        raise CorruptLogError("the message ends before its value") from error
    start = value_position + _INT32.size
    if value_bytes < 0:
        raise CorruptLogError("a compressed message without a value")
    if value_bytes > len(data) - start:
        raise CorruptLogError("the message ends before its value does")
    return data[start : start + value_bytes]


def _read_inner_messages(
    data: bytes, append_timestamp: int | None
) -> tuple[NDArray[np.int64], NDArray[np.int64], int]:
    """Return offsets as they stand, timestamps, and how many come before a compressed one."""
    offsets: list[int] = []
    timestamps: list[int] = []
    plain: int | None = None
    position = 0
    while len(data) - position >= LOG_OVERHEAD_BYTES:
        _, length = _OVERHEAD.unpack_from(data, position)
        if length < MIN_LENGTH:
            raise CorruptLogError("a message in a compressed one has a wrong length", found=length)
        if length > len(data) - position - LOG_OVERHEAD_BYTES:
            break  # one that is cut short is passed over, as if it were not there
        offset, _, magic, attributes, timestamp = _MESSAGE.unpack_from(data, position)
        position += LOG_OVERHEAD_BYTES + length
        if plain is None and attributes & COMPRESSION_MASK:
            plain = len(offsets)
        if magic == 0:
            timestamp = NO_TIMESTAMP
        elif magic == 1 and append_timestamp is not None:
            timestamp = append_timestamp
        offsets.append(offset)
        timestamps.append(timestamp)
    if not offsets:
        raise CorruptLogError("a compressed message holds no other")
    return (
        np.array(offsets, np.int64),
        np.array(timestamps, np.int64),
        len(offsets) if plain is None else plain,
    )
