"""Signals that end a run: exceptions in the main thread, and an exit code."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self

from kafka_index.cli.exit_code import ExitCode


class _Terminated(BaseException):
    """SIGTERM arrived: what a scheduler sends before it kills."""


class StopSignals:
    """SIGINT and SIGTERM as exceptions in the main thread, and as the exit code of the first.

    A context manager. The code outlives the exception, which may be replaced on its way up by
    an error of the connection to Spark that it broke. SIGINT stays ignored where it was ignored
    from the start, as in a shell's background job, which Ctrl-C is not meant for. SIGTERM, which
    a scheduler sends to this process alone, is always caught.
    """

    def __init__(self) -> None:
        self.code: ExitCode | None = None
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            acts: dict[signal.Signals, Any] = {signal.SIGTERM: self._on_terminate}
            if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
                acts[signal.SIGINT] = self._on_interrupt
            for number, act in acts.items():
                self._previous[number] = signal.signal(number, act)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, act in self._previous.items():
            signal.signal(number, act)

    def _on_interrupt(self, _number: int, _frame: FrameType | None) -> None:
        self.code = self.code or ExitCode.INTERRUPTED
        raise KeyboardInterrupt

    def _on_terminate(self, _number: int, _frame: FrameType | None) -> None:
        # Once: a second one must not interrupt the clean-up.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        self.code = self.code or ExitCode.TERMINATED
        raise _Terminated
