"""The mapping of an index file: its size is set, its bytes become entries, and it goes again."""

from __future__ import annotations

import mmap
import os

import numpy as np

from kafka_index.errors import InputError, KafkaIndexError, PublishError
from kafka_index.storage.failures import publish_error

_MODE = 0o644


class EntryMap:
    """Bytes of a file as entries; without a file at first.

    Parameters
    ----------
    layout : dtype
        Layout of an entry.
    writable : bool
        Whether the file is opened for writing too (KAFKA-5104).
    """

    def __init__(self, layout: np.dtype[np.void], *, writable: bool) -> None:
        self._layout = layout
        self._writable = writable
        self._map: mmap.mmap | None = None
        self._forget()
        self.length = 0
        self.is_open = False

    def open(self, path: str, size: int | None) -> None:
        """Open a file, set its size when one is given (making it if missing), and map it.

        Raises
        ------
        InputError
            A file whose size is not to be set cannot be opened.
        PublishError
            It cannot be made, or there is no room for its size.
        """
        flags = os.O_CLOEXEC | (os.O_RDWR if self._writable else os.O_RDONLY)
        try:
            descriptor = os.open(path, flags | (os.O_CREAT if size is not None else 0), _MODE)
        except OSError as error:
            kind: type[KafkaIndexError] = InputError if size is None else PublishError
            raise kind(f"cannot open the index: {error.strerror}", path=path) from error
        try:
            if size is not None:
                old_size = os.fstat(descriptor).st_size
                os.ftruncate(descriptor, min(old_size, size))
                if size > old_size:
                    # Real blocks: writing to a hole of a full disk through a map ends the process.
                    os.posix_fallocate(descriptor, 0, size)
            self.length = os.fstat(descriptor).st_size
            # An empty file cannot be mapped.
            if self.length:
                access = mmap.ACCESS_WRITE if self._writable else mmap.ACCESS_READ
                self._map = mmap.mmap(descriptor, self.length, access=access)
                self.data = np.frombuffer(self._map, np.uint8)
                whole = self.length // self._layout.itemsize
                self.entries = np.frombuffer(self._map, self._layout, count=whole)
        except OSError as error:
            raise publish_error(error, path, "make room for the index") from error
        finally:
            os.close(descriptor)
        self.is_open = True

    def flush(self) -> None:
        """Write changed pages to the disk."""
        if self._map is not None and self._writable:
            self._map.flush()

    def close(self) -> None:
        """Unmap the file; nobody may be reading."""
        self.is_open = False
        # Views first: a map with live views cannot be closed.
        self._forget()
        if self._map is not None:
            self._map.close()
            self._map = None

    def _forget(self) -> None:
        self.data = np.empty(0, np.uint8)
        self.entries = np.empty(0, self._layout)
