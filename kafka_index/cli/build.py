"""Runs a build, from options to an exit code: its rows, as they arrive, report and summary."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from kafka_index.cli.exit_status import ExitCode, run_summary
from kafka_index.cli.html.page import BAD, GOOD, NOTABLE, Conclusion, Meaning, Page, Totals, explain
from kafka_index.cli.html.page_writer import PageWriter
from kafka_index.cli.options import request_of
from kafka_index.cli.progress import Outcome, skipped_lines
from kafka_index.cli.shared_options import Detail
from kafka_index.cli.terminal import SHOWN, Paint, Table, first_lines, print_text, status_table
from kafka_index.commands.build.job import AFTER_FAILURE, BuildJob, BuildRequest
from kafka_index.commands.build.parquet import SHARES, build_parquet, held_target, settings_of
from kafka_index.commands.build.parquet_input import ParquetInput, is_parquet_path, open_parquet
from kafka_index.commands.build.parquet_order import count_segments
from kafka_index.core.cluster.listing import list_logs
from kafka_index.core.errors import InputError, plural
from kafka_index.core.format.human import format_bytes, format_count, shown_path
from kafka_index.core.format.names import TopicPartition
from kafka_index.core.fs.inputs import Skipped, list_unread
from kafka_index.core.fs.paths import absolute_path, expand_input
from kafka_index.core.job.threads import ThreadEngine
from kafka_index.core.log.recovery.report import (
    BUILT,
    FAILED,
    SEGMENT,
    SKIPPED,
    STATUSES,
    TRUNCATED,
    UNCHANGED,
    ReportWriter,
    SegmentReport,
    report_rows,
)
from kafka_index.core.logdir.listing import Listing
from kafka_index.core.logdir.segment_table import SegmentTable
from kafka_index.core.output.report_file import PageMaker

if TYPE_CHECKING:
    from kafka_index.cli.build_command import BuildOptions

_ROWS_AT_A_TIME = 64 * 1024
EXPLAINED = {
    BUILT: "index files written",
    UNCHANGED: "as an earlier run recorded it, not read again",
    TRUNCATED: "valid up to a position, nothing after it is indexed",
    FAILED: "no index files written",
}


def run_build(options: BuildOptions) -> ExitCode:
    """Run a build, print its summary, and return its exit code.

    Raises `KafkaIndexError` if the run as a whole cannot start or continue.
    """
    if _wants_parquet(options):
        if options.topics is not None:
            raise InputError("--topics requires logs", hint="filter the Parquet input instead")
        source = open_parquet(options.inputs)
        if not options.dry_run:
            return _build_parquet(options, source)
        with ThreadEngine().start("count") as workers:
            counted = count_segments(source, workers)
        sizes = [
            (TopicPartition(each.key.topic, each.key.partition), 1, each.size_bytes)
            for each in counted.segments
        ]
        return _print_plan(options, sizes, [])
    listing = list_logs(options.inputs, options.tiered, topics=options.topics)
    if not options.dry_run:
        return _build_logs(options, listing)
    counts = [
        (each.partition, len(each), int(each.sizes_bytes.sum()))
        for each in SegmentTable.of(listing.segments).partitions
    ]
    return _print_plan(options, counts, listing.skipped)


def _wants_parquet(options: BuildOptions) -> bool:
    if options.tiered is not None:
        return False
    if options.input_format != "auto":
        return options.input_format == "parquet"
    paths = [path for given in options.inputs for path in expand_input(given)]
    parquet = [is_parquet_path(path) for path in paths]
    if any(parquet) and not all(parquet):
        raise InputError(
            "Parquet and logs in one input",
            path=paths[parquet.index(not parquet[0])],
            hint="build each in a run of its own, or give --format",
        )
    return all(parquet)


def _build_logs(options: BuildOptions, listing: Listing) -> ExitCode:
    job = BuildJob.of_listing(_request(options), listing)
    segments = job.segments
    topics = {each.partition.topic for each in segments.partitions}
    assumed = job.cluster.settings_text(job.request.config, topics)
    with ExitStack() as stack:
        writer = _report(options, stack)
        settings = stack.enter_context(job.held(run_summary().run_id))
        with BuildOutcome(writer, len(segments), segments.total_bytes, options.detail) as outcome:
            job.run(settings, options.engine, outcome, fail_fast=options.fail_fast)
        if writer is not None:
            writer.write_rest(listing.skipped)
        root = settings.target_root
        where = "beside the logs" if root is None else f"in {root}"
        # Printed first: where the report cannot be finished, the answer is not lost.
        code = outcome.print_summary(listing.skipped, where)
        if assumed is not None and options.detail is not Detail.QUIET:
            print_text(sys.stdout, [assumed])
        return code


def _build_parquet(options: BuildOptions, source: ParquetInput) -> ExitCode:
    if options.output is None:
        raise InputError("Parquet input cannot be built in place", hint="give --output")
    request, run_id = _request(options), run_summary().run_id
    # Before the report is begun.
    settings_of(request, source, options.output, run_id)
    with ExitStack() as stack:
        writer = _report(options, stack)
        settings = stack.enter_context(held_target(request, source, options.output, run_id))
        target_root = str(settings.target_root)
        with (
            BuildOutcome(writer, 0, 0, options.detail) as outcome,
            options.engine.start(
                "build",
                after_failure=AFTER_FAILURE,
                listener=outcome,
                works=SHARES,
                inputs=[file.path for file in source.files],
                outputs=[target_root],
            ) as workers,
        ):
            if options.engine.on_spark:
                from kafka_index.spark import parquet  # noqa: PLC0415, PySpark

                rows = parquet.files_as_rows(source)
                parquet.build_rows(
                    workers, rows, settings, listener=outcome, fail_fast=options.fail_fast
                )
            else:
                build_parquet(
                    workers, source, settings, listener=outcome, fail_fast=options.fail_fast
                )
        if writer is not None:
            writer.write_rest([])
        return outcome.print_summary([], f"in {target_root}")


def _report(options: BuildOptions, stack: ExitStack) -> ReportWriter | None:
    """Open the report that is asked for."""
    if options.report is None:
        return None
    root = None if options.output is None else absolute_path(options.output)
    writer: ReportWriter = ReportWriter(
        options.report,
        target_root=root,
        run_id=run_summary().run_id,
        kinds=options.report_kinds,
        page=build_page(lambda: writer.out_of_order),
    )
    return stack.enter_context(writer)


def _request(options: BuildOptions) -> BuildRequest:
    return request_of(BuildRequest, options, verify_crc=not options.no_verify_crc)


def _print_plan(
    options: BuildOptions,
    counts: Sequence[tuple[TopicPartition, int, int]],
    skipped: Sequence[Skipped],
) -> ExitCode:
    """Print the plan of a dry run: a row per partition, and the totals.

    The counts are numbers of segments and sizes of their logs; a partition may come several times.
    """
    paint = Paint(sys.stdout)
    sums: dict[TopicPartition, tuple[int, int]] = {}
    for partition, number, size_bytes in counts:
        count, sum_bytes = sums.get(partition, (0, 0))
        sums[partition] = count + number, sum_bytes + size_bytes
    rows = [
        (partition.directory_name, format_count(count), format_bytes(sum_bytes))
        for partition, (count, sum_bytes) in sorted(sums.items())
    ]
    table = Table(("partition", "segments", "log bytes"), rows)
    total_bytes = sum(size_bytes for *_, size_bytes in counts)
    segments = plural(sum(count for _, count, _ in counts), "segment")
    total = (
        f"would build {segments} of {plural(len(sums), 'partition')}, "
        f"{format_bytes(total_bytes)} of log"
    )
    print_text(sys.stdout, (table, "", total, *skipped_lines(skipped, paint, options.detail)))
    return ExitCode.DONE


class BuildOutcome(Outcome):
    """The listener of an engine that builds; a context manager around its run.

    Totals are 0 when unknown.
    """

    def __init__(
        self, writer: ReportWriter | None, total_segments: int, total_bytes: int, detail: Detail
    ) -> None:
        super().__init__(total_segments, total_bytes, detail)
        self._writer = writer
        self._total_segments = total_segments
        self._segments = dict.fromkeys(STATUSES, 0)
        self._sizes_bytes = dict.fromkeys(STATUSES, 0)
        self._offset_entries = self._time_entries = 0
        self._damaged = self._retriable = 0
        self._damage: list[SegmentReport] = []
        self._preallocated = 0
        self._notes = 0
        self._first_note: SegmentReport | None = None

    def _add_notes(self, error: BaseException) -> None:
        kept = self._finished() - self._segments[FAILED]
        of_all = f" of {self._total_segments:,}" if self._total_segments else ""
        error.add_note(f"{kept:,}{of_all} segments are finished and kept")

    def on_scanned(self, row: SegmentReport) -> None:
        """Count a segment that was scanned, or kept as it is; called from any thread."""
        self._progress.advance(1, row.log_size_bytes)

    def on_report(self, row: SegmentReport) -> None:
        """Add the final row of a segment; called from any thread."""
        with self._guard:
            self._add(row)
            if self._writer is not None:
                self._writer.write([row])

    def on_table(self, rows: pa.Table) -> None:
        """Add final rows of segments that the progress line has counted as tasks."""
        with self._guard:
            for batch in rows.to_batches(max_chunksize=_ROWS_AT_A_TIME):
                self._add_table(pa.Table.from_batches([batch]))
            if self._writer is not None:
                self._writer.write_table(rows)

    def on_unchanged(self, rows: pa.Table) -> None:
        """Add rows of segments that were looked at, and are right as they are."""
        self._progress.advance(rows.num_rows, int(pc.sum(rows["log_size_bytes"]).as_py()))
        self.on_table(rows)

    def print_summary(self, skipped: Sequence[Skipped], target: str) -> ExitCode:
        """Print the summary and return the exit code.

        `target` is the place of the index files, as printed.
        """
        self._record()
        missing = self._total_segments - self._finished()
        was_stopped = self._segments[FAILED] > 0
        damage = self._damage_lines()
        if missing > 0:
            why = "stopped at the first failure: " if was_stopped else ""
            damage += ["", self._paint.notable(f"{why}{plural(missing, 'segment')} not started")]
        lines = [*self._summary_lines(target), *skipped_lines(skipped, self._paint, self._detail)]
        self._print(lines, damage)
        codes = [] if self._finished() or missing > 0 else [ExitCode.USAGE]
        if self._damaged > self._retriable:
            codes.append(ExitCode.DAMAGE)
        # A job that ended before it had started every segment was lost with its cluster.
        if self._retriable or (missing > 0 and not was_stopped):
            codes.append(ExitCode.ENVIRONMENT)
        return ExitCode.first(codes)

    def _add_table(self, rows: pa.Table) -> None:
        is_silent = pc.and_(pc.is_null(rows["note"]), pc.is_null(rows["reason"]))
        plain = pc.and_(pc.equal(rows["status"], UNCHANGED), is_silent)
        unchanged = rows.filter(plain)
        self._segments[UNCHANGED] += unchanged.num_rows
        self._offset_entries += pc.sum(unchanged["offset_entries"]).as_py() or 0
        self._time_entries += pc.sum(unchanged["time_entries"]).as_py() or 0
        self._sizes_bytes[UNCHANGED] += pc.sum(unchanged["log_size_bytes"]).as_py() or 0
        for row in report_rows(rows.filter(pc.invert(plain))):
            self._add(row)

    def _add(self, row: SegmentReport) -> None:
        self._segments[row.status] += 1
        self._sizes_bytes[row.status] += row.log_size_bytes
        if row.counts is not None:
            self._offset_entries += row.counts.offset_entries
            self._time_entries += row.counts.time_entries
        if row.is_damage:
            self._damaged += 1
            self._retriable += row.retriable
            if len(self._damage) < SHOWN:
                self._damage.append(row)
        elif row.is_preallocated_tail:
            self._preallocated += 1
        if row.note is not None:
            self._notes += 1
            self._first_note = self._first_note or row

    def _record(self) -> None:
        """Add what was counted to the summary of the run."""
        summary = run_summary()
        for status, count in self._segments.items():
            summary.add_count(f"segments_{status}", count)
        summary.add_count("segments_not_started", max(self._total_segments - self._finished(), 0))
        summary.add_count("offset_entries", self._offset_entries)
        summary.add_count("time_entries", self._time_entries)
        summary.add_bytes("logs", sum(self._sizes_bytes.values()))
        summary.add_bytes("log_read", self._log_bytes_read)

    @property
    def _log_bytes_read(self) -> int:
        return sum(self._sizes_bytes.values()) - self._sizes_bytes[UNCHANGED]

    def _finished(self) -> int:
        """Return the number of segments of any status."""
        return sum(self._segments.values())

    def _summary_lines(self, target: str) -> list[str | Table]:
        paint = self._paint
        colours = {
            BUILT: paint.good,
            UNCHANGED: paint.faint,
            TRUNCATED: paint.notable,
            FAILED: paint.bad,
        }
        rows = [
            (status, format_count(count), format_bytes(self._sizes_bytes[status]))
            for status, count in self._segments.items()
            if count
        ]
        header = "status", "segments", "log bytes"
        lines: list[str | Table] = [status_table(header, rows, EXPLAINED, colours, paint)]
        read = self._log_bytes_read
        lines += [
            "",
            (
                f"{format_bytes(read)} of log in {self._timed(read, format_bytes)}, "
                f"{format_count(self._offset_entries)} offset entries, "
                f"{format_count(self._time_entries)} time entries, {target}"
            ),
            *self._startup_lines(),
        ]
        if self._preallocated:
            lines.append(
                f"{plural(self._preallocated, 'log ends', 'logs end')} in preallocated zeros, "
                "as an active segment does: not damaged"
            )
        if self._first_note is not None:
            lines.append(
                f"{plural(self._notes, 'segment has a note', 'segments have notes')} in the "
                f"report, such as {shown_path(self._first_note.log_path)}: {self._first_note.note}"
            )
        return lines

    def _damage_lines(self) -> list[str]:
        """Return the damaged segments, one a line."""
        lines = []
        for row in self._damage:
            place = "" if row.position_bytes is None else f" at byte {row.position_bytes}"
            lines.append(f"{row.log_path}: {row.status}{place}: {row.reason or 'no reason given'}")
        title = self._paint.bad(f"{plural(self._damaged, 'segment')} damaged or failed:")
        return first_lines(title, lines, total=self._damaged)


def build_page(count_out_of_order: Callable[[], int]) -> PageMaker:
    """Return the maker of the page of ``build``, whose rows are the segments.

    The segments with batches that are out of order are built, and are counted once it ends.
    """
    severities = {BUILT: GOOD, UNCHANGED: GOOD, TRUNCATED: BAD, FAILED: BAD}
    explained = explain(
        EXPLAINED, severities, dict.fromkeys(severities, "kafka-index dump {log_path}")
    )
    explained[SKIPPED] = Meaning(NOTABLE, "not a live log, passed over")

    def verdict(totals: Totals) -> Conclusion:
        if damaged := totals.bad + count_out_of_order():
            return Conclusion(BAD, f"{plural(damaged, 'segment')} of {totals.units:,} damaged")
        if unread := list_unread():
            return Conclusion(BAD, f"{plural(len(unread), 'entry', 'entries')} not read")
        return Conclusion(GOOD, f"{plural(totals.units, 'segment')} built, no damage found")

    page = Page(
        "build", "segments", ("status",), explained, verdict, units="kind", unit_values=(SEGMENT,)
    )
    return partial(PageWriter, page, run_summary().about())
