"""Builds on Spark in rounds: a round scans the segments of complete partitions, then publishes.

Segments are scanned in any order. The results wait in files next to the target until all segments
of a partition have been scanned.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from typing import Any, Protocol

from kafka_index.core.errors import plural
from kafka_index.core.format.names import TopicPartition
from kafka_index.core.job.engine import COST_BYTES, Workers, count_bins, wave_bytes
from kafka_index.core.job.threads import Overlap
from kafka_index.core.log.recovery.publish import publish_partitions
from kafka_index.core.log.recovery.scan import keep_segment, stage_segments
from kafka_index.core.log.recovery.settings import BUILT, FAILED, BuildSettings, SegmentReport
from kafka_index.core.log.recovery.staged_segment import StagedSegment
from kafka_index.core.logdir.segment_table import SegmentTable

#: Maximum number of segments in a round, since their rows are objects in the driver.
WAVE_SEGMENTS = 50_000
# Number of segments published together: enough groups to use several cores even in a small round,
# and in a large round about the cost of a bin per group.
_GROUPS = 64
_FEWEST_TOGETHER, _MOST_TOGETHER = 8, 64

_LOGGER = logging.getLogger(__name__)


class Wave(Protocol):
    """A round: complete partitions that are scanned and then published."""

    @property
    def bins(self) -> int: ...

    def stage(
        self, workers: Workers, settings: BuildSettings, *, fail_fast: bool
    ) -> list[StagedSegment]:
        """Scan the segments; with `fail_fast`, the rest may be omitted after a failure."""

    def kept(self, settings: BuildSettings) -> list[SegmentReport]:
        """Return the rows of segments whose files are up to date although the scan failed."""


@dataclass(frozen=True, eq=False, slots=True)
class LogWave:
    """A round over logs."""

    segments: SegmentTable

    @property
    def bins(self) -> int:
        count = len(self.segments)
        return count_bins(count, self.segments.total_bytes + COST_BYTES * count)

    def stage(
        self, workers: Workers, settings: BuildSettings, *, fail_fast: bool
    ) -> list[StagedSegment]:
        segments = list(self.segments)
        return stage_works(
            workers,
            [[segment] for segment in segments],
            stage_segments,
            settings,
            fail_fast=fail_fast,
            sizes=[segment.log_size_bytes for segment in segments],
            what="scan {:,} segments, {size}",
        )

    def kept(self, settings: BuildSettings) -> list[SegmentReport]:
        """Return the rows of segments whose files are up to date."""
        kept = [keep_segment(segment, settings) for segment in self.segments]
        rows = [each.report for each in kept if each is not None]
        if settings.force:
            # With --overwrite, keep only the segments that this run built.
            rows = [row for row in rows if row.status == BUILT]
        return rows


def plan_waves(segments: SegmentTable) -> list[LogWave]:
    """Split segments into rounds of complete partitions.

    A killed run loses at most one round, which is a small part of a large run.
    """
    max_bytes = wave_bytes(segments.total_bytes + COST_BYTES * len(segments))
    groups = partition_groups(
        segments, max_bytes=max_bytes, max_segments=WAVE_SEGMENTS, cost_bytes=COST_BYTES
    )
    return list(map(LogWave, groups))


def partition_groups(
    segments: SegmentTable, *, max_bytes: int, max_segments: int, cost_bytes: int = 0
) -> list[SegmentTable]:
    """Combine complete partitions into groups that are scanned and published one after another.

    The limits are those of `group_partitions`; `cost_bytes` is the additional cost per segment. The
    largest partitions come first, so that small ones fill the cores at the end.
    """
    partitions = sorted(segments.partitions, key=lambda each: -each.size_bytes)
    groups = group_partitions(
        [len(each) for each in partitions],
        max_segments=max_segments,
        costs=[each.size_bytes + cost_bytes * len(each) for each in partitions],
        max_cost=max_bytes,
    )
    return [SegmentTable(partitions[group]) for group in groups]


def group_partitions(
    counts: Sequence[int], *, max_segments: int, costs: Sequence[int] = (), max_cost: int = 1
) -> list[slice]:
    """Group complete partitions, given by their numbers of segments, in order.

    A group has at most `max_segments`, unless it is one larger partition. It ends with the
    partition at which it reaches the cost limit.
    """
    groups: list[slice] = []
    start = count = cost = 0
    for at, own in enumerate(counts):
        if at > start and (count + own > max_segments or cost >= max_cost):
            groups.append(slice(start, at))
            start, count, cost = at, 0, 0
        count += own
        cost += costs[at] if costs else 0
    return [*groups, slice(start, len(counts))] if counts else groups


def by_partition(staged: Iterable[StagedSegment]) -> list[list[StagedSegment]]:
    """Group segments by partition, sorted by base offset."""

    def partition(each: StagedSegment) -> TopicPartition:
        return each.segment.topic_partition

    ordered = sorted(staged, key=lambda each: (partition(each), each.segment.base_offset))
    return [list(members) for _, members in groupby(ordered, key=partition)]


def build_waves(
    workers: Workers, waves: Iterable[Wave], settings: BuildSettings, *, fail_fast: bool = False
) -> Generator[list[SegmentReport], None, None]:
    """Run the rounds, and yield the rows of each after its files are published.

    Rounds overlap: the next round uses cores that are idle at the end of a scan or during
    publication. With `fail_fast`, rounds run one at a time, so that none starts after a
    failure. Errors of the engine, and signals, are raised after the rows of all published files
    have been yielded. The totals are logged in any case.
    """
    started = time.monotonic()
    count = segments = log_bytes = 0
    try:
        with closing(_run_waves(workers, waves, settings, fail_fast=fail_fast)) as finished:
            for rows in finished:
                count += 1
                segments += len(rows)
                log_bytes += sum(row.log_size_bytes for row in rows)
                yield rows
    finally:
        _LOGGER.info(
            "run %s: %s, %s, %.2f GB of logs, %.2f MB through the driver, %.1f s",
            settings.run_id,
            plural(count, "round"),
            plural(segments, "segment"),
            log_bytes / 1e9,
            workers.driver_bytes / 1e6,
            time.monotonic() - started,
        )


def _run_waves(
    workers: Workers, waves: Iterable[Wave], settings: BuildSettings, *, fail_fast: bool
) -> Generator[list[SegmentReport], None, None]:
    # The scan results of the running rounds.
    staged_of: dict[Wave, list[StagedSegment]] = {}

    def build(wave: Wave) -> list[SegmentReport]:
        staged = wave.stage(workers, settings, fail_fast=fail_fast)
        if fail_fast and (failed := failed_rows(staged)):
            return failed
        staged_of[wave] = staged
        rows = publish_staged(workers, staged, settings)
        del staged_of[wave]
        return rows

    error: BaseException | None = None
    with Overlap(
        workers, waves, build, bins_of=lambda wave: wave.bins, one_at_a_time=fail_fast
    ) as overlap:
        try:
            for rows in overlap:
                yield rows
                if fail_fast and any(row.status == FAILED for row in rows):
                    break
        except GeneratorExit:
            raise
        except BaseException as stop:  # noqa: BLE001, because it is raised below
            error = stop
    if error is not None:
        for wave, future in overlap.running:
            if future.cancelled():
                continue
            if future.exception() is None:
                yield future.result()
            elif wave in staged_of:
                sound = [each for each in staged_of[wave] if each.report.status != FAILED]
                yield [each.report for each in sound if each.is_published()]
            else:
                yield wave.kept(settings)
        raise error


def stage_works(
    workers: Workers,
    works: Sequence[Any],
    stage: Callable[..., Iterator[StagedSegment]],
    settings: BuildSettings,
    *,
    fail_fast: bool,
    sizes: Sequence[int],
    what: str,
    shares: int | None = None,
) -> list[StagedSegment]:
    """Stage the segments of tasks in other processes, where their temporary files can be shared.

    `stage` is called like `stage_segments`; other parameters are those of `Workers.run`. With
    `fail_fast`, segments may be missing after a failure.
    """
    staging = _Staging(stage, replace(settings, shares_staged=True), fail_fast=fail_fast)
    found = workers.run(works, staging, sizes=sizes, what=what, shares=shares)
    return [staged for own in found for staged in own]


@dataclass(slots=True)
class _Staging:
    """Stages the segments of a task; with `fail_fast`, none after a failed one.

    Concurrent tasks end normally, so that no row is lost.
    """

    stage: Callable[..., Iterator[StagedSegment]]
    settings: BuildSettings
    fail_fast: bool
    has_failed: bool = False

    def __call__(self, work: Any, attempt_id: str) -> list[StagedSegment]:
        found: list[StagedSegment] = []
        if not self.has_failed:
            for staged in self.stage(work, self.settings, attempt_id=attempt_id):
                found.append(staged)
                if self.fail_fast and staged.report.status == FAILED:
                    self.has_failed = True
                    break
        return found


def failed_rows(staged: Sequence[StagedSegment]) -> list[SegmentReport]:
    return [each.report for each in staged if each.report.status == FAILED]


def publish_staged(
    workers: Workers, staged: Sequence[StagedSegment], settings: BuildSettings
) -> list[SegmentReport]:
    """Merge partitions and publish their files; return the rows of their segments.

    All segments of each partition must be given, staged by other processes.
    """
    partitions = by_partition(staged)
    share = max(-(-len(staged) // _GROUPS), _FEWEST_TOGETHER)
    counts = [len(members) for members in partitions]
    slices = group_partitions(counts, max_segments=min(share, _MOST_TOGETHER))
    groups = [partitions[each] for each in slices]
    rows = workers.run(
        groups,
        partial(_publish_group, settings=replace(settings, shares_staged=True)),
        sizes=[COST_BYTES * sum(map(len, group)) for group in groups],
        what=f"{'merge' if settings.needs_state else 'publish'} {len(partitions):,} partitions",
        shares=0,
    )
    return [row for each in rows for row in each]


def _publish_group(
    partitions: Sequence[Sequence[StagedSegment]], attempt_id: str, *, settings: BuildSettings
) -> list[SegmentReport]:
    return list(publish_partitions(partitions, settings, attempt_id=attempt_id))
