"""A read-only partition: look up many offsets or timestamps, with the results of a broker.

Sources: Kafka's ``LocalLog.read`` and ``UnifiedLog.fetchOffsetByTimestamp``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import pairwise
from numbers import Integral
from os import PathLike
from typing import NamedTuple, Self

import numpy as np
import pyarrow as pa

from kafka_index.core.contexts import Closeable
from kafka_index.core.errors import (
    CorruptLogError,
    InputError,
    KafkaIndexError,
    is_retriable,
    refuse_other_types,
)
from kafka_index.core.format.config import DEFAULT_MAX_DECOMPRESSED_BYTES, IndexConfig, to_choice
from kafka_index.core.format.leader_epochs import LeaderEpochCache
from kafka_index.core.format.longs import Longs, to_longs
from kafka_index.core.format.names import TopicPartition
from kafka_index.core.format.records import NO_TIMESTAMP
from kafka_index.core.format.uri_passwords import path_of
from kafka_index.core.fs.inputs import reading_inputs, refuse_unread
from kafka_index.core.fs.paths import absolute_path
from kafka_index.core.fs.registry import store_of
from kafka_index.core.fs.store import ByteSource
from kafka_index.core.index.slot_search import ascending
from kafka_index.core.log.choices import Resolve, Status, UpperBound
from kafka_index.core.log.read.answers import (
    BATCH_BASE_OFFSET,
    FOUND_LEADER_EPOCH,
    FOUND_OFFSET,
    FOUND_TIMESTAMP,
    GAP,
    NULL,
    SEGMENT_BASE_OFFSET,
    Answers,
    Findings,
    LookupFinding,
    SpecialTimestamp,
)
from kafka_index.core.log.read.log_segment import LocatedBatches, LogSegment
from kafka_index.core.log.read.partition_files import CheckpointReader, PartitionFiles
from kafka_index.core.log.read.segment_indexes import FetchedIndexes
from kafka_index.core.log.read.segment_log import SegmentCache
from kafka_index.core.log.scan.file_records import LogOffsetPosition, open_log
from kafka_index.core.logdir.listing import list_dump
from kafka_index.core.logdir.partition_files import SegmentFile


class TimestampSearch:
    """Searches the segments of a partition by time, and caches their largest timestamps.

    Records below `log_start_offset` are ignored.
    """

    def __init__(self, log_start_offset: int) -> None:
        self._log_start_offset = log_start_offset
        # For each of the first segments: the largest timestamp up to its end.
        self._largest_timestamps: list[int] = []
        # The first segment that is not completely readable, and the error of opening its indexes,
        # if any.
        self._unreadable: tuple[LogSegment, KafkaIndexError | None] | None = None

    def answer(
        self,
        segments: Sequence[LogSegment],
        answers: Answers,
        targets: Longs,
        rows: Longs,
        resolve: Resolve,
    ) -> None:
        """Look up ascending timestamps in ms in consecutive segments.

        `rows` are the rows of the timestamps in `answers`.
        """
        self._retry_unreadable()
        while not self._answer_once(segments, answers, targets, rows, resolve):
            # A lookup found that an index file has a wrong largest timestamp. The file is not used
            # again.
            self._largest_timestamps, self._unreadable = [], None

    def answer_largest(
        self, segments: Sequence[LogSegment], answers: Answers, rows: Longs, resolve: Resolve
    ) -> None:
        """Look up the largest timestamp of all segments. For the parameters, see `answer`."""
        self._retry_unreadable()
        self._extend_largest_timestamps(segments, np.iinfo(np.int64).max)
        if self._unreadable is not None:
            self._fail_unreadable(answers, rows, *self._unreadable)
        elif segments:
            latest = max(segments, key=lambda segment: segment.largest.timestamp_ms)
            try:
                latest.write_answers(answers, rows, latest.find_largest_timestamp(resolve))
            except KafkaIndexError as error:
                latest.findings.failure(answers, rows, error)

    def _answer_once(
        self,
        segments: Sequence[LogSegment],
        answers: Answers,
        targets: Longs,
        rows: Longs,
        resolve: Resolve,
    ) -> bool:
        """Look up ascending timestamps; return False if a lookup rejected an index in use."""
        self._extend_largest_timestamps(segments, int(targets[-1]))
        largest_timestamps = np.array(self._largest_timestamps, np.int64)
        # Each target is searched in the first segment whose largest timestamp is at or after the
        # target.
        bounds = [0, *map(int, np.searchsorted(targets, largest_timestamps, "right"))]
        for number, (first, end) in enumerate(pairwise(bounds)):
            if first == end:
                continue
            segment = segments[number]
            targets_slice = slice(first, end)
            largest = segment.largest
            try:
                located = segment.find_offsets_by_timestamp(
                    targets[targets_slice], self._log_start_offset, resolve
                )
                if segment.largest != largest:
                    return False
            except KafkaIndexError as error:
                segment.findings.failure(answers, rows[targets_slice], error)
                continue
            at_end = segment.write_answers(answers, rows[targets_slice], located)
            # As in Kafka, later segments are not searched, even if they have records at or after
            # the target.
            answers.status[rows[targets_slice][at_end]] = Status.NO_RECORD_AT_OR_AFTER
        rows_beyond = rows[bounds[-1] :]
        answers.status[rows_beyond] = Status.NO_RECORD_AT_OR_AFTER
        if self._unreadable is not None:
            self._fail_unreadable(answers, rows_beyond, *self._unreadable)
        return True

    def _extend_largest_timestamps(self, segments: Sequence[LogSegment], timestamp_ms: int) -> None:
        """Read largest timestamps, up to the first segment with one at or after a timestamp."""
        while (
            len(self._largest_timestamps) < len(segments)
            and self._unreadable is None
            and (not self._largest_timestamps or self._largest_timestamps[-1] < timestamp_ms)
        ):
            segment = segments[len(self._largest_timestamps)]
            try:
                largest = segment.largest
            except KafkaIndexError as error:
                self._unreadable = segment, error
                return
            previous_ms = self._largest_timestamps[-1] if self._largest_timestamps else NO_TIMESTAMP
            self._largest_timestamps.append(max(previous_ms, largest.timestamp_ms))
            if not largest.is_certain:
                self._unreadable = segment, None

    def _retry_unreadable(self) -> None:
        """Open an unreadable segment again in the next search, since its error may be transient."""
        if self._unreadable is not None and self._unreadable[1] is not None:
            self._unreadable = None

    @staticmethod
    def _fail_unreadable(
        answers: Answers, rows: Longs, segment: LogSegment, error: KafkaIndexError | None
    ) -> None:
        """Set the status of queries that the unreadable part of a segment may match."""
        stop = segment.indexes.stop
        if error is not None:
            segment.findings.failure(answers, rows, error)
        elif stop is not None:
            segment.findings.damage(answers, rows, stop.position_bytes)


class LogBounds:
    """The log start, log end and upper bound of a partition. Segments are opened on first use."""

    def __init__(self, files: PartitionFiles, segments: Sequence[LogSegment]) -> None:
        self.files = files
        self.segments = segments
        self._last_stable_offset: int | None = None

    @property
    def log_start_offset(self) -> int:
        return self.files.log_start_offset

    @property
    def log_end_offset(self) -> int:
        """The offset of the next record.

        Raises `KafkaIndexError` if the last segment cannot be read.
        """
        return max(self.segments[-1].next_offset, self.log_start_offset)

    @property
    def end_offset(self) -> int:
        """The exclusive upper bound of results: log end, high watermark or last stable offset.

        Raises `KafkaIndexError` if the last segment cannot be read, or if corruption hides
        transactions before the last stable offset.
        """
        end = self.log_end_offset
        bound = self.files.high_watermark
        damage = self.segments[-1].damage if self.files.is_stable else None
        if damage is not None and (bound is None or bound > end):
            raise CorruptLogError(
                f"the log is corrupt before its last stable offset: {damage.text}",
                path=self.segments[-1].file.log_path,
                position_bytes=damage.position_bytes,
            )
        end = end if bound is None else min(end, bound)
        return self._read_last_stable_offset(end) if self.files.is_stable else end

    @property
    def is_empty(self) -> bool:
        """Whether the log has no records. A log with a corrupt end counts as not empty.

        Raises `KafkaIndexError` if the last segment cannot be read because of a transient error.
        """
        try:
            return self.log_end_offset <= self.log_start_offset
        except KafkaIndexError as error:
            if is_retriable(error):
                raise
            return False

    def live_segments(self) -> Sequence[LogSegment]:
        """Return all segments, or none if the log start offset is above the log end offset.

        A broker deletes all segments of such a log when it starts (LogLoader.load).
        """
        try:
            ends_before_start = self.segments[-1].next_offset < self.log_start_offset
        except KafkaIndexError:
            # The last segment is unreadable. If it contains the log start offset, each query
            # searches it, and reports its error.
            return self.segments
        return () if ends_before_start else self.segments

    def local_segments(self) -> Sequence[LogSegment]:
        """Return the segments that a broker searches for the largest timestamp.

        In a tiered partition, a broker searches only local segments
        (UnifiedLog.fetchOffsetByTimestamp). Without a log directory, local segments are unknown,
        and all segments are returned.
        """
        segments = self.live_segments()
        start = self.files.local_start_offset
        if start is None:
            return segments
        return [segment for segment in segments if segment.base_offset >= start]

    def resolve_special(self, special: SpecialTimestamp) -> tuple[int, int | None]:
        """Return the offset of a special timestamp, -1 without one, and its leader epoch if known.

        Raises the errors of `end_offset`. Source: ``UnifiedLog.fetchOffsetByTimestamp``.
        """
        files, epochs = self.files, self.files.epochs
        uploaded_to = files.tiered_end_offset
        offset = -1
        match special:
            case SpecialTimestamp.EARLIEST:
                offset = self.log_start_offset
                has_epoch = bool(epochs) and epochs[0].start_offset <= offset
                return offset, epochs[0].epoch if has_epoch else None
            case SpecialTimestamp.LATEST:
                offset, log_end = self.end_offset, self.log_end_offset
                # Include an epoch that starts at the log end offset: its leader has not appended
                # yet.
                started = [entry.epoch for entry in epochs if entry.start_offset <= log_end]
                return offset, started[-1] if started else None
            case SpecialTimestamp.EARLIEST_LOCAL:
                # Without a log directory, local offsets are unknown.
                if not files.is_tiered or files.local_start_offset is not None:
                    offset = max(self.log_start_offset, files.local_start_offset or 0)
            case SpecialTimestamp.LATEST_TIERED if uploaded_to is not None:
                offset = uploaded_to
            case SpecialTimestamp.EARLIEST_PENDING_UPLOAD if uploaded_to is not None:
                if uploaded_to >= 0:
                    offset = uploaded_to + 1
                elif not self.is_empty:
                    offset = self.log_start_offset
        return offset, LeaderEpochCache(epochs).epoch_for_offset(offset)

    def _read_last_stable_offset(self, end_offset: int) -> int:
        """Return the last stable offset, which is computed only once."""
        if self._last_stable_offset is None:
            from kafka_index.core.log.read.transactions import read_transactions  # noqa: PLC0415, slow to import

            bounds = read_transactions(self.files, end_offset, end_offset)
            if bounds.damage is not None:
                raise bounds.damage
            self._last_stable_offset = bounds.last_stable_offset
        return self._last_stable_offset


#: Number of segments whose index files, and whose log ranges, are fetched before they are searched.
_INDEXES_AHEAD = 16
_RANGES_AHEAD = 4


class PlannedSearch(NamedTuple):
    """A segment to search, and the ascending offsets to find; None for a search by time."""

    segment: LogSegment
    offsets: Longs | None = None


class ReadAhead:
    """Fetches index files and log ranges of remote segments before the segments are searched."""

    def __init__(self, searches: Sequence[PlannedSearch], resolve: Resolve) -> None:
        self._searches = searches
        self._resolve = resolve
        self._number_by_id = {id(search.segment): number for number, search in enumerate(searches)}
        #: Number of searches with fetched index files, and number of searches with fetched log
        #: ranges.
        self._index_count = self._range_count = 0

    def fetch_after(self, segment: object) -> None:
        """Fetch files of the next segments when a segment is about to be searched."""
        number = self._number_by_id.get(id(segment))
        if number is None:
            return
        self._index_count = max(self._index_count, number)
        while self._index_count < self._fetch_end(number, _INDEXES_AHEAD):
            search = self._searches[self._index_count]
            search.segment.indexes.request(with_times=search.offsets is None)
            self._index_count += 1
        self._range_count = max(self._range_count, number)
        while self._range_count < self._fetch_end(number, _RANGES_AHEAD):
            search = self._searches[self._range_count]
            self._range_count += 1
            # The search of an unreadable segment reports its error later.
            with suppress(KafkaIndexError):
                if search.offsets is None:
                    search.segment.request_end()
                elif self._resolve is not Resolve.INDEX:
                    search.segment.request_offsets(search.offsets, self._resolve)

    def _fetch_end(self, number: int, ahead: int) -> int:
        """Return the exclusive end of the searches whose files are fetched.

        A search by time may need only the first segments, so it fetches fewer segments at first.
        """
        if self._searches[number].offsets is None:
            ahead = min(ahead, number + 1)
        return min(number + 1 + ahead, len(self._searches))


class PartitionLog(Closeable):
    """The log of one partition of a dump.

    Parameters
    ----------
    files : PartitionFiles
        The files of the partition, with at least one segment. Files are opened on first use.
    config : IndexConfig, optional
        Determines the entries of indexes that are built in memory.
    cache : SegmentCache, optional
        Limits the number of open segments of all partitions with this cache.
    max_decompressed_bytes : int
        Memory limit for decompressed records, per process. Batches that need more are unreadable.
    fetched_indexes : FetchedIndexes, optional
        Shared cache of indexes of remote segments.
    open_source : callable
        Opens a ``.log`` file, given its path and the listed segment.

    Notes
    -----
    Use it as a context manager. Not thread-safe: each thread must open the partition itself.
    """

    def __init__(
        self,
        files: PartitionFiles,
        *,
        config: IndexConfig | None = None,
        cache: SegmentCache | None = None,
        max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES,
        fetched_indexes: FetchedIndexes | None = None,
        open_source: Callable[[str, SegmentFile], ByteSource] = open_log,
    ) -> None:
        fetched = FetchedIndexes() if fetched_indexes is None else fetched_indexes
        self.files = files
        self._needs_requests = store_of(files.segments[0].log_path).needs_requests
        self._findings = Findings()
        self._cache = SegmentCache() if cache is None else cache
        self.segments = tuple(
            LogSegment(
                segment,
                index_directory=files.index_directory,
                config=config,
                cache=self._cache,
                findings=self._findings,
                max_decompressed_bytes=max_decompressed_bytes,
                fetched_indexes=fetched,
                open_source=open_source,
            )
            for segment in files.segments
        )
        self._base_offsets = np.array([segment.base_offset for segment in files.segments], np.int64)
        self._times = TimestampSearch(files.log_start_offset)
        # A separate cache for local segments, because largest timestamps are cached by segment
        # number.
        self._local_times = (
            self._times
            if files.local_start_offset is None
            else TimestampSearch(files.log_start_offset)
        )
        self._bounds = LogBounds(files, self.segments)

    @classmethod
    def open(
        cls,
        path: str | PathLike[str],
        *,
        indexes: str | PathLike[str] | None = None,
        upper_bound: UpperBound | str = UpperBound.LOG_END,
        config: IndexConfig | None = None,
        max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES,
        follow_links: bool = False,
    ) -> Self:
        """Open a partition directory, with the checkpoints of its data directory.

        Parameters
        ----------
        path : path
            A directory named ``<topic>-<partition>``, or its URI.
        indexes : path, optional
            Output folder of ``build``, which contains a folder of index files for the partition. By
            default, index files are next to the logs.
        upper_bound : UpperBound or str
            Upper bound of the offsets in results.
        config, max_decompressed_bytes
            As in the constructor.
        follow_links : bool
            Read index files and checkpoints through links that point outside the directory.

        Raises
        ------
        InputError
            The path is not a partition directory, it contains no segments, or a checkpoint is
            malformed.
        """
        directory = path_of(path, "path")
        refuse_other_types(
            follow_links=(follow_links, bool),
            config=(config, IndexConfig | None),
            max_decompressed_bytes=(max_decompressed_bytes, Integral),
        )
        with reading_inputs(follow_links=follow_links) as unread:
            listing = list_dump([directory], topics=None)
        refuse_unread(unread)
        if listing.partition_directories != [absolute_path(directory)]:
            raise InputError(
                "the path is not a partition directory",
                path=directory,
                expected="<topic>-<partition>",
            )
        first = listing.segments[0]
        partition = TopicPartition(first.topic, first.partition)
        index_directory = None
        if indexes is not None:
            index_directory = os.path.join(
                absolute_path(path_of(indexes, "indexes")), partition.directory_name
            )
        reader = CheckpointReader(upper_bound)
        return cls(
            reader.read(partition, listing.segments, index_directory),
            config=config,
            max_decompressed_bytes=max_decompressed_bytes,
        )

    @property
    def topic(self) -> str:
        """The topic name."""
        return self.files.topic

    @property
    def partition(self) -> int:
        """The partition number."""
        return self.files.partition

    @property
    def log_start_offset(self) -> int:
        """The log start offset."""
        return self.files.log_start_offset

    @property
    def log_end_offset(self) -> int:
        """The offset of the next record.

        Raises
        ------
        KafkaIndexError
            The last segment cannot be read.
        """
        return self._bounds.log_end_offset

    @property
    def end_offset(self) -> int:
        """The exclusive upper bound of results: log end, high watermark or last stable offset.

        Raises
        ------
        KafkaIndexError
            The last segment cannot be read, or corruption hides transactions before the last stable
            offset.
        """
        return self._bounds.end_offset

    def offset_to_position(self, offset: int) -> LogOffsetPosition | None:
        """Find the batch that contains an offset, or the first batch after it, if any.

        Raises
        ------
        InputError
            The offset is below the log start offset or above the log end offset.
        CorruptLogError
            The search reaches a corruption.
        """
        if not self.log_start_offset <= offset <= self.log_end_offset:
            raise InputError(
                "the offset is out of range",
                path=self.segments[0].file.partition_directory,
                expected=f"{self.log_start_offset}..{self.log_end_offset}",
                found=offset,
            )
        first = max(int(np.searchsorted(self._base_offsets, offset, "right")) - 1, 0)
        for segment in self._bounds.live_segments()[first:]:
            batch = segment.offset_to_position(offset)
            if batch is not None:
                return batch
        return None

    def lookup_offsets(
        self, offsets: Longs, *, resolve: Resolve | str = Resolve.BATCH
    ) -> pa.RecordBatch:
        """Look up offsets.

        Parameters
        ----------
        offsets : array of int64, shape (n,)
            Absolute offsets, in any order.
        resolve : Resolve
            Level of detail.

        Returns
        -------
        pa.RecordBatch
            n rows of `ANSWER_SCHEMA`, in the order of the offsets. The status of a row is
            ``unreadable`` if its segment cannot be read.
        """
        level = to_choice(Resolve, resolve, "resolve")
        return self.answer_offsets(to_longs(offsets, "offsets"), level).to_arrow()

    def lookup_timestamps(
        self, timestamps_ms: Longs, *, resolve: Resolve | str = Resolve.RECORD
    ) -> pa.RecordBatch:
        """Look up timestamps.

        Parameters
        ----------
        timestamps_ms : array of int64, shape (n,)
            Timestamps in ms, in any order; -1 to -6 are `SpecialTimestamp`.
        resolve : Resolve
            Level of detail.

        Returns
        -------
        pa.RecordBatch
            As from `lookup_offsets`.
        """
        level = to_choice(Resolve, resolve, "resolve")
        return self.answer_timestamps(to_longs(timestamps_ms, "timestamps_ms"), level).to_arrow()

    def plan_searches(self, offsets: Longs) -> list[PlannedSearch]:
        """Return the segments that `answer_offsets` searches. The last segment is first."""
        targets, _ = ascending(offsets)
        parts = np.split(targets, np.searchsorted(targets, self._base_offsets[1:]))
        searches = [PlannedSearch(*search) for search in zip(self.segments, parts, strict=True)]
        earlier_searches = [
            search for search, part in zip(searches[:-1], parts, strict=False) if len(part)
        ]
        return [searches[-1], *earlier_searches]

    def answer_offsets(self, offsets: Longs, resolve: Resolve) -> Answers:
        """Look up offsets like `lookup_offsets`, with results as numpy columns."""
        if not self._needs_requests:
            return self._answer_offsets(offsets, resolve)
        ahead = ReadAhead(self.plan_searches(offsets), resolve)
        with self._cache.announcing(ahead.fetch_after):
            return self._answer_offsets(offsets, resolve)

    def answer_timestamps(self, timestamps_ms: Longs, resolve: Resolve) -> Answers:
        """Look up timestamps like `lookup_timestamps`, with results as numpy columns."""
        if not self._needs_requests:
            return self._answer_timestamps(timestamps_ms, resolve)
        ahead = ReadAhead([PlannedSearch(segment) for segment in self.segments], resolve)
        with self._cache.announcing(ahead.fetch_after):
            return self._answer_timestamps(timestamps_ms, resolve)

    def take_findings(self) -> list[LookupFinding]:
        """Return the findings of the lookups since the last call."""
        return self._findings.drain()

    def close(self) -> None:
        """Close all segments; the next lookup opens them again."""
        for segment in self.segments:
            segment.close()

    def _answer_offsets(self, offsets: Longs, resolve: Resolve) -> Answers:
        answers = Answers.empty(len(offsets), resolve)
        targets, rows = ascending(offsets)
        negative = int(np.searchsorted(targets, 0))
        start = int(np.searchsorted(targets, self.log_start_offset))
        stop = len(targets)
        answers.status[rows[:start]] = Status.BEFORE_LOG_START
        answers.status[rows[:negative]] = Status.INVALID_QUERY
        start = max(start, negative)
        if resolve is not Resolve.INDEX:
            stop = start + self._answer_at_end(answers, targets[start:], rows[start:])
        self._answer_in_segments(answers, targets[start:stop], rows[start:stop], resolve)
        if self.files.high_watermark is not None:
            self._drop_from_end(answers, resolve)
        return answers

    def _answer_timestamps(self, timestamps_ms: Longs, resolve: Resolve) -> Answers:
        answers = Answers.empty(len(timestamps_ms), resolve)
        targets, rows = ascending(timestamps_ms)
        negative = int(np.searchsorted(targets, 0))
        answers.status[rows[:negative]] = Status.INVALID_QUERY
        if negative:
            self._answer_specials(answers, targets[:negative], rows[:negative], resolve)
        if negative < len(targets):
            self._times.answer(
                self._bounds.live_segments(), answers, targets[negative:], rows[negative:], resolve
            )
        # If offsets decrease, even the log end offset can be below the offsets of some batches.
        self._drop_from_end(answers, resolve)
        return answers

    def _answer_specials(
        self, answers: Answers, targets: Longs, rows: Longs, resolve: Resolve
    ) -> None:
        for special in SpecialTimestamp:
            special_rows = rows[targets == special]
            if len(special_rows):
                answers.put(
                    special_rows, self._answer_special(special, resolve).repeat(len(special_rows))
                )

    def _answer_special(self, special: SpecialTimestamp, resolve: Resolve) -> Answers:
        if resolve is Resolve.INDEX and special is not SpecialTimestamp.EARLIEST:
            return Answers.empty(1, resolve, Status.INVALID_QUERY)
        answers = Answers.empty(1, resolve, Status.NO_RECORD_AT_OR_AFTER)
        row, last_segment = np.zeros(1, np.int64), self.segments[-1]
        if special is SpecialTimestamp.MAX_TIMESTAMP:
            segments = self._bounds.local_segments()
            self._local_times.answer_largest(segments, answers, row, resolve)
            return answers
        try:
            offset, epoch = self._bounds.resolve_special(special)
            damage = last_segment.damage if special is SpecialTimestamp.LATEST else None
        except KafkaIndexError as error:
            last_segment.findings.failure(answers, row, error)
            return answers
        if offset >= 0 and resolve is not Resolve.RECORD:
            return self.answer_offsets(np.array([offset], np.int64), resolve)
        if damage is not None:
            last_segment.findings.damage(answers, row, damage.position_bytes)
        elif offset >= 0:
            # A special timestamp returns a bound of the log, which is not a record and has no
            # timestamp.
            answers.status[:] = Status.FOUND
            answers.values[FOUND_OFFSET] = offset
            answers.values[FOUND_TIMESTAMP] = NO_TIMESTAMP
            answers.values[FOUND_LEADER_EPOCH] = NULL if epoch is None else epoch
        return answers

    def _answer_at_end(self, answers: Answers, targets: Longs, rows: Longs) -> int:
        """Set the status of offsets at or above the upper bound.

        Returns how many of the ascending offsets are below the upper bound.
        """
        last_segment = self.segments[-1]
        try:
            below = int(np.searchsorted(targets, self.end_offset))
            damage = last_segment.damage
        except KafkaIndexError as error:
            below = int(np.searchsorted(targets, last_segment.base_offset))
            last_segment.findings.failure(answers, rows[below:], error)
            return below
        above = int(np.searchsorted(targets, self.log_end_offset, "right"))
        answers.status[rows[below:above]] = Status.LOG_END
        answers.status[rows[above:]] = Status.AFTER_LOG_END
        if damage is not None:
            unreadable = max(below, int(np.searchsorted(targets, last_segment.next_offset)))
            last_segment.findings.damage(answers, rows[unreadable:], damage.position_bytes)
        return below

    def _answer_in_segments(
        self, answers: Answers, targets: Longs, rows: Longs, resolve: Resolve
    ) -> None:
        """Look up ascending offsets between the log start offset and the upper bound."""
        segments = self.segments if resolve is Resolve.INDEX else self._bounds.live_segments()
        if not len(targets) or not segments:
            answers.status[rows] = Status.NO_RECORD_AT_OR_AFTER
            return
        bounds = np.append(np.searchsorted(targets, self._base_offsets), len(targets))
        # The first segment is also searched for offsets below its base offset.
        bounds[0] = 0
        pending = np.empty((2, 0), np.int64)
        for number, segment in enumerate(segments):
            slice_ = slice(int(bounds[number]), int(bounds[number + 1]))
            if slice_.start == slice_.stop and not pending.size:
                continue
            segment_targets, segment_rows = targets[slice_], rows[slice_]
            if pending.size:
                # Also search the offsets for which the previous segment has no batch.
                segment_targets, segment_rows = np.hstack(
                    [pending, [segment_targets, segment_rows]]
                )
            try:
                if resolve is Resolve.INDEX:
                    segment.lookup_entries(segment_targets, segment_rows, answers)
                    continue
                located = segment.translate_offsets(segment_targets, resolve)
            except KafkaIndexError as error:
                segment.findings.failure(answers, segment_rows, error)
                pending = pending[:, :0]
                continue
            self._report_gaps(segment, segment_targets, located)
            at_end = segment.write_answers(answers, segment_rows, located)
            pending = np.vstack([segment_targets[at_end], segment_rows[at_end]])
        answers.status[pending[1]] = Status.NO_RECORD_AT_OR_AFTER

    def _report_gaps(self, segment: LogSegment, targets: Longs, located: LocatedBatches) -> None:
        """Add a finding for offsets in no batch, for which the next batch is returned."""
        group_base_offsets = located.values[BATCH_BASE_OFFSET]
        base_offsets = (
            group_base_offsets if located.groups is None else group_base_offsets[located.groups]
        )
        is_in_gap = (base_offsets > targets) & (targets >= self.files.cleaned_to)
        count = int(np.count_nonzero(is_in_gap))
        if count:
            reason = "no batch contains the offset, so the next batch was returned"
            segment.findings.add(GAP, segment.file.log_path, reason, queries=count)

    def _drop_from_end(self, answers: Answers, resolve: Resolve) -> None:
        """Drop results at or above the upper bound (``Partition.fetchOffsetForTimestamp``)."""
        if resolve is Resolve.INDEX:
            return
        # Results without a segment are bounds for special timestamps, and are not dropped.
        offsets = answers.values[FOUND_OFFSET if resolve is Resolve.RECORD else BATCH_BASE_OFFSET]
        is_found = (answers.values[SEGMENT_BASE_OFFSET] != NULL) & (offsets != NULL)
        if not is_found.any():
            return
        try:
            is_dropped = is_found & (offsets >= self.end_offset)
        except KafkaIndexError as error:
            # The log end offset is above all results, but a lower upper bound may not be.
            is_bounded = self.files.is_stable or self.files.high_watermark is not None
            if is_bounded and is_retriable(error):
                self.segments[-1].findings.failure(answers, np.flatnonzero(is_found), error)
                answers.values[:, is_found] = NULL
            return
        if is_dropped.any():
            answers.status[is_dropped] = Status.NO_RECORD_AT_OR_AFTER
            answers.values[:, is_dropped] = NULL
