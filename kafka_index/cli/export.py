"""Runs an export, from options to an exit code: list, plan, export, report."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

from kafka_index.cli.exit_code import ExitCode
from kafka_index.cli.progress import Outcome, skipped_lines
from kafka_index.cli.run_summary import run_summary
from kafka_index.cli.shared_options import Detail, relative_times
from kafka_index.cli.terminal import (
    Paint,
    Table,
    first_lines,
    format_bytes,
    format_count,
    shown_path,
    status_table,
)
from kafka_index.errors import plural
from kafka_index.export import (
    EXPORT_REPORT_SCHEMA,
    ExportFormat,
    ExportPlan,
    ExportSettings,
    ExportStatus,
    PartitionReport,
    SplitResult,
    with_first_times,
)
from kafka_index.export.report import outcome_of, report_table
from kafka_index.export.running import held_plan, run_plan
from kafka_index.layout.times import empty_range_text
from kafka_index.records.record_table import DEFAULT_COLUMNS
from kafka_index.storage import refuse_overlap
from kafka_index.storage.paths import absolute_path
from kafka_index.storage.report_file import ReportFile
from kafka_index.tables import Isolation, ReadSettings
from kafka_index.tables.bounds import read_offsets_file, time_span
from kafka_index.tables.records import list_partitions
from kafka_index.tables.settings import RecordFilter

if TYPE_CHECKING:
    from kafka_index.cli.export_command import ExportOptions

_EXPLAINED: Mapping[str, str] = {
    "exported": "new records were exported",
    "unchanged": "no offset is new since the last export",
    "damaged": "exported, without what is damaged",
    "failed": "not exported to the end",
    "continued": "exported, after the log lost data",
    "restarted": "exported anew, after the log lost data",
}


def run_export(options: ExportOptions) -> ExitCode:
    """Export records, and print a summary.

    Raises `KafkaIndexError` if the run as a whole cannot start or continue.
    """
    starts = None if options.offsets is None else read_offsets_file(options.offsets)
    refuse_overlap(absolute_path(options.output), options.output, options.folders)
    listed = list_partitions(
        options.inputs, topics=options.topics, tiered=options.tiered, indexes=options.indexes
    )
    settings = with_first_times(_settings(options), listed.files)
    with ExitStack() as stack:
        report = (
            None
            if options.report is None
            else stack.enter_context(ReportFile(options.report, EXPORT_REPORT_SCHEMA))
        )
        plan = stack.enter_context(
            held_plan(
                listed.files, settings, starting_offsets=starts, on_data_loss=options.on_data_loss
            )
        )
        with ExportOutcome(plan, options.detail) as outcome:
            rows = run_plan(plan, settings, options.engine, outcome)
        if report is not None:
            report.write_table(report_table(rows))
        notes = []
        if plan.works and not any(row.records for row in rows) and options.times[0] is not None:
            span = time_span(listed.files, settings.read)
            notes.append(empty_range_text(settings.from_ms, settings.to_ms, span))
        if (settings.from_ms, settings.to_ms) != options.times:
            given = " and ".join(relative_times().values())
            notes.append(f"{given}: relative to the first run of this export, which is continued")
        notes += skipped_lines(listed.skipped, Paint(sys.stdout), options.detail)
        return outcome.print_summary(rows, settings.output, notes)


def _settings(options: ExportOptions) -> ExportSettings:
    names = options.columns
    given = DEFAULT_COLUMNS if names is None else tuple(one.strip() for one in names.split(","))
    record_filter = RecordFilter(*options.times)
    read = ReadSettings(
        isolation=Isolation(options.isolation),
        max_decompressed_bytes=options.max_decompressed_bytes,
    )
    if record_filter != RecordFilter():
        read = replace(read, record_filter=record_filter)
    return ExportSettings(
        absolute_path(options.output),
        ExportFormat(options.form),
        given,
        options.by_date,
        read,
        relative_times=relative_times(),
    )


class ExportOutcome(Outcome):
    """The listener of an engine that exports; a context manager around its run."""

    def __init__(self, plan: ExportPlan, detail: Detail) -> None:
        works = plan.works
        self._size_of = {work.number: work.split.size_bytes for work in works}
        super().__init__(len(works), sum(self._size_of.values()), detail, nouns=("split", "splits"))

    def on_split(self, result: SplitResult) -> None:
        """Show that a split is exported; called by one thread at a time."""
        self._progress.advance(1, self._size_of[result.number])

    def print_summary(
        self, rows: Sequence[PartitionReport], output: str, notes: Sequence[str] = ()
    ) -> ExitCode:
        """Print the summary, and notes about what was not exported; return the exit code."""
        paint = self._paint
        counts = Counter(row.status.value for row in rows)
        records, files = sum(row.records for row in rows), sum(row.files for row in rows)
        size = format_bytes(sum(row.size_bytes for row in rows))
        total = (
            f"{plural(records, 'record')} in {plural(files, 'file')} of {size}, "
            f"{self._timed(records)}, in {output}"
        )
        lines: list[str | Table] = [
            status_table(
                ("status", "partitions"),
                [(name, format_count(counts[name])) for name in _EXPLAINED if counts[name]],
                _EXPLAINED,
                {"exported": paint.good, "unchanged": paint.good, "failed": paint.bad},
                paint,
            ),
            "",
            total,
            *self._startup_lines(),
            *notes,
        ]
        for name, count in counts.items():
            run_summary().add_count(f"partitions_{name}", count)
        run_summary().add_count("records", records)
        run_summary().add_count("files", files)
        run_summary().add_bytes("output", sum(row.size_bytes for row in rows))
        self._print(lines, self._damage_lines(rows))
        return ExitCode(outcome_of(rows).exit_code)

    def _damage_lines(self, rows: Sequence[PartitionReport]) -> list[str]:
        wrong = [row for row in rows if row.reason is not None]
        if not wrong:
            return []
        left_out = sum(row.left_out for row in wrong)
        failed = sum(row.status is ExportStatus.FAILED for row in wrong)
        title = (
            f"{plural(left_out, 'place')} of damage left out, {plural(failed, 'partition')} failed:"
        )
        if not left_out and not failed:
            title = f"{plural(len(wrong), 'partition')} with a log that lost data:"
        lines = []
        for row in wrong:
            place = "" if row.path is None else f"{shown_path(row.path)}: "
            if row.position_bytes is not None:
                place += f"at byte {row.position_bytes}: "
            more = f" and {row.left_out - 1} more" if row.left_out > 1 else ""
            lines.append(f"{row.topic}-{row.partition}: {place}{row.reason}{more}")
        return first_lines(self._paint.bad(title), lines, noun="partition")
