"""The plan of a build: what is scanned together, and what is published together.

Nothing is read or written here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

import pyarrow as pa

from kafka_index.layout.names import TopicPartition
from kafka_index.storage import SegmentFile
from kafka_index.tasks import BIN, balance

#: A row per segment: a `SegmentFile`, and the bin that it is built in.
WORK_SCHEMA = pa.schema(
    [
        pa.field("topic", pa.string(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("segment_base_offset", pa.int64(), nullable=False),
        pa.field("log_path", pa.string(), nullable=False),
        pa.field("log_size_bytes", pa.int64(), nullable=False),
        pa.field("log_mtime_ns", pa.int64(), nullable=False),
        pa.field("is_last", pa.bool_(), nullable=False),
        pa.field("log_version", pa.string(), nullable=False),
        pa.field(BIN, pa.int32(), nullable=False),
    ]
)

# What opening, creating and publishing cost, in bytes that could be scanned meanwhile.
_SEGMENT_COST_BYTES = 4 << 20
_BINS_PER_CORE = 4
_BIN_BYTES = 1 << 30
_MAX_BINS = 20_000
_WAVE_BYTES_PER_CORE = 1 << 30
_MAX_WAVES = 64


def plan_build(segments: Sequence[SegmentFile], *, bins: int) -> pa.Table:
    """Spread segments over bins of equal work.

    Parameters
    ----------
    segments : sequence of SegmentFile
        Any number.
    bins : int
        How many bins, 1 or more; some stay empty when there are fewer segments.

    Returns
    -------
    pa.Table
        `WORK_SCHEMA`, sorted by bin; in a bin, segments of a partition stand together.
    """
    sizes = [segment.log_size_bytes for segment in segments]
    return _work_table(segments, balance(sizes, bins, overhead=_SEGMENT_COST_BYTES))


def plan_partitions(segments: Sequence[SegmentFile], *, bins: int) -> pa.Table:
    """Spread whole partitions over bins of equal work; otherwise as `plan_build`."""
    partitions = [list(members) for _, members in groupby(segments, key=partition_of)]
    costs = [_size_bytes(each) + len(each) * _SEGMENT_COST_BYTES for each in partitions]
    bin_of = balance(costs, bins)
    numbers = [bin_of[at] for at, members in enumerate(partitions) for _ in members]
    return _work_table([segment for members in partitions for segment in members], numbers)


def _work_table(segments: Sequence[SegmentFile], bin_of: Sequence[int]) -> pa.Table:
    table = pa.table(
        [
            [segment.topic for segment in segments],
            [segment.partition for segment in segments],
            [segment.base_offset for segment in segments],
            [segment.log_path for segment in segments],
            [segment.log_size_bytes for segment in segments],
            [segment.log_mtime_ns for segment in segments],
            [segment.is_last for segment in segments],
            [segment.log_version for segment in segments],
            bin_of,
        ],
        schema=WORK_SCHEMA,
    )
    keys = (BIN, "topic", "partition", "segment_base_offset")
    return table.sort_by([(key, "ascending") for key in keys])


def read_plan(rows: pa.Table | pa.RecordBatch) -> Iterator[SegmentFile]:
    """Return the segments of rows of `WORK_SCHEMA`, in their order."""
    columns = [rows.column(name).to_pylist() for name in WORK_SCHEMA.names if name != BIN]
    return map(SegmentFile, *columns)


def count_bins(segments: Sequence[SegmentFile], cores: int) -> int:
    """Return enough bins to keep all cores busy to the end, none too large to lose."""
    total_bytes = sum(segment.log_size_bytes for segment in segments)
    wanted = max(_BINS_PER_CORE * cores, total_bytes // _BIN_BYTES)
    return min(len(segments), wanted, _MAX_BINS)


def plan_waves(segments: Sequence[SegmentFile], *, cores: int) -> list[list[SegmentFile]]:
    """Split segments into waves of whole partitions, for an engine that builds wave by wave.

    A wave is what a killed run loses at most: a small share of the run, and yet enough to keep
    all cores busy.
    """
    max_bytes = max(cores * _WAVE_BYTES_PER_CORE, _size_bytes(segments) // _MAX_WAVES)
    return partition_groups(segments, max_bytes=max_bytes, max_segments=len(segments))


def partition_groups(
    segments: Iterable[SegmentFile], *, max_bytes: int, max_segments: int
) -> list[list[SegmentFile]]:
    """Join whole partitions into groups that are scanned and published one after the other.

    Parameters
    ----------
    segments : iterable of SegmentFile
        By partition, as `list_dump` returns them.
    max_bytes, max_segments : int
        A group ends with the partition that reaches one of the two.

    Returns
    -------
    list of list of SegmentFile
        The largest partitions come first, so that small ones fill the cores at the end.
    """
    partitions = [list(members) for _, members in groupby(segments, key=partition_of)]
    partitions.sort(key=_size_bytes, reverse=True)
    return _joined(partitions, max_bytes, max_segments)


def segment_groups(
    segments: Iterable[SegmentFile], *, max_bytes: int, max_segments: int
) -> list[list[SegmentFile]]:
    """Join segments into groups, whatever their partition; see `partition_groups`."""
    largest_first = sorted(segments, key=lambda segment: -segment.log_size_bytes)
    return _joined([[segment] for segment in largest_first], max_bytes, max_segments)


def partition_of(segment: SegmentFile) -> TopicPartition:
    """Return the partition of a segment."""
    return TopicPartition(segment.topic, segment.partition)


def _joined(
    members: Iterable[list[SegmentFile]], max_bytes: int, max_segments: int
) -> list[list[SegmentFile]]:
    groups: list[list[SegmentFile]] = []
    size_bytes = 0
    for each in members:
        if not groups or size_bytes >= max_bytes or len(groups[-1]) >= max_segments:
            groups.append([])
            size_bytes = 0
        groups[-1] += each
        size_bytes += _size_bytes(each)
    return groups


def _size_bytes(segments: Iterable[SegmentFile]) -> int:
    return sum(segment.log_size_bytes for segment in segments)
