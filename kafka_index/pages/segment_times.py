"""The times at which the data of segments begins and ends, and the density of their indexes.

Two small reads per segment, of files on a local disk: the first batch of the log and the last entry
of its time index. A value that cannot be read, or cannot be right, is null: the page leaves it out.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from kafka_index.errors import LinkedOutError
from kafka_index.layout.names import LOG_SUFFIX, OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX
from kafka_index.layout.records import (
    MESSAGE_V1_HEADER,
    NO_TIMESTAMP,
    OFFSET_ENTRY,
    RECORD_BATCH_HEADER,
    TIME_ENTRY,
    field_position,
)
from kafka_index.stores import is_remote
from kafka_index.stores.inputs import refuse_linked_out

#: A row per segment of a dump, as the pictures of a page need it.
SEGMENT_SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("segment_base_offset", pa.int64()),
        ("log_size_bytes", pa.int64()),
        ("first_timestamp_ms", pa.int64()),
        ("max_timestamp_ms", pa.int64()),
        ("offset_entries", pa.int64()),
    ]
)
_MAGIC = field_position(RECORD_BATCH_HEADER, "magic")


def with_times(batch: pa.RecordBatch, *, reading: bool) -> pa.RecordBatch:
    """Return segments, which have ``log_path``, as rows of `SEGMENT_SCHEMA`.

    Without `reading`, values from files are null.
    """
    paths = batch.column("log_path").to_pylist() if reading else []
    firsts = first_timestamps(paths) if reading else pa.nulls(len(batch), pa.int64())
    known = {
        "first_timestamp_ms": firsts,
        "max_timestamp_ms": pa.array(
            map(_last_timestamp, paths) if reading else [None] * len(batch), pa.int64()
        ),
        "offset_entries": pa.array(
            map(_offset_entries, paths) if reading else [None] * len(batch), pa.int64()
        ),
    }
    columns = [
        known[field.name] if field.name in known else batch.column(field.name).cast(field.type)
        for field in SEGMENT_SCHEMA
    ]
    return pa.record_batch(columns, schema=SEGMENT_SCHEMA)


def first_timestamps(log_paths: Sequence[str | None]) -> pa.Array:
    """Return the timestamp at which the first batch of each log begins, int64."""
    return pa.array(map(_first_timestamp, log_paths), pa.int64())


def _first_timestamp(log_path: str | None) -> int | None:
    header = _read(log_path, RECORD_BATCH_HEADER.itemsize)
    if len(header) <= _MAGIC:
        return None
    magic = header[_MAGIC]
    layout, name = (
        (RECORD_BATCH_HEADER, "base_timestamp_ms")
        if magic == 2
        else (MESSAGE_V1_HEADER, "timestamp_ms")
    )
    if magic not in {1, 2} or len(header) < layout.itemsize:
        return None
    first = int(np.frombuffer(header, layout, 1)[name][0])
    return None if first <= NO_TIMESTAMP else first


def _last_timestamp(log_path: str | None) -> int | None:
    entry = _read(_beside(log_path, TIME_INDEX_SUFFIX), -TIME_ENTRY.itemsize)
    if len(entry) != TIME_ENTRY.itemsize:
        return None
    last = int(np.frombuffer(entry, TIME_ENTRY)["timestamp_ms"][0])
    # Zeros are preallocation: the largest timestamp lies somewhere before them.
    return last if last > 0 else None


def _offset_entries(log_path: str | None) -> int | None:
    path = _beside(log_path, OFFSET_INDEX_SUFFIX)
    if path is None:
        return None
    try:
        size_bytes = os.stat(path).st_size
    except OSError:
        return None
    preallocated = size_bytes and not any(_read(path, -OFFSET_ENTRY.itemsize))
    return None if preallocated else size_bytes // OFFSET_ENTRY.itemsize


def _beside(log_path: str | None, suffix: str) -> str | None:
    if log_path is None or not log_path.endswith(LOG_SUFFIX):
        return None
    return log_path.removesuffix(LOG_SUFFIX) + suffix


def _read(path: str | None, count: int) -> bytes:
    """Return the first bytes of a local file, or with a negative count the last ones."""
    if path is None or is_remote(path):
        return b""
    try:
        refuse_linked_out(path)
        with open(path, "rb", buffering=0) as file:
            if count < 0:
                file.seek(count, os.SEEK_END)
            return file.read(abs(count))
    except (OSError, LinkedOutError):
        return b""
