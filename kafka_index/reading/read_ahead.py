"""Fetching for segments that are about to be asked, while the ones before them are answered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kafka_index.errors import KafkaIndexError
from kafka_index.layout.integers import Longs
from kafka_index.reading.answers import Resolve
from kafka_index.reading.log_segment import LogSegment

#: How many segments ahead index files are fetched, and ranges of logs.
_INDEXES_AHEAD = 16
_RANGES_AHEAD = 4


class Expected(NamedTuple):
    """A segment that is about to be asked.

    Parameters
    ----------
    segment : LogSegment
        The segment.
    offsets : ndarray of int64, optional
        The ascending offsets that it will be asked for; None when these are not known yet.
    """

    segment: LogSegment
    offsets: Longs | None = None


class ReadAhead:
    """Fetches for segments in the order in which they will be asked.

    Parameters
    ----------
    expected : sequence of Expected
        The segments, in order.
    resolve : Resolve
        How far the answers go.
    """

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
        while self._indexed < min(number + 1 + _INDEXES_AHEAD, len(self._expected)):
            each = self._expected[self._indexed]
            each.segment.indexes.request(with_times=each.offsets is None)
            self._indexed += 1
        self._ranged = max(self._ranged, number)
        while self._ranged < min(number + 1 + _RANGES_AHEAD, len(self._expected)):
            each = self._expected[self._ranged]
            self._ranged += 1
            if each.offsets is not None and self._resolve is not Resolve.INDEX:
                try:
                    each.segment.request_offsets(each.offsets, self._resolve)
                except KafkaIndexError:
                    # The queries of that segment meet it, and report it.
                    continue
