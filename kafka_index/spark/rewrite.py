"""The passes of a rewrite as Spark jobs: a row per partition goes out, and one comes back."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from kafka_index.errors import KafkaIndexError
from kafka_index.spark.jobs import Jobs
from kafka_index.spark.shared_target import SharedTarget
from kafka_index.spark.tasks import current_attempt_id, spark_schema, task
from kafka_index.tasks import BIN, balance
from kafka_index.writing.rewrite_plan import PartitionPlan
from kafka_index.writing.rewriting import (
    MatchedPartition,
    RewriteSettings,
    match,
    rewrite,
)

# What opening and publishing a partition cost, in bytes that could be read meanwhile.
_PARTITION_COST_BYTES = 16 << 20
_BINS_PER_CORE = 4

#: Work and its result are pickled: they are of this package, and go to its own tasks alone.
_WORK = pa.schema(
    [pa.field("number", pa.int64()), pa.field(BIN, pa.int32()), pa.field("work", pa.binary())]
)
_RESULT = pa.schema([pa.field("number", pa.int64()), pa.field("result", pa.binary())])


def match_partitions(
    session: SparkSession,
    plans: Sequence[PartitionPlan],
    settings: RewriteSettings,
    *,
    cores: int,
    jobs: Jobs,
) -> list[MatchedPartition]:
    """Make the first pass over partitions, and return the results in their order."""
    function = task(partial(_run, run=partial(match, settings=settings)))
    with jobs.job(f"match {len(plans):,} partitions", items=len(plans)):
        return _results(session, plans, [plan.size_bytes for plan in plans], function, cores)


def rewrite_partitions(
    session: SparkSession,
    matched: Sequence[MatchedPartition],
    output: str,
    staging: str,
    settings: RewriteSettings,
    *,
    cores: int,
    jobs: Jobs,
    target: SharedTarget,
) -> list[KafkaIndexError | None]:
    """Make the second pass over partitions, and return the reasons why they are left out."""
    run = partial(_rewrite, output=output, staging=staging, settings=settings)
    function = task(partial(_run, run=run), target)
    sizes = [each.plan.size_bytes for each in matched]
    with jobs.job(f"rewrite {len(matched):,} partitions", items=len(matched)):
        return _results(session, matched, sizes, function, cores)


def _rewrite(
    matched: MatchedPartition, *, output: str, staging: str, settings: RewriteSettings
) -> KafkaIndexError | None:
    # A folder for each attempt: a lost one may still be writing.
    name = f"{matched.plan.partition.directory_name}.{current_attempt_id()}"
    return rewrite(matched, output, os.path.join(staging, name), settings)


def _run(
    batches: Iterable[pa.RecordBatch], *, run: Callable[[Any], Any]
) -> Iterator[pa.RecordBatch]:
    """Run the work of the rows of a task."""
    for batch in batches:
        numbers, works = batch.column("number"), batch.column("work")
        for number, work in zip(numbers.to_pylist(), works.to_pylist(), strict=True):
            result = pickle.dumps(run(pickle.loads(work)))  # noqa: S301, because the driver wrote it
            yield pa.RecordBatch.from_pylist([{"number": number, "result": result}], schema=_RESULT)


def _results(
    session: SparkSession,
    works: Sequence[Any],
    sizes: Sequence[int],
    function: Any,
    cores: int,
) -> list[Any]:
    if not works:
        return []
    bins = min(len(works), _BINS_PER_CORE * cores)
    table = pa.table(
        [
            list(range(len(works))),
            balance(sizes, bins, overhead=_PARTITION_COST_BYTES),
            list(map(pickle.dumps, works)),
        ],
        schema=_WORK,
    )
    frame = session.createDataFrame(table).repartitionById(bins, BIN)
    found = frame.mapInArrow(function, spark_schema(_RESULT)).toArrow()
    results = dict(
        zip(found.column("number").to_pylist(), found.column("result").to_pylist(), strict=True)
    )
    return [pickle.loads(results[number]) for number in range(len(works))]  # noqa: S301, because our tasks wrote it
