"""The two indexes of a segment: index files that match the log, otherwise built in memory.

A file is checked when it is opened: its size, the order of its entries, its last entry, and for the
time index that no later batch has a larger timestamp. Other entries are compared with the log when
a lookup uses them (`kafka_index.core.kernels.batch_seek`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from itertools import zip_longest
from typing import NamedTuple, TypeVar

import numpy as np

from kafka_index.core.errors import InputError, KafkaIndexError, ReadError, RetriableError
from kafka_index.core.format.integers import INT32_MAX
from kafka_index.core.format.longs import Longs
from kafka_index.core.format.names import OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX, index_name_for
from kafka_index.core.format.records import NO_TIMESTAMP, RECORD_BATCH_OVERHEAD_BYTES
from kafka_index.core.fs.registry import store_of
from kafka_index.core.fs.uris import is_backup_path
from kafka_index.core.index.sparse_indexes import (
    IN_MEMORY,
    AbstractIndex,
    LazyIndex,
    OffsetIndex,
    TimeIndex,
)
from kafka_index.core.kernels.batch_header import AT_DAMAGE, read_batch_fields
from kafka_index.core.kernels.batch_seek import entry_end, largest_timestamp_after, time_entry_end
from kafka_index.core.kernels.search import NOT_FOUND
from kafka_index.core.log.choices import Resolve
from kafka_index.core.log.read.answers import (
    INDEX_REFUSED,
    NO_INDEX,
    TAIL,
    UNREADABLE,
    SegmentFindings,
)
from kafka_index.core.log.read.fetched_indexes import BuiltIndexes, FetchedIndexes
from kafka_index.core.log.read.fetched_log import MAX_GAP_BYTES
from kafka_index.core.log.read.segment_log import MAX_TAIL_BYTES, SegmentLog
from kafka_index.core.log.scan.file_records import LogEnd
from kafka_index.core.logdir.partition_files import SegmentFile
from kafka_index.core.records.batch_table import ScanStop

# Read at the end of a log: more than the padding of any record.
_END_BYTES = 4096

_Index = TypeVar("_Index", bound=AbstractIndex)

#: Maximum size of data that the queries of one read prefetch, per thread.
MAX_READ_BYTES = 64 << 20
# Index entries are usually not further apart than one batch, unless batches are small.
_MAX_BATCH_BYTES = 2 << 20


class Largest(NamedTuple):
    """The largest timestamp of a segment, -1 for none.

    The offset is the last one of the first batch with this timestamp, or the base offset.
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
                whole = self.stop is None or (self.stop.is_tail and self._segment.is_last)
                self._largest = Largest(*index.last_entry, is_certain=whole)
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
        loaded = self._load_file(OFFSET_INDEX_SUFFIX, OffsetIndex, self._misfit_of_offsets)
        return loaded or self._build()[0]

    def _load_time_index(self) -> TimeIndex:
        loaded = self._load_file(TIME_INDEX_SUFFIX, TimeIndex, self._misfit_of_times)
        if loaded is None:
            # The largest timestamp must come from the index in use.
            self._largest = None
            return self._build()[1]
        return loaded

    def _load_file(
        self, suffix: str, kind: type[_Index], misfit: Callable[[_Index], str | None]
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
                misfit(index)
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

    def _misfit_of_offsets(self, index: OffsetIndex) -> str | None:
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

    def _misfit_of_times(self, index: TimeIndex) -> str | None:
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


def request_parts(
    log: SegmentLog,
    indexes: SegmentIndexes,
    targets: Longs,
    resolve: Resolve,
    starting_offset: int | None,
) -> Iterator[Longs]:
    """Split queries into parts of limited size; request the ranges of each part, and yield it.

    The parameters are those of `kafka_index.core.log.read.segment_search.locate`.
    """
    if not len(targets):
        yield targets
        return
    starts, ends, queries = planned_ranges(log, indexes, targets, resolve, starting_offset)
    before = np.append(0, np.maximum.accumulate(ends)[:-1])
    gaps = starts - before
    gaps[(gaps < 0) | (gaps > MAX_GAP_BYTES)] = 0
    fetched = np.cumsum(np.maximum(ends - np.maximum(starts, before), 0) + gaps)
    part_of_query = np.zeros(len(targets), np.int64)
    np.maximum.at(part_of_query, queries, fetched // MAX_READ_BYTES)
    bounds = np.flatnonzero(np.diff(np.maximum.accumulate(part_of_query))) + 1
    parts = []
    for rows in np.split(np.arange(len(targets)), bounds):
        asked = (queries >= rows[0]) & (queries <= rows[-1])
        parts.append((targets[rows], starts[asked], ends[asked]))
    for (part, *ranges), following in zip_longest(parts, parts[1:]):
        log.request(*ranges)
        if following is not None:
            log.request(*following[1:], ahead=True)
        yield part


def planned_ranges(
    log: SegmentLog,
    indexes: SegmentIndexes,
    targets: Longs,
    resolve: Resolve,
    starting_offset: int | None,
) -> tuple[Longs, Longs, Longs]:
    """Return the ranges that ascending targets will read, by start, and the query of each.

    The arrays are starts and exclusive ends in bytes, and rows of the targets.
    """
    size = log.size_bytes
    offsets, positions = indexes.offset_index.read_entries()
    bounds = np.clip(np.concatenate(([0], positions, [size] * 3)), 0, size)
    # Entry numbers from 1, where 0 is the start of the log: the last entry at or below each target,
    # and the first entry whose batch can be the result.
    if starting_offset is None:
        floors = np.searchsorted(offsets, targets, "right")
        exact = np.searchsorted(offsets, targets) < floors
        lasts = np.where(exact, floors, floors + 1)
    else:
        timestamps, at = indexes.time_index.read_entries()
        numbers = np.searchsorted(timestamps, targets, "right")
        at = np.maximum(np.concatenate(([starting_offset], at)), starting_offset)
        floors = np.searchsorted(offsets, at[numbers], "right")
        following = at[np.minimum(numbers + 1, len(at) - 1)]
        lasts = np.maximum(np.searchsorted(offsets, following, "right"), floors)
    header = RECORD_BATCH_OVERHEAD_BYTES
    last_ends = bounds[lasts] + header
    if resolve is Resolve.RECORD:
        whole = np.minimum(bounds[lasts + 1] - bounds[lasts], _MAX_BATCH_BYTES)
        last_ends = bounds[lasts] + np.maximum(whole, header)
    starts = np.concatenate([bounds[each] for each in (floors, floors + 1, lasts, lasts + 1)])
    ends = starts + header
    ends[2 * len(targets) : 3 * len(targets)] = last_ends
    order = np.argsort(starts, kind="stable")
    queries = np.tile(np.arange(len(targets)), 4)
    return np.minimum(starts, size)[order], np.minimum(ends, size)[order], queries[order]


def fetch_batches(log: SegmentLog, size_bytes: int, batches: Longs) -> None:
    """Fetch complete batches whose headers have been read."""
    found = np.unique(batches[batches >= 0])
    fields = np.zeros((3, len(found)), np.int64)
    read_batch_fields(log.address, found, *fields)
    sizes = fields[2]
    log.fetch(found, np.minimum(found + np.maximum(sizes, 0), size_bytes))
