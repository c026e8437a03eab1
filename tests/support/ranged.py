"""Local logs that are read as remote ones are: by ranges."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from kafka_index.config import IndexConfig
from kafka_index.reading.partition_log import PartitionLog
from kafka_index.storage import SegmentFile
from kafka_index.stores import Bytes, ByteSource, store_of


@dataclass
class Ranges:
    """The ranges that were read of the logs, by path."""

    read: list[tuple[str, int, int]] = field(default_factory=list)

    def open(self, path: str, _segment: SegmentFile) -> ByteSource:
        """Open a local log so that it is not mapped."""
        return RangedSource(store_of(path).open(path), self)

    def of(self, log: PartitionLog, *, interval: int = 4096) -> PartitionLog:
        """Return another view of a partition, by ranges."""
        config = IndexConfig(index_interval_bytes=interval)
        return PartitionLog(log.files, config=config, open_source=self.open)


class RangedSource:
    """A file that is open for reading ranges of it."""

    def __init__(self, file: ByteSource, ranges: Ranges) -> None:
        self._file = file
        self._ranges = ranges
        self.path, self.size_bytes, self.mtime_ns = file.path, file.size_bytes, file.mtime_ns

    def read_at(self, position_bytes: int, size_bytes: int) -> Bytes:
        """Return a copy of a range."""
        self._ranges.read.append((self.path, position_bytes, size_bytes))
        return self._file.read_at(position_bytes, size_bytes).copy()

    def read_ranges(self, starts: Sequence[int], ends: Sequence[int]) -> list[Bytes]:
        """Return copies of ranges."""
        return [self.read_at(start, end - start) for start, end in zip(starts, ends, strict=True)]

    def stream(self, start_bytes: int = 0) -> Iterator[Bytes]:
        """Yield the rest of the file."""
        yield self.read_at(start_bytes, self.size_bytes - start_bytes)

    def changed(self) -> str | None:
        """Return how the file differs from the one opened."""
        return self._file.changed()

    def close(self) -> None:
        """Close the file."""
        self._file.close()
