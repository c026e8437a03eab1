"""Timestamps that ask for a place: the ends of a log, its tiers, its largest timestamp.

Source: Kafka's ``UnifiedLog.fetchOffsetByTimestamp``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from kafka_index.errors import KafkaIndexError
from kafka_index.layout.integers import Longs
from kafka_index.layout.records import NO_TIMESTAMP
from kafka_index.reading.answers import (
    FOUND_LEADER_EPOCH,
    FOUND_OFFSET,
    FOUND_TIMESTAMP,
    NULL,
    Answers,
    Resolve,
    SpecialTimestamp,
    Status,
)
from kafka_index.reading.log_bounds import LogBounds
from kafka_index.reading.log_segment import LogSegment
from kafka_index.reading.partition_files import PartitionFiles
from kafka_index.reading.timestamp_search import TimestampSearch
from kafka_index.state.leader_epochs import LeaderEpochCache

_TIER_EDGES = (
    SpecialTimestamp.EARLIEST_LOCAL,
    SpecialTimestamp.LATEST_TIERED,
    SpecialTimestamp.EARLIEST_PENDING_UPLOAD,
)


class SpecialTimestamps:
    """Answers special timestamps for one partition.

    `times` searches the local segments; `answer_offsets` looks up offsets.
    """

    def __init__(
        self,
        files: PartitionFiles,
        segments: Sequence[LogSegment],
        bounds: LogBounds,
        times: TimestampSearch,
        answer_offsets: Callable[[Longs, Resolve], Answers],
    ) -> None:
        self._files = files
        self._segments = segments
        self._bounds = bounds
        self._times = times
        self._answer_offsets = answer_offsets

    def answer(self, special: SpecialTimestamp, resolve: Resolve) -> Answers:
        """Return the one answer to a special timestamp."""
        rows = np.zeros(1, np.int64)
        if special is SpecialTimestamp.EARLIEST and resolve is not Resolve.RECORD:
            return self._answer_offset(self._bounds.log_start_offset, resolve)
        if resolve is Resolve.INDEX:
            return Answers.empty(1, resolve, Status.INVALID_QUERY)
        if special is SpecialTimestamp.MAX_TIMESTAMP:
            answers = Answers.empty(1, resolve, Status.NO_RECORD_AT_OR_AFTER)
            self._times.answer_largest(self._bounds.local_segments(), answers, rows, resolve)
            return answers
        if special in _TIER_EDGES:
            return self._answer_tier_edge(special, resolve)
        if resolve is Resolve.RECORD:
            return self._answer_edge(special)
        answers = Answers.empty(1, resolve)
        try:
            answers = self._answer_offset(self._bounds.end_offset, resolve)
        except KafkaIndexError as error:
            self._segments[-1].findings.failure(answers, rows, error)
        return answers

    def _answer_tier_edge(self, special: SpecialTimestamp, resolve: Resolve) -> Answers:
        """Answer for where the local log starts, or the remote one ends.

        Source: ``UnifiedLog.fetchOffsetByTimestamp``. A partition that is not tiered is all local.
        """
        uploaded_to = self._files.tiered_end_offset
        if special is SpecialTimestamp.EARLIEST_LOCAL:
            local_start = self._files.local_start_offset or 0
            offset = max(self._bounds.log_start_offset, local_start)
            if self._files.is_tiered and self._files.local_start_offset is None:
                # Without a log directory nothing is known to be local.
                return Answers.empty(1, resolve, Status.NO_RECORD_AT_OR_AFTER)
        elif uploaded_to is None:
            return Answers.empty(1, resolve, Status.NO_RECORD_AT_OR_AFTER)
        elif special is SpecialTimestamp.LATEST_TIERED:
            offset = uploaded_to
        elif uploaded_to >= 0:
            offset = uploaded_to + 1
        else:
            offset = -1 if self._bounds.is_empty else self._bounds.log_start_offset
        if offset < 0:
            return Answers.empty(1, resolve, Status.NO_RECORD_AT_OR_AFTER)
        if resolve is not Resolve.RECORD:
            return self._answer_offset(offset, resolve)
        return _place(offset, LeaderEpochCache(self._files.epochs).epoch_for_offset(offset))

    def _answer_edge(self, special: SpecialTimestamp) -> Answers:
        """Answer for the log's start or end."""
        epochs = self._files.epochs
        if special is SpecialTimestamp.EARLIEST:
            offset = self._bounds.log_start_offset
            epoch = epochs[0] if epochs and epochs[0].start_offset <= offset else None
        else:
            answers, rows = Answers.empty(1, Resolve.RECORD), np.zeros(1, np.int64)
            last = self._segments[-1]
            try:
                offset, log_end = self._bounds.end_offset, self._bounds.log_end_offset
                if last.damage is not None:
                    last.findings.damage(answers, rows, last.damage.position_bytes)
                    return answers
            except KafkaIndexError as error:
                last.findings.failure(answers, rows, error)
                return answers
            # An epoch that starts at the very end is that of a leader which has not appended yet.
            known = [entry for entry in epochs if entry.start_offset <= log_end]
            epoch = known[-1] if known else None
        return _place(offset, None if epoch is None else epoch.epoch)

    def _answer_offset(self, offset: int, resolve: Resolve) -> Answers:
        return self._answer_offsets(np.array([offset], np.int64), resolve)


def _place(offset: int, epoch: int | None) -> Answers:
    """Return the answer for a place, which is no record and has no timestamp."""
    answers = Answers.empty(1, Resolve.RECORD)
    answers.values[FOUND_OFFSET] = offset
    answers.values[FOUND_TIMESTAMP] = NO_TIMESTAMP
    answers.values[FOUND_LEADER_EPOCH] = NULL if epoch is None else epoch
    return answers
