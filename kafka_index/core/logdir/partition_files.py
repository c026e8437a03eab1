"""The files of one partition directory that are its live segments.

A directory left by a killed broker can hold the traces of an interrupted compaction or split. The
live segments are loaded by the broker at its next start: `LogLoader.load`, its passes one to four,
without touching anything.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace

from kafka_index.core.errors import KafkaIndexError, is_retriable
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
from kafka_index.core.fs.inputs import BROKEN_LINK, NOT_A_FILE, Skipped, note_unread
from kafka_index.core.fs.registry import store_of
from kafka_index.core.fs.store import ByteSource, Entry

#: Segments that are rows of a table have no log: their modification times are at most this.
NO_LOG_MTIME_NS = -(1 << 62)

_DEAD = {
    CLEANED_SUFFIX: "an unfinished compaction or split",
    DELETED_SUFFIX: "marked for deletion",
}
_LOG_ENDINGS = (LOG_SUFFIX, *(LOG_SUFFIX + suffix for suffix in TRANSIENT_SUFFIXES))

# Base offset @0, length @8, magic @16, last offset delta @23: all a next offset needs.
_HEADER = struct.Struct(">qi4xb6xi")
_OVERHEAD_BYTES = 12
_SHORT_HEADER_BYTES = 17
_MIN_LENGTH = 14
_MAGIC_2 = 2
_MAGIC_2_HEADER_BYTES = 61
# What one request to a store reads of a log whose headers are wanted.
_HEADERS_WINDOW_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class TieredPartition:
    """A partition with remote segments.

    The local directory is None if no log directory was given, or none has this partition. Offsets
    below the log start offset were deleted. `is_lower_bound`: the log may start later, because
    without a log directory its start is that of the first segment. `local_start_offset` is the base
    offset of the first local segment; None for none. The last offset that was uploaded is -1 for
    none. The leader epochs are those from the log's start on.
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
    """The log of one live segment, as it was when listed.

    The path is absolute, or a URI, of the ``.log`` (or live ``.log.swap``), and the modification
    time in nanoseconds since the epoch. `is_last`: no later segment of the partition stands in the
    same directory; only such a log may have been preallocated.
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
        """Its partition."""
        return TopicPartition(self.topic, self.partition)

    @property
    def partition_directory(self) -> str:
        """The directory that holds the log."""
        return os.path.dirname(self.log_path)

    def copied_to(self, log_path: str, status: os.stat_result) -> SegmentFile:
        """Return this segment with its log, or what was made of it, in a local file."""
        return replace(
            self,
            log_path=log_path,
            log_size_bytes=status.st_size,
            log_mtime_ns=status.st_mtime_ns,
            log_version="",
        )

    @property
    def has_log(self) -> bool:
        """Whether there is a log, with a directory and checkpoints, or rows of a table."""
        return self.log_mtime_ns > NO_LOG_MTIME_NS


@dataclass(slots=True)
class _Found:
    """The entries of a partition directory, sorted by their names alone."""

    logs: dict[int, Entry] = field(default_factory=dict)
    swaps: dict[int, Entry] = field(default_factory=dict)
    swap_indexes: dict[int, Entry] = field(default_factory=dict)
    cleaned: list[int] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)

    def add(self, entry: Entry) -> None:
        parsed = parse_segment_file(entry.name)
        if parsed is None:
            if entry.name.endswith(_LOG_ENDINGS):
                self.skipped.append(Skipped(entry.path, "its name is not a 20-digit offset"))
            return
        base_offset, kind, transient = parsed
        if kind == LOG_SUFFIX:
            reason = entry.why_not_a_file() or _DEAD.get(transient)
            if reason is not None:
                self.skipped.append(Skipped(entry.path, reason))
                if reason in (BROKEN_LINK, NOT_A_FILE) and transient not in _DEAD:
                    note_unread(entry.path, reason)
            else:
                (self.swaps if transient == SWAP_SUFFIX else self.logs)[base_offset] = entry
        elif transient == SWAP_SUFFIX and kind in INDEX_SUFFIXES:
            self.swap_indexes[base_offset] = entry
        # Of any kind: the broker takes the offset of every .cleaned file it sees.
        if transient == CLEANED_SUFFIX and entry.why_not_a_file() is None:
            self.cleaned.append(base_offset)


def list_partition(
    partition: TopicPartition, entries: Iterable[Entry]
) -> tuple[list[SegmentFile], list[Skipped]]:
    """Separate the live segments of a scanned partition directory from entries that are not live.

    Segments come in no particular order, with one stat for each log. Index files, snapshots,
    checkpoints and unknown files are not listed. Source:
    LogLoader.removeTempFilesAndCollectSwapFiles and LogLoader.load. A ``.swap`` at or above the
    lowest ``.cleaned`` offset belongs to a split that did not finish and is dead (KAFKA-6264). The
    live ``.log.swap`` files ARE segments, and replace every segment whose base offset lies between
    the lowest of them and the highest next offset among them.
    """
    found = _Found()
    for entry in entries:
        found.add(entry)
    logs, swaps, skipped = found.logs, found.swaps, found.skipped
    swap_indexes = {o: entry for o, entry in found.swap_indexes.items() if o not in swaps}
    if found.cleaned:
        skipped += _drop_unfinished_split(swaps, swap_indexes, min(found.cleaned))
    skipped += _lone_swap_indexes(swap_indexes, logs)
    skipped += _drop_replaced(logs, swaps)
    last = max((*logs, *swaps), default=0)
    segments = [
        _segment(partition, base_offset, entry, is_last=base_offset == last)
        for live in (logs, swaps)
        for base_offset, entry in live.items()
    ]
    return segments, skipped


def _drop_replaced(logs: dict[int, Entry], swaps: dict[int, Entry]) -> list[Skipped]:
    """Remove the segments that the live swaps replace from `logs`."""
    if not swaps or not logs:
        return []
    found = swapped_range({offset: entry.path for offset, entry in swaps.items()})
    first, end_exclusive = found.first_offset, found.end_offset
    doubts = "".join(f"; {os.path.basename(path)}: {doubt}" for path, doubt in found.doubts.items())
    skipped = []
    for offset in list(logs):
        # A swap without batches has an empty range, but its renaming overwrites its namesake.
        if first <= offset < end_exclusive or offset in swaps:
            reason = (
                f"replaced by a finished compaction or split: {swaps[first].name} and the "
                f"other swapped files hold offsets {first} to {end_exclusive} (exclusive){doubts}"
            )
            skipped.append(Skipped(logs.pop(offset).path, reason))
    return skipped


def _drop_unfinished_split(
    swaps: dict[int, Entry],
    lone_indexes: dict[int, Entry],
    lowest_cleaned: int,
) -> list[Skipped]:
    """Remove the swap files that the broker would delete from both."""
    reason = (
        f"left by a split that did not finish: a .cleaned file at offset {lowest_cleaned} "
        f"makes the broker delete it (KAFKA-6264)"
    )
    return [
        Skipped(files.pop(offset).path, reason)
        for files in (swaps, lone_indexes)
        for offset in list(files)
        if offset >= lowest_cleaned
    ]


def _lone_swap_indexes(indexes: dict[int, Entry], logs: dict[int, Entry]) -> list[Skipped]:
    """Return the swapped index files whose log is not, or no longer, swapped."""
    return [
        Skipped(
            entry.path,
            "an index of a swap whose log has its final name already; the broker renames it too"
            if offset in logs
            else "a swapped index without a log",
        )
        for offset, entry in indexes.items()
    ]


def _segment(
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
class SwappedRange:
    """The offsets that swapped logs hold and replace: lowest base to highest next offset.

    `doubts` has the logs whose end is doubtful, by path, and the reason: a broker does not start
    with a damaged one.
    """

    first_offset: int
    end_offset: int
    doubts: dict[str, str]


def swapped_range(swaps: Mapping[int, str]) -> SwappedRange:
    """Return the range of live swapped logs, given by base offset and path (``LogLoader.load``)."""
    ends = {offset: _end_of(path, offset) for offset, path in swaps.items()}
    return SwappedRange(
        min(swaps),
        max(end.next_offset for end in ends.values()),
        {swaps[offset]: end.doubt for offset, end in ends.items() if end.doubt},
    )


@dataclass(frozen=True, slots=True)
class _SwapEnd:
    next_offset: int
    doubt: str = ""


def _end_of(path: str, base_offset: int) -> _SwapEnd:
    """Return the offset after the last batch of a log, from the batches' headers alone.

    A damaged log has an end too: that of the batches before the damage; `doubt` then says so
    (the broker itself refuses to start on such a swap file). An incomplete last batch is not
    counted, and none at all gives the base offset (LogSegment.readNextOffset).
    """
    try:
        log = store_of(path).open(path)
    except KafkaIndexError as error:
        if is_retriable(error):
            raise
        return _SwapEnd(base_offset, f"its end is unknown, it cannot be read: {error.message}")
    with closing(log):
        return _end_of_batches(log, base_offset)


def _end_of_batches(log: ByteSource, base_offset: int) -> _SwapEnd:
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
                return _SwapEnd(next_offset, f"its end is unknown, reading failed: {error.message}")
            start_bytes = position_bytes
        at = position_bytes - start_bytes
        # The four bytes of the delta may lie after the end of a tiny old message.
        padded = window[at : at + _HEADER.size].tobytes().ljust(_HEADER.size, b"\0")
        offset, length, magic, last_offset_delta = _HEADER.unpack(padded)
        batch_bytes = _OVERHEAD_BYTES + length
        incomplete = position_bytes > log.size_bytes - batch_bytes
        too_small = magic >= _MAGIC_2 and batch_bytes < _MAGIC_2_HEADER_BYTES
        if length < _MIN_LENGTH or (too_small and not incomplete):
            return _SwapEnd(
                next_offset,
                f"its end is doubtful, it is damaged at byte {position_bytes} "
                f"(a batch of length {length})",
            )
        if incomplete:
            break
        next_offset = offset + 1 + (last_offset_delta if magic >= _MAGIC_2 else 0)
        position_bytes += batch_bytes
    return _SwapEnd(next_offset)
