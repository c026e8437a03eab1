"""Executors before a run: a fault of theirs is one line, and they write where the driver looks.

Executors of a cluster are asked what they have. In the folders of the output the driver leaves a
marker, a hidden file of a name that no other run has, and every task looks for it before it writes.
An executor that sees another file system under the same path would otherwise write its files there,
and report them as built.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from kafka_index.errors import EngineError, first_of, help_page
from kafka_index.execution.engine import new_run_id
from kafka_index.spark.jobs import DEPENDENCY_HINT, Jobs, is_connect
from kafka_index.spark.session import is_on_this_machine
from kafka_index.stores import is_remote, scheme_of
from kafka_index.stores.durable_files import publishing
from kafka_index.stores.store import HDFS_SCHEME, OBJECT_SCHEMES

_LOGGER = logging.getLogger(__name__)

# What tasks import besides this package, always and for the stores of some paths.
_MODULES = ("numpy", "pandas", "pyarrow", "llvmlite", "numba", "google_crc32c", "orjson")
_OF_OBJECT_STORES = ("arro3.core", "obstore")
_OF_HDFS = ("hdfs_native",)

_PATIENCE_SECONDS = 120.0
_WAITING = (
    f"no executor has finished a task within {_PATIENCE_SECONDS:.0f} s: the cluster may have no "
    "free cores or memory (see the web UI of its master); still waiting"
)
# More than a cluster has; a range of it is split by the cores of the server.
_MAX_CORES = 1 << 16
_SHOWN = 3
_SAMPLED_INPUTS = 4

NOT_SHARED_HINT = (
    "give a place that all nodes see under one path: an object store, HDFS, or a mounted file "
    f"system ({help_page('clusters')})"
)
_MARKER = ".kafka-index.{run_id}.shared"
_LEFTOVER = re.compile(r"\.kafka-index\.[0-9a-f]{16}\.shared")


@dataclass(frozen=True, slots=True)
class ExecutorReport:
    """The report of one task: its node and Python, and the faults.

    `missing` modules cannot be imported, `unseen` inputs and markers are not found, and
    `unwritable` folders do not accept a file, with the reason.
    """

    host: str
    python: str
    version: str
    missing: list[str]
    unseen: list[str]
    unwritable: dict[str, str]

    def __str__(self) -> str:
        """Return where it ran."""
        return f"{self.python} ({self.version}) on {self.host}"


def check_executors(
    session: SparkSession,
    jobs: Jobs,
    target: SharedTarget,
    *,
    inputs: Sequence[str] = (),
    outputs: Sequence[str] = (),
) -> int:
    """Check that the executors can do the work; return the number of tasks that run at a time.

    Those of this machine see what the driver sees. On a cluster, a few of the inputs on disks are
    looked for, and the target and outputs are written to, by a task for each core. An executor that
    joins later is not asked: `SharedTarget.check` in every task, and the error of a job that fails,
    report the same.
    """
    if not is_connect(session) and is_on_this_machine(session.sparkContext.master or ""):
        return session.sparkContext.defaultParallelism
    sample = sorted({*inputs[:: max(len(inputs) // _SAMPLED_INPUTS, 1)], *inputs[-1:]})
    # A cluster without free cores lets a job wait for as long as it takes.
    notice = threading.Timer(_PATIENCE_SECONDS, _LOGGER.warning, [_WAITING])
    notice.daemon = True
    notice.start()
    try:
        with jobs.job("count the cores"):
            splits = session.range(_MAX_CORES).select(F.spark_partition_id()).distinct()
            cores = max(splits.count(), 1)
    finally:
        notice.cancel()
    # Pickled whole, and without Arrow: it must run where nothing of ours is installed.
    on_disk = tuple(path for path in sample if not is_remote(path))
    modules = _modules_for([*sample, *outputs])
    probe = F.udf(_probe_of(modules, on_disk, target.markers), "string", useArrow=False)
    with jobs.job(f"check the executors, {cores:,} tasks"):
        rows = session.range(0, cores, 1, cores).select(probe("id")).collect()
    reports = [ExecutorReport(**json.loads(row[0])) for row in rows]
    _check_modules(reports)
    _check_files(reports, on_disk)
    return cores


def _modules_for(paths: Sequence[str]) -> tuple[str, ...]:
    """Return the modules that tasks over some paths import."""
    # A scheme may be that of what is in a store, and then ends in that of the store.
    schemes = {(scheme_of(path) or "").rpartition("+")[2] for path in paths}
    objects = () if schemes.isdisjoint(OBJECT_SCHEMES) else _OF_OBJECT_STORES
    return (*_MODULES, *objects, *(_OF_HDFS if HDFS_SCHEME in schemes else ()))


def _check_modules(reports: Sequence[ExecutorReport]) -> None:
    lacking = [report for report in reports if report.missing]
    if lacking:
        names = sorted({name for report in lacking for name in report.missing})
        places = sorted({str(report) for report in lacking})
        raise EngineError(
            f"the Python of the executors lacks {', '.join(names)}: {first_of(places, _SHOWN)}",
            hint=DEPENDENCY_HINT,
        )


def _check_files(reports: Sequence[ExecutorReport], inputs: Sequence[str]) -> None:
    for path in inputs:
        blind = [report for report in reports if path in report.unseen]
        if blind:
            raise EngineError(
                f"the executors do not see the input: {_hosts(blind)}",
                path=path,
                hint=NOT_SHARED_HINT,
            )
    blind = [report for report in reports if report.unseen]
    if blind:
        raise EngineError(
            f"the executors do not see the driver's output folder: {_hosts(blind)}",
            path=blind[0].unseen[0].rpartition("/")[0],
            hint=NOT_SHARED_HINT,
        )
    mute = [report for report in reports if report.unwritable]
    if mute:
        folder, reason = next(iter(mute[0].unwritable.items()))
        raise EngineError(
            f"the executors cannot write to the output: {reason} ({_hosts(mute)})",
            path=folder,
            hint="let the user that executors run as write there",
        )


def _hosts(reports: Sequence[ExecutorReport]) -> str:
    return first_of(sorted({report.host for report in reports}), _SHOWN)


def _probe_of(
    modules: tuple[str, ...], inputs: tuple[str, ...], markers: tuple[str, ...]
) -> Callable[[int], str]:
    """Return the function of a task: nested, so that it is pickled whole, not by its name."""

    def probe(_number: int) -> str:
        import importlib  # noqa: PLC0415, because it runs in a process without this module
        import json  # noqa: PLC0415
        import os  # noqa: PLC0415
        import platform  # noqa: PLC0415
        import socket  # noqa: PLC0415
        import sys  # noqa: PLC0415
        import tempfile  # noqa: PLC0415

        missing = []
        for name in modules:
            try:
                importlib.import_module(name)
            except ModuleNotFoundError as error:
                missing.append(error.name or name)
            except Exception as error:  # noqa: BLE001, because a broken library is no better
                missing.append(f"{name} ({type(error).__name__}: {error})")
        unwritable = {}
        for folder in map(os.path.dirname, filter(os.path.exists, markers)):
            try:
                tempfile.TemporaryFile(dir=folder, prefix=".kafka-index.").close()
            except OSError as error:
                unwritable[folder] = error.strerror or str(error)
        found = {
            "host": socket.gethostname(),
            "python": sys.executable,
            "version": f"Python {platform.python_version()}",
            "missing": missing,
            "unseen": [path for path in (*inputs, *markers) if not os.path.exists(path)],
            "unwritable": unwritable,
        }
        return json.dumps(found)

    return probe


@dataclass(frozen=True, slots=True)
class SharedTarget:
    """Markers by which a task recognises the folders of the driver.

    Each is a path in a folder that exists as long as the run. Stores that are no file systems are
    the same from everywhere and need none.
    """

    markers: tuple[str, ...] = ()

    def check(self) -> None:
        """Look for the markers, in a task."""
        for marker in self.markers:
            if not os.path.exists(marker):
                raise EngineError(
                    f"the executor on {socket.gethostname()} does not see the driver's folder",
                    path=os.path.dirname(marker),
                    hint=NOT_SHARED_HINT,
                )


@contextlib.contextmanager
def shared_target(directories: Sequence[str]) -> Iterator[SharedTarget]:
    """Mark existing folders, or URIs, as those of this run, as long as the context is open.

    Enter it while holding their locks: a marker that exists was left by a killed run.
    """
    name = _MARKER.format(run_id=new_run_id())
    markers: list[str] = []
    try:
        for directory in directories:
            if is_remote(directory):
                continue
            marker = os.path.join(directory, name)
            with publishing(directory, "mark the folder"):
                for entry in os.listdir(directory):
                    if _LEFTOVER.fullmatch(entry):
                        os.unlink(os.path.join(directory, entry))
                os.close(
                    os.open(marker, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
                )
                markers.append(marker)
        yield SharedTarget(tuple(markers))
    finally:
        for marker in markers:
            with contextlib.suppress(OSError):
                os.unlink(marker)
