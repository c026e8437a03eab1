"""The two indexes of a segment: index files that match the log, otherwise built in memory.

Index files of remote segments are fetched, and missing indexes of remote segments built, once for
all threads of a run. A folder shares built indexes with the other workers of a run.

A file is checked when it is opened: its size, the order of its entries, its last entry, and for the
time index that no later batch has a larger timestamp. Other entries are compared with the log when
a lookup uses them (`kafka_index.core.kernels.batch_seek`).
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

#: Maximum size of cached indexes; the least recently used indexes are evicted.
MAX_KEPT_BYTES = 256 << 20
# Read at the end of a log: more than the padding of any record.
_END_BYTES = 4096

_Index = TypeVar("_Index", bound=AbstractIndex)
_Key = TypeVar("_Key", bound=Hashable)
_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class BuiltIndexes:
    """Indexes of a segment that were built in memory, in file format.

    `stop` is the reason why they end before their log, if they do. If `has_unindexed`, the log ends
    with batches whose offsets are too far above the base offset for an entry.
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
    """Built indexes as hidden files in a folder that all workers of a run can read."""

    def __init__(self, path: str) -> None:
        self._path = path

    def read(self, key: Hashable) -> BuiltIndexes | None:
        """Read the indexes of a key, None if no worker has written them yet.

        Raises `KafkaIndexError` if the folder cannot be read.
        """
        path = self._file(key)
        try:
            with np.load(io.BytesIO(store_of(path).read(path)), allow_pickle=False) as found:
                stop = json.loads(found["stop"].tobytes())
                return BuiltIndexes(
                    int(found["base_offset"]),
                    found["offset_entries"],
                    found["time_entries"],
                    None if stop is None else ScanStop(**stop),
                    has_unindexed=bool(found["has_unindexed"]),
                )
        except (OSError, ValueError, TypeError, KeyError, zipfile.BadZipFile):
            return None

    def write(self, key: Hashable, built: BuiltIndexes) -> None:
        """Write the indexes of a key; a failure is logged, and other workers build them again."""
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
            _log.warning("indexes that were built are not shared: %s", error)

    def _file(self, key: Hashable) -> str:
        digest = hashlib.sha256(repr(key).encode()).hexdigest()
        return os.path.join(self._path, f".indexes-{digest[:32]}.npz")


class FetchedIndexes:
    """Fetched index files of remote segments, and indexes built for segments without them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._files: OrderedDict[str, Future[Bytes | None]] = OrderedDict()
        self._built: OrderedDict[Hashable, Future[BuiltIndexes]] = OrderedDict()
        self._folder: IndexFolder | None = None

    def share(self, folder: IndexFolder | None) -> None:
        """Share built indexes through a folder; None keeps them in memory only."""
        self._folder = folder

    def request(self, path: str) -> None:
        self._requested(path)

    def read(self, path: str) -> Bytes | None:
        """Return the content of an index file, None if it does not exist.

        Raises `KafkaIndexError` if it cannot be read.
        """
        future = self._requested(path)
        try:
            return future.result()
        except BaseException:
            with self._lock:
                self._files.pop(path, None)
            raise
        finally:
            self._evict()

    def build(self, key: Hashable, build: Callable[[], BuiltIndexes]) -> BuiltIndexes:
        """Return the indexes of a key, built by the first thread that requests them.

        The key identifies the log and everything else that affects the result.
        """
        with self._lock:
            future = self._built.get(key)
            is_ours = future is None
            if future is None:
                future = self._built[key] = Future()
            self._built.move_to_end(key)
        if is_ours:
            try:
                future.set_result(self._read_or_build(key, build))
            except BaseException as error:  # noqa: BLE001, because others wait for it
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

    def _requested(self, path: str) -> Future[Bytes | None]:
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
            _trim(self._files)
            _trim(self._built)


def _trim(kept: OrderedDict[_Key, Future[_Value]]) -> None:
    sizes = [(key, _size(future)) for key, future in kept.items()]
    total = sum(size for _, size in sizes)
    for key, size in sizes[:-1]:
        if total <= MAX_KEPT_BYTES // 2:
            break
        if size:
            del kept[key]
            total -= size


def _read(path: str) -> Bytes | None:
    try:
        data = store_of(path).read(path)
    except FileNotFoundError:
        return None
    return np.frombuffer(data, np.uint8)


def _size(future: Future[_Value]) -> int:
    if not future.done() or future.cancelled() or future.exception() is not None:
        return 0
    found = future.result()
    if isinstance(found, BuiltIndexes):
        return found.size_bytes
    return found.nbytes if isinstance(found, np.ndarray) else 0


class Largest(NamedTuple):
    """The largest timestamp of a segment, -1 for none.

    The offset is the last offset of the first batch with this timestamp, or the base offset.
    `is_certain` is False if a part of the segment is unreadable.
    """

    timestamp_ms: int
    offset: int
    is_certain: bool = True


class SegmentIndexes:
    """The offset index and the time index of one segment, opened on first use.

    Missing and mismatching files, and the tail of the log, are reported as findings. Indexes of
    remote segments are cached for the run. `stop` is the reason why indexes built in memory end
    before their log.
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
        # Constant for the lifetime of this object, so that a remote log is read completely only
        # once.
        self._build_key: tuple[str, int, int | None] | None = None
        self._refused: set[str] = set()
        self._missing: set[str] = set()
        self._largest: Largest | None = None
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
        """Start fetching the index files, if they are remote and not open."""
        suffixes = (OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX)[: 1 + with_times]
        for suffix in suffixes:
            path = self._path(suffix)
            is_asked = not self._refused and suffix not in self._missing
            if is_asked and store_of(path).needs_requests:
                self._fetched.request(path)

    def request_end(self) -> None:
        """Start fetching the part of a remote log that determines `end`."""
        if self._end is None:
            index = self.offset_index
            start = min(index.lookup(index.last_offset).position, self._log.size_bytes)
            if self._log.size_bytes - start <= MAX_TAIL_BYTES:
                self._log.request(np.array([start]), np.array([self._log.size_bytes]))

    def largest(self) -> Largest:
        if self._largest is None:
            self.request(with_times=True)
            index = self.time_index
            if self._largest is None:
                is_certain = self.stop is None or (self.stop.is_tail and self._segment.is_last)
                self._largest = Largest(*index.last_entry, is_certain=is_certain)
                if self._has_unindexed:
                    self._largest = self._largest_with_unindexed(self._largest)
        return self._largest

    @property
    def end(self) -> LogEnd:
        """The end of the valid batches; the log after its last index entry is verified once."""
        if self._end is None:
            index = self.offset_index
            self.request_end()
            entry = index.lookup(index.last_offset)
            self._end = self._log.scan_to_end(entry)
            while self._end.end_bytes == entry.position > 0:
                # The entry points to the corruption itself, so start at the previous entry.
                entry = index.lookup(entry.offset - 1)
                self._end = self._log.scan_to_end(entry)
            stop = self._end.stop
            if stop is not None:
                kind = TAIL if stop.is_tail and self._segment.is_last else UNREADABLE
                self._findings.add(kind, self._segment.log_path, stop.text, stop.position_bytes)
            back = self._end.disorder
            if back is not None and self._segment.is_last:
                self._findings.add(
                    UNREADABLE, self._segment.log_path, back.text, back.position_bytes
                )
        return self._end

    @property
    def log_size_bytes(self) -> int:
        return self.end.end_bytes if self._segment.is_last else self._log.size_bytes

    def floor_position(self, offset: int) -> int:
        """Return the position of the index entry for an offset, after verifying the entry."""
        while True:
            entry = self.offset_index.lookup(offset)
            if not entry.position:
                return 0
            if self._entry_end(entry.position, entry.offset) >= 0:
                return entry.position
            self.refuse(
                OFFSET_INDEX_SUFFIX, f"no batch where its entry for offset {entry.offset} points to"
            )

    def refuse(self, suffix: str, reason: str) -> None:
        """Build the index in memory from now on, because an entry of its file is wrong.

        Raises `ReadError` if it was built in memory: then the log has changed.
        """
        path = self._path(suffix)
        if suffix in self._refused:
            raise ReadError("the log changed while it was read", path=self._segment.log_path)
        self._refuse(suffix, path, reason)
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
                    "the index was truncated while it was read", path=self._path(suffix)
                )

    def close(self) -> None:
        """Unmap the files and discard built indexes; the next use reopens or rebuilds them."""
        self._offset_index.close()
        self._time_index.close()
        self._built = None

    def _path(self, suffix: str) -> str:
        name = index_name_for(os.path.basename(self._segment.log_path), suffix)
        return os.path.join(self._directory, name)

    def _refuse(self, suffix: str, path: str, reason: str) -> None:
        self._refused.add(suffix)
        self._findings.add(INDEX_REFUSED, path, reason)

    def _load_offset_index(self) -> OffsetIndex:
        loaded = self._load_file(OFFSET_INDEX_SUFFIX, OffsetIndex, self._offset_mismatch)
        return loaded or self._build()[0]

    def _load_time_index(self) -> TimeIndex:
        loaded = self._load_file(TIME_INDEX_SUFFIX, TimeIndex, self._time_mismatch)
        if loaded is None:
            # The largest timestamp must come from the index in use.
            self._largest = None
            return self._build()[1]
        return loaded

    def _load_file(
        self, suffix: str, kind: type[_Index], mismatch: Callable[[_Index], str | None]
    ) -> _Index | None:
        path = self._path(suffix)
        if suffix in self._missing:
            return None
        if not self._refused.isdisjoint((suffix, OFFSET_INDEX_SUFFIX)):
            # The time index was written together with the rejected offset index.
            return None
        # An error when opening the log is not an error of its index.
        self._log.open()
        try:
            is_fetched = store_of(path).needs_requests
            content = self._fetched.read(path) if is_fetched else None
            if content is None and (is_fetched or not os.path.exists(path)):
                self._missing.add(suffix)
                if not is_backup_path(path):  # A backup has no index files.
                    self._findings.add(NO_INDEX, path, "there is no such file: built in memory")
                return None
            index = kind(path, self._segment.base_offset, writable=False, content=content)
        except RetriableError:
            raise
        except KafkaIndexError as error:
            self._refuse(suffix, path, error.message)
            return None
        try:
            index.skip_padding()
            index.sanity_check()
            slot = index.find_disorder()
            reason = (
                mismatch(index)
                if slot == NOT_FOUND
                else f"entry {slot} is not above the one before it"
            )
        except KafkaIndexError as error:
            reason = error.message
        if reason is None:
            return index
        index.close_handler()
        self._refuse(suffix, path, reason)
        return None

    def _offset_mismatch(self, index: OffsetIndex) -> str | None:
        log = self._log
        last_position = 0
        if index.entries:
            offset, last_position = index.entry(index.entries - 1)
            if last_position >= log.size_bytes:
                return f"its last entry points to byte {last_position}, after the end of the log"
            # Entries of a rolled segment are compared with the log on use, so a remote log is not
            # read now.
            is_checked = self._segment.is_last or not log.is_fetched
            if is_checked and self._entry_end(last_position, offset) < 0:
                return f"no batch at byte {last_position} or soon after it ends at offset {offset}"
        if self._is_long(log.size_bytes - last_position) and (
            not self._segment.is_last or self._is_remote_data_at_end()
        ):
            return f"it ends at byte {last_position} of the log, which has {log.size_bytes}"
        return None

    def _is_remote_data_at_end(self) -> bool:
        """Return whether a remote log ends with more than zero padding.

        The index of a last segment may lack entries. Every lookup would fetch the rest, while
        building the index streams the log only once.
        """
        log = self._log
        if not log.is_fetched:
            return False
        return log.complete(lambda: bool(log.array[-_END_BYTES:].any()))

    def _time_mismatch(self, index: TimeIndex) -> str | None:
        log = self._log
        address, size = log.address, log.size_bytes
        position = 0
        last = index.last_entry
        if index.entries:
            floor = self.floor_position(last.offset)
            position = log.complete(lambda: int(time_entry_end(address, size, floor, *last)))
            if position == AT_DAMAGE and floor:
                # If offsets decrease, the entry may point past its own batch.
                position = log.complete(lambda: int(time_entry_end(address, size, 0, *last)))
            if position == AT_DAMAGE:
                return f"no batch with offset {last.offset} has {last.timestamp} as its latest time"
        timestamp, offset, end = log.complete(
            lambda: largest_timestamp_after(address, size, position)
        )
        if timestamp > max(last.timestamp, NO_TIMESTAMP):
            # The last segment of a running or killed broker lacks the entry added on closing.
            if not self._segment.is_last or self._is_long(int(end) - position):
                return f"the log has the later timestamp {timestamp} at offset {offset}"
            self._largest = Largest(int(timestamp), int(offset))
        return None

    def _largest_with_unindexed(self, indexed: Largest) -> Largest:
        """Return the largest timestamp, including batches that cannot have an index entry."""
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
            # The end of the log was determined with the previous index, and stays the same.
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
        # Most segments have index files.
        from kafka_index.core.log.scan.index_builder import IndexBuilder  # noqa: PLC0415
        from kafka_index.core.log.scan.segment_scan import LogFileSource  # noqa: PLC0415

        base_offset = self._segment.base_offset
        offset_index = OffsetIndex(IN_MEMORY, base_offset, INT32_MAX, growing=True)
        time_index = TimeIndex(IN_MEMORY, base_offset, INT32_MAX, growing=True)
        builder = IndexBuilder(offset_index, time_index, self._interval)
        source = LogFileSource.of_segment(self._segment, verify_crc=False, recovers=False)
        stop, has_unindexed = None, False
        limit = INT32_MAX if end is None else end.end_bytes
        for batches in source.chunks():
            within = int(np.searchsorted(batches.position_bytes, limit))
            # Batches too far above the base offset have no entries, and are found by their headers.
            beyond = np.flatnonzero(batches.last_offset[:within] > base_offset + INT32_MAX)
            indexed = int(beyond[0]) if len(beyond) else within
            if indexed:
                stop = builder.append(batches.slice(0, indexed))
            if indexed < within:
                has_unindexed = True
                break
            if within < batches.rows and end is not None:
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
