"""The two engines behind one interface: threads of this process, and Spark."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from kafka_index.build import BuildSettings, plan_build, run_local
from kafka_index.build.parquet import build_parquet
from kafka_index.build.parquet_schema import ParquetInput
from kafka_index.build.report import SegmentReport
from kafka_index.errors import KafkaIndexError
from kafka_index.storage import SegmentFile

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_APP_NAME = "kafka-index build"
_BINS_PER_CORE = 4
_BIN_BYTES = 1 << 30
_MOST_BINS = 20_000
# What a Connect server says about its cores is nothing; this is its number of shuffle partitions.
_CONNECT_PARALLELISM = "spark.sql.shuffle.partitions"


class Listener(Protocol):
    """Whom an engine tells what it has done."""

    def on_begin(self) -> None:
        """Take that the work begins now: what the engine itself needed to start is over."""

    def on_report(self, row: SegmentReport) -> None:
        """Take the row of a finished segment; called from any thread."""

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
        plan = plan_build(segments, bins=_bins(segments, self._threads))
        run_local(
            plan,
            settings,
            threads=self._threads,
            on_report=listener.on_report,
            fail_fast=fail_fast,
        )

    def build_parquet(
        self, source: ParquetInput, settings: BuildSettings, listener: Listener, *, fail_fast: bool
    ) -> None:
        """Build the indexes of the segments of a Parquet input."""
        listener.on_begin()
        build_parquet(
            source,
            settings,
            threads=self._threads,
            on_report=listener.on_report,
            fail_fast=fail_fast,
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

        with self._session() as session:
            listener.on_begin()
            bins = _bins(segments, _parallelism(session))
            plan = plan_build(segments, bins=bins)
            with watch_progress(session, listener.on_share):
                rows = build_logs(session, plan, settings, bins=bins, fail_fast=fail_fast)
        listener.on_table(rows)

    def build_parquet(
        self, source: ParquetInput, settings: BuildSettings, listener: Listener, *, fail_fast: bool
    ) -> None:
        """Build the indexes of the segments of a Parquet input."""
        from kafka_index.spark.parquet import build_parquet as build_parquet_on_spark
        from kafka_index.spark.progress import watch_progress

        with self._session() as session:
            listener.on_begin()
            bins = _BINS_PER_CORE * _parallelism(session)
            with watch_progress(session, listener.on_share):
                rows = build_parquet_on_spark(
                    session, source, settings, bins=bins, fail_fast=fail_fast
                )
        listener.on_table(rows)

    @contextmanager
    def _session(self) -> Iterator[SparkSession]:
        """Start a session, and say in one line what goes wrong in it."""
        from kafka_index.cli.session import build_session

        session = build_session(self._master, _APP_NAME)
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        try:
            yield session
        except (PySparkException, Py4JError) as error:
            raise KafkaIndexError(
                f"the Spark job failed: {_reason(error)}",
                hint="segments that are finished stay finished: run again to go on",
            ) from error
        finally:
            session.stop()


def _bins(segments: Sequence[SegmentFile], parallelism: int) -> int:
    """Enough bins to keep all cores busy to the end, and none so large that it is lost dearly."""
    total_bytes = sum(segment.log_size_bytes for segment in segments)
    wanted = max(_BINS_PER_CORE * parallelism, total_bytes // _BIN_BYTES)
    return min(len(segments), wanted, _MOST_BINS)


def _parallelism(session: SparkSession) -> int:
    from kafka_index.spark.progress import is_connect

    if is_connect(session):
        return int(session.conf.get(_CONNECT_PARALLELISM) or 1)
    return session.sparkContext.defaultParallelism


def _reason(error: Exception) -> str:
    """Return the line of a Spark error that names its cause: often the last of a long text."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    causes = [line for line in lines if "Error: " in line or "Exception: " in line]
    return (causes or lines or [type(error).__name__])[-1]
