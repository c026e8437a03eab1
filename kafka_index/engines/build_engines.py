"""The two engines of a build behind one interface: threads of this process, and Spark."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import pyarrow as pa

from kafka_index.build import BuildSettings, plan_build, plan_waves, run_local
from kafka_index.build.parquet import build_parquet
from kafka_index.build.parquet_schema import ParquetInput
from kafka_index.build.report import SegmentReport, has_failed
from kafka_index.engines.session import open_session, parallelism
from kafka_index.storage import SegmentFile

_APP_NAME = "kafka-index build"
_AFTER_FAILURE = "segments that are finished stay finished: run again to go on"
_BINS_PER_CORE = 4
_BIN_BYTES = 1 << 30
_MOST_BINS = 20_000
# What a killed run loses at most: partitions are published when all of their wave is scanned.
_WAVE_BYTES_PER_CORE = 64 << 30
# Between waves of threads there is next to nothing.
_WAVE_BYTES_PER_THREAD = 4 << 30


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
        for wave in plan_waves(segments, wave_bytes=self._threads * _WAVE_BYTES_PER_THREAD):
            plan = plan_build(wave, bins=_bins(wave, self._threads))
            if not run_local(
                plan, settings, threads=self._threads, listener=listener, fail_fast=fail_fast
            ):
                break

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
        from kafka_index.spark.build import build_logs
        from kafka_index.spark.progress import watch_progress

        with open_session(self._master, _APP_NAME, after_failure=_AFTER_FAILURE) as session:
            listener.on_begin()
            cores = parallelism(session)
            waves = plan_waves(segments, wave_bytes=cores * _WAVE_BYTES_PER_CORE)
            for number, wave in enumerate(waves):
                bins = _bins(wave, cores)

                def on_share(done: int, total: int, number: int = number) -> None:
                    listener.on_share(number * total + done, len(waves) * total)

                with watch_progress(session, on_share):
                    rows = build_logs(
                        session,
                        plan_build(wave, bins=bins),
                        settings,
                        bins=bins,
                        fail_fast=fail_fast,
                    )
                listener.on_table(rows)
                if fail_fast and has_failed(rows):
                    break

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


def _bins(segments: Sequence[SegmentFile], parallelism: int) -> int:
    """Enough bins to keep all cores busy to the end, and none so large that it is lost dearly."""
    total_bytes = sum(segment.log_size_bytes for segment in segments)
    wanted = max(_BINS_PER_CORE * parallelism, total_bytes // _BIN_BYTES)
    return min(len(segments), wanted, _MOST_BINS)
