"""The plan of appends to a segment: how many fit before a roll, and their index entries.

It is made before the first byte is written, so that a refused append leaves nothing on disk.
Sources: Kafka's ``LogSegment.shouldRoll`` and ``LogSegment.append``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kafka_index.errors import IndexFullError, IndexOffsetOverflowError
from kafka_index.growing.incoming_batches import IncomingBatches
from kafka_index.growing.settings import LogSettings
from kafka_index.kernels.appending import (
    GROWTH_FIRST_TIMESTAMP,
    GROWTH_LAST_TIME_ENTRY,
    GROWTH_MAX_TIMESTAMP,
    GROWTH_OFFSET_OF_MAX,
    GROWTH_SIZE_OF_STATE,
    LIMIT_BASE_OFFSET,
    LIMIT_CREATED_MS,
    LIMIT_INTERVAL_BYTES,
    LIMIT_NOW_MS,
    LIMIT_OFFSET_ENTRIES,
    LIMIT_SEGMENT_BYTES,
    LIMIT_TIME_ENTRIES,
    LIMIT_WAIT_MS,
    LIMITS,
    NO_BATCH,
    PLAN_INDEX_FULL,
    PLAN_OFFSET_OVERFLOW,
    PLAN_ROLL,
    plan_appends,
)
from kafka_index.layout.index_entries import OFFSET_ENTRY, TIME_ENTRY, offset_range
from kafka_index.layout.integers import Longs
from kafka_index.layout.records import NO_TIMESTAMP


@dataclass(frozen=True, slots=True)
class SegmentPlan:
    """The effect of appends on one segment, up to `next_append`, the first one after these.

    `must_roll`: the segment has to be rolled before that append. `rows`, `positions_bytes`,
    `timestamps_ms` and `timestamp_offsets`, of shape (k,), are the batches that get an offset
    entry, their places in the log, and the time entries; `state` is the segment's growth after the
    appends.
    """

    next_append: int
    must_roll: bool
    rows: Longs
    positions_bytes: Longs
    timestamps_ms: Longs
    timestamp_offsets: Longs
    state: Longs


def new_growth(base_offset: int) -> Longs:
    """Return the growth of an empty segment."""
    state = np.zeros(GROWTH_SIZE_OF_STATE, np.int64)
    state[GROWTH_MAX_TIMESTAMP] = state[GROWTH_LAST_TIME_ENTRY] = NO_TIMESTAMP
    state[GROWTH_OFFSET_OF_MAX] = base_offset
    state[GROWTH_FIRST_TIMESTAMP] = NO_BATCH
    return state


def growth_limits(
    settings: LogSettings,
    base_offset: int,
    *,
    jitter_ms: int,
    created_ms: int,
    now_ms: int,
    offset_entries: int | None = None,
    time_entries: int | None = None,
) -> Longs:
    """Return the limits of a segment; by default its indexes have the size of the settings."""
    limits = np.empty(LIMITS, np.int64)
    index_bytes = settings.segment_index_bytes
    limits[LIMIT_BASE_OFFSET] = base_offset
    limits[LIMIT_SEGMENT_BYTES] = settings.segment_bytes
    limits[LIMIT_WAIT_MS] = settings.max_segment_ms - jitter_ms
    limits[LIMIT_CREATED_MS] = created_ms
    limits[LIMIT_NOW_MS] = now_ms
    limits[LIMIT_INTERVAL_BYTES] = settings.index_interval_bytes
    limits[LIMIT_OFFSET_ENTRIES] = (
        index_bytes // OFFSET_ENTRY.itemsize if offset_entries is None else offset_entries
    )
    limits[LIMIT_TIME_ENTRIES] = (
        index_bytes // TIME_ENTRY.itemsize if time_entries is None else time_entries
    )
    return limits


def plan_for_segment(
    batches: IncomingBatches,
    ends: Longs,
    first_append: int,
    limits: Longs,
    state: Longs,
    *,
    may_roll: bool,
) -> SegmentPlan:
    """Plan appends to a segment from `first_append` on; its state is not changed.

    `ends` has the row after the last batch of each append. `may_roll` is false right after a roll.
    Raises `IndexFullError` if an index has no room for an entry inside an append, and
    `IndexOffsetOverflowError` if an append does not fit a segment that was rolled for it.
    """
    columns = batches.columns
    positions = np.empty(columns.rows, np.int64)
    chosen = np.empty((3, columns.rows), np.int64)
    after = state.copy()
    code, place, count = plan_appends(
        ends,
        first_append,
        positions,
        columns.size_bytes,
        columns.last_offset,
        columns.max_timestamp_ms,
        may_roll,
        limits,
        after,
        *chosen,
    )
    if code == PLAN_INDEX_FULL:
        raise IndexFullError(
            "an index of the segment has no room for all batches of the append",
            position_bytes=int(columns.position_bytes[place]),
            expected=f"segment.index.bytes for more than {limits[LIMIT_OFFSET_ENTRIES]} entries",
            found=int(columns.last_offset[place]),
            hint="append fewer batches at once",
        )
    if code == PLAN_OFFSET_OVERFLOW:
        base = int(limits[LIMIT_BASE_OFFSET])
        raise IndexOffsetOverflowError(
            "the offsets of the append do not fit one segment",
            position_bytes=int(columns.position_bytes[place]),
            expected=offset_range(base),
            found=int(columns.last_offset[place]),
        )
    rows, timestamps, timestamp_offsets = chosen[:, :count]
    return SegmentPlan(
        place, code == PLAN_ROLL, rows, positions[rows], timestamps, timestamp_offsets, after
    )
