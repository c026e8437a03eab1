"""Tasks of Spark of which the n-th file system call below a folder fails, in whichever worker."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from kafka_index.spark.workers import SparkWorkers
from tests.support.killed_runs import ERRNOS, NAMED_CALLS, SIGNALS, WRITES, Failure

_Function = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def let_tasks_fail(
    patch: pytest.MonkeyPatch, folder: Path, counted: Path, step: int, failure: Failure
) -> None:
    """Let the tasks of this process's sessions fail; `counted` gets a byte for each call."""
    whole = SparkWorkers.task
    error, number = ERRNOS.get(failure, 0), SIGNALS.get(failure, 0)
    make = _maker(str(folder), str(counted), step, error, int(number))

    def task(self: SparkWorkers, function: _Function) -> _Function:
        return whole(self, make(function))

    patch.setattr(SparkWorkers, "task", task)


def _maker(
    folder: str, counted: str, step: int, error: int, number: int
) -> Callable[[_Function], _Function]:
    # What is nested here is sent by value, since workers do not import the tests.
    named, writes = NAMED_CALLS - {"os.listdir", "os.scandir"}, WRITES

    def make(function: _Function) -> _Function:
        def failing(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            is_at_work = True
            os_open, os_write = os.open, os.write

            def fail(place: str) -> None:
                if not is_at_work or folder not in place:
                    return
                counter = os_open(counted, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
                os_write(counter, b".")
                call = os.lseek(counter, 0, os.SEEK_CUR)
                os.close(counter)
                if call == step and number:
                    os.kill(os.getpid(), number)
                if call == step:
                    raise OSError(error, os.strerror(error), place)

            def wrapped(name: str) -> Callable[..., object]:
                call = getattr(os, name)

                def called(descriptor: int, *more: Any) -> object:
                    target = more[0] if name == "copy_file_range" else descriptor
                    fail(os.readlink(f"/proc/self/fd/{target}"))
                    return call(descriptor, *more)

                return called

            kept = {name: getattr(os, name) for name in writes}
            for name in kept:
                setattr(os, name, wrapped(name))
            # Hooks cannot be removed: this one does nothing after its task.
            sys.addaudithook(lambda name, given: fail(str(given[:2])) if name in named else None)
            try:
                yield from function(batches)
            finally:
                is_at_work = False
                for name, call in kept.items():
                    setattr(os, name, call)

        return failing

    return make
