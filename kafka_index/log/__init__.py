"""Logs: scanning segments into the batch table, and building indexes from it."""

from kafka_index.log.batch_table import BATCH_SCHEMA, BatchColumns
from kafka_index.log.batches import read_batches
from kafka_index.log.index_builder import IndexBuilder
from kafka_index.log.segment_scan import ByteStreamSource, LogFileSource, base_offset_of
from kafka_index.log.source import BatchSource, ScanStop

__all__ = [
    "BATCH_SCHEMA",
    "BatchColumns",
    "BatchSource",
    "ByteStreamSource",
    "IndexBuilder",
    "LogFileSource",
    "ScanStop",
    "base_offset_of",
    "read_batches",
]
