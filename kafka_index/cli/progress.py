"""Progress of a run: a live line on a terminal, otherwise a line every half minute."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Self, TextIO

from kafka_index.cli.terminal import (
    COMPILING,
    Paint,
    first_lines,
    log_time,
    rich_console,
    terminal_size,
)
from kafka_index.core.errors import plural
from kafka_index.core.format.human import format_bytes, format_count, format_seconds
from kafka_index.core.job.result import MissingOffsets
from kafka_index.core.kernels.compile_clock import compile_clock

if TYPE_CHECKING:
    from rich.progress import Progress as Display

_LIVE_SECONDS = 0.2
_LOG_SECONDS = 30.0
_BAR_WIDTH = 20


class Progress:
    """Shows completed work, its rate, and the remaining time.

    A total of 0 means unknown. Progress is measured in bytes if given, otherwise in items. A
    terminal gets a live line, other streams get log lines. The nouns are singular and plural of an
    item. A context manager; `advance` can be called from any thread. A separate thread writes, so
    that workers never wait for a slow terminal. If the stream is closed, only the display ends.
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
        self._live = enabled and stream.isatty()
        self._enabled = enabled
        self._guard = threading.Lock()
        self._count = 0
        self._bytes = 0
        self._has_shares = False
        self._started = time.monotonic()
        self._compiled_before = 0.0
        self._done = threading.Event()
        self._thread: threading.Thread | None = None
        self._screen = threading.Lock()
        self._drawn: Display | None = None

    def __enter__(self) -> Self:
        self._started = time.monotonic()
        self._compiled_before = compile_clock.seconds
        if self._live:
            compile_clock.on_first = None  # The live line shows it.
        if self._enabled:
            self._thread = threading.Thread(target=self._show, name="progress", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        if self._thread is not None:
            self._thread.join()

    @contextmanager
    def paused(self, stream: TextIO) -> Iterator[None]:
        """Hide the live line while the context prints to a terminal."""
        if not (self._live and stream.isatty()):
            yield
            return
        with self._screen:
            with suppress(OSError, ValueError):
                self._erase()
            yield

    def advance(self, count: int, size_bytes: int = 0) -> None:
        """Count completed items and their bytes, unless progress units include them."""
        with self._guard:
            if self._has_shares:
                return
            self._count += count
            self._bytes += size_bytes

    def set_share(self, done: int, total: int) -> None:
        """Set the progress to a fraction of the whole: completed progress units."""
        with self._guard:
            self._has_shares = True
            self._count = self._total * done // max(total, 1)
            self._bytes = (self._total_bytes or 0) * done // max(total, 1)

    def line(self) -> str:
        with self._guard:
            count, size_bytes = self._count, self._bytes
        compiling = compile_clock.seconds - self._compiled_before
        seconds = max(time.monotonic() - self._started - compiling, 1e-9)
        if not count and compile_clock.is_running:
            return COMPILING
        if self._total_bytes is None:
            done, total, rate = count, self._total, f"{format_count(round(count / seconds))}/s"
        else:
            done, total = size_bytes, self._total_bytes
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
        share = self._share()
        if done and share < 1:
            parts.append(f"{format_seconds(seconds * (total - done) / done)} left")
        return f"{min(share, 1.0):4.0%}  " + "  ".join(parts)

    def _erase(self) -> None:
        drawn, self._drawn = self._drawn, None
        if drawn is not None:
            drawn.stop()

    def _share(self) -> float:
        """Return the completed fraction, 0 if the total is unknown."""
        if not self._total:
            return 0.0
        with self._guard:
            if self._total_bytes is None:
                return self._count / self._total
            return self._bytes / self._total_bytes if self._total_bytes else 1.0

    def _show(self) -> None:
        try:
            if self._live:
                display = self._display()
                while not self._done.wait(_LIVE_SECONDS):
                    with self._screen:
                        self._draw(display)
                self._erase()
                return
            while not self._done.wait(_LOG_SECONDS):
                self._stream.write(f"{log_time(self._stream)}{self.line()}\n")
                self._stream.flush()
        except (OSError, ValueError):
            # The stream was closed; the run continues.
            return

    def _display(self) -> Display:
        """Return a line of rich that can be removed."""
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
        """Draw the line, again after a pause; do nothing on a terminal without cursor movement."""
        if self._drawn is None and display.console.is_interactive:
            display.start()
            self._drawn = display
        task = display.task_ids[0]
        display.console.width, _ = terminal_size(self._stream)
        display.update(task, completed=self._share(), description=self.line(), refresh=True)


def missing_lines(missing: MissingOffsets, paint: Paint) -> list[str]:
    """Format the ranges of missing offsets, lost ones first."""
    if not missing.count:
        return []
    lost = len(missing.lost)
    title = f"offsets are missing in {plural(missing.count, 'place')}, {lost:,} of them lost:"
    style = paint.bad if lost else paint.notable
    lines = list(map(str, missing.ranges))
    return first_lines(style(title), lines, total=missing.count, noun="place")
