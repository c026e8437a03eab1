"""Scanned segments as rows of a table: from the tasks that scan to those that publish."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple
from itertools import groupby

import orjson
import pyarrow as pa

from kafka_index.build.report import REPORT_SCHEMA, report_rows, report_table
from kafka_index.build.staged_segment import PublishedFile, StagedSegment
from kafka_index.execution.tasks import BIN, balance
from kafka_index.storage import SegmentFile

#: A row per segment: its report, and the rest of a `StagedSegment`.
STAGED_SCHEMA = pa.schema(
    [
        *REPORT_SCHEMA,
        pa.field("listed_size_bytes", pa.int64(), nullable=False),
        pa.field("log_mtime_ns", pa.int64(), nullable=False),
        pa.field("is_last", pa.bool_(), nullable=False),
        pa.field("log_version", pa.string(), nullable=False),
        pa.field("directory", pa.string(), nullable=False),
        pa.field("attempt_id", pa.string()),
        pa.field("is_withheld", pa.bool_(), nullable=False),
        # As JSON: tables with lists cannot be joined.
        pa.field("files", pa.string(), nullable=False),
    ]
)
#: How many segments the partition of a row has: a task knows by it when all rows have arrived.
PARTITION_SEGMENTS = "partition_segments"
#: What is handed to the tasks that publish.
PUBLISHING_SCHEMA = STAGED_SCHEMA.append(
    pa.field(PARTITION_SEGMENTS, pa.int64(), nullable=False)
).append(pa.field(BIN, pa.int32(), nullable=False))

_PARTITION = ["topic", "partition"]
_ORDER = [(name, "ascending") for name in (*_PARTITION, "segment_base_offset")]


def staged_table(staged: Sequence[StagedSegment]) -> pa.Table:
    """Return staged segments as an Arrow table of `STAGED_SCHEMA`."""
    rows = report_table([each.report for each in staged])
    rest = [
        [each.segment.log_size_bytes for each in staged],
        [each.segment.log_mtime_ns for each in staged],
        [each.segment.is_last for each in staged],
        [each.segment.log_version for each in staged],
        [each.directory for each in staged],
        [each.attempt_id for each in staged],
        [each.is_withheld for each in staged],
        [orjson.dumps([astuple(file) for file in each.files]).decode() for each in staged],
    ]
    fields = list(STAGED_SCHEMA)[len(REPORT_SCHEMA) :]
    arrays = [pa.array(values, field.type) for values, field in zip(rest, fields, strict=True)]
    return pa.table([*rows.columns, *arrays], schema=STAGED_SCHEMA)


def read_staged(table: pa.Table) -> list[StagedSegment]:
    """Return the staged segments of rows of `STAGED_SCHEMA`, in their order."""
    reports = report_rows(table.select(REPORT_SCHEMA.names))
    names = STAGED_SCHEMA.names[len(REPORT_SCHEMA) :]
    columns = [table.column(name).to_pylist() for name in names]
    rest = zip(*columns, strict=True)
    return [
        StagedSegment(
            SegmentFile(row.topic, row.partition, row.segment_base_offset, row.log_path, *listed),
            row,
            directory,
            attempt_id,
            is_withheld,
            tuple(PublishedFile(*file) for file in orjson.loads(files)),
        )
        for row, (*listed, directory, attempt_id, is_withheld, files) in zip(
            reports, rest, strict=True
        )
    ]


def plan_publishing(staged: pa.Table, plan: pa.Table, *, bins: int) -> pa.Table:
    """Spread the partitions of staged segments over bins of about equal numbers of segments.

    The plan, of `kafka_index.build.WORK_SCHEMA`, has the segments that were to be staged. A
    partition that lacks a row is not published. Returns `PUBLISHING_SCHEMA`.
    """
    expected = _segments_of(plan)
    found = _segments_of(staged)
    bin_of = balance(found[PARTITION_SEGMENTS].to_pylist(), bins)
    bins_of_partitions = found.select(_PARTITION).append_column(BIN, pa.array(bin_of, pa.int32()))
    rows = staged.join(expected, _PARTITION, join_type="inner")
    rows = rows.join(bins_of_partitions, _PARTITION, join_type="inner")
    return rows.select(PUBLISHING_SCHEMA.names).sort_by(_ORDER).cast(PUBLISHING_SCHEMA)


def _segments_of(rows: pa.Table) -> pa.Table:
    """Return the number of segments of each partition."""
    counts = rows.group_by(_PARTITION, use_threads=False).aggregate([([], "count_all")])
    return counts.rename_columns([*_PARTITION, PARTITION_SEGMENTS])


def whole_partitions(batches: Iterable[pa.RecordBatch]) -> Iterator[list[StagedSegment]]:
    """Yield the segments of each partition whose rows have all arrived, in any order.

    An input of `PUBLISHING_SCHEMA` that ends early looks like one that is done (a cancelled Spark
    task sees that), so the count decides.
    """
    table = pa.Table.from_batches(batches, schema=PUBLISHING_SCHEMA)
    table = table.sort_by(_ORDER)
    rows = zip(read_staged(table), table.column(PARTITION_SEGMENTS).to_pylist(), strict=True)
    for _, members in groupby(rows, key=lambda row: (row[0].report.topic, row[0].report.partition)):
        staged, expected = zip(*members, strict=True)
        if len(staged) == expected[0]:
            yield list(staged)
