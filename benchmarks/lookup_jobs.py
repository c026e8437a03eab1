"""Queries to answers, against what one would write instead, and against Spark's own copy.

From files to files at index level. On Spark: the same answers by a range join over buckets that is
broadcast, and by a window over the union of queries and entries. On one machine: by polars' and
DuckDB's joins to the nearest. All of them are given the entries of the index files, decoded and
sorted, each with the offset at which the next one begins, and the fact that all is one topic. All
but one of them lose the order of the queries, and none makes its files durable, as ours do.

From DataFrame to DataFrame the limit is a copy: Spark reads the same queries and writes columns of
the same number and types, with values that it computes itself from the offsets. Beside it stands
what any function in Python costs: one for `mapInArrow` that takes and returns the columns of a
lookup, and looks nothing up.
"""

from __future__ import annotations

import os
import shutil
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructType

from benchmarks import spark_joins
from benchmarks.dumps import make_dump
from benchmarks.logs import records_in, write_log
from benchmarks.recover import seconds
from kafka_index.commands.lookup.lookup_job import answer_queries
from kafka_index.commands.lookup.output import AnswerTarget
from kafka_index.commands.lookup.queries import open_queries
from kafka_index.commands.lookup.result import LookupTotals
from kafka_index.core.format.names import OFFSET_INDEX_SUFFIX, index_name_for
from kafka_index.core.index.sparse_indexes import OffsetIndex
from kafka_index.core.job.engine import ThreadEngine
from kafka_index.core.log.choices import By, Resolve, Status
from kafka_index.core.log.read.answers import ANSWER_SCHEMA
from kafka_index.core.query.inventory import collect_inventory
from kafka_index.core.query.lookups import LookupSettings
from kafka_index.spark import lookup_offsets
from kafka_index.spark.lookup import raw_columns, with_answers
from kafka_index.spark.session import build_session
from kafka_index.spark.workers import session_workers, spark_schema

PARTITIONS = 16
_ENTRIES = 65_536
BATCH_BYTES = 1024
# By default an entry is due once more than 4 KiB lie behind the one before it.
_BATCHES_PER_ENTRY = 5
LOG_BYTES = (_ENTRIES * _BATCHES_PER_ENTRY + 1) * BATCH_BYTES
END_OFFSET = LOG_BYTES // BATCH_BYTES * records_in(BATCH_BYTES)
_QUERIES = 10_000_000
_FILES = 10
_SKEWED_SHARE = 0.9
_TAIL_OFFSETS = 10_000
_SKEWED_PARTITION = 7
THREADS = 2
_SPARK_ROUNDS, _LOCAL_ROUNDS = 2, 3
_GOAL = 1.0
_MAX_COPIES = 1.3
JAVA_OPTIONS = "-Darrow.enable_unsafe_memory_access=true -Darrow.enable_null_check_for_get=false"
_LIBRARIES = ("polars", "duckdb")
# Answers in another order are other answers: shown, but no goal.
_NO_GOAL = "polars, any order"
# What the answers have besides, the same for all queries here.
_CONSTANTS: Mapping[str, str | int | None] = {
    "status": Status.FOUND.text,
    "segment_base_offset": 0,
    **{
        name: None
        for name in ANSWER_SCHEMA.names
        if name not in ("status", "segment_base_offset", "entry_offset", "entry_position_bytes")
    },
}

# From a folder of queries, the entries, to a folder of answers.
Work = Callable[[Path, Path, Path], object]


def run(scratch: Path) -> bool:
    """Measure, print, and return whether all goals are reached."""
    log = write_log(scratch / "lookup-jobs" / "topic-0", BATCH_BYTES, LOG_BYTES)
    with TemporaryDirectory(dir=scratch) as folder:
        dump = make_dump(Path(folder, "dump"), log, PARTITIONS)
        entries = _write_entries(dump, log, Path(folder, "entries.parquet"))
        kinds = {name: Path(folder, name) for name in ("uniform", "skewed")}
        for name, queries in kinds.items():
            write_queries(queries, skewed=name == "skewed")
        reached = _on_spark(Path(folder), dump, entries, kinds)
        return _on_one_machine(Path(folder), dump, entries, kinds) and reached


def _on_spark(folder: Path, dump: Path, entries: Path, kinds: Mapping[str, Path]) -> bool:
    # As conf/spark-defaults.conf recommends for DataFrames of queries.
    os.environ["JDK_JAVA_OPTIONS"] = JAVA_OPTIONS
    session = build_session(f"local[{THREADS}]", "kafka-index benchmark")
    try:
        works: dict[str, Work] = {
            "lookup --engine spark": lambda queries, _, out: _spark_lookup(
                session, queries, dump, out
            ),
            "range join by buckets": partial(spark_joins.join_buckets, session),
            "window": partial(spark_joins.last_of_window, session),
        }
        print(f"{_QUERIES // 10**6} M queries at index level, Spark local[{THREADS}], started")
        reached = _compare(folder, entries, kinds, works, _SPARK_ROUNDS)
        return _compare_frames(session, folder, dump, kinds) and reached
    finally:
        session.stop()


def _on_one_machine(folder: Path, dump: Path, entries: Path, kinds: Mapping[str, Path]) -> bool:
    works: dict[str, Work] = {
        "lookup --engine local": lambda queries, _, out: _local_lookup(queries, dump, out)
    }
    missing = [name for name in _LIBRARIES if find_spec(name) is None]
    if missing:
        print(
            f"\nNot compared with {' and '.join(missing)}, which are not installed: "
            "pip install -r benchmarks/requirements.txt"
        )
    if "polars" not in missing:
        from benchmarks import polars_join  # noqa: PLC0415, because it is optional

        works["polars, in order"] = partial(polars_join.join_in_order, _CONSTANTS)
        works[_NO_GOAL] = partial(polars_join.join_in_any_order, _CONSTANTS)
    if "duckdb" not in missing:
        from benchmarks.duckdb_join import asof_join  # noqa: PLC0415, because it is optional

        works["DuckDB, any order"] = partial(asof_join, THREADS, _CONSTANTS)
    print(f"\n{_QUERIES // 10**6} M queries at index level, {THREADS} threads of one process")
    return _compare(folder, entries, kinds, works, _LOCAL_ROUNDS)


def _compare(
    folder: Path, entries: Path, kinds: Mapping[str, Path], works: Mapping[str, Work], rounds: int
) -> bool:
    """Time each way, in turn; the first one is ours."""
    print("queries  how                       seconds  M queries/s  times ours")
    reached = True
    for number, (kind, queries) in enumerate(kinds.items()):
        times: dict[str, list[float]] = {name: [] for name in works}
        answers: set[tuple[int, ...]] = set()
        # A first round compiles, starts workers and warms caches.
        for turn in range(rounds if number else rounds + 1):
            for name, work in works.items():
                out = folder / "answers"
                taken = seconds(partial(work, queries, entries, out))
                if number or turn:
                    times[name].append(taken)
                answers.add(_sums(out))
                _remove(out)
        if len(answers) != 1:
            raise RuntimeError(f"the answers differ: {answers}")
        ours, *others = works
        for name in works:
            median = statistics.median(times[name])
            ratio = median / statistics.median(times[ours])
            has_goal = name in others and name != _NO_GOAL
            reached &= ratio >= _GOAL or not has_goal
            goal = f"  goal {_GOAL}" if has_goal else ""
            rate = _QUERIES / median / 1e6
            print(f"{kind:8s} {name:24s} {median:8.2f} {rate:12.1f} {ratio:8.2f}{goal}", flush=True)
    return reached


def _compare_frames(
    session: SparkSession, folder: Path, dump: Path, kinds: Mapping[str, Path]
) -> bool:
    """Time the copy, a function in Python that does nothing, and the lookup, in turn."""
    inventory = collect_inventory([str(dump)])
    out = folder / "answers"
    reached = True
    print(f"\n{_QUERIES // 10**6} M queries, DataFrame to DataFrame, Spark local[{THREADS}]")
    print("queries  level     copy s  Python s  lookup s  Python/copy  lookup/copy  lookup/Python")
    for resolve, (kind, path) in product((Resolve.INDEX, Resolve.BATCH), kinds.items()):
        works: dict[str, Callable[[DataFrame], DataFrame]] = {
            "copy": partial(copy_with_answers, resolve),
            "python": partial(pass_through_python, LookupSettings(By.OFFSET, resolve)),
            "lookup": partial(lookup_offsets, inventory=inventory, resolve=resolve),
        }
        times: dict[str, list[float]] = {name: [] for name in works}
        for turn in range(_SPARK_ROUNDS + 1):
            for name, work in works.items():
                answers = work(session.read.parquet(str(path)))
                taken = seconds(partial(answers.write.parquet, str(out)))
                # A first round compiles, starts workers and warms caches.
                if turn:
                    times[name].append(taken)
                _remove(out)
        copy, python, lookup = (statistics.median(times[name]) for name in works)
        reached &= lookup / copy <= _MAX_COPIES
        print(
            f"{kind:8s} {resolve.value:8s} {copy:7.2f} {python:9.2f} {lookup:9.2f}"
            f" {python / copy:12.2f} {lookup / copy:12.2f} {lookup / python:14.2f}"
            f"  goal of lookup/copy: at most {_MAX_COPIES}",
            flush=True,
        )
    return reached


def copy_with_answers(resolve: Resolve, queries: DataFrame) -> DataFrame:
    """Add columns like those of answers: as many, of the same types, about as easy to compress."""
    batch = F.col("offset") - F.col("offset") % records_in(BATCH_BYTES)
    entry = F.col("offset") - F.col("offset") % (records_in(BATCH_BYTES) * _BATCHES_PER_ENTRY)
    filled: dict[str, Column] = {
        "segment_base_offset": F.lit(0),
        "entry_offset": entry,
        "entry_position_bytes": entry * 100,
    }
    if resolve is Resolve.BATCH:
        filled |= {
            "batch_base_offset": batch,
            "batch_last_offset": batch + records_in(BATCH_BYTES) - 1,
            "batch_position_bytes": batch * 100,
            "batch_size_bytes": F.lit(BATCH_BYTES),
        }
    columns = [
        filled.get(field.name, F.lit(None)).cast(field.dataType).alias(field.name)
        for field in spark_schema(ANSWER_SCHEMA)
        if field.name != "status"
    ]
    return queries.select("*", F.lit(Status.FOUND.text).alias("status"), *columns)


def pass_through_python(settings: LookupSettings, queries: DataFrame) -> DataFrame:
    """Return rows as those of a lookup, from a function in Python that looks nothing up."""
    raw, key = raw_columns(settings), settings.by.column

    def answer(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for rows in batches:
            status = pa.array(np.zeros(rows.num_rows, np.int8))
            values = [rows.column(key)] * (len(raw) - 1)
            schema = pa.schema([*rows.schema, *raw])
            yield pa.RecordBatch.from_arrays([*rows.columns, status, *values], schema=schema)

    schema = StructType([*queries.schema.fields, *spark_schema(raw).fields])
    return with_answers(queries.mapInArrow(answer, schema), raw)


def _spark_lookup(session: SparkSession, path: Path, dump: Path, out: Path) -> None:
    queries = open_queries(str(path), By.OFFSET)
    inventory = collect_inventory([str(dump)])
    settings = LookupSettings(By.OFFSET, Resolve.INDEX)
    totals = LookupTotals()
    with AnswerTarget(str(out), queries) as target:
        with session_workers(session) as workers:
            for report in answer_queries(workers, queries, inventory, settings, target):
                totals.add(report)
        target.publish(totals.rows_of_split)


def _local_lookup(path: Path, dump: Path, out: Path) -> None:
    queries = open_queries(str(path), By.OFFSET)
    inventory = collect_inventory([str(dump)])
    settings = LookupSettings(By.OFFSET, Resolve.INDEX)
    totals = LookupTotals()
    with AnswerTarget(str(out), queries) as target:
        with ThreadEngine(THREADS).start("lookup") as workers:
            for report in answer_queries(workers, queries, inventory, settings, target):
                totals.add(report)
        target.publish(totals.rows_of_split)


def _write_entries(dump: Path, log: Path, path: Path) -> Path:
    """Write the entries of all index files, Kafka's answer below the first one included."""
    tables = []
    for number in range(PARTITIONS):
        index_path = dump / f"topic-{number}" / index_name_for(log.name, OFFSET_INDEX_SUFFIX)
        with OffsetIndex(index_path, 0, writable=False) as index:
            offsets, positions = (np.insert(column, 0, 0) for column in index.read_entries())
        if len(offsets) != _ENTRIES + 1:
            raise RuntimeError(f"{index_path} has {len(offsets) - 1} entries")
        columns = {
            "topic": pa.array(["topic"] * len(offsets)),
            "partition": pa.array(np.full(len(offsets), number, np.int32)),
            "first": offsets,
            "next": np.append(offsets[1:], END_OFFSET),
            "entry_offset": offsets,
            "entry_position_bytes": positions,
        }
        tables.append(pa.table(columns))
    pq.write_table(pa.concat_tables(tables), path)
    return path


def write_queries(
    folder: Path, *, skewed: bool, queries: int = _QUERIES, key: str = "offset", first: int = 0
) -> None:
    """Write queries for keys from the first one on, as many keys as the logs have offsets."""
    folder.mkdir()
    random = np.random.default_rng(5)
    rows = queries // _FILES
    for number in range(_FILES):
        partitions = random.integers(0, PARTITIONS, rows, dtype=np.int32)
        keys = random.integers(0, END_OFFSET, rows)
        if skewed:
            in_tail = random.random(rows) < _SKEWED_SHARE
            partitions[in_tail] = _SKEWED_PARTITION
            keys[in_tail] = END_OFFSET - 1 - keys[in_tail] % _TAIL_OFFSETS
        columns = {"topic": ["topic"] * rows, "partition": partitions, key: first + keys}
        pq.write_table(pa.table(columns), folder / f"queries-{number}.parquet")


def _remove(out: Path) -> None:
    if out.is_dir():
        shutil.rmtree(out)
    else:
        out.unlink()


def _sums(out: Path) -> tuple[int, ...]:
    """Return what tells whether two outputs hold the same answers."""
    names = ["partition", "offset", "entry_offset", "entry_position_bytes"]
    table = ds.dataset(out, format="parquet", exclude_invalid_files=True).to_table(columns=names)
    products = pc.multiply(table["offset"], pc.add(table["entry_position_bytes"], 1))
    return (
        table.num_rows,
        *(pc.sum(table[name]).as_py() for name in names),
        pc.sum(pc.bit_wise_and(products, 0xFFFF)).as_py(),
    )
