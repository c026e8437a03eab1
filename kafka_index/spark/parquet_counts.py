"""Counting a Parquet input on Spark: the rows of each segment, row group by row group."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from functools import partial

import pyarrow as pa
from pyspark.sql import SparkSession

from kafka_index.build.parquet_input import ParquetInput, RowGroup
from kafka_index.build.parquet_plan import SegmentPart, count_row_group, join_counts
from kafka_index.build.segment_counts import SegmentCount
from kafka_index.errors import InputError
from kafka_index.execution.tasks import BIN, balance
from kafka_index.spark.tasks import spark_schema, task
from kafka_index.spark.workers import read_works, work_rows

# A row per row group: its number, and what `count_row_group` found or why it cannot, pickled.
_GROUP, _COUNTED = "row_group", "counted"
_COUNTED_SCHEMA = pa.schema(
    [pa.field(_GROUP, pa.int64(), nullable=False), pa.field(_COUNTED, pa.binary(), nullable=False)]
)


def count_segments(
    session: SparkSession, source: ParquetInput, groups: Sequence[RowGroup], *, bins: int
) -> list[SegmentCount]:
    """Count the rows of each segment, row group by row group.

    Raises the errors of `kafka_index.build.parquet_plan.count_segments`.
    """
    bins = min(bins, len(groups))
    if not bins:
        return join_counts(source, groups, [])
    numbers = balance([group.rows for group in groups], bins)
    work = work_rows(session, list(enumerate(groups)), numbers)
    rows = work.repartitionById(bins, BIN).mapInArrow(
        task(partial(count_bin, source=source)), spark_schema(_COUNTED_SCHEMA)
    )
    counted = []
    for packed in rows.toArrow().sort_by(_GROUP).column(_COUNTED).to_pylist():
        parts = pickle.loads(packed)  # noqa: S301, written by our own tasks
        if isinstance(parts, InputError):
            raise parts
        counted.append(parts)
    return join_counts(source, groups, counted)


def count_bin(
    batches: Iterator[pa.RecordBatch], *, source: ParquetInput
) -> Iterator[pa.RecordBatch]:
    """Count the row groups of one bin: the function that a task of the first job runs."""
    for number, group in read_works(batches):
        counted: list[SegmentPart] | InputError
        try:
            counted = count_row_group(source, group)
        except InputError as error:
            counted = error
        yield pa.record_batch([[number], [pickle.dumps(counted)]], schema=_COUNTED_SCHEMA)
