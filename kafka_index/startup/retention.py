"""The settings of topics that a start goes by, and what retention deletes soon after it.

Source: Kafka's ``UnifiedLog.deleteOldSegments``, which ``LogManager`` calls 30 seconds after it
has started.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from kafka_index.config import LogConfig, parse_integer
from kafka_index.metadata import ClusterImage
from kafka_index.startup.loaded_segment import LoadedSegment
from kafka_index.startup.partition_loading import LoadedPartition
from kafka_index.startup.prediction import PartitionPrediction


@dataclass(frozen=True, slots=True)
class Retention:
    """The limits up to which a broker keeps a log: negative for no limit, None for not known.

    `malformed` are the settings that are not numbers, because of which it is not known:
    ``name=value``.
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
    """Return a prediction with what retention makes of the log at a time.

    Nothing is predicted where the retention of the topic is not known.
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
    """Return how many segments are gone once all that are too old are gone, too."""
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


_RETENTION_MS, _RETENTION_BYTES = "retention.ms", "retention.bytes"
# The first of them that is there counts (AbstractKafkaConfig.logRetentionTimeMillis).
_BROKER_RETENTION = (
    ("log.retention.ms", 1),
    ("log.retention.minutes", 60_000),
    ("log.retention.hours", 3_600_000),
)
_DEFAULT_RETENTION_MS = 168 * 3_600_000
_DEFAULT_POLICY = "delete"
_NO_RETENTION = Retention(-1, -1)


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """Settings of topics.

    `config` has the broker's settings of indexes, and those of topics that they name. `properties`
    are all of the broker's settings, as in its ``server.properties``; None where they are not
    known.
    """

    config: LogConfig
    properties: Mapping[str, str] | None
    cluster: ClusterImage | None

    def cleanup_policy(self, topic: str, node_id: int | None) -> str | None:
        """Return ``cleanup.policy`` of a topic at a broker; None where it is not known."""
        if self.cluster is None:
            return None
        policy = self.cluster.cleanup_policy(topic, self.properties, node_id)
        if policy is None and self.properties is not None:
            return _DEFAULT_POLICY
        return policy

    def retention(self, topic: str, node_id: int | None) -> Retention:
        """Return up to where a broker keeps a log of a topic."""
        if self.cluster is None:
            return Retention(None, None)
        configs = self._configs(topic)
        is_remote = configs.get("remote.storage.enable") == "true"
        policy = self.cleanup_policy(topic, node_id)
        if is_remote or (policy is not None and "delete" not in policy):
            # Of tiered topics only what was uploaded is deleted here.
            return _NO_RETENTION
        if policy is None:
            return Retention(None, None)
        broker = self.cluster.broker_settings(self.properties, node_id)
        is_known = self.properties is not None
        malformed: list[str] = []

        def limit(*names: tuple[Mapping[str, str], str, int], default: int) -> int | None:
            for settings, name, factor in names:
                if name in settings:
                    number = parse_integer(settings[name].strip())
                    if number is None:
                        malformed.append(f"{name}={settings[name]}")
                        return None
                    return number * factor
            return default if is_known else None

        times = ((broker, name, factor) for name, factor in _BROKER_RETENTION)
        return Retention(
            limit((configs, _RETENTION_MS, 1), *times, default=_DEFAULT_RETENTION_MS),
            limit((configs, _RETENTION_BYTES, 1), (broker, "log.retention.bytes", 1), default=-1),
            tuple(malformed),
        )

    def _configs(self, topic: str) -> Mapping[str, str]:
        return {} if self.cluster is None else self.cluster.topic_configs(topic)
