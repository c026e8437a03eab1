"""The log file of a writable segment, and the search for an offset in a log.

Sources: Kafka's ``FileRecords`` and ``LogSegment.translateOffset``.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from typing import NoReturn

import numpy as np

from kafka_index.core.errors import CorruptLogError, InputError
from kafka_index.core.format.config import DEFAULT_MAX_DECOMPRESSED_BYTES
from kafka_index.core.format.integers import INT32_MAX
from kafka_index.core.fs.durable_files import publish_error
from kafka_index.core.fs.store import Bytes
from kafka_index.core.index.sparse_indexes import OffsetIndex
from kafka_index.core.kernels.batch_header import AT_END
from kafka_index.core.log.scan.file_records import (
    LogOffsetPosition,
    batch_at,
    read_batch_fields,
    search_for_offsets,
)
from kafka_index.core.records.decompression import shared_budget
from kafka_index.core.records.record_sections import first_offset

_MODE = 0o644
_NOTHING = np.empty(0, np.uint8)


class LogFile:
    """A ``.log`` that is appended to; created if it does not exist.

    With `preallocated_bytes` it is created at this size, with zeros after the batches.
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
                "the log is larger than the maximum segment size",
                path=path,
                expected=INT32_MAX,
                found=self.size_bytes,
            )
        self._view = _NOTHING

    @property
    def view(self) -> Bytes:
        """The written bytes, mapped; valid until the next change of the log."""
        if len(self._view) < self.size_bytes:
            # A preallocated file is mapped fully, so that appends need no new map.
            mapped = mmap.mmap(self._descriptor, 0, access=mmap.ACCESS_READ)
            self._view = np.frombuffer(mapped, np.uint8)
        return self._view[: self.size_bytes]

    def append(self, data: Bytes) -> None:
        """Append all bytes or none."""
        left = data.data
        position = self.size_bytes
        try:
            while left:
                written = os.pwrite(self._descriptor, left, position)
                position += written
                left = left[written:]
        except OSError as error:
            # A failed write may have left bytes where the next append goes.
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, self.size_bytes)
            raise publish_error(error, self.path, "append to the log") from error
        self.size_bytes = position

    def truncate_to(self, size_bytes: int) -> int:
        """Truncate the file, including preallocated space; return the removed bytes of batches."""
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
        try:
            os.fsync(self._descriptor)
        except OSError as error:
            raise publish_error(error, self.path, "flush the log") from error

    def close(self) -> None:
        try:
            self.flush()
            self.trim()
        finally:
            self.close_handler()

    def close_handler(self) -> None:
        """Close the file without trimming it."""
        self._unmap()
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _unmap(self) -> None:
        # The map is closed with its last view, which a traceback may still reference.
        self._view = _NOTHING


def translate_offset(
    log: Bytes, path: str, offset_index: OffsetIndex, offset: int, *, verify_entry: bool = True
) -> LogOffsetPosition | None:
    """Find the batch that contains an offset, or the first one after it, None if none.

    With `verify_entry`, the index must match the log, which a broker does not check. Raises
    `CorruptLogError` if it does not match, or the log cannot be read. Source:
    LogSegment.translateOffset.
    """
    floor = offset_index.lookup(offset)
    # A corrupt entry may have a negative position.
    start = max(floor.position, 0)

    def unreadable() -> NoReturn:
        raise CorruptLogError(
            "the log cannot be read, or its index does not fit it",
            path=path,
            position_bytes=floor.position,
            hint="rebuild the index files of the partition",
        )

    def misfit(_query: int) -> int:
        if verify_entry:
            unreadable()
        return start

    def first_offset_at(position: int) -> int:
        return first_offset(batch_at(log, position), shared_budget(DEFAULT_MAX_DECOMPRESSED_BYTES))

    found, base_offset, last_offset, size = np.empty((4, 1), np.int64)
    search_for_offsets(
        log,
        len(log),
        np.array([offset], np.int64),
        np.array([floor.offset], np.int64),
        np.array([start], np.int64),
        found,
        misfit=misfit,
        first_offset_at=first_offset_at,
    )
    read_batch_fields(log, found, base_offset, last_offset, size, first_offset_at=first_offset_at)
    if found[0] < AT_END:
        unreadable()
    if found[0] == AT_END:
        return None
    return LogOffsetPosition(int(base_offset[0]), int(found[0]), int(size[0]))
