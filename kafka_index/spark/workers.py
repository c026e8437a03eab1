"""Tasks on Spark: sent pickled in bins; pickled results come back."""

from __future__ import annotations

import pickle
import threading
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import Any, TypeVar

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from kafka_index.core.errors import EngineError, KafkaIndexError, RetriableError, is_retriable
from kafka_index.core.fs.registry import configure_stores, storage_options
from kafka_index.core.fs.store import StorageOptions
from kafka_index.core.job.engine import (
    BIN,
    COST_BYTES,
    Listener,
    Overlap,
    SplittableTask,
    Waves,
    Workers,
    balance,
    count_bins,
    split_waves,
)
from kafka_index.spark.executors import ExecutorCheck, executor_check
from kafka_index.spark.jobs import Jobs
from kafka_index.spark.option_values import parse_size

_Work = TypeVar("_Work")
_Result = TypeVar("_Result")

_PACKED = "packed"
#: One row per bin, with its numbered tasks.
_MANIFEST_SCHEMA = pa.schema(
    [pa.field(BIN, pa.int32(), nullable=False), pa.field(_PACKED, pa.binary(), nullable=False)]
)
#: One row per Spark task, with its results.
RESULT_SCHEMA = pa.schema([pa.field(_PACKED, pa.binary(), nullable=False)])
# Tasks and results of a bin repeat the same strings, which compress well together.
_COMPRESSION_LEVEL = 1
# Estimated size of results, as a multiple of the size of their tasks.
_RESULT_RATIO = 4
# A job uses at most 1/4 of Spark's size limits.
_SHARE = 4
# Spark's defaults, if the settings of a session cannot be read.
_MAX_RESULT_SIZE, _MAX_MESSAGE_SIZE = "1g", "128"

_ON_DRIVER = "driver"
_Function = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]


@contextmanager
def session_workers(
    session: SparkSession,
    *,
    listener: Listener | None = None,
    works: int = 0,
    inputs: Sequence[str] = (),
    outputs: Sequence[str] = (),
) -> Iterator[SparkWorkers]:
    """Return the workers of a session, whose tasks check their executor first."""
    on_progress = None if listener is None else listener.on_share
    with (
        executor_check(session, inputs=inputs, outputs=outputs) as check,
        Jobs(session, items=works, on_progress=on_progress) as jobs,
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
        self._guard = threading.Lock()

    @property
    def count(self) -> int:
        """Number of tasks that run concurrently, from the current number of cores."""
        return self.jobs.count_cores()

    def stop(self) -> None:
        """Cancel the running jobs of all threads."""
        self.jobs.cancel()

    def run(
        self,
        works: Sequence[_Work],
        function: Callable[[_Work, str], _Result],
        *,
        sizes: Sequence[int],
        what: str,
        waves: Waves = Waves.ONE,
        ordered: bool = False,  # noqa: ARG002, results of a job are sorted in any case
        shares: int | None = None,
        result_bytes: int = 0,
    ) -> Generator[_Result, None, None]:
        """Yield the results of a function over tasks, job by job and in order.

        Parameters are those of `kafka_index.core.job.Workers.run`. A range of tasks is divided into
        several jobs if tasks or results are too large for the driver. If results are kept, jobs
        overlap, so that no core waits for the end of a job.
        """
        shares = len(works) if shares is None else shares
        costs = [size + COST_BYTES for size in sizes]
        ratio = float(_RESULT_RATIO)

        def plan() -> Iterator[SparkJob]:
            most = self.limits.result_bytes // max(result_bytes, 1)
            for first, last in split_waves(costs, waves, self.count):
                start = first
                while start < last:
                    limit = min(self.limits.work_bytes, int(self.limits.result_bytes / ratio))
                    end = min(last, start + max(most, 1))
                    job = SparkJob.of(works, sizes, start, end, limit)
                    start = job.end
                    yield job

        def run(job: SparkJob) -> list[_Result]:
            nonlocal ratio
            done = self.frame_of(job).mapInArrow(
                self.task(partial(_run, function=function)), spark_schema(RESULT_SCHEMA)
            )
            items = job.end * shares // len(works) - job.start * shares // len(works)
            size = f"{sum(sizes[job.start : job.end]) / 1e9:,.2f} GB"
            with self.jobs.job(what.format(job.works, size=size), items=items):
                table = self.collect(done)
            ratio = max(ratio, table.nbytes / max(job.size_bytes, 1))
            found = list(unpack_rows(table.to_batches()))
            check_results(len(found), job.works)
            return [result for _, result in sorted(found, key=itemgetter(0))]

        if waves is Waves.KEPT:
            with Overlap(self, plan(), run, bins_of=lambda job: len(job.bins)) as overlap:
                for results in overlap:
                    yield from results
        else:
            for job in plan():
                yield from run(job)

    def run_parts(
        self,
        works: Sequence[_Work],
        divide: Callable[[_Work], SplittableTask[_Result]],
        *,
        sizes: Sequence[int],
        what: str,
        waves: Waves = Waves.ONE,
        ordered: bool = False,
    ) -> Generator[_Result, None, None]:
        """Yield the results of tasks; all parts of a task are run by one Spark task."""

        def run(work: _Work, attempt_id: str) -> _Result:
            return divide(work).run(attempt_id)

        return self.run(works, run, sizes=sizes, what=what, waves=waves, ordered=ordered)

    def frame(self, works: Sequence[object], sizes: Sequence[int]) -> DataFrame:
        """Return tasks as rows for `read_works`, distributed to Spark tasks of similar cost."""
        return self.frame_of(SparkJob.of(works, sizes, 0, len(works), None))

    def frame_of(self, job: SparkJob) -> DataFrame:
        """Return the tasks of a job as rows for `read_works`."""
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
        with self._guard:
            self.driver_bytes += size_bytes

    def task(self, function: _Function) -> _Function:
        """Wrap a function for ``mapInArrow`` so that its tasks check their executor first."""
        return self.check.before(task(function))


@dataclass(frozen=True, slots=True)
class DriverLimits:
    """The maximum bytes of tasks and results that one job sends through the driver."""

    work_bytes: int
    result_bytes: int

    @classmethod
    def of(cls, session: SparkSession) -> DriverLimits:
        """Return a quarter of the limits in a session's settings; 0 means no limit."""
        results = session.conf.get("spark.driver.maxResultSize", _MAX_RESULT_SIZE) or ""
        message = session.conf.get("spark.rpc.message.maxSize", _MAX_MESSAGE_SIZE) or ""
        result_bytes = parse_size(results) or parse_size(_MAX_RESULT_SIZE)
        message_bytes = parse_size(message, unit="m") or parse_size(_MAX_MESSAGE_SIZE, unit="m")
        return cls(message_bytes // _SHARE, result_bytes // _SHARE)


@dataclass(frozen=True, slots=True)
class SparkJob:
    """A Spark job: a range of tasks, packed in bins."""

    start: int
    end: int
    bins: Sequence[bytes]

    @classmethod
    def of(
        cls,
        works: Sequence[object],
        sizes: Sequence[int],
        start: int,
        end: int,
        max_bytes: int | None,
    ) -> SparkJob:
        """Pack the tasks from `start` on, as many as fit, at least one."""
        while True:
            costs = [size + COST_BYTES for size in sizes[start:end]]
            bins = count_bins(len(costs), sum(costs))
            members: list[list[tuple[int, object]]] = [[] for _ in range(bins)]
            for number, place in enumerate(balance(costs, bins, overhead=0), start=start):
                members[place].append((number, works[number]))
            job = cls(start, end, list(map(pack_together, members)))
            if max_bytes is None or job.size_bytes <= max_bytes or end - start == 1:
                return job
            end = start + max((end - start) * max_bytes // (2 * job.size_bytes), 1)

    @property
    def works(self) -> int:
        """Number of tasks."""
        return self.end - self.start

    @property
    def size_bytes(self) -> int:
        """Size of the packed tasks."""
        return sum(map(len, self.bins))


def pack_together(objects: Sequence[object]) -> bytes:
    """Pickle and compress objects together, since similar objects compress well."""
    return zlib.compress(pickle.dumps(objects), _COMPRESSION_LEVEL)


def packed_row(objects: Sequence[object]) -> pa.RecordBatch:
    """Return objects as a row of `RESULT_SCHEMA`."""
    return pa.record_batch([[pack_together(objects)]], schema=RESULT_SCHEMA)


def unpack_rows(batches: Iterable[pa.RecordBatch]) -> Iterator[Any]:
    for batch in batches:
        for packed in batch.column(_PACKED).to_pylist():
            yield from pickle.loads(zlib.decompress(packed))  # noqa: S301, ours


def check_results(found: int, expected: int) -> None:
    """Reject incomplete results of a job: a cancelled job can look like a completed one."""
    if found != expected:
        raise EngineError(
            "a job of Spark ended without the results of all its works",
            expected=expected,
            found=found,
            hint="run again",
        )


def spark_workers(workers: Workers) -> SparkWorkers:
    """Cast workers to those of a session; raises `TypeError` if they are others."""
    if not isinstance(workers, SparkWorkers):
        raise TypeError("only Spark runs this")
    return workers


def read_works(batches: Iterable[pa.RecordBatch]) -> Iterator[Any]:
    """Yield the tasks in rows of `SparkWorkers.frame`."""
    return (work for _, work in unpack_rows(batches))


def _run(
    batches: Iterable[pa.RecordBatch], *, function: Callable[[_Work, str], _Result]
) -> Iterator[pa.RecordBatch]:
    attempt_id = current_attempt_id()
    yield packed_row(
        [(number, function(work, attempt_id)) for number, work in unpack_rows(batches)]
    )


def task(function: _Function) -> _Function:
    """Wrap a function for ``mapInArrow`` so that it opens stores with the options of this process.

    Options are sent as given: each process reads the files of secrets itself.
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
        # The class and message of an error reach the driver, but not its cause.
        if is_retriable(error) and not isinstance(error, RetriableError):
            raise EngineError(str(error)) from error
        raise


def spark_schema(schema: pa.Schema) -> StructType:
    """Convert an Arrow schema to a Spark schema with the same names, types and nullability."""
    return from_arrow_schema(schema)


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the schema that Spark expects of record batches."""
    try:
        found: pa.Schema = to_arrow_schema(schema, timezone="UTC")
    except TypeError:
        # Spark before 4.2 does not have this parameter.
        found = to_arrow_schema(schema)
    return found


def current_attempt_id() -> str:
    context = TaskContext.get()
    if context is None:
        return _ON_DRIVER
    return f"task{context.taskAttemptId()}_{context.attemptNumber()}"
