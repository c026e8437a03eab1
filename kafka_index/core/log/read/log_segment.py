"""A read-only segment: look up index entries, batches and records by offset or timestamp.

Queries are sorted first. Then one pass over the index files finds the index entries of all queries,
one pass over the ``.log`` file finds the batches, and finally the records are found. Sources:
Kafka's ``LogSegment.translateOffset`` and ``findOffsetByTimestamp``, and
``FileRecords.searchForTimestamp``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from os import PathLike
from typing import Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kafka_index.core.contexts import Closeable
from kafka_index.core.errors import CorruptLogError, InputError, refuse_other_types
from kafka_index.core.format.config import DEFAULT_MAX_DECOMPRESSED_BYTES, IndexConfig, to_choice
from kafka_index.core.format.longs import Longs, to_longs
from kafka_index.core.format.names import (
    OFFSET_INDEX_SUFFIX,
    TIME_INDEX_SUFFIX,
    TopicPartition,
    parse_partition_directory,
)
from kafka_index.core.format.records import (
    LOG_OVERHEAD_BYTES,
    RECORD_BATCH_HEADER,
    RECORD_BATCH_OVERHEAD_BYTES,
    field_position,
)
from kafka_index.core.format.uri_passwords import path_of
from kafka_index.core.fs.paths import absolute_path
from kafka_index.core.fs.registry import store_of
from kafka_index.core.fs.store import ByteSource
from kafka_index.core.index.slot_search import ascending
from kafka_index.core.kernels import batch_header, batch_seek
from kafka_index.core.kernels.batch_header import AT_DAMAGE, AT_END, NOT_IN_HEADER, damage_at
from kafka_index.core.kernels.search import number_groups, scatter_groups
from kafka_index.core.log.choices import Resolve, Status
from kafka_index.core.log.read.answers import (
    BATCH_BASE_OFFSET,
    BATCH_LAST_OFFSET,
    BATCH_POSITION,
    BATCH_SIZE,
    ENTRY_OFFSET,
    ENTRY_POSITION,
    ENTRY_TIMESTAMP,
    FOUND_LEADER_EPOCH,
    FOUND_OFFSET,
    FOUND_TIMESTAMP,
    NULL,
    SEGMENT_BASE_OFFSET,
    Answers,
    Findings,
    SegmentFindings,
)
from kafka_index.core.log.read.segment_indexes import (
    NO_BATCH_AT_ENTRY,
    FetchedIndexes,
    LargestTimestamp,
    SegmentIndexes,
)
from kafka_index.core.log.read.segment_log import SegmentCache, SegmentLog
from kafka_index.core.log.scan import file_records
from kafka_index.core.log.scan.file_records import (
    LogOffsetPosition,
    TimestampAndOffset,
    open_log,
    search_for_offsets,
)
from kafka_index.core.logdir.partition_files import SegmentFile, parse_base_offset
from kafka_index.core.records.batch_table import ScanStop

# Queries with the same batch are grouped if a batch has at least this many queries on average.
_MIN_QUERIES_PER_GROUP = 2
_LENGTH = field_position(RECORD_BATCH_HEADER, "length")
_LENGTH_BYTES = RECORD_BATCH_HEADER["length"].itemsize
#: Maximum size of the data of a remote log that one chunk of queries fetches, per thread.
MAX_READ_BYTES = 64 << 20
# Number of bytes to fetch for a batch of unknown size, at most.
_MAX_BATCH_BYTES = 2 << 20


class LogSegment(Closeable):
    """A segment of a dump, opened on first use.

    Parameters
    ----------
    segment : SegmentFile
        The listed segment. The ``.log`` file cannot be opened if it has changed since the listing.
    index_directory : str, optional
        Directory of the index files; by default, the directory of the ``.log`` file.
    config : IndexConfig
        Determines the entries of indexes that are built in memory.
    cache : SegmentCache, optional
        Limits the number of open segments.
    findings : Findings, optional
        Receives the findings about the segment.
    max_decompressed_bytes : int
        Memory limit for decompressed records, per process. Batches that need more are unreadable.
    fetched_indexes : FetchedIndexes, optional
        Shared cache of indexes of remote segments.
    open_source : callable
        Opens a ``.log`` file, given its path and the listed segment.

    Notes
    -----
    Not thread-safe.
    """

    def __init__(
        self,
        segment: SegmentFile,
        *,
        index_directory: str | None = None,
        config: IndexConfig | None = None,
        cache: SegmentCache | None = None,
        findings: Findings | None = None,
        max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES,
        fetched_indexes: FetchedIndexes | None = None,
        open_source: Callable[[str, SegmentFile], ByteSource] = open_log,
    ) -> None:
        self.file = segment
        self.base_offset = segment.base_offset
        self._cache = SegmentCache() if cache is None else cache
        interval = (config or IndexConfig()).index_interval_bytes
        self._log = SegmentLog(segment, max_decompressed_bytes, open_source)
        self.findings = SegmentFindings(segment, self._log, findings or Findings())
        self.indexes = SegmentIndexes(
            segment,
            index_directory,
            interval,
            self._log,
            self.findings,
            FetchedIndexes() if fetched_indexes is None else fetched_indexes,
        )

    @classmethod
    def open(
        cls,
        path: str | PathLike[str],
        *,
        index_directory: str | PathLike[str] | None = None,
        config: IndexConfig | None = None,
    ) -> Self:
        """Open a segment by the path of its ``.log`` file, as the last segment of its partition.

        Parameters
        ----------
        path : path
            The ``.log`` file. Its name contains the base offset. Topic and partition come from the
            name of its directory. If it is no partition directory, the topic is empty and the
            partition -1.
        index_directory, config
            As in the constructor.

        Raises
        ------
        InputError
            The file name contains no base offset, or the file does not exist.
        """
        refuse_other_types(config=(config, IndexConfig | None))
        log_path = absolute_path(path_of(path, "path"))
        directory_name = os.path.basename(os.path.dirname(log_path))
        partition = parse_partition_directory(directory_name) or TopicPartition("", -1)
        try:
            info = store_of(log_path).info(log_path)
        except OSError as error:
            raise InputError(f"cannot open the file: {error.strerror}", path=log_path) from error
        segment = SegmentFile(
            partition.topic,
            partition.partition,
            parse_base_offset(log_path),
            log_path,
            info.size_bytes,
            info.mtime_ns,
            log_version=info.version,
        )
        directory = (
            None
            if index_directory is None
            else absolute_path(path_of(index_directory, "index_directory"))
        )
        return cls(segment, index_directory=directory, config=config)

    @property
    def largest(self) -> LargestTimestamp:
        """The largest timestamp of the segment, and the offset of its time index entry."""
        self._cache.use(self)
        return self.indexes.largest()

    @property
    def next_offset(self) -> int:
        """The offset after the segment's last batch (``LogSegment.readNextOffset``)."""
        self._cache.use(self)
        return self.indexes.end.next_offset

    @property
    def damage(self) -> ScanStop | None:
        """The corruption after which the segment is unreadable, if any.

        A torn batch at the end of the last segment does not count as corruption.
        """
        self._cache.use(self)
        stop = self.indexes.end.stop
        return None if stop is None or (stop.is_tail and self.file.is_last) else stop

    @property
    def end_damage(self) -> ScanStop | None:
        """`damage`; without damage, the first batch that is out of order, if any.

        If batches are out of order, `next_offset` is still the log end offset of a broker.
        """
        return self.damage or self.indexes.end.disorder

    def offset_to_position(self, offset: int) -> LogOffsetPosition | None:
        """Find the batch that contains an offset, or the first batch after it, if any.

        Source: ``LogSegment.translateOffset``.

        Raises
        ------
        CorruptLogError
            The search reaches a corruption.
        """
        located = self.translate_offsets(np.array([offset], np.int64), Resolve.BATCH)
        if self._is_past_end(located):
            return None
        return LogOffsetPosition(
            *(
                int(located.values[row, 0])
                for row in (BATCH_BASE_OFFSET, BATCH_POSITION, BATCH_SIZE)
            )
        )

    def header_at(self, position_bytes: int) -> bytes:
        """Return the first bytes of the batch at a position, as many as a v2 header has."""
        self._cache.use(self)
        end = position_bytes + RECORD_BATCH_OVERHEAD_BYTES
        log = self._log
        return log.complete(lambda: bytes(log.array[position_bytes:end]))

    def is_followed_by_overlap(self, batch: LogOffsetPosition) -> bool:
        """Return whether the next batch starts at or before the last offset of a batch."""
        log, following = self._log, batch.position + batch.size
        if following + RECORD_BATCH_OVERHEAD_BYTES > log.size_bytes:
            return False
        positions = np.array([batch.position, following], np.int64)

        def read() -> bool:
            base, last, sizes = np.zeros((3, 2), np.int64)
            batch_header.read_batch_fields(log.address, positions, base, last, sizes)
            return bool((last[1] if base[1] == NOT_IN_HEADER else base[1]) <= last[0])

        return log.complete(read)

    def find_offset_by_timestamp(
        self, timestamp_ms: int, starting_offset: int
    ) -> TimestampAndOffset | None:
        """Find the first record with this or a later timestamp, at or after an offset.

        Returns None if there is no such record. Source: ``LogSegment.findOffsetByTimestamp``.

        Raises
        ------
        CorruptLogError
            The search reaches a corruption.
        """
        targets = np.array([timestamp_ms], np.int64)
        located = self.find_offsets_by_timestamp(targets, starting_offset, Resolve.RECORD)
        if self._is_past_end(located):
            return None
        epoch = int(located.values[FOUND_LEADER_EPOCH, 0])
        return TimestampAndOffset(
            int(located.values[FOUND_TIMESTAMP, 0]),
            int(located.values[FOUND_OFFSET, 0]),
            None if epoch == NULL else epoch,
        )

    def lookup_entries(self, targets: Longs, rows: Longs, answers: Answers) -> None:
        """Look up the offset index entries of ascending offsets, without reading batches.

        `targets` (int64, (n,)): absolute offsets, ascending. `rows` (int64, (n,)): their rows in
        `answers`, which receives the results.
        """
        self._cache.use(self)
        values = answers.values
        values[SEGMENT_BASE_OFFSET, rows] = self.base_offset
        self.indexes.offset_index.look_up_ascending(
            targets, rows, values[ENTRY_OFFSET], values[ENTRY_POSITION]
        )
        self.indexes.check_faults()

    def translate_offsets(self, targets: Longs, resolve: Resolve) -> LocatedBatches:
        """Find the index entries, batches or records of ascending offsets.

        `targets` (int64, (n,)): absolute offsets, ascending. The first batch is the result for
        offsets below the base offset. `resolve` (Resolve): level of detail.
        """
        self._cache.use(self)
        return locate(self._log, self.indexes, targets, resolve)

    def request_end(self) -> None:
        """Start fetching a remote ``.log`` file from its last index entry on."""
        self._cache.use(self)
        if self._log.is_fetched:
            self.indexes.request_end()

    def request_offsets(self, targets: Longs, resolve: Resolve) -> None:
        """Start fetching the first ranges of a remote log that `translate_offsets` reads."""
        self._cache.use(self)
        if self._log.is_fetched:
            if self.file.is_last:
                self.indexes.request_end()
            next(_request_in_chunks(self._log, self.indexes, targets, resolve, None))

    def find_offsets_by_timestamp(
        self, targets: Longs, starting_offset: int, resolve: Resolve
    ) -> LocatedBatches:
        """Find the index entries, batches or records of ascending timestamps.

        `targets` (int64, (n,)): timestamps in ms, ascending. `starting_offset`: records below this
        offset are ignored. `resolve` (Resolve): level of detail.
        """
        self._cache.use(self)
        return locate(self._log, self.indexes, targets, resolve, starting_offset=starting_offset)

    def find_largest_timestamp(self, resolve: Resolve) -> LocatedBatches:
        """Find the first batch with the segment's largest timestamp, and its first such record."""
        self._cache.use(self)
        return find_largest_timestamp(self._log, self.indexes, resolve)

    def write_answers(
        self, answers: Answers, rows: Longs, located: LocatedBatches
    ) -> NDArray[np.bool_]:
        """Write the located batches of n queries into `answers`.

        `rows` (int64, (n,)): rows of the queries in `answers`. Returns (bool, (n,)): True for
        queries without a batch in this segment, whose rows are not written.
        """
        if not (located.batches <= AT_END).any():
            # If the queries fill all rows, constants are written to a slice, which is faster than
            # row numbers.
            fills_all = len(rows) == len(answers)
            all_rows = slice(None) if fills_all else rows
            answers.status[all_rows] = Status.FOUND
            if located.groups is not None:
                located.values[SEGMENT_BASE_OFFSET] = self.base_offset
                group_by_row = np.empty(len(rows) if fills_all else 0, np.int32)
                scatter_groups(located.values, located.groups, rows, group_by_row, answers.values)
                return np.zeros(len(rows), np.bool_)
            answers.values[SEGMENT_BASE_OFFSET][all_rows] = self.base_offset
            for column in range(SEGMENT_BASE_OFFSET + 1, len(located.values)):
                # Assigning column by column is twice as fast as assigning all columns together.
                answers.values[column][rows] = located.values[column]
            return np.zeros(len(rows), np.bool_)
        located = located.expanded()
        at_end: NDArray[np.bool_] = located.batches == AT_END
        damaged = located.batches < AT_END
        located.values[SEGMENT_BASE_OFFSET] = self.base_offset
        self._cache.use(self)
        is_found = ~(at_end | damaged)
        answers.status[rows[is_found]] = Status.FOUND
        answers.values[:, rows[is_found]] = located.values[:, is_found]
        for damage_code in np.unique(located.batches[damaged]):
            damaged_rows = rows[located.batches == damage_code]
            self.findings.damage(answers, damaged_rows, int(damage_at(damage_code)))
        damage = self.damage if self.file.is_last and at_end.any() else None
        if damage is None:
            return at_end
        # The result is unknown, because a corruption precedes it.
        self.findings.damage(answers, rows[at_end], damage.position_bytes)
        return np.zeros_like(at_end)

    def lookup_offsets(
        self, offsets: Longs, *, resolve: Resolve | str = Resolve.BATCH
    ) -> pa.RecordBatch:
        """Look up offsets in this segment only.

        Parameters
        ----------
        offsets : array of int64, shape (n,)
            Absolute offsets, in any order. The first batch is the result for offsets below the base
            offset.
        resolve : Resolve
            Level of detail.

        Returns
        -------
        pa.RecordBatch
            n rows of `ANSWER_SCHEMA`, in the order of the offsets. The status is ``found``,
            ``no_record_at_or_after`` or ``unreadable``.

        Raises
        ------
        KafkaIndexError
            The log cannot be read.
        """
        resolve = to_choice(Resolve, resolve, "resolve")
        targets, rows = ascending(to_longs(offsets, "offsets"))
        answers = Answers.empty(len(rows), resolve, Status.NO_RECORD_AT_OR_AFTER)
        self.write_answers(answers, rows, self.translate_offsets(targets, resolve))
        return answers.to_arrow()

    def lookup_timestamps(
        self,
        timestamps_ms: Longs,
        *,
        starting_offset: int | None = None,
        resolve: Resolve | str = Resolve.RECORD,
    ) -> pa.RecordBatch:
        """Look up timestamps in this segment only.

        Parameters
        ----------
        timestamps_ms : array of int64, shape (n,)
            Timestamps in ms, in any order.
        starting_offset : int, optional
            Ignore records below this offset; by default, no record is ignored.
        resolve : Resolve
            Level of detail.

        Returns
        -------
        pa.RecordBatch
            As from `lookup_offsets`.

        Raises
        ------
        KafkaIndexError
            The log cannot be read.
        """
        resolve = to_choice(Resolve, resolve, "resolve")
        targets, rows = ascending(to_longs(timestamps_ms, "timestamps_ms"))
        answers = Answers.empty(len(rows), resolve, Status.NO_RECORD_AT_OR_AFTER)
        start = self.base_offset if starting_offset is None else starting_offset
        self.write_answers(answers, rows, self.find_offsets_by_timestamp(targets, start, resolve))
        return answers.to_arrow()

    def close(self) -> None:
        """Unmap all files; the next lookup opens them again."""
        self._cache.forget(self)
        self.indexes.close()
        self._log.close()

    def _is_past_end(self, located: LocatedBatches) -> bool:
        batch = int(located.batches[0])
        position = int(damage_at(batch))
        if batch == AT_END and self.file.is_last and self.damage is not None:
            # The result is unknown, because a corruption precedes it.
            batch, position = AT_DAMAGE, self.damage.position_bytes
        if batch < AT_END:
            raise CorruptLogError(
                self._log.unreadable_reason(position),
                path=self.file.log_path,
                position_bytes=position,
            )
        return batch == AT_END


@dataclass(frozen=True, slots=True)
class LocatedBatches:
    """The index entries and batches that n queries found in a segment.

    Attributes
    ----------
    values
        The columns of `Answers.values`.
    batches
        Position of each batch; 0 if only index entries are looked up. `AT_END` if the segment has
        no batch for the query, `damage_at` if the search reached a corruption.
    groups
        For each query, the index of its column in `values`, if queries with the same result share a
        column. Otherwise None.
    """

    values: Longs
    batches: Longs
    groups: Longs | None = None

    def grouped(self, resolve: Resolve) -> LocatedBatches:
        """Merge the columns of consecutive queries with the same batch and index entry."""
        groups, firsts = np.empty_like(self.batches), np.empty_like(self.batches)
        firsts = firsts[: number_groups(self.batches, self.values[ENTRY_OFFSET], groups, firsts)]
        values = Answers.empty(len(firsts), resolve).values
        for column in (ENTRY_OFFSET, ENTRY_POSITION):
            values[column] = self.values[column][firsts]
        return LocatedBatches(values, self.batches[firsts], groups)

    def expanded(self) -> LocatedBatches:
        if self.groups is None:
            return self
        return LocatedBatches(self.values[:, self.groups], self.batches[self.groups])

    def read_headers(self, log: SegmentLog) -> None:
        values = self.values
        values[BATCH_POSITION] = np.where(self.batches >= 0, self.batches, NULL)
        file_records.read_batch_fields(
            log.array,
            self.batches,
            values[BATCH_BASE_OFFSET],
            values[BATCH_LAST_OFFSET],
            values[BATCH_SIZE],
            first_offset_at=log.first_offset_at,
        )

    @classmethod
    def joined(cls, parts: Sequence[LocatedBatches]) -> LocatedBatches:
        """Concatenate the results of consecutive chunks of queries."""
        if len(parts) == 1:
            return parts[0]
        parts = [part.expanded() for part in parts]
        return cls(
            np.concatenate([part.values for part in parts], axis=1),
            np.concatenate([part.batches for part in parts]),
        )


class _IndexMismatch(Exception):  # noqa: N818, because the search is repeated without the index
    """An entry of an index file does not match the log."""

    def __init__(self, suffix: str, reason: str) -> None:
        super().__init__(reason)
        self.suffix = suffix
        self.reason = reason


def locate(
    log: SegmentLog,
    indexes: SegmentIndexes,
    targets: Longs,
    resolve: Resolve,
    *,
    starting_offset: int | None = None,
) -> LocatedBatches:
    """Look up ascending offsets, or ascending timestamps in ms if a starting offset is given."""

    def locate_chunk(chunk: Longs) -> LocatedBatches:
        return log.complete(partial(_locate_chunk, log, indexes, chunk, resolve, starting_offset))

    while True:
        try:
            chunks = _request_in_chunks(log, indexes, targets, resolve, starting_offset)
            return LocatedBatches.joined([locate_chunk(chunk) for chunk in chunks])
        except _IndexMismatch as mismatch:
            indexes.reject(mismatch.suffix, mismatch.reason)


def _locate_chunk(
    log: SegmentLog,
    indexes: SegmentIndexes,
    targets: Longs,
    resolve: Resolve,
    starting_offset: int | None,
) -> LocatedBatches:
    size_bytes = indexes.log_size_bytes
    # If many offsets share batches, queries are grouped before columns for batches are allocated.
    is_grouped = (
        starting_offset is None
        and resolve is Resolve.BATCH
        and _shares_batches(log, size_bytes, len(targets))
    )
    values = Answers.empty(len(targets), Resolve.INDEX if is_grouped else resolve).values
    located = LocatedBatches(values, np.zeros(len(targets), np.int64))
    if starting_offset is None:
        _seek_offsets(log, indexes, size_bytes, targets, resolve, located)
    else:
        _seek_timestamps(log, indexes, size_bytes, starting_offset, targets, resolve, located)
    if resolve is Resolve.INDEX:
        return located
    if resolve is Resolve.RECORD:
        _fetch_batches(log, size_bytes, located.batches)
        log.decoder.find_records(targets, located, size_bytes, starting_offset=starting_offset)
    if is_grouped:
        located = located.grouped(resolve)
    located.read_headers(log)
    log.check_faults()
    return located


def _shares_batches(log: SegmentLog, size_bytes: int, queries: int) -> bool:
    """Estimate from the size of the first batch whether queries share batches on average."""
    if log.is_fetched or size_bytes < LOG_OVERHEAD_BYTES:
        return False
    length = int.from_bytes(log.array[_LENGTH : _LENGTH + _LENGTH_BYTES].tobytes(), signed=True)
    return queries * (LOG_OVERHEAD_BYTES + length) >= _MIN_QUERIES_PER_GROUP * size_bytes


def find_largest_timestamp(
    log: SegmentLog, indexes: SegmentIndexes, resolve: Resolve
) -> LocatedBatches:
    """Find the first batch with the largest timestamp of a segment, and its first such record.

    Source: ``UnifiedLog.fetchOffsetByTimestamp`` for ``MAX_TIMESTAMP``.
    """
    timestamp, offset, _ = indexes.largest()
    floor = indexes.floor_position(offset)
    size = indexes.log_size_bytes
    return log.complete(lambda: _read_largest(log, size, floor, timestamp, resolve))


def _read_largest(
    log: SegmentLog, size: int, floor: int, timestamp: int, resolve: Resolve
) -> LocatedBatches:
    position = int(batch_seek.first_with_timestamp(log.address, size, floor, timestamp))
    located = LocatedBatches(Answers.empty(1, resolve).values, np.array([position], np.int64))
    located.read_headers(log)
    if position >= 0 and resolve is Resolve.RECORD:
        log.decoder.find_timestamp(located, position, timestamp)
    return located


def _seek_offsets(
    log: SegmentLog,
    indexes: SegmentIndexes,
    size_bytes: int,
    targets: Longs,
    resolve: Resolve,
    located: LocatedBatches,
) -> None:
    values = located.values
    rows = np.arange(len(targets))
    indexes.offset_index.look_up_ascending(
        targets, rows, values[ENTRY_OFFSET], values[ENTRY_POSITION]
    )
    indexes.check_faults()
    if resolve is Resolve.INDEX:
        return

    def on_mismatch(query: int) -> int:
        entry = (int(values[row, query]) for row in (ENTRY_OFFSET, ENTRY_POSITION))
        return _corrupt_entry_position(log, indexes, *entry)

    search_for_offsets(
        log.array,
        size_bytes,
        targets,
        values[ENTRY_OFFSET],
        values[ENTRY_POSITION],
        located.batches,
        on_mismatch=on_mismatch,
        first_offset_at=log.first_offset_at,
    )


def _seek_timestamps(
    log: SegmentLog,
    indexes: SegmentIndexes,
    size_bytes: int,
    starting_offset: int,
    targets: Longs,
    resolve: Resolve,
    located: LocatedBatches,
) -> None:
    values = located.values
    rows = np.arange(len(targets))
    indexes.time_index.look_up_ascending(
        targets, rows, values[ENTRY_TIMESTAMP], values[ENTRY_OFFSET]
    )
    floors = np.empty(len(targets), np.int64)
    indexes.offset_index.look_up_ascending(
        np.maximum(values[ENTRY_OFFSET], starting_offset), rows, floors, values[ENTRY_POSITION]
    )
    indexes.check_faults()
    if resolve is Resolve.INDEX:
        return
    state = batch_seek.new_state()
    code = batch_seek.SEEK_MISMATCH
    while code != batch_seek.SEEK_DONE:
        code = batch_seek.seek_to_timestamps(
            log.address,
            size_bytes,
            starting_offset,
            starting_offset if resolve is Resolve.BATCH else NULL,
            targets,
            values[ENTRY_TIMESTAMP],
            values[ENTRY_OFFSET],
            floors,
            values[ENTRY_POSITION],
            state,
            located.batches,
        )
        query = int(state[batch_seek.STATE_QUERY])
        if code == batch_seek.SEEK_MISMATCH:
            state[batch_seek.STATE_DAMAGED_ENTRY] = _corrupt_entry_position(
                log, indexes, int(floors[query]), int(values[ENTRY_POSITION, query])
            )
        elif code == batch_seek.SEEK_TIME_MISMATCH:
            log.check_faults()
            # If offsets decrease, a valid entry may point past its own batch.
            entries = indexes.time_index.read_entries()
            # Entries after the last valid batch are compared too, because batch headers are
            # sufficient.
            entries_match = batch_seek.time_entries_hold(log.address, log.size_bytes, *entries)
            log.check_faults()
            if not entries_match:
                timestamp, offset = (
                    int(values[row, query]) for row in (ENTRY_TIMESTAMP, ENTRY_OFFSET)
                )
                raise _IndexMismatch(
                    TIME_INDEX_SUFFIX,
                    f"the entry with timestamp {timestamp} and offset {offset} does not match the "
                    "log",
                )
            state[batch_seek.STATE_TIMES_HOLD] = 1


def _corrupt_entry_position(
    log: SegmentLog, indexes: SegmentIndexes, offset: int, position: int
) -> int:
    """Return the position of an index entry without a batch if the log, not the index, is corrupt.

    The log is corrupt if its valid batches end at or before the position, or if the batches before
    the entry end exactly at its position and no valid batch follows. Otherwise, the index is wrong,
    and `_IndexMismatch` is raised.
    """
    log.check_faults()
    if position >= indexes.log_size_bytes:
        return position
    address, size = log.address, log.size_bytes
    previous = indexes.offset_index.lookup(offset - 1)
    is_damaged = batch_seek.entry_end(
        address, size, position, offset
    ) == batch_header.AT_DAMAGE and batch_seek.reaches(address, size, previous.position, position)
    log.check_faults()
    if is_damaged:
        return position
    raise _IndexMismatch(OFFSET_INDEX_SUFFIX, NO_BATCH_AT_ENTRY.format(offset))


def _request_in_chunks(
    log: SegmentLog,
    indexes: SegmentIndexes,
    targets: Longs,
    resolve: Resolve,
    starting_offset: int | None,
) -> Iterator[Longs]:
    """Yield chunks of queries. Before each chunk, start fetching the ranges that it reads.

    Logs that need no requests have one chunk. For the parameters, see `locate`.
    """
    if not log.is_fetched or resolve is Resolve.INDEX or not len(targets):
        yield targets
        return
    from kafka_index.core.fs.fetched_file import MAX_GAP_BYTES  # noqa: PLC0415, remote only

    starts, ends, queries = _plan_ranges(log, indexes, targets, resolve, starting_offset)
    previous_ends = np.append(0, np.maximum.accumulate(ends)[:-1])
    gaps = starts - previous_ends
    gaps[(gaps < 0) | (gaps > MAX_GAP_BYTES)] = 0
    fetched_bytes = np.cumsum(np.maximum(ends - np.maximum(starts, previous_ends), 0) + gaps)
    chunk_numbers = np.zeros(len(targets), np.int64)
    np.maximum.at(chunk_numbers, queries, fetched_bytes // MAX_READ_BYTES)
    bounds = np.flatnonzero(np.diff(np.maximum.accumulate(chunk_numbers))) + 1
    chunks = []
    for rows in np.split(np.arange(len(targets)), bounds):
        in_chunk = (queries >= rows[0]) & (queries <= rows[-1])
        chunks.append((targets[rows], starts[in_chunk], ends[in_chunk]))
    for (chunk, *ranges), next_chunk in zip_longest(chunks, chunks[1:]):
        log.request(*ranges)
        if next_chunk is not None:
            log.request(*next_chunk[1:], ahead=True)
        yield chunk


def _plan_ranges(
    log: SegmentLog,
    indexes: SegmentIndexes,
    targets: Longs,
    resolve: Resolve,
    starting_offset: int | None,
) -> tuple[Longs, Longs, Longs]:
    """Return the byte ranges of a log that lookups of ascending targets read, sorted by start.

    Returns three arrays: the start, exclusive end and target row of each range.
    """
    size = log.size_bytes
    offsets, positions = indexes.offset_index.read_entries()
    bounds = np.clip(np.concatenate(([0], positions, [size] * 3)), 0, size)
    # Numbers of index entries, from 1; 0 is the start of the log. `floors` are the last entries at
    # or below each target, `lasts` the last entries whose batches can be the result.
    if starting_offset is None:
        floors = np.searchsorted(offsets, targets, "right")
        has_entry = np.searchsorted(offsets, targets) < floors
        lasts = np.where(has_entry, floors, floors + 1)
    else:
        timestamps, time_offsets = indexes.time_index.read_entries()
        numbers = np.searchsorted(timestamps, targets, "right")
        time_offsets = np.concatenate(([starting_offset], time_offsets))
        time_offsets = np.maximum(time_offsets, starting_offset)
        floors = np.searchsorted(offsets, time_offsets[numbers], "right")
        next_offsets = time_offsets[np.minimum(numbers + 1, len(time_offsets) - 1)]
        lasts = np.maximum(np.searchsorted(offsets, next_offsets, "right"), floors)
    header_bytes = RECORD_BATCH_OVERHEAD_BYTES
    last_ends = bounds[lasts] + header_bytes
    if resolve is Resolve.RECORD:
        batch_bytes = np.minimum(bounds[lasts + 1] - bounds[lasts], _MAX_BATCH_BYTES)
        last_ends = bounds[lasts] + np.maximum(batch_bytes, header_bytes)
    entry_numbers = np.concatenate([floors, floors + 1, lasts, lasts + 1])
    starts = bounds[entry_numbers]
    ends = starts + header_bytes
    ends[2 * len(targets) : 3 * len(targets)] = last_ends
    order = np.argsort(starts, kind="stable")
    queries = np.tile(np.arange(len(targets)), 4)
    return np.minimum(starts, size)[order], np.minimum(ends, size)[order], queries[order]


def _fetch_batches(log: SegmentLog, size_bytes: int, batches: Longs) -> None:
    """Fetch complete batches of a remote log. Their headers have already been fetched."""
    if not log.is_fetched:
        return
    log.check_faults()
    positions = np.unique(batches[batches >= 0])
    fields = np.zeros((3, len(positions)), np.int64)
    batch_header.read_batch_fields(log.address, positions, *fields)
    _, _, sizes = fields
    log.fetch(positions, np.minimum(positions + np.maximum(sizes, 0), size_bytes))
