"""Builds of logs: on threads of this process, or in Spark jobs.

On threads, the segments of a partition are scanned at nearly the same time. The thread that scans
the last segment publishes the partition. If a run is interrupted, all completely scanned partitions
are therefore published. Small partitions are published in groups, so that they share the cost of
fsync.

Spark runs rounds: a round scans the segments of complete partitions in any order, then publishes.
Temporary files next to the target contain the scan results until all segments of a partition have
been scanned.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from operator import attrgetter
from os import PathLike
from typing import Any, Protocol

from kafka_index.commands.build.request import BuildRequest
from kafka_index.core.errors import InputError, plural, refuse_other_types
from kafka_index.core.format.config import IndexConfig, LogConfig
from kafka_index.core.format.names import TopicPartition, parse_partition_directory
from kafka_index.core.format.uri_passwords import path_of
from kafka_index.core.fs.paths import real_path, select_linkable
from kafka_index.core.fs.store import Entry
from kafka_index.core.job.engine import (
    COST_BYTES,
    Listener,
    Overlap,
    SplittableTask,
    TaskSplitter,
    Workers,
    count_bins,
    job_bytes,
)
from kafka_index.core.log.choices import INDEX_OUTPUTS, BuildOutput
from kafka_index.core.log.recovery.publish import (
    GROUP_SEGMENTS,
    publish_partitions,
    publish_segment,
)
from kafka_index.core.log.recovery.scan import find_unchanged_segment, stage_segment, stage_segments
from kafka_index.core.log.recovery.settings import BUILT, FAILED, BuildSettings, SegmentReport
from kafka_index.core.log.recovery.staged_segment import StagedSegment
from kafka_index.core.log.scan.segment_scan import LogFileSource
from kafka_index.core.log.state.partition_state import ProducerExpiration
from kafka_index.core.logdir.listing import Listing
from kafka_index.core.logdir.partition_files import SegmentFile, parse_base_offset
from kafka_index.core.logdir.segment_table import SegmentTable
from kafka_index.core.output.locks import DirectoryLock
from kafka_index.core.output.output import Output
from kafka_index.core.output.publish import swept_target

#: Maximum number of segments in a round: each segment is an object in the memory of the driver.
ROUND_SEGMENTS = 50_000
# After the scan of a round, each task publishes a group of partitions. Small groups keep several
# cores busy in a small round. In a large round, a group costs about as much as a bin of the scan.
_MIN_GROUPS = 64
_MIN_GROUP_SEGMENTS, _MAX_GROUP_SEGMENTS = 8, 64

_LOGGER = logging.getLogger(__name__)


class Round(Protocol):
    """A set of complete partitions that are scanned, and whose files are then published."""

    @property
    def bins(self) -> int: ...

    def stage(
        self, workers: Workers, settings: BuildSettings, *, fail_fast: bool
    ) -> list[StagedSegment]:
        """Scan the segments; with `fail_fast`, segments may be missing after a failure."""

    def collect_published_rows(self, settings: BuildSettings) -> list[SegmentReport]:
        """After a failure of the round, return the rows of segments with up-to-date files."""


@dataclass(frozen=True, eq=False, slots=True)
class LogRound:
    """A round whose input is ``.log`` files."""

    segments: SegmentTable

    @property
    def bins(self) -> int:
        count = len(self.segments)
        return count_bins(count, self.segments.total_bytes + COST_BYTES * count)

    def stage(
        self, workers: Workers, settings: BuildSettings, *, fail_fast: bool
    ) -> list[StagedSegment]:
        segments = list(self.segments)
        return stage_tasks(
            workers,
            [[segment] for segment in segments],
            stage_segments,
            settings,
            fail_fast=fail_fast,
            sizes=[segment.log_size_bytes for segment in segments],
            description="scan {:,} segments, {size}",
        )

    def collect_published_rows(self, settings: BuildSettings) -> list[SegmentReport]:
        staged_segments = [find_unchanged_segment(segment, settings) for segment in self.segments]
        rows = [staged.report for staged in staged_segments if staged is not None]
        if settings.force:
            # With --overwrite, files of an earlier run do not count: keep only segments that this
            # run built.
            rows = [row for row in rows if row.status == BUILT]
        return rows


def plan_rounds(segments: SegmentTable) -> list[LogRound]:
    """Split segments into rounds of complete partitions.

    If a run is killed, only unpublished rounds are lost, and a round is a small part of a large
    run.
    """
    max_bytes = job_bytes(segments.total_bytes + COST_BYTES * len(segments))
    groups = partition_groups(
        segments, max_bytes=max_bytes, max_segments=ROUND_SEGMENTS, cost_bytes=COST_BYTES
    )
    return list(map(LogRound, groups))


def partition_groups(
    segments: SegmentTable, *, max_bytes: int, max_segments: int, cost_bytes: int = 0
) -> list[SegmentTable]:
    """Combine complete partitions into groups that are scanned and published one after another.

    For the limits, see `group_partitions`; `cost_bytes` is the additional cost per segment. Groups
    are in order of decreasing partition size, so that small partitions keep all cores busy at the
    end.
    """
    partitions = sorted(segments.partitions, key=lambda partition: -partition.size_bytes)
    groups = group_partitions(
        [len(partition) for partition in partitions],
        max_segments=max_segments,
        costs=[partition.size_bytes + cost_bytes * len(partition) for partition in partitions],
        max_cost=max_bytes,
    )
    return [SegmentTable(partitions[group]) for group in groups]


def group_partitions(
    counts: Sequence[int], *, max_segments: int, costs: Sequence[int] = (), max_cost: int = 1
) -> list[slice]:
    """Group consecutive partitions; `counts` has the number of segments of each partition.

    A group has at most `max_segments` segments, unless a single partition has more. A group ends
    with the partition that reaches `max_cost`.
    """
    groups: list[slice] = []
    start = group_segments = group_cost = 0
    for index, segment_count in enumerate(counts):
        if index > start and (
            group_segments + segment_count > max_segments or group_cost >= max_cost
        ):
            groups.append(slice(start, index))
            start, group_segments, group_cost = index, 0, 0
        group_segments += segment_count
        group_cost += costs[index] if costs else 0
    return [*groups, slice(start, len(counts))] if counts else groups


def group_by_partition(staged: Iterable[StagedSegment]) -> list[list[StagedSegment]]:
    """Group segments by partition; sort each group by base offset."""
    partition = attrgetter("segment.topic_partition")
    ordered = sorted(staged, key=attrgetter("segment.topic_partition", "segment.base_offset"))
    return [list(members) for _, members in groupby(ordered, key=partition)]


def build_rounds(
    workers: Workers, rounds: Iterable[Round], settings: BuildSettings, *, fail_fast: bool = False
) -> Generator[list[SegmentReport], None, None]:
    """Run the rounds; yield the rows of a round after its files are published.

    Rounds overlap: the next round uses cores that are idle at the end of the scan, or while the
    files of the previous round are published. With `fail_fast`, rounds run one at a time, so that
    no round starts after a failure. Errors of the engine, and signals, are raised after the rows of
    all published files have been yielded. The totals are logged in any case.
    """
    started = time.monotonic()
    round_count = segments = log_bytes = 0
    try:
        with closing(_run_rounds(workers, rounds, settings, fail_fast=fail_fast)) as finished:
            for rows in finished:
                round_count += 1
                segments += len(rows)
                log_bytes += sum(row.log_size_bytes for row in rows)
                yield rows
    finally:
        _LOGGER.info(
            "run %s: %s, %s, %.2f GB of logs, %.2f MB through the driver, %.1f s",
            settings.run_id,
            plural(round_count, "round"),
            plural(segments, "segment"),
            log_bytes / 1e9,
            workers.driver_bytes / 1e6,
            time.monotonic() - started,
        )


def _run_rounds(
    workers: Workers, rounds: Iterable[Round], settings: BuildSettings, *, fail_fast: bool
) -> Generator[list[SegmentReport], None, None]:
    # Scanned segments of the rounds that are being published.
    staged_by_round: dict[Round, list[StagedSegment]] = {}

    def build(round_: Round) -> list[SegmentReport]:
        staged = round_.stage(workers, settings, fail_fast=fail_fast)
        if fail_fast and (failed := failed_rows(staged)):
            return failed
        staged_by_round[round_] = staged
        rows = publish_staged(workers, staged, settings)
        del staged_by_round[round_]
        return rows

    error: BaseException | None = None
    with Overlap(
        workers, rounds, build, bins_of=lambda round_: round_.bins, one_at_a_time=fail_fast
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
        for round_, future in overlap.running:
            if future.cancelled():
                continue
            if future.exception() is None:
                yield future.result()
            elif round_ in staged_by_round:
                complete = [
                    segment
                    for segment in staged_by_round[round_]
                    if segment.report.status != FAILED
                ]
                yield [segment.report for segment in complete if segment.is_published()]
            else:
                yield round_.collect_published_rows(settings)
        raise error


def stage_tasks(
    workers: Workers,
    tasks: Sequence[Any],
    stage: Callable[..., Iterator[StagedSegment]],
    settings: BuildSettings,
    *,
    fail_fast: bool,
    sizes: Sequence[int],
    description: str,
    units: int | None = None,
) -> list[StagedSegment]:
    """Stage the segments of tasks in other processes; all processes can read the staged files.

    `stage` is called like `stage_segments`; `Workers.run` documents the other parameters. With
    `fail_fast`, segments may be missing after a failure.
    """
    staging = _Staging(stage, replace(settings, shares_staged=True), fail_fast=fail_fast)
    staged_by_task = workers.run(tasks, staging, sizes=sizes, description=description, units=units)
    return [staged for task_segments in staged_by_task for staged in task_segments]


@dataclass(slots=True)
class _Staging:
    """Stages the segments of a task; with `fail_fast`, stops after the first failed segment.

    Concurrent tasks are not cancelled, so that no report row is lost.
    """

    stage: Callable[..., Iterator[StagedSegment]]
    settings: BuildSettings
    fail_fast: bool
    has_failed: bool = False

    def __call__(self, task: Any, attempt_id: str) -> list[StagedSegment]:
        staged_segments: list[StagedSegment] = []
        if not self.has_failed:
            for staged in self.stage(task, self.settings, attempt_id=attempt_id):
                staged_segments.append(staged)
                if self.fail_fast and staged.report.status == FAILED:
                    self.has_failed = True
                    break
        return staged_segments


def failed_rows(staged: Sequence[StagedSegment]) -> list[SegmentReport]:
    return [segment.report for segment in staged if segment.report.status == FAILED]


def publish_staged(
    workers: Workers, staged: Sequence[StagedSegment], settings: BuildSettings
) -> list[SegmentReport]:
    """Merge partitions and publish their files; return the report rows of their segments.

    `staged` must have all segments of each partition. Other processes may have staged them.
    """
    partitions = group_by_partition(staged)
    max_group_segments = max(-(-len(staged) // _MIN_GROUPS), _MIN_GROUP_SEGMENTS)
    counts = [len(members) for members in partitions]
    slices = group_partitions(counts, max_segments=min(max_group_segments, _MAX_GROUP_SEGMENTS))
    groups = [partitions[group_rows] for group_rows in slices]
    rows = workers.run(
        groups,
        partial(_publish_group, settings=replace(settings, shares_staged=True)),
        sizes=[COST_BYTES * sum(map(len, group)) for group in groups],
        description=(
            f"{'merge' if settings.needs_state else 'publish'} {len(partitions):,} partitions"
        ),
        units=0,
    )
    return [row for group_rows in rows for row in group_rows]


def _publish_group(
    partitions: Sequence[Sequence[StagedSegment]], attempt_id: str, *, settings: BuildSettings
) -> list[SegmentReport]:
    return list(publish_partitions(partitions, settings, attempt_id=attempt_id))


# Limits of the groups of partitions that are published together. A run has several groups per
# thread, so that all threads publish.
_GROUP_BYTES = 256 << 20
_GROUPS_PER_THREAD = 8

DEFAULT_CONFIG = IndexConfig()


AFTER_FAILURE = "finished segments were published: run again to continue"


class BuildListener(Protocol):
    """Callbacks of a build; called by one thread at a time."""

    def on_scanned(self, row: SegmentReport) -> None:
        """Receive the row of a segment after its scan on a thread; not called on Spark."""

    def on_report(self, row: SegmentReport) -> None:
        """Receive the final row of a segment."""


def build_settings(
    request: BuildRequest, config: LogConfig, outputs: frozenset[BuildOutput], listener: Listener
) -> BuildSettings:
    """Return the settings of a run; `outputs` are the kinds of files to build by default."""
    expires_at = request.expire_producers_at
    return BuildSettings(
        config=config,
        target_root=None if request.in_place else request.output,
        outputs=request.what or outputs,
        expiration=None
        if expires_at is None
        else ProducerExpiration(config.producer_id_expiration_ms, int(expires_at)),
        verify_crc=request.verify_crc,
        force=request.overwrite,
        run_id=listener.run_id(),
    )


@contextmanager
def locked_target(
    request: BuildRequest,
    settings: BuildSettings,
    listing: Listing | None = None,
    *,
    inputs: Sequence[str] = (),
) -> Iterator[str | None]:
    """Lock the target, remove temporary files of killed runs, and yield the target root.

    The target root is None if the files are written next to the logs.
    """
    root, directories = None, []
    lock: Output | DirectoryLock
    if listing is not None:
        directories = listing.partition_directories
        # A link in a local data directory may point to a directory elsewhere, which is also an
        # input.
        inputs = [*request.folders, *select_linkable(directories)]
    if settings.target_root is not None:
        root = real_path(settings.target_root)
        lock = Output.for_tables(
            root,
            settings.target_root,
            inputs,
            settings.run_id,
            hint="choose another --output, or give --in-place to write next to the logs",
        )
    elif listing is not None:
        lock = DirectoryLock.for_data_directories(listing.data_directories)
    with lock, swept_target(root, directories, run_id=settings.run_id):
        yield root


def build_logs(
    workers: Workers,
    segments: Iterable[SegmentFile],
    settings: BuildSettings,
    *,
    listener: BuildListener,
    fail_fast: bool = False,
) -> None:
    """Build all segments of complete partitions; the listener receives a row per segment.

    With `fail_fast`, no further segment starts after a failure. Segments that were not started, and
    segments of incomplete partitions, have no row.
    """
    table = SegmentTable.from_files(segments)
    if workers.in_process:
        _build_on_threads(workers, table, settings, listener, fail_fast=fail_fast)
        return
    rounds = plan_rounds(table)
    with closing(build_rounds(workers, rounds, settings, fail_fast=fail_fast)) as reports:
        for rows in reports:
            for row in rows:
                listener.on_report(row)


def _build_on_threads(
    workers: Workers,
    segments: SegmentTable,
    settings: BuildSettings,
    listener: BuildListener,
    *,
    fail_fast: bool,
) -> None:
    groups = _plan_groups(segments, workers.count)
    start_entries = {
        partition.partition: partition.start_entries
        for group in groups
        for partition in group.partitions
        if partition.start_entries is not None
    }
    publisher = Publisher(
        map(len, groups), settings, listener, fail_fast=fail_fast, start_entries=start_entries
    )

    def scan(group_number: int, segment: SegmentFile, attempt_id: str) -> None:
        if not publisher.stopped.is_set():
            for staged in stage_segments([segment], settings, attempt_id=attempt_id):
                publisher.add(group_number, staged, attempt_id)

    def divide(group_number: int) -> SplittableTask[None]:
        # Largest segment first, so that threads wait only for a small segment at the end.
        group = sorted(groups[group_number], key=lambda segment: -segment.log_size_bytes)
        return SplittableTask(
            [partial(scan, group_number, segment) for segment in group], _finish_group
        )

    sizes = [group.total_bytes for group in groups]
    task_results = workers.run(
        range(len(groups)), TaskSplitter(divide), sizes=sizes, description="build {:,} groups"
    )
    publisher.finish(task_results)


def _finish_group(_pieces: Sequence[None], _attempt_id: str) -> None: ...


def _plan_groups(segments: SegmentTable, threads: int) -> list[SegmentTable]:
    """Return the groups of partitions that are published together."""
    group_count = _GROUPS_PER_THREAD * threads
    return partition_groups(
        segments,
        max_bytes=min(_GROUP_BYTES, segments.total_bytes // group_count),
        max_segments=min(GROUP_SEGMENTS, -(-len(segments) // group_count)),
    )


class Publisher:
    """Publishes each group of partitions after its last segment is scanned; shared by threads.

    A group consists of complete partitions; `counts` has the number of segments of each group. With
    `fail_fast`, a failed segment sets `stopped`. `start_entries` are the listed snapshots and
    leader epoch checkpoints of partitions, for `publish_partitions`.
    """

    def __init__(
        self,
        counts: Iterable[int],
        settings: BuildSettings,
        listener: BuildListener,
        *,
        fail_fast: bool,
        start_entries: Mapping[TopicPartition, Sequence[Entry]] | None = None,
    ) -> None:
        self._start_entries = start_entries
        self.stopped = threading.Event()
        self._missing_counts = list(counts)
        self._groups: list[list[StagedSegment]] = [[] for _ in self._missing_counts]
        self._settings = settings
        self._listener = listener
        self._fail_fast = fail_fast
        self._lock = threading.Lock()

    def finish(self, task_results: Generator[object, None, None]) -> None:
        """Wait for all tasks that add segments, then report the segments of incomplete groups."""
        try:
            with closing(task_results):
                for _ in task_results:
                    if self.stopped.is_set():
                        break
        finally:
            # After an interrupt or an internal error, threads complete their current segment.
            self.stopped.set()
        self._report_unfinished()

    def add(self, group_number: int, staged: StagedSegment, attempt_id: str) -> None:
        """Add a scanned segment to its group; publish the group if it is complete."""
        group = self._groups[group_number]
        with self._lock:
            self._listener.on_scanned(staged.report)
            group.append(staged)
            self._missing_counts[group_number] -= 1
            is_complete = self._missing_counts[group_number] == 0
        if self._fail_fast and staged.report.status == FAILED:
            self.stopped.set()
        if is_complete:
            self._publish(group, attempt_id)

    def report(self, row: SegmentReport) -> None:
        with self._lock:
            self._listener.on_report(row)
        if self._fail_fast and row.status == FAILED:
            self.stopped.set()

    def _report_unfinished(self) -> None:
        """Publish incomplete groups if no file needs state; otherwise report failed segments."""
        for group in self._groups:
            if group and not self._settings.needs_state:
                self._publish(group, "unfinished")
                continue
            for staged in group:
                staged.remove_scratch(self._settings)
                if staged.report.status == FAILED:
                    self.report(staged.report)

    def _publish(self, group: list[StagedSegment], attempt_id: str) -> None:
        complete_group = group.copy()
        group.clear()
        rows = publish_partitions(
            group_by_partition(complete_group),
            self._settings,
            attempt_id=attempt_id,
            listed_entries=self._start_entries,
        )
        for row in rows:
            self.report(row)
        for staged in complete_group:
            # Remove temporary files that only the merge required.
            staged.remove_scratch(self._settings)


def build_segment_files(
    log_path: str | PathLike[str],
    target_directory: str | PathLike[str],
    *,
    config: IndexConfig = DEFAULT_CONFIG,
    verify_crc: bool = True,
) -> SegmentReport:
    """Build the index files of one ``.log`` into a folder; the folder of the log may have any name.

    Parameters
    ----------
    log_path : path
        The ``.log``; its name contains the base offset.
    target_directory : path
        An existing folder other than the folder of the log.
    config : IndexConfig
        Kafka settings.
    verify_crc : bool
        Whether to verify checksums.

    Returns
    -------
    SegmentReport
        A row of a build report, including any error of the segment.

    Raises
    ------
    InputError
        The log is missing, its name has no base offset, or `target_directory` is the log's own
        folder.
    """
    path = os.path.abspath(path_of(log_path, "log_path"))
    directory = os.path.abspath(path_of(target_directory, "target_directory"))
    refuse_other_types(verify_crc=(verify_crc, bool), config=(config, IndexConfig))
    try:
        status = os.stat(path)
        in_place = os.path.samefile(directory, os.path.dirname(path))
    except OSError as error:
        raise InputError(
            f"the path cannot be found: {error.strerror}", path=error.filename
        ) from error
    if in_place:
        raise InputError("the target is the folder of the log", path=directory)
    parsed_name = parse_partition_directory(os.path.basename(os.path.dirname(path)))
    partition = TopicPartition("", -1) if parsed_name is None else parsed_name
    segment = SegmentFile(
        partition.topic,
        partition.partition,
        parse_base_offset(path),
        path,
        status.st_size,
        status.st_mtime_ns,
    )
    settings = BuildSettings(
        LogConfig(config), directory, outputs=INDEX_OUTPUTS, verify_crc=verify_crc
    )
    source = LogFileSource.of_segment(segment, verify_crc=verify_crc)
    staged = stage_segment(segment, source, settings, "single", directory)
    return publish_segment(staged, settings)
