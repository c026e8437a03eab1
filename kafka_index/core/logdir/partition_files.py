"""Find the live segments among the files of a partition directory.

A killed broker can leave the files of an interrupted compaction or split. Live segments are those
that the broker would load at its next start, according to passes one to four of `LogLoader.load`.
Nothing is changed.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace

from kafka_index.core.errors import InputError, KafkaIndexError, is_retriable
from kafka_index.core.format.checkpoints import EpochEntry
from kafka_index.core.format.names import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    INDEX_SUFFIXES,
    LOG_SUFFIX,
    SWAP_SUFFIX,
    TRANSIENT_SUFFIXES,
    TopicPartition,
    parse_segment_file,
)
from kafka_index.core.format.uri_passwords import refuse_passwords
from kafka_index.core.fs.inputs import BROKEN_LINK, NOT_A_FILE, Skipped, note_unread
from kafka_index.core.fs.registry import store_of
from kafka_index.core.fs.store import ByteSource, Entry

#: Segments that are built from table rows have no ``.log``. Their modification times are at most
#: this value.
NO_LOG_MTIME_NS = -(1 << 62)

_DEAD_REASONS = {
    CLEANED_SUFFIX: "the file belongs to an unfinished compaction or split",
    DELETED_SUFFIX: "the file is marked for deletion",
}
_LOG_ENDINGS = (LOG_SUFFIX, *(LOG_SUFFIX + suffix for suffix in TRANSIENT_SUFFIXES))

# Header fields of a batch from which the next offset follows: base offset at byte 0, length at byte
# 8, magic at byte 16, last offset delta at byte 23.
_HEADER = struct.Struct(">qi4xb6xi")
_OVERHEAD_BYTES = 12
_SHORT_HEADER_BYTES = 17
_MIN_LENGTH = 14
_MAGIC_2 = 2
_MAGIC_2_HEADER_BYTES = 61
# Bytes per request when only the batch headers of a remote ``.log`` are read.
_HEADERS_WINDOW_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class TieredPartition:
    """A partition with remote segments.

    Attributes
    ----------
    local_directory
        The partition directory on a local disk; None if the input has none.
    log_start_offset
        All offsets below this offset were deleted.
    is_lower_bound
        True if the log may start later than `log_start_offset`, which is only the base offset of
        the first segment.
    local_start_offset
        Base offset of the first local segment, None if there is none.
    tiered_end_offset
        The last offset in remote segments, -1 if there are none.
    epochs
        The leader epochs of offsets from the log start offset on.
    """

    topic_id: str
    local_directory: str | None
    log_start_offset: int
    is_lower_bound: bool
    local_start_offset: int | None
    tiered_end_offset: int
    epochs: tuple[EpochEntry, ...]


@dataclass(frozen=True, slots=True)
class SegmentFile:
    """The ``.log`` of one live segment, as listed.

    Attributes
    ----------
    log_path
        Absolute path or URI of the ``.log`` (or live ``.log.swap``).
    log_mtime_ns
        Modification time of the ``.log`` in nanoseconds since 1970.
    is_last
        Whether the directory has no later segment. Only the last ``.log`` can be preallocated.
    log_version
        Version of the ``.log`` if it is an object in an object store, otherwise empty.
    """

    topic: str
    partition: int
    base_offset: int
    log_path: str
    log_size_bytes: int
    log_mtime_ns: int
    is_last: bool = True
    log_version: str = ""

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    @property
    def partition_directory(self) -> str:
        return os.path.dirname(self.log_path)

    def copied_to(self, log_path: str, status: os.stat_result) -> SegmentFile:
        return replace(
            self,
            log_path=log_path,
            log_size_bytes=status.st_size,
            log_mtime_ns=status.st_mtime_ns,
            log_version="",
        )

    @property
    def has_log(self) -> bool:
        """Whether the segment has a ``.log`` file; otherwise it is built from table rows."""
        return self.log_mtime_ns > NO_LOG_MTIME_NS


def parse_base_offset(path: str) -> int:
    """Return the base offset in the name of a segment file.

    Raises `InputError` if the name has no base offset.
    """
    parsed = parse_segment_file(os.path.basename(path))
    if parsed is None:
        refuse_passwords([path])
        raise InputError(
            "the file name has no base offset", path=path, expected="20 digits before the suffix"
        )
    return parsed.base_offset


@dataclass(slots=True)
class _PartitionEntries:
    """The entries of a partition directory, classified by name."""

    logs: dict[int, Entry] = field(default_factory=dict)
    swaps: dict[int, Entry] = field(default_factory=dict)
    swap_indexes: dict[int, Entry] = field(default_factory=dict)
    cleaned: list[int] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)

    def add(self, entry: Entry) -> None:
        parsed = parse_segment_file(entry.name)
        if parsed is None:
            if entry.name.endswith(_LOG_ENDINGS):
                self.skipped.append(Skipped(entry.path, "the file name is not a 20-digit offset"))
            return
        base_offset, kind, transient = parsed
        if kind == LOG_SUFFIX:
            reason = entry.file_error() or _DEAD_REASONS.get(transient)
            if reason is not None:
                self.skipped.append(Skipped(entry.path, reason))
                if reason in (BROKEN_LINK, NOT_A_FILE) and transient not in _DEAD_REASONS:
                    note_unread(entry.path, reason)
            else:
                (self.swaps if transient == SWAP_SUFFIX else self.logs)[base_offset] = entry
        elif transient == SWAP_SUFFIX and kind in INDEX_SUFFIXES:
            self.swap_indexes[base_offset] = entry
        # A broker uses the base offsets of all .cleaned files, of logs and of index files.
        if transient == CLEANED_SUFFIX and entry.file_error() is None:
            self.cleaned.append(base_offset)


def list_partition(
    partition: TopicPartition, entries: Iterable[Entry]
) -> tuple[list[SegmentFile], list[Skipped]]:
    """Return the live segments of a partition directory, and the skipped entries.

    The segments are in no particular order. Index files, snapshots, checkpoints and unknown files
    are in neither list. A ``.swap`` at or above the lowest ``.cleaned`` offset belongs to an
    unfinished split and is ignored (KAFKA-6264). Live ``.log.swap`` files are segments. They
    replace every ``.log`` whose base offset is at least the lowest base offset of the swap files,
    and below their highest next offset. Source: LogLoader.removeTempFilesAndCollectSwapFiles and
    LogLoader.load.
    """
    files = _PartitionEntries()
    for entry in entries:
        files.add(entry)
    logs, swaps, skipped = (
        files.logs,
        files.swaps,
        files.skipped,
    )
    swap_indexes = {
        base_offset: entry
        for base_offset, entry in files.swap_indexes.items()
        if base_offset not in swaps
    }
    if files.cleaned:
        skipped += _drop_unfinished_split(swaps, swap_indexes, min(files.cleaned))
    skipped += _lone_swap_indexes(swap_indexes, logs)
    skipped += _drop_replaced(logs, swaps)
    last_base_offset = max((*logs, *swaps), default=0)
    segments = [
        _to_segment(partition, base_offset, entry, is_last=base_offset == last_base_offset)
        for live_entries in (logs, swaps)
        for base_offset, entry in live_entries.items()
    ]
    return segments, skipped


def _drop_replaced(logs: dict[int, Entry], swaps: dict[int, Entry]) -> list[Skipped]:
    """Remove from `logs` the segments that live swap files replace; return them as skipped."""
    if not swaps or not logs:
        return []
    swap_range = read_swap_range({offset: entry.path for offset, entry in swaps.items()})
    first_offset, end_offset = swap_range.first_offset, swap_range.end_offset
    doubts = "".join(
        f"; {os.path.basename(path)}: {doubt}" for path, doubt in swap_range.doubts.items()
    )
    skipped = []
    for offset in list(logs):
        # A swap file without batches has an empty offset range, but still replaces the ``.log`` of
        # the same base offset.
        if first_offset <= offset < end_offset or offset in swaps:
            reason = (
                "a completed compaction or split replaced this log: the swap files from "
                f"{swaps[first_offset].name} on contain offsets {first_offset} to {end_offset} "
                f"(exclusive){doubts}"
            )
            skipped.append(Skipped(logs.pop(offset).path, reason))
    return skipped


def _drop_unfinished_split(
    swaps: dict[int, Entry],
    lone_indexes: dict[int, Entry],
    lowest_cleaned: int,
) -> list[Skipped]:
    """Remove the swap files of an unfinished split, which a broker would delete at startup."""
    reason = (
        "the split is unfinished: a broker deletes this file because of the .cleaned file at "
        f"offset {lowest_cleaned} (KAFKA-6264)"
    )
    return [
        Skipped(files.pop(offset).path, reason)
        for files in (swaps, lone_indexes)
        for offset in list(files)
        if offset >= lowest_cleaned
    ]


def _lone_swap_indexes(indexes: dict[int, Entry], logs: dict[int, Entry]) -> list[Skipped]:
    return [
        Skipped(
            entry.path,
            "the log already has its final name, and a broker renames this index, too"
            if offset in logs
            else "the swapped index has no log",
        )
        for offset, entry in indexes.items()
    ]


def _to_segment(
    partition: TopicPartition, base_offset: int, entry: Entry, *, is_last: bool
) -> SegmentFile:
    info = entry.info()
    return SegmentFile(
        partition.topic,
        partition.partition,
        base_offset,
        entry.path,
        info.size_bytes,
        info.mtime_ns,
        is_last,
        info.version,
    )


@dataclass(frozen=True, slots=True)
class SwapRange:
    """The offset range of swap files: lowest base offset to highest next offset.

    `doubts` has, by path, the reason why the end offset of a swap file is uncertain. A broker does
    not start on a corrupt swap file.
    """

    first_offset: int
    end_offset: int
    doubts: dict[str, str]


def read_swap_range(swaps: Mapping[int, str]) -> SwapRange:
    """Read the offset range of live swap files; `swaps` has their paths by base offset.

    Source: ``LogLoader.load``.
    """
    swap_ends = {offset: _read_swap_end(path, offset) for offset, path in swaps.items()}
    return SwapRange(
        min(swaps),
        max(swap_end.next_offset for swap_end in swap_ends.values()),
        {swaps[offset]: swap_end.doubt for offset, swap_end in swap_ends.items() if swap_end.doubt},
    )


@dataclass(frozen=True, slots=True)
class _SwapEnd:
    next_offset: int
    doubt: str = ""


def _read_swap_end(path: str, base_offset: int) -> _SwapEnd:
    """Return the offset after the last batch of a swap file, reading only batch headers.

    For a corrupt swap file, this is the offset after the last batch before the corruption, and
    `doubt` has the reason. An incomplete last batch is ignored. Without batches, the result is the
    base offset (LogSegment.readNextOffset).
    """
    try:
        log = store_of(path).open(path)
    except KafkaIndexError as error:
        if is_retriable(error):
            raise
        return _SwapEnd(base_offset, f"the end of the log is unknown: {error.message}")
    with closing(log):
        return _scan_headers(log, base_offset)


def _scan_headers(log: ByteSource, base_offset: int) -> _SwapEnd:
    next_offset = base_offset
    position_bytes = start_bytes = 0
    window = log.read_at(0, 0)
    while position_bytes < log.size_bytes - _SHORT_HEADER_BYTES:
        if position_bytes + _HEADER.size > start_bytes + len(window):
            try:
                window = log.read_at(position_bytes, _HEADERS_WINDOW_BYTES)
            except KafkaIndexError as error:
                if is_retriable(error):
                    raise
                return _SwapEnd(next_offset, f"the end of the log is unknown: {error.message}")
            start_bytes = position_bytes
        window_offset = position_bytes - start_bytes
        # Padded, because a short v0 or v1 message may end before the position of the last offset
        # delta.
        padded = (
            window[window_offset : window_offset + _HEADER.size]
            .tobytes()
            .ljust(_HEADER.size, b"\0")
        )
        offset, length, magic, last_offset_delta = _HEADER.unpack(padded)
        batch_bytes = _OVERHEAD_BYTES + length
        is_incomplete = position_bytes > log.size_bytes - batch_bytes
        is_too_small = magic >= _MAGIC_2 and batch_bytes < _MAGIC_2_HEADER_BYTES
        if length < _MIN_LENGTH or (is_too_small and not is_incomplete):
            return _SwapEnd(
                next_offset,
                "the end of the log is uncertain: the batch at byte "
                f"{position_bytes} has the invalid length {length}",
            )
        if is_incomplete:
            break
        next_offset = offset + 1 + (last_offset_delta if magic >= _MAGIC_2 else 0)
        position_bytes += batch_bytes
    return _SwapEnd(next_offset)
