"""A captured log: opened, measured, and searched by batch headers."""

from __future__ import annotations

import errno
import os
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import msgspec
import numpy as np

from kafka_index.commands.backup.low_impact_io import Bandwidth, LowImpactReader, open_noatime
from kafka_index.core.errors import KafkaIndexError, is_retriable
from kafka_index.core.format.longs import Longs
from kafka_index.core.format.names import DELETED_SUFFIX
from kafka_index.core.format.records import LOG_OVERHEAD_BYTES, RECORD_BATCH_OVERHEAD_BYTES
from kafka_index.core.fs.backup.manifest import SeenSegment
from kafka_index.core.kernels.scan import (
    CHUNK_BATCHES,
    SCAN_COLUMNS,
    SCAN_NEED_BYTES,
    BatchColumns,
    scan_batches,
)
from kafka_index.core.log.scan.scanner import entry_length, last_offset_of

_END_ATTEMPTS, _END_PAUSE_S = 5, 0.001
# A v0 message without key and value.
_LEAST_BATCH_BYTES = LOG_OVERHEAD_BYTES + 14
_HEADERS_BYTES = 1 << 20
_FREE_DESCRIPTORS = 256
_DESCRIPTORS = "/dev/fd"


class SkippedError(Exception):
    """A partition is skipped by this backup.

    `is_fault`: a later backup would skip it too, unless it is `retriable`.
    """

    def __init__(self, reason: str, *, is_fault: bool = False, retriable: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.is_fault, self.retriable = is_fault, retriable


def unreadable(path: str, error: OSError) -> SkippedError:
    """Return the error for a partition that cannot be read because of the disk or a permission."""
    reason = f"{path}: cannot be read: {error.strerror}"
    return SkippedError(reason, is_fault=True, retriable=is_retriable(error))


class CapturedLog(msgspec.Struct, gc=False):
    """A captured log.

    Attributes
    ----------
    end_bytes : int
        End of the batches, before the zeros of a preallocated log.
    settled_bytes : int
        Bytes that existed before any log was captured.
    descriptor : int
        -1 if the log is not open: no batch needs to be read, or too many files are open.
    """

    path: str
    base_offset: int
    device: int
    inode: int
    ctime_ns: int
    size_bytes: int
    end_bytes: int
    settled_bytes: int = 0
    descriptor: int = -1

    def is_stored_as(self, seen: SeenSegment | None) -> bool:
        """Return whether an earlier backup stored this whole file and it is unchanged."""
        return seen is not None and seen.is_done and self.is_same_file(seen)

    def is_same_file(self, seen: SeenSegment | None) -> bool:
        """Return whether the file is unchanged since an earlier backup."""
        return seen is not None and (
            (self.device, self.inode, self.ctime_ns, self.size_bytes)
            == (seen.device, seen.inode, seen.ctime_ns, seen.size_bytes)
        )

    def open(self) -> int:
        """Return the descriptor; open the log if necessary.

        Raises `SkippedError` if the file was replaced or cannot be opened.
        """
        if self.descriptor >= 0:
            return self.descriptor
        for path in (self.path, self.path + DELETED_SUFFIX):
            try:
                descriptor = open_noatime(path)
            except FileNotFoundError:
                continue
            except OSError as error:
                raise unreadable(path, error) from error
            found = os.fstat(descriptor)
            if (found.st_dev, found.st_ino) == (self.device, self.inode):
                self.descriptor = descriptor
                return descriptor
            os.close(descriptor)
        raise SkippedError(f"{self.path}: it was deleted or replaced before it was read")

    def find_end(self, start_bytes: int) -> None:
        """Find the end of the batches by their headers, from the start of a batch.

        Errors are reported when the batches are read.
        """
        self.end_bytes = self.size_bytes
        was_open = self.descriptor >= 0
        with suppress(SkippedError, OSError):
            last = max(self.size_bytes - RECORD_BATCH_OVERHEAD_BYTES, 0)
            if not any(os.pread(self.open(), RECORD_BATCH_OVERHEAD_BYTES, last)):
                for start in (start_bytes, 0):
                    end = _end_of_batches(self.descriptor, start, self.size_bytes)
                    if end is not None:
                        self.end_bytes = end
                        break
        if not was_open:
            self.close()

    @property
    def is_preallocated(self) -> bool:
        """Whether the log can grow without a change of the file size."""
        return self.end_bytes < self.size_bytes

    def close(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


class OpenFiles:
    """Opens logs up to the limit of open files, and leaves some descriptors free."""

    def __init__(self) -> None:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft != hard:
            with suppress(ValueError, OSError):
                resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
                soft = hard
        self._left = max(soft - _FREE_DESCRIPTORS - len(os.listdir(_DESCRIPTORS)), 0)
        if soft == resource.RLIM_INFINITY:
            self._left = 1 << 30

    def open_if_allowed(self, log: CapturedLog) -> None:
        """Open a log if the limit allows it; otherwise it is opened when it is read."""
        if log.descriptor < 0 and self._left:
            with suppress(SkippedError):
                log.open()
                self._left -= 1

    def open(self, name: str, dir_fd: int) -> int:
        """Open a file; return -1 if too many files are open."""
        if not self._left:
            return -1
        try:
            descriptor = open_noatime(name, dir_fd=dir_fd)
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                self._left = 0
                return -1
            raise
        self._left -= 1
        return descriptor


@contextmanager
def open_reader(
    log: CapturedLog, end_bytes: int, bandwidth: Bandwidth
) -> Iterator[LowImpactReader]:
    """Open a log for reading up to a position; raises `SkippedError` if that fails."""
    try:
        with LowImpactReader(log.open(), log.path, end_bytes, bandwidth) as file:
            yield file
    except OSError as error:
        raise unreadable(log.path, error) from error
    except KafkaIndexError as error:
        retriable = is_retriable(error)
        raise SkippedError(str(error), is_fault=True, retriable=retriable) from error


def find_batch(
    log: CapturedLog, last_offset: int, header: bytes, near_bytes: int, bandwidth: Bandwidth
) -> int | None:
    """Return the end position of the batch with a header; None if the log does not contain it.

    The batch is expected to end at `near_bytes`, as in an earlier backup; otherwise the headers are
    searched. Raises `SkippedError` if the log cannot be read.
    """
    size = LOG_OVERHEAD_BYTES + entry_length(np.frombuffer(header, np.uint8))
    with open_reader(log, log.size_bytes, bandwidth) as file:
        if size <= near_bytes <= log.size_bytes:
            there = np.zeros(len(header), np.uint8)
            file.read_into(near_bytes - size, there.data)
            if there.tobytes() == header:
                return near_bytes
        return _seek_to(file, log, last_offset, header)


def _seek_to(
    file: LowImpactReader, log: CapturedLog, last_offset: int, header: bytes
) -> int | None:
    columns = np.empty((SCAN_COLUMNS, CHUNK_BATCHES), np.int64)
    position, wanted = 0, _HEADERS_BYTES
    while position < log.size_bytes:
        window = np.empty(min(wanted, log.size_bytes - position), np.uint8)
        filled = file.read_into(position, window.data)
        is_over, window = filled < len(window), window[:filled]
        code, after, count = scan_batches(
            window,
            position,
            log.size_bytes,
            position,
            log.base_offset,
            False,  # noqa: FBT003, because kernels take arguments by position
            columns,
            0,
        )
        lasts: Longs = BatchColumns(*columns[:, :count]).last_offset
        row = int(np.searchsorted(lasts, last_offset))
        if row < count:
            start = int(columns[0, row]) - position
            is_same = window[start : start + len(header)].tobytes() == header
            return position + start + int(columns[1, row]) if is_same else None
        if not count:
            # A log may be shorter than when it was captured.
            if code != SCAN_NEED_BYTES or is_over:
                return None
            wanted = max(2 * wanted, LOG_OVERHEAD_BYTES + entry_length(window))
            continue
        position = int(after)
    return None


def last_offset_in(header: bytes) -> int:
    return last_offset_of(np.frombuffer(header, np.uint8))


def _end_of_batches(descriptor: int, position: int, size_bytes: int) -> int | None:
    """Return the position of the zeros after the batches; None if other bytes follow them."""
    if position > size_bytes:
        return None
    for _ in range(_END_ATTEMPTS):
        while True:
            header = os.pread(descriptor, RECORD_BATCH_OVERHEAD_BYTES, position)
            if not any(header):
                return position
            after = position + LOG_OVERHEAD_BYTES + int.from_bytes(header[8:12], "big", signed=True)
            if after - position < _LEAST_BATCH_BYTES or after > size_bytes:
                break
            position = after
        # The header may be incomplete because the broker is writing it.
        time.sleep(_END_PAUSE_S)
    return None
