"""Queries over small dumps, answered by one engine or the other, and what came of it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from kafka_index.commands.lookup.lookup_job import answer_queries
from kafka_index.commands.lookup.output import AnswerTarget
from kafka_index.commands.lookup.queries import Queries, open_queries
from kafka_index.commands.lookup.result import LookupTotals
from kafka_index.core.job.engine import Listener, ThreadEngine, Workers
from kafka_index.core.log.choices import By, Resolve
from kafka_index.core.logdir.listing import list_dump
from kafka_index.core.query.inventory import Inventory, collect_inventory
from kafka_index.core.query.lookups import LookupSettings
from kafka_index.spark.workers import session_workers
from tests.support.dumps import Log, Segment, built_rows, dump, settings, write_logs

#: Partitions of `dump` and, at the end, two that it does not have.
PARTITIONS = [("orders", 0), ("orders", 1), ("a.b-c", 7), ("orders", 9), ("nobody", 0)]


def make_dump(folder: Path, segments: Mapping[Segment, Log] | None = None) -> Inventory:
    """Write a dump and its indexes."""
    logs = write_logs(folder / "logs", dump() if segments is None else segments)
    listed = list_dump([str(logs)], topics=None).segments
    built_rows(listed, settings(folder / "indexes"))
    return collect_inventory([str(logs)], indexes=str(folder / "indexes"))


def make_queries(by: str, count: int, seed: int = 0) -> pa.Table:
    """Queries of all kinds."""
    random = np.random.default_rng(seed)
    which = random.integers(0, len(PARTITIONS), count)
    # Of `dump`: its batches are of three records, 1 ms apart, and times follow offsets.
    keys = random.integers(-4, 3000, count) + (0 if by == "offset" else 1000)
    topics = [PARTITIONS[number][0] for number in which]
    partitions = [PARTITIONS[number][1] for number in which]
    return pa.table(
        {
            "note": [f"query {number}" for number in range(count)],
            "topic": pa.array(topics, mask=random.random(count) < 0.01),
            "partition": pa.array(partitions, pa.int32(), mask=random.random(count) < 0.01),
            by: pa.array(keys, pa.int64(), mask=random.random(count) < 0.01),
        }
    )


def write_queries(folder: Path, tables: Sequence[pa.Table], form: str = "parquet") -> Path:
    """Write a file for each table: a split each."""
    folder.mkdir()
    for number, table in enumerate(tables):
        path = folder / f"queries-{number}.{form}"
        if form == "parquet":
            pq.write_table(table, path)
        elif form == "csv":
            pa_csv.write_csv(table, path)
        else:
            path.write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()))
    return folder


def answer(
    queries: Path | Queries,
    inventory: Inventory,
    by: By,
    output: Path,
    *,
    spark: SparkSession | None = None,
    resolve: Resolve | None = None,
    starting_offsets: bool = False,
    listener: Listener | None = None,
) -> LookupTotals:
    """Answer query files, found by now or not, into an output, here or on Spark."""
    opened = queries if isinstance(queries, Queries) else open_queries(str(queries), by)
    settings = LookupSettings(by, resolve or by.default_resolve)
    totals = LookupTotals()
    with AnswerTarget(str(output), opened) as target:
        started: AbstractContextManager[Workers] = ThreadEngine(2).start("lookup")
        if spark is not None:
            started = session_workers(spark, listener=listener, tasks=len(opened.splits))
        with started as workers:
            for report in answer_queries(
                workers, opened, inventory, settings, target, starting_offsets=starting_offsets
            ):
                totals.add(report)
        target.publish(totals.rows_of_split)
    return totals


def files(output: Path) -> dict[str, bytes]:
    """The rows in a folder of answers."""
    return {path.name: path.read_bytes() for path in sorted(output.iterdir())}
