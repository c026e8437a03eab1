"""A partition as work of its own: what a task of Spark gets, small and picklable, and does."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace

from kafka_index.build import BuildSettings
from kafka_index.config import LogConfig
from kafka_index.errors import KafkaIndexError, is_retriable
from kafka_index.restore.log_files import Link
from kafka_index.restore.log_restoring import restore_log
from kafka_index.restore.lost_ranges import Salvage
from kafka_index.restore.partition_files import remove_directory
from kafka_index.restore.partition_restoring import PartitionLogs, finish_partitions
from kafka_index.restore.plan import PartitionPlan
from kafka_index.restore.restored_partition import ERROR, RestoredPartition
from kafka_index.restore.root_files import STAGING, make_directory, sync_directory
from kafka_index.restore.salvaging import LogContext, partition_context
from kafka_index.storage import SegmentFile, publish_error
from kafka_index.tasks import new_run_id


@dataclass(frozen=True, slots=True)
class PartitionTask:
    """A partition, and how it is restored.

    Parameters
    ----------
    plan : PartitionPlan
        The partition.
    output : str
        The output directory.
    config : LogConfig
        The settings of indexes.
    salvage : Salvage
        What is kept of it if it is damaged.
    link : Link
        How logs are taken over.
    """

    plan: PartitionPlan
    output: str
    config: LogConfig
    salvage: Salvage
    link: Link

    @property
    def size_bytes(self) -> int:
        """Size of its logs."""
        return int(self.plan.base.segments.sizes_bytes.sum())

    def alone(self) -> PartitionTask:
        """Return the task without what the root of a dump says of other partitions."""
        base, *others = (each.alone() for each in (self.plan.base, *self.plan.others))
        return replace(self, plan=replace(self.plan, base=base, others=tuple(others)))

    def directory_in(self, root: str) -> str:
        """Return its directory below a folder."""
        return os.path.join(root, self.plan.partition.directory_name)

    def settings(self, root: str) -> BuildSettings:
        """Return how its index files are written below a folder."""
        return BuildSettings(
            config=self.config, target_root=root, run_id=new_run_id(), keeps_record=False
        )

    def logs(self) -> Iterator[tuple[SegmentFile, LogContext]]:
        """Yield its segments, by base offset."""
        segments = self.plan.segments()
        shared = partition_context(self.plan, self.config)
        around = zip([None, *segments[:-1]], [*segments[1:], None], strict=True)
        for segment, (before, after) in zip(segments, around, strict=True):
            context = replace(shared, before=before, after=after)
            if before is None:
                context = replace(context, head_offset=self.plan.head_offset, later=segments[1:])
            yield segment, context

    def failed(self, error: KafkaIndexError) -> RestoredPartition:
        """Return the partition as left out for an error."""
        plan = self.plan
        restored = RestoredPartition(plan.partition, plan.base.directory, plan.topic_id)
        restored.leave_out(ERROR, str(error), retriable=is_retriable(error))
        return restored


def restore_partition(task: PartitionTask, *, attempt_id: str) -> RestoredPartition:
    """Restore a partition in a folder of this attempt's own, and let it appear whole.

    Parameters
    ----------
    task : PartitionTask
        The partition.
    attempt_id : str
        No two attempts share it.
    """
    root = os.path.join(task.output, f"{STAGING}{attempt_id}")
    directory = task.directory_in(root)
    try:
        try:
            make_directory(directory)
            settings = task.settings(root)
            logs = [
                restore_log(
                    segment,
                    directory,
                    task.link,
                    task.salvage,
                    settings,
                    context=context,
                    attempt_id=attempt_id,
                )
                for segment, context in task.logs()
            ]
            (restored,) = finish_partitions(
                [PartitionLogs(task.plan, logs, directory)],
                task.salvage,
                settings,
                attempt_id=attempt_id,
            )
            if not restored.is_left_out:
                _publish(directory, task.directory_in(task.output))
        finally:
            remove_directory(root)
    except KafkaIndexError as error:
        return task.failed(error)
    return restored


def _publish(directory: str, target: str) -> None:
    """Give a finished partition its name, unless another attempt has finished it before."""
    try:
        os.rename(directory, target)
    except FileExistsError:
        return
    except OSError as error:
        if os.path.isdir(target):
            return
        raise publish_error(error, target, "rename a restored partition") from error
    sync_directory(os.path.dirname(target))
