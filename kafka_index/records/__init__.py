"""Record batches and records: the batch table that every input becomes, decoding and encoding."""

from kafka_index.records.batch_source import BatchSource, ScanStop
from kafka_index.records.batch_table import BATCH_SCHEMA, BatchColumns
from kafka_index.records.control_batches import write_end_transaction_marker, write_leader_change
from kafka_index.records.record_batch import BatchFields, write_empty_batch, write_record_batch
from kafka_index.records.record_encoding import Record

__all__ = [
    "BATCH_SCHEMA",
    "BatchColumns",
    "BatchFields",
    "BatchSource",
    "Record",
    "ScanStop",
    "write_empty_batch",
    "write_end_transaction_marker",
    "write_leader_change",
    "write_record_batch",
]
