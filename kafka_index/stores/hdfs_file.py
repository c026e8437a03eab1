"""A file of HDFS that is open for reading."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from kafka_index.errors import KafkaIndexError, ReadError
from kafka_index.stores import read_ahead
from kafka_index.stores.hdfs_errors import read_error
from kafka_index.stores.store import Bytes, FileInfo

if TYPE_CHECKING:
    from kafka_index.stores.hdfs_store import HdfsStore


class HdfsFile:
    """A file of HDFS that is open for reading: its blocks are those of the moment it was opened."""

    def __init__(self, store: HdfsStore, reader: Any, info: FileInfo) -> None:
        self._store = store
        self._reader = reader
        self._info = info

    @property
    def path(self) -> str:
        """Its URI."""
        return self._info.path

    @property
    def size_bytes(self) -> int:
        """Its size when opened."""
        return self._info.size_bytes

    @property
    def mtime_ns(self) -> int:
        """Its modification time, nanoseconds since the epoch."""
        return self._info.mtime_ns

    def read_at(self, position_bytes: int, size_bytes: int) -> Bytes:
        """Return up to `size_bytes` bytes, fewer only at the end; by several requests if many."""
        if position_bytes < 0 or size_bytes < 0:
            raise ValueError(f"negative position or size: {position_bytes}, {size_bytes}")
        wanted = min(size_bytes, self.size_bytes - position_bytes)
        if wanted <= 0:
            return np.empty(0, np.uint8)
        if wanted > read_ahead.PIECE_BYTES:
            end = position_bytes + wanted
            return read_ahead.read_ranges(self.read_at, [position_bytes], [end])[0]
        try:
            with read_ahead.request_slots:
                data = self._reader.read_range(position_bytes, wanted)
        except Exception as error:
            how = self._changed_meanwhile()
            if how is not None:
                raise ReadError(
                    f"the file changed while it was read: {how}",
                    path=self.path,
                    position_bytes=position_bytes,
                    hint="run again when nothing writes to it",
                ) from error
            raise read_error(error, self.path, "read the file", position_bytes) from error
        if len(data) != wanted:
            raise ReadError(
                "the file ends early",
                path=self.path,
                position_bytes=position_bytes,
                expected=wanted,
                found=len(data),
            )
        found: Bytes = np.frombuffer(data, np.uint8)
        return found

    def read_ranges(self, starts: Sequence[int], ends: Sequence[int]) -> list[Bytes]:
        """Return the bytes of ascending ranges."""
        return read_ahead.read_ranges(self.read_at, starts, ends)

    def stream(self, start_bytes: int = 0) -> Iterator[Bytes]:
        """Yield the bytes from a position on, a few pieces ahead of the caller."""
        return read_ahead.stream(self.read_at, start_bytes, self.size_bytes)

    def changed(self) -> str | None:
        """Return how the file differs from the one opened; None when it does not."""
        try:
            now = self._store.info(self.path)
        except FileNotFoundError:
            return "it was removed"
        if (now.size_bytes, now.mtime_ns) != (self.size_bytes, self.mtime_ns):
            return "it was modified"
        return None

    def close(self) -> None:
        """Do nothing: connections belong to the client."""

    def _changed_meanwhile(self) -> str | None:
        try:
            return self.changed()
        except KafkaIndexError:
            return None
