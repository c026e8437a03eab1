"""The records that a start leaves to consumers, and those that no consumer gets after it.

A broker checks no checksum of a log that it does not recover, and no entry of an index that it
keeps: consumers stop at the first, and are led past records by the second. Lost records are counted
from the headers of the batches that are whole, whatever their checksums are.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from kafka_index.kernels.headers import HEADER_COLUMNS, HEADER_RECORD_COUNT, read_headers
from kafka_index.layout.integers import INT64_MAX, Longs
from kafka_index.layout.names import OFFSET_INDEX_SUFFIX
from kafka_index.records.batch_table import BatchColumns
from kafka_index.scan.entry_fit import OffsetEntryFit, read_offset_entries
from kafka_index.scan.file_records import LogBatches
from kafka_index.scan.scanner import BatchOrder
from kafka_index.startup.loaded_segment import LoadedSegment
from kafka_index.startup.partition_loading import LoadedPartition
from kafka_index.startup.prediction import LostRecords
from kafka_index.storage import Bytes, MappedFile
from kafka_index.stores.inputs import refuse_linked_out


def why_unreadable(loaded: LoadedPartition) -> str | None:
    """Return the first thing in the segments that are kept over which reading fails."""
    for segment in loaded.segments:
        try:
            why = next(_faults(segment), None)
        finally:
            segment.release()
        if why is not None:
            return why
    return None


def records_that_come_back(loaded: LoadedPartition, first_kept: int) -> int:
    """Return how many records a log has before an offset that was its start."""
    count = 0
    for segment in loaded.segments:
        if segment.base_offset < first_kept:
            for chunk in LogBatches(segment.log, 0, segment.base_offset, verify_crc=False):
                last = np.minimum(chunk.last_offset, first_kept - 1)
                first = np.maximum(chunk.base_offset, loaded.log.log_start_offset)
                count += int(np.maximum(last - first + 1, 0).sum())
            segment.release()
    return count


def _faults(segment: LoadedSegment) -> Iterator[str]:
    if segment.found is None:
        return
    for path in segment.found.directories.values():
        yield f"{path} is a directory: the first read there takes the data directory offline"
    if segment.is_rebuilt:
        return
    index = segment.found.indexes.get(OFFSET_INDEX_SUFFIX)
    entries = read_offset_entries(_read(index) if index else b"", segment.base_offset)
    fit, order = OffsetEntryFit(entries), BatchOrder(0)
    batches = LogBatches(segment.log, 0, segment.base_offset, verify_crc=True)
    for chunk in batches:
        fit.observe(chunk)
        stop = order.first_stop(chunk)
        if stop is not None:
            at = stop.position_bytes
            yield f"{segment.path}: at byte {at} offsets go back: consumers are led astray"
    if batches.stop is not None:
        stop = batches.stop
        yield f"{segment.path}: {stop.name} at byte {stop.position_bytes}: consumers stop there"
    # An offset that the log does not reach leads nobody astray.
    misfit = fit.misfit(INT64_MAX, len(segment.log))
    wrong = misfit.entry if entries.disorder is None and misfit else entries.disorder
    if wrong is not None:
        yield (
            f"{index}: entry {wrong} does not lead to the batch of its offset: readers are led "
            "past records, or between batches"
        )


def _read(path: str) -> bytes:
    refuse_linked_out(path)
    with open(path, "rb") as file:
        return file.read()


def lost_records(
    loaded: LoadedPartition, replaced: dict[int, str], replaced_end: int, log_start_before: int
) -> tuple[LostRecords, int]:
    """Return what is lost, and the log end before the start, as the files have it.

    Parameters
    ----------
    loaded : LoadedPartition
        The partition after loading.
    replaced : dict of int to str
        Logs that swapped ones replace.
    replaced_end : int
        Where what the swapped ones hold ends.
    log_start_before : int
        Records before it were not visible.
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
            # A log that ends at the base of its active segment hides what is in it.
            cut_from = 0
        if cut_from is not None:
            log = segment.whole_log
            ends.append(_add_batches(lost, log, cut_from, segment.base_offset, log_start_before))
    for base_offset, path in replaced.items():
        file = MappedFile(path)
        try:
            hidden_from = max(log_start_before, replaced_end)
            ends.append(_add_batches(lost, file.array, 0, base_offset, hidden_from))
        finally:
            file.close()
    return lost, max(ends)


def _add_batches(
    lost: LostRecords, log: Bytes, start: int, base_offset: int, from_offset: int
) -> int:
    """Add the batches of a log that end at an offset or above; return the offset after the last."""
    end = base_offset
    for batches, counts in _batches(log, start, base_offset):
        end = max(end, int(batches.last_offset.max()) + 1)
        rows = np.flatnonzero(batches.last_offset >= from_offset)
        if len(rows):
            lost.add(
                int(np.maximum(counts[rows], 0).sum()),
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
    """Yield the whole batches of a log from a position on, with their record counts."""
    for batches in LogBatches(log, start, base_offset, verify_crc=False):
        headers = np.empty((HEADER_COLUMNS, batches.rows), np.int64)
        read_headers(log, 0, batches.position_bytes, headers)
        yield batches, headers[HEADER_RECORD_COUNT]
