"""Restores as Spark jobs: each task restores partitions in the output, which all executors see."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pyspark.sql import SparkSession

from kafka_index.restore.partition_task import PartitionTask, restore_partition
from kafka_index.restore.restored_partition import RestoredPartition
from kafka_index.spark.jobs import Jobs
from kafka_index.spark.shared_target import SharedTarget
from kafka_index.spark.split_tasks import run_splits
from kafka_index.spark.tasks import current_attempt_id

# What a killed run repeats at most is a wave.
_WAVES = 8


def restore_partitions(
    session: SparkSession,
    tasks: Sequence[PartitionTask],
    *,
    workers: int,
    jobs: Jobs,
    target: SharedTarget,
) -> Iterator[RestoredPartition]:
    """Restore partitions, wave by wave; parameters are those of `run_splits`."""
    largest_first = sorted(tasks, key=lambda each: -each.size_bytes)
    size = max(workers, -(-len(tasks) // _WAVES))
    for first in range(0, len(tasks), size):
        wave = [each.alone() for each in largest_first[first : first + size]]
        yield from run_splits(
            session,
            wave,
            [each.size_bytes for each in wave],
            _restore,
            workers=workers,
            jobs=jobs,
            description=f"restore {len(wave):,} partitions",
            target=target,
        )


def _restore(task: PartitionTask) -> RestoredPartition:
    return restore_partition(task, attempt_id=current_attempt_id())
