"""The session of the tests as an engine."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from pyspark.sql import SparkSession

from kafka_index.execution import Listener
from kafka_index.spark.workers import SparkWorkers, session_workers


@dataclass(frozen=True)
class SessionEngine:
    """Runs works in a session that is there, and stays."""

    session: SparkSession
    on_spark: bool = True

    def start(
        self,
        command: str,  # noqa: ARG002
        *,
        after_failure: str,  # noqa: ARG002
        listener: Listener | None = None,
        works: int = 0,
        inputs: Sequence[str] = (),
        outputs: Sequence[str] = (),
    ) -> AbstractContextManager[SparkWorkers]:
        return session_workers(
            self.session, listener=listener, works=works, inputs=inputs, outputs=outputs
        )
