"""Works as tasks of Spark: they go out pickled in bins, and pickled results come back."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from kafka_index.errors import EngineError, KafkaIndexError, RetriableError, is_retriable
from kafka_index.execution import Listener, Parts, Waves, Workers
from kafka_index.execution.engine import BIN, COST_BYTES, balance, split_waves
from kafka_index.spark.executors import SharedTarget, check_executors, shared_target
from kafka_index.spark.jobs import Jobs
from kafka_index.stores import StorageOptions, configure_stores, storage_options

_Work = TypeVar("_Work")
_Result = TypeVar("_Result")

_NUMBER, _WORK, _RESULT = "number", "work", "result"
_NUMBER_FIELD = pa.field(_NUMBER, pa.int64(), nullable=False)
_MANIFEST_SCHEMA = pa.schema(
    [
        pa.field(BIN, pa.int32(), nullable=False),
        _NUMBER_FIELD,
        pa.field(_WORK, pa.binary(), nullable=False),
    ]
)
_RESULT_SCHEMA = pa.schema([_NUMBER_FIELD, pa.field(_RESULT, pa.binary(), nullable=False)])
_BINS_PER_WORKER = 4
_BIN_BYTES = 1 << 30
_MAX_BINS = 20_000
# Results that a task hands over together.
_RESULTS_TOGETHER = 256
_RESULT_BYTES_TOGETHER = 1 << 20

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
    """Check the executors of a session, and return its workers."""
    on_progress = None if listener is None else listener.on_share
    with (
        shared_target(outputs) as target,
        Jobs(session, items=works, on_progress=on_progress) as jobs,
    ):
        count = check_executors(session, jobs, target, inputs=inputs, outputs=outputs)
        if listener is not None:
            listener.on_begin()
        yield SparkWorkers(session, jobs, target, count)


class SparkWorkers:
    """The tasks of a session, `count` of them at a time, with the folders that they write to."""

    in_process = False

    def __init__(self, session: SparkSession, jobs: Jobs, target: SharedTarget, count: int) -> None:
        self.session = session
        self.jobs = jobs
        self.target = target
        self.count = count

    def stop(self) -> None:
        """Cancel the jobs that run, in whatever thread."""
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
    ) -> Generator[_Result, None, None]:
        """Yield the results of a function over works, job by job and in order.

        Parameters are those of `kafka_index.execution.Workers.run`.
        """
        shares = len(works) if shares is None else shares
        costs = [size + COST_BYTES for size in sizes]
        for start, end in split_waves(costs, waves, self.count):
            wave = works[start:end]
            items = end * shares // len(works) - start * shares // len(works)
            done = self.frame(wave, sizes[start:end]).mapInArrow(
                task(partial(_run, function=function), self.target), spark_schema(_RESULT_SCHEMA)
            )
            with self.jobs.job(what.format(len(wave)), items=items):
                results = _collect(done, len(wave))
            while results:
                yield pickle.loads(results.pop())  # noqa: S301, written by our own tasks

    def run_parts(
        self,
        works: Sequence[_Work],
        divide: Callable[[_Work], Parts[_Result]],
        *,
        sizes: Sequence[int],
        what: str,
        waves: Waves = Waves.ONE,
        ordered: bool = False,
    ) -> Generator[_Result, None, None]:
        """Yield the results of works, each with all its parts done by one task."""
        function = partial(_run_parts, divide=divide)
        return self.run(works, function, sizes=sizes, what=what, waves=waves, ordered=ordered)

    def frame(self, works: Sequence[object], sizes: Sequence[int]) -> DataFrame:
        """Return works as rows for `read_works`, distributed to tasks of about equal costs."""
        wanted = max(_BINS_PER_WORKER * self.count, sum(sizes) // _BIN_BYTES)
        bins = max(min(len(works), wanted, _MAX_BINS), 1)
        packed = [pickle.dumps(work) for work in works]
        bin_of = balance(sizes, bins, overhead=COST_BYTES)
        manifest = pa.table([bin_of, list(range(len(works))), packed], schema=_MANIFEST_SCHEMA)
        return self.session.createDataFrame(manifest).repartitionById(bins, BIN)


def _collect(done: DataFrame, works: int) -> list[bytes]:
    """Run a job over so many works; return the packed results, last first.

    They are unpacked one by one: a driver holds what the results of a job are packed.
    """
    rows = done.toArrow()
    check_results(len(rows), works)
    # Sorted as pairs, for Arrow cannot sort a column of more than 2 GiB.
    found = zip(rows.column(_NUMBER).to_pylist(), rows.column(_RESULT).to_pylist(), strict=True)
    return [packed for _, packed in sorted(found, reverse=True)]


def check_results(found: int, expected: int) -> None:
    """Refuse incomplete results of a job: a cancelled job can end as if done."""
    if found != expected:
        raise EngineError(
            "a job of Spark ended without the results of all its works",
            expected=expected,
            found=found,
            hint="run again",
        )


def spark_workers(workers: Workers) -> SparkWorkers:
    """Return workers as those of a session; `TypeError` if they are others."""
    if not isinstance(workers, SparkWorkers):
        raise TypeError("only Spark runs this")
    return workers


def read_works(batches: Iterable[pa.RecordBatch]) -> Iterator[Any]:
    """Yield the works in rows of `SparkWorkers.frame`."""
    for batch in batches:
        for packed in batch.column(_WORK).to_pylist():
            yield pickle.loads(packed)  # noqa: S301, written by our own driver


def _run(
    batches: Iterable[pa.RecordBatch], *, function: Callable[[_Work, str], _Result]
) -> Iterator[pa.RecordBatch]:
    attempt_id = current_attempt_id()
    numbers: list[int] = []
    results: list[bytes] = []
    size_bytes = 0
    for batch in batches:
        works = batch.column(_WORK).to_pylist()
        for number, packed in zip(batch.column(_NUMBER).to_pylist(), works, strict=True):
            result = pickle.dumps(function(pickle.loads(packed), attempt_id))  # noqa: S301, ours
            numbers.append(number)
            results.append(result)
            size_bytes += len(result)
            if len(numbers) == _RESULTS_TOGETHER or size_bytes >= _RESULT_BYTES_TOGETHER:
                yield pa.record_batch([numbers, results], schema=_RESULT_SCHEMA)
                numbers, results, size_bytes = [], [], 0
    if numbers:
        yield pa.record_batch([numbers, results], schema=_RESULT_SCHEMA)


def _run_parts(
    work: _Work, attempt_id: str, *, divide: Callable[[_Work], Parts[_Result]]
) -> _Result:
    return divide(work).run(attempt_id)


def task(function: _Function, target: SharedTarget | None = None) -> _Function:
    """Return a function for ``mapInArrow`` that opens stores as this process does.

    Options travel as they were given: each process reads the files of secrets for itself. With a
    target, the function first checks that it writes where the driver looks.
    """
    return partial(_run_task, function=function, options=storage_options(), target=target)


def _run_task(
    batches: Iterable[pa.RecordBatch],
    *,
    function: _Function,
    options: StorageOptions,
    target: SharedTarget | None,
) -> Iterator[pa.RecordBatch]:
    configure_stores(options)
    if target is not None:
        target.check()
    try:
        yield from function(batches)
    except KafkaIndexError as error:
        # Its class and text reach the driver, but not its cause.
        if is_retriable(error) and not isinstance(error, RetriableError):
            raise EngineError(str(error)) from error
        raise


def spark_schema(schema: pa.Schema) -> StructType:
    """Return an Arrow schema as a Spark one: the same names, types and nullability."""
    return from_arrow_schema(schema)


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the schema that Spark expects of record batches."""
    try:
        found: pa.Schema = to_arrow_schema(schema, timezone="UTC")
    except TypeError:
        # Spark before 4.2, where that is not a parameter.
        found = to_arrow_schema(schema)
    return found


def current_attempt_id() -> str:
    """Return the id of the attempt that runs here: no two of a run may share scratch files."""
    context = TaskContext.get()
    if context is None:
        return _ON_DRIVER
    return f"task{context.taskAttemptId()}_{context.attemptNumber()}"
