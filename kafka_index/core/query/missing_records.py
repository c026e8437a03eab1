"""Missing offsets in the logs that a command has read, found by the same rule as in ``verify``.

Reading a log tracks the offsets in its batches. If offsets are missing, or the start or end of a
log contradicts checkpoints, `kafka_index.core.log.missing_offsets` decides whether records are
lost.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import pyarrow as pa

from kafka_index.core.cluster.listing import DumpMetadata, find_cluster
from kafka_index.core.format.integers import INT64_MAX
from kafka_index.core.format.names import TopicPartition
from kafka_index.core.fs.registry import scan_directory, store_of
from kafka_index.core.job.result import MAX_GAPS, OffsetGap
from kafka_index.core.job.result import MissingOffsets as MissingReport
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
    """A partition, and the range of offsets that a command should read.

    `first_offset` is None for the start of the log. `end_offset` is exclusive, and None for the end
    of the log. `has_later_batches` is True if the log has batches after the range.
    """

    files: PartitionFiles
    first_offset: int | None = None
    end_offset: int | None = None
    has_later_batches: bool = False

    @property
    def partition(self) -> TopicPartition:
        return TopicPartition(self.files.topic, self.files.partition)


@dataclass
class GapFinder:
    """Finds the missing offsets of partitions after they were read.

    If `metadata` is None and offsets are missing, the metadata log in the data directories is read.
    """

    data_directories: Sequence[str]
    max_decompressed_bytes: int
    metadata: DumpMetadata | None = None
    _roots: DataDirectories = field(default_factory=DataDirectories)

    @cached_property
    def _cluster(self) -> DumpMetadata:
        if self.metadata is not None:
            return self.metadata
        return find_cluster(None, self.data_directories, self.max_decompressed_bytes)

    def find(self, read_range: ReadPartition, read_logs: Sequence[ScannedLog]) -> MissingReport:
        """Return the missing offsets in the requested range.

        `read_logs` are the log ranges that were read, in order. Raises `KafkaIndexError` if a file
        cannot be read that shows whether records are lost.
        """
        logs = _add_empty_logs(read_range, read_logs)
        if not logs:
            return MissingReport()
        lost_ends = self._lost_ends(read_range.files)
        missing_ranges = self._find_missing(read_range, logs, lost_ends, DumpMetadata(), ())
        if not missing_ranges.unexplained and not missing_ranges.omitted_counts:
            return MissingReport()
        missing_ranges = self._find_missing(
            read_range, logs, lost_ends, self._cluster, _later_segments(read_range, logs)
        )
        return _clip_to_range(read_range, logs, missing_ranges)

    def _find_missing(
        self,
        read_range: ReadPartition,
        logs: Sequence[ScannedLog],
        lost_ends: dict[int, int],
        cluster: DumpMetadata,
        later_segments: Sequence[SegmentFile],
    ) -> MissingOffsets:
        partition = read_range.partition
        root = self._roots.for_partition(read_range.files.segments[-1].partition_directory)
        image, policy = cluster.image, None
        is_topic_known = image is not None and image.find_topic(partition.topic) is not None
        if image is not None and is_topic_known:
            policy = image.cleanup_policy(partition.topic, {}, cluster.node_id)
        known_offsets = CheckpointOffsets.read(
            root, partition, policy, is_topic_known=is_topic_known
        )
        if read_range.files.is_tiered or (image is not None and image.is_tiered(partition.topic)):
            known_offsets = replace(known_offsets, start_offset=None)
        elif not is_topic_known:
            # Offsets before the first local segment may be in tiered storage.
            known_offsets = replace(known_offsets, is_start_exact=False)
        if read_range.end_offset is not None and known_offsets.end_offset is not None:
            # Logs that were not read may contain the offsets after the requested range.
            known_offsets = replace(
                known_offsets, end_offset=min(known_offsets.end_offset, read_range.end_offset)
            )
        return missing_offsets(
            logs,
            known_offsets,
            shared_budget(self.max_decompressed_bytes),
            lost_ends,
            later_segments,
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
        self._read_logs: dict[TopicPartition, list[ScannedLog]] = defaultdict(list)
        self._reached: tuple[TopicPartition, int] | None = None

    def add(self, read_logs: Sequence[ScannedLog], records: Sequence[pa.RecordBatch]) -> None:
        for log in read_logs:
            self._read_logs[log.segment.topic_partition].append(log)
        if read_logs and records:
            last_offset = records[-1].column("offset")[-1].as_py()
            self._reached = read_logs[-1].segment.topic_partition, last_offset

    def find(self, *, is_complete: bool = True) -> MissingReport:
        """Return the missing offsets of all partitions.

        If the read is not complete, only offsets up to the last record that was read are
        considered.
        """
        finder = self._finder
        if finder is None:
            return MissingReport()
        read_ranges = [
            read_range if is_complete else self._limit_to_reached(read_range)
            for read_range in self._partitions
            if is_complete or read_range.partition in self._read_logs
        ]
        return MissingReport.joined(
            finder.find(read_range, self._read_logs[read_range.partition])
            for read_range in read_ranges
        )

    def _limit_to_reached(self, read_range: ReadPartition) -> ReadPartition:
        if self._reached is None or self._reached[0] != read_range.partition:
            return read_range
        return replace(read_range, end_offset=self._reached[1] + 1, has_later_batches=True)


def _add_empty_logs(read_range: ReadPartition, read_logs: Iterable[ScannedLog]) -> list[ScannedLog]:
    """Return the log ranges that were read, and an empty range for each empty log or bound."""
    start_offset, end_offset = read_range.first_offset or 0, read_range.end_offset
    empty_logs = [
        _empty_log(segment, segment.base_offset)
        for segment in read_range.files.segments
        if not segment.log_size_bytes
        and start_offset <= segment.base_offset
        and (end_offset is None or segment.base_offset < end_offset)
    ]
    logs = sorted(
        [*read_logs, *empty_logs],
        key=lambda log: (log.segment.base_offset, log.offsets.base_offset),
    )
    if logs and end_offset is not None and read_range.has_later_batches:
        logs.append(_empty_log(logs[-1].segment, end_offset))
    if read_range.first_offset is not None:
        # If no log was read, the log may end after the start.
        segment = logs[0].segment if logs else read_range.files.segments[-1]
        logs.insert(0, _empty_log(segment, start_offset))
    return logs


def _empty_log(segment: SegmentFile, offset: int) -> ScannedLog:
    return ScannedLog(segment, LogOffsets(offset), has_counts=True)


def _later_segments(read_range: ReadPartition, logs: Sequence[ScannedLog]) -> list[SegmentFile]:
    """Return the segments with batches after the log ranges that were read."""
    last_base_offset = max(log.segment.base_offset for log in logs)
    read_bytes = max(
        log.offsets.end_bytes for log in logs if log.segment.base_offset == last_base_offset
    )
    return [
        segment
        for segment in read_range.files.segments
        if segment.base_offset > last_base_offset
        or (segment.base_offset == last_base_offset and read_bytes < segment.log_size_bytes)
    ]


def _clip_to_range(
    read_range: ReadPartition, logs: Sequence[ScannedLog], missing_offsets: MissingOffsets
) -> MissingReport:
    """Restrict missing offsets to the requested range."""
    partition = TopicPartition(read_range.files.topic, read_range.files.partition)
    start_offset = read_range.first_offset or 0
    end_offset = INT64_MAX if read_range.end_offset is None else read_range.end_offset
    gaps: dict[tuple[int, int], OffsetGap] = {}
    for missing_range in missing_offsets.unexplained:
        first_missing, end_missing = (
            max(missing_range.first_offset, start_offset),
            min(missing_range.end_offset, end_offset),
        )
        if first_missing < end_missing:
            clipped = replace(missing_range, first_offset=first_missing, end_offset=end_missing)
            gaps[first_missing, end_missing] = clipped.as_gap(
                partition, logs[missing_range.log].segment.log_path
            )
    ranges = tuple(gaps.values())
    unlisted_count = sum(missing_offsets.omitted_counts.values()) + max(len(ranges) - MAX_GAPS, 0)
    return MissingReport(ranges[:MAX_GAPS], unlisted_count)
