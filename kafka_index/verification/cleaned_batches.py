"""Whether two batches of one offset are one batch, before and after a cleaner was there.

A cleaner removes records, sets the horizon of tombstones, and, since Kafka 4, writes old messages
as batches; it keeps the offset range, epoch, producer and sequence of a batch, and the records that
it leaves. Source: Kafka's ``MemoryRecords.filterTo``.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa

from kafka_index.errors import KafkaIndexError
from kafka_index.layout.records import (
    DELETE_HORIZON_MASK,
    MAGIC_POSITION,
    MAGIC_RECORD_BATCH,
    RECORD_BATCH_HEADER,
)
from kafka_index.records.batch_walk import BatchDamage, decode_entry
from kafka_index.records.decompression import DecompressionBudget
from kafka_index.records.record_chunk import RecordChunk, RecordParts
from kafka_index.storage import Bytes

_KEPT = (
    "base_offset",
    "leader_epoch",
    "last_offset_delta",
    "producer_id",
    "producer_epoch",
    "base_sequence",
)
_Record = tuple[int, object, object, tuple[tuple[object, object], ...]]


class _Batch(NamedTuple):
    magic: int
    is_marked: bool
    kept: tuple[int, ...]
    records: dict[int, _Record]


def are_one_batch(first: Bytes, second: Bytes, budget: DecompressionBudget) -> bool:
    """Return whether two whole entries of a log differ only in what a cleaner changes."""
    try:
        one, other = _read(first, budget), _read(second, budget)
    except KafkaIndexError:
        return False
    if one is None or other is None:
        return False
    common = one.records.keys() & other.records.keys()
    if min(one.magic, other.magic) < MAGIC_RECORD_BATCH:
        is_changed = one.magic != other.magic or one.records.keys() != other.records.keys()
        may_be_one = bool(common) and is_changed
    else:
        may_be_one = one.kept == other.kept and (one.is_marked or other.is_marked)
    return may_be_one and all(one.records[offset] == other.records[offset] for offset in common)


def _read(entry: Bytes, budget: DecompressionBudget) -> _Batch | None:
    """Return an entry with its records; None where they cannot be read."""
    records: dict[int, _Record] = {}
    for found in decode_entry(entry, budget, _records, RecordParts.ALL):
        if isinstance(found, BatchDamage):
            return None
        records |= found
    magic = int(entry[MAGIC_POSITION])
    if magic < MAGIC_RECORD_BATCH:
        return _Batch(magic, is_marked=False, kept=(), records=records)
    header = np.frombuffer(entry, RECORD_BATCH_HEADER, 1)[0]
    attributes = int(header["attributes"])
    is_thinned = len(records) <= int(header["last_offset_delta"])
    return _Batch(
        magic,
        # Only a cleaner can have written it.
        is_thinned or bool(attributes & DELETE_HORIZON_MASK),
        (attributes & ~DELETE_HORIZON_MASK, *(int(header[name]) for name in _KEPT)),
        records,
    )


def _records(chunk: RecordChunk) -> dict[int, _Record]:
    headers: list[tuple[object, object]] = []
    if chunk.has_headers:
        names, values = chunk.header_columns()
        headers = list(zip(names.to_pylist(), values.to_pylist(), strict=True))
    ends = np.cumsum(chunk.header_counts()).tolist()
    starts = [0, *ends[:-1]]
    return {
        offset: (timestamp, key, value, tuple(headers[start:end]))
        for offset, timestamp, key, value, start, end in zip(
            chunk.offsets.tolist(),
            chunk.timestamps_ms.tolist(),
            _values(chunk.keys),
            _values(chunk.values),
            starts,
            ends,
            strict=True,
        )
    }


def _values(column: pa.Array | None) -> list[object]:
    return [] if column is None else column.to_pylist()
