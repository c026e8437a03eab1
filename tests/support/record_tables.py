"""Partitions to be read as tables, with the rows that they hold."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kafka_index.commands.build.log_build import build_segment_files
from kafka_index.core.records.decompression import DecompressionBudget
from kafka_index.core.records.record_decoder import (
    CHUNK_RECORDS,
    BatchDamage,
    RecordChunk,
    RecordDecoder,
    RecordParts,
)
from kafka_index.core.records.record_sections import first_offset, open_records
from tests.support.segments import PACKERS, batch, packed, record

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

CODECS = (0, *PACKERS)


def write_partition(
    root: Path, segments: Mapping[int, bytes], name: str = "topic-0", *, indexed: bool = False
) -> Path:
    """Write the segments of a partition by base offset, with index files if they are wanted."""
    folder = root / name
    folder.mkdir(parents=True, exist_ok=True)
    for base_offset, log in segments.items():
        path = folder / f"{base_offset:020d}.log"
        path.write_bytes(log)
        if indexed:
            with TemporaryDirectory() as built:
                build_segment_files(path, built)
                shutil.copytree(built, folder, dirs_exist_ok=True)
    return folder


def batch_of(
    base_offset: int, records: Sequence[tuple[int, bytes | None, bytes | None]], codec: int = 0
) -> bytes:
    """A batch of timestamps, keys and values at consecutive offsets."""
    first = records[0][0]
    payload = b"".join(
        record(number, time - first, key, value)
        for number, (time, key, value) in enumerate(records)
    )
    return batch(
        base_offset,
        payload=packed(payload, codec),
        record_count=len(records),
        last_offset_delta=len(records) - 1,
        attributes=codec,
        base_timestamp=first,
        max_timestamp=max(time for time, _, _ in records),
    )


def rows_of(table: pa.Table, *names: str) -> list[tuple[Any, ...]]:
    """The rows of some columns, times as numbers."""
    columns = (
        column.cast("int64") if pa.types.is_timestamp(column.type) else column
        for column in map(table.column, names)
    )
    return list(zip(*(column.to_pylist() for column in columns), strict=True))


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
