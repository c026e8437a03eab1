"""Scan a mapped or streamed ``.log`` file into chunks of batch columns.

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
    is_zero_filled,
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
    """The batches of a read-only ``.log`` file, from the batch at `start_bytes` on.

    A local file is memory-mapped. Without `verify_crc`, only the pages with batch headers are read.
    A remote file is always streamed, since a request costs more than the bytes between two headers.

    Parameters
    ----------
    listed_segment
        The listed segment. Reading fails if the file has changed since the listing. If None, the
        file name must contain the base offset.
    recovers
        If False, batches with offsets too far above the base offset for an index entry are read
        too. Recovery would fail at them.
    may_grow
        Accept that bytes are appended to the file during the scan.

    Attributes
    ----------
    log_size_bytes
        Size of the ``.log`` file, 0 before the scan.
    stop
        After the scan: why the batches end before the end of the file, None if they do not.
    """

    def __init__(
        self,
        path: str | PathLike[str],
        *,
        verify_crc: bool = True,
        listed_segment: SegmentFile | None = None,
        start_bytes: int = 0,
        recovers: bool = True,
        may_grow: bool = False,
    ) -> None:
        self.path = os.fspath(path)
        self._may_grow = may_grow
        self._start_bytes = start_bytes
        self._verify_crc = verify_crc
        self._recovers = recovers
        self._base_offset = (
            parse_base_offset(self.path) if listed_segment is None else listed_segment.base_offset
        )
        self._listed_segment = listed_segment
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
            listed_segment=segment,
            recovers=recovers,
            may_grow=may_grow,
        )

    def chunks(self) -> Iterator[BatchColumns]:
        for _, _, batches in self._scan(flush_windows=False):
            yield batches

    def windows(self) -> Iterator[tuple[Bytes, int, BatchColumns]]:
        """Yield chunks of batches, each with a window of bytes that contains them.

        Each item has the window, its position in the file and the batches.
        """
        return self._scan(flush_windows=True)

    def _scan(self, *, flush_windows: bool) -> Iterator[tuple[Bytes, int, BatchColumns]]:
        listed_segment = None if self._may_grow else self._listed_segment
        with closing(open_log(self.path, listed_segment)) as file:
            self.log_size_bytes = file.size_bytes
            scanner = Scanner(
                self._base_offset, verify_crc=self._verify_crc, position_bytes=self._start_bytes
            )
            headers_only = not self._verify_crc
            with closing(windows_of(file, self._start_bytes, headers_only=headers_only)) as windows:
                code = yield from self._scan_windows(
                    scanner, windows, file, flush_windows=flush_windows
                )
                if code != SCAN_END:
                    self.stop = scanner.stop(code, windows.rest)
            version = "" if self._listed_segment is None else self._listed_segment.log_version
            check_unchanged(file, version, may_grow=self._may_grow)

    def _scan_windows(
        self, scanner: Scanner, windows: Windows, file: ByteSource, *, flush_windows: bool
    ) -> Generator[tuple[Bytes, int, BatchColumns], None, int]:
        """Yield chunks of batches; with `flush_windows`, each with a window that contains them.

        Returns the kernel's code for the end of the scan.
        """
        lookahead = None if self._recovers else file
        window, start = np.empty(0, np.uint8), self._start_bytes
        code = SCAN_ROWS_FULL
        while code in (SCAN_ROWS_FULL, SCAN_NEED_BYTES):
            if code == SCAN_NEED_BYTES:
                position = int(scanner.position)
                # If a scan makes no progress, the next batch is larger than the window.
                is_stuck = len(window) and position == start
                size = LOG_OVERHEAD_BYTES + entry_length(window) if is_stuck else WINDOW_BYTES
                window, start = windows.window(position, size), position
            code = scanner.scan(window, start, self.log_size_bytes, lookahead)
            # Batches of several small windows are combined, because each chunk has a fixed cost.
            if flush_windows or code != SCAN_NEED_BYTES:
                for batches in scanner.drain():
                    yield window, start, batches
        return code


class ByteStreamSource:
    """The batches of a log whose bytes are passed as consecutive blocks of any size.

    By default, a batch may span blocks. With `batches_within_blocks`, a batch that spans blocks is
    invalid, and the scan ends. `log_size_bytes` is the number of bytes read so far.
    """

    def __init__(
        self,
        windows: Iterable[Bytes],
        *,
        segment_base_offset: int,
        verify_crc: bool = True,
        batches_within_blocks: bool = False,
    ) -> None:
        self._windows = iter(windows)
        self._batches_within_blocks = batches_within_blocks
        self._scanner = Scanner(segment_base_offset, verify_crc=verify_crc)
        self.log_size_bytes = 0
        self.stop: ScanStop | None = None

    def chunks(self) -> Iterator[BatchColumns]:
        window = np.empty(0, np.uint8)
        start = 0
        is_last = False
        code = SCAN_NEED_BYTES
        while code in (SCAN_ROWS_FULL, SCAN_NEED_BYTES):
            if code == SCAN_NEED_BYTES:
                is_split = int(self._scanner.position) < self.log_size_bytes
                block = (
                    None if is_split and self._batches_within_blocks else next(self._windows, None)
                )
                is_last = block is None
                if block is not None:
                    unscanned = window[int(self._scanner.position) - start :]
                    # If no bytes are left of the previous block, the new block is scanned without a
                    # copy.
                    window = np.concatenate((unscanned, block)) if len(unscanned) else block
                    start = int(self._scanner.position)
                    self.log_size_bytes += len(block)
            # The size of the log is unknown before the last block, so pass a larger size.
            log_size = self.log_size_bytes if is_last else self.log_size_bytes + 2 * INT32_MAX
            code = self._scanner.scan(window, start, log_size)
            if code != SCAN_NEED_BYTES or is_last:
                yield from self._scanner.drain()
        if code == SCAN_BAD_LENGTH:
            window = self._skip_zeros(window, start)
        if code != SCAN_END:
            self.stop = self._scanner.stop(code, InMemoryLog(window, start))

    def _skip_zeros(self, window: Bytes, start: int) -> Bytes:
        """Read blocks while they are zero-filled, if the rest of the window is zero-filled.

        Zeros up to the end of the log are preallocated, but zeros before other bytes are
        corruption. Returns the window, followed by the first block that is not zero-filled, if any.
        """
        unscanned = window[int(self._scanner.position) - start :]
        if not is_zero_filled(unscanned):
            return window
        for block in self._windows:
            self.log_size_bytes += len(block)
            if not is_zero_filled(block):
                return np.concatenate((window, block))
        return window


#: Returns the row of the first batch that is not to be read, None if all batches of a chunk are.
FirstBeyond = Callable[[BatchColumns], int | None]


class BatchObserver(Protocol):
    """Receives the batches of a log, in file order."""

    def observe(self, batches: BatchColumns) -> None:
        """Process a chunk of batches. Its memory is valid only during this call."""


class ObservedSource:
    """A `BatchSource` that also passes the batches of another source to observers.

    So a log is read only once for a build and for other purposes. The source ends before the first
    batch that `first_beyond` finds; by default, it has all batches. `cut_at_bytes` is the position
    of that batch, None without one.
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
        """Why the batches end before the end of the log, None if they do not."""
        return self._source.stop

    def chunks(self) -> Iterator[BatchColumns]:
        for chunk in self._source.chunks():
            batches = chunk
            end_row = None if self._first_beyond is None else self._first_beyond(batches)
            if end_row is not None:
                self.cut_at_bytes = int(batches.position_bytes[end_row])
                batches = BatchColumns(*(column[:end_row] for column in batches))
            if batches.rows:
                for observer in self._observers:
                    observer.observe(batches)
                yield batches
            if end_row is not None:
                return


class read_batches:  # noqa: N801, because it is used as a function, with the attribute `stop`
    """Iterate over the batches of a ``.log`` file as Arrow record batches of `BATCH_SCHEMA`.

    Parameters
    ----------
    path : path
        The ``.log`` file. Its name contains the base offset. Topic and partition come from the name
        of its directory. If it is no partition directory, the topic is empty and the partition -1.
    verify_crc : bool
        Verify the checksums of batches. If False, only batch headers are read.

    Attributes
    ----------
    stop : ScanStop or None
        After the last batch: why the batches end before the end of the file, None if they do not.
    overlap : ScanStop or None
        The first batch so far that is out of order, None if all are in order.
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
        """Why the batches end before the end of the log, None if they do not."""
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
    # Copy the columns, because the next chunk reuses their memory.
    arrays = [
        (value if isinstance(value, pa.Array) else pa.array(np.array(value))).cast(field.type)
        for field in BATCH_SCHEMA
        for value in (values[field.name],)
    ]
    return pa.record_batch(arrays, schema=BATCH_SCHEMA)
