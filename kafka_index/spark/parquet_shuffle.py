"""Rows of a Parquet input that Spark moves: those of segments that no task can read by itself.

They are too large to be sorted in a task, or spread thinly over the input.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from kafka_index.build.parquet_columns import BATCH, KEY_COLUMNS, POSITION
from kafka_index.build.parquet_input import ROW_COUNT, ParquetInput, RowGroup, read_row_group
from kafka_index.build.parquet_rows import batch_rows_of, keep_segments, values_of_segments
from kafka_index.build.segment_counts import SegmentCount, SegmentKey
from kafka_index.execution.tasks import BIN, balance
from kafka_index.spark.tasks import spark_schema, task
from kafka_index.spark.workers import read_works, work_rows


@dataclass(frozen=True, slots=True)
class _ShuffledGroup:
    """A row group, and of the segments in it that are shuffled their numbers of rows and bins."""

    group: RowGroup
    row_counts: dict[SegmentKey, int]
    bins: dict[SegmentKey, int]


def shuffled_rows(
    session: SparkSession,
    source: ParquetInput,
    groups: Sequence[RowGroup],
    segments: Sequence[SegmentCount],
    bins: int,
    *,
    readers: int,
) -> DataFrame:
    """Return the rows of segments with their number, sorted, a partition of the frame a bin.

    The row groups are by number; at most `readers` tasks read.
    """
    works = _shuffled_groups(groups, segments, bins)
    readers = min(readers, len(works))
    numbers = balance([work.group.rows for work in works], readers)
    read = task(partial(read_shuffled, source=source))
    return (
        work_rows(session, works, numbers)
        .repartitionById(readers, BIN)
        .mapInArrow(read, spark_schema(_shuffled_schema(source)))
        .repartitionById(bins, BIN)
        .sortWithinPartitions(*KEY_COLUMNS, POSITION)
    )


def read_shuffled(
    batches: Iterator[pa.RecordBatch], *, source: ParquetInput
) -> Iterator[pa.RecordBatch]:
    """Read the rows of segments that are to be shuffled, with their bins: a task's function."""
    schema = _shuffled_schema(source)
    for work in read_works(batches):
        group = work.group
        for batch in read_row_group(source, group, list(source.columns), batch_rows_of(group)):
            kept = keep_segments(batch, work.row_counts)
            if kept.num_rows:
                bins = pa.array(values_of_segments(kept, work.bins))
                yield kept.append_column(BIN, bins).cast(schema)


def _shuffled_schema(source: ParquetInput) -> pa.Schema:
    fields = [
        pa.field(each.name, pa.binary()) if each.name == BATCH else each for each in source.schema
    ]
    return pa.schema([*fields, pa.field(ROW_COUNT, pa.int64()), pa.field(BIN, pa.int32())])


def _shuffled_groups(
    groups: Sequence[RowGroup], segments: Sequence[SegmentCount], bins: int
) -> list[_ShuffledGroup]:
    numbers = balance([segment.row_count for segment in segments], bins)
    found: dict[int, _ShuffledGroup] = {}
    for segment, bin_number in zip(segments, numbers, strict=True):
        for number in segment.row_groups:
            if number not in found:
                found[number] = _ShuffledGroup(groups[number], {}, {})
            found[number].row_counts[segment.key] = segment.row_count
            found[number].bins[segment.key] = bin_number
    return list(found.values())
