"""A file of a remote store that is open for reading: what object stores and HDFS have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import ClassVar

import numpy as np

from kafka_index.errors import ReadError
from kafka_index.stores import read_ahead
from kafka_index.stores.store import Bytes, FileInfo


class RemoteFile(ABC):
    """A remote file that is open for reading, in the version that it had when it was opened."""

    #: What errors call it.
    _NOUN: ClassVar[str]
    #: The error of an answer that has another length than was asked for.
    _WRONG_LENGTH: ClassVar[str]

    def __init__(self, info: FileInfo) -> None:
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
            return self.read_ranges([position_bytes], [position_bytes + wanted])[0]
        found: Bytes = np.frombuffer(self._request(position_bytes, wanted), np.uint8)
        if len(found) != wanted:
            raise ReadError(
                self._WRONG_LENGTH,
                path=self.path,
                position_bytes=position_bytes,
                expected=wanted,
                found=len(found),
            )
        return found

    def read_ranges(self, starts: Sequence[int], ends: Sequence[int]) -> list[Bytes]:
        """Return the bytes of ascending ranges."""
        return read_ahead.read_ranges(self.read_at, starts, ends)

    def stream(self, start_bytes: int = 0) -> Iterator[Bytes]:
        """Yield the bytes from a position on, a few pieces ahead of the caller."""
        return read_ahead.stream(self.read_at, start_bytes, self.size_bytes)

    @abstractmethod
    def changed(self) -> str | None:
        """Return how the file differs from the one opened; None when it does not."""

    def close(self) -> None:  # noqa: B027, because there is nothing to do
        """Do nothing: connections belong to the store."""

    @abstractmethod
    def _request(self, position_bytes: int, size_bytes: int) -> bytes | memoryview:
        """Request bytes that the file has; hold one of `read_ahead.request_slots` meanwhile."""

    def _changed_error(self, how: str, position_bytes: int) -> ReadError:
        return ReadError(
            f"the {self._NOUN} changed while it was read: {how}",
            path=self.path,
            position_bytes=position_bytes,
            hint="run again when nothing writes to it",
        )
