"""The state of a cluster in Kafka's own topics: topics, groups, transactions, remote segments."""

from kafka_index.metadata.cluster_image import BrokerImage, ClusterImage, PartitionImage, TopicImage
from kafka_index.metadata.directory import (
    METADATA_TOPICS,
    ClusterMetadata,
    read_cluster,
    read_metadata,
)
from kafka_index.metadata.tables import METADATA_TABLES, MetadataTable
from kafka_index.metadata.topic_states import CommittedOffset, Group, Transaction

__all__ = [
    "METADATA_TABLES",
    "METADATA_TOPICS",
    "BrokerImage",
    "ClusterImage",
    "ClusterMetadata",
    "CommittedOffset",
    "Group",
    "MetadataTable",
    "PartitionImage",
    "TopicImage",
    "Transaction",
    "read_cluster",
    "read_metadata",
]
