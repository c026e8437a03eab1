"""The batch table: one row per record batch, in file order. Every input becomes it.

`BatchColumns` is a chunk of the columns that a build needs, `BATCH_SCHEMA` the whole table
as users see it.
"""

from __future__ import annotations

import pyarrow as pa

from kafka_index.kernels.markers import CONTROL_NONE
from kafka_index.kernels.scan import BatchColumns

__all__ = ["BATCH_SCHEMA", "CONTROL_NONE", "BatchColumns"]


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
