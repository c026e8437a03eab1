"""Lookups on Spark: files of queries answered by tasks, and data frames of them.

Tasks read and write the files themselves: Spark moves a row per piece, and nothing else unless
queries are grouped by partition first (`kafka_index.lookup.planner` says when).
"""

from __future__ import annotations

from functools import partial

import numpy as np
from pyspark.sql import SparkSession

from kafka_index.lookup import AnswerTarget, Inventory, LookupSettings, PieceReport, Queries
from kafka_index.lookup.planner import Grouping, GroupingChoice, Workload, choose_grouping
from kafka_index.spark.lookup_frames import lookup_offsets, lookup_timestamps
from kafka_index.spark.lookup_groups import answer_in_groups
from kafka_index.spark.lookup_steps import GroupedWork
from kafka_index.spark.lookup_tasks import (
    DONE_SCHEMA,
    SharedLookups,
    answer_pieces,
    manifest_table,
    read_done,
)
from kafka_index.spark.open_cost import measure_open_seconds
from kafka_index.spark.tasks import spark_schema
from kafka_index.tasks import BIN, balance

__all__ = ["answer_queries", "lookup_offsets", "lookup_timestamps"]

_BINS_PER_CORE = 4
_BIN_BYTES = 256 << 20
_MOST_BINS = 20_000
# Of texts and the like, whose rows nobody has counted.
_BYTES_PER_QUERY = 24


def answer_queries(
    session: SparkSession,
    queries: Queries,
    inventory: Inventory,
    settings: LookupSettings,
    target: AnswerTarget,
    *,
    workers: int,
    grouping: Grouping = Grouping.AUTO,
    starting_offsets: bool = False,
) -> tuple[GroupingChoice, list[PieceReport]]:
    """Answer all queries into the target; publishing it is the caller's.

    Parameters
    ----------
    session : SparkSession
        Classic or Connect. Its executors see queries, logs, indexes and target under the names
        that the driver knows them by.
    queries, inventory, settings, target
        As for `kafka_index.lookup.run_local`.
    workers : int
        Tasks that run at a time.
    grouping : Grouping
        Whether queries are grouped by partition.
    starting_offsets : bool
        Whether the reports tell where to start reading.

    Returns
    -------
    GroupingChoice, list of PieceReport
        How it was done, and a report for each piece, in their order.

    Raises
    ------
    InputError
        Queries cannot be read.
    """
    workload = Workload(
        queries=queries.size_bytes // _BYTES_PER_QUERY if queries.rows is None else queries.rows,
        pieces=len(queries.pieces),
        partitions=inventory.partition_count,
        segments=inventory.segment_count,
        workers=workers,
        max_open_segments=settings.max_open_segments,
        open_seconds=measure_open_seconds(inventory),
    )
    choice = choose_grouping(workload, grouping)
    bins = _bins(queries, workers)
    owners = balance([piece.size_bytes for piece in queries.pieces], bins)
    manifest = session.createDataFrame(manifest_table(queries.pieces, target, owners))
    lookups = SharedLookups.of(inventory, settings)
    if choice.grouped:
        done = answer_in_groups(
            manifest,
            GroupedWork(lookups, np.array(owners, np.int32)),
            workload,
            inventory.partitions["segment_count"].to_numpy(),
            starting_offsets=starting_offsets,
        )
    else:
        function = partial(answer_pieces, lookups=lookups, starting_offsets=starting_offsets)
        done = manifest.repartitionById(bins, BIN).mapInArrow(function, spark_schema(DONE_SCHEMA))
    return choice, read_done(done.toArrow())


def _bins(queries: Queries, workers: int) -> int:
    """Enough bins to keep all workers busy to the end, and none so large that it is lost dearly."""
    wanted = max(_BINS_PER_CORE * workers, queries.size_bytes // _BIN_BYTES)
    return max(min(len(queries.pieces), wanted, _MOST_BINS), 1)
