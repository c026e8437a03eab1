"""Segments whose offsets are too far apart for an index, split for a restore as by a broker."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace

from kafka_index.errors import CorruptObjectError
from kafka_index.layout.names import LOG_SUFFIX, segment_file_name
from kafka_index.records.batch_table import OFFSET_OVERFLOW
from kafka_index.records.record_sections import Decompressor
from kafka_index.restore.output_files import make_directory
from kafka_index.restore.plan import PartitionPlan
from kafka_index.restore.restored_partition import RestoredPartition
from kafka_index.scan.file_records import open_log
from kafka_index.scan.segment_split import SegmentSpan, split_segment
from kafka_index.storage import SegmentFile, publishing
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
        try:
            segments = [
                each for segment in plan.base.segments.files() for each in self._segments(segment)
            ]
        except CorruptObjectError:
            # The offsets are too far apart because an object of a backup is damaged there.
            return plan
        if not any(each.log_path in self.originals for each in segments):
            return plan
        return replace(plan, base=replace(plan.base, segments=PartitionSegments.of(segments)))

    def _segments(self, segment: SegmentFile) -> Iterator[SegmentFile]:
        spans = split_segment(segment, self.decompressor)
        if not spans:
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
            is_last = segment.is_last and span is spans[-1]
            yield replace(copied, base_offset=span.base_offset, is_last=is_last)

    def name_originals(self, restored: RestoredPartition) -> None:
        """Replace split logs by the original logs in the losses of a partition."""
        restored.lost = [
            replace(each, path=self.originals[each.path], position_bytes=None)
            if each.path in self.originals
            else each
            for each in restored.lost
        ]


def _copy(segment: SegmentFile, span: SegmentSpan, path: str) -> None:
    with closing(open_log(segment.log_path, segment)) as log, open(path, "wb") as file:
        for at in range(span.start_bytes, span.end_bytes, _COPIED_BYTES):
            size = min(_COPIED_BYTES, span.end_bytes - at)
            file.write(log.read_at(at, size).data)
