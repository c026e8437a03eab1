"""The files of a partition as a broker sees them after its first passes, without touching them.

Leftovers are gone by then, and swapped segments have their names. Source: Kafka's
``LogLoader.removeTempFilesAndCollectSwapFiles`` and ``LogLoader.load``; which logs are live is
decided by `kafka_index.core.logdir.partition_files`.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field

from kafka_index.core.errors import DirectoryFailsError, OfflineAtOnceError, StartRefusedError
from kafka_index.core.format.checkpoints import EPOCH_FIELDS, checkpoint_fault, java_lines
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
from kafka_index.core.fs.directories import leads_nowhere, scan_directory
from kafka_index.core.fs.store import Entry
from kafka_index.core.logdir.metadata_files import is_null_device, read_text
from kafka_index.core.logdir.partition_files import SegmentFile, list_partition, swapped_range
from kafka_index.core.logdir.segment_table import lost_logs
from kafka_index.core.startup.prediction import NotPredictedError

_KRAFT_SNAPSHOT = ".checkpoint.deleted"
_ENDINGS = (LOG_SUFFIX, *INDEX_SUFFIXES, SNAPSHOT_SUFFIX, SWAP_SUFFIX, CLEANED_SUFFIX)
#: What is wrong with the name of a segment's file over which a broker exits.
NO_OFFSET = "the name of a segment's file does not begin with an offset"
_MARKS = (DirectoryKind.DELETE, DirectoryKind.FUTURE, DirectoryKind.STRAY)
# Java's \S, which is ASCII only.
_WORD = r"[^ \t\n\v\f\r]+"
_MARKED = re.compile(rf"{_WORD}-{_WORD}\.{_WORD}-(?:delete|future|stray)")


@dataclass(slots=True)
class FoundSegment:
    """A live segment and the paths of its files, by suffix; a suffix without a file is missing.

    `not_files`: indexes that are directories or sockets, on which a broker fails once it opens
    them. `unsized`: indexes that are pipes or the null device, which a broker reads as empty ones,
    and cannot resize. `txn_index_to_nowhere`: a link in the place of the transaction index
    that no file can be created through.
    """

    log: SegmentFile
    is_swapped: bool
    indexes: dict[str, str] = field(default_factory=dict)
    not_files: dict[str, str] = field(default_factory=dict)
    unsized: dict[str, str] = field(default_factory=dict)
    txn_index_to_nowhere: str | None = None


@dataclass(slots=True)
class FoundFiles:
    """The files of a partition: its live segments by base offset, and the offsets of its snapshots.

    `replaced` has the logs that finished compactions replace, by base offset; the swapped files
    hold what they replace up to `replaced_end`. `unserved` are the reasons why records are hidden.
    `lost_ends` has the logs that are gone, as `lost_logs` finds them.
    """

    segments: list[FoundSegment]
    replaced: dict[int, str]
    replaced_end: int
    snapshots: list[int]
    unserved: tuple[str, ...] = ()
    lost_ends: Mapping[int, int] = field(default_factory=dict)


def find_files(partition: TopicPartition, directory: str) -> FoundFiles:
    """List the files of a partition directory, whose leader epochs a broker reads first.

    Raises `StartRefusedError` if a broker fails on the leader epochs, the name of a file, or the
    content of a swapped log, and `InputError` if the directory cannot be read.
    """
    scanned = sorted(scan_directory(directory), key=lambda one: one.name)
    _check_epochs(directory)
    entries = [entry for entry in scanned if entry.why_not_a_file() is None]
    for entry in entries:
        if is_refused_name(entry.name):
            raise StartRefusedError(NO_OFFSET, path=entry.path)
    live, _ = list_partition(partition, entries)
    not_files = {entry.name: entry for entry in scanned if entry.why_not_a_file() is not None}
    unserved = [
        f"{entry.path}: a broker opens an empty segment of that offset in the midst of the log"
        for entry in entries
        if is_misnamed_log(entry.name)
    ]
    names = {entry.name: entry.path for entry in entries}
    parsed = {name: found for name in names if (found := parse_segment_file(name)) is not None}
    swapped = {
        segment.base_offset: segment.log_path
        for segment in live
        if segment.log_path.endswith(SWAP_SUFFIX)
    }
    first = end = 0
    if swapped:
        found_range = swapped_range(swapped)
        if found_range.doubts:
            raise StartRefusedError(
                "the end of a swapped log cannot be read",
                path=next(iter(found_range.doubts)),
                found=next(iter(found_range.doubts.values())),
            )
        first, end = found_range.first_offset, found_range.end_offset
    lowest_cleaned = min(
        (name.base_offset for name in parsed.values() if name.transient == CLEANED_SUFFIX),
        default=None,
    )
    segments = []
    for segment in sorted(live, key=lambda one: one.base_offset):
        base = segment.base_offset
        one = FoundSegment(segment, base in swapped)
        for suffix in INDEX_SUFFIXES:
            plain = f"{base:0{OFFSET_DIGITS}d}{suffix}"
            is_kept = lowest_cleaned is None or base < lowest_cleaned
            if plain + SWAP_SUFFIX in names and is_kept:
                one.indexes[suffix] = names[plain + SWAP_SUFFIX]
            elif plain in names and not first <= base < end and not _is_overwritten(one, suffix):
                one.indexes[suffix] = names[plain]
            elif plain in not_files:
                _note_no_file(one, suffix, not_files[plain])
        segments.append(one)
    bases = {segment.base_offset: segment.log_path for segment in live}
    replaced = {
        name.base_offset: names[text]
        for text, name in parsed.items()
        if name.kind == LOG_SUFFIX
        and not name.transient
        and bases.get(name.base_offset) != names[text]
    }
    snapshots = sorted(
        name.base_offset
        for name in parsed.values()
        if name.kind == SNAPSHOT_SUFFIX
        and not name.transient
        and not first <= name.base_offset < end
    )
    lost_ends = lost_logs(scanned, live)
    return FoundFiles(segments, replaced, end, snapshots, tuple(unserved), lost_ends)


def _check_epochs(directory: str) -> None:
    """Refuse leader epochs that a broker does not read.

    Raises `OfflineAtOnceError` if it takes the data directory offline, and `StartRefusedError` if
    it exits.
    """
    path = os.path.join(directory, LEADER_EPOCH_CHECKPOINT)
    lines = java_lines(read_text(path) or "")
    fault = checkpoint_fault(lines, EPOCH_FIELDS)
    if fault is None:
        return
    error_class = OfflineAtOnceError if fault.is_input_output else StartRefusedError
    raise error_class(
        f"the checkpoint is malformed ({fault.exception})",
        path=path,
        found=quote_content(lines[fault.line - 1], path),
        line=fault.line,
    )


def _note_no_file(segment: FoundSegment, suffix: str, entry: Entry) -> None:
    """Note an index that is no file but is there, or refuse what a broker fails on at once."""
    if entry.is_broken_link():
        # A broker rebuilds it where the link leads, if it can.
        if not leads_nowhere(entry.path):
            return
        if suffix != TXN_INDEX_SUFFIX:
            raise DirectoryFailsError("the index is a link to nothing", path=entry.path)
        segment.txn_index_to_nowhere = entry.path
        return
    found = os.stat(entry.path)
    is_device = stat.S_ISCHR(found.st_mode) or stat.S_ISBLK(found.st_mode)
    is_empty = is_null_device(found)
    if is_device and not is_empty:
        raise NotPredictedError("the index is a device", path=entry.path)
    if suffix == TXN_INDEX_SUFFIX:
        if not is_empty:
            raise DirectoryFailsError("the transaction index is no file", path=entry.path)
    elif is_empty or stat.S_ISFIFO(found.st_mode):
        segment.unsized[suffix] = entry.path
    else:
        segment.not_files[suffix] = entry.path


def _is_overwritten(segment: FoundSegment, suffix: str) -> bool:
    """Return whether the index that a broker creates for a swapped log takes the place of one."""
    return segment.is_swapped and suffix == OFFSET_INDEX_SUFFIX


def parse_log_directory(name: str) -> tuple[TopicPartition, DirectoryKind] | None:
    """Return the partition that a broker takes a directory for; None where it exits.

    Source: ``LocalLog.parseTopicPartitionName``.
    """
    kind = next((one for one in _MARKS if name.endswith(f"-{one.value}")), DirectoryKind.LIVE)
    if kind is not DirectoryKind.LIVE:
        if _MARKED.fullmatch(name) is None:
            return None
        name = name.rpartition(".")[0]
    topic, dash, text = name.rpartition("-")
    partition = parse_java_integer(text, INT32_MAX)
    if not dash or not topic or partition is None:
        return None
    return TopicPartition(topic, partition), kind


def is_refused_name(name: str) -> bool:
    """Return whether a broker exits over a regular file of this name, which begins with no offset.

    Others than files of segments may have any name.
    """
    is_of_segment = name.endswith(_ENDINGS) and not name.endswith((DELETED_SUFFIX, _KRAFT_SNAPSHOT))
    return is_of_segment and file_offset(name) is None


def file_offset(name: str) -> int | None:
    """Return the offset that the name of a file begins with; None where Java reads none."""
    return parse_java_integer(name.partition(".")[0], INT64_MAX)


def is_misnamed_log(name: str) -> bool:
    """Return whether a broker opens another, empty log for this one, of an offset's usual name."""
    ending = next(
        (one for one in (LOG_SUFFIX, LOG_SUFFIX + SWAP_SUFFIX) if name.endswith(one)), None
    )
    offset = file_offset(name)
    if ending is None or offset is None:
        return False
    sign = "-" if offset < 0 else ""
    return name != f"{sign}{abs(offset):0{OFFSET_DIGITS}d}{ending}"
