"""A restore from its plan to its partitions, and then the checkpoints at the root."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from kafka_index.config import LogConfig
from kafka_index.layout.names import TopicPartition
from kafka_index.restore.cluster import Identity
from kafka_index.restore.journal import BegunPlan, Journal
from kafka_index.restore.log_files import Link, choose_link
from kafka_index.restore.output import Output
from kafka_index.restore.partition_files import remove_directory
from kafka_index.restore.partition_restoring import PartitionTask
from kafka_index.restore.plan import RestorePlan
from kafka_index.restore.restored_partition import NO_LOGS, RestoredPartition
from kafka_index.restore.root_files import (
    hide_identity,
    remove_marker,
    remove_staging,
    write_checkpoints,
)
from kafka_index.restore.seed_directory import SeedDirectory
from kafka_index.restore.threads import Runner
from kafka_index.storage import DirectoryLock, SegmentFile

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
    identity: Identity,
    config: LogConfig,
    *,
    runner: Runner,
    on_restored: OnRestored,
) -> Restored:
    """Restore the partitions of a plan; what an earlier run has finished is kept.

    The output's lock must be held. No file at its root is written but the journal and the identity.

    Parameters
    ----------
    plan : RestorePlan
        What to do.
    output : Output
        The directory, as checked for this plan.
    identity : Identity
        As what the output is mounted.
    config : LogConfig
        The settings of indexes.
    runner : callable
        Restores partitions, and calls back from one thread at a time.
    on_restored : callable
        Called with each partition, from one thread at a time.

    Raises
    ------
    KafkaIndexError
        The output cannot be written, or has changed since an earlier run.
    """
    # What is refused here has to leave no plan, which would keep other options out.
    journal = Journal(output.path)
    finished = {} if output.begun is None else journal.finished()
    link = choose_link(plan.choices.link, _sample(plan), output.path)
    if output.begun is None:
        choices = plan.choices
        journal.begin(BegunPlan(plan.digest, dict(choices.topic_ids), choices.until.time_ms))
    hide_identity(output.path, identity.properties)
    # The run before may have been killed after the marker.
    remove_marker(output.path)
    _remove_unfinished(plan, output.path, finished)
    settled = list(finished.values())
    for restored in settled:
        on_restored(restored)

    def settle(group: Sequence[RestoredPartition]) -> None:
        journal.add(group)
        settled.extend(group)
        for restored in group:
            on_restored(restored)

    salvage = plan.choices.salvage
    tasks = [
        PartitionTask(each, output.path, config, salvage, link)
        for each in plan.partitions
        if each.partition not in finished
    ]
    if tasks:
        runner(tasks, settle)
    for partition, directory in plan.without_logs.items():
        left_out = RestoredPartition(partition, directory, "")
        left_out.leave_out(NO_LOGS, f"{directory}: the directory holds no log")
        settled.append(left_out)
        on_restored(left_out)
    remove_staging(output.path)
    return Restored(sorted(settled, key=lambda each: each.partition), link)


def write_root(plan: RestorePlan, output: str, restored: Restored) -> None:
    """Write the checkpoints at the root of an output whose partitions are restored.

    Raises
    ------
    PublishError
        One cannot be written.
    """
    kept = [each for each in restored.partitions if not each.is_left_out]
    bases = {each.partition: each.base for each in plan.partitions}
    cleaned = {}
    for each in kept:
        base = bases[each.partition]
        offset = base.root.cleaned_to(base.partition)
        if offset is not None and each.log_start_offset <= offset <= each.log_end_offset:
            cleaned[each.partition] = offset
    write_checkpoints(
        output,
        {each.partition: each.log_end_offset for each in kept},
        {
            each.partition: each.log_start_offset
            for each in kept
            if each.log_start_offset > each.base_offset
        },
        cleaned,
    )


def output_lock(
    output: Output, seeds: Iterable[SeedDirectory], others: Iterable[str]
) -> DirectoryLock:
    """Return the lock that keeps brokers and other runs out of all that is written."""
    return DirectoryLock.of_data_directories([output.path, *(each.path for each in seeds), *others])


def _sample(plan: RestorePlan) -> SegmentFile:
    return plan.partitions[0].segments()[0]


def _remove_unfinished(
    plan: RestorePlan, output: str, finished: Mapping[TopicPartition, RestoredPartition]
) -> None:
    """Remove what a killed run left of partitions that it had not finished."""
    remove_staging(output)
    for each in plan.partitions:
        if each.partition not in finished:
            remove_directory(os.path.join(output, each.partition.directory_name))
