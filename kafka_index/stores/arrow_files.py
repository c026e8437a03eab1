"""Files as Arrow reads them, wherever they are."""

from __future__ import annotations

import io
import os
from typing import Any

import numpy as np
import pyarrow as pa

from kafka_index.stores.registry import store_of
from kafka_index.stores.store import ByteSource, FileInfo
from kafka_index.stores.uris import is_remote

#: Endings of compressed text.
COMPRESSIONS = (".gz", ".bz2", ".zst", ".lz4")


def readable(path: str, info: FileInfo | None = None) -> str | StoredFile:
    """Return what Arrow opens to read any part of a file: its path, or a file of its store.

    With `info`, the file of a store is read in that version.
    """
    return StoredFile(store_of(path).open(path, info)) if is_remote(path) else path


def input_stream(path: str) -> pa.NativeFile:
    """Open a file to be read once, decompressed as its name says."""
    if not is_remote(path):
        return pa.input_stream(path, compression="detect")
    stream = pa.PythonFile(_StoredStream(store_of(path).open(path)), "r")
    if os.path.splitext(path)[1].lower() not in COMPRESSIONS:
        return stream
    return pa.CompressedInputStream(stream, pa.Codec.detect(path).name)


class StoredFile(io.RawIOBase):
    """A file of a store, to be read at any position."""

    def __init__(self, source: ByteSource) -> None:
        super().__init__()
        self._source = source
        self._position = 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Set the position."""
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._source.size_bytes}
        self._position = max(start[whence] + offset, 0)
        return self._position

    def tell(self) -> int:
        """Return the position."""
        return self._position

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer from the position on."""
        target = np.frombuffer(buffer, np.uint8)
        data = self._source.read_at(self._position, len(target))
        target[: len(data)] = data
        self._position += len(data)
        return len(data)

    def close(self) -> None:
        """Close the file."""
        if not self.closed:
            self._source.close()
        super().close()


class _StoredStream(io.RawIOBase):
    """A file of a store, to be read from its beginning to its end."""

    def __init__(self, source: ByteSource) -> None:
        super().__init__()
        self._source = source
        self._pieces = source.stream()
        self._piece = memoryview(b"")

    def readable(self) -> bool:
        """Return True."""
        return True

    def read(self, size: int = -1) -> bytes:
        """Return at most so many bytes, none at the end."""
        while not self._piece:
            piece = next(self._pieces, None)
            if piece is None:
                return b""
            self._piece = np.ascontiguousarray(piece).data.cast("B")
        found = self._piece[:size] if size >= 0 else self._piece
        self._piece = self._piece[len(found) :]
        return bytes(found)

    def close(self) -> None:
        """Close the file."""
        if not self.closed:
            self._source.close()
        super().close()
