"""Batches to be appended: their bytes, their columns, and the result of the append.

Source of the checks: Kafka's ``UnifiedLog.analyzeAndValidateRecords``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Self

import numpy as np

from kafka_index.errors import CorruptLogError, InputError
from kafka_index.kernels.headers import (
    HEADER_COLUMNS,
    HEADER_MAGIC,
    HEADER_RECORD_COUNT,
    read_headers,
)
from kafka_index.kernels.scan import SCAN_END, SCAN_ROWS_FULL, SCAN_TORN_BATCH, SCAN_TORN_HEADER
from kafka_index.layout.integers import Longs
from kafka_index.records.batch_table import BatchColumns
from kafka_index.scan.batch_search import HeldBytes
from kafka_index.scan.scanner import Scanner
from kafka_index.storage import Bytes


@dataclass(frozen=True, slots=True)
class IncomingBatches:
    """Whole, valid batches one after the other, and their columns.

    Positions count from the first of these bytes.
    """

    data: Bytes
    columns: BatchColumns
    magic: Longs
    record_count: Longs

    @classmethod
    def scan(cls, data: Bytes, base_offset: int) -> Self:
        """Verify batches and read their headers, all at once.

        Last offsets must lie between the base offset and 2^31 - 1 above it. Raises
        `CorruptLogError` if a batch is cut off or does not match its checksum, at a position that
        counts from the first of these bytes, and `InputError` if there is no batch, or an offset is
        out of range.
        """
        chunks = list(cls.scan_chunks(data, base_offset))
        if not chunks:
            raise InputError("there is no batch to append")
        if len(chunks) == 1:
            return chunks[0]
        columns = map(np.concatenate, zip(*(chunk.columns for chunk in chunks), strict=True))
        headers = (np.concatenate([getattr(chunk, name) for chunk in chunks]) for name in _HEADERS)
        return cls(data, BatchColumns(*columns), *headers)

    @classmethod
    def stored(cls, data: Bytes, base_offset: int) -> Iterator[Self]:
        """Yield the chunks of batches in a log, whose checksums a broker does not verify again.

        A batch that is cut off ends them (``FileLogInputStream.nextBatch``). Raises
        `CorruptLogError` if the length of a batch is wrong.
        """
        return cls._chunks(data, base_offset, verify_crc=False)

    @classmethod
    def scan_chunks(cls, data: Bytes, base_offset: int) -> Iterator[Self]:
        """Yield the chunks of a `scan`; positions count from the first byte of `data`."""
        return cls._chunks(data, base_offset, verify_crc=True)

    @classmethod
    def _chunks(cls, data: Bytes, base_offset: int, *, verify_crc: bool) -> Iterator[Self]:
        scanner = Scanner(base_offset, verify_crc=verify_crc)
        code = SCAN_ROWS_FULL
        while code == SCAN_ROWS_FULL:
            code = scanner.scan(data, 0, len(data))
            for batches in scanner.drain():
                rows = np.empty((HEADER_COLUMNS, batches.rows), np.int64)
                read_headers(data, 0, batches.position_bytes, rows)
                yield cls(
                    data,
                    BatchColumns(*(column.copy() for column in batches)),
                    rows[HEADER_MAGIC],
                    rows[HEADER_RECORD_COUNT],
                )
        if code == SCAN_END or (not verify_crc and code in (SCAN_TORN_HEADER, SCAN_TORN_BATCH)):
            return
        stop = scanner.stop(code, HeldBytes(data))
        kind = InputError if stop.refused else CorruptLogError
        raise kind(
            f"cannot append: {stop.name}",
            position_bytes=stop.position_bytes,
            expected=stop.expected,
            found=stop.found,
        )

    def __len__(self) -> int:
        """Return the number of batches."""
        return self.columns.rows

    def epoch_starts(self) -> Iterator[tuple[int, int, int]]:
        """Yield row, leader epoch and base offset where the epoch differs from the batch before."""
        epochs = self.columns.leader_epoch
        for row in [0, *(np.flatnonzero(np.diff(epochs)) + 1).tolist()]:
            yield row, int(epochs[row]), int(self.columns.base_offset[row])

    def rows(self, first: int, end: int) -> Self:
        """Return some of the batches, as views; their positions still count from the first."""
        columns = self.columns
        start = int(columns.position_bytes[first])
        stop = int(columns.position_bytes[end - 1] + columns.size_bytes[end - 1])
        return type(self)(
            self.data[start:stop],
            columns.slice(first, end),
            *(getattr(self, name)[first:end] for name in _HEADERS),
        )


_HEADERS = tuple(field.name for field in fields(IncomingBatches))[2:]


def as_bytes(data: bytes | bytearray | memoryview | Bytes) -> Bytes:
    """Return bytes as an array, without a copy."""
    if isinstance(data, np.ndarray):
        return data
    return np.frombuffer(data, np.uint8)


@dataclass(frozen=True, slots=True)
class AppendInfo:
    """The result of an append (Kafka: ``LogAppendInfo``); offsets are -1 when nothing was appended.

    `duplicates` has the first and last offsets of batches that are in the log already, because a
    client sent them twice: they were not appended.
    """

    first_offset: int = -1
    last_offset: int = -1
    appended_batches: int = 0
    duplicates: tuple[tuple[int, int], ...] = ()

    @classmethod
    def of(cls, batches: IncomingBatches, duplicates: tuple[tuple[int, int], ...] = ()) -> Self:
        """Return the result of appending batches."""
        return cls(
            int(batches.columns.base_offset[0]),
            int(batches.columns.last_offset[-1]),
            len(batches),
            duplicates,
        )
