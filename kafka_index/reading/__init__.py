"""Reading logs by offset and time: `PartitionLog`, which is made of `LogSegment`."""

from kafka_index.reading.answers import Resolve, Status, UpperBound
from kafka_index.reading.log_segment import LogSegment
from kafka_index.reading.partition_files import PartitionFiles
from kafka_index.reading.partition_log import PartitionLog

__all__ = [
    "LogSegment",
    "PartitionFiles",
    "PartitionLog",
    "Resolve",
    "Status",
    "UpperBound",
]
