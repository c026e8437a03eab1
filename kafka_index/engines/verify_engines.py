"""Verifying on either engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import pyarrow as pa

from kafka_index.build.plan import plan_waves
from kafka_index.engines import Engine, Listener
from kafka_index.engines.session import open_session, prepare_executors
from kafka_index.storage import SegmentFile
from kafka_index.storage.segment_table import SegmentTable
from kafka_index.verification import PartitionFindings, VerifySettings, run_local

_APP_NAME = "kafka-index verify"
_AFTER_FAILURE = "the report has what was verified: run again"


class EngineListener(Listener, Protocol):
    """Follows an engine that verifies."""

    def on_partition(self, found: PartitionFindings) -> None:
        """Add what was found in a partition; called by one thread at a time."""

    def on_table(self, rows: pa.Table) -> None:
        """Add rows of `VERIFY_SCHEMA`."""


def run_verify(
    engine: Engine,
    segments: Sequence[SegmentFile],
    settings: VerifySettings,
    listener: EngineListener,
) -> None:
    """Verify partitions.

    Parameters
    ----------
    engine
        The engine.
    segments : sequence of SegmentFile
        By partition, every segment of each.
    settings
        How to verify.
    listener
        Follows the work.
    """
    if not engine.on_spark:
        listener.on_begin()
        run_local(segments, settings, threads=engine.threads, on_partition=listener.on_partition)
        return
    from kafka_index.spark.jobs import Jobs
    from kafka_index.spark.shared_target import shared_target
    from kafka_index.spark.verify import verify_waves

    table = SegmentTable.of(segments)
    with (
        open_session(engine.master, _APP_NAME, after_failure=_AFTER_FAILURE) as session,
        shared_target([]) as target,
        Jobs(session, items=len(table), on_progress=listener.on_share) as jobs,
    ):
        inputs = [each.directory for each in table.partitions]
        cores = prepare_executors(session, jobs, target, inputs=inputs, outputs=[])
        listener.on_begin()
        waves = plan_waves(table, cores=cores)
        for rows in verify_waves(session, waves, settings, cores=cores, jobs=jobs):
            listener.on_table(rows)
