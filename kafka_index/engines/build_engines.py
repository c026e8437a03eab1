"""The two engines of a build behind one interface: threads of this process, and Spark."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import pyarrow as pa

from kafka_index.build import BuildSettings, run_local
from kafka_index.build.parquet import build_parquet
from kafka_index.build.parquet_schema import ParquetInput
from kafka_index.build.plan import plan_waves
from kafka_index.build.report import SegmentReport
from kafka_index.engines.session import open_session, parallelism
from kafka_index.storage import SegmentFile

_APP_NAME = "kafka-index build"
_AFTER_FAILURE = "segments that are finished stay finished: run again to go on"
_BINS_PER_CORE = 4


class Listener(Protocol):
    """Whom an engine tells what it has done."""

    def on_begin(self) -> None:
        """Take that the work begins now: what the engine itself needed to start is over."""

    def on_scanned(self, row: SegmentReport) -> None:
        """Take that a segment has been scanned, or was kept; called from any thread."""

    def on_report(self, row: SegmentReport) -> None:
        """Take the final row of a segment; called from any thread."""

    def on_table(self, rows: pa.Table) -> None:
        """Take rows of finished segments."""

    def on_share(self, done: int, total: int) -> None:
        """Take how many of the equal parts of the work are done; called from any thread."""


class Engine(Protocol):
    """Runs a build; nothing is started before a build method is called."""

    def build_logs(
        self,
        segments: Sequence[SegmentFile],
        settings: BuildSettings,
        listener: Listener,
        *,
        fail_fast: bool,
    ) -> None:
        """Build the indexes of these segments."""

    def build_parquet(
        self, source: ParquetInput, settings: BuildSettings, listener: Listener, *, fail_fast: bool
    ) -> None:
        """Build the indexes of the segments of a Parquet input."""


class LocalEngine:
    """Threads of this process: the kernels let go of the interpreter's lock.

    Parameters
    ----------
    threads : int
        How many.
    """

    def __init__(self, threads: int) -> None:
        self._threads = threads

    def build_logs(
        self,
        segments: Sequence[SegmentFile],
        settings: BuildSettings,
        listener: Listener,
        *,
        fail_fast: bool,
    ) -> None:
        """Build the indexes of these segments."""
        listener.on_begin()
        run_local(segments, settings, threads=self._threads, listener=listener, fail_fast=fail_fast)

    def build_parquet(
        self, source: ParquetInput, settings: BuildSettings, listener: Listener, *, fail_fast: bool
    ) -> None:
        """Build the indexes of the segments of a Parquet input."""
        listener.on_begin()

        def on_report(row: SegmentReport) -> None:
            listener.on_scanned(row)
            listener.on_report(row)

        build_parquet(
            source, settings, threads=self._threads, on_report=on_report, fail_fast=fail_fast
        )


class SparkEngine:
    """A Spark session: the one of ``spark-submit``, or one that is started here.

    Parameters
    ----------
    master : str, optional
        Spark's master; without it what ``spark-submit`` says, else this machine's cores.
    """

    def __init__(self, master: str | None) -> None:
        self._master = master

    def build_logs(
        self,
        segments: Sequence[SegmentFile],
        settings: BuildSettings,
        listener: Listener,
        *,
        fail_fast: bool,
    ) -> None:
        """Build the indexes of these segments."""
        from kafka_index.spark.build import build_waves
        from kafka_index.spark.progress import watch_progress

        with open_session(self._master, _APP_NAME, after_failure=_AFTER_FAILURE) as session:
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

    def build_parquet(
        self, source: ParquetInput, settings: BuildSettings, listener: Listener, *, fail_fast: bool
    ) -> None:
        """Build the indexes of the segments of a Parquet input."""
        from kafka_index.spark.parquet import build_parquet as build_parquet_on_spark
        from kafka_index.spark.progress import watch_progress

        with open_session(self._master, _APP_NAME, after_failure=_AFTER_FAILURE) as session:
            listener.on_begin()
            bins = _BINS_PER_CORE * parallelism(session)
            with watch_progress(session, listener.on_share):
                rows = build_parquet_on_spark(
                    session, source, settings, bins=bins, fail_fast=fail_fast
                )
        listener.on_table(rows)
