"""The memory map of an index file, its bytes as entries, and the lock for changing it."""

from __future__ import annotations

import mmap
import os
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from kafka_index.errors import InputError, KafkaIndexError, PublishError
from kafka_index.kernels.fault_guard import FaultGuard
from kafka_index.stores.durable_files import publish_error
from kafka_index.stores.inputs import refuse_linked_out

_MODE = 0o644


class EntryMap:
    """Bytes of a file, or of memory alone, as entries of a layout; without a file at first.

    Only a `writable` file is opened for writing too (KAFKA-5104).
    """

    def __init__(
        self, layout: np.dtype[np.void], *, writable: bool, in_memory: bool = False
    ) -> None:
        self._layout = layout
        self._writable = writable
        self._in_memory = in_memory
        self._map: mmap.mmap | None = None
        self._guard: FaultGuard | None = None
        self._forget()
        self.length = 0
        self.is_open = False

    def open(self, path: str, size: int | None) -> None:
        """Open a file, set its size when one is given (creating it if missing), and map it.

        Raises `InputError` if a file whose size is not to be set cannot be opened, and
        `PublishError` if it cannot be created, or there is no room for its size.
        """
        if self._in_memory:
            self._allocate(size or 0)
            return
        if not self._writable:
            refuse_linked_out(path)
        # O_NONBLOCK so that a named pipe is refused below instead of waited for here.
        flags = os.O_CLOEXEC | os.O_NONBLOCK | (os.O_RDWR if self._writable else os.O_RDONLY)
        try:
            descriptor = os.open(path, flags | (os.O_CREAT if size is not None else 0), _MODE)
        except OSError as error:
            kind: type[KafkaIndexError] = InputError if size is None else PublishError
            raise kind(f"cannot open the index: {error.strerror}", path=path) from error
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise InputError("the index is not a regular file", path=path)
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
                self._view(np.frombuffer(self._map, np.uint8))
                if not self._writable:
                    # Its owner may cut the file at any time.
                    self._guard = FaultGuard(self.data.ctypes.data, self.length)
        except OSError as error:
            raise publish_error(error, path, "make room for the index") from error
        finally:
            os.close(descriptor)
        self.is_open = True

    def open_content(self, content: NDArray[np.uint8]) -> None:
        """Take the bytes of a file that were read elsewhere."""
        self.length = len(content)
        self._view(content)
        self.is_open = True

    def resize(self, path: str, size: int) -> None:
        """Set the size; bytes before the new end stay, new ones are zero."""
        if self._in_memory:
            self._allocate(size)
            return
        self.close()
        self.open(path, size)

    @property
    def faulted(self) -> bool:
        """Whether bytes of a read-only file were lost, and zeros read in their place."""
        return self._guard is not None and self._guard.faulted

    def flush(self) -> None:
        """Write changed pages to the disk."""
        if self._map is not None and self._writable:
            self._map.flush()

    def close(self) -> None:
        """Unmap the file; no thread may be reading."""
        self.is_open = False
        # Views first: a map with live views cannot be closed.
        self._forget()
        if self._guard is not None:
            self._guard.release()
            self._guard = None
        if self._map is not None:
            self._map.close()
            self._map = None

    def _allocate(self, size: int) -> None:
        old = self.data[:size]
        data = np.zeros(size, np.uint8)
        data[: len(old)] = old
        self.length = size
        self._view(data)
        self.is_open = True

    def _view(self, data: NDArray[np.uint8]) -> None:
        self.data = data
        whole = len(data) // self._layout.itemsize
        self.entries = data[: whole * self._layout.itemsize].view(self._layout)

    def _forget(self) -> None:
        self.data = np.empty(0, np.uint8)
        self.entries = np.empty(0, self._layout)


class RemapLock:
    """Many readers or one writer; a waiting writer precedes new readers.

    Reading a page after the end of a file that was cut ends the process (SIGBUS), and kernels
    read without the GIL, so a mapping may be resized only while nobody reads it. Kafka's
    ``remapLock`` is the model. A thread that reads must not ask for the lock again.
    """

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._readers = 0
        self._writers_waiting = 0
        self._writing = False

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Hold the lock together with other readers."""
        with self._condition:
            self._condition.wait_for(lambda: not self._writing and not self._writers_waiting)
            self._readers += 1
        try:
            yield
        finally:
            with self._condition:
                self._readers -= 1
                self._condition.notify_all()

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Hold the lock alone."""
        with self._condition:
            self._writers_waiting += 1
            try:
                self._condition.wait_for(lambda: not self._writing and not self._readers)
            finally:
                self._writers_waiting -= 1
            self._writing = True
        try:
            yield
        finally:
            with self._condition:
                self._writing = False
                self._condition.notify_all()
