"""The settings of topics that a start goes by: those of the metadata, then the broker's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import overload

from kafka_index.config import LogConfig
from kafka_index.growing.settings import LogSettings
from kafka_index.metadata import ClusterImage
from kafka_index.startup.retention import Retention

_INTERVAL, _INDEX_SIZE = "index.interval.bytes", "segment.index.bytes"
_RETENTION_MS, _RETENTION_BYTES = "retention.ms", "retention.bytes"
# The first of them that is there counts (AbstractKafkaConfig.logRetentionTimeMillis).
_BROKER_RETENTION = (
    ("log.retention.ms", 1),
    ("log.retention.minutes", 60_000),
    ("log.retention.hours", 3_600_000),
)
_DEFAULT_RETENTION_MS = 168 * 3_600_000
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
        index, configs = self.config.for_topic(topic), self._configs(topic)
        return LogSettings(
            index_interval_bytes=_number(configs, _INTERVAL, index.index_interval_bytes),
            segment_index_bytes=_number(configs, _INDEX_SIZE, index.index_size_max_bytes),
            producer_id_expiration_ms=self.config.producer_id_expiration_ms,
        )

    def cleanup_policy(self, topic: str) -> str | None:
        """Return ``cleanup.policy``; None where it is not known."""
        return None if self.cluster is None else self.cluster.cleanup_policy(topic)

    def retention(self, topic: str, node_id: int | None) -> Retention:
        """Return up to where a broker keeps a log of a topic."""
        if self.cluster is None:
            return Retention(None, None)
        configs = self._configs(topic)
        is_remote = configs.get("remote.storage.enable") == "true"
        if "delete" not in self.cluster.cleanup_policy(topic) or is_remote:
            # Of tiered topics only what was uploaded is deleted here.
            return _NO_RETENTION
        broker = {**(self.properties or {}), **self.cluster.broker_configs(node_id)}
        is_known = self.properties is not None
        retention_ms = _DEFAULT_RETENTION_MS if is_known else None
        for name, factor in _BROKER_RETENTION:
            if name in broker:
                retention_ms = _number(broker, name, -1) * factor
                break
        retention_bytes = _number(broker, "log.retention.bytes", -1 if is_known else None)
        return Retention(
            _number(configs, _RETENTION_MS, retention_ms),
            _number(configs, _RETENTION_BYTES, retention_bytes),
        )

    def _configs(self, topic: str) -> Mapping[str, str]:
        return {} if self.cluster is None else self.cluster.topic_configs(topic)


@overload
def _number(configs: Mapping[str, str], name: str, default: int) -> int: ...
@overload
def _number(configs: Mapping[str, str], name: str, default: int | None) -> int | None: ...
def _number(configs: Mapping[str, str], name: str, default: int | None) -> int | None:
    try:
        return int(configs[name])
    except (KeyError, ValueError):
        return default
