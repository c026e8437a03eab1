"""Checks of executors: packages, inputs, and access to the driver's output folders.

Each Python process of an executor runs these checks before its first task. The driver creates a
probe file in each output folder, a hidden file with a unique name. Otherwise an executor with
another file system under the same path would write its files there and report them as built.
"""

from __future__ import annotations

import contextlib
import os
import socket
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql import SparkSession

from kafka_index.core.errors import ExecutorError, help_page
from kafka_index.core.fs.durable_files import publishing
from kafka_index.core.fs.registry import store_of
from kafka_index.core.fs.uris import HDFS_SCHEME, OBJECT_SCHEMES, scheme_of
from kafka_index.core.job.engine import new_run_id
from kafka_index.core.output.locks import PROBE_FILE
from kafka_index.spark.jobs import LACKS
from kafka_index.spark.session import runs_here

# Modules that tasks import besides this package: always, and for the stores of some paths.
_MODULES = (
    "numpy",
    "pandas",
    "pyarrow",
    "llvmlite",
    "numba",
    "google_crc32c",
    "msgspec",
)
_OF_OBJECT_STORES = ("arro3.core", "obstore")
_OF_HDFS = ("hdfs_native",)

_SAMPLED_INPUTS = 4

NOT_SHARED_HINT = (
    "give a place that all nodes see under one path: an object store, HDFS, or a mounted file "
    f"system ({help_page('clusters')})"
)

_Function = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]


@dataclass(frozen=True, slots=True)
class ExecutorCheck:
    """The requirements of executors: modules, local inputs, and probe files in output folders.

    Object stores are the same from everywhere and need no probe file.
    """

    modules: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()
    probes: tuple[str, ...] = ()

    def before(self, function: _Function) -> _Function:
        """Wrap a function for ``mapInArrow`` so that the executor is checked first."""
        modules, lacks = self.modules, LACKS
        packed: bytes = cloudpickle.dumps(  # type: ignore[no-untyped-call]
            partial(_run_checked, check=self, function=function)
        )

        # Nested, so that it is pickled by value: it must run even if this package is not installed.
        def checked(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            import importlib  # noqa: PLC0415
            import pickle  # noqa: PLC0415
            import platform  # noqa: PLC0415
            import socket  # noqa: PLC0415
            import sys  # noqa: PLC0415

            missing = []
            for name in modules:
                try:
                    importlib.import_module(name)
                except ModuleNotFoundError as error:
                    missing.append(error.name or name)
                except Exception as error:  # noqa: BLE001, because a broken library is no better
                    missing.append(f"{name} ({type(error).__name__}: {error})")
            if missing:
                place = f"{sys.executable} (Python {platform.python_version()})"
                names = ", ".join(sorted(set(missing)))
                raise ModuleNotFoundError(f"{lacks}{names}: {place} on {socket.gethostname()}")
            found: Iterator[pa.RecordBatch] = pickle.loads(packed)(batches)  # noqa: S301, ours
            return found

        return checked

    def run(self) -> None:
        """Check once that inputs and probe files exist, and that output folders are writable.

        Raises `ExecutorError`.
        """
        if self in _passed:
            return
        host = socket.gethostname()
        for path in self.inputs:
            if not os.path.exists(path):
                raise ExecutorError(
                    f"the executors do not see the input: {host}", path=path, hint=NOT_SHARED_HINT
                )
        for probe in self.probes:
            folder = os.path.dirname(probe)
            if not os.path.exists(probe):
                raise ExecutorError(
                    f"the executors do not see the driver's output folder: {host}",
                    path=folder,
                    hint=NOT_SHARED_HINT,
                )
            try:
                tempfile.TemporaryFile(dir=folder, prefix=".kafka-index.").close()
            except OSError as error:
                raise ExecutorError(
                    f"the executors cannot write to the output: {error.strerror or error} ({host})",
                    path=folder,
                    hint="give write access to the user that runs the executors",
                ) from error
        _passed.add(self)


# The checks that this process has passed.
_passed: set[ExecutorCheck] = set()


def _run_checked(
    batches: Iterable[pa.RecordBatch], *, check: ExecutorCheck, function: _Function
) -> Iterator[pa.RecordBatch]:
    check.run()
    yield from function(batches)


@contextlib.contextmanager
def executor_check(
    session: SparkSession, *, inputs: Sequence[str] = (), outputs: Sequence[str] = ()
) -> Iterator[ExecutorCheck]:
    """Return the requirements for reading inputs and writing outputs on executors.

    A few of the inputs are checked. Outputs are existing folders or URIs, which contain a probe
    file while the context is open. Local executors need no check.
    """
    with probe_files(outputs) as probes:
        if runs_here(session):
            yield ExecutorCheck(probes=probes)
            return
        sample = sorted({*inputs[:: max(len(inputs) // _SAMPLED_INPUTS, 1)], *inputs[-1:]})
        on_disk = tuple(path for path in sample if not store_of(path).needs_requests)
        yield ExecutorCheck(_modules_for([*sample, *outputs]), on_disk, probes)


def _modules_for(paths: Sequence[str]) -> tuple[str, ...]:
    # Schemes can be nested, as in tiered+aiven+s3; the last part is the store's scheme.
    schemes = {(scheme_of(path) or "").rpartition("+")[2] for path in paths}
    objects = () if schemes.isdisjoint(OBJECT_SCHEMES) else _OF_OBJECT_STORES
    return (*_MODULES, *objects, *(_OF_HDFS if HDFS_SCHEME in schemes else ()))


@contextlib.contextmanager
def probe_files(directories: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Create probe files in existing folders while the context is open.

    The probe file of a killed run is removed by the next run that locks the folder.
    """
    name = PROBE_FILE.format(run_id=new_run_id())
    probes: list[str] = []
    try:
        for directory in directories:
            if store_of(directory).needs_requests:
                continue
            probe = os.path.join(directory, name)
            with publishing(directory, "create a file in the folder"):
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
                os.close(os.open(probe, flags, 0o644))
            probes.append(probe)
        yield tuple(probes)
    finally:
        for probe in probes:
            with contextlib.suppress(OSError):
                os.unlink(probe)
