"""Objects that a ``with`` block closes at its end, and locks and blocks that withstand signals."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from types import FrameType
from typing import Self


class Closeable:
    """A context manager that returns itself and is closed at the end."""

    __slots__ = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release all resources."""
        raise NotImplementedError


def lock_and_condition() -> tuple[AbstractContextManager[bool], threading.Condition]:
    """Return a lock and its condition; ``with`` statements must use the lock.

    A signal inside `Condition.__enter__`, which is Python code, would leave the lock locked. The
    lock is reentrant, because garbage collection can close generators that use the lock, inside
    such a statement.
    """
    lock = threading.RLock()
    return lock, threading.Condition(lock)


@contextmanager
def deferred_signals() -> Iterator[None]:
    """Defer SIGINT and SIGTERM until the end of the context."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    arrived: list[int] = []

    def record_signal(number: int, _frame: FrameType | None) -> None:
        arrived.append(number)

    numbers = (signal.SIGINT, signal.SIGTERM)
    previous = {
        number: handler for number in numbers if (handler := signal.getsignal(number)) is not None
    }
    try:
        for number in previous:
            signal.signal(number, record_signal)
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        for signal_number in arrived:
            signal.raise_signal(signal_number)
