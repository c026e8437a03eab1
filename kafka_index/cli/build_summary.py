"""The rows of a build as they arrive: into the report and its page, progress, the summary."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType

import pyarrow as pa
import pyarrow.compute as pc

from kafka_index.build.report import (
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
from kafka_index.cli.exit_code import ExitCode
from kafka_index.cli.progress import Outcome, skipped_lines
from kafka_index.cli.report_page import BAD, GOOD, NOTABLE, explain, page_maker
from kafka_index.cli.run_summary import run_summary
from kafka_index.cli.shared_options import Detail
from kafka_index.cli.terminal import (
    SHOWN,
    Table,
    first_lines,
    format_bytes,
    format_count,
    shown_path,
    status_table,
)
from kafka_index.errors import plural
from kafka_index.pages.page import Explained, Page, Totals, Verdict
from kafka_index.storage import Skipped
from kafka_index.storage.report_file import PageMaker

_ROWS_AT_A_TIME = 64 * 1024
EXPLAINED = {
    BUILT: "index files written",
    UNCHANGED: "as an earlier run recorded it, not read again",
    TRUNCATED: "valid up to a position, nothing after it is indexed",
    FAILED: "no index files written",
}


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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        super().__exit__(kind, error, traceback)
        if error is not None:
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
        plain = pc.and_(pc.equal(rows["status"], UNCHANGED), pc.is_null(rows["note"]))
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


def build_page() -> PageMaker:
    """Return the maker of the page of ``build``, whose rows are the segments."""
    severities = {BUILT: GOOD, UNCHANGED: GOOD, TRUNCATED: BAD, FAILED: BAD}
    explained = explain(
        EXPLAINED, severities, dict.fromkeys(severities, "kafka-index dump {log_path}")
    )
    explained[SKIPPED] = Explained(NOTABLE, "not a live log, passed over")

    def verdict(totals: Totals) -> Verdict:
        if totals.bad:
            return Verdict(BAD, f"{plural(totals.bad, 'segment')} of {totals.units:,} damaged")
        return Verdict(GOOD, f"{plural(totals.units, 'segment')} built, no damage found")

    page = Page(
        "build", "segments", ("status",), explained, verdict, units="kind", unit_values=(SEGMENT,)
    )
    return page_maker(page)
