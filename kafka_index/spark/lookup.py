"""Files of queries, answered on Spark: tasks read and answer them and write, split by split."""

from __future__ import annotations

from functools import partial

from pyspark.sql import SparkSession

from kafka_index.execution.tasks import BIN, balance
from kafka_index.lookup import AnswerTarget, Inventory, LookupSettings, Queries, SplitReport
from kafka_index.lookup.unindexed import Unindexed
from kafka_index.spark.jobs import Jobs
from kafka_index.spark.lookup_frames import lookup_offsets, lookup_timestamps
from kafka_index.spark.lookup_tasks import (
    DONE_SCHEMA,
    SharedLookups,
    answer_splits,
    manifest_table,
    read_done,
)
from kafka_index.spark.missing_indexes import build_missing_indexes
from kafka_index.spark.tasks import spark_schema, task

__all__ = ["answer_queries", "lookup_offsets", "lookup_timestamps"]

_BINS_PER_CORE = 4
_BIN_BYTES = 256 << 20
_MAX_BINS = 20_000


def answer_queries(
    session: SparkSession,
    queries: Queries,
    inventory: Inventory,
    settings: LookupSettings,
    target: AnswerTarget,
    *,
    workers: int,
    unindexed: Unindexed | None = None,
    starting_offsets: bool = False,
    jobs: Jobs | None = None,
) -> list[SplitReport]:
    """Answer all queries into the target, without publishing it; return a report for each split.

    The executors see queries, logs, indexes and target under the paths that the driver uses. So
    many tasks as workers run at a time. Of the unindexed remote segments, those that queries ask
    are read once, before the lookups. By default each worker reads those that it needs and no other
    has read before. The other parameters are as for `kafka_index.lookup.run_local`. Raises
    `InputError` if queries cannot be read.
    """
    bins = _bins(queries, workers)
    owners = balance([split.size_bytes for split in queries.splits], bins)
    manifest = session.createDataFrame(manifest_table(queries.splits, target, owners))
    lookups = SharedLookups.of(inventory, settings, target.index_folder)
    jobs = jobs or Jobs(session)
    distributed = manifest.repartitionById(bins, BIN)
    if unindexed is not None and unindexed.segments:
        build_missing_indexes(session, distributed, lookups, unindexed, jobs)
    function = partial(answer_splits, lookups=lookups, starting_offsets=starting_offsets)
    done = distributed.mapInArrow(task(function), spark_schema(DONE_SCHEMA))
    count = len(queries.splits)
    with jobs.job(f"answer {count:,} splits of queries", items=count):
        rows = done.toArrow()
    return read_done(rows)


def _bins(queries: Queries, workers: int) -> int:
    """Return enough bins to keep all workers busy to the end, none of them too large to repeat."""
    wanted = max(_BINS_PER_CORE * workers, queries.size_bytes // _BIN_BYTES)
    return max(min(len(queries.splits), wanted, _MAX_BINS), 1)
