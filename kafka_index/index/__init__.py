"""Memory-mapped index files, with Kafka's names and semantics, one entry or many at a time."""

from kafka_index.index.abstract_index import AbstractIndex
from kafka_index.index.offset_index import OffsetIndex, OffsetPosition
from kafka_index.index.time_index import TimeIndex, TimestampOffset

__all__ = ["AbstractIndex", "OffsetIndex", "OffsetPosition", "TimeIndex", "TimestampOffset"]
