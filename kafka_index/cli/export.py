"""Runs an export, from options to an exit code: list, plan, export, report."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

from kafka_index.cli.exit_status import ExitCode, run_summary
from kafka_index.cli.progress import Outcome, missing_lines, skipped_lines
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
from kafka_index.commands.export.export_job import ExportJob
from kafka_index.commands.export.plan import ExportPlan
from kafka_index.commands.export.report import (
    EXPORT_REPORT_SCHEMA,
    ExportResult,
    ExportStatus,
    PartitionReport,
    SplitResult,
)
from kafka_index.commands.export.settings import ExportFormat, ExportSettings, OnDataLoss
from kafka_index.core.errors import plural
from kafka_index.core.format.times import empty_range_text
from kafka_index.core.fs.paths import absolute_path
from kafka_index.core.output.report_file import open_report
from kafka_index.core.query.bounds import read_offsets_file, time_span
from kafka_index.core.query.settings import Isolation, ReadSettings, RecordFilter
from kafka_index.core.records.record_table import DEFAULT_COLUMNS

if TYPE_CHECKING:
    from kafka_index.cli.export_command import ExportOptions

_EXPLAINED: Mapping[str, str] = {
    "exported": "new records were exported",
    "unchanged": "no offset is new",
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
    job = ExportJob.prepare(
        options.inputs,
        _settings(options),
        shown_output=options.output,
        topics=options.topics,
        tiered=options.tiered,
        indexes=options.indexes,
    )
    settings, listed = job.settings, job.listed
    with ExitStack() as stack:
        report = stack.enter_context(open_report(options.report, EXPORT_REPORT_SCHEMA))
        plan = stack.enter_context(job.held_plan(starts, OnDataLoss(options.on_data_loss)))
        with ExportOutcome(plan, options.detail) as outcome:
            result = job.run(plan, options.engine, outcome)
        if report is not None:
            report.write_table(result.to_arrow())
        notes = []
        if plan.works and not result.counts["records"] and options.times[0] is not None:
            span = time_span(listed.files, settings.read)
            notes.append(empty_range_text(settings.from_ms, settings.to_ms, span))
        if (settings.from_ms, settings.to_ms) != options.times:
            given = " and ".join(relative_times().values())
            notes.append(f"{given}: relative to the first run of this export, which is continued")
        notes += missing_lines(result.missing_offsets, Paint(sys.stdout))
        notes += skipped_lines(listed.skipped, Paint(sys.stdout), options.detail)
        return outcome.print_summary(result, notes)


def _settings(options: ExportOptions) -> ExportSettings:
    names = options.columns
    given = DEFAULT_COLUMNS if names is None else tuple(one.strip() for one in names.split(","))
    times = options.times
    read = ReadSettings(
        isolation=Isolation(options.isolation),
        max_decompressed_bytes=options.max_decompressed_bytes,
        record_filter=None if times == (None, None) else RecordFilter(*times),
    )
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

    def print_summary(self, result: ExportResult, notes: Sequence[str] = ()) -> ExitCode:
        """Print the summary, and notes about what was not exported; return the exit code."""
        paint, counts, statuses = self._paint, result.counts, result.statuses
        run_summary().add_result(result)
        records = counts["records"]
        total = (
            f"{plural(records, 'record')} in {plural(counts['files'], 'file')} of "
            f"{format_bytes(result.sizes_bytes['output'])}, {self._timed(records)}, "
            f"in {result.output}"
        )
        lines: list[str | Table] = [
            status_table(
                ("status", "partitions"),
                [(name, format_count(statuses[name])) for name in _EXPLAINED if statuses[name]],
                _EXPLAINED,
                {"exported": paint.good, "unchanged": paint.good, "failed": paint.bad},
                paint,
            ),
            "",
            total,
            *self._startup_lines(),
            *notes,
        ]
        self._print(lines, self._damage_lines(result.partitions))
        return ExitCode(result.outcome.exit_code)

    def _damage_lines(self, rows: Sequence[PartitionReport]) -> list[str]:
        lost_before = (ExportStatus.FAILED, ExportStatus.CONTINUED, ExportStatus.RESTARTED)
        wrong = [row for row in rows if row.left_out or row.is_shorter or row.status in lost_before]
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
