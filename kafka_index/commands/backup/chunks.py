"""Log chunks: ranges of complete batches, read from an open log and uploaded by threads.

A chunk ends at the end of its segment at the latest. Without compaction, chunks have the maximum
size. The log cleaner rewrites compacted logs, but most batches stay unchanged. So chunks of a
compacted log end after batches that are selected by their checksums, and unchanged batches form the
same chunks at any position.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
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
from kafka_index.core.log.scan.scanner import entry_length, in_order, last_offset_of, only_zeros

#: Minimum size of a chunk of a compacted log; the average is 192 KiB more.
MIN_CHOSEN_BYTES = 64 << 10
_CHOSEN_BYTES = 192 << 10
_CRC_AT = 17
# The end of the header fields from which the last offset of a batch is computed.
_OFFSET_DELTA_END = 27
_CRC_VALUES = 1 << 32
# Maximum size of chunks that are read and not yet uploaded.
_MOST_IN_FLIGHT_BYTES = 3 * MAX_CHUNK_BYTES
# Small chunks are merged if there are this many, and the result is larger by this factor.
_MANY_CHUNKS, _GROWTH = 16, 8


class BatchRange(NamedTuple):
    """Complete batches that become a chunk."""

    data: Bytes
    base_offset: int
    last_offset: int
    last_header: bytes


class LogChunkReader:
    """Reads the valid batches of a log from a position up to a high watermark.

    Attributes
    ----------
    position, next_offset : int
        Position and offset after the batches that were read.
    is_below : bool
        The batches ended at the high watermark, not at the end of the log.
    settled_offset : int
        End of the batches that existed before any log was captured; 0 if there are none.
    has_gap : bool
        Offsets are missing between batches.
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
        self.is_below = self.has_gap = self._is_over = False
        # The kernel accepts offsets up to 2^31 - 1 above this base offset.
        self._limit_base_offset = log.base_offset
        self._is_at_limit = False

    def batch_ranges(self, *, is_cleaned: bool) -> Iterator[BatchRange]:
        """Yield the batches; raises `SkippedError` if they are corrupt or cannot be read."""
        log = self._log
        if self.position >= self._size_bytes:
            return
        with open_reader(log, self._size_bytes, self._bandwidth) as file:
            while self.position < self._size_bytes and not self._is_over:
                found = self._read(file)
                if not found.rows:
                    break
                yield from self._split(found, is_cleaned=is_cleaned)

    def _split(self, batches: _Batches, *, is_cleaned: bool) -> Iterator[BatchRange]:
        is_last = self._is_over or self._is_at_limit
        is_last |= self.position + batches.end_bytes >= self._size_bytes
        start = 0
        for end in _chosen_ends(batches, is_last=is_last) if is_cleaned else [batches.rows]:
            first, last = int(batches.starts[start]), int(batches.ends[end - 1])
            header = int(batches.starts[end - 1])
            base, last_offset = batches.base_of(start), int(batches.lasts[end - 1])
            yield BatchRange(
                batches.buffer[first:last],
                self.next_offset if base is None else base,
                last_offset,
                batches.buffer[header : min(header + RECORD_BATCH_OVERHEAD_BYTES, last)].tobytes(),
            )
            self.next_offset = last_offset + 1
            start = end
        self.position += batches.first(start).end_bytes

    def _read(self, file: LowImpactReader) -> _Batches:
        """Return the batches from the position on, at most as many as one chunk holds."""
        wanted = min(MAX_CHUNK_BYTES, self._size_bytes - self.position)
        while True:
            buffer = np.empty(wanted, np.uint8)
            filled = file.read_into(self.position, buffer.data)
            self.read_bytes += filled
            if filled < wanted:
                # A preallocated file was truncated to the end of its batches.
                self._size_bytes = self.position + filled
            found, code = self._scan(buffer[:filled])
            if found.rows or code != SCAN_NEED_BYTES:
                break
            wanted = LOG_OVERHEAD_BYTES + entry_length(buffer)
        if code not in (SCAN_END, SCAN_NEED_BYTES):
            self._stop(code, found, buffer[:filled])
        return self._below_high_watermark(found)

    def _scan(self, buffer: Bytes) -> tuple[_Batches, int]:
        found = [np.empty((len(_Batches._fields) - 1, 0), np.int64)]
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
                        f"{self._log.path}: offsets overlap within the log, or with the next log"
                    )
                found.append(self._noted(batches, next_offset))
                next_offset = int(batches.last_offset[-1]) + 1
            if code == SCAN_OFFSET_OVERFLOW:
                far = self._far_offset(buffer[int(position) - self.position :], next_offset)
                if far is not None and position == self.position:
                    self._limit_base_offset = far
                    continue
                if far is not None:
                    # A chunk whose offsets span 2^31 or more could not be restored as one segment.
                    self._is_at_limit, code = True, SCAN_NEED_BYTES
            if code != SCAN_ROWS_FULL:
                return _Batches(buffer, *np.concatenate(found, axis=1)), int(code)

    def _far_offset(self, rest: Bytes, next_offset: int) -> int | None:
        """Return the base offset of a batch that is only too far from the segment's base offset.

        None if the batch is out of order: no checksum covers the offset (KAFKA-6264).
        """
        if len(rest) < _OFFSET_DELTA_END:
            return None
        last_offset = last_offset_of(rest)
        is_in_order = last_offset >= next_offset
        is_in_order &= self._end_offset is None or last_offset < self._end_offset
        following = rest[LOG_OVERHEAD_BYTES + entry_length(rest) :]
        if len(following) >= _OFFSET_DELTA_END:
            is_in_order &= last_offset_of(following) > last_offset
        return int.from_bytes(rest[:8].tobytes(), "big", signed=True) if is_in_order else None

    def _noted(self, batches: BatchColumns, next_offset: int) -> Longs:
        """Copy the needed columns of batches, because the buffers are reused."""
        is_old = batches.control_type == CONTROL_MESSAGE
        before = np.concatenate(([next_offset - 1], batches.last_offset[:-1]))
        self.has_gap |= bool(((batches.base_offset != before + 1) & ~is_old).any())
        starts = batches.position_bytes - self.position
        ends = starts + batches.size_bytes
        return np.stack([starts, ends, batches.base_offset, batches.last_offset, is_old])

    def _below_high_watermark(self, batches: _Batches) -> _Batches:
        if self._high_watermark is not None:
            kept = int(np.searchsorted(batches.lasts, self._high_watermark))
            if kept < batches.rows:
                self._is_over = self.is_below = True
                batches = batches.first(kept)
        settled = self._log.settled_bytes - self.position
        count = int(np.searchsorted(batches.ends, settled, side="right"))
        if count:
            self.settled_offset = int(batches.lasts[count - 1]) + 1
        return batches

    def _stop(self, code: int, batches: _Batches, buffer: Bytes) -> None:
        """End the log at a batch that is being written, or at zeros; raise if it is corrupt."""
        at = batches.end_bytes
        rest = buffer[at:]
        self._is_over = True
        is_last = self._end_offset is None
        if code in (SCAN_TORN_HEADER, SCAN_TORN_BATCH) and is_last:
            return
        if code in (SCAN_TORN_HEADER, SCAN_BAD_LENGTH) and only_zeros(rest):
            return
        if is_last and len(rest) >= RECORD_BATCH_OVERHEAD_BYTES:
            high_watermark = self._high_watermark
            base = int.from_bytes(rest[:8].tobytes(), "big", signed=True)
            if high_watermark is not None and base >= high_watermark:
                self.is_below = True
                return
        raise SkippedError(
            f"{self._log.path}: at byte {self.position + at}: corrupt batch before the end of "
            "the log",
            is_fault=True,
        )


class _Batches(NamedTuple):
    """Batches in a buffer: their positions, and their first and last offsets.

    `is_old` is not 0 for v0 and v1 messages, which contain only the last offset.
    """

    buffer: Bytes
    starts: Longs
    ends: Longs
    bases: Longs
    lasts: Longs
    is_old: Longs

    @property
    def rows(self) -> int:
        return len(self.starts)

    @property
    def end_bytes(self) -> int:
        """Position after the last batch; 0 if there is none."""
        return int(self.ends[-1]) if self.rows else 0

    def base_of(self, row: int) -> int | None:
        """Return the first offset of a batch; None if the batch does not contain it."""
        return None if self.is_old[row] else int(self.bases[row])

    def first(self, count: int) -> _Batches:
        return _Batches(self.buffer, *(column[:count] for column in self[1:]))


def _chosen_ends(batches: _Batches, *, is_last: bool) -> list[int]:
    """Return the numbers of the batches after which chunks end, selected by checksum.

    Larger batches are more likely to be selected. Without `is_last`, the batches after the last
    selected one belong to the next chunk, unless none is selected.
    """
    starts, ends = batches.starts, batches.ends
    crcs = np.zeros(len(starts), np.int64)
    for number in range(4):
        at = np.minimum(starts + _CRC_AT + number, len(batches.buffer) - 1)
        crcs = crcs << 8 | batches.buffer[at]
    chosen = crcs < (ends - starts) * (_CRC_VALUES // _CHOSEN_BYTES)
    result = []
    begin = 0
    for row in np.flatnonzero(chosen).tolist():
        if int(ends[row]) - begin >= MIN_CHOSEN_BYTES:
            result.append(row + 1)
            begin = int(ends[row])
    if (is_last or not result) and (not result or result[-1] < len(starts)):
        result.append(len(starts))
    return result


def count_small_chunks(chunks: Sequence[LogChunk], base_offset: int) -> int:
    """Return how many of the last chunks should be merged into one; 0 for none.

    They start at or after a base offset, fit into one chunk, and are much smaller than their sum.
    So a byte is stored again only a few times, and a log with many small appends has some dozens of
    chunks instead of one per backup.
    """
    found = total = largest = 0
    for count, chunk in enumerate(reversed(chunks), 1):
        total += chunk.size_bytes
        largest = max(largest, chunk.size_bytes)
        if chunk.base_offset < base_offset or total > MAX_CHUNK_BYTES:
            break
        if count >= _MANY_CHUNKS and total >= _GROWTH * largest:
            found = count
    return found


def has_chunk(log: CapturedLog, position_bytes: int, chunk: LogChunk, bandwidth: Bandwidth) -> bool:
    """Return whether a log contains a chunk at a position; raises `SkippedError` if unreadable."""
    return read_chunk(log, position_bytes, chunk, bandwidth) is not None


def read_chunk(
    log: CapturedLog, position_bytes: int, chunk: LogChunk, bandwidth: Bandwidth
) -> Bytes | None:
    """Return the bytes of a chunk at a position of a log; None if the log has other bytes there.

    Raises `SkippedError` if the log is unreadable.
    """
    end = position_bytes + chunk.size_bytes
    if end > log.size_bytes:
        return None
    data = np.empty(chunk.size_bytes, np.uint8)
    with open_reader(log, end, bandwidth) as file:
        filled = file.read_into(position_bytes, data.data)
    return data if filled == chunk.size_bytes and hash_of(data.data) == chunk.sha256 else None


class ChunkUploader:
    """Uploads chunks to a repository in threads; a context manager.

    The bytes that are read and not yet uploaded are limited. Futures raise failures.
    """

    def __init__(self, repository: Repository, threads: int) -> None:
        self._repository = repository
        self._executor = ThreadPoolExecutor(threads, "backup")
        self._free = threading.Condition()
        self._in_flight = 0
        self._failed: BaseException | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._executor.shutdown(cancel_futures=True)

    def put(
        self, folder: str, known: Collection[str], batch_range: BatchRange
    ) -> Future[tuple[LogChunk, int]]:
        """Upload a chunk unless its object is known; return a future of chunk and new bytes.

        Raises the failure of an earlier chunk.
        """
        size = len(batch_range.data)
        with self._free:
            self._free.wait_for(
                lambda: not self._in_flight or self._in_flight + size <= _MOST_IN_FLIGHT_BYTES
            )
            if self._failed is not None:
                raise self._failed
            self._in_flight += size
        future = self._executor.submit(self._put, folder, known, batch_range)
        future.add_done_callback(lambda done: self._forget(size, done))
        return future

    def _put(
        self, folder: str, known: Collection[str], batch_range: BatchRange
    ) -> tuple[LogChunk, int]:
        data = batch_range.data.data
        chunk = LogChunk(batch_range.base_offset, batch_range.last_offset, *content_of(data))
        if chunk.object_name in known:
            return chunk, 0
        put_object(self._repository, f"{folder}/{chunk.object_name}", data)
        return chunk, len(data)

    def _forget(self, size: int, done: Future[tuple[LogChunk, int]]) -> None:
        with self._free:
            self._in_flight -= size
            if not done.cancelled():
                self._failed = self._failed or done.exception()
            self._free.notify_all()


def put_object(repository: Repository, path: str, data: bytes | memoryview) -> None:
    """Upload an object whose name contains its hash; replace a damaged object of that name."""
    if not repository.put(path, data):
        repository.put_again(path, data)


class PartitionUploader:
    """Stores a captured partition; `earlier` is the partition in an earlier backup.

    `high_watermark` is None if the log ends are committed. `files` are stored unchanged.
    """

    def __init__(
        self,
        captured: CapturedPartition,
        earlier: PartitionBackup | None,
        bandwidth: Bandwidth,
        *,
        is_compacted: bool,
        high_watermark: int | None = None,
    ) -> None:
        self.captured = captured
        self.folder = partition_folder(captured.partition, captured.topic_id)
        self.files: list[KeptFile] = []
        #: Names of damaged objects that cannot be stored again.
        self.lost_objects: set[str] = set()
        self.new_bytes = self._read_bytes = 0
        self._earlier = earlier
        self._bandwidth = bandwidth
        self._is_compacted = is_compacted
        self._high_watermark = high_watermark
        self._logs = captured.logs
        self._seen = {each.base_offset: each for each in earlier.segments} if earlier else {}
        self._earlier_header = earlier.last_header if earlier else None
        self._last_header: bytes | None = None
        self._kept: list[LogChunk] = []
        self._puts: list[Future[tuple[LogChunk, int]]] = []
        self._segments: list[SeenSegment] = []
        self._end_offset = 0
        self._settled_offset = earlier.end_offset if earlier else 0
        self._has_gap = self._is_truncated = False

    def keep(self, known: PartitionBackup) -> None:
        """Use the chunks of an earlier backup, because the partition is unchanged."""
        self._high_watermark = known.high_watermark
        self._kept, self._segments = [*known.chunks], [*known.segments]
        self._end_offset = known.end_offset
        self._last_header = self._earlier_header
        self._has_gap = known.is_compacted

    def read(self, put: Callable[[BatchRange], Future[tuple[LogChunk, int]]]) -> None:
        """Read and upload new batches; raises `SkippedError` if they cannot be read."""
        self._put = put
        next_offset = self._read_cleaned() if self._is_compacted else self._read_plain()
        self._end_offset = next_offset
        if self._logs and not self._is_truncated:
            # The base offset of an empty last log is the log end offset.
            base = self._logs[-1].base_offset
            if self._high_watermark is not None:
                base = min(base, self._high_watermark)
            self._end_offset = max(next_offset, base)

    def put_damaged_again(
        self, damaged: Collection[str], put: Callable[[str, memoryview], None]
    ) -> None:
        """Upload damaged chunks again, given by object name, if the logs still contain them."""
        for log, end in zip(self._logs, [*self.captured.bases[1:], INT64_MAX], strict=True):
            position = 0
            for chunk in self._kept:
                if not log.base_offset <= chunk.base_offset < end:
                    continue
                if chunk.object_name in damaged:
                    data = None
                    with suppress(SkippedError):
                        data = read_chunk(log, position, chunk, self._bandwidth)
                    if data is None:
                        self.lost_objects.add(chunk.object_name)
                    else:
                        put(f"{self.folder}/{chunk.object_name}", data.data)
                        self.new_bytes += chunk.size_bytes
                position += chunk.size_bytes

    def finish(
        self, *, is_leader: bool | None, start_offset: int, cleaner_offset: int | None
    ) -> PartitionBackup:
        captured, partition = self.captured, self.captured.partition
        chunks = [*self._kept]
        for each in self._puts:
            chunk, new_bytes = each.result()
            chunks.append(chunk)
            self.new_bytes += new_bytes
        bases = captured.bases
        first = bases[0] if bases else 0
        # Chunks of unchanged logs may follow the chunks of cleaned logs.
        chunks = sorted(
            (chunk for chunk in chunks if chunk.last_offset >= first),
            key=lambda chunk: chunk.base_offset,
        )
        snapshot = captured.snapshot
        if chunks and chunks[0].base_offset < first:
            # The snapshot contains producers of batches after the start of the first chunk.
            snapshot = None
        end = self._end_offset
        backup = PartitionBackup(
            topic=partition.topic,
            partition=partition.partition,
            topic_id=captured.topic_id,
            directory=captured.directory,
            is_leader=is_leader,
            is_compacted=self._is_compacted or self._has_gap,
            start_offset=min(max(start_offset, first), end),
            end_offset=end,
            high_watermark=end if self._high_watermark is None else self._high_watermark,
            settled_offset=min(self._settled_offset, end),
            epochs=tuple(each for each in captured.epochs if each[1] <= end),
            cleaner_offset=cleaner_offset,
            snapshot=snapshot,
            chunks=tuple(chunks),
            files=tuple(self.files),
            segments=tuple(self._segments),
            last_header=self._last_header,
        )
        if (
            partition.topic != CLUSTER_METADATA_TOPIC
            and len(backup.segments) == len(bases)
            and len(backup.epochs) == len(captured.epochs)
            and snapshot is captured.snapshot
        ):
            # The manifest contains everything that an inspection finds.
            backup = msgspec.structs.replace(backup, seen_directory=captured.seen_directory)
        return backup

    def row_of(self, backup: PartitionBackup) -> BackedUpPartition:
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
        """Read the batches after the last stored batch, if the log still contains that one."""
        logs, earlier = self._logs, self._earlier
        first, position, next_offset = 0, 0, logs[0].base_offset if logs else 0
        if earlier is not None and self._earlier_header is not None and logs:
            place = self._place_of_last(self._earlier_header)
            if place is not None:
                first, position = place
                self._kept = [*earlier.chunks]
                self._last_header = self._earlier_header
                next_offset = last_offset_in(self._last_header) + 1
                self._has_gap = earlier.is_compacted
                if not self._has_gap:
                    position, next_offset = self._give_up_small(logs[first], position, next_offset)
            else:
                # The log was truncated below stored batches, and has a different history since.
                self._settled_offset = 0
                first, position, next_offset = self._keep_first(earlier)
        for log in logs[:first]:
            self._note(log, log.end_bytes)
        for number in range(first, len(logs)):
            log = logs[number]
            before = self._seen.get(log.base_offset)
            if before is not None and log.is_stored_as(before) and position == before.covered_bytes:
                self._note(log, position)
            else:
                next_offset = self._read_log(number, position, next_offset)
                if self._is_truncated:
                    break
            position = 0
        return next_offset

    def _give_up_small(self, log: CapturedLog, position: int, next_offset: int) -> tuple[int, int]:
        """Drop small chunks at the end of a log, so that they are read again as one chunk.

        Returns the position from which to read, and the next offset there. Chunks that differ from
        the log, or are not below the high watermark, are kept.
        """
        count = count_small_chunks(self._kept, log.base_offset)
        small = self._kept[len(self._kept) - count :]
        start = position - sum(chunk.size_bytes for chunk in small)
        is_below = self._high_watermark is None or next_offset <= self._high_watermark
        if not small or start < 0 or not is_below:
            return position, next_offset
        at = start
        for chunk in small:
            self._read_bytes += chunk.size_bytes
            try:
                is_there = has_chunk(log, at, chunk, self._bandwidth)
            except SkippedError:
                is_there = False
            if not is_there:
                return position, next_offset
            at += chunk.size_bytes
        del self._kept[-count:]
        return start, small[0].base_offset

    def _keep_first(self, earlier: PartitionBackup) -> tuple[int, int, int]:
        """Keep the first chunks that the log still contains, except the last of them.

        Returns the number of the log where they end, the position there, and the next offset. The
        last chunk is read again, because the header of its last batch is needed.
        """
        logs = self._logs
        ends = [(0, 0, logs[0].base_offset)]
        number = position = 0
        for chunk in earlier.chunks:
            if chunk.last_offset < logs[0].base_offset:
                continue
            while number + 1 < len(logs) and logs[number + 1].base_offset <= chunk.base_offset:
                number, position = number + 1, 0
            if not has_chunk(logs[number], position, chunk, self._bandwidth):
                break
            self._read_bytes += chunk.size_bytes
            position += chunk.size_bytes
            self._kept.append(chunk)
            ends.append((number, position, chunk.last_offset + 1))
        if self._kept:
            del self._kept[-1], ends[-1]
        return ends[-1]

    def _place_of_last(self, header: bytes) -> tuple[int, int] | None:
        """Return the number of the log with the last stored batch, and the batch's end position."""
        last = last_offset_in(header)
        at = [number for number, log in enumerate(self._logs) if log.base_offset <= last]
        if not at:
            return None
        log = self._logs[at[-1]]
        before = self._seen.get(log.base_offset)
        covered = before.covered_bytes if before is not None else 0
        if log.is_same_file(before):
            return at[-1], covered
        found = find_batch(log, last, header, covered, self._bandwidth)
        return None if found is None else (at[-1], found)

    def _read_cleaned(self) -> int:
        """Read the changed logs: cleaned logs completely, grown logs from their old end."""
        next_offset = self._logs[0].base_offset if self._logs else 0
        for number, log in enumerate(self._logs):
            before = self._seen.get(log.base_offset)
            end = self._end_of(number)
            own = self._chunks_of(log.base_offset)
            if own and end is not None and own[-1].last_offset >= end:
                own = []
            position = 0
            next_offset = max(next_offset, log.base_offset)
            if log.is_stored_as(before) and before is not None:
                self._kept += own
                next_offset = own[-1].last_offset + 1 if own else next_offset
                self._note(log, before.covered_bytes)
                continue
            if own and before is not None:
                place = self._grown_from(log, before, own[-1].last_offset)
                if place is not None:
                    self._kept += own
                    position, next_offset = place, own[-1].last_offset + 1
            next_offset = self._read_log(number, position, next_offset)
            if self._is_truncated:
                break
        self._last_header = self._last_header or self._earlier_header
        return next_offset

    def _grown_from(self, log: CapturedLog, before: SeenSegment, last_offset: int) -> int | None:
        """Return the end of an earlier backup in its last log; None for other logs."""
        header = self._earlier_header
        if (log.device, log.inode) != (before.device, before.inode) or not header:
            return None
        if last_offset_in(header) != last_offset:
            return None
        found = find_batch(log, last_offset, header, before.covered_bytes, self._bandwidth)
        return found if found == before.covered_bytes else None

    def _chunks_of(self, base: int) -> list[LogChunk]:
        """Return the chunks of a segment in the earlier backup."""
        if self._earlier is None or base not in self._seen:
            return []
        end = min((other for other in self._seen if other > base), default=INT64_MAX)
        return [chunk for chunk in self._earlier.chunks if base <= chunk.base_offset < end]

    def _read_log(self, number: int, position: int, next_offset: int) -> int:
        """Read a log from a position on; return the next offset."""
        log = self._logs[number]
        reader = LogChunkReader(
            log,
            position,
            max(next_offset, log.base_offset),
            self._high_watermark,
            self._end_of(number),
            self._bandwidth,
        )
        for batch_range in reader.batch_ranges(is_cleaned=self._is_compacted):
            self._puts.append(self._put(batch_range))
            self._last_header = batch_range.last_header
        self._read_bytes += reader.read_bytes
        self._settled_offset = max(self._settled_offset, reader.settled_offset)
        self._has_gap |= reader.has_gap
        self._is_truncated = reader.is_below
        self._note(log, reader.position, is_done=not reader.is_below)
        return reader.next_offset

    def _end_of(self, number: int) -> int | None:
        """Return the base offset of the next log; None for the last one."""
        return self._logs[number + 1].base_offset if number + 1 < len(self._logs) else None

    def _note(self, log: CapturedLog, covered_bytes: int, *, is_done: bool = True) -> None:
        """Record the current state of a log for the next backup."""
        # Two appends to a preallocated log may leave the same size and ctime.
        ctime_ns = 0 if log.is_preallocated else log.ctime_ns
        file = log.device, log.inode, ctime_ns, log.end_bytes
        self._segments.append(SeenSegment(log.base_offset, *file, covered_bytes, is_done))
