"""Builds on either engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import pyarrow as pa

from kafka_index.build import BuildSettings, run_local
from kafka_index.build.local import BuildListener
from kafka_index.build.parquet import build_parquet
from kafka_index.build.parquet_input import ParquetInput
from kafka_index.build.plan import plan_waves
from kafka_index.build.report import SegmentReport
from kafka_index.engines import Engine, Listener
from kafka_index.engines.session import open_session, parallelism
from kafka_index.storage import SegmentFile

_APP_NAME = "kafka-index build"
_AFTER_FAILURE = "finished segments are kept: run again to continue"
_BINS_PER_CORE = 4


class EngineListener(Listener, BuildListener, Protocol):
    """Follows an engine that builds."""

    def on_table(self, rows: pa.Table) -> None:
        """Add the rows of finished segments."""


def run_build(
    engine: Engine,
    segments: Sequence[SegmentFile],
    settings: BuildSettings,
    listener: EngineListener,
    *,
    fail_fast: bool,
) -> None:
    """Build the indexes of the segments of logs."""
    if not engine.on_spark:
        listener.on_begin()
        run_local(
            segments, settings, threads=engine.threads, listener=listener, fail_fast=fail_fast
        )
        return
    from kafka_index.spark.build import build_waves
    from kafka_index.spark.progress import watch_progress

    with open_session(engine.master, _APP_NAME, after_failure=_AFTER_FAILURE) as session:
        listener.on_begin()
        cores = parallelism(session)
        waves = plan_waves(segments, cores=cores)
        finished = 0

        def on_share(done: int, total: int) -> None:
            listener.on_share(finished * total + done, len(waves) * total)

        with watch_progress(session, on_share):
            for rows in build_waves(session, waves, settings, cores=cores, fail_fast=fail_fast):
                finished += 1
                listener.on_table(rows)


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

        def on_report(row: SegmentReport) -> None:
            listener.on_scanned(row)
            listener.on_report(row)

        listener.on_begin()
        build_parquet(
            source, settings, threads=engine.threads, on_report=on_report, fail_fast=fail_fast
        )
        return
    from kafka_index.spark.parquet import build_parquet as build_parquet_on_spark
    from kafka_index.spark.progress import watch_progress

    with open_session(engine.master, _APP_NAME, after_failure=_AFTER_FAILURE) as session:
        listener.on_begin()
        bins = _BINS_PER_CORE * parallelism(session)
        with watch_progress(session, listener.on_share):
            rows = build_parquet_on_spark(session, source, settings, bins=bins, fail_fast=fail_fast)
    listener.on_table(rows)
