"""Segments whose offsets span 2^31 or more (KAFKA-6264), and how a broker splits them.

An index entry stores an offset relative to the base offset in 31 bits. Brokers before 1.0 ignored
this when they merged cleaned segments. A broker that recovers such a segment splits it; each new
segment is named after its first batch. Source: ``LogLoader`` and
``LocalLog.splitOverflowedSegment``.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from kafka_index.core.errors import CorruptLogError, TooLargeError
from kafka_index.core.format.integers import INT32_MAX
from kafka_index.core.fs.store import Bytes
from kafka_index.core.log.scan.segment_scan import LogFileSource
from kafka_index.core.logdir.partition_files import SegmentFile
from kafka_index.core.records.record_sections import Decompressor, first_offset


class SegmentSpan(NamedTuple):
    """A new segment: its base offset, and its byte range in the old one."""

    base_offset: int
    start_bytes: int
    end_bytes: int


def split_segment(segment: SegmentFile, decompressor: Decompressor) -> list[SegmentSpan]:
    """Return the new segments of an old one; empty if all of its offsets fit.

    The last one includes corrupt batches and all bytes after them. Raises `KafkaIndexError` if the
    log cannot be read.
    """
    source = LogFileSource.of_segment(segment, verify_crc=False, recovers=False)
    spans: list[SegmentSpan] = []
    base, start = -1, 0
    for window, window_start, batches in source.windows():
        row = 0
        while row < batches.rows:
            at = int(batches.position_bytes[row])
            if base < 0 or int(batches.last_offset[row]) > base + INT32_MAX:
                if base >= 0:
                    spans.append(SegmentSpan(base, start, at))
                end = at - window_start + int(batches.size_bytes[row])
                base, start = _first_offset(window[at - window_start : end], decompressor), at
            row += 1
            beyond = np.flatnonzero(batches.last_offset[row:] > base + INT32_MAX)
            row = row + int(beyond[0]) if len(beyond) else batches.rows
    is_far = base > segment.base_offset + INT32_MAX
    return [*spans, SegmentSpan(base, start, source.log_size_bytes)] if spans or is_far else []


def _first_offset(batch: Bytes, decompressor: Decompressor) -> int:
    try:
        return first_offset(batch, decompressor)
    except (CorruptLogError, TooLargeError):
        # The header of a compressed message has the last inner offset.
        return int.from_bytes(batch[:8].tobytes(), "big")
