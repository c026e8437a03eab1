"""The local engine: bins on threads of this process, whose kernels let go of the GIL."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc

from kafka_index.build.partition import publish_partition
from kafka_index.build.plan import read_plan
from kafka_index.build.report import FAILED, SegmentReport
from kafka_index.build.segment import build_segments
from kafka_index.build.settings import BuildSettings
from kafka_index.build.staged import StagedSegment
from kafka_index.build.staging import stage_segments
from kafka_index.layout.names import TopicPartition
from kafka_index.storage import SegmentFile


class BuildListener(Protocol):
    """Whom a local build tells what it has done; called by one thread at a time."""

    def on_scanned(self, row: SegmentReport) -> None:
        """Take that a segment has been scanned, or was kept."""

    def on_report(self, row: SegmentReport) -> None:
        """Take the final row of a segment."""


def run_local(
    plan: pa.Table,
    settings: BuildSettings,
    *,
    threads: int,
    listener: BuildListener,
    fail_fast: bool = False,
) -> bool:
    """Build all bins of a plan.

    Parameters
    ----------
    plan : pa.Table
        `kafka_index.build.WORK_SCHEMA`, every segment of each partition in it.
    settings : BuildSettings
        How and where to.
    threads : int
        Bins, or partitions, at a time.
    listener : BuildListener
        Called with each segment's row.
    fail_fast : bool
        Begin no further segment once one has failed; those not begun have no row, nor have those
        of partitions that were not finished.

    Returns
    -------
    bool
        False when it was left at a segment that failed.
    """
    kind = _StateRun if settings.needs_state else _SegmentRun
    run = kind(plan, settings, listener, fail_fast=fail_fast)
    with ThreadPoolExecutor(threads, thread_name_prefix="build") as pool:
        try:
            run.run(pool)
            return not run.stopped.is_set()
        finally:
            # After an interrupt or an error of our own the other bins need not go on.
            run.stopped.set()


class _SegmentRun:
    """A build of segments one by one."""

    def __init__(
        self, plan: pa.Table, settings: BuildSettings, listener: BuildListener, *, fail_fast: bool
    ) -> None:
        self.fail_fast = fail_fast
        self.stopped = threading.Event()
        self._plan = plan
        self._settings = settings
        self._listener = listener
        self._lock = threading.Lock()

    def run(self, pool: ThreadPoolExecutor) -> None:
        """Build every bin."""
        numbers = pc.unique(self._plan.column("bin")).to_pylist()
        for future in [pool.submit(self._build_bin, number, pool) for number in numbers]:
            future.result()

    def _build_bin(self, number: int, _: ThreadPoolExecutor) -> None:
        for row in build_segments(
            self._segments(number), self._settings, attempt_id=f"bin{number}"
        ):
            with self._lock:
                self._listener.on_scanned(row)
            self._report(row)

    def _segments(self, number: int) -> Iterable[SegmentFile]:
        rows = self._plan.filter(pc.field("bin") == number)
        return (one for one in read_plan(rows) if not self.stopped.is_set())

    def _report(self, row: SegmentReport) -> None:
        with self._lock:
            self._listener.on_report(row)
        if self.fail_fast and row.status == FAILED:
            self.stopped.set()


class _StateRun(_SegmentRun):
    """A build of partitions: each is published once all of its segments have been scanned."""

    def __init__(
        self, plan: pa.Table, settings: BuildSettings, listener: BuildListener, *, fail_fast: bool
    ) -> None:
        super().__init__(plan, settings, listener, fail_fast=fail_fast)
        names = zip(
            plan.column("topic").to_pylist(), plan.column("partition").to_pylist(), strict=True
        )
        self._missing = Counter(TopicPartition(*name) for name in names)
        self._staged: dict[TopicPartition, list[StagedSegment]] = {}
        self._publishing: list[Future[None]] = []

    def run(self, pool: ThreadPoolExecutor) -> None:
        """Scan every bin, and publish every partition."""
        super().run(pool)
        for future in self._publishing:
            future.result()
        # Of partitions that were not finished only what went wrong is told.
        for left in self._staged.values():
            for one in left:
                one.remove_scratch(self._settings)
                if one.report.status == FAILED:
                    self._report(one.report)

    def _build_bin(self, number: int, pool: ThreadPoolExecutor) -> None:
        segments = self._segments(number)
        for one in stage_segments(segments, self._settings, attempt_id=f"bin{number}"):
            partition = TopicPartition(one.segment.topic, one.segment.partition)
            with self._lock:
                self._listener.on_scanned(one.report)
                self._staged.setdefault(partition, []).append(one)
                self._missing[partition] -= 1
                if self._missing[partition] == 0:
                    whole = self._staged.pop(partition)
                    self._publishing.append(pool.submit(self._publish, whole))
            if self.fail_fast and one.report.status == FAILED:
                self.stopped.set()

    def _publish(self, staged: list[StagedSegment]) -> None:
        if self.stopped.is_set() and not self.fail_fast:
            return
        staged.sort(key=lambda one: one.segment.base_offset)
        for row in publish_partition(staged, self._settings, attempt_id="partition"):
            self._report(row)
        for one in staged:
            # What was only there for the fold.
            one.remove_scratch(self._settings)
