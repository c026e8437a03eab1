"""Takes a build's rows as they come: into the report, the progress line and the summary."""

from __future__ import annotations

import sys

import click
import pyarrow as pa

from kafka_index.build.report import FAILED, ReportWriter, SegmentReport, report_rows
from kafka_index.cli.build_summary import BuildSummary, skipped_lines
from kafka_index.cli.exit_code import ExitCode
from kafka_index.cli.options import Detail
from kafka_index.cli.progress import Outcome, Progress
from kafka_index.cli.text import Paint
from kafka_index.storage import Skipped

_ROWS_AT_A_TIME = 64 * 1024


class BuildOutcome(Outcome):
    """The listener of an engine; a context manager around its run.

    Parameters
    ----------
    writer : ReportWriter, optional
        Where the report goes.
    total_segments, total_bytes : int
        What there is to do; 0 when not known.
    detail : Detail
        How much to say.
    """

    def __init__(
        self, writer: ReportWriter | None, total_segments: int, total_bytes: int, detail: Detail
    ) -> None:
        super().__init__(
            Progress(total_segments, total_bytes, sys.stderr, enabled=detail is not Detail.QUIET),
            detail,
        )
        self._writer = writer
        self._summary = BuildSummary()

    def on_scanned(self, row: SegmentReport) -> None:
        """Take that a segment has been scanned, or was kept; called from any thread."""
        self._progress.advance(1, row.log_size_bytes)

    def on_report(self, row: SegmentReport) -> None:
        """Take the final row of a segment; called from any thread."""
        with self._guard:
            self._summary.add(row)
            if self._writer is not None:
                self._writer.write([row])

    def on_table(self, rows: pa.Table) -> None:
        """Take rows of finished segments, which the progress line has seen as shares."""
        with self._guard:
            for batch in rows.to_batches(max_chunksize=_ROWS_AT_A_TIME):
                for row in report_rows(pa.Table.from_batches([batch])):
                    self._summary.add(row)
            if self._writer is not None:
                self._writer.write_table(rows)

    def tell(self, skipped: list[Skipped], *, target: str, planned: int) -> ExitCode:
        """Print the summary and return the exit code.

        Parameters
        ----------
        skipped : list of Skipped
            What the listing passed over.
        target : str
            Where the index files are, for people.
        planned : int
            Segments there were to do; 0 when not known.
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
            lines += ["", paint.notable(f"{why}{left_out:,} segments were not begun")]
        for line in lines:
            click.echo(line, file=stream)
        codes = [] if summary.total_segments or left_out > 0 else [ExitCode.USAGE]
        if summary.damaged > summary.retriable:
            codes.append(ExitCode.of_part(retriable=False))
        # A job that ended before it had begun every segment was lost with its cluster.
        if summary.retriable or (left_out > 0 and not summary.segments[FAILED]):
            codes.append(ExitCode.of_part(retriable=True))
        return ExitCode.first(codes)
