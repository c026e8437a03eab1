"""The files of a partition as they would be after the first passes of ``LogLoader``.

Temporary files are removed and swap files renamed, but only in memory.
`kafka_index.core.logdir.partition_files` decides which logs are live. Source: Kafka's
``LogLoader.removeTempFilesAndCollectSwapFiles`` and ``LogLoader.load``.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field

from kafka_index.core.errors import DirectoryFailsError, OfflineAtOnceError, StartRefusedError
from kafka_index.core.format.checkpoints import EPOCH_FIELDS, find_checkpoint_defect, java_lines
from kafka_index.core.format.integers import INT32_MAX, INT64_MAX, parse_java_integer
from kafka_index.core.format.names import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    INDEX_SUFFIXES,
    LEADER_EPOCH_CHECKPOINT,
    LOG_SUFFIX,
    OFFSET_DIGITS,
    OFFSET_INDEX_SUFFIX,
    SNAPSHOT_SUFFIX,
    SWAP_SUFFIX,
    TXN_INDEX_SUFFIX,
    DirectoryKind,
    TopicPartition,
    parse_segment_file,
)
from kafka_index.core.format.strings import quote_content
from kafka_index.core.fs.registry import is_dead_link, scan_directory
from kafka_index.core.fs.store import Entry
from kafka_index.core.logdir.metadata_files import is_null_device, read_text
from kafka_index.core.logdir.partition_files import SegmentFile, list_partition, read_swap_range
from kafka_index.core.logdir.segment_table import find_lost_logs
from kafka_index.core.startup.prediction import NotPredictedError

_KRAFT_SNAPSHOT = ".checkpoint.deleted"
_SEGMENT_ENDINGS = (LOG_SUFFIX, *INDEX_SUFFIXES, SNAPSHOT_SUFFIX, SWAP_SUFFIX, CLEANED_SUFFIX)
#: The error for a segment file name on which a broker exits.
NO_OFFSET = "the file name does not begin with an offset"
_MARKED_KINDS = (DirectoryKind.DELETE, DirectoryKind.FUTURE, DirectoryKind.STRAY)
# Java's \S in its ASCII form.
_WORD = r"[^ \t\n\v\f\r]+"
_MARKED_NAME = re.compile(rf"{_WORD}-{_WORD}\.{_WORD}-(?:delete|future|stray)")


@dataclass(slots=True)
class StartupSegment:
    """A live segment and the paths of its files by suffix; suffixes of missing files are absent.

    Attributes
    ----------
    not_files
        Indexes that are directories or sockets, which a broker fails to open.
    unsized
        Indexes that are pipes or the null device. A broker reads them as empty, and fails to resize
        them.
    txn_index_to_nowhere
        A broken link instead of a transaction index; the target of the link cannot be created.
    """

    log: SegmentFile
    is_swapped: bool
    indexes: dict[str, str] = field(default_factory=dict)
    not_files: dict[str, str] = field(default_factory=dict)
    unsized: dict[str, str] = field(default_factory=dict)
    txn_index_to_nowhere: str | None = None


@dataclass(slots=True)
class StartupFiles:
    """The live segments of a partition, and the offsets of its producer snapshots.

    Attributes
    ----------
    replaced
        Paths of logs replaced by completed compactions, keyed by base offset.
    replaced_end
        The swap files contain all records of `replaced` below this offset.
    unserved
        Reasons why records are unreadable.
    lost_ends
        Logs that are missing, as returned by `find_lost_logs`.
    """

    segments: list[StartupSegment]
    replaced: dict[int, str]
    replaced_end: int
    snapshots: list[int]
    unserved: tuple[str, ...] = ()
    lost_ends: Mapping[int, int] = field(default_factory=dict)


def list_startup_files(partition: TopicPartition, directory: str) -> StartupFiles:
    """List the files of a partition directory, after checking its leader epochs as a broker does.

    Raises `StartRefusedError` if a broker fails on the leader epochs, a file name or the content of
    a swap file. Raises `InputError` if the directory cannot be read.
    """
    all_entries = sorted(scan_directory(directory), key=lambda entry: entry.name)
    _check_epochs(directory)
    entries = [entry for entry in all_entries if entry.file_error() is None]
    for entry in entries:
        if is_rejected_name(entry.name):
            raise StartRefusedError(NO_OFFSET, path=entry.path)
    live_segments, _ = list_partition(partition, entries)
    not_files = {entry.name: entry for entry in all_entries if entry.file_error() is not None}
    unserved = [
        f"{entry.path}: a broker ignores this log, and opens an empty log with the canonical name"
        for entry in entries
        if is_misnamed_log(entry.name)
    ]
    paths_by_name = {entry.name: entry.path for entry in entries}
    parsed_names = {
        name: parsed_name
        for name in paths_by_name
        if (parsed_name := parse_segment_file(name)) is not None
    }
    swap_paths = {
        segment.base_offset: segment.log_path
        for segment in live_segments
        if segment.log_path.endswith(SWAP_SUFFIX)
    }
    first_swapped_offset = swapped_end_offset = 0
    if swap_paths:
        swap_range = read_swap_range(swap_paths)
        if swap_range.doubts:
            raise StartRefusedError(
                "the end of the swap file cannot be determined",
                path=next(iter(swap_range.doubts)),
                found=next(iter(swap_range.doubts.values())),
            )
        first_swapped_offset, swapped_end_offset = swap_range.first_offset, swap_range.end_offset
    lowest_cleaned = min(
        (name.base_offset for name in parsed_names.values() if name.transient == CLEANED_SUFFIX),
        default=None,
    )
    segments = []
    for segment in sorted(live_segments, key=lambda segment: segment.base_offset):
        base_offset = segment.base_offset
        startup_segment = StartupSegment(segment, base_offset in swap_paths)
        for suffix in INDEX_SUFFIXES:
            index_name = f"{base_offset:0{OFFSET_DIGITS}d}{suffix}"
            is_below_cleaned = lowest_cleaned is None or base_offset < lowest_cleaned
            if index_name + SWAP_SUFFIX in paths_by_name and is_below_cleaned:
                startup_segment.indexes[suffix] = paths_by_name[index_name + SWAP_SUFFIX]
            # To find the end of a swap file, a broker creates its .index over an existing file.
            elif (
                index_name in paths_by_name
                and not first_swapped_offset <= base_offset < swapped_end_offset
                and not (startup_segment.is_swapped and suffix == OFFSET_INDEX_SUFFIX)
            ):
                startup_segment.indexes[suffix] = paths_by_name[index_name]
            elif index_name in not_files:
                _record_irregular_index(startup_segment, suffix, not_files[index_name])
        segments.append(startup_segment)
    live_paths = {segment.base_offset: segment.log_path for segment in live_segments}
    replaced = {
        parsed_name.base_offset: paths_by_name[name]
        for name, parsed_name in parsed_names.items()
        if parsed_name.kind == LOG_SUFFIX
        and not parsed_name.transient
        and live_paths.get(parsed_name.base_offset) != paths_by_name[name]
    }
    snapshots = sorted(
        name.base_offset
        for name in parsed_names.values()
        if name.kind == SNAPSHOT_SUFFIX
        and not name.transient
        and not first_swapped_offset <= name.base_offset < swapped_end_offset
    )
    lost_ends = find_lost_logs(all_entries, live_segments)
    return StartupFiles(
        segments, replaced, swapped_end_offset, snapshots, tuple(unserved), lost_ends
    )


def _check_epochs(directory: str) -> None:
    """Check that a broker can read the leader epoch checkpoint.

    Raises `OfflineAtOnceError` if the broker marks the data directory offline, and
    `StartRefusedError` if it exits.
    """
    path = os.path.join(directory, LEADER_EPOCH_CHECKPOINT)
    lines = java_lines(read_text(path) or "")
    fault = find_checkpoint_defect(lines, EPOCH_FIELDS)
    if fault is None:
        return
    error_class = OfflineAtOnceError if fault.is_input_output else StartRefusedError
    raise error_class(
        f"the checkpoint is malformed ({fault.exception})",
        path=path,
        found=quote_content(lines[fault.line - 1], path),
        line=fault.line,
    )


def _record_irregular_index(segment: StartupSegment, suffix: str, entry: Entry) -> None:
    """Record an index that is not a regular file; raise if a broker fails on it immediately."""
    if entry.is_broken_link():
        # A broker rebuilds the index at the target of the link if it can create a file there.
        if not is_dead_link(entry.path):
            return
        if suffix != TXN_INDEX_SUFFIX:
            raise DirectoryFailsError("the index is a broken link", path=entry.path)
        segment.txn_index_to_nowhere = entry.path
        return
    status = os.stat(entry.path)
    is_device = stat.S_ISCHR(status.st_mode) or stat.S_ISBLK(status.st_mode)
    is_empty = is_null_device(status)
    if is_device and not is_empty:
        raise NotPredictedError("the index is a device", path=entry.path)
    if suffix == TXN_INDEX_SUFFIX:
        if not is_empty:
            raise DirectoryFailsError(
                "the transaction index is not a regular file", path=entry.path
            )
    elif is_empty or stat.S_ISFIFO(status.st_mode):
        segment.unsized[suffix] = entry.path
    else:
        segment.not_files[suffix] = entry.path


def parse_log_directory(name: str) -> tuple[TopicPartition, DirectoryKind] | None:
    """Parse a directory name into its partition and kind; None if a broker exits on the name.

    Source: ``LocalLog.parseTopicPartitionName``.
    """
    kind = next(
        (marked_kind for marked_kind in _MARKED_KINDS if name.endswith(f"-{marked_kind.value}")),
        DirectoryKind.LIVE,
    )
    if kind is not DirectoryKind.LIVE:
        if _MARKED_NAME.fullmatch(name) is None:
            return None
        name = name.rpartition(".")[0]
    topic, dash, partition_number = name.rpartition("-")
    partition = parse_java_integer(partition_number, INT32_MAX)
    if not dash or not topic or partition is None:
        return None
    return TopicPartition(topic, partition), kind


def is_rejected_name(name: str) -> bool:
    """Return whether a broker exits on a regular file with this name."""
    is_segment_file = name.endswith(_SEGMENT_ENDINGS) and not name.endswith(
        (DELETED_SUFFIX, _KRAFT_SNAPSHOT)
    )
    return is_segment_file and parse_file_offset(name) is None


def parse_file_offset(name: str) -> int | None:
    """Return the offset at the start of a file name, None if Java cannot parse an offset."""
    return parse_java_integer(name.partition(".")[0], INT64_MAX)


def is_misnamed_log(name: str) -> bool:
    """Return whether a broker ignores a log, and opens an empty log with the canonical name."""
    ending = next(
        (suffix for suffix in (LOG_SUFFIX, LOG_SUFFIX + SWAP_SUFFIX) if name.endswith(suffix)), None
    )
    offset = parse_file_offset(name)
    if ending is None or offset is None:
        return False
    sign = "-" if offset < 0 else ""
    return name != f"{sign}{abs(offset):0{OFFSET_DIGITS}d}{ending}"
