"""Windows, sources and finished indexes of a log, for the tests of this folder."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from kafka_index.core.fs.store import Bytes
from kafka_index.core.index.sparse_indexes import OffsetIndex, TimeIndex
from kafka_index.core.log.scan.index_builder import IndexBuilder
from kafka_index.core.log.scan.segment_scan import ByteStreamSource, LogFileSource
from kafka_index.core.log.state.partition_state import ProducerTable
from kafka_index.core.records.batch_table import BatchColumns, BatchSource, ScanStop

Cell = tuple[int, ...]


def write_log(directory: Path, log: bytes, base_offset: int = 0) -> Path:
    """A ``.log`` in a partition directory."""
    path = directory / "some-topic-3" / f"{base_offset:020d}.log"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(log)
    return path


def split_at(log: bytes, cuts: Iterable[int]) -> list[Bytes]:
    """The log in pieces that begin at these positions, and at 0."""
    places = sorted({0, len(log), *(cut % (len(log) + 1) for cut in cuts)})
    return [np.frombuffer(log[start:end], np.uint8) for start, end in pairwise(places)]


def streamed(
    log: bytes, cuts: Iterable[int] = (), base_offset: int = 0, *, verify_crc: bool = True
) -> ByteStreamSource:
    """A source over the pieces of a log."""
    return ByteStreamSource(
        split_at(log, cuts), segment_base_offset=base_offset, verify_crc=verify_crc
    )


class CutFile:
    """A log that arrives in pieces which begin at these positions, as from a store."""

    def __init__(self, path: str, log: bytes, cuts: Iterable[int]) -> None:
        self.path = path
        self.size_bytes = len(log)
        self.mtime_ns = 0
        self._array = np.frombuffer(log, np.uint8)
        self._pieces = split_at(log, cuts)

    def read_at(self, position_bytes: int, size_bytes: int) -> Bytes:
        return self._array[position_bytes : position_bytes + size_bytes]

    def read_ranges(self, starts: Sequence[int], ends: Sequence[int]) -> list[Bytes]:
        return [self._array[start:end] for start, end in zip(starts, ends, strict=True)]

    def stream(self, start_bytes: int = 0) -> Iterator[Bytes]:
        for piece in self._pieces:
            if len(piece) > start_bytes:
                yield piece[start_bytes:]
            start_bytes = max(start_bytes - len(piece), 0)

    def changed(self) -> str | None:
        return None

    def close(self) -> None:
        pass


@contextmanager
def stored(
    log: bytes, cuts: Iterable[int] = (), base_offset: int = 0, *, verify_crc: bool = True
) -> Iterator[LogFileSource]:
    """A source over a log of a store, whose stream is cut at these positions."""
    path = f"s3://bucket/some-topic-3/{base_offset:020d}.log"
    with pytest.MonkeyPatch.context() as patch:
        file = CutFile(path, log, cuts)
        patch.setattr("kafka_index.core.log.scan.segment_scan.open_log", lambda *_: file)
        yield LogFileSource(path, verify_crc=verify_crc)


def rows(source: BatchSource) -> list[Cell]:
    """All batches of a source, a tuple of all columns each."""
    result: list[Cell] = []
    for chunk in source.chunks():
        result += rows_of(chunk)
    return result


def rows_of(chunk: BatchColumns) -> list[Cell]:
    """The batches of a chunk, copied, with zeros for what is undefined."""
    columns = {name: column.copy() for name, column in chunk._asdict().items()}
    for name in ("producer_epoch", "base_sequence"):
        columns[name][chunk.producer_id < 0] = 0
    for name in ("coordinator_epoch", "control_timestamp_ms"):
        columns[name][chunk.control_type < 0] = 0
    return list(zip(*(column.tolist() for column in columns.values()), strict=True))


def chunk_of(cells: Sequence[Cell]) -> BatchColumns:
    """A chunk of these batches."""
    columns = np.array(cells, np.int64).reshape(len(cells), -1).T.copy()
    return BatchColumns(*columns)


@dataclass(frozen=True)
class Built:
    """The results of a build."""

    offset_index: bytes
    time_index: bytes
    stop: ScanStop | None
    valid_bytes: int
    batch_count: int
    next_offset: int
    max_timestamp_ms: int


def build(
    chunks: Iterable[BatchColumns],
    base_offset: int = 0,
    interval: int = 4096,
    index_bytes: int = 10 << 20,
    *,
    growing: bool = True,
) -> Built:
    """Build both indexes as a task does."""
    with tempfile.TemporaryDirectory() as folder:
        offset_path, time_path = Path(folder) / "0.index", Path(folder) / "0.timeindex"
        with (
            OffsetIndex(offset_path, base_offset, index_bytes, growing=growing) as offset_index,
            TimeIndex(time_path, base_offset, index_bytes, growing=growing) as time_index,
        ):
            builder = IndexBuilder(offset_index, time_index, interval, producers=ProducerTable())
            stop = None
            for chunk in chunks:
                stop = builder.append(chunk)
                if stop is not None:
                    break
            if stop is None or not stop.refused:
                stop = builder.finish() or stop
        return Built(
            offset_path.read_bytes(),
            time_path.read_bytes(),
            stop,
            builder.valid_bytes,
            builder.batch_count,
            builder.next_offset,
            builder.max_timestamp_ms,
        )


def file_source(path: Path, *, verify_crc: bool = True) -> LogFileSource:
    """A source over a log on the disk."""
    return LogFileSource(path, verify_crc=verify_crc)
