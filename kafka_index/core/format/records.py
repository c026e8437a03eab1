"""Byte layouts of logs, index files and producer snapshots.

Every layout is a big-endian numpy structured dtype, which readers, writers and tests share. Index
files have no header and no checksum. Sources: Kafka's ``DefaultRecordBatch``, ``LegacyRecord``,
``Records``, ``FileLogInputStream``, ``OffsetIndex``, ``TimeIndex``, ``AbortedTxn``,
``ProducerStateManager.writeSnapshot`` and ``ProducerSnapshot``.
"""

from __future__ import annotations

import numpy as np

from kafka_index.core.format.integers import INT32_MAX

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
    fields = layout.fields
    if fields is None:
        raise TypeError("the layout has no fields")
    return int(fields[name][1])


LOG_OVERHEAD_BYTES = LOG_OVERHEAD.itemsize
RECORD_BATCH_OVERHEAD_BYTES = RECORD_BATCH_HEADER.itemsize
#: The magic byte is at the same position in every version.
MAGIC_POSITION = field_position(RECORD_BATCH_HEADER, "magic")
#: Bytes that are read before the version is known (``Records.HEADER_SIZE_UP_TO_MAGIC``). Iteration
#: ends without an error if no more bytes than this are left.
HEADER_SIZE_UP_TO_MAGIC = MAGIC_POSITION + 1
#: Minimum of the length field in any version (``LegacyRecord.RECORD_OVERHEAD_V0``). Recovery also
#: applies it to v1 messages, whose own minimum is 22.
MIN_LENGTH = 14
#: Message format v2; recovery treats higher values alike (``FileLogInputStream``).
MAGIC_RECORD_BATCH = 2

COMPRESSION_MASK = 0x07
TIMESTAMP_TYPE_MASK = 0x08
TRANSACTIONAL_MASK = 0x10
CONTROL_MASK = 0x20
DELETE_HORIZON_MASK = 0x40

NO_TIMESTAMP = -1
NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_SEQUENCE = -1
NO_LEADER_EPOCH = -1

#: Types of control records that end a transaction (``ControlRecordType``).
CONTROL_ABORT = 0
CONTROL_COMMIT = 1


#: Entry of ``.index``, 8 bytes: the offset minus the segment's base offset, and the position in the
#: ``.log`` of the batch with this last offset. Offsets strictly increase.
OFFSET_ENTRY = np.dtype([("relative_offset", ">i4"), ("position_bytes", ">i4")])

#: Entry of ``.timeindex``, 12 bytes: no record up to this offset has a larger timestamp. Timestamps
#: strictly increase, offsets never decrease.
TIME_ENTRY = np.dtype([("timestamp_ms", ">i8"), ("relative_offset", ">i4")])


def offset_range(base_offset: int) -> str:
    """Format the range of offsets that a segment can contain, for errors."""
    return f"{base_offset}..{base_offset + INT32_MAX}"


#: Entries within this many bytes of the end of an index are searched first (KAFKA-6432), so that
#: lookups near the end touch at most three pages, whatever the size of the file.
WARM_BYTES = 8192


#: Entry of ``.txnindex``, 34 bytes: a transaction that was aborted. Last offsets strictly increase.
#:
#: ==================== ====== =============================================================
#: field                type   meaning
#: ==================== ====== =============================================================
#: version              int16  0; Kafka reads the first of its two bytes, and writes both
#: producer_id          int64
#: first_offset         int64  first offset of the transaction, absolute
#: last_offset          int64  offset of its marker, absolute
#: last_stable_offset   int64  last stable offset after it ended, absolute
#: ==================== ====== =============================================================
ABORTED_TXN = np.dtype(
    [
        ("version", ">i2"),
        ("producer_id", ">i8"),
        ("first_offset", ">i8"),
        ("last_offset", ">i8"),
        ("last_stable_offset", ">i8"),
    ]
)

ABORTED_TXN_VERSION = 0

#: Header of a ``.snapshot``, 10 bytes.
#:
#: ======== ======= =====================================================
#: field    type    meaning
#: ======== ======= =====================================================
#: version  int16   1
#: crc      uint32  CRC-32C of all bytes from ``count`` to the file's end
#: count    int32   entries that follow
#: ======== ======= =====================================================
SNAPSHOT_HEADER = np.dtype([("version", ">i2"), ("crc", ">u4"), ("count", ">i4")])

SNAPSHOT_VERSION = 1

#: Entry of a ``.snapshot``, 46 bytes: the state of a producer.
#:
#: ========================= ====== =======================================================
#: field                     type   meaning
#: ========================= ====== =======================================================
#: producer_id               int64
#: producer_epoch            int16  -1 when only an empty control batch was seen
#: last_sequence             int32  of the last batch of data, -1 for none in this epoch
#: last_offset               int64  last offset of that batch, absolute, -1 for none
#: offset_delta              int32  last minus first offset of that batch, 0 for none
#: timestamp_ms              int64  of the last batch or marker, -1 for none
#: coordinator_epoch         int32  of the last marker, -1 for none
#: current_txn_first_offset  int64  first offset of the open transaction, -1 for none
#: ========================= ====== =======================================================
SNAPSHOT_ENTRY = np.dtype(
    [
        ("producer_id", ">i8"),
        ("producer_epoch", ">i2"),
        ("last_sequence", ">i4"),
        ("last_offset", ">i8"),
        ("offset_delta", ">i4"),
        ("timestamp_ms", ">i8"),
        ("coordinator_epoch", ">i4"),
        ("current_txn_first_offset", ">i8"),
    ]
)

#: The same fields in native byte order.
PRODUCER_STATE_ENTRY = SNAPSHOT_ENTRY.newbyteorder("=")

NO_LAST_OFFSET = -1
NO_OFFSET_DELTA = 0
NO_COORDINATOR_EPOCH = -1
NO_OPEN_TXN = -1
