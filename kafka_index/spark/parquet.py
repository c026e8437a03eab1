"""Building from Parquet on Spark: the rows of a segment meet in one task, in position order."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType

from kafka_index.build import BuildSettings
from kafka_index.build.parquet import NO_SEGMENT, build_stream, failed_report, require_target
from kafka_index.build.parquet_input import (
    BATCH,
    KEY_COLUMNS,
    POSITION,
    ROW_COUNT,
    ParquetForm,
    ParquetInput,
)
from kafka_index.build.parquet_plan import check_keys, why_no_segment
from kafka_index.build.parquet_rows import SegmentCount
from kafka_index.build.report import REPORT_SCHEMA, report_table
from kafka_index.errors import InputError
from kafka_index.spark.build import collect_report, report_batches
from kafka_index.spark.tasks import current_attempt_id, spark_schema, task
from kafka_index.tasks import BIN, balance

_SIZE = "log_size_bytes"


def build_parquet(
    session: SparkSession,
    source: ParquetInput,
    settings: BuildSettings,
    *,
    bins: int,
    fail_fast: bool = False,
) -> pa.Table:
    """Build the indexes of a Parquet input and return the whole report.

    The input is read twice: once to count each segment's rows (keys and positions only), once to
    build. A segment is published only when all the rows that were counted have come.

    Parameters
    ----------
    session : SparkSession
        Classic or Connect; it reads the files under the names that the driver knows them by.
    source : ParquetInput
        As `kafka_index.build.parquet_input.open_parquet` returns it.
    settings : BuildSettings
        `target_root` is needed, and every segment is built, whatever is there.
    bins : int
        Number of tasks.
    fail_fast : bool
        As for `kafka_index.spark.build.build_indexes`.

    Raises
    ------
    InputError
        No target folder, no rows, or rows that belong to no segment.
    """
    require_target(settings)
    rows = read_rows(session, source)
    counts, refused = split_refused(count_segments(rows, source).toArrow(), source)
    failed = [
        failed_report(source.path, segment, NO_SEGMENT, reason) for segment, reason in refused
    ]
    tables = [report_table(failed)]
    if counts.num_rows and not (fail_fast and failed):
        bins = min(bins, counts.num_rows)
        numbers = balance(counts[_SIZE].to_pylist(), bins)
        plan = counts.drop_columns([_SIZE]).append_column(BIN, pa.array(numbers, pa.int32()))
        reports = build_indexes(
            rows, session.createDataFrame(plan), source, settings, bins, fail_fast=fail_fast
        )
        tables.append(collect_report(reports))
    return pa.concat_tables(tables)


def read_rows(session: SparkSession, source: ParquetInput) -> DataFrame:
    """Return the input's rows in their canonical types; columns a file lacks are null there."""
    schema = StructType([StructField(name, _spark_type(name)) for name in source.columns])
    return session.read.schema(schema).parquet(*source.files)


def count_segments(rows: DataFrame, source: ParquetInput) -> DataFrame:
    """Return the rows, and about the bytes, of each segment."""
    end: Column = F.col(POSITION)
    if source.form is ParquetForm.METADATA:
        end = end + F.col("size_bytes")
    return rows.groupBy(*KEY_COLUMNS).agg(
        F.count("*").alias(ROW_COUNT), F.coalesce(F.max(end), F.lit(0)).alias(_SIZE)
    )


def build_indexes(
    rows: DataFrame,
    plan: DataFrame,
    source: ParquetInput,
    settings: BuildSettings,
    bins: int,
    *,
    fail_fast: bool = False,
) -> DataFrame:
    """Build the indexes of the segments of a plan, one task per bin.

    Parameters
    ----------
    rows : DataFrame
        `read_rows`.
    plan : DataFrame
        Keys, `ROW_COUNT` and the bin of each segment to build; small, it is broadcast.
    bins : int
        Number of bins.

    Returns
    -------
    DataFrame
        The build report.
    """
    function = partial(build_bin, source=source, settings=settings, fail_fast=fail_fast)
    return (
        rows.join(F.broadcast(plan), list(KEY_COLUMNS))
        .select(*source.columns, ROW_COUNT, BIN)
        .repartitionById(bins, BIN)
        .sortWithinPartitions(*KEY_COLUMNS, POSITION)
        .mapInArrow(task(function), spark_schema(REPORT_SCHEMA))
    )


def build_bin(
    batches: Iterator[pa.RecordBatch],
    *,
    source: ParquetInput,
    settings: BuildSettings,
    fail_fast: bool,
) -> Iterator[pa.RecordBatch]:
    """Build the segments of one bin: the function that a task runs."""
    schema = source.schema.append(pa.field(ROW_COUNT, pa.int64()))
    canonical = (batch.select(schema.names).cast(schema) for batch in batches)
    reports = build_stream(canonical, source, settings, attempt_id=current_attempt_id())
    yield from report_batches(reports, fail_fast=fail_fast)


def split_refused(
    counts: pa.Table, source: ParquetInput
) -> tuple[pa.Table, list[tuple[SegmentCount, str]]]:
    """Separate the segments that can be built from those that no broker has, with why.

    Raises
    ------
    InputError
        There are no rows, or some belong to no segment.
    """
    if counts.num_rows == 0:
        raise InputError("the Parquet input has no rows", path=source.path)
    check_keys(counts, source.path)
    keep = []
    refused = []
    columns = [counts[name].to_pylist() for name in (*KEY_COLUMNS, ROW_COUNT, _SIZE)]
    for segment in map(SegmentCount, *columns):
        reason = why_no_segment(segment)
        keep.append(reason is None)
        if reason is not None:
            refused.append((segment, reason))
    return counts.filter(pa.array(keep, pa.bool_())), refused


def _spark_type(name: str) -> StringType | BinaryType | LongType:
    if name == "topic":
        return StringType()
    return BinaryType() if name == BATCH else LongType()
