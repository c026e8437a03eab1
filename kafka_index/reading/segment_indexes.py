"""The two indexes of a segment: its files where they fit its log, else built in memory.

What fits is asked when a file is opened: its size, the order of its entries, its last entry, and
of the time index, that no later batch has a larger timestamp. Each other entry is held against the
log when a lookup goes by it (`kafka_index.kernels.walk`).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, TypeVar

from kafka_index.errors import InputError, KafkaIndexError, ReadError
from kafka_index.index import IN_MEMORY, AbstractIndex, LazyIndex, OffsetIndex, TimeIndex
from kafka_index.kernels import NOT_FOUND
from kafka_index.kernels.batch_header import AT_DAMAGE
from kafka_index.kernels.index_fit import entry_end, largest_behind, time_entry_end
from kafka_index.layout.index_entries import INT32_MAX
from kafka_index.layout.names import OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX, index_name_for
from kafka_index.layout.records import NO_TIMESTAMP
from kafka_index.reading.findings import INDEX_REFUSED, NO_INDEX
from kafka_index.reading.open_log import OpenLog
from kafka_index.records.batch_source import PREALLOCATED_TAIL, TORN_BATCH, TORN_HEADER, ScanStop
from kafka_index.scan.index_builder import IndexBuilder
from kafka_index.scan.segment_scan import LogFileSource
from kafka_index.storage import SegmentFile

#: An index that ends this far in front of its log, and further than an interval, lacks entries.
_LONGEST_TAIL_BYTES = 16 << 20

_Index = TypeVar("_Index", bound=AbstractIndex)

#: Called with a kind of finding, the file and the reason.
Notice = Callable[[str, str, str], None]


def is_tail(stop: ScanStop, *, is_last: bool) -> bool:
    """Return whether a broker that starts cuts this off a log as a matter of course.

    That is, from its last segment: the zeros of preallocation, or a batch not written to its end.
    """
    return is_last and stop.reason in (PREALLOCATED_TAIL, TORN_HEADER, TORN_BATCH)


class Largest(NamedTuple):
    """The largest timestamp of a segment.

    Parameters
    ----------
    timestamp_ms : int
        -1 for none.
    offset : int
        Last offset of the first batch that has it; the base offset for none.
    is_certain : bool
        False where damage hides a part of the segment.
    """

    timestamp_ms: int
    offset: int
    is_certain: bool = True


class SegmentIndexes:
    """The offset index and the time index of one segment, opened when they are needed.

    Parameters
    ----------
    segment : SegmentFile
        The segment.
    index_directory : str, optional
        Where its index files are; beside the log by default.
    index_interval_bytes : int
        ``index.interval.bytes`` of what is built in memory.
    log : OpenLog
        The log.
    notice : callable
        Told when index files are missing or refused.
    """

    def __init__(
        self,
        segment: SegmentFile,
        index_directory: str | None,
        index_interval_bytes: int,
        log: OpenLog,
        notice: Notice,
    ) -> None:
        self._segment = segment
        self._directory = index_directory or segment.partition_directory
        self._interval = index_interval_bytes
        self._log = log
        self._notice = notice
        self._offset_index = LazyIndex(self._load_offset_index)
        self._time_index = LazyIndex(self._load_time_index)
        self._built: tuple[OffsetIndex, TimeIndex] | None = None
        self._refused: set[str] = set()
        self._missing: set[str] = set()
        self._largest: Largest | None = None
        self.stop: ScanStop | None = None

    @property
    def offset_index(self) -> OffsetIndex:
        """The offset index."""
        return self._offset_index.get()

    @property
    def time_index(self) -> TimeIndex:
        """The time index."""
        return self._time_index.get()

    @property
    def are_built(self) -> bool:
        """Whether any of the two has been built in memory."""
        return self._built is not None

    def largest(self) -> Largest:
        """Return the largest timestamp of the segment."""
        if self._largest is None:
            index = self.time_index
            if self._largest is None:
                whole = self.stop is None or is_tail(self.stop, is_last=self._segment.is_last)
                self._largest = Largest(*index.last_entry, is_certain=whole)
        return self._largest

    def floor_position(self, offset: int) -> int:
        """Return the position that the offset index has for an offset, held against the log."""
        while True:
            entry = self.offset_index.lookup(offset)
            if not entry.position:
                return 0
            address, size = self._log.address, self._log.size_bytes
            if entry_end(address, size, entry.position, entry.offset) >= 0:
                return entry.position
            self.refuse(
                OFFSET_INDEX_SUFFIX, f"no batch where its entry for offset {entry.offset} leads to"
            )

    def refuse(self, suffix: str, reason: str) -> None:
        """Use what is built in memory from now on, because an entry of a file does not hold.

        Raises
        ------
        ReadError
            It was built in memory: the log is not what it was then.
        """
        path = self._path(suffix)
        if suffix in self._refused:
            raise ReadError("the log changed while it was read", path=self._segment.log_path)
        self._refuse(suffix, path, reason)
        self._largest = None
        self.close()

    def check_faults(self) -> None:
        """Raise InputError when an index file was cut while it was read."""
        for index, suffix in (
            (self._offset_index, OFFSET_INDEX_SUFFIX),
            (self._time_index, TIME_INDEX_SUFFIX),
        ):
            if index.faulted:
                raise InputError("the index was cut while it was read", path=self._path(suffix))

    def close(self) -> None:
        """Let go of files and memory; both are opened again when they are needed."""
        self._offset_index.close()
        self._time_index.close()
        self._built = None

    def _path(self, suffix: str) -> str:
        name = index_name_for(os.path.basename(self._segment.log_path), suffix)
        return os.path.join(self._directory, name)

    def _refuse(self, suffix: str, path: str, reason: str) -> None:
        self._refused.add(suffix)
        self._notice(INDEX_REFUSED, path, reason)

    def _load_offset_index(self) -> OffsetIndex:
        loaded = self._load_file(
            OFFSET_INDEX_SUFFIX, partial(OffsetIndex, writable=False), self._misfit_of_offsets
        )
        return loaded or self._build()[0]

    def _load_time_index(self) -> TimeIndex:
        loaded = self._load_file(
            TIME_INDEX_SUFFIX, partial(TimeIndex, writable=False), self._misfit_of_times
        )
        if loaded is None:
            # What is known of the largest timestamp comes from the index that is used.
            self._largest = None
            return self._build()[1]
        return loaded

    def _load_file(
        self,
        suffix: str,
        load: Callable[[str, int], _Index],
        misfit: Callable[[_Index], str | None],
    ) -> _Index | None:
        path = self._path(suffix)
        if suffix in self._missing:
            return None
        if not self._refused.isdisjoint((suffix, OFFSET_INDEX_SUFFIX)):
            # An offset index that does not fit comes with a time index of the same time.
            return None
        # What is wrong with the log is not the fault of its index.
        _ = self._log.file
        if not os.path.exists(path):
            self._missing.add(suffix)
            self._notice(NO_INDEX, path, "there is no such file: built in memory")
            return None
        try:
            index = load(path, self._segment.base_offset)
        except KafkaIndexError as error:
            self._refuse(suffix, path, error.message)
            return None
        try:
            index.skip_padding()
            index.sanity_check()
            reason = misfit(index)
        except KafkaIndexError as error:
            reason = error.message
        if reason is None:
            return index
        index.close_handler()
        self._refuse(suffix, path, reason)
        return None

    def _misfit_of_offsets(self, index: OffsetIndex) -> str | None:
        slot = index.find_disorder()
        if slot != NOT_FOUND:
            return f"entry {slot} is not above the one before it"
        log = self._log
        last_position = 0
        if index.entries:
            offset, last_position = index.entry(index.entries - 1)
            if last_position >= log.size_bytes:
                return f"its last entry points to byte {last_position}, behind the end of the log"
            if entry_end(log.address, log.size_bytes, last_position, offset) < 0:
                return f"no batch at byte {last_position} or soon behind it ends at offset {offset}"
        if not self._segment.is_last and self._is_long(log.size_bytes - last_position):
            return f"it ends at byte {last_position} of the log, which has {log.size_bytes}"
        return None

    def _misfit_of_times(self, index: TimeIndex) -> str | None:
        slot = index.find_disorder()
        if slot != NOT_FOUND:
            return f"entry {slot} is not above the one before it"
        address, size = self._log.address, self._log.size_bytes
        position = 0
        last = index.last_entry
        if index.entries:
            floor = self.floor_position(last.offset)
            position = int(time_entry_end(address, size, floor, *last))
            if position == AT_DAMAGE and floor:
                # Offsets may go back before it.
                position = int(time_entry_end(address, size, 0, *last))
            if position == AT_DAMAGE:
                return f"no batch with offset {last.offset} has {last.timestamp} as its latest time"
        timestamp, offset, end = largest_behind(address, size, position)
        if timestamp > max(last.timestamp, NO_TIMESTAMP):
            # The last segment of a running or killed broker lacks the entry that closing makes.
            if not self._segment.is_last or self._is_long(int(end) - position):
                return f"the log has the later timestamp {timestamp} at offset {offset}"
            self._largest = Largest(int(timestamp), int(offset))
        return None

    def _is_long(self, tail_bytes: int) -> bool:
        return tail_bytes > _LONGEST_TAIL_BYTES + self._interval

    def _build(self) -> tuple[OffsetIndex, TimeIndex]:
        """Build both indexes in memory, from the headers of the log."""
        if self._built is None:
            base_offset = self._segment.base_offset
            offset_index = OffsetIndex(IN_MEMORY, base_offset, INT32_MAX, growing=True)
            time_index = TimeIndex(IN_MEMORY, base_offset, INT32_MAX, growing=True)
            builder = IndexBuilder(offset_index, time_index, self._interval)
            source = LogFileSource.of_segment(self._segment, verify_crc=False)
            stop = None
            for batches in source.chunks():
                stop = builder.append(batches)
                if stop is not None:
                    break
            self.stop = builder.finish() or stop or source.stop
            self._built = offset_index, time_index
        return self._built
