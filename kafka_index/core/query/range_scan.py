"""Batches of a part of a log, window by window, optionally skipping corrupt ranges.

A scan of the last segment finds the end of a corrupt log.
"""

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

#: Window size for a local log. The window exceeds the L2 cache, because each window has the fixed
#: cost of a chunk, equal to decoding 0.2 MB.
_LOCAL_WINDOW_BYTES = 2 * 1024 * 1024
#: Window size for a remote log, read by one request.
_REMOTE_WINDOW_BYTES = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class LogRange:
    """A part of a segment, on batch boundaries; small and picklable.

    Start and exclusive end in bytes are starts of batches, or the end of the log. Records of the
    range have offsets from `start_offset` on, and earlier records have lower ones. No batch may
    start below `least_offset`, where the segment or range starts, or reach `end_offset`, where the
    next one starts.
    """

    segment: SegmentFile
    start_bytes: int
    end_bytes: int
    start_offset: int
    least_offset: int
    end_offset: int | None = None

    @property
    def size_bytes(self) -> int:
        return self.end_bytes - self.start_bytes


class RangeScan:
    """Scans the batches of a range.

    `bytes_read` counts the bytes of the log read so far. Further batches must not start below
    `least_offset`. With a decompressor, `seen` tracks the offsets in the range. With `headers_only`
    it tracks them by the headers, and reads no other page of a local log. Offsets next to a
    corruption are corrupt, not missing, and so are those at the start of a range if `after_damage`.
    """

    def __init__(
        self,
        part: LogRange,
        *,
        verify_crc: bool,
        decompressor: Decompressor | None = None,
        after_damage: bool = False,
        headers_only: bool = False,
    ) -> None:
        self.bytes_read = 0
        self.least_offset = part.least_offset
        offsets = LogOffsets(max(part.start_offset, part.least_offset))
        # The offsets after the last batch are known only after the scan.
        self.seen = ScannedLog(
            part.segment, offsets, damage_end=INT64_MAX, has_counts=not headers_only
        )
        self._part = part
        self._verify_crc = verify_crc
        self._decompressor = decompressor
        self._is_after_damage = after_damage
        self._headers_only = headers_only

    def windows(self) -> Iterator[WindowBatches | CorruptLogError]:
        """Yield batches with the bytes that contain them, and corruptions between them.

        Batches with a wrong checksum or out of order are skipped. After any other corruption, the
        start of the next batch is unknown, and the range ends. Raises `ReadError` if the log
        changes or its disk fails.
        """
        part = self._part
        with closing(open_log(part.segment.log_path, part.segment)) as file:
            read, window_bytes = _windows_of(file, headers_only=self._headers_only)
            scanner = Scanner(
                part.segment.base_offset,
                verify_crc=self._verify_crc,
                position_bytes=part.start_bytes,
            )
            order = BatchOrder(part.least_offset, part.end_offset)
            window, start, code = np.empty(0, np.uint8), part.start_bytes, SCAN_NEED_BYTES
            while code in (SCAN_ROWS_FULL, SCAN_NEED_BYTES):
                at = int(scanner.position)
                if code == SCAN_NEED_BYTES and at < part.end_bytes:
                    # No progress: the batch is larger than a window.
                    stuck = len(window) >= LOG_OVERHEAD_BYTES and at == start
                    size = LOG_OVERHEAD_BYTES + entry_length(window) if stuck else 0
                    size = min(max(size, window_bytes), part.end_bytes - at)
                    window, start = read(at, size), at
                    self.bytes_read += size
                code = scanner.scan(window, start, part.end_bytes, file)
                for batches in scanner.drain():
                    if self._continues_with(batches, order):
                        self.least_offset = order.next_offset
                        yield WindowBatches(window, start, batches)
                        continue
                    for found in order.follow(batches):
                        self.least_offset = order.next_offset
                        if isinstance(found, ScanStop):
                            yield self._damage(found)
                        else:
                            self._see(window, start, found)
                            yield WindowBatches(window, start, found)
                if code not in (SCAN_ROWS_FULL, SCAN_NEED_BYTES, SCAN_END):
                    stop = scanner.stop(code, file, part.end_bytes)
                    if not (stop.is_tail and part.segment.is_last):
                        yield self._damage(stop)
                    if code == SCAN_BAD_CRC:
                        at = int(scanner.position)
                        length = entry_length(window[at - start :])
                        scanner.position = at + LOG_OVERHEAD_BYTES + length
                        code = SCAN_ROWS_FULL
            check_unchanged(file, part.segment.log_version)
            if not self._is_after_damage:
                self.seen.damage_end = None

    def _continues_with(self, batches: BatchColumns, order: BatchOrder) -> bool:
        """Follow batches by their headers if nothing about them has to be decided."""
        offsets = self.seen.offsets
        is_plain = self._headers_only and not self._is_after_damage
        is_plain = is_plain and offsets.end_offset == order.next_offset
        if not is_plain or not order.continues_with(batches):
            return False
        offsets.observe_contiguous(batches)
        return True

    def _see(self, window: Bytes, start: int, batches: BatchColumns) -> None:
        if self._decompressor is None and not self._headers_only:
            return
        offsets = self.seen.offsets
        if self._is_after_damage:
            offsets.end_offset = max(offsets.end_offset, int(batches.base_offset[0]))
        self._is_after_damage = False
        if self._decompressor is None:
            offsets.observe(batches)
        else:
            offsets.observe_records(window, start, batches, self._decompressor)

    def _damage(self, stop: ScanStop) -> CorruptLogError:
        self._is_after_damage = True
        path = self._part.segment.log_path
        return CorruptLogError(stop.text, path=path, position_bytes=stop.position_bytes)


def _windows_of(file: ByteSource, *, headers_only: bool) -> tuple[Callable[[int, int], Bytes], int]:
    """Return the function that reads a window, valid until the next one, and the usual size."""
    if not isinstance(file, MappedFile):
        return file.read_at, _REMOTE_WINDOW_BYTES
    if headers_only:
        file.advise_random()
        return file.read_at, file.size_bytes
    file.advise_sequential()
    return WindowWalk(file, _LOCAL_WINDOW_BYTES).window, _LOCAL_WINDOW_BYTES


@dataclass(frozen=True, slots=True)
class DamagedEnd:
    """The end of a corrupt log, with its first corruption.

    `valid_end_offset` follows the last batch before the corruption, `end_offset` the last readable
    batch.
    """

    valid_end_offset: int
    end_offset: int
    error: CorruptLogError


def damaged_end(log: PartitionLog) -> DamagedEnd | None:
    """Return the end of a log whose last segment has a corrupt end, otherwise None.

    Batches out of order count as corrupt. A corruption before the last index entry does not affect
    the end, and is found by reading.
    """
    last = log.segments[-1]
    stop = last.end_damage
    if stop is None:
        return None
    whole = LogRange(last.file, 0, last.file.log_size_bytes, last.base_offset, last.base_offset)
    error = None
    valid_end = end = max(last.base_offset, log.log_start_offset)
    for found in RangeScan(whole, verify_crc=True).windows():
        if isinstance(found, CorruptLogError):
            error = error or found
            continue
        end = max(end, int(found.batches.last_offset[-1]) + 1)
        valid_end = valid_end if error else end
    if error is None:
        path, position = last.file.log_path, stop.position_bytes
        error = CorruptLogError(stop.text, path=path, position_bytes=position)
    return DamagedEnd(valid_end, end, error)
