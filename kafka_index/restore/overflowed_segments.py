"""Segments whose offsets are 2^31 or more apart (KAFKA-6264), split as a broker splits them.

An index entry holds an offset relative to the base offset of its segment, in 31 bits. Brokers
before 1.0 merged cleaned segments without regard to that. A broker that recovers such a segment
splits it. Each new segment is named after its first batch. Source: ``LogLoader`` and
``LocalLog.splitOverflowedSegment``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from kafka_index.errors import CorruptLogError, TooLargeError
from kafka_index.layout.integers import INT32_MAX
from kafka_index.layout.names import LOG_SUFFIX, segment_file_name
from kafka_index.records.batch_table import OFFSET_OVERFLOW
from kafka_index.records.record_sections import Decompressor, first_offset
from kafka_index.restore.output_files import make_directory
from kafka_index.restore.plan import PartitionPlan
from kafka_index.restore.restored_partition import RestoredPartition
from kafka_index.scan import LogFileSource
from kafka_index.scan.file_records import open_log
from kafka_index.storage import Bytes, SegmentFile, publishing
from kafka_index.storage.segment_table import PartitionSegments

_COPIED_BYTES = 16 << 20


def has_overflowed(restored: RestoredPartition) -> bool:
    """Return whether a restored partition lacks batches whose offsets are too far apart."""
    codes = {restored.code, *(each.code for each in restored.lost)}
    return OFFSET_OVERFLOW in codes or (restored.reason or "").startswith(OFFSET_OVERFLOW)


@dataclass(frozen=True, slots=True)
class SegmentSplitter:
    """Splits the segments of partitions into logs in a folder.

    `originals` has the paths of the logs that the new ones were split from.
    """

    folder: str
    decompressor: Decompressor
    originals: dict[str, str] = field(default_factory=dict)

    def split(self, plan: PartitionPlan) -> PartitionPlan:
        """Return a plan whose base copy has the segments that a broker makes."""
        segments = [
            each for segment in plan.base.segments.files() for each in self._segments(segment)
        ]
        if not any(each.log_path in self.originals for each in segments):
            return plan
        return replace(plan, base=replace(plan.base, segments=PartitionSegments.of(segments)))

    def _segments(self, segment: SegmentFile) -> Iterator[SegmentFile]:
        spans = list(_spans(segment, self.decompressor))
        last = spans[-1] if spans else None
        if last is None or (
            len(spans) == 1 and last.base_offset <= segment.base_offset + INT32_MAX
        ):
            yield segment
            return
        directory = os.path.join(self.folder, segment.topic_partition.directory_name)
        make_directory(self.folder)
        make_directory(directory)
        for span in spans:
            path = os.path.join(directory, segment_file_name(span.base_offset, LOG_SUFFIX))
            with publishing(path, "split a segment"):
                _copy(segment, span, path)
                os.utime(path, ns=(segment.log_mtime_ns, segment.log_mtime_ns))
                copied = segment.copied_to(path, os.stat(path))
            self.originals[path] = segment.log_path
            is_last = segment.is_last and span is last
            yield replace(copied, base_offset=span.base_offset, is_last=is_last)

    def name_originals(self, restored: RestoredPartition) -> None:
        """Name the logs of the dump in what was lost of a partition."""
        restored.lost = [
            replace(each, path=self.originals[each.path], position_bytes=None)
            if each.path in self.originals
            else each
            for each in restored.lost
        ]


class _Span(NamedTuple):
    """A new segment: its base offset, and its bytes in the old one."""

    base_offset: int
    start_bytes: int
    end_bytes: int


def _spans(segment: SegmentFile, decompressor: Decompressor) -> Iterator[_Span]:
    """Yield the new segments of an old one; damage, and what follows it, is in the last one."""
    source = LogFileSource.of_segment(segment, verify_crc=False, recovers=False)
    base, start = -1, 0
    for window, window_start, batches in source.windows():
        row = 0
        while row < batches.rows:
            at = int(batches.position_bytes[row])
            if base < 0 or int(batches.last_offset[row]) > base + INT32_MAX:
                if base >= 0:
                    yield _Span(base, start, at)
                end = at - window_start + int(batches.size_bytes[row])
                base, start = _first_offset(window[at - window_start : end], decompressor), at
            beyond = np.flatnonzero(batches.last_offset[row:] > base + INT32_MAX)
            row = row + int(beyond[0]) if len(beyond) else batches.rows
    if base >= 0:
        yield _Span(base, start, source.log_size_bytes)


def _first_offset(batch: Bytes, decompressor: Decompressor) -> int:
    try:
        return first_offset(batch, decompressor)
    except (CorruptLogError, TooLargeError):
        # The header of a compressed message has the last offset inside.
        return int.from_bytes(batch[:8].tobytes(), "big")


def _copy(segment: SegmentFile, span: _Span, path: str) -> None:
    with closing(open_log(segment.log_path, segment)) as log, open(path, "wb") as file:
        for at in range(span.start_bytes, span.end_bytes, _COPIED_BYTES):
            size = min(_COPIED_BYTES, span.end_bytes - at)
            file.write(log.read_at(at, size).data)
