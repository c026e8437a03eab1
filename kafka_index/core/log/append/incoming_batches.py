"""Validate batches to append, plan their segments and index entries, and define read results.

Appends are planned completely before the first byte is written, so a rejected append leaves nothing
on disk. A leader accepts only v2 batches and never recompresses: ``compression.type`` is
``producer``.

Sources: Kafka's ``LogSegment.append``, ``UnifiedLog.maybeRoll``, ``FetchDataInfo``,
``LogValidator`` and ``UnifiedLog.analyzeAndValidateRecords``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from kafka_index.core.errors import (
    CorruptLogError,
    IndexFullError,
    IndexOffsetOverflowError,
    InputError,
    InvalidEpochError,
)
from kafka_index.core.format.config import DEFAULT_MAX_DECOMPRESSED_BYTES
from kafka_index.core.format.integers import INT64_MAX, INT64_MIN
from kafka_index.core.format.longs import Longs
from kafka_index.core.format.records import (
    CONTROL_MASK,
    LOG_OVERHEAD_BYTES,
    MAGIC_RECORD_BATCH,
    MIN_LENGTH,
    NO_TIMESTAMP,
    OFFSET_ENTRY,
    TIME_ENTRY,
    TIMESTAMP_TYPE_MASK,
    offset_range,
)
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
    PACKED_RECORDS,
    PLAN_INDEX_FULL,
    PLAN_OFFSET_OVERFLOW,
    PLAN_ROLL,
    TIMESTAMP_OUT_OF_BOUNDS,
    largest_timestamps,
    plan_appends,
    stamp_batches,
)
from kafka_index.core.kernels.record_fields import RECORD_VALID
from kafka_index.core.kernels.scan import (
    SCAN_END,
    SCAN_ROWS_FULL,
    SCAN_TORN_BATCH,
    SCAN_TORN_HEADER,
)
from kafka_index.core.log.append.settings import LogSettings, TimestampType
from kafka_index.core.log.scan.scanner import InMemoryLog, Scanner
from kafka_index.core.records.batch_table import BatchColumns
from kafka_index.core.records.decompression import DecompressionBudget, shared_budget
from kafka_index.core.records.record_decoder import BatchDamage, decode_entry, has_null_key


@dataclass(frozen=True, slots=True)
class IncomingBatches:
    """The bytes of consecutive batches, and their batch columns.

    Positions in `columns` are relative to the start of `data`.
    """

    data: Bytes
    columns: BatchColumns

    @classmethod
    def scan(cls, data: Bytes, base_offset: int) -> Self:
        """Verify batches and read their headers.

        The last offset of each batch must be less than 2^31 above `base_offset`, and not below it.
        Raises `CorruptLogError`, with a position relative to the start of `data`, if a batch is
        incomplete or does not match its checksum. Raises `InputError` if `data` is empty or an
        offset is out of range.
        """
        chunks = list(cls._scan_chunks(data, base_offset, verify_crc=True))
        if not chunks:
            raise InputError("cannot append: the data contains no batch")
        if len(chunks) == 1:
            return chunks[0]
        columns = map(np.concatenate, zip(*(chunk.columns for chunk in chunks), strict=True))
        return cls(data, BatchColumns(*columns))

    @classmethod
    def scan_stored(cls, data: Bytes, base_offset: int) -> Iterator[Self]:
        """Yield the batches of a ``.log`` file in chunks, without verifying their checksums.

        Iteration ends before an incomplete batch (``FileLogInputStream.nextBatch``). Raises
        `CorruptLogError` if the length of a batch is invalid.
        """
        return cls._scan_chunks(data, base_offset, verify_crc=False)

    @classmethod
    def _scan_chunks(cls, data: Bytes, base_offset: int, *, verify_crc: bool) -> Iterator[Self]:
        scanner = Scanner(base_offset, verify_crc=verify_crc)
        code = SCAN_ROWS_FULL
        while code == SCAN_ROWS_FULL:
            code = scanner.scan(data, 0, len(data))
            for batches in scanner.drain():
                yield cls(data, BatchColumns(*(column.copy() for column in batches)))
        if code == SCAN_END or (not verify_crc and code in (SCAN_TORN_HEADER, SCAN_TORN_BATCH)):
            return
        stop = scanner.stop(code, InMemoryLog(data))
        error_class = InputError if stop.refused else CorruptLogError
        raise stop.error(error_class, consequence="cannot append: ")

    def __len__(self) -> int:
        return self.columns.rows

    def epoch_starts(self) -> Iterator[tuple[int, int, int]]:
        """Yield row, leader epoch and base offset of the first batch and of each epoch change."""
        epochs = self.columns.leader_epoch
        for row in [0, *(np.flatnonzero(np.diff(epochs)) + 1).tolist()]:
            yield row, int(epochs[row]), int(self.columns.base_offset[row])

    def rows(self, first: int, end: int) -> Self:
        """Return a range of batches as views. Positions stay relative to the original `data`."""
        columns = self.columns
        start = int(columns.position_bytes[first])
        stop = int(columns.position_bytes[end - 1] + columns.size_bytes[end - 1])
        return type(self)(self.data[start:stop], columns.slice(first, end))


def as_bytes(data: bytes | bytearray | memoryview | Bytes) -> Bytes:
    if isinstance(data, np.ndarray):
        return data
    return np.frombuffer(data, np.uint8)


@dataclass(frozen=True, slots=True)
class AppendInfo:
    """The result of an append (Kafka: ``LogAppendInfo``); offsets are -1 if nothing was appended.

    `duplicates` has the first and last offset of each batch that a client sent again. These batches
    are not appended again.
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
    """The appends that go to one segment, and the index entries that they add.

    Attributes
    ----------
    next_append
        Index of the first append that is not in the plan.
    must_roll
        True if the segment must be rolled before `next_append`.
    rows, positions_bytes : shape (k,)
        Rows of the batches that get an offset index entry, and their positions in the ``.log``
        file.
    timestamps_ms, timestamp_offsets : shape (k,)
        The time index entries.
    state
        The ``GROWTH_`` fields of the segment after the appends.
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
    """Return the ``LIMIT_`` fields of a segment.

    By default, ``segment.index.bytes`` limits the number of index entries.
    """
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
    """Plan the appends from `first_append` on that fit in a segment, without changing `state`.

    `ends` has, for each append, the row after its last batch. `may_roll` is False directly after a
    roll. Raises `IndexFullError` if an index becomes full within an append, and
    `IndexOffsetOverflowError` if the offsets of an append do not fit in a newly rolled segment.
    """
    columns = batches.columns
    positions = np.empty(columns.rows, np.int64)
    entries = np.empty((3, columns.rows), np.int64)
    state_after = state.copy()
    code, number, count = plan_appends(
        ends,
        first_append,
        positions,
        columns.size_bytes,
        columns.last_offset,
        columns.max_timestamp_ms,
        may_roll,
        limits,
        state_after,
        *entries,
    )
    if code == PLAN_INDEX_FULL:
        raise IndexFullError(
            "cannot append: an index of the segment is too small for all batches of the append",
            position_bytes=int(columns.position_bytes[number]),
            expected=f"segment.index.bytes for more than {limits[LIMIT_OFFSET_ENTRIES]} entries",
            found=int(columns.last_offset[number]),
            hint="append fewer batches at once",
        )
    if code == PLAN_OFFSET_OVERFLOW:
        base = int(limits[LIMIT_BASE_OFFSET])
        raise IndexOffsetOverflowError(
            "cannot append: the offsets of the append do not fit in one segment",
            position_bytes=int(columns.position_bytes[number]),
            expected=offset_range(base),
            found=int(columns.last_offset[number]),
        )
    rows, timestamps, timestamp_offsets = entries[:, :count]
    return SegmentPlan(
        number, code == PLAN_ROLL, rows, positions[rows], timestamps, timestamp_offsets, state_after
    )


class AppendOrigin(StrEnum):
    """The origin of an append, which determines its validation (Kafka: ``AppendOrigin``)."""

    REPLICATION = "replication"
    COORDINATOR = "coordinator"
    CLIENT = "client"


class Isolation(StrEnum):
    """The upper bound of a read (Kafka: ``FetchIsolation``)."""

    LOG_END = "log_end"
    TXN_COMMITTED = "txn_committed"


class AbortedTransaction(NamedTuple):
    """An aborted transaction; consumers skip the producer's records from `first_offset` on."""

    producer_id: int
    first_offset: int


@dataclass(frozen=True, slots=True)
class FetchData:
    """The result of a read: batches from the requested offset on (Kafka: ``FetchDataInfo``).

    Attributes
    ----------
    base_offset
        Base offset of the first batch; if `records` is empty, the offset at `position_bytes`.
    position_bytes
        Position of `records` in the ``.log`` file.
    records
        The bytes of the batches. The last batch may be incomplete.
    first_entry_incomplete
        True if `records` ends within the first batch because of `max_bytes`.
    aborted_transactions
        The aborted transactions in the range of the read, only for ``txn_committed`` reads.
    """

    base_offset: int
    segment_base_offset: int
    position_bytes: int
    records: bytes = b""
    first_entry_incomplete: bool = False
    aborted_transactions: tuple[AbortedTransaction, ...] | None = None


#: A mask of rejected batches, the reason, the expected value, and the column of actual values.
_Check = tuple[NDArray[np.bool_], str, object, Longs]


def assign_as_leader(
    data: bytes | bytearray | memoryview | Bytes,
    next_offset: int,
    leader_epoch: int,
    settings: LogSettings,
    *,
    origin: AppendOrigin,
    now_ms: int,
) -> IncomingBatches:
    """Validate v2 batches, copy them, and assign offsets, leader epoch and timestamps.

    Batches of clients must have base offset 0. Only coordinators may append transaction markers.
    Raises `CorruptLogError` if a batch or record cannot be read, `InputError` if a broker would
    reject a batch, and `InvalidEpochError` if the leader epoch is negative.
    """
    base_offset = 0 if origin is AppendOrigin.CLIENT else _first_base_offset(data)
    batches = IncomingBatches.scan(as_bytes(bytearray(data)), base_offset)
    _check_headers(batches, settings, origin)
    largest = _check_timestamps(batches, settings, now_ms)
    if settings.is_compacted:
        _check_keys(batches)
    columns = batches.columns
    append_type = settings.message_timestamp_type is TimestampType.LOG_APPEND_TIME
    if append_type:
        largest[:] = now_ms
    if next_offset + int((columns.last_offset - columns.base_offset + 1).sum()) > INT64_MAX:
        raise InputError(
            "cannot append: the offsets of the batches exceed the largest offset",
            expected=f"offsets up to {INT64_MAX - 1}",
            found=f"a first offset of {next_offset}",
        )
    stamp_batches(
        batches.data,
        columns.position_bytes,
        columns.size_bytes,
        next_offset,
        leader_epoch,
        TIMESTAMP_TYPE_MASK if append_type else 0,
        largest,
        columns.base_offset,
        columns.last_offset,
    )
    columns.max_timestamp_ms[:] = largest
    columns.leader_epoch[:] = leader_epoch
    columns.attributes[:] &= ~TIMESTAMP_TYPE_MASK
    columns.attributes[:] |= TIMESTAMP_TYPE_MASK if append_type else 0
    if append_type:
        # The timestamp of a transaction marker is also the timestamp of its batch.
        columns.control_timestamp_ms[columns.control_type >= 0] = now_ms
    _check_leader_epochs(batches)
    return batches


def _first_base_offset(data: bytes | bytearray | memoryview | Bytes) -> int:
    """Return the offset field of the first batch, 0 if it is negative."""
    return max(int.from_bytes(bytes(data[:8]), "big", signed=True), 0)


def _check_headers(batches: IncomingBatches, settings: LogSettings, origin: AppendOrigin) -> None:
    columns = batches.columns
    magic, sizes, counts = columns.magic, columns.size_bytes, columns.record_count
    max_bytes = settings.max_message_bytes
    _raise_for_first(
        batches,
        (magic != MAGIC_RECORD_BATCH, "a leader appends only batches with magic 2", 2, magic),
        (
            sizes > max_bytes,
            "the batch is larger than max.message.bytes",
            f"{max_bytes} or less",
            sizes,
        ),
        _size_check(batches, settings),
    )
    if origin is not AppendOrigin.CLIENT:
        return
    _raise_for_first(
        batches,
        (
            columns.base_offset != 0,
            "the base offset of a client's batch is not 0",
            0,
            columns.base_offset,
        ),
        (
            (counts <= 0) | (columns.last_offset - columns.base_offset + 1 != counts),
            "the record count of the batch is not its number of offsets",
            "the number of offsets, above 0",
            counts,
        ),
        (
            columns.attributes & CONTROL_MASK != 0,
            "a client must not write control records",
            "attributes without the control bit",
            columns.attributes,
        ),
        (
            (columns.producer_id >= 0) & (columns.base_sequence < 0),
            "a batch with a producer ID needs a base sequence",
            "0 or more",
            columns.base_sequence,
        ),
    )


def _size_check(batches: IncomingBatches, settings: LogSettings) -> _Check:
    sizes, max_bytes = batches.columns.size_bytes, settings.segment_bytes
    return (
        sizes > max_bytes,
        "the batch is larger than segment.bytes",
        f"{max_bytes} or less",
        sizes,
    )


def _check_timestamps(batches: IncomingBatches, settings: LogSettings, now_ms: int) -> Longs:
    columns = batches.columns
    is_create_time = settings.message_timestamp_type is TimestampType.CREATE_TIME
    min_ms, max_ms = INT64_MIN, INT64_MAX
    if is_create_time:
        min_ms = max(now_ms - settings.message_timestamp_before_max_ms, INT64_MIN)
        max_ms = min(now_ms + settings.message_timestamp_after_max_ms, INT64_MAX)
    # The record count may be corrupt, but a batch never has more records than bytes.
    counts = np.clip(batches.columns.record_count, 0, columns.size_bytes)
    largest, codes = np.empty((2, len(batches)), np.int64)
    largest_timestamps(
        batches.data,
        columns.position_bytes,
        columns.size_bytes,
        counts,
        min_ms,
        max_ms,
        largest,
        codes,
    )
    for row in np.flatnonzero(codes == PACKED_RECORDS):
        largest[row], codes[row] = _decode_largest_timestamp(batches, int(row), min_ms, max_ms)
    is_outside = codes == TIMESTAMP_OUT_OF_BOUNDS
    _raise_for_first(
        batches, (is_outside, "a timestamp is out of range", f"{min_ms}..{max_ms}", largest)
    )
    _raise_for_first(
        batches,
        (
            codes != RECORD_VALID,
            "the records of the batch cannot be read",
            "the number of valid records in the batch header",
            batches.columns.record_count,
        ),
        error_class=CorruptLogError,
    )
    is_append_type = columns.attributes & TIMESTAMP_TYPE_MASK != 0
    _raise_for_first(
        batches,
        (
            is_append_type & ((largest == NO_TIMESTAMP) | (not is_create_time)),
            "only a broker sets the timestamp type LogAppendTime",
            "the timestamp type CreateTime",
            columns.attributes,
        ),
    )
    return largest


def _decode_largest_timestamp(
    batches: IncomingBatches, row: int, min_ms: int, max_ms: int
) -> tuple[int, int]:
    position = int(batches.columns.position_bytes[row])
    expected_offset = int(batches.columns.base_offset[row])
    largest = NO_TIMESTAMP
    out_of_bounds: int | None = None
    for decoded in decode_entry(
        _batch_bytes(batches, row), _budget(), lambda chunk: (chunk.offsets, chunk.timestamps_ms)
    ):
        if isinstance(decoded, BatchDamage):
            raise CorruptLogError(decoded.error.message, position_bytes=position) from decoded.error
        offsets, timestamps = decoded
        if (offsets != expected_offset + np.arange(len(offsets))).any():
            raise InputError(
                "cannot append: the offsets of compressed records are not consecutive, so a broker "
                "would compress the records again",
                position_bytes=position,
            )
        expected_offset += len(offsets)
        is_outside = (timestamps != NO_TIMESTAMP) & ((timestamps < min_ms) | (timestamps > max_ms))
        if out_of_bounds is None and is_outside.any():
            out_of_bounds = int(timestamps[is_outside][0])
        largest = max(largest, int(timestamps.max()))
    if out_of_bounds is not None:
        return out_of_bounds, TIMESTAMP_OUT_OF_BOUNDS
    return largest, RECORD_VALID


def _check_keys(batches: IncomingBatches) -> None:
    for row in range(len(batches)):
        if has_null_key(_batch_bytes(batches, row), _budget()):
            raise InputError(
                "cannot append: a record has no key, but the topic is compacted",
                position_bytes=int(batches.columns.position_bytes[row]),
            )


def _budget() -> DecompressionBudget:
    return shared_budget(DEFAULT_MAX_DECOMPRESSED_BYTES)


def _batch_bytes(batches: IncomingBatches, row: int) -> Bytes:
    start = int(batches.columns.position_bytes[row])
    return batches.data[start : start + int(batches.columns.size_bytes[row])]


def _raise_for_first(
    batches: IncomingBatches,
    *checks: _Check,
    error_class: type[InputError | CorruptLogError | InvalidEpochError] = InputError,
) -> None:
    """Raise an error for the first batch that any of the checks rejects."""
    for is_rejected, reason, expected, actual in checks:
        if is_rejected.any():
            row = int(np.argmax(is_rejected))
            raise error_class(
                f"cannot append: {reason}",
                position_bytes=int(batches.columns.position_bytes[row]),
                expected=expected,
                found=int(actual[row]),
            )


def check_as_follower(
    data: bytes | bytearray | memoryview | Bytes,
    log_end_offset: int,
    leader_epoch: int,
    settings: LogSettings,
    *,
    as_one_append: bool = True,
) -> IncomingBatches | None:
    """Validate batches fetched from a leader, which have offsets and leader epochs.

    The first batch with a later epoch than `leader_epoch`, and all batches after it, are dropped
    (KAFKA-18723). Returns None if all batches are dropped. Only leaders check
    ``max.message.bytes``. With `as_one_append`, all batches together must fit in one segment.
    Otherwise, each batch must fit in one. Raises `CorruptLogError` if a batch cannot be read,
    `InputError` if offsets decrease or do not fit in a segment, and `InvalidEpochError` if a v2
    batch has no leader epoch.
    """
    array = as_bytes(data)
    if len(array) < LOG_OVERHEAD_BYTES + MIN_LENGTH:
        raise CorruptLogError(
            "cannot append: the data is shorter than the smallest batch",
            position_bytes=0,
            expected=f"{LOG_OVERHEAD_BYTES + MIN_LENGTH} bytes or more",
            found=f"{len(array)} bytes",
        )
    batches = IncomingBatches.scan(array, _first_base_offset(array))
    later_rows = np.flatnonzero(batches.columns.leader_epoch > leader_epoch)
    if len(later_rows):
        if not later_rows[0]:
            return None
        batches = batches.rows(0, int(later_rows[0]))
    _check_offsets(batches, log_end_offset)
    if as_one_append:
        if len(batches.data) > settings.segment_bytes:
            raise InputError(
                "cannot append: the batches are larger than segment.bytes",
                expected=f"{settings.segment_bytes} bytes or less",
                found=f"{len(batches.data)} bytes",
            )
    else:
        _raise_for_first(batches, _size_check(batches, settings))
    _check_leader_epochs(batches)
    return batches


def _check_leader_epochs(batches: IncomingBatches) -> None:
    epochs = batches.columns.leader_epoch
    lacks_epoch = (epochs < 0) & (batches.columns.magic >= MAGIC_RECORD_BATCH)
    check = lacks_epoch, "the batch has no leader epoch", "0 or more", epochs
    _raise_for_first(batches, check, error_class=InvalidEpochError)


def _check_offsets(batches: IncomingBatches, log_end_offset: int) -> None:
    columns = batches.columns
    backward_rows = np.flatnonzero(columns.last_offset[1:] <= columns.last_offset[:-1])
    if len(backward_rows):
        row = int(backward_rows[0]) + 1
        raise InputError(
            "cannot append: the offsets of the batches decrease",
            position_bytes=int(columns.position_bytes[row]),
            expected=f"a last offset above {int(columns.last_offset[row - 1])}",
            found=int(columns.last_offset[row]),
        )
    first = int(columns.base_offset[0])
    if first < log_end_offset:
        raise InputError(
            "cannot append: the first offset is below the log end offset",
            position_bytes=0,
            expected=f"{log_end_offset} or more",
            found=first,
        )
