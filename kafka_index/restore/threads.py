"""The local engine: groups of partitions on threads of this process, which share their logs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import partial

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
