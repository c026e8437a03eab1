"""What startup changes in a partition: the action on each segment, and the records lost.

Lost records are counted from the headers of complete batches; their checksums are ignored.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from kafka_index.core.format.longs import Longs
from kafka_index.core.fs.local_store import MappedFile
from kafka_index.core.fs.store import Bytes
from kafka_index.core.kernels.headers import HEADER_COLUMNS, HEADER_RECORD_COUNT, read_headers
from kafka_index.core.log.scan.file_records import LogBatches
from kafka_index.core.records.batch_table import BatchColumns
from kafka_index.core.startup.partition_loading import LoadedPartition
from kafka_index.core.startup.prediction import LostRecords, SegmentAction, SegmentPrediction

_SPLIT = "split: the offsets of a segment are 2^31 or more apart"


def changed_segments(loaded: LoadedPartition) -> Iterable[SegmentPrediction]:
    files = loaded.files
    swapped = {one.log.base_offset for one in files.segments if one.is_swapped}
    actions: dict[int, list[SegmentPrediction]] = {}
    for base_offset in files.replaced:
        reason = "replaced: a finished compaction or split contains its offsets"
        one = SegmentPrediction(base_offset, SegmentAction.DELETE, None, reason)
        actions.setdefault(base_offset, []).append(one)
    for base_offset in loaded.deleted:
        one = SegmentPrediction(
            base_offset, SegmentAction.DELETE, None, loaded.reasons.get(base_offset)
        )
        actions.setdefault(base_offset, []).append(one)
    for segment in loaded.segments:
        if segment.found is None:
            continue
        base_offset, why = segment.base_offset, loaded.reasons.get(segment.base_offset)
        if segment.whole_bytes > segment.size_bytes:
            one = SegmentPrediction(base_offset, SegmentAction.CUT, segment.size_bytes, why)
        elif base_offset in swapped:
            text = "swapped: it takes its name from .swap"
            one = SegmentPrediction(base_offset, SegmentAction.REPLACE, None, text)
        elif segment.is_rebuilt:
            text = why or "unflushed: at or above the recovery point, or the last one"
            text = _SPLIT if segment.is_split else text
            one = SegmentPrediction(base_offset, SegmentAction.REBUILD, None, text)
        elif segment.is_split:
            one = SegmentPrediction(base_offset, SegmentAction.REBUILD, None, _SPLIT)
        else:
            one = SegmentPrediction(base_offset, SegmentAction.KEEP, None, why)
        actions.setdefault(base_offset, []).append(one)
    return [one for _, found in sorted(actions.items()) for one in found]


def lost_records(loaded: LoadedPartition, log_start_before: int) -> tuple[LostRecords, int]:
    """Count the records that startup loses; also return the log end offset before startup.

    Records below `log_start_before` were not visible and are not counted.
    """
    lost = LostRecords()
    log_end = loaded.log.log_end_offset
    ends = [log_end]
    ends += [
        _add_batches(lost, segment.whole_log, 0, segment.base_offset, log_start_before)
        for segment in loaded.deleted.values()
    ]
    for segment in loaded.segments:
        cut_from = segment.size_bytes if segment.whole_bytes > segment.size_bytes else None
        if segment.size_bytes and log_end <= segment.base_offset:
            # If a log now ends at the base offset of its active segment, all records in that
            # segment are lost.
            cut_from = 0
        if cut_from is not None:
            log = segment.whole_log
            ends.append(_add_batches(lost, log, cut_from, segment.base_offset, log_start_before))
    for base_offset, path in loaded.files.replaced.items():
        file = MappedFile(path)
        try:
            hidden_from = max(log_start_before, loaded.files.replaced_end)
            ends.append(_add_batches(lost, file.array, 0, base_offset, hidden_from))
        finally:
            file.close()
    return lost, max(ends)


def _add_batches(
    lost: LostRecords, log: Bytes, start: int, base_offset: int, from_offset: int
) -> int:
    """Add batches that end at or after `from_offset`; return the offset after the last batch."""
    end = base_offset
    for batches, counts in _batches(log, start, base_offset):
        end = max(end, int(batches.last_offset.max()) + 1)
        rows = np.flatnonzero(batches.last_offset >= from_offset)
        if len(rows):
            # A corrupt header can contain any record count.
            most = np.maximum(batches.last_offset[rows] - batches.base_offset[rows] + 1, 1)
            lost.add(
                int(np.clip(counts[rows], 1, most).sum()),
                (
                    max(int(batches.base_offset[rows].min()), from_offset),
                    int(batches.last_offset[rows].max()),
                ),
                (
                    int(batches.max_timestamp_ms[rows].min()),
                    int(batches.max_timestamp_ms[rows].max()),
                ),
            )
    return end


def _batches(log: Bytes, start: int, base_offset: int) -> Iterator[tuple[BatchColumns, Longs]]:
    """Yield the complete batches from a position on, with their record counts."""
    for batches in LogBatches(log, start, base_offset, verify_crc=False):
        headers = np.empty((HEADER_COLUMNS, batches.rows), np.int64)
        read_headers(log, 0, batches.position_bytes, headers)
        yield batches, headers[HEADER_RECORD_COUNT]
