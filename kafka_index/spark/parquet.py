"""Rows of Parquet in no order on Spark, which sorts them before their segments are staged.

Files are read by our own tasks, from any store, with the credentials that each process finds.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from kafka_index.build import BuildSettings
from kafka_index.build.parquet import COUNT_SHARES, SHARES, stage_stream
from kafka_index.build.parquet_input import BATCH, KEY_COLUMNS, POSITION, ROW_COUNT, ParquetInput
from kafka_index.build.parquet_order import CountedInput, SegmentCount, read_row_groups
from kafka_index.build.report import FAILED
from kafka_index.build.staged_segment import StagedSegment
from kafka_index.build.waves import failed_rows
from kafka_index.execution import Workers
from kafka_index.execution.engine import BIN, balance
from kafka_index.spark.workers import (
    SparkWorkers,
    check_results,
    current_attempt_id,
    read_works,
    spark_schema,
    spark_workers,
)

_BINS_PER_CORE = 4
# Rows are read, and sorted.
_STAGES = 2
# Raw batches reach megabytes each, so rows alone do not bound a record batch.
_BYTES_SETTING = "spark.sql.execution.arrow.maxBytesPerBatch"
_BATCH_BYTES = 16 << 20
_STAGED = "staged"
_STAGED_SCHEMA = pa.schema([pa.field(_STAGED, pa.binary(), nullable=False)])


def stage_unsorted(
    workers: Workers,
    counted: CountedInput,
    known: Sequence[SegmentCount],
    settings: BuildSettings,
    *,
    fail_fast: bool,
) -> list[StagedSegment]:
    """Stage the known segments of an input that Spark has to sort.

    Executors read the files under the paths that the driver knows. With `fail_fast`, maybe not all
    segments are returned, once one has failed.
    """
    spark = spark_workers(workers)
    staging = partial(
        stage_rows,
        source=counted.source,
        settings=replace(settings, shares_staged=True),
        fail_fast=fail_fast,
    )
    rows = _sorted_rows(spark, counted, known)
    staged = rows.mapInArrow(spark.task(staging), spark_schema(_STAGED_SCHEMA))
    name = f"scan {len(known):,} segments"
    with (
        spark.jobs.job(name, items=SHARES - COUNT_SHARES, stages=_STAGES),
        _bounded_batches(spark.session),
    ):
        found = read_staged(staged.toArrow())
    if not (fail_fast and failed_rows(found)):
        check_results(len(found), len(known))
    return found


def read_rows(
    batches: Iterator[pa.RecordBatch], *, source: ParquetInput
) -> Iterator[pa.RecordBatch]:
    """Read the row groups of one bin: a task's function."""
    schema = _row_schema(source)
    for rows in read_row_groups(source, read_works(batches)):
        yield rows.cast(schema)


def stage_rows(
    batches: Iterator[pa.RecordBatch],
    *,
    source: ParquetInput,
    settings: BuildSettings,
    fail_fast: bool,
) -> Iterator[pa.RecordBatch]:
    """Stage segments from the sorted rows of a bin: a task's function.

    With `fail_fast`, none after a failed one.
    """
    schema = source.schema.append(pa.field(ROW_COUNT, pa.int64()))
    canonical = (batch.select(schema.names).cast(schema) for batch in batches)
    for staged in stage_stream(canonical, source, settings, attempt_id=current_attempt_id()):
        yield pa.record_batch([[pickle.dumps(staged)]], schema=_STAGED_SCHEMA)
        if fail_fast and staged.report.status == FAILED:
            return


def read_staged(rows: pa.Table) -> list[StagedSegment]:
    """Return the segments that tasks have staged, in rows of `stage_rows`."""
    return list(map(pickle.loads, rows.column(_STAGED).to_pylist()))


def _row_schema(source: ParquetInput) -> pa.Schema:
    """Return the columns of an input as Spark has them."""
    return pa.schema(
        [pa.field(each.name, pa.binary()) if each.name == BATCH else each for each in source.schema]
    )


def _sorted_rows(
    workers: SparkWorkers, counted: CountedInput, known: Sequence[SegmentCount]
) -> DataFrame:
    """Return the rows of segments with their number, sorted, a partition of the frame a bin."""
    read = workers.task(partial(read_rows, source=counted.source))
    schema = _row_schema(counted.source)
    groups = workers.frame(
        counted.groups, [group.rows * group.row_bytes for group in counted.groups]
    )
    rows = groups.mapInArrow(read, spark_schema(schema))
    tasks = min(_BINS_PER_CORE * workers.count, len(known))
    topics, partitions, bases = zip(*(each.key for each in known), strict=True)
    counts = [each.row_count for each in known]
    segments = workers.session.createDataFrame(
        pa.table(
            [topics, partitions, bases, counts, pa.array(balance(counts, tasks), pa.int32())],
            names=[*KEY_COLUMNS, ROW_COUNT, BIN],
        )
    )
    return (
        rows.join(F.broadcast(segments), list(KEY_COLUMNS))
        .repartitionById(tasks, BIN)
        .sortWithinPartitions(*KEY_COLUMNS, POSITION)
    )


@contextmanager
def _bounded_batches(session: SparkSession) -> Iterator[None]:
    """Bound the bytes of the record batches that Spark makes of rows."""
    before = session.conf.get(_BYTES_SETTING)
    session.conf.set(_BYTES_SETTING, str(_BATCH_BYTES))
    try:
        yield
    finally:
        session.conf.set(_BYTES_SETTING, str(before))
