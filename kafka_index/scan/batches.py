"""The whole batch table of one log, as Arrow."""

from __future__ import annotations

import os
from collections.abc import Iterator
from os import PathLike

import numpy as np
import pyarrow as pa

from kafka_index.kernels.headers import (
    HEADER_BASE_SEQUENCE,
    HEADER_BASE_TIMESTAMP,
    HEADER_CONTROL_TIMESTAMP,
    HEADER_CONTROL_TYPE,
    HEADER_COORDINATOR_EPOCH,
    HEADER_CRC,
    HEADER_MAGIC,
    HEADER_PRODUCER_EPOCH,
    HEADER_RECORD_COUNT,
)
from kafka_index.layout.names import TopicPartition, parse_partition_directory
from kafka_index.records.batch_table import BATCH_SCHEMA, ScanStop
from kafka_index.records.record_table import WindowBatches
from kafka_index.scan.batch_order import BatchOrder
from kafka_index.scan.segment_scan import LogFileSource, base_offset_of


class read_batches:  # noqa: N801, because it is used as a function that can be asked why it ended
    """Iterate over the batches of a ``.log`` as record batches of `BATCH_SCHEMA`.

    Parameters
    ----------
    path : path
        The log; its name holds the base offset, and its folder's name topic and partition
        (an empty topic and -1 when it is not a partition directory).
    verify_crc : bool
        Without it only headers are read.

    Attributes
    ----------
    stop : ScanStop or None
        Once exhausted: why the batches ended before the end of the log.
    overlap : ScanStop or None
        The first batch so far that is out of order.
    """

    def __init__(self, path: str | PathLike[str], *, verify_crc: bool = True) -> None:
        self._source = LogFileSource(path, verify_crc=verify_crc)
        self._base_offset = base_offset_of(self._source.path)
        directory = os.path.basename(os.path.dirname(os.path.abspath(self._source.path)))
        self._partition = parse_partition_directory(directory) or TopicPartition("", -1)
        self.overlap: ScanStop | None = None

    @property
    def stop(self) -> ScanStop | None:
        """The reason why the batches ended before the log did."""
        return self._source.stop

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Scan the log."""
        order = BatchOrder(self._base_offset)
        for data, start, batches in self._source.windows():
            self.overlap = self.overlap or order.first_stop(batches)
            yield batch_rows(
                WindowBatches(data, start, batches), self._partition, self._base_offset
            )


def batch_rows(
    source: WindowBatches, partition: TopicPartition, segment_base_offset: int
) -> pa.RecordBatch:
    """Return batches of a window as rows of `BATCH_SCHEMA`."""
    batches, headers = source.batches, source.read_headers()
    count = batches.rows
    control_type = headers[HEADER_CONTROL_TYPE]
    no_control = control_type < 0
    values: dict[str, object] = {
        "topic": pa.repeat(partition.topic, count),
        "partition": pa.repeat(partition.partition, count),
        "segment_base_offset": pa.repeat(segment_base_offset, count),
        "position_bytes": batches.position_bytes,
        "size_bytes": batches.size_bytes,
        "base_offset": batches.base_offset,
        "last_offset": batches.last_offset,
        "leader_epoch": batches.leader_epoch,
        "magic": headers[HEADER_MAGIC],
        "attributes": batches.attributes,
        "crc": headers[HEADER_CRC],
        "base_timestamp_ms": headers[HEADER_BASE_TIMESTAMP],
        "max_timestamp_ms": batches.max_timestamp_ms,
        "producer_id": batches.producer_id,
        "producer_epoch": headers[HEADER_PRODUCER_EPOCH],
        "base_sequence": headers[HEADER_BASE_SEQUENCE],
        "record_count": headers[HEADER_RECORD_COUNT],
        "control_type": pa.array(control_type, mask=no_control),
        "coordinator_epoch": pa.array(headers[HEADER_COORDINATOR_EPOCH], mask=no_control),
        "control_timestamp_ms": pa.array(headers[HEADER_CONTROL_TIMESTAMP], mask=no_control),
    }
    # Copies, because the next chunk reuses the memory.
    arrays = [
        (value if isinstance(value, pa.Array) else pa.array(np.array(value))).cast(field.type)
        for field in BATCH_SCHEMA
        for value in (values[field.name],)
    ]
    return pa.record_batch(arrays, schema=BATCH_SCHEMA)
