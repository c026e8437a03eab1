"""Rewrites on either engine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Self

from kafka_index.engines import Engine
from kafka_index.engines.session import open_session, prepare_executors
from kafka_index.errors import KafkaIndexError
from kafka_index.writing.local_rewrite import match_all, rewrite_all
from kafka_index.writing.rewrite_output import RewriteOutput
from kafka_index.writing.rewrite_plan import PartitionPlan
from kafka_index.writing.rewriting import MatchedPartition, RewriteSettings

_APP_NAME = "kafka-index rewrite"
_AFTER_FAILURE = "finished partitions are kept: run again to continue"

Outcome = tuple[MatchedPartition, KafkaIndexError | None]


class RewriteEngine:
    """Runs the passes of a rewrite. A context manager: a session is open as long as it is.

    Parameters
    ----------
    engine : Engine
        The engine.
    settings : RewriteSettings
        What is dropped.
    plans : sequence of PartitionPlan
        The partitions.
    output : RewriteOutput, optional
        Where to; None for a dry run.
    """

    def __init__(
        self,
        engine: Engine,
        settings: RewriteSettings,
        plans: Sequence[PartitionPlan],
        output: RewriteOutput | None,
    ) -> None:
        self._engine = engine
        self._settings = settings
        self._plans = plans
        self._output = output
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        """Start the engine."""
        if not self._engine.on_spark:
            return self
        from kafka_index.spark.jobs import Jobs
        from kafka_index.spark.shared_target import shared_target

        folders = [] if self._output is None else [self._output.root]
        with ExitStack() as stack:
            self._session = stack.enter_context(
                open_session(self._engine.master, _APP_NAME, after_failure=_AFTER_FAILURE)
            )
            self._target = stack.enter_context(shared_target(folders))
            self._jobs = stack.enter_context(Jobs(self._session))
            self._cores = prepare_executors(
                self._session,
                self._jobs,
                self._target,
                inputs=[plan.directory for plan in self._plans],
                outputs=folders,
            )
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop the engine."""
        self._stack.__exit__(kind, error, trace)

    def match(self) -> list[MatchedPartition]:
        """Make the first pass."""
        if not self._engine.on_spark:
            return match_all(self._plans, self._settings, threads=self._engine.threads)
        from kafka_index.spark.rewrite import match_partitions

        return match_partitions(
            self._session, self._plans, self._settings, cores=self._cores, jobs=self._jobs
        )

    def rewrite(
        self, matched: Sequence[MatchedPartition], output: RewriteOutput
    ) -> Iterator[Outcome]:
        """Make the second pass; yield each partition with the reason why it is left out."""
        if not self._engine.on_spark:
            return rewrite_all(
                matched,
                output.root,
                output.staging,
                self._settings,
                threads=self._engine.threads,
            )
        from kafka_index.spark.rewrite import rewrite_partitions

        errors = rewrite_partitions(
            self._session,
            matched,
            output.root,
            output.staging,
            self._settings,
            cores=self._cores,
            jobs=self._jobs,
            target=self._target,
        )
        return zip(matched, errors, strict=True)
