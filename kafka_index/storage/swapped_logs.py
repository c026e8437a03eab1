"""The offsets that swapped logs replace, from the headers of their batches (``LogLoader.load``)."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass

from kafka_index.errors import KafkaIndexError
from kafka_index.stores import ByteSource, store_of

# Base offset @0, length @8, magic @16, last offset delta @23: all a next offset needs.
_HEADER = struct.Struct(">qi4xb6xi")
_OVERHEAD_BYTES = 12
_SHORT_HEADER_BYTES = 17
_MIN_LENGTH = 14
_MAGIC_2 = 2
_MAGIC_2_HEADER_BYTES = 61
# What one request to a store reads of a log whose headers are wanted.
_HEADERS_WINDOW_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class SwappedRange:
    """The offsets that swapped logs hold, and that they replace.

    Parameters
    ----------
    first_offset, end_offset : int
        From the lowest base offset to the highest next offset, exclusive.
    doubts : dict of str to str
        Logs whose end is doubtful, by path, and why: a broker does not start with one that is
        damaged.
    """

    first_offset: int
    end_offset: int
    doubts: dict[str, str]


def swapped_range(swaps: Mapping[int, str]) -> SwappedRange:
    """Return the range of live swapped logs, given by base offset and path (``LogLoader.load``)."""
    ends = {offset: _end_of(path, offset) for offset, path in swaps.items()}
    return SwappedRange(
        min(swaps),
        max(end.next_offset for end in ends.values()),
        {swaps[offset]: end.doubt for offset, end in ends.items() if end.doubt},
    )


@dataclass(frozen=True, slots=True)
class _SwapEnd:
    next_offset: int
    doubt: str = ""


def _end_of(path: str, base_offset: int) -> _SwapEnd:
    """Return the offset after the last batch of a log, from the batches' headers alone.

    A damaged log has an end too: that of the batches before the damage; `doubt` then says so
    (the broker itself refuses to start on such a swap file). An incomplete last batch is not
    counted, and none at all gives the base offset (LogSegment.readNextOffset).
    """
    try:
        log = store_of(path).open(path)
    except KafkaIndexError as error:
        return _SwapEnd(base_offset, f"its end is unknown, it cannot be read: {error.message}")
    with closing(log):
        return _end_of_batches(log, base_offset)


def _end_of_batches(log: ByteSource, base_offset: int) -> _SwapEnd:
    next_offset = base_offset
    position_bytes = start_bytes = 0
    window = log.read_at(0, 0)
    while position_bytes < log.size_bytes - _SHORT_HEADER_BYTES:
        if position_bytes + _HEADER.size > start_bytes + len(window):
            try:
                window = log.read_at(position_bytes, _HEADERS_WINDOW_BYTES)
            except KafkaIndexError as error:
                return _SwapEnd(next_offset, f"its end is unknown, reading failed: {error.message}")
            start_bytes = position_bytes
        at = position_bytes - start_bytes
        # The four bytes of the delta may lie after the end of a tiny old message.
        padded = window[at : at + _HEADER.size].tobytes().ljust(_HEADER.size, b"\0")
        offset, length, magic, last_offset_delta = _HEADER.unpack(padded)
        batch_bytes = _OVERHEAD_BYTES + length
        incomplete = position_bytes > log.size_bytes - batch_bytes
        too_small = magic >= _MAGIC_2 and batch_bytes < _MAGIC_2_HEADER_BYTES
        if length < _MIN_LENGTH or (too_small and not incomplete):
            return _SwapEnd(
                next_offset,
                f"its end is doubtful, it is damaged at byte {position_bytes} "
                f"(a batch of length {length})",
            )
        if incomplete:
            break
        next_offset = offset + 1 + (last_offset_delta if magic >= _MAGIC_2 else 0)
        position_bytes += batch_bytes
    return _SwapEnd(next_offset)
