"""The engines of a lookup, behind one interface: threads of this process, or Spark."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from kafka_index.engines.session import open_session, parallelism
from kafka_index.lookup import (
    AnswerTarget,
    Inventory,
    LookupSettings,
    Queries,
    SplitReport,
    run_local,
)

_APP_NAME = "kafka-index lookup"
_AFTER_FAILURE = "no answers were written: run again"


class Listener(Protocol):
    """Follows an engine at work."""

    def on_begin(self) -> None:
        """Record that the engine has started and the work begins."""

    def on_split(self, report: SplitReport) -> None:
        """Add the report of a finished split; called from any thread."""

    def on_share(self, done: int, total: int) -> None:
        """Show how many of the equal shares of the work are done; called from any thread."""


@dataclass(frozen=True, slots=True)
class LookupWork:
    """The work of an engine: queries over an inventory, answered into a target.

    Parameters
    ----------
    queries, inventory, settings, target
        As for `kafka_index.lookup.run_local`; the target is entered, and published by the caller.
    starting_offsets : bool
        Whether the reports hold where to start reading.
    """

    queries: Queries
    inventory: Inventory
    settings: LookupSettings
    target: AnswerTarget
    starting_offsets: bool


LookupEngine = Callable[[LookupWork, Listener], None]


def local_engine(threads: int) -> LookupEngine:
    """Return the engine that uses threads of this process."""

    def run(work: LookupWork, listener: Listener) -> None:
        listener.on_begin()
        run_local(
            work.queries,
            work.inventory,
            work.settings,
            work.target,
            threads=threads,
            on_split=listener.on_split,
            starting_offsets=work.starting_offsets,
        )

    return run


def spark_engine(master: str | None, *, group_by_partition: bool) -> LookupEngine:
    """Return the engine that uses Spark: the session of ``spark-submit``, or one started here.

    Parameters
    ----------
    master : str, optional
        Spark master; without it that of ``spark-submit``, else this machine's cores.
    group_by_partition : bool
        Whether all queries of a partition are shuffled to one task.
    """

    def run(work: LookupWork, listener: Listener) -> None:
        from kafka_index.spark.lookup import answer_queries
        from kafka_index.spark.progress import watch_progress

        with open_session(master, _APP_NAME, after_failure=_AFTER_FAILURE) as session:
            listener.on_begin()
            with watch_progress(session, listener.on_share):
                reports = answer_queries(
                    session,
                    work.queries,
                    work.inventory,
                    work.settings,
                    work.target,
                    workers=parallelism(session),
                    group_by_partition=group_by_partition,
                    starting_offsets=work.starting_offsets,
                )
        for report in reports:
            listener.on_split(report)

    return run
