"""The files of a partition as a broker sees them after its first passes, without touching them.

Leftovers are gone by then, and swapped segments have their names. Source: Kafka's
``LogLoader.removeTempFilesAndCollectSwapFiles`` and ``LogLoader.load``; which logs are live is
decided by `kafka_index.storage.partition_files`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from kafka_index.layout.names import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    INDEX_SUFFIXES,
    LOG_SUFFIX,
    OFFSET_DIGITS,
    OFFSET_INDEX_SUFFIX,
    SNAPSHOT_SUFFIX,
    SWAP_SUFFIX,
    TopicPartition,
    parse_segment_file,
)
from kafka_index.startup.prediction import StartRefusedError
from kafka_index.storage import SegmentFile
from kafka_index.storage.directories import scan_directory
from kafka_index.storage.partition_files import list_partition
from kafka_index.storage.swapped_logs import swapped_range

_ENDINGS = (LOG_SUFFIX, *INDEX_SUFFIXES, SNAPSHOT_SUFFIX, SWAP_SUFFIX, CLEANED_SUFFIX)
_KRAFT_SNAPSHOT = ".checkpoint.deleted"


@dataclass(slots=True)
class FoundSegment:
    """A live segment and the paths of its files, by suffix; those that it has not are missing."""

    log: SegmentFile
    is_swapped: bool
    indexes: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class FoundFiles:
    """The files of a partition.

    Parameters
    ----------
    segments : list of FoundSegment
        Live ones, by base offset.
    replaced : dict of int to SegmentFile
        Logs that finished compactions replace.
    replaced_end : int
        The offset up to which the swapped files hold what they replace.
    snapshots : list of int
        Offsets of the snapshots that are left.
    """

    segments: list[FoundSegment]
    replaced: dict[int, str]
    replaced_end: int
    snapshots: list[int]


def find_files(partition: TopicPartition, directory: str) -> FoundFiles:
    """List the files of a partition directory.

    Raises
    ------
    StartRefusedError
        A broker fails on the name of a file, or on the content of a swapped log.
    InputError
        The directory cannot be read.
    """
    entries = [entry for entry in scan_directory(directory) if not entry.is_directory()]
    for entry in entries:
        check_segment_file_name(entry.name, directory)
    live, _ = list_partition(partition, entries)
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
    return FoundFiles(segments, replaced, end, snapshots)


def _is_overwritten(segment: FoundSegment, suffix: str) -> bool:
    """Return whether the index that a broker creates for a swapped log takes the place of one."""
    return segment.is_swapped and suffix == OFFSET_INDEX_SUFFIX


def check_segment_file_name(name: str, directory: str) -> None:
    """Refuse the name of a file of a segment that does not begin with an offset."""
    if name.endswith((DELETED_SUFFIX, _KRAFT_SNAPSHOT)) or not name.endswith(_ENDINGS):
        return
    if not name.partition(".")[0].isdigit():
        raise StartRefusedError(
            "the name of a segment's file does not begin with an offset",
            path=os.path.join(directory, name),
        )
