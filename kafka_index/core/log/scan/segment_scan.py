"""Scan a segment: from a mapped or streamed log to chunks of batch columns.

Source of the stopping rules: Kafka's ``FileLogInputStream.nextBatch`` and ``LogSegment.recover``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from os import PathLike
from typing import Protocol, Self

import numpy as np
import pyarrow as pa

from kafka_index.core.errors import refuse_other_types
from kafka_index.core.format.integers import INT32_MAX
from kafka_index.core.format.names import (
    TopicPartition,
    parse_partition_directory,
)
from kafka_index.core.format.records import LOG_OVERHEAD_BYTES
from kafka_index.core.format.uri_passwords import path_of
from kafka_index.core.fs.reading import WINDOW_BYTES, Windows, windows_of
from kafka_index.core.fs.store import Bytes, ByteSource
from kafka_index.core.kernels.headers import (
    HEADER_BASE_SEQUENCE,
    HEADER_BASE_TIMESTAMP,
    HEADER_CONTROL_TIMESTAMP,
    HEADER_CONTROL_TYPE,
    HEADER_COORDINATOR_EPOCH,
    HEADER_CRC,
    HEADER_PRODUCER_EPOCH,
)
from kafka_index.core.kernels.scan import SCAN_BAD_LENGTH, SCAN_END, SCAN_NEED_BYTES, SCAN_ROWS_FULL
from kafka_index.core.log.scan.file_records import check_unchanged, open_log
from kafka_index.core.log.scan.scanner import (
    BatchOrder,
    InMemoryLog,
    Scanner,
    entry_length,
    only_zeros,
)
from kafka_index.core.logdir.partition_files import SegmentFile, parse_base_offset
from kafka_index.core.records.batch_table import (
    BATCH_SCHEMA,
    BatchColumns,
    BatchSource,
    ScanStop,
    WindowBatches,
)


class LogFileSource:
    """The batches of a read-only ``.log``, from the start of a batch on.

    A local log is mapped; without `verify_crc`, only the pages with headers are read. A remote log
    is always streamed, since a request costs more than the bytes between two headers. A log that
    has changed since it was listed is an error. Without a listing, the base offset comes from the
    file name; `InputError` is raised if it has none. The size is 0 before `chunks` has started.
    Unless it `recovers`, offsets may be too far above the base offset for an index entry.
    """

    def __init__(
        self,
        path: str | PathLike[str],
        *,
        verify_crc: bool = True,
        listed: SegmentFile | None = None,
        start_bytes: int = 0,
        recovers: bool = True,
        may_grow: bool = False,
    ) -> None:
        self.path = os.fspath(path)
        self._may_grow = may_grow
        self._start_bytes = start_bytes
        self._verify_crc = verify_crc
        self._recovers = recovers
        self._base_offset = parse_base_offset(self.path) if listed is None else listed.base_offset
        self._listed = listed
        self.log_size_bytes = 0
        self.stop: ScanStop | None = None

    @classmethod
    def of_segment(
        cls,
        segment: SegmentFile,
        *,
        verify_crc: bool,
        recovers: bool = True,
        may_grow: bool = False,
    ) -> Self:
        return cls(
            segment.log_path,
            verify_crc=verify_crc,
            listed=segment,
            recovers=recovers,
            may_grow=may_grow,
        )

    def chunks(self) -> Iterator[BatchColumns]:
        for _, _, batches in self._scan(flush_windows=False):
            yield batches

    def windows(self) -> Iterator[tuple[Bytes, int, BatchColumns]]:
        """Yield chunks of batches, each with a window that contains them and its position."""
        return self._scan(flush_windows=True)

    def _scan(self, *, flush_windows: bool) -> Iterator[tuple[Bytes, int, BatchColumns]]:
        listed = None if self._may_grow else self._listed
        with closing(open_log(self.path, listed)) as file:
            self.log_size_bytes = file.size_bytes
            scanner = Scanner(
                self._base_offset, verify_crc=self._verify_crc, position_bytes=self._start_bytes
            )
            headers_only = not self._verify_crc
            with closing(windows_of(file, self._start_bytes, headers_only=headers_only)) as windows:
                code = yield from self._scanned(scanner, windows, file, flush_windows=flush_windows)
                if code != SCAN_END:
                    self.stop = scanner.stop(code, windows.rest)
            version = "" if self._listed is None else self._listed.log_version
            check_unchanged(file, version, may_grow=self._may_grow)

    def _scanned(
        self, scanner: Scanner, windows: Windows, file: ByteSource, *, flush_windows: bool
    ) -> Generator[tuple[Bytes, int, BatchColumns], None, int]:
        """Yield chunks of batches, each with a window that contains them completely.

        Returns the kernel's reason for the end.
        """
        ahead = None if self._recovers else file
        window, start = np.empty(0, np.uint8), self._start_bytes
        code = SCAN_ROWS_FULL
        while code in (SCAN_ROWS_FULL, SCAN_NEED_BYTES):
            if code == SCAN_NEED_BYTES:
                at = int(scanner.position)
                # No progress: the batch is larger than a window.
                stuck = len(window) and at == start
                size = LOG_OVERHEAD_BYTES + entry_length(window) if stuck else WINDOW_BYTES
                window, start = windows.window(at, size), at
            code = scanner.scan(window, start, self.log_size_bytes, ahead)
            # Windows with few batches are combined, because each chunk has a fixed cost.
            if flush_windows or code != SCAN_NEED_BYTES:
                for batches in scanner.drain():
                    yield window, start, batches
        return code


class ByteStreamSource:
    """The batches of a log that is read as consecutive blocks of any size.

    A batch may span blocks unless `whole_batches`. In that case a batch that seems to span blocks
    has an invalid length, and the scan ends instead of collecting the rest of the log. The size
    counts the bytes read so far.
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
                    # A block that starts with a batch is scanned in place.
                    window = np.concatenate((rest, more)) if len(rest) else more
                    start = int(self._scanner.position)
                    self.log_size_bytes += len(more)
            # Before the last block, the end of the log is unknown.
            log_size = self.log_size_bytes if ended else self.log_size_bytes + 2 * INT32_MAX
            code = self._scanner.scan(window, start, log_size)
            if code != SCAN_NEED_BYTES or ended:
                yield from self._scanner.drain()
        if code == SCAN_BAD_LENGTH:
            window = self._after_zeros(window, start)
        if code != SCAN_END:
            self.stop = self._scanner.stop(code, InMemoryLog(window, start))

    def _after_zeros(self, window: Bytes, start: int) -> Bytes:
        """Read past zeros: zeros up to the end are preallocated, anything else is a corruption."""
        rest = window[int(self._scanner.position) - start :]
        if not only_zeros(rest):
            return window
        for more in self._windows:
            self.log_size_bytes += len(more)
            if not only_zeros(more):
                return np.concatenate((window, more))
        return window


#: Returns the row of the first batch after the end of the log, None if there is none.
FirstBeyond = Callable[[BatchColumns], int | None]


class BatchObserver(Protocol):
    """Observes the batches of a log, in file order."""

    def observe(self, batches: BatchColumns) -> None:
        """Process a chunk, which is valid only during this call."""


class ObservedSource:
    """A `BatchSource` that passes its batches to observers, and may end early.

    So a log is read only once for a build and other purposes. `first_beyond` finds the end of the
    log in a chunk; by default all batches are passed on. `cut_at_bytes` is the position of the
    first batch that was not.
    """

    def __init__(
        self,
        source: BatchSource,
        observers: Sequence[BatchObserver],
        first_beyond: FirstBeyond | None = None,
    ) -> None:
        self._source = source
        self._observers = observers
        self._first_beyond = first_beyond
        self.cut_at_bytes: int | None = None

    @property
    def log_size_bytes(self) -> int:
        return self._source.log_size_bytes

    @property
    def stop(self) -> ScanStop | None:
        """Why the batches ended before the log."""
        return self._source.stop

    def chunks(self) -> Iterator[BatchColumns]:
        for found in self._source.chunks():
            batches = found
            beyond = None if self._first_beyond is None else self._first_beyond(batches)
            if beyond is not None:
                self.cut_at_bytes = int(batches.position_bytes[beyond])
                batches = BatchColumns(*(column[:beyond] for column in batches))
            if batches.rows:
                for observer in self._observers:
                    observer.observe(batches)
                yield batches
            if beyond is not None:
                return


class read_batches:  # noqa: N801, because it is used as a function that can be asked why it ended
    """Iterate over the batches of a ``.log`` as record batches of `BATCH_SCHEMA`.

    Parameters
    ----------
    path : path
        The log. Its name contains the base offset, and the name of its folder topic and partition
        (an empty topic and -1 if it is not a partition directory).
    verify_crc : bool
        If False, only headers are read.

    Attributes
    ----------
    stop : ScanStop or None
        When exhausted: why the batches ended before the end of the log.
    overlap : ScanStop or None
        The first batch so far that is out of order.
    """

    def __init__(self, path: str | PathLike[str], *, verify_crc: bool = True) -> None:
        refuse_other_types(verify_crc=(verify_crc, bool))
        self._source = LogFileSource(path_of(path, "path"), verify_crc=verify_crc, recovers=False)
        self._base_offset = parse_base_offset(self._source.path)
        directory = os.path.basename(os.path.dirname(os.path.abspath(self._source.path)))
        self._partition = parse_partition_directory(directory) or TopicPartition("", -1)
        self.overlap: ScanStop | None = None

    @property
    def stop(self) -> ScanStop | None:
        """Why the batches ended before the log."""
        return self._source.stop

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        order = BatchOrder(self._base_offset)
        for data, start, batches in self._source.windows():
            self.overlap = self.overlap or order.first_stop(batches)
            yield batch_rows(
                WindowBatches(data, start, batches), self._partition, self._base_offset
            )


def batch_rows(
    source: WindowBatches, partition: TopicPartition, segment_base_offset: int
) -> pa.RecordBatch:
    """Convert the batches of a window to rows of `BATCH_SCHEMA`."""
    batches, headers = source.batches, source.read_headers()
    count = batches.rows
    control_type = headers[HEADER_CONTROL_TYPE]
    no_control = control_type < 0
    values: dict[str, object] = {
        "topic": pa.repeat(partition.topic, count),
        "partition": pa.repeat(partition.partition, count),
        "segment_base_offset": pa.repeat(segment_base_offset, count),
        "position_bytes": batches.position_bytes,
        "size_bytes": batches.size_bytes,
        "base_offset": batches.base_offset,
        "last_offset": batches.last_offset,
        "leader_epoch": batches.leader_epoch,
        "magic": batches.magic,
        "attributes": batches.attributes,
        "crc": headers[HEADER_CRC],
        "base_timestamp_ms": headers[HEADER_BASE_TIMESTAMP],
        "max_timestamp_ms": batches.max_timestamp_ms,
        "producer_id": batches.producer_id,
        "producer_epoch": headers[HEADER_PRODUCER_EPOCH],
        "base_sequence": headers[HEADER_BASE_SEQUENCE],
        "record_count": batches.record_count,
        "control_type": pa.array(control_type, mask=no_control),
        "coordinator_epoch": pa.array(headers[HEADER_COORDINATOR_EPOCH], mask=no_control),
        "control_timestamp_ms": pa.array(headers[HEADER_CONTROL_TIMESTAMP], mask=no_control),
    }
    # Copied, because the next chunk reuses the memory.
    arrays = [
        (value if isinstance(value, pa.Array) else pa.array(np.array(value))).cast(field.type)
        for field in BATCH_SCHEMA
        for value in (values[field.name],)
    ]
    return pa.record_batch(arrays, schema=BATCH_SCHEMA)
