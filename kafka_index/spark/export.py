"""Exports as Spark jobs over waves of splits.

Each task reads splits of records and writes their data files itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from pyspark.sql import SparkSession

from kafka_index.export import ExportSettings, SplitResult, SplitWork, export_split
from kafka_index.spark.jobs import Jobs
from kafka_index.spark.shared_target import SharedTarget
from kafka_index.spark.split_tasks import run_splits
from kafka_index.spark.tasks import current_attempt_id

_SPLITS_PER_WORKER = 8


def export_splits(
    session: SparkSession,
    works: Sequence[SplitWork],
    settings: ExportSettings,
    *,
    workers: int,
    jobs: Jobs,
    target: SharedTarget,
) -> Iterator[SplitResult]:
    """Export splits, and yield the results of each wave in order before the next one begins.

    A run that fails has lost one wave at most, if its results are recorded as they come.
    Parameters are those of `kafka_index.spark.split_tasks.run_splits`.
    """
    size = _SPLITS_PER_WORKER * workers
    for start in range(0, len(works), size):
        wave = works[start : start + size]
        yield from run_splits(
            session,
            wave,
            [work.split.size_bytes for work in wave],
            partial(_export, settings=settings),
            workers=workers,
            jobs=jobs,
            description=f"export {len(wave):,} splits of records",
            target=target,
        )


def _export(work: SplitWork, *, settings: ExportSettings) -> SplitResult:
    return export_split(work, settings, attempt=current_attempt_id())
