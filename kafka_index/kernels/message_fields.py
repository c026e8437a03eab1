"""Key and value of messages of magic 0 and 1.

Source: Kafka's ``LegacyRecord``.
"""

from __future__ import annotations

import numpy as np

from kafka_index.kernels.big_endian import Integer, read_int8, read_int32
from kafka_index.kernels.compile_cache import compiled
from kafka_index.kernels.record_fields import (
    FIELD_NULL,
    RECORD_CUT,
    RECORD_SOUND,
    RecordFields,
)
from kafka_index.kernels.varints import VARINT_CUT
from kafka_index.layout.records import (
    MAGIC_POSITION,
    MESSAGE_V0_HEADER,
    MESSAGE_V1_HEADER,
    field_position,
)

_INT32_BYTES = 4
_V0_KEY = field_position(MESSAGE_V0_HEADER, "key_length")
_V1_KEY = field_position(MESSAGE_V1_HEADER, "key_length")


@compiled
def read_message(message: np.uint64, following: np.uint64) -> RecordFields:
    """Read the places of key and value of a message, or find that they do not lie in it.

    Parameters
    ----------
    message, following : uint64
        Addresses of the message and after it.

    Returns
    -------
    RecordFields
        Without deltas and headers, which messages do not have; ``code`` is `RECORD_SOUND` or
        `RECORD_CUT`.
    """
    is_v0 = read_int8(message + np.uint64(MAGIC_POSITION)) == 0
    end = np.int64(following)
    none = np.int64(0)
    key, key_size, position = _read_field(np.int64(message) + (_V0_KEY if is_v0 else _V1_KEY), end)
    value, value_size, position = _read_field(position, end)
    code = np.int64(RECORD_SOUND if position <= end else RECORD_CUT)
    return RecordFields(code, end, none, none, key, key_size, value, value_size, end, none)


@compiled
def _read_field(position: Integer, end: Integer) -> tuple[Integer, Integer, Integer]:
    """Return start and size of a field of a message, and the address after it."""
    start = position + _INT32_BYTES
    if start > end:
        return end, np.int64(FIELD_NULL), VARINT_CUT
    size = read_int32(np.uint64(position))
    if size > end - start:
        return end, np.int64(FIELD_NULL), VARINT_CUT
    return start, max(size, FIELD_NULL), start + max(size, 0)
