"""The state of a cluster in Kafka's own topics: topics, groups, transactions, remote segments."""

from kafka_index.metadata.cluster_image import ClusterImage, PartitionImage, TopicImage
from kafka_index.metadata.directory import (
    METADATA_TOPICS,
    ClusterMetadata,
    read_cluster,
    read_metadata,
)
from kafka_index.metadata.tables import METADATA_TABLES
from kafka_index.metadata.topic_states import CommittedOffset, Transaction

__all__ = [
    "METADATA_TABLES",
    "METADATA_TOPICS",
    "ClusterImage",
    "ClusterMetadata",
    "CommittedOffset",
    "PartitionImage",
    "TopicImage",
    "Transaction",
    "read_cluster",
    "read_metadata",
]
