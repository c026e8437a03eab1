"""From timestamps to segments: the first whose largest timestamp is late enough, and its answer.

Source: Kafka's ``UnifiedLog.searchOffsetInLocalLog`` and ``fetchOffsetByTimestamp``. A broker takes
the modification time of a file for the largest timestamp of a segment that has none; here such a
segment is passed over, since it holds no answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from kafka_index.errors import KafkaIndexError
from kafka_index.layout.records import NO_TIMESTAMP
from kafka_index.reading.answers import (
    FOUND_LEADER_EPOCH,
    FOUND_OFFSET,
    FOUND_TIMESTAMP,
    NULL,
    Answers,
    Longs,
    Resolve,
    SpecialTimestamp,
    Status,
)
from kafka_index.reading.log_segment import LogSegment

if TYPE_CHECKING:
    from kafka_index.reading.partition_log import PartitionLog


class TimestampSearch:
    """Searches one partition by time, and remembers the largest timestamps of its segments.

    Parameters
    ----------
    log : PartitionLog
        The partition.
    """

    def __init__(self, log: PartitionLog) -> None:
        self._log = log
        # The largest timestamp up to each segment, for the first segments.
        self._reach: list[int] = []
        # The segment that ends this, and why: nobody knows what it hides.
        self._hidden: tuple[LogSegment, KafkaIndexError | None] | None = None

    def answer(self, answers: Answers, targets: Longs, rows: Longs, resolve: Resolve) -> None:
        """Answer timestamps.

        Parameters
        ----------
        answers : Answers
            Filled.
        targets : ndarray of int64, shape (n,)
            In ms, ascending.
        rows : ndarray of int64, shape (n,)
            Where the answers go.
        resolve : Resolve
            How far to go.
        """
        self._try_again()
        while not self._answer_once(answers, targets, rows, resolve):
            # An index file that did not hold had told a wrong largest timestamp.
            self._reach, self._hidden = [], None

    def _answer_once(self, answers: Answers, targets: Longs, rows: Longs, resolve: Resolve) -> bool:
        """Answer ascending timestamps; return False when it has to be done again."""
        if not len(targets):
            return True
        segments = self._log.live_segments()
        self._extend_reach(segments, int(targets[-1]))
        reach = np.array(self._reach, np.int64)
        chosen = np.searchsorted(reach, targets)
        bounds = np.searchsorted(chosen, np.arange(len(reach) + 1))
        for number in np.unique(chosen):
            if number == len(reach):
                break
            segment = segments[number]
            part = slice(int(bounds[number]), int(bounds[number + 1]))
            told = segment.largest
            try:
                located = segment.locate_timestamps(
                    targets[part], self._log.log_start_offset, resolve
                )
                if segment.largest != told:
                    return False
            except KafkaIndexError as error:
                segment.verdicts.fail(answers, rows[part], error)
                continue
            at_end = segment.settle(answers, rows[part], located)
            # Later segments are not tried, whatever they hold.
            answers.status[rows[part][at_end]] = Status.NO_RECORD_AT_OR_AFTER
        beyond = rows[int(bounds[len(reach)]) :]
        answers.status[beyond] = Status.NO_RECORD_AT_OR_AFTER
        if self._hidden is not None:
            self._fail_hidden(answers, beyond, *self._hidden)
        return True

    def _extend_reach(self, segments: Sequence[LogSegment], timestamp: int) -> None:
        """Learn the largest timestamps of segments until one is as late as this."""
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

    def answer_special(
        self, answers: Answers, targets: Longs, rows: Longs, resolve: Resolve
    ) -> None:
        """Answer the timestamps that ask for a place."""
        answers.status[rows] = Status.INVALID_QUERY
        for special in SpecialTimestamp:
            asked = rows[targets == special]
            if not len(asked):
                continue
            if special is SpecialTimestamp.MAX_TIMESTAMP:
                if resolve is not Resolve.INDEX:
                    answers.put(asked, self._answer_largest(resolve).repeat(len(asked)))
            elif resolve is Resolve.RECORD:
                answers.put(asked, self._answer_edge(special).repeat(len(asked)))
            elif special is SpecialTimestamp.EARLIEST or resolve is Resolve.BATCH:
                earliest = special is SpecialTimestamp.EARLIEST
                offset = self._log.log_start_offset if earliest else self._log.end_offset
                answer = self._log.answer_offsets(np.array([offset], np.int64), resolve)
                answers.put(asked, answer.repeat(len(asked)))

    def _answer_edge(self, special: SpecialTimestamp) -> Answers:
        """Answer for the log's start or end."""
        answers = Answers.empty(1, Resolve.RECORD)
        epochs = self._log.files.epochs
        if special is SpecialTimestamp.EARLIEST:
            offset = self._log.log_start_offset
            epoch = epochs[0] if epochs and epochs[0].start_offset <= offset else None
        else:
            rows = np.zeros(1, np.int64)
            last = self._log.segments[-1]
            try:
                offset, log_end = self._log.end_offset, self._log.log_end_offset
                if last.damage is not None:
                    last.give_up(answers, rows, last.damage.position_bytes)
                    return answers
            except KafkaIndexError as error:
                last.verdicts.fail(answers, rows, error)
                return answers
            # One that starts at the very end is that of a leader which has not appended yet.
            known = [one for one in epochs if one.start_offset <= log_end]
            epoch = known[-1] if known else None
        answers.values[FOUND_OFFSET] = offset
        answers.values[FOUND_TIMESTAMP] = NO_TIMESTAMP
        answers.values[FOUND_LEADER_EPOCH] = NULL if epoch is None else epoch.epoch
        return answers

    def _answer_largest(self, resolve: Resolve) -> Answers:
        """Answer for the largest timestamp of all."""
        answers = Answers.empty(1, resolve, Status.NO_RECORD_AT_OR_AFTER)
        rows = np.zeros(1, np.int64)
        segments = self._log.live_segments()
        self._try_again()
        self._extend_reach(segments, np.iinfo(np.int64).max)
        if self._hidden is not None:
            self._fail_hidden(answers, rows, *self._hidden)
        elif segments:
            latest = max(segments, key=lambda segment: segment.largest.timestamp_ms)
            try:
                latest.settle(answers, rows, latest.find_largest_timestamp(resolve))
            except KafkaIndexError as error:
                latest.verdicts.fail(answers, rows, error)
        return answers

    def _try_again(self) -> None:
        """Forget what kept a segment from being read: it may be gone by now."""
        if self._hidden is not None and self._hidden[1] is not None:
            self._hidden = None

    @staticmethod
    def _fail_hidden(
        answers: Answers, rows: Longs, segment: LogSegment, error: KafkaIndexError | None
    ) -> None:
        """Give up what might be in the part of a segment that cannot be read."""
        stop = segment.indexes.stop
        if error is not None:
            segment.verdicts.fail(answers, rows, error)
        elif stop is not None:
            segment.give_up(answers, rows, stop.position_bytes)
