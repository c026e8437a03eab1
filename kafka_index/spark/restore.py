"""Restores as Spark jobs: tasks restore groups of partitions to an output that executors see."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pyspark.sql import SparkSession

from kafka_index.restore.partition_restoring import PartitionTask, grouped, restore_partitions
from kafka_index.restore.restored_partition import RestoredPartition
from kafka_index.spark.jobs import Jobs
from kafka_index.spark.shared_target import SharedTarget
from kafka_index.spark.split_tasks import run_splits

# What a killed run repeats at most is a wave.
_WAVES = 8


def restore_in_tasks(
    session: SparkSession,
    tasks: Sequence[PartitionTask],
    *,
    workers: int,
    jobs: Jobs,
    target: SharedTarget,
) -> Iterator[list[RestoredPartition]]:
    """Restore partitions, wave by wave; parameters are those of `run_splits`."""
    groups = grouped(each.alone() for each in tasks)
    size = max(workers, -(-len(groups) // _WAVES))
    for first in range(0, len(groups), size):
        wave = groups[first : first + size]
        yield from run_splits(
            session,
            wave,
            [sum(each.size_bytes for each in group) for group in wave],
            restore_partitions,
            workers=workers,
            jobs=jobs,
            description=f"restore {sum(map(len, wave)):,} partitions",
            target=target,
        )
