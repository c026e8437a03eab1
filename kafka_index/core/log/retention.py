"""Count the segments that retention deletes, and segments with timestamps in the future.

The high watermark is assumed to be at the log end offset. Sources: Kafka's
``UnifiedLog.deleteOldSegments`` and ``RemoteLogManager.cleanupExpiredRemoteLogSegments``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from kafka_index.core.errors import KafkaIndexError
from kafka_index.core.format.names import TIME_INDEX_SUFFIX, index_name_for
from kafka_index.core.format.records import TIME_ENTRY
from kafka_index.core.fs.registry import store_of
from kafka_index.core.logdir.partition_files import SegmentFile


def count_before_start(base_offsets: Sequence[int], log_start_offset: int) -> int:
    """Return how many segments end at or before the log start offset."""
    count = 0
    while count + 1 < len(base_offsets) and base_offsets[count + 1] <= log_start_offset:
        count += 1
    return count


def count_beyond_size(sizes_bytes: Sequence[int], count: int, retention_bytes: int) -> int:
    """Return how many segments are deleted after the size limit is applied.

    The first `count` segments are deleted already. The next segment is deleted if the log without
    it is still at least as large as the limit. If the limit is negative, no segment is deleted.
    """
    excess = sum(sizes_bytes[count:]) - retention_bytes
    if retention_bytes < 0:
        return count
    while _is_deletable(sizes_bytes, count) and excess >= sizes_bytes[count]:
        excess -= sizes_bytes[count]
        count += 1
    return count


def count_beyond_time(
    sizes_bytes: Sequence[int],
    count: int,
    retention_ms: int,
    now_ms: int,
    largest_timestamp_ms: Callable[[int], int],
) -> int:
    """Return how many segments are deleted after the time limit is applied.

    The first `count` segments are deleted already. `largest_timestamp_ms` returns the
    ``LogSegment.largestTimestamp`` of a segment, given its number. If the limit is negative, no
    segment is deleted.
    """
    if retention_ms < 0:
        return count
    while _is_deletable(sizes_bytes, count):
        if now_ms - largest_timestamp_ms(count) <= retention_ms:
            break
        count += 1
    return count


def count_expired_uploads(
    sizes_bytes: Sequence[int],
    count: int,
    uploaded: int,
    retention_bytes: int,
    retention_ms: int,
    now_ms: int,
    largest_timestamp_ms: Callable[[int], int],
) -> int:
    """Return how many segments of a tiered log are deleted after both limits are applied.

    `sizes_bytes` has each remote or local segment once. The first `count` segments are deleted
    already; only the first `uploaded` segments can be deleted. For the other parameters, see
    `count_beyond_time`. Unlike in a local log, a segment is checked for both limits before the next
    one.
    """
    excess = sum(sizes_bytes[count:]) - retention_bytes if retention_bytes >= 0 else 0
    while count < uploaded:
        is_too_old = 0 <= retention_ms < now_ms - largest_timestamp_ms(count)
        if not is_too_old and not 0 < sizes_bytes[count] <= excess:
            break
        excess = max(0, excess - sizes_bytes[count])
        count += 1
    return count


def _is_deletable(sizes_bytes: Sequence[int], at: int) -> bool:
    """Return whether retention can delete a segment: it exists, and is no empty active segment."""
    is_last = at == len(sizes_bytes) - 1
    return at < len(sizes_bytes) and not (is_last and not sizes_bytes[at])


#: How far timestamps may be ahead of this machine's clock, in ms.
CLOCK_SKEW_MS = 3_600_000


def future_segments(segments: Iterable[SegmentFile], now_ms: int) -> dict[str, tuple[int, int]]:
    """Return number and total size of segments with timestamps in the future, keyed by topic.

    Largest timestamps are read from time indexes. Segments without a readable time index are not
    counted.
    """
    totals_by_topic: dict[str, tuple[int, int]] = {}
    for segment in segments:
        if _largest_timestamp(segment) > now_ms + CLOCK_SKEW_MS:
            count, size_bytes = totals_by_topic.get(segment.topic, (0, 0))
            totals_by_topic[segment.topic] = count + 1, size_bytes + segment.log_size_bytes
    return totals_by_topic


def _largest_timestamp(segment: SegmentFile) -> int:
    directory, name = os.path.split(segment.log_path)
    path = os.path.join(directory, index_name_for(name, TIME_INDEX_SUFFIX))
    try:
        data = store_of(path).read(path)
    except (OSError, KafkaIndexError):
        return -1
    entries = np.frombuffer(data, TIME_ENTRY, len(data) // TIME_ENTRY.itemsize)
    return int(entries["timestamp_ms"].max(initial=-1))
