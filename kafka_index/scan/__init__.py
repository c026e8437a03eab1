"""Scanning a segment into the batch table, and the index entries of its batches."""

from kafka_index.scan.index_builder import IndexBuilder
from kafka_index.scan.segment_scan import (
    ByteStreamSource,
    LogFileSource,
    base_offset_of,
    read_batches,
)

__all__ = ["ByteStreamSource", "IndexBuilder", "LogFileSource", "base_offset_of", "read_batches"]
