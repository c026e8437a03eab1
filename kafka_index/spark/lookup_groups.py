"""Queries of files, grouped by partition: each segment is opened by one task.

Three steps, with a shuffle between them. Tasks read the pieces and send each query to the task
that answers its partition; that one sends answers to the task that owns the piece; and that one
reads the piece again and writes it with its answers, as it would write answers of its own. So the
files are the same as those of a run that does not group.
"""

from __future__ import annotations

from functools import partial

import numpy as np
from numpy.typing import NDArray
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from kafka_index.lookup.planner import PartitionBins, Workload, bin_partitions
from kafka_index.spark.lookup_messages import ASKED_SCHEMA, REPLY_SCHEMA
from kafka_index.spark.lookup_steps import (
    COUNT_SCHEMA,
    GroupedWork,
    answer_asked,
    ask,
    count,
    mark,
    write_pieces,
)
from kafka_index.spark.lookup_tasks import DONE_SCHEMA, SharedLookups
from kafka_index.spark.tasks import spark_schema
from kafka_index.tasks import BIN

# Enough to see which partitions have many queries.
_PIECES_COUNTED = 16
_GROUPS_PER_WORKER = 4


def answer_in_groups(
    manifest: DataFrame,
    work: GroupedWork,
    workload: Workload,
    segments: NDArray[np.int64],
    *,
    starting_offsets: bool,
) -> DataFrame:
    """Answer the pieces of a manifest.

    Parameters
    ----------
    manifest : DataFrame
        `MANIFEST_SCHEMA`.
    work : GroupedWork
        What tasks share.
    workload : Workload
        What there is to do.
    segments : ndarray of int64
        How many each partition has, by its number in the inventory.
    starting_offsets : bool
        Whether the reports tell where to start reading.

    Returns
    -------
    DataFrame
        `DONE_SCHEMA`. Some of the queries are read here already, to see whom they ask.
    """
    bins = int(work.owners.max(initial=0)) + 1
    places = _choose_places(manifest, work.lookups, workload, segments)
    replies = spark_schema(REPLY_SCHEMA)
    asked = manifest.repartitionById(bins, BIN).mapInArrow(
        partial(ask, lookups=work.lookups, places=places), spark_schema(ASKED_SCHEMA)
    )
    answered = asked.repartitionById(_bin_count(places), BIN).mapInArrow(
        partial(answer_asked, work=work), replies
    )
    return (
        answered.unionAll(manifest.mapInArrow(mark, replies))
        .repartitionById(bins, BIN)
        .sortWithinPartitions("piece", "block")
        .mapInArrow(
            partial(write_pieces, lookups=work.lookups, starting_offsets=starting_offsets),
            spark_schema(DONE_SCHEMA),
        )
    )


def _choose_places(
    manifest: DataFrame,
    lookups: SharedLookups,
    workload: Workload,
    segments: NDArray[np.int64],
) -> PartitionBins:
    """Look at some of the pieces, and say which task answers which partitions."""
    step = -(-workload.pieces // _PIECES_COUNTED)
    some = manifest.where(F.col("piece") % step == 0)
    counted = (
        some.repartitionById(_PIECES_COUNTED, (F.col("piece") / step).cast("int"))
        .mapInArrow(partial(count, lookups=lookups), spark_schema(COUNT_SCHEMA))
        .groupBy("code")
        .agg(F.sum("queries").alias("queries"))
        .toArrow()
    )
    # A partition that was not met may be met yet.
    queries = np.ones(len(segments), np.int64)
    queries[counted["code"].to_numpy()] += step * counted["queries"].to_numpy()
    bins = max(_GROUPS_PER_WORKER * workload.workers, 1)
    return bin_partitions(queries, segments, bins, open_seconds=workload.open_seconds)


def _bin_count(places: PartitionBins) -> int:
    return int(places.bins.max(initial=0)) + 1
