"""Logs: scanning segments into the batch table, building indexes from it, and looking things up.

Scanning and building: `LogFileSource`, `IndexBuilder`. Reading by offset and time: `PartitionLog`,
which is made of `LogSegment`.
"""

from kafka_index.log.answers import ANSWER_SCHEMA, Resolve, Status, UpperBound
from kafka_index.log.batch_table import BATCH_SCHEMA, BatchColumns
from kafka_index.log.batches import read_batches
from kafka_index.log.index_builder import IndexBuilder
from kafka_index.log.log_segment import LogSegment
from kafka_index.log.partition_files import PartitionFiles
from kafka_index.log.partition_log import PartitionLog
from kafka_index.log.segment_scan import ByteStreamSource, LogFileSource, base_offset_of
from kafka_index.log.source import BatchSource, ScanStop

__all__ = [
    "ANSWER_SCHEMA",
    "BATCH_SCHEMA",
    "BatchColumns",
    "BatchSource",
    "ByteStreamSource",
    "IndexBuilder",
    "LogFileSource",
    "LogSegment",
    "PartitionFiles",
    "PartitionLog",
    "Resolve",
    "ScanStop",
    "Status",
    "UpperBound",
    "base_offset_of",
    "read_batches",
]
