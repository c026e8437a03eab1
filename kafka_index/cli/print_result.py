"""Progress display and text output of results, for all commands."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import TYPE_CHECKING, Self, TextIO

from kafka_index.cli.exit_status import run_summary
from kafka_index.cli.terminal import (
    COMPILING,
    MAX_LIST_LINES,
    Paint,
    Table,
    Verbosity,
    format_list,
    log_time_prefix,
    print_log,
    print_text,
    rich_console,
    terminal_size,
)
from kafka_index.core.errors import plural
from kafka_index.core.format.human import format_bytes, format_count, format_seconds, shown_path
from kafka_index.core.job.result import MissingOffsets, Result, Section, Severity
from kafka_index.core.kernels.compile_clock import compile_clock

if TYPE_CHECKING:
    from rich.progress import Progress as Display

_LIVE_INTERVAL_SECONDS = 0.2
_LOG_INTERVAL_SECONDS = 30.0
_BAR_WIDTH = 20


class Progress:
    """Shows completed work, its rate, and the remaining time.

    A context manager; `advance` can be called from any thread. A terminal shows a live line; other
    streams get log lines. A separate thread writes, so that workers never wait for a slow terminal.
    If the stream is closed, the progress display ends, but the run continues.

    Parameters
    ----------
    total : int
        The number of items; 0 if unknown.
    total_bytes : int or None
        The total bytes of all items. If given, bytes measure the progress, otherwise items.
    nouns : tuple of str
        Singular and plural of an item.
    """

    def __init__(
        self,
        total: int,
        total_bytes: int | None,
        stream: TextIO,
        *,
        enabled: bool = True,
        nouns: tuple[str, str] = ("segment", "segments"),
    ) -> None:
        self._total = total
        self._total_bytes = total_bytes
        self._nouns = nouns
        self._stream = stream
        self._is_live = enabled and stream.isatty()
        self._enabled = enabled
        self._lock = threading.Lock()
        self._count = 0
        self._bytes = 0
        self._has_units = False
        self._started = time.monotonic()
        self._compiled_before = 0.0
        self._finished = threading.Event()
        self._thread: threading.Thread | None = None
        self._screen_lock = threading.Lock()
        self._active_display: Display | None = None

    def __enter__(self) -> Self:
        self._started = time.monotonic()
        self._compiled_before = compile_clock.seconds
        if self._is_live:
            compile_clock.on_first = None  # The live line shows compilations.
        if self._enabled:
            self._thread = threading.Thread(target=self._run_display, name="progress", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._finished.set()
        if self._thread is not None:
            self._thread.join()

    @contextmanager
    def paused(self, stream: TextIO) -> Iterator[None]:
        """Hide the live line while the context prints to a terminal."""
        if not (self._is_live and stream.isatty()):
            yield
            return
        with self._screen_lock:
            with suppress(OSError, ValueError):
                self._erase()
            yield

    def advance(self, count: int, size_bytes: int = 0) -> None:
        """Count completed items and their bytes; do nothing after a call of `set_units`."""
        with self._lock:
            if self._has_units:
                return
            self._count += count
            self._bytes += size_bytes

    def set_units(self, completed_units: int, total_units: int) -> None:
        """Set the completed fraction of all work, in progress units."""
        with self._lock:
            self._has_units = True
            self._count = self._total * completed_units // max(total_units, 1)
            self._bytes = (self._total_bytes or 0) * completed_units // max(total_units, 1)

    def line(self) -> str:
        with self._lock:
            count, size_bytes = self._count, self._bytes
        compile_seconds = compile_clock.seconds - self._compiled_before
        seconds = max(time.monotonic() - self._started - compile_seconds, 1e-9)
        if not count and compile_clock.is_running:
            return COMPILING
        if self._total_bytes is None:
            completed, total, rate = count, self._total, f"{format_count(round(count / seconds))}/s"
        else:
            completed, total = size_bytes, self._total_bytes
            rate = f"{format_bytes(size_bytes / seconds)}/s"
        if not self._total:
            parts = [plural(count, *self._nouns)]
            if self._total_bytes is not None:
                parts.append(format_bytes(size_bytes))
            return "  ".join([*parts, rate])
        parts = [f"{format_count(count)}/{format_count(self._total)} {self._nouns[1]}"]
        if self._total_bytes is not None:
            parts.append(f"{format_bytes(size_bytes)} of {format_bytes(self._total_bytes)}")
        parts.append(rate)
        fraction = self._completed_fraction()
        if completed and fraction < 1:
            parts.append(f"{format_seconds(seconds * (total - completed) / completed)} left")
        return f"{min(fraction, 1.0):4.0%}  " + "  ".join(parts)

    def _erase(self) -> None:
        display, self._active_display = self._active_display, None
        if display is not None:
            display.stop()

    def _completed_fraction(self) -> float:
        """Return the completed fraction, 0 if the total is unknown."""
        if not self._total:
            return 0.0
        with self._lock:
            if self._total_bytes is None:
                return self._count / self._total
            return self._bytes / self._total_bytes if self._total_bytes else 1.0

    def _run_display(self) -> None:
        try:
            if self._is_live:
                display = self._display()
                while not self._finished.wait(_LIVE_INTERVAL_SECONDS):
                    with self._screen_lock:
                        self._draw(display)
                self._erase()
                return
            while not self._finished.wait(_LOG_INTERVAL_SECONDS):
                self._stream.write(f"{log_time_prefix(self._stream)}{self.line()}\n")
                self._stream.flush()
        except (OSError, ValueError):
            # The stream was closed; the run continues.
            return

    def _display(self) -> Display:
        """Return a progress line of rich that can be erased."""
        from rich import progress  # noqa: PLC0415, slow to import
        from rich.table import Column  # noqa: PLC0415, slow to import

        text = Column(no_wrap=True, overflow="ellipsis")
        bar = [progress.BarColumn(_BAR_WIDTH)] if self._total else []
        display = progress.Progress(
            progress.SpinnerColumn(),
            *bar,
            progress.TextColumn("{task.description}", markup=False, table_column=text),
            console=rich_console(self._stream),
            auto_refresh=False,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        display.add_task(self.line(), total=1.0)
        return display

    def _draw(self, display: Display) -> None:
        """Draw the progress line, unless the terminal does not support cursor movement."""
        if self._active_display is None and display.console.is_interactive:
            display.start()
            self._active_display = display
        task = display.task_ids[0]
        display.console.width, _ = terminal_size(self._stream)
        display.update(
            task, completed=self._completed_fraction(), description=self.line(), refresh=True
        )


def format_missing_offsets(missing: MissingOffsets, paint: Paint) -> list[str]:
    """Format the ranges of missing offsets, lost ranges first."""
    if not missing.count:
        return []
    lost_count = len(missing.lost)
    title = f"missing offsets: {plural(missing.count, 'range')}, {format_count(lost_count)} lost:"
    style = paint.bad if lost_count else paint.notable
    range_lines = list(map(str, missing.ranges))
    return format_list(style(title), range_lines, total=missing.count, noun="range")


class ProgressListener:
    """Shows and measures the progress of a run; a context manager around the run."""

    def __init__(self, verbosity: Verbosity) -> None:
        self._verbosity = verbosity
        self._progress: Progress | None = None
        self._total: tuple[int, int | None, tuple[str, str]] = (0, None, ("unit", "units"))
        self._startup_began = self._work_began = self._work_ended = time.monotonic()

    def __enter__(self) -> Self:
        self._startup_began = self._work_began = time.monotonic()
        return self

    def __exit__(self, *_: object) -> None:
        self._work_ended = time.monotonic()
        if self._progress is not None:
            self._progress.__exit__()

    def run_id(self) -> str:
        """Return the run ID, which is also in the summary."""
        return run_summary().run_id

    @property
    def seconds(self) -> float:
        """Duration of the work, without the engine's startup."""
        return self._work_ended - self._work_began

    @property
    def startup_seconds(self) -> float:
        """Duration of the engine's startup, after listing the input."""
        return self._work_began - self._startup_began

    def on_plan(self, count: int, size_bytes: int | None, nouns: tuple[str, str]) -> None:
        self._total = count, size_bytes, nouns
        self._startup_began = time.monotonic()

    def on_begin(self) -> None:
        self._work_began = time.monotonic()
        count, size_bytes, nouns = self._total
        self._progress = Progress(
            count,
            size_bytes,
            sys.stderr,
            enabled=self._verbosity is not Verbosity.QUIET,
            nouns=nouns,
        )
        self._progress.__enter__()

    def on_done(self, count: int, size_bytes: int = 0) -> None:
        """Add completed items to the progress; called from any thread."""
        if self._progress is not None:
            self._progress.advance(count, size_bytes)

    def on_units(self, completed_units: int, total_units: int) -> None:
        if self._progress is not None:
            self._progress.set_units(completed_units, total_units)

    def on_note(self, text: str) -> None:
        """Print a line before the result is available."""
        if self._verbosity is not Verbosity.QUIET:
            print_log(text)

    def paused(self, stream: TextIO) -> AbstractContextManager[None]:
        """Hide the progress line while the context prints to a terminal."""
        if self._progress is None:
            self.on_begin()
        assert self._progress is not None  # noqa: S101, set by on_begin
        return self._progress.paused(stream)


def print_result(
    result: Result, progress: ProgressListener, verbosity: Verbosity, *, rows_printed: bool = False
) -> None:
    """Print a result: statuses, facts, lists, conclusion, next command.

    With QUIET, only problems are printed, to stderr. If `rows_printed`, the rows of the result were
    printed to stdout. Other lines then go to stderr, without the duration.
    """
    is_quiet = verbosity is Verbosity.QUIET
    stream = sys.stderr if is_quiet or rows_printed else sys.stdout
    paint = Paint(stream)
    unread = Section("entries not read:", result.unread, Severity.BAD)
    missing_offset_lines = format_missing_offsets(result.missing_offsets, paint)
    sections = (*result.sections, unread)
    bad_sections = [section for section in sections if section.severity is Severity.BAD]
    problem_lines = [
        line for section in bad_sections for line in _format_section(section, paint, verbosity)
    ]
    if result.missing_offsets.lost:
        problem_lines += missing_offset_lines
        missing_offset_lines = []
    conclusion = _color_by_severity(paint, result.conclusion.severity, result.conclusion.text)
    next_lines = [f"next: {result.next_command}"] if result.next_command else []
    if is_quiet:
        has_problems = result.conclusion.severity is Severity.BAD or problem_lines
        print_text(stream, [*problem_lines, "", conclusion, *next_lines] if has_problems else [])
        return
    lines: list[str | Table] = []
    if result.statuses:
        rows = [
            (
                _color_by_severity(paint, status.severity, status.name),
                *map(format_count, status.numbers),
                *([] if status.size_bytes is None else [format_bytes(status.size_bytes)]),
                status.meaning,
            )
            for status in result.statuses
        ]
        header = (*result.status_header, "")
        lines += [Table(header, rows, left=(0, len(header) - 1)), ""]
    lines += result.facts
    if not rows_printed:
        lines.append(_format_duration(result, progress))
        if progress.startup_seconds >= 1:
            lines.append(paint.faint(f"startup took {format_seconds(progress.startup_seconds)}"))
    is_verbose = verbosity is Verbosity.VERBOSE
    for section in result.sections:
        if section.severity is not Severity.BAD and (is_verbose or not section.is_detail):
            lines += _format_section(section, paint, verbosity)
    lines += missing_offset_lines
    skipped = [entry for entry in result.skipped if ": ".join(entry) not in result.unread]
    lines += _format_skipped(skipped, paint, verbosity)
    lines += problem_lines
    separator = [] if rows_printed and not lines else [""]
    print_text(stream, [*lines, *separator, conclusion, *next_lines])


def _format_duration(result: Result, progress: ProgressListener) -> str:
    seconds, size_bytes = progress.seconds, result.work_bytes
    rate = f" ({format_bytes(size_bytes / seconds)}/s)" if size_bytes and seconds > 0 else ""
    verb = f"{format_bytes(size_bytes)} read in " if size_bytes else "took "
    return f"{verb}{format_seconds(seconds)}{rate}"


def _format_section(section: Section, paint: Paint, verbosity: Verbosity) -> Sequence[str]:
    return format_list(
        _color_by_severity(paint, section.severity, section.title),
        section.lines,
        total=section.total,
        max_lines=None if section.shows_all or verbosity is Verbosity.VERBOSE else MAX_LIST_LINES,
        noun=section.noun,
        after=section.after,
    )


def _color_by_severity(paint: Paint, severity: Severity, text: str) -> str:
    styles = {Severity.GOOD: paint.good, Severity.NOTABLE: paint.notable}
    return styles.get(severity, paint.bad)(text)


def _format_skipped(
    skipped: Sequence[tuple[str, str]], paint: Paint, verbosity: Verbosity
) -> Sequence[str]:
    """Format skipped entries: one line per reason, or one per entry with VERBOSE."""
    reasons: dict[str, list[str]] = {}
    for path, reason in skipped:
        reasons.setdefault(reason, []).append(path)
    lines = []
    for reason, paths in sorted(reasons.items(), key=lambda item: -len(item[1])):
        if verbosity is Verbosity.VERBOSE:
            lines += [f"  {path}: {reason}" for path in paths]
        else:
            other_count = f" and {plural(len(paths) - 1, 'other')}" if len(paths) > 1 else ""
            lines.append(f"  {shown_path(paths[0])}{other_count}: {reason}")
    title = paint.notable(f"skipped {plural(len(skipped), 'entry', 'entries')}:")
    return ["", title, *lines] if lines else []
