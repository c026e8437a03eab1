"""Read a ``.log`` file: open it, find batches by offset, and scan batches from a position.

Source: Kafka's ``FileRecords``. Lookups and log writers share these functions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from kafka_index.core.errors import CorruptLogError, InputError, ReadError
from kafka_index.core.format.integers import INT32_MAX, INT64_MAX
from kafka_index.core.format.longs import Longs
from kafka_index.core.format.records import LOG_OVERHEAD_BYTES, RECORD_BATCH_OVERHEAD_BYTES
from kafka_index.core.fs.local_store import MappedFile
from kafka_index.core.fs.registry import store_of
from kafka_index.core.fs.store import Bytes, ByteSource, FileInfo
from kafka_index.core.index.sparse_indexes import OffsetPosition
from kafka_index.core.kernels import batch_header, batch_seek
from kafka_index.core.kernels.scan import SCAN_END, SCAN_OFFSET_OVERFLOW, SCAN_ROWS_FULL
from kafka_index.core.log.scan.scanner import (
    BatchOrder,
    InMemoryLog,
    Scanner,
    entry_length,
    read_last_offset,
)
from kafka_index.core.logdir.partition_files import SegmentFile
from kafka_index.core.records.batch_table import BatchColumns, ScanStop

#: Represents the offset of a batch that does not exist.
NO_OFFSET = -1


class LogOffsetPosition(NamedTuple):
    """Base offset, position and size of a batch (Kafka: ``FileRecords.LogOffsetPosition``)."""

    offset: int
    position: int
    size: int


class TimestampAndOffset(NamedTuple):
    """Timestamp in ms and offset of a found record (Kafka: ``FileRecords.TimestampAndOffset``)."""

    timestamp: int
    offset: int
    leader_epoch: int | None


@dataclass(frozen=True, slots=True)
class LogEnd:
    """The end of a segment: the position and the offset after its last batch.

    Attributes
    ----------
    stop
        Why the batches end before the end of the file, None if they do not.
    disorder
        The first scanned batch that is out of order, None if all are in order. After such a batch,
        `next_offset` can have any value, but is still what a broker uses.
    """

    end_bytes: int
    next_offset: int
    stop: ScanStop | None
    disorder: ScanStop | None = None


def open_log(path: str, listed_segment: SegmentFile | None = None) -> ByteSource:
    """Open a ``.log`` file by path or URI; a local file is returned as a `MappedFile`.

    Raises `InputError` if the file cannot be opened or exceeds the maximum segment size, and
    `ReadError` if it has changed since it was listed. In an object store, a change is only detected
    when the object is read.
    """
    info = None
    if listed_segment is not None:
        info = FileInfo(
            path,
            listed_segment.log_size_bytes,
            listed_segment.log_mtime_ns,
            listed_segment.log_version,
        )
    file = store_of(path).open(path, info)
    try:
        if file.size_bytes > INT32_MAX:
            raise InputError(  # noqa: TRY301, because it closes the file
                "the log is larger than the maximum segment size",
                path=path,
                expected=INT32_MAX,
                found=file.size_bytes,
            )
        if info is not None:
            if info.size_bytes != file.size_bytes:
                raise log_changed(
                    path, f"its size was {info.size_bytes} bytes, and is {file.size_bytes} bytes"
                )
            if info.mtime_ns != file.mtime_ns:
                raise log_changed(path, "its modification time changed after the listing")
    except InputError:
        file.close()
        raise
    return file


def check_unchanged(file: ByteSource, version: str, *, may_grow: bool = False) -> None:
    """Raise `ReadError` if a ``.log`` file has changed or was truncated since it was opened.

    `version` is its version when it was listed, empty if unknown. With `may_grow`, bytes that were
    appended to a local file are no change.
    """
    if isinstance(file, MappedFile):
        change, is_faulted = file.changed(may_grow=may_grow), file.faulted
    else:
        # Reads of a versioned object always return the listed version, so no request is needed.
        change, is_faulted = None if version else file.changed(), False
    if change is not None:
        raise log_changed(file.path, change)
    if is_faulted:
        raise ReadError("the disk or the file system failed while the log was read", path=file.path)


def log_changed(path: str, change: str) -> ReadError:
    """Return the error for a log that changed while it was read."""
    return ReadError(
        f"the log changed while it was read: {change}",
        path=path,
        hint="run again when no process writes to the log",
    )


def batch_at(log: Bytes, position_bytes: int) -> Bytes:
    header = log[position_bytes : position_bytes + LOG_OVERHEAD_BYTES]
    return log[position_bytes : position_bytes + LOG_OVERHEAD_BYTES + entry_length(header)]


class LogBatches:
    """Iterates over chunks of batches from a position on, up to the first invalid batch.

    Parameters
    ----------
    base_offset
        Base offset of the segment.
    any_offset
        Accept offsets that are too far above the base offset for an index entry. Only recovery
        rejects them. If checksums are verified, these offsets must ascend.

    Attributes
    ----------
    stop
        After the iteration: why the batches end before the end of the log, None if they do not.
    """

    def __init__(
        self,
        log: Bytes,
        position_bytes: int,
        base_offset: int,
        *,
        verify_crc: bool,
        any_offset: bool = False,
    ) -> None:
        self._log = log
        self._verify_crc, self._any_offset = verify_crc, any_offset
        self._scanner = Scanner(base_offset, verify_crc=verify_crc, position_bytes=position_bytes)
        self.stop: ScanStop | None = None

    @property
    def refusal(self) -> ScanStop | None:
        """Why recovery fails after the last batch; None if recovery does not fail there."""
        return self.stop if self.stop is not None and self.stop.refused else None

    def __iter__(self) -> Iterator[BatchColumns]:
        log, scanner = self._log, self._scanner
        ascends = self._any_offset and self._verify_crc
        resumable_codes = {SCAN_ROWS_FULL}
        if self._any_offset and not ascends:
            resumable_codes.add(SCAN_OFFSET_OVERFLOW)
        lookahead = InMemoryLog(log) if ascends else None
        code = SCAN_ROWS_FULL
        while code in resumable_codes:
            if code == SCAN_OFFSET_OVERFLOW:
                position = int(scanner.position)
                base_offset = read_last_offset(
                    log[position : position + RECORD_BATCH_OVERHEAD_BYTES]
                )
                scanner = Scanner(base_offset, verify_crc=self._verify_crc, position_bytes=position)
            code = scanner.scan(log, 0, len(log), lookahead)
            yield from scanner.drain()
        if code != SCAN_END:
            self.stop = scanner.stop(code, InMemoryLog(log))


def scan_to_end(
    log: Bytes, last_entry: OffsetPosition, base_offset: int, *, verify_crc: bool
) -> LogEnd:
    """Scan batches from the last index entry to the end (``LogSegment.readNextOffset``).

    If the offset index is empty, `last_entry` is the base offset at position 0.
    """
    # A corrupt entry may have a negative position (LogSegment.translateOffset).
    start = max(last_entry.position, 0)
    batches = LogBatches(log, start, base_offset, verify_crc=verify_crc, any_offset=True)
    end = end_of_batches(batches, last_entry, base_offset)
    return replace(end, stop=batches.stop)


def end_of_batches(
    chunks: Iterable[BatchColumns], last_entry: OffsetPosition, base_offset: int
) -> LogEnd:
    """Return the end of a segment, without `LogEnd.stop`.

    `chunks` has the batches from the last index entry on. For the other parameters, see
    `scan_to_end`.
    """
    largest_base_offset = last_offset = NO_OFFSET
    end_bytes = max(last_entry.position, 0)
    order, disorder = BatchOrder(base_offset), None
    for batches in chunks:
        disorder = disorder or order.first_stop(batches)
        largest_base_offset = max(largest_base_offset, int(batches.base_offset.max()))
        last_offset = int(batches.last_offset[-1])
        end_bytes = int(batches.position_bytes[-1] + batches.size_bytes[-1])
    next_batch_offset = next_offset(
        base_offset, last_entry.offset, largest_base_offset, last_offset
    )
    return LogEnd(end_bytes, next_batch_offset, None, disorder)


def next_offset(
    base_offset: int, indexed_offset: int, largest_base_offset: int, last_offset: int
) -> int:
    """Return the offset after the last batch of a segment, as a broker determines it.

    A broker searches for the first batch at or after the offset of the last index entry, and then
    reads all following batches. If offsets decrease after the entry, the search may find no batch,
    and the result is the base offset. Source: LogSegment.readNextOffset,
    FileRecords.searchForOffsetFromPosition.

    Parameters
    ----------
    indexed_offset
        Offset of the last index entry; the base offset if there is no entry.
    largest_base_offset
        Largest base offset of the batches from this entry on, -1 if there is no batch.
    last_offset
        Last offset of the last batch, -1 if there is no batch.
    """
    if max(largest_base_offset, last_offset) < indexed_offset:
        return base_offset
    # As in Java, the offset after the largest integer is the smallest integer.
    return -INT64_MAX - 1 if last_offset == INT64_MAX else last_offset + 1


def stop_at(log: Bytes, position_bytes: int, base_offset: int) -> ScanStop | None:
    """Return why a scan stops at the batch at a position, None if the batch is valid."""
    scanner = Scanner(base_offset, verify_crc=True, position_bytes=position_bytes)
    code = scanner.scan(log, 0, len(log), InMemoryLog(log))
    if int(scanner.position) != position_bytes or code in (SCAN_END, SCAN_ROWS_FULL):
        return None
    return scanner.stop(code, InMemoryLog(log))


def search_for_offsets(
    log: Bytes,
    log_size: int,
    targets: Longs,
    entry_offsets: Longs,
    entry_positions: Longs,
    batches: Longs,
    *,
    on_mismatch: Callable[[int], int],
    first_offset_at: Callable[[int], int],
) -> None:
    """Find the batches that contain ascending offsets, or the next batches after them.

    Source: ``FileRecords.searchForOffsetFromPosition``. For the arrays, see
    `core.kernels.batch_seek.seek_to_offsets`.

    Parameters
    ----------
    on_mismatch
        Called with the row of a target whose index entry does not match the log. Must raise an
        error if the index is wrong, or return the position of the entry if the log is corrupt
        there.
    first_offset_at
        Must return the first offset of the compressed v0 or v1 message at a position. Raises
        `CorruptLogError` if the message cannot be decompressed.
    """
    address = np.uint64(log.ctypes.data)
    state = batch_seek.new_state()
    code = batch_seek.SEEK_NEEDS_FIRST_OFFSET
    while code != batch_seek.SEEK_DONE:
        code = batch_seek.seek_to_offsets(
            address, log_size, targets, entry_offsets, entry_positions, state, batches
        )
        if code == batch_seek.SEEK_NEEDS_FIRST_OFFSET:
            position = int(state[batch_seek.STATE_POSITION])
            try:
                state[batch_seek.STATE_UNPACKED_FIRST_OFFSET] = first_offset_at(position)
                state[batch_seek.STATE_UNPACKED_POSITION] = position
            except CorruptLogError:
                state[batch_seek.STATE_DAMAGE] = position
        elif code == batch_seek.SEEK_MISMATCH:
            state[batch_seek.STATE_DAMAGED_ENTRY] = on_mismatch(int(state[batch_seek.STATE_QUERY]))


def read_batch_fields(
    log: Bytes,
    batches: Longs,
    base_offsets: Longs,
    last_offsets: Longs,
    sizes: Longs,
    *,
    first_offset_at: Callable[[int], int],
) -> None:
    """Read base offsets, last offsets and sizes of batches into arrays of shape (n,).

    Negative positions in `batches` are skipped. If a compressed v0 or v1 message cannot be
    decompressed, `damage_at` replaces its position. For `first_offset_at`, see
    `search_for_offsets`.
    """
    address = np.uint64(log.ctypes.data)
    batch_header.read_batch_fields(address, batches, base_offsets, last_offsets, sizes)
    is_unknown = (base_offsets == batch_header.NOT_IN_HEADER) & (batches >= 0)
    for position in np.unique(batches[is_unknown]):
        rows = batches == position
        try:
            base_offsets[rows] = first_offset_at(int(position))
        except CorruptLogError:
            batches[rows] = batch_header.damage_at(position)
