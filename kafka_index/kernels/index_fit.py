"""Whether index entries fit the log that they were made from.

An entry of the offset index fits when a walk from its position reaches a batch that ends at its
offset, one of the time index when the first batch as late has its timestamp and its offset.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kafka_index.kernels.batch_header import (
    AT_DAMAGE,
    AT_END,
    batch_size,
    damage_at,
    last_offset_of,
    magic_of,
    max_timestamp_of,
    read_base_offset,
)
from kafka_index.kernels.big_endian import Integer
from kafka_index.kernels.compile_cache import compiled
from kafka_index.layout.records import MAGIC_RECORD_BATCH, NO_TIMESTAMP


@compiled
def entry_end(log: np.uint64, log_size: int, position: Integer, offset: Integer) -> Integer:
    """Return where the batch begins that an entry of an offset index ends with.

    Parameters
    ----------
    log : int
        Memory address of the log.
    log_size : int
        How many bytes of it count.
    position, offset : int
        The entry, its offset absolute.

    Returns
    -------
    int
        Position of the batch whose last offset it is. That is the one the entry leads to, or (an
        entry an append, as older brokers made them) one after it. `AT_END` when no batch
        ends there, `AT_DAMAGE` when damage comes first.
    """
    while True:
        size = batch_size(log + np.uint64(position), log_size - position)
        if size < 0:
            return AT_DAMAGE
        last_offset = last_offset_of(log + np.uint64(position))
        if last_offset >= offset:
            return position if last_offset == offset else AT_END
        position += size


@compiled
def reaches(log: np.uint64, log_size: int, start: Integer, position: Integer) -> bool:
    """Return whether a walk over batches from a start reaches a position."""
    while start < position:
        size = batch_size(log + np.uint64(start), log_size - start)
        if size < 0:
            return False
        start += size
    return bool(start == position)


@compiled
def time_entry_end(
    log: np.uint64, log_size: int, position: Integer, timestamp: Integer, offset: Integer
) -> Integer:
    """Return where the batch begins that an entry of a time index was made of.

    Parameters
    ----------
    log, log_size : int
        As for `entry_end`.
    position : int
        Where to begin: where the offset index leads for the entry's offset.
    timestamp, offset : int
        The entry, its offset absolute.

    Returns
    -------
    int
        Position of the first batch that is as late, if it has that very timestamp and holds the
        offset; `AT_DAMAGE` otherwise.
    """
    while True:
        size = batch_size(log + np.uint64(position), log_size - position)
        if size < 0:
            return AT_DAMAGE
        start = log + np.uint64(position)
        latest = max_timestamp_of(start)
        if latest >= timestamp:
            # Magic 0 and 1: the last offset of a wrapper, and its records lie below it.
            legacy = magic_of(start) < MAGIC_RECORD_BATCH
            begins = legacy or read_base_offset(start) <= offset
            holds = begins and offset <= last_offset_of(start)
            return position if holds and latest == timestamp else AT_DAMAGE
        position += size


@compiled
def time_entries_hold(
    log: np.uint64,
    log_size: int,
    timestamps: NDArray[np.int64],
    offsets: NDArray[np.int64],
) -> bool:
    """Return whether all entries of a time index hold, each against the log from its start.

    Where offsets go back, the offset index may lead past the batch that an entry was made of.

    Parameters
    ----------
    log, log_size : int
        As for `entry_end`.
    timestamps, offsets : ndarray of int64, shape (n,)
        The entries, timestamps ascending, offsets absolute.
    """
    position: Integer = np.int64(0)
    for row in range(len(timestamps)):
        position = time_entry_end(log, log_size, position, timestamps[row], offsets[row])
        if position < 0:
            return False
    return True


@compiled
def largest_timestamp_after(
    log: np.uint64, log_size: int, position: Integer
) -> tuple[Integer, Integer, Integer]:
    """Walk to the end of the log and return the largest timestamp on the way.

    Returns
    -------
    tuple of int
        The timestamp (-1 for none), the last offset of the first batch that has it, and where the
        walk ended: the end of the log, or damage.
    """
    timestamp: Integer = np.int64(NO_TIMESTAMP)
    offset: Integer = np.int64(-1)
    while True:
        size = batch_size(log + np.uint64(position), log_size - position)
        if size < 0:
            return timestamp, offset, position
        start = log + np.uint64(position)
        found = max_timestamp_of(start)
        if found > timestamp:
            timestamp = found
            offset = last_offset_of(start)
        position += size


@compiled
def first_with_timestamp(
    log: np.uint64, log_size: int, position: Integer, timestamp: Integer
) -> Integer:
    """Return the first batch from a position on whose largest timestamp is this very one.

    Without one it is `AT_END`, or `damage_at`.
    """
    while True:
        size = batch_size(log + np.uint64(position), log_size - position)
        if size < 0:
            return size if size == AT_END else damage_at(position)
        if max_timestamp_of(log + np.uint64(position)) == timestamp:
            return position
        position += size


def warm_up(address: np.uint64, nothing: NDArray[np.int64]) -> None:
    """Load or compile the checks, over a log without bytes."""
    entry_end(address, 0, 0, 0)
    reaches(address, 0, 0, 0)
    time_entry_end(address, 0, 0, 0, 0)
    time_entries_hold(address, 0, nothing, nothing)
    largest_timestamp_after(address, 0, 0)
    first_with_timestamp(address, 0, 0, 0)
