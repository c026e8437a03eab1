"""One segment, read-only: lookups of batches and records by offset and timestamp.

Queries are processed in ascending order, in one pass over the indexes and one over the log. Source:
Kafka's ``LogSegment.translateOffset`` and ``findOffsetByTimestamp``.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from os import PathLike
from typing import Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kafka_index.core.contexts import Closeable
from kafka_index.core.errors import CorruptLogError, InputError, refuse_other_types
from kafka_index.core.format.config import DEFAULT_MAX_DECOMPRESSED_BYTES, IndexConfig, choice_of
from kafka_index.core.format.longs import Longs, longs_of
from kafka_index.core.format.names import TopicPartition, parse_partition_directory
from kafka_index.core.format.records import RECORD_BATCH_OVERHEAD_BYTES
from kafka_index.core.format.uri_passwords import path_of
from kafka_index.core.fs.paths import absolute_path
from kafka_index.core.fs.registry import store_of
from kafka_index.core.fs.store import ByteSource
from kafka_index.core.index.slot_search import ascending
from kafka_index.core.kernels.batch_header import (
    AT_DAMAGE,
    AT_END,
    NOT_IN_HEADER,
    damage_at,
    read_batch_fields,
)
from kafka_index.core.kernels.search import put_back_runs
from kafka_index.core.log.choices import Resolve, Status
from kafka_index.core.log.read.answers import (
    BATCH_BASE_OFFSET,
    BATCH_POSITION,
    BATCH_SIZE,
    ENTRY_OFFSET,
    ENTRY_POSITION,
    FOUND_LEADER_EPOCH,
    FOUND_OFFSET,
    FOUND_TIMESTAMP,
    NULL,
    SEGMENT_BASE_OFFSET,
    Answers,
    Findings,
    SegmentFindings,
)
from kafka_index.core.log.read.fetched_indexes import FetchedIndexes
from kafka_index.core.log.read.segment_indexes import Largest, SegmentIndexes, request_parts
from kafka_index.core.log.read.segment_log import SegmentCache, SegmentLog
from kafka_index.core.log.read.segment_search import Located, find_largest_timestamp, locate
from kafka_index.core.log.scan.file_records import LogOffsetPosition, TimestampAndOffset, open_log
from kafka_index.core.logdir.partition_files import SegmentFile, base_offset_of
from kafka_index.core.records.batch_table import ScanStop


class LogSegment(Closeable):
    """A segment of a dump, opened on first use.

    Parameters
    ----------
    segment : SegmentFile
        The segment as listed; a log that changed since then is an error.
    index_directory : str, optional
        Directory of its index files, by default next to the log.
    config : IndexConfig
        Determines the entries of indexes that are built in memory.
    cache : SegmentCache, optional
        Limits the number of open segments.
    findings : Findings, optional
        Receives its findings.
    max_decompressed_bytes : int
        Memory limit for decompressed records, per process. Batches that need more are unreadable.
    fetched_indexes : FetchedIndexes, optional
        Shared cache of indexes of remote segments.
    open_source : callable
        Opens a log, given its path and its listing.

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
        """Open a segment by its log, as if it were the last one of its partition.

        Parameters
        ----------
        path : path
            The ``.log``. Its name contains the base offset, and the name of its folder topic and
            partition (an empty topic and -1 if it is not a partition directory).
        index_directory, config
            As for the class.

        Raises
        ------
        InputError
            The name contains no base offset, or the file does not exist.
        """
        refuse_other_types(config=(config, IndexConfig | None))
        log_path = absolute_path(path_of(path, "path"))
        named = parse_partition_directory(os.path.basename(os.path.dirname(log_path)))
        partition = named or TopicPartition("", -1)
        try:
            info = store_of(log_path).info(log_path)
        except OSError as error:
            raise InputError(f"cannot open the file: {error.strerror}", path=log_path) from error
        segment = SegmentFile(
            partition.topic,
            partition.partition,
            base_offset_of(log_path),
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
    def largest(self) -> Largest:
        """The largest timestamp, with its offset in the time index."""
        self._cache.use(self)
        return self.indexes.largest()

    @property
    def next_offset(self) -> int:
        """The offset after the last batch (``LogSegment.readNextOffset``)."""
        self._cache.use(self)
        return self.indexes.end.next_offset

    @property
    def damage(self) -> ScanStop | None:
        """The corruption that makes the end of the segment unreadable, if any."""
        self._cache.use(self)
        stop = self.indexes.end.stop
        return None if stop is None or (stop.is_tail and self.file.is_last) else stop

    @property
    def end_damage(self) -> ScanStop | None:
        """The corruption at the end of the segment, or the first batch that is out of order.

        After a batch out of order, the log end offset of a broker is `next_offset`.
        """
        return self.damage or self.indexes.end.disorder

    def offset_to_position(self, offset: int) -> LogOffsetPosition | None:
        """Find the batch that contains an offset, or the first one after it, None if none.

        Source: ``LogSegment.translateOffset``.

        Raises
        ------
        CorruptLogError
            The search reaches a corruption.
        """
        located = self.translate_offsets(np.array([offset], np.int64), Resolve.BATCH)
        if self._nothing_at(located):
            return None
        return LogOffsetPosition(
            *(
                int(located.values[row, 0])
                for row in (BATCH_BASE_OFFSET, BATCH_POSITION, BATCH_SIZE)
            )
        )

    def header_at(self, position_bytes: int) -> bytes:
        """Return the first bytes of a batch, as many as a v2 header has."""
        self._cache.use(self)
        end = position_bytes + RECORD_BATCH_OVERHEAD_BYTES
        log = self._log
        return log.complete(lambda: bytes(log.array[position_bytes:end]))

    def goes_back_after(self, batch: LogOffsetPosition) -> bool:
        """Return whether the next batch starts before this batch ends."""
        log, following = self._log, batch.position + batch.size
        if following + RECORD_BATCH_OVERHEAD_BYTES > log.size_bytes:
            return False
        positions = np.array([batch.position, following], np.int64)

        def read() -> bool:
            base, last, sizes = np.zeros((3, 2), np.int64)
            read_batch_fields(log.address, positions, base, last, sizes)
            return bool((last[1] if base[1] == NOT_IN_HEADER else base[1]) <= last[0])

        return log.complete(read)

    def find_offset_by_timestamp(
        self, timestamp_ms: int, starting_offset: int
    ) -> TimestampAndOffset | None:
        """Find the first record with this or a later timestamp, at or after an offset.

        None if there is none. Source: ``LogSegment.findOffsetByTimestamp``.

        Raises
        ------
        CorruptLogError
            The search reaches a corruption.
        """
        targets = np.array([timestamp_ms], np.int64)
        located = self.find_offsets_by_timestamp(targets, starting_offset, Resolve.RECORD)
        if self._nothing_at(located):
            return None
        epoch = int(located.values[FOUND_LEADER_EPOCH, 0])
        return TimestampAndOffset(
            int(located.values[FOUND_TIMESTAMP, 0]),
            int(located.values[FOUND_OFFSET, 0]),
            None if epoch == NULL else epoch,
        )

    def lookup_entries(self, targets: Longs, rows: Longs, answers: Answers) -> None:
        """Look up ascending offsets in the offset index only.

        `targets` (int64, (n,)): absolute offsets, ascending. `rows` (int64, (n,)): rows of the
        results. `answers` (Answers): filled.
        """
        self._cache.use(self)
        values = answers.values
        values[SEGMENT_BASE_OFFSET, rows] = self.base_offset
        self.indexes.offset_index.look_up_ascending(
            targets, rows, values[ENTRY_OFFSET], values[ENTRY_POSITION]
        )
        self.indexes.check_faults()

    def translate_offsets(self, targets: Longs, resolve: Resolve) -> Located:
        """Find the index entries, batches or records of ascending offsets.

        `targets` (int64, (n,)): absolute offsets, ascending; for those below the base offset, the
        first batch is the result. `resolve` (Resolve): level of detail.
        """
        self._cache.use(self)
        return locate(self._log, self.indexes, targets, resolve)

    def request_end(self) -> None:
        """Start fetching a remote log from its last index entry on."""
        self._cache.use(self)
        if self._log.is_fetched:
            self.indexes.request_end()

    def request_offsets(self, targets: Longs, resolve: Resolve) -> None:
        """Start fetching the first ranges of a remote log that `translate_offsets` will read."""
        self._cache.use(self)
        if self._log.is_fetched:
            if self.file.is_last:
                self.indexes.request_end()
            next(request_parts(self._log, self.indexes, targets, resolve, None))

    def find_offsets_by_timestamp(
        self, targets: Longs, starting_offset: int, resolve: Resolve
    ) -> Located:
        """Find the index entries, batches or records of ascending timestamps.

        `targets` (int64, (n,)): in ms, ascending. `starting_offset`: the log start offset.
        `resolve` (Resolve): level of detail.
        """
        self._cache.use(self)
        return locate(self._log, self.indexes, targets, resolve, starting_offset=starting_offset)

    def find_largest_timestamp(self, resolve: Resolve) -> Located:
        """Find the first batch, or its first record, with the largest timestamp."""
        self._cache.use(self)
        return find_largest_timestamp(self._log, self.indexes, resolve)

    def settle(self, answers: Answers, rows: Longs, located: Located) -> NDArray[np.bool_]:
        """Write located batches into results.

        `answers` (Answers): filled. `rows` (int64, (n,)): rows of the results of n queries.
        `located` (Located): results of the search. Returns (bool, (n,)): queries for which the
        segment has no batch up to its end.
        """
        if not (located.batches <= AT_END).any():
            # If all rows are requested, values that are equal for all can be written in order.
            is_whole = len(rows) == len(answers)
            same = slice(None) if is_whole else rows
            answers.status[same] = Status.FOUND
            if located.runs is not None:
                located.values[SEGMENT_BASE_OFFSET] = self.base_offset
                run_of_row = np.empty(len(rows) if is_whole else 0, np.int32)
                put_back_runs(located.values, located.runs, rows, run_of_row, answers.values)
                return np.zeros(len(rows), np.bool_)
            answers.values[SEGMENT_BASE_OFFSET][same] = self.base_offset
            for column in range(SEGMENT_BASE_OFFSET + 1, len(located.values)):
                # Assigning column by column is twice as fast.
                answers.values[column][rows] = located.values[column]
            return np.zeros(len(rows), np.bool_)
        located = located.expanded()
        at_end: NDArray[np.bool_] = located.batches == AT_END
        damaged = located.batches < AT_END
        located.values[SEGMENT_BASE_OFFSET] = self.base_offset
        self._cache.use(self)
        found = ~(at_end | damaged)
        answers.status[rows[found]] = Status.FOUND
        answers.values[:, rows[found]] = located.values[:, found]
        for at in np.unique(located.batches[damaged]):
            self.findings.damage(answers, rows[located.batches == at], int(damage_at(at)))
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
            Absolute, in any order; below the base offset, the first batch is the result.
        resolve : Resolve
            Level of detail.

        Returns
        -------
        pa.RecordBatch
            n rows of `ANSWER_SCHEMA`, in the order of the offsets: found, nothing at or after,
            or unreadable.

        Raises
        ------
        KafkaIndexError
            The log cannot be read.
        """
        resolve = choice_of(Resolve, resolve, "resolve")
        targets, rows = ascending(longs_of(offsets, "offsets"))
        answers = Answers.empty(len(rows), resolve, Status.NO_RECORD_AT_OR_AFTER)
        self.settle(answers, rows, self.translate_offsets(targets, resolve))
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
            In ms, in any order.
        starting_offset : int, optional
            Ignore records below this offset; by default none.
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
        resolve = choice_of(Resolve, resolve, "resolve")
        targets, rows = ascending(longs_of(timestamps_ms, "timestamps_ms"))
        answers = Answers.empty(len(rows), resolve, Status.NO_RECORD_AT_OR_AFTER)
        start = self.base_offset if starting_offset is None else starting_offset
        self.settle(answers, rows, self.find_offsets_by_timestamp(targets, start, resolve))
        return answers.to_arrow()

    def close(self) -> None:
        """Unmap all files; the next use reopens them."""
        self._cache.forget(self)
        self.indexes.close()
        self._log.close()

    def _nothing_at(self, located: Located) -> bool:
        at = int(located.batches[0])
        position = int(damage_at(at))
        if at == AT_END and self.file.is_last and self.damage is not None:
            # The result is unknown, because a corruption precedes it.
            at, position = AT_DAMAGE, self.damage.position_bytes
        if at < AT_END:
            raise CorruptLogError(
                self._log.why_unreadable(position), path=self.file.log_path, position_bytes=position
            )
        return at == AT_END
