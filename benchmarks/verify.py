"""Verification and fast verification compared with a build of the same dump; a predicted start.

One core, warm page cache. The build writes all files of the partition, and the verification
compares the files of a previous build. CPU seconds are measured, so other processes do not matter.
"""

from __future__ import annotations

import shutil
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.dumps import build
from benchmarks.logs import warm, write_log
from kafka_index.commands.verify.partition import verify_partitions
from kafka_index.commands.verify.settings import VerifySettings
from kafka_index.core.format.config import LogConfig
from kafka_index.core.format.names import CLEAN_SHUTDOWN
from kafka_index.core.job.engine import ThreadEngine
from kafka_index.core.log.recovery.settings import BuildSettings
from kafka_index.core.logdir.listing import list_dump
from kafka_index.core.logdir.segment_table import SegmentTable
from kafka_index.core.startup.conditions import StartConditions
from kafka_index.core.startup.directories import predict_directories
from kafka_index.core.startup.prediction import Verdict

_BATCH_BYTES = (1024, 16384)
_ROUNDS = 5
_LOG_BYTES = 1 << 30
_BUILD_GOAL = 0.9
# At 13 GB/s for checksums, reading the headers takes most of the time (docs/benchmarks-dumps.md).
_FAST_GOAL = 5.0
_PARTITIONS = 10_000
_PREDICTION_SECONDS = 60
_META = "version=1\ncluster.id=AAAAAAAAAAAAAAAAAAAAAA\nnode.id=1\n"
_TOPIC_ID = "version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ\n"


def run(scratch: Path) -> bool:
    """Measure, print, and return whether all goals are reached."""
    return all([_compare_with_build(scratch), _prediction(scratch)])


def _compare_with_build(scratch: Path) -> bool:
    print("Verification, one core, GB/s of processor time (median of rounds, in turn)")
    print("batch bytes    build   verify   x build     fast   x verify    goals")
    reached = True
    for batch_bytes in _BATCH_BYTES:
        # The default segment size of brokers, so that the fixed cost of a file matters little.
        log = write_log(scratch / f"large-logs-{batch_bytes}" / "topic-0", batch_bytes, _LOG_BYTES)
        with TemporaryDirectory(dir=scratch) as folder:
            data, output = Path(folder, "data"), Path(folder, "output")
            (data / log.parent.name).mkdir(parents=True)
            (data / log.parent.name / log.name).hardlink_to(log)
            segments = list_dump([str(data)], topics=None).segments
            # The files that the verification compares.
            build(segments, BuildSettings())
            warm(log)
            tasks: list[Callable[[], None]] = [
                partial(_build, str(output), data),
                partial(_verify, data, fast=False),
                partial(_verify, data, fast=True),
            ]
            seconds = [statistics.median(times) for times in _measure(tasks)]
        size = log.stat().st_size / 1e9
        built, verified, fast = (size / each for each in seconds)
        goals = [verified / built >= _BUILD_GOAL]
        if batch_bytes == _BATCH_BYTES[-1]:
            goals.append(fast / verified >= _FAST_GOAL)
        reached &= all(goals)
        print(
            f"{batch_bytes:11,} {built:8.2f} {verified:8.2f} {verified / built:9.2f} "
            f"{fast:8.2f} {fast / verified:10.2f}    {'reached' if all(goals) else 'MISSED'}"
        )
    return reached


def _measure(tasks: list[Callable[[], None]]) -> list[list[float]]:
    times: list[list[float]] = [[] for _ in tasks]
    for task in tasks:
        task()
    for _ in range(_ROUNDS):
        for task, found in zip(tasks, times, strict=True):
            started = time.process_time()
            task()
            found.append(time.process_time() - started)
    return times


def _build(output: str, data: Path) -> None:
    shutil.rmtree(output, ignore_errors=True)
    build(list_dump([str(data)], topics=None).segments, BuildSettings(target_root=output))


def _verify(data: Path, *, fast: bool) -> None:
    segments = SegmentTable.from_files(list_dump([str(data)], topics=None).segments)
    settings = VerifySettings(0, fast=fast)
    with ThreadEngine(1).start("verify") as workers:
        found = list(verify_partitions(workers, segments, settings))
    if any(file.harmful for one in found for file in one.findings):
        raise RuntimeError(f"{data} has a harmful file")


def _prediction(scratch: Path) -> bool:
    with TemporaryDirectory(dir=scratch) as folder:
        data = Path(folder)
        source = write_log(data / "topic-0", 1024, 64 << 10)
        build(list_dump([str(data)], topics=None).segments, BuildSettings())
        (source.parent / "partition.metadata").write_text(_TOPIC_ID)
        for number in range(1, _PARTITIONS):
            shutil.copytree(source.parent, data / f"topic-{number}")
        (data / "meta.properties").write_text(_META)
        (data / CLEAN_SHUTDOWN).write_text('{"version":0,"brokerEpoch":1}')
        started, used = time.perf_counter(), time.process_time()
        prediction = predict_directories([str(data)], StartConditions(LogConfig()))
        seconds, used = time.perf_counter() - started, time.process_time() - used
        if prediction.verdict is not Verdict.SAFE or len(prediction.partitions) != _PARTITIONS:
            raise RuntimeError(f"a start on {data} is not safe: {prediction.refused}")
    is_reached = used < _PREDICTION_SECONDS
    print(
        f"predict: {_PARTITIONS:,} partitions in {seconds:.1f} s, {used:.1f} s of the processor "
        f"(goal {_PREDICTION_SECONDS} s): {'reached' if is_reached else 'MISSED'}"
    )
    return is_reached
