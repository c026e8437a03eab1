"""Byte layout of index entries. An index file has no header and no checksum.

Sources: Kafka's ``OffsetIndex`` and ``TimeIndex``.
"""

from __future__ import annotations

import numpy as np

from kafka_index.layout.integers import INT32_MAX

#: Entry of ``.index``, 8 bytes: the offset minus the segment's base offset, and the byte position
#: in the ``.log`` of the batch with that last offset. Offsets strictly increase.
OFFSET_ENTRY = np.dtype([("relative_offset", ">i4"), ("position_bytes", ">i4")])

#: Entry of ``.timeindex``, 12 bytes: no record up to this offset is later than this timestamp.
#: Timestamps strictly increase, offsets never decrease.
TIME_ENTRY = np.dtype([("timestamp_ms", ">i8"), ("relative_offset", ">i4")])


def offset_range(base_offset: int) -> str:
    """Return the offsets that a segment can hold, for errors."""
    return f"{base_offset}..{base_offset + INT32_MAX}"


#: Entries within this many bytes of the end are searched first (KAFKA-6432), so that lookups near
#: the end touch at most three pages, whatever the size of the file.
WARM_BYTES = 8192
