"""Work of any kind as tasks of Spark: it goes out pickled, and a pickled result comes back."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TypeVar

import pyarrow as pa
from pyspark.sql import SparkSession

from kafka_index.spark.jobs import Jobs
from kafka_index.spark.shared_target import SharedTarget
from kafka_index.spark.tasks import spark_schema, task
from kafka_index.tasks import BIN, balance

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
_BINS_PER_CORE = 4
_BIN_BYTES = 256 << 20
_MAX_BINS = 20_000


def run_splits(
    session: SparkSession,
    works: Sequence[_Work],
    sizes: Sequence[int],
    function: Callable[[_Work], _Result],
    *,
    workers: int,
    jobs: Jobs,
    description: str,
    target: SharedTarget | None = None,
    overhead: int = 1,
) -> list[_Result]:
    """Run a function over works in bins of about equal sizes, and return the results in order.

    Parameters
    ----------
    session : SparkSession
        Classic or Connect.
    works : sequence
        What each call gets; small, and picklable.
    sizes : sequence of int
        Bytes of each.
    function : callable
        Picklable, as are its small results.
    workers : int
        Tasks that run at a time.
    jobs : Jobs
        Names and follows the job.
    description : str
        For the Spark UI.
    target : SharedTarget, optional
        The folders that are written to.
    overhead : int
        Added to each size: without it, all works of size 0 are in one bin.
    """
    if not works:
        return []
    wanted = max(_BINS_PER_CORE * workers, sum(sizes) // _BIN_BYTES)
    bins = max(min(len(works), wanted, _MAX_BINS), 1)
    manifest = pa.table(
        [
            balance(sizes, bins, overhead=overhead),
            list(range(len(works))),
            [pickle.dumps(work) for work in works],
        ],
        schema=_MANIFEST_SCHEMA,
    )
    done = (
        session.createDataFrame(manifest)
        .repartitionById(bins, BIN)
        .mapInArrow(task(partial(_run, function=function), target), spark_schema(_RESULT_SCHEMA))
    )
    with jobs.job(description, items=len(works)):
        rows = done.toArrow()
    # Sorted as pairs, for Arrow cannot sort a column of more than 2 GiB.
    found = zip(rows.column(_NUMBER).to_pylist(), rows.column(_RESULT).to_pylist(), strict=True)
    return [pickle.loads(packed) for _, packed in sorted(found)]  # noqa: S301, ours


def _run(
    batches: Iterable[pa.RecordBatch], *, function: Callable[[_Work], _Result]
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        works = batch.column(_WORK).to_pylist()
        for number, packed in zip(batch.column(_NUMBER).to_pylist(), works, strict=True):
            result = function(pickle.loads(packed))  # noqa: S301, written by our own driver
            yield pa.record_batch([[number], [pickle.dumps(result)]], schema=_RESULT_SCHEMA)
