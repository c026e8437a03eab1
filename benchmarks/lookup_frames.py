"""DataFrames of queries to DataFrames of answers, against joins that one would write by hand.

Most queries ask for the end of one partition. Both ways by hand are given the entries of the index
files, decoded and sorted, and write only the entry of a query. A function for `mapInArrow` that
looks nothing up stands beside: what any function in Python costs that returns these columns.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from benchmarks import lookup_jobs, spark_joins
from benchmarks.dumps import make_dump
from benchmarks.logs import FIRST_TIMESTAMP_MS, write_log
from benchmarks.recover import seconds
from kafka_index.core.format.names import OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX, index_name_for
from kafka_index.core.index.sparse_indexes import OffsetIndex, TimeIndex
from kafka_index.core.log.choices import By, Resolve
from kafka_index.core.query.inventory import collect_inventory
from kafka_index.core.query.lookups import LookupSettings
from kafka_index.spark.lookup import lookup_offsets, lookup_timestamps
from kafka_index.spark.session import build_session

_QUERIES = {By.OFFSET: 20_000_000, By.TIMESTAMP: 5_000_000}
_ROUNDS = 3
# How many times ours each way takes, at least.
_GOALS = {"bucketed join, shuffled": 3.0, "bucketed join, broadcast": 3.0, "pandas_udf": 2.0}
_OURS, _FLOOR = "lookup", "nothing"


def run(scratch: Path) -> bool:
    """Measure, print, and return whether all goals are reached."""
    log = write_log(
        scratch / "lookup-jobs" / "topic-0", lookup_jobs.BATCH_BYTES, lookup_jobs.LOG_BYTES
    )
    # As conf/spark-defaults.conf recommends for DataFrames of queries.
    os.environ["JDK_JAVA_OPTIONS"] = lookup_jobs.JAVA_OPTIONS
    session = build_session(f"local[{lookup_jobs.THREADS}]", "kafka-index benchmark")
    try:
        with TemporaryDirectory(dir=scratch) as folder:
            dump = make_dump(Path(folder, "dump"), log, lookup_jobs.PARTITIONS)
            reached = [_compare(session, Path(folder), dump, log, by) for by in By]
            return all(reached)
    finally:
        session.stop()


def _compare(session: SparkSession, folder: Path, dump: Path, log: Path, by: By) -> bool:
    key, rows = by.column, _QUERIES[by]
    path = folder / key
    first = FIRST_TIMESTAMP_MS if by is By.TIMESTAMP else 0
    lookup_jobs.write_queries(path, skewed=True, queries=rows, key=key, first=first)
    pq.write_table(_entries(dump, log, by), folder / f"{key}-entries.parquet")
    queries = session.read.parquet(str(path))
    entries = session.read.parquet(str(folder / f"{key}-entries.parquet"))
    inventory = collect_inventory([str(dump)])
    look_up = lookup_offsets if by is By.OFFSET else lookup_timestamps
    floor = partial(lookup_jobs.pass_through_python, LookupSettings(by, Resolve.INDEX))
    works: dict[str, Callable[[], DataFrame]] = {
        _OURS: lambda: look_up(queries, inventory, resolve=Resolve.INDEX),
        _FLOOR: lambda: floor(queries),
        **{
            f"bucketed join, {name}": partial(
                spark_joins.floor_by_buckets, queries, entries, key, strategy
            )
            for name, strategy in (("shuffled", "merge"), ("broadcast", "broadcast"))
        },
        "pandas_udf": lambda: spark_joins.floor_in_pandas(queries, entries, key),
    }
    answers = {_sums(work()) for name, work in works.items() if name != _FLOOR}
    if len(answers) != 1:
        raise RuntimeError(f"the answers differ: {answers}")
    times: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(_ROUNDS):
        for name, work in works.items():
            answered = work().write.format("noop").mode("overwrite")
            times[name].append(seconds(answered.save))
    ours = statistics.median(times[_OURS])
    print(f"{rows // 10**6} M {key}s, 90 % of one partition: seconds, times ours")
    reached = True
    for name, taken in times.items():
        ratio = statistics.median(taken) / ours
        goal = _GOALS.get(name)
        reached &= goal is None or ratio >= goal
        asked = "" if goal is None else f"  goal {goal}"
        print(f"{name:24s} {statistics.median(taken):8.2f} {ratio:6.2f}{asked}", flush=True)
    return reached


def _entries(dump: Path, log: Path, by: By) -> pa.Table:
    """Return the entries of the indexes of one partition, once for each."""
    folder = dump / "topic-0"
    with OffsetIndex(
        folder / index_name_for(log.name, OFFSET_INDEX_SUFFIX), 0, writable=False
    ) as index:
        offsets, positions = (np.insert(column, 0, 0) for column in index.read_entries())
    keys, end = offsets, lookup_jobs.END_OFFSET
    if by is By.TIMESTAMP:
        with TimeIndex(
            folder / index_name_for(log.name, TIME_INDEX_SUFFIX), 0, writable=False
        ) as times:
            keys, of_offsets = times.read_entries()
        keys, end = np.insert(keys, 0, FIRST_TIMESTAMP_MS), FIRST_TIMESTAMP_MS + end
        places = np.searchsorted(offsets, np.insert(of_offsets, 0, 0), side="right") - 1
        offsets, positions = offsets[places], positions[places]
    count = len(keys)
    every = lookup_jobs.PARTITIONS
    return pa.table(
        {
            "partition": np.repeat(np.arange(every, dtype=np.int32), count),
            "first": np.tile(keys, every),
            "next": np.tile(np.append(keys[1:], end), every),
            "entry_offset": np.tile(offsets, every),
            "entry_position_bytes": np.tile(positions, every),
        }
    )


def _sums(answers: DataFrame) -> tuple[int, ...]:
    """Return what tells whether two DataFrames hold the same answers."""
    position = F.col("entry_position_bytes")
    return tuple(
        answers.select(
            F.count("*"),
            F.sum("entry_offset"),
            F.sum(position),
            F.sum(
                F.pmod(
                    F.hash("partition", answers.columns[2], "entry_offset", position), F.lit(65_521)
                )
            ),
        ).collect()[0]
    )
