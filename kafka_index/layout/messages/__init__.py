"""Kafka's definitions of the records that its own topics hold, release 4.3.1, as schemas."""

from kafka_index.layout.messages.cluster_metadata import CLUSTER_METADATA
from kafka_index.layout.messages.control_records import KRAFT_CONTROL
from kafka_index.layout.messages.groups import CONSUMER_PROTOCOL, GROUP_RECORDS
from kafka_index.layout.messages.remote_log import REMOTE_LOG_METADATA
from kafka_index.layout.messages.shares import SHARE_RECORDS
from kafka_index.layout.messages.transactions import TRANSACTION_RECORDS

__all__ = [
    "CLUSTER_METADATA",
    "CONSUMER_PROTOCOL",
    "GROUP_RECORDS",
    "KRAFT_CONTROL",
    "REMOTE_LOG_METADATA",
    "SHARE_RECORDS",
    "TRANSACTION_RECORDS",
]
