"""Exports on either engine."""

from __future__ import annotations

import os
from typing import Protocol

from kafka_index.engines import Engine, Listener
from kafka_index.engines.session import open_session, prepare_executors
from kafka_index.export import ExportPlan, ExportSettings, SplitResult, export_local

_APP_NAME = "kafka-index export"
_AFTER_FAILURE = "run again to continue"


class EngineListener(Listener, Protocol):
    """Follows an engine that exports."""

    def on_split(self, result: SplitResult) -> None:
        """Add the result of a split; called by one thread at a time."""


def run_export(
    engine: Engine, plan: ExportPlan, settings: ExportSettings, listener: EngineListener
) -> None:
    """Export all splits of a plan.

    Parameters
    ----------
    engine
        The engine.
    plan, settings
        What is exported, and how.
    listener
        Follows the work.
    """
    works = plan.works
    if not works:
        listener.on_begin()
        return
    if not engine.on_spark:
        listener.on_begin()
        export_local(works, settings, threads=engine.threads, on_split=listener.on_split)
        return
    from kafka_index.spark.export import export_splits
    from kafka_index.spark.jobs import Jobs
    from kafka_index.spark.shared_target import shared_target

    inputs = {
        os.path.dirname(part.segment.log_path) for work in works for part in work.split.ranges
    }
    with (
        open_session(engine.master, _APP_NAME, after_failure=_AFTER_FAILURE) as session,
        shared_target([settings.output]) as shared,
        Jobs(session, items=len(works), on_progress=listener.on_share) as jobs,
    ):
        workers = prepare_executors(
            session, jobs, shared, inputs=sorted(inputs), outputs=[settings.output]
        )
        listener.on_begin()
        for result in export_splits(
            session, works, settings, workers=workers, jobs=jobs, target=shared
        ):
            listener.on_split(result)
