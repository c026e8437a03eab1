"""The offset index and time index of a segment: index files, or indexes built in memory.

For remote segments, index files are fetched once for all threads of a run. Missing indexes are also
built only once, and shared with the other workers of a run through a folder.

When an index file is opened, its size, the order of its entries and its last entry are checked.
After the last time index entry, the log must have no larger timestamp. Each other entry is compared
with the log when a lookup uses it (`kafka_index.core.kernels.batch_seek`).
"""

from __future__ import annotations

import hashlib
import io
import json
import logging
import os
import threading
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from functools import partial
from typing import NamedTuple, TypeVar

import numpy as np

from kafka_index.core.errors import InputError, KafkaIndexError, ReadError, RetriableError
from kafka_index.core.format.integers import INT32_MAX
from kafka_index.core.format.names import OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX, index_name_for
from kafka_index.core.format.records import NO_TIMESTAMP
from kafka_index.core.fs.registry import store_of
from kafka_index.core.fs.store import Bytes
from kafka_index.core.fs.uris import is_backup_path
from kafka_index.core.index.sparse_indexes import (
    IN_MEMORY,
    AbstractIndex,
    LazyIndex,
    OffsetIndex,
    TimeIndex,
)
from kafka_index.core.kernels.batch_header import AT_DAMAGE
from kafka_index.core.kernels.batch_seek import entry_end, largest_timestamp_after, time_entry_end
from kafka_index.core.kernels.search import NOT_FOUND
from kafka_index.core.log.read.answers import (
    INDEX_REFUSED,
    NO_INDEX,
    TAIL,
    UNREADABLE,
    SegmentFindings,
)
from kafka_index.core.log.read.segment_log import MAX_TAIL_BYTES, SegmentLog
from kafka_index.core.log.scan.file_records import LogEnd
from kafka_index.core.logdir.partition_files import SegmentFile
from kafka_index.core.records.batch_table import ScanStop

_log = logging.getLogger(__name__)

#: Maximum total size of cached indexes. The least recently used indexes are evicted.
MAX_CACHED_BYTES = 256 << 20
# Number of bytes at the end of a log that are inspected for preallocated zeros.
_LOG_END_BYTES = 4096
#: Reason to reject an offset index, formatted with the offset of an entry.
NO_BATCH_AT_ENTRY = "the entry for offset {} does not point to a batch"

_Index = TypeVar("_Index", bound=AbstractIndex)
_Key = TypeVar("_Key", bound=Hashable)
_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class BuiltIndexes:
    """Indexes of a segment that were built in memory. Entries are in the format of index files.

    Attributes
    ----------
    stop
        Why the scan ended before the end of the ``.log`` file; None if it reached the end.
    has_unindexed
        True if the log ends with batches whose offsets are too far above the base offset for an
        index entry.
    """

    base_offset: int
    offset_entries: Bytes
    time_entries: Bytes
    stop: ScanStop | None
    has_unindexed: bool = False

    @property
    def size_bytes(self) -> int:
        return self.offset_entries.nbytes + self.time_entries.nbytes

    def open(self) -> tuple[OffsetIndex, TimeIndex]:
        return (
            OffsetIndex(IN_MEMORY, self.base_offset, INT32_MAX, content=self.offset_entries),
            TimeIndex(IN_MEMORY, self.base_offset, INT32_MAX, content=self.time_entries),
        )


class IndexFolder:
    """Stores built indexes as hidden files in a folder that all workers of a run can read."""

    def __init__(self, path: str) -> None:
        self._path = path

    def read(self, key: Hashable) -> BuiltIndexes | None:
        """Read the indexes with a key; None if no worker has written a valid file.

        Raises `KafkaIndexError` if the folder cannot be read.
        """
        path = self._file(key)
        try:
            with np.load(io.BytesIO(store_of(path).read(path)), allow_pickle=False) as arrays:
                stop = json.loads(arrays["stop"].tobytes())
                return BuiltIndexes(
                    int(arrays["base_offset"]),
                    arrays["offset_entries"],
                    arrays["time_entries"],
                    None if stop is None else ScanStop(**stop),
                    has_unindexed=bool(arrays["has_unindexed"]),
                )
        except (OSError, ValueError, TypeError, KeyError, zipfile.BadZipFile):
            return None

    def write(self, key: Hashable, built: BuiltIndexes) -> None:
        """Write the indexes with a key. If writing fails, a warning is logged.

        Other workers then build the indexes again.
        """
        path = self._file(key)
        stop = None if built.stop is None else asdict(built.stop)
        file = io.BytesIO()
        np.savez_compressed(
            file,
            base_offset=np.int64(built.base_offset),
            offset_entries=built.offset_entries,
            time_entries=built.time_entries,
            has_unindexed=np.bool_(built.has_unindexed),
            stop=np.frombuffer(json.dumps(stop).encode(), np.uint8),
        )
        try:
            store_of(path).put(path, file.getvalue())
        except (KafkaIndexError, OSError) as error:
            _log.warning("cannot share built indexes with other workers: %s", error)

    def _file(self, key: Hashable) -> str:
        digest = hashlib.sha256(repr(key).encode()).hexdigest()
        return os.path.join(self._path, f".indexes-{digest[:32]}.npz")


class FetchedIndexes:
    """Caches fetched index files of remote segments, and indexes that were built in memory."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._files: OrderedDict[str, Future[Bytes | None]] = OrderedDict()
        self._built: OrderedDict[Hashable, Future[BuiltIndexes]] = OrderedDict()
        self._folder: IndexFolder | None = None

    def share(self, folder: IndexFolder | None) -> None:
        """Share built indexes with other workers through a folder, or not at all with None."""
        self._folder = folder

    def request(self, path: str) -> None:
        self._submit_read(path)

    def read(self, path: str) -> Bytes | None:
        """Return the content of an index file, None if it does not exist.

        Raises `KafkaIndexError` if the file cannot be read.
        """
        future = self._submit_read(path)
        try:
            return future.result()
        except BaseException:
            with self._lock:
                self._files.pop(path, None)
            raise
        finally:
            self._evict()

    def build(self, key: Hashable, build: Callable[[], BuiltIndexes]) -> BuiltIndexes:
        """Return the indexes with a key. The first thread that requests them calls `build`.

        The key must identify the log and all settings that affect the indexes.
        """
        with self._lock:
            future = self._built.get(key)
            is_first = future is None
            if future is None:
                future = self._built[key] = Future()
            self._built.move_to_end(key)
        if is_first:
            try:
                future.set_result(self._read_or_build(key, build))
            except BaseException as error:  # noqa: BLE001, because other threads wait for it
                with self._lock:
                    self._built.pop(key, None)
                future.set_exception(error)
        try:
            return future.result()
        finally:
            self._evict()

    def _read_or_build(self, key: Hashable, build: Callable[[], BuiltIndexes]) -> BuiltIndexes:
        folder = self._folder
        if folder is None:
            return build()
        built = folder.read(key)
        if built is None:
            built = build()
            folder.write(key, built)
        return built

    def _submit_read(self, path: str) -> Future[Bytes | None]:
        with self._lock:
            future = self._files.get(path)
            if future is None:
                from kafka_index.core.fs.fetched_file import requests  # noqa: PLC0415, remote only

                future = requests(os.getpid()).submit(partial(_read, path))
                self._files[path] = future
            self._files.move_to_end(path)
            return future

    def _evict(self) -> None:
        with self._lock:
            _evict_least_recent(self._files)
            _evict_least_recent(self._built)


def _evict_least_recent(cache: OrderedDict[_Key, Future[_Value]]) -> None:
    sizes = [(key, _cached_bytes(future)) for key, future in cache.items()]
    total = sum(size for _, size in sizes)
    for key, size in sizes[:-1]:
        if total <= MAX_CACHED_BYTES // 2:
            break
        if size:
            del cache[key]
            total -= size


def _read(path: str) -> Bytes | None:
    try:
        data = store_of(path).read(path)
    except FileNotFoundError:
        return None
    return np.frombuffer(data, np.uint8)


def _cached_bytes(future: Future[_Value]) -> int:
    if not future.done() or future.cancelled() or future.exception() is not None:
        return 0
    result = future.result()
    if isinstance(result, BuiltIndexes):
        return result.size_bytes
    return result.nbytes if isinstance(result, np.ndarray) else 0


class LargestTimestamp(NamedTuple):
    """The largest timestamp of a segment, -1 for none.

    `offset` is the last offset of the first batch with this timestamp. Without a timestamp, it is
    the base offset. `is_certain` is False if a part of the segment is unreadable.
    """

    timestamp_ms: int
    offset: int
    is_certain: bool = True


class SegmentIndexes:
    """The offset index and the time index of one segment, opened on first use.

    Findings are added for missing index files, for index files that do not match the log, and for
    invalid bytes at the end of the log. Indexes of remote segments are cached for the run.

    Attributes
    ----------
    stop
        Why indexes that were built in memory end before the end of the log. None if they include
        all batches.
    """

    def __init__(
        self,
        segment: SegmentFile,
        index_directory: str | None,
        index_interval_bytes: int,
        log: SegmentLog,
        findings: SegmentFindings,
        fetched: FetchedIndexes,
    ) -> None:
        self._fetched = fetched
        self._segment = segment
        self._directory = index_directory or segment.partition_directory
        self._interval = index_interval_bytes
        self._log = log
        self._findings = findings
        self._offset_index = LazyIndex(self._load_offset_index)
        self._time_index = LazyIndex(self._load_time_index)
        self._built: tuple[OffsetIndex, TimeIndex] | None = None
        # The key does not change, even if `end` is determined later, so a remote log is read
        # completely only once.
        self._build_key: tuple[str, int, int | None] | None = None
        self._rejected: set[str] = set()
        self._missing: set[str] = set()
        self._largest: LargestTimestamp | None = None
        self._end: LogEnd | None = None
        self.stop: ScanStop | None = None
        self._has_unindexed = False

    @property
    def offset_index(self) -> OffsetIndex:
        return self._offset_index.get()

    @property
    def time_index(self) -> TimeIndex:
        return self._time_index.get()

    def request(self, *, with_times: bool) -> None:
        """Start fetching the index files if they are remote; the time index only `with_times`."""
        suffixes = (OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX)[: 1 + with_times]
        for suffix in suffixes:
            path = self._path(suffix)
            is_used = not self._rejected and suffix not in self._missing
            if is_used and store_of(path).needs_requests:
                self._fetched.request(path)

    def request_end(self) -> None:
        """Start fetching a remote log from its last index entry on, which `end` reads."""
        if self._end is None:
            index = self.offset_index
            start = min(index.lookup(index.last_offset).position, self._log.size_bytes)
            if self._log.size_bytes - start <= MAX_TAIL_BYTES:
                self._log.request(np.array([start]), np.array([self._log.size_bytes]))

    def largest(self) -> LargestTimestamp:
        if self._largest is None:
            self.request(with_times=True)
            index = self.time_index
            if self._largest is None:
                is_certain = self.stop is None or (self.stop.is_tail and self._segment.is_last)
                self._largest = LargestTimestamp(*index.last_entry, is_certain=is_certain)
                if self._has_unindexed:
                    self._largest = self._largest_with_unindexed(self._largest)
        return self._largest

    @property
    def end(self) -> LogEnd:
        """The end of the valid batches. Batches after the last index entry are verified once."""
        if self._end is None:
            index = self.offset_index
            self.request_end()
            entry = index.lookup(index.last_offset)
            self._end = self._log.scan_to_end(entry)
            while self._end.end_bytes == entry.position > 0:
                # The entry points to a corrupt batch, so scan again from the previous entry.
                entry = index.lookup(entry.offset - 1)
                self._end = self._log.scan_to_end(entry)
            stop = self._end.stop
            if stop is not None:
                kind = TAIL if stop.is_tail and self._segment.is_last else UNREADABLE
                self._findings.add(kind, self._segment.log_path, stop.text, stop.position_bytes)
            disorder = self._end.disorder
            if disorder is not None and self._segment.is_last:
                self._findings.add(
                    UNREADABLE, self._segment.log_path, disorder.text, disorder.position_bytes
                )
        return self._end

    @property
    def log_size_bytes(self) -> int:
        return self.end.end_bytes if self._segment.is_last else self._log.size_bytes

    def floor_position(self, offset: int) -> int:
        """Return the position of the index entry for an offset; reject entries without a batch."""
        while True:
            entry = self.offset_index.lookup(offset)
            if not entry.position:
                return 0
            if self._entry_end(entry.position, entry.offset) >= 0:
                return entry.position
            self.reject(OFFSET_INDEX_SUFFIX, NO_BATCH_AT_ENTRY.format(entry.offset))

    def reject(self, suffix: str, reason: str) -> None:
        """Reject an index file, because one of its entries is wrong; the index is built in memory.

        Raises `ReadError` if the file was already rejected: then the log changed during the reads.
        """
        path = self._path(suffix)
        if suffix in self._rejected:
            raise ReadError("the log changed while it was read", path=self._segment.log_path)
        self._reject(suffix, path, reason)
        self._largest = None
        self.close()

    def check_faults(self) -> None:
        """Raise `InputError` if an index file was truncated while it was read."""
        for index, suffix in (
            (self._offset_index, OFFSET_INDEX_SUFFIX),
            (self._time_index, TIME_INDEX_SUFFIX),
        ):
            if index.faulted:
                raise InputError(
                    "the index file was truncated while it was read", path=self._path(suffix)
                )

    def close(self) -> None:
        """Unmap index files and discard built indexes. The next use opens or builds them again."""
        self._offset_index.close()
        self._time_index.close()
        self._built = None

    def _path(self, suffix: str) -> str:
        name = index_name_for(os.path.basename(self._segment.log_path), suffix)
        return os.path.join(self._directory, name)

    def _reject(self, suffix: str, path: str, reason: str) -> None:
        self._rejected.add(suffix)
        self._findings.add(INDEX_REFUSED, path, reason)

    def _load_offset_index(self) -> OffsetIndex:
        loaded = self._load_file(OFFSET_INDEX_SUFFIX, OffsetIndex, self._offset_mismatch)
        return loaded or self._build()[0]

    def _load_time_index(self) -> TimeIndex:
        loaded = self._load_file(TIME_INDEX_SUFFIX, TimeIndex, self._time_mismatch)
        if loaded is None:
            # Discard a largest timestamp from the rejected file: the built index determines it.
            self._largest = None
            return self._build()[1]
        return loaded

    def _load_file(
        self, suffix: str, index_class: type[_Index], find_mismatch: Callable[[_Index], str | None]
    ) -> _Index | None:
        path = self._path(suffix)
        if suffix in self._missing:
            return None
        if not self._rejected.isdisjoint((suffix, OFFSET_INDEX_SUFFIX)):
            # A time index is not used if the offset index was rejected, because both were written
            # together.
            return None
        # Open the log first, so that its error is not reported as an error of the index file.
        self._log.open()
        try:
            is_fetched = store_of(path).needs_requests
            content = self._fetched.read(path) if is_fetched else None
            if content is None and (is_fetched or not os.path.exists(path)):
                self._missing.add(suffix)
                if not is_backup_path(path):  # A backup has no index files.
                    self._findings.add(
                        NO_INDEX,
                        path,
                        "the index file does not exist; the index is built in memory",
                    )
                return None
            index = index_class(path, self._segment.base_offset, writable=False, content=content)
        except RetriableError:
            raise
        except KafkaIndexError as error:
            self._reject(suffix, path, error.message)
            return None
        try:
            index.skip_padding()
            index.sanity_check()
            slot = index.find_disorder()
            reason = (
                find_mismatch(index)
                if slot == NOT_FOUND
                else f"entry {slot} is not above entry {slot - 1}"
            )
        except KafkaIndexError as error:
            reason = error.message
        if reason is None:
            return index
        index.close_handler()
        self._reject(suffix, path, reason)
        return None

    def _offset_mismatch(self, index: OffsetIndex) -> str | None:
        log = self._log
        last_position = 0
        if index.entries:
            offset, last_position = index.entry(index.entries - 1)
            if last_position >= log.size_bytes:
                return f"the last entry points to byte {last_position}, after the end of the log"
            # For a rolled remote segment, the last entry is compared with the log only when a
            # lookup uses it. This avoids a request.
            is_checked = self._segment.is_last or not log.is_fetched
            if is_checked and self._entry_end(last_position, offset) < 0:
                return (
                    f"the last entry is for offset {offset}, but no batch at or near byte "
                    f"{last_position} ends at this offset"
                )
        if self._is_long(log.size_bytes - last_position) and (
            not self._segment.is_last or self._has_data_at_remote_end()
        ):
            return f"the last entry points to byte {last_position} of {log.size_bytes}"
        return None

    def _has_data_at_remote_end(self) -> bool:
        """Return whether the end of a remote log contains data, not only zeros.

        An index of the last segment may end long before the log. Each lookup would then fetch the
        log after the last entry, whereas building the index streams the log only once.
        """
        log = self._log
        if not log.is_fetched:
            return False
        return log.complete(lambda: bool(log.array[-_LOG_END_BYTES:].any()))

    def _time_mismatch(self, index: TimeIndex) -> str | None:
        log = self._log
        address, size = log.address, log.size_bytes
        position = 0
        last_entry = index.last_entry
        if index.entries:
            floor = self.floor_position(last_entry.offset)
            position = log.complete(lambda: int(time_entry_end(address, size, floor, *last_entry)))
            if position == AT_DAMAGE and floor:
                # If offsets decrease, the offset index may point past the batch of the time index
                # entry.
                position = log.complete(lambda: int(time_entry_end(address, size, 0, *last_entry)))
            if position == AT_DAMAGE:
                return (
                    f"the last entry has timestamp {last_entry.timestamp} and offset "
                    f"{last_entry.offset}, but no batch has both"
                )
        timestamp, offset, end = log.complete(
            lambda: largest_timestamp_after(address, size, position)
        )
        if timestamp > max(last_entry.timestamp, NO_TIMESTAMP):
            # A broker appends the time index entry for the largest timestamp when it rolls or
            # closes the segment. The entry may be missing in the last segment of a running or
            # killed broker.
            if not self._segment.is_last or self._is_long(int(end) - position):
                return (
                    f"the log has timestamp {timestamp} at offset {offset}, which is later than "
                    "the last entry"
                )
            self._largest = LargestTimestamp(int(timestamp), int(offset))
        return None

    def _largest_with_unindexed(self, indexed: LargestTimestamp) -> LargestTimestamp:
        """Return the largest timestamp, also of batches that cannot have an index entry."""
        log, index = self._log, self.offset_index
        position = max(index.lookup(index.last_offset).position, 0)
        address, size = log.address, log.size_bytes
        timestamp, offset, _ = log.complete(
            lambda: largest_timestamp_after(address, size, position)
        )
        if timestamp <= indexed.timestamp_ms:
            return indexed
        return indexed._replace(timestamp_ms=int(timestamp), offset=int(offset))

    def _entry_end(self, position: int, offset: int) -> int:
        log = self._log
        return log.complete(lambda: int(entry_end(log.address, log.size_bytes, position, offset)))

    def _is_long(self, tail_bytes: int) -> bool:
        return tail_bytes > MAX_TAIL_BYTES + self._interval

    def _build(self) -> tuple[OffsetIndex, TimeIndex]:
        """Build both indexes in memory from the batch headers."""
        if self._built is None:
            # If `end` was already determined with a previous index, the built index must end there
            # too.
            end = self._end if self._segment.is_last else None
            if self._log.is_fetched:
                if self._build_key is None:
                    limit = None if end is None else end.end_bytes
                    self._build_key = self._segment.log_path, self._interval, limit
                built = self._fetched.build(self._build_key, lambda: self._build_once(end))
            else:
                built = self._build_once(end)
            self.stop = built.stop
            self._has_unindexed = built.has_unindexed
            self._built = built.open()
        return self._built

    def _build_once(self, end: LogEnd | None) -> BuiltIndexes:
        # Imported here because most segments have index files.
        from kafka_index.core.log.scan.index_builder import IndexBuilder  # noqa: PLC0415
        from kafka_index.core.log.scan.segment_scan import LogFileSource  # noqa: PLC0415

        base_offset = self._segment.base_offset
        offset_index = OffsetIndex(IN_MEMORY, base_offset, INT32_MAX, growing=True)
        time_index = TimeIndex(IN_MEMORY, base_offset, INT32_MAX, growing=True)
        builder = IndexBuilder(offset_index, time_index, self._interval)
        source = LogFileSource.of_segment(self._segment, verify_crc=False, recovers=False)
        stop, has_unindexed = None, False
        end_bytes = INT32_MAX if end is None else end.end_bytes
        for batches in source.chunks():
            valid_rows = int(np.searchsorted(batches.position_bytes, end_bytes))
            # Batches more than 2^31 - 1 above the base offset have no index entries. Lookups scan
            # their headers.
            unindexed = np.flatnonzero(batches.last_offset[:valid_rows] > base_offset + INT32_MAX)
            indexed_rows = int(unindexed[0]) if len(unindexed) else valid_rows
            if indexed_rows:
                stop = builder.append(batches.slice(0, indexed_rows))
            if indexed_rows < valid_rows:
                has_unindexed = True
                break
            if valid_rows < batches.rows and end is not None:
                stop = stop or end.stop
            if stop is not None:
                break
        stop = builder.finish() or stop or source.stop
        return BuiltIndexes(
            base_offset,
            offset_index.entry_bytes(),
            time_index.entry_bytes(),
            stop,
            has_unindexed=has_unindexed,
        )
