"""Building from Parquet on Spark: tasks read the row groups of their segments themselves.

One job counts the rows of each segment, row group by row group; one stages segments, in parallel
whatever their partition; and one folds and publishes partitions, as from logs. Spark moves rows
only where a task would read much more than it needs: those of segments that are too large to be
sorted in a task, or that are spread thinly over the input, are shuffled and sorted. Files are read
by our own tasks in any case, from any store, with the credentials that each process finds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession

from kafka_index.build import BuildSettings
from kafka_index.build.parquet import (
    DEFAULT_LIMITS,
    SHARES,
    check_settings,
    split_refused,
    stage_bin,
    stage_stream,
)
from kafka_index.build.parquet_input import (
    ROW_COUNT,
    ParquetInput,
    RowGroup,
)
from kafka_index.build.parquet_plan import (
    GatherLimits,
    can_order,
    list_row_groups,
    pack,
)
from kafka_index.build.report import FAILED, REPORT_SCHEMA, has_failed, report_table
from kafka_index.build.segment_counts import SegmentCount
from kafka_index.build.staged_segment import StagedSegment
from kafka_index.execution.tasks import BIN, balance
from kafka_index.spark.build import publish_partitions
from kafka_index.spark.jobs import Jobs
from kafka_index.spark.parquet_counts import count_segments
from kafka_index.spark.parquet_shuffle import shuffled_rows
from kafka_index.spark.report_rows import collect_report, staged_batches
from kafka_index.spark.shared_target import SharedTarget
from kafka_index.spark.staged_rows import STAGED_SCHEMA, plan_publishing
from kafka_index.spark.tasks import current_attempt_id, spark_schema, task
from kafka_index.spark.workers import read_works, work_rows

# How far a build is after its first job.
_COUNT_SHARES = 10
# Rows are read, and sorted; what needs no shuffle is staged beside the second.
_SHUFFLE_STAGES = 2
# A bin that reads so many times the rows of its segments, in so many row groups, is shuffled.
_MAX_READ_RATIO = 16
_MIN_SHUFFLED_GROUPS = 16
# Raw batches reach megabytes each, so rows alone do not bound a record batch.
_BYTES_SETTING = "spark.sql.execution.arrow.maxBytesPerBatch"
_BATCH_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class _BinWork:
    """Segments that are read together, and the row groups that hold them."""

    segments: Sequence[SegmentCount]
    groups: Mapping[int, RowGroup]


def build_parquet(
    session: SparkSession,
    source: ParquetInput,
    settings: BuildSettings,
    *,
    bins: int,
    fail_fast: bool = False,
    limits: GatherLimits = DEFAULT_LIMITS,
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
        counts = count_segments(session, source, groups, bins=bins)
    known, refused = split_refused(source, counts)
    tables = [report_table(refused)]
    if known and not (fail_fast and refused):
        build = _Build(session, source, groups, settings, bins, fail_fast, run, target)
        tables.append(build.build(known, *_split_known(source, groups, known, limits, bins)))
    report = pa.concat_tables(tables)
    # The logs have no files: their path is the input.
    place = report.schema.get_field_index("log_path")
    paths = pa.repeat(pa.scalar(source.path), report.num_rows)
    return report.set_column(place, REPORT_SCHEMA.field("log_path"), paths)


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
            yield from stage_bin(
                source, work.groups, work.segments, settings, attempt_id=attempt_id
            )

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


def _split_known(
    source: ParquetInput,
    groups: Sequence[RowGroup],
    segments: Sequence[SegmentCount],
    limits: GatherLimits,
    bins: int,
) -> tuple[list[_BinWork], list[SegmentCount]]:
    """Separate the segments that tasks read themselves, in bins, from those to shuffle."""
    shuffled = [each for each in segments if not can_order(each, source.form, limits)]
    runnable = [each for each in segments if can_order(each, source.form, limits)]
    read = []
    for work in pack(runnable, source.form, limits, bins):
        numbers = sorted({number for segment in work for number in segment.row_groups})
        rows = sum(segment.row_count for segment in work)
        is_thin = sum(groups[number].rows for number in numbers) > _MAX_READ_RATIO * rows
        if is_thin and len(numbers) >= _MIN_SHUFFLED_GROUPS:
            shuffled += work
        else:
            read.append(_BinWork(work, {number: groups[number] for number in numbers}))
    return read, shuffled


@dataclass(frozen=True, slots=True)
class _Build:
    """The jobs that stage and publish."""

    session: SparkSession
    source: ParquetInput
    groups: Sequence[RowGroup]
    settings: BuildSettings
    bins: int
    fail_fast: bool
    jobs: Jobs
    target: SharedTarget | None

    def build(
        self,
        known: Sequence[SegmentCount],
        read: Sequence[_BinWork],
        shuffled: Sequence[SegmentCount],
    ) -> pa.Table:
        """Return the report of the segments that are known, those to read and to shuffle."""
        name = f"scan {len(known):,} segments"
        stages = _SHUFFLE_STAGES if shuffled else 1
        with (
            self.jobs.job(name, items=SHARES - _COUNT_SHARES, stages=stages),
            _bounded_batches(self.session),
        ):
            settings = replace(self.settings, shares_staged=True)
            staged = self._staged(settings, read, shuffled).toArrow()
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

    def _staged(
        self,
        settings: BuildSettings,
        read: Sequence[_BinWork],
        shuffled: Sequence[SegmentCount],
    ) -> DataFrame:
        frames = []
        if read:
            tasks = min(self.bins, len(read))
            weights = [sum(segment.row_count for segment in work.segments) for work in read]
            works = work_rows(self.session, read, balance(weights, tasks))
            frames.append((works.repartitionById(tasks, BIN), stage_work))
        if shuffled:
            tasks = min(self.bins, len(shuffled))
            rows = shuffled_rows(
                self.session, self.source, self.groups, shuffled, tasks, readers=self.bins
            )
            frames.append((rows, stage_rows))
        staged = []
        for rows, function in frames:
            stage = partial(
                function, source=self.source, settings=settings, fail_fast=self.fail_fast
            )
            staged.append(rows.mapInArrow(task(stage, self.target), spark_schema(STAGED_SCHEMA)))
        return staged[0] if len(staged) == 1 else staged[0].unionAll(staged[1])


@contextmanager
def _bounded_batches(session: SparkSession) -> Iterator[None]:
    """Bound the bytes of the record batches that Spark makes of rows."""
    before = session.conf.get(_BYTES_SETTING)
    session.conf.set(_BYTES_SETTING, str(_BATCH_BYTES))
    try:
        yield
    finally:
        session.conf.set(_BYTES_SETTING, str(before))
