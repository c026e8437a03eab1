"""The plan of a build: what is scanned together, and what is published together.

Nothing is read or written here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from kafka_index.execution.tasks import BIN, balance
from kafka_index.layout.names import TopicPartition
from kafka_index.storage import SegmentFile
from kafka_index.storage.segment_table import SEGMENT_SCHEMA, PartitionSegments, SegmentTable

#: A row per segment: a `SegmentFile`, and the bin that it is built in.
WORK_SCHEMA = SEGMENT_SCHEMA.append(pa.field(BIN, pa.int32(), nullable=False))

# What opening, creating and publishing cost, in bytes that could be scanned meanwhile.
_SEGMENT_COST_BYTES = 4 << 20
_BINS_PER_CORE = 4
_BIN_BYTES = 1 << 30
_MAX_BINS = 20_000
_WAVE_BYTES_PER_CORE = 1 << 30
_MAX_WAVES = 64
# So that the rows of a wave fit into the driver, however small the logs are.
_WAVE_SEGMENTS = 50_000
_NO_SIZES = np.empty(0, np.int64)


def plan_build(segments: Iterable[SegmentFile], *, bins: int) -> pa.Table:
    """Spread segments, which come by partition, over bins of equal work.

    Returns a table of `WORK_SCHEMA`, sorted by bin; in a bin, segments of a partition stand
    together. Some bins stay empty when there are fewer segments.
    """
    table = SegmentTable.of(segments)
    sizes = np.concatenate([each.sizes_bytes for each in table.partitions] or [_NO_SIZES])
    return _work_table(table, balance(sizes.tolist(), bins, overhead=_SEGMENT_COST_BYTES))


def plan_partitions(segments: Iterable[SegmentFile], *, bins: int) -> pa.Table:
    """Spread whole partitions over bins of equal work; otherwise as `plan_build`."""
    table = SegmentTable.of(segments)
    costs = [each.size_bytes + len(each) * _SEGMENT_COST_BYTES for each in table.partitions]
    lengths = [len(each) for each in table.partitions]
    return _work_table(table, np.repeat(balance(costs, bins), lengths).tolist())


def _work_table(segments: SegmentTable, bin_of: Sequence[int]) -> pa.Table:
    rows = segments.rows()
    table = rows.append_column(WORK_SCHEMA.field(BIN), pa.array(bin_of, pa.int32()))
    keys = (BIN, "topic", "partition", "segment_base_offset")
    return table.sort_by([(key, "ascending") for key in keys])


def read_plan(rows: pa.Table | pa.RecordBatch) -> Iterator[SegmentFile]:
    """Return the segments of rows of `WORK_SCHEMA`, in their order."""
    columns = [rows.column(name).to_pylist() for name in SEGMENT_SCHEMA.names]
    return map(SegmentFile, *columns)


def count_bins(segments: SegmentTable, cores: int) -> int:
    """Return enough bins to keep all cores busy to the end, none too large to lose."""
    wanted = max(_BINS_PER_CORE * cores, segments.total_bytes // _BIN_BYTES)
    return min(len(segments), wanted, _MAX_BINS)


def plan_waves(segments: SegmentTable, *, cores: int) -> list[SegmentTable]:
    """Split segments into waves of whole partitions, for an engine that builds wave by wave.

    A wave is what a killed run loses at most: a small share of the run, and yet enough to keep
    all cores busy.
    """
    max_bytes = max(cores * _WAVE_BYTES_PER_CORE, segments.total_bytes // _MAX_WAVES)
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


def partition_of(segment: SegmentFile) -> TopicPartition:
    """Return the partition of a segment."""
    return TopicPartition(segment.topic, segment.partition)
