"""The configurations of the metadata log that can be shown: the ones known not to be secret.

A broker keeps the values of all configurations as they were given, passwords in clear text. A
configuration that is not known here is withheld, as Kafka treats it as sensitive
(``KafkaConfigSchema.isSensitive``).
"""

from __future__ import annotations

from typing import Final

#: What is shown instead of a value that may be secret (``Password.HIDDEN``).
HIDDEN: Final = "[hidden]"

#: The types of resources (``ConfigResource.Type``).
TOPIC_RESOURCE: Final = 2
BROKER_RESOURCE: Final = 4
CLIENT_METRICS_RESOURCE: Final = 16
GROUP_RESOURCE: Final = 32
#: The name of the broker whose configurations are those of all brokers.
ALL_BROKERS: Final = ""

# LogConfig.configNames of 4.3.1, and those of older releases.
_TOPIC_NAMES = """
    cleanup.policy compression.gzip.level compression.lz4.level compression.type
    compression.zstd.level delete.retention.ms file.delete.delay.ms flush.messages flush.ms
    follower.replication.throttled.replicas index.interval.bytes internal.segment.bytes
    leader.replication.throttled.replicas local.retention.bytes local.retention.ms
    max.compaction.lag.ms max.message.bytes message.downconversion.enable message.format.version
    message.timestamp.after.max.ms message.timestamp.before.max.ms
    message.timestamp.difference.max.ms message.timestamp.type min.cleanable.dirty.ratio
    min.compaction.lag.ms min.insync.replicas preallocate remote.log.copy.disable
    remote.log.delete.on.disable remote.storage.enable retention.bytes retention.ms segment.bytes
    segment.index.bytes segment.jitter.ms segment.ms unclean.leader.election.enable
"""
_TOPIC = frozenset(_TOPIC_NAMES.split())
_CLIENT_METRICS = frozenset({"interval.ms", "match", "metrics"})
_GROUP_PREFIXES = ("consumer.", "share.", "streams.")
# Of a broker, what follows these prefixes is numbers, sizes, times and policies.
_BROKER_PREFIXES = (
    "background.threads",
    "compression.",
    "follower.replication.throttled.",
    "leader.replication.throttled.",
    "log.",
    "max.connection",
    "message.max.bytes",
    "min.insync.replicas",
    "num.",
    "remote.log.manager.",
    "replica.alter.log.dirs.",
    "transaction.partition.verification.enable",
    "unclean.leader.election.enable",
)


def is_public_config(resource_type: int, name: str) -> bool:
    """Return whether the value of a configuration can be shown.

    The resource type is that of ``ConfigResource.Type``.
    """
    return (
        (resource_type == TOPIC_RESOURCE and name in _TOPIC)
        or (resource_type == BROKER_RESOURCE and name.startswith(_BROKER_PREFIXES))
        or (resource_type == CLIENT_METRICS_RESOURCE and name in _CLIENT_METRICS)
        or (resource_type == GROUP_RESOURCE and name.startswith(_GROUP_PREFIXES))
    )
