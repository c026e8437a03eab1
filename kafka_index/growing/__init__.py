"""Logs that grow: segments and partitions that are appended to.

A `GrowingPartitionLog` consists of segments, each a `GrowingLogSegment`. A broker with the same
settings writes the same files, and a broker can append to them.
"""

from kafka_index.growing.growing_log import GrowingPartitionLog
from kafka_index.growing.growing_segment import GrowingLogSegment
from kafka_index.growing.incoming_batches import Isolation
from kafka_index.growing.settings import LogSettings, TimestampType

__all__ = [
    "GrowingLogSegment",
    "GrowingPartitionLog",
    "Isolation",
    "LogSettings",
    "TimestampType",
]
