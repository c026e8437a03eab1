"""Building from Parquet on Spark: tasks read the row groups of their segments themselves.

One job counts the rows of each segment, row group by row group; one stages segments, in parallel
whatever their partition; and one folds and publishes partitions, as from logs. Where the rows of
the input are in no order, Spark sorts them. Files are read by our own tasks in any case, from any
store, with the credentials that each process finds.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from kafka_index.build import BuildSettings
from kafka_index.build.parquet import SHARES, check_settings, split_refused, stage_bin, stage_stream
from kafka_index.build.parquet_columns import BATCH, KEY_COLUMNS, POSITION
from kafka_index.build.parquet_input import ROW_COUNT, ParquetInput
from kafka_index.build.parquet_order import (
    CountedInput,
    SegmentCount,
    SegmentPart,
    count_row_group,
    join_counts,
    list_row_groups,
    pack,
    read_row_groups,
)
from kafka_index.build.report import FAILED, REPORT_SCHEMA, has_failed, report_table
from kafka_index.build.staged_segment import StagedSegment
from kafka_index.errors import InputError
from kafka_index.execution.tasks import BIN, balance
from kafka_index.spark.build import publish_partitions
from kafka_index.spark.jobs import Jobs
from kafka_index.spark.report_rows import collect_report, staged_batches
from kafka_index.spark.shared_target import SharedTarget
from kafka_index.spark.staged_rows import STAGED_SCHEMA, plan_publishing
from kafka_index.spark.tasks import current_attempt_id, spark_schema, task
from kafka_index.spark.workers import read_works, work_rows

# How far a build is after its first job.
_COUNT_SHARES = 10
# Rows are read, and sorted.
_SORT_STAGES = 2
# Raw batches reach megabytes each, so rows alone do not bound a record batch.
_BYTES_SETTING = "spark.sql.execution.arrow.maxBytesPerBatch"
_BATCH_BYTES = 16 << 20
# A row per row group: its number, and what `count_row_group` found or why it cannot, pickled.
_GROUP, _COUNTED = "row_group", "counted"
_COUNTED_SCHEMA = pa.schema(
    [pa.field(_GROUP, pa.int64(), nullable=False), pa.field(_COUNTED, pa.binary(), nullable=False)]
)


def build_parquet(
    session: SparkSession,
    source: ParquetInput,
    settings: BuildSettings,
    *,
    bins: int,
    fail_fast: bool = False,
    jobs: Jobs | None = None,
    target: SharedTarget | None = None,
) -> pa.Table:
    """Build from a Parquet input and return the whole report.

    A segment is published only when all the rows that were counted have been read. Executors read
    the files under the paths that the driver knows. A target root is needed, and every segment is
    built, whatever exists. The jobs follow the build, in `SHARES`; `fail_fast` and `target` are as
    for `kafka_index.spark.build.stage_logs`. Raises the errors of
    `kafka_index.build.parquet.build_parquet`.
    """
    check_settings(source, settings)
    run = Jobs(session) if jobs is None else jobs
    groups = list_row_groups(source)
    with run.job(f"count the batches of {len(groups):,} row groups", items=_COUNT_SHARES):
        works = list(enumerate(groups))
        weights = [group.rows for group in groups]
        count = partial(count_groups, source=source)
        rows = _distributed(session, works, weights, bins, count, _COUNTED_SCHEMA)
        counted = join_counts(source, groups, _read_counts(rows.toArrow()) if groups else [])
    known, refused = split_refused(source, counted.segments)
    tables = [report_table(refused)]
    if known and not (fail_fast and refused):
        build = _Build(session, counted, settings, bins, fail_fast, run, target)
        tables.append(build.build(known))
    report = pa.concat_tables(tables)
    # The logs have no files: their path is the input.
    place = report.schema.get_field_index("log_path")
    paths = pa.repeat(pa.scalar(source.path), report.num_rows)
    return report.set_column(place, REPORT_SCHEMA.field("log_path"), paths)


def count_groups(
    batches: Iterator[pa.RecordBatch], *, source: ParquetInput
) -> Iterator[pa.RecordBatch]:
    """Count the row groups of one bin: a task's function."""
    for number, group in read_works(batches):
        counted: list[SegmentPart] | InputError
        try:
            counted = count_row_group(source, group)
        except InputError as error:
            counted = error
        yield pa.record_batch([[number], [pickle.dumps(counted)]], schema=_COUNTED_SCHEMA)


def _read_counts(rows: pa.Table) -> Iterator[list[SegmentPart]]:
    for packed in rows.sort_by(_GROUP).column(_COUNTED).to_pylist():
        parts = pickle.loads(packed)  # noqa: S301, written by our own tasks
        if isinstance(parts, InputError):
            raise parts
        yield parts


def read_rows(
    batches: Iterator[pa.RecordBatch], *, source: ParquetInput
) -> Iterator[pa.RecordBatch]:
    """Read the row groups of one bin: a task's function."""
    schema = _row_schema(source)
    for rows in read_row_groups(source, read_works(batches)):
        yield rows.cast(schema)


def _row_schema(source: ParquetInput) -> pa.Schema:
    """Return the columns of an input as Spark has them."""
    return pa.schema(
        [pa.field(each.name, pa.binary()) if each.name == BATCH else each for each in source.schema]
    )


def stage_work(
    batches: Iterator[pa.RecordBatch],
    *,
    source: ParquetInput,
    settings: BuildSettings,
    fail_fast: bool,
) -> Iterator[pa.RecordBatch]:
    """Stage the segments of one bin: a task's function."""

    def staged() -> Iterator[StagedSegment]:
        for work in read_works(batches):
            attempt_id = current_attempt_id()
            yield from stage_bin(source, work, settings, attempt_id=attempt_id)

    return staged_batches(staged(), fail_fast=fail_fast)


def stage_rows(
    batches: Iterator[pa.RecordBatch],
    *,
    source: ParquetInput,
    settings: BuildSettings,
    fail_fast: bool,
) -> Iterator[pa.RecordBatch]:
    """Do the work of `stage_work` from the rows of the segments of a bin, sorted."""
    schema = source.schema.append(pa.field(ROW_COUNT, pa.int64()))
    canonical = (batch.select(schema.names).cast(schema) for batch in batches)
    staged = stage_stream(canonical, source, settings, attempt_id=current_attempt_id())
    return staged_batches(staged, fail_fast=fail_fast)


@dataclass(frozen=True, slots=True)
class _Build:
    """The jobs that stage and publish."""

    session: SparkSession
    counted: CountedInput
    settings: BuildSettings
    bins: int
    fail_fast: bool
    jobs: Jobs
    target: SharedTarget | None

    def build(self, known: Sequence[SegmentCount]) -> pa.Table:
        """Return the report of the segments that a broker can have."""
        name = f"scan {len(known):,} segments"
        stages = 1 if self.counted.is_sorted else _SORT_STAGES
        with (
            self.jobs.job(name, items=SHARES - _COUNT_SHARES, stages=stages),
            _bounded_batches(self.session),
        ):
            settings = replace(self.settings, shares_staged=True)
            staged = self._staged(settings, known).toArrow()
        found = staged.cast(STAGED_SCHEMA)
        if self.fail_fast and has_failed(found):
            return found.filter(pc.field("status") == FAILED).select(REPORT_SCHEMA.names)
        names = [(segment.topic, segment.partition) for segment in known]
        topics, partitions = zip(*names, strict=True)
        plan = pa.table({"topic": topics, "partition": pa.array(partitions, pa.int32())})
        verb = "fold" if settings.needs_state else "publish"
        with self.jobs.job(f"{verb} {len(set(names)):,} partitions"):
            rows = self.session.createDataFrame(plan_publishing(found, plan, bins=self.bins))
            return collect_report(publish_partitions(rows, settings, self.bins, target=self.target))

    def _staged(self, settings: BuildSettings, known: Sequence[SegmentCount]) -> DataFrame:
        source = self.counted.source
        staging = partial(
            stage_work if self.counted.is_sorted else stage_rows,
            source=source,
            settings=settings,
            fail_fast=self.fail_fast,
        )
        if not self.counted.is_sorted:
            stage = task(staging, self.target)
            return self._sorted(known).mapInArrow(stage, spark_schema(STAGED_SCHEMA))
        works = list(pack(self.counted, known, self.bins))
        weights = [sum(segment.row_count for segment in work.segments) for work in works]
        return _distributed(
            self.session, works, weights, self.bins, staging, STAGED_SCHEMA, self.target
        )

    def _sorted(self, known: Sequence[SegmentCount]) -> DataFrame:
        """Return the rows of segments with their number, sorted, a partition of the frame a bin."""
        groups = self.counted.groups
        weights = [group.rows for group in groups]
        function = partial(read_rows, source=self.counted.source)
        schema = _row_schema(self.counted.source)
        rows = _distributed(self.session, groups, weights, self.bins, function, schema)
        tasks = min(self.bins, len(known))
        topics, partitions, bases = zip(*(each.key for each in known), strict=True)
        counts = [each.row_count for each in known]
        segments = self.session.createDataFrame(
            pa.table(
                [topics, partitions, bases, counts, pa.array(balance(counts, tasks), pa.int32())],
                names=[*KEY_COLUMNS, ROW_COUNT, BIN],
            )
        )
        return (
            rows.join(F.broadcast(segments), list(KEY_COLUMNS))
            .repartitionById(tasks, BIN)
            .sortWithinPartitions(*KEY_COLUMNS, POSITION)
        )


@contextmanager
def _bounded_batches(session: SparkSession) -> Iterator[None]:
    """Bound the bytes of the record batches that Spark makes of rows."""
    before = session.conf.get(_BYTES_SETTING)
    session.conf.set(_BYTES_SETTING, str(_BATCH_BYTES))
    try:
        yield
    finally:
        session.conf.set(_BYTES_SETTING, str(before))


def _distributed(
    session: SparkSession,
    works: Sequence[object],
    weights: Sequence[int],
    bins: int,
    function: partial[Iterator[pa.RecordBatch]],
    schema: pa.Schema,
    target: SharedTarget | None = None,
) -> DataFrame:
    """Return the rows of `schema` that a function makes of pieces of work, spread over tasks."""
    tasks = max(min(bins, len(works)), 1)
    rows = work_rows(session, works, balance(weights, tasks))
    return rows.repartitionById(tasks, BIN).mapInArrow(task(function, target), spark_schema(schema))
