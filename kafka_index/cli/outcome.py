"""What the listeners of all engines share: the clock of a run, and its progress line."""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import Self

from kafka_index.cli.detail import Detail
from kafka_index.cli.progress import Progress


class Outcome:
    """A listener of an engine; a context manager around its run.

    Parameters
    ----------
    progress : Progress
        The progress line.
    detail : Detail
        How much to say.
    """

    def __init__(self, progress: Progress, detail: Detail) -> None:
        self._progress = progress
        self._detail = detail
        self._guard = threading.Lock()
        self._entered = self._began = self._ended = time.monotonic()

    def __enter__(self) -> Self:
        self._entered = self._began = time.monotonic()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._ended = time.monotonic()
        self._progress.__exit__(kind, error, traceback)

    @property
    def seconds(self) -> float:
        """What the work took."""
        return self._ended - self._began

    @property
    def startup_seconds(self) -> float:
        """What the engine took to start, before."""
        return self._began - self._entered

    def on_begin(self) -> None:
        """Start the clock of the work itself, and show how far it is."""
        self._began = time.monotonic()
        self._progress.__enter__()

    def on_share(self, done: int, total: int) -> None:
        """Take how many of the equal parts of the work are done; called from any thread."""
        self._progress.set_share(done, total)
