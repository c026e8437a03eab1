"""Building from logs on Spark: a work row per segment in, a report row per segment out.

A run is split into waves of whole partitions. A wave is two jobs: one scans the segments, in any
order, and one folds and publishes the partitions. Between them goes a row per segment; what the
scans wrote waits in files beside the target.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import chain

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession

from kafka_index.build import (
    WORK_SCHEMA,
    BuildSettings,
    plan_build,
    read_plan,
)
from kafka_index.build.plan import count_bins
from kafka_index.build.publish import publish_partitions as publish_staged
from kafka_index.build.report import (
    BUILT,
    FAILED,
    REPORT_SCHEMA,
    has_failed,
    report_table,
)
from kafka_index.build.scan import keep_segment, stage_segments
from kafka_index.execution.tasks import BIN
from kafka_index.spark.jobs import Jobs
from kafka_index.spark.report_rows import collect_report, report_batches, staged_batches
from kafka_index.spark.shared_target import SharedTarget
from kafka_index.spark.staged_rows import (
    PUBLISHING_SCHEMA,
    STAGED_SCHEMA,
    plan_publishing,
    read_staged,
    whole_partitions,
)
from kafka_index.spark.tasks import current_attempt_id, spark_schema, task
from kafka_index.storage.segment_table import SegmentTable

_WAVES_AT_A_TIME = 2


def stage_logs(
    work: DataFrame,
    settings: BuildSettings,
    bins: int,
    *,
    fail_fast: bool = False,
    target: SharedTarget | None = None,
) -> DataFrame:
    """Scan segments into scratch files, one task per bin.

    The work has a row of `WORK_SCHEMA` per segment; `bin` is 0..bins - 1. With `fail_fast`, a task
    stops after its first failed segment. Tasks that run beside it end by themselves, so that no
    report row is lost; segments that were not begun have none. Every task checks the target before
    it writes. Returns `STAGED_SCHEMA`, for `publish_partitions`; nothing runs before it is read,
    and reading it twice scans twice. A work row holds all that its segment needs. If the input of a
    task ends early, as it can when the job is cancelled, fewer segments are scanned and none is
    scanned wrongly.
    """
    function = partial(stage_bin, settings=settings, fail_fast=fail_fast)
    work = work.select(*WORK_SCHEMA.names)
    return work.repartitionById(bins, BIN).mapInArrow(
        task(function, target), spark_schema(STAGED_SCHEMA)
    )


def publish_partitions(
    staged: DataFrame, settings: BuildSettings, bins: int, *, target: SharedTarget | None = None
) -> DataFrame:
    """Fold partitions and publish their files, one task per bin; return the build report.

    The staged rows, of `PUBLISHING_SCHEMA`, are every segment of each partition, and their number.
    Nothing runs before the report is read. A partition with a missing row, as can be when the job
    is cancelled, is left alone.
    """
    staged = staged.select(*PUBLISHING_SCHEMA.names)
    function = partial(publish_bin, settings=settings)
    return staged.repartitionById(bins, BIN).mapInArrow(
        task(function, target), spark_schema(REPORT_SCHEMA)
    )


def build_waves(
    session: SparkSession,
    waves: Sequence[SegmentTable],
    settings: BuildSettings,
    *,
    cores: int,
    fail_fast: bool = False,
    jobs: Jobs | None = None,
    target: SharedTarget | None = None,
) -> Generator[pa.Table, None, None]:
    """Build wave after wave and yield the report of each, once its files are in place.

    Two waves are built at a time: the tasks of the second fill the cores that the end of the first,
    or the publishing of its partitions, leaves idle. With `fail_fast` it is one wave at a time, so
    that none is begun after a failure. A wave has whole partitions, as
    `kafka_index.build.plan.plan_waves` returns them; `cores` is the number of tasks that run at a
    time. A failure of a job, as PySpark or py4j raise it, or of a signal is raised once the reports
    of all that is in place have been yielded.
    """
    run = Jobs(session) if jobs is None else jobs

    # What the first jobs of the waves that are under way have found.
    staged_of: dict[int, pa.Table] = {}

    def build(number: int, wave: SegmentTable) -> pa.Table:
        bins = count_bins(wave, cores)
        plan = plan_build(wave, bins=bins)
        return build_logs(
            session,
            plan,
            settings,
            bins=bins,
            fail_fast=fail_fast,
            jobs=run,
            target=target,
            on_staged=partial(staged_of.__setitem__, number),
        )

    pool = ThreadPoolExecutor(1 if fail_fast else _WAVES_AT_A_TIME, thread_name_prefix="wave")
    futures = [pool.submit(build, number, wave) for number, wave in enumerate(waves)]
    error: BaseException | None = None
    done = 0
    try:
        for future in futures:
            error = future.exception()
            if error is not None:
                break
            staged_of.pop(done, None)
            done += 1
            rows = future.result()
            yield rows
            if fail_fast and has_failed(rows):
                break
    except GeneratorExit:
        raise
    except BaseException as stop:  # noqa: BLE001, because it is raised below
        error = stop
    finally:
        # After an interrupt, an error or a failure: no further wave begins, and what runs ends.
        running = [future for future in futures if not future.cancel() and not future.done()]
        if running:
            run.cancel()
        pool.shutdown()
    if error is not None:
        for number, future in enumerate(futures[done:], start=done):
            if not future.cancelled():
                failed = future.exception() is not None
                staged = staged_of.get(number)
                yield _rows_in_place(waves[number], staged, settings) if failed else future.result()
        raise error


def _rows_in_place(
    wave: SegmentTable, staged: pa.Table | None, settings: BuildSettings
) -> pa.Table:
    """Return the report of the segments of a failed wave whose files are in place."""
    if staged is None:
        return _kept_rows(wave, settings)
    sound = staged.filter(pc.field("status") != FAILED)
    return report_table([each.report for each in read_staged(sound) if each.is_published()])


def _kept_rows(wave: SegmentTable, settings: BuildSettings) -> pa.Table:
    """Return the report of the segments of a wave that are right as they are."""
    kept = [keep_segment(segment, settings) for segment in wave]
    rows = [each.report for each in kept if each is not None]
    if settings.force:
        # What was there before is not what was asked for.
        rows = [row for row in rows if row.status == BUILT]
    return report_table(rows)


def build_logs(
    session: SparkSession,
    plan: pa.Table,
    settings: BuildSettings,
    *,
    bins: int,
    fail_fast: bool = False,
    jobs: Jobs | None = None,
    target: SharedTarget | None = None,
    on_staged: Callable[[pa.Table], None] | None = None,
) -> pa.Table:
    """Build the segments of a plan, every one of each partition, and return the whole report.

    The plan has `WORK_SCHEMA`. `on_staged` is called with the rows of the scan, before anything is
    published; the other parameters are as for `stage_logs`.
    """
    run = Jobs(session) if jobs is None else jobs
    segments = f"{plan.num_rows:,} segments"
    work = session.createDataFrame(plan)
    settings = replace(settings, shares_staged=True)
    with run.job(f"scan {segments}", items=plan.num_rows):
        scanned = stage_logs(work, settings, bins, fail_fast=fail_fast, target=target)
        staged = scanned.toArrow().cast(STAGED_SCHEMA)
    if fail_fast and has_failed(staged):
        failed = staged.filter(pc.field("status") == FAILED)
        return failed.select(REPORT_SCHEMA.names)
    if on_staged is not None:
        on_staged(staged)
    publishing = plan_publishing(staged, plan, bins=bins)
    partitions = publishing.group_by(["topic", "partition"]).aggregate([]).num_rows
    verb = "fold" if settings.needs_state else "publish"
    with run.job(f"{verb} {partitions:,} partitions"):
        rows = session.createDataFrame(publishing)
        return collect_report(publish_partitions(rows, settings, bins, target=target))


def stage_bin(
    batches: Iterable[pa.RecordBatch], *, settings: BuildSettings, fail_fast: bool
) -> Iterator[pa.RecordBatch]:
    """Scan the segments of one bin: the function that a task of the first job runs."""
    segments = chain.from_iterable(map(read_plan, batches))
    staged = stage_segments(segments, settings, attempt_id=current_attempt_id())
    yield from staged_batches(staged, fail_fast=fail_fast)


def publish_bin(
    batches: Iterable[pa.RecordBatch], *, settings: BuildSettings
) -> Iterator[pa.RecordBatch]:
    """Publish the partitions of one bin: the function that a task of the second job runs."""
    canonical = (batch.cast(PUBLISHING_SCHEMA) for batch in batches)
    reports = publish_staged(whole_partitions(canonical), settings, attempt_id=current_attempt_id())
    yield from report_batches(reports, fail_fast=False)
