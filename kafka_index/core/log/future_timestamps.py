"""Segments with timestamps in the future, which time-based retention does not delete."""

from __future__ import annotations

import os
from collections.abc import Iterable

import numpy as np

from kafka_index.core.errors import KafkaIndexError
from kafka_index.core.format.names import TIME_INDEX_SUFFIX, index_name_for
from kafka_index.core.format.records import TIME_ENTRY
from kafka_index.core.fs.registry import store_of
from kafka_index.core.logdir.partition_files import SegmentFile

#: Tolerated clock difference, in ms.
CLOCK_SKEW_MS = 3_600_000


def future_segments(segments: Iterable[SegmentFile], now_ms: int) -> dict[str, tuple[int, int]]:
    """Return the number and size of segments with a timestamp in the future, by topic.

    Timestamps come from time indexes; segments without a readable one are not counted.
    """
    found: dict[str, tuple[int, int]] = {}
    for segment in segments:
        if _largest_timestamp(segment) > now_ms + CLOCK_SKEW_MS:
            count, size_bytes = found.get(segment.topic, (0, 0))
            found[segment.topic] = count + 1, size_bytes + segment.log_size_bytes
    return found


def _largest_timestamp(segment: SegmentFile) -> int:
    directory, name = os.path.split(segment.log_path)
    path = os.path.join(directory, index_name_for(name, TIME_INDEX_SUFFIX))
    try:
        data = store_of(path).read(path)
    except (OSError, KafkaIndexError):
        return -1
    entries = np.frombuffer(data, TIME_ENTRY, len(data) // TIME_ENTRY.itemsize)
    return int(entries["timestamp_ms"].max(initial=-1))
