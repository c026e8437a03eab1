"""The state of decoding between two calls of `kafka_index.kernels.record_columns.decode_batches`.

An array of int64 holds it, since a call may end anywhere: with a chunk that is full, or at records
that the caller has to decompress. Another array has the addresses of the columns of a chunk.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kafka_index.kernels.compile_cache import compiled
from kafka_index.kernels.memory import Integer
from kafka_index.kernels.records import RecordSection

#: What is wanted besides offsets and timestamps, as bits.
PART_KEYS, PART_VALUES, PART_HEADERS = 1, 2, 4

#: The array that says where the columns of a chunk are: addresses of offsets and timestamps; of
#: keys and of values the addresses of their ends (int32, one more than rows, the first one filled
#: in), of a byte each for whether they are present, and of their bytes, and how many of these
#: there may be, `UNPACK_SLACK_BYTES` aside; the address of the array of header places, and how many
#: bytes its rows have; and how many records there may be.
(
    CHUNK_OFFSETS,
    CHUNK_TIMESTAMPS,
    CHUNK_KEY_ENDS,
    CHUNK_KEY_PRESENT,
    CHUNK_KEYS,
    CHUNK_KEY_BYTES,
    CHUNK_VALUE_ENDS,
    CHUNK_VALUE_PRESENT,
    CHUNK_VALUES,
    CHUNK_VALUE_BYTES,
    CHUNK_PLACES,
    CHUNK_PLACE_STRIDE,
    CHUNK_ROWS,
) = range(13)
CHUNK_FIELDS = 13


#: Why a call returned: the batches are done; the chunk is full, or the arena is; the next record
#: alone has more bytes (``STATE_NEEDED_KEY_BYTES``, ``STATE_NEEDED_VALUE_BYTES``) than the chunk
#: has room for; the caller has to decompress the records of the batch at ``STATE_BATCH``; those
#: handed in are done; or that batch is damaged (``STATE_FAULT``), after the records before the
#: damage.
(
    DECODE_DONE,
    DECODE_FULL,
    DECODE_ARENA_FULL,
    DECODE_NEEDS_ROOM,
    DECODE_NEEDS_RECORDS,
    DECODE_SECTION_DONE,
    DECODE_FAULT,
) = range(7)

#: What ``STATE_FAULT`` can be besides the codes of `kafka_index.kernels.record_fields`: a batch
#: with a negative record count, a message that ends before its key or its value does, and a record
#: with more than `MAX_HEADERS` headers.
NEGATIVE_RECORD_COUNT, CUT_FIELD, TOO_MANY_HEADERS = -1, -2, -3

#: The number of the batch; how many of its records are left (`NOT_OPEN`: all of them) and the
#: address of the next one; rows of the chunk so far, how many of them have headers, how many
#: headers, and their bytes; bytes of the arena in use; why the batch is damaged; what key and value
#: of the next record need; whether the records of the batch were handed in, and the fields of their
#: `RecordSection`.
(
    STATE_BATCH,
    STATE_LEFT,
    STATE_CURSOR,
    STATE_ROWS,
    STATE_HEADER_ROWS,
    STATE_HEADERS,
    STATE_HEADER_BYTES,
    STATE_ARENA_USED,
    STATE_FAULT,
    STATE_NEEDED_KEY_BYTES,
    STATE_NEEDED_VALUE_BYTES,
    STATE_HANDED_IN,
    STATE_SECTION,
) = range(13)
STATE_SIZE = STATE_SECTION + len(RecordSection._fields)
NOT_OPEN = -1


def new_state() -> NDArray[np.int64]:
    """Return the state before the first batch."""
    state = np.zeros(STATE_SIZE, np.int64)
    state[STATE_LEFT] = NOT_OPEN
    return state


def hand_in_section(state: NDArray[np.int64], section: RecordSection) -> None:
    """Hand in the decompressed records of the batch at ``STATE_BATCH``."""
    fields = [int(field) for field in section]
    state[STATE_SECTION:] = np.array(fields, np.int64)
    state[STATE_LEFT] = max(fields[2], 0)
    state[STATE_CURSOR] = fields[0]
    state[STATE_HANDED_IN] = 1


def skip_batch(state: NDArray[np.int64], batch_ends: NDArray[np.int64]) -> None:
    """Continue after the batch at ``STATE_BATCH``, which has no further records."""
    batch_ends[state[STATE_BATCH]] = state[STATE_ROWS]
    state[STATE_BATCH] += 1
    state[STATE_LEFT] = NOT_OPEN
    state[STATE_HANDED_IN] = 0


def begin_chunk(state: NDArray[np.int64]) -> None:
    """Begin a chunk: the rows so far have been taken."""
    state[STATE_ROWS] = state[STATE_HEADER_ROWS] = 0
    state[STATE_HEADERS] = state[STATE_HEADER_BYTES] = 0


@compiled
def load_section(state: NDArray[np.int64]) -> RecordSection:
    """Return the section of the batch at ``STATE_BATCH``."""
    return RecordSection(
        np.uint64(state[STATE_SECTION]),
        np.uint64(state[STATE_SECTION + 1]),
        state[STATE_SECTION + 2],
        state[STATE_SECTION + 3],
        state[STATE_SECTION + 4],
        state[STATE_SECTION + 5],
        state[STATE_SECTION + 6],
        state[STATE_SECTION + 7],
    )


@compiled
def store_section(state: NDArray[np.int64], section: RecordSection) -> None:
    """Keep the section of the batch at ``STATE_BATCH``."""
    state[STATE_SECTION] = np.int64(section.start)
    state[STATE_SECTION + 1] = np.int64(section.end)
    state[STATE_SECTION + 2] = section.record_count
    state[STATE_SECTION + 3] = section.base_offset
    state[STATE_SECTION + 4] = section.base_timestamp
    state[STATE_SECTION + 5] = section.append_timestamp
    state[STATE_SECTION + 6] = section.uses_append_time
    state[STATE_SECTION + 7] = section.is_message_set


@compiled
def rest_of(section: RecordSection, cursor: np.uint64, left: Integer) -> RecordSection:
    """Return what is left of a section."""
    return RecordSection(
        cursor,
        section.end,
        left,
        section.base_offset,
        section.base_timestamp,
        section.append_timestamp,
        section.uses_append_time,
        section.is_message_set,
    )
