"""Byte layout of index entries. An index file is entries alone: no header, no checksum.

Sources: Kafka's ``OffsetIndex`` and ``TimeIndex``.
"""

from __future__ import annotations

import numpy as np

#: Entry of ``.index``, 8 bytes: the offset minus the segment's base offset, and the byte position
#: in the ``.log`` of the batch with that last offset. Offsets strictly increase.
OFFSET_ENTRY = np.dtype([("relative_offset", ">i4"), ("position_bytes", ">i4")])

#: Entry of ``.timeindex``, 12 bytes: no record up to this offset is later than this timestamp.
#: Timestamps strictly increase, offsets never decrease.
TIME_ENTRY = np.dtype([("timestamp_ms", ">i8"), ("relative_offset", ">i4")])

#: Largest relative offset, position and file size.
INT32_MAX = 2**31 - 1

#: Entries within this many bytes of the end are searched first (KAFKA-6432): no more than three
#: pages are touched by lookups near the end, whatever the size of the file.
WARM_BYTES = 8192
