"""The job of an export: list logs, lock the output, plan and export splits, commit to tables."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from kafka_index.commands.export.data_files import SplitFiles, add_tombstone_column
from kafka_index.commands.export.export_state import ExportedBatch, restore_relative_times
from kafka_index.commands.export.partition_export import SplitTask, remove_data_files
from kafka_index.commands.export.plan import ExportPlan, plan_export
from kafka_index.commands.export.request import ExportRequest
from kafka_index.commands.export.result import ExportResult, ReportedError, SplitResult
from kafka_index.commands.export.settings import ExportSettings
from kafka_index.commands.export.table_commit import Tables
from kafka_index.core.errors import (
    CorruptLogError,
    KafkaIndexError,
    PublishError,
    is_retriable,
    plural,
)
from kafka_index.core.format.times import describe_empty_range
from kafka_index.core.fs.inputs import reading_inputs, skipped_texts, unread_texts
from kafka_index.core.fs.paths import absolute_path
from kafka_index.core.job.engine import SILENT, Engine, JobSizes, Listener, Workers, new_run_id
from kafka_index.core.job.result import ReportSink
from kafka_index.core.output.output import Output
from kafka_index.core.parameters import time_range_ms
from kafka_index.core.query.bounds import time_span
from kafka_index.core.query.record_reader import RecordReader
from kafka_index.core.query.records import list_partitions
from kafka_index.core.query.settings import ReadSettings, RecordFilter
from kafka_index.core.records.record_table import DEFAULT_COLUMNS
from kafka_index.core.schema.registry import DEFAULT_CONTEXT

if TYPE_CHECKING:
    from kafka_index.core.schema.decode import DecodeOptions

_MAX_SKIPPED_RANGES = 20


def export(
    request: ExportRequest,
    engine: Engine,
    listener: Listener | None = None,
    _report: ReportSink | None = None,
) -> ExportResult:
    """Export the records of a request.

    Raises `InputError` if the output overlaps the input or nothing is found.
    """
    tables = Tables.for_request(request)
    output = absolute_path(tables.output if request.output is None else request.output)
    times = time_range_ms(request.from_time, request.to_time)
    settings = ExportSettings(
        output,
        request.format,
        request.columns or DEFAULT_COLUMNS,
        request.by_date,
        ReadSettings(
            isolation=request.isolation,
            max_decompressed_bytes=request.max_decompressed_bytes,
            record_filter=None if times == (None, None) else RecordFilter(*times),
        ),
        relative_times=request.relative_times,
        decode=_decode_options(request),
        history=request.history,
    )
    with reading_inputs(follow_links=request.follow_links) as unread:
        target = Output.for_tables(output, request.output or output, request.folders, new_run_id())
        partition_listing = list_partitions(
            request.inputs, topics=request.topics, tiered=request.tiered, indexes=request.indexes
        )
        settings = restore_relative_times(settings, partition_listing.files)
        decode = None
        if request.decode is not None:
            # Slow to import.
            from kafka_index.commands.export.typed_values import types_of_logs  # noqa: PLC0415
            from kafka_index.core.query.typed_records import decode_options  # noqa: PLC0415

            topics = {files.topic for files in partition_listing.files}
            decode = decode_options(request, topics, request.inputs)
            if decode is not None and settings.format.is_table:
                # `tables.open` creates the tables before data files are written, so the types of
                # their columns are required here.
                types = types_of_logs(partition_listing.files, settings, decode, engine.threads)
                settings = replace(settings, types=types)
        with target:
            tables.open(partition_listing.files, settings)
            plan = plan_export(
                partition_listing.files,
                settings,
                starting_offsets=request.offsets,
                on_data_loss=request.on_data_loss,
            )
            _export_plan(plan, settings, decode, engine, listener or SILENT)
            tables.commit(plan.partitions)
        finder = partition_listing.gap_finder(settings.read.max_decompressed_bytes)
        for partition in plan.partitions:
            partition.find_missing(finder)
    result = ExportResult(
        [partition.report() for partition in plan.partitions],
        output,
        unread_texts(unread),
        skipped=skipped_texts(partition_listing.skipped),
    )
    notes = tables.notes
    if plan.tasks and not result.counts["records"] and times[0] is not None:
        span = time_span(partition_listing.files, settings.read)
        notes.append(describe_empty_range(settings.from_ms, settings.to_ms, span))
    if (settings.from_ms, settings.to_ms) != times:
        relative_times = " and ".join(request.relative_times.values())
        notes.append(f"the time of the first run of this export determines {relative_times}")
    return replace(result, notes=tuple(notes))


def _decode_options(request: ExportRequest) -> dict[str, str]:
    """Return the options for decoding that the export state stores; default values are omitted.

    The location of the schemas is not included, because it may differ between runs.
    """
    if request.decode is None:
        return {}
    options = {"decode": request.decode.value, "value_schema": request.value_schema}
    if request.schema_context != DEFAULT_CONTEXT:
        options["schema_context"] = request.schema_context
    return {name: value for name, value in options.items() if value is not None}


def _export_plan(
    plan: ExportPlan,
    settings: ExportSettings,
    decode: DecodeOptions | None,
    engine: Engine,
    listener: Listener,
) -> None:
    """Export the splits of a plan, while the lock of the output is held."""
    tasks = plan.tasks
    sizes = {task.number: task.split.size_bytes for task in tasks}
    listener.on_plan(len(tasks), sum(sizes.values()), ("split", "splits"))
    if tasks:
        with engine.start(
            "export",
            after_failure="run again to continue",
            listener=listener,
            tasks=len(tasks),
            inputs=sorted({name for task in tasks for name in task.split.directories}),
            outputs=[settings.output],
        ) as workers:
            if decode is not None:
                from kafka_index.commands.export.typed_values import find_types  # noqa: PLC0415

                settings = replace(settings, types=find_types(workers, plan, settings, decode))
            for partition in plan.partitions:
                if partition.state is not None and partition.tasks:
                    partition.begin()
            export_by_split = plan.export_by_split
            for result in export_splits(workers, tasks, settings):
                export_by_split[result.number].add(result)
                listener.on_done(1, sizes[result.number])
    for partition in plan.partitions:
        partition.finish()


def export_splits(
    workers: Workers, tasks: Sequence[SplitTask], settings: ExportSettings
) -> Generator[SplitResult, None, None]:
    """Export splits, and yield the result of each split when it is finished."""
    return workers.run(
        tasks,
        partial(_export_split, settings=settings),
        sizes=[task.split.size_bytes for task in tasks],
        description="export {:,} splits of records",
        jobs=JobSizes.EQUAL,
    )


def _export_split(task: SplitTask, attempt_id: str, *, settings: ExportSettings) -> SplitResult:
    """Export a split to data files, each of which is written atomically."""
    topic_settings = settings.for_topic(task.split.topic)
    settings = replace(topic_settings, is_staged=task.is_staged, revision=task.revision)
    try:
        if (
            task.is_repeated
            and (unchanged_result := _keep_earlier_files(task, settings)) is not None
        ):
            return unchanged_result
        damage = _Damage()
        with SplitFiles(task.folder, settings, f"{attempt_id}_{task.number}") as files:
            reader = RecordReader(task.split, settings.read_settings, on_skipped=damage.add)
            for batch in reader:
                files.write(add_tombstone_column(batch, settings) if settings.is_latest else batch)
            files.finish()
    except PublishError:
        raise
    except KafkaIndexError as error:
        return SplitResult(
            task.number, failure=ReportedError.from_error(error), is_retriable=is_retriable(error)
        )
    if task.is_repeated and not settings.format.is_table:
        # The data files that an earlier run wrote for these offsets lack the records that it
        # skipped as damaged.
        remove_data_files(task.folder, task.first_offset, task.end_offset, keep=files.paths)
    header = reader.last_header
    return SplitResult(
        task.number,
        files.records,
        len(files.paths),
        files.size_bytes,
        tuple(damage.first),
        damage.count,
        last_batch=None if header is None else ExportedBatch.of_header(header),
        seen=tuple(reader.read_logs),
        decode_counts=dict(reader.decode_errors),
    )


class _Damage:
    """Collects skipped corrupt ranges."""

    def __init__(self) -> None:
        self.first: list[ReportedError] = []
        self.count = 0

    def add(self, error: CorruptLogError) -> None:
        self.count += 1
        if len(self.first) < _MAX_SKIPPED_RANGES:
            self.first.append(ReportedError.from_error(error))


def _keep_earlier_files(task: SplitTask, settings: ExportSettings) -> SplitResult | None:
    """Return a result that keeps the earlier data files; None if new files may replace them.

    Files are replaced only if the offsets can now be read without damage, and have at least as many
    records as the earlier run exported. Since that run, a batch may have been damaged, or its
    segment deleted.
    """
    damage = _Damage()
    # Only offsets are decoded: counting the records requires no keys and values.
    count_settings = replace(settings.read_settings, columns=("offset",), typed=None)
    records = sum(map(len, RecordReader(task.split, count_settings, on_skipped=damage.add)))
    if not damage.count:
        if task.records_before is None or records >= task.records_before:
            return None
        damage.count = 1
        damage.first.append(
            ReportedError(
                task.folder,
                None,
                f"the log now has {plural(records, 'record')} of offsets {task.first_offset} to "
                f"{task.end_offset - 1}, but {task.records_before} were exported, and their data "
                "files were not replaced; export a complete copy of the log",
            )
        )
    return SplitResult(
        task.number,
        skipped_ranges=tuple(damage.first),
        skipped_count=damage.count,
        is_unchanged=True,
    )
