"""The job of an export: list logs, lock the output, plan and export splits, commit to tables."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from kafka_index.commands.export.data_files import SplitFiles, with_tombstones
from kafka_index.commands.export.export_state import ExportedBatch, with_first_times
from kafka_index.commands.export.partition_export import SplitWork, remove_data_files
from kafka_index.commands.export.plan import ExportPlan, plan_export
from kafka_index.commands.export.request import ExportRequest
from kafka_index.commands.export.result import ExportResult, LeftOut, SplitResult
from kafka_index.commands.export.settings import ExportSettings
from kafka_index.commands.export.table_commit import Tables
from kafka_index.core.errors import CorruptLogError, KafkaIndexError, PublishError, is_retriable
from kafka_index.core.format.times import empty_range_text
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

_MAX_LEFT_OUT = 20


def export(
    request: ExportRequest,
    engine: Engine,
    listener: Listener | None = None,
    _report: ReportSink | None = None,
) -> ExportResult:
    """Export the records of a request.

    Raises `InputError` if the output overlaps the input or nothing is found.
    """
    tables = Tables.of(request)
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
        decode=_decode_record(request),
        history=request.history,
    )
    with reading_inputs(follow_links=request.follow_links) as unread:
        given = request.output or output
        target = Output.for_tables(output, given, request.folders, new_run_id())
        listed = list_partitions(
            request.inputs, topics=request.topics, tiered=request.tiered, indexes=request.indexes
        )
        settings = with_first_times(settings, listed.files)
        decode = None
        if request.decode is not None:
            # Slow to import.
            from kafka_index.commands.export.typed_values import types_of_logs  # noqa: PLC0415
            from kafka_index.core.query.typed_records import decode_options  # noqa: PLC0415

            decode = decode_options(request, {one.topic for one in listed.files}, request.inputs)
            if decode is not None and settings.format.is_table:
                # A table is created before its first file is written.
                types = types_of_logs(listed.files, settings, decode, engine.threads)
                settings = replace(settings, types=types)
        with target:
            tables.open(listed.files, settings)
            plan = plan_export(
                listed.files,
                settings,
                starting_offsets=request.offsets,
                on_data_loss=request.on_data_loss,
            )
            _run(plan, settings, decode, engine, listener or SILENT)
            tables.commit(plan.partitions)
        finder = listed.gap_finder(settings.read.max_decompressed_bytes)
        for partition in plan.partitions:
            partition.find_missing(finder)
    result = ExportResult(
        [partition.report() for partition in plan.partitions],
        output,
        unread_texts(unread),
        skipped=skipped_texts(listed.skipped),
    )
    notes = tables.notes
    if plan.works and not result.counts["records"] and times[0] is not None:
        span = time_span(listed.files, settings.read)
        notes.append(empty_range_text(settings.from_ms, settings.to_ms, span))
    if (settings.from_ms, settings.to_ms) != times:
        given = " and ".join(request.relative_times.values())
        notes.append(f"{given}: relative to the first run of this export, which is continued")
    return replace(result, notes=tuple(notes))


def _decode_record(request: ExportRequest) -> dict[str, str]:
    """Return the options of typed columns for the export state, without default values.

    The place of the schemas is not part of them: it may differ between runs.
    """
    if request.decode is None:
        return {}
    given = {"decode": request.decode.value, "value_schema": request.value_schema}
    if request.schema_context != DEFAULT_CONTEXT:
        given["schema_context"] = request.schema_context
    return {name: value for name, value in given.items() if value is not None}


def _run(
    plan: ExportPlan,
    settings: ExportSettings,
    decode: DecodeOptions | None,
    engine: Engine,
    listener: Listener,
) -> None:
    """Export the splits of a plan, whose output is locked."""
    works = plan.works
    sizes = {work.number: work.split.size_bytes for work in works}
    listener.on_plan(len(works), sum(sizes.values()), ("split", "splits"))
    if works:
        with engine.start(
            "export",
            after_failure="run again to continue",
            listener=listener,
            tasks=len(works),
            inputs=sorted({name for work in works for name in work.split.directories}),
            outputs=[settings.output],
        ) as workers:
            if decode is not None:
                from kafka_index.commands.export.typed_values import find_types  # noqa: PLC0415

                settings = replace(settings, types=find_types(workers, plan, settings, decode))
            for partition in plan.partitions:
                if partition.state is not None and partition.works:
                    partition.begin()
            partition_of = plan.partition_of
            for result in export_splits(workers, works, settings):
                partition_of[result.number].add(result)
                listener.on_done(1, sizes[result.number])
    for partition in plan.partitions:
        partition.finish()


def export_splits(
    workers: Workers, works: Sequence[SplitWork], settings: ExportSettings
) -> Generator[SplitResult, None, None]:
    """Export splits, and yield their results as they are finished."""
    return workers.run(
        works,
        partial(_export_split, settings=settings),
        sizes=[work.split.size_bytes for work in works],
        description="export {:,} splits of records",
        jobs=JobSizes.EQUAL,
    )


def _export_split(work: SplitWork, attempt_id: str, *, settings: ExportSettings) -> SplitResult:
    """Export a split to data files, each of which is written atomically."""
    own = settings.of_topic(work.split.topic)
    settings = replace(own, is_staged=work.is_staged, revision=work.revision)
    try:
        if work.is_repeated and (kept := _kept_files(work, settings)) is not None:
            return kept
        damage = _Damage()
        with SplitFiles(work.folder, settings, f"{attempt_id}_{work.number}") as files:
            reader = RecordReader(work.split, settings.read_settings, on_skipped=damage.add)
            for batch in reader:
                files.write(with_tombstones(batch, settings) if settings.is_latest else batch)
            files.finish()
    except PublishError:
        raise
    except KafkaIndexError as error:
        return SplitResult(work.number, failure=LeftOut.of(error), is_retriable=is_retriable(error))
    if work.is_repeated and not settings.format.is_table:
        # Earlier files of this range lack the records that were damaged then.
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
        seen=tuple(reader.read_logs),
        decode_counts=dict(reader.decode_errors),
    )


class _Damage:
    """Collects skipped corrupt ranges."""

    def __init__(self) -> None:
        self.first: list[LeftOut] = []
        self.count = 0

    def add(self, error: CorruptLogError) -> None:
        self.count += 1
        if len(self.first) < _MAX_LEFT_OUT:
            self.first.append(LeftOut.of(error))


def _kept_files(work: SplitWork, settings: ExportSettings) -> SplitResult | None:
    """Return a result that keeps earlier data files; None if they may be replaced.

    Files are replaced only if the range can be read completely, with at least as many records. An
    exported batch may be damaged by now, or its segment missing.
    """
    damage = _Damage()
    # Neither keys nor values need to be copied to be counted.
    counted = replace(settings.read_settings, columns=("offset",), typed=None)
    records = sum(map(len, RecordReader(work.split, counted, on_skipped=damage.add)))
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
