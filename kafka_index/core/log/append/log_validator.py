"""Validation of appends by a leader and a follower, and the fields that a leader assigns.

A leader accepts only v2 batches and never recompresses: ``compression.type`` is ``producer``.
Sources: Kafka's ``LogValidator`` and ``UnifiedLog.analyzeAndValidateRecords``.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kafka_index.core.errors import CorruptLogError, InputError, InvalidEpochError
from kafka_index.core.format.config import DEFAULT_MAX_DECOMPRESSED_BYTES
from kafka_index.core.format.integers import INT64_MAX, INT64_MIN
from kafka_index.core.format.longs import Longs
from kafka_index.core.format.records import (
    CONTROL_MASK,
    LOG_OVERHEAD_BYTES,
    MAGIC_RECORD_BATCH,
    MIN_LENGTH,
    NO_TIMESTAMP,
    TIMESTAMP_TYPE_MASK,
)
from kafka_index.core.fs.store import Bytes
from kafka_index.core.kernels.append_batches import (
    PACKED_RECORDS,
    TIMESTAMP_OUT_OF_BOUNDS,
    largest_timestamps,
    stamp_batches,
)
from kafka_index.core.kernels.record_fields import RECORD_SOUND
from kafka_index.core.log.append.incoming_batches import IncomingBatches, as_bytes
from kafka_index.core.log.append.settings import LogSettings, TimestampType
from kafka_index.core.log.state.producer_append import AppendOrigin
from kafka_index.core.records.batch_iteration import BatchDamage, decode_entry, has_null_key
from kafka_index.core.records.decompression import DecompressionBudget, shared_budget

#: Rejected batches, the reason, the expected value, and the column with the actual value.
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

    Clients send the base offset 0; coordinators may write markers. Raises `CorruptLogError` if a
    batch or record cannot be read, `InputError` if a broker would reject a batch, and
    `InvalidEpochError` if the leader epoch is negative.
    """
    base_offset = 0 if origin is AppendOrigin.CLIENT else _first_offset(data)
    batches = IncomingBatches.scan(as_bytes(bytearray(data)), base_offset)
    _check_headers(batches, settings, origin)
    largest = _largest_timestamps(batches, settings, now_ms)
    if settings.is_compacted:
        _check_keys(batches)
    columns = batches.columns
    append_type = settings.message_timestamp_type is TimestampType.LOG_APPEND_TIME
    if append_type:
        largest[:] = now_ms
    if next_offset + int((columns.last_offset - columns.base_offset + 1).sum()) > INT64_MAX:
        raise InputError("the log has no more offsets", found=next_offset)
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
        # The time of a marker is then that of its batch.
        columns.control_timestamp_ms[columns.control_type >= 0] = now_ms
    _check_leader_epochs(batches)
    return batches


def _first_offset(data: bytes | bytearray | memoryview | Bytes) -> int:
    """Return the offset field of the first batch, 0 if it is negative."""
    return max(int.from_bytes(bytes(data[:8]), "big", signed=True), 0)


def _check_headers(batches: IncomingBatches, settings: LogSettings, origin: AppendOrigin) -> None:
    columns = batches.columns
    magic, sizes, counts = batches.magic, columns.size_bytes, batches.record_count
    most = settings.max_message_bytes
    _refuse(
        batches,
        (magic != MAGIC_RECORD_BATCH, "a leader appends batches of magic 2", 2, magic),
        (sizes > most, "the batch is larger than max.message.bytes", f"{most} or less", sizes),
        _too_large(batches, settings),
    )
    if origin is not AppendOrigin.CLIENT:
        return
    _refuse(
        batches,
        (
            columns.base_offset != 0,
            "the base offset of a client's batch is not 0",
            0,
            columns.base_offset,
        ),
        (
            (counts <= 0) | (columns.last_offset - columns.base_offset + 1 != counts),
            "the records of the batch are not as many as its offsets",
            "the same count, above 0",
            counts,
        ),
        (
            columns.attributes & CONTROL_MASK != 0,
            "a client must not write control records",
            "no control batch",
            columns.attributes,
        ),
        (
            (columns.producer_id >= 0) & (columns.base_sequence < 0),
            "a batch with a producer id needs a base sequence",
            "0 or more",
            columns.base_sequence,
        ),
    )


def _too_large(batches: IncomingBatches, settings: LogSettings) -> _Check:
    sizes, most = batches.columns.size_bytes, settings.segment_bytes
    return sizes > most, "the batch is larger than segment.bytes", f"{most} or less", sizes


def _largest_timestamps(batches: IncomingBatches, settings: LogSettings, now_ms: int) -> Longs:
    columns = batches.columns
    takes_time = settings.message_timestamp_type is TimestampType.CREATE_TIME
    least, most = INT64_MIN, INT64_MAX
    if takes_time:
        least = max(now_ms - settings.message_timestamp_before_max_ms, INT64_MIN)
        most = min(now_ms + settings.message_timestamp_after_max_ms, INT64_MAX)
    # The count may be corrupt, but a batch never has more records than bytes.
    counts = np.clip(batches.record_count, 0, columns.size_bytes)
    largest, codes = np.empty((2, len(batches)), np.int64)
    largest_timestamps(
        batches.data,
        columns.position_bytes,
        columns.size_bytes,
        counts,
        least,
        most,
        largest,
        codes,
    )
    for row in np.flatnonzero(codes == PACKED_RECORDS):
        largest[row], codes[row] = _largest_packed(batches, int(row), least, most)
    is_outside = codes == TIMESTAMP_OUT_OF_BOUNDS
    _refuse(batches, (is_outside, "a timestamp is out of range", f"{least}..{most}", largest))
    _refuse(
        batches,
        (
            codes != RECORD_SOUND,
            "the records of the batch cannot be read",
            "as many valid records as its header counts",
            batches.record_count,
        ),
        kind=CorruptLogError,
    )
    is_append_type = columns.attributes & TIMESTAMP_TYPE_MASK != 0
    _refuse(
        batches,
        (
            is_append_type & ((largest == NO_TIMESTAMP) | (not takes_time)),
            "only a broker sets the log append time",
            "the timestamp type CreateTime",
            columns.attributes,
        ),
    )
    return largest


def _largest_packed(batches: IncomingBatches, row: int, least: int, most: int) -> tuple[int, int]:
    position = int(batches.columns.position_bytes[row])
    expected_offset = int(batches.columns.base_offset[row])
    largest = NO_TIMESTAMP
    out_of_bounds: int | None = None
    for found in decode_entry(
        _batch(batches, row), _budget(), lambda chunk: (chunk.offsets, chunk.timestamps_ms)
    ):
        if isinstance(found, BatchDamage):
            raise CorruptLogError(found.error.message, position_bytes=position) from found.error
        offsets, times = found
        if (offsets != expected_offset + np.arange(len(offsets))).any():
            raise InputError(
                "the offsets of compressed records are not consecutive, and a broker would "
                "compress them again",
                position_bytes=position,
            )
        expected_offset += len(offsets)
        outside = (times != NO_TIMESTAMP) & ((times < least) | (times > most))
        if out_of_bounds is None and outside.any():
            out_of_bounds = int(times[outside][0])
        largest = max(largest, int(times.max()))
    if out_of_bounds is not None:
        return out_of_bounds, TIMESTAMP_OUT_OF_BOUNDS
    return largest, RECORD_SOUND


def _check_keys(batches: IncomingBatches) -> None:
    for row in range(len(batches)):
        if has_null_key(_batch(batches, row), _budget()):
            raise InputError(
                "a record without a key, and the topic is compacted",
                position_bytes=int(batches.columns.position_bytes[row]),
            )


def _budget() -> DecompressionBudget:
    return shared_budget(DEFAULT_MAX_DECOMPRESSED_BYTES)


def _batch(batches: IncomingBatches, row: int) -> Bytes:
    start = int(batches.columns.position_bytes[row])
    return batches.data[start : start + int(batches.columns.size_bytes[row])]


def _refuse(
    batches: IncomingBatches,
    *checks: _Check,
    kind: type[InputError | CorruptLogError | InvalidEpochError] = InputError,
) -> None:
    """Raise an error for the first batch that fails a check."""
    for refused, reason, expected, found in checks:
        if refused.any():
            row = int(np.argmax(refused))
            raise kind(
                f"cannot append: {reason}",
                position_bytes=int(batches.columns.position_bytes[row]),
                expected=expected,
                found=int(found[row]),
            )


def check_as_follower(
    data: bytes | bytearray | memoryview | Bytes,
    log_end_offset: int,
    leader_epoch: int,
    settings: LogSettings,
    *,
    as_one_append: bool = True,
) -> IncomingBatches | None:
    """Validate batches fetched from a leader; return None if all have a later epoch.

    The batches have offsets and leader epochs. Starting at the first batch with a later epoch than
    `leader_epoch`, all are dropped (KAFKA-18723). Only leaders check ``max.message.bytes``. With
    `as_one_append`, all together must fit one segment, otherwise each. Raises `CorruptLogError` if
    a batch cannot be read, `InputError` if offsets decrease or a segment cannot hold them, and
    `InvalidEpochError` if a v2 batch has no leader epoch.
    """
    array = as_bytes(data)
    if len(array) < LOG_OVERHEAD_BYTES + MIN_LENGTH:
        raise CorruptLogError(
            "cannot append: fewer bytes than the smallest batch has",
            position_bytes=0,
            expected=f"{LOG_OVERHEAD_BYTES + MIN_LENGTH} or more",
            found=len(array),
        )
    batches = IncomingBatches.scan(array, _first_offset(array))
    later = np.flatnonzero(batches.columns.leader_epoch > leader_epoch)
    if len(later):
        if not later[0]:
            return None
        batches = batches.rows(0, int(later[0]))
    _check_offsets(batches, log_end_offset)
    if as_one_append:
        if len(batches.data) > settings.segment_bytes:
            raise InputError(
                "the batches are larger than segment.bytes",
                expected=f"{settings.segment_bytes} bytes or less",
                found=len(batches.data),
            )
    else:
        _refuse(batches, _too_large(batches, settings))
    _check_leader_epochs(batches)
    return batches


def _check_leader_epochs(batches: IncomingBatches) -> None:
    epochs = batches.columns.leader_epoch
    refused = (epochs < 0) & (batches.magic >= MAGIC_RECORD_BATCH)
    check = refused, "a batch has no leader epoch", "0 or more", epochs
    _refuse(batches, check, kind=InvalidEpochError)


def _check_offsets(batches: IncomingBatches, log_end_offset: int) -> None:
    columns = batches.columns
    backward = np.flatnonzero(columns.last_offset[1:] <= columns.last_offset[:-1])
    if len(backward):
        row = int(backward[0]) + 1
        raise InputError(
            "cannot append: offsets go backward",
            position_bytes=int(columns.position_bytes[row]),
            expected=f"a last offset above {int(columns.last_offset[row - 1])}",
            found=int(columns.last_offset[row]),
        )
    first = int(columns.base_offset[0])
    if first < log_end_offset:
        raise InputError(
            "cannot append: the first offset is before the end of the log",
            position_bytes=0,
            expected=f"{log_end_offset} or more",
            found=first,
        )
