"""Rewrites on either engine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kafka_index.engines import Engine
from kafka_index.errors import KafkaIndexError
from kafka_index.writing.local_rewrite import match_all, rewrite_all
from kafka_index.writing.rewrite_output import RewriteOutput
from kafka_index.writing.rewriting import MatchedPartition, PartitionPlan, RewriteSettings


class RewriteEngine:
    """Runs the passes of a rewrite."""

    def __init__(self, engine: Engine, settings: RewriteSettings) -> None:
        self._engine = engine
        self._settings = settings

    def match(self, plans: Sequence[PartitionPlan]) -> list[MatchedPartition]:
        """Make the first pass."""
        return match_all(plans, self._settings, threads=self._engine.threads)

    def rewrite(
        self, matched: Sequence[MatchedPartition], output: RewriteOutput
    ) -> Iterator[tuple[MatchedPartition, KafkaIndexError | None]]:
        """Make the second pass."""
        return rewrite_all(
            matched,
            output.root,
            output.staging,
            self._settings,
            threads=self._engine.threads,
        )
