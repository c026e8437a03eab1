"""Which batches get an index entry, and which timestamp goes with it.

Source: the loop of Kafka's ``LogSegment.recover`` (the live ``LogSegment.append`` follows the same
rule, batch by batch, since 3.9.1 and 4.1).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kafka_index.kernels.compile_cache import compiled

#: What is carried from chunk to chunk, as places of an int64 array.
STATE_LAST_INDEX_POSITION, STATE_MAX_TIMESTAMP, STATE_OFFSET_OF_MAX_TIMESTAMP = range(3)


@compiled
def choose_entries(
    positions: NDArray[np.int64],
    last_offsets: NDArray[np.int64],
    max_timestamps: NDArray[np.int64],
    index_interval_bytes: int,
    state: NDArray[np.int64],
    rows: NDArray[np.int64],
    entry_timestamps: NDArray[np.int64],
    entry_timestamp_offsets: NDArray[np.int64],
) -> int:
    """Pick the batches that get an entry.

    Parameters
    ----------
    positions, last_offsets, max_timestamps : ndarray of int64, shape (n,)
        The chunk, in file order; bytes, absolute offsets, ms.
    index_interval_bytes : int
        An entry is due when more than this lies since the last.
    state : ndarray of int64, shape (3,)
        Changed in place; starts as (0, -1, -1).
    rows, entry_timestamps, entry_timestamp_offsets : ndarray of int64, shape (at least n,)
        Filled: the row of the batch that gets the offset entry, and the largest timestamp so far
        with the last offset of its batch.

    Returns
    -------
    int
        How many entries were filled in.
    """
    last_index_position = state[STATE_LAST_INDEX_POSITION]
    max_timestamp = state[STATE_MAX_TIMESTAMP]
    offset_of_max = state[STATE_OFFSET_OF_MAX_TIMESTAMP]
    count = 0
    for row in range(len(positions)):
        if max_timestamps[row] > max_timestamp:
            max_timestamp = max_timestamps[row]
            offset_of_max = last_offsets[row]
        if positions[row] - last_index_position > index_interval_bytes:
            rows[count] = row
            entry_timestamps[count] = max_timestamp
            entry_timestamp_offsets[count] = offset_of_max
            count += 1
            last_index_position = positions[row]
    state[STATE_LAST_INDEX_POSITION] = last_index_position
    state[STATE_MAX_TIMESTAMP] = max_timestamp
    state[STATE_OFFSET_OF_MAX_TIMESTAMP] = offset_of_max
    return count
