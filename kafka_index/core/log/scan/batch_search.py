"""Search for the next valid batch after a corruption, and detection of torn tails.

A batch is valid if its header is plausible, its checksum matches, and its offsets can follow. A log
may end with an incomplete batch. It is a corruption, not a torn tail, if the following bytes
contain a valid batch, or if no broker writes such a header there.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import merge
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from kafka_index.core.format.integers import INT32_MAX
from kafka_index.core.format.longs import Longs
from kafka_index.core.format.names import COMPRESSION_NAMES
from kafka_index.core.format.records import (
    COMPRESSION_MASK,
    CONTROL_MASK,
    DELETE_HORIZON_MASK,
    LOG_OVERHEAD_BYTES,
    MAGIC_POSITION,
    MAGIC_RECORD_BATCH,
    MESSAGE_V0_HEADER,
    MIN_LENGTH,
    RECORD_BATCH_HEADER,
    RECORD_BATCH_OVERHEAD_BYTES,
    TIMESTAMP_TYPE_MASK,
    TRANSACTIONAL_MASK,
    field_position,
)
from kafka_index.core.fs.store import Bytes, ByteSource
from kafka_index.core.fs.window import StreamWalk
from kafka_index.core.kernels.batch_header import batch_checksums

_SEARCH_BYTES = 1 << 20
#: Message formats v0 and v1, and batches.
ALL_MAGICS = (0, 1, MAGIC_RECORD_BATCH)
_LENGTH_BITS = 32
_OFFSET_BYTES = 8
_MESSAGE_ATTRIBUTES = field_position(MESSAGE_V0_HEADER, "attributes")
_MIN_MESSAGE_BYTES = LOG_OVERHEAD_BYTES + MIN_LENGTH
_BATCH_BITS = (
    COMPRESSION_MASK | TIMESTAMP_TYPE_MASK | TRANSACTIONAL_MASK | CONTROL_MASK | DELETE_HORIZON_MASK
)


class HeldBytes:
    """A log in memory, or its end from the position `start_bytes` on."""

    path: str | None = None

    def __init__(self, held: Bytes, start_bytes: int = 0) -> None:
        self._held = held
        self._start = start_bytes
        self.size_bytes = start_bytes + len(held)

    def read_at(self, position_bytes: int, size_bytes: int) -> Bytes:
        at = position_bytes - self._start
        return self._held[at : at + size_bytes]

    def stream(self, start_bytes: int = 0) -> Iterator[Bytes]:
        yield self._held[start_bytes - self._start :]


class StreamedBytes:
    """A streamed log, up to the position of the scan; later bytes are not requested again."""

    def __init__(self, log: ByteSource, walk: StreamWalk) -> None:
        self.path: str | None = log.path
        self.size_bytes = log.size_bytes
        self.read_at = log.read_at
        self.stream = walk.rest


#: A log that is read by position; error messages quote its bytes only if it has a path.
LogBytes: TypeAlias = ByteSource | HeldBytes | StreamedBytes


class OffsetBounds(NamedTuple):
    """The offsets that a batch may have; the end is exclusive."""

    first_offset: int
    end_offset: int


def entry_length(entry: Bytes) -> int:
    """Return the length field at the start of these bytes."""
    length = entry[_OFFSET_BYTES:LOG_OVERHEAD_BYTES].tobytes()
    return int.from_bytes(length, "big", signed=True)


def next_batch(
    log: LogBytes,
    after_bytes: int,
    bounds: OffsetBounds,
    magics: tuple[int, ...] = (MAGIC_RECORD_BATCH,),
) -> int:
    """Return the position of the next valid batch after a corrupt one; the log's size if none.

    Searches first where the length fields of corrupt batches point, then byte by byte.
    """
    at: int | None = after_bytes
    while at is not None:
        at = _stated_end(log, at)
        if at is not None and (at == log.size_bytes or _is_sound(log, at, bounds, magics)):
            return at
    found = _found(log, after_bytes + 1, bounds, magics)
    return log.size_bytes if found is None else found


def is_batch(log: LogBytes, position_bytes: int, bounds: OffsetBounds) -> bool:
    """Return whether a batch or message with a matching checksum is at a position."""
    return _is_sound(log, position_bytes, bounds, ALL_MAGICS)


def is_torn_tail(log: LogBytes, position_bytes: int, bounds: OffsetBounds) -> bool:
    """Return whether a log ends with an incompletely written batch.

    The batch starts at the position, and is shorter than its length field, or than a header. It is
    a corruption instead if its header cannot be that of the next batch, if the batch is complete
    with another length, or if a valid batch follows.
    """
    start = log.read_at(position_bytes, RECORD_BATCH_OVERHEAD_BYTES)
    return (
        _may_begin_batch(start, position_bytes, bounds)
        and not _is_whole(log, position_bytes, start)
        and _found(log, position_bytes + 1, bounds, ALL_MAGICS) is None
    )


def plausible_headers(headers: Any, bounds: OffsetBounds) -> Any:
    """Return which headers (`RECORD_BATCH_HEADER`) may start a v2 batch."""
    base = headers["base_offset"].astype(np.int64)
    delta = headers["last_offset_delta"].astype(np.int64)
    count = headers["record_count"].astype(np.int64)
    return (
        (headers["magic"] == MAGIC_RECORD_BATCH)
        & (headers["length"] >= RECORD_BATCH_OVERHEAD_BYTES - LOG_OVERHEAD_BYTES)
        & (base >= bounds.first_offset)
        & (delta >= 0)
        & (base < bounds.end_offset - np.maximum(delta, 0))
        & (count >= 0)
        & (count <= delta + 1)
    )


def _stated_end(log: LogBytes, position: int) -> int | None:
    """Return the end of a batch according to its length field, if that is within the log."""
    start = log.read_at(position, LOG_OVERHEAD_BYTES)
    if len(start) < LOG_OVERHEAD_BYTES:
        return None
    length = entry_length(start)
    at = position + LOG_OVERHEAD_BYTES + length
    return at if length >= MIN_LENGTH and at <= log.size_bytes else None


def _found(log: LogBytes, start: int, bounds: OffsetBounds, magics: tuple[int, ...]) -> int | None:
    """Return the first position at or after `start` of a valid batch with one of the magics."""
    # For messages, only the v0 header is checked here.
    stop = log.size_bytes - _MIN_MESSAGE_BYTES + 1
    for first in range(start, stop, _SEARCH_BYTES):
        last = min(first + _SEARCH_BYTES, stop)
        window = log.read_at(first, last - first + RECORD_BATCH_OVERHEAD_BYTES)
        places = [
            _candidates(window, last - first, log.size_bytes - first, bounds, magic)
            for magic in magics
        ]
        for at in merge(*places):
            if _has_right_checksum(log, first + at):
                return first + at
    return None


def _candidates(
    window: Bytes, count: int, left: int, bounds: OffsetBounds, magic: int
) -> Iterator[int]:
    """Yield the positions among the first `count` of a window at which a batch may start."""
    found = np.flatnonzero(window[MAGIC_POSITION : MAGIC_POSITION + count] == magic)
    # The first bytes of an offset hardly vary, which excludes most candidates.
    for byte, (low, high) in enumerate(
        zip(*(value.to_bytes(_OFFSET_BYTES, "big") for value in _ends(bounds)), strict=True)
    ):
        found = found[(window[found + byte] >= low) & (window[found + byte] <= high)]
        if low != high:
            break
    size = _MIN_MESSAGE_BYTES if magic < MAGIC_RECORD_BATCH else RECORD_BATCH_OVERHEAD_BYTES
    found = found[found + size <= len(window)]
    starts = window[found[:, None] + np.arange(size)]
    if magic < MAGIC_RECORD_BATCH:
        found = found[_plausible_messages(starts, found, left, bounds)]
    else:
        headers = starts.view(RECORD_BATCH_HEADER)[:, 0]
        fits = found + LOG_OVERHEAD_BYTES + headers["length"] <= left
        found = found[plausible_headers(headers, bounds) & fits]
    yield from found.tolist()


def _plausible_messages(starts: Bytes, found: Longs, left: int, bounds: OffsetBounds) -> Any:
    offsets = np.ascontiguousarray(starts[:, :_OFFSET_BYTES]).view(">i8")[:, 0]
    lengths = np.ascontiguousarray(starts[:, _OFFSET_BYTES:LOG_OVERHEAD_BYTES]).view(">i4")[:, 0]
    attributes = starts[:, _MESSAGE_ATTRIBUTES]
    return (
        (offsets >= bounds.first_offset)
        & (offsets < bounds.end_offset)
        & (lengths >= MIN_LENGTH)
        & (found + LOG_OVERHEAD_BYTES + lengths <= left)
        & (attributes <= COMPRESSION_MASK | TIMESTAMP_TYPE_MASK)
    )


def _ends(bounds: OffsetBounds) -> tuple[int, int]:
    first = max(bounds.first_offset, 0)
    return first, max(bounds.end_offset - 1, first)


def _is_sound(log: LogBytes, position: int, bounds: OffsetBounds, magics: tuple[int, ...]) -> bool:
    window = log.read_at(position, RECORD_BATCH_OVERHEAD_BYTES)
    if len(window) < _MIN_MESSAGE_BYTES:
        return False
    left = log.size_bytes - position
    return any(
        at == 0 and _has_right_checksum(log, position)
        for magic in magics
        for at in _candidates(window, 1, left, bounds, magic)
    )


def _has_right_checksum(log: LogBytes, position: int) -> bool:
    size = LOG_OVERHEAD_BYTES + entry_length(log.read_at(position, LOG_OVERHEAD_BYTES))
    stored, computed = batch_checksums(log.read_at(position, size), 0, size)
    return bool(stored == computed)


def _may_begin_batch(start: Bytes, position: int, bounds: OffsetBounds) -> bool:
    """Return whether the first bytes of a header, possibly incomplete, may start a batch."""
    low, high = (value.to_bytes(_OFFSET_BYTES, "big") for value in _ends(bounds))
    offset = start[:_OFFSET_BYTES].tobytes()
    if not low[: len(offset)] <= offset <= high[: len(offset)]:
        return False
    if len(start) < LOG_OVERHEAD_BYTES:
        return True
    length = entry_length(start)
    # A broker's log is never larger.
    if not MIN_LENGTH <= length <= INT32_MAX - LOG_OVERHEAD_BYTES - position:
        return False
    if len(start) <= MAGIC_POSITION:
        return True
    magic = int(start[MAGIC_POSITION])
    if magic < MAGIC_RECORD_BATCH:
        codec_and_type = COMPRESSION_MASK | TIMESTAMP_TYPE_MASK
        return len(start) <= _MESSAGE_ATTRIBUTES or start[_MESSAGE_ATTRIBUTES] <= codec_and_type
    return magic == MAGIC_RECORD_BATCH and _may_be_header(start, bounds)


def _may_be_header(start: Bytes, bounds: OffsetBounds) -> bool:
    """Return whether these may be the first bytes of a v2 header."""
    # Absent fields get a value that passes the checks.
    header = np.zeros(1, RECORD_BATCH_HEADER)
    header.view(np.uint8)[: len(start)] = start
    there = {
        name: field_position(RECORD_BATCH_HEADER, name) + header.dtype[name].itemsize <= len(start)
        for name in ("attributes", "last_offset_delta", "record_count")
    }
    for name, is_there in there.items():
        if not is_there:
            header[name] = 0
    attributes = int(header["attributes"][0])
    if attributes & ~_BATCH_BITS or attributes & COMPRESSION_MASK >= len(COMPRESSION_NAMES):
        return False
    return bool(plausible_headers(header, bounds)[0])


def _is_whole(log: LogBytes, position: int, start: Bytes) -> bool:
    """Return whether a batch is complete with another length that differs in one bit."""
    if len(start) < _MIN_MESSAGE_BYTES:
        return False
    left = log.size_bytes - position
    length = entry_length(start)
    is_message = int(start[MAGIC_POSITION]) < MAGIC_RECORD_BATCH
    least = _MIN_MESSAGE_BYTES if is_message else RECORD_BATCH_OVERHEAD_BYTES
    sizes = {left, *(LOG_OVERHEAD_BYTES + (length ^ 1 << bit) for bit in range(_LENGTH_BITS))}
    for size in sorted(one for one in sizes if least <= one <= left):
        stored, computed = batch_checksums(log.read_at(position, size), 0, size)
        if stored == computed:
            return True
    return False
