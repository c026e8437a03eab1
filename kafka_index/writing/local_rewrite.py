"""The passes of a rewrite on threads of this process."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from kafka_index.errors import KafkaIndexError
from kafka_index.writing.rewrite_plan import PartitionPlan
from kafka_index.writing.rewriting import (
    MatchedPartition,
    RewriteSettings,
    match,
    rewrite,
)


def match_all(
    plans: Sequence[PartitionPlan], settings: RewriteSettings, *, threads: int
) -> list[MatchedPartition]:
    """Make the first pass over partitions, and return the results in their order."""
    with ThreadPoolExecutor(threads, thread_name_prefix="match") as pool:
        return list(pool.map(lambda plan: match(plan, settings), plans))


def rewrite_all(
    matched: Sequence[MatchedPartition],
    output: str,
    staging: str,
    settings: RewriteSettings,
    *,
    threads: int,
) -> Iterator[tuple[MatchedPartition, KafkaIndexError | None]]:
    """Make the second pass; yield each partition with the reason why it is left out, if it is."""

    def run(each: MatchedPartition) -> KafkaIndexError | None:
        # A folder for each: the checkpoint beside a partition is its own.
        folder = os.path.join(staging, each.plan.partition.directory_name)
        return rewrite(each, output, folder, settings)

    with ThreadPoolExecutor(threads, thread_name_prefix="rewrite") as pool:
        yield from zip(matched, pool.map(run, matched), strict=True)
