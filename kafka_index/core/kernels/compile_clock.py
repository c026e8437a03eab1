"""Measures how long this process has compiled kernels, for progress displays."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class CompileClock:
    """A clock that runs while at least one kernel is being compiled.

    `count` is the number of compilations started. `on_first` is called once, when the first one
    starts.
    """

    def __init__(self) -> None:
        self.count = 0
        self.on_first: Callable[[], None] | None = None
        self._guard = threading.Lock()
        self._running = 0
        self._since = 0.0
        self._seconds = 0.0

    @property
    def is_running(self) -> bool:
        return self._running > 0

    @property
    def seconds(self) -> float:
        with self._guard:
            since = time.monotonic() - self._since if self._running else 0.0
            return self._seconds + since

    def start(self) -> None:
        """Start a compilation; compilations can be nested."""
        with self._guard:
            is_first = not self.count
            self.count += 1
            if not self._running:
                self._since = time.monotonic()
            self._running += 1
        if is_first and self.on_first is not None:
            self.on_first()

    def stop(self) -> None:
        """End the compilation that was started last."""
        with self._guard:
            self._running -= 1
            if not self._running:
                self._seconds += time.monotonic() - self._since


#: The clock of this process.
compile_clock = CompileClock()
