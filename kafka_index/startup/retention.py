"""The records that retention deletes soon after the start, and not by the start itself.

Source: Kafka's ``UnifiedLog.deleteOldSegments``, which ``LogManager`` calls 30 seconds after it
has started.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from kafka_index.startup.loaded_segment import LoadedSegment
from kafka_index.startup.partition_loading import LoadedPartition
from kafka_index.startup.prediction import PartitionPrediction


@dataclass(frozen=True, slots=True)
class Retention:
    """Up to where a broker keeps a log: negative for no limit, None for not known.

    Parameters
    ----------
    retention_ms : int or None
        ``retention.ms``.
    retention_bytes : int or None
        ``retention.bytes``.
    malformed : tuple of str
        The settings that are not numbers, because of which it is not known: ``name=value``.
    """

    retention_ms: int | None
    retention_bytes: int | None
    malformed: tuple[str, ...] = ()

    @property
    def is_known(self) -> bool:
        """Whether both limits are known."""
        return self.retention_ms is not None and self.retention_bytes is not None


def with_retention(
    predicted: PartitionPrediction, loaded: LoadedPartition, retention: Retention, now_ms: int
) -> PartitionPrediction:
    """Return a prediction with what retention makes of the log that was loaded.

    Parameters
    ----------
    predicted : PartitionPrediction
        Of the start.
    loaded : LoadedPartition
        The partition after loading.
    retention : Retention
        Of its topic; nothing is predicted where that is not known.
    now_ms : int
        When it is deleted.
    """
    if not retention.is_known:
        return predicted
    segments, log = loaded.segments, loaded.log
    by_size = _beyond_size(segments, retention.retention_bytes or 0)
    count = _beyond_time(segments, by_size, retention.retention_ms or 0, now_ms)
    if not count:
        return replace(predicted, log_start_retained=log.log_start_offset)
    end = log.log_end_offset if count == len(segments) else segments[count].base_offset
    start = max(log.log_start_offset, end)
    limits = [
        f"{name} {limit}"
        for name, limit, is_met in (
            ("retention.bytes", retention.retention_bytes, by_size),
            ("retention.ms", retention.retention_ms, count > by_size),
        )
        if is_met
    ]
    note = (
        f"retention: 30 seconds after the start {count} of {len(segments)} segments are deleted, "
        f"up to offset {end - 1}, because of {' and '.join(limits)}"
    )
    return replace(
        predicted,
        log_start_retained=start,
        segments_to_delete=count,
        notes=(*predicted.notes, note),
    )


def _beyond_size(segments: Sequence[LoadedSegment], retention_bytes: int) -> int:
    """Return how many segments at the head the log can lack, and still be as large."""
    excess = sum(segment.size_bytes for segment in segments) - retention_bytes
    count = 0
    if retention_bytes < 0:
        return count
    while _is_deletable(segments, count) and excess >= segments[count].size_bytes:
        excess -= segments[count].size_bytes
        count += 1
    return count


def _beyond_time(
    segments: Sequence[LoadedSegment], count: int, retention_ms: int, now_ms: int
) -> int:
    """Return how many segments are gone once those that are too old are, too."""
    if retention_ms < 0:
        return count
    while _is_deletable(segments, count):
        if now_ms - segments[count].largest_timestamp_ms(now_ms) <= retention_ms:
            break
        count += 1
    return count


def _is_deletable(segments: Sequence[LoadedSegment], at: int) -> bool:
    """Return whether there is such a segment: an empty active one stays."""
    is_last = at == len(segments) - 1
    return at < len(segments) and not (is_last and not segments[at].size_bytes)
