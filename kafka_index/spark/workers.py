"""Works as tasks of Spark: they go out pickled in bins, and pickled results come back."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from kafka_index.errors import EngineError
from kafka_index.execution import Listener, Parts, Waves
from kafka_index.execution.tasks import BIN, balance, split_waves
from kafka_index.spark.executors import check_executors
from kafka_index.spark.jobs import Jobs
from kafka_index.spark.shared_target import SharedTarget, shared_target
from kafka_index.spark.tasks import current_attempt_id, spark_schema, task

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
# What beginning and publishing cost, in bytes that could be read meanwhile.
_WORK_COST_BYTES = 4 << 20
_BINS_PER_WORKER = 4
_BIN_BYTES = 256 << 20
_MAX_BINS = 20_000


@contextmanager
def session_workers(
    session: SparkSession,
    *,
    listener: Listener | None = None,
    works: int = 0,
    inputs: Sequence[str] = (),
    outputs: Sequence[str] = (),
) -> Iterator[SparkWorkers]:
    """Check the executors of a session, and return its workers.

    The parameters are those of `kafka_index.execution.Engine.start`. Raises `EngineError` if an
    executor lacks something.
    """
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

    def __init__(self, session: SparkSession, jobs: Jobs, target: SharedTarget, count: int) -> None:
        self.session = session
        self.jobs = jobs
        self.target = target
        self.count = count

    def run(
        self,
        works: Sequence[_Work],
        function: Callable[[_Work, str], _Result],
        *,
        sizes: Sequence[int],
        what: str,
        waves: Waves = Waves.ONE,
        ordered: bool = False,  # noqa: ARG002, results of a job are sorted in any case
    ) -> Generator[_Result, None, None]:
        """Yield the results of a function over works, job by job and in order.

        Parameters are those of `kafka_index.execution.Workers.run`.
        """
        costs = [size + _WORK_COST_BYTES for size in sizes]
        for start, end in split_waves(costs, waves, self.count):
            wave = works[start:end]
            results = self._collect(wave, costs[start:end], function, what.format(len(wave)))
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

    def frame(self, works: Sequence[object], costs: Sequence[int]) -> DataFrame:
        """Return works as rows for `read_works`, distributed to tasks of about equal costs."""
        wanted = max(_BINS_PER_WORKER * self.count, sum(costs) // _BIN_BYTES)
        bins = max(min(len(works), wanted, _MAX_BINS), 1)
        rows = work_rows(self.session, works, balance(costs, bins))
        return rows.repartitionById(bins, BIN)

    def _collect(
        self,
        works: Sequence[_Work],
        costs: Sequence[int],
        function: Callable[[_Work, str], _Result],
        description: str,
    ) -> list[bytes]:
        """Run a job over works in bins of about equal cost; return the packed results, last first.

        They are unpacked one by one: a driver holds what the results of a job are packed.
        """
        done = self.frame(works, costs).mapInArrow(
            task(partial(_run, function=function), self.target), spark_schema(_RESULT_SCHEMA)
        )
        with self.jobs.job(description, items=len(works)):
            rows = done.toArrow()
        if len(rows) != len(works):
            raise EngineError(
                "a job of Spark ended without the results of all its works",
                expected=len(works),
                found=len(rows),
                hint="run again",
            )
        # Sorted as pairs, for Arrow cannot sort a column of more than 2 GiB.
        found = zip(rows.column(_NUMBER).to_pylist(), rows.column(_RESULT).to_pylist(), strict=True)
        return [packed for _, packed in sorted(found, reverse=True)]


def work_rows(session: SparkSession, works: Sequence[object], bins: Sequence[int]) -> DataFrame:
    """Return a row per work, pickled, with the number of its bin."""
    packed = [pickle.dumps(work) for work in works]
    manifest = pa.table([list(bins), list(range(len(works))), packed], schema=_MANIFEST_SCHEMA)
    return session.createDataFrame(manifest)


def read_works(batches: Iterable[pa.RecordBatch]) -> Iterator[Any]:
    """Yield the works in rows of `work_rows`."""
    for batch in batches:
        for packed in batch.column(_WORK).to_pylist():
            yield pickle.loads(packed)  # noqa: S301, written by our own driver


def _run(
    batches: Iterable[pa.RecordBatch], *, function: Callable[[_Work, str], _Result]
) -> Iterator[pa.RecordBatch]:
    attempt_id = current_attempt_id()
    for batch in batches:
        works = batch.column(_WORK).to_pylist()
        for number, packed in zip(batch.column(_NUMBER).to_pylist(), works, strict=True):
            result = function(pickle.loads(packed), attempt_id)  # noqa: S301, ours
            yield pa.record_batch([[number], [pickle.dumps(result)]], schema=_RESULT_SCHEMA)


def _run_parts(
    work: _Work, attempt_id: str, *, divide: Callable[[_Work], Parts[_Result]]
) -> _Result:
    return divide(work).run(attempt_id)
