"""Building in other processes: a wave of whole partitions is scanned, then folded and published.

Segments are scanned in any order, wherever there is room; what the scans wrote waits in files
beside the target until all of their partition is there.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from typing import Any, TypeVar

from kafka_index.build.publish import GROUP_SEGMENTS, publish_partitions
from kafka_index.build.report import BUILT, FAILED, SegmentReport
from kafka_index.build.scan import keep_segment, stage_segments
from kafka_index.build.settings import BuildSettings
from kafka_index.build.staged_segment import StagedSegment
from kafka_index.execution import Workers
from kafka_index.execution.engine import COST_BYTES, wave_bytes
from kafka_index.layout.names import TopicPartition
from kafka_index.storage.segment_table import PartitionSegments, SegmentTable

# So that the rows of a wave fit into the driver, however small the logs are.
_WAVE_SEGMENTS = 50_000
_WAVES_AT_A_TIME = 2
_GROUPS_PER_WORKER = 4

_Segment = TypeVar("_Segment")


def plan_waves(segments: SegmentTable, *, cores: int) -> list[SegmentTable]:
    """Split segments into waves of whole partitions, for an engine that builds wave by wave.

    A wave is what a killed run loses at most: a small share of the run, and yet enough to keep
    all cores busy.
    """
    max_bytes = wave_bytes(segments.total_bytes, cores)
    return partition_groups(segments, max_bytes=max_bytes, max_segments=_WAVE_SEGMENTS)


def partition_groups(
    segments: SegmentTable, *, max_bytes: int, max_segments: int
) -> list[SegmentTable]:
    """Join whole partitions into groups that are scanned and published one after the other.

    A group ends with the partition that reaches one of the two limits. The largest partitions come
    first, so that small ones fill the cores at the end.
    """
    groups: list[list[PartitionSegments]] = []
    size_bytes = count = 0
    for each in sorted(segments.partitions, key=lambda each: -each.size_bytes):
        if not groups or size_bytes >= max_bytes or count >= max_segments:
            groups.append([])
            size_bytes = count = 0
        groups[-1].append(each)
        size_bytes += each.size_bytes
        count += len(each)
    return list(map(SegmentTable, groups))


def by_partition(staged: Iterable[StagedSegment]) -> list[list[StagedSegment]]:
    """Return the segments of each partition by base offset, of segments in any order."""

    def partition(each: StagedSegment) -> TopicPartition:
        return each.segment.topic_partition

    ordered = sorted(staged, key=lambda each: (partition(each), each.segment.base_offset))
    return [list(members) for _, members in groupby(ordered, key=partition)]


def join_partitions(
    partitions: Iterable[Sequence[_Segment]], *, max_segments: int
) -> list[list[Sequence[_Segment]]]:
    """Join partitions into groups that are published together, of so many segments at most.

    A larger partition is a group of its own.
    """
    groups: list[list[Sequence[_Segment]]] = []
    count = 0
    for members in partitions:
        if not groups or count + len(members) > max_segments:
            groups.append([])
            count = 0
        groups[-1].append(members)
        count += len(members)
    return groups


def build_waves(
    workers: Workers,
    waves: Sequence[SegmentTable],
    settings: BuildSettings,
    *,
    fail_fast: bool = False,
) -> Generator[list[SegmentReport], None, None]:
    """Build wave after wave and yield the report of each, once its files are in place.

    Two waves are built at a time: the works of the second fill the cores that the end of the first,
    or the publishing of its partitions, leaves idle. With `fail_fast` it is one wave at a time, so
    that none is begun after a failure. A wave has whole partitions, as `plan_waves` returns them.
    A failure of the engine or of a signal is raised once the reports of all that is in place have
    been yielded.
    """
    # What the scans of the waves that are under way have found.
    staged_of: dict[int, list[StagedSegment]] = {}

    def build(number: int, wave: SegmentTable) -> list[SegmentReport]:
        segments = list(wave)
        staged = stage_works(
            workers,
            [[segment] for segment in segments],
            stage_segments,
            settings,
            fail_fast=fail_fast,
            sizes=[segment.log_size_bytes for segment in segments],
            what="scan {:,} segments",
        )
        if fail_fast and (failed := failed_rows(staged)):
            return failed
        staged_of[number] = staged
        return publish_staged(workers, staged, settings)

    pool = ThreadPoolExecutor(1 if fail_fast else _WAVES_AT_A_TIME, thread_name_prefix="wave")
    futures = [pool.submit(build, number, wave) for number, wave in enumerate(waves)]
    error: BaseException | None = None
    done = 0
    try:
        for future in futures:
            error = future.exception()
            if error is not None:
                break
            staged_of.pop(done, None)
            done += 1
            rows = future.result()
            yield rows
            if fail_fast and any(row.status == FAILED for row in rows):
                break
    except GeneratorExit:
        raise
    except BaseException as stop:  # noqa: BLE001, because it is raised below
        error = stop
    finally:
        # After an interrupt, an error or a failure: no further wave begins, and what runs ends.
        running = [future for future in futures if not future.cancel() and not future.done()]
        if running:
            workers.stop()
        pool.shutdown()
    if error is not None:
        for number, future in enumerate(futures[done:], start=done):
            if not future.cancelled():
                failed = future.exception() is not None
                staged = staged_of.get(number)
                yield _rows_in_place(waves[number], staged, settings) if failed else future.result()
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
    """Stage the segments of works in other processes, where their scratch files can be shared.

    `stage` is called as `stage_segments` is; the other parameters are those of `Workers.run`. With
    `fail_fast`, maybe not all segments are returned, once one has failed.
    """
    staging = _Staging(stage, replace(settings, shares_staged=True), fail_fast=fail_fast)
    found = workers.run(works, staging, sizes=sizes, what=what, shares=shares)
    return [staged for own in found for staged in own]


@dataclass(slots=True)
class _Staging:
    """Stages the segments of a work; with `fail_fast`, none after a failed one.

    What runs beside it ends by itself, so that no row is lost.
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
    """Return the rows of the segments whose scan has failed."""
    return [each.report for each in staged if each.report.status == FAILED]


def publish_staged(
    workers: Workers, staged: Sequence[StagedSegment], settings: BuildSettings
) -> list[SegmentReport]:
    """Fold partitions and publish their files; return the rows of their segments.

    Every segment of each is given, staged by other processes.
    """
    partitions = by_partition(staged)
    share = -(-len(staged) // (_GROUPS_PER_WORKER * workers.count))
    groups = join_partitions(partitions, max_segments=min(GROUP_SEGMENTS, share))
    rows = workers.run(
        groups,
        partial(_publish_group, settings=replace(settings, shares_staged=True)),
        sizes=[COST_BYTES * sum(map(len, group)) for group in groups],
        what=f"{'fold' if settings.needs_state else 'publish'} {len(partitions):,} partitions",
        shares=0,
    )
    return [row for each in rows for row in each]


def _publish_group(
    partitions: Sequence[Sequence[StagedSegment]], attempt_id: str, *, settings: BuildSettings
) -> list[SegmentReport]:
    return list(publish_partitions(partitions, settings, attempt_id=attempt_id))


def _rows_in_place(
    wave: SegmentTable, staged: Sequence[StagedSegment] | None, settings: BuildSettings
) -> list[SegmentReport]:
    """Return the report of the segments of a failed wave whose files are in place."""
    if staged is None:
        return _kept_rows(wave, settings)
    sound = [each for each in staged if each.report.status != FAILED]
    return [each.report for each in sound if each.is_published()]


def _kept_rows(wave: SegmentTable, settings: BuildSettings) -> list[SegmentReport]:
    """Return the report of the segments of a wave that are right as they are."""
    kept = [keep_segment(segment, settings) for segment in wave]
    rows = [each.report for each in kept if each is not None]
    if settings.force:
        # What was there before is not what was asked for.
        rows = [row for row in rows if row.status == BUILT]
    return rows
