"""Verifying on Spark: a row per segment goes out, the rows of the report come back.

A task verifies whole partitions, one after the other. A run is split into waves of partitions, so
that the driver holds the rows of a wave at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, groupby

import pyarrow as pa
from pyspark.sql import SparkSession

from kafka_index.build.plan import WORK_SCHEMA, count_bins, partition_of, plan_partitions, read_plan
from kafka_index.spark.jobs import Jobs
from kafka_index.spark.tasks import current_attempt_id, spark_schema, task
from kafka_index.storage.segment_table import SegmentTable
from kafka_index.tasks import BIN
from kafka_index.verification import VERIFY_SCHEMA, VerifySettings, findings_table
from kafka_index.verification.local import verify_partitions


def verify_waves(
    session: SparkSession,
    waves: Sequence[SegmentTable],
    settings: VerifySettings,
    *,
    cores: int,
    jobs: Jobs,
) -> Iterator[pa.Table]:
    """Verify wave after wave, and yield the rows of each.

    Parameters
    ----------
    session : SparkSession
        Classic or Connect.
    waves : sequence of SegmentTable
        Whole partitions each.
    settings : VerifySettings
        How to verify.
    cores : int
        Tasks that run at a time.
    jobs : Jobs
        Names and follows the jobs.
    """
    for wave in waves:
        bins = count_bins(wave, cores)
        work = session.createDataFrame(plan_partitions(wave, bins=bins))
        rows = (
            work.select(*WORK_SCHEMA.names)
            .repartitionById(bins, BIN)
            .mapInArrow(task(partial(verify_bin, settings=settings)), spark_schema(VERIFY_SCHEMA))
        )
        with jobs.job(f"verify {len(wave):,} segments", items=len(wave)):
            found = rows.toArrow()
        yield found.cast(VERIFY_SCHEMA)


def verify_bin(
    batches: Iterable[pa.RecordBatch], *, settings: VerifySettings
) -> Iterator[pa.RecordBatch]:
    """Verify the partitions of one bin: the function that a task runs."""
    segments = sorted(
        chain.from_iterable(map(read_plan, batches)),
        key=lambda segment: (partition_of(segment), segment.base_offset),
    )
    partitions = (list(members) for _, members in groupby(segments, key=partition_of))
    for found in verify_partitions(partitions, settings, attempt_id=current_attempt_id()):
        yield from findings_table(found.findings).to_batches()
