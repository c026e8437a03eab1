"""Index files, with Kafka's names and semantics, one entry or many at a time."""

from kafka_index.index.abstract_index import IN_MEMORY, AbstractIndex, LazyIndex
from kafka_index.index.slot_search import ascending
from kafka_index.index.sparse_indexes import OffsetIndex, OffsetPosition, TimeIndex, TimestampOffset
from kafka_index.index.transaction_index import AbortedTxns, TransactionIndex, collect_aborted_txns

__all__ = [
    "IN_MEMORY",
    "AbortedTxns",
    "AbstractIndex",
    "LazyIndex",
    "OffsetIndex",
    "OffsetPosition",
    "TimeIndex",
    "TimestampOffset",
    "TransactionIndex",
    "ascending",
    "collect_aborted_txns",
]
