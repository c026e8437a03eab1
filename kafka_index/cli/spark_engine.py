"""Spark as the engine of a command: chosen without it, and imported when it starts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kafka_index.execution import Listener

if TYPE_CHECKING:
    from kafka_index.spark.workers import SparkWorkers


@dataclass(frozen=True, slots=True)
class SparkEngine:
    """Spark, on a master, or that of ``spark-submit``, else this machine's cores."""

    master: str | None = None
    on_spark = True

    @contextmanager
    def start(
        self,
        command: str,
        *,
        after_failure: str,
        listener: Listener | None = None,
        works: int = 0,
        inputs: Sequence[str] = (),
        outputs: Sequence[str] = (),
    ) -> Iterator[SparkWorkers]:
        """Start a session, check what executors have, and return its workers.

        Parameters are those of `kafka_index.execution.Engine.start`.
        """
        from kafka_index.spark.session import open_session

        name = f"kafka-index {command}"
        with open_session(self.master, name, after_failure=after_failure) as session:
            from kafka_index.spark.workers import session_workers

            with session_workers(
                session, listener=listener, works=works, inputs=inputs, outputs=outputs
            ) as workers:
                yield workers
