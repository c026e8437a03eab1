"""Builds on Spark, from logs or from the rows of a DataFrame (Delta, Iceberg, ORC, queries)."""

from __future__ import annotations

import pickle
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc
from py4j.protocol import Py4JError
from pyspark import StorageLevel
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from kafka_index.commands.build.job import build as build_on
from kafka_index.commands.build.log_build import (
    ROUND_SEGMENTS,
    BuildListener,
    build_rounds,
    failed_rows,
    group_partitions,
    stage_tasks,
)
from kafka_index.commands.build.parquet import (
    COUNT_SHARES,
    SHARES,
    PathListener,
    build_from_table,
    check_settings,
    split_rejected,
    stage_bin,
    stage_stream,
)
from kafka_index.commands.build.parquet_input import (
    BATCH,
    KEY_COLUMNS,
    POSITION,
    ROW_COUNT,
    NumberedGroup,
    ParquetForm,
    ParquetInput,
    input_from_schemas,
)
from kafka_index.commands.build.parquet_order import (
    BATCH_COUNT_SCHEMA,
    METADATA_ROW_BYTES,
    SEGMENTS_QUERY,
    CountedInput,
    SegmentCount,
    SegmentKey,
    check_keys,
    count_batches,
    pack_bins,
    read_all_columns,
    row_groups,
    segment_counts,
    segment_rejection,
)
from kafka_index.commands.build.request import BuildRequest, InputFormat
from kafka_index.commands.build.result import FILE_SCHEMA, BuildResult
from kafka_index.core.errors import InputError
from kafka_index.core.job.engine import (
    BIN,
    COST_BYTES,
    SILENT,
    Listener,
    Workers,
    balance,
    count_bins,
    job_bytes,
)
from kafka_index.core.job.result import KeptRows
from kafka_index.core.log.recovery.settings import FAILED, BuildSettings, SegmentReport
from kafka_index.core.log.recovery.staged_segment import StagedSegment
from kafka_index.core.parameters import Config, Path
from kafka_index.spark.jobs import job_failure
from kafka_index.spark.session import ship_package
from kafka_index.spark.workers import (
    RESULT_SCHEMA,
    SparkWorkers,
    arrow_schema,
    check_results,
    current_attempt_id,
    packed_row,
    read_tasks,
    session_workers,
    spark_schema,
    spark_workers,
    unpack_rows,
)

_PARTITION = ["topic", "partition"]
# Stages: read and sort.
_STAGES = 2
# Raw batches can be megabytes each, so a row limit does not limit record batches.
_BYTES_SETTING = "spark.sql.execution.arrow.maxBytesPerBatch"
_BATCH_BYTES = 16 << 20
# Approximate maximum size of a staged and of a counted segment, as sent to the driver.
_STAGED_BYTES, _COUNTED_BYTES = 1024, 128


@dataclass(frozen=True, eq=False, slots=True)
class Rows:
    """An input as Spark reads it.

    `groups` are row groups of files, which tasks read directly.

    Otherwise the rows come from a frame with the columns of the source.
    """

    source: ParquetInput
    groups: Sequence[NumberedGroup] = ()
    frame: DataFrame | None = None


def build_rows(
    workers: Workers,
    source: ParquetInput,
    settings: BuildSettings,
    *,
    frame: DataFrame | None = None,
    listener: BuildListener,
    fail_fast: bool = False,
) -> None:
    """Build from a Parquet input, like `build_parquet` on threads, or from a frame.

    The frame has the columns of the source. The number of progress units is `SHARES`. Executors
    read files under the driver's paths; Spark sorts rows that are not in order. With `fail_fast`,
    no further round starts after a segment has failed.
    """
    check_settings(source, settings)
    rows = Rows(source, row_groups(source) if frame is None else (), frame)
    spark = spark_workers(workers)
    named = PathListener(source.path, listener)
    with _counted(spark, rows) as counted:
        refused = counted.refused()
        for row in refused:
            named.on_report(row)
        if fail_fast and refused:
            return
        for reports in build_rounds(workers, counted.rounds(), settings, fail_fast=fail_fast):
            for row in reports:
                named.on_report(row)


@contextmanager
def _counted(workers: SparkWorkers, rows: Rows) -> Iterator[_Counted]:
    """Count the rows of segments, and keep the counts while the context is open.

    Raises `InputError` as `count_segments` does.
    """
    counts = _count_files(workers, rows) if rows.frame is None else _count_frame(rows.frame)
    segments = counts.persist(StorageLevel.DISK_ONLY)
    is_raw = rows.source.form is ParquetForm.RAW
    read_bytes = "size_bytes" if is_raw else f"row_count * {METADATA_ROW_BYTES}"
    try:
        name = "count the rows of segments"
        with workers.jobs.job(name, items=COUNT_SHARES, stages=_STAGES):
            partitions = workers.collect(
                segments.groupBy(_PARTITION).agg(
                    F.count("*").alias("segments"),
                    F.sum(F.expr(read_bytes)).alias("read_bytes"),
                    F.min("first_row").alias("first_row"),
                    F.min("segment_base_offset").alias("lowest"),
                    F.count("segment_base_offset").alias("known"),
                    F.bool_and("is_sorted").alias("is_sorted"),
                    F.max("error").alias("error"),
                )
            ).sort_by("first_row")
        _check_partitions(partitions, rows.source)
        yield _Counted(workers, rows, segments, partitions)
    finally:
        # Blocking, since stopping the session at the same time would log an error.
        segments.unpersist(blocking=True)


def _check_partitions(partitions: pa.Table, source: ParquetInput) -> None:
    """Reject an input without rows, and rows without a segment."""
    for error in partitions["error"].drop_null().to_pylist():
        raise pickle.loads(error)  # noqa: S301, of our own task
    if not partitions.num_rows:
        raise InputError("the input has no rows", path=source.path)
    nulls = [partitions[name].null_count for name in _PARTITION]
    nulls.append(pc.sum(pc.subtract(partitions["segments"], partitions["known"])).as_py())
    check_keys(nulls, partitions["partition"].to_numpy(), source.path)


def _count_files(workers: SparkWorkers, rows: Rows) -> DataFrame:
    counting = workers.task(partial(count_groups, source=rows.source))
    groups = workers.frame(rows.groups, [each.size_bytes for each in rows.groups])
    parts = groups.mapInArrow(counting, spark_schema(BATCH_COUNT_SCHEMA))
    return workers.session.sql(SEGMENTS_QUERY, parts=parts)


def count_groups(
    batches: Iterable[pa.RecordBatch], *, source: ParquetInput
) -> Iterator[pa.RecordBatch]:
    """Count the row groups of one bin; runs in a task."""
    for group in read_tasks(batches):
        try:
            yield from count_batches(group, source)
        except InputError as error:
            row = dict.fromkeys(BATCH_COUNT_SCHEMA.names)
            yield pa.RecordBatch.from_pylist(
                [{**row, "error": pickle.dumps(error)}], BATCH_COUNT_SCHEMA
            )


def _count_frame(frame: DataFrame) -> DataFrame:
    end = F.coalesce(F.col(POSITION), F.lit(-1))
    if BATCH in frame.columns:
        end += F.coalesce(F.length(BATCH), F.lit(0))
    return frame.groupBy(*KEY_COLUMNS).agg(
        F.lit(0).alias("first_row"),
        F.count("*").alias("row_count"),
        F.max(end).alias("size_bytes"),
        F.expr("false").alias("is_sorted"),
        F.lit(None).cast("binary").alias("error"),
    )


@dataclass(frozen=True, eq=False, slots=True)
class _Counted:
    """Rows whose segments are counted on the executors; the driver has one row per partition."""

    workers: SparkWorkers
    rows: Rows
    segments: DataFrame
    partitions: pa.Table

    @property
    def count(self) -> int:
        count: int = pc.sum(self.partitions["segments"]).as_py()
        return count

    def refused(self) -> list[SegmentReport]:
        """Return report rows of segments that no broker can have."""
        keys = map(
            SegmentKey, *(self.partitions[name].to_pylist() for name in (*_PARTITION, "lowest"))
        )
        refused = [segment_rejection(key) is not None for key in keys]
        if not any(refused):
            return []
        return split_rejected(self.rows.source, self.fetch(self.partitions.filter(refused)))[1]

    def rounds(self) -> list[_Round]:
        """Return rounds of complete partitions, in input order."""
        counts, sizes = (self.partitions[name].to_pylist() for name in ("segments", "read_bytes"))
        costs = [size + COST_BYTES * count for size, count in zip(sizes, counts, strict=True)]
        groups = group_partitions(
            counts,
            max_segments=min(ROUND_SEGMENTS, self.workers.limits.result_bytes // _COUNTED_BYTES),
            costs=costs,
            max_cost=job_bytes(sum(costs)),
        )
        return [
            _Round(self, group.start, group.stop, sum(counts[group]), sum(costs[group]))
            for group in groups
        ]

    def fetch(self, partitions: pa.Table) -> list[SegmentCount]:
        found = self.segments
        if partitions.num_rows < self.partitions.num_rows:
            names = self.workers.distribute(partitions.select(_PARTITION))
            found = found.join(F.broadcast(names), _PARTITION)
        with self.workers.jobs.job(f"list the segments of {partitions.num_rows:,} partitions"):
            table = self.workers.collect(found.drop("is_sorted", "error"))
        return segment_counts(table.sort_by("first_row"))


@dataclass(frozen=True, eq=False, slots=True)
class _Round:
    """A range of counted partitions that are built in one round."""

    counted: _Counted
    first: int
    end: int
    segments: int
    cost: int

    @property
    def bins(self) -> int:
        """Approximate number of bins of the scan."""
        return count_bins(self.segments, self.cost)

    def collect_published_rows(self, _settings: BuildSettings) -> list[SegmentReport]:
        """Return no rows: all segments are built again."""
        return []

    def stage(
        self, workers: Workers, settings: BuildSettings, *, fail_fast: bool
    ) -> list[StagedSegment]:
        """Scan the segments that a broker can have."""
        spark, source = spark_workers(workers), self.counted.rows.source
        partitions = self.counted.partitions.slice(self.first, self.end - self.first)
        known, _ = split_rejected(source, self.counted.fetch(partitions))
        units = (SHARES - COUNT_SHARES) * self.segments // self.counted.count
        if pc.all(self.counted.partitions["is_sorted"]).as_py():
            counted = CountedInput(source, self.counted.rows.groups, known, is_sorted=True)
            bins = list(pack_bins(counted, known, self.bins))
            return stage_tasks(
                spark,
                bins,
                partial(stage_bin, source),
                settings,
                fail_fast=fail_fast,
                sizes=[each.size_bytes for each in bins],
                description=f"scan {len(known):,} segments",
                units=units,
            )
        staged: list[StagedSegment] = []
        limits = spark.limits
        most = min(limits.result_bytes // _STAGED_BYTES, limits.work_bytes // _COUNTED_BYTES)
        for start in range(0, len(known), max(most, 1)):
            some = known[start : start + max(most, 1)]
            items = units * len(some) // len(known)
            staged += self._stage_unsorted(spark, some, settings, fail_fast=fail_fast, items=items)
            if fail_fast and failed_rows(staged):
                break
        return staged

    def _stage_unsorted(
        self,
        workers: SparkWorkers,
        known: Sequence[SegmentCount],
        settings: BuildSettings,
        *,
        fail_fast: bool,
        items: int,
    ) -> list[StagedSegment]:
        """Stage segments from rows that Spark sorts."""
        source = self.counted.rows.source
        staging = partial(
            stage_rows,
            source=source,
            settings=replace(settings, shares_staged=True),
            fail_fast=fail_fast,
        )
        sizes = [each.read_bytes(source.form) for each in known]
        tasks = count_bins(len(sizes), sum(sizes) + COST_BYTES * len(sizes))
        topics, partitions, bases = zip(*(each.key for each in known), strict=True)
        counts = [each.row_count for each in known]
        bins = pa.array(balance(sizes, tasks, overhead=COST_BYTES), pa.int32())
        segments = workers.distribute(
            pa.table(
                [topics, partitions, bases, counts, bins], names=[*KEY_COLUMNS, ROW_COUNT, BIN]
            )
        )
        ordered = (
            self._rows(workers, known)
            .join(F.broadcast(segments), list(KEY_COLUMNS))
            .repartitionById(tasks, BIN)
            .sortWithinPartitions(*KEY_COLUMNS, POSITION)
        )
        staged = ordered.mapInArrow(workers.task(staging), spark_schema(RESULT_SCHEMA))
        name = f"scan {len(known):,} segments"
        with (
            workers.jobs.job(name, items=items, stages=_STAGES),
            _bounded_batches(workers.session),
        ):
            found = list(unpack_rows(workers.collect(staged).to_batches()))
        if not (fail_fast and failed_rows(found)):
            check_results(len(found), len(known))
        return found

    def _rows(self, workers: SparkWorkers, known: Sequence[SegmentCount]) -> DataFrame:
        rows = self.counted.rows
        if rows.frame is not None:
            return rows.frame
        # Of rows for other rounds, only the key columns are read.
        is_part = self.segments < self.counted.count or len(known) < self.segments
        wanted = frozenset(each.key for each in known) if is_part else None
        read = workers.task(partial(read_rows, source=rows.source, wanted=wanted))
        groups = workers.frame(rows.groups, [each.size_bytes for each in rows.groups])
        return groups.mapInArrow(read, spark_schema(_row_schema(rows.source)))


def read_rows(
    batches: Iterator[pa.RecordBatch],
    *,
    source: ParquetInput,
    wanted: frozenset[SegmentKey] | None = None,
) -> Iterator[pa.RecordBatch]:
    """Read the row groups of one bin, for the wanted segments; runs in a task.

    Row groups without wanted rows are read only as far as needed to detect this.
    """
    schema = _row_schema(source)
    for group in read_tasks(batches):
        if wanted is None or _has_any(group, source, wanted):
            for rows in read_all_columns(source, group.group):
                yield rows.cast(schema)


def _has_any(group: NumberedGroup, source: ParquetInput, wanted: frozenset[SegmentKey]) -> bool:
    for parts in count_batches(group, source):
        keys = map(SegmentKey, *(parts[name].to_pylist() for name in KEY_COLUMNS))
        if not wanted.isdisjoint(keys):
            return True
    return False


def stage_rows(
    batches: Iterator[pa.RecordBatch],
    *,
    source: ParquetInput,
    settings: BuildSettings,
    fail_fast: bool,
) -> Iterator[pa.RecordBatch]:
    """Stage segments from the sorted rows of a bin; runs in a task.

    With `fail_fast`, none after a failed one.
    """
    schema = source.schema.append(pa.field(ROW_COUNT, pa.int64()))
    canonical = (batch.select(schema.names).cast(schema) for batch in batches)
    found: list[StagedSegment] = []
    for staged in stage_stream(canonical, source, settings, attempt_id=current_attempt_id()):
        found.append(staged)
        if fail_fast and staged.report.status == FAILED:
            break
    yield packed_row(found)


def _row_schema(source: ParquetInput) -> pa.Schema:
    """Return the columns of an input in Spark's types."""
    return pa.schema(
        [pa.field(each.name, pa.binary()) if each.name == BATCH else each for each in source.schema]
    )


@contextmanager
def _bounded_batches(session: SparkSession) -> Iterator[None]:
    """Limit the size of the record batches that Spark creates from rows."""
    before = session.conf.get(_BYTES_SETTING)
    session.conf.set(_BYTES_SETTING, str(_BATCH_BYTES))
    try:
        yield
    finally:
        session.conf.set(_BYTES_SETTING, str(before))


_NAME = "DataFrame"
#: The function of `build` on Spark.
build = partial(build_on, build_table=build_rows)


def build_indexes(
    frame: DataFrame,
    output: Path,
    *,
    what: Collection[str] | None = None,
    config: Config | None = None,
    verify_crc: bool = True,
    fail_fast: bool = False,
) -> BuildResult:
    """Build index files from batches in the rows of a DataFrame.

    Parameters
    ----------
    frame : DataFrame
        One row per batch, in any order: the columns ``topic``, ``partition``,
        ``segment_base_offset``, ``position_bytes``, and ``batch`` (the bytes of the batch) or the
        metadata of the batch, as in a Parquet input. Other columns are ignored. It is read twice,
        or more often if it has many segments, so persist an expensive one.
    output : path
        Folder for a folder of files per partition: a URI, or a local path visible to executors.
    what : list of str, optional
        The files to build: ``index``, ``timeindex``, ``txnindex``, ``snapshot``, ``epochs``. By
        default all, or ``index`` and ``timeindex`` if columns for the others are missing.
    config : path, mapping or LogConfig, optional
        Kafka settings, such as a broker's ``server.properties``.
    verify_crc : bool
        Whether to verify the checksums of raw batches.
    fail_fast : bool
        Stop at the first segment that fails.

    Returns
    -------
    BuildResult
        One row per segment. A corrupt segment is a row, not an exception.

    Raises
    ------
    InputError
        Columns are missing or have the wrong type, there are no rows, or a key is null.
    ConfigError
        There is no output, or an argument is invalid.
    PublishError
        The output cannot be created, locked or written.
    EngineError
        A job failed because of the cluster or its environment.
    """
    given = dict(locals())
    del given["frame"]
    request = BuildRequest.build({**given, "inputs": (_NAME,), "format": InputFormat.PARQUET})
    source = input_from_schemas(_NAME, (), [arrow_schema(frame.schema)])
    columns = [F.col(f"`{name}`").alias(name) for name in source.columns]
    build_table = partial(build_rows, frame=frame.select(*columns))
    report = KeptRows(FILE_SCHEMA)
    engine = _SessionEngine(frame.sparkSession)
    built = build_from_table(request, source, engine, SILENT, report, build_table)
    return replace(built, rows=report.to_table())


@dataclass(frozen=True, slots=True)
class _SessionEngine:
    """The engine for an existing session."""

    session: SparkSession
    on_spark = True
    threads = None

    @contextmanager
    def start(
        self,
        _command: str,
        *,
        after_failure: str,
        listener: Listener | None = None,  # noqa: ARG002, of `Engine.start`, as are the others
        tasks: int = 0,  # noqa: ARG002
        inputs: Sequence[str] = (),  # noqa: ARG002
        outputs: Sequence[str] = (),
    ) -> Iterator[SparkWorkers]:
        try:
            ship_package(self.session)
            with session_workers(self.session, outputs=outputs) as workers:
                yield workers
        except (PySparkException, Py4JError) as error:
            raise job_failure(error, after_failure) from error
