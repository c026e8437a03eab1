"""Find the valid batches anywhere in a log, and the largest set of them in offset order.

A batch is valid if its checksum and magic are correct, and its offsets belong to the segment. Valid
batches are found even if other batches are corrupt, repeated or misplaced. The checksum does not
cover the base offset, so the largest set of batches with ascending offsets is assumed to be
correct. Each other batch was moved, or has a wrong base offset.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from contextlib import closing
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kafka_index.core.errors import CorruptLogError, TooLargeError
from kafka_index.core.format.integers import INT64_MAX
from kafka_index.core.format.longs import Longs
from kafka_index.core.format.records import MAGIC_POSITION, MAGIC_RECORD_BATCH
from kafka_index.core.fs.store import Bytes
from kafka_index.core.kernels.headers import (
    CONTROL_MESSAGE,
    HEADER_COLUMNS,
    HEADER_CRC,
    read_headers,
)
from kafka_index.core.kernels.scan import SCAN_ROWS_FULL
from kafka_index.core.log.scan.file_records import log_changed, open_log
from kafka_index.core.log.scan.log_offsets import are_compressed_messages, has_delete_horizon
from kafka_index.core.log.scan.scanner import (
    ALL_MAGICS,
    InMemoryLog,
    OffsetBounds,
    Scanner,
    next_batch,
)
from kafka_index.core.logdir.partition_files import SegmentFile
from kafka_index.core.records.batch_table import BatchColumns, WindowBatches
from kafka_index.core.records.record_sections import Decompressor, first_offset

#: One row per batch. `first_offset` of a compressed v0 or v1 message is the offset of its first
#: inner message. `is_cleaned` is True if only the log cleaner writes such a batch. `is_next` is
#: True if no corruption precedes the batch after the previous batch in order, or after the start of
#: the log.
INTACT_BATCH = np.dtype(
    [
        ("position_bytes", np.int64),
        ("end_bytes", np.int64),
        ("first_offset", np.int64),
        ("last_offset", np.int64),
        ("checksum", np.int64),
        ("leader_epoch", np.int32),
        ("is_cleaned", np.bool_),
        ("is_next", np.bool_),
    ]
)

IntactRows = NDArray[np.void]


class IntactBatches(NamedTuple):
    """The valid batches of a log.

    Attributes
    ----------
    in_order : ndarray of INTACT_BATCH
        The largest set of batches whose offsets ascend in file order.
    moved : ndarray of INTACT_BATCH
        Batches out of order, sorted by offset, whose offsets are missing in `in_order`.
    reaches_end : bool
        True if no corruption follows the last batch of `in_order`.
    """

    in_order: IntactRows
    moved: IntactRows
    reaches_end: bool

    @property
    def by_offset(self) -> IntactRows:
        if not len(self.moved):
            return self.in_order
        return np.sort(np.concatenate([self.in_order, self.moved]), order="first_offset")


def find_intact_batches(
    log: Bytes, segment_base_offset: int, end_offset: int, decompressor: Decompressor
) -> IntactBatches:
    chunks = [np.empty(0, INTACT_BATCH)]
    position = 0
    magics: tuple[int, ...] = (MAGIC_RECORD_BATCH,)
    if len(log) > MAGIC_POSITION and log[MAGIC_POSITION] < MAGIC_RECORD_BATCH:
        magics = ALL_MAGICS
    while position < len(log):
        scanner = Scanner(segment_base_offset, verify_crc=True, position_bytes=position)
        code = SCAN_ROWS_FULL
        while code == SCAN_ROWS_FULL:
            code = scanner.scan(log, 0, len(log), InMemoryLog(log))
            for batches in scanner.drain():
                if (batches.control_type == CONTROL_MESSAGE).any():
                    magics = ALL_MAGICS
                chunks.append(_to_rows(log, batches, segment_base_offset, decompressor))
        position = int(scanner.position)
        if position < len(log):
            bounds = OffsetBounds(segment_base_offset, end_offset)
            position = next_batch(InMemoryLog(log), position, bounds, magics)
    rows = np.concatenate(chunks)
    rows = rows[(rows["last_offset"] >= rows["first_offset"]) & (rows["last_offset"] < end_offset)]
    rows = rows[rows["first_offset"] >= segment_base_offset]
    is_in_order = _find_longest_ascending(rows)
    moved = rows[:0]
    if not is_in_order.all():
        moved = _find_moved(rows, is_in_order, segment_base_offset, end_offset)
    # Copies of selected batches do not count as corruption.
    keys = (rows["last_offset"] << 32) ^ rows["checksum"]
    is_intact = np.isin(
        keys, np.append(keys[is_in_order], (moved["last_offset"] << 32) ^ moved["checksum"])
    )
    intact = rows[is_intact]
    breaks = np.cumsum(intact["position_bytes"] != np.append(0, intact["end_bytes"])[:-1])
    breaks_before = breaks[is_in_order[is_intact]]
    in_order = rows[is_in_order]
    in_order["is_next"] = breaks_before == np.append(0, breaks_before)[:-1]
    end_bytes = intact["end_bytes"][-1] if len(intact) else 0
    reaches_end = end_bytes == len(log) and (breaks_before[-1:] == breaks[-1:]).all()
    return IntactBatches(in_order, moved, bool(reaches_end))


def read_intact_batches(
    segment: SegmentFile, end_offset: int, decompressor: Decompressor
) -> IntactBatches:
    """Find the valid batches of a segment below an end offset.

    Raises `KafkaIndexError` if the log cannot be read, or changes during the read.
    """
    with closing(open_log(segment.log_path, segment)) as file:
        log = file.read_at(0, file.size_bytes)
        intact_batches = find_intact_batches(log, segment.base_offset, end_offset, decompressor)
        change = file.changed()
        if change is not None:
            raise log_changed(segment.log_path, change)
    return intact_batches


def read_batches_after(segment: SegmentFile, position_bytes: int) -> Iterator[WindowBatches]:
    """Yield the valid batches after the corrupt batch at a position, in file order.

    Raises `KafkaIndexError` if the log cannot be read, or changes during the read.
    """
    with closing(open_log(segment.log_path, segment)) as file:
        log = file.read_at(0, file.size_bytes)
        data, bounds = InMemoryLog(log), OffsetBounds(segment.base_offset, INT64_MAX)
        position = next_batch(data, position_bytes, bounds)
        while position < len(log):
            scanner = Scanner(segment.base_offset, verify_crc=True, position_bytes=position)
            code = SCAN_ROWS_FULL
            while code == SCAN_ROWS_FULL:
                code = scanner.scan(log, 0, len(log), data)
                yield from (WindowBatches(log, 0, batches) for batches in scanner.drain())
            position = int(scanner.position)
            if position < len(log):
                position = next_batch(data, position, bounds)
        change = file.changed()
        if change is not None:
            raise log_changed(segment.log_path, change)


def _to_rows(
    log: Bytes, batches: BatchColumns, segment_base_offset: int, decompressor: Decompressor
) -> IntactRows:
    headers = np.empty((HEADER_COLUMNS, batches.rows), np.int64)
    read_headers(log, 0, batches.position_bytes, headers)
    rows = np.empty(batches.rows, INTACT_BATCH)
    rows["position_bytes"] = batches.position_bytes
    rows["end_bytes"] = batches.position_bytes + batches.size_bytes
    rows["first_offset"] = _first_offsets(log, batches, segment_base_offset, decompressor)
    rows["last_offset"] = batches.last_offset
    rows["checksum"] = headers[HEADER_CRC]
    rows["leader_epoch"] = batches.leader_epoch
    is_batch = batches.control_type != CONTROL_MESSAGE
    is_thinned = is_batch & (batches.record_count < batches.last_offset - batches.base_offset + 1)
    rows["is_cleaned"] = is_thinned | has_delete_horizon(batches)
    return rows[~batches.has_unknown_magic]


def _first_offsets(
    log: Bytes, batches: BatchColumns, segment_base_offset: int, decompressor: Decompressor
) -> Longs:
    """Return first offsets; decompress messages whose last offset is not the next expected one."""
    firsts = batches.base_offset.copy()
    expected = np.concatenate(([segment_base_offset - 1], batches.last_offset[:-1]))
    for row in np.flatnonzero(are_compressed_messages(batches) & (firsts != expected + 1)).tolist():
        position = int(batches.position_bytes[row])
        try:
            first = first_offset(
                log[position : position + int(batches.size_bytes[row])], decompressor
            )
        except (CorruptLogError, TooLargeError):
            continue
        firsts[row] = min(first, int(firsts[row]))
    return firsts


def _find_longest_ascending(rows: IntactRows) -> NDArray[np.bool_]:
    """Return the largest set of batches with ascending offsets."""
    first, last = rows["first_offset"], rows["last_offset"]
    if (first[1:] > last[:-1]).all():
        return np.ones(len(rows), np.bool_)
    # `ends` and `best` have the longest sequences, by ascending last offset: the last offset, and
    # the size and last row. `previous` has the predecessor of each row in its sequence.
    ends: list[int] = []
    best: list[tuple[int, int]] = []
    previous: list[int] = []
    for row, (start, end) in enumerate(zip(first.tolist(), last.tolist(), strict=True)):
        rank = bisect_left(ends, start)
        count, predecessor = best[rank - 1] if rank else (0, -1)
        previous.append(predecessor)
        insertion = bisect_left(ends, end)
        is_worse = insertion and best[insertion - 1][0] > count
        # Of several batches with the same offsets, the first one is selected.
        if is_worse or (
            insertion < len(ends) and ends[insertion] == end and best[insertion][0] > count
        ):
            continue
        stop = insertion
        while stop < len(ends) and best[stop][0] <= count + 1:
            stop += 1
        ends[insertion:stop] = [end]
        best[insertion:stop] = [(count + 1, row)]
    is_in_order = np.zeros(len(rows), np.bool_)
    row = best[-1][1]
    while row >= 0:
        is_in_order[row] = True
        row = previous[row]
    return is_in_order


def _find_moved(
    rows: IntactRows, is_in_order: NDArray[np.bool_], base_offset: int, end_offset: int
) -> IntactRows:
    """Return plausible batches out of order whose offsets no batch in order has.

    Consecutive batches are plausible if they are adjacent to a batch in order. If compaction has
    left other gaps, they are also plausible if the base offset has no flipped bit.
    """
    in_order, candidates = (
        rows[is_in_order],
        np.sort(rows[~is_in_order], order=["first_offset", "position_bytes"]),
    )
    ends = np.concatenate(([base_offset], in_order["last_offset"] + 1))
    starts = np.append(in_order["first_offset"], end_offset)
    has_gaps = bool((starts[1:-1] > ends[1:-1]).any())
    gaps = np.searchsorted(starts, candidates["first_offset"], "right")
    fits = (ends[gaps] <= candidates["first_offset"]) & (candidates["last_offset"] < starts[gaps])
    candidates, gaps = candidates[fits], gaps[fits]
    if not len(candidates):
        return candidates
    # Of several batches with the same offsets, the first one is selected.
    is_new = np.append(
        True, candidates["first_offset"][1:] > np.maximum.accumulate(candidates["last_offset"])[:-1]
    )
    candidates, gaps = candidates[is_new], gaps[is_new]
    breaks = (
        np.flatnonzero(candidates["first_offset"][1:] != candidates["last_offset"][:-1] + 1) + 1
    )
    moved = [candidates[:0]]
    for low, high in pairwise([0, *breaks.tolist(), len(candidates)]):
        first_batch, gap = candidates[low], gaps[low]
        is_adjacent = (
            first_batch["first_offset"] == ends[gap]
            or candidates["last_offset"][high - 1] + 1 == starts[gap]
        )
        insertion = int(np.searchsorted(in_order["position_bytes"], first_batch["position_bytes"]))
        is_flipped = (int(ends[insertion]) ^ int(first_batch["first_offset"])).bit_count() == 1
        if is_adjacent or (has_gaps and gap < len(in_order) and not is_flipped):
            moved.append(candidates[low:high])
    return np.concatenate(moved)
