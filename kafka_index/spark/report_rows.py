"""Rows on their way from tasks to the driver: staged segments and report rows, in batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

import pyarrow as pa
from pyspark.sql import DataFrame

from kafka_index.build.report import FAILED, REPORT_SCHEMA, SegmentReport, report_table
from kafka_index.build.staged_segment import StagedSegment
from kafka_index.spark.staged_rows import staged_table

_ROWS_AT_A_TIME = 256
_Row = TypeVar("_Row")


def staged_batches(staged: Iterable[StagedSegment], *, fail_fast: bool) -> Iterator[pa.RecordBatch]:
    """Pack staged segments into record batches; with `fail_fast`, up to the first failed one."""
    yield from _packed(
        staged, staged_table, until=lambda staged: fail_fast and staged.report.status == FAILED
    )


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
    """Pack rows into record batches, up to and including the first that `until` matches."""
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
