"""Simulation of how a starting broker loads a partition, without changes to its files.

The steps are the same as in `core.log.append.log_loader`. Recovery, truncation and files that a
broker would write exist only in memory. Source: Kafka's ``LogLoader``, ``LogSegment``.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from kafka_index.core.errors import (
    CorruptIndexError,
    CorruptLogError,
    CorruptSnapshotError,
    DirectoryFailsError,
    InputError,
    InvalidEpochError,
    StartRefusedError,
    UnknownVersionError,
    is_retriable,
)
from kafka_index.core.format.config import DEFAULT_MAX_DECOMPRESSED_BYTES, LogConfig
from kafka_index.core.format.integers import INT32_MAX
from kafka_index.core.format.names import (
    LOG_SUFFIX,
    OFFSET_DIGITS,
    OFFSET_INDEX_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    TopicPartition,
)
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
from kafka_index.core.fs.registry import is_dead_link, opening_error
from kafka_index.core.fs.store import Bytes
from kafka_index.core.index.sparse_indexes import IN_MEMORY, OffsetIndex, TimeIndex
from kafka_index.core.index.transaction_index import TransactionIndex
from kafka_index.core.kernels.headers import (
    CONTROL_MESSAGE,
)
from kafka_index.core.log.append.incoming_batches import IncomingBatches
from kafka_index.core.log.append.log_loader import (
    OFFSET_BACKWARD,
    EpochFile,
    LoadConditions,
    LoadedOffsets,
    LogLoader,
    OffsetsGoBackError,
)
from kafka_index.core.log.append.log_segment_writer import Clock, floor_segment, translate_offset
from kafka_index.core.log.append.producer_state_manager import (
    Producers,
    ProducerStateManager,
    SnapshotFiles,
)
from kafka_index.core.log.append.settings import LogSettings, log_settings_of
from kafka_index.core.log.scan.file_records import (
    LogBatches,
    LogOffsetPosition,
    batch_at,
    open_log,
    scan_to_end,
)
from kafka_index.core.log.scan.index_builder import IndexBuilder
from kafka_index.core.log.scan.log_offsets import SegmentSpan, split_segment
from kafka_index.core.log.scan.scanner import entry_length
from kafka_index.core.log.state.snapshots import decode_snapshot, snapshot_path
from kafka_index.core.logdir.data_directory import DataDirectory
from kafka_index.core.records.batch_table import (
    OFFSET_OVERFLOW,
    TORN_BATCH,
    TORN_HEADER,
    BatchColumns,
    ScanStop,
)
from kafka_index.core.records.decompression import shared_budget
from kafka_index.core.records.record_sections import first_offset
from kafka_index.core.startup.prediction import (
    LoadedLog,
    LostRecords,
    SegmentAction,
    SegmentPrediction,
)
from kafka_index.core.startup.startup_files import StartupFiles, StartupSegment, list_startup_files


@dataclass(frozen=True, slots=True, kw_only=True)
class Loading(LoadConditions):
    """Settings and state with which a broker loads one partition.

    `clock` returns the time in ms. `is_offline` is True if the data directory is already offline.
    """

    settings: LogSettings
    clock: Clock
    is_offline: bool = False

    @classmethod
    def from_directory(
        cls, root: DataDirectory, partition: TopicPartition, config: LogConfig, clock: Clock
    ) -> Loading:
        return cls(
            root.is_clean,
            root.recovery_point(partition),
            root.log_start_offset(partition) or 0,
            settings=log_settings_of(config, partition.topic),
            clock=clock,
        )


@dataclass(slots=True)
class LoadedPartition:
    """A partition after loading.

    Its logs stay mapped until the context ends.

    Attributes
    ----------
    segments
        The remaining segments.
    deleted
        The deleted segments, keyed by base offset.
    reasons
        Why segments are deleted, truncated or rebuilt, keyed by base offset.
    bytes_read
        Approximate number of bytes read from logs and snapshots.
    """

    files: StartupFiles
    log: LoadedLog
    segments: list[LoadedSegment]
    deleted: dict[int, LoadedSegment]
    reasons: dict[int, str]
    bytes_read: int


@contextmanager
def load_partition(
    partition: TopicPartition, directory: str, loading: Loading
) -> Iterator[LoadedPartition]:
    """Load a partition; its logs stay mapped until the context ends.

    Raises `StartRefusedError` if a broker does not start on it, and `InputError` if a file cannot
    be read.
    """
    predicted = _PredictedFiles(
        directory, list_startup_files(partition, directory), loading.settings
    )
    try:
        yield _load_or_split(directory, predicted, loading)
    finally:
        for segment in predicted.opened:
            segment.close()


@dataclass
class _PredictedFiles:
    """The segments of a partition, opened read-only; implements `LoadingFiles`."""

    directory: str
    files: StartupFiles
    settings: LogSettings
    segments: list[LoadedSegment] = field(default_factory=list)
    deleted: dict[int, LoadedSegment] = field(default_factory=dict)
    splits: dict[int, list[SegmentSpan]] = field(default_factory=dict)
    opened: list[LoadedSegment] = field(default_factory=list)

    def open_segments(self) -> Iterator[LoadedSegment]:
        for files in self.files.segments:
            spans = self.splits.get(files.log.base_offset)
            if spans is None:
                segments = [LoadedSegment(files.log.base_offset, self.settings, files)]
            else:
                segments = [
                    LoadedSegment(span.base_offset, self.settings, files, span) for span in spans
                ]
            self.opened += segments
            yield from segments

    def split(self, base_offset: int) -> None:
        """Split a segment; discard the loaded state and the snapshot at its base offset."""
        files = next(
            segment for segment in self.files.segments if segment.log.base_offset == base_offset
        )
        spans = split_segment(files.log, shared_budget(DEFAULT_MAX_DECOMPRESSED_BYTES))
        if not spans:
            raise StartRefusedError(
                "an offset does not fit into the segment", path=files.log.log_path
            )
        is_listed = any(segment.base_offset == base_offset for segment in self.segments)
        if not is_listed and spans[0].base_offset != base_offset:
            # ``LocalLog.replaceSegments`` does not replace a segment that is still being loaded.
            spans = [SegmentSpan(base_offset, 0, files.log.log_size_bytes), *spans]
        self.splits[base_offset] = spans
        self.files.snapshots = [offset for offset in self.files.snapshots if offset != base_offset]
        self.segments, self.deleted = [], {}

    def create_segment(self, base_offset: int) -> LoadedSegment:
        path = os.path.join(self.directory, f"{base_offset:0{OFFSET_DIGITS}d}{LOG_SUFFIX}")
        path_error = opening_error(path)
        if path_error is not None:
            raise DirectoryFailsError(
                f"a broker cannot create the log: the path is {path_error}", path=path
            )
        return LoadedSegment(base_offset, self.settings)

    def delete_segment(self, segment: LoadedSegment) -> None:
        self.deleted[segment.base_offset] = segment

    def check_closed(self, segment: LoadedSegment) -> None:
        """Do nothing: a broker does not check the active segment after a clean shutdown."""

    def check_log_start(self, log_start_offset: int, log_end_offset: int) -> None:
        """Do nothing: a broker deletes a log that ends before the log start offset."""


def _load_or_split(directory: str, files: _PredictedFiles, loading: Loading) -> LoadedPartition:
    """Load the partition; start over after each split (``LogLoader.retryOnOffsetOverflow``)."""
    while True:
        try:
            return _load(directory, files, loading)
        except SegmentOverflowError as error:
            files.split(error.base_offset)


def _load(directory: str, files: _PredictedFiles, loading: Loading) -> LoadedPartition:
    snapshots = PredictedSnapshots(directory, files.files.snapshots)
    with _converting_errors(directory):
        epochs = PredictedEpochs(directory)
        loader = LogLoader(
            files,
            epochs,
            lambda: ProducerStateManager(
                snapshots, loading.settings.producer_id_expiration_ms, loading.clock
            ),
            loading,
        )
        offsets = loader.load()
        producers = loader.producer_state.producers
        _look_up_first_unstable_offset(files.segments, producers, offsets, loading)
    log = LoadedLog(
        offsets.log_start_offset,
        offsets.log_end_offset,
        offsets.recovery_point,
        tuple(segment.base_offset for segment in files.segments),
        epochs.cache.entries,
        decode_snapshot(producers.snapshot()),
        producers.first_unstable_offset,
    )
    bytes_read = snapshots.bytes_read + sum(segment.bytes_read for segment in files.opened)
    return LoadedPartition(
        files.files, log, files.segments, files.deleted, loader.reasons, bytes_read
    )


def _look_up_first_unstable_offset(
    segments: Sequence[LoadedSegment],
    producers: Producers,
    offsets: LoadedOffsets,
    loading: Loading,
) -> None:
    """Search for the first unstable offset, which can fail as in a broker.

    Source: ``UnifiedLog.maybeIncrementFirstUnstableOffset``, ``LocalLog.read``.
    """
    open_offsets = (producers.first_unstable_offset, producers.first_replayed_transaction)
    first_offset = min((offset for offset in open_offsets if offset is not None), default=None)
    if first_offset is None:
        return
    if loading.is_offline:
        raise StartRefusedError(
            f"a transaction is open from offset {first_offset}, and the data directory is already "
            "offline: a broker exits when it looks up the transaction"
        )
    offset = max(first_offset, offsets.log_start_offset)
    if not segments[0].base_offset <= offset < offsets.log_end_offset:
        return
    for segment in segments[floor_segment(segments, offset) :]:
        if segment.offset_to_position(offset) is not None:
            return


@contextmanager
def _converting_errors(directory: str) -> Iterator[None]:
    """Convert errors on which a broker fails to `StartRefusedError`."""
    try:
        yield
    except StartRefusedError:
        raise
    except OffsetsGoBackError as error:
        raise DirectoryFailsError(str(error), path=directory) from error
    except (CorruptLogError, InputError, InvalidEpochError) as error:
        if is_retriable(error):
            raise
        raise StartRefusedError.of(error, directory) from error


class PredictedSnapshots(SnapshotFiles):
    """The producer snapshots of a partition, with the changes that a broker would make.

    `bytes_read` counts the bytes read from files.
    """

    def __init__(self, directory: str, offsets: Iterable[int]) -> None:
        super().__init__(directory)
        self._offsets = set(offsets)
        self._written: dict[int, bytes] = {}
        self.bytes_read = 0

    def offsets(self) -> list[int]:
        return sorted(self._offsets)

    def load_latest(
        self, offsets: Iterable[int]
    ) -> tuple[int | None, NDArray[np.void] | None, list[tuple[int, CorruptSnapshotError]]]:
        """Return offset and entries of the latest valid snapshot, and later corrupt snapshots."""
        corrupt_snapshots: list[tuple[int, CorruptSnapshotError]] = []
        for offset in reversed(list(offsets)):
            data = self._written.get(offset)
            if data is None:
                snapshot_offset, entries, faults = super().load_latest([offset])
                path = snapshot_path(self._directory, offset)
                self.bytes_read += os.path.getsize(path)
                if snapshot_offset is not None:
                    return snapshot_offset, entries, corrupt_snapshots
                corrupt_snapshots += faults
            else:
                return offset, decode_snapshot(data), corrupt_snapshots
        return None, None, corrupt_snapshots

    def write(self, offset: int, data: bytes, *, durable: bool) -> None:  # noqa: ARG002, nothing is durable here
        """Keep a producer snapshot in memory.

        Raises `OffsetsGoBackError` if the path of the snapshot is a directory, socket, device or
        broken link: recovery then truncates the complete log. Raises `StartRefusedError` if the
        path is a pipe: the broker waits until another process reads from the pipe.
        """
        path = snapshot_path(self._directory, offset)
        if os.path.exists(path) and not os.path.isfile(path):
            if stat.S_ISFIFO(os.stat(path).st_mode):
                raise StartRefusedError("a broker cannot write the snapshot to a pipe", path=path)
            file_type = "a directory" if os.path.isdir(path) else "not a regular file"
            raise OffsetsGoBackError(f"the snapshot {path} is {file_type}")
        if is_dead_link(path):
            raise OffsetsGoBackError(f"the snapshot {path} is a broken link")
        self._offsets.add(offset)
        self._written[offset] = data

    def remove(self, offset: int) -> None:
        self._offsets.discard(offset)
        self._written.pop(offset, None)


class PredictedEpochs(EpochFile):
    """The leader epochs of a partition; changes remain in memory."""

    def _write(self, text: str) -> None: ...


_TORN_CODES = (TORN_HEADER, TORN_BATCH)
#: Size of an in-memory index without entries.
_NO_INDEX_BYTES = OFFSET_ENTRY.itemsize
_NO_BYTES: Bytes = np.frombuffer(b"", np.uint8)


def find_batch(
    log: Bytes, path: str, offset_index: OffsetIndex, offset: int
) -> LogOffsetPosition | None:
    """Find the batch that contains an offset, or the first later batch, if any.

    An incomplete batch ends the log. Raises `StartRefusedError` if a broker cannot read a batch
    before the result. Source: ``LogSegment.translateOffset``.
    """
    floor = offset_index.lookup(offset)
    start_bytes = max(floor.position, 0)
    if start_bytes >= len(log):
        return None
    try:
        position = translate_offset(log, path, offset_index, offset, verify_entry=False)
    except CorruptLogError:
        position = None
    _check_searched_batches(
        log, path, start_bytes, offset_index.base_offset, _search_end(log, position, offset)
    )
    return position


def check_stop(stop: ScanStop | None, log_size: int, path: str, subject: str) -> None:
    """Raise if a broker fails to read the batch of `stop`; an incomplete batch ends the log."""
    if stop is None or stop.code in _TORN_CODES:
        return
    if log_size - stop.position_bytes <= HEADER_SIZE_UP_TO_MAGIC:
        return
    raise stop.error(StartRefusedError, path, f"{subject} cannot be read: ")


def _search_end(log: Bytes, position: LogOffsetPosition | None, offset: int) -> int:
    """Return the position after the last batch read by a search, or the log size if no match."""
    if position is None:
        return len(log)
    end_bytes = position.position + position.size
    if position.offset >= offset:
        return end_bytes
    next_header = log[end_bytes : end_bytes + HEADER_SIZE_UP_TO_MAGIC + 1]
    length = entry_length(next_header) if len(next_header) >= LOG_OVERHEAD_BYTES else 0
    return min(end_bytes + max(LOG_OVERHEAD_BYTES + length, len(next_header)), len(log))


def _check_searched_batches(
    log: Bytes, path: str, start_bytes: int, base_offset: int, end_bytes: int
) -> None:
    batches = LogBatches(
        log[:end_bytes], start_bytes, base_offset, verify_crc=False, any_offset=True
    )
    for chunk in batches:
        _check_compressed_messages(log, path, chunk)
    check_stop(batches.stop, end_bytes, path, "the log")


def _check_compressed_messages(log: Bytes, path: str, chunk: BatchColumns) -> None:
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
    """A recovered offset is too far from its segment's base offset; a broker splits the segment.

    Kafka: ``LogSegmentOffsetOverflowException``.
    """

    def __init__(self, base_offset: int) -> None:
        super().__init__(base_offset)
        self.base_offset = base_offset


class LoadedSegment:
    """A segment of a partition that is being loaded; empty if it has no files.

    Attributes
    ----------
    original_bytes, size_bytes
        Size of its log before and after truncation.
    bytes_read
        Bytes of the log that were recovered or replayed.
    is_rebuilt
        Whether the segment was recovered.
    is_split
        Whether the segment results from a split. Its log then starts at `start_bytes` of the file,
        and its index has been built.
    """

    def __init__(
        self,
        base_offset: int,
        settings: LogSettings,
        files: StartupSegment | None = None,
        span: SegmentSpan | None = None,
    ) -> None:
        self.base_offset = base_offset
        self.settings = settings
        self.is_split = span is not None
        self.start_bytes = 0 if span is None else span.start_bytes
        if files is not None and span is not None:
            log = replace(files.log, base_offset=base_offset)
            files = StartupSegment(log, is_swapped=False)
        self.files = files
        self.bytes_read = 0
        self.is_rebuilt = False
        self._file: MappedFile | None = None
        self.original_bytes = 0 if files is None else files.log.log_size_bytes
        if span is not None:
            self.original_bytes = span.end_bytes - span.start_bytes
        self.size_bytes = self.original_bytes
        self._index: OffsetIndex | None = None
        self._max_timestamp_ms = NO_TIMESTAMP

    @property
    def path(self) -> str:
        return IN_MEMORY if self.files is None else self.files.log.log_path

    @property
    def log(self) -> Bytes:
        return self.original_log[: self.size_bytes]

    @property
    def original_log(self) -> Bytes:
        """The bytes of the log before truncation, mapped on first use."""
        if self._file is None and self.files is not None and self.original_bytes:
            file = open_log(self.files.log.log_path, self.files.log)
            if not isinstance(file, MappedFile):
                raise InputError("the log is not on a local disk", path=self.path)
            self._file = file
        if self._file is None:
            return _NO_BYTES
        return self._file.array[self.start_bytes : self.start_bytes + self.original_bytes]

    @property
    def offset_index(self) -> OffsetIndex:
        """The offset index: the existing file, or the index built by recovery."""
        if self._index is None:
            self._reject_irregular_index(OFFSET_INDEX_SUFFIX)
            path = None if self.files is None else self.files.indexes.get(OFFSET_INDEX_SUFFIX)
            if path is None:
                self._index = OffsetIndex(
                    IN_MEMORY, self.base_offset, _NO_INDEX_BYTES, growing=True
                )
            else:
                self._index = OffsetIndex(path, self.base_offset, writable=False)
        return self._index

    @property
    def _not_files(self) -> dict[str, str]:
        return {} if self.files is None else self.files.not_files

    @property
    def _unsized(self) -> dict[str, str]:
        return {} if self.files is None else self.files.unsized

    def _reject_irregular_index(self, *suffixes: str) -> None:
        """Raise if an index is not a regular file, as a broker then fails to open the index."""
        for suffix in suffixes:
            if suffix in self._not_files:
                raise DirectoryFailsError(
                    "the index is not a regular file", path=self._not_files[suffix]
                )

    def passes_sanity_check(self) -> bool:
        """Return whether loading leaves the segment unchanged (``LogSegment.sanityCheck``)."""
        indexes = {} if self.files is None else self.files.indexes
        is_swapped = self.files is not None and self.files.is_swapped
        # To find the end of a swap file, a broker opens and thereby creates its index.
        has_index = any(
            OFFSET_INDEX_SUFFIX in paths for paths in (indexes, self._not_files, self._unsized)
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
        """Find the batch that contains an offset, or the first later batch, if any."""
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
        log_end = scan_to_end(self.log, entry, self.base_offset, verify_crc=False)
        check_stop(log_end.stop, self.size_bytes, self.path, "the end of the log")
        # A broker also searches for the offset of the last entry. This search can fail on batches
        # that the scan accepts.
        self.offset_to_position(self.offset_index.last_offset)
        return log_end.next_offset

    def torn_bytes(self) -> int:
        """Return how many bytes follow the last complete batch; 0 for a recovered log."""
        if not self.size_bytes or self.is_rebuilt:
            return 0
        entry = self.offset_index.lookup(self.offset_index.last_offset)
        if entry.position >= self.size_bytes:
            return 0
        log_end = scan_to_end(self.log, entry, self.base_offset, verify_crc=False)
        return self.size_bytes - log_end.end_bytes

    def recover(self) -> int:
        """Rebuild the index, truncate at the first invalid byte, and return the truncated bytes.

        Raises `OffsetsGoBackError` if Kafka throws ``InvalidOffsetException``, and
        `StartRefusedError` if a broker does not start on such a log. Source:
        ``LogSegment.recover``.
        """
        for suffix in (OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX):
            if suffix in self._unsized:
                # Kafka opens but does not map the file, and throws a NullPointerException.
                path = self._unsized[suffix]
                raise StartRefusedError(
                    "a broker cannot rebuild an index that is a pipe or the null device", path=path
                )
        self._reject_irregular_index(OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX)
        index_bytes = self.settings.segment_index_bytes
        index = OffsetIndex(IN_MEMORY, self.base_offset, index_bytes, growing=True)
        time_index = TimeIndex(IN_MEMORY, self.base_offset, index_bytes, growing=True)
        builder = IndexBuilder(index, time_index, self.settings.index_interval_bytes)
        stop = builder.recover(LogBatches(self.log, 0, self.base_offset, verify_crc=True))
        self.is_rebuilt = True
        self._max_timestamp_ms = builder.max_timestamp_ms
        self.bytes_read += self.size_bytes
        if stop is not None:
            if stop.code == OFFSET_BACKWARD:
                raise OffsetsGoBackError(f"offsets decrease at byte {stop.position_bytes}")
            self._use_index(index)
            max_offset = self.base_offset + INT32_MAX
            if stop.code == OFFSET_OVERFLOW and self.next_offset() > max_offset + 1:
                raise SegmentOverflowError(self.base_offset)
            raise stop.error(StartRefusedError, self.path, "the segment cannot be recovered: ")
        self._use_index(index)
        return self.truncate_to(builder.valid_bytes)

    def stored_batches(self) -> Iterator[IncomingBatches]:
        """Yield the remaining batches without verifying them again."""
        return IncomingBatches.scan_stored(self.log, self.base_offset)

    def append_aborted(self, aborted: NDArray[np.void]) -> None:
        """Discard aborted transactions: no consumer reads this log.

        Raises
        ------
        OffsetsGoBackError
            A broker cannot create the index. Recovery then truncates the complete log.
        """
        path = None if self.files is None else self.files.txn_index_to_nowhere
        if path is not None and len(aborted):
            raise OffsetsGoBackError(f"the transaction index {path} is a broken link")

    def truncate_to(self, size_bytes: int) -> int:
        """Truncate the log to a size; return the number of truncated bytes."""
        truncated_bytes = self.size_bytes - size_bytes
        self.size_bytes = size_bytes
        return truncated_bytes

    def truncate_fully(self) -> int:
        """Truncate the complete log, as Kafka does if offsets decrease (``truncateTo``)."""
        self._use_index(OffsetIndex(IN_MEMORY, self.base_offset, _NO_INDEX_BYTES, growing=True))
        return self.truncate_to(0)

    def _use_index(self, index: OffsetIndex) -> None:
        if self._index is not None:
            self._index.close()
        self._index = index

    def resize_indexes(self) -> None:
        """Raise if an index file is larger than the settings allow (``resizeIndexes``)."""
        self._reject_irregular_index(OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX)
        for unsized in self._unsized.values():
            raise DirectoryFailsError(
                "the index of the active segment cannot be resized", path=unsized
            )
        indexes = {} if self.files is None or self.is_rebuilt else self.files.indexes
        for suffix, entry in ((OFFSET_INDEX_SUFFIX, OFFSET_ENTRY), (TIME_INDEX_SUFFIX, TIME_ENTRY)):
            path = indexes.get(suffix)
            if path is None:
                continue
            entry_bytes = entry.itemsize
            limit = self.settings.segment_index_bytes // entry_bytes * entry_bytes
            refuse_linked_out(path)
            with open(path, "rb") as file:
                index_bytes = file.seek(0, 2) // entry_bytes * entry_bytes
            if index_bytes > limit:
                raise StartRefusedError(
                    "the index of the active segment is larger than segment.index.bytes",
                    path=path,
                    expected=f"{limit} bytes or fewer",
                    found=index_bytes,
                )

    def largest_timestamp_ms(self, now_ms: int) -> int:
        """Return the timestamp used by time-based retention (``LogSegment.largestTimestamp``).

        If the log was truncated, its modification time is `now_ms`.
        """
        if self.files is None:
            return now_ms
        path = self.files.indexes.get(TIME_INDEX_SUFFIX)
        largest = self._max_timestamp_ms
        if not self.is_rebuilt and path is not None:
            largest = _last_timestamp_ms(path)
        if largest >= 0:
            return largest
        is_truncated = self.size_bytes < self.original_bytes
        return now_ms if is_truncated else self.files.log.log_mtime_ns // 10**6

    def release(self) -> None:
        """Unmap the log until its next use, since a partition can have very many segments."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def close(self) -> None:
        if self._index is not None:
            self._index.close()
        self.release()


def _last_timestamp_ms(path: str) -> int:
    """Return the timestamp of the last slot of a ``.timeindex``, including zero padding."""
    entry_bytes = TIME_ENTRY.itemsize
    refuse_linked_out(path)
    with open(path, "rb") as file:
        entries = file.seek(0, 2) // entry_bytes
        if not entries:
            return NO_TIMESTAMP
        file.seek((entries - 1) * entry_bytes)
        (entry,) = np.frombuffer(file.read(entry_bytes), TIME_ENTRY)
    return int(entry["timestamp_ms"])


_SPLIT_REASON = "split: the offsets of a segment are 2^31 or more apart"
_UNFLUSHED_REASON = "unflushed: the segment is not below the recovery point, or is the last segment"


def predict_segments(loaded: LoadedPartition) -> list[SegmentPrediction]:
    files = loaded.files
    swapped_offsets = {segment.log.base_offset for segment in files.segments if segment.is_swapped}
    replaced = "replaced: a completed compaction or split contains the offsets of this segment"
    delete = SegmentAction.DELETE
    predictions = [SegmentPrediction(offset, delete, None, replaced) for offset in files.replaced]
    predictions += [
        SegmentPrediction(offset, delete, None, loaded.reasons.get(offset))
        for offset in loaded.deleted
    ]
    for segment in loaded.segments:
        if segment.files is None:
            continue
        base_offset, reason = segment.base_offset, loaded.reasons.get(segment.base_offset)
        cut_at_bytes = None
        if segment.original_bytes > segment.size_bytes:
            action, cut_at_bytes = SegmentAction.CUT, segment.size_bytes
        elif base_offset in swapped_offsets:
            action, reason = SegmentAction.REPLACE, "swapped: a broker renames the .swap file"
        elif segment.is_split:
            action, reason = SegmentAction.REBUILD, _SPLIT_REASON
        elif segment.is_rebuilt:
            action, reason = SegmentAction.REBUILD, reason or _UNFLUSHED_REASON
        else:
            action = SegmentAction.KEEP
        predictions.append(SegmentPrediction(base_offset, action, cut_at_bytes, reason))
    return sorted(predictions, key=attrgetter("base_offset"))


def count_lost_records(loaded: LoadedPartition, log_start_before: int) -> tuple[LostRecords, int]:
    """Count the records that startup loses; also return the log end offset before startup.

    Records below `log_start_before` were not visible and are not counted.
    """
    lost_records = LostRecords()
    log_end = loaded.log.log_end_offset
    end_offsets = [log_end]
    end_offsets += [
        _add_batches(lost_records, segment.original_log, 0, segment.base_offset, log_start_before)
        for segment in loaded.deleted.values()
    ]
    for segment in loaded.segments:
        lost_from = segment.size_bytes if segment.original_bytes > segment.size_bytes else None
        if segment.size_bytes and log_end <= segment.base_offset:
            # If a log now ends at the base offset of its active segment, all records in that
            # segment are lost.
            lost_from = 0
        if lost_from is not None:
            log = segment.original_log
            end_offsets.append(
                _add_batches(lost_records, log, lost_from, segment.base_offset, log_start_before)
            )
    for base_offset, path in loaded.files.replaced.items():
        file = MappedFile(path)
        try:
            hidden_from = max(log_start_before, loaded.files.replaced_end)
            end_offsets.append(_add_batches(lost_records, file.array, 0, base_offset, hidden_from))
        finally:
            file.close()
    return lost_records, max(end_offsets)


def _add_batches(
    lost_records: LostRecords, log: Bytes, start_bytes: int, base_offset: int, from_offset: int
) -> int:
    """Add batches that end at or after `from_offset`; return the offset after the last batch."""
    end_offset = base_offset
    for batches in LogBatches(log, start_bytes, base_offset, verify_crc=False):
        end_offset = max(end_offset, int(batches.last_offset.max()) + 1)
        rows = np.flatnonzero(batches.last_offset >= from_offset)
        if len(rows):
            # A corrupt header can contain any record count: limit the count to the number of
            # offsets.
            max_records = np.maximum(batches.last_offset[rows] - batches.base_offset[rows] + 1, 1)
            lost_records.add(
                int(np.clip(batches.record_count[rows], 1, max_records).sum()),
                (
                    max(int(batches.base_offset[rows].min()), from_offset),
                    int(batches.last_offset[rows].max()),
                ),
                (
                    int(batches.max_timestamp_ms[rows].min()),
                    int(batches.max_timestamp_ms[rows].max()),
                ),
            )
    return end_offset
