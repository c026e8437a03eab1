"""The local engine: threads of this process, which take the logs of all partitions in turn.

The thread that stages the last log of a partition finishes it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from kafka_index.build import BuildSettings
from kafka_index.errors import KafkaIndexError
from kafka_index.restore.log_restoring import RestoredLog, restore_log
from kafka_index.restore.partition_restoring import finish_partition, remove_directory
from kafka_index.restore.partition_task import PartitionTask
from kafka_index.restore.restored_partition import RestoredPartition
from kafka_index.restore.root_files import make_directory
from kafka_index.restore.salvaging import LogContext
from kafka_index.storage import SegmentFile


@dataclass(eq=False)
class _Partition:
    """A partition under way."""

    task: PartitionTask
    settings: BuildSettings
    directory: str
    missing: int
    logs: list[RestoredLog] = field(default_factory=list)
    error: KafkaIndexError | None = None


class ThreadedRestore:
    """Restores partitions on threads of this process, log by log.

    Parameters
    ----------
    tasks : sequence of PartitionTask
        The partitions.
    on_restored : callable
        Called with each partition, from one thread at a time.
    """

    def __init__(
        self, tasks: Sequence[PartitionTask], on_restored: Callable[[RestoredPartition], None]
    ) -> None:
        self._tasks = tasks
        self._on_restored = on_restored
        self._lock = threading.Lock()
        self._waiting: deque[tuple[_Partition, SegmentFile, LogContext]] = deque()
        self._stopped = threading.Event()

    def run(self, threads: int) -> None:
        """Restore all, the largest first.

        Raises
        ------
        KafkaIndexError
            The output cannot be written.
        """
        for task in sorted(self._tasks, key=lambda each: -each.size_bytes):
            self._add(task)
        names = [f"thread{number}" for number in range(threads)]
        with ThreadPoolExecutor(threads, thread_name_prefix="restore") as pool:
            try:
                for future in [pool.submit(self._drain, name) for name in names]:
                    future.result()
            finally:
                self._stopped.set()

    def _add(self, task: PartitionTask) -> None:
        directory = task.directory_in(task.output)
        make_directory(directory)
        works = list(task.logs())
        partition = _Partition(task, task.settings(task.output), directory, len(works))
        self._waiting += [(partition, *work) for work in works]

    def _drain(self, attempt_id: str) -> None:
        while not self._stopped.is_set():
            try:
                partition, segment, context = self._waiting.popleft()
            except IndexError:
                return
            try:
                log = restore_log(
                    segment,
                    partition.directory,
                    partition.task.link,
                    partition.task.salvage,
                    partition.settings,
                    context=context,
                    attempt_id=attempt_id,
                )
            except KafkaIndexError as error:
                self._add_log(partition, error, attempt_id)
            else:
                self._add_log(partition, log, attempt_id)

    def _add_log(
        self, partition: _Partition, found: RestoredLog | KafkaIndexError, attempt_id: str
    ) -> None:
        with self._lock:
            partition.missing -= 1
            if isinstance(found, RestoredLog):
                partition.logs.append(found)
            else:
                partition.error = partition.error or found
            is_complete = partition.missing == 0
        if is_complete:
            self._finish(partition, attempt_id)

    def _finish(self, partition: _Partition, attempt_id: str) -> None:
        if partition.error is not None:
            restored = partition.task.failed(partition.error)
            remove_directory(partition.directory)
        else:
            restored = finish_partition(
                partition.task.plan,
                sorted(partition.logs, key=lambda each: each.source.base_offset),
                partition.directory,
                partition.task.salvage,
                partition.settings,
                attempt_id=attempt_id,
            )
        with self._lock:
            self._on_restored(restored)
