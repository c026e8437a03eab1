"""Pieces: what a log holds as runs of whole batches, read from an open file and put by threads.

A piece does not reach over the end of a segment. A log that is only appended to has pieces as large
as they may be. A log that is cleaned is another one after each pass, but most batches are kept as
they were: its pieces end after batches that their own checksums choose, so that equal batches make
equal pieces, wherever they are now.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple, Self

import numpy as np

from kafka_index.commands.backup.captured_log import CapturedLog, SkippedError, reading
from kafka_index.commands.backup.low_impact_io import Bandwidth, LowImpactReader
from kafka_index.core.format.integers import Longs
from kafka_index.core.format.records import LOG_OVERHEAD_BYTES, RECORD_BATCH_OVERHEAD_BYTES
from kafka_index.core.fs.backup.manifest import MAX_PIECE_BYTES, Piece, content_of, hash_of
from kafka_index.core.fs.backup.repository import Repository
from kafka_index.core.fs.store import Bytes
from kafka_index.core.kernels.headers import CONTROL_MESSAGE
from kafka_index.core.kernels.memory import Integer
from kafka_index.core.kernels.scan import (
    CHUNK_BATCHES,
    SCAN_BAD_LENGTH,
    SCAN_COLUMNS,
    SCAN_END,
    SCAN_NEED_BYTES,
    SCAN_OFFSET_OVERFLOW,
    SCAN_ROWS_FULL,
    SCAN_TORN_BATCH,
    SCAN_TORN_HEADER,
    BatchColumns,
    scan_batches,
)
from kafka_index.core.log.scan.batch_search import entry_length
from kafka_index.core.log.scan.scanner import in_order, last_offset_of, only_zeros

#: The least of a piece of a cleaned log, and how much more it has on average.
MIN_CHOSEN_BYTES = 64 << 10
_CHOSEN_BYTES = 192 << 10
_CRC_AT = 17
# The end of the header fields from which the last offset of a batch is computed.
_OFFSET_DELTA_END = 27
_CRC_VALUES = 1 << 32
# Pieces that are read and not put yet.
_MOST_IN_FLIGHT_BYTES = 3 * MAX_PIECE_BYTES
# Small pieces become one when there are so many, and it is so many times as large as each.
_MANY_PIECES, _GROWTH = 16, 8


class Run(NamedTuple):
    """Whole batches that become a piece."""

    data: Bytes
    base_offset: int
    last_offset: int
    last_header: bytes


class LogReading:
    """The batches of a log from a position on, below a high watermark, in order and sound.

    Afterwards `position` and `next_offset` are where they end, and `is_below` says that it was the
    high watermark that ended them. `settled_offset` comes after the batches that were there before
    anything was cut, 0 without one; `has_gap` says that offsets are missing between batches.
    """

    def __init__(
        self,
        log: CapturedLog,
        position_bytes: int,
        next_offset: int,
        high_watermark: int | None,
        end_offset: int | None,
        bandwidth: Bandwidth,
    ) -> None:
        self._log = log
        self._high_watermark = high_watermark
        self._end_offset = end_offset
        self._bandwidth = bandwidth
        self._size_bytes = log.end_bytes
        self._columns = np.empty((SCAN_COLUMNS, CHUNK_BATCHES), np.int64)
        self.position = position_bytes
        self.next_offset = next_offset
        self.settled_offset = self.read_bytes = 0
        self.is_below = self.has_gap = self._is_over = False
        # The kernel's base: offsets from it up to 2^31 - 1 above it pass.
        self._limit_base_offset = log.base_offset
        self._is_at_limit = False

    def runs(self, *, is_cleaned: bool) -> Iterator[Run]:
        """Yield the batches; raises `SkippedError` if they are damaged, or cannot be read."""
        log = self._log
        if self.position >= self._size_bytes:
            return
        with reading(log, self._size_bytes, self._bandwidth) as file:
            while self.position < self._size_bytes and not self._is_over:
                found = self._read(file)
                if not found.rows:
                    break
                yield from self._split(found, is_cleaned=is_cleaned)

    def _split(self, found: _Batches, *, is_cleaned: bool) -> Iterator[Run]:
        is_last = self._is_over or self._is_at_limit
        is_last |= self.position + found.end_bytes >= self._size_bytes
        start = 0
        for end in _chosen_ends(found, is_last=is_last) if is_cleaned else [found.rows]:
            first, last = int(found.starts[start]), int(found.ends[end - 1])
            header = int(found.starts[end - 1])
            base, last_offset = found.base_of(start), int(found.lasts[end - 1])
            yield Run(
                found.buffer[first:last],
                self.next_offset if base is None else base,
                last_offset,
                found.buffer[header : min(header + RECORD_BATCH_OVERHEAD_BYTES, last)].tobytes(),
            )
            self.next_offset = last_offset + 1
            start = end
        self.position += found.first(start).end_bytes

    def _read(self, file: LowImpactReader) -> _Batches:
        """Return the batches from the position on, as many as a piece may have."""
        wanted = min(MAX_PIECE_BYTES, self._size_bytes - self.position)
        while True:
            buffer = np.empty(wanted, np.uint8)
            filled = file.read_into(self.position, buffer.data)
            self.read_bytes += filled
            if filled < wanted:
                # A preallocated file has been cut where it ends.
                self._size_bytes = self.position + filled
            found, code = self._scan(buffer[:filled])
            if found.rows or code != SCAN_NEED_BYTES:
                break
            wanted = LOG_OVERHEAD_BYTES + entry_length(buffer)
        if code not in (SCAN_END, SCAN_NEED_BYTES):
            self._stop(code, found, buffer[:filled])
        return self._below_high_watermark(found)

    def _scan(self, buffer: Bytes) -> tuple[_Batches, int]:
        found = [np.empty((len(_Batches._fields) - 1, 0), np.int64)]
        position: Integer = self.position
        next_offset = self.next_offset
        self._is_at_limit = False
        while True:
            code, position, count = scan_batches(
                buffer,
                self.position,
                self._size_bytes,
                position,
                self._limit_base_offset,
                True,  # noqa: FBT003, because kernels take arguments by position
                self._columns,
                0,
            )
            if count:
                batches = BatchColumns(*self._columns[:, :count])
                if in_order(batches, next_offset, self._end_offset) is not None:
                    raise SkippedError(
                        f"{self._log.path}: its offsets overlap with each other, or with the next "
                        "log"
                    )
                found.append(self._noted(batches, next_offset))
                next_offset = int(batches.last_offset[-1]) + 1
            if code == SCAN_OFFSET_OVERFLOW:
                far = self._far_offset(buffer[int(position) - self.position :], next_offset)
                if far is not None and position == self.position:
                    self._limit_base_offset = far
                    continue
                if far is not None:
                    # A piece whose offsets span 2^31 or more could not be restored as one segment.
                    self._is_at_limit, code = True, SCAN_NEED_BYTES
            if code != SCAN_ROWS_FULL:
                return _Batches(buffer, *np.concatenate(found, axis=1)), int(code)

    def _far_offset(self, rest: Bytes, next_offset: int) -> int | None:
        """Return the offset of a batch that is in order, and only too far from its segment's.

        None for any other: no checksum covers the offset (KAFKA-6264).
        """
        if len(rest) < _OFFSET_DELTA_END:
            return None
        last_offset = last_offset_of(rest)
        is_in_order = last_offset >= next_offset
        is_in_order &= self._end_offset is None or last_offset < self._end_offset
        following = rest[LOG_OVERHEAD_BYTES + entry_length(rest) :]
        if len(following) >= _OFFSET_DELTA_END:
            is_in_order &= last_offset_of(following) > last_offset
        return int.from_bytes(rest[:8].tobytes(), "big", signed=True) if is_in_order else None

    def _noted(self, batches: BatchColumns, next_offset: int) -> Longs:
        """Return what is needed of batches; their columns are filled again."""
        is_old = batches.control_type == CONTROL_MESSAGE
        before = np.concatenate(([next_offset - 1], batches.last_offset[:-1]))
        self.has_gap |= bool(((batches.base_offset != before + 1) & ~is_old).any())
        starts = batches.position_bytes - self.position
        ends = starts + batches.size_bytes
        return np.stack([starts, ends, batches.base_offset, batches.last_offset, is_old])

    def _below_high_watermark(self, found: _Batches) -> _Batches:
        if self._high_watermark is not None:
            kept = int(np.searchsorted(found.lasts, self._high_watermark))
            if kept < found.rows:
                self._is_over = self.is_below = True
                found = found.first(kept)
        settled = self._log.settled_bytes - self.position
        count = int(np.searchsorted(found.ends, settled, side="right"))
        if count:
            self.settled_offset = int(found.lasts[count - 1]) + 1
        return found

    def _stop(self, code: int, found: _Batches, buffer: Bytes) -> None:
        """End the log where the broker was writing, or it was preallocated; else it is damaged."""
        at = found.end_bytes
        rest = buffer[at:]
        self._is_over = True
        is_last = self._end_offset is None
        if code in (SCAN_TORN_HEADER, SCAN_TORN_BATCH) and is_last:
            return
        if code in (SCAN_TORN_HEADER, SCAN_BAD_LENGTH) and only_zeros(rest):
            return
        if is_last and len(rest) >= RECORD_BATCH_OVERHEAD_BYTES:
            high_watermark = self._high_watermark
            base = int.from_bytes(rest[:8].tobytes(), "big", signed=True)
            if high_watermark is not None and base >= high_watermark:
                self.is_below = True
                return
        raise SkippedError(
            f"{self._log.path}: at byte {self.position + at}: no sound batch, and the log does not "
            "end there",
            is_fault=True,
        )


class _Batches(NamedTuple):
    """Batches in a buffer: their starts and ends there, and their first and last offsets.

    `is_old` is not 0 for messages of old formats, whose first offset is that of the last record.
    """

    buffer: Bytes
    starts: Longs
    ends: Longs
    bases: Longs
    lasts: Longs
    is_old: Longs

    @property
    def rows(self) -> int:
        """Number of batches."""
        return len(self.starts)

    @property
    def end_bytes(self) -> int:
        """Position after the last batch; 0 where there is none."""
        return int(self.ends[-1]) if self.rows else 0

    def base_of(self, row: int) -> int | None:
        """Return the first offset of a batch; None where it does not say so."""
        return None if self.is_old[row] else int(self.bases[row])

    def first(self, count: int) -> _Batches:
        """Return the first batches."""
        return _Batches(self.buffer, *(column[:count] for column in self[1:]))


def _chosen_ends(found: _Batches, *, is_last: bool) -> list[int]:
    """Return the numbers of batches after which pieces end, as their checksums choose.

    The larger a batch, the likelier it is chosen. Without `is_last` the batches after the last of
    them belong to a piece that begins there, unless nothing was chosen at all.
    """
    starts, ends = found.starts, found.ends
    crcs = np.zeros(len(starts), np.int64)
    for number in range(4):
        at = np.minimum(starts + _CRC_AT + number, len(found.buffer) - 1)
        crcs = crcs << 8 | found.buffer[at]
    chosen = crcs < (ends - starts) * (_CRC_VALUES // _CHOSEN_BYTES)
    result = []
    begin = 0
    for row in np.flatnonzero(chosen).tolist():
        if int(ends[row]) - begin >= MIN_CHOSEN_BYTES:
            result.append(row + 1)
            begin = int(ends[row])
    if (is_last or not result) and (not result or result[-1] < len(starts)):
        result.append(len(starts))
    return result


def small_pieces(pieces: Sequence[Piece], base_offset: int) -> int:
    """Return how many of the last pieces are worth being one piece; 0 for none.

    They are from a base offset on, as many as one piece may have, and far smaller than all of them
    together: so a byte is stored again a few times, and a log of many small appends has pieces by
    the dozen, not as many as there were runs.
    """
    found = total = largest = 0
    for count, piece in enumerate(reversed(pieces), 1):
        total += piece.size_bytes
        largest = max(largest, piece.size_bytes)
        if piece.base_offset < base_offset or total > MAX_PIECE_BYTES:
            break
        if count >= _MANY_PIECES and total >= _GROWTH * largest:
            found = count
    return found


def holds_piece(log: CapturedLog, position_bytes: int, piece: Piece, bandwidth: Bandwidth) -> bool:
    """Return whether a log has a piece at a position; raises `SkippedError` if it is unreadable."""
    return read_piece(log, position_bytes, piece, bandwidth) is not None


def read_piece(
    log: CapturedLog, position_bytes: int, piece: Piece, bandwidth: Bandwidth
) -> Bytes | None:
    """Return the bytes of a piece at a position of a log; None if the log has other bytes there.

    Raises `SkippedError` if the log is unreadable.
    """
    end = position_bytes + piece.size_bytes
    if end > log.size_bytes:
        return None
    data = np.empty(piece.size_bytes, np.uint8)
    with reading(log, end, bandwidth) as file:
        filled = file.read_into(position_bytes, data.data)
    return data if filled == piece.size_bytes and hash_of(data.data) == piece.sha256 else None


class Uploads:
    """Puts pieces and small files into a repository, by threads; a context manager.

    What is read and not put yet is bounded. A failure is raised by the futures.
    """

    def __init__(self, repository: Repository, threads: int) -> None:
        self._repository = repository
        self._executor = ThreadPoolExecutor(threads, "backup")
        self._free = threading.Condition()
        self._in_flight = 0
        self._failed: BaseException | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._executor.shutdown(cancel_futures=True)

    def put(self, folder: str, known: Collection[str], run: Run) -> Future[tuple[Piece, int]]:
        """Put a piece unless its object is known; the result has the bytes that were put.

        Raises the failure of an earlier one.
        """
        size = len(run.data)
        with self._free:
            self._free.wait_for(
                lambda: not self._in_flight or self._in_flight + size <= _MOST_IN_FLIGHT_BYTES
            )
            if self._failed is not None:
                raise self._failed
            self._in_flight += size
        future = self._executor.submit(self._put, folder, known, run)
        future.add_done_callback(lambda done: self._forget(size, done))
        return future

    def _put(self, folder: str, known: Collection[str], run: Run) -> tuple[Piece, int]:
        data = run.data.data
        piece = Piece(run.base_offset, run.last_offset, *content_of(data))
        if piece.object_name in known:
            return piece, 0
        put_object(self._repository, f"{folder}/{piece.object_name}", data)
        return piece, len(data)

    def _forget(self, size: int, done: Future[tuple[Piece, int]]) -> None:
        with self._free:
            self._in_flight -= size
            if not done.cancelled():
                self._failed = self._failed or done.exception()
            self._free.notify_all()


def put_object(repository: Repository, path: str, data: bytes | memoryview) -> None:
    """Put an object that is named by its content; one with other bytes is damaged, and replaced."""
    if not repository.put(path, data):
        repository.put_again(path, data)
