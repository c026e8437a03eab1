"""The headers of records: found, and copied to the layout of Arrow's binary arrays.

Few records have headers, and fewer columns of them are asked for, so they take a pass of their own
over the records that `kafka_index.kernels.record_columns` has found to have any.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kafka_index.kernels.big_endian import Integer
from kafka_index.kernels.compile_cache import compiled
from kafka_index.kernels.copying import UNPACK_SLACK_BYTES, copy_field
from kafka_index.kernels.record_fields import FIELD_NULL, VARINT_CUT, read_sized_field

#: Rows of the array of places: the row of the chunk, where its headers begin, how many it has, and
#: where the record ends.
PLACE_ROW, PLACE_ADDRESS, PLACE_COUNT, PLACE_END = range(4)
PLACE_ROWS = 4

#: Rows of the array that `find_headers` fills.
HEADER_KEY, HEADER_KEY_SIZE, HEADER_VALUE, HEADER_VALUE_SIZE = range(4)
HEADER_ROWS = 4

#: Bytes after the end of an output that `copy_fields` may overwrite.
COPY_SLACK_BYTES = UNPACK_SLACK_BYTES


@compiled
def find_headers(places: NDArray[np.int64], headers: NDArray[np.int64]) -> None:
    """Find the headers of records.

    `places` (int64, (PLACE_ROWS, n)): as `decode_batches` has filled them. `headers` (int64,
    (HEADER_ROWS, k)): filled; k is the sum of the counts.
    """
    at = 0
    for place in range(places.shape[1]):
        position: Integer = places[PLACE_ADDRESS, place]
        end = places[PLACE_END, place]
        for _ in range(places[PLACE_COUNT, place]):
            # `decode_batches` has found that they end within their record. In a log that is
            # overwritten meanwhile they may not: then the name is empty, and the value null.
            key, key_size, position = read_sized_field(position, end)
            if key_size < 0 or position > end:
                key_size, position = np.int64(0), VARINT_CUT
            value, value_size, position = read_sized_field(position, end)
            if position > end:
                value_size = np.int64(FIELD_NULL)
            headers[HEADER_KEY, at] = key
            headers[HEADER_KEY_SIZE, at] = key_size
            headers[HEADER_VALUE, at] = value
            headers[HEADER_VALUE_SIZE, at] = max(value_size, FIELD_NULL)
            at += 1


@compiled
def copy_fields(
    addresses: NDArray[np.int64],
    sizes: NDArray[np.int64],
    readable_end: np.uint64,
    ends: NDArray[np.int32],
    data: NDArray[np.uint8],
) -> int:
    """Copy bytes to the layout of Arrow's binary arrays.

    `addresses`, `sizes` (int64, (n,)): where they are; `FIELD_NULL` for null. `readable_end`:
    nothing at or after this address is read; `ends` (int32, (n + 1,)): filled with offsets. `data`
    (uint8): filled; `COPY_SLACK_BYTES` longer than all fields. Returns how many are null.
    """
    out = np.uint64(data.ctypes.data)
    total = np.int64(0)
    nulls = 0
    ends[0] = 0
    for row in range(len(sizes)):
        size = sizes[row]
        copy_field(out + np.uint64(total), np.uint64(addresses[row]), size, readable_end)
        if size < 0:
            nulls += 1
        else:
            total += size
        ends[row + 1] = total
    return nulls


def warm_up(address: np.uint64, nothing: NDArray[np.int64]) -> None:
    """Load or compile the kernels, over no headers."""
    headers = np.empty((HEADER_ROWS, 0), np.int64)
    find_headers(np.empty((PLACE_ROWS, 0), np.int64), headers)
    copy_fields(nothing, nothing, address, np.empty(1, np.int32), np.empty(0, np.uint8))
