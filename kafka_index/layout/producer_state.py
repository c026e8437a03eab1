"""Byte layout of a broker's state of producers: ``.txnindex`` entries and ``.snapshot`` files.

A transaction index is entries alone; a snapshot is a header and then entries. All integers in files
are big-endian. Sources: Kafka's ``AbortedTxn``, ``ProducerStateManager.writeSnapshot`` and the
message ``ProducerSnapshot``.
"""

from __future__ import annotations

import numpy as np

#: Entry of ``.txnindex``, 34 bytes: a transaction that was aborted. Last offsets strictly increase.
#:
#: ==================== ====== =============================================================
#: field                type   meaning
#: ==================== ====== =============================================================
#: version              int16  0; Kafka reads the first of its two bytes, and writes both
#: producer_id          int64
#: first_offset         int64  first offset of the transaction, absolute
#: last_offset          int64  offset of its marker, absolute
#: last_stable_offset   int64  last stable offset once it had ended, absolute
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

#: What a ``.snapshot`` begins with, 10 bytes.
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

#: Entry of a ``.snapshot``, 46 bytes: what is known of a producer.
#:
#: ========================= ====== =======================================================
#: field                     type   meaning
#: ========================= ====== =======================================================
#: producer_id               int64
#: producer_epoch            int16  -1 when only an empty control batch was seen
#: last_sequence             int32  of the last batch of data, -1 for none in this epoch
#: last_offset               int64  the same batch's last offset, absolute, -1 for none
#: offset_delta              int32  last minus first offset of that batch, 0 for none
#: timestamp_ms              int64  of the last batch or marker, -1 for none
#: coordinator_epoch         int32  of the last marker, -1 for none
#: current_txn_first_offset  int64  where the open transaction begins, -1 when none is
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

#: The same fields in memory, in this machine's byte order.
PRODUCER_STATE_ENTRY = SNAPSHOT_ENTRY.newbyteorder("=")

NO_LAST_OFFSET = -1
NO_OFFSET_DELTA = 0
NO_COORDINATOR_EPOCH = -1
NO_OPEN_TXN = -1
