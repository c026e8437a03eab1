"""Scan batches into columns, explain why a scan stopped, and check the order of batches.

Each batch must start after the end of the previous batch. Missing offsets are valid, since
compaction removes records, but decreasing offsets are corruption. A batch out of order is corrupt.
Later batches are corrupt too, until a batch starts after the last batch in order.

Source of the stopping rules: Kafka's ``FileLogInputStream.nextBatch`` and ``LogSegment.recover``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from heapq import merge
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from kafka_index.core.format.integers import INT32_MAX
from kafka_index.core.format.longs import Longs
from kafka_index.core.format.names import COMPRESSION_NAMES
from kafka_index.core.format.records import (
    COMPRESSION_MASK,
    CONTROL_MASK,
    DELETE_HORIZON_MASK,
    HEADER_SIZE_UP_TO_MAGIC,
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
    offset_range,
)
from kafka_index.core.format.strings import quote_content
from kafka_index.core.fs.reading import StreamWalk
from kafka_index.core.fs.store import Bytes, ByteSource
from kafka_index.core.kernels.batch_header import batch_checksums
from kafka_index.core.kernels.memory import Integer
from kafka_index.core.kernels.scan import (
    CHUNK_BATCHES,
    SCAN_BAD_CRC,
    SCAN_BAD_LENGTH,
    SCAN_BAD_SIZE,
    SCAN_COLUMNS,
    SCAN_OFFSET_OVERFLOW,
    SCAN_ROWS_FULL,
    SCAN_TORN_BATCH,
    SCAN_TORN_HEADER,
    are_contiguous,
    scan_batches,
)
from kafka_index.core.records import batch_table as source
from kafka_index.core.records.batch_table import OVERLAP, UNKNOWN_MAGIC, BatchColumns, ScanStop

_SEARCH_BYTES = 1 << 20
#: Magic of v0 and v1 messages, and of v2 batches.
ALL_MAGICS = (0, 1, MAGIC_RECORD_BATCH)
_LENGTH_BITS = 32
_OFFSET_BYTES = 8
_MESSAGE_ATTRIBUTES = field_position(MESSAGE_V0_HEADER, "attributes")
_MIN_MESSAGE_BYTES = LOG_OVERHEAD_BYTES + MIN_LENGTH
_BATCH_BITS = (
    COMPRESSION_MASK | TIMESTAMP_TYPE_MASK | TRANSACTIONAL_MASK | CONTROL_MASK | DELETE_HORIZON_MASK
)


class InMemoryLog:
    """A log in memory. `data` starts at the position `start_bytes` of the log."""

    path: str | None = None

    def __init__(self, data: Bytes, start_bytes: int = 0) -> None:
        self._data = data
        self._start = start_bytes
        self.size_bytes = start_bytes + len(data)

    def read_at(self, position_bytes: int, size_bytes: int) -> Bytes:
        start = position_bytes - self._start
        return self._data[start : start + size_bytes]

    def stream(self, start_bytes: int = 0) -> Iterator[Bytes]:
        yield self._data[start_bytes - self._start :]


#: A log that can be read by position. Error messages quote its bytes only if it has a path.
LogBytes: TypeAlias = ByteSource | InMemoryLog | StreamWalk


class OffsetBounds(NamedTuple):
    """The range of offsets that a valid batch may have; the end is exclusive."""

    first_offset: int
    end_offset: int


def entry_length(entry: Bytes) -> int:
    """Return the length field of a batch or message that starts with `entry`."""
    length = entry[_OFFSET_BYTES:LOG_OVERHEAD_BYTES].tobytes()
    return int.from_bytes(length, "big", signed=True)


def next_batch(
    log: LogBytes,
    after_bytes: int,
    bounds: OffsetBounds,
    magics: tuple[int, ...] = (MAGIC_RECORD_BATCH,),
) -> int:
    """Return the position of the next valid batch after a corrupt batch, or the size of the log.

    First tries the ends of corrupt batches according to their length fields, and then each byte.
    """
    end: int | None = after_bytes
    while end is not None:
        end = _end_by_length(log, end)
        if end is not None and (end == log.size_bytes or _is_valid(log, end, bounds, magics)):
            return end
    position = _find_valid(log, after_bytes + 1, bounds, magics)
    return log.size_bytes if position is None else position


def is_batch(log: LogBytes, position_bytes: int, bounds: OffsetBounds) -> bool:
    """Return whether a batch or message with a correct checksum starts at a position."""
    return _is_valid(log, position_bytes, bounds, ALL_MAGICS)


def is_torn_tail(log: LogBytes, position_bytes: int, bounds: OffsetBounds) -> bool:
    """Return whether the log ends with an incompletely written batch, which starts at a position.

    The caller has found fewer bytes than the length field or a header requires. The log is not torn
    but corrupt if its header cannot belong to the next batch, if the batch is complete with another
    length, or if a valid batch follows.
    """
    start = log.read_at(position_bytes, RECORD_BATCH_OVERHEAD_BYTES)
    return (
        _may_begin_batch(start, position_bytes, bounds)
        and not _is_complete(log, position_bytes, start)
        and _find_valid(log, position_bytes + 1, bounds, ALL_MAGICS) is None
    )


def are_plausible_headers(headers: Any, bounds: OffsetBounds) -> Any:
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


def _end_by_length(log: LogBytes, position: int) -> int | None:
    """Return the end of a batch according to its length field, None if the length is invalid."""
    start = log.read_at(position, LOG_OVERHEAD_BYTES)
    if len(start) < LOG_OVERHEAD_BYTES:
        return None
    length = entry_length(start)
    end = position + LOG_OVERHEAD_BYTES + length
    return end if length >= MIN_LENGTH and end <= log.size_bytes else None


def _find_valid(
    log: LogBytes, start: int, bounds: OffsetBounds, magics: tuple[int, ...]
) -> int | None:
    """Return the position of the first valid batch at or after `start` with one of the magics."""
    # A v0 message has the shortest header.
    stop = log.size_bytes - _MIN_MESSAGE_BYTES + 1
    for first in range(start, stop, _SEARCH_BYTES):
        last = min(first + _SEARCH_BYTES, stop)
        window = log.read_at(first, last - first + RECORD_BATCH_OVERHEAD_BYTES)
        candidates = [
            _candidates(window, last - first, log.size_bytes - first, bounds, magic)
            for magic in magics
        ]
        for candidate in merge(*candidates):
            if _has_right_checksum(log, first + candidate):
                return first + candidate
    return None


def _candidates(
    window: Bytes, count: int, bytes_left: int, bounds: OffsetBounds, magic: int
) -> Iterator[int]:
    """Yield the positions in a window, below `count`, at which a batch may start."""
    positions = np.flatnonzero(window[MAGIC_POSITION : MAGIC_POSITION + count] == magic)
    # Compare the high bytes of the offset first: they are the same in all batches, which excludes
    # most positions.
    for byte, (low, high) in enumerate(
        zip(
            *(value.to_bytes(_OFFSET_BYTES, "big") for value in _first_and_last(bounds)),
            strict=True,
        )
    ):
        positions = positions[
            (window[positions + byte] >= low) & (window[positions + byte] <= high)
        ]
        if low != high:
            break
    size = _MIN_MESSAGE_BYTES if magic < MAGIC_RECORD_BATCH else RECORD_BATCH_OVERHEAD_BYTES
    positions = positions[positions + size <= len(window)]
    starts = window[positions[:, None] + np.arange(size)]
    if magic < MAGIC_RECORD_BATCH:
        positions = positions[_are_plausible_messages(starts, positions, bytes_left, bounds)]
    else:
        headers = starts.view(RECORD_BATCH_HEADER)[:, 0]
        fits = positions + LOG_OVERHEAD_BYTES + headers["length"] <= bytes_left
        positions = positions[are_plausible_headers(headers, bounds) & fits]
    yield from positions.tolist()


def _are_plausible_messages(
    starts: Bytes, positions: Longs, bytes_left: int, bounds: OffsetBounds
) -> Any:
    offsets = np.ascontiguousarray(starts[:, :_OFFSET_BYTES]).view(">i8")[:, 0]
    lengths = np.ascontiguousarray(starts[:, _OFFSET_BYTES:LOG_OVERHEAD_BYTES]).view(">i4")[:, 0]
    attributes = starts[:, _MESSAGE_ATTRIBUTES]
    return (
        (offsets >= bounds.first_offset)
        & (offsets < bounds.end_offset)
        & (lengths >= MIN_LENGTH)
        & (positions + LOG_OVERHEAD_BYTES + lengths <= bytes_left)
        & (attributes <= COMPRESSION_MASK | TIMESTAMP_TYPE_MASK)
    )


def _first_and_last(bounds: OffsetBounds) -> tuple[int, int]:
    first = max(bounds.first_offset, 0)
    return first, max(bounds.end_offset - 1, first)


def _is_valid(log: LogBytes, position: int, bounds: OffsetBounds, magics: tuple[int, ...]) -> bool:
    window = log.read_at(position, RECORD_BATCH_OVERHEAD_BYTES)
    if len(window) < _MIN_MESSAGE_BYTES:
        return False
    bytes_left = log.size_bytes - position
    return any(
        candidate == 0 and _has_right_checksum(log, position)
        for magic in magics
        for candidate in _candidates(window, 1, bytes_left, bounds, magic)
    )


def _has_right_checksum(log: LogBytes, position: int) -> bool:
    size = LOG_OVERHEAD_BYTES + entry_length(log.read_at(position, LOG_OVERHEAD_BYTES))
    stored, computed = batch_checksums(log.read_at(position, size), 0, size)
    return bool(stored == computed)


def _may_begin_batch(start: Bytes, position: int, bounds: OffsetBounds) -> bool:
    """Return whether a batch may start with these bytes, which may be an incomplete header."""
    low, high = (value.to_bytes(_OFFSET_BYTES, "big") for value in _first_and_last(bounds))
    offset = start[:_OFFSET_BYTES].tobytes()
    if not low[: len(offset)] <= offset <= high[: len(offset)]:
        return False
    if len(start) < LOG_OVERHEAD_BYTES:
        return True
    length = entry_length(start)
    # A ``.log`` file of a broker never exceeds 2^31 - 1 bytes.
    if not MIN_LENGTH <= length <= INT32_MAX - LOG_OVERHEAD_BYTES - position:
        return False
    if len(start) <= MAGIC_POSITION:
        return True
    magic = int(start[MAGIC_POSITION])
    if magic < MAGIC_RECORD_BATCH:
        codec_and_type = COMPRESSION_MASK | TIMESTAMP_TYPE_MASK
        return len(start) <= _MESSAGE_ATTRIBUTES or start[_MESSAGE_ATTRIBUTES] <= codec_and_type
    return magic == MAGIC_RECORD_BATCH and _may_begin_header(start, bounds)


def _may_begin_header(start: Bytes, bounds: OffsetBounds) -> bool:
    """Return whether a v2 header may start with these bytes."""
    # Fields that are missing or incomplete get a value that passes the checks.
    header = np.zeros(1, RECORD_BATCH_HEADER)
    header.view(np.uint8)[: len(start)] = start
    is_present = {
        name: field_position(RECORD_BATCH_HEADER, name) + header.dtype[name].itemsize <= len(start)
        for name in ("attributes", "last_offset_delta", "record_count")
    }
    for name in (name for name, is_complete in is_present.items() if not is_complete):
        header[name] = 0
    attributes = int(header["attributes"][0])
    if attributes & ~_BATCH_BITS or attributes & COMPRESSION_MASK >= len(COMPRESSION_NAMES):
        return False
    return bool(are_plausible_headers(header, bounds)[0])


def _is_complete(log: LogBytes, position: int, start: Bytes) -> bool:
    """Return whether the batch is complete with another length.

    The other lengths are up to the end of the log, and the length field with one flipped bit.
    """
    if len(start) < _MIN_MESSAGE_BYTES:
        return False
    bytes_left = log.size_bytes - position
    length = entry_length(start)
    is_message = int(start[MAGIC_POSITION]) < MAGIC_RECORD_BATCH
    min_bytes = _MIN_MESSAGE_BYTES if is_message else RECORD_BATCH_OVERHEAD_BYTES
    sizes = {bytes_left, *(LOG_OVERHEAD_BYTES + (length ^ 1 << bit) for bit in range(_LENGTH_BITS))}
    for size in sorted(
        candidate_size for candidate_size in sizes if min_bytes <= candidate_size <= bytes_left
    ):
        stored, computed = batch_checksums(log.read_at(position, size), 0, size)
        if stored == computed:
            return True
    return False


_ZERO_CHECK_BYTES = 1 << 20
# Number of bytes that an error quotes from the start of a file that is not a log.
_QUOTED_BYTES = 16
_LAST_OFFSET = BatchColumns._fields.index("last_offset")

_SPLIT_MESSAGE = (
    "the offset is too far above the base offset for an index entry; recovery splits the segment"
)


class Scanner:
    """Scans the batches of a log into columns, chunk by chunk.

    `position` is the position of the next batch to scan, and `next_offset` the offset after the
    last drained batch.
    """

    def __init__(
        self, segment_base_offset: int, *, verify_crc: bool, position_bytes: int = 0
    ) -> None:
        self._segment_base_offset = segment_base_offset
        # The kernel accepts last offsets up to 2^31 - 1 above this offset.
        self._limit_base_offset = segment_base_offset
        self._verify_crc = verify_crc
        self._columns = np.empty((SCAN_COLUMNS, CHUNK_BATCHES), np.int64)
        self._count = 0
        self.position: Integer = position_bytes
        self.next_offset = segment_base_offset

    def scan(
        self, window: Bytes, window_position: int, log_size: int, log: LogBytes | None = None
    ) -> int:
        """Scan from `position` on; append batches to the chunk; return the kernel's ``SCAN_`` code.

        With `log`, batches with offsets too far above the base offset for an index entry are also
        accepted (KAFKA-6264). Consumers can read them, but recovery fails.
        """
        code, self.position, self._count = scan_batches(
            window,
            window_position,
            log_size,
            self.position,
            self._limit_base_offset,
            self._verify_crc,
            self._columns,
            self._count,
        )
        if code == SCAN_OFFSET_OVERFLOW and log is not None and self._extend_limit(log):
            return SCAN_ROWS_FULL
        return code

    def _extend_limit(self, log: LogBytes) -> bool:
        """Raise the offset limit to the batch at `position`, if plausible; return whether it is.

        The last offset must be above the last offset of the previous batch, and below that of the
        next batch.
        """
        position = int(self.position)
        header = log.read_at(position, RECORD_BATCH_OVERHEAD_BYTES)
        last_offset = read_last_offset(header)
        previous_last_offset = (
            int(self._columns[_LAST_OFFSET, self._count - 1]) if self._count else None
        )
        if last_offset < (
            self.next_offset if previous_last_offset is None else previous_last_offset + 1
        ):
            return False
        size = LOG_OVERHEAD_BYTES + entry_length(header)
        next_header = log.read_at(position + size, RECORD_BATCH_OVERHEAD_BYTES)
        is_batch = (
            len(next_header) > HEADER_SIZE_UP_TO_MAGIC and entry_length(next_header) >= MIN_LENGTH
        )
        if is_batch and read_last_offset(next_header) <= last_offset:
            # The base offset may have a flipped bit, since the checksum does not cover it.
            return False
        self._limit_base_offset = last_offset
        return True

    def drain(self) -> Iterator[BatchColumns]:
        """Yield the chunk if it is not empty, and start a new chunk."""
        if self._count:
            self.next_offset = int(self._columns[_LAST_OFFSET, self._count - 1]) + 1
            yield BatchColumns(*self._columns[:, : self._count])
            self._count = 0

    def stop(self, code: int, log: LogBytes, end_bytes: int | None = None) -> ScanStop:
        """Return why the scan stopped at `position`, given the kernel's code.

        `end_bytes` is the end of the scanned range, by default the end of the log.
        """
        stop = self._stop(code, log, log.size_bytes if end_bytes is None else end_bytes)
        if stop.position_bytes == 0 and stop.code != source.PREALLOCATED_TAIL:
            start = log.read_at(0, _QUOTED_BYTES + 1)
            if _is_foreign(start, self._segment_base_offset, log.size_bytes):
                quoted_start = _quote_start(start, log.path)
                return replace(stop, expected="a record batch", found=quoted_start, is_foreign=True)
        if stop.code in (source.TORN_HEADER, source.TORN_BATCH) and end_bytes in (
            None,
            log.size_bytes,
        ):
            bounds = OffsetBounds(self.next_offset, self._limit_base_offset + INT32_MAX + 1)
            return replace(stop, is_tail=is_torn_tail(log, stop.position_bytes, bounds))
        return stop

    def _stop(  # noqa: PLR0911, because every code of the kernel has its return statement
        self, code: int, log: LogBytes, log_size: int
    ) -> ScanStop:
        position = int(self.position)
        header = log.read_at(position, RECORD_BATCH_OVERHEAD_BYTES)
        bytes_left = log_size - position
        if code in (SCAN_TORN_HEADER, SCAN_BAD_LENGTH) and all(
            map(is_zero_filled, log.stream(position))
        ):
            return ScanStop(source.PREALLOCATED_TAIL, position, is_tail=True)
        if code == SCAN_TORN_HEADER:
            expected = f"more than {HEADER_SIZE_UP_TO_MAGIC} bytes"
            return ScanStop(source.TORN_HEADER, position, expected, str(bytes_left))
        length = entry_length(header)
        size = LOG_OVERHEAD_BYTES + length
        if code == SCAN_TORN_BATCH:
            return ScanStop(source.TORN_BATCH, position, f"{size} bytes", str(bytes_left))
        if code == SCAN_BAD_LENGTH:
            return ScanStop(source.BAD_LENGTH, position, f"{MIN_LENGTH} or more", str(length))
        if code == SCAN_BAD_SIZE:
            expected = f"{RECORD_BATCH_OVERHEAD_BYTES} bytes or more"
            return ScanStop(source.BAD_SIZE, position, expected, str(size))
        if code == SCAN_BAD_CRC:
            stored, computed = batch_checksums(log.read_at(position, size), 0, size)
            return ScanStop(source.BAD_CRC, position, f"0x{stored:08x}", f"0x{computed:08x}")
        if code != SCAN_OFFSET_OVERFLOW:
            raise ValueError(f"the scan kernel returned {code}")
        base, last_offset = self._limit_base_offset, read_last_offset(header)
        is_above = last_offset > base
        return ScanStop(
            source.OFFSET_OVERFLOW,
            position,
            f"a last offset in {offset_range(base)}",
            str(last_offset),
            refused=True,
            message=_SPLIT_MESSAGE if is_above else None,
        )


def _quote_start(start: Bytes, path: str | None) -> str:
    if path is None:
        return "other bytes"
    return quote_content(start[:_QUOTED_BYTES].tobytes(), path).removeprefix("b")


def _is_foreign(start: Bytes, segment_base_offset: int, log_size: int) -> bool:
    """Return whether the first header of a file shows that it is no ``.log`` file of its segment.

    If only one field is impossible, it may be corrupt. In a foreign file, the offset is impossible,
    and also the length or magic, if the file is long enough to have these fields.
    """
    offset_bytes = min(log_size, 8)
    low = int.from_bytes(start[:offset_bytes].tobytes().ljust(8, b"\0"), "big")
    high = low | ((1 << 8 * (8 - offset_bytes)) - 1)
    if low <= segment_base_offset + INT32_MAX and high >= segment_base_offset:
        return False
    if log_size <= MAGIC_POSITION:
        return True
    length = entry_length(start)
    is_possible = MIN_LENGTH <= length <= log_size - LOG_OVERHEAD_BYTES
    return not is_possible or int(start[MAGIC_POSITION]) > MAGIC_RECORD_BATCH


def read_last_offset(header: Bytes) -> int:
    base_offset = int.from_bytes(header[:8].tobytes(), "big", signed=True)
    magic = int.from_bytes(header[16:17].tobytes(), "big", signed=True)
    if magic < 2:
        return base_offset
    return base_offset + int.from_bytes(header[23:27].tobytes(), "big", signed=True)


def is_zero_filled(data: Bytes) -> bool:
    """Return whether all bytes are zero."""
    return not any(
        data[start : start + _ZERO_CHECK_BYTES].any()
        for start in range(0, len(data), _ZERO_CHECK_BYTES)
    )


class BatchOrder:
    """Checks whether the batches of a log are in order, chunk by chunk.

    A batch must not start below `next_offset`, the offset after the last batch in order. For a
    compressed v0 or v1 message, the last offset is checked instead, because its header does not
    contain the first offset. No batch may reach `end_offset`, the base offset of the next segment.
    """

    def __init__(self, next_offset: int, end_offset: int | None = None) -> None:
        self.next_offset = next_offset
        self._end_offset = end_offset
        self._is_broken = False

    def follow(self, batches: BatchColumns) -> Iterator[BatchColumns | ScanStop]:
        """Yield each range of batches in order, and a `ScanStop` for each range out of order.

        `next_offset` is updated after a range has been yielded.
        """
        is_in_order = in_order(batches, self.next_offset, self._end_offset)
        if is_in_order is None:
            yield batches
            self._follow(batches)
            return
        edges = [
            0,
            *(np.flatnonzero(is_in_order[1:] != is_in_order[:-1]) + 1).tolist(),
            batches.rows,
        ]
        for start, end in pairwise(edges):
            if is_in_order[start]:
                group = batches.slice(start, end)
                yield group
                self._follow(group)
            elif not self._is_broken:
                self._is_broken = True
                yield self._stop(batches, start)

    def continues_with(self, batches: BatchColumns) -> bool:
        """Follow a chunk without missing offsets or marks of the log cleaner; return True.

        Returns False for any other chunk, and does not follow it.
        """
        ends_below = self._end_offset is None or int(batches.last_offset[-1]) < self._end_offset
        if not ends_below or not are_contiguous(
            batches.base_offset,
            batches.last_offset,
            batches.attributes,
            batches.control_type,
            self.next_offset,
        ):
            return False
        self._follow(batches)
        return True

    def first_stop(self, batches: BatchColumns) -> ScanStop | None:
        """Follow a chunk; return the start of its first range out of order, None without one."""
        stops = [stop for stop in self.follow(batches) if isinstance(stop, ScanStop)]
        return stops[0] if stops else None

    def _follow(self, batches: BatchColumns) -> None:
        self.next_offset = int(batches.last_offset[-1]) + 1
        self._is_broken = False

    def _stop(self, batches: BatchColumns, row: int) -> ScanStop:
        base, last = int(batches.base_offset[row]), int(batches.last_offset[row])
        position = int(batches.position_bytes[row])
        if base < self.next_offset:
            return ScanStop(
                OVERLAP, position, f"offset {self.next_offset} or more", f"offset {base}"
            )
        if last < base:
            return ScanStop(OVERLAP, position, f"a last offset of {base} or more", f"offset {last}")
        return ScanStop(OVERLAP, position, f"offsets below {self._end_offset}", f"offset {last}")


def unknown_magic(batches: BatchColumns) -> ScanStop | None:
    """Return a stop at the first batch whose magic is not 0 to 2, None if all magics are valid."""
    rows = np.flatnonzero(batches.has_unknown_magic)
    if not len(rows):
        return None
    row = rows[0]
    position, magic = int(batches.position_bytes[row]), int(batches.magic[row])
    return ScanStop(UNKNOWN_MAGIC, position, "magic 0 to 2", f"magic {magic}")


def in_order(
    batches: BatchColumns, next_offset: int, end_offset: int | None
) -> NDArray[np.bool_] | None:
    """Return which batches are in order between two offsets; None if all are."""
    base, last = batches.base_offset, batches.last_offset
    if (
        base[0] >= next_offset
        and (base[1:] > last[:-1]).all()
        and (last >= base).all()
        and (end_offset is None or last[-1] < end_offset)
    ):
        return None
    is_in_order = np.zeros(batches.rows, np.bool_)
    for row, (base_offset, last_offset) in enumerate(
        zip(base.tolist(), last.tolist(), strict=True)
    ):
        if next_offset <= base_offset <= last_offset and (
            end_offset is None or last_offset < end_offset
        ):
            is_in_order[row] = True
            next_offset = last_offset + 1
    return is_in_order
