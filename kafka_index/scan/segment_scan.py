"""Scanning a segment: bytes of a log, mapped or streamed, to batch columns in bounded chunks.

Source of the stopping rules: Kafka's ``FileLogInputStream.nextBatch`` and ``LogSegment.recover``.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import closing
from os import PathLike
from typing import Self

import numpy as np

from kafka_index.errors import InputError, ReadError
from kafka_index.kernels.scan import (
    SCAN_BAD_LENGTH,
    SCAN_END,
    SCAN_NEED_BYTES,
    SCAN_ROWS_FULL,
)
from kafka_index.layout.integers import INT32_MAX
from kafka_index.layout.names import parse_segment_file
from kafka_index.layout.records import LOG_OVERHEAD_BYTES
from kafka_index.records.batch_source import ScanStop
from kafka_index.records.batch_table import BatchColumns
from kafka_index.scan.file_records import log_changed, open_log
from kafka_index.scan.scanner import Scanner, entry_length, only_zeros
from kafka_index.storage import WINDOW_BYTES, Bytes, MappedFile, SegmentFile, WindowWalk


class LogFileSource:
    """The batches of a ``.log`` on a local disk, which is mapped and never written.

    Parameters
    ----------
    path : path
        The log.
    verify_crc : bool
        Without it only the headers are read, and no other page of the file is touched.
    listed : SegmentFile, optional
        The log as it was listed; one that has changed since is an error. By default the base
        offset is that in the file's name.

    Attributes
    ----------
    log_size_bytes, stop
        As for `BatchSource`; the size is 0 before `chunks` has begun.

    Raises
    ------
    InputError
        The name of the file holds no base offset.
    """

    def __init__(
        self,
        path: str | PathLike[str],
        *,
        verify_crc: bool = True,
        listed: SegmentFile | None = None,
    ) -> None:
        self.path = os.fspath(path)
        self._verify_crc = verify_crc
        self._base_offset = base_offset_of(self.path) if listed is None else listed.base_offset
        self._listed = listed
        self.log_size_bytes = 0
        self.stop: ScanStop | None = None

    @classmethod
    def of_segment(cls, segment: SegmentFile, *, verify_crc: bool) -> Self:
        """Return the source over a listed segment."""
        return cls(segment.log_path, verify_crc=verify_crc, listed=segment)

    def chunks(self) -> Iterator[BatchColumns]:
        """Yield the batches (`BatchSource.chunks`)."""
        for _, _, batches in self._scan(flush_windows=False):
            yield batches

    def windows(self) -> Iterator[tuple[Bytes, int, BatchColumns]]:
        """Yield each chunk of batches with bytes that hold them whole, and where those begin."""
        return self._scan(flush_windows=True)

    def _scan(self, *, flush_windows: bool) -> Iterator[tuple[Bytes, int, BatchColumns]]:
        with closing(open_log(self.path, self._listed)) as file:
            if not isinstance(file, MappedFile):
                raise InputError("only local logs are scanned", path=self.path)
            self.log_size_bytes = file.size_bytes
            scanner = Scanner(self._base_offset, verify_crc=self._verify_crc)
            walk = WindowWalk(file)
            if self._verify_crc:
                file.advise_sequential()
                window, start = np.empty(0, np.uint8), 0
            else:
                file.advise_random()
                window, start = file.array, 0
            code = SCAN_ROWS_FULL
            while code in (SCAN_ROWS_FULL, SCAN_NEED_BYTES):
                if code == SCAN_NEED_BYTES:
                    at = int(scanner.position)
                    # No progress: the batch is larger than a window.
                    stuck = len(window) and at == start
                    size = LOG_OVERHEAD_BYTES + entry_length(window) if stuck else WINDOW_BYTES
                    window, start = walk.window(at, size), at
                code = scanner.scan(window, start, self.log_size_bytes)
                # Windows with few batches make one chunk: each chunk has its cost downstream.
                if flush_windows or code != SCAN_NEED_BYTES:
                    for batches in scanner.drain():
                        yield window, start, batches
            if code != SCAN_END:
                self.stop = scanner.stop(code, file.array, 0, self.log_size_bytes)
            how = file.changed()
            if how is not None:
                raise log_changed(self.path, how)
            if file.faulted:
                raise ReadError(
                    "the disk or the file system failed while the log was read", path=self.path
                )


class ByteStreamSource:
    """The batches of a log that is read as consecutive pieces of any size.

    Parameters
    ----------
    windows : iterable of ndarray of uint8
        The bytes, from the start of the log on. A batch may span pieces.
    segment_base_offset : int
        Base offset of the segment.
    verify_crc : bool
        Whether checksums are verified.
    whole_batches : bool
        No batch spans pieces. Where one seems to, its length is wrong, and the scan ends there
        instead of gathering all that follows.

    Attributes
    ----------
    log_size_bytes, stop
        As for `BatchSource`; the size counts the bytes read so far.
    """

    def __init__(
        self,
        windows: Iterable[Bytes],
        *,
        segment_base_offset: int,
        verify_crc: bool = True,
        whole_batches: bool = False,
    ) -> None:
        self._windows = iter(windows)
        self._whole_batches = whole_batches
        self._scanner = Scanner(segment_base_offset, verify_crc=verify_crc)
        self.log_size_bytes = 0
        self.stop: ScanStop | None = None

    def chunks(self) -> Iterator[BatchColumns]:
        """Yield the batches (`BatchSource.chunks`)."""
        window = np.empty(0, np.uint8)
        start = 0
        ended = False
        code = SCAN_NEED_BYTES
        while code in (SCAN_ROWS_FULL, SCAN_NEED_BYTES):
            if code == SCAN_NEED_BYTES:
                spans = int(self._scanner.position) < self.log_size_bytes
                more = None if spans and self._whole_batches else next(self._windows, None)
                ended = more is None
                if more is not None:
                    rest = window[int(self._scanner.position) - start :]
                    # A piece that begins with a batch is scanned where it is.
                    window = np.concatenate((rest, more)) if len(rest) else more
                    start = int(self._scanner.position)
                    self.log_size_bytes += len(more)
            # Until the last piece is here the end is nowhere near.
            log_size = self.log_size_bytes if ended else self.log_size_bytes + 2 * INT32_MAX
            code = self._scanner.scan(window, start, log_size)
            if code != SCAN_NEED_BYTES or ended:
                yield from self._scanner.drain()
        if code == SCAN_BAD_LENGTH:
            window = self._after_zeros(window, start)
        if code != SCAN_END:
            self.stop = self._scanner.stop(code, window, start, self.log_size_bytes)

    def _after_zeros(self, window: Bytes, start: int) -> Bytes:
        """Read past zeros: zeros up to the end are a preallocated tail, all else is damage."""
        rest = window[int(self._scanner.position) - start :]
        if not only_zeros(rest):
            return window
        for more in self._windows:
            self.log_size_bytes += len(more)
            if not only_zeros(more):
                return np.concatenate((window, more))
        return window


def base_offset_of(path: str) -> int:
    """Return the base offset that the name of a segment's file holds.

    Raises
    ------
    InputError
        It holds none.
    """
    parsed = parse_segment_file(os.path.basename(path))
    if parsed is None:
        raise InputError(
            "the file's name holds no base offset", path=path, expected="20 digits before the kind"
        )
    return parsed.base_offset
