"""Searches on either engine."""

from __future__ import annotations

import os
from collections.abc import Generator

from kafka_index.engines import Engine, Listener
from kafka_index.engines.session import open_session, prepare_executors
from kafka_index.tables import ReadPlan
from kafka_index.tables.matches import SplitMatches, limit_matches, match_local

_APP_NAME = "kafka-index find"
_AFTER_FAILURE = "run again"


def run_find(
    engine: Engine, plan: ReadPlan, listener: Listener, *, limit: int | None
) -> Generator[SplitMatches, None, None]:
    """Yield the matches of a plan in its order, until there are as many as wanted.

    Parameters
    ----------
    engine
        The engine.
    plan
        What is read; its settings have the filter.
    listener
        Follows the work.
    limit : int, optional
        How many records are wanted.
    """
    if not engine.on_spark:
        listener.on_begin()
        found = match_local(plan.splits, plan.settings, threads=engine.threads, limit=limit)
        yield from limit_matches(found, limit)
        return
    from kafka_index.spark.find import match_on_spark
    from kafka_index.spark.jobs import Jobs
    from kafka_index.spark.shared_target import SharedTarget

    inputs = {
        os.path.dirname(part.segment.log_path) for split in plan.splits for part in split.ranges
    }
    with (
        open_session(engine.master, _APP_NAME, after_failure=_AFTER_FAILURE) as session,
        Jobs(session, items=len(plan.splits), on_progress=listener.on_share) as jobs,
    ):
        workers = prepare_executors(
            session, jobs, SharedTarget(), inputs=sorted(inputs), outputs=[]
        )
        listener.on_begin()
        found = match_on_spark(
            session, plan.splits, plan.settings, workers=workers, limit=limit, jobs=jobs
        )
        yield from limit_matches(found, limit)
