"""Logs that grow: record batches made of records, and segments and partitions to append them to.

Batches: `write_record_batch`. Logs: `GrowingPartitionLog`, which is made of `GrowingLogSegment`.
The files are those a broker with the same settings writes, and a broker goes on with them.
"""

from kafka_index.log.writing.appending.append_info import AppendInfo
from kafka_index.log.writing.batches.control_batches import (
    write_end_transaction_marker,
    write_leader_change,
)
from kafka_index.log.writing.batches.record import Record
from kafka_index.log.writing.batches.record_batch import (
    BatchFields,
    write_empty_batch,
    write_record_batch,
)
from kafka_index.log.writing.fetching import AbortedTransaction, FetchData
from kafka_index.log.writing.growing_log import GrowingPartitionLog
from kafka_index.log.writing.growing_segment import GrowingLogSegment
from kafka_index.log.writing.log_reads import Isolation
from kafka_index.log.writing.producers.producer_entry import AppendOrigin
from kafka_index.log.writing.settings import LogSettings, TimestampType

__all__ = [
    "AbortedTransaction",
    "AppendInfo",
    "AppendOrigin",
    "BatchFields",
    "FetchData",
    "GrowingLogSegment",
    "GrowingPartitionLog",
    "Isolation",
    "LogSettings",
    "Record",
    "TimestampType",
    "write_empty_batch",
    "write_end_transaction_marker",
    "write_leader_change",
    "write_record_batch",
]
