"""Compiled loops: scan with CRC, choice of sparse entries, slot search, producers.

Loops over ``uint8`` and int64 arrays that the caller provides, with integer codes for results: no
objects, no exceptions. Numba and google-crc32c are imported in this room alone.
"""

from __future__ import annotations

import numpy as np

from kafka_index.kernels.answer_runs import warm_up as warm_up_answer_runs
from kafka_index.kernels.appending import warm_up as warm_up_appending
from kafka_index.kernels.batch_header import batch_checksums
from kafka_index.kernels.bulk_search import (
    count_entries,
    find_disorder,
    find_entries,
    is_ascending,
)
from kafka_index.kernels.checksums import crc32c
from kafka_index.kernels.find_records import warm_up as warm_up_find_records
from kafka_index.kernels.headers import read_headers
from kafka_index.kernels.index_entries import (
    append_offset_entries,
    append_time_entries,
    can_convert_to_relative_offset,
    choose_entries,
)
from kafka_index.kernels.index_fit import warm_up as warm_up_index_fit
from kafka_index.kernels.producer_state import warm_up as warm_up_producer_state
from kafka_index.kernels.record_columns import warm_up as warm_up_record_columns
from kafka_index.kernels.record_writing import warm_up as warm_up_record_writing
from kafka_index.kernels.records import warm_up as warm_up_records
from kafka_index.kernels.scan import SCAN_COLUMNS, scan_batches
from kafka_index.kernels.search import NOT_FOUND, find_floors
from kafka_index.kernels.walk import warm_up as warm_up_walk

__all__ = [
    "NOT_FOUND",
    "append_offset_entries",
    "append_time_entries",
    "batch_checksums",
    "can_convert_to_relative_offset",
    "choose_entries",
    "count_entries",
    "find_disorder",
    "find_entries",
    "find_floors",
    "is_ascending",
    "read_headers",
    "scan_batches",
    "warm_up",
]


def warm_up() -> None:
    """Load or compile every kernel for the types it is called with, so that no task has to."""
    nothing = np.empty(0, np.int64)
    data = np.empty(0, np.uint8)
    read_only = np.frombuffer(b"", np.uint8)
    columns = np.empty((SCAN_COLUMNS, 1), np.int64)
    for window in (data, read_only):
        scan_batches(window, 0, 0, 0, 0, True, columns, 0)
        find_floors(window, 0, 8, 0, 4, nothing, 1, nothing)
        read_headers(window, 0, nothing, columns)
    append_offset_entries(data, 0, 0, 0, 0, nothing, nothing)
    append_time_entries(data, 0, 0, 0, 0, 0, 0, nothing, nothing)
    choose_entries(nothing, nothing, nothing, 0, np.zeros(3, np.int64), nothing, nothing, nothing)
    can_convert_to_relative_offset(0, 0)
    address = np.uint64(data.ctypes.data)
    find_entries(address, 0, 8, 4, 0, 0, 0, nothing, nothing, nothing, nothing)
    count_entries(address, 0, 8)
    find_disorder(address, 0, 8, 4, 1)
    is_ascending(nothing)
    warm_up_records()
    warm_up_record_columns(address, nothing)
    warm_up_record_writing(nothing)
    warm_up_index_fit(address, nothing)
    warm_up_walk(address, nothing)
    warm_up_answer_runs(nothing)
    warm_up_find_records(address, nothing)
    warm_up_producer_state()
    warm_up_appending(data, nothing)
    crc32c(b"")
