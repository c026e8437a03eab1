"""The state of decoding between two calls of `record_columns.decode_batches`.

A call may end anywhere: with a chunk that is full, or at records that the caller has to decompress.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kafka_index.core.format.longs import Longs
from kafka_index.core.kernels.compile_cache import compiled
from kafka_index.core.kernels.memory import Records, record_type
from kafka_index.core.kernels.records import RecordSection

#: What is wanted besides offsets and timestamps, as bits.
PART_KEYS, PART_VALUES, PART_HEADERS = 1, 2, 4

#: Where the columns of a chunk are: addresses of offsets and timestamps; of keys and of values the
#: addresses of their ends (int32, one more than rows, the first one filled in), of a byte each for
#: whether they are present, and of their bytes, and how many of these there may be,
#: `UNPACK_SLACK_BYTES` aside; the address of the array of header places, and how many bytes its
#: rows have; and how many records there may be.
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

#: Why a call returned: the batches are done; the chunk is full, or the arena is; the next record
#: alone has more bytes (``needed_key_bytes``, ``needed_value_bytes``) than the chunk has room for;
#: the caller has to decompress the records of the batch; those handed in are done; or the batch is
#: damaged (``fault``), after the records before the damage.
(
    DECODE_DONE,
    DECODE_FULL,
    DECODE_ARENA_FULL,
    DECODE_NEEDS_ROOM,
    DECODE_NEEDS_RECORDS,
    DECODE_SECTION_DONE,
    DECODE_FAULT,
) = range(7)

#: What ``fault`` can be besides the codes of `core.kernels.record_fields`: a batch with a
#: negative record count, a message that ends before its key or its value does, and a record with
#: more than `MAX_HEADERS` headers.
NEGATIVE_RECORD_COUNT, CUT_FIELD, TOO_MANY_HEADERS = -1, -2, -3

#: The number of the batch; how many of its records are left (`NOT_OPEN`: all of them) and the
#: address of the next one; rows of the chunk so far, how many of them have headers, how many
#: headers, and their bytes; bytes of the arena in use; why the batch is damaged; what key and value
#: of the next record need; whether the records of the batch were handed in, and the fields of their
#: `RecordSection`.
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
    """Return the state before the first batch, an array of one."""
    states = np.zeros(1, STATE)
    states["left"] = NOT_OPEN
    return states


def hand_in_section(state: Any, section: RecordSection) -> None:
    """Hand in the decompressed records of the batch."""
    for name, value in zip(section._fields, section, strict=True):
        setattr(state, name, int(value))
    state.left = max(state.record_count, 0)
    state.cursor = state.start
    state.handed_in = 1


def skip_batch(state: Any, batch_ends: Longs) -> None:
    """Continue after the batch, which has no further records."""
    batch_ends[state.batch] = state.rows
    state.batch += 1
    state.left = NOT_OPEN
    state.handed_in = 0


def begin_chunk(state: Any) -> None:
    """Begin a chunk: the rows so far have been taken."""
    state.rows = state.header_rows = state.headers = state.header_bytes = 0


@compiled
def load_section(state: Any) -> RecordSection:
    """Return the section of the batch."""
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
    """Keep the section of the batch."""
    state.start = np.int64(section.start)
    state.end = np.int64(section.end)
    state.record_count = section.record_count
    state.base_offset = section.base_offset
    state.base_timestamp = section.base_timestamp
    state.append_timestamp = section.append_timestamp
    state.uses_append_time = section.uses_append_time
    state.is_message_set = section.is_message_set
