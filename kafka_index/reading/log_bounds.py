"""The bounds of a log, the timestamps that ask for them, and the segments of all other timestamps.

Sources: Kafka's ``UnifiedLog.fetchOffsetByTimestamp`` and ``searchOffsetInLocalLog``. For a segment
without timestamps a broker takes the modification time of its file; here such a segment is passed
over, since it holds no answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from kafka_index.errors import CorruptLogError, KafkaIndexError, is_retriable
from kafka_index.layout.integers import Longs
from kafka_index.layout.records import NO_TIMESTAMP
from kafka_index.reading.answers import Answers, Resolve, SpecialTimestamp, Status
from kafka_index.reading.log_segment import LogSegment
from kafka_index.reading.partition_files import PartitionFiles
from kafka_index.state.leader_epochs import LeaderEpochCache


class TimestampSearch:
    """Searches the segments of a partition by time, and keeps their largest timestamps.

    No record below `log_start_offset` is an answer.
    """

    def __init__(self, log_start_offset: int) -> None:
        self._log_start_offset = log_start_offset
        # The largest timestamp up to each of the first segments.
        self._reach: list[int] = []
        # The segment that ends these because a part of it cannot be read, and why.
        self._hidden: tuple[LogSegment, KafkaIndexError | None] | None = None

    def answer(
        self,
        segments: Sequence[LogSegment],
        answers: Answers,
        targets: Longs,
        rows: Longs,
        resolve: Resolve,
    ) -> None:
        """Answer ascending timestamps in ms from segments in the order of the log.

        `rows` are the places of the targets in the answers.
        """
        self._retry_unreadable()
        while not self._answer_once(segments, answers, targets, rows, resolve):
            # The largest timestamp of an index file was wrong, and the file is refused now.
            self._reach, self._hidden = [], None

    def answer_largest(
        self, segments: Sequence[LogSegment], answers: Answers, rows: Longs, resolve: Resolve
    ) -> None:
        """Answer for the largest timestamp of all; parameters as for `answer`."""
        self._retry_unreadable()
        self._extend_reach(segments, np.iinfo(np.int64).max)
        if self._hidden is not None:
            self._fail_hidden(answers, rows, *self._hidden)
        elif segments:
            latest = max(segments, key=lambda segment: segment.largest.timestamp_ms)
            try:
                latest.settle(answers, rows, latest.find_largest_timestamp(resolve))
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
        """Answer ascending timestamps; return False when it has to be repeated."""
        self._extend_reach(segments, int(targets[-1]))
        reach = np.array(self._reach, np.int64)
        # A target belongs to the first segment that reaches it.
        bounds = [0, *map(int, np.searchsorted(targets, reach, "right"))]
        for number, (first, end) in enumerate(pairwise(bounds)):
            if first == end:
                continue
            segment = segments[number]
            part = slice(first, end)
            largest = segment.largest
            try:
                located = segment.find_offsets_by_timestamp(
                    targets[part], self._log_start_offset, resolve
                )
                if segment.largest != largest:
                    return False
            except KafkaIndexError as error:
                segment.findings.failure(answers, rows[part], error)
                continue
            at_end = segment.settle(answers, rows[part], located)
            # As in Kafka, later segments are not searched, whatever they hold.
            answers.status[rows[part][at_end]] = Status.NO_RECORD_AT_OR_AFTER
        beyond = rows[bounds[-1] :]
        answers.status[beyond] = Status.NO_RECORD_AT_OR_AFTER
        if self._hidden is not None:
            self._fail_hidden(answers, beyond, *self._hidden)
        return True

    def _extend_reach(self, segments: Sequence[LogSegment], timestamp: int) -> None:
        """Read the largest timestamps of segments until one is as late as this."""
        while (
            len(self._reach) < len(segments)
            and self._hidden is None
            and (not self._reach or self._reach[-1] < timestamp)
        ):
            segment = segments[len(self._reach)]
            try:
                largest = segment.largest
            except KafkaIndexError as error:
                self._hidden = segment, error
                return
            before = self._reach[-1] if self._reach else NO_TIMESTAMP
            self._reach.append(max(before, largest.timestamp_ms))
            if not largest.is_certain:
                self._hidden = segment, None

    def _retry_unreadable(self) -> None:
        """Forget the error that kept a segment from being read: it may be gone by now."""
        if self._hidden is not None and self._hidden[1] is not None:
            self._hidden = None

    @staticmethod
    def _fail_hidden(
        answers: Answers, rows: Longs, segment: LogSegment, error: KafkaIndexError | None
    ) -> None:
        """Answer queries whose answers may be in the part of a segment that cannot be read."""
        stop = segment.indexes.stop
        if error is not None:
            segment.findings.failure(answers, rows, error)
        elif stop is not None:
            segment.findings.damage(answers, rows, stop.position_bytes)


class LogBounds:
    """The bounds of a partition's log, whose segments are opened on first use."""

    def __init__(self, files: PartitionFiles, segments: Sequence[LogSegment]) -> None:
        self.files = files
        self.segments = segments
        self._last_stable_offset: int | None = None

    @property
    def log_start_offset(self) -> int:
        """The first offset that the partition still has."""
        return self.files.log_start_offset

    @property
    def log_end_offset(self) -> int:
        """The next offset to be written.

        Raises `KafkaIndexError` if the last segment cannot be read.
        """
        return max(self.segments[-1].next_offset, self.log_start_offset)

    @property
    def end_offset(self) -> int:
        """The exclusive end of answers: the requested bound, or the log end offset.

        Raises `KafkaIndexError` if the last segment cannot be read, or transactions cannot be
        followed up to the bound.
        """
        end = self.log_end_offset
        bound = self.files.high_watermark
        damage = self.segments[-1].damage if self.files.is_stable else None
        if damage is not None and (bound is None or bound > end):
            raise CorruptLogError(
                f"damage hides the last stable offset: {damage.text}",
                path=self.segments[-1].file.log_path,
                position_bytes=damage.position_bytes,
            )
        end = end if bound is None else min(end, bound)
        return self._stable_end(end) if self.files.is_stable else end

    @property
    def is_empty(self) -> bool:
        """Whether the log has no records; a log whose end damage hides has some.

        Raises `KafkaIndexError` if a read of the last segment fails.
        """
        try:
            return self.log_end_offset <= self.log_start_offset
        except KafkaIndexError as error:
            if is_retriable(error):
                raise
            return False

    def live_segments(self) -> Sequence[LogSegment]:
        """Return the segments, or none of them.

        A broker deletes them all when the log start is above their end (LogLoader.load).
        """
        try:
            ends_before_start = self.segments[-1].next_offset < self.log_start_offset
        except KafkaIndexError:
            # Where the log starts after the base offset of that segment, which alone makes a
            # difference, all queries are queries of that segment, and report it.
            return self.segments
        return () if ends_before_start else self.segments

    def local_segments(self) -> Sequence[LogSegment]:
        """Return the segments that a broker looks through for the largest timestamp.

        Of a tiered partition these are the local ones (UnifiedLog.fetchOffsetByTimestamp), or all,
        where no log directory is known.
        """
        segments = self.live_segments()
        start = self.files.local_start_offset
        if start is None:
            return segments
        return [segment for segment in segments if segment.base_offset >= start]

    def place_of(self, special: SpecialTimestamp) -> tuple[int, int | None]:
        """Return the offset of an edge of the log, below 0 for none, and its epoch if it is known.

        Raises `KafkaIndexError` as `end_offset`. A partition that is not tiered is all local.
        Source: ``UnifiedLog.fetchOffsetByTimestamp``.
        """
        files, epochs = self.files, self.files.epochs
        uploaded_to = files.tiered_end_offset
        offset = -1
        match special:
            case SpecialTimestamp.EARLIEST:
                offset = self.log_start_offset
                is_known = bool(epochs) and epochs[0].start_offset <= offset
                return offset, epochs[0].epoch if is_known else None
            case SpecialTimestamp.LATEST:
                offset, log_end = self.end_offset, self.log_end_offset
                # An epoch that starts at the very end is that of a leader which has not appended
                # yet.
                known = [entry.epoch for entry in epochs if entry.start_offset <= log_end]
                return offset, known[-1] if known else None
            case SpecialTimestamp.EARLIEST_LOCAL:
                # Without a log directory nothing is known to be local.
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

    def _stable_end(self, end_offset: int) -> int:
        """Return the last stable offset, which is found once."""
        if self._last_stable_offset is None:
            from kafka_index.reading.transactions import (  # noqa: PLC0415, slow to import
                read_transactions,
            )

            bounds = read_transactions(self.files, end_offset, end_offset)
            if bounds.damage is not None:
                raise bounds.damage
            self._last_stable_offset = bounds.last_stable_offset
        return self._last_stable_offset
