"""Logs that grow: segments and partitions that are appended to.

`GrowingPartitionLog` is made of `GrowingLogSegment`. The files are those a broker with the same
settings writes, and a broker can continue them.
"""

from kafka_index.growing.append_info import AppendInfo
from kafka_index.growing.fetching import AbortedTransaction, FetchData
from kafka_index.growing.growing_log import GrowingPartitionLog
from kafka_index.growing.growing_segment import GrowingLogSegment
from kafka_index.growing.log_reads import Isolation
from kafka_index.growing.settings import LogSettings, TimestampType

__all__ = [
    "AbortedTransaction",
    "AppendInfo",
    "FetchData",
    "GrowingLogSegment",
    "GrowingPartitionLog",
    "Isolation",
    "LogSettings",
    "TimestampType",
]
