"""The plan of a build: partitions that are scanned together, and published together.

Nothing is read or written here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import TypeVar

from kafka_index.build.staged_segment import StagedSegment
from kafka_index.execution.engine import wave_bytes
from kafka_index.layout.names import TopicPartition
from kafka_index.storage import SegmentFile
from kafka_index.storage.segment_table import PartitionSegments, SegmentTable

# So that the rows of a wave fit into the driver, however small the logs are.
_WAVE_SEGMENTS = 50_000

_Segment = TypeVar("_Segment")


def plan_waves(segments: SegmentTable, *, cores: int) -> list[SegmentTable]:
    """Split segments into waves of whole partitions, for an engine that builds wave by wave.

    A wave is what a killed run loses at most: a small share of the run, and yet enough to keep
    all cores busy.
    """
    max_bytes = wave_bytes(segments.total_bytes, cores)
    return partition_groups(segments, max_bytes=max_bytes, max_segments=_WAVE_SEGMENTS)


def partition_groups(
    segments: SegmentTable, *, max_bytes: int, max_segments: int
) -> list[SegmentTable]:
    """Join whole partitions into groups that are scanned and published one after the other.

    A group ends with the partition that reaches one of the two limits. The largest partitions come
    first, so that small ones fill the cores at the end.
    """
    groups: list[list[PartitionSegments]] = []
    size_bytes = count = 0
    for each in sorted(segments.partitions, key=lambda each: -each.size_bytes):
        if not groups or size_bytes >= max_bytes or count >= max_segments:
            groups.append([])
            size_bytes = count = 0
        groups[-1].append(each)
        size_bytes += each.size_bytes
        count += len(each)
    return list(map(SegmentTable, groups))


def by_partition(staged: Iterable[StagedSegment]) -> list[list[StagedSegment]]:
    """Return the segments of each partition by base offset, of segments in any order."""

    def partition(each: StagedSegment) -> TopicPartition:
        return partition_of(each.segment)

    ordered = sorted(staged, key=lambda each: (partition(each), each.segment.base_offset))
    return [list(members) for _, members in groupby(ordered, key=partition)]


def join_partitions(
    partitions: Iterable[Sequence[_Segment]], *, max_segments: int
) -> list[list[Sequence[_Segment]]]:
    """Join partitions into groups that are published together, of so many segments at most.

    A larger partition is a group of its own.
    """
    groups: list[list[Sequence[_Segment]]] = []
    count = 0
    for members in partitions:
        if not groups or count + len(members) > max_segments:
            groups.append([])
            count = 0
        groups[-1].append(members)
        count += len(members)
    return groups


def partition_of(segment: SegmentFile) -> TopicPartition:
    """Return the partition of a segment."""
    return TopicPartition(segment.topic, segment.partition)
