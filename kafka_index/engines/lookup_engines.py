"""Lookups on either engine."""

from __future__ import annotations

import os
from typing import Protocol

from kafka_index.engines import Engine, Listener, master_of, threads_of
from kafka_index.lookup import (
    AnswerTarget,
    Inventory,
    LookupSettings,
    Queries,
    SplitReport,
    run_local,
)
from kafka_index.lookup.unindexed import Unindexed
from kafka_index.spark.session import open_session, prepare_executors

_APP_NAME = "kafka-index lookup"
_AFTER_FAILURE = "no answers were written: run again"


class EngineListener(Listener, Protocol):
    """Follows an engine that answers queries."""

    def on_split(self, report: SplitReport) -> None:
        """Add the report of a finished split; called from any thread."""


def run_lookup(
    engine: Engine,
    queries: Queries,
    inventory: Inventory,
    settings: LookupSettings,
    target: AnswerTarget,
    listener: EngineListener,
    *,
    unindexed: Unindexed,
    starting_offsets: bool,
) -> None:
    """Answer queries over an inventory into a target, which the caller publishes.

    Parameters
    ----------
    engine
        The engine.
    queries, inventory, settings, target, starting_offsets
        As for `kafka_index.lookup.run_local`.
    listener
        Follows the work.
    unindexed : Unindexed
        Remote segments without index files.
    """
    if not engine.on_spark:
        listener.on_begin()
        run_local(
            queries,
            inventory,
            settings,
            target,
            threads=threads_of(engine),
            on_split=listener.on_split,
            starting_offsets=starting_offsets,
        )
        return
    from kafka_index.spark.jobs import Jobs
    from kafka_index.spark.lookup import answer_queries
    from kafka_index.spark.shared_target import shared_target

    folder = os.path.dirname(target.part_path(queries.splits[0]))
    with (
        open_session(master_of(engine), _APP_NAME, after_failure=_AFTER_FAILURE) as session,
        shared_target([folder]) as shared,
        Jobs(session, items=len(queries.splits), on_progress=listener.on_share) as jobs,
    ):
        directories = inventory.partitions["directory"].to_pylist()
        workers = prepare_executors(
            session, jobs, shared, inputs=[*directories, *queries.files], outputs=[folder]
        )
        listener.on_begin()
        reports = answer_queries(
            session,
            queries,
            inventory,
            settings,
            target,
            workers=workers,
            unindexed=unindexed,
            starting_offsets=starting_offsets,
            jobs=jobs,
        )
    for report in reports:
        listener.on_split(report)
