"""The rows of a build as they arrive: into the report, the progress line and the summary."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType

import click
import pyarrow as pa

from kafka_index.build.report import (
    BUILT,
    FAILED,
    STATUSES,
    TRUNCATED,
    UNCHANGED,
    ReportWriter,
    SegmentReport,
    report_rows,
)
from kafka_index.cli.exit_code import ExitCode
from kafka_index.cli.options import Detail
from kafka_index.cli.progress import Outcome, Progress
from kafka_index.cli.text import (
    Paint,
    format_bytes,
    format_count,
    format_seconds,
    plural,
    shown_path,
    table_lines,
)
from kafka_index.storage import Skipped

_ROWS_AT_A_TIME = 64 * 1024
_SHOWN = 20
_EXPLAINED = {
    BUILT: "index files written",
    UNCHANGED: "already correct, not read again",
    TRUNCATED: "valid up to a position, nothing after it is indexed",
    FAILED: "no index files written",
}


@dataclass
class BuildSummary:
    """Totals of report rows, and the first few damaged ones.

    Parameters
    ----------
    segments, sizes_bytes : dict of str to int
        Per status: the number of segments, and the bytes of their logs.
    offset_entries, time_entries : int
        Entries in the index files of all segments.
    damaged : int
        Segments that failed or lost a tail to damage.
    retriable : int
        Those of the damaged that failed because of permission, disk or memory.
    examples : list of SegmentReport
        The first few of the damaged.
    preallocated : int
        Segments that end in preallocated zeros and are sound otherwise.
    notes : int
        Segments with a note.
    note : SegmentReport, optional
        The first segment with a note.
    """

    segments: dict[str, int] = field(default_factory=lambda: dict.fromkeys(STATUSES, 0))
    sizes_bytes: dict[str, int] = field(default_factory=lambda: dict.fromkeys(STATUSES, 0))
    offset_entries: int = 0
    time_entries: int = 0
    damaged: int = 0
    retriable: int = 0
    examples: list[SegmentReport] = field(default_factory=list)
    preallocated: int = 0
    notes: int = 0
    note: SegmentReport | None = None

    def add(self, row: SegmentReport) -> None:
        """Count a segment."""
        self.segments[row.status] += 1
        self.sizes_bytes[row.status] += row.log_size_bytes
        if row.counts is not None:
            self.offset_entries += row.counts.offset_entries
            self.time_entries += row.counts.time_entries
        if row.is_damage:
            self.damaged += 1
            self.retriable += row.retriable
            if len(self.examples) < _SHOWN:
                self.examples.append(row)
        elif row.is_preallocated_tail:
            self.preallocated += 1
        if row.note is not None:
            self.notes += 1
            self.note = self.note or row

    @property
    def total_segments(self) -> int:
        """Segments of any status."""
        return sum(self.segments.values())

    def lines(
        self, *, seconds: float, startup_seconds: float, target: str, paint: Paint
    ) -> list[str]:
        """Return the summary of a finished run.

        Parameters
        ----------
        seconds : float
            Duration of the work.
        startup_seconds : float
            Duration of the engine's start.
        target : str
            Where the index files are, as printed.
        paint : Paint
            Colours.
        """
        colours = {BUILT: paint.good, TRUNCATED: paint.notable, FAILED: paint.bad}
        rows = [
            (status, format_count(count), format_bytes(self.sizes_bytes[status]))
            for status, count in self.segments.items()
            if count
        ]
        table = table_lines(("status", "segments", "log bytes"), rows)
        lines = [paint.strong(table[0])]
        for (status, *_), line in zip(rows, table[1:], strict=True):
            colour = colours.get(status, paint.faint)
            padded = line[: len(status)]
            lines.append(colour(padded) + line[len(status) :] + "   " + _EXPLAINED[status])
        read = sum(self.sizes_bytes.values()) - self.sizes_bytes[UNCHANGED]
        rate = f" ({format_bytes(read / seconds)}/s)" if read and seconds > 0 else ""
        lines += [
            "",
            (
                f"{format_bytes(read)} of log in {format_seconds(seconds)}{rate}, "
                f"{format_count(self.offset_entries)} offset entries, "
                f"{format_count(self.time_entries)} time entries, {target}"
            ),
        ]
        if startup_seconds >= 1:
            lines.append(paint.faint(f"starting the engine took {format_seconds(startup_seconds)}"))
        if self.preallocated:
            lines.append(
                f"{plural(self.preallocated, 'log ends', 'logs end')} in preallocated zeros, "
                "as an active segment does: not damaged"
            )
        if self.note is not None:
            lines.append(
                f"{plural(self.notes, 'segment has a note', 'segments have notes')} in the report, "
                f"such as {shown_path(self.note.log_path)}: {self.note.note}"
            )
        return lines

    def damage_lines(self, paint: Paint) -> list[str]:
        """Return the damaged segments, one a line."""
        if not self.damaged:
            return []
        lines = ["", paint.bad(f"{plural(self.damaged, 'segment')} damaged or failed:")]
        for row in self.examples:
            place = "" if row.position_bytes is None else f" at byte {row.position_bytes}"
            lines.append(
                f"  {row.log_path}: {row.status}{place}: {row.reason or 'no reason given'}"
            )
        if self.damaged > len(self.examples):
            lines.append(f"  and {format_count(self.damaged - len(self.examples))} more")
        return lines


class BuildOutcome(Outcome):
    """The listener of an engine; a context manager around its run.

    Parameters
    ----------
    writer : ReportWriter, optional
        The writer of the report.
    total_segments, total_bytes : int
        The segments to build, and the bytes of their logs; 0 when unknown.
    detail : Detail
        How much to print.
    """

    def __init__(
        self, writer: ReportWriter | None, total_segments: int, total_bytes: int, detail: Detail
    ) -> None:
        super().__init__(
            Progress(total_segments, total_bytes, sys.stderr, enabled=detail is not Detail.QUIET),
            detail,
        )
        self._writer = writer
        self._total_segments = total_segments
        self._summary = BuildSummary()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        super().__exit__(kind, error, traceback)
        if error is not None:
            kept = self._summary.total_segments - self._summary.segments[FAILED]
            of_all = f" of {self._total_segments:,}" if self._total_segments else ""
            error.add_note(f"{kept:,}{of_all} segments are finished and kept")

    def on_scanned(self, row: SegmentReport) -> None:
        """Count a segment that was scanned, or kept as it is; called from any thread."""
        self._progress.advance(1, row.log_size_bytes)

    def on_report(self, row: SegmentReport) -> None:
        """Add the final row of a segment; called from any thread."""
        with self._guard:
            self._summary.add(row)
            if self._writer is not None:
                self._writer.write([row])

    def on_table(self, rows: pa.Table) -> None:
        """Add final rows of segments that the progress line has counted as tasks."""
        with self._guard:
            for batch in rows.to_batches(max_chunksize=_ROWS_AT_A_TIME):
                for row in report_rows(pa.Table.from_batches([batch])):
                    self._summary.add(row)
            if self._writer is not None:
                self._writer.write_table(rows)

    def print_summary(self, skipped: list[Skipped], *, target: str, planned: int) -> ExitCode:
        """Print the summary and return the exit code.

        Parameters
        ----------
        skipped : list of Skipped
            Entries that the listing skipped.
        target : str
            Where the index files are, as printed.
        planned : int
            The segments to build; 0 when unknown.
        """
        summary = self._summary
        left_out = planned - summary.total_segments
        stream = sys.stderr if self._detail is Detail.QUIET else sys.stdout
        paint = Paint(stream)
        lines = []
        if self._detail is not Detail.QUIET:
            lines += summary.lines(
                seconds=self.seconds,
                startup_seconds=self.startup_seconds,
                target=target,
                paint=paint,
            )
            every = self._detail is Detail.VERBOSE
            lines += skipped_lines(skipped, paint, every=every)
        lines += summary.damage_lines(paint)
        if left_out > 0:
            why = "stopped at the first failure: " if summary.segments[FAILED] else ""
            lines += ["", paint.notable(f"{why}{plural(left_out, 'segment')} not started")]
        for line in lines:
            click.echo(line, file=stream)
        codes = [] if summary.total_segments or left_out > 0 else [ExitCode.USAGE]
        if summary.damaged > summary.retriable:
            codes.append(ExitCode.of_part(retriable=False))
        # A job that ended before it had started every segment was lost with its cluster.
        if summary.retriable or (left_out > 0 and not summary.segments[FAILED]):
            codes.append(ExitCode.of_part(retriable=True))
        return ExitCode.first(codes)


def skipped_lines(skipped: Sequence[Skipped], paint: Paint, *, every: bool) -> list[str]:
    """Return the entries that the listing skipped, by reason; all of them with `every`."""
    if not skipped:
        return []
    reasons: dict[str, list[str]] = {}
    for one in skipped:
        reasons.setdefault(one.reason, []).append(one.path)
    entries = plural(len(skipped), "entry", "entries")
    lines = ["", paint.notable(f"skipped {entries}:")]
    for reason, paths in sorted(reasons.items(), key=lambda item: -len(item[1])):
        if every:
            lines += [f"  {path}: {reason}" for path in paths]
        else:
            more = "" if len(paths) == 1 else f" and {plural(len(paths) - 1, 'other', 'others')}"
            lines.append(f"  {shown_path(paths[0])}{more}: {reason}")
    return lines
