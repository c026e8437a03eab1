"""An export as a whole: what is listed, the lock of its output, its plan, its splits, its rows."""

from __future__ import annotations

import os
import re
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol, Self

from kafka_index.errors import CorruptLogError, KafkaIndexError, PublishError, is_retriable
from kafka_index.execution import Engine, Listener, Waves, Workers
from kafka_index.execution.engine import new_run_id
from kafka_index.export.export_record import ExportedBatch, with_first_times
from kafka_index.export.partition_export import SplitWork, remove_data_files
from kafka_index.export.planning import ExportPlan, plan_export
from kafka_index.export.report import ExportResult, LeftOut, SplitResult
from kafka_index.export.settings import ExportSettings, OnDataLoss
from kafka_index.export.split_files import SplitFiles
from kafka_index.storage import refuse_overlap
from kafka_index.storage.locks import lock_of_output
from kafka_index.stores import is_remote
from kafka_index.stores.durable_files import publishing
from kafka_index.tables import RecordReader
from kafka_index.tables.records import ListedPartitions, list_partitions
from kafka_index.tiered.options import TieredOptions

_MAX_LEFT_OUT = 20


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
        """Give the plan, while the output is made and locked."""
        output = self.settings.output
        if not is_remote(output):
            with publishing(output, "make the output folder"):
                os.makedirs(output, exist_ok=True)
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
                partition_of = plan.partition_of
                for result in export_splits(workers, works, self.settings):
                    partition_of[result.number].add(result)
                    if listener is not None:
                        listener.on_split(result)
        finder = self.listed.gap_finder(self.settings.read.max_decompressed_bytes)
        for partition in plan.partitions:
            partition.finish()
            partition.find_missing(finder)
        return ExportResult([partition.report() for partition in plan.partitions], output)


def export_splits(
    workers: Workers, works: Sequence[SplitWork], settings: ExportSettings
) -> Generator[SplitResult, None, None]:
    """Export splits, and yield their results as they are finished."""
    return workers.run(
        works,
        partial(_export_split, settings=settings),
        sizes=[work.split.size_bytes for work in works],
        what="export {:,} splits of records",
        waves=Waves.KEPT,
    )


def _export_split(work: SplitWork, attempt_id: str, *, settings: ExportSettings) -> SplitResult:
    """Export a split into data files, each of which appears whole and durable."""
    settings = replace(settings, is_staged=work.is_staged)
    try:
        if work.is_repeated and (kept := _kept_files(work, settings)) is not None:
            return kept
        damage = _Damage()
        with SplitFiles(work.folder, settings, f"{attempt_id}_{work.number}") as files:
            reader = RecordReader(work.split, settings.read_settings, on_left_out=damage.add)
            for batch in reader:
                files.write(batch)
            files.finish()
    except PublishError:
        raise
    except KafkaIndexError as error:
        return SplitResult(work.number, failure=LeftOut.of(error), is_retriable=is_retriable(error))
    if work.is_repeated:
        # What is in place from before holds less: it ends where the damage was.
        remove_data_files(work.folder, work.first_offset, work.end_offset, keep=files.paths)
    header = reader.last_header
    return SplitResult(
        work.number,
        files.records,
        len(files.paths),
        files.size_bytes,
        tuple(damage.first),
        damage.count,
        last_batch=None if header is None else ExportedBatch.of_header(header),
        seen=tuple(reader.seen),
    )


class _Damage:
    """Collects the records that were left out."""

    def __init__(self) -> None:
        self.first: list[LeftOut] = []
        self.count = 0

    def add(self, error: CorruptLogError) -> None:
        self.count += 1
        if len(self.first) < _MAX_LEFT_OUT:
            self.first.append(LeftOut.of(error))


def _kept_files(work: SplitWork, settings: ExportSettings) -> SplitResult | None:
    """Return the result that leaves data files of before in place; None if they are superseded.

    They are replaced by all records of the range, never by others that may be fewer: a batch that
    was exported can be damaged by now, and a segment missing.
    """
    damage = _Damage()
    # Neither keys nor values need to be copied to be counted.
    counted = replace(settings.read_settings, columns=("offset",))
    records = sum(map(len, RecordReader(work.split, counted, on_left_out=damage.add)))
    if not damage.count:
        if work.records_before is None or records >= work.records_before:
            return None
        damage.count = 1
        damage.first.append(
            LeftOut(
                work.folder,
                None,
                f"the log holds {records} records of offsets {work.first_offset} to "
                f"{work.end_offset - 1}, of which {work.records_before} were exported: their data "
                "files are kept; export a complete copy of the log",
            )
        )
    return SplitResult(
        work.number,
        left_out=tuple(damage.first),
        left_out_count=damage.count,
        is_kept=True,
    )
