"""Look up the queries of a DataFrame on Spark, and build missing indexes for query files.

Missing indexes of remote segments are built once for all tasks of a run. A first job reads the
queries and reduces them to one query per segment. Queries by time are reduced to one query per
partition, because the segment of a time is unknown before time indexes are built. A second job runs
these queries, with one task per segment or partition. The tasks write the indexes to the folder of
the run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import (
    ByteType,
    DataType,
    DateType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from kafka_index.commands.lookup.lookup_job import SplitTask
from kafka_index.commands.lookup.lookup_job import look_up as look_up_on
from kafka_index.commands.lookup.queries import check_names, read_split
from kafka_index.core.errors import InputError
from kafka_index.core.format.config import to_choice
from kafka_index.core.format.longs import Longs
from kafka_index.core.fs.uris import TieredOptions
from kafka_index.core.job.engine import Workers
from kafka_index.core.job.request import PathsKind, input_path
from kafka_index.core.log.choices import By, Resolve, Status, UpperBound
from kafka_index.core.log.read.answers import ANSWER_SCHEMA, NULL, VALUE_COLUMNS, Answers
from kafka_index.core.parameters import Config, Path, Paths, SettingsKind, Tiered
from kafka_index.core.query.inventory import NO_PARTITION, Inventory, collect_inventory
from kafka_index.core.query.lookups import (
    PARTITION,
    TOPIC,
    Lookups,
    LookupSettings,
    QueryBatch,
    SharedLookups,
    integers,
)
from kafka_index.spark.session import ship_package
from kafka_index.spark.workers import read_tasks, spark_schema, spark_workers, task

# Queries that are processed together share the cost of reading each segment's index.
_ROWS_PER_GROUP = 250_000
_BYTES_PER_GROUP = 64 << 20
# Record batches that stay in the CPU cache while the JVM converts them to rows.
_ROWS_PER_BATCH = 50_000
# Prefix of columns that exist only between a Python worker and the JVM.
_RAW_PREFIX = "__kafka_index_"
_INSTANT = "__kafka_index_instant"
_STATUS = "status"
# A column from time indexes, which lookups by offset do not read.
_ENTRY_TIMESTAMP = "entry_timestamp_ms"

_INTEGERS = (ByteType, ShortType, IntegerType, LongType)
_TIMES = (TimestampType, TimestampNTZType, DateType)
_QUERY_TYPES: dict[str, tuple[tuple[type[DataType], ...], str]] = {
    TOPIC: ((StringType,), "a string"),
    PARTITION: (_INTEGERS, "an integer"),
    By.OFFSET.column: (_INTEGERS, "an integer"),
    By.TIMESTAMP.column: ((*_INTEGERS, *_TIMES), "an integer, a timestamp or a date"),
}

_CODE, _SEGMENT, _KEY = "code", "segment", "key"
# Used in place of the segment number for queries by time; the key is then the latest requested
# time. A query for a special timestamp has this negative timestamp as its segment number.
_BY_TIME = 0
#: Queries that cause missing indexes to be built. The columns are the number of the partition in
#: the inventory, the number of the segment in the partition, and the key.
NEED_SCHEMA = pa.schema(
    [
        pa.field(_CODE, pa.int32(), nullable=False),
        pa.field(_SEGMENT, pa.int32(), nullable=False),
        pa.field(_KEY, pa.int64(), nullable=False),
    ]
)


def list_dump(
    paths: Paths,
    *,
    tiered: Tiered | None = None,
    indexes: Path | None = None,
    upper_bound: UpperBound | str = UpperBound.LOG_END,
) -> Inventory:
    """List a dump once for several lookups.

    Parameters
    ----------
    paths : path, or list of path
        Data directories, partition directories, or globs of either; local paths or URIs, which must
        be valid on executors too.
    tiered : URI, list of URI, or TieredOptions, optional
        Remote segments.
    indexes : path, optional
        Output of an earlier build; by default index files are next to the logs.
    upper_bound : UpperBound or str
        Upper bound of result offsets: ``log-end``, ``high-watermark`` or ``last-stable-offset``.

    Returns
    -------
    Inventory
        Accepted by `lookup_offsets` and `lookup_timestamps` instead of paths.

    Raises
    ------
    InputError
        Nothing is found, or the folder of index files does not exist.
    """
    return collect_inventory(
        PathsKind().convert(paths, "paths", 0),
        tiered=TieredOptions.from_argument(tiered),
        indexes=None if indexes is None else input_path(indexes, "indexes"),
        upper_bound=to_choice(UpperBound, upper_bound, "upper_bound"),
    )


def lookup_offsets(
    queries: DataFrame,
    inventory: Inventory | Paths,
    *,
    resolve: Resolve | str = Resolve.BATCH,
    config: Config | None = None,
) -> DataFrame:
    """Look up offsets.

    Parameters
    ----------
    queries : DataFrame
        Columns topic (string), partition and offset (integers); other columns pass through.
    inventory : path, list of path, or Inventory
        The logs, with paths that are valid on executors; or the result of `list_dump`, to list the
        logs once for several lookups.
    resolve : Resolve or str
        Level of detail: ``index``, ``batch`` or ``record``.
    config : path, mapping or LogConfig, optional
        Kafka settings, for missing indexes.

    Returns
    -------
    DataFrame
        The columns of the queries followed by result columns; one row per query, in the order of
        rows in each Spark partition.

    Raises
    ------
    InputError
        Columns are missing, have the wrong type, or the name of a result column.

    Notes
    -----
    If a log cannot be read, the status is ``unreadable``; the command `lookup` reports the reason.
    """
    return _look_up(queries, inventory, _lookup_settings(By.OFFSET, resolve, config))


def lookup_timestamps(
    queries: DataFrame,
    inventory: Inventory | Paths,
    *,
    resolve: Resolve | str = Resolve.RECORD,
    config: Config | None = None,
) -> DataFrame:
    """Look up timestamps.

    Parameters
    ----------
    queries : DataFrame
        As in `lookup_offsets`, with a column timestamp: an integer (milliseconds since 1970; -1, -2
        and -3 mean the end, the start, and the largest timestamp), or a timestamp or date. Values
        without a zone are in the time zone of the session, as in Spark.
    inventory, resolve, config
        As in `lookup_offsets`.

    Returns
    -------
    DataFrame
        As from `lookup_offsets`.

    Raises
    ------
    InputError
        As `lookup_offsets`.
    """
    settings = _lookup_settings(By.TIMESTAMP, resolve, config)
    return _look_up(queries, inventory, settings)


def answer_rows(
    batches: Iterable[pa.RecordBatch], *, lookups: SharedLookups, key: str, raw: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Run the queries of one task, with keys in the column `key`; add the columns of `raw`."""
    opened = lookups.open()
    value_columns = [VALUE_COLUMNS.index(name.removeprefix(_RAW_PREFIX)) for name in raw.names[1:]]
    for rows in group_batches(batches):
        answers = opened.answer_rows(_set_key_column(rows, key, lookups.settings.by))
        columns = rows.drop_columns([_INSTANT]) if key == _INSTANT else rows
        answered = pa.RecordBatch.from_arrays(
            [
                *columns.columns,
                pa.array(answers.status),
                *(answers.values[column] for column in value_columns),
            ],
            schema=pa.schema([*columns.schema, *raw]),
        )
        for start in range(0, answered.num_rows, _ROWS_PER_BATCH):
            yield answered.slice(start, _ROWS_PER_BATCH)
    # Discard the findings: nothing reports them, and the process would keep them for later tasks.
    opened.drain_findings()


def _set_key_column(rows: pa.RecordBatch, key: str, by: By) -> pa.RecordBatch:
    """Return the queries with the values of the column `key` in the column of `by`."""
    if key == by.column:
        return rows
    return rows.set_column(rows.schema.get_field_index(by.column), by.column, rows.column(key))


def group_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Concatenate record batches until they have enough rows or bytes to be processed together."""
    pending: list[pa.RecordBatch] = []
    rows = size_bytes = 0
    for batch in batches:
        pending.append(batch)
        rows += batch.num_rows
        size_bytes += batch.nbytes
        if rows >= _ROWS_PER_GROUP or size_bytes >= _BYTES_PER_GROUP:
            yield pa.concat_batches(pending)
            pending, rows, size_bytes = [], 0, 0
    if rows:
        yield pa.concat_batches(pending)


def _lookup_settings(by: By, resolve: Resolve | str, config: Config | None) -> LookupSettings:
    return LookupSettings(
        by,
        to_choice(Resolve, resolve, "resolve"),
        SettingsKind().convert(config, "config", 0).config,
    )


def _look_up(
    queries: DataFrame, inventory: Inventory | Paths, settings: LookupSettings
) -> DataFrame:
    """Add the result columns to queries.

    Python workers return numbers without nulls, and only in columns that the lookup can fill. The
    JVM adds nulls, status texts and empty columns, because it creates them faster.
    """
    by = settings.by
    _check_columns(queries.schema, by)
    if not isinstance(inventory, Inventory):
        inventory = collect_inventory(PathsKind().convert(inventory, "inventory", 0))
    ship_package(queries.sparkSession)
    raw = raw_columns(settings)
    schema = StructType([*queries.schema.fields, *spark_schema(raw).fields])
    key = by.column
    if isinstance(queries.schema[key].dataType, DateType | TimestampNTZType):
        queries = queries.withColumn(_INSTANT, F.col(key).cast("timestamp"))
        key = _INSTANT
    lookups = SharedLookups(inventory, settings)
    answered = queries.mapInArrow(
        task(partial(answer_rows, lookups=lookups, key=key, raw=raw)), schema
    )
    return with_answers(answered, raw)


def with_answers(answered: DataFrame, raw: pa.Schema) -> DataFrame:
    """Replace the raw columns of Python workers by the columns of `ANSWER_SCHEMA`."""
    return answered.select("*", *_answer_columns(raw)).drop(*raw.names)


def raw_columns(settings: LookupSettings) -> pa.Schema:
    """Return the schema of the raw columns of Python workers: status and numbers, without nulls."""
    names = list(VALUE_COLUMNS[: len(Answers.empty(0, settings.resolve).values)])
    if settings.by is By.OFFSET:
        names.remove(_ENTRY_TIMESTAMP)
    fields = [pa.field(_RAW_PREFIX + name, pa.int64(), nullable=False) for name in names]
    return pa.schema([pa.field(_RAW_PREFIX + _STATUS, pa.int8(), nullable=False), *fields])


def _answer_columns(raw: pa.Schema) -> list[Column]:
    """Return the columns of `ANSWER_SCHEMA`, computed from the raw columns of Python workers."""
    text = F.lit(Status.FOUND.text)
    for status in reversed(Status):
        text = F.when(F.col(_RAW_PREFIX + _STATUS) == status.value, status.text).otherwise(text)
    columns = [text.alias(_STATUS)]
    for field in spark_schema(ANSWER_SCHEMA).fields[1:]:
        value = F.lit(None)
        if _RAW_PREFIX + field.name in raw.names:
            number = F.col(_RAW_PREFIX + field.name)
            value = F.when(number != NULL, number)
        columns.append(value.cast(field.dataType).alias(field.name))
    return columns


def _check_columns(schema: StructType, by: By) -> None:
    check_names(schema.names, by)
    problems = [
        f"{name} is {schema[name].dataType.simpleString()}, not {expected}"
        for name, (types, expected) in _QUERY_TYPES.items()
        if name in (TOPIC, PARTITION, by.column) and not isinstance(schema[name].dataType, types)
    ]
    if problems:
        raise InputError(f"columns of the wrong type: {', '.join(problems)}")


def build_missing_indexes(
    workers: Workers,
    unindexed: pa.Table,
    lookups: SharedLookups,
    split_tasks: Sequence[SplitTask],
) -> None:
    """Build the missing indexes that splits of queries need, in the folder of the run.

    `unindexed` has the segments without index files, and must not be empty. The lookups must have a
    folder for indexes.
    """
    by_time = lookups.settings.by is By.TIMESTAMP
    spark = spark_workers(workers)
    unindexed_segments = spark.distribute(unindexed)
    splits = spark.frame(split_tasks, [each.split.size_bytes for each in split_tasks])
    key_columns = [_CODE] if by_time else [_CODE, _SEGMENT]
    with spark.jobs.job("find the requested segments without index files"):
        needs = spark.collect(
            splits.mapInArrow(
                spark.task(partial(find_needs, lookups=lookups)), spark_schema(NEED_SCHEMA)
            )
            .groupBy(_CODE, _SEGMENT)
            .agg(F.max(_KEY).alias(_KEY))
            .join(
                unindexed_segments.groupBy(key_columns).agg(
                    F.sum("size_bytes").alias("size_bytes")
                ),
                key_columns,
            )
            .select(_CODE, _SEGMENT, _KEY, "size_bytes")
        ).sort_by([(_CODE, "ascending"), (_SEGMENT, "ascending")])
    if not needs.num_rows:
        return
    # All queries by time for a partition are run by one task.
    task_keys = needs[_CODE].to_numpy() if by_time else np.arange(needs.num_rows)
    task_starts = np.flatnonzero(np.diff(task_keys, prepend=-1))
    queries = list(zip(*(needs[name].to_pylist() for name in NEED_SCHEMA.names), strict=True))
    task_ends = [*task_starts[1:].tolist(), len(queries)]
    built = workers.run(
        [queries[first:end] for first, end in zip(task_starts.tolist(), task_ends, strict=True)],
        partial(build_needed, lookups=lookups),
        sizes=needs["size_bytes"].to_numpy()[task_starts].tolist(),
        description=f"build indexes for {{:,}} {'partitions' if by_time else 'segments'}",
    )
    for _ in built:
        pass


#: The function that runs the command ``lookup`` on Spark.
look_up = partial(look_up_on, build_missing=build_missing_indexes)


def find_needs(
    batches: Iterable[pa.RecordBatch], *, lookups: SharedLookups
) -> Iterator[pa.RecordBatch]:
    """Reduce the queries of splits to a set that needs the same indexes."""
    inventory = lookups.open().inventory
    largest: dict[tuple[int, int], int] = {}
    for split_task in read_tasks(batches):
        # Ignored here: the task that later processes the split raises the same error.
        with suppress(InputError):
            for rows in read_split(split_task.split):
                for code, keys in _keys_by_partition(
                    QueryBatch.from_table(rows, split_task.split.by), inventory
                ):
                    for segment, key in _index_needs(inventory, lookups, code, keys):
                        segment_key = code, segment
                        largest[segment_key] = max(key, largest.get(segment_key, key))
    rows = [(code, segment, key) for (code, segment), key in largest.items()]
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(NEED_SCHEMA)
    yield pa.record_batch([list(column) for column in columns], schema=NEED_SCHEMA)


def _keys_by_partition(batch: QueryBatch, inventory: Inventory) -> Iterator[tuple[int, Longs]]:
    """Yield the number of each queried partition, with its valid keys in ascending order."""
    numbers, present = integers(batch.partitions)
    codes = inventory.codes(batch.topics, numbers)
    valid = codes != NO_PARTITION
    for flags in (present, batch.keys.is_valid):
        if flags is not None:
            valid &= flags
    if not batch.keys.specials:
        valid &= batch.keys.values >= 0
    if not valid.any():
        return
    codes, keys = codes[valid], batch.keys.values[valid]
    order = np.lexsort((keys, codes))
    codes, keys = codes[order], keys[order]
    partition_codes, firsts = np.unique(codes, return_index=True)
    yield from zip(partition_codes.tolist(), np.split(keys, firsts[1:]), strict=True)


def _index_needs(
    inventory: Inventory, lookups: SharedLookups, code: int, keys: Longs
) -> Iterator[tuple[int, int]]:
    """Yield segment numbers with the largest requested key; for times, yield `_BY_TIME`."""
    if lookups.settings.by is By.TIMESTAMP:
        for special in np.unique(keys[keys < 0]).tolist():
            yield special, special
        if keys[-1] >= 0:
            yield _BY_TIME, int(keys[-1])
        return
    bases = inventory.base_offsets(code)
    # Offsets below the log start need no index.
    first = max(inventory.partitions["log_start_offset"][code].as_py(), 0)
    keys = keys[np.searchsorted(keys, first) :]
    if len(keys):
        segment_numbers = np.clip(np.searchsorted(bases, keys, "right") - 1, 0, None)
        segments, firsts = np.unique(segment_numbers, return_index=True)
        lasts = np.append(firsts[1:], len(keys)) - 1
        yield from zip(segments.tolist(), keys[lasts].tolist(), strict=True)
    if lookups.settings.resolve is not Resolve.INDEX:
        # The last segment is always included, because its index is used to find the log end offset.
        yield len(bases) - 1, int(bases[-1])


def build_needed(
    needs: Sequence[tuple[int, int, int]], _attempt_id: str, *, lookups: SharedLookups
) -> None:
    """Run the queries from `find_needs`, which builds and shares the indexes."""
    opened = lookups.open()
    inventory, settings = opened.inventory, opened.settings
    by_time = settings.by is By.TIMESTAMP
    needs_end = not by_time and settings.resolve is not Resolve.INDEX
    if not by_time:
        # With Resolve.INDEX, a query reads only the index of one segment, and no other segment.
        settings = replace(settings, resolve=Resolve.INDEX)
    # Errors of a segment are not reported here, because the lookups of the splits report them.
    with Lookups(inventory, settings) as lookups_of_task:
        for code, segment, key in needs:
            topic, partition = inventory.partition_name(code)
            if needs_end and segment == len(inventory.base_offsets(code)) - 1:
                lookups_of_task.end_offset(code)
            query = {TOPIC: topic, PARTITION: partition, settings.by.column: key}
            lookups_of_task.answer_rows(pa.Table.from_pylist([query]))
