"""One segment, read-only: from offsets and timestamps to batches and records.

Many questions are answered in ascending order, with one pass over the index files and one over the
log. Source: Kafka's ``LogSegment.translateOffset`` and ``findOffsetByTimestamp``.
"""

from __future__ import annotations

import os
from os import PathLike
from typing import Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kafka_index.config import IndexConfig
from kafka_index.errors import CorruptLogError
from kafka_index.index import ascending
from kafka_index.kernels.batch_header import AT_DAMAGE, AT_END, damage_at
from kafka_index.kernels.index_fit import first_with_timestamp
from kafka_index.layout.names import TopicPartition, parse_partition_directory
from kafka_index.reading.answers import (
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
    Longs,
    Resolve,
    Status,
)
from kafka_index.reading.findings import TAIL, UNREADABLE, Findings
from kafka_index.reading.open_log import LogEnd, OpenLog
from kafka_index.reading.segment_cache import SegmentCache
from kafka_index.reading.segment_indexes import Largest, SegmentIndexes, is_tail
from kafka_index.reading.segment_verdicts import SegmentVerdicts
from kafka_index.reading.segment_walk import Located, Misfit, locate_offsets, locate_timestamps
from kafka_index.records.batch_source import ScanStop
from kafka_index.records.positions import LogOffsetPosition, TimestampAndOffset
from kafka_index.scan.segment_scan import base_offset_of
from kafka_index.storage import MappedFile, SegmentFile


class LogSegment:
    """A segment of a dump, opened for reading when it is first asked.

    Parameters
    ----------
    segment : SegmentFile
        The segment, as it was listed: if the log is another by now, that is an error.
    index_directory : str, optional
        Where its index files are; beside the log by default.
    config : IndexConfig
        Decides on the entries of what is built in memory.
    cache : SegmentCache, optional
        Who closes it when others are needed.
    findings : Findings, optional
        Where it tells what it notices.

    Notes
    -----
    Not for use by several threads at once.
    """

    def __init__(
        self,
        segment: SegmentFile,
        *,
        index_directory: str | None = None,
        config: IndexConfig | None = None,
        cache: SegmentCache | None = None,
        findings: Findings | None = None,
    ) -> None:
        self.file = segment
        self.base_offset = segment.base_offset
        self._cache = SegmentCache() if cache is None else cache
        interval = (config or IndexConfig()).index_interval_bytes
        self._log = OpenLog(segment)
        self.verdicts = SegmentVerdicts(segment, self._log, findings or Findings())
        self.indexes = SegmentIndexes(
            segment, index_directory, interval, self._log, self.verdicts.notice
        )
        self._end: LogEnd | None = None

    def __enter__(self) -> Self:
        """Return the segment itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()

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
            The ``.log``; its name holds the base offset, and its folder's name topic and
            partition (an empty topic and -1 when it is no partition directory).
        index_directory, config
            As for the class.

        Raises
        ------
        InputError
            The name holds no base offset, or there is no such file.
        """
        log_path = os.path.abspath(path)
        named = parse_partition_directory(os.path.basename(os.path.dirname(log_path)))
        partition = named or TopicPartition("", -1)
        with MappedFile(log_path) as file:
            segment = SegmentFile(
                partition.topic,
                partition.partition,
                base_offset_of(log_path),
                log_path,
                file.size_bytes,
                file.mtime_ns,
            )
        directory = None if index_directory is None else os.path.abspath(index_directory)
        return cls(segment, index_directory=directory, config=config)

    @property
    def largest(self) -> Largest:
        """The largest timestamp, with the offset it is indexed under."""
        self._cache.use(self)
        return self.indexes.largest()

    @property
    def next_offset(self) -> int:
        """The offset behind the last batch (Kafka: ``readNextOffset``)."""
        return self._read_end().next_offset

    @property
    def damage(self) -> ScanStop | None:
        """What hides the end of the segment; None when it is there to be read."""
        stop = self._read_end().stop
        return None if stop is None or is_tail(stop, is_last=self.file.is_last) else stop

    def offset_to_position(self, offset: int) -> LogOffsetPosition | None:
        """Find the batch that holds an offset, or the next one; None when there is none.

        Source: ``LogSegment.translateOffset``.

        Raises
        ------
        CorruptLogError
            Damage stands between.
        """
        located = self.locate_offsets(np.array([offset], np.int64), Resolve.BATCH)
        if self._nothing_at(located):
            return None
        return LogOffsetPosition(
            *(
                int(located.values[row, 0])
                for row in (BATCH_BASE_OFFSET, BATCH_POSITION, BATCH_SIZE)
            )
        )

    def find_offset_by_timestamp(
        self, timestamp_ms: int, starting_offset: int
    ) -> TimestampAndOffset | None:
        """Find the first record as late as a timestamp, at or behind an offset; None for none.

        Source: ``LogSegment.findOffsetByTimestamp``.

        Raises
        ------
        CorruptLogError
            Damage stands between.
        """
        targets = np.array([timestamp_ms], np.int64)
        located = self.locate_timestamps(targets, starting_offset, Resolve.RECORD)
        if self._nothing_at(located):
            return None
        epoch = int(located.values[FOUND_LEADER_EPOCH, 0])
        return TimestampAndOffset(
            int(located.values[FOUND_TIMESTAMP, 0]),
            int(located.values[FOUND_OFFSET, 0]),
            None if epoch == NULL else epoch,
        )

    def enter_offsets(self, targets: Longs, rows: Longs, answers: Answers) -> None:
        """Answer ascending offsets by the offset index alone.

        Parameters
        ----------
        targets : ndarray of int64, shape (n,)
            Absolute offsets, ascending.
        rows : ndarray of int64, shape (n,)
            Where their answers go.
        answers : Answers
            Filled there.
        """
        self._cache.use(self)
        values = answers.values
        values[SEGMENT_BASE_OFFSET, rows] = self.base_offset
        self.indexes.offset_index.look_up_ascending(
            targets, rows, values[ENTRY_OFFSET], values[ENTRY_POSITION]
        )
        self.indexes.check_faults()

    def locate_offsets(self, targets: Longs, resolve: Resolve) -> Located:
        """Find the entries, batches or records of ascending offsets.

        Parameters
        ----------
        targets : ndarray of int64, shape (n,)
            Absolute offsets, ascending; the first batch answers those below the base offset.
        resolve : Resolve
            How far to go.
        """
        self._cache.use(self)
        while True:
            try:
                return locate_offsets(self._log, self.indexes, self._size(), targets, resolve)
            except Misfit as misfit:
                self.indexes.refuse(misfit.suffix, misfit.reason)

    def locate_timestamps(self, targets: Longs, starting_offset: int, resolve: Resolve) -> Located:
        """Find the entries, batches or records of ascending timestamps.

        Parameters
        ----------
        targets : ndarray of int64, shape (n,)
            In ms, ascending.
        starting_offset : int
            The log start offset.
        resolve : Resolve
            How far to go.
        """
        self._cache.use(self)
        while True:
            try:
                return locate_timestamps(
                    self._log, self.indexes, self._size(), starting_offset, targets, resolve
                )
            except Misfit as misfit:
                self.indexes.refuse(misfit.suffix, misfit.reason)

    def lookup_offsets(self, offsets: Longs, *, resolve: Resolve = Resolve.BATCH) -> pa.RecordBatch:
        """Look up offsets in this segment alone.

        Parameters
        ----------
        offsets : array of int64, shape (n,)
            Absolute, in any order; below the base offset they are answered by the first batch.
        resolve : Resolve
            How far to go.

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
        targets, rows = ascending(np.asarray(offsets, np.int64))
        answers = Answers.empty(len(rows), resolve, Status.NO_RECORD_AT_OR_AFTER)
        self.settle(answers, rows, self.locate_offsets(targets, resolve))
        return answers.to_arrow()

    def lookup_timestamps(
        self,
        timestamps_ms: Longs,
        *,
        starting_offset: int | None = None,
        resolve: Resolve = Resolve.RECORD,
    ) -> pa.RecordBatch:
        """Look up timestamps in this segment alone.

        Parameters
        ----------
        timestamps_ms : array of int64, shape (n,)
            In ms, in any order.
        starting_offset : int, optional
            No record below it counts; by default all do.
        resolve, Returns, Raises
            As for `lookup_offsets`.
        """
        targets, rows = ascending(np.asarray(timestamps_ms, np.int64))
        answers = Answers.empty(len(rows), resolve, Status.NO_RECORD_AT_OR_AFTER)
        start = self.base_offset if starting_offset is None else starting_offset
        self.settle(answers, rows, self.locate_timestamps(targets, start, resolve))
        return answers.to_arrow()

    def find_largest_timestamp(self, resolve: Resolve) -> Located:
        """Find the first batch, or its first record, with the largest timestamp of the segment.

        Source: ``UnifiedLog.fetchOffsetByTimestamp`` for ``MAX_TIMESTAMP``.
        """
        self._cache.use(self)
        timestamp, offset, _ = self.indexes.largest()
        floor = self.indexes.floor_position(offset)
        at = int(first_with_timestamp(self._log.address, self._size(), floor, timestamp))
        located = Located.at_batches(self._log, np.array([at], np.int64), resolve)
        if at >= 0 and resolve is Resolve.RECORD:
            located.put_largest(self._log, at, timestamp)
        return located

    def settle(self, answers: Answers, rows: Longs, located: Located) -> NDArray[np.bool_]:
        """Do `SegmentVerdicts.settle`."""
        damage = None
        if self.file.is_last and (located.batches == AT_END).any():
            damage = self.damage
        self._cache.use(self)
        return self.verdicts.settle(answers, rows, located, damage)

    def give_up(self, answers: Answers, rows: Longs, position_bytes: int) -> None:
        """Do `SegmentVerdicts.give_up`."""
        self._cache.use(self)
        self.verdicts.give_up(answers, rows, position_bytes)

    def close(self) -> None:
        """Let go of maps and files; they are opened again when they are needed."""
        self._cache.forget(self)
        self.indexes.close()
        self._log.close()

    def _size(self) -> int:
        """How many bytes of the log count."""
        return self._read_end().end_bytes if self.file.is_last else self._log.size_bytes

    def _read_end(self) -> LogEnd:
        """Find where the segment ends, verifying what lies behind its last index entry."""
        if self._end is None:
            self._cache.use(self)
            index = self.indexes.offset_index
            start = index.entry(index.entries - 1).position if index.entries else 0
            self._end = self._log.scan_to_end(start)
            stop = self._end.stop
            if stop is not None:
                kind = TAIL if is_tail(stop, is_last=self.file.is_last) else UNREADABLE
                self.verdicts.notice(kind, self.file.log_path, stop.text, stop.position_bytes)
        return self._end

    def _nothing_at(self, located: Located) -> bool:
        at = int(located.batches[0])
        position = int(damage_at(at))
        if at == AT_END and self.file.is_last and self.damage is not None:
            # Nobody knows what is behind it.
            at, position = AT_DAMAGE, self.damage.position_bytes
        if at < AT_END:
            raise CorruptLogError(
                self.verdicts.reason_at(position), path=self.file.log_path, position_bytes=position
            )
        return at == AT_END
