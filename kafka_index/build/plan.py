"""The plan of a build: from listed segments to bins of work. Nothing is read or written here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

import pyarrow as pa

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
        pa.field(BIN, pa.int32(), nullable=False),
    ]
)

# What opening, creating and publishing cost, in bytes that could be scanned meanwhile.
_SEGMENT_COST_BYTES = 4 << 20


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
    table = pa.table(
        [
            [segment.topic for segment in segments],
            [segment.partition for segment in segments],
            [segment.base_offset for segment in segments],
            [segment.log_path for segment in segments],
            sizes,
            [segment.log_mtime_ns for segment in segments],
            [segment.is_last for segment in segments],
            balance(sizes, bins, overhead=_SEGMENT_COST_BYTES),
        ],
        schema=WORK_SCHEMA,
    )
    keys = (BIN, "topic", "partition", "segment_base_offset")
    return table.sort_by([(key, "ascending") for key in keys])


def plan_waves(segments: Sequence[SegmentFile], *, wave_bytes: int) -> list[list[SegmentFile]]:
    """Part segments into waves of whole partitions, done one after the other.

    Parameters
    ----------
    segments : sequence of SegmentFile
        By partition, as `list_dump` returns them.
    wave_bytes : int
        A wave ends with the partition that reaches as much.
    """
    waves: list[list[SegmentFile]] = []
    size = wave_bytes
    for _, members in groupby(segments, key=lambda one: (one.topic, one.partition)):
        if size >= wave_bytes:
            waves.append([])
            size = 0
        partition = list(members)
        waves[-1] += partition
        size += sum(one.log_size_bytes for one in partition)
    return waves


def read_plan(rows: pa.Table | pa.RecordBatch) -> Iterator[SegmentFile]:
    """Return the segments of rows of `WORK_SCHEMA`, in their order."""
    columns = [rows.column(name).to_pylist() for name in WORK_SCHEMA.names if name != BIN]
    return map(SegmentFile, *columns)
