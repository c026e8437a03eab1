"""The settings of topics that a start goes by: those of the metadata, then the broker's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kafka_index.config import LogConfig, parse_integer
from kafka_index.growing.settings import LogSettings
from kafka_index.metadata import ClusterImage
from kafka_index.startup.retention import Retention

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

    Parameters
    ----------
    config : LogConfig
        The broker's settings of indexes, and those of topics that they name.
    properties : mapping of str to str, or None
        All of the broker's settings, as in its ``server.properties``; None where they are not
        known.
    cluster : ClusterImage or None
        The metadata.
    """

    config: LogConfig
    properties: Mapping[str, str] | None
    cluster: ClusterImage | None

    def log_settings(self, topic: str) -> LogSettings:
        """Return what loading a log of a topic goes by."""
        index = self.config.for_topic(topic)
        return LogSettings(
            index_interval_bytes=index.index_interval_bytes,
            segment_index_bytes=index.index_size_max_bytes,
            producer_id_expiration_ms=self.config.producer_id_expiration_ms,
        )

    def cleanup_policy(self, topic: str, node_id: int | None) -> str | None:
        """Return ``cleanup.policy`` of a topic at a broker; None where it is not known."""
        if self.cluster is None:
            return None
        policy = self.cluster.cleanup_policy(topic, self._broker(node_id))
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
        broker, is_known = self._broker(node_id), self.properties is not None
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

    def _broker(self, node_id: int | None) -> Mapping[str, str]:
        """Return the settings of a broker that are known: dynamic ones count first."""
        dynamic = {} if self.cluster is None else self.cluster.broker_configs(node_id)
        return {**(self.properties or {}), **dynamic}

    def _configs(self, topic: str) -> Mapping[str, str]:
        return {} if self.cluster is None else self.cluster.topic_configs(topic)
