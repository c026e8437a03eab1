"""Groups of partitions on threads of this process, which share their logs, or on Spark."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import partial

from kafka_index.execution import Engine, Listener, Waves
from kafka_index.restore.partition_restoring import PartitionTask, grouped, restore_partitions
from kafka_index.restore.restored_partition import RestoredPartition

OnSettled = Callable[[Sequence[RestoredPartition]], None]
#: Restores partitions on some engine, and calls back with each group that is settled.
Runner = Callable[[Sequence[PartitionTask], OnSettled], None]


def on_threads(threads: int) -> Runner:
    """Return a runner on threads of this process."""

    def run(tasks: Sequence[PartitionTask], on_settled: OnSettled) -> None:
        groups = grouped(tasks)
        if threads == 1:
            for group in groups:
                on_settled(restore_partitions(group))
            return
        # The logs of a large partition are work for all threads: they have a pool of their own.
        with (
            ThreadPoolExecutor(threads, "restore-logs") as logs,
            ThreadPoolExecutor(threads, "restore") as pool,
        ):
            restore = partial(restore_partitions, each_log=logs.map)
            futures = [pool.submit(restore, group) for group in groups]
            try:
                for future in as_completed(futures):
                    on_settled(future.result())
            finally:
                # Those that wait for logs end with them.
                logs.shutdown(wait=False, cancel_futures=True)
                pool.shutdown(wait=False, cancel_futures=True)

    return run


def on_tasks(engine: Engine, listener: Listener | None = None) -> Runner:
    """Return what restores partitions as tasks of Spark, in an output that all executors see."""

    def run(tasks: Sequence[PartitionTask], on_settled: OnSettled) -> None:
        groups = grouped(each.alone() for each in tasks)
        with engine.start(
            "restore",
            after_failure="finished partitions are kept: run again to continue",
            listener=listener,
            works=len(groups),
            inputs=sorted({each.plan.base.directory for each in tasks}),
            outputs=[tasks[0].output],
        ) as workers:
            for group in workers.run(
                groups,
                _restore,
                sizes=[sum(each.size_bytes for each in group) for group in groups],
                what="restore {:,} groups of partitions",
                waves=Waves.KEPT,
            ):
                on_settled(group)

    return run


def _restore(group: Sequence[PartitionTask], _attempt_id: str) -> list[RestoredPartition]:
    return restore_partitions(group)
