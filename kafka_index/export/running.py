"""The run of an export: the lock of its output, its plan, its splits, the reports of partitions."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Protocol

from kafka_index.execution import Engine, Listener
from kafka_index.execution.tasks import new_run_id
from kafka_index.export.exporting import export_splits
from kafka_index.export.planning import ExportPlan, plan_export
from kafka_index.export.report import PartitionReport, SplitResult
from kafka_index.export.settings import ExportSettings, OnDataLoss
from kafka_index.reading import PartitionFiles
from kafka_index.storage.locks import lock_of_output
from kafka_index.stores import is_remote
from kafka_index.stores.durable_files import publish_error


class ExportListener(Listener, Protocol):
    """Follows an export."""

    def on_split(self, result: SplitResult) -> None:
        """Follow a split that is exported; called by one thread at a time."""


@contextmanager
def held_plan(
    files: Sequence[PartitionFiles],
    settings: ExportSettings,
    *,
    starting_offsets: Mapping[str, Mapping[int, int]] | None,
    on_data_loss: OnDataLoss | str,
) -> Iterator[ExportPlan]:
    """Give the plan of an export, whose output is made and locked meanwhile.

    Raises `PublishError` if it cannot be.
    """
    output = settings.output
    if not is_remote(output):
        try:
            os.makedirs(output, exist_ok=True)
        except OSError as error:
            raise publish_error(error, output, "make the output folder") from error
    with lock_of_output(output, new_run_id()):
        yield plan_export(
            files, settings, starting_offsets=starting_offsets, on_data_loss=on_data_loss
        )


def run_plan(
    plan: ExportPlan, settings: ExportSettings, engine: Engine, listener: ExportListener | None
) -> list[PartitionReport]:
    """Export the splits of a plan; return a row of the report for each partition."""
    works = plan.works
    for partition in plan.partitions:
        if partition.record is not None and partition.works:
            partition.begin()
    if works:
        with engine.start(
            "export",
            after_failure="run again to continue",
            listener=listener,
            works=len(works),
            inputs=sorted({name for work in works for name in work.split.directories}),
            outputs=[settings.output],
        ) as workers:
            for result in export_splits(workers, works, settings):
                plan.partition_of[result.number].add(result)
                if listener is not None:
                    listener.on_split(result)
    for partition in plan.partitions:
        partition.finish()
    return [partition.report() for partition in plan.partitions]
