"""Scan the batches of a log range window by window, and find the end of a corrupt log."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass

import numpy as np

from kafka_index.core.errors import CorruptLogError
from kafka_index.core.format.integers import INT64_MAX
from kafka_index.core.format.records import LOG_OVERHEAD_BYTES
from kafka_index.core.fs.local_store import MappedFile
from kafka_index.core.fs.reading import WindowWalk
from kafka_index.core.fs.store import Bytes, ByteSource
from kafka_index.core.kernels.scan import SCAN_BAD_CRC, SCAN_END, SCAN_NEED_BYTES, SCAN_ROWS_FULL
from kafka_index.core.log.missing_offsets import ScannedLog
from kafka_index.core.log.read.partition_log import PartitionLog
from kafka_index.core.log.scan.file_records import check_unchanged, open_log
from kafka_index.core.log.scan.log_offsets import LogOffsets
from kafka_index.core.log.scan.scanner import BatchOrder, Scanner, entry_length
from kafka_index.core.logdir.partition_files import SegmentFile
from kafka_index.core.records.batch_table import BatchColumns, ScanStop, WindowBatches
from kafka_index.core.records.record_sections import Decompressor

#: Window size for a local log. The window is larger than the L2 cache, because each window has a
#: fixed cost, which equals the cost of decoding 0.2 MB.
_LOCAL_WINDOW_BYTES = 2 * 1024 * 1024
#: Window size for a remote log; one request reads a window.
_REMOTE_WINDOW_BYTES = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class LogRange:
    """A byte range of a segment's `.log` file, between batch boundaries; small and picklable.

    Attributes
    ----------
    start_bytes, end_bytes : int
        Position of the first batch, and position after the last batch.
    start_offset : int
        The lowest offset of records in the range. Records before the range have lower offsets.
    min_offset : int
        No batch may have a base offset below this offset: the start offset of the segment or range.
    end_offset : int, optional
        No batch may contain this offset or higher ones: the start offset of the next segment or
        range.
    """

    segment: SegmentFile
    start_bytes: int
    end_bytes: int
    start_offset: int
    min_offset: int
    end_offset: int | None = None

    @property
    def size_bytes(self) -> int:
        return self.end_bytes - self.start_bytes


class RangeScan:
    """Scans the batches of a log range.

    With a decompressor, `read_log` tracks the offsets of the records. With `headers_only`, it
    tracks the offsets in batch headers, and only the pages of a local log with headers are read.
    Offsets that are missing next to a corrupt range count as corrupt. With `after_damage`, a
    corrupt range precedes the log range.

    Attributes
    ----------
    bytes_read : int
        The number of bytes of the log read so far.
    min_offset : int
        The lowest valid base offset of the next batch.
    read_log : ScannedLog
        The log range, with the offsets read so far.
    """

    def __init__(
        self,
        log_range: LogRange,
        *,
        verify_crc: bool,
        decompressor: Decompressor | None = None,
        after_damage: bool = False,
        headers_only: bool = False,
    ) -> None:
        self.bytes_read = 0
        self.min_offset = log_range.min_offset
        offsets = LogOffsets(max(log_range.start_offset, log_range.min_offset))
        # Until the scan is complete, all offsets after the last batch may be corrupt.
        self.read_log = ScannedLog(
            log_range.segment, offsets, damage_end=INT64_MAX, has_counts=not headers_only
        )
        self._range = log_range
        self._verify_crc = verify_crc
        self._decompressor = decompressor
        self._is_after_damage = after_damage
        self._headers_only = headers_only

    def windows(self) -> Iterator[WindowBatches | CorruptLogError]:
        """Yield batches with their bytes, and an error for each corruption between batches.

        Batches with a wrong checksum or out of order are skipped. Any other corruption ends the
        scan, because the position of the next batch is unknown. Raises `ReadError` if the log
        changes or its disk fails.
        """
        log_range = self._range
        with closing(open_log(log_range.segment.log_path, log_range.segment)) as file:
            read_window, window_bytes = _window_reader(file, headers_only=self._headers_only)
            scanner = Scanner(
                log_range.segment.base_offset,
                verify_crc=self._verify_crc,
                position_bytes=log_range.start_bytes,
            )
            order = BatchOrder(log_range.min_offset, log_range.end_offset)
            window, start, code = np.empty(0, np.uint8), log_range.start_bytes, SCAN_NEED_BYTES
            while code in (SCAN_ROWS_FULL, SCAN_NEED_BYTES):
                position = int(scanner.position)
                if code == SCAN_NEED_BYTES and position < log_range.end_bytes:
                    # If the scanner made no progress, the batch is larger than a window.
                    is_stuck = len(window) >= LOG_OVERHEAD_BYTES and position == start
                    size = LOG_OVERHEAD_BYTES + entry_length(window) if is_stuck else 0
                    size = min(max(size, window_bytes), log_range.end_bytes - position)
                    window, start = read_window(position, size), position
                    self.bytes_read += size
                code = scanner.scan(window, start, log_range.end_bytes, file)
                for batches in scanner.drain():
                    if self._continues_with(batches, order):
                        self.min_offset = order.next_offset
                        yield WindowBatches(window, start, batches)
                        continue
                    for item in order.follow(batches):
                        self.min_offset = order.next_offset
                        if isinstance(item, ScanStop):
                            yield self._corruption_error(item)
                        else:
                            self._track_offsets(window, start, item)
                            yield WindowBatches(window, start, item)
                if code not in (SCAN_ROWS_FULL, SCAN_NEED_BYTES, SCAN_END):
                    scan_stop = scanner.stop(code, file, log_range.end_bytes)
                    if not (scan_stop.is_tail and log_range.segment.is_last):
                        yield self._corruption_error(scan_stop)
                    if code == SCAN_BAD_CRC:
                        position = int(scanner.position)
                        length = entry_length(window[position - start :])
                        scanner.position = position + LOG_OVERHEAD_BYTES + length
                        code = SCAN_ROWS_FULL
            check_unchanged(file, log_range.segment.log_version)
            if not self._is_after_damage:
                self.read_log.damage_end = None

    def _continues_with(self, batches: BatchColumns, order: BatchOrder) -> bool:
        """If batches are contiguous, track their offsets by headers and return True."""
        offsets = self.read_log.offsets
        is_plain = self._headers_only and not self._is_after_damage
        is_plain = is_plain and offsets.end_offset == order.next_offset
        if not is_plain or not order.continues_with(batches):
            return False
        offsets.observe_contiguous(batches)
        return True

    def _track_offsets(self, window: Bytes, start: int, batches: BatchColumns) -> None:
        if self._decompressor is None and not self._headers_only:
            return
        offsets = self.read_log.offsets
        if self._is_after_damage:
            offsets.end_offset = max(offsets.end_offset, int(batches.base_offset[0]))
        self._is_after_damage = False
        if self._decompressor is None:
            offsets.observe(batches)
        else:
            offsets.observe_records(window, start, batches, self._decompressor)

    def _corruption_error(self, scan_stop: ScanStop) -> CorruptLogError:
        self._is_after_damage = True
        path = self._range.segment.log_path
        return CorruptLogError(scan_stop.text, path=path, position_bytes=scan_stop.position_bytes)


def _window_reader(
    file: ByteSource, *, headers_only: bool
) -> tuple[Callable[[int, int], Bytes], int]:
    """Return a function that reads a window, and the usual window size.

    A window is valid until the next call of the function.
    """
    if not isinstance(file, MappedFile):
        return file.read_at, _REMOTE_WINDOW_BYTES
    if headers_only:
        file.advise_random()
        return file.read_at, file.size_bytes
    file.advise_sequential()
    return WindowWalk(file, _LOCAL_WINDOW_BYTES).window, _LOCAL_WINDOW_BYTES


@dataclass(frozen=True, slots=True)
class DamagedEnd:
    """The end of a log whose last segment has a corrupt end, with the first corruption.

    `valid_end_offset` is the offset after the last batch before the corruption. `end_offset` is the
    offset after the last readable batch.
    """

    valid_end_offset: int
    end_offset: int
    error: CorruptLogError


def find_damaged_end(log: PartitionLog) -> DamagedEnd | None:
    """Return the end of a log whose last segment has a corrupt end, otherwise None.

    Batches out of order count as corrupt. A corruption before the last index entry does not affect
    the log end; reading the records reports it.
    """
    segment = log.segments[-1]
    scan_stop = segment.end_damage
    if scan_stop is None:
        return None
    log_range = LogRange(
        segment.file, 0, segment.file.log_size_bytes, segment.base_offset, segment.base_offset
    )
    error = None
    valid_end_offset = end_offset = max(segment.base_offset, log.log_start_offset)
    for window in RangeScan(log_range, verify_crc=True).windows():
        if isinstance(window, CorruptLogError):
            error = error or window
            continue
        end_offset = max(end_offset, int(window.batches.last_offset[-1]) + 1)
        valid_end_offset = valid_end_offset if error else end_offset
    if error is None:
        path, position = segment.file.log_path, scan_stop.position_bytes
        error = CorruptLogError(scan_stop.text, path=path, position_bytes=position)
    return DamagedEnd(valid_end_offset, end_offset, error)
