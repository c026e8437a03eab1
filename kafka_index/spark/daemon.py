"""Parent of an executor's Python workers: forks them with the kernels compiled.

Set as ``spark.python.daemon.module``. A worker that is forked from here finds every module
imported and every kernel compiled; freezing the collector keeps its passes from touching, and so
copying, the pages that workers share. The package has to be importable when the daemon starts:
installed, or on the ``PYTHONPATH`` of the executors (`kafka_index.spark.session` puts
the zips of ``--py-files`` there).
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


# Frozen with the rest: the collector visits what a worker imports itself after every task.
_IMPORTED_BY_TASKS = (
    "pyspark.worker",
    "pandas",
    "kafka_index.commands.build.job_stages",
    "kafka_index.commands.export.export_job",
    "kafka_index.commands.restore.restore_partition",
    "kafka_index.commands.rewrite.job",
    "kafka_index.commands.verify.job",
    "kafka_index.spark.data_source",
    "kafka_index.spark.lookup",
    "kafka_index.spark.parquet",
    "kafka_index.spark.workers",
)


@contextlib.contextmanager
def _quiet_stdout() -> Iterator[None]:
    """Send what is printed to stderr: on its stdout a daemon talks to the JVM."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)


def prepare() -> None:
    """Import what tasks import and compile the kernels; on failure tasks do so themselves."""
    with _quiet_stdout():
        try:
            for name in _IMPORTED_BY_TASKS:
                importlib.import_module(name)
            importlib.import_module("kafka_index.core.kernels.warm_up").warm_up()
        except Exception as error:  # noqa: BLE001, because tasks can do without
            sys.stderr.write(f"kafka-index: workers start cold: {error!r}\n")
    gc.collect()
    gc.freeze()


def ending_with_its_pipe(run_worker: _Worker) -> _Worker:
    """Return PySpark's worker loop without a traceback where the JVM has closed the pipe.

    The JVM does that to a worker that is idle for a minute. The code says that the worker failed:
    after 0, the daemon would run it on the closed pipe again, and again.
    """

    def worker(sock: socket.socket, authenticated: bool) -> int:  # noqa: FBT001, PySpark's
        try:
            return run_worker(sock, authenticated)
        except BrokenPipeError:
            return 1

    return worker


def main() -> None:
    """Run PySpark's daemon, prepared."""
    prepare()
    from pyspark import daemon

    daemon.worker = ending_with_its_pipe(daemon.worker)
    daemon.manager()


if __name__ == "__main__":
    main()
