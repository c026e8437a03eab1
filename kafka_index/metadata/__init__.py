"""The state of a cluster in Kafka's own topics: topics, groups, transactions, remote segments."""

from kafka_index.metadata.cluster_image import ClusterImage, PartitionImage, TopicImage
from kafka_index.metadata.directory import ClusterMetadata, read_cluster, read_metadata
from kafka_index.metadata.tables import LAG_TABLES, METADATA_TABLES, read_for_table
from kafka_index.metadata.topic_states import CommittedOffset, Transaction

__all__ = [
    "LAG_TABLES",
    "METADATA_TABLES",
    "ClusterImage",
    "ClusterMetadata",
    "CommittedOffset",
    "PartitionImage",
    "TopicImage",
    "Transaction",
    "read_cluster",
    "read_for_table",
    "read_metadata",
]
