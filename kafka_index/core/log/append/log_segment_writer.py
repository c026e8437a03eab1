"""A writable segment: appends batches with the index entries that a broker would add.

Sources: Kafka's ``LogSegment`` and ``FileRecords``.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from typing import NoReturn, Protocol

import numpy as np
from numpy.typing import NDArray

from kafka_index.core.contexts import Closeable
from kafka_index.core.errors import CorruptIndexError, CorruptLogError, InputError, KafkaIndexError
from kafka_index.core.format.config import DEFAULT_MAX_DECOMPRESSED_BYTES
from kafka_index.core.format.integers import INT32_MAX
from kafka_index.core.format.longs import Longs
from kafka_index.core.format.names import (
    INDEX_SUFFIXES,
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    segment_file_name,
)
from kafka_index.core.format.records import HEADER_SIZE_UP_TO_MAGIC, NO_TIMESTAMP
from kafka_index.core.fs.durable_files import publish_error
from kafka_index.core.fs.store import Bytes
from kafka_index.core.index.sparse_indexes import OffsetIndex, TimeIndex, TimestampOffset
from kafka_index.core.index.transaction_index import TransactionIndex
from kafka_index.core.kernels.append_batches import (
    GROWTH_FIRST_TIMESTAMP,
    GROWTH_LAST_INDEX_POSITION,
    GROWTH_LAST_TIME_ENTRY,
    GROWTH_MAX_TIMESTAMP,
    GROWTH_OFFSET_ENTRIES,
    GROWTH_OFFSET_OF_MAX,
    GROWTH_SIZE,
    GROWTH_TIME_ENTRIES,
    NO_BATCH,
)
from kafka_index.core.kernels.batch_header import AT_END, max_timestamp_of
from kafka_index.core.kernels.batch_seek import largest_timestamp_after
from kafka_index.core.log.append.incoming_batches import (
    FetchData,
    IncomingBatches,
    SegmentPlan,
    as_bytes,
    growth_limits,
    new_growth,
    plan_for_segment,
)
from kafka_index.core.log.append.settings import LogSettings
from kafka_index.core.log.scan.file_records import (
    LogBatches,
    LogEnd,
    LogOffsetPosition,
    batch_at,
    read_batch_fields,
    scan_to_end,
    search_for_offsets,
)
from kafka_index.core.log.scan.index_builder import IndexBuilder
from kafka_index.core.records.decompression import shared_budget
from kafka_index.core.records.record_sections import first_offset

_MODE = 0o644
_NO_BYTES = np.empty(0, np.uint8)


class LogFile:
    """A ``.log`` file that is open for appending, and created if it does not exist.

    With `preallocated_bytes`, a new file has this size, with zeros after the batches.
    """

    def __init__(self, path: str, *, preallocated_bytes: int = 0) -> None:
        self.path = path
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        try:
            self._descriptor = os.open(path, flags, _MODE)
            if preallocated_bytes:
                os.posix_fallocate(self._descriptor, 0, preallocated_bytes)
        except OSError as error:
            raise publish_error(error, path, "open the log") from error
        self.size_bytes = 0 if preallocated_bytes else os.fstat(self._descriptor).st_size
        if self.size_bytes > INT32_MAX:
            os.close(self._descriptor)
            raise InputError(
                "the log is larger than the maximum segment size",
                path=path,
                expected=INT32_MAX,
                found=self.size_bytes,
            )
        self._view = _NO_BYTES

    @property
    def view(self) -> Bytes:
        """The appended bytes, memory-mapped; valid until the file is truncated or closed."""
        if len(self._view) < self.size_bytes:
            # A preallocated file is mapped completely, so that it need not be mapped again after
            # appends.
            mapped = mmap.mmap(self._descriptor, 0, access=mmap.ACCESS_READ)
            self._view = np.frombuffer(mapped, np.uint8)
        return self._view[: self.size_bytes]

    def append(self, data: Bytes) -> None:
        """Append the bytes. If the write fails, the bytes already written are removed."""
        remaining = data.data
        position = self.size_bytes
        try:
            while remaining:
                written_bytes = os.pwrite(self._descriptor, remaining, position)
                position += written_bytes
                remaining = remaining[written_bytes:]
        except OSError as error:
            # A failed write may have written some bytes after the last batch.
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, self.size_bytes)
            raise publish_error(error, self.path, "append to the log") from error
        self.size_bytes = position

    def truncate_to(self, size_bytes: int) -> int:
        """Truncate the file and its preallocated space; return the size of the removed batches."""
        if not 0 <= size_bytes <= self.size_bytes:
            raise ValueError(
                f"cannot truncate {self.path} of {self.size_bytes} bytes to {size_bytes}"
            )
        removed_bytes = self.size_bytes - size_bytes
        self._unmap()
        if size_bytes < os.fstat(self._descriptor).st_size:
            try:
                os.ftruncate(self._descriptor, size_bytes)
            except OSError as error:
                raise publish_error(error, self.path, "truncate the log") from error
        self.size_bytes = size_bytes
        return removed_bytes

    def trim(self) -> None:
        """Release preallocated space."""
        self.truncate_to(self.size_bytes)

    def flush(self) -> None:
        try:
            os.fsync(self._descriptor)
        except OSError as error:
            raise publish_error(error, self.path, "flush the log") from error

    def close(self) -> None:
        try:
            self.flush()
            self.trim()
        finally:
            self.close_handler()

    def close_handler(self) -> None:
        """Close the file without trimming it."""
        self._unmap()
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _unmap(self) -> None:
        # The file is unmapped after its last view is deleted; a traceback may still reference a
        # view.
        self._view = _NO_BYTES


def translate_offset(
    log: Bytes, path: str, offset_index: OffsetIndex, offset: int, *, verify_entry: bool = True
) -> LogOffsetPosition | None:
    """Find the batch that contains an offset, or the first batch after it, if any.

    Raises `CorruptLogError` if a batch header is invalid. With `verify_entry`, it is also raised if
    the index entry does not match the log. A broker does not check this. Source:
    LogSegment.translateOffset.
    """
    floor = offset_index.lookup(offset)
    # A corrupt entry may have a negative position.
    start = max(floor.position, 0)

    def unreadable() -> NoReturn:
        raise CorruptLogError(
            "the log is corrupt, or does not match its offset index",
            path=path,
            position_bytes=floor.position,
            hint="rebuild the index files of the partition",
        )

    def on_mismatch(_query: int) -> int:
        if verify_entry:
            unreadable()
        return start

    def first_offset_at(position: int) -> int:
        return first_offset(batch_at(log, position), shared_budget(DEFAULT_MAX_DECOMPRESSED_BYTES))

    batch_position, base_offset, last_offset, size = np.empty((4, 1), np.int64)
    search_for_offsets(
        log,
        len(log),
        np.array([offset], np.int64),
        np.array([floor.offset], np.int64),
        np.array([start], np.int64),
        batch_position,
        on_mismatch=on_mismatch,
        first_offset_at=first_offset_at,
    )
    read_batch_fields(
        log, batch_position, base_offset, last_offset, size, first_offset_at=first_offset_at
    )
    if batch_position[0] < AT_END:
        unreadable()
    if batch_position[0] == AT_END:
        return None
    return LogOffsetPosition(int(base_offset[0]), int(batch_position[0]), int(size[0]))


Clock = Callable[[], int]


def system_clock() -> int:
    return time.time_ns() // 1_000_000


class _HasBaseOffset(Protocol):
    @property
    def base_offset(self) -> int: ...


def floor_segment(segments: Sequence[_HasBaseOffset], offset: int) -> int:
    """Return the index of the last segment with a base offset up to `offset`, 0 without one."""
    return max(bisect_right(segments, offset, key=attrgetter("base_offset")) - 1, 0)


class LogSegmentWriter(Closeable):
    """One segment of a partition, open for appending.

    Parameters
    ----------
    directory : str
        The partition directory.
    base_offset : int
        Base offset of the segment.
    settings : LogSettings
        Settings of the topic.
    create : bool
        Create the ``.log`` file. If False, the file must exist.
    roll_jitter_ms : int
        Subtracted from ``segment.ms``.
    clock : callable
        Returns the time in ms.

    Raises
    ------
    InputError
        The ``.log`` file does not exist.
    PublishError
        A file cannot be opened or created.

    Notes
    -----
    Index files are opened on first use. A missing index file is created at its maximum size. As in
    a restarted broker, ``index.interval.bytes`` counts from the end of a reopened segment, not from
    its last index entry. Not thread-safe.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        base_offset: int,
        settings: LogSettings,
        *,
        create: bool = False,
        roll_jitter_ms: int = 0,
        clock: Clock = system_clock,
    ) -> None:
        self.directory = os.fspath(directory)
        self.base_offset = base_offset
        self.settings = settings
        log_path = self.path(LOG_SUFFIX)
        if not create and not os.path.isfile(log_path):
            raise InputError("the log does not exist", path=log_path)
        reserved = settings.segment_bytes if create and settings.preallocate else 0
        self.log = LogFile(log_path, preallocated_bytes=reserved)
        self.transaction_index = TransactionIndex(self.path(TXN_INDEX_SUFFIX), base_offset)
        self._offset_index: OffsetIndex | None = None
        self._time_index: TimeIndex | None = None
        self.roll_jitter_ms = roll_jitter_ms
        self._clock = clock
        self._created_ms = clock()
        self._last_index_position = self.size_bytes
        self._largest: TimestampOffset | None = None
        self._first_timestamp = NO_BATCH

    def path(self, suffix: str) -> str:
        """Return the path of the segment's file with a suffix."""
        return os.path.join(self.directory, segment_file_name(self.base_offset, suffix))

    @property
    def offset_index(self) -> OffsetIndex:
        """The ``.index``."""
        if self._offset_index is None:
            self._offset_index = OffsetIndex(
                self.path(OFFSET_INDEX_SUFFIX), self.base_offset, self.settings.segment_index_bytes
            )
        return self._offset_index

    @property
    def time_index(self) -> TimeIndex:
        """The ``.timeindex``."""
        if self._time_index is None:
            self._time_index = TimeIndex(
                self.path(TIME_INDEX_SUFFIX), self.base_offset, self.settings.segment_index_bytes
            )
        return self._time_index

    @property
    def size_bytes(self) -> int:
        """Size of the log, without preallocated space."""
        return self.log.size_bytes

    @property
    def largest_timestamp(self) -> TimestampOffset:
        """The largest timestamp so far, and the offset of its time index entry."""
        if self._largest is None:
            self._largest = self.time_index.last_entry
        return self._largest

    def limits(self) -> Longs:
        """Return the ``LIMIT_`` fields with which the next append is planned."""
        return growth_limits(
            self.settings,
            self.base_offset,
            jitter_ms=self.roll_jitter_ms,
            created_ms=self._created_ms,
            now_ms=self._clock(),
            offset_entries=self.offset_index.max_entries,
            time_entries=self.time_index.max_entries,
        )

    def growth(self) -> Longs:
        """Return the ``GROWTH_`` fields: the current sizes and timestamps of the segment."""
        if self._first_timestamp == NO_BATCH and self.size_bytes:
            self._first_timestamp = self._read_first_timestamp()
        state = new_growth(self.base_offset)
        state[GROWTH_SIZE] = self.size_bytes
        state[GROWTH_LAST_INDEX_POSITION] = self._last_index_position
        state[GROWTH_MAX_TIMESTAMP], state[GROWTH_OFFSET_OF_MAX] = self.largest_timestamp
        state[GROWTH_FIRST_TIMESTAMP] = self._first_timestamp
        state[GROWTH_OFFSET_ENTRIES] = self.offset_index.entries
        state[GROWTH_TIME_ENTRIES] = self.time_index.entries
        state[GROWTH_LAST_TIME_ENTRY] = self.time_index.last_entry.timestamp
        return state

    def should_roll(self, batches: bytes | Bytes) -> bool:
        """Return whether a broker would roll before appending these batches together."""
        _, plan = self._plan_single_append(batches, may_roll=True)
        return plan.must_roll

    def append(self, batches: bytes | Bytes) -> None:
        """Append all batches unchanged, or none of them after an error.

        Raises
        ------
        CorruptLogError
            A batch is incomplete or does not match its checksum.
        InputError, IndexOffsetOverflowError
            An offset is outside the offset range of the segment.
        IndexFullError
            An index has no space for the entries of the batches.
        PublishError
            The batches cannot be written.
        """
        self.append_plan(*self._plan_single_append(batches, may_roll=False))

    def append_plan(self, batches: IncomingBatches, plan: SegmentPlan, first_row: int = 0) -> None:
        """Append batches as planned for this segment.

        Parameters
        ----------
        first_row : int
            Number to subtract from `SegmentPlan.rows` to get rows of `batches`.
        """
        # As in a broker, the index files are created before the first byte of the log.
        offset_index, time_index = self.offset_index, self.time_index
        size_before = self.size_bytes
        self.log.append(batches.data)
        if len(plan.rows):
            try:
                last_offsets = batches.columns.last_offset[plan.rows - first_row]
                offset_index.append_many(last_offsets, plan.positions_bytes)
                time_index.maybe_append_many(plan.timestamps_ms, plan.timestamp_offsets)
            except KafkaIndexError:
                self.log.truncate_to(size_before)
                raise
        state = plan.state
        self._last_index_position = int(state[GROWTH_LAST_INDEX_POSITION])
        self._first_timestamp = int(state[GROWTH_FIRST_TIMESTAMP])
        self._largest = TimestampOffset(
            int(state[GROWTH_MAX_TIMESTAMP]), int(state[GROWTH_OFFSET_OF_MAX])
        )

    def offset_to_position(self, offset: int) -> LogOffsetPosition | None:
        """Find the batch that contains an offset, or the first batch after it, if any.

        Source: ``LogSegment.translateOffset``.
        """
        if not self.size_bytes:
            return None
        return translate_offset(self.log.view, self.log.path, self.offset_index, offset)

    def passes_sanity_check(self) -> bool:
        """Return whether loading leaves the segment unchanged (``LogSegment.sanityCheck``).

        If the time index is missing, an empty time index is created.
        """
        if not os.path.exists(self.path(OFFSET_INDEX_SUFFIX)):
            return False
        if not os.path.exists(self.path(TIME_INDEX_SUFFIX)):
            self.time_index.resize(0)
        try:
            self.transaction_index.sanity_check()
        except CorruptIndexError:
            return False
        return True

    def bytes_of(self, start: int, end: int) -> Bytes:
        """Return a byte range of the ``.log`` file."""
        return self.log.view[start:end]

    def read(
        self,
        start_offset: int,
        max_bytes: int,
        *,
        max_position_bytes: int | None = None,
        min_one_message: bool = False,
    ) -> FetchData | None:
        """Read from the batch that contains an offset; None if no batch has this or a later offset.

        Parameters
        ----------
        start_offset : int
            Absolute offset.
        max_bytes : int
            Maximum size of the result, 0 or more.
        max_position_bytes : int, optional
            End position of the read in the ``.log`` file, by default the end of the last batch.
        min_one_message : bool
            Return the first batch completely, even if it is larger than `max_bytes`.

        Notes
        -----
        Source: ``LogSegment.read``
        """
        if max_bytes < 0:
            raise InputError("max_bytes is negative", expected="0 or more", found=max_bytes)
        batch = self.offset_to_position(start_offset)
        if batch is None:
            return None
        size = max(max_bytes, batch.size) if min_one_message else max_bytes
        end = self.size_bytes if max_position_bytes is None else max_position_bytes
        start = batch.position
        length = max(min(end - start, size), 0) if size else 0
        return FetchData(
            batch.offset,
            self.base_offset,
            start,
            self.log.view[start : start + length].tobytes(),
            size != 0 and size < batch.size,
        )

    def next_offset(self) -> int:
        """Return the offset after the segment's last batch (``LogSegment.readNextOffset``)."""
        if not self.size_bytes:
            return self.base_offset
        return self.read_end().next_offset

    def read_end(self) -> LogEnd:
        """Read the batch headers from the last index entry on, to find the end of the batches."""
        last_entry = self.offset_index.lookup(self.offset_index.last_offset)
        return scan_to_end(self.log.view, last_entry, self.base_offset, verify_crc=False)

    def truncate_to(self, offset: int) -> int:
        """Truncate before the batch that contains an offset; return the number of removed bytes.

        Source: ``LogSegment.truncateTo``.
        """
        batch = self.offset_to_position(offset)
        for index in (self.offset_index, self.time_index):
            index.truncate_to(offset)
        self.transaction_index.truncate_to(offset)
        # After a truncation, this segment is the active segment.
        self.resize_indexes()
        removed_bytes = 0 if batch is None else self.log.truncate_to(batch.position)
        if not self.size_bytes:
            self._created_ms = self._clock()
            self._first_timestamp = NO_BATCH
        self._last_index_position = self.size_bytes
        if self.largest_timestamp.timestamp >= 0:
            self._largest = self._read_largest_timestamp()
        return removed_bytes

    def recover(self) -> int:
        """Rebuild the indexes and truncate invalid batches; return the number of removed bytes.

        The transaction index is emptied: its entries also depend on transactions of earlier
        segments.

        Raises
        ------
        CorruptLogError
            Recovery of a broker would fail too, so the broker would not start.

        Notes
        -----
        Source: ``LogSegment.recover``
        """
        self.offset_index.reset()
        self.time_index.reset()
        self.transaction_index.reset()
        builder = IndexBuilder(
            self.offset_index, self.time_index, self.settings.index_interval_bytes
        )
        stop = builder.recover(LogBatches(self.log.view, 0, self.base_offset, verify_crc=True))
        # If recovery fails, a broker does not start, and nothing is truncated.
        if stop is not None:
            raise stop.error(CorruptLogError, self.log.path, "the segment cannot be recovered: ")
        removed_bytes = self.log.truncate_to(builder.valid_bytes)
        # As in Kafka, the largest timestamp is also set for an empty log.
        self._largest = self.time_index.last_entry
        self._last_index_position = self.size_bytes
        self._first_timestamp = NO_BATCH
        return removed_bytes

    def stored_batches(self) -> Iterator[IncomingBatches]:
        """Yield the batches of the segment, without verifying their checksums again."""
        return IncomingBatches.scan_stored(self.log.view, self.base_offset)

    def append_aborted(self, aborted: NDArray[np.void]) -> None:
        """Append aborted transactions to the transaction index."""
        self.transaction_index.append_many(aborted)

    def truncate_fully(self) -> int:
        """Remove all batches; return the number of removed bytes."""
        return self.truncate_to(self.base_offset)

    def release(self) -> None:
        """Do nothing: the segment stays open for appends and reads."""

    def become_inactive(self) -> None:
        """Append the last time index entry, and trim all files (``onBecomeInactiveSegment``)."""
        self.time_index.maybe_append(*self.largest_timestamp, skip_full_check=True)
        self.offset_index.trim_to_valid_size()
        self.time_index.trim_to_valid_size()
        self.log.trim()

    def close(self) -> None:
        """Append the last time index entry if it is known; then trim and close all files."""
        if self._largest is not None:
            self.time_index.maybe_append(*self._largest, skip_full_check=True)
        for index in (self._offset_index, self._time_index):
            if index is not None:
                index.close()
        self.log.close()
        self.transaction_index.close()
        self._offset_index = self._time_index = None

    def resize_indexes(self) -> None:
        """Resize both index files to ``segment.index.bytes``, as for an active segment."""
        self.offset_index.resize(self.settings.segment_index_bytes)
        self.time_index.resize(self.settings.segment_index_bytes)

    def flush(self) -> None:
        """Sync all files of the segment to disk."""
        self.log.flush()
        self.offset_index.flush()
        self.time_index.flush()
        self.transaction_index.flush()

    def close_handlers(self) -> None:
        """Close all files without trimming them."""
        for index in (self._offset_index, self._time_index):
            if index is not None:
                index.close_handler()
        self.log.close_handler()
        self.transaction_index.close()
        self._offset_index = self._time_index = None

    def delete(self) -> None:
        """Close and delete all files."""
        self.close_handlers()
        for suffix in (LOG_SUFFIX, *INDEX_SUFFIXES):
            if os.path.exists(self.path(suffix)):
                os.unlink(self.path(suffix))

    def _plan_single_append(
        self, batches: bytes | Bytes, *, may_roll: bool
    ) -> tuple[IncomingBatches, SegmentPlan]:
        incoming = IncomingBatches.scan(as_bytes(batches), self.base_offset)
        ends = np.array([len(incoming)], np.int64)
        plan = plan_for_segment(incoming, ends, 0, self.limits(), self.growth(), may_roll=may_roll)
        return incoming, plan

    def _read_largest_timestamp(self) -> TimestampOffset:
        last_entry = self.time_index.last_entry
        start = self.offset_index.lookup(last_entry.offset).position
        log = self.log.view
        timestamp, offset, _ = largest_timestamp_after(np.uint64(log.ctypes.data), len(log), start)
        if timestamp > max(last_entry.timestamp, NO_TIMESTAMP):
            return TimestampOffset(int(timestamp), int(offset))
        return last_entry

    def _read_first_timestamp(self) -> int:
        """Return the largest timestamp of the first batch."""
        log = self.log.view
        if len(log) <= HEADER_SIZE_UP_TO_MAGIC:
            return NO_TIMESTAMP
        return int(max_timestamp_of(np.uint64(log.ctypes.data)))
