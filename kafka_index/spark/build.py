"""Building from logs on Spark: a work row per segment in, a report row per segment out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession

from kafka_index.build import WORK_SCHEMA, BuildSettings, build_segments, read_plan
from kafka_index.build.report import FAILED, REPORT_SCHEMA, SegmentReport, report_table
from kafka_index.spark.schemas import report_schema

BIN = "bin"
_REPORT_ROWS = 256

ArrowFunction = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def build_indexes(
    work: DataFrame, settings: BuildSettings, bins: int, *, fail_fast: bool = False
) -> DataFrame:
    """Build the indexes of segments, one task per bin.

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
    return _map(work.select(*WORK_SCHEMA.names), bins, function)


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
    return collect_report(build_indexes(work, settings, bins, fail_fast=fail_fast))


def build_bin(
    batches: Iterable[pa.RecordBatch], *, settings: BuildSettings, fail_fast: bool
) -> Iterator[pa.RecordBatch]:
    """Build the segments of one bin: the function that a task runs."""
    segments = chain.from_iterable(map(read_plan, batches))
    reports = build_segments(segments, settings, attempt_id=attempt_id())
    yield from report_batches(reports, fail_fast=fail_fast)


def report_batches(
    reports: Iterable[SegmentReport], *, fail_fast: bool
) -> Iterator[pa.RecordBatch]:
    """Pack report rows into record batches; with `fail_fast`, up to the first failed one."""
    rows: list[SegmentReport] = []
    for report in reports:
        rows.append(report)
        if fail_fast and report.status == FAILED:
            break
        if len(rows) == _REPORT_ROWS:
            yield from report_table(rows).to_batches()
            rows = []
    if rows:
        yield from report_table(rows).to_batches()


def collect_report(reports: DataFrame) -> pa.Table:
    """Run the job and bring its report to the driver."""
    return reports.toArrow().cast(REPORT_SCHEMA)


def attempt_id() -> str:
    """Name this attempt of a task: no two attempts of a run may share scratch files."""
    context = TaskContext.get()
    if context is None:
        return "driver"
    return f"task{context.taskAttemptId()}_{context.attemptNumber()}"


def _map(rows: DataFrame, bins: int, function: ArrowFunction) -> DataFrame:
    return rows.repartitionById(bins, BIN).mapInArrow(function, report_schema())
