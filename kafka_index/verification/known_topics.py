"""The topics of a dump in the metadata log of the cluster."""

from __future__ import annotations

from dataclasses import dataclass

from kafka_index.metadata import ClusterImage
from kafka_index.storage.segment_table import SegmentTable


@dataclass(frozen=True, slots=True)
class KnownTopic:
    """A topic in the metadata.

    ``cleanup.policy`` is None if the metadata does not set it, so that each broker goes by its
    ``server.properties``.
    """

    topic_id: str
    cleanup_policy: str | None


def known_topics(cluster: ClusterImage | None, segments: SegmentTable) -> dict[str, KnownTopic]:
    """Return the topics of segments that the metadata knows, by name."""
    if cluster is None:
        return {}
    names = {each.partition.topic for each in segments.partitions}
    found = {name: cluster.topic_named(name) for name in names}
    return {
        name: KnownTopic(topic.topic_id, cluster.cleanup_policy(name))
        for name, topic in found.items()
        if topic is not None
    }
