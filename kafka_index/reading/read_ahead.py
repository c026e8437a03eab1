"""Fetching for segments that are about to be asked, while the ones before them are answered."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

from kafka_index.errors import KafkaIndexError
from kafka_index.layout.integers import Longs
from kafka_index.reading.answers import Resolve
from kafka_index.reading.log_segment import LogSegment

#: How many segments ahead index files are fetched, and ranges of logs.
_INDEXES_AHEAD = 16
_RANGES_AHEAD = 4


class Expected(NamedTuple):
    """A segment that is about to be asked for ascending offsets, or None if also for times."""

    segment: LogSegment
    offsets: Longs | None = None


class ReadAhead:
    """Fetches for segments in the order in which they will be asked."""

    def __init__(self, expected: Sequence[Expected], resolve: Resolve) -> None:
        self._expected = expected
        self._resolve = resolve
        self._number_of = {id(each.segment): number for number, each in enumerate(expected)}
        self._indexed = self._ranged = 0

    def reach(self, segment: object) -> None:
        """Fetch for the segments after one that is about to be used."""
        number = self._number_of.get(id(segment))
        if number is None:
            return
        self._indexed = max(self._indexed, number)
        while self._indexed < self._end(number, _INDEXES_AHEAD):
            each = self._expected[self._indexed]
            each.segment.indexes.request(with_times=each.offsets is None)
            self._indexed += 1
        self._ranged = max(self._ranged, number)
        while self._ranged < self._end(number, _RANGES_AHEAD):
            each = self._expected[self._ranged]
            self._ranged += 1
            # The queries of a segment that cannot be read meet the error, and report it.
            with suppress(KafkaIndexError):
                if each.offsets is None:
                    each.segment.request_end()
                elif self._resolve is not Resolve.INDEX:
                    each.segment.request_offsets(each.offsets, self._resolve)

    def _end(self, number: int, ahead: int) -> int:
        """Return up to where to fetch; where it is not sure that all are asked, little at first."""
        if self._expected[number].offsets is None:
            ahead = min(ahead, number + 1)
        return min(number + 1 + ahead, len(self._expected))
