"""Missing offsets in the logs that a command has read, by the same rule as in verify.

A read tracks which offsets its batches contain. If some are missing, or the start or end of a log
contradicts its checkpoints, `kafka_index.core.log.missing_offsets` decides whether they are lost.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import pyarrow as pa

from kafka_index.core.cluster.listing import FoundCluster, find_cluster
from kafka_index.core.format.integers import INT64_MAX
from kafka_index.core.format.names import TopicPartition
from kafka_index.core.fs.registry import scan_directory, store_of
from kafka_index.core.job.result import MAX_GAPS, OffsetGap
from kafka_index.core.job.result import MissingOffsets as Missing
from kafka_index.core.log.missing_offsets import (
    CheckpointOffsets,
    MissingOffsets,
    ScannedLog,
    missing_offsets,
)
from kafka_index.core.log.read.partition_files import PartitionFiles
from kafka_index.core.log.scan.log_offsets import LogOffsets
from kafka_index.core.logdir.data_directory import DataDirectories
from kafka_index.core.logdir.partition_files import SegmentFile
from kafka_index.core.logdir.segment_table import find_lost_logs
from kafka_index.core.records.decompression import shared_budget


@dataclass(frozen=True, slots=True)
class ReadPartition:
    """A partition, and the offsets that a command should read, the end exclusive.

    None means the start or the end of the log. `goes_on`: the log has batches after the end.
    """

    files: PartitionFiles
    first_offset: int | None = None
    end_offset: int | None = None
    goes_on: bool = False

    @property
    def partition(self) -> TopicPartition:
        return TopicPartition(self.files.topic, self.files.partition)


@dataclass
class GapFinder:
    """Finds the missing offsets of partitions after they were read.

    The metadata log is read only if offsets are missing; by default it is searched in the data
    directories.
    """

    data_directories: Sequence[str]
    max_decompressed_bytes: int
    given: FoundCluster | None = None
    _roots: DataDirectories = field(default_factory=DataDirectories)

    @cached_property
    def _cluster(self) -> FoundCluster:
        if self.given is not None:
            return self.given
        return find_cluster(None, self.data_directories, self.max_decompressed_bytes)

    def find(self, read: ReadPartition, seen: Sequence[ScannedLog]) -> Missing:
        """Return the missing offsets in the requested range.

        `seen` are the ranges of logs that were read, in order. Raises `KafkaIndexError` if a file
        needed for the decision cannot be read.
        """
        logs = _with_ends(read, seen)
        if not logs:
            return Missing()
        lost_ends = self._lost_ends(read.files)
        found = self._missing(read, logs, lost_ends, FoundCluster(), ())
        if not found.unexplained and not found.omitted_counts:
            return Missing()
        found = self._missing(read, logs, lost_ends, self._cluster, _later(read, logs))
        return _clipped(read, logs, found)

    def _missing(
        self,
        read: ReadPartition,
        logs: Sequence[ScannedLog],
        lost_ends: dict[int, int],
        cluster: FoundCluster,
        later: Sequence[SegmentFile],
    ) -> MissingOffsets:
        partition = read.partition
        root = self._roots.for_partition(read.files.segments[-1].partition_directory)
        image, policy = cluster.image, None
        is_known = image is not None and image.topic_named(partition.topic) is not None
        if image is not None and is_known:
            policy = image.cleanup_policy(partition.topic, {}, cluster.node_id)
        known = CheckpointOffsets.read(root, partition, policy, is_topic_known=is_known)
        if read.files.is_tiered or (image is not None and image.is_tiered(partition.topic)):
            known = replace(known, start_offset=None)
        elif not is_known:
            # Offsets before the first local segment may be in tiered storage.
            known = replace(known, is_start_exact=False)
        if read.end_offset is not None and known.end_offset is not None:
            # Offsets after the requested range may exist in logs that were not read.
            known = replace(known, end_offset=min(known.end_offset, read.end_offset))
        return missing_offsets(
            logs, known, shared_budget(self.max_decompressed_bytes), lost_ends, later
        )

    def _lost_ends(self, files: PartitionFiles) -> dict[int, int]:
        directory = files.segments[-1].partition_directory
        if files.is_tiered or store_of(directory).needs_requests:
            return {}
        return find_lost_logs(scan_directory(directory), files.segments)


class MissingInRead:
    """Collects the offsets read from partitions, and finds the missing offsets."""

    def __init__(self, partitions: Iterable[ReadPartition], finder: GapFinder | None) -> None:
        self._partitions = tuple(partitions)
        self._finder = finder
        self._seen: dict[TopicPartition, list[ScannedLog]] = defaultdict(list)
        self._reached: tuple[TopicPartition, int] | None = None

    def add(self, seen: Sequence[ScannedLog], records: Sequence[pa.RecordBatch]) -> None:
        for log in seen:
            self._seen[log.segment.topic_partition].append(log)
        if seen and records:
            last_offset = records[-1].column("offset")[-1].as_py()
            self._reached = seen[-1].segment.topic_partition, last_offset

    def find(self, *, is_complete: bool = True) -> Missing:
        """Return the missing offsets of all partitions, or up to a read's last record."""
        finder = self._finder
        if finder is None:
            return Missing()
        wanted = [
            read if is_complete else self._until_reached(read)
            for read in self._partitions
            if is_complete or read.partition in self._seen
        ]
        return Missing.joined(finder.find(read, self._seen[read.partition]) for read in wanted)

    def _until_reached(self, read: ReadPartition) -> ReadPartition:
        if self._reached is None or self._reached[0] != read.partition:
            return read
        return replace(read, end_offset=self._reached[1] + 1, goes_on=True)


def _with_ends(read: ReadPartition, seen: Iterable[ScannedLog]) -> list[ScannedLog]:
    """Return the parts that were read, empty logs between them, and the end of the range."""
    first, end = read.first_offset or 0, read.end_offset
    empty = [
        _nothing_from(segment, segment.base_offset)
        for segment in read.files.segments
        if not segment.log_size_bytes
        and first <= segment.base_offset
        and (end is None or segment.base_offset < end)
    ]
    logs = sorted(
        [*seen, *empty], key=lambda log: (log.segment.base_offset, log.offsets.base_offset)
    )
    if logs and end is not None and read.goes_on:
        logs.append(_nothing_from(logs[-1].segment, end))
    if read.first_offset is not None:
        # Nothing was left to read, so the log may have ended later.
        segment = logs[0].segment if logs else read.files.segments[-1]
        logs.insert(0, _nothing_from(segment, first))
    return logs


def _nothing_from(segment: SegmentFile, offset: int) -> ScannedLog:
    return ScannedLog(segment, LogOffsets(offset), has_counts=True)


def _later(read: ReadPartition, logs: Sequence[ScannedLog]) -> list[SegmentFile]:
    """Return the segments with batches after the parts that were read."""
    last = max(log.segment.base_offset for log in logs)
    read_bytes = max(log.offsets.end_bytes for log in logs if log.segment.base_offset == last)
    return [
        segment
        for segment in read.files.segments
        if segment.base_offset > last
        or (segment.base_offset == last and read_bytes < segment.log_size_bytes)
    ]


def _clipped(read: ReadPartition, logs: Sequence[ScannedLog], missing: MissingOffsets) -> Missing:
    """Restrict missing offsets to the requested range."""
    partition = TopicPartition(read.files.topic, read.files.partition)
    least = read.first_offset or 0
    most = INT64_MAX if read.end_offset is None else read.end_offset
    gaps: dict[tuple[int, int], OffsetGap] = {}
    for each in missing.unexplained:
        first, end = max(each.first_offset, least), min(each.end_offset, most)
        if first < end:
            clipped = replace(each, first_offset=first, end_offset=end)
            gaps[first, end] = clipped.as_gap(partition, logs[each.log].segment.log_path)
    ranges = tuple(gaps.values())
    more = sum(missing.omitted_counts.values()) + max(len(ranges) - MAX_GAPS, 0)
    return Missing(ranges[:MAX_GAPS], more)
