"""Parent process that forks the Python workers of an executor, with compiled kernels.

The setting ``spark.python.daemon.module`` selects this module. All modules are imported and all
kernels compiled before a worker is forked. Freezing the garbage collector avoids copying shared
memory pages. The package must be importable when the daemon starts: installed, or on the
``PYTHONPATH`` of the executors, to which `kafka_index.spark.session` adds the zips of
``--py-files``.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import socket
import sys
from collections.abc import Iterator
from typing import Protocol


class _Worker(Protocol):
    def __call__(self, sock: socket.socket, authenticated: bool) -> int: ...  # noqa: FBT001, PySpark's


# Imported before the garbage collector is frozen. Otherwise each task's collection would visit the
# objects of these modules.
_TASK_MODULES = (
    "pyspark.worker",
    "pandas",
    "kafka_index.commands.build.log_build",
    "kafka_index.commands.export.export_job",
    "kafka_index.commands.restore.partition",
    "kafka_index.commands.rewrite.job",
    "kafka_index.commands.verify.job",
    "kafka_index.spark.data_source",
    "kafka_index.spark.lookup",
    "kafka_index.spark.indexes",
    "kafka_index.spark.workers",
)


@contextlib.contextmanager
def _stdout_to_stderr() -> Iterator[None]:
    """Redirect prints to stderr, because the daemon and the JVM communicate over stdout."""
    sys.stdout.flush()
    stdout_copy = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(stdout_copy, 1)
        os.close(stdout_copy)


def prepare() -> None:
    """Import the modules of tasks and compile the kernels; if this fails, each task repeats it."""
    with _stdout_to_stderr():
        try:
            for name in _TASK_MODULES:
                importlib.import_module(name)
            importlib.import_module("kafka_index.core.kernels.warm_up").warm_up()
        except Exception as error:  # noqa: BLE001, because tasks can do without
            sys.stderr.write(f"kafka-index: warming up Python workers failed: {error!r}\n")
    gc.collect()
    gc.freeze()


def exit_on_closed_pipe(run_worker: _Worker) -> _Worker:
    """Wrap PySpark's worker loop: if the JVM closes the pipe, exit without a traceback.

    The JVM closes the pipe of a worker that was idle for a minute. The exit code is nonzero,
    because after 0 the daemon would run the worker on the closed pipe again.
    """

    def worker(sock: socket.socket, authenticated: bool) -> int:  # noqa: FBT001, PySpark's
        try:
            return run_worker(sock, authenticated)
        except BrokenPipeError:
            return 1

    return worker


def main() -> None:
    """Prepare this process, then run PySpark's daemon."""
    prepare()
    from pyspark import daemon

    daemon.worker = exit_on_closed_pipe(daemon.worker)
    daemon.manager()


if __name__ == "__main__":
    main()
