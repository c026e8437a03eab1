"""The Spark job on two cores against one core of this process, its cost per bin, and its memory."""

from __future__ import annotations

import os
import statistics
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from pyspark.sql import SparkSession

from benchmarks.dumps import Statuses
from benchmarks.logs import warm, write_log
from benchmarks.recover import seconds
from kafka_index.commands.build.log_build import build_logs
from kafka_index.core.job.engine import ThreadEngine, Workers
from kafka_index.core.log.recovery.settings import BuildSettings
from kafka_index.core.logdir.listing import list_dump
from kafka_index.core.logdir.partition_files import SegmentFile
from kafka_index.spark.session import build_session
from kafka_index.spark.workers import session_workers

_BATCH_BYTES = 1024
_SEGMENTS = 384
_LOG_BYTES = 1 << 29
_SMALL_SEGMENTS = 200
_SMALL_BYTES = 1 << 16
_ROUNDS = 3
_SPEED_GOAL = 1.6
_SMALL_GOAL_SECONDS = 0.05
_LARGE_BYTES = (1 << 31) - 1
_MEMORY_GOAL_BYTES = 300 << 20
_POLL_SECONDS = 0.02
_WORKER = "kafka_index.spark.daemon"


def run(scratch: Path) -> bool:
    """Measure, print, and return whether all goals are reached."""
    session = build_session("local[2]", "kafka-index benchmark")
    try:
        # Memory first: a worker keeps what it once had.
        reached = _memory(session, scratch)
        reached &= _small(session, scratch)
        return _throughput(session, scratch) and reached
    finally:
        session.stop()


def _throughput(session: SparkSession, scratch: Path) -> bool:
    dump = _partitions(scratch, "spark-dump", _SEGMENTS, _BATCH_BYTES, _LOG_BYTES)
    warm(next(dump.glob("topic-0/*.log")))
    segments = list_dump([str(dump)], topics=None).segments
    one, two = [], []
    for _ in range(_ROUNDS + 1):
        with TemporaryDirectory(dir=scratch) as target:
            one.append(seconds(lambda: _run_local(segments, target)))
        with TemporaryDirectory(dir=scratch) as target:
            two.append(seconds(lambda: _run_spark(session, segments, target)))
    size = _SEGMENTS * _LOG_BYTES / 1e9
    # The first round compiles, starts workers and warms the page cache.
    o, t = (size / statistics.median(times[1:]) for times in (one, two))
    print(
        f"Spark job on 2 cores, session started: {t:.2f} GB/s; this process on one: {o:.2f} GB/s; "
        f"ratio {t / o:.2f}, goal {_SPEED_GOAL}",
        flush=True,
    )
    return t / o >= _SPEED_GOAL


def _small(session: SparkSession, scratch: Path) -> bool:
    dump = _partitions(scratch, "small-dump", _SMALL_SEGMENTS, _BATCH_BYTES, _SMALL_BYTES)
    segments = list_dump([str(dump)], topics=None).segments
    times = []
    for _ in range(_ROUNDS):
        with TemporaryDirectory(dir=scratch) as target:
            times.append(seconds(lambda: _run_spark(session, segments, target)))
    # Two slots: a segment keeps one of them busy for twice its share of the wall clock.
    each = 2 * statistics.median(times) / _SMALL_SEGMENTS
    print(
        f"Small segments: {1000 * each:.1f} ms each, goal {1000 * _SMALL_GOAL_SECONDS}",
        flush=True,
    )
    return each < _SMALL_GOAL_SECONDS


def _memory(session: SparkSession, scratch: Path) -> bool:
    log = write_log(scratch / "large-dump" / "topic-0", 80, _LARGE_BYTES)
    segments = list_dump([str(log.parent)], topics=None).segments
    with _peak_memory() as bare:
        session.range(1).mapInArrow(lambda batches: batches, "id long").count()
    with _peak_memory() as peak, TemporaryDirectory(dir=scratch) as target:
        _run_spark(session, segments, target)
    more = max(peak) - max(bare)
    print(
        f"Private memory of a task over {log.stat().st_size / 2**30:.2f} GiB of 80-byte batches: "
        f"{more / 2**20:.0f} MiB above the bare worker's {max(bare) / 2**20:.0f}, "
        f"goal {_MEMORY_GOAL_BYTES >> 20}",
        flush=True,
    )
    return more < _MEMORY_GOAL_BYTES


def _partitions(scratch: Path, name: str, count: int, batch_bytes: int, log_bytes: int) -> Path:
    """Make a data directory of equal partitions: one log under many names."""
    dump = scratch / name
    log = write_log(dump / "topic-0", batch_bytes, log_bytes)
    for number in range(1, count):
        other = dump / f"topic-{number}" / log.name
        if not other.exists():
            other.parent.mkdir(parents=True, exist_ok=True)
            os.link(log, other)
    return dump


def _run_local(segments: Sequence[SegmentFile], target: str) -> None:
    with ThreadEngine(1).start("build") as workers:
        _run(workers, segments, target)


def _run_spark(session: SparkSession, segments: Sequence[SegmentFile], target: str) -> None:
    with session_workers(session) as workers:
        _run(workers, segments, target)


def _run(workers: Workers, segments: Sequence[SegmentFile], target: str) -> None:
    statuses = Statuses()
    build_logs(workers, segments, BuildSettings(target_root=target), listener=statuses)
    _expect(statuses.found)


def _expect(statuses: list[str]) -> None:
    if set(statuses) != {"built"}:
        raise RuntimeError(f"not everything was built: {set(statuses)}")


@contextmanager
def _peak_memory() -> Iterator[list[int]]:
    """Watch the private memory (RssAnon) of Spark's Python workers."""
    seen = [0]
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(_POLL_SECONDS):
            seen.append(max(_private_bytes(), default=0))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield seen
    finally:
        ended.set()
        thread.join()


def _private_bytes() -> Iterator[int]:
    for process in Path("/proc").iterdir():
        if not process.name.isdigit():
            continue
        try:
            if _WORKER not in (process / "cmdline").read_text():
                continue
            for line in (process / "status").read_text().splitlines():
                if line.startswith("RssAnon:"):
                    yield int(line.split()[1]) * 1024
        except OSError:
            continue
