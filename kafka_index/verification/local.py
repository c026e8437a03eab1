"""Verifying on threads of this process: segments in parallel, a partition once all were scanned."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from kafka_index.storage import SegmentFile
from kafka_index.storage.segment_table import SegmentTable
from kafka_index.verification.data_directory import DataDirectory
from kafka_index.verification.findings import PartitionFindings
from kafka_index.verification.partition import PartitionVerification
from kafka_index.verification.segment import SegmentCheck
from kafka_index.verification.settings import VerifySettings

#: Called with what was found in each partition, by one thread at a time.
OnPartition = Callable[[PartitionFindings], None]


class DataDirectories:
    """The roots of data directories, each read once."""

    def __init__(self) -> None:
        self._known: dict[str, DataDirectory] = {}
        self._guard = threading.Lock()

    def of(self, partition_directory: str) -> DataDirectory:
        """Return the data directory that holds a partition directory."""
        path = os.path.dirname(partition_directory)
        with self._guard:
            if path not in self._known:
                self._known[path] = DataDirectory.read(path)
            return self._known[path]


@dataclass(eq=False)
class _Running:
    """A partition whose segments are being scanned."""

    verification: PartitionVerification
    waiting: int
    checks: list[SegmentCheck] = field(default_factory=list)


def run_local(
    segments: Sequence[SegmentFile],
    settings: VerifySettings,
    *,
    threads: int,
    on_partition: OnPartition,
) -> None:
    """Verify partitions, of which all segments are given, with segments scanned by so many threads.

    The callback gets the findings of each partition, from one thread at a time.
    """
    roots = DataDirectories()
    work = _work(SegmentTable.of(segments), settings, roots)
    guard, report_guard = threading.Lock(), threading.Lock()
    stopped = threading.Event()

    def scan(attempt_id: str) -> None:
        """Scan segments until there are none left."""
        while not stopped.is_set():
            with guard:
                running, segment = next(work, (None, None))
            if running is None or segment is None:
                return
            check = running.verification.check(segment, attempt_id=attempt_id)
            with guard:
                running.checks.append(check)
                running.waiting -= 1
                is_last = running.waiting == 0
            if is_last:
                found = running.verification.finish(running.checks, attempt_id=attempt_id)
                running.checks.clear()
                with report_guard:
                    on_partition(found)

    try:
        with ThreadPoolExecutor(threads, thread_name_prefix="verify") as pool:
            try:
                for future in [pool.submit(scan, f"thread{n}") for n in range(threads)]:
                    future.result()
            finally:
                stopped.set()
    finally:
        shutil.rmtree(settings.scratch_root(), ignore_errors=True)


def _work(
    segments: SegmentTable, settings: VerifySettings, roots: DataDirectories
) -> Iterator[tuple[_Running, SegmentFile]]:
    """Yield the segments, the largest partitions first."""
    partitions = sorted(segments.partitions, key=lambda one: -int(one.sizes_bytes.sum()))
    for members in partitions:
        files = members.files()
        root = roots.of(files[-1].partition_directory)
        running = _Running(PartitionVerification(files, settings, root), len(files))
        for segment in files:
            yield running, segment


def verify_partitions(
    partitions: Iterable[Sequence[SegmentFile]], settings: VerifySettings, *, attempt_id: str
) -> Iterator[PartitionFindings]:
    """Verify partitions one after the other, as a task does.

    Each has every segment, by base offset. The attempt id names scratch files; no two attempts
    share it.
    """
    roots = DataDirectories()
    for segments in partitions:
        root = roots.of(segments[-1].partition_directory)
        verification = PartitionVerification(segments, settings, root)
        checks = [verification.check(segment, attempt_id=attempt_id) for segment in segments]
        yield verification.finish(checks, attempt_id=attempt_id)
