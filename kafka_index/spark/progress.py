"""Progress of a Spark job while it runs."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from pyspark.sql import SparkSession

Callback = Callable[[int, int], None]

_POLL_SECONDS = 0.5


def watch_progress(
    session: SparkSession, callback: Callback
) -> contextlib.AbstractContextManager[None]:
    """Report the tasks of the running stage to a callback, as long as the context is open.

    Parameters
    ----------
    session : SparkSession
        Classic (its status is polled by a thread) or Connect (its progress handler is used).
    callback : callable
        Called with ``(tasks_done, tasks_total)`` of the latest stage, from another thread.
    """
    if is_connect(session):
        return _watch_connect(session, callback)
    return _watch_classic(session, callback)


def is_connect(session: SparkSession) -> bool:
    """Return whether a session is Spark Connect's, which has no SparkContext."""
    return type(session).__module__.startswith("pyspark.sql.connect")


@contextlib.contextmanager
def _watch_classic(session: SparkSession, callback: Callback) -> Iterator[None]:
    tracker = session.sparkContext.statusTracker()
    stop = threading.Event()

    def poll() -> None:
        while not stop.wait(_POLL_SECONDS):
            stages = [tracker.getStageInfo(number) for number in tracker.getActiveStageIds()]
            running = [stage for stage in stages if stage is not None]
            if running:
                latest = max(running, key=lambda stage: stage.stageId)
                callback(latest.numCompletedTasks, latest.numTasks)

    thread = threading.Thread(target=poll, name="spark-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@contextlib.contextmanager
def _watch_connect(session: SparkSession, callback: Callback) -> Iterator[None]:
    # Which other arguments there are, all by name, depends on the version of Spark.
    def handle(stages: Iterable[Any] | None, **_: object) -> None:
        known = list(stages or ())
        if known:
            latest = max(known, key=lambda stage: stage.stage_id)
            callback(latest.num_completed_tasks, latest.num_tasks)

    handler: Any = handle
    session.registerProgressHandler(handler)
    try:
        yield
    finally:
        session.removeProgressHandler(handler)
