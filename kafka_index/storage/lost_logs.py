"""Logs that are gone while index files of theirs are there.

Retention and the cleaner rename and delete all files of a segment together, its log first: such an
index file shows a segment that neither of them removed. Producer snapshots show nothing: there are
others than those of segments. Source: ``replaceSegments`` and ``deleteSegmentFiles`` of Kafka's
``LocalLog``.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterable, Sequence

import numpy as np

from kafka_index.errors import KafkaIndexError, ReadError, is_retriable
from kafka_index.layout.index_entries import OFFSET_ENTRY, TIME_ENTRY
from kafka_index.layout.names import (
    INDEX_SUFFIXES,
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    SWAP_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSIENT_SUFFIXES,
    parse_segment_file,
    segment_file_name,
)
from kafka_index.storage.directories import Entry, scan_directory
from kafka_index.storage.partition_files import SegmentFile
from kafka_index.storage.segment_table import PartitionSegments
from kafka_index.stores import store_of

_ENTRIES = {OFFSET_INDEX_SUFFIX: OFFSET_ENTRY, TIME_INDEX_SUFFIX: TIME_ENTRY}
_LOG_ENDINGS = ("", *TRANSIENT_SUFFIXES)


def lost_logs_of(partition: PartitionSegments) -> dict[int, int]:
    """Return what `lost_logs` finds in the directory of a partition."""
    entries: Iterable[Entry] | None = partition.lone_indexes
    if entries is None:
        entries = scan_directory(partition.directory)
    return lost_logs(entries, partition.files())


def lost_logs(entries: Iterable[Entry], segments: Sequence[SegmentFile]) -> dict[int, int]:
    """Return the logs of a partition that are gone, and neither deleted nor replaced.

    The directory has been scanned. By base offset, the value is the offset after the last one that
    the index files know.
    """
    by_name = {entry.name: entry for entry in entries}
    live = sorted(segments, key=lambda segment: segment.base_offset)
    bases = [segment.base_offset for segment in live]
    found: dict[int, int] = {}
    for name, entry in sorted(by_name.items()):
        parsed = parse_segment_file(name)
        if parsed is None or parsed.transient or parsed.kind not in INDEX_SUFFIXES:
            continue
        base_offset = parsed.base_offset
        log_name = segment_file_name(base_offset, LOG_SUFFIX)
        if any(log_name + ending in by_name for ending in _LOG_ENDINGS):
            continue
        before = bisect(bases, base_offset)
        # What a swapped log replaces is being deleted, or was.
        if before and live[before - 1].log_path.endswith(SWAP_SUFFIX):
            continue
        end = _known_end(entry, base_offset, parsed.kind)
        if end is not None:
            found[base_offset] = max(end, found.get(base_offset, 0))
    return found


def _known_end(entry: Entry, base_offset: int, suffix: str) -> int | None:
    """Return the offset after the last one that an index knows; None for one without entries.

    Raises `KafkaIndexError` if the disk or the store fails.
    """
    if entry.why_not_a_file() is not None:
        return None
    try:
        data = store_of(entry.path).read(entry.path)
    except FileNotFoundError as error:
        raise ReadError("the file was removed while it was read", path=entry.path) from error
    except KafkaIndexError as error:
        if is_retriable(error):
            raise
        return base_offset + 1
    if not data:
        return None
    dtype = _ENTRIES.get(suffix)
    if dtype is None:
        return base_offset + 1
    if not data.strip(b"\0"):
        # Preallocated.
        return None
    entries = np.frombuffer(data, dtype, len(data) // dtype.itemsize)
    offsets = entries["relative_offset"].astype(np.int64)
    offsets = offsets[: np.flatnonzero(entries != np.zeros((), dtype)).max(initial=-1) + 1]
    is_sound = len(offsets) > 0 and offsets[0] >= 0 and bool((np.diff(offsets) >= 0).all())
    return base_offset + 1 + (int(offsets[-1]) if is_sound else 0)
