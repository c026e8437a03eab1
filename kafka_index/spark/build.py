"""Building from logs on Spark: a work row per segment in, a report row per segment out.

Where something runs on from segment to segment there are two jobs: one scans the segments, in any
order, and one folds and publishes the partitions. Between them goes a row per segment; what the
scans found of producers and transactions waits in files beside the target.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession

from kafka_index.build import (
    WORK_SCHEMA,
    BuildSettings,
    build_segments,
    publish_partition,
    read_plan,
)
from kafka_index.build.report import (
    FAILED,
    REPORT_SCHEMA,
    SegmentReport,
    has_failed,
    report_table,
)
from kafka_index.build.staged_rows import (
    PUBLISHING_SCHEMA,
    STAGED_SCHEMA,
    plan_publishing,
    staged_table,
    whole_partitions,
)
from kafka_index.build.staging import stage_segments
from kafka_index.spark.tasks import current_attempt_id, spark_schema
from kafka_index.tasks import BIN

_ROWS_AT_A_TIME = 256
_Row = TypeVar("_Row")


def build_indexes(
    work: DataFrame, settings: BuildSettings, bins: int, *, fail_fast: bool = False
) -> DataFrame:
    """Build the offset and time indexes of segments, one task per bin.

    Parameters
    ----------
    work : DataFrame
        A row per segment, as `WORK_SCHEMA` says; `bin` is 0..bins - 1.
    settings : BuildSettings
        How and where to.
    bins : int
        Number of bins, and so of tasks.
    fail_fast : bool
        A task stops after its first failed segment. Tasks that run beside it end by themselves,
        so that no report row is lost; segments that were not begun have none.

    Returns
    -------
    DataFrame
        The build report, as `REPORT_SCHEMA` says. Nothing runs before it is read, and reading it
        twice builds twice.

    Notes
    -----
    A work row says all that its segment needs. If the input of a task ends early, as it can when
    the job is cancelled, fewer segments are built and none is built wrongly.
    """
    function = partial(build_bin, settings=settings, fail_fast=fail_fast)
    work = work.select(*WORK_SCHEMA.names)
    return work.repartitionById(bins, BIN).mapInArrow(function, spark_schema(REPORT_SCHEMA))


def stage_logs(
    work: DataFrame, settings: BuildSettings, bins: int, *, fail_fast: bool = False
) -> DataFrame:
    """Scan segments into scratch files, one task per bin.

    Parameters
    ----------
    work, settings, bins, fail_fast
        As for `build_indexes`.

    Returns
    -------
    DataFrame
        `STAGED_SCHEMA`, for `publish_partitions`. Nothing runs before it is read.
    """
    function = partial(stage_bin, settings=settings, fail_fast=fail_fast)
    work = work.select(*WORK_SCHEMA.names)
    return work.repartitionById(bins, BIN).mapInArrow(function, spark_schema(STAGED_SCHEMA))


def publish_partitions(staged: DataFrame, settings: BuildSettings, bins: int) -> DataFrame:
    """Fold partitions and publish their files, one task per bin.

    Parameters
    ----------
    staged : DataFrame
        `PUBLISHING_SCHEMA`: every segment of each partition, and how many those are.
    settings : BuildSettings
        Those of `stage_logs`.
    bins : int
        Number of bins.

    Returns
    -------
    DataFrame
        The build report; nothing runs before it is read. A partition of which a row is missing,
        as can be when the job is cancelled, is left alone.
    """
    staged = staged.select(*PUBLISHING_SCHEMA.names)
    function = partial(publish_bin, settings=settings)
    return staged.repartitionById(bins, BIN).mapInArrow(function, spark_schema(REPORT_SCHEMA))


def build_logs(
    session: SparkSession,
    plan: pa.Table,
    settings: BuildSettings,
    *,
    bins: int,
    fail_fast: bool = False,
) -> pa.Table:
    """Run `build_indexes` over a plan and return the whole report.

    Parameters
    ----------
    session : SparkSession
        Classic or Connect.
    plan : pa.Table
        `WORK_SCHEMA`.
    """
    work = session.createDataFrame(plan)
    if not settings.needs_state:
        return collect_report(build_indexes(work, settings, bins, fail_fast=fail_fast))
    staged = stage_logs(work, settings, bins, fail_fast=fail_fast).toArrow().cast(STAGED_SCHEMA)
    if fail_fast and has_failed(staged):
        failed = staged.filter(pc.field("status") == FAILED)
        return failed.select(REPORT_SCHEMA.names)
    publishing = session.createDataFrame(plan_publishing(staged, plan, bins=bins))
    return collect_report(publish_partitions(publishing, settings, bins))


def stage_bin(
    batches: Iterable[pa.RecordBatch], *, settings: BuildSettings, fail_fast: bool
) -> Iterator[pa.RecordBatch]:
    """Scan the segments of one bin: the function that a task of the first job runs."""
    segments = chain.from_iterable(map(read_plan, batches))
    staged = stage_segments(segments, settings, attempt_id=current_attempt_id())
    yield from _packed(
        staged, staged_table, until=lambda one: fail_fast and one.report.status == FAILED
    )


def publish_bin(
    batches: Iterable[pa.RecordBatch], *, settings: BuildSettings
) -> Iterator[pa.RecordBatch]:
    """Publish the partitions of one bin: the function that a task of the second job runs."""
    canonical = (batch.cast(PUBLISHING_SCHEMA) for batch in batches)
    reports = (
        row
        for staged in whole_partitions(canonical)
        for row in publish_partition(staged, settings, attempt_id=current_attempt_id())
    )
    yield from report_batches(reports, fail_fast=False)


def build_bin(
    batches: Iterable[pa.RecordBatch], *, settings: BuildSettings, fail_fast: bool
) -> Iterator[pa.RecordBatch]:
    """Build the segments of one bin: the function that a task runs."""
    segments = chain.from_iterable(map(read_plan, batches))
    reports = build_segments(segments, settings, attempt_id=current_attempt_id())
    yield from report_batches(reports, fail_fast=fail_fast)


def report_batches(
    reports: Iterable[SegmentReport], *, fail_fast: bool
) -> Iterator[pa.RecordBatch]:
    """Pack report rows into record batches; with `fail_fast`, up to the first failed one."""
    yield from _packed(reports, report_table, until=lambda row: fail_fast and row.status == FAILED)


def _packed(
    rows: Iterable[_Row],
    table_of: Callable[[Sequence[_Row]], pa.Table],
    *,
    until: Callable[[_Row], bool],
) -> Iterator[pa.RecordBatch]:
    """Pack rows into record batches, up to the first of a kind and with it."""
    pending: list[_Row] = []
    for row in rows:
        pending.append(row)
        if until(row):
            break
        if len(pending) == _ROWS_AT_A_TIME:
            yield from table_of(pending).to_batches()
            pending = []
    if pending:
        yield from table_of(pending).to_batches()


def collect_report(reports: DataFrame) -> pa.Table:
    """Run the job and bring its report to the driver."""
    return reports.toArrow().cast(REPORT_SCHEMA)
