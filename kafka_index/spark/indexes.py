"""Build on Spark, from logs or from the rows of a DataFrame (Delta, Iceberg, ORC, queries)."""

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
    Workers,
    balance,
    count_bins,
    job_bytes,
)
from kafka_index.core.job.result import ReportRows
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
# Stages of a Spark job: read and sort.
_STAGES = 2
# A row with a raw Kafka batch can have megabytes, so a row limit does not limit the size of Arrow
# record batches.
_BYTES_SETTING = "spark.sql.execution.arrow.maxBytesPerBatch"
_BATCH_BYTES = 16 << 20
# Approximate maximum bytes that the driver receives per staged segment, and per counted segment.
_STAGED_BYTES, _COUNTED_BYTES = 1024, 128


@dataclass(frozen=True, eq=False, slots=True)
class Rows:
    """A Parquet input on Spark: row groups of its files, or a DataFrame with the same columns."""

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
    """Build from a Parquet input, like `build_parquet` on threads, or from a DataFrame.

    The DataFrame `frame` has the columns of `source`. The build has `SHARES` progress units.
    Executors read the files at the same paths as the driver. Spark sorts unsorted rows. With
    `fail_fast`, no further round starts after a segment has failed.
    """
    check_settings(source, settings)
    rows = Rows(source, row_groups(source) if frame is None else (), frame)
    spark = spark_workers(workers)
    path_listener = PathListener(source.path, listener)
    with _counted_segments(spark, rows) as counted:
        rejected_rows = counted.refused()
        for row in rejected_rows:
            path_listener.on_report(row)
        if fail_fast and rejected_rows:
            return
        for reports in build_rounds(workers, counted.rounds(), settings, fail_fast=fail_fast):
            for row in reports:
                path_listener.on_report(row)


@contextmanager
def _counted_segments(workers: SparkWorkers, rows: Rows) -> Iterator[_CountedSegments]:
    """Count the rows of each segment, and persist the counts while the context is open."""
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
        yield _CountedSegments(workers, rows, segments, partitions)
    finally:
        # Blocking, because an error would be logged if the session stopped before the end of
        # unpersist.
        segments.unpersist(blocking=True)


def _check_partitions(partitions: pa.Table, source: ParquetInput) -> None:
    """Reject an input without rows, and rows with null keys; raise errors of counting tasks."""
    for error in partitions["error"].drop_null().to_pylist():
        raise pickle.loads(error)  # noqa: S301, of our own task
    if not partitions.num_rows:
        raise InputError("the input has no rows", path=source.path)
    nulls = [partitions[name].null_count for name in _PARTITION]
    nulls.append(pc.sum(pc.subtract(partitions["segments"], partitions["known"])).as_py())
    check_keys(nulls, partitions["partition"].to_numpy(), source.path)


def _count_files(workers: SparkWorkers, rows: Rows) -> DataFrame:
    counting = workers.task(partial(count_groups, source=rows.source))
    groups = workers.frame(rows.groups, [group.size_bytes for group in rows.groups])
    counts = groups.mapInArrow(counting, spark_schema(BATCH_COUNT_SCHEMA))
    return workers.session.sql(SEGMENTS_QUERY, parts=counts)


def count_groups(
    batches: Iterable[pa.RecordBatch], *, source: ParquetInput
) -> Iterator[pa.RecordBatch]:
    """Count the rows per segment in the row groups of one bin; runs in a Spark task."""
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
class _CountedSegments:
    """The counted segments of an input: `segments` on the executors, `partitions` in the driver."""

    workers: SparkWorkers
    rows: Rows
    segments: DataFrame
    partitions: pa.Table

    @property
    def count(self) -> int:
        count: int = pc.sum(self.partitions["segments"]).as_py()
        return count

    def refused(self) -> list[SegmentReport]:
        """Return failed report rows of the segments that cannot exist on a broker."""
        keys = map(
            SegmentKey, *(self.partitions[name].to_pylist() for name in (*_PARTITION, "lowest"))
        )
        is_rejected = [segment_rejection(key) is not None for key in keys]
        if not any(is_rejected):
            return []
        return split_rejected(self.rows.source, self.fetch(self.partitions.filter(is_rejected)))[1]

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
        segments = self.segments
        if partitions.num_rows < self.partitions.num_rows:
            names = self.workers.distribute(partitions.select(_PARTITION))
            segments = segments.join(F.broadcast(names), _PARTITION)
        with self.workers.jobs.job(f"list the segments of {partitions.num_rows:,} partitions"):
            table = self.workers.collect(segments.drop("is_sorted", "error"))
        return segment_counts(table.sort_by("first_row"))


@dataclass(frozen=True, eq=False, slots=True)
class _Round:
    """A range of partitions that are built in one round."""

    counted: _CountedSegments
    first: int
    end: int
    segments: int
    cost: int

    @property
    def bins(self) -> int:
        """Approximate number of bins in which the segments are scanned."""
        return count_bins(self.segments, self.cost)

    def collect_published_rows(self, _settings: BuildSettings) -> list[SegmentReport]:
        """Return no rows, because the next run builds all segments again."""
        return []

    def stage(
        self, workers: Workers, settings: BuildSettings, *, fail_fast: bool
    ) -> list[StagedSegment]:
        """Scan the segments of the round that are not rejected."""
        spark, source = spark_workers(workers), self.counted.rows.source
        partitions = self.counted.partitions.slice(self.first, self.end - self.first)
        segments, _ = split_rejected(source, self.counted.fetch(partitions))
        units = (SHARES - COUNT_SHARES) * self.segments // self.counted.count
        if pc.all(self.counted.partitions["is_sorted"]).as_py():
            counted = CountedInput(source, self.counted.rows.groups, segments, is_sorted=True)
            bins = list(pack_bins(counted, segments, self.bins))
            return stage_tasks(
                spark,
                bins,
                partial(stage_bin, source),
                settings,
                fail_fast=fail_fast,
                sizes=[segment_bin.size_bytes for segment_bin in bins],
                description=f"scan {len(segments):,} segments",
                units=units,
            )
        staged: list[StagedSegment] = []
        limits = spark.limits
        max_segments = min(
            limits.result_bytes // _STAGED_BYTES, limits.work_bytes // _COUNTED_BYTES
        )
        for start in range(0, len(segments), max(max_segments, 1)):
            job_segments = segments[start : start + max(max_segments, 1)]
            items = units * len(job_segments) // len(segments)
            staged += self._stage_unsorted(
                spark, job_segments, settings, fail_fast=fail_fast, items=items
            )
            if fail_fast and failed_rows(staged):
                break
        return staged

    def _stage_unsorted(
        self,
        workers: SparkWorkers,
        segments: Sequence[SegmentCount],
        settings: BuildSettings,
        *,
        fail_fast: bool,
        items: int,
    ) -> list[StagedSegment]:
        """Let Spark sort the rows of segments, and stage the segments."""
        source = self.counted.rows.source
        staging = partial(
            stage_rows,
            source=source,
            settings=replace(settings, shares_staged=True),
            fail_fast=fail_fast,
        )
        sizes = [segment.read_bytes(source.form) for segment in segments]
        tasks = count_bins(len(sizes), sum(sizes) + COST_BYTES * len(sizes))
        topics, partitions, bases = zip(*(segment.key for segment in segments), strict=True)
        counts = [segment.row_count for segment in segments]
        bins = pa.array(balance(sizes, tasks, overhead=COST_BYTES), pa.int32())
        segment_frame = workers.distribute(
            pa.table(
                [topics, partitions, bases, counts, bins], names=[*KEY_COLUMNS, ROW_COUNT, BIN]
            )
        )
        ordered = (
            self._unsorted_rows(workers, segments)
            .join(F.broadcast(segment_frame), list(KEY_COLUMNS))
            .repartitionById(tasks, BIN)
            .sortWithinPartitions(*KEY_COLUMNS, POSITION)
        )
        staged = ordered.mapInArrow(workers.task(staging), spark_schema(RESULT_SCHEMA))
        name = f"scan {len(segments):,} segments"
        with (
            workers.jobs.job(name, items=items, stages=_STAGES),
            _bounded_batches(workers.session),
        ):
            staged_segments = list(unpack_rows(workers.collect(staged).to_batches()))
        if not (fail_fast and failed_rows(staged_segments)):
            check_results(len(staged_segments), len(segments))
        return staged_segments

    def _unsorted_rows(self, workers: SparkWorkers, segments: Sequence[SegmentCount]) -> DataFrame:
        rows = self.counted.rows
        if rows.frame is not None:
            return rows.frame
        # If other jobs read some of the segments, tasks read only row groups with requested
        # segments.
        is_part = self.segments < self.counted.count or len(segments) < self.segments
        segment_keys = frozenset(segment.key for segment in segments) if is_part else None
        read = workers.task(partial(read_rows, source=rows.source, segment_keys=segment_keys))
        groups = workers.frame(rows.groups, [each.size_bytes for each in rows.groups])
        return groups.mapInArrow(read, spark_schema(_row_schema(rows.source)))


def read_rows(
    batches: Iterator[pa.RecordBatch],
    *,
    source: ParquetInput,
    segment_keys: frozenset[SegmentKey] | None = None,
) -> Iterator[pa.RecordBatch]:
    """Read the row groups of one bin that have rows of requested segments; runs in a Spark task.

    The other row groups are detected by their key columns and positions. Without `segment_keys`,
    all row groups are read.
    """
    schema = _row_schema(source)
    for group in read_tasks(batches):
        if segment_keys is None or _has_segment(group, source, segment_keys):
            for rows in read_all_columns(source, group.group):
                yield rows.cast(schema)


def _has_segment(
    group: NumberedGroup, source: ParquetInput, segment_keys: frozenset[SegmentKey]
) -> bool:
    for parts in count_batches(group, source):
        keys = map(SegmentKey, *(parts[name].to_pylist() for name in KEY_COLUMNS))
        if not segment_keys.isdisjoint(keys):
            return True
    return False


def stage_rows(
    batches: Iterator[pa.RecordBatch],
    *,
    source: ParquetInput,
    settings: BuildSettings,
    fail_fast: bool,
) -> Iterator[pa.RecordBatch]:
    """Stage segments from the sorted rows of one bin; runs in a Spark task.

    With `fail_fast`, no segment is staged after a failed segment.
    """
    schema = source.schema.append(pa.field(ROW_COUNT, pa.int64()))
    canonical = (batch.select(schema.names).cast(schema) for batch in batches)
    staged_segments: list[StagedSegment] = []
    for staged in stage_stream(canonical, source, settings, attempt_id=current_attempt_id()):
        staged_segments.append(staged)
        if fail_fast and staged.report.status == FAILED:
            break
    yield packed_row(staged_segments)


def _row_schema(source: ParquetInput) -> pa.Schema:
    """Return the schema of an input with types that Spark supports."""
    return pa.schema(
        [
            pa.field(column.name, pa.binary()) if column.name == BATCH else column
            for column in source.schema
        ]
    )


@contextmanager
def _bounded_batches(session: SparkSession) -> Iterator[None]:
    """While the context is open, limit the bytes of record batches that Spark creates from rows."""
    before = session.conf.get(_BYTES_SETTING)
    session.conf.set(_BYTES_SETTING, str(_BATCH_BYTES))
    try:
        yield
    finally:
        session.conf.set(_BYTES_SETTING, str(before))


_NAME = "DataFrame"
#: The function that runs the command ``build`` on Spark.
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
        metadata of the batch, as in a Parquet input. Other columns are ignored. The frame is read
        twice, or more often for many segments, so persist an expensive frame.
    output : path
        Folder for a folder of files per partition: a URI, or a local path visible to executors.
    what : list of str, optional
        The files to build: ``index``, ``timeindex``, ``txnindex``, ``snapshot``, ``epochs``. By
        default all, or ``index`` and ``timeindex`` if the columns for the other files are missing.
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
    arguments = dict(locals())
    del arguments["frame"]
    request = BuildRequest.build({**arguments, "inputs": (_NAME,), "format": InputFormat.PARQUET})
    source = input_from_schemas(_NAME, (), [arrow_schema(frame.schema)])
    columns = [F.col(f"`{name}`").alias(name) for name in source.columns]
    build_table = partial(build_rows, frame=frame.select(*columns))
    report = ReportRows(FILE_SCHEMA)
    engine = _SessionEngine(frame.sparkSession)
    built = build_from_table(request, source, engine, SILENT, report, build_table)
    return replace(built, rows=report.to_table())


@dataclass(frozen=True, slots=True)
class _SessionEngine:
    """An engine that uses an existing Spark session."""

    session: SparkSession
    on_spark = True
    threads = None

    @contextmanager
    def start(
        self,
        command: str,  # noqa: ARG002, of `Engine.start`
        *,
        after_failure: str,
        outputs: Sequence[str] = (),
        **_other_parameters: object,
    ) -> Iterator[SparkWorkers]:
        try:
            ship_package(self.session)
            with session_workers(self.session, outputs=outputs) as workers:
                yield workers
        except (PySparkException, Py4JError) as error:
            raise job_failure(error, after_failure) from error
