"""A restore from its plan to the marker: logs on threads, partitions, then the root's files."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from kafka_index.build import BuildSettings
from kafka_index.config import LogConfig
from kafka_index.errors import KafkaIndexError, is_retriable
from kafka_index.layout.names import TopicPartition
from kafka_index.restore.cluster import Identity
from kafka_index.restore.filling import Filler
from kafka_index.restore.journal import BegunPlan, Journal
from kafka_index.restore.log_files import Link, choose_link
from kafka_index.restore.log_restoring import RestoredLog, restore_log
from kafka_index.restore.output import (
    Output,
    hide_identity,
    show_identity,
    write_checkpoints,
    write_identity,
    write_marker,
)
from kafka_index.restore.partition_restoring import (
    ERROR,
    NO_LOGS,
    RestoredPartition,
    finish_partition,
    remove_directory,
)
from kafka_index.restore.plan import PartitionPlan, RestorePlan
from kafka_index.restore.salvaging import Neighbours
from kafka_index.restore.seed import SeedContent, SeedDirectory, write_seed
from kafka_index.storage import DirectoryLock, SegmentFile, publish_error
from kafka_index.storage.scratch import sweep
from kafka_index.tasks import new_run_id

OnRestored = Callable[[RestoredPartition], None]


@dataclass(slots=True)
class Restored:
    """What a restore did.

    Parameters
    ----------
    partitions : list of RestoredPartition
        All of the plan's, sorted; those that were left out too.
    link : Link
        How logs were taken over.
    """

    partitions: list[RestoredPartition]
    link: Link


def restore_logs(
    plan: RestorePlan,
    output: Output,
    config: LogConfig,
    *,
    threads: int,
    on_restored: OnRestored,
) -> Restored:
    """Restore the partitions of a plan; what an earlier run has finished is kept.

    The output's lock must be held. No file at its root is written but the plan and the journal.

    Parameters
    ----------
    plan : RestorePlan
        What to do.
    output : Output
        The directory, as checked for this plan.
    config : LogConfig
        The settings of indexes.
    threads : int
        Logs that are worked on at a time.
    on_restored : callable
        Called with each partition, from one thread at a time.

    Raises
    ------
    KafkaIndexError
        The output cannot be written, or has changed since an earlier run.
    """
    journal = Journal(output.path)
    finished = {} if output.begun is None else journal.finished()
    if output.begun is None:
        journal.begin(BegunPlan(plan.digest, dict(plan.choices.topic_ids)))
    hide_identity(output)
    _remove_unfinished(plan, output.path, finished)
    link = choose_link(plan.choices.link, _sample(plan), output.path)
    work = _Work(plan, output.path, config, link, journal, on_restored)
    for restored in finished.values():
        work.report(restored)
    work.run([each for each in plan.partitions if each.partition not in finished], threads)
    for partition, directory in plan.without_logs.items():
        left_out = RestoredPartition(partition, directory, "")
        left_out.leave_out(NO_LOGS, f"{directory}: the directory holds no log")
        work.report(left_out)
    partitions = sorted(work.restored, key=lambda each: each.partition)
    return Restored(partitions, link)


def complete(
    plan: RestorePlan,
    output: Output,
    restored: Restored,
    identity: Identity,
    seeds: Sequence[tuple[SeedDirectory, SeedContent]],
) -> None:
    """Write the files at the root, the marker last, and remove the plan.

    Parameters
    ----------
    plan : RestorePlan
        The plan.
    output : Output
        The output directory.
    restored : Restored
        What became of each partition.
    identity : Identity
        As what the output is mounted.
    seeds : sequence of SeedDirectory and SeedContent
        The controllers that are to know the topics.

    Raises
    ------
    PublishError
        One cannot be written.
    """
    kept = [each for each in restored.partitions if not each.is_left_out]
    bases = {each.partition: each.base for each in plan.partitions}
    firsts = {each.partition: int(each.base.segments.base_offsets[0]) for each in plan.partitions}
    cleaned = {}
    for each in kept:
        base = bases[each.partition]
        offset = base.root.cleaned_to(base.partition)
        if offset is not None and each.log_start_offset <= offset <= each.log_end_offset:
            cleaned[each.partition] = offset
    write_checkpoints(
        output.path,
        {each.partition: each.log_end_offset for each in kept},
        {
            each.partition: each.log_start_offset
            for each in kept
            if each.log_start_offset > firsts[each.partition]
        },
        cleaned,
    )
    if identity.properties and not output.properties:
        write_identity(output.path, identity.properties)
    show_identity(output)
    for directory, content in seeds:
        write_seed(directory, content)
    write_marker(output.path, identity.broker_epoch)
    Journal(output.path).remove()


def output_lock(output: Output, seeds: Iterable[SeedDirectory]) -> DirectoryLock:
    """Return the lock that keeps brokers and other runs out of all that is written."""
    return DirectoryLock.of_data_directories([output.path, *(each.path for each in seeds)])


@dataclass(eq=False)
class _Partition:
    """A partition under way."""

    plan: PartitionPlan
    directory: str
    missing: int
    logs: list[RestoredLog] = field(default_factory=list)
    error: KafkaIndexError | None = None


class _Work:
    def __init__(
        self,
        plan: RestorePlan,
        output: str,
        config: LogConfig,
        link: Link,
        journal: Journal,
        on_restored: OnRestored,
    ) -> None:
        self.restored: list[RestoredPartition] = []
        self._choices = plan.choices
        self._output = output
        self._link = link
        self._journal = journal
        self._on_restored = on_restored
        self._lock = threading.Lock()
        self._settings = BuildSettings(config=config, target_root=output, run_id=new_run_id())
        self._waiting: deque[tuple[_Partition, SegmentFile, Neighbours]] = deque()
        self._stopped = threading.Event()

    def run(self, plans: Iterable[PartitionPlan], threads: int) -> None:
        """Restore partitions, the largest first."""
        ordered = sorted(plans, key=lambda each: -int(each.base.segments.sizes_bytes.sum()))
        for plan in ordered:
            self._add(plan)
        names = [f"thread{number}" for number in range(threads)]
        with ThreadPoolExecutor(threads, thread_name_prefix="restore") as pool:
            try:
                for future in [pool.submit(self._drain, name) for name in names]:
                    future.result()
            finally:
                self._stopped.set()

    def report(self, restored: RestoredPartition) -> None:
        """Add a partition that is settled."""
        with self._lock:
            self.restored.append(restored)
            self._on_restored(restored)

    def _add(self, plan: PartitionPlan) -> None:
        directory = os.path.join(self._output, plan.partition.directory_name)
        segments = plan.segments()
        partition = _Partition(plan, directory, len(segments))
        try:
            os.makedirs(directory, exist_ok=True)
        except OSError as error:
            raise publish_error(error, directory, "make the directory") from error
        filler = Filler(plan.others)
        around = zip([None, *segments[:-1]], [*segments[1:], None], strict=True)
        for segment, (before, after) in zip(segments, around, strict=True):
            self._waiting.append((partition, segment, Neighbours(before, after, filler)))

    def _drain(self, attempt_id: str) -> None:
        while not self._stopped.is_set():
            try:
                partition, segment, neighbours = self._waiting.popleft()
            except IndexError:
                return
            try:
                log = restore_log(
                    segment,
                    partition.directory,
                    self._link,
                    self._choices.salvage,
                    self._settings,
                    neighbours=neighbours,
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
        plan = partition.plan
        if partition.error is not None:
            restored = RestoredPartition(plan.partition, plan.base.directory, plan.topic_id)
            restored.leave_out(ERROR, str(partition.error), retriable=is_retriable(partition.error))
            remove_directory(partition.directory)
        else:
            restored = finish_partition(
                plan,
                sorted(partition.logs, key=lambda each: each.source.base_offset),
                partition.directory,
                self._choices.salvage,
                self._settings,
                attempt_id=attempt_id,
            )
        with self._lock:
            self._journal.add([restored])
        self.report(restored)


def _sample(plan: RestorePlan) -> SegmentFile:
    return plan.partitions[0].segments()[0]


def _remove_unfinished(
    plan: RestorePlan, output: str, finished: Mapping[TopicPartition, RestoredPartition]
) -> None:
    """Remove what a killed run left of partitions that it had not finished."""
    sweep([output], run_id=None)
    for each in plan.partitions:
        if each.partition not in finished:
            remove_directory(os.path.join(output, each.partition.directory_name))
