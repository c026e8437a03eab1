"""An object that is open for reading: ranges and streams of one version of it.

A body that breaks off is continued by the library. Every request has If-Match, so that bytes of
two versions never mix.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import obstore
from obstore import exceptions

from kafka_index.errors import ReadError
from kafka_index.stores import read_ahead
from kafka_index.stores.object_errors import (
    BEYOND_END,
    LIBRARY_ERRORS,
    is_not_found,
    read_error,
    reason_of,
)
from kafka_index.stores.repeats import repeated
from kafka_index.stores.store import Bytes, FileInfo
from kafka_index.stores.uris import split_uri


class RemoteObject:
    """An object that is open for reading."""

    def __init__(self, store: Any, info: FileInfo) -> None:
        self._store = store
        self._info = info
        self._key = split_uri(info.path)[1]

    @property
    def path(self) -> str:
        """Its URI."""
        return self._info.path

    @property
    def size_bytes(self) -> int:
        """Its size."""
        return self._info.size_bytes

    @property
    def mtime_ns(self) -> int:
        """Its modification time, nanoseconds since the epoch."""
        return self._info.mtime_ns

    def read_at(self, position_bytes: int, size_bytes: int) -> Bytes:
        """Return up to `size_bytes` bytes, fewer only at the end; by several requests if many."""
        if position_bytes < 0 or size_bytes < 0:
            raise ValueError(f"negative position or size: {position_bytes}, {size_bytes}")
        end = min(position_bytes + size_bytes, self.size_bytes)
        if end <= position_bytes:
            return np.empty(0, np.uint8)
        if end - position_bytes > read_ahead.PIECE_BYTES:
            return read_ahead.read_ranges(self.read_at, [position_bytes], [end])[0]
        options: dict[str, Any] = {"range": (position_bytes, end)}
        if self._info.version:
            options["if_match"] = self._info.version
        try:
            with read_ahead.request_slots:
                found: Bytes = np.frombuffer(repeated(lambda: self._get(options)), np.uint8)
        except exceptions.PreconditionError:
            raise self._changed("it was replaced", position_bytes) from None
        except LIBRARY_ERRORS as error:
            if is_not_found(error):
                raise self._changed("it was removed", position_bytes) from None
            if BEYOND_END in reason_of(error).text:
                raise self._changed("it was cut", position_bytes) from None
            raise read_error(error, self.path, "read the object", position_bytes) from None
        if len(found) != end - position_bytes:
            raise ReadError(
                "the store returned another number of bytes",
                path=self.path,
                position_bytes=position_bytes,
                expected=end - position_bytes,
                found=len(found),
            )
        return found

    def _get(self, options: dict[str, Any]) -> Any:
        return obstore.get(self._store, self._key, options=options).bytes()

    def read_ranges(self, starts: Sequence[int], ends: Sequence[int]) -> list[Bytes]:
        """Return the bytes of ascending ranges."""
        return read_ahead.read_ranges(self.read_at, starts, ends)

    def stream(self, start_bytes: int = 0) -> Iterator[Bytes]:
        """Yield the bytes from a position on, a few pieces ahead of the caller."""
        return read_ahead.stream(self.read_at, start_bytes, self.size_bytes)

    def changed(self) -> str | None:
        """Return how the object differs from the one opened; None when it does not."""
        try:
            now = repeated(lambda: obstore.head(self._store, self._key))
        except LIBRARY_ERRORS as error:
            if is_not_found(error):
                return "it was removed"
            raise read_error(error, self.path, "read the object") from None
        if now["size"] != self.size_bytes or (now["e_tag"] or "") != self._info.version:
            return "it was replaced"
        return None

    def close(self) -> None:
        """Do nothing: connections belong to the store."""

    def _changed(self, how: str, position_bytes: int) -> ReadError:
        return ReadError(
            f"the object changed while it was read: {how}",
            path=self.path,
            position_bytes=position_bytes,
            hint="run again when nothing writes to it",
        )
