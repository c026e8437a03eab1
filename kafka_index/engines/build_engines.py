"""The engines of a build, behind one interface: threads of this process, or Spark."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import pyarrow as pa

from kafka_index.build import BuildSettings, run_local
from kafka_index.build.parquet import build_parquet
from kafka_index.build.parquet_input import ParquetInput
from kafka_index.build.plan import plan_waves
from kafka_index.build.report import SegmentReport
from kafka_index.engines.session import open_session, parallelism
from kafka_index.storage import SegmentFile

_APP_NAME = "kafka-index build"
_AFTER_FAILURE = "finished segments are kept: run again to continue"
_BINS_PER_CORE = 4


class Listener(Protocol):
    """Follows an engine at work."""

    def on_begin(self) -> None:
        """Record that the engine has started and the work begins."""

    def on_scanned(self, row: SegmentReport) -> None:
        """Count a segment that was scanned, or kept as it is; called from any thread."""

    def on_report(self, row: SegmentReport) -> None:
        """Add the row of a finished segment; called from any thread."""

    def on_table(self, rows: pa.Table) -> None:
        """Add the rows of finished segments."""

    def on_share(self, done: int, total: int) -> None:
        """Show how many of the equal shares of the work are done; called from any thread."""


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
    """Threads of this process: the kernels release the interpreter's lock.

    Parameters
    ----------
    threads : int
        Number of threads.
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
    """A Spark session: that of ``spark-submit``, or one that is started here.

    Parameters
    ----------
    master : str, optional
        Spark master; without it that of ``spark-submit``, else this machine's cores.
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
