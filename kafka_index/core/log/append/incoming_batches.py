"""Batches to append, the plan of their positions in segments, and results of reads.

A plan is complete before the first byte is written, so a rejected append leaves nothing on disk.
Sources: Kafka's ``LogSegment.append``, ``UnifiedLog.maybeRoll`` and ``FetchDataInfo``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import NamedTuple, Self

import numpy as np

from kafka_index.core.errors import (
    CorruptLogError,
    IndexFullError,
    IndexOffsetOverflowError,
    InputError,
)
from kafka_index.core.format.longs import Longs
from kafka_index.core.format.records import NO_TIMESTAMP, OFFSET_ENTRY, TIME_ENTRY, offset_range
from kafka_index.core.fs.store import Bytes
from kafka_index.core.kernels.append_batches import (
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
from kafka_index.core.kernels.headers import (
    HEADER_COLUMNS,
    HEADER_MAGIC,
    HEADER_RECORD_COUNT,
    read_headers,
)
from kafka_index.core.kernels.scan import (
    SCAN_END,
    SCAN_ROWS_FULL,
    SCAN_TORN_BATCH,
    SCAN_TORN_HEADER,
)
from kafka_index.core.log.append.settings import LogSettings
from kafka_index.core.log.scan.scanner import HeldBytes, Scanner
from kafka_index.core.records.batch_table import BatchColumns


@dataclass(frozen=True, slots=True)
class IncomingBatches:
    """Complete, valid, consecutive batches and their columns.

    Positions are relative to the first of these bytes.
    """

    data: Bytes
    columns: BatchColumns
    magic: Longs
    record_count: Longs

    @classmethod
    def scan(cls, data: Bytes, base_offset: int) -> Self:
        """Verify batches and read their headers.

        Last offsets must be between the base offset and 2^31 - 1 above it. Raises
        `CorruptLogError`, with a position relative to the first of these bytes, if a batch is
        incomplete or does not match its checksum. Raises `InputError` if there is no batch or an
        offset is out of range.
        """
        chunks = list(cls._chunks(data, base_offset, verify_crc=True))
        if not chunks:
            raise InputError("there is no batch to append")
        if len(chunks) == 1:
            return chunks[0]
        columns = map(np.concatenate, zip(*(chunk.columns for chunk in chunks), strict=True))
        headers = (np.concatenate([getattr(chunk, name) for chunk in chunks]) for name in _HEADERS)
        return cls(data, BatchColumns(*columns), *headers)

    @classmethod
    def stored(cls, data: Bytes, base_offset: int) -> Iterator[Self]:
        """Yield chunks of the batches in a log without verifying their checksums.

        An incomplete batch ends them (``FileLogInputStream.nextBatch``). Raises `CorruptLogError`
        if the length of a batch is invalid.
        """
        return cls._chunks(data, base_offset, verify_crc=False)

    @classmethod
    def _chunks(cls, data: Bytes, base_offset: int, *, verify_crc: bool) -> Iterator[Self]:
        scanner = Scanner(base_offset, verify_crc=verify_crc)
        code = SCAN_ROWS_FULL
        while code == SCAN_ROWS_FULL:
            code = scanner.scan(data, 0, len(data))
            for batches in scanner.drain():
                rows = np.empty((HEADER_COLUMNS, batches.rows), np.int64)
                read_headers(data, 0, batches.position_bytes, rows)
                yield cls(
                    data,
                    BatchColumns(*(column.copy() for column in batches)),
                    rows[HEADER_MAGIC],
                    rows[HEADER_RECORD_COUNT],
                )
        if code == SCAN_END or (not verify_crc and code in (SCAN_TORN_HEADER, SCAN_TORN_BATCH)):
            return
        stop = scanner.stop(code, HeldBytes(data))
        kind = InputError if stop.refused else CorruptLogError
        raise stop.error(kind, consequence="cannot append: ")

    def __len__(self) -> int:
        return self.columns.rows

    def epoch_starts(self) -> Iterator[tuple[int, int, int]]:
        """Yield row, leader epoch and base offset of each batch that changes the epoch."""
        epochs = self.columns.leader_epoch
        for row in [0, *(np.flatnonzero(np.diff(epochs)) + 1).tolist()]:
            yield row, int(epochs[row]), int(self.columns.base_offset[row])

    def rows(self, first: int, end: int) -> Self:
        """Return a range of batches as views; positions stay relative to the original start."""
        columns = self.columns
        start = int(columns.position_bytes[first])
        stop = int(columns.position_bytes[end - 1] + columns.size_bytes[end - 1])
        return type(self)(
            self.data[start:stop],
            columns.slice(first, end),
            *(getattr(self, name)[first:end] for name in _HEADERS),
        )


_HEADERS = tuple(field.name for field in fields(IncomingBatches))[2:]


def as_bytes(data: bytes | bytearray | memoryview | Bytes) -> Bytes:
    if isinstance(data, np.ndarray):
        return data
    return np.frombuffer(data, np.uint8)


@dataclass(frozen=True, slots=True)
class AppendInfo:
    """The result of an append (Kafka: ``LogAppendInfo``); offsets are -1 if nothing was appended.

    `duplicates` has the first and last offsets of batches that a client sent twice. They were not
    appended again.
    """

    first_offset: int = -1
    last_offset: int = -1
    appended_batches: int = 0
    duplicates: tuple[tuple[int, int], ...] = ()

    @classmethod
    def of(cls, batches: IncomingBatches, duplicates: tuple[tuple[int, int], ...] = ()) -> Self:
        return cls(
            int(batches.columns.base_offset[0]),
            int(batches.columns.last_offset[-1]),
            len(batches),
            duplicates,
        )


@dataclass(frozen=True, slots=True)
class SegmentPlan:
    """The effect of appends on one segment, up to the append `next_append`, exclusive.

    If `must_roll`, the segment must be rolled before that append. `rows`, `positions_bytes`,
    `timestamps_ms` and `timestamp_offsets`, of shape (k,), are the batches that get an offset index
    entry, their positions in the log, and the time index entries. `state` is the growth of the
    segment after the appends.
    """

    next_append: int
    must_roll: bool
    rows: Longs
    positions_bytes: Longs
    timestamps_ms: Longs
    timestamp_offsets: Longs
    state: Longs


def new_growth(base_offset: int) -> Longs:
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
    """Return the limits of a segment; index sizes are by default those of the settings."""
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
    """Plan appends to a segment from `first_append` on, without changing `state`.

    `ends` has the row after the last batch of each append. `may_roll` is False directly after a
    roll. Raises `IndexFullError` if an index becomes full within an append, and
    `IndexOffsetOverflowError` if an append does not fit a newly rolled segment.
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
            "an index of the segment is too small for all batches of the append",
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


class Isolation(StrEnum):
    """The upper bound of a read (Kafka: ``FetchIsolation``)."""

    LOG_END = "log_end"
    TXN_COMMITTED = "txn_committed"


class AbortedTransaction(NamedTuple):
    """An aborted transaction: committed reads skip its records from an offset on."""

    producer_id: int
    first_offset: int


@dataclass(frozen=True, slots=True)
class FetchData:
    """Bytes of a log, from the batch that contains an offset (Kafka: ``FetchDataInfo``).

    `base_offset` is that of the batch, or the requested offset if no batch follows.
    `position_bytes` is the position in the segment. The last batch in `records` may be incomplete.
    `first_entry_incomplete` is True if the first batch exceeds the requested size. Aborted
    transactions are set for committed reads only.
    """

    base_offset: int
    segment_base_offset: int
    position_bytes: int
    records: bytes = b""
    first_entry_incomplete: bool = False
    aborted_transactions: tuple[AbortedTransaction, ...] | None = None
