"""The local engine: threads of this process, which take the logs of all partitions in turn.

Partitions whose logs are all staged are finished in groups, so that many small ones are made
durable at once; a large one is a group of its own. A run that is killed repeats a group per thread.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from kafka_index.build import BuildSettings
from kafka_index.build.publish import GROUP_SEGMENTS
from kafka_index.errors import KafkaIndexError
from kafka_index.restore.log_restoring import RestoredLog, restore_log
from kafka_index.restore.partition_files import remove_directory
from kafka_index.restore.partition_restoring import PartitionLogs, finish_partitions
from kafka_index.restore.partition_task import PartitionTask
from kafka_index.restore.restored_partition import RestoredPartition
from kafka_index.restore.root_files import make_directory
from kafka_index.restore.salvaging import LogContext
from kafka_index.storage import SegmentFile

# Partitions of fewer bytes of logs wait for others; also what a killed run repeats of them.
_GROUP_BYTES = 64 << 20


@dataclass(eq=False)
class _Partition:
    """A partition under way."""

    task: PartitionTask
    directory: str
    missing: int
    logs: list[RestoredLog] = field(default_factory=list)
    error: KafkaIndexError | None = None


class ThreadedRestore:
    """Restores partitions on threads of this process, log by log.

    Parameters
    ----------
    tasks : sequence of PartitionTask
        The partitions, one or more, all to be restored in the same way.
    on_settled : callable
        Called with partitions that are settled, from one thread at a time.
    """

    def __init__(
        self,
        tasks: Sequence[PartitionTask],
        on_settled: Callable[[Sequence[RestoredPartition]], None],
    ) -> None:
        self._tasks = tasks
        self._on_settled = on_settled
        self._settings: BuildSettings = tasks[0].settings(tasks[0].output)
        self._salvage = tasks[0].salvage
        self._lock = threading.Lock()
        self._waiting: deque[tuple[_Partition, SegmentFile, LogContext]] = deque()
        self._complete: list[_Partition] = []
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
        partition = _Partition(task, directory, len(works))
        self._waiting += [(partition, *work) for work in works]

    def _drain(self, attempt_id: str) -> None:
        while not self._stopped.is_set():
            try:
                partition, segment, context = self._waiting.popleft()
            except IndexError:
                break
            found: RestoredLog | KafkaIndexError
            try:
                found = restore_log(
                    segment,
                    partition.directory,
                    partition.task.link,
                    self._salvage,
                    self._settings,
                    context=context,
                    attempt_id=attempt_id,
                )
            except KafkaIndexError as error:
                found = error
            self._finish(self._added(partition, found), attempt_id)
        if not self._stopped.is_set():
            with self._lock:
                rest, self._complete = self._complete, []
            self._finish(rest, attempt_id)

    def _added(
        self, partition: _Partition, found: RestoredLog | KafkaIndexError
    ) -> list[_Partition]:
        """Add what became of a log; return the partitions that are to be finished now."""
        with self._lock:
            partition.missing -= 1
            if isinstance(found, RestoredLog):
                partition.logs.append(found)
            else:
                partition.error = partition.error or found
            if partition.missing == 0:
                self._complete.append(partition)
            segments = sum(len(each.logs) for each in self._complete)
            size_bytes = sum(each.task.size_bytes for each in self._complete)
            if segments < GROUP_SEGMENTS and size_bytes < _GROUP_BYTES:
                return []
            group, self._complete = self._complete, []
            return group

    def _finish(self, group: Sequence[_Partition], attempt_id: str) -> None:
        settled = []
        for partition in group:
            if partition.error is not None:
                settled.append(partition.task.failed(partition.error))
                remove_directory(partition.directory)
        settled += finish_partitions(
            [
                PartitionLogs(
                    each.task.plan,
                    sorted(each.logs, key=lambda log: log.source.base_offset),
                    each.directory,
                )
                for each in group
                if each.error is None
            ],
            self._salvage,
            self._settings,
            attempt_id=attempt_id,
        )
        if settled:
            with self._lock:
                self._on_settled(settled)
