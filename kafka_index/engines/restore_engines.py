"""Restores on either engine."""

from __future__ import annotations

from collections.abc import Sequence

from kafka_index.engines import Engine, Listener
from kafka_index.engines.session import open_session, prepare_executors
from kafka_index.restore.partition_restoring import PartitionTask
from kafka_index.restore.threads import OnSettled, Runner, on_threads

_APP_NAME = "kafka-index restore"
_AFTER_FAILURE = "finished partitions are kept: run again to continue"


def restore_runner(engine: Engine, listener: Listener) -> Runner:
    """Return the runner of an engine; the output of Spark is a path that all executors see."""
    if not engine.on_spark:
        listener.on_begin()
        return on_threads(engine.threads)

    def run(tasks: Sequence[PartitionTask], on_settled: OnSettled) -> None:
        from kafka_index.spark.jobs import Jobs
        from kafka_index.spark.restore import restore_in_tasks
        from kafka_index.spark.shared_target import shared_target

        output = tasks[0].output
        with (
            open_session(engine.master, _APP_NAME, after_failure=_AFTER_FAILURE) as session,
            shared_target([output]) as target,
            Jobs(session, items=len(tasks), on_progress=listener.on_share) as jobs,
        ):
            workers = prepare_executors(
                session,
                jobs,
                target,
                inputs=sorted({each.plan.base.directory for each in tasks}),
                outputs=[output],
            )
            listener.on_begin()
            for group in restore_in_tasks(
                session, tasks, workers=workers, jobs=jobs, target=target
            ):
                on_settled(group)

    return run
