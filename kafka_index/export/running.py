"""An export as a whole: what is listed, the lock of its output, its plan, its splits, its rows."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol, Self

from kafka_index.execution import Engine, Listener
from kafka_index.execution.tasks import new_run_id
from kafka_index.export.export_record import with_first_times
from kafka_index.export.exporting import export_splits
from kafka_index.export.planning import ExportPlan, plan_export
from kafka_index.export.report import ExportResult, SplitResult
from kafka_index.export.settings import ExportSettings, OnDataLoss
from kafka_index.storage import refuse_overlap
from kafka_index.storage.locks import lock_of_output
from kafka_index.stores import is_remote
from kafka_index.stores.durable_files import publish_error
from kafka_index.tables.records import ListedPartitions, list_partitions
from kafka_index.tiered.options import TieredOptions


class ExportListener(Listener, Protocol):
    """Follows an export."""

    def on_split(self, result: SplitResult) -> None:
        """Follow a split that is exported; called by one thread at a time."""


@dataclass(frozen=True, slots=True)
class ExportJob:
    """An export whose input is listed; relative times are those of its first run."""

    settings: ExportSettings
    listed: ListedPartitions

    @classmethod
    def prepare(
        cls,
        inputs: Sequence[str],
        settings: ExportSettings,
        *,
        shown_output: str,
        topics: re.Pattern[str] | None = None,
        tiered: TieredOptions | None = None,
        indexes: str | None = None,
    ) -> Self:
        """List the input; raises `InputError` if the output overlaps it, or nothing is found.

        The output is shown in errors as it was given.
        """
        remote = () if tiered is None else tiered.uris
        folders = [*inputs, *remote, *filter(None, [indexes])]
        refuse_overlap(settings.output, shown_output, folders)
        listed = list_partitions(inputs, topics=topics, tiered=tiered, indexes=indexes)
        return cls(with_first_times(settings, listed.files), listed)

    @contextmanager
    def held_plan(
        self, starting_offsets: Mapping[str, Mapping[int, int]] | None, on_data_loss: OnDataLoss
    ) -> Iterator[ExportPlan]:
        """Give the plan, while the output is made and locked.

        Raises `PublishError` if it cannot be.
        """
        output = self.settings.output
        if not is_remote(output):
            try:
                os.makedirs(output, exist_ok=True)
            except OSError as error:
                raise publish_error(error, output, "make the output folder") from error
        with lock_of_output(output, new_run_id()):
            yield plan_export(
                self.listed.files,
                self.settings,
                starting_offsets=starting_offsets,
                on_data_loss=on_data_loss,
            )

    def run(
        self, plan: ExportPlan, engine: Engine, listener: ExportListener | None = None
    ) -> ExportResult:
        """Export the splits of the plan."""
        works, output = plan.works, self.settings.output
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
                outputs=[output],
            ) as workers:
                for result in export_splits(workers, works, self.settings):
                    plan.partition_of[result.number].add(result)
                    if listener is not None:
                        listener.on_split(result)
        for partition in plan.partitions:
            partition.finish()
        return ExportResult([partition.report() for partition in plan.partitions], output)
