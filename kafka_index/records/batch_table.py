"""The batch table: one row per record batch, in file order. Every input becomes it.

`BatchColumns` is a chunk of the columns that a build needs, `BATCH_SCHEMA` the whole table
as users see it.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Self

import pyarrow as pa

from kafka_index.index import Longs
from kafka_index.kernels.markers import CONTROL_NONE
from kafka_index.kernels.scan import (
    COLUMN_ATTRIBUTES,
    COLUMN_BASE_OFFSET,
    COLUMN_BASE_SEQUENCE,
    COLUMN_CONTROL_TIMESTAMP,
    COLUMN_CONTROL_TYPE,
    COLUMN_COORDINATOR_EPOCH,
    COLUMN_LAST_OFFSET,
    COLUMN_LEADER_EPOCH,
    COLUMN_MAX_TIMESTAMP,
    COLUMN_POSITION,
    COLUMN_PRODUCER_EPOCH,
    COLUMN_PRODUCER_ID,
    COLUMN_SIZE,
)

__all__ = ["BATCH_SCHEMA", "CONTROL_NONE", "BatchColumns"]


@dataclass(frozen=True, slots=True)
class BatchColumns:
    """A chunk of batches, in file order: arrays of int64 of one length.

    A chunk that a scan yields is only good until the next one is asked for, which fills the same
    memory.

    Parameters
    ----------
    position_bytes, size_bytes : ndarray of int64, shape (n,)
        Where in the log a batch begins, and how long it is.
    base_offset, last_offset : ndarray of int64, shape (n,)
        Absolute.
    max_timestamp_ms : ndarray of int64, shape (n,)
        -1 for magic 0.
    leader_epoch : ndarray of int64, shape (n,)
        -1 for none.
    attributes : ndarray of int64, shape (n,)
        As in the batch header.
    producer_id : ndarray of int64, shape (n,)
        -1 for none.
    control_type : ndarray of int64, shape (n,)
        Type of the record of a control batch with a producer id, or one of the codes of
        `kafka_index.kernels.markers`; `CONTROL_NONE` for all other batches.
    producer_epoch, base_sequence : ndarray of int64, shape (n,)
        Undefined where there is no producer.
    coordinator_epoch, control_timestamp_ms : ndarray of int64, shape (n,)
        Of a marker's record; undefined for all other batches.
    """

    position_bytes: Longs
    size_bytes: Longs
    base_offset: Longs
    last_offset: Longs
    max_timestamp_ms: Longs
    leader_epoch: Longs
    attributes: Longs
    producer_id: Longs
    control_type: Longs
    producer_epoch: Longs
    base_sequence: Longs
    coordinator_epoch: Longs
    control_timestamp_ms: Longs

    @classmethod
    def of_scan(cls, columns: Longs, count: int) -> Self:
        """Return the first rows of what `kafka_index.kernels.scan_batches` filled, as views."""
        return cls(
            position_bytes=columns[COLUMN_POSITION, :count],
            size_bytes=columns[COLUMN_SIZE, :count],
            base_offset=columns[COLUMN_BASE_OFFSET, :count],
            last_offset=columns[COLUMN_LAST_OFFSET, :count],
            max_timestamp_ms=columns[COLUMN_MAX_TIMESTAMP, :count],
            leader_epoch=columns[COLUMN_LEADER_EPOCH, :count],
            attributes=columns[COLUMN_ATTRIBUTES, :count],
            producer_id=columns[COLUMN_PRODUCER_ID, :count],
            control_type=columns[COLUMN_CONTROL_TYPE, :count],
            producer_epoch=columns[COLUMN_PRODUCER_EPOCH, :count],
            base_sequence=columns[COLUMN_BASE_SEQUENCE, :count],
            coordinator_epoch=columns[COLUMN_COORDINATOR_EPOCH, :count],
            control_timestamp_ms=columns[COLUMN_CONTROL_TIMESTAMP, :count],
        )

    def __len__(self) -> int:
        """Return the number of batches."""
        return len(self.position_bytes)

    def head(self, count: int) -> Self:
        """Return the first batches, as views."""
        return type(self)(*(getattr(self, field.name)[:count] for field in fields(self)))

    @property
    def end_bytes(self) -> int:
        """Position after the last batch; there must be one."""
        return int(self.position_bytes[-1] + self.size_bytes[-1])


def _required(name: str, kind: pa.DataType) -> pa.Field:
    return pa.field(name, kind, nullable=False)


BATCH_SCHEMA = pa.schema(
    [
        _required("topic", pa.string()),
        _required("partition", pa.int32()),
        _required("segment_base_offset", pa.int64()),
        _required("position_bytes", pa.int64()),
        _required("size_bytes", pa.int32()),
        _required("base_offset", pa.int64()),
        _required("last_offset", pa.int64()),
        _required("leader_epoch", pa.int32()),
        _required("magic", pa.int8()),
        _required("attributes", pa.int16()),
        _required("crc", pa.int64()),
        _required("base_timestamp_ms", pa.int64()),
        _required("max_timestamp_ms", pa.int64()),
        _required("producer_id", pa.int64()),
        _required("producer_epoch", pa.int16()),
        _required("base_sequence", pa.int32()),
        _required("record_count", pa.int32()),
        pa.field("control_type", pa.int16()),
        pa.field("coordinator_epoch", pa.int32()),
        pa.field("control_timestamp_ms", pa.int64()),
    ]
)
