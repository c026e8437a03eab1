"""The ``.log`` of a segment that grows: appended to, cut, and read through a map.

Source: Kafka's ``FileRecords``.
"""

from __future__ import annotations

import contextlib
import mmap
import os

import numpy as np

from kafka_index.config import INT32_MAX
from kafka_index.errors import InputError
from kafka_index.storage import Bytes, publish_error

_MODE = 0o644
_NOTHING = np.empty(0, np.uint8)


class LogFile:
    """A log that grows.

    Parameters
    ----------
    path : str
        The ``.log``, made when it is missing.
    preallocated_bytes : int, optional
        Make it, and give it this much room at once; zeros follow what is written then.

    Raises
    ------
    InputError
        It is larger than any broker's.
    PublishError
        It cannot be opened or made.
    """

    def __init__(self, path: str, *, preallocated_bytes: int = 0) -> None:
        self.path = path
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        try:
            self._descriptor = os.open(path, flags, _MODE)
            if preallocated_bytes:
                os.posix_fallocate(self._descriptor, 0, preallocated_bytes)
        except OSError as error:
            raise publish_error(error, path, "open the log") from error
        self.size_bytes = 0 if preallocated_bytes else os.fstat(self._descriptor).st_size
        if self.size_bytes > INT32_MAX:
            os.close(self._descriptor)
            raise InputError(
                "the log is larger than any broker's",
                path=path,
                expected=INT32_MAX,
                found=self.size_bytes,
            )
        self._view = _NOTHING

    @property
    def view(self) -> Bytes:
        """What is written, mapped; good until the next change of the log."""
        if len(self._view) < self.size_bytes:
            # The whole of a preallocated file, so that what is appended next is in there too.
            mapped = mmap.mmap(self._descriptor, 0, access=mmap.ACCESS_READ)
            self._view = np.frombuffer(mapped, np.uint8)
        return self._view[: self.size_bytes]

    def append(self, data: Bytes) -> None:
        """Write behind the end; all of it, or nothing.

        Raises
        ------
        PublishError
            It cannot be written.
        """
        left = data.data
        position = self.size_bytes
        try:
            while left:
                written = os.pwrite(self._descriptor, left, position)
                position += written
                left = left[written:]
        except OSError as error:
            # What was written of it stands behind the end, where the next append goes.
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, self.size_bytes)
            raise publish_error(error, self.path, "append to the log") from error
        self.size_bytes = position

    def truncate_to(self, size_bytes: int) -> int:
        """Cut behind a position, room that was taken beforehand too; return the bytes lost."""
        if not 0 <= size_bytes <= self.size_bytes:
            raise ValueError(f"cannot cut {self.path} of {self.size_bytes} bytes at {size_bytes}")
        lost = self.size_bytes - size_bytes
        self._unmap()
        if size_bytes < os.fstat(self._descriptor).st_size:
            try:
                os.ftruncate(self._descriptor, size_bytes)
            except OSError as error:
                raise publish_error(error, self.path, "cut the log") from error
        self.size_bytes = size_bytes
        return lost

    def trim(self) -> None:
        """Give back room that was taken beforehand."""
        self.truncate_to(self.size_bytes)

    def flush(self) -> None:
        """Make what is written durable."""
        try:
            os.fsync(self._descriptor)
        except OSError as error:
            raise publish_error(error, self.path, "flush the log") from error

    def close(self) -> None:
        """Flush, trim and close."""
        try:
            self.flush()
            self.trim()
        finally:
            self.close_handler()

    def close_handler(self) -> None:
        """Close the file as it is."""
        self._unmap()
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _unmap(self) -> None:
        # The map goes with its last view: the frames of an error may hold one still.
        self._view = _NOTHING
