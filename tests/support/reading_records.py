"""All records of one entry of a log, gathered from their chunks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kafka_index.records.decompression import DecompressionBudget
from kafka_index.records.record_decoding import (
    CHUNK_RECORDS,
    RecordContent,
    first_offset,
    open_records,
)

ROOM = 1 << 26


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
    entry: bytes | NDArray[np.uint8],
    max_bytes: int = ROOM,
    chunk_records: int = CHUNK_RECORDS,
) -> ReadRecords:
    """Read all records of an entry; nothing may be left of the budget's room."""
    budget = DecompressionBudget(max_bytes)
    rows: list[tuple[int, int]] = []
    try:
        with open_records(_array(entry), budget) as records:
            for chunk in records.chunks(chunk_records):
                offsets, times = chunk.columns.offsets, chunk.columns.timestamps_ms
                rows += zip(offsets.tolist(), times.tolist(), strict=True)
            return ReadRecords(rows, records.fault)
    finally:
        assert budget.free_bytes == budget.max_bytes


def read_contents(
    entry: bytes | NDArray[np.uint8], chunk_records: int = CHUNK_RECORDS
) -> list[RecordContent]:
    """Read keys, values and headers of all records of an entry."""
    with open_records(_array(entry), DecompressionBudget(ROOM)) as records:
        return [one for chunk in records.chunks(chunk_records) for one in chunk.contents()]


def read_first_offset(entry: bytes | NDArray[np.uint8]) -> int:
    """Read the first offset of an entry."""
    return first_offset(_array(entry), DecompressionBudget(ROOM))


def _array(entry: bytes | NDArray[np.uint8]) -> NDArray[np.uint8]:
    return np.frombuffer(entry, np.uint8) if isinstance(entry, bytes) else entry
