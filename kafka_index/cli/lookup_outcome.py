"""Takes the reports of a lookup's splits as they come: into the totals and the progress line."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from kafka_index.cli.build_summary import skipped_lines
from kafka_index.cli.exit_code import ExitCode
from kafka_index.cli.lookup_summary import damage_lines, note_lines, status_lines
from kafka_index.cli.options import Detail
from kafka_index.cli.progress import Outcome, Progress
from kafka_index.cli.text import Paint
from kafka_index.lookup import LookupTotals, SplitReport
from kafka_index.reading.answers import Status
from kafka_index.reading.findings import UNREADABLE
from kafka_index.storage import Skipped


class LookupOutcome(Outcome):
    """The listener of an engine; a context manager around its run.

    Parameters
    ----------
    total_queries : int, optional
        What there is to do; None when not known.
    detail : Detail
        How much to say.
    """

    def __init__(self, total_queries: int | None, detail: Detail) -> None:
        super().__init__(
            Progress(
                total_queries or 0,
                None,
                sys.stderr,
                enabled=detail is not Detail.QUIET,
                nouns=("query", "queries"),
            ),
            detail,
        )
        self.totals = LookupTotals()

    def on_split(self, report: SplitReport) -> None:
        """Take the report of a finished split; called from any thread."""
        with self._guard:
            self.totals.add(report)
        self._progress.advance(report.rows)

    def tell(self, skipped: Sequence[Skipped], *, target: str) -> ExitCode:
        """Print the summary and return the exit code.

        Parameters
        ----------
        skipped : sequence of Skipped
            What of the dump was passed over.
        target : str
            Where the answers are, for people.
        """
        totals, every = self.totals, self._detail is Detail.VERBOSE
        unanswered = totals.queries_of_status[Status.UNREADABLE]
        stream = sys.stderr if self._detail is Detail.QUIET else sys.stdout
        paint = Paint(stream)
        lines = []
        if self._detail is not Detail.QUIET:
            lines += status_lines(
                totals.queries_of_status,
                seconds=self.seconds,
                startup_seconds=self.startup_seconds,
                target=target,
                paint=paint,
            )
            lines += note_lines(totals.findings, paint, every=every)
            lines += skipped_lines(list(skipped), paint, every=every)
        lines += damage_lines(totals.findings, unanswered, totals.findings_left_out, paint)
        for line in lines:
            click.echo(line, file=stream)
        causes = [finding for finding in totals.findings if finding.kind == UNREADABLE]
        codes = [ExitCode.of_part(retriable=cause.retriable) for cause in causes]
        if unanswered and not causes:
            codes.append(ExitCode.DAMAGE)
        return ExitCode.first(codes)
