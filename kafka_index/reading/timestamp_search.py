"""From timestamps to segments: the first whose largest timestamp is late enough, and its answer.

Source: Kafka's ``UnifiedLog.searchOffsetInLocalLog`` and ``fetchOffsetByTimestamp``. For a segment
without timestamps a broker takes the modification time of its file; here such a segment is passed
over, since it holds no answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from kafka_index.errors import KafkaIndexError
from kafka_index.layout.integers import Longs
from kafka_index.layout.records import NO_TIMESTAMP
from kafka_index.reading.answers import Answers, Resolve, Status
from kafka_index.reading.log_segment import LogSegment


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
