"""Progress display and text output of results, for all commands."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Self, TextIO

from kafka_index.cli.exit_status import run_summary
from kafka_index.cli.progress import Progress, missing_lines
from kafka_index.cli.shared_options import Detail
from kafka_index.cli.terminal import SHOWN, Paint, Table, first_lines, print_log, print_text
from kafka_index.core.errors import plural
from kafka_index.core.format.human import format_bytes, format_count, format_seconds, shown_path
from kafka_index.core.job.result import Result, Section, Severity


class ProgressListener:
    """Shows and measures the progress of a run; a context manager around the run."""

    def __init__(self, verbosity: Detail) -> None:
        self._verbosity = verbosity
        self._progress: Progress | None = None
        self._total: tuple[int, int | None, tuple[str, str]] = (0, None, ("unit", "units"))
        self._entered = self._began = self._ended = time.monotonic()

    def __enter__(self) -> Self:
        self._entered = self._began = time.monotonic()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended = time.monotonic()
        if self._progress is not None:
            self._progress.__exit__()

    def run_id(self) -> str:
        """Return the run ID, which is also in the summary."""
        return run_summary().run_id

    @property
    def seconds(self) -> float:
        """Duration of the work, without the engine's startup."""
        return self._ended - self._began

    @property
    def startup_seconds(self) -> float:
        """Duration of the engine's startup, after listing the input."""
        return self._began - self._entered

    def on_plan(self, count: int, size_bytes: int | None, nouns: tuple[str, str]) -> None:
        self._total = count, size_bytes, nouns
        self._entered = time.monotonic()

    def on_begin(self) -> None:
        self._began = time.monotonic()
        count, size_bytes, nouns = self._total
        self._progress = Progress(
            count,
            size_bytes,
            sys.stderr,
            enabled=self._verbosity is not Detail.QUIET,
            nouns=nouns,
        )
        self._progress.__enter__()

    def on_done(self, count: int, size_bytes: int = 0) -> None:
        """Show that an amount of work is complete; called from any thread."""
        if self._progress is not None:
            self._progress.advance(count, size_bytes)

    def on_share(self, done: int, total: int) -> None:
        if self._progress is not None:
            self._progress.set_share(done, total)

    def on_note(self, text: str) -> None:
        """Print a line before the result is available."""
        if self._verbosity is not Detail.QUIET:
            print_log(text)

    def paused(self, stream: TextIO) -> AbstractContextManager[None]:
        """Hide the progress line while the context prints to a terminal."""
        if self._progress is None:
            self.on_begin()
        assert self._progress is not None  # noqa: S101, set by on_begin
        return self._progress.paused(stream)


def print_result(
    result: Result, progress: ProgressListener, verbosity: Detail, *, after_rows: bool = False
) -> None:
    """Print a result: statuses, facts, lists, conclusion, next command.

    With QUIET, only problems are printed, to stderr. With `after_rows`, stdout has the rows of the
    result, so the rest goes to stderr, without the duration.
    """
    is_quiet = verbosity is Detail.QUIET
    stream = sys.stderr if is_quiet or after_rows else sys.stdout
    paint = Paint(stream)
    unread = Section("could not be read:", result.unread, Severity.BAD)
    lost = missing_lines(result.missing_offsets, paint)
    bad = [each for each in (*result.sections, unread) if each.severity is Severity.BAD]
    wrong = [line for section in bad for line in _section_lines(section, paint, verbosity)]
    if result.missing_offsets.lost:
        wrong += lost
        lost = []
    verdict = _painted(paint, result.conclusion.severity, result.conclusion.text)
    next_lines = [f"next: {result.next_command}"] if result.next_command else []
    if is_quiet:
        is_wrong = result.conclusion.severity is Severity.BAD or wrong
        print_text(stream, [*wrong, "", verdict, *next_lines] if is_wrong else [])
        return
    lines: list[str | Table] = []
    if result.statuses:
        rows = [
            (
                _painted(paint, each.severity, each.name),
                *map(format_count, each.numbers),
                *([] if each.size_bytes is None else [format_bytes(each.size_bytes)]),
                each.meaning,
            )
            for each in result.statuses
        ]
        header = (*result.status_header, "")
        lines += [Table(header, rows, left=(0, len(header) - 1)), ""]
    lines += result.facts
    if not after_rows:
        lines.append(_time_line(result, progress))
        if progress.startup_seconds >= 1:
            lines.append(paint.faint(f"starting took {format_seconds(progress.startup_seconds)}"))
    is_verbose = verbosity is Detail.VERBOSE
    for section in result.sections:
        if section.severity is not Severity.BAD and (is_verbose or not section.is_detail):
            lines += _section_lines(section, paint, verbosity)
    lines += lost
    skipped = [each for each in result.skipped if ": ".join(each) not in result.unread]
    lines += _skipped_lines(skipped, paint, verbosity)
    lines += wrong
    gap = [] if after_rows and not lines else [""]
    print_text(stream, [*lines, *gap, verdict, *next_lines])


def _time_line(result: Result, progress: ProgressListener) -> str:
    seconds, size_bytes = progress.seconds, result.work_bytes
    rate = f" ({format_bytes(size_bytes / seconds)}/s)" if size_bytes and seconds > 0 else ""
    read = f"{format_bytes(size_bytes)} read in " if size_bytes else "took "
    return f"{read}{format_seconds(seconds)}{rate}"


def _section_lines(section: Section, paint: Paint, verbosity: Detail) -> Sequence[str]:
    return first_lines(
        _painted(paint, section.severity, section.title),
        section.lines,
        total=section.total,
        most=None if section.shows_all or verbosity is Detail.VERBOSE else SHOWN,
        noun=section.noun,
        after=section.after,
    )


def _painted(paint: Paint, severity: Severity, text: str) -> str:
    styles = {Severity.GOOD: paint.good, Severity.NOTABLE: paint.notable}
    return styles.get(severity, paint.bad)(text)


def _skipped_lines(
    skipped: Sequence[tuple[str, str]], paint: Paint, verbosity: Detail
) -> Sequence[str]:
    """Return the skipped entries by reason; with VERBOSE all of them."""
    reasons: dict[str, list[str]] = {}
    for path, reason in skipped:
        reasons.setdefault(reason, []).append(path)
    lines = []
    for reason, paths in sorted(reasons.items(), key=lambda item: -len(item[1])):
        if verbosity is Detail.VERBOSE:
            lines += [f"  {path}: {reason}" for path in paths]
        else:
            more = f" and {plural(len(paths) - 1, 'other')}" if len(paths) > 1 else ""
            lines.append(f"  {shown_path(paths[0])}{more}: {reason}")
    title = paint.notable(f"skipped {plural(len(skipped), 'entry', 'entries')}:")
    return ["", title, *lines] if lines else []
