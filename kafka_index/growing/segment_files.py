"""The files of a segment that grows: its log, and its indexes, which are opened on first use.

Sources: Kafka's ``FileRecords`` and ``LogSegment``.
"""

from __future__ import annotations

import contextlib
import mmap
import os

import numpy as np

from kafka_index.closing import SelfClosing
from kafka_index.errors import InputError
from kafka_index.growing.settings import LogSettings
from kafka_index.index import OffsetIndex, TimeIndex, TransactionIndex
from kafka_index.layout.integers import INT32_MAX
from kafka_index.layout.names import (
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    segment_file_name,
)
from kafka_index.storage import Bytes, publish_error

_MODE = 0o644
_NOTHING = np.empty(0, np.uint8)

_SUFFIXES = (LOG_SUFFIX, OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX)


class LogFile:
    """A ``.log`` that is appended to; it is created if it does not exist.

    With `preallocated_bytes` it is created with this much space: zeros follow the batches.
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
        """The bytes written, mapped; valid until the next change of the log."""
        if len(self._view) < self.size_bytes:
            # A preallocated file is mapped whole, so that later appends need no new map.
            mapped = mmap.mmap(self._descriptor, 0, access=mmap.ACCESS_READ)
            self._view = np.frombuffer(mapped, np.uint8)
        return self._view[: self.size_bytes]

    def append(self, data: Bytes) -> None:
        """Write at the end: all bytes or none."""
        left = data.data
        position = self.size_bytes
        try:
            while left:
                written = os.pwrite(self._descriptor, left, position)
                position += written
                left = left[written:]
        except OSError as error:
            # Some bytes may have been written where the next append goes.
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, self.size_bytes)
            raise publish_error(error, self.path, "append to the log") from error
        self.size_bytes = position

    def truncate_to(self, size_bytes: int) -> int:
        """Truncate the file, preallocated space included; return the bytes of batches removed."""
        if not 0 <= size_bytes <= self.size_bytes:
            raise ValueError(
                f"cannot truncate {self.path} of {self.size_bytes} bytes to {size_bytes}"
            )
        lost = self.size_bytes - size_bytes
        self._unmap()
        if size_bytes < os.fstat(self._descriptor).st_size:
            try:
                os.ftruncate(self._descriptor, size_bytes)
            except OSError as error:
                raise publish_error(error, self.path, "truncate the log") from error
        self.size_bytes = size_bytes
        return lost

    def trim(self) -> None:
        """Release preallocated space."""
        self.truncate_to(self.size_bytes)

    def flush(self) -> None:
        """Make the written bytes durable."""
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
        # The map is closed with its last view, which the frames of an error may still hold.
        self._view = _NOTHING


class SegmentFiles(SelfClosing):
    """The files of one segment; without `create` the log must exist."""

    def __init__(
        self,
        directory: str | os.PathLike[str],
        base_offset: int,
        settings: LogSettings,
        *,
        create: bool,
    ) -> None:
        self.directory = os.fspath(directory)
        self.base_offset = base_offset
        self.settings = settings
        log_path = self.path(LOG_SUFFIX)
        if not create and not os.path.isfile(log_path):
            raise InputError("there is no such log", path=log_path)
        reserved = settings.segment_bytes if create and settings.preallocate else 0
        self.log = LogFile(log_path, preallocated_bytes=reserved)
        self.transaction_index = TransactionIndex(self.path(TXN_INDEX_SUFFIX), base_offset)
        self._offset_index: OffsetIndex | None = None
        self._time_index: TimeIndex | None = None

    def path(self, suffix: str) -> str:
        """Return the path of one of its files."""
        return os.path.join(self.directory, segment_file_name(self.base_offset, suffix))

    @property
    def offset_index(self) -> OffsetIndex:
        """The ``.index``."""
        if self._offset_index is None:
            self._offset_index = OffsetIndex(
                self.path(OFFSET_INDEX_SUFFIX), self.base_offset, self.settings.segment_index_bytes
            )
        return self._offset_index

    @property
    def time_index(self) -> TimeIndex:
        """The ``.timeindex``."""
        if self._time_index is None:
            self._time_index = TimeIndex(
                self.path(TIME_INDEX_SUFFIX), self.base_offset, self.settings.segment_index_bytes
            )
        return self._time_index

    @property
    def size_bytes(self) -> int:
        """Size of the log, without preallocated space."""
        return self.log.size_bytes

    def resize_indexes(self) -> None:
        """Set the indexes to their maximum size, as in an active segment."""
        self.offset_index.resize(self.settings.segment_index_bytes)
        self.time_index.resize(self.settings.segment_index_bytes)

    def flush(self) -> None:
        """Make everything written durable."""
        self.log.flush()
        self.offset_index.flush()
        self.time_index.flush()
        self.transaction_index.flush()

    def close_handlers(self) -> None:
        """Close all files as they are."""
        for index in (self._offset_index, self._time_index):
            if index is not None:
                index.close_handler()
        self.log.close_handler()
        self.transaction_index.close()
        self._offset_index = self._time_index = None

    def delete(self) -> None:
        """Close and remove all files."""
        self.close_handlers()
        for suffix in _SUFFIXES:
            if os.path.exists(self.path(suffix)):
                os.unlink(self.path(suffix))
