"""Ascending queries within a segment: find index entries, then batches, then records.

Sources: Kafka's ``LogSegment.translateOffset`` and ``findOffsetByTimestamp``, and
``FileRecords.searchForTimestamp``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Self

import numpy as np

from kafka_index.core.format.longs import Longs
from kafka_index.core.format.names import OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX
from kafka_index.core.format.records import (
    LOG_OVERHEAD_BYTES,
    RECORD_BATCH_HEADER,
    field_position,
)
from kafka_index.core.kernels import batch_header, batch_seek
from kafka_index.core.kernels.search import number_runs
from kafka_index.core.log.choices import Resolve
from kafka_index.core.log.read.answers import (
    BATCH_BASE_OFFSET,
    BATCH_LAST_OFFSET,
    BATCH_POSITION,
    BATCH_SIZE,
    ENTRY_OFFSET,
    ENTRY_POSITION,
    ENTRY_TIMESTAMP,
    NULL,
    Answers,
)
from kafka_index.core.log.read.segment_indexes import SegmentIndexes, fetch_batches, request_parts
from kafka_index.core.log.read.segment_log import SegmentLog
from kafka_index.core.log.scan.file_records import read_batch_fields, search_for_offsets

# With fewer queries per batch, grouping them costs more than it saves.
_MIN_QUERIES_PER_RUN = 2
_LENGTH = field_position(RECORD_BATCH_HEADER, "length")
_LENGTH_BYTES = RECORD_BATCH_HEADER["length"].itemsize


@dataclass(frozen=True, slots=True)
class Located:
    """The batches and index entries that a segment has found for n queries.

    `values` are as in `Answers.values`. `batches` are positions: `AT_END` for none, `damage_at` for
    a corruption before the batch, and 0 at index level. `runs`, if queries with the same result
    share a column, has the column of each query.
    """

    values: Longs
    batches: Longs
    runs: Longs | None = None

    def in_runs(self, resolve: Resolve) -> Located:
        """Merge neighbouring queries with the same batch and index entry into one column."""
        runs, firsts = np.empty_like(self.batches), np.empty_like(self.batches)
        firsts = firsts[: number_runs(self.batches, self.values[ENTRY_OFFSET], runs, firsts)]
        values = Answers.empty(len(firsts), resolve).values
        for column in (ENTRY_OFFSET, ENTRY_POSITION):
            values[column] = self.values[column][firsts]
        return Located(values, self.batches[firsts], runs)

    def expanded(self) -> Located:
        if self.runs is None:
            return self
        return Located(self.values[:, self.runs], self.batches[self.runs])

    def read_headers(self, log: SegmentLog) -> None:
        values = self.values
        values[BATCH_POSITION] = np.where(self.batches >= 0, self.batches, NULL)
        read_batch_fields(
            log.array,
            self.batches,
            values[BATCH_BASE_OFFSET],
            values[BATCH_LAST_OFFSET],
            values[BATCH_SIZE],
            first_offset_at=log.first_offset_at,
        )

    @classmethod
    def joined(cls, parts: Sequence[Located]) -> Self:
        """Concatenate the results of consecutive queries."""
        parts = [part.expanded() for part in parts]
        return cls(
            np.concatenate([part.values for part in parts], axis=1),
            np.concatenate([part.batches for part in parts]),
        )


class _Misfit(Exception):  # noqa: N818, because the walk is repeated without the file
    """An entry of an index file does not match the log."""

    def __init__(self, suffix: str, reason: str) -> None:
        super().__init__(reason)
        self.suffix = suffix
        self.reason = reason


def locate(
    log: SegmentLog,
    indexes: SegmentIndexes,
    targets: Longs,
    resolve: Resolve,
    *,
    starting_offset: int | None = None,
) -> Located:
    """Find ascending offsets, or timestamps in ms if a starting offset is given."""

    def once(part: Longs) -> Located:
        return log.complete(partial(_locate_once, log, indexes, part, resolve, starting_offset))

    while True:
        try:
            if not log.is_fetched:
                # Entries alone do not need the log, which may be closed.
                return _locate_once(log, indexes, targets, resolve, starting_offset)
            if resolve is Resolve.INDEX:
                return once(targets)
            parts = request_parts(log, indexes, targets, resolve, starting_offset)
            return Located.joined([once(part) for part in parts])
        except _Misfit as misfit:
            indexes.refuse(misfit.suffix, misfit.reason)


def _locate_once(
    log: SegmentLog,
    indexes: SegmentIndexes,
    targets: Longs,
    resolve: Resolve,
    starting_offset: int | None,
) -> Located:
    size_bytes = indexes.log_size_bytes
    # If many offsets have the same result, only their index entries are needed until the seek is
    # done.
    has_runs = (
        starting_offset is None
        and resolve is Resolve.BATCH
        and _shares_batches(log, size_bytes, len(targets))
    )
    values = Answers.empty(len(targets), Resolve.INDEX if has_runs else resolve).values
    located = Located(values, np.zeros(len(targets), np.int64))
    if starting_offset is None:
        _walk_to_offsets(log, indexes, size_bytes, targets, resolve, located)
    else:
        _walk_to_timestamps(log, indexes, size_bytes, starting_offset, targets, resolve, located)
    if resolve is Resolve.INDEX:
        return located
    if resolve is Resolve.RECORD:
        if log.is_fetched:
            log.check_faults()
            fetch_batches(log, size_bytes, located.batches)
        log.decoder.find_records(targets, located, size_bytes, starting_offset=starting_offset)
    if has_runs:
        located = located.in_runs(resolve)
    located.read_headers(log)
    log.check_faults()
    return located


def _shares_batches(log: SegmentLog, size_bytes: int, queries: int) -> bool:
    """Estimate from the size of the first batch whether several queries find the same batch."""
    if log.is_fetched or size_bytes < LOG_OVERHEAD_BYTES:
        return False
    length = int.from_bytes(log.array[_LENGTH : _LENGTH + _LENGTH_BYTES].tobytes(), signed=True)
    return queries * (LOG_OVERHEAD_BYTES + length) >= _MIN_QUERIES_PER_RUN * size_bytes


def find_largest_timestamp(log: SegmentLog, indexes: SegmentIndexes, resolve: Resolve) -> Located:
    """Find the first batch, or its first record, with the largest timestamp of a segment.

    Source: ``UnifiedLog.fetchOffsetByTimestamp`` for ``MAX_TIMESTAMP``.
    """
    timestamp, offset, _ = indexes.largest()
    floor = indexes.floor_position(offset)
    size = indexes.log_size_bytes
    return log.complete(lambda: _read_largest(log, size, floor, timestamp, resolve))


def _read_largest(
    log: SegmentLog, size: int, floor: int, timestamp: int, resolve: Resolve
) -> Located:
    at = int(batch_seek.first_with_timestamp(log.address, size, floor, timestamp))
    located = Located(Answers.empty(1, resolve).values, np.array([at], np.int64))
    located.read_headers(log)
    if at >= 0 and resolve is Resolve.RECORD:
        log.decoder.find_timestamp(located, at, timestamp)
    return located


def _walk_to_offsets(
    log: SegmentLog,
    indexes: SegmentIndexes,
    size_bytes: int,
    targets: Longs,
    resolve: Resolve,
    located: Located,
) -> None:
    values = located.values
    rows = np.arange(len(targets))
    indexes.offset_index.look_up_ascending(
        targets, rows, values[ENTRY_OFFSET], values[ENTRY_POSITION]
    )
    indexes.check_faults()
    if resolve is Resolve.INDEX:
        return

    def misfit(query: int) -> int:
        entry = (int(values[row, query]) for row in (ENTRY_OFFSET, ENTRY_POSITION))
        return _damaged_entry(log, indexes, *entry)

    search_for_offsets(
        log.array,
        size_bytes,
        targets,
        values[ENTRY_OFFSET],
        values[ENTRY_POSITION],
        located.batches,
        misfit=misfit,
        first_offset_at=log.first_offset_at,
    )


def _walk_to_timestamps(
    log: SegmentLog,
    indexes: SegmentIndexes,
    size_bytes: int,
    starting_offset: int,
    targets: Longs,
    resolve: Resolve,
    located: Located,
) -> None:
    values = located.values
    rows = np.arange(len(targets))
    indexes.time_index.look_up_ascending(
        targets, rows, values[ENTRY_TIMESTAMP], values[ENTRY_OFFSET]
    )
    floors = np.empty(len(targets), np.int64)
    indexes.offset_index.look_up_ascending(
        np.maximum(values[ENTRY_OFFSET], starting_offset), rows, floors, values[ENTRY_POSITION]
    )
    indexes.check_faults()
    if resolve is Resolve.INDEX:
        return
    state = batch_seek.new_state()
    code = batch_seek.WALK_MISFIT
    while code != batch_seek.WALK_DONE:
        code = batch_seek.walk_to_timestamps(
            log.address,
            size_bytes,
            starting_offset,
            starting_offset if resolve is Resolve.BATCH else NULL,
            targets,
            values[ENTRY_TIMESTAMP],
            values[ENTRY_OFFSET],
            floors,
            values[ENTRY_POSITION],
            state,
            located.batches,
        )
        query = int(state[batch_seek.STATE_QUERY])
        if code == batch_seek.WALK_MISFIT:
            state[batch_seek.STATE_DAMAGED_ENTRY] = _damaged_entry(
                log, indexes, int(floors[query]), int(values[ENTRY_POSITION, query])
            )
        elif code == batch_seek.WALK_TIME_MISFIT:
            log.check_faults()
            # If offsets decrease, a valid entry may point past its own batch.
            entries = indexes.time_index.read_entries()
            # Entries of batches after the valid ones are compared with headers only.
            hold = batch_seek.time_entries_hold(log.address, log.size_bytes, *entries)
            log.check_faults()
            if not hold:
                timestamp, offset = (
                    int(values[row, query]) for row in (ENTRY_TIMESTAMP, ENTRY_OFFSET)
                )
                raise _Misfit(
                    TIME_INDEX_SUFFIX, f"its entry {timestamp} at offset {offset} is not in the log"
                )
            state[batch_seek.STATE_TIMES_HOLD] = 1


def _damaged_entry(log: SegmentLog, indexes: SegmentIndexes, offset: int, position: int) -> int:
    """Return the position of a mismatching entry if the log, not the index, is corrupt.

    The log is corrupt if the entry is after the end of the valid batches, the batches before lead
    exactly to its position, and no valid batch follows. Otherwise raises `_Misfit`.
    """
    log.check_faults()
    if position >= indexes.log_size_bytes:
        # The valid batches of the last segment end before it.
        return position
    address, size = log.address, log.size_bytes
    before = indexes.offset_index.lookup(offset - 1)
    is_damaged = batch_seek.entry_end(
        address, size, position, offset
    ) == batch_header.AT_DAMAGE and batch_seek.reaches(address, size, before.position, position)
    log.check_faults()
    if is_damaged:
        return position
    raise _Misfit(OFFSET_INDEX_SUFFIX, f"no batch where its entry for offset {offset} points to")
