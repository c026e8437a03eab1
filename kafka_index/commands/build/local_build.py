"""Builds of logs: on threads of this process, or in Spark jobs.

On threads, the segments of a partition are scanned close together, and the thread that scans the
last one publishes the partition. So an interrupted run keeps every partition that was scanned
completely. Small partitions are published in groups, which share the cost of fsync.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from os import PathLike
from typing import Protocol

from kafka_index.commands.build.job_stages import (
    build_waves,
    by_partition,
    partition_groups,
    plan_waves,
)
from kafka_index.commands.build.request import BuildRequest
from kafka_index.core.errors import InputError, refuse_other_types
from kafka_index.core.format.config import IndexConfig, LogConfig
from kafka_index.core.format.names import TopicPartition, parse_partition_directory
from kafka_index.core.format.uri_passwords import path_of
from kafka_index.core.fs.paths import real_path, with_links
from kafka_index.core.fs.store import Entry
from kafka_index.core.job.engine import Listener, SplittableTask, Workers
from kafka_index.core.log.recovery.choices import INDEX_OUTPUTS, BuildOutput
from kafka_index.core.log.recovery.publish import (
    GROUP_SEGMENTS,
    publish_partitions,
    publish_segment,
)
from kafka_index.core.log.recovery.scan import stage_segment, stage_segments
from kafka_index.core.log.recovery.settings import FAILED, BuildSettings, SegmentReport
from kafka_index.core.log.recovery.staged_segment import StagedSegment
from kafka_index.core.log.scan.segment_scan import LogFileSource
from kafka_index.core.log.state.partition_state import ProducerExpiration
from kafka_index.core.logdir.listing import Listing
from kafka_index.core.logdir.partition_files import SegmentFile, base_offset_of
from kafka_index.core.logdir.segment_table import SegmentTable
from kafka_index.core.output.locks import DirectoryLock
from kafka_index.core.output.output import Output
from kafka_index.core.output.temporary_files import swept_target

# Size limits of a group, also relative to the run, so that all threads publish.
_GROUP_BYTES = 256 << 20
_GROUPS_PER_THREAD = 8

DEFAULT_CONFIG = IndexConfig()


AFTER_FAILURE = "finished segments are kept: run again to continue"


class BuildListener(Protocol):
    """Callbacks of a build; called by one thread at a time."""

    def on_scanned(self, row: SegmentReport) -> None:
        """Receive a segment that a thread has scanned or kept; Spark counts its tasks instead."""

    def on_report(self, row: SegmentReport) -> None:
        """Receive the final row of a segment."""


def build_settings(
    request: BuildRequest, config: LogConfig, outputs: frozenset[BuildOutput], listener: Listener
) -> BuildSettings:
    """Return the settings of a run; `outputs` are the default files."""
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
def held_target(
    request: BuildRequest,
    settings: BuildSettings,
    listing: Listing | None = None,
    *,
    inputs: Sequence[str] = (),
) -> Iterator[str | None]:
    """Lock the target and remove leftovers; yield its root, None for files next to the logs."""
    root, directories = None, []
    held: Output | DirectoryLock
    if listing is not None:
        directories = listing.partition_directories
        # A link inside a local data directory may lead out of it.
        inputs = [*request.folders, *with_links(directories)]
    if settings.target_root is not None:
        root = real_path(settings.target_root)
        held = Output.of_tables(
            root,
            settings.target_root,
            inputs,
            settings.run_id,
            hint="choose another --output, or give --in-place to write next to the logs",
        )
    elif listing is not None:
        held = DirectoryLock.of_data_directories(listing.data_directories)
    with held, swept_target(root, directories, run_id=settings.run_id):
        yield root


def build_logs(
    workers: Workers,
    segments: Iterable[SegmentFile],
    settings: BuildSettings,
    *,
    listener: BuildListener,
    fail_fast: bool = False,
) -> None:
    """Build segments; all segments of each partition must be given.

    The listener receives each segment's row. With `fail_fast`, no further segment starts after a
    failure. Segments that were not started, and those of incomplete partitions, have no row.
    """
    table = SegmentTable.of(segments)
    if workers.in_process:
        _build_on_threads(workers, table, settings, listener, fail_fast=fail_fast)
        return
    waves = plan_waves(table)
    with closing(build_waves(workers, waves, settings, fail_fast=fail_fast)) as reports:
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
    planned = _plan(segments, workers.count)
    listed = {
        each.partition: each.start_entries
        for group in planned
        for each in group.partitions
        if each.start_entries is not None
    }
    publisher = Publisher(map(len, planned), settings, listener, fail_fast=fail_fast, listed=listed)

    def scan(number: int, segment: SegmentFile, attempt_id: str) -> None:
        if not publisher.stopped.is_set():
            for staged in stage_segments([segment], settings, attempt_id=attempt_id):
                publisher.add(number, staged, attempt_id)

    def divide(number: int) -> SplittableTask[None]:
        # Largest first, so that the last segment, for which the others wait, is short.
        group = sorted(planned[number], key=lambda segment: -segment.log_size_bytes)
        return SplittableTask([partial(scan, number, segment) for segment in group], _nothing)

    sizes = [group.total_bytes for group in planned]
    done = workers.run_parts(range(len(planned)), divide, sizes=sizes, what="build {:,} groups")
    publisher.finish(done)


def _nothing(_pieces: Sequence[None], _attempt_id: str) -> None: ...


def _plan(segments: SegmentTable, threads: int) -> list[SegmentTable]:
    """Return the groups of partitions that are published together."""
    share = _GROUPS_PER_THREAD * threads
    return partition_groups(
        segments,
        max_bytes=min(_GROUP_BYTES, segments.total_bytes // share),
        max_segments=min(GROUP_SEGMENTS, -(-len(segments) // share)),
    )


class Publisher:
    """Publishes each group of segments after its last one has been scanned; shared by threads.

    Groups are complete partitions; `counts` are their numbers of segments. With `fail_fast`, a
    failed segment sets `stopped`. `listed` is as in `publish_partitions`.
    """

    def __init__(
        self,
        counts: Iterable[int],
        settings: BuildSettings,
        listener: BuildListener,
        *,
        fail_fast: bool,
        listed: Mapping[TopicPartition, Sequence[Entry]] | None = None,
    ) -> None:
        self._listed = listed
        self.stopped = threading.Event()
        self._missing = list(counts)
        self._groups: list[list[StagedSegment]] = [[] for _ in self._missing]
        self._settings = settings
        self._listener = listener
        self._fail_fast = fail_fast
        self._lock = threading.Lock()

    def finish(self, done: Generator[object, None, None]) -> None:
        """Wait for all tasks that add segments; report incomplete partitions."""
        try:
            with closing(done):
                for _ in done:
                    if self.stopped.is_set():
                        break
        finally:
            # After an interrupt or an internal error, threads complete their current segment.
            self.stopped.set()
        self._report_unfinished()

    def add(self, number: int, staged: StagedSegment, attempt_id: str) -> None:
        """Add a scanned segment to its group; publish the group if it is the last one."""
        group = self._groups[number]
        with self._lock:
            self._listener.on_scanned(staged.report)
            group.append(staged)
            self._missing[number] -= 1
            is_complete = self._missing[number] == 0
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
        """Publish files that need no other segment; report failures of incomplete partitions."""
        for group in self._groups:
            if group and not self._settings.needs_state:
                self._publish(group, "unfinished")
                continue
            for staged in group:
                staged.remove_scratch(self._settings)
                if staged.report.status == FAILED:
                    self.report(staged.report)

    def _publish(self, group: list[StagedSegment], attempt_id: str) -> None:
        waiting = group.copy()
        group.clear()
        rows = publish_partitions(
            by_partition(waiting), self._settings, attempt_id=attempt_id, listed=self._listed
        )
        for row in rows:
            self.report(row)
        for staged in waiting:
            # Temporary files that were only needed for the merge.
            staged.remove_scratch(self._settings)


def build_segment_files(
    log_path: str | PathLike[str],
    target_directory: str | PathLike[str],
    *,
    config: IndexConfig = DEFAULT_CONFIG,
    verify_crc: bool = True,
) -> SegmentReport:
    """Build the index files of one log into a folder; the folder of the log may have any name.

    Parameters
    ----------
    log_path : path
        The ``.log``; its name contains the base offset.
    target_directory : path
        An existing folder other than that of the log.
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
        The log is missing, its name has no base offset, or the folder is that of the log.
    """
    path = os.path.abspath(path_of(log_path, "log_path"))
    directory = os.path.abspath(path_of(target_directory, "target_directory"))
    refuse_other_types(verify_crc=(verify_crc, bool), config=(config, IndexConfig))
    try:
        found = os.stat(path)
        in_place = os.path.samefile(directory, os.path.dirname(path))
    except OSError as error:
        raise InputError(f"cannot be found: {error.strerror}", path=error.filename) from error
    if in_place:
        raise InputError("the target is the folder of the log", path=directory)
    name = parse_partition_directory(os.path.basename(os.path.dirname(path)))
    partition = TopicPartition("", -1) if name is None else name
    segment = SegmentFile(
        partition.topic,
        partition.partition,
        base_offset_of(path),
        path,
        found.st_size,
        found.st_mtime_ns,
    )
    settings = BuildSettings(
        LogConfig(config), directory, outputs=INDEX_OUTPUTS, verify_crc=verify_crc
    )
    source = LogFileSource.of_segment(segment, verify_crc=verify_crc)
    staged = stage_segment(segment, source, settings, "single", directory)
    return publish_segment(staged, settings)
