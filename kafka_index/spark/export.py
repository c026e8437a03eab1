"""Exports as a Spark job: each task reads splits of records and writes their data files itself."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from pyspark.sql import SparkSession

from kafka_index.export import ExportSettings, SplitResult, SplitWork, export_split
from kafka_index.spark.jobs import Jobs
from kafka_index.spark.shared_target import SharedTarget
from kafka_index.spark.split_tasks import run_splits
from kafka_index.spark.tasks import current_attempt_id


def export_splits(
    session: SparkSession,
    works: Sequence[SplitWork],
    settings: ExportSettings,
    *,
    workers: int,
    jobs: Jobs,
    target: SharedTarget,
) -> list[SplitResult]:
    """Export splits; parameters are those of `kafka_index.spark.split_tasks.run_splits`."""
    return run_splits(
        session,
        works,
        [work.split.size_bytes for work in works],
        partial(_export, settings=settings),
        workers=workers,
        jobs=jobs,
        description=f"export {len(works):,} splits of records",
        target=target,
    )


def _export(work: SplitWork, *, settings: ExportSettings) -> SplitResult:
    return export_split(work, settings, attempt=current_attempt_id())
