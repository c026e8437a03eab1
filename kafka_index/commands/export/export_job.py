"""An export as a whole: what is listed, the lock of its output, its plan, its splits, its rows."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kafka_index.commands.export.export_state import ExportedBatch, with_first_times
from kafka_index.commands.export.partition_export import SplitWork, remove_data_files
from kafka_index.commands.export.plan import ExportPlan, plan_export
from kafka_index.commands.export.request import ExportFormat, ExportRequest
from kafka_index.commands.export.result import ExportResult, LeftOut, SplitResult
from kafka_index.commands.export.settings import ExportSettings
from kafka_index.commands.export.table_commit import Tables
from kafka_index.commands.export.table_schema import is_outside_calendar, table_batch
from kafka_index.core.errors import CorruptLogError, KafkaIndexError, PublishError, is_retriable
from kafka_index.core.format.times import empty_range_text
from kafka_index.core.fs.durable_files import AtomicFile
from kafka_index.core.fs.inputs import reading_inputs, skipped_texts, unread_texts
from kafka_index.core.fs.json_lines import json_lines
from kafka_index.core.fs.paths import absolute_path
from kafka_index.core.fs.registry import atomic_file, store_of
from kafka_index.core.job.engine import SILENT, Engine, JobSizes, Listener, Workers, new_run_id
from kafka_index.core.job.result import ReportSink
from kafka_index.core.output.output import Output
from kafka_index.core.output.publish import ROWS, scratch_path
from kafka_index.core.parameters import time_range_ms
from kafka_index.core.query.bounds import time_span
from kafka_index.core.query.record_reader import RecordReader
from kafka_index.core.query.records import list_partitions
from kafka_index.core.query.settings import ReadSettings, RecordFilter
from kafka_index.core.schema.columns import KEY, VALUE
from kafka_index.core.schema.registry import DEFAULT_CONTEXT

if TYPE_CHECKING:
    from kafka_index.core.schema.decode import DecodeOptions
from kafka_index.core.records.record_table import DEFAULT_COLUMNS

#: Rows are held until they have this many bytes: a row group of Parquet.
_GROUP_BYTES = 16 * 1024 * 1024
#: Columns of numbers that mostly ascend, and how Parquet encodes their differences.
_ASCENDING, _DELTA = ("offset", "timestamp"), "DELTA_BINARY_PACKED"

#: The folder of records whose timestamp is no day of the calendar, as Hive names it.
_NO_DATE = "__HIVE_DEFAULT_PARTITION__"
#: Data files of a split that are open at a time: one for each day that is written to.
_MAX_OPEN = 8
_DAY_MS = 24 * 3600 * 1000


class DataFile:
    """Writes one data file; its rows are held until they make a row group.

    The attempt at a split writes several files, each under a number of its own.
    """

    def __init__(self, folder: str, attempt: str, number: int, settings: ExportSettings) -> None:
        store_of(folder).make_directory(folder)
        path = os.path.join(folder, ROWS)
        self._file: AtomicFile = atomic_file(
            path, scratch_path=scratch_path(path, attempt, str(number)), what="data file"
        )
        self._folder = folder
        self._settings = settings
        self._held: list[pa.RecordBatch] = []
        self._held_bytes = 0
        self._first: int | None = None
        self._last = 0
        self._schema = settings.file_schema
        self._parquet: pq.ParquetWriter | None = None
        if settings.format is not ExportFormat.JSONL:
            self._parquet = pq.ParquetWriter(
                self._file.scratch_path,
                self._schema,
                compression="zstd",
                use_dictionary=_dictionary_paths(self._schema),
                column_encoding={name: _DELTA for name in _ASCENDING if name in self._schema.names},
            )

    def write(self, batch: pa.RecordBatch) -> None:
        """Add records, in the order of their offsets."""
        offsets = batch.column("offset")
        if self._first is None:
            self._first = offsets[0].as_py()
        self._last = offsets[-1].as_py()
        if self._settings.format.is_table:
            self._held.append(table_batch(batch, self._schema))
        else:
            self._held.append(batch.select(self._schema.names))
        self._held_bytes += batch.nbytes
        if self._held_bytes >= _GROUP_BYTES:
            self._flush()

    def commit(self) -> tuple[str, int]:
        """Give the file its name; return its path and its size."""
        self._flush()
        self._close_parquet()
        size_bytes = os.stat(self._file.scratch_path).st_size
        assert self._first is not None  # noqa: S101, because a file has records
        name = self._settings.file_name(self._first, self._last)
        self._file.path = os.path.join(self._folder, name)
        self._file.commit()
        return self._file.path, size_bytes

    def drop(self) -> None:
        """Close the file, and remove it unless it has its name."""
        try:
            self._close_parquet()
        finally:
            self._file.__exit__(None, None, None)

    def _flush(self) -> None:
        if not self._held:
            return
        table = pa.Table.from_batches(self._held, self._schema)
        self._held, self._held_bytes = [], 0
        with self._file.writing():
            if self._parquet is not None:
                self._parquet.write_table(table, row_group_size=max(len(table), 1))
                return
            for batch in table.to_batches(max_chunksize=8192):
                lines = json_lines(_with_times_as_text(batch)).to_pylist()
                self._file.write("".join(f"{line}\n" for line in lines).encode())

    def _close_parquet(self) -> None:
        writer, self._parquet = self._parquet, None
        if writer is not None:
            with self._file.writing():
                writer.close()


def _dictionary_paths(schema: pa.Schema) -> list[str]:
    """Return the columns of Parquet whose values often repeat, as keys and header names do."""
    return [
        path
        for one in schema
        if one.name not in _ASCENDING and (one.name != "value" or one.type != pa.binary())
        for path in (
            _text_paths(one.name, one.type)
            if pa.types.is_nested(one.type) or one.name in (KEY, VALUE)
            else [one.name]
        )
    ]


def _text_paths(path: str, kind: pa.DataType) -> Iterator[str]:
    """Yield the columns of text that Parquet makes of a column."""
    if pa.types.is_struct(kind):
        for one in kind:
            yield from _text_paths(f"{path}.{one.name}", one.type)
    elif pa.types.is_map(kind):
        yield from _text_paths(f"{path}.key_value.key", kind.key_type)
        yield from _text_paths(f"{path}.key_value.value", kind.item_type)
    elif pa.types.is_list(kind):
        yield from _text_paths(f"{path}.list.element", kind.value_type)
    elif pa.types.is_string(kind) or pa.types.is_binary(kind):
        yield path


def _with_times_as_text(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch whose timestamps outside the calendar are ms since the epoch, as texts."""
    number = batch.schema.get_field_index("timestamp")
    if number < 0 or not len(batch):
        return batch
    times = batch.column(number).view(pa.int64())
    outside = np.asarray(is_outside_calendar(times))
    if not outside.any():
        return batch
    known = pc.if_else(pa.array(outside), 0, times).view(pa.timestamp("ms"))
    texts = pc.replace_substring(known.cast(pa.string()), " ", "T", max_replacements=1)
    texts = pc.binary_join_element_wise(texts, "Z", "")
    texts = pc.if_else(pa.array(outside), times.cast(pa.string()), texts)
    return batch.set_column(number, "timestamp", texts)


class SplitFiles:
    """Writes the records of a split; a context manager that removes files without a final name.

    No two attempts at a split share an attempt, of letters, digits and underscores. `paths` are the
    files that have their names; `records` and `size_bytes` are theirs.
    """

    def __init__(self, folder: str, settings: ExportSettings, attempt: str) -> None:
        self.paths: list[str] = []
        self.records = 0
        self.size_bytes = 0
        self._folder = folder
        self._settings = settings
        self._attempt = attempt
        self._open: OrderedDict[str, DataFile] = OrderedDict()
        self._opened = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._open.values():
            file.drop()

    def write(self, batch: pa.RecordBatch) -> None:
        """Add records, in the order of their offsets; raises `PublishError` if there is no room."""
        self.records += len(batch)
        if not self._settings.by_date:
            self._file_of(self._folder).write(batch)
            return
        for name, rows in _by_date(batch):
            self._file_of(os.path.join(self._folder, f"date={name}")).write(rows)

    def finish(self) -> None:
        """Give all files their names; raises `PublishError` if one cannot be put in place."""
        while self._open:
            self._commit(next(iter(self._open)))
        folders = set(map(os.path.dirname, self.paths))
        store_of(self._folder).make_durable(folders, "make the data files durable")

    def _file_of(self, folder: str) -> DataFile:
        file = self._open.get(folder)
        if file is None:
            if len(self._open) == _MAX_OPEN:
                self._commit(next(iter(self._open)))
            self._opened += 1
            file = DataFile(folder, self._attempt, self._opened, self._settings)
            self._open[folder] = file
        self._open.move_to_end(folder)
        return file

    def _commit(self, folder: str) -> None:
        file = self._open[folder]
        path, size_bytes = file.commit()
        del self._open[folder]
        file.drop()
        self.paths.append(path)
        self.size_bytes += size_bytes


def _by_date(batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Yield the records of each day, in the order in which the days first occur."""
    times = np.asarray(batch.column("timestamp").view(pa.int64()))
    days = times // _DAY_MS
    days[np.asarray(is_outside_calendar(pa.array(times)))] = np.iinfo(np.int64).max
    unique, first_rows = np.unique(days, return_index=True)
    for day in unique[np.argsort(first_rows)].tolist():
        rows = batch if len(unique) == 1 else batch.filter(pa.array(days == day))
        yield _date_name(day), rows


def _date_name(day: int) -> str:
    if day == np.iinfo(np.int64).max:
        return _NO_DATE
    return str(np.datetime64(day, "D"))


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
    )
    with reading_inputs(follow_links=request.follow_links) as unread:
        given = request.output or output
        target = Output.of_tables(output, given, request.folders, new_run_id())
        listed = list_partitions(
            request.inputs, topics=request.topics, tiered=request.tiered, indexes=request.indexes
        )
        settings = with_first_times(settings, listed.files)
        decode = None
        if request.decode is not None:
            # Schemas and their decoders are slow to import.
            from kafka_index.commands.export.typed_values import types_of_logs  # noqa: PLC0415
            from kafka_index.core.query.typed_records import decode_options  # noqa: PLC0415

            decode = decode_options(request, {one.topic for one in listed.files}, request.inputs)
            if decode is not None and settings.format.is_table:
                # A table is made before the first file.
                settings = replace(settings, types=types_of_logs(listed.files, settings, decode))
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
    """Return the options of typed columns for the export state; those of the default are left out.

    The schemas may come from another place in each run.
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
        what="export {:,} splits of records",
        jobs=JobSizes.EQUAL,
    )


def _export_split(work: SplitWork, attempt_id: str, *, settings: ExportSettings) -> SplitResult:
    """Export a split into data files, each of which appears whole and durable."""
    own = settings.of_topic(work.split.topic)
    settings = replace(own, is_staged=work.is_staged, revision=work.revision)
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
    if work.is_repeated and not settings.format.is_table:
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
        decode_counts=dict(reader.decode_errors),
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
    """Return a result that keeps earlier data files; None if they may be replaced.

    They are replaced by all records of the range, never by others that may be fewer: a batch that
    was exported can be damaged by now, and a segment missing.
    """
    damage = _Damage()
    # Neither keys nor values need to be copied to be counted.
    counted = replace(settings.read_settings, columns=("offset",), typed=None)
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
