"""How far a run is: a live line on a terminal, a line every half minute elsewhere."""

from __future__ import annotations

import shutil
import threading
import time
from types import TracebackType
from typing import Self, TextIO

from kafka_index.cli.text import format_bytes, format_count, format_seconds, plural

_LIVE_SECONDS = 0.2
_LOG_SECONDS = 30.0
_CLEAR_LINE = "\r\x1b[K"


class Progress:
    """Shows segments and bytes done, the rate, and the time that is left.

    Parameters
    ----------
    total_segments, total_bytes : int
        What there is to do; 0 segments when that is not known.
    stream : TextIO
        Usually stderr. A terminal gets one line that changes in place.
    enabled : bool
        Whether to show anything.

    Notes
    -----
    A context manager; `advance` may be called from any thread. Writing happens in a thread of its
    own, so that workers never wait for a slow terminal, and a stream that is closed meanwhile
    only ends the display.
    """

    def __init__(
        self, total_segments: int, total_bytes: int, stream: TextIO, *, enabled: bool = True
    ) -> None:
        self._total_segments = total_segments
        self._total_bytes = total_bytes
        self._stream = stream
        self._live = enabled and stream.isatty()
        self._enabled = enabled
        self._guard = threading.Lock()
        self._segments = 0
        self._bytes = 0
        self._started = time.monotonic()
        self._done = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        self._started = time.monotonic()
        if self._enabled:
            self._thread = threading.Thread(target=self._show, name="progress", daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._done.set()
        if self._thread is not None:
            self._thread.join()

    def advance(self, segments: int, size_bytes: int) -> None:
        """Count segments that are finished, and the bytes of their logs."""
        with self._guard:
            self._segments += segments
            self._bytes += size_bytes

    def set_share(self, done: int, total: int) -> None:
        """Set the state to a share of the whole: of tasks over bins of about equal bytes."""
        with self._guard:
            self._segments = self._total_segments * done // max(total, 1)
            self._bytes = self._total_bytes * done // max(total, 1)

    def line(self) -> str:
        """Return the state as one line of text."""
        with self._guard:
            segments, size_bytes = self._segments, self._bytes
        seconds = max(time.monotonic() - self._started, 1e-9)
        rate = size_bytes / seconds
        if not self._total_segments:
            return (
                f"{plural(segments, 'segment')}  {format_bytes(size_bytes)}  {format_bytes(rate)}/s"
            )
        parts = [
            f"{format_count(segments)}/{format_count(self._total_segments)} segments",
            f"{format_bytes(size_bytes)} of {format_bytes(self._total_bytes)}",
            f"{format_bytes(rate)}/s",
        ]
        share = size_bytes / self._total_bytes if self._total_bytes else 1.0
        if rate and share < 1:
            left = (self._total_bytes - size_bytes) / rate
            parts.append(f"{format_seconds(left)} left")
        return f"{min(share, 1.0):4.0%}  " + "  ".join(parts)

    def _show(self) -> None:
        pause = _LIVE_SECONDS if self._live else _LOG_SECONDS
        try:
            while not self._done.wait(pause):
                if self._live:
                    width = shutil.get_terminal_size().columns - 1
                    self._stream.write(_CLEAR_LINE + self.line()[:width])
                else:
                    self._stream.write(self.line() + "\n")
                self._stream.flush()
            if self._live:
                self._stream.write(_CLEAR_LINE)
                self._stream.flush()
        except (OSError, ValueError):
            # The stream was closed under us: nobody is watching any more.
            return
