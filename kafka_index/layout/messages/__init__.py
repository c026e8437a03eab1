"""Kafka's definitions of the records that its own topics hold, release 4.3.1, as schemas."""

from kafka_index.layout.messages.cluster_metadata import (
    CLUSTER_METADATA,
    KRAFT_CONTROL,
    REMOTE_LOG_METADATA,
)
from kafka_index.layout.messages.coordinators import (
    CONSUMER_PROTOCOL,
    GROUP_RECORDS,
    SHARE_RECORDS,
    TRANSACTION_RECORDS,
)

__all__ = [
    "CLUSTER_METADATA",
    "CONSUMER_PROTOCOL",
    "GROUP_RECORDS",
    "KRAFT_CONTROL",
    "REMOTE_LOG_METADATA",
    "SHARE_RECORDS",
    "TRANSACTION_RECORDS",
]
