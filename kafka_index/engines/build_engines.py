"""Builds on either engine."""

from __future__ import annotations

import os
from typing import Protocol

import pyarrow as pa

from kafka_index.build import BuildSettings, run_local
from kafka_index.build.local import BuildListener
from kafka_index.build.parquet import build_parquet
from kafka_index.build.parquet_input import ParquetInput
from kafka_index.build.partition_record import UnchangedPartitions
from kafka_index.build.plan import plan_waves
from kafka_index.engines import Engine, Listener, master_of, threads_of
from kafka_index.spark.session import open_session, prepare_executors
from kafka_index.storage.segment_table import SegmentTable

_APP_NAME = "kafka-index build"
_AFTER_FAILURE = "finished segments are kept: run again to continue"
_BINS_PER_CORE = 4


class EngineListener(Listener, BuildListener, Protocol):
    """Follows an engine that builds."""

    def on_table(self, rows: pa.Table) -> None:
        """Add the rows of finished segments."""

    def on_unchanged(self, rows: pa.Table) -> None:
        """Add the rows of segments that were looked at, and are right as they are."""


def run_build(
    engine: Engine,
    segments: SegmentTable,
    settings: BuildSettings,
    listener: EngineListener,
    *,
    fail_fast: bool,
) -> None:
    """Build the indexes of the segments of logs."""
    segments = _keep_unchanged(segments, settings, listener)
    if not engine.on_spark or not segments:
        listener.on_begin()
        run_local(
            segments, settings, threads=threads_of(engine), listener=listener, fail_fast=fail_fast
        )
        return
    from kafka_index.spark.build import build_waves
    from kafka_index.spark.jobs import Jobs
    from kafka_index.spark.shared_target import shared_target

    directories = _target_directories(segments, settings)
    with (
        open_session(master_of(engine), _APP_NAME, after_failure=_AFTER_FAILURE) as session,
        shared_target(directories) as target,
        Jobs(session, items=len(segments), on_progress=listener.on_share) as jobs,
    ):
        cores = prepare_executors(
            session,
            jobs,
            target,
            inputs=[each.directory for each in segments.partitions],
            outputs=directories,
        )
        listener.on_begin()
        waves = plan_waves(segments, cores=cores)
        for rows in build_waves(
            session,
            waves,
            settings,
            cores=cores,
            fail_fast=fail_fast,
            jobs=jobs,
            target=target,
        ):
            listener.on_table(rows)


def _keep_unchanged(
    segments: SegmentTable, settings: BuildSettings, listener: EngineListener
) -> SegmentTable:
    """Report the partitions that are right as they are; return the segments of the others."""
    left = []
    for members, rows in UnchangedPartitions(settings).split(segments):
        if rows is None:
            left.append(members)
        else:
            listener.on_unchanged(rows)
    return SegmentTable(left)


def run_parquet_build(
    engine: Engine,
    source: ParquetInput,
    settings: BuildSettings,
    listener: EngineListener,
    *,
    fail_fast: bool,
) -> None:
    """Build the indexes of the segments of a Parquet input."""
    if not engine.on_spark:
        listener.on_begin()
        build_parquet(
            source, settings, threads=threads_of(engine), listener=listener, fail_fast=fail_fast
        )
        return
    from kafka_index.spark.jobs import Jobs
    from kafka_index.spark.parquet import SHARES
    from kafka_index.spark.parquet import build_parquet as build_parquet_on_spark
    from kafka_index.spark.shared_target import shared_target

    outputs = _target_directories(SegmentTable([]), settings)
    files = [file.path for file in source.files]
    with (
        open_session(master_of(engine), _APP_NAME, after_failure=_AFTER_FAILURE) as session,
        shared_target(outputs) as target,
    ):
        with Jobs(session) as jobs:
            cores = prepare_executors(session, jobs, target, inputs=files, outputs=outputs)
        bins = _BINS_PER_CORE * cores
        listener.on_begin()
        with Jobs(session, items=SHARES, on_progress=listener.on_share) as jobs:
            rows = build_parquet_on_spark(
                session,
                source,
                settings,
                bins=bins,
                fail_fast=fail_fast,
                jobs=jobs,
                target=target,
            )
    listener.on_table(rows)


def _target_directories(segments: SegmentTable, settings: BuildSettings) -> list[str]:
    """Return the folders that files go to: the output, or in place the data directories."""
    if settings.target_root is not None:
        return [settings.target_root]
    return sorted({os.path.dirname(each.directory) for each in segments.partitions})
