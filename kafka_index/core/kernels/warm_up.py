"""Compile all kernels in advance: for ``warm-up``, and for processes that must not wait later."""

from __future__ import annotations

import numpy as np

from kafka_index.core.kernels.append_batches import warm_up as warm_up_appending
from kafka_index.core.kernels.avro import warm_up as warm_up_avro
from kafka_index.core.kernels.batch_counts import warm_up as warm_up_batch_counts
from kafka_index.core.kernels.batch_header import warm_up as warm_up_batch_header
from kafka_index.core.kernels.batch_seek import warm_up as warm_up_walk
from kafka_index.core.kernels.checksums import crc32c
from kafka_index.core.kernels.decompress import warm_up as warm_up_unpacking
from kafka_index.core.kernels.find_records import warm_up as warm_up_find_records
from kafka_index.core.kernels.headers import warm_up as warm_up_headers
from kafka_index.core.kernels.index_entries import (
    append_offset_entries,
    append_time_entries,
    can_convert_to_relative_offset,
    choose_entries,
)
from kafka_index.core.kernels.producer_state import warm_up as warm_up_producer_state
from kafka_index.core.kernels.protobuf import warm_up as warm_up_protobuf
from kafka_index.core.kernels.record_columns import warm_up as warm_up_record_columns
from kafka_index.core.kernels.record_encoder import warm_up as warm_up_record_writing
from kafka_index.core.kernels.records import warm_up as warm_up_records
from kafka_index.core.kernels.scan import SCAN_COLUMNS
from kafka_index.core.kernels.scan import warm_up as warm_up_scan
from kafka_index.core.kernels.search import find_floors
from kafka_index.core.kernels.search import warm_up as warm_up_search


def warm_up() -> None:
    """Load every kernel from the cache or compile it, for all its argument types."""
    nothing = np.empty(0, np.int64)
    data = np.empty(0, np.uint8)
    columns = np.empty((SCAN_COLUMNS, 1), np.int64)
    warm_up_scan(data, columns)
    warm_up_headers(nothing, columns)
    warm_up_batch_header()
    find_floors(data.ctypes.data, 0, 8, 0, 4, nothing, 1, nothing)
    append_offset_entries(data, 0, 0, 0, 0, nothing, nothing)
    append_time_entries(data, 0, 0, 0, 0, 0, 0, nothing, nothing)
    state = np.zeros(3, np.int64)
    choose_entries(nothing, nothing, nothing, 0, 0, 0, state, nothing, nothing, nothing, 0)
    can_convert_to_relative_offset(0, 0)
    address = np.uint64(data.ctypes.data)
    warm_up_search(address, nothing)
    warm_up_records()
    warm_up_record_columns(address, nothing)
    warm_up_record_writing(nothing)
    warm_up_walk(address, nothing)
    warm_up_find_records(address, nothing)
    warm_up_unpacking()
    warm_up_producer_state()
    warm_up_appending(data, nothing)
    warm_up_avro()
    warm_up_protobuf()
    warm_up_batch_counts(nothing)
    crc32c(b"")
