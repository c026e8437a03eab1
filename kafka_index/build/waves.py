"""Building in other processes: a wave of whole partitions is scanned, then folded and published.

Segments are scanned in any order, wherever there is room; what the scans wrote waits in files
beside the target until all of their partition is there.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial

from kafka_index.build.plan import by_partition, join_partitions
from kafka_index.build.publish import GROUP_SEGMENTS, publish_partitions
from kafka_index.build.report import BUILT, FAILED, SegmentReport
from kafka_index.build.scan import keep_segment, stage_segments
from kafka_index.build.settings import BuildSettings
from kafka_index.build.staged_segment import StagedSegment
from kafka_index.execution import Workers
from kafka_index.execution.engine import COST_BYTES
from kafka_index.storage import SegmentFile
from kafka_index.storage.segment_table import SegmentTable

_WAVES_AT_A_TIME = 2
_GROUPS_PER_WORKER = 4


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
    that none is begun after a failure. A wave has whole partitions, as
    `kafka_index.build.plan.plan_waves` returns them. A failure of the engine or of a signal is
    raised once the reports of all that is in place have been yielded.
    """
    # What the scans of the waves that are under way have found.
    staged_of: dict[int, list[StagedSegment]] = {}

    def build(number: int, wave: SegmentTable) -> list[SegmentReport]:
        staged = _scan_wave(workers, wave, settings, fail_fast=fail_fast)
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


def _scan_wave(
    workers: Workers, wave: SegmentTable, settings: BuildSettings, *, fail_fast: bool
) -> list[StagedSegment]:
    segments = list(wave)
    staged = workers.run(
        segments,
        _Scan(replace(settings, shares_staged=True), fail_fast=fail_fast),
        sizes=[segment.log_size_bytes for segment in segments],
        what="scan {:,} segments",
    )
    return [each for each in staged if each is not None]


@dataclass(slots=True)
class _Scan:
    """Scans a segment into scratch files; with `fail_fast`, none after a failed one.

    What runs beside it ends by itself, so that no row is lost.
    """

    settings: BuildSettings
    fail_fast: bool
    has_failed: bool = False

    def __call__(self, segment: SegmentFile, attempt_id: str) -> StagedSegment | None:
        if self.has_failed:
            return None
        (staged,) = stage_segments([segment], self.settings, attempt_id=attempt_id)
        self.has_failed = self.fail_fast and staged.report.status == FAILED
        return staged


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
