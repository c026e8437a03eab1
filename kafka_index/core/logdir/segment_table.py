"""The segments of a dump as columns, and the detection of lost logs whose index files remain.

Retention and the log cleaner rename and delete all files of a segment together, the log first. If
only an index file remains, its log was therefore lost in another way. Producer snapshots are not
used, because they also exist at other offsets. Source: ``replaceSegments`` and
``deleteSegmentFiles`` of Kafka's ``LocalLog``.
"""

from __future__ import annotations

import os
from bisect import bisect
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from operator import attrgetter
from typing import overload

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from kafka_index.core.errors import KafkaIndexError, ReadError, is_retriable
from kafka_index.core.format.integers import INT64_MAX
from kafka_index.core.format.longs import Longs
from kafka_index.core.format.names import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    INDEX_SUFFIXES,
    LOG_SUFFIX,
    OFFSET_DIGITS,
    OFFSET_INDEX_SUFFIX,
    SWAP_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSIENT_SUFFIXES,
    TopicPartition,
    parse_segment_file,
    segment_file_name,
)
from kafka_index.core.format.records import OFFSET_ENTRY, TIME_ENTRY
from kafka_index.core.fs.registry import scan_directory, store_of
from kafka_index.core.fs.store import Entry
from kafka_index.core.logdir.partition_files import SegmentFile

#: Each row has the fields of a `SegmentFile`.
SEGMENT_SCHEMA = pa.schema(
    [
        pa.field("topic", pa.string(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("segment_base_offset", pa.int64(), nullable=False),
        pa.field("log_path", pa.string(), nullable=False),
        pa.field("log_size_bytes", pa.int64(), nullable=False),
        pa.field("log_mtime_ns", pa.int64(), nullable=False),
        pa.field("is_last", pa.bool_(), nullable=False),
        pa.field("log_version", pa.string(), nullable=False),
    ]
)

_LOG_NAME_LENGTH = OFFSET_DIGITS + len(LOG_SUFFIX)
_MAX_DIGITS = str(INT64_MAX).zfill(OFFSET_DIGITS)
_ODD_ENDINGS = (SWAP_SUFFIX, CLEANED_SUFFIX, DELETED_SUFFIX)
_ENTRIES = {OFFSET_INDEX_SUFFIX: OFFSET_ENTRY, TIME_INDEX_SUFFIX: TIME_ENTRY}
_LOG_ENDINGS = ("", *TRANSIENT_SUFFIXES)


@dataclass(frozen=True, eq=False, slots=True)
class PartitionSegments:
    """The live segments of a partition as columns of shape (n,), sorted by base offset.

    Attributes
    ----------
    versions
        Versions of the ``.log`` objects in an object store, otherwise None.
    irregular
        The segments as objects, if the columns are not sufficient, as for swap files.
    start_entries
        The leader epoch checkpoint, and snapshots at or below the first base offset. None unless
        the partition was listed by pages.
    lone_indexes
        Index files without a ``.log``. None unless the partition was listed by pages.
    """

    partition: TopicPartition
    directory: str
    base_offsets: Longs
    sizes_bytes: Longs
    mtimes_ns: Longs
    versions: pa.StringArray | None = None
    irregular: tuple[SegmentFile, ...] = ()
    start_entries: tuple[Entry, ...] | None = None
    lone_indexes: tuple[Entry, ...] | None = None

    @classmethod
    def from_files(cls, segments: Sequence[SegmentFile]) -> PartitionSegments:
        """Convert one or more segments of a partition, in order of base offset."""
        first_segment = segments[0]
        versions = [segment.log_version for segment in segments]
        plain = cls(
            first_segment.topic_partition,
            first_segment.partition_directory,
            np.array([segment.base_offset for segment in segments], np.int64),
            np.array([segment.log_size_bytes for segment in segments], np.int64),
            np.array([segment.log_mtime_ns for segment in segments], np.int64),
            pa.array(versions, pa.string()) if any(versions) else None,
        )
        return (
            plain if plain.files() == list(segments) else replace(plain, irregular=tuple(segments))
        )

    def __len__(self) -> int:
        return len(self.base_offsets)

    def files(self) -> list[SegmentFile]:
        if self.irregular:
            return list(self.irregular)
        topic, partition = self.partition.topic, self.partition.partition
        last_index = len(self) - 1
        columns = (
            self.base_offsets.tolist(),
            self.sizes_bytes.tolist(),
            self.mtimes_ns.tolist(),
            self.log_versions().to_pylist(),
        )
        return [
            SegmentFile(
                topic,
                partition,
                base_offset,
                os.path.join(self.directory, segment_file_name(base_offset, LOG_SUFFIX)),
                size_bytes,
                mtime_ns,
                index == last_index,
                version,
            )
            for index, (base_offset, size_bytes, mtime_ns, version) in enumerate(
                zip(*columns, strict=True)
            )
        ]

    @property
    def size_bytes(self) -> int:
        return int(self.sizes_bytes.sum())

    def log_names(self) -> pa.StringArray:
        if self.irregular:
            return pa.array(
                [os.path.basename(segment.log_path) for segment in self.irregular], pa.string()
            )
        digits = pc.utf8_lpad(pa.array(self.base_offsets).cast(pa.string()), OFFSET_DIGITS, "0")
        return pc.binary_join_element_wise(digits, LOG_SUFFIX, "")

    def log_paths(self) -> pa.StringArray:
        if self.irregular:
            return pa.array([segment.log_path for segment in self.irregular], pa.string())
        folder = os.path.join(self.directory, "")
        return pc.binary_join_element_wise(folder, self.log_names(), "")

    def log_versions(self) -> pa.StringArray:
        """Return the versions of the ``.log`` objects, empty strings if the store has none."""
        if self.irregular:
            return pa.array([segment.log_version for segment in self.irregular], pa.string())
        return pa.repeat("", len(self)) if self.versions is None else self.versions

    def rows(self) -> pa.RecordBatch:
        """Return the segments as rows of `SEGMENT_SCHEMA`."""
        count = len(self)
        if self.irregular:
            is_last = pa.array([segment.is_last for segment in self.irregular], pa.bool_())
        else:
            is_last = pa.array(np.arange(count) == count - 1)
        columns = [
            pa.repeat(self.partition.topic, count),
            pa.repeat(pa.scalar(self.partition.partition, pa.int32()), count),
            pa.array(self.base_offsets),
            self.log_paths(),
            pa.array(self.sizes_bytes),
            pa.array(self.mtimes_ns),
            is_last,
            self.log_versions(),
        ]
        return pa.record_batch(columns, schema=SEGMENT_SCHEMA)


class SegmentTable(Sequence[SegmentFile]):
    """The segments of a dump, sorted by topic, partition and base offset."""

    def __init__(self, partitions: Sequence[PartitionSegments]) -> None:
        self.partitions = partitions
        self._row_ends = np.cumsum([len(partition) for partition in partitions], dtype=np.int64)

    @classmethod
    def from_files(cls, segments: Iterable[SegmentFile]) -> SegmentTable:
        """Create a table from segments that are sorted by topic, partition and base offset."""
        if isinstance(segments, SegmentTable):
            return segments
        key = attrgetter("topic", "partition")
        return cls(
            [
                PartitionSegments.from_files(list(partition_segments))
                for _, partition_segments in groupby(segments, key=key)
            ]
        )

    @property
    def total_bytes(self) -> int:
        return sum(partition.size_bytes for partition in self.partitions)

    def __len__(self) -> int:
        return int(self._row_ends[-1]) if len(self._row_ends) else 0

    def __iter__(self) -> Iterator[SegmentFile]:
        """Iterate over the segments, creating the objects partition by partition."""
        for partition in self.partitions:
            yield from partition.files()

    @overload
    def __getitem__(self, index: int) -> SegmentFile: ...
    @overload
    def __getitem__(self, index: slice) -> list[SegmentFile]: ...
    def __getitem__(self, index: int | slice) -> SegmentFile | list[SegmentFile]:
        if isinstance(index, slice):
            return [self[segment_number] for segment_number in range(*index.indices(len(self)))]
        segment_number = index + len(self) if index < 0 else index
        if not 0 <= segment_number < len(self):
            raise IndexError(index)
        partition_number = int(np.searchsorted(self._row_ends, segment_number, "right"))
        first_number = int(self._row_ends[partition_number - 1]) if partition_number else 0
        return self.partitions[partition_number].files()[segment_number - first_number]


def list_plain_partition(partition: TopicPartition, directory: str) -> PartitionSegments | None:
    """List a local partition directory; None if it must be listed entry by entry.

    The result is None after an interrupted compaction, split or deletion, if a link exists, or if a
    ``.log`` is not a regular file or cannot be inspected. Raises `OSError` if the directory cannot
    be read.
    """
    names: list[str] = []
    sizes: list[int] = []
    times: list[int] = []
    with os.scandir(directory) as entries:
        for entry in entries:
            name = entry.name
            if not name.endswith(LOG_SUFFIX):
                if name.endswith(_ODD_ENDINGS) or entry.is_symlink():
                    return None
                continue
            if len(name) != _LOG_NAME_LENGTH or not entry.is_file(follow_symlinks=False):
                return None
            try:
                status = entry.stat()
            except OSError:
                return None
            names.append(name)
            sizes.append(status.st_size)
            times.append(status.st_mtime_ns)
    digits = [name[:OFFSET_DIGITS] for name in names]
    joined = "".join(digits)
    # A number of 20 digits can exceed the maximum offset; the file is then not a log.
    if names and not (joined.isascii() and joined.isdigit() and max(digits) <= _MAX_DIGITS):
        return None
    offsets = np.array(list(map(int, digits)), np.int64)
    order = np.argsort(offsets)
    return PartitionSegments(
        partition,
        directory,
        offsets[order],
        np.array(sizes, np.int64)[order],
        np.array(times, np.int64)[order],
    )


def list_lost_logs(partition: PartitionSegments) -> dict[int, int]:
    """Find the lost logs of a partition, as `find_lost_logs` does."""
    entries: Iterable[Entry] | None = partition.lone_indexes
    if entries is None:
        entries = scan_directory(partition.directory)
    return find_lost_logs(entries, partition.files())


def find_lost_logs(entries: Iterable[Entry], segments: Sequence[SegmentFile]) -> dict[int, int]:
    """Return the lost logs of a partition: index files exist, but neither a log nor a replacement.

    The key is the base offset, and the value is the offset after the last entry of the index files.
    """
    by_name = {entry.name: entry for entry in entries}
    live_segments = sorted(segments, key=lambda segment: segment.base_offset)
    live_base_offsets = [segment.base_offset for segment in live_segments]
    end_offsets: dict[int, int] = {}
    for name, entry in sorted(by_name.items()):
        parsed = parse_segment_file(name)
        if parsed is None or parsed.transient or parsed.kind not in INDEX_SUFFIXES:
            continue
        base_offset = parsed.base_offset
        log_name = segment_file_name(base_offset, LOG_SUFFIX)
        logs = (by_name.get(log_name + ending) for ending in _LOG_ENDINGS)
        if any(log is not None and log.file_error() is None for log in logs):
            continue
        live_before = bisect(live_base_offsets, base_offset)
        # The live segment at or before this base offset is a swap file: it replaces the log, which
        # a broker has deleted or is deleting.
        if live_before and live_segments[live_before - 1].log_path.endswith(SWAP_SUFFIX):
            continue
        end_offset = _indexed_end_offset(entry, base_offset, parsed.kind)
        if end_offset is not None:
            end_offsets[base_offset] = max(end_offset, end_offsets.get(base_offset, 0))
    return end_offsets


def _indexed_end_offset(entry: Entry, base_offset: int, suffix: str) -> int | None:
    """Return the offset after the last entry of an index file, None if it has no entries.

    Raises `KafkaIndexError` if the disk or the store fails, and `ReadError` if the file is removed.
    """
    if entry.file_error() is not None:
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
        # The index file is preallocated, but has no entries.
        return None
    offsets = _index_entries(data, dtype)["relative_offset"].astype(np.int64)
    is_valid = len(offsets) > 0 and offsets[0] >= 0 and bool((np.diff(offsets) >= 0).all())
    return base_offset + 1 + (int(offsets[-1]) if is_valid else 0)


def _index_entries(data: bytes, dtype: np.dtype[np.void]) -> NDArray[np.void]:
    """Return the entries of an index file, without zero padding."""
    entries = np.frombuffer(data, dtype, len(data) // dtype.itemsize)
    return entries[: np.flatnonzero(entries != np.zeros((), dtype)).max(initial=-1) + 1]


def has_entries_beyond(segment: SegmentFile, first_offset: int, end_offset: int) -> bool:
    """Return whether an index file of a segment ends with an entry in a range of offsets.

    Raises `KafkaIndexError` if the disk or the store fails.
    """
    for suffix, dtype in _ENTRIES.items():
        path = segment.log_path.removesuffix(LOG_SUFFIX) + suffix
        store = store_of(path)
        if store.is_special(path):
            continue
        try:
            data = store.read(path)
        except FileNotFoundError:
            continue
        except KafkaIndexError as error:
            if is_retriable(error):
                raise
            continue
        entries = _index_entries(data, dtype)
        offsets = segment.base_offset + entries["relative_offset"].astype(np.int64)
        is_ordered = bool((np.diff(offsets) >= 0).all())
        if is_ordered and len(offsets) and first_offset <= offsets[-1] < end_offset:
            return True
    return False
