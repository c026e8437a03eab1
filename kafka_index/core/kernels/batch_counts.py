"""Compute statistics: sums of batches and records per hour or day, and hashes of record keys."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kafka_index.core.format.longs import Longs
from kafka_index.core.format.records import (
    COMPRESSION_MASK,
    CONTROL_MASK,
    NO_TIMESTAMP,
    TIMESTAMP_TYPE_MASK,
    TRANSACTIONAL_MASK,
)
from kafka_index.core.kernels.compile_cache import compiled
from kafka_index.core.kernels.headers import CONTROL_MESSAGE
from kafka_index.core.kernels.memory import Integer
from kafka_index.core.kernels.record_encoder import varint_size
from kafka_index.core.kernels.scan import BatchColumns

#: Columns of the array of sums. `SUM_FIRST_TIME` and `SUM_LAST_TIME` are the smallest and the
#: largest of the batches' max timestamps. The columns from `SUM_CODECS` on contain the bytes per
#: compression codec. `count_records` adds to the columns from `SUM_KEY_BYTES` on.
(
    SUM_BATCHES,
    SUM_RECORDS,
    SUM_BYTES,
    SUM_CONTROL_BATCHES,
    SUM_TRANSACTIONAL_RECORDS,
    SUM_FIRST_TIME,
    SUM_LAST_TIME,
    SUM_CODECS,
) = range(8)
CODECS = COMPRESSION_MASK + 1
SUM_KEY_BYTES = SUM_CODECS + CODECS
SUM_VALUE_BYTES = SUM_KEY_BYTES + 1
SUM_NULL_KEYS = SUM_KEY_BYTES + 2
SUM_TOMBSTONES = SUM_KEY_BYTES + 3
SUM_PLAIN_BYTES = SUM_KEY_BYTES + 4
SUMS = SUM_KEY_BYTES + 5

#: Group number of batches that are not counted.
NOT_COUNTED = -1
_NO_KEY, _ANY_TIME = -(1 << 62), (1 << 63) - 1
#: Number of batches in a block that is counted without branches.
_BLOCK = 128
#: Size of a v0 message without key and value, and of the timestamp in a v1 message.
_MESSAGE_BYTES, _TIMESTAMP_BYTES = 26, 8
_RECENT = 256
_MIX = np.uint64(0xC6A4A7935BD1E995)
_SHIFT = np.uint64(47)


def new_sums(groups: int) -> NDArray[np.int64]:
    """Return an array of sums without batches, one row per group."""
    sums = np.zeros((groups, SUMS), np.int64)
    sums[:, SUM_FIRST_TIME] = np.iinfo(np.int64).max
    sums[:, SUM_LAST_TIME] = NO_TIMESTAMP
    return sums


@compiled
def _find_slot(times: Longs, slots: Longs, time: Integer, group_ms: int) -> int:
    """Return the hash table slot of the group with this start time, or the free slot for it."""
    mask = len(slots) - 1
    # Successive hours and days have successive slots.
    slot = (time // group_ms if group_ms > 0 else 0) & mask
    while slots[slot] >= 0 and times[slots[slot]] != time:
        slot = (slot + 1) & mask
    return int(slot)


@compiled
def index_groups(times: Longs, group_count: int, slots: Longs, group_ms: int) -> None:
    """Fill the hash table `slots` with the rows of groups; it has at least two slots per group."""
    for row in range(group_count):
        slots[_find_slot(times, slots, times[row], group_ms)] = row


@compiled
def count_batches(  # noqa: PLR0912, PLR0915, C901, because it is one loop, and hot
    batches: BatchColumns,
    first_offset: int,
    from_ms: int,
    last_ms: int,
    group_ms: int,
    times: Longs,
    slots: Longs,
    sums: NDArray[np.int64],
    group_count: int,
    start_row: int,
    groups: Longs,
    producers: Longs,
    by_headers: bool,
) -> tuple[int, int, int, int]:
    """Add batches to the sums of their groups.

    `first_offset`: batches that end before it are not counted. `from_ms`, `last_ms`: only batches
    with a max timestamp within these inclusive bounds are counted. `group_ms`: the length of an
    hour or a day, 0 for one group of all batches. `times` (int64, (groups,)) and `sums` (int64,
    (groups, SUMS)): start time and sums of each group; `group_count` rows are in use. `slots`: from
    `index_groups`. `start_row`: the first batch to count. `groups` (int64, (n,)): filled with the
    group of each batch, or `NOT_COUNTED`. `producers` (int64, (n,)): filled with producer IDs, with
    few duplicates. If `by_headers` is False, records are not counted.

    Returns the first row that was not processed, less than n if `times` is full; the number of
    groups in use; the number of producer IDs; and the number of batches whose record count cannot
    be read from the header: compressed messages, and a batch that spans `first_offset`.
    """
    # Unpacked once, because accessing a field in the loop updates reference counts.
    (
        _,
        sizes,
        base_offsets,
        last_offsets,
        max_timestamps,
        _,
        attributes,
        producer_ids,
        control_types,
        _,
        _,
        _,
        _,
        _,
        record_counts,
    ) = batches
    recent = np.full(_RECENT, -1, np.int64)
    producer_count = uncountable = 0
    last_producer: Integer = np.int64(-1)
    # Sums of the latest batches, which have equal attributes and belong to one group.
    group, kind = -1, np.int64(_NO_KEY)
    count = records = size_bytes = 0
    smallest: Integer = np.int64(0)
    largest: Integer = np.int64(0)
    group_start: Integer = np.int64(_NO_KEY)
    group_end: Integer = np.int64(_NO_KEY)
    row = next_check = start_row
    while row < len(sizes):
        # Most batches have equal attributes. Blocks of such batches are counted without branches.
        end = row + _BLOCK
        if row >= next_check and group >= 0 and by_headers and end <= len(sizes):
            next_check = end
            min_time = group_start if group_ms > 0 else np.int64(_NO_KEY)
            max_time = group_end - 1 if group_ms > 0 else np.int64(_ANY_TIME)
            min_time, max_time = max(min_time, from_ms), min(max_time, last_ms)
            mismatches = 0
            for index in range(np.uint64(row), np.uint64(end)):
                mismatches += attributes[index] != kind
                mismatches += producer_ids[index] != last_producer
                mismatches += max_timestamps[index] < min_time
                mismatches += max_timestamps[index] > max_time
                mismatches += base_offsets[index] < first_offset
                mismatches += control_types[index] == CONTROL_MESSAGE
                mismatches += record_counts[index] < 0
            if mismatches == 0 and kind & CONTROL_MASK == 0:
                for index in range(np.uint64(row), np.uint64(end)):
                    groups[index] = group
                    size_bytes += sizes[index]
                    records += record_counts[index]
                    smallest = min(smallest, max_timestamps[index])
                    largest = max(largest, max_timestamps[index])
                count += _BLOCK
                row = end
                continue
        # An unsigned index avoids the handling of negative indexes.
        batch = np.uint64(row)
        time = max_timestamps[batch]
        if last_offsets[batch] < first_offset or time < from_ms or time > last_ms:
            groups[batch] = NOT_COUNTED
            row += 1
            continue
        is_message = control_types[batch] == CONTROL_MESSAGE
        bits = attributes[batch]
        if is_message:
            # Of the attributes of a v0 or v1 message, only the codec bits are used here.
            bits &= COMPRESSION_MASK
        is_other_time = group_ms > 0 and not group_start <= time < group_end
        if bits != kind or is_other_time or group < 0:
            if group >= 0:
                _add_batches(sums, group, kind, count, records, size_bytes, smallest, largest)
            count = records = size_bytes = 0
            smallest, largest = time, time
            kind = bits
            if is_other_time or group < 0:
                group_start = group_end = np.int64(NO_TIMESTAMP)
                if group_ms > 0 and time >= 0:
                    group_start = time - time % group_ms
                    group_end = group_start + group_ms
                elif group_ms > 0:
                    # A negative timestamp means that there is no timestamp.
                    group_start, group_end = np.int64(-(1 << 62)), np.int64(0)
                group_time = group_start if group_ms > 0 and time >= 0 else np.int64(NO_TIMESTAMP)
                slot = _find_slot(times, slots, group_time, group_ms)
                group = slots[slot]
                if group < 0:
                    if group_count == len(times):
                        return row, group_count, producer_count, uncountable
                    times[group_count] = group_time
                    group = slots[slot] = group_count
                    group_count += 1
        groups[batch] = group
        count += 1
        size_bytes += sizes[batch]
        smallest, largest = min(smallest, time), max(largest, time)
        is_countable = (
            bits & COMPRESSION_MASK == 0 if is_message else base_offsets[batch] >= first_offset
        )
        if not is_countable:
            uncountable += 1
        elif by_headers and is_message:
            records += 1
        elif by_headers and bits & CONTROL_MASK == 0:
            records += max(record_counts[batch], 0)
        producer = producer_ids[batch]
        if producer != last_producer:
            last_producer = producer
            index = producer & (_RECENT - 1)
            if producer >= 0 and recent[index] != producer:
                recent[index] = producer
                producers[producer_count] = producer
                producer_count += 1
        row += 1
    if group >= 0:
        _add_batches(sums, group, kind, count, records, size_bytes, smallest, largest)
    return row, group_count, producer_count, uncountable


@compiled
def _add_batches(
    sums: NDArray[np.int64],
    group: int,
    kind: Integer,
    count: int,
    records: int,
    size_bytes: int,
    smallest: Integer,
    largest: Integer,
) -> None:
    """Add batches of equal attributes to a group."""
    group_sums = sums[group]
    group_sums[SUM_BATCHES] += count
    group_sums[SUM_RECORDS] += records
    group_sums[SUM_BYTES] += size_bytes
    group_sums[SUM_CODECS + (kind & COMPRESSION_MASK)] += size_bytes
    if kind & CONTROL_MASK:
        group_sums[SUM_CONTROL_BATCHES] += count
    elif kind & TRANSACTIONAL_MASK:
        group_sums[SUM_TRANSACTIONAL_RECORDS] += records
    if smallest >= 0:
        group_sums[SUM_FIRST_TIME] = min(group_sums[SUM_FIRST_TIME], smallest)
    group_sums[SUM_LAST_TIME] = max(group_sums[SUM_LAST_TIME], largest)


@compiled
def count_records(
    first_batch: int,
    batch_ends: Longs,
    batches: BatchColumns,
    base_timestamps: Longs,
    groups: Longs,
    offsets: Longs,
    timestamps: Longs,
    key_sizes: Longs,
    value_sizes: Longs,
    header_sizes: Longs,
    sums: NDArray[np.int64],
    key_bins: Longs,
    value_bins: Longs,
    plain_sizes: Longs,
) -> None:
    """Add the sizes of records to the sums of their groups.

    `first_batch`, `batch_ends`: as in `RecordChunk`. `base_timestamps`, `groups` (int64,
    (batches,)): base timestamp and group of each batch. `offsets`, `timestamps`, `key_sizes`,
    `value_sizes` (int64, (n,)): fields of the records; the size of null is -1. `header_sizes`
    (int64, (n,)): encoded size of each record's headers, including their number. `sums`: as for
    `count_batches`. `key_bins`, `value_bins` (int64, (65,)): number of keys and of values by the
    bit length of their size. `plain_sizes` (int64, (n,)): filled with the sizes of records without
    compression (``DefaultRecord.sizeInBytes``). With LogAppendTime, the timestamp delta of a record
    is unknown, and is counted as one byte.
    """
    base_offsets, attributes = batches.base_offset, batches.attributes
    control_types, magics = batches.control_type, batches.magic
    row = 0
    for number in range(len(batch_ends)):
        batch = first_batch + number
        group_sums = sums[groups[batch]]
        base_offset, base_timestamp = base_offsets[batch], base_timestamps[batch]
        is_message = control_types[batch] == CONTROL_MESSAGE
        has_append_time = attributes[batch] & TIMESTAMP_TYPE_MASK != 0
        overhead = _MESSAGE_BYTES + (_TIMESTAMP_BYTES if magics[batch] > 0 else 0)
        while row < batch_ends[number]:
            key_size, value_size = key_sizes[row], value_sizes[row]
            key_bytes, value_bytes = max(key_size, 0), max(value_size, 0)
            group_sums[SUM_KEY_BYTES] += key_bytes
            group_sums[SUM_VALUE_BYTES] += value_bytes
            if key_size < 0:
                group_sums[SUM_NULL_KEYS] += 1
            else:
                key_bins[_bit_length(key_size)] += 1
            if value_size < 0:
                group_sums[SUM_TOMBSTONES] += 1
            else:
                value_bins[_bit_length(value_size)] += 1
            plain = overhead + key_bytes + value_bytes
            if not is_message:
                time = np.int64(0) if has_append_time else timestamps[row] - base_timestamp
                plain = 1 + key_bytes + value_bytes + header_sizes[row]
                plain += varint_size(time) + varint_size(offsets[row] - base_offset)
                plain += varint_size(key_size) + varint_size(value_size)
                plain += varint_size(plain)
            plain_sizes[row] = plain
            group_sums[SUM_PLAIN_BYTES] += plain
            row += 1


@compiled
def _bit_length(size: Integer) -> int:
    """Return the number of bits of a size."""
    bits = 0
    while size > 0:
        size >>= 1
        bits += 1
    return bits


@compiled
def hash_fields(
    data: NDArray[np.uint8], ends: NDArray[np.int32], hashes: NDArray[np.uint64]
) -> None:
    """Hash binary values with MurmurHash64A.

    `data` (uint8) and `ends` (int32, (n + 1,)): bytes and offsets of an Arrow array. `hashes`
    (uint64, (n,)): filled.
    """
    for row in range(len(hashes)):
        start, end = np.int64(ends[row]), np.int64(ends[row + 1])
        value = np.uint64(end - start) * _MIX
        at = start
        while at + 8 <= end:
            word = np.uint64(0)
            for byte in range(8):
                word |= np.uint64(data[at + byte]) << np.uint64(8 * byte)
            value = (value ^ _mix_word(word)) * _MIX
            at += 8
        word = np.uint64(0)
        for byte in range(end - at):
            word |= np.uint64(data[at + byte]) << np.uint64(8 * byte)
        if at < end:
            value = (value ^ word) * _MIX
        value = (value ^ (value >> _SHIFT)) * _MIX
        hashes[row] = value ^ (value >> _SHIFT)


@compiled
def _mix_word(word: np.uint64) -> np.uint64:
    word *= _MIX
    return (word ^ (word >> _SHIFT)) * _MIX


def warm_up(nothing: Longs) -> None:
    batches = BatchColumns(*[nothing] * len(BatchColumns._fields))
    slots = np.full(2, -1, np.int64)
    index_groups(nothing, 0, slots, 0)
    count_batches(
        batches,
        0,
        0,
        0,
        0,
        nothing,
        slots,
        new_sums(0),
        0,
        0,
        nothing,
        nothing,
        True,
    )
    count_records(
        0,
        nothing,
        batches,
        nothing,
        nothing,
        nothing,
        nothing,
        nothing,
        nothing,
        nothing,
        new_sums(0),
        nothing,
        nothing,
        nothing,
    )
    hash_fields(np.empty(0, np.uint8), np.zeros(1, np.int32), np.empty(0, np.uint64))
