"""Searches as Spark jobs: waves of splits, whose few matches come back to the driver."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from functools import partial

from pyspark.sql import SparkSession

from kafka_index.spark.jobs import Jobs
from kafka_index.spark.split_tasks import run_splits
from kafka_index.tables import ReadSettings, RecordSplit
from kafka_index.tables.matches import SplitMatches, match_in_waves, match_split, matched_bytes

_SPLITS_PER_WORKER = 4


def match_on_spark(
    session: SparkSession,
    splits: Sequence[RecordSplit],
    settings: ReadSettings,
    *,
    workers: int,
    limit: int | None,
    jobs: Jobs,
) -> Generator[SplitMatches, None, None]:
    """Yield the matches of splits in their order.

    Parameters
    ----------
    session : SparkSession
        Classic or Connect.
    splits, settings, limit
        As for `kafka_index.tables.matches.match_local`.
    workers : int
        Tasks that run at a time.
    jobs : Jobs
        Names and follows the jobs.
    """

    def run(wave: Sequence[RecordSplit]) -> Iterable[SplitMatches]:
        max_bytes = matched_bytes(len(wave))
        return run_splits(
            session,
            wave,
            [split.size_bytes for split in wave],
            partial(match_split, settings=settings, limit=limit, max_bytes=max_bytes),
            workers=workers,
            jobs=jobs,
            description=f"search {len(wave):,} splits of records",
        )

    max_wave = _SPLITS_PER_WORKER * workers
    first_wave = max_wave if limit is None else workers
    yield from match_in_waves(splits, run, first_wave=first_wave, max_wave=max_wave)
