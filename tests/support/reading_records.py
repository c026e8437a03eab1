"""All records of one entry of a log, gathered from their chunks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kafka_index.records.batch_walk import CHUNK_RECORDS, BatchDamage, RecordDecoder
from kafka_index.records.decompression import DecompressionBudget
from kafka_index.records.record_chunk import RecordChunk, RecordParts
from kafka_index.records.record_sections import first_offset, open_records

ROOM = 1 << 26


class RecordContent(NamedTuple):
    """The bytes of a record; None for null."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[bytes, bytes | None], ...] = ()


@dataclass(frozen=True)
class ReadRecords:
    """Records by offset and timestamp, and why Kafka throws after them."""

    rows: list[tuple[int, int]]
    fault: str | None

    @property
    def offsets(self) -> list[int]:
        """The offset of each."""
        return [offset for offset, _ in self.rows]


def read_records(
    entry: bytes | NDArray[np.uint8], max_bytes: int = ROOM, chunk_records: int = CHUNK_RECORDS
) -> ReadRecords:
    """Read all records of an entry; nothing may be left of the budget's room."""
    data = _array(entry)
    budget = DecompressionBudget(max_bytes)
    rows: list[tuple[int, int]] = []
    fault = None
    try:
        # What is refused as a whole is refused here.
        open_records(data, budget).close()
        decoder = RecordDecoder(budget, RecordParts.NONE, chunk_records=chunk_records)
        for found in decoder.decode(data, np.zeros(1, np.int64), np.array([len(data)]), _rows):
            if isinstance(found, BatchDamage):
                fault = found.error.message
            else:
                rows += found
        return ReadRecords(rows, fault)
    finally:
        assert budget.free_bytes == budget.max_bytes


def read_contents(
    entry: bytes | NDArray[np.uint8], chunk_records: int = CHUNK_RECORDS
) -> list[RecordContent]:
    """Read keys, values and headers of all records of an entry."""
    data = _array(entry)
    contents: list[RecordContent] = []
    decoder = RecordDecoder(DecompressionBudget(ROOM), chunk_records=chunk_records)
    for found in decoder.decode(data, np.zeros(1, np.int64), np.array([len(data)]), _contents):
        if isinstance(found, BatchDamage):
            raise found.error
        contents += found
    return contents


def _rows(chunk: RecordChunk) -> list[tuple[int, int]]:
    return list(zip(chunk.offsets.tolist(), chunk.timestamps_ms.tolist(), strict=True))


def _contents(chunk: RecordChunk) -> list[RecordContent]:
    assert chunk.keys is not None
    assert chunk.values is not None
    keys, values, counts = chunk.keys, chunk.values, chunk.header_counts().tolist()
    names, contents = (column.to_pylist() for column in chunk.header_columns())
    headers = zip(names, contents, strict=True)
    return [
        RecordContent(key, value, tuple(next(headers) for _ in range(count)))
        for key, value, count in zip(keys.to_pylist(), values.to_pylist(), counts, strict=True)
    ]


def read_first_offset(entry: bytes | NDArray[np.uint8]) -> int:
    """Read the first offset of an entry."""
    return first_offset(_array(entry), DecompressionBudget(ROOM))


def _array(entry: bytes | NDArray[np.uint8]) -> NDArray[np.uint8]:
    return np.frombuffer(entry, np.uint8) if isinstance(entry, bytes) else entry
