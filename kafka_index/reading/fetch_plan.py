"""The parts of a remote log that queries will read, planned from the indexes.

An entry of the offset index points to the start of a batch and has its last offset, so the batch
with an answer begins between the entry at or below the target and the next one, and the batch after
it no later than the entry after that. The batches at these three positions are requested, together
with the bytes between them if these are few (`kafka_index.reading.fetched_log.MAX_GAP_BYTES`); long
gaps mean large batches. A wrong plan costs a request: bytes that a read misses are fetched all the
same.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest

import numpy as np

from kafka_index.kernels.batch_header import read_batch_fields
from kafka_index.layout.integers import Longs
from kafka_index.layout.records import RECORD_BATCH_OVERHEAD_BYTES
from kafka_index.reading.answers import Resolve
from kafka_index.reading.fetched_log import MAX_GAP_BYTES
from kafka_index.reading.segment_indexes import SegmentIndexes
from kafka_index.reading.segment_log import SegmentLog

#: What the queries of one read may fetch together, for each thread.
MAX_READ_BYTES = 64 << 20
# Where entries are further apart than batches usually are large, batches are small.
_MAX_BATCH_BYTES = 2 << 20


def request_parts(
    log: SegmentLog,
    indexes: SegmentIndexes,
    targets: Longs,
    resolve: Resolve,
    starting_offset: int | None,
) -> Iterator[Longs]:
    """Split queries into parts of bounded size, request the ranges of each part, and yield it.

    The parameters are those of `kafka_index.reading.segment_walk.locate`.
    """
    if not len(targets):
        yield targets
        return
    starts, ends, queries = planned_ranges(log, indexes, targets, resolve, starting_offset)
    before = np.append(0, np.maximum.accumulate(ends)[:-1])
    gaps = starts - before
    gaps[(gaps < 0) | (gaps > MAX_GAP_BYTES)] = 0
    fetched = np.cumsum(np.maximum(ends - np.maximum(starts, before), 0) + gaps)
    part_of_query = np.zeros(len(targets), np.int64)
    np.maximum.at(part_of_query, queries, fetched // MAX_READ_BYTES)
    bounds = np.flatnonzero(np.diff(np.maximum.accumulate(part_of_query))) + 1
    parts = []
    for rows in np.split(np.arange(len(targets)), bounds):
        asked = (queries >= rows[0]) & (queries <= rows[-1])
        parts.append((targets[rows], starts[asked], ends[asked]))
    for (part, *ranges), following in zip_longest(parts, parts[1:]):
        log.request(*ranges)
        if following is not None:
            log.request(*following[1:], ahead=True)
        yield part


def planned_ranges(
    log: SegmentLog,
    indexes: SegmentIndexes,
    targets: Longs,
    resolve: Resolve,
    starting_offset: int | None,
) -> tuple[Longs, Longs, Longs]:
    """Return the ranges that ascending targets will read, by start, and the query of each.

    The three arrays are starts and exclusive ends in bytes, and rows of the targets.
    """
    size = log.size_bytes
    offsets, positions = indexes.offset_index.read_entries()
    bounds = np.clip(np.concatenate(([0], positions, [size] * 3)), 0, size)
    # Numbers of entries from 1 on, 0 is the start of the log: at or below each target, and the
    # first whose batch may have the answer.
    if starting_offset is None:
        floors = np.searchsorted(offsets, targets, "right")
        exact = np.searchsorted(offsets, targets) < floors
        lasts = np.where(exact, floors, floors + 1)
    else:
        timestamps, at = indexes.time_index.read_entries()
        numbers = np.searchsorted(timestamps, targets, "right")
        at = np.maximum(np.concatenate(([starting_offset], at)), starting_offset)
        floors = np.searchsorted(offsets, at[numbers], "right")
        following = at[np.minimum(numbers + 1, len(at) - 1)]
        lasts = np.maximum(np.searchsorted(offsets, following, "right"), floors)
    header = RECORD_BATCH_OVERHEAD_BYTES
    last_ends = bounds[lasts] + header
    if resolve is Resolve.RECORD:
        whole = np.minimum(bounds[lasts + 1] - bounds[lasts], _MAX_BATCH_BYTES)
        last_ends = bounds[lasts] + np.maximum(whole, header)
    starts = np.concatenate([bounds[each] for each in (floors, floors + 1, lasts, lasts + 1)])
    ends = starts + header
    ends[2 * len(targets) : 3 * len(targets)] = last_ends
    order = np.argsort(starts, kind="stable")
    queries = np.tile(np.arange(len(targets)), 4)
    return np.minimum(starts, size)[order], np.minimum(ends, size)[order], queries[order]


def fetch_batches(log: SegmentLog, size_bytes: int, batches: Longs) -> None:
    """Fetch batches, whose headers have been read, whole."""
    found = np.unique(batches[batches >= 0])
    fields = np.zeros((3, len(found)), np.int64)
    read_batch_fields(log.address, found, *fields)
    sizes = fields[2]
    log.fetch(found, np.minimum(found + np.maximum(sizes, 0), size_bytes))
