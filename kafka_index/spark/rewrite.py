"""The passes of a rewrite as Spark jobs: a partition is a piece of work."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial

from pyspark.sql import SparkSession

from kafka_index.errors import KafkaIndexError
from kafka_index.spark.jobs import Jobs
from kafka_index.spark.shared_target import SharedTarget
from kafka_index.spark.split_tasks import run_splits
from kafka_index.spark.tasks import current_attempt_id
from kafka_index.writing.rewrite_plan import PartitionPlan
from kafka_index.writing.rewriting import MatchedPartition, RewriteSettings, match, rewrite

# What opening and publishing a partition cost, in bytes that could be read meanwhile.
_PARTITION_COST_BYTES = 16 << 20


def match_partitions(
    session: SparkSession,
    plans: Sequence[PartitionPlan],
    settings: RewriteSettings,
    *,
    cores: int,
    jobs: Jobs,
) -> list[MatchedPartition]:
    """Make the first pass over partitions, and return the results in their order."""
    return run_splits(
        session,
        plans,
        [plan.size_bytes for plan in plans],
        partial(match, settings=settings),
        workers=cores,
        jobs=jobs,
        description=f"match {len(plans):,} partitions",
        overhead=_PARTITION_COST_BYTES,
    )


def rewrite_partitions(
    session: SparkSession,
    matched: Sequence[MatchedPartition],
    output: str,
    staging: str,
    settings: RewriteSettings,
    *,
    cores: int,
    jobs: Jobs,
    target: SharedTarget,
) -> list[KafkaIndexError | None]:
    """Make the second pass over partitions, and return the reasons why they are left out."""
    return run_splits(
        session,
        matched,
        [each.plan.size_bytes for each in matched],
        partial(_rewrite, output=output, staging=staging, settings=settings),
        workers=cores,
        jobs=jobs,
        description=f"rewrite {len(matched):,} partitions",
        target=target,
        overhead=_PARTITION_COST_BYTES,
    )


def _rewrite(
    matched: MatchedPartition, *, output: str, staging: str, settings: RewriteSettings
) -> KafkaIndexError | None:
    # A folder for each attempt: a lost one may still be writing.
    name = f"{matched.plan.partition.directory_name}.{current_attempt_id()}"
    return rewrite(matched, output, os.path.join(staging, name), settings)
