"""Byte layout of the entries of a ``.log``: record batches (magic 2), messages (magic 0, 1).

Every layout is a big-endian numpy structured dtype. Readers, writers and tests take the positions
of fields from it. Sources: Kafka's ``DefaultRecordBatch``,
``LegacyRecord``, ``Records`` and ``FileLogInputStream``.
"""

from __future__ import annotations

import numpy as np

#: The start of every entry of a log, in every version (Kafka: ``Records.LOG_OVERHEAD``).
#:
#: ============ ====== ==================================
#: field        type   meaning
#: ============ ====== ==================================
#: base_offset  int64  magic 0 and 1: the LAST offset
#: length       int32  bytes that follow this field
#: ============ ====== ==================================
LOG_OVERHEAD = np.dtype([("base_offset", ">i8"), ("length", ">i4")])

#: Record batch header, magic 2, 61 bytes. The CRC-32C covers all bytes from ``attributes`` on.
RECORD_BATCH_HEADER = np.dtype(
    [
        ("base_offset", ">i8"),
        ("length", ">i4"),
        ("leader_epoch", ">i4"),
        ("magic", "i1"),
        ("crc", ">u4"),
        ("attributes", ">i2"),
        ("last_offset_delta", ">i4"),
        ("base_timestamp_ms", ">i8"),
        ("max_timestamp_ms", ">i8"),
        ("producer_id", ">i8"),
        ("producer_epoch", ">i2"),
        ("base_sequence", ">i4"),
        ("record_count", ">i4"),
    ]
)

#: Message of a message set, magic 0, up to its key. The CRC-32 (IEEE) covers all bytes from
#: ``magic`` on.
MESSAGE_V0_HEADER = np.dtype(
    [
        ("base_offset", ">i8"),
        ("length", ">i4"),
        ("crc", ">u4"),
        ("magic", "i1"),
        ("attributes", "i1"),
        ("key_length", ">i4"),
    ]
)

#: Message of a message set, magic 1, up to its key: magic 0 with a timestamp.
MESSAGE_V1_HEADER = np.dtype(
    [
        ("base_offset", ">i8"),
        ("length", ">i4"),
        ("crc", ">u4"),
        ("magic", "i1"),
        ("attributes", "i1"),
        ("timestamp_ms", ">i8"),
        ("key_length", ">i4"),
    ]
)


def field_position(layout: np.dtype[np.void], name: str) -> int:
    """Return the position in bytes of a field from the start of its layout."""
    fields = layout.fields
    if fields is None:
        raise TypeError("the layout has no fields")
    return int(fields[name][1])


LOG_OVERHEAD_BYTES = LOG_OVERHEAD.itemsize
RECORD_BATCH_OVERHEAD_BYTES = RECORD_BATCH_HEADER.itemsize
#: The magic byte is at the same position in every version.
MAGIC_POSITION = field_position(RECORD_BATCH_HEADER, "magic")
#: Bytes that are read before an entry's version is known (``Records.HEADER_SIZE_UP_TO_MAGIC``). An
#: iteration ends without an error if no more than this is left.
HEADER_SIZE_UP_TO_MAGIC = MAGIC_POSITION + 1
#: Minimum of the length field in any version (``LegacyRecord.RECORD_OVERHEAD_V0``). Recovery
#: applies it to magic 1 as well, rather than that version's own 22.
MIN_LENGTH = 14
#: Magic 2, and in recovery any higher value (``FileLogInputStream``).
MAGIC_RECORD_BATCH = 2

COMPRESSION_MASK = 0x07
TIMESTAMP_TYPE_MASK = 0x08
TRANSACTIONAL_MASK = 0x10
CONTROL_MASK = 0x20
DELETE_HORIZON_MASK = 0x40
COMPRESSION_NAMES = ("none", "gzip", "snappy", "lz4", "zstd")

NO_TIMESTAMP = -1
NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_SEQUENCE = -1
NO_LEADER_EPOCH = -1

#: The types of control records that end a transaction (``ControlRecordType``).
CONTROL_ABORT = 0
CONTROL_COMMIT = 1
