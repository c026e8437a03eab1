"""The state of decoding between two calls of `record_columns.decode_batches`.

A call ends when a chunk is full, or at records that the caller must decompress.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kafka_index.core.format.longs import Longs
from kafka_index.core.kernels.compile_cache import compiled
from kafka_index.core.kernels.memory import Records, record_type
from kafka_index.core.kernels.records import RecordSection

#: Columns to decode in addition to offsets and timestamps, as bits.
PART_KEYS, PART_VALUES, PART_HEADERS = 1, 2, 4

#: Addresses and capacities of a chunk's columns. For keys and values: the addresses of their end
#: offsets (int32, one more than rows, the first one initialized), of their validity bytes, and of
#: their data, and the data capacity without `UNPACK_SLACK_BYTES`. The state also has the address
#: and row stride of the array of header positions, and the maximum number of records.
CHUNK = record_type(
    "offsets",
    "timestamps",
    "key_ends",
    "key_present",
    "keys",
    "key_bytes",
    "value_ends",
    "value_present",
    "values",
    "value_bytes",
    "places",
    "place_stride",
    "rows",
)

#: Why a call returned: all batches are decoded; the chunk or the arena is full; the next record
#: alone needs more bytes (``needed_key_bytes``, ``needed_value_bytes``) than the chunk has; the
#: caller must decompress the batch; the section handed in is decoded; or the batch is corrupt
#: (``fault``) after the records decoded so far.
(
    DECODE_DONE,
    DECODE_FULL,
    DECODE_ARENA_FULL,
    DECODE_NEEDS_ROOM,
    DECODE_NEEDS_RECORDS,
    DECODE_SECTION_DONE,
    DECODE_FAULT,
) = range(7)

#: Further values of ``fault``, besides the codes of `core.kernels.record_fields`: a negative record
#: count, a message that ends within its key or value, or a record with more than `MAX_HEADERS`
#: headers.
NEGATIVE_RECORD_COUNT, CUT_FIELD, TOO_MANY_HEADERS = -1, -2, -3

#: Number of the batch; its remaining records (`NOT_OPEN`: all) and the address of the next one;
#: rows of the chunk, rows with headers, number of headers, bytes of headers; used bytes of the
#: arena; the corruption; bytes needed for key and value of the next record; whether the section of
#: the batch was handed in, and the fields of its `RecordSection`.
STATE = record_type(
    "batch",
    "left",
    "cursor",
    "rows",
    "header_rows",
    "headers",
    "header_bytes",
    "arena_used",
    "fault",
    "needed_key_bytes",
    "needed_value_bytes",
    "handed_in",
    *RecordSection._fields,
)
NOT_OPEN = -1


def new_state() -> Records:
    """Return the state before the first batch, an array of one row."""
    states = np.zeros(1, STATE)
    states["left"] = NOT_OPEN
    return states


def hand_in_section(state: Any, section: RecordSection) -> None:
    for name, value in zip(section._fields, section, strict=True):
        setattr(state, name, int(value))
    state.left = max(state.record_count, 0)
    state.cursor = state.start
    state.handed_in = 1


def skip_batch(state: Any, batch_ends: Longs) -> None:
    """Skip the remaining records of the batch."""
    batch_ends[state.batch] = state.rows
    state.batch += 1
    state.left = NOT_OPEN
    state.handed_in = 0


def begin_chunk(state: Any) -> None:
    """Start a new chunk, after the caller has consumed the previous rows."""
    state.rows = state.header_rows = state.headers = state.header_bytes = 0


@compiled
def load_section(state: Any) -> RecordSection:
    return RecordSection(
        np.uint64(state.start),
        np.uint64(state.end),
        state.record_count,
        state.base_offset,
        state.base_timestamp,
        state.append_timestamp,
        state.uses_append_time,
        state.is_message_set,
    )


@compiled
def store_section(state: Any, section: RecordSection) -> None:
    state.start = np.int64(section.start)
    state.end = np.int64(section.end)
    state.record_count = section.record_count
    state.base_offset = section.base_offset
    state.base_timestamp = section.base_timestamp
    state.append_timestamp = section.append_timestamp
    state.uses_append_time = section.uses_append_time
    state.is_message_set = section.is_message_set
