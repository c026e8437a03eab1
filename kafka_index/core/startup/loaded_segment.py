"""A segment as a starting broker loads it, with recovery and truncation done only in memory.

To find an offset, a broker reads forward from an index entry, which it does not verify. It
recognizes the batch with the offset only by the next batch, unless the batch starts with that
offset. For compressed messages of formats v0 and v1, it must read the first inner message to learn
the base offset.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from kafka_index.core.errors import (
    CorruptIndexError,
    CorruptLogError,
    DirectoryFailsError,
    InputError,
    StartRefusedError,
    UnknownVersionError,
)
from kafka_index.core.format.config import DEFAULT_MAX_DECOMPRESSED_BYTES
from kafka_index.core.format.integers import INT32_MAX
from kafka_index.core.format.names import OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX
from kafka_index.core.format.records import (
    COMPRESSION_MASK,
    HEADER_SIZE_UP_TO_MAGIC,
    LOG_OVERHEAD_BYTES,
    NO_TIMESTAMP,
    OFFSET_ENTRY,
    TIME_ENTRY,
)
from kafka_index.core.fs.inputs import refuse_linked_out
from kafka_index.core.fs.local_store import MappedFile
from kafka_index.core.fs.store import Bytes
from kafka_index.core.index.sparse_indexes import IN_MEMORY, OffsetIndex, TimeIndex
from kafka_index.core.index.transaction_index import TransactionIndex
from kafka_index.core.kernels.headers import CONTROL_MESSAGE
from kafka_index.core.log.append.incoming_batches import IncomingBatches
from kafka_index.core.log.append.log_loader import OFFSET_BACKWARD, OffsetsGoBackError
from kafka_index.core.log.append.log_segment_writer import translate_offset
from kafka_index.core.log.append.settings import LogSettings
from kafka_index.core.log.scan.file_records import (
    LogBatches,
    LogOffsetPosition,
    batch_at,
    open_log,
    scan_to_end,
)
from kafka_index.core.log.scan.index_builder import IndexBuilder
from kafka_index.core.log.scan.log_offsets import SegmentSpan
from kafka_index.core.log.scan.scanner import entry_length
from kafka_index.core.records.batch_table import (
    OFFSET_OVERFLOW,
    TORN_BATCH,
    TORN_HEADER,
    BatchColumns,
    ScanStop,
)
from kafka_index.core.records.decompression import shared_budget
from kafka_index.core.records.record_sections import first_offset
from kafka_index.core.startup.found_files import FoundSegment

_TORN = (TORN_HEADER, TORN_BATCH)

#: Size of an in-memory index without entries.
_NO_INDEX_BYTES = OFFSET_ENTRY.itemsize
_NO_BYTES: Bytes = np.frombuffer(b"", np.uint8)


def find_batch(
    log: Bytes, path: str, offset_index: OffsetIndex, offset: int
) -> LogOffsetPosition | None:
    """Find the batch that contains an offset or the first one after it, None if there is none.

    An incomplete batch ends the log. Raises `StartRefusedError` if a broker cannot read a batch
    before the result. Source: ``LogSegment.translateOffset``.
    """
    floor = offset_index.lookup(offset)
    start = max(floor.position, 0)
    if start >= len(log):
        return None
    try:
        found = translate_offset(log, path, offset_index, offset, verify_entry=False)
    except CorruptLogError:
        found = None
    _check_way(log, path, start, offset_index.base_offset, _end_of_way(log, found, offset))
    return found


def check_stop(stop: ScanStop | None, log_size: int, path: str, what: str) -> None:
    """Raise if a broker fails to read past a batch; an incomplete batch is the end of the log."""
    if stop is None or stop.code in _TORN:
        return
    if log_size - stop.position_bytes <= HEADER_SIZE_UP_TO_MAGIC:
        return
    raise stop.error(StartRefusedError, path, f"{what} cannot be read: ")


def _end_of_way(log: Bytes, found: LogOffsetPosition | None, offset: int) -> int:
    """Return the position after the last batch read by a search, or the log size if no match."""
    if found is None:
        return len(log)
    end = found.position + found.size
    if found.offset >= offset:
        return end
    following = log[end : end + HEADER_SIZE_UP_TO_MAGIC + 1]
    length = entry_length(following) if len(following) >= LOG_OVERHEAD_BYTES else 0
    return min(end + max(LOG_OVERHEAD_BYTES + length, len(following)), len(log))


def _check_way(log: Bytes, path: str, start: int, base_offset: int, end: int) -> None:
    batches = LogBatches(log[:end], start, base_offset, verify_crc=False, any_offset=True)
    for chunk in batches:
        _check_messages(log, path, chunk)
    check_stop(batches.stop, end, path, "the log")


def _check_messages(log: Bytes, path: str, chunk: BatchColumns) -> None:
    """Check that the base offset of compressed v0 and v1 messages can be read (``baseOffset``)."""
    is_message = chunk.control_type == CONTROL_MESSAGE
    positions = chunk.position_bytes[is_message & (chunk.attributes & COMPRESSION_MASK != 0)]
    for position in np.unique(positions).tolist():
        try:
            first_offset(batch_at(log, position), shared_budget(DEFAULT_MAX_DECOMPRESSED_BYTES))
        except CorruptLogError as error:
            raise StartRefusedError(
                f"a compressed message cannot be read: {error.message}",
                path=path,
                position_bytes=position,
                expected=error.expected,
                found=error.found,
            ) from error


class SegmentOverflowError(Exception):
    """An offset does not fit its segment during recovery; the broker then splits the segment.

    Kafka: ``LogSegmentOffsetOverflowException``.
    """

    def __init__(self, base_offset: int) -> None:
        super().__init__(base_offset)
        self.base_offset = base_offset


class LoadedSegment:
    """A segment of a partition that is being loaded.

    If it has no files, it is empty.

    Attributes
    ----------
    whole_bytes, size_bytes
        Size of its log before and after truncation.
    bytes_read
        Bytes of the log that were recovered or replayed.
    is_rebuilt
        Whether it was recovered.
    is_split
        Whether a broker has split it off another segment. It starts at `start_bytes` of the
        other log, and its index has been built.
    """

    def __init__(
        self,
        base_offset: int,
        settings: LogSettings,
        found: FoundSegment | None = None,
        span: SegmentSpan | None = None,
    ) -> None:
        self.base_offset = base_offset
        self.settings = settings
        self.is_split = span is not None
        self.start_bytes = 0 if span is None else span.start_bytes
        if found is not None and span is not None:
            log = replace(found.log, base_offset=base_offset)
            found = FoundSegment(log, is_swapped=False)
        self.found = found
        self.bytes_read = 0
        self.is_rebuilt = False
        self._file: MappedFile | None = None
        self.whole_bytes = 0 if found is None else found.log.log_size_bytes
        if span is not None:
            self.whole_bytes = span.end_bytes - span.start_bytes
        self.size_bytes = self.whole_bytes
        self._index: OffsetIndex | None = None
        self._max_timestamp_ms = NO_TIMESTAMP

    @property
    def path(self) -> str:
        return IN_MEMORY if self.found is None else self.found.log.log_path

    @property
    def log(self) -> Bytes:
        return self.whole_log[: self.size_bytes]

    @property
    def whole_log(self) -> Bytes:
        """The bytes of its log before truncation, mapped on first use."""
        if self._file is None and self.found is not None and self.whole_bytes:
            file = open_log(self.found.log.log_path, self.found.log)
            if not isinstance(file, MappedFile):
                raise InputError("not a local log", path=self.path)
            self._file = file
        if self._file is None:
            return _NO_BYTES
        return self._file.array[self.start_bytes : self.start_bytes + self.whole_bytes]

    @property
    def offset_index(self) -> OffsetIndex:
        """Its offset index: the existing file, or the index built by recovery."""
        if self._index is None:
            self._refuse_what_is_no_file(OFFSET_INDEX_SUFFIX)
            path = None if self.found is None else self.found.indexes.get(OFFSET_INDEX_SUFFIX)
            if path is None:
                self._index = OffsetIndex(
                    IN_MEMORY, self.base_offset, _NO_INDEX_BYTES, growing=True
                )
            else:
                self._index = OffsetIndex(path, self.base_offset, writable=False)
        return self._index

    @property
    def _not_files(self) -> dict[str, str]:
        return {} if self.found is None else self.found.not_files

    @property
    def _unsized(self) -> dict[str, str]:
        return {} if self.found is None else self.found.unsized

    def _refuse_what_is_no_file(self, *suffixes: str) -> None:
        """Raise for an index that is not a regular file, as a broker fails when it opens it."""
        for suffix in suffixes:
            if suffix in self._not_files:
                raise DirectoryFailsError("the index is not a file", path=self._not_files[suffix])

    def is_sound(self) -> bool:
        """Return whether loading leaves the segment unchanged (``LogSegment.sanityCheck``)."""
        indexes = {} if self.found is None else self.found.indexes
        is_swapped = self.found is not None and self.found.is_swapped
        # To find the end of a swap file, a broker opens its index and thereby creates an empty one.
        has_index = any(
            OFFSET_INDEX_SUFFIX in each for each in (indexes, self._not_files, self._unsized)
        )
        if not has_index and not is_swapped and not self.is_split:
            return False
        path = indexes.get(TXN_INDEX_SUFFIX)
        if path is None:
            return True
        index = TransactionIndex(path, self.base_offset, writable=False)
        try:
            index.sanity_check()
        except UnknownVersionError as error:
            raise StartRefusedError.of(error, path) from error
        except CorruptIndexError:
            return False
        finally:
            index.close()
        return True

    def offset_to_position(self, offset: int) -> LogOffsetPosition | None:
        """Find the batch that contains an offset or the first one after it, None if none."""
        return find_batch(self.log, self.path, self.offset_index, offset)

    def bytes_of(self, start: int, end: int) -> Bytes:
        """Return a byte range of its log for replay."""
        self.bytes_read += end - start
        return self.log[start:end]

    def next_offset(self) -> int:
        """Return the offset after the last batch (``LogSegment.readNextOffset``).

        Raises `StartRefusedError` if a batch after the last index entry has an invalid length, or
        if a message in the searched range cannot be read.
        """
        if not self.size_bytes:
            return self.base_offset
        entry = self.offset_index.lookup(self.offset_index.last_offset)
        if entry.position >= self.size_bytes:
            return self.base_offset
        end = scan_to_end(self.log, entry, self.base_offset, verify_crc=False)
        check_stop(end.stop, self.size_bytes, self.path, "the end of the log")
        # The search for that entry's offset can fail on batches that the scan accepts.
        self.offset_to_position(self.offset_index.last_offset)
        return end.next_offset

    def torn_bytes(self) -> int:
        """Return how many bytes follow the last complete batch; 0 for a recovered log."""
        if not self.size_bytes or self.is_rebuilt:
            return 0
        entry = self.offset_index.lookup(self.offset_index.last_offset)
        if entry.position >= self.size_bytes:
            return 0
        end = scan_to_end(self.log, entry, self.base_offset, verify_crc=False)
        return self.size_bytes - end.end_bytes

    def recover(self) -> int:
        """Rebuild the index, truncate at the first invalid byte, and return the truncated bytes.

        Raises `OffsetsGoBackError` if Kafka throws ``InvalidOffsetException``, and
        `StartRefusedError` if a broker does not start on such a log. Source:
        ``LogSegment.recover``.
        """
        for suffix in (OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX):
            if suffix in self._unsized:
                # The file is opened but not mapped, so Kafka throws a NullPointerException in any
                # case.
                path = self._unsized[suffix]
                raise StartRefusedError(
                    "the index to be rebuilt is a pipe or the null device", path=path
                )
        self._refuse_what_is_no_file(OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX)
        size = self.settings.segment_index_bytes
        index = OffsetIndex(IN_MEMORY, self.base_offset, size, growing=True)
        times = TimeIndex(IN_MEMORY, self.base_offset, size, growing=True)
        builder = IndexBuilder(index, times, self.settings.index_interval_bytes)
        stop = builder.recover(LogBatches(self.log, 0, self.base_offset, verify_crc=True))
        self.is_rebuilt = True
        self._max_timestamp_ms = builder.max_timestamp_ms
        self.bytes_read += self.size_bytes
        if stop is not None:
            if stop.code == OFFSET_BACKWARD:
                raise OffsetsGoBackError(f"at byte {stop.position_bytes}")
            self._use_index(index)
            largest = self.base_offset + INT32_MAX
            if stop.code == OFFSET_OVERFLOW and self.next_offset() > largest + 1:
                raise SegmentOverflowError(self.base_offset)
            raise stop.error(StartRefusedError, self.path, "the segment cannot be recovered: ")
        self._use_index(index)
        return self.cut_at(builder.valid_bytes)

    def stored_batches(self) -> Iterator[IncomingBatches]:
        """Yield the remaining batches without verifying them again."""
        return IncomingBatches.stored(self.log, self.base_offset)

    def append_aborted(self, aborted: NDArray[np.void]) -> None:
        """Discard aborted transactions: no consumer reads this log.

        Raises
        ------
        OffsetsGoBackError
            A broker cannot create the index. Recovery then truncates the whole log.
        """
        path = None if self.found is None else self.found.txn_index_to_nowhere
        if path is not None and len(aborted):
            raise OffsetsGoBackError(f"the transaction index {path} is a broken link")

    def cut_at(self, size_bytes: int) -> int:
        """Truncate the log to a size; return the number of truncated bytes."""
        lost = self.size_bytes - size_bytes
        self.size_bytes = size_bytes
        return lost

    def cut_whole(self) -> int:
        """Truncate everything, as Kafka does if offsets decrease (``LogSegment.truncateTo``)."""
        self._use_index(OffsetIndex(IN_MEMORY, self.base_offset, _NO_INDEX_BYTES, growing=True))
        return self.cut_at(0)

    def _use_index(self, index: OffsetIndex) -> None:
        if self._index is not None:
            self._index.close()
        self._index = index

    def resize_indexes(self) -> None:
        """Raise if an index file is larger than the settings allow (``resizeIndexes``)."""
        self._refuse_what_is_no_file(OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX)
        for unsized in self._unsized.values():
            raise DirectoryFailsError("the index of the active segment has no size", path=unsized)
        indexes = {} if self.found is None or self.is_rebuilt else self.found.indexes
        for suffix, entry in ((OFFSET_INDEX_SUFFIX, OFFSET_ENTRY), (TIME_INDEX_SUFFIX, TIME_ENTRY)):
            path = indexes.get(suffix)
            if path is None:
                continue
            size = entry.itemsize
            limit = self.settings.segment_index_bytes // size * size
            refuse_linked_out(path)
            with open(path, "rb") as file:
                found = file.seek(0, 2) // size * size
            if found > limit:
                raise StartRefusedError(
                    "the index of the active segment is larger than segment.index.bytes",
                    path=path,
                    expected=f"{limit} bytes or fewer",
                    found=found,
                )

    def largest_timestamp_ms(self, now_ms: int) -> int:
        """Return the timestamp used by time-based retention (``LogSegment.largestTimestamp``).

        If the log was truncated, its modification time is `now_ms`.
        """
        if self.found is None:
            return now_ms
        path = self.found.indexes.get(TIME_INDEX_SUFFIX)
        largest = self._max_timestamp_ms
        if not self.is_rebuilt and path is not None:
            largest = _last_time(path)
        if largest >= 0:
            return largest
        is_cut = self.size_bytes < self.whole_bytes
        return now_ms if is_cut else self.found.log.log_mtime_ns // 10**6

    def release(self) -> None:
        """Unmap the log until its next use, since a partition can have very many segments."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def close(self) -> None:
        if self._index is not None:
            self._index.close()
        self.release()


def _last_time(path: str) -> int:
    """Return the timestamp of the last slot of a ``.timeindex``, including zero padding."""
    size = TIME_ENTRY.itemsize
    refuse_linked_out(path)
    with open(path, "rb") as file:
        entries = file.seek(0, 2) // size
        if not entries:
            return NO_TIMESTAMP
        file.seek((entries - 1) * size)
        (entry,) = np.frombuffer(file.read(size), TIME_ENTRY)
    return int(entry["timestamp_ms"])
