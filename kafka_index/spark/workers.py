"""Run tasks on Spark: pickled tasks are sent in bins, and pickled results are returned."""

from __future__ import annotations

import contextlib
import os
import pickle
import socket
import tempfile
import threading
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import Any, TypeVar

import pyarrow as pa
from pyspark import TaskContext, cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from kafka_index.core.errors import (
    EngineError,
    ExecutorError,
    KafkaIndexError,
    RetriableError,
    help_page,
    is_retriable,
)
from kafka_index.core.fs.durable_files import publishing
from kafka_index.core.fs.registry import configure_stores, storage_options, store_of
from kafka_index.core.fs.store import StorageOptions
from kafka_index.core.fs.uris import HDFS_SCHEME, OBJECT_SCHEMES, scheme_of
from kafka_index.core.job.engine import (
    BIN,
    COST_BYTES,
    JobSizes,
    Listener,
    Overlap,
    Workers,
    balance,
    count_bins,
    new_run_id,
    split_jobs,
)
from kafka_index.core.output.locks import PROBE_FILE
from kafka_index.spark.jobs import LACKS, Jobs
from kafka_index.spark.option_values import parse_size
from kafka_index.spark.session import has_local_executors

_Task = TypeVar("_Task")
_Result = TypeVar("_Result")

_PACKED_COLUMN = "packed"
#: Each row is a bin, with its numbered tasks.
_MANIFEST_SCHEMA = pa.schema(
    [
        pa.field(BIN, pa.int32(), nullable=False),
        pa.field(_PACKED_COLUMN, pa.binary(), nullable=False),
    ]
)
#: Each row has the results of one Spark task.
RESULT_SCHEMA = pa.schema([pa.field(_PACKED_COLUMN, pa.binary(), nullable=False)])
# Low, because the tasks or results of a bin repeat strings, and compress well at any level.
_COMPRESSION_LEVEL = 1
# Initial estimate of the size of results, as a multiple of the size of their tasks.
_RESULT_RATIO = 4
# A job uses at most a quarter of Spark's size limits for results and messages.
_LIMIT_DIVISOR = 4
# Spark's defaults of these limits, used if a session does not have the settings.
_MAX_RESULT_SIZE, _MAX_MESSAGE_SIZE = "1g", "128"

_ON_DRIVER = "driver"
_Function = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]


@contextmanager
def session_workers(
    session: SparkSession,
    *,
    listener: Listener | None = None,
    tasks: int = 0,
    inputs: Sequence[str] = (),
    outputs: Sequence[str] = (),
) -> Iterator[SparkWorkers]:
    """Yield the workers of a session; tasks first check modules and paths on their executor."""
    on_progress = None if listener is None else listener.on_units
    with (
        executor_check(session, inputs=inputs, outputs=outputs) as check,
        Jobs(session, items=tasks, on_progress=on_progress) as jobs,
    ):
        if listener is not None:
            listener.on_begin()
        yield SparkWorkers(session, jobs, check)


class SparkWorkers:
    """Runs tasks in a Spark session; each Spark task checks its executor first."""

    in_process = False

    def __init__(self, session: SparkSession, jobs: Jobs, check: ExecutorCheck) -> None:
        self.session = session
        self.jobs = jobs
        self.check = check
        self.limits = DriverLimits.of(session)
        self.driver_bytes = 0
        self._lock = threading.Lock()

    @property
    def count(self) -> int:
        """Number of tasks that run concurrently, from the current number of cores."""
        return self.jobs.count_cores()

    def stop(self) -> None:
        """Cancel the running jobs of all threads."""
        self.jobs.cancel()

    def run(
        self,
        tasks: Sequence[_Task],
        function: Callable[[_Task, str], _Result],
        *,
        sizes: Sequence[int],
        description: str,
        jobs: JobSizes = JobSizes.ONE,
        ordered: bool = False,  # noqa: ARG002, results of a job are sorted in any case
        units: int | None = None,
        result_bytes: int = 0,
    ) -> Generator[_Result, None, None]:
        """Run a function for each task; yield the results job by job, in order within each job.

        For the parameters, see `kafka_index.core.job.engine.Workers.run`. If tasks or results are
        too large for the driver, several Spark jobs are run. With `JobSizes.EQUAL`, jobs overlap,
        so that no core waits for the end of a job.
        """
        units = len(tasks) if units is None else units
        costs = [size + COST_BYTES for size in sizes]
        ratio = float(_RESULT_RATIO)

        def plan() -> Iterator[SparkJob]:
            max_job_tasks = self.limits.result_bytes // max(result_bytes, 1)
            for first, last in split_jobs(costs, jobs, self.count):
                start = first
                while start < last:
                    limit = min(self.limits.work_bytes, int(self.limits.result_bytes / ratio))
                    end = min(last, start + max(max_job_tasks, 1))
                    job = SparkJob.of(tasks, sizes, start, end, limit)
                    start = job.end
                    yield job

        def run(job: SparkJob) -> list[_Result]:
            nonlocal ratio
            result_rows = self.frame_of(job).mapInArrow(
                self.task(partial(_run_tasks, function=function)), spark_schema(RESULT_SCHEMA)
            )
            items = job.end * units // len(tasks) - job.start * units // len(tasks)
            size = f"{sum(sizes[job.start : job.end]) / 1e9:,.2f} GB"
            with self.jobs.job(description.format(job.tasks, size=size), items=items):
                table = self.collect(result_rows)
            ratio = max(ratio, table.nbytes / max(job.size_bytes, 1))
            numbered_results = list(unpack_rows(table.to_batches()))
            check_results(len(numbered_results), job.tasks)
            return [result for _, result in sorted(numbered_results, key=itemgetter(0))]

        if jobs is JobSizes.EQUAL:
            with Overlap(self, plan(), run, bins_of=lambda job: len(job.bins)) as overlap:
                for results in overlap:
                    yield from results
        else:
            for job in plan():
                yield from run(job)

    def frame(self, tasks: Sequence[object], sizes: Sequence[int]) -> DataFrame:
        """Return a DataFrame of tasks for `read_tasks`, in Spark partitions of similar cost."""
        return self.frame_of(SparkJob.of(tasks, sizes, 0, len(tasks), None))

    def frame_of(self, job: SparkJob) -> DataFrame:
        """Return a DataFrame with the tasks of a job for `read_tasks`."""
        manifest = pa.table([list(range(len(job.bins))), job.bins], schema=_MANIFEST_SCHEMA)
        return self.distribute(manifest).repartitionById(len(job.bins), BIN)

    def distribute(self, table: pa.Table) -> DataFrame:
        self._add_bytes(table.nbytes)
        return self.session.createDataFrame(table)

    def collect(self, frame: DataFrame) -> pa.Table:
        table = frame.toArrow()
        self._add_bytes(table.nbytes)
        return table

    def _add_bytes(self, size_bytes: int) -> None:
        with self._lock:
            self.driver_bytes += size_bytes

    def task(self, function: _Function) -> _Function:
        """Wrap a function for ``mapInArrow``; tasks first check modules and paths on executors."""
        return self.check.before(task(function))


@dataclass(frozen=True, slots=True)
class DriverLimits:
    """Maximum bytes that one job sends from the driver as tasks, and to the driver as results."""

    work_bytes: int
    result_bytes: int

    @classmethod
    def of(cls, session: SparkSession) -> DriverLimits:
        """Return a quarter of a session's limits; for a limit of 0, of Spark's default."""
        results = session.conf.get("spark.driver.maxResultSize", _MAX_RESULT_SIZE) or ""
        message = session.conf.get("spark.rpc.message.maxSize", _MAX_MESSAGE_SIZE) or ""
        result_bytes = parse_size(results) or parse_size(_MAX_RESULT_SIZE)
        message_bytes = parse_size(message, unit="m") or parse_size(_MAX_MESSAGE_SIZE, unit="m")
        return cls(message_bytes // _LIMIT_DIVISOR, result_bytes // _LIMIT_DIVISOR)


@dataclass(frozen=True, slots=True)
class SparkJob:
    """A Spark job: a range of tasks, packed in bins."""

    start: int
    end: int
    bins: Sequence[bytes]

    @classmethod
    def of(
        cls,
        tasks: Sequence[object],
        sizes: Sequence[int],
        start: int,
        end: int,
        max_bytes: int | None,
    ) -> SparkJob:
        """Pack tasks from `start` on: as many as fit into `max_bytes`, but at least one task."""
        while True:
            costs = [size + COST_BYTES for size in sizes[start:end]]
            bins = count_bins(len(costs), sum(costs))
            members: list[list[tuple[int, object]]] = [[] for _ in range(bins)]
            for number, bin_number in enumerate(balance(costs, bins, overhead=0), start=start):
                members[bin_number].append((number, tasks[number]))
            job = cls(start, end, list(map(pack_together, members)))
            if max_bytes is None or job.size_bytes <= max_bytes or end - start == 1:
                return job
            end = start + max((end - start) * max_bytes // (2 * job.size_bytes), 1)

    @property
    def tasks(self) -> int:
        """Number of tasks."""
        return self.end - self.start

    @property
    def size_bytes(self) -> int:
        """Size of the packed tasks."""
        return sum(map(len, self.bins))


def pack_together(objects: Sequence[object]) -> bytes:
    """Pickle and compress objects together, because similar objects compress well together."""
    return zlib.compress(pickle.dumps(objects), _COMPRESSION_LEVEL)


def packed_row(objects: Sequence[object]) -> pa.RecordBatch:
    """Return objects as a row of `RESULT_SCHEMA`."""
    return pa.record_batch([[pack_together(objects)]], schema=RESULT_SCHEMA)


def unpack_rows(batches: Iterable[pa.RecordBatch]) -> Iterator[Any]:
    for batch in batches:
        for packed in batch.column(_PACKED_COLUMN).to_pylist():
            yield from pickle.loads(zlib.decompress(packed))  # noqa: S301, ours


def check_results(result_count: int, task_count: int) -> None:
    """Reject incomplete results, because a cancelled job can look like a completed job."""
    if result_count != task_count:
        raise EngineError(
            "a Spark job ended without the results of all tasks",
            expected=task_count,
            found=result_count,
            hint="run again",
        )


def spark_workers(workers: Workers) -> SparkWorkers:
    """Return workers as `SparkWorkers`; raise `TypeError` if they have another type."""
    if not isinstance(workers, SparkWorkers):
        raise TypeError("the workers are not Spark workers")
    return workers


def read_tasks(batches: Iterable[pa.RecordBatch]) -> Iterator[Any]:
    """Yield the tasks in rows of `SparkWorkers.frame`."""
    return (task for _, task in unpack_rows(batches))


def _run_tasks(
    batches: Iterable[pa.RecordBatch], *, function: Callable[[_Task, str], _Result]
) -> Iterator[pa.RecordBatch]:
    attempt_id = current_attempt_id()
    yield packed_row(
        [(number, function(task, attempt_id)) for number, task in unpack_rows(batches)]
    )


def task(function: _Function) -> _Function:
    """Wrap a function for ``mapInArrow``; the wrapper sets the store options of this process.

    Secrets are not sent; each process reads the files of secrets.
    """
    return partial(_run_task, function=function, options=storage_options())


def _run_task(
    batches: Iterable[pa.RecordBatch],
    *,
    function: _Function,
    options: StorageOptions,
) -> Iterator[pa.RecordBatch]:
    configure_stores(options)
    try:
        yield from function(batches)
    except KafkaIndexError as error:
        # The driver receives the class and message of an error, but not its cause, so the class
        # must show that the error is retriable.
        if is_retriable(error) and not isinstance(error, RetriableError):
            raise EngineError(str(error)) from error
        raise


def spark_schema(schema: pa.Schema) -> StructType:
    """Convert an Arrow schema to a Spark schema with the same names, types and nullability."""
    return from_arrow_schema(schema)


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema that Spark expects of record batches."""
    try:
        spark_arrow_schema: pa.Schema = to_arrow_schema(schema, timezone="UTC")
    except TypeError:
        # The parameter does not exist before Spark 4.2.
        spark_arrow_schema = to_arrow_schema(schema)
    return spark_arrow_schema


def current_attempt_id() -> str:
    context = TaskContext.get()
    if context is None:
        return _ON_DRIVER
    return f"task{context.taskAttemptId()}_{context.attemptNumber()}"


# Dependencies that all tasks import, and dependencies for paths in object stores or HDFS.
_TASK_MODULES = (
    "numpy",
    "pandas",
    "pyarrow",
    "llvmlite",
    "numba",
    "google_crc32c",
    "msgspec",
)
_OBJECT_STORE_MODULES = ("arro3.core", "obstore")
_HDFS_MODULES = ("hdfs_native",)

_SAMPLED_INPUTS = 4

NOT_SHARED_HINT = (
    "give a path that all nodes can read: in an object store, HDFS, or a mounted file system "
    f"({help_page('clusters')})"
)


@dataclass(frozen=True, slots=True)
class ExecutorCheck:
    """Requirements that executors must meet: modules, inputs on disk, and probe files in outputs.

    Object stores need no probe file, because all hosts see the same objects.
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

        # A nested function is pickled by value, so it runs even if this package is not installed.
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
                interpreter = f"{sys.executable} (Python {platform.python_version()})"
                names = ", ".join(sorted(set(missing)))
                raise ModuleNotFoundError(
                    f"{lacks}{names}: {interpreter} on {socket.gethostname()}"
                )
            result: Iterator[pa.RecordBatch] = pickle.loads(packed)(batches)  # noqa: S301, ours
            return result

        return checked

    def run(self) -> None:
        """Check once per process that inputs and probe files exist, and outputs are writable.

        Raises `ExecutorError`.
        """
        if self in _passed_checks:
            return
        host = socket.gethostname()
        for path in self.inputs:
            if not os.path.exists(path):
                raise ExecutorError(
                    f"the executor on {host} does not see the input",
                    path=path,
                    hint=NOT_SHARED_HINT,
                )
        for probe in self.probes:
            folder = os.path.dirname(probe)
            if not os.path.exists(probe):
                raise ExecutorError(
                    f"the executor on {host} does not see the driver's output folder",
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
        _passed_checks.add(self)


# The checks that this process has passed.
_passed_checks: set[ExecutorCheck] = set()


def _run_checked(
    batches: Iterable[pa.RecordBatch], *, check: ExecutorCheck, function: _Function
) -> Iterator[pa.RecordBatch]:
    check.run()
    yield from function(batches)


@contextlib.contextmanager
def executor_check(
    session: SparkSession, *, inputs: Sequence[str] = (), outputs: Sequence[str] = ()
) -> Iterator[ExecutorCheck]:
    """Yield the requirements for reading inputs and writing outputs on executors.

    Only a sample of the inputs is checked. Outputs are existing folders or URIs. Folders contain a
    probe file while the context is open. Local executors do not check modules and inputs.
    """
    with probe_files(outputs) as probes:
        if has_local_executors(session):
            yield ExecutorCheck(probes=probes)
            return
        sample = sorted({*inputs[:: max(len(inputs) // _SAMPLED_INPUTS, 1)], *inputs[-1:]})
        on_disk = tuple(path for path in sample if not store_of(path).needs_requests)
        yield ExecutorCheck(_required_modules([*sample, *outputs]), on_disk, probes)


def _required_modules(paths: Sequence[str]) -> tuple[str, ...]:
    # Schemes can be nested, as in tiered+aiven+s3; the last scheme is the scheme of the store.
    schemes = {(scheme_of(path) or "").rpartition("+")[2] for path in paths}
    object_store_modules = () if schemes.isdisjoint(OBJECT_SCHEMES) else _OBJECT_STORE_MODULES
    return (
        *_TASK_MODULES,
        *object_store_modules,
        *(_HDFS_MODULES if HDFS_SCHEME in schemes else ()),
    )


@contextlib.contextmanager
def probe_files(directories: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Create probe files in existing folders while the context is open.

    The next run that locks a folder removes the probe file of a killed run.
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
