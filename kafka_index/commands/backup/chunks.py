"""Log chunks: ranges of complete batches, read from an open log and uploaded by threads.

A chunk ends at the end of its segment at the latest. Without compaction, chunks have the maximum
size. The log cleaner rewrites compacted logs, but most batches stay unchanged. Therefore, the
batches at which chunks of a compacted log end are selected by their checksums. Unchanged batches
then form the same chunks, whatever their position in the log.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import NamedTuple, Self

import msgspec
import numpy as np

from kafka_index.commands.backup.capture import (
    CapturedLog,
    CapturedPartition,
    SkippedError,
    find_batch,
    last_offset_in,
    open_reader,
)
from kafka_index.commands.backup.low_impact_io import Bandwidth, LowImpactReader
from kafka_index.commands.backup.result import BackedUpPartition, BackupStatus
from kafka_index.core.contexts import lock_and_condition
from kafka_index.core.format.integers import INT64_MAX
from kafka_index.core.format.longs import Longs
from kafka_index.core.format.names import CLUSTER_METADATA_TOPIC
from kafka_index.core.format.records import LOG_OVERHEAD_BYTES, RECORD_BATCH_OVERHEAD_BYTES
from kafka_index.core.fs.backup.manifest import (
    MAX_CHUNK_BYTES,
    KeptFile,
    LogChunk,
    PartitionBackup,
    SeenSegment,
    content_of,
    hash_of,
    partition_folder,
)
from kafka_index.core.fs.backup.repository import Repository
from kafka_index.core.fs.store import Bytes
from kafka_index.core.kernels.headers import CONTROL_MESSAGE
from kafka_index.core.kernels.memory import Integer
from kafka_index.core.kernels.scan import (
    CHUNK_BATCHES,
    SCAN_BAD_LENGTH,
    SCAN_COLUMNS,
    SCAN_END,
    SCAN_NEED_BYTES,
    SCAN_OFFSET_OVERFLOW,
    SCAN_ROWS_FULL,
    SCAN_TORN_BATCH,
    SCAN_TORN_HEADER,
    BatchColumns,
    scan_batches,
)
from kafka_index.core.log.scan.scanner import (
    entry_length,
    in_order,
    is_zero_filled,
    read_last_offset,
)

#: Minimum size of a chunk of a compacted log; the average is 192 KiB more.
MIN_COMPACTED_CHUNK_BYTES = 64 << 10
_MEAN_EXTRA_BYTES = 192 << 10
_CRC_OFFSET = 17
# The end of the header fields from which the last offset of a batch is computed.
_OFFSET_DELTA_END = 27
_CRC_VALUES = 1 << 32
# Maximum size of chunks that are read and not yet uploaded.
_MAX_IN_FLIGHT_BYTES = 3 * MAX_CHUNK_BYTES
# Chunks are merged if there are at least this many, and if the merged chunk is at least this many
# times as large as the largest of them.
_MIN_MERGED_CHUNKS, _MIN_GROWTH = 16, 8


class BatchRange(NamedTuple):
    """Complete batches that become a chunk."""

    data: Bytes
    base_offset: int
    last_offset: int
    last_header: bytes


class LogChunkReader:
    """Reads the batches of a log from a position up to a high watermark.

    Attributes
    ----------
    position, next_offset : int
        Position and offset after the last batch that was read.
    is_below : bool
        Whether reading ended at the high watermark, before the end of the log.
    settled_offset : int
        Offset after the last batch that existed before any log was captured; 0 without such a
        batch.
    has_gap : bool
        Whether offsets are missing between batches.
    """

    def __init__(
        self,
        log: CapturedLog,
        position_bytes: int,
        next_offset: int,
        high_watermark: int | None,
        end_offset: int | None,
        bandwidth: Bandwidth,
    ) -> None:
        self._log = log
        self._high_watermark = high_watermark
        self._end_offset = end_offset
        self._bandwidth = bandwidth
        self._size_bytes = log.end_bytes
        self._columns = np.empty((SCAN_COLUMNS, CHUNK_BATCHES), np.int64)
        self.position = position_bytes
        self.next_offset = next_offset
        self.settled_offset = self.read_bytes = 0
        self.is_below = self.has_gap = self._is_finished = False
        # The scan kernel accepts offsets up to 2^31 - 1 above this base offset.
        self._limit_base_offset = log.base_offset
        self._is_at_limit = False

    def batch_ranges(self, *, is_cleaned: bool) -> Iterator[BatchRange]:
        """Yield the batches of each chunk; raises `SkippedError` if a batch is unreadable."""
        log = self._log
        if self.position >= self._size_bytes:
            return
        with open_reader(log, self._size_bytes, self._bandwidth) as file:
            while self.position < self._size_bytes and not self._is_finished:
                batches = self._read(file)
                if not batches.rows:
                    break
                yield from self._split(batches, is_cleaned=is_cleaned)

    def _split(self, batches: _Batches, *, is_cleaned: bool) -> Iterator[BatchRange]:
        is_last = self._is_finished or self._is_at_limit
        is_last |= self.position + batches.end_bytes >= self._size_bytes
        first_row = 0
        for end_row in (
            _select_chunk_ends(batches, is_last=is_last) if is_cleaned else [batches.rows]
        ):
            start_bytes, end_bytes = int(batches.starts[first_row]), int(batches.ends[end_row - 1])
            header_bytes = int(batches.starts[end_row - 1])
            base_offset, last_offset = (
                batches.base_offset(first_row),
                int(batches.last_offsets[end_row - 1]),
            )
            yield BatchRange(
                batches.buffer[start_bytes:end_bytes],
                self.next_offset if base_offset is None else base_offset,
                last_offset,
                batches.buffer[
                    header_bytes : min(header_bytes + RECORD_BATCH_OVERHEAD_BYTES, end_bytes)
                ].tobytes(),
            )
            self.next_offset = last_offset + 1
            first_row = end_row
        self.position += batches.first(first_row).end_bytes

    def _read(self, file: LowImpactReader) -> _Batches:
        """Return the batches from the position on, at most as many as one chunk can contain."""
        window_bytes = min(MAX_CHUNK_BYTES, self._size_bytes - self.position)
        while True:
            buffer = np.empty(window_bytes, np.uint8)
            read_bytes = file.read_into(self.position, buffer.data)
            self.read_bytes += read_bytes
            if read_bytes < window_bytes:
                # The broker truncated a preallocated file to the end of its batches.
                self._size_bytes = self.position + read_bytes
            batches, code = self._scan(buffer[:read_bytes])
            if batches.rows or code != SCAN_NEED_BYTES:
                break
            window_bytes = LOG_OVERHEAD_BYTES + entry_length(buffer)
        if code not in (SCAN_END, SCAN_NEED_BYTES):
            self._check_end(code, batches, buffer[:read_bytes])
        return self._limit_to_high_watermark(batches)

    def _scan(self, buffer: Bytes) -> tuple[_Batches, int]:
        column_blocks = [np.empty((len(_Batches._fields) - 1, 0), np.int64)]
        position: Integer = self.position
        next_offset = self.next_offset
        self._is_at_limit = False
        while True:
            code, position, count = scan_batches(
                buffer,
                self.position,
                self._size_bytes,
                position,
                self._limit_base_offset,
                True,  # noqa: FBT003, because kernels take arguments by position
                self._columns,
                0,
            )
            if count:
                batches = BatchColumns(*self._columns[:, :count])
                if in_order(batches, next_offset, self._end_offset) is not None:
                    raise SkippedError(
                        f"{self._log.path}: offsets overlap within the segment, or with the next "
                        "segment"
                    )
                column_blocks.append(self._copy_columns(batches, next_offset))
                next_offset = int(batches.last_offset[-1]) + 1
            if code == SCAN_OFFSET_OVERFLOW:
                base_offset = self._base_offset_in_order(
                    buffer[int(position) - self.position :], next_offset
                )
                if base_offset is not None and position == self.position:
                    self._limit_base_offset = base_offset
                    continue
                if base_offset is not None:
                    # A chunk whose offsets span 2^31 or more could not be restored as one segment.
                    self._is_at_limit, code = True, SCAN_NEED_BYTES
            if code != SCAN_ROWS_FULL:
                return _Batches(buffer, *np.concatenate(column_blocks, axis=1)), int(code)

    def _base_offset_in_order(self, buffer: Bytes, next_offset: int) -> int | None:
        """Return the base offset of a batch that is too far above the segment's base offset.

        Returns None if the batch is out of order, and thus possibly corrupt: no checksum covers the
        base offset (KAFKA-6264).
        """
        if len(buffer) < _OFFSET_DELTA_END:
            return None
        last_offset = read_last_offset(buffer)
        is_in_order = last_offset >= next_offset
        is_in_order &= self._end_offset is None or last_offset < self._end_offset
        next_batch = buffer[LOG_OVERHEAD_BYTES + entry_length(buffer) :]
        if len(next_batch) >= _OFFSET_DELTA_END:
            is_in_order &= read_last_offset(next_batch) > last_offset
        return int.from_bytes(buffer[:8].tobytes(), "big", signed=True) if is_in_order else None

    def _copy_columns(self, batches: BatchColumns, next_offset: int) -> Longs:
        """Copy the columns that `_Batches` needs, because the next scan reuses the arrays."""
        is_old = batches.control_type == CONTROL_MESSAGE
        previous_offsets = np.concatenate(([next_offset - 1], batches.last_offset[:-1]))
        self.has_gap |= bool(((batches.base_offset != previous_offsets + 1) & ~is_old).any())
        starts = batches.position_bytes - self.position
        ends = starts + batches.size_bytes
        return np.stack([starts, ends, batches.base_offset, batches.last_offset, is_old])

    def _limit_to_high_watermark(self, batches: _Batches) -> _Batches:
        if self._high_watermark is not None:
            rows_below = int(np.searchsorted(batches.last_offsets, self._high_watermark))
            if rows_below < batches.rows:
                self._is_finished = self.is_below = True
                batches = batches.first(rows_below)
        settled_end = self._log.settled_bytes - self.position
        count = int(np.searchsorted(batches.ends, settled_end, side="right"))
        if count:
            self.settled_offset = int(batches.last_offsets[count - 1]) + 1
        return batches

    def _check_end(self, code: int, batches: _Batches, buffer: Bytes) -> None:
        """End at an incomplete batch, zeros or the high watermark; else raise `SkippedError`."""
        end_bytes = batches.end_bytes
        remaining_bytes = buffer[end_bytes:]
        self._is_finished = True
        is_last = self._end_offset is None
        if code in (SCAN_TORN_HEADER, SCAN_TORN_BATCH) and is_last:
            return
        if code in (SCAN_TORN_HEADER, SCAN_BAD_LENGTH) and is_zero_filled(remaining_bytes):
            return
        if is_last and len(remaining_bytes) >= RECORD_BATCH_OVERHEAD_BYTES:
            high_watermark = self._high_watermark
            base = int.from_bytes(remaining_bytes[:8].tobytes(), "big", signed=True)
            if high_watermark is not None and base >= high_watermark:
                self.is_below = True
                return
        raise SkippedError(
            f"{self._log.path}: corrupt batch at byte {self.position + end_bytes}, before the end "
            "of the log",
            is_fault=True,
        )


class _Batches(NamedTuple):
    """Batches in a buffer: their positions, and their first and last offsets.

    `is_old` is not 0 for v0 and v1 messages, which contain only the last offset.
    """

    buffer: Bytes
    starts: Longs
    ends: Longs
    base_offsets: Longs
    last_offsets: Longs
    is_old: Longs

    @property
    def rows(self) -> int:
        return len(self.starts)

    @property
    def end_bytes(self) -> int:
        """Position after the last batch; 0 without batches."""
        return int(self.ends[-1]) if self.rows else 0

    def base_offset(self, row: int) -> int | None:
        """Return the first offset of a batch; None for v0 and v1 messages."""
        return None if self.is_old[row] else int(self.base_offsets[row])

    def first(self, count: int) -> _Batches:
        return _Batches(self.buffer, *(column[:count] for column in self[1:]))


def _select_chunk_ends(batches: _Batches, *, is_last: bool) -> list[int]:
    """Return the rows at which chunks end, exclusive; the checksums of batches select these rows.

    Larger batches are more likely to be selected. Unless `is_last`, the batches after the last
    selected batch are left for the next chunk. If no batch is selected, all batches form one chunk.
    """
    starts, ends = batches.starts, batches.ends
    crcs = np.zeros(len(starts), np.int64)
    for number in range(4):
        positions = np.minimum(starts + _CRC_OFFSET + number, len(batches.buffer) - 1)
        crcs = crcs << 8 | batches.buffer[positions]
    is_selected = crcs < (ends - starts) * (_CRC_VALUES // _MEAN_EXTRA_BYTES)
    end_rows = []
    start_bytes = 0
    for row in np.flatnonzero(is_selected).tolist():
        if int(ends[row]) - start_bytes >= MIN_COMPACTED_CHUNK_BYTES:
            end_rows.append(row + 1)
            start_bytes = int(ends[row])
    if (is_last or not end_rows) and (not end_rows or end_rows[-1] < len(starts)):
        end_rows.append(len(starts))
    return end_rows


def count_small_chunks(chunks: Sequence[LogChunk], base_offset: int) -> int:
    """Return how many chunks at the end should be merged into one chunk; 0 for no merge.

    The chunks to merge start at or after `base_offset`, fit into one chunk, and are each much
    smaller than the merged chunk. A byte is thus stored again only a few times. A log with many
    small appends has some dozens of chunks instead of one chunk per backup.
    """
    small_chunks = total_bytes = largest_bytes = 0
    for count, chunk in enumerate(reversed(chunks), 1):
        total_bytes += chunk.size_bytes
        largest_bytes = max(largest_bytes, chunk.size_bytes)
        if chunk.base_offset < base_offset or total_bytes > MAX_CHUNK_BYTES:
            break
        if count >= _MIN_MERGED_CHUNKS and total_bytes >= _MIN_GROWTH * largest_bytes:
            small_chunks = count
    return small_chunks


def has_chunk(log: CapturedLog, position_bytes: int, chunk: LogChunk, bandwidth: Bandwidth) -> bool:
    """Return whether a log contains a chunk at a position; raises `SkippedError` if unreadable."""
    return read_chunk(log, position_bytes, chunk, bandwidth) is not None


def read_chunk(
    log: CapturedLog, position_bytes: int, chunk: LogChunk, bandwidth: Bandwidth
) -> Bytes | None:
    """Return the bytes of a chunk at a position of a log; None if the log has other bytes.

    Raises `SkippedError` if the log is unreadable.
    """
    end = position_bytes + chunk.size_bytes
    if end > log.size_bytes:
        return None
    data = np.empty(chunk.size_bytes, np.uint8)
    with open_reader(log, end, bandwidth) as file:
        read_bytes = file.read_into(position_bytes, data.data)
    return data if read_bytes == chunk.size_bytes and hash_of(data.data) == chunk.sha256 else None


class ChunkUploader:
    """Uploads chunks to a repository in threads; a context manager.

    `put` waits while too many bytes are waiting for their upload. The futures that `put` returns
    raise the errors of uploads.
    """

    def __init__(self, repository: Repository, threads: int) -> None:
        self._repository = repository
        self._executor = ThreadPoolExecutor(threads, "backup")
        self._lock, self._capacity = lock_and_condition()
        self._in_flight = 0
        self._failure: BaseException | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._executor.shutdown(cancel_futures=True)

    def put(
        self, folder: str, existing_names: Collection[str], batch_range: BatchRange
    ) -> Future[tuple[LogChunk, int]]:
        """Upload a chunk unless its object exists; return a future of the chunk and its new bytes.

        Raises the error of an earlier upload.
        """
        size = len(batch_range.data)
        with self._lock:
            self._capacity.wait_for(
                lambda: not self._in_flight or self._in_flight + size <= _MAX_IN_FLIGHT_BYTES
            )
            if self._failure is not None:
                raise self._failure
            self._in_flight += size
        future = self._executor.submit(self._put_chunk, folder, existing_names, batch_range)
        future.add_done_callback(partial(self._complete_upload, size))
        return future

    def _put_chunk(
        self, folder: str, existing_names: Collection[str], batch_range: BatchRange
    ) -> tuple[LogChunk, int]:
        data = batch_range.data.data
        chunk = LogChunk(batch_range.base_offset, batch_range.last_offset, *content_of(data))
        if chunk.object_name in existing_names:
            return chunk, 0
        put_object(self._repository, f"{folder}/{chunk.object_name}", data)
        return chunk, len(data)

    def _complete_upload(self, size_bytes: int, future: Future[tuple[LogChunk, int]]) -> None:
        with self._lock:
            self._in_flight -= size_bytes
            if not future.cancelled():
                self._failure = self._failure or future.exception()
            self._capacity.notify_all()


def put_object(repository: Repository, path: str, data: bytes | memoryview) -> None:
    """Upload an object whose name contains its hash; replace a damaged object of the same name."""
    if not repository.put(path, data):
        repository.put_again(path, data)


class PartitionUploader:
    """Stores a captured partition; `earlier_backup` is the partition in an earlier backup.

    If `high_watermark` is None, all batches are stored. The caller adds the files that are stored
    unchanged to `files`.
    """

    def __init__(
        self,
        captured: CapturedPartition,
        earlier_backup: PartitionBackup | None,
        bandwidth: Bandwidth,
        *,
        is_compacted: bool,
        high_watermark: int | None = None,
    ) -> None:
        self.captured = captured
        self.folder = partition_folder(captured.partition, captured.topic_id)
        self.files: list[KeptFile] = []
        #: Names of damaged objects whose bytes are no longer in the logs.
        self.lost_objects: set[str] = set()
        self.new_bytes = self._read_bytes = 0
        self._earlier = earlier_backup
        self._bandwidth = bandwidth
        self._is_compacted = is_compacted
        self._high_watermark = high_watermark
        self._logs = captured.logs
        self._earlier_segments = (
            {segment.base_offset: segment for segment in earlier_backup.segments}
            if earlier_backup
            else {}
        )
        self._earlier_header = earlier_backup.last_header if earlier_backup else None
        self._last_header: bytes | None = None
        self._reused_chunks: list[LogChunk] = []
        self._uploads: list[Future[tuple[LogChunk, int]]] = []
        self._segments: list[SeenSegment] = []
        self._end_offset = 0
        self._settled_offset = earlier_backup.end_offset if earlier_backup else 0
        self._has_gap = self._is_truncated = False

    def keep(self, earlier_backup: PartitionBackup) -> None:
        """Reuse all chunks of an earlier backup, because the partition is unchanged."""
        self._high_watermark = earlier_backup.high_watermark
        self._reused_chunks, self._segments = [*earlier_backup.chunks], [*earlier_backup.segments]
        self._end_offset = earlier_backup.end_offset
        self._last_header = self._earlier_header
        self._has_gap = earlier_backup.is_compacted

    def read(self, put_chunk: Callable[[BatchRange], Future[tuple[LogChunk, int]]]) -> None:
        """Read and upload new batches; raises `SkippedError` if a batch cannot be read."""
        self._put_chunk = put_chunk
        next_offset = self._read_cleaned() if self._is_compacted else self._read_plain()
        self._end_offset = next_offset
        if self._logs and not self._is_truncated:
            # If the last log is empty, its base offset is the log end offset.
            base_offset = self._logs[-1].base_offset
            if self._high_watermark is not None:
                base_offset = min(base_offset, self._high_watermark)
            self._end_offset = max(next_offset, base_offset)

    def put_damaged_again(
        self, damaged_names: Collection[str], put_object: Callable[[str, memoryview], None]
    ) -> None:
        """Upload again the chunks of damaged objects, if the logs still contain the batches."""
        for log, end_offset in zip(
            self._logs, [*self.captured.base_offsets[1:], INT64_MAX], strict=True
        ):
            position = 0
            for chunk in self._reused_chunks:
                if not log.base_offset <= chunk.base_offset < end_offset:
                    continue
                if chunk.object_name in damaged_names:
                    data = None
                    with suppress(SkippedError):
                        data = read_chunk(log, position, chunk, self._bandwidth)
                    if data is None:
                        self.lost_objects.add(chunk.object_name)
                    else:
                        put_object(f"{self.folder}/{chunk.object_name}", data.data)
                        self.new_bytes += chunk.size_bytes
                position += chunk.size_bytes

    def finish(
        self, *, is_leader: bool | None, start_offset: int, cleaner_offset: int | None
    ) -> PartitionBackup:
        captured, partition = self.captured, self.captured.partition
        chunks = [*self._reused_chunks]
        for upload in self._uploads:
            chunk, new_bytes = upload.result()
            chunks.append(chunk)
            self.new_bytes += new_bytes
        base_offsets = captured.base_offsets
        first_base_offset = base_offsets[0] if base_offsets else 0
        # Reused chunks of unchanged logs may have higher offsets than new chunks of cleaned logs.
        chunks = sorted(
            (chunk for chunk in chunks if chunk.last_offset >= first_base_offset),
            key=lambda chunk: chunk.base_offset,
        )
        snapshot = captured.snapshot
        if chunks and chunks[0].base_offset < first_base_offset:
            # The snapshot at `first_base_offset` contains producers of batches in the first chunk.
            snapshot = None
        end_offset = self._end_offset
        backup = PartitionBackup(
            topic=partition.topic,
            partition=partition.partition,
            topic_id=captured.topic_id,
            directory=captured.directory,
            is_leader=is_leader,
            is_compacted=self._is_compacted or self._has_gap,
            start_offset=min(max(start_offset, first_base_offset), end_offset),
            end_offset=end_offset,
            high_watermark=end_offset if self._high_watermark is None else self._high_watermark,
            settled_offset=min(self._settled_offset, end_offset),
            epochs=tuple(
                (epoch, start_offset)
                for epoch, start_offset in captured.epochs
                if start_offset <= end_offset
            ),
            cleaner_offset=cleaner_offset,
            snapshot=snapshot,
            chunks=tuple(chunks),
            files=tuple(self.files),
            segments=tuple(self._segments),
            last_header=self._last_header,
        )
        if (
            partition.topic != CLUSTER_METADATA_TOPIC
            and len(backup.segments) == len(base_offsets)
            and len(backup.epochs) == len(captured.epochs)
            and snapshot is captured.snapshot
        ):
            # The manifest contains everything that an inspection finds.
            backup = msgspec.structs.replace(backup, seen_directory=captured.seen_directory)
        return backup

    def report_row(self, backup: PartitionBackup) -> BackedUpPartition:
        return BackedUpPartition(
            backup.topic,
            backup.partition,
            self.captured.path,
            BackupStatus.STORED if self.new_bytes else BackupStatus.UNCHANGED,
            None,
            backup.topic_id,
            backup.start_offset,
            backup.end_offset,
            backup.high_watermark,
            sum(chunk.size_bytes for chunk in backup.chunks),
            self.new_bytes,
            self._read_bytes,
            len(backup.chunks),
        )

    def _read_plain(self) -> int:
        """Read new batches; if the log lacks the last stored batch, reuse only leading chunks."""
        logs, earlier_backup = self._logs, self._earlier
        first_log, position, next_offset = 0, 0, logs[0].base_offset if logs else 0
        if earlier_backup is not None and self._earlier_header is not None and logs:
            last_batch_end = self._find_last_batch(self._earlier_header)
            if last_batch_end is not None:
                first_log, position = last_batch_end
                self._reused_chunks = [*earlier_backup.chunks]
                self._last_header = self._earlier_header
                next_offset = last_offset_in(self._last_header) + 1
                self._has_gap = earlier_backup.is_compacted
                if not self._has_gap:
                    position, next_offset = self._drop_small_chunks(
                        logs[first_log], position, next_offset
                    )
            else:
                # The log was truncated below stored batches, and other batches were appended.
                self._settled_offset = 0
                first_log, position, next_offset = self._reuse_first_chunks(earlier_backup)
        for log in logs[:first_log]:
            self._add_segment(log, log.end_bytes)
        for number in range(first_log, len(logs)):
            log = logs[number]
            earlier_segment = self._earlier_segments.get(log.base_offset)
            if (
                earlier_segment is not None
                and log.is_stored_as(earlier_segment)
                and position == earlier_segment.covered_bytes
            ):
                self._add_segment(log, position)
            else:
                next_offset = self._read_log(number, position, next_offset)
                if self._is_truncated:
                    break
            position = 0
        return next_offset

    def _drop_small_chunks(
        self, log: CapturedLog, position: int, next_offset: int
    ) -> tuple[int, int]:
        """Drop small chunks at the end of a log, so that their batches are read as one chunk.

        Returns the position from which to read, and the next offset at that position. If one of the
        chunks differs from the log, or is not below the high watermark, all are kept.
        """
        count = count_small_chunks(self._reused_chunks, log.base_offset)
        small_chunks = self._reused_chunks[len(self._reused_chunks) - count :]
        start = position - sum(chunk.size_bytes for chunk in small_chunks)
        is_below_high_watermark = (
            self._high_watermark is None or next_offset <= self._high_watermark
        )
        if not small_chunks or start < 0 or not is_below_high_watermark:
            return position, next_offset
        chunk_position = start
        for chunk in small_chunks:
            self._read_bytes += chunk.size_bytes
            try:
                is_in_log = has_chunk(log, chunk_position, chunk, self._bandwidth)
            except SkippedError:
                is_in_log = False
            if not is_in_log:
                return position, next_offset
            chunk_position += chunk.size_bytes
        del self._reused_chunks[-count:]
        return start, small_chunks[0].base_offset

    def _reuse_first_chunks(self, earlier_backup: PartitionBackup) -> tuple[int, int, int]:
        """Reuse the leading chunks that the logs still contain, except the last of these chunks.

        Returns the index of the log in which the reused chunks end, their end position, and the
        next offset. The last chunk is read again, because the header of its last batch is needed.
        """
        logs = self._logs
        ends = [(0, 0, logs[0].base_offset)]
        number = position = 0
        for chunk in earlier_backup.chunks:
            if chunk.last_offset < logs[0].base_offset:
                continue
            while number + 1 < len(logs) and logs[number + 1].base_offset <= chunk.base_offset:
                number, position = number + 1, 0
            if not has_chunk(logs[number], position, chunk, self._bandwidth):
                break
            self._read_bytes += chunk.size_bytes
            position += chunk.size_bytes
            self._reused_chunks.append(chunk)
            ends.append((number, position, chunk.last_offset + 1))
        if self._reused_chunks:
            del self._reused_chunks[-1], ends[-1]
        return ends[-1]

    def _find_last_batch(self, header: bytes) -> tuple[int, int] | None:
        """Return the index of the log with the last stored batch, and the batch's end position."""
        last_offset = last_offset_in(header)
        candidates = [
            number for number, log in enumerate(self._logs) if log.base_offset <= last_offset
        ]
        if not candidates:
            return None
        log = self._logs[candidates[-1]]
        earlier_segment = self._earlier_segments.get(log.base_offset)
        covered_bytes = earlier_segment.covered_bytes if earlier_segment is not None else 0
        if log.is_same_file(earlier_segment):
            return candidates[-1], covered_bytes
        end_bytes = find_batch(log, last_offset, header, covered_bytes, self._bandwidth)
        return None if end_bytes is None else (candidates[-1], end_bytes)

    def _read_cleaned(self) -> int:
        """Read changed logs: cleaned logs completely, grown logs after the last stored batch."""
        next_offset = self._logs[0].base_offset if self._logs else 0
        for number, log in enumerate(self._logs):
            earlier_segment = self._earlier_segments.get(log.base_offset)
            next_base_offset = self._next_base_offset(number)
            chunks = self._list_chunks(log.base_offset)
            if (
                chunks
                and next_base_offset is not None
                and chunks[-1].last_offset >= next_base_offset
            ):
                chunks = []
            position = 0
            next_offset = max(next_offset, log.base_offset)
            if log.is_stored_as(earlier_segment) and earlier_segment is not None:
                self._reused_chunks += chunks
                next_offset = chunks[-1].last_offset + 1 if chunks else next_offset
                self._add_segment(log, earlier_segment.covered_bytes)
                continue
            if chunks and earlier_segment is not None:
                end_bytes = self._find_append_position(log, earlier_segment, chunks[-1].last_offset)
                if end_bytes is not None:
                    self._reused_chunks += chunks
                    position, next_offset = end_bytes, chunks[-1].last_offset + 1
            next_offset = self._read_log(number, position, next_offset)
            if self._is_truncated:
                break
        self._last_header = self._last_header or self._earlier_header
        return next_offset

    def _find_append_position(
        self, log: CapturedLog, earlier_segment: SeenSegment, last_offset: int
    ) -> int | None:
        """Return the end of the stored batches if the log has only grown since then, else None."""
        header = self._earlier_header
        if (log.device, log.inode) != (earlier_segment.device, earlier_segment.inode) or not header:
            return None
        if last_offset_in(header) != last_offset:
            return None
        end_bytes = find_batch(
            log, last_offset, header, earlier_segment.covered_bytes, self._bandwidth
        )
        return end_bytes if end_bytes == earlier_segment.covered_bytes else None

    def _list_chunks(self, base_offset: int) -> list[LogChunk]:
        """Return the chunks in the earlier backup that belong to a segment."""
        if self._earlier is None or base_offset not in self._earlier_segments:
            return []
        end = min(
            (
                next_base_offset
                for next_base_offset in self._earlier_segments
                if next_base_offset > base_offset
            ),
            default=INT64_MAX,
        )
        return [chunk for chunk in self._earlier.chunks if base_offset <= chunk.base_offset < end]

    def _read_log(self, number: int, position: int, next_offset: int) -> int:
        """Read a log from a position on, and upload its chunks; return the offset after them."""
        log = self._logs[number]
        reader = LogChunkReader(
            log,
            position,
            max(next_offset, log.base_offset),
            self._high_watermark,
            self._next_base_offset(number),
            self._bandwidth,
        )
        for batch_range in reader.batch_ranges(is_cleaned=self._is_compacted):
            self._uploads.append(self._put_chunk(batch_range))
            self._last_header = batch_range.last_header
        self._read_bytes += reader.read_bytes
        self._settled_offset = max(self._settled_offset, reader.settled_offset)
        self._has_gap |= reader.has_gap
        self._is_truncated = reader.is_below
        self._add_segment(log, reader.position, is_done=not reader.is_below)
        return reader.next_offset

    def _next_base_offset(self, number: int) -> int | None:
        """Return the base offset of the next log; None for the last log."""
        return self._logs[number + 1].base_offset if number + 1 < len(self._logs) else None

    def _add_segment(self, log: CapturedLog, covered_bytes: int, *, is_done: bool = True) -> None:
        """Add a log to the segments with which the next backup compares the files."""
        # A ctime of 0 never matches: an append to a preallocated log may keep its size and ctime.
        ctime_ns = 0 if log.is_preallocated else log.ctime_ns
        file = log.device, log.inode, ctime_ns, log.end_bytes
        self._segments.append(SeenSegment(log.base_offset, *file, covered_bytes, is_done))
