"""Record batches and records: the batch table that every input becomes, decoding and encoding."""

from kafka_index.records.batch_table import BATCH_SCHEMA, BatchColumns, BatchSource, ScanStop
from kafka_index.records.record_batch import (
    BatchFields,
    Record,
    write_empty_batch,
    write_end_transaction_marker,
    write_leader_change,
    write_record_batch,
)

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
